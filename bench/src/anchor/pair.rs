//! The whole way from a socket of the far end to one of the guest and back: by a router, by an anchor, by VPNs that end
//! in user space.
//!
//! A sender has so many datagrams on the way at most, and waits when these have not come: so it sends as fast as all of
//! the way takes, and nothing is lost. The guest's part (endpoint namespace, or its end of a VPN) counts in, as do both
//! programs.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::bed::{Anchored, Pair, Plain};
use super::hop::{HEADERS, RATE_BOUND, SIZES, Way};
use super::vpn::{OpenVpn, WireGuard};
use crate::bed::{CLIENT_CPU, SERVER_CPU, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::{Result, machine};

/// µs that an anchor may add to a round trip, beside a router (the thesis: 115).
const TRIP_BOUND: f64 = 50.0;
const TURN: Duration = Duration::from_millis(200);
const TRIP_TURN: Duration = Duration::from_millis(100);
/// Datagrams on the way; a socket's buffer takes some hundreds.
const WINDOW: u64 = 64;
/// After so long what is on the way is lost.
const LOST: Duration = Duration::from_millis(100);
/// For a first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often who waits for datagrams looks whether it is to end.
const LOOK: Duration = Duration::from_millis(10);

/// By whom packets are forwarded: what the others are compared with is first.
const NAMES: [&str; 5] = ["router", "anchor", "leased", "openvpn", "wireguard_go"];
const ANCHOR: usize = 1;

/// What came of a turn.
struct Turn {
    /// Datagrams a second.
    rate: f64,
    /// CPU time of the whole machine for one, ns.
    cost: f64,
    /// Of a thousand.
    lost: f64,
}

/// Measures.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let rounds = options.runs(20, 4);
    let plain = Plain::build(&options.setup, true)?;
    let anchored = Anchored::build(&options.setup)?;
    let pairs = [
        plain.routed()?,
        anchored.carried()?,
        anchored.leased()?,
        plain.by_vpn(OpenVpn::GUEST)?,
        plain.by_vpn(WireGuard::GUEST)?,
    ];
    for pair in &pairs {
        for socket in [&pair.far, &pair.near] {
            socket.set_read_timeout(Some(LOOK))?;
        }
    }
    let empty = || vec![Samples::default(); NAMES.len()];
    let (mut rates, mut costs, mut lost) =
        ([(); 4].map(|()| empty()), [(); 4].map(|()| empty()), [(); 4].map(|()| empty()));
    let mut trips = empty();
    for round in 0..=rounds {
        for index in 0..NAMES.len() {
            let which = (index + round) % NAMES.len();
            let pair = &pairs[which];
            let failed = |error| format!("{}: {error}", NAMES[which]);
            for (at, size) in SIZES.into_iter().enumerate() {
                for way in Way::ALL {
                    let turn = pump(pair, way, size).map_err(failed)?;
                    if round > 0 {
                        let case = 2 * at + way as usize;
                        rates[case][which].push(turn.rate);
                        costs[case][which].push(turn.cost);
                        lost[case][which].push(turn.lost);
                    }
                }
            }
            let trip = round_trip(pair).map_err(failed)?;
            if round > 0 {
                trips[which].push(trip);
            }
        }
        if round % 5 == 0 {
            eprintln!("path {round}/{rounds}");
        }
    }
    for (at, size) in SIZES.into_iter().enumerate() {
        for way in Way::ALL {
            let case = 2 * at + way as usize;
            for (which, name) in NAMES.into_iter().enumerate().skip(1) {
                let id = |what: &str| format!("path_{what}_{name}_{}_{size}", way.name());
                let rate = Figure::paired(&id("pps"), "1/s", &rates[case][which], &rates[case][0]);
                report.add(if which == ANCHOR { rate.bound(Bound::RatioAtLeast(RATE_BOUND)) } else { rate });
                report.add(Figure::paired(&id("cpu"), "ns", &costs[case][which], &costs[case][0]));
                let most = Figure::from_value(
                    &id("lost"),
                    "per mille",
                    lost[case][which].percentile(100.0),
                    &lost[case][which],
                );
                report.add(if which == ANCHOR { most.bound(Bound::AtMost(0.0)) } else { most });
            }
        }
    }
    report.add(Figure::new("trip_router", "us", &trips[0]));
    for (which, name) in NAMES.into_iter().enumerate().skip(1) {
        let added: Samples =
            trips[which].values().iter().zip(trips[0].values()).map(|(trip, base)| trip - base).collect();
        let figure = Figure::new(&format!("trip_added_{name}"), "us", &added);
        report.add(if which == ANCHOR { figure.bound(Bound::AtMost(TRIP_BOUND)) } else { figure });
    }
    Ok(())
}

