//! `make demo`: a download and an ssh session cross a move, for people to watch.

mod plot;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{
    Attachment, Campus, Download, Gateway, Join, Lab, Leave, MonoTime, Nginx, Result, Shape, SiteSpec, SshServer,
    Whimbrel, wait_for,
};

use plot::{Mark, Plot};

/// Rate of the uplinks, in Mbit/s: the download takes what it can.
const RATE: u64 = 50;
/// Bytes of the download: 24 seconds at that rate, so that it outlasts both moves also on a machine that is slow to
/// show them. The file is there twice, below /run, which is small on small machines.
const SIZE: u64 = 150_000_000;
/// How often the download's size is read, for the plot.
const SAMPLE: Duration = Duration::from_millis(10);
/// How often progress is drawn anew on a terminal, and printed where there is none.
const REDRAW: Duration = Duration::from_millis(200);
const PRINT: Duration = Duration::from_secs(1);
/// How often something is typed into the ssh session.
const TYPE_EVERY: Duration = Duration::from_millis(150);
/// How long one stay lasts.
const STAY: Duration = Duration::from_secs(5);

const TOPOLOGY: &str = "
   laptop --(café, public addresses)--- router ---20 ms---+
      :                                                   +--- core --- server (nginx, sshd)
      :...(home, behind a NAT)--------- router ---20 ms---+
";

/// What the ssh session did.
struct Typed {
    count: usize,
    slowest: Duration,
}

/// Runs the demo; the plot of the throughput goes to `plot`, and the time line of the laptop's events beside it.
pub fn run(lab: &mut Lab, plot_path: &Path) -> Result<()> {
    println!("Whimbrel: open connections outlive a change of network.\n{TOPOLOGY}");
    let mut campus = Campus::new(lab)?;
    let cafe = campus.add(lab, SiteSpec::named("a").v4_only().uplink(Shape::delay_rate(20, RATE)))?;
    let home_spec =
        SiteSpec::named("b").behind(Gateway::Nat { random_ports: true }).uplink(Shape::delay_rate(20, RATE));
    let home = campus.add(lab, home_spec)?;
    let shelf = campus.add(lab, SiteSpec::named("s").v4_only())?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let at_shelf = server.join(&shelf.network, &Join::by("eth0"))?;
    let at_cafe = laptop.join(&cafe.network, &Join::by("wlan0"))?;
    let daemons = [("laptop", laptop.whimbrel()?), ("server", server.whimbrel()?)];
    step("both hosts run `whimbrel up`; no configuration");

    let nginx = Nginx::start(&server, at_shelf.ipv4()?)?;
    let url = nginx.file("film", SIZE as usize)?;
    let checksum = nginx.checksum(&server, "film")?;
    let sshd = SshServer::start(&server, at_shelf.ipv4()?)?;
    let started = MonoTime::now();
    let mut download = Download::start(&laptop, &url, &[])?;
    let session = sshd.session(&laptop)?;
    step(&format!("curl loads {} MB from nginx over {RATE} Mbit/s; an ssh session types along", SIZE / 1_000_000));

    let stop = Arc::new(AtomicBool::new(false));
    let typist = type_along(session, stop.clone());
    wait_for(Duration::from_secs(30), "both connections are introduced", || {
        let connections = daemons[0].1.connections()?;
        let ready = connections.iter().filter(|c| c.state == whimbrel_ipc::ConnectionState::Native).count();
        Ok((ready >= 2).then_some(()))
    })?;
    print!("{}", daemons[0].1.cli(&["connections"])?);

    let mut watch = Watch { started, samples: Vec::new(), marks: Vec::new(), redraw: Redraw::default() };
    watch.stay(&mut download, STAY)?;
    let at_home = watch.move_to(&laptop, &at_cafe, &home.network, "home, behind a NAT", &mut download)?;
    print!("{}", daemons[0].1.cli(&["connections"])?);
    watch.stay(&mut download, STAY)?;
    watch.move_to(&laptop, &at_home, &cafe.network, "back in the café", &mut download)?;
    print!("{}", daemons[0].1.cli(&["connections"])?);
    watch.finish(&mut download)?;
    download.finish(&checksum, Duration::from_secs(60))?;
    stop.store(true, Ordering::Relaxed);
    let typed = typist.join().unwrap_or_else(|_| Err(crate::Error::Usage("the typist panicked".into())))?;

    println!("\nWhat happened (seconds since the download began):");
    for line in timeline(&daemons, started)? {
        println!("  {line}");
    }
    let plot = Plot { samples: watch.samples, marks: watch.marks, title: "A download crosses two moves".into() };
    plot.write(plot_path)?;
    let drawn = plot_path.with_file_name("timeline.svg");
    daemons[0].1.cli(&[
        "events",
        "--plot",
        &std::path::absolute(&drawn).unwrap_or(drawn.clone()).display().to_string(),
    ])?;
    println!();
    step(&format!("the download is whole: SHA-256 {}…", &checksum[..16]));
    step(&format!(
        "the ssh session answered {} commands, the slowest after {:.0} ms",
        typed.count,
        typed.slowest.as_secs_f64() * 1e3
    ));
    for (place, stall) in plot.stalls() {
        step(&match stall {
            Some(stall) => {
                let ms = stall.as_secs_f64() * 1e3;
                format!("moving {place}: the file did not grow for {ms:.0} ms at the longest")
            }
            None => format!("moving {place}: the download was over by then, so this says nothing of it"),
        });
    }
    step(
        "the link's queue is full of the download: what of it comes late shortens a pause, what is sent again \
         lengthens one",
    );
    step(&format!(
        "throughput around the moves: {}; what the laptop's daemon tells: {}",
        plot_path.display(),
        drawn.display()
    ));
    Ok(())
}

