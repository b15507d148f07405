//! `whimbrel events`: of a running daemon, or of a log that one has left; as text, as JSON or as a drawing.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use whimbrel_ipc::{EventRecord, EventsQuery, Reply, SchemaError, reply_from_line, reply_to_line};

use crate::complaint::Complaint;
use crate::{connect, print, show, timeline};

/// A line of a log that is longer than this, in bytes, is none.
const LONGEST: u64 = 1 << 20;

/// How the line of an event begins.
const BEGIN: &str = "{\"schema\":1,\"event\":{";

/// Prints events, of `log` or of the daemon.
pub(crate) fn events(run_dir: &Path, log: Option<&Path>, query: EventsQuery, json: bool) -> Result<(), Complaint> {
    let tell = |event: EventRecord| match json {
        true => print(&reply_to_line(&Reply::Event(event))?),
        false => print(&show::event(&event)),
    };
    match log {
        Some(log) => read(log, &query)?.into_iter().try_for_each(tell),
        None => connect(run_dir)?.events(query)?.try_for_each(|event| tell(event?)),
    }
}

/// Draws events into a file, or to standard output where it is `-`.
pub(crate) fn plot(run_dir: &Path, log: Option<&Path>, query: EventsQuery, file: &Path) -> Result<(), Complaint> {
    let (events, until) = match log {
        Some(log) => (read(log, &query)?, None),
        None => {
            let events = connect(run_dir)?.events(query)?.collect::<Result<Vec<_>, _>>()?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (events, u64::try_from(now.as_millis()).ok())
        }
    };
    let drawn = timeline::plot(&events, until);
    if file == Path::new("-") {
        return print(&drawn);
    }
    std::fs::write(file, drawn).map_err(|error| Complaint::Drawing(file.to_owned(), error))?;
    print(&format!("Drew {} into {}.\n", show::count(events.len(), "event"), file.display()))
}

/// The events of a log that a query asks for. What else it says (that no more events come, say) is left out; so is a
/// last line that is not ended, which its writer was killed over.
fn read(log: &Path, query: &EventsQuery) -> Result<Vec<EventRecord>, Complaint> {
    let broken = |error| Complaint::Log(log.to_owned(), error);
    let mut lines = BufReader::new(File::open(log).map_err(broken)?);
    let mut events = Vec::new();
    for number in 1.. {
        let mut line = Vec::new();
        (&mut lines).take(LONGEST).read_until(b'\n', &mut line).map_err(broken)?;
        let text = String::from_utf8_lossy(&line);
        match reply_from_line(&text) {
            Ok(Reply::Event(event)) if event.number > query.since.unwrap_or(0) => events.push(event),
            Ok(_) => {}
            Err(_) if !text.ends_with('\n') && (line.len() as u64) < LONGEST => break,
            Err(_) if text.trim().is_empty() => {}
            // A daemon that was killed over it was followed by another.
            Err(SchemaError::Malformed(_)) if text.starts_with(BEGIN) && (line.len() as u64) < LONGEST => {}
            Err(error) => return Err(Complaint::Line(log.to_owned(), number, error)),
        }
        if !text.ends_with('\n') {
            break;
        }
    }
    let wanted = query.last.unwrap_or(usize::MAX);
    Ok(events.split_off(events.len().saturating_sub(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn line(number: u64) -> String {
        format!(
            "{{\"schema\":1,\"event\":{{\"number\":{number},\"time\":\"2026-01-31T23:59:58.007Z\",\"monotonic_ms\":1,\
             \"kind\":\"test\",\"sentence\":\"something\"}}}}\n"
        )
    }

    fn numbers(text: &str, query: &EventsQuery) -> Result<Vec<u64>, String> {
        static FILES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let file = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("whimbrel-log-{}-{file}", std::process::id()));
        fs::write(&path, text).unwrap();
        let read = read(&path, query);
        fs::remove_file(&path).unwrap();
        let shorten = |complaint: Complaint| complaint.to_string().replace(&path.display().to_string(), "LOG");
        read.map(|events| events.iter().map(|event| event.number).collect()).map_err(shorten)
    }

    #[test]
    fn a_log_is_read_as_a_daemon_is_asked() {
        let log: String = (1..=5).map(line).collect();
        let all = EventsQuery::default();
        assert_eq!(numbers(&log, &all), Ok(vec![1, 2, 3, 4, 5]));
        assert_eq!(numbers(&log, &EventsQuery { last: Some(2), ..all.clone() }), Ok(vec![4, 5]));
        assert_eq!(numbers(&log, &EventsQuery { since: Some(3), ..all.clone() }), Ok(vec![4, 5]));
        assert_eq!(numbers("", &all), Ok(vec![]));
        // What `whimbrel events --json` prints beside them, and a line that a crash cut off.
        assert_eq!(numbers(&format!("{}{{\"schema\":1,\"end\":{{\"newest\":1}}}}\n\n", line(1)), &all), Ok(vec![1]));
        assert_eq!(numbers(&log[..log.len() - 9], &all), Ok(vec![1, 2, 3, 4]));
        assert_eq!(numbers(log.trim_end(), &all), Ok(vec![1, 2, 3, 4, 5]));
        assert_eq!(numbers(&format!("{}\n{}", &line(1)[..60], line(2)), &all), Ok(vec![2]));
    }

    #[test]
    fn a_log_that_is_not_there_is_told_of() {
        let error = read(Path::new("/nonexistent/log"), &EventsQuery::default()).unwrap_err().to_string();
        assert!(error.contains("no such log") && error.contains("`event_log`"), "{error}");
    }

    #[test]
    fn what_is_no_log_is_refused_with_its_line() {
        let error = numbers(&format!("{}nonsense\n", line(1)), &EventsQuery::default()).unwrap_err();
        assert!(error.starts_with("LOG:2: the line is not of the local API's schema"), "{error}");
        let error = numbers("{\"schema\":2,\"event\":{}}\n", &EventsQuery::default()).unwrap_err();
        assert!(error.starts_with("LOG:1: the line is of schema 2"), "{error}");
        assert!(numbers(&"x".repeat(3 << 20), &EventsQuery::default()).is_err());
    }
}
