//! What becomes of connections of every age when their host moves.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use whimbrel_lab::{MonoTime, Random};

use super::place::Place;
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

const ROUND_TRIP: u64 = 46;
/// The oldest at the move.
const OLDEST: Duration = Duration::from_secs(3);
/// Connections of one move.
const AT_ONCE: usize = 50;
const SERVICE: u16 = 7200;
/// After the move, before each connection is tried.
const AFTER: Duration = Duration::from_millis(500);
/// Who has no answer by then is lost.
const PATIENCE: Duration = Duration::from_secs(8);

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Survived,
    Lost,
    /// It was being made, and was made.
    Made,
    /// It was being made, and its program was told that it failed.
    Told(ErrorKind),
    /// It was being made, and its program waits.
    Hangs,
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up, or a move could not be made.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let moves = options.runs(20, 2);
    let mut random = Random::new(16);
    let mut report = Report::new("reach-ages");
    for (side, name) in [(true, "laptop"), (false, "nothing")] {
        if !name.contains(&options.only) && !options.only.is_empty() && !"ages".contains(&options.only) {
            continue;
        }
        // Without Whimbrel all are lost; twice shows it.
        let moves = if side { moves } else { 2 };
        let mut place = Place::build(&options.setup, true, ROUND_TRIP)?;
        let to = SocketAddr::new(place.address, SERVICE);
        serve(place.server.enter(|| TcpListener::bind(to))??);
        let daemons = if side { Some([place.laptop.whimbrel()?, place.server.whimbrel()?]) } else { None };
        let known = place.laptop.enter(|| TcpStream::connect(to))??;
        std::thread::sleep(OLDEST);
        let mut fates = Vec::new();
        for number in 0..moves {
            let of = one_move(&mut place, to, &mut random)?;
            eprintln!("{}/{moves} {name}: {} lost of {}", number + 1, count(&of, |fate| fate == Fate::Lost), of.len());
            for (age, fate) in of.iter().filter(|(_, fate)| *fate != Fate::Survived) {
                eprintln!("    {age:?}: {fate:?}");
            }
            fates.extend(of);
        }
        drop((known, daemons));
        let established = count(&fates, |fate| matches!(fate, Fate::Survived | Fate::Lost));
        let share = count(&fates, |fate| fate == Fate::Lost) as f64 / established as f64 * 100.0;
        let one = |value: f64| -> Samples { [value].into_iter().collect() };
        let figure = Figure::new(&format!("{name}_established_lost"), "%", &one(share));
        report.add(if side { figure.bound(Bound::AtMost(0.2)) } else { figure });
        report.add(Figure::new(&format!("{name}_established"), "connections", &one(established as f64)));
        for (what, fits) in [
            ("made", (|fate| fate == Fate::Made) as fn(Fate) -> bool),
            ("told", |fate| matches!(fate, Fate::Told(_))),
            ("hang", |fate| fate == Fate::Hangs),
        ] {
            let figure =
                Figure::new(&format!("{name}_being_made_{what}"), "connections", &one(count(&fates, fits) as f64));
            report.add(if side && what == "hang" { figure.bound(Bound::AtMost(0.0)) } else { figure });
        }
    }
    Ok(report)
}

fn count(fates: &[(Duration, Fate)], fits: impl Fn(Fate) -> bool) -> usize {
    fates.iter().filter(|(_, fate)| fits(*fate)).count()
}

/// Sends back what comes, on each connection, until it ends.
fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

/// Opens connections whose ages at a move are drawn by lot, moves, and tries each: its age, and what became of it.
fn one_move(place: &mut Place, to: SocketAddr, random: &mut Random) -> Result<Vec<(Duration, Fate)>> {
    let ages: Vec<Duration> = (0..AT_ONCE).map(|_| OLDEST.mul_f64(random.fraction())).collect();
    let start = MonoTime::now();
    let laptop = place.laptop.clone();
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            laptop.enter(|| {
                std::thread::scope(|scope| {
                    let each: Vec<_> =
                        ages.iter().map(|age| scope.spawn(|| try_one(start, OLDEST - *age, to))).collect();
                    each.into_iter().map(|one| one.join().expect("it does not panic")).collect::<Vec<_>>()
                })
            })
        });
        sleep_until(start, OLDEST);
        let moved = MonoTime::now();
        place.travel(Duration::ZERO)?;
        let tried = tried.join().expect("it does not panic")?;
        Ok(tried
            .into_iter()
            .map(|(begun, made, outcome)| {
                let fate = match (made, outcome) {
                    (Some(made), Ok(())) if made <= moved => Fate::Survived,
                    (Some(made), Err(_)) if made <= moved => Fate::Lost,
                    (Some(_), Ok(())) => Fate::Made,
                    (_, Err(ErrorKind::TimedOut | ErrorKind::WouldBlock)) => Fate::Hangs,
                    (_, Err(kind)) => Fate::Told(kind),
                    (None, Ok(())) => Fate::Made,
                };
                (moved.since(begun), fate)
            })
            .collect())
    })
}

/// Opens a connection some time after `start`, and exchanges a byte on it after the move: when it was begun and made,
/// and what came of it.
fn try_one(
    start: MonoTime,
    after: Duration,
    to: SocketAddr,
) -> (MonoTime, Option<MonoTime>, std::result::Result<(), ErrorKind>) {
    sleep_until(start, after);
    let begun = MonoTime::now();
    let stream = TcpStream::connect_timeout(&to, PATIENCE);
    let made = stream.is_ok().then(MonoTime::now);
    sleep_until(start, OLDEST + AFTER);
    let exchanged = stream.and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    });
    (begun, made, exchanged.map_err(|error| error.kind()))
}

fn sleep_until(start: MonoTime, after: Duration) {
    std::thread::sleep(after.saturating_sub(MonoTime::now().since(start)));
}