fn step(text: &str) {
    println!("* {text}");
}

/// Types a command again and again, each answered by the far shell, until told to stop; then logs out.
fn type_along(mut session: crate::SshSession, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Result<Typed>> {
    std::thread::spawn(move || {
        let mut typed = Typed { count: 0, slowest: Duration::ZERO };
        while !stop.load(Ordering::Relaxed) {
            let took = session.type_and_check(Duration::from_secs(20))?;
            typed.count += 1;
            typed.slowest = typed.slowest.max(took);
            // A person's pace: part of what is shown, nothing waits for it.
            std::thread::sleep(TYPE_EVERY);
        }
        session.finish(Duration::from_secs(10))?;
        Ok(typed)
    })
}

/// Samples of the download's size, and the moves.
struct Watch {
    started: MonoTime,
    samples: Vec<(f64, u64)>,
    marks: Vec<Mark>,
    redraw: Redraw,
}

/// When progress was shown last, in seconds.
#[derive(Default)]
struct Redraw(Option<f64>);

impl Redraw {
    /// Whether so much time has passed that it is shown again; then it is taken to be.
    fn is_due(&mut self, at: f64, every: Duration) -> bool {
        let due = self.0.is_none_or(|last| at - last >= every.as_secs_f64());
        if due {
            self.0 = Some(at);
        }
        due
    }
}

impl Watch {
    fn seconds(&self, at: MonoTime) -> f64 {
        at.since(self.started).as_secs_f64()
    }

    /// Follows the download for a while.
    fn stay(&mut self, download: &mut Download, how_long: Duration) -> Result<()> {
        let until = MonoTime::now() + how_long;
        while MonoTime::now() < until && download.process().is_running() {
            self.sample(download);
            std::thread::sleep(SAMPLE);
        }
        self.end_progress();
        Ok(())
    }

    /// Follows it to its end.
    fn finish(&mut self, download: &mut Download) -> Result<()> {
        while download.process().is_running() {
            self.sample(download);
            std::thread::sleep(SAMPLE);
        }
        self.end_progress();
        Ok(())
    }

    fn sample(&mut self, download: &Download) {
        let (at, size) = (self.seconds(MonoTime::now()), download.size());
        self.samples.push((at, size));
        let terminal = std::io::stdout().is_terminal();
        if !self.redraw.is_due(at, if terminal { REDRAW } else { PRINT }) {
            return;
        }
        if terminal {
            let full = (size * 40 / SIZE) as usize;
            let bar = "#".repeat(full) + &".".repeat(40 - full.min(40));
            print!("\r  {at:5.1} s  [{bar}] {:5.1} MB", size as f64 / 1e6);
            let _ = std::io::stdout().flush();
        } else {
            println!("  {at:5.1} s  {:5.1} MB", size as f64 / 1e6);
        }
    }

    fn end_progress(&self) {
        if let Some((at, size)) = self.samples.last() {
            let line = format!("  {at:5.1} s  {:5.1} MB of {} MB", *size as f64 / 1e6, SIZE / 1_000_000);
            println!("{}{line:70}", if std::io::stdout().is_terminal() { "\r" } else { "" });
        }
    }

    /// The present network is gone at once; the other appears a moment later.
    fn move_to(
        &mut self,
        laptop: &crate::Host,
        from: &Attachment,
        to: &crate::Network,
        place: &str,
        download: &mut Download,
    ) -> Result<Attachment> {
        self.sample(download);
        laptop.leave(from, Leave::Orderly)?;
        let left = MonoTime::now();
        let attachment = laptop.join(to, &Join::by("wlan0"))?;
        let usable = attachment.usable_at;
        let address = attachment.ipv4()?;
        step(&format!(
            "the laptop leaves; {:.0} ms later it is {place}: {address}",
            usable.since(left).as_secs_f64() * 1e3
        ));
        self.marks.push(Mark { left: self.seconds(left), usable: self.seconds(usable), place: place.into() });
        self.stay(download, Duration::from_secs(1))?;
        Ok(attachment)
    }
}

/// The events of both daemons, in order of time.
fn timeline(daemons: &[(&str, Whimbrel)], started: MonoTime) -> Result<Vec<String>> {
    let start_ms = started.0 / 1_000_000;
    let mut events = Vec::new();
    for (host, daemon) in daemons {
        events.extend(daemon.events(0)?.into_iter().map(|event| (event.monotonic_ms, *host, event.sentence)));
    }
    events.sort();
    let recent = events.into_iter().filter(|(ms, _, _)| *ms >= start_ms);
    Ok(recent.map(|(ms, host, said)| format!("{:7.3}  {host:6}  {said}", (ms - start_ms) as f64 / 1e3)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_once_in_a_while() {
        let mut redraw = Redraw::default();
        assert_eq!((0..500).filter(|sample| redraw.is_due(f64::from(*sample) / 100.0, PRINT)).count(), 5);
    }
}
