//! What 200 clients of a server with one UDP socket, which is not connected, lose when their host moves, and how soon
//! they hear of it again.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use whimbrel_ipc::ConnectionState;
use whimbrel_lab::{MonoTime, Whimbrel, wait_for};

use super::datagrams::{CLIENTS, LENGTH, Server};
use super::place::{Place, ms};
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// Of the uplinks, ms.
const ROUND_TRIP: u64 = 46;
/// Between two datagrams, of any clients: each asks ten times a second.
const EVERY: Duration = Duration::from_micros(500);
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(1500);
/// What has no answer after that is lost.
const PATIENCE: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(20);

/// A question: when it was sent, and when its answer came.
#[derive(Clone, Copy)]
struct Asked {
    at: MonoTime,
    answered: Option<MonoTime>,
}

/// Has the clients ask in turn until they are to end.
fn talk(clients: &[UdpSocket], ends: &AtomicBool) -> Result<Vec<Asked>> {
    let mut asked: Vec<Asked> = Vec::new();
    let start = MonoTime::now();
    let mut datagram = [0; LENGTH];
    while !ends.load(Ordering::Relaxed) {
        let number = asked.len() as u32;
        let due = start + EVERY * number;
        let left = due.since(MonoTime::now());
        if left.is_zero() {
            datagram[..4].copy_from_slice(&number.to_le_bytes());
            asked.push(Asked { at: MonoTime::now(), answered: None });
            // Where there is no network for a moment it is lost.
            let _ = clients[number as usize % clients.len()].send(&datagram);
        }
        let mut waiting: Vec<PollFd<'_>> = clients.iter().map(|client| PollFd::new(client, PollFlags::IN)).collect();
        let patience = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as i64 };
        if poll(&mut waiting, Some(&patience))? == 0 {
            continue;
        }
        for (client, waiting) in clients.iter().zip(&waiting) {
            let mut answer = [0; LENGTH];
            // What routers said of one that is lost is read, too.
            while !waiting.revents().is_empty()
                && let Ok(size) = client.recv(&mut answer)
            {
                let number = u32::from_le_bytes(answer[..4].try_into()?);
                let of = asked.get_mut(number as usize).filter(|_| size == LENGTH);
                let of = of.ok_or_else(|| format!("{size} bytes are an answer to {number}"))?;
                if of.answered.replace(MonoTime::now()).is_some() {
                    return Err(format!("the answer to {number} came twice").into());
                }
            }
        }
    }
    Ok(asked)
}

fn wait_native(daemon: &Whimbrel) -> Result<()> {
    wait_for(LONG, "all connections are introduced", || {
        std::thread::sleep(Duration::from_millis(50));
        let native = daemon.connections()?.iter().filter(|it| it.state == ConnectionState::Native).count();
        Ok((native >= CLIENTS).then_some(()))
    })?;
    Ok(())
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up, a move could not be made, or what comes is not what was sent.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(40, 6);
    let mut place = Place::build(&options.setup, true, ROUND_TRIP)?;
    let (_server, address) = Server::start(&place.server, place.address)?;
    let daemons = [place.laptop.whimbrel()?, place.server.whimbrel()?];
    let connect = |address: SocketAddr| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        socket.send(&[0xff; LENGTH])?;
        Ok(socket)
    };
    let clients =
        place.laptop.enter(|| (0..CLIENTS).map(|_| connect(address)).collect::<std::io::Result<Vec<_>>>())??;
    daemons.iter().try_for_each(wait_native)?;
    let [mut first, mut lost, mut in_flight, mut others] = std::array::from_fn(|_| Samples::default());
    for round in 0..rounds {
        // What is under way still is not to be taken for an answer of this round.
        std::thread::sleep(PATIENCE);
        for client in &clients {
            while client.recv(&mut [0; LENGTH]).is_ok() {}
        }
        let ends = AtomicBool::new(false);
        let (left, usable, asked) = std::thread::scope(|scope| -> Result<_> {
            let talking = scope.spawn(|| talk(&clients, &ends));
            std::thread::sleep(BEFORE);
            let left = MonoTime::now();
            let usable = place.travel(Duration::ZERO);
            std::thread::sleep(AFTER);
            ends.store(true, Ordering::Relaxed);
            let asked = talking.join().map_err(|_| "the asking thread panicked")??;
            Ok((left, usable?, asked))
        })?;
        let round_trip = Duration::from_millis(ROUND_TRIP);
        let counted = asked.iter().filter(|one| one.at + PATIENCE < usable + AFTER);
        let was_in_flight = |one: &&Asked| one.at + round_trip >= left && one.at <= usable;
        let missed: Vec<&Asked> = counted.filter(|one| one.answered.is_none()).collect();
        let came = asked.iter().filter_map(|one| one.answered).filter(|at| *at >= usable).min();
        let came = came.map_or(ms(AFTER), |at| ms(at.since(usable)));
        first.push(came);
        lost.push(missed.len() as f64);
        in_flight.push(asked.iter().filter(was_in_flight).count() as f64);
        others.push(missed.iter().copied().filter(|one| !was_in_flight(one)).count() as f64);
        eprintln!(
            "{}/{rounds} first answer after {came:.1} ms; lost {} of {} in flight, and {} others",
            round + 1,
            lost.values()[round] - others.values()[round],
            in_flight.values()[round],
            others.values()[round]
        );
    }
    place.keep(&options.setup, "datagram-moves")?;
    let mut report = Report::new("reach-datagram-moves");
    report.add(Figure::new("first_answer", "ms", &first).bound(Bound::AtMost(1.5 * ROUND_TRIP as f64)));
    report.add(Figure::against("lost", "datagrams", &lost, &in_flight).bound(Bound::RatioAtMost(1.0)));
    let most = others.percentile(100.0);
    // Sent between the route's coming and the daemon's hearing of it.
    report.add(Figure::from_value("lost_that_were_not_in_flight_at_most", "datagrams", most, &others));
    Ok(report)
}
