//! `whimbrel ping`.

use std::time::Duration;

use whimbrel_ipc::Pinged;

use super::{duration, milliseconds};
use crate::table::{width, wrap};

const INDENT: usize = 9;

/// One question, as it is answered.
pub(crate) fn pong(of: &Pinged, number: u32) -> String {
    let who = of.peer.as_ref().map_or_else(String::new, |peer| format!("{peer} at "));
    match &of.reason {
        None => format!("{number}: {who}{} answers after {} ms\n", of.address, milliseconds(of.round_trip_ms)),
        Some(_) => format!("{number}: {who}{} does not answer\n", of.address),
    }
}

/// What all of them show.
pub(crate) fn pongs(all: &[Pinged]) -> String {
    let Some(last) = all.iter().rfind(|one| one.answered).or(all.last()) else { return String::new() };
    let port = last.address.port();
    let session = match &last.session {
        Some(session) => format!("up for {}", duration(Duration::from_millis(session.age_ms))),
        None => "none".to_owned(),
    };
    let mut lines = vec![("session", session)];
    if let Some(local) = last.local {
        let seen = last.observed.map(|seen| format!(", where this host is seen as {seen}")).unwrap_or_default();
        lines.push(("path", format!("from {local} to {}{seen}", last.address)));
    }
    let nat = match (last.nat_here, last.nat_there) {
        (Some(true), Some(true)) => Some("both hosts are behind one"),
        (Some(true), Some(false)) => Some("this host is behind one, the other is not"),
        (Some(false), Some(true)) => Some("the other host is behind one, this one is not"),
        (Some(false), Some(false)) => Some("none"),
        _ => None,
    };
    lines.extend(nat.map(|nat| ("NAT", nat.to_owned())));
    lines.push(match &last.reason {
        None => ("UDP", format!("port {port} passes out, and the answers in")),
        Some(reason) => {
            let heard = last.heard_ms.map(|ago| format!(", last heard {} ago", duration(Duration::from_millis(ago))));
            ("UDP", format!("no answer{}: {reason}", heard.unwrap_or_default()))
        }
    });
    let took: Vec<f64> = all.iter().filter_map(|one| one.round_trip_ms).collect();
    if let (Some(least), Some(most)) = (took.iter().copied().reduce(f64::min), took.iter().copied().reduce(f64::max)) {
        let mean = took.iter().sum::<f64>() / took.len() as f64;
        let [least, mean, most] = [least, mean, most].map(|ms| milliseconds(Some(ms)));
        lines.push((
            "answers",
            format!("{} of {}; least, mean and most {least}, {mean}, {most} ms", took.len(), all.len()),
        ));
    }
    lines.iter().map(|(name, text)| format!("{name:INDENT$}{}\n", wrap(text, width(), INDENT))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{PeerName, Session};

    fn pinged(answered: bool) -> Pinged {
        Pinged {
            address: "203.0.113.5:2031".parse().unwrap(),
            peer: Some(PeerName { id: 3, key: "key".into(), name: Some("desk".into()) }),
            session: Some(Session {
                age_ms: 61_000,
                round_trip_ms: Some(40.5),
                heard_ms: Some(28_040),
                version: 1,
                capabilities: Vec::new(),
            }),
            answered,
            round_trip_ms: answered.then_some(40.5),
            tries: 1,
            local: "192.168.1.2".parse().ok(),
            observed: answered.then(|| "198.51.100.1:2031".parse().unwrap()),
            nat_here: answered.then_some(true),
            nat_there: answered.then_some(false),
            heard_ms: Some(28_040),
            reason: (!answered).then(|| "it does not run any more".to_owned()),
        }
    }

    #[test]
    fn what_answers_says_by_which_way() {
        assert_eq!(pong(&pinged(true), 1), "1: desk at 203.0.113.5:2031 answers after 40 ms\n");
        assert_eq!(
            pongs(&[pinged(true), pinged(false)]),
            "\
session  up for 1 min 1 s
path     from 192.168.1.2 to 203.0.113.5:2031, where this host is seen as 198.51.100.1:2031
NAT      this host is behind one, the other is not
UDP      port 2031 passes out, and the answers in
answers  1 of 2; least, mean and most 40, 40, 40 ms
"
        );
    }

    #[test]
    fn what_does_not_answer_says_when_it_was_heard() {
        let text = pongs(&[pinged(false)]).replace('\n', " ");
        assert!(text.contains("no answer, last heard 28 s ago: it does not run any more"), "{text}");
        assert_eq!(pong(&pinged(false), 2), "2: desk at 203.0.113.5:2031 does not answer\n");
    }
}
