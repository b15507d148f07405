//! What the middle itself can do: packets a second through it, and its CPU time for each, with next to nothing else on
//! the way.
//!
//! ```text
//!   trains of datagrams, cut by the kernel at the sender's device ──> middle ──> dropped, counted, as they come in
//! ```
//!
//! Sender, middle and sink share a processor, each packet goes all the way before the next train is made, and nothing
//! waits in a queue: what is sent in a turn is the rate without loss, and that nothing was lost is checked. The same
//! without the middle is taken off for what a packet costs in the middle.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use whimbrel_kernel::udp::{Transmit, UdpSocket};
use whimbrel_lab::Host;

use super::bed::{Anchored, Plain};
use crate::bed::{CLIENT_CPU, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::{Result, machine};

/// Of an IP packet, in bytes.
pub(super) const SIZES: [usize; 2] = [100, 1400];
pub(super) const HEADERS: usize = 28;
pub(super) const RATE_BOUND: f64 = 0.8;
const TURN: Duration = Duration::from_millis(100);
/// Datagrams that are handed to the kernel at a time, and how many of them go in one train: as many as Linux 6.1 takes.
const TRAINS: usize = 16;
const TRAIN: usize = 64;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the far end.
    In,
    /// To it.
    Out,
}

impl Way {
    pub(super) const ALL: [Self; 2] = [Self::In, Self::Out];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// Where packets are made and where they end.
struct Course {
    socket: UdpSocket,
    destination: SocketAddr,
    sink: (Host, &'static str),
    /// Whose flow it is.
    _kept: Option<std::net::UdpSocket>,
}

/// Has a host drop what comes in by a device from and to these ports, before it does anything else with it.
fn drop_at(host: &Host, device: &'static str, number: usize, from: u16, to: u16) -> Result<()> {
    Ok(host.nft(&format!(
        "table netdev sink{number} {{ chain come {{ type filter hook ingress device \"{device}\" priority -10; \
         udp sport {from} udp dport {to} drop\n}}\n}}\n"
    ))?)
}

/// Has the kernel cut trains at this device, so that what leaves it are packets.
fn cut_trains(host: &Host) -> Result<()> {
    Ok(host.ip(["link set eth0 gso_max_segs 1"])?)
}

impl Course {
    fn new(
        from: &Host,
        port: u16,
        destination: SocketAddr,
        sink: (&Host, &'static str),
        number: usize,
    ) -> Result<Self> {
        let socket = from.enter(|| UdpSocket::bind(port))??;
        drop_at(sink.0, sink.1, number, port, destination.port())?;
        Ok(Self { socket, destination, sink: (sink.0.clone(), sink.1), _kept: None })
    }

    /// Packets a second, and CPU seconds of the whole machine for each.
    fn measure(&self, size: usize) -> Result<(f64, f64)> {
        let payload = size - HEADERS;
        let contents = vec![0; payload * TRAIN];
        let transmit = Transmit {
            destination: self.destination,
            source: None,
            interface: None,
            contents: &contents,
            segment_size: Some(payload.try_into()?),
        };
        let transmits = [transmit; TRAINS];
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| -> Result<(f64, f64)> {
                pin(CLIENT_CPU)?;
                // What the turn before has left behind, and what is cold.
                self.socket.send(&transmits);
                let (before, busy, start) = (self.arrived()?, machine::busy_seconds()?, Instant::now());
                let mut sent = 0;
                while start.elapsed() < TURN {
                    sent += self.socket.send(&transmits).sent as u64;
                }
                let seconds = start.elapsed().as_secs_f64();
                let cost = machine::busy_seconds()? - busy;
                let arrived = self.arrived()? - before;
                // A few that others have sent may be among what came.
                if arrived < sent {
                    return Err(format!("{} of {sent} packets were lost", sent - arrived).into());
                }
                Ok((sent as f64 / seconds, cost / sent as f64))
            });
            sending.join().map_err(|_| "the sending thread panicked")?
        })
    }

    /// Packets that have come in where the sink is.
    fn arrived(&self) -> Result<u64> {
        let (host, device) = &self.sink;
        let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
        let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        packets.ok_or_else(|| format!("there is no device {device}").into())
    }
}

/// By whom packets are forwarded.
const NAMES: [&str; 3] = ["none", "router", "anchor"];