/// Throws away what has come.
fn drain(socket: &UdpSocket) -> Result<()> {
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0; 2048]).is_ok() {}
    Ok(socket.set_nonblocking(false)?)
}

/// As many datagrams as the way takes.
fn pump(pair: &Pair, way: Way, size: usize) -> Result<Turn> {
    let (from, to) = match way {
        Way::In => (&pair.far, &pair.near),
        Way::Out => (&pair.near, &pair.far),
    };
    drain(to)?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(from, to, &received, size - HEADERS));
        let sender = sending.thread().clone();
        let receiving = scope.spawn({
            let (received, stop) = (&received, &stop);
            move || -> Result<()> {
                pin(SERVER_CPU)?;
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    // Nothing has come for a while: the sender looks after it.
                    if to.recv(&mut buffer).is_err() {
                        continue;
                    }
                    let before = received.fetch_add(1, Ordering::Release);
                    // Not for each: to wake somebody costs as much as to send.
                    if before.is_multiple_of(WINDOW / 4) {
                        sender.unpark();
                    }
                }
                Ok(())
            }
        });
        let sent = sending.join().map_err(|_| "the sending thread panicked")?;
        stop.store(true, Ordering::Relaxed);
        receiving.join().map_err(|_| "the receiving thread panicked")??;
        sent
    })
}

/// `to`: where it comes out.
fn send(from: &UdpSocket, to: &UdpSocket, received: &AtomicU64, payload: usize) -> Result<Turn> {
    let datagram = vec![0; payload];
    pin(CLIENT_CPU)?;
    let (start, busy) = (Instant::now(), machine::busy_seconds()?);
    let (mut sent, mut lost) = (0u64, 0);
    while start.elapsed() < TURN {
        let arrived = received.load(Ordering::Acquire);
        // What comes late was not lost.
        let waiting = sent.saturating_sub(arrived);
        lost = lost.min(waiting);
        if waiting - lost < WINDOW {
            from.send(&datagram)?;
            sent += 1;
            continue;
        }
        std::thread::park_timeout(LOST);
        // Where something has come that nobody has read, who receives stands still on this machine. More would be lost
        // in a full buffer.
        let stands_still = rustix::io::ioctl_fionread(to)? > 0;
        if received.load(Ordering::Acquire) == arrived && !stands_still {
            lost = waiting;
        }
    }
    let (seconds, busy) = (start.elapsed().as_secs_f64(), machine::busy_seconds()? - busy);
    let arrived = received.load(Ordering::Acquire);
    if arrived == 0 {
        return Err("nothing arrives".into());
    }
    // Who receives may have stood still: what comes now was not lost, and what does not was, also where the window left
    // room for it.
    let end = Instant::now();
    while received.load(Ordering::Acquire) < sent && end.elapsed() < LOST {
        std::thread::park_timeout(LOOK);
    }
    let lost = sent.saturating_sub(received.load(Ordering::Acquire));
    Ok(Turn {
        rate: arrived as f64 / seconds,
        cost: busy * 1e9 / arrived as f64,
        lost: lost as f64 * 1e3 / sent as f64,
    })
}

/// The median of round trips of a byte, in µs.
fn round_trip(pair: &Pair) -> Result<f64> {
    drain(&pair.far)?;
    drain(&pair.near)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let _ = pin(SERVER_CPU);
            let mut byte = [0];
            while !stop.load(Ordering::Relaxed) {
                if pair.near.recv(&mut byte).is_ok() {
                    let _ = pair.near.send(&byte);
                }
            }
        });
        let asking = scope.spawn(move || -> Result<Samples> {
            pin(CLIENT_CPU)?;
            let (start, mut trips) = (Instant::now(), Samples::default());
            let (mut number, mut answer) = (0u8, [0]);
            while start.elapsed() < TRIP_TURN || trips.values().is_empty() && start.elapsed() < PATIENCE {
                number = number.wrapping_add(1);
                let asked = Instant::now();
                pair.far.send(&[number])?;
                // What was asked before may be answered late.
                while asked.elapsed() < LOST {
                    if pair.far.recv(&mut answer).is_ok() && answer[0] == number {
                        trips.push(asked.elapsed().as_secs_f64() * 1e6);
                        break;
                    }
                }
            }
            Ok(trips)
        });
        let trips = asking.join().map_err(|_| "the asking thread panicked")?;
        stop.store(true, Ordering::Relaxed);
        let trips = trips?;
        if trips.values().is_empty() { Err("nobody answers".into()) } else { Ok(trips.median()) }
    })
}