/// Measures.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let rounds = options.runs(50, 8);
    let plain = Plain::build(&options.setup, false)?;
    let anchored = Anchored::build(&options.setup)?;
    let flow = anchored.carried()?;
    let names = anchored.wire_names(&flow)?;
    for hosts in [&plain.hosts, &anchored.hosts] {
        cut_trains(&hosts.far)?;
        cut_trains(&hosts.stranger)?;
    }
    let courses = [courses_without(&plain)?, courses_routed(&plain)?, courses_anchored(&anchored, flow, names)?];
    let mut rates = vec![[const { [const { Vec::new() }; 2] }; 2]; NAMES.len()];
    let mut costs = rates.clone();
    let tunnelled = anchored.tunnelled()?;
    for round in 0..=rounds {
        for (at, size) in SIZES.into_iter().enumerate() {
            for way in Way::ALL {
                for index in 0..NAMES.len() {
                    let which = (index + round) % NAMES.len();
                    let (rate, cost) = courses[which][way as usize]
                        .measure(size)
                        .map_err(|error| format!("{} {} {size}: {error}", NAMES[which], way.name()))?;
                    // The first round warms up.
                    if round > 0 {
                        rates[which][way as usize][at].push(rate);
                        costs[which][way as usize][at].push(cost * 1e9);
                    }
                }
            }
        }
        if round % 10 == 0 {
            eprintln!("hop {round}/{rounds}");
        }
    }
    // By who is idle in between, a word or two.
    let tunnelled = anchored.tunnelled()? - tunnelled;
    if tunnelled > 100 {
        return Err(format!("{tunnelled} packets went through the tunnel while rewriting was measured").into());
    }
    let samples = |values: &[f64]| values.iter().copied().collect::<Samples>();
    for (at, size) in SIZES.into_iter().enumerate() {
        for way in Way::ALL {
            let id = |what: &str| format!("hop_{what}_{}_{size}", way.name());
            let [none, router, anchor] = [0, 1, 2].map(|which| &rates[which][way as usize][at]);
            let figure = Figure::paired(&id("pps"), "1/s", &samples(anchor), &samples(router));
            report.add(figure.bound(Bound::RatioAtLeast(RATE_BOUND)));
            let [anchor_cost, router_cost] = [2, 1].map(|which| samples(&costs[which][way as usize][at]));
            report.add(Figure::paired(&id("cpu"), "ns", &anchor_cost, &router_cost));
            let alone = |rates: &[f64]| -> Samples {
                rates.iter().zip(none).map(|(rate, none)| 1e9 / rate - 1e9 / none).collect()
            };
            report.add(Figure::paired(&id("alone"), "ns", &alone(anchor), &alone(router)));
        }
    }
    Ok(())
}

/// What sending and dropping cost by themselves: nothing is in between.
fn courses_without(plain: &Plain) -> Result<[Course; 2]> {
    let hosts = &plain.hosts;
    let middle = |address: Ipv4Addr, port: u16| SocketAddr::new(address.into(), port);
    Ok([
        Course::new(&hosts.far, 4000, middle(super::bed::OUTSIDE, 4001), (&hosts.middle, "out0"), 0)?,
        Course::new(&hosts.stranger, 4000, middle(super::bed::INSIDE, 4001), (&hosts.middle, "in0"), 1)?,
    ])
}

fn courses_routed(plain: &Plain) -> Result<[Course; 2]> {
    let hosts = &plain.hosts;
    let to = |address: Ipv4Addr| SocketAddr::new(address.into(), 4003);
    Ok([
        Course::new(&hosts.far, 4002, to(super::bed::GUEST), (&hosts.wire, "m0"), 1)?,
        Course::new(&hosts.stranger, 4002, to(super::bed::FAR), (&hosts.far, "eth0"), 1)?,
    ])
}

/// `names`: of what comes from the far end, between anchor and guest.
fn courses_anchored(anchored: &Anchored, flow: super::bed::Pair, names: [SocketAddr; 2]) -> Result<[Course; 2]> {
    let hosts = &anchored.hosts;
    let (at, lent) = (flow.far.local_addr()?, flow.far.peer_addr()?);
    // Its port is taken by the one that sends trains.
    drop(flow.far);
    let into = Course::new(&hosts.far, at.port(), lent, (&hosts.wire, "m0"), 0)?;
    drop_at(&hosts.wire, "m0", 1, names[0].port(), names[1].port())?;
    let out = Course::new(&hosts.stranger, names[1].port(), names[0], (&hosts.far, "eth0"), 0)?;
    drop_at(&hosts.far, "eth0", 1, lent.port(), at.port())?;
    Ok([into, Course { _kept: Some(flow.near), ..out }])
}
