//! What make bench runs: every figure beside its baseline.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use whimbrel_bench::relocation::{self, bare, bulk, call, criu, crowd, gap, thesis, tune};
use whimbrel_bench::roam::{self, handoff, many, parked, throughput};
use whimbrel_bench::{anchor, beside, flood, idle, links, nat, process, reach, tunnel, vnat};

/// Measures Whimbrel beside what it is held against, on this machine, in network namespaces of its own. As root.
///
/// Each measurement prints a table and, last, a line that begins with BENCH, and writes target/bench/NAME.json. The
/// exit status is 0 also when a bound is missed, which the report says, and 1 when something could not be measured.
#[derive(Parser)]
#[command(name = "whimbrel-bench")]
struct Arguments {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// TCP through the tunnel carrier, plain and sealed, beside wireguard-go
    Tunnel(tunnel::Options),
    /// Hand-offs, the cost of rewriting, many connections: the four below and one report
    Roam(roam::Options),
    /// How soon a download goes on after its host has moved
    RoamHandoff(roam::Options),
    /// What Whimbrel costs in throughput, requests and CPU time, before and after a move
    RoamThroughput(roam::Options),
    /// How soon thousands of connections are back after a move, and their memory
    RoamMany(roam::Options),
    /// What connections cost whose other end is away
    RoamParked(roam::Options),
    /// Every connection from its first moment, and the first moments of a network: eight figures; `--only` takes a name
    Reach(roam::Options),
    /// Of these, what a server of UDP with one socket and 200 clients feels
    Udp(roam::Options),
    /// Bytes in the first moments after a hand-off between links of other rates and delays, by what TCP begins with
    Links(roam::Options),
    /// Which way a hand-off finds through NATs of all kinds at both ends, how soon, and by how many datagrams
    Nat(roam::Options),
    /// How soon a daemon is ready, and its memory
    Idle(roam::Options),
    /// The VNAT paper's experiments: messages of 64 to 8192 bytes, beside nothing and beside connection tracking
    Vnat(roam::Options),
    /// What a host with 1,000 connections feels of 10,000 forged packets a second, and of 1,000 fresh keys a second
    Flood(roam::Options),
    /// What an anchor costs: packets and time through it, beside the kernel's forwarding and VPNs; `wb_socket` beside
    /// plain sockets
    Anchor(roam::Options),
    /// Sockets that change hosts: the eight below, anchors, and one report
    Move(roam::Options),
    /// How long a far end hears nothing of a connection that changes hosts, by phases
    MoveGap(roam::Options),
    /// What writing down and rebuilding a socket costs, beside a bare loop of TCP_REPAIR in C
    MoveBare(roam::Options),
    /// Up to ten thousand idle connections that change hosts together
    MoveCrowd(roam::Options),
    /// A video call that changes hosts
    MoveCall(roam::Options),
    /// Bytes and goodput of an upload whose receiver changes hosts
    MoveBulk(roam::Options),
    /// Bytes in the first second after a move to a faster path and to a slower one
    MoveTune(roam::Options),
    /// How long a move takes by round trips, in the SOCKMAND thesis's three scenarios
    MoveThesis(roam::Options),
    /// What connections add to CRIU's writing down and rebuilding of a process
    MoveCriu(roam::Options),
    /// One sample of move-bare
    #[command(hide = true)]
    MoveSample {
        /// How many connections
        count: usize,
    },
    /// Whole processes that change hosts, with CRIU: how long they stand still
    Process(roam::Options),
    /// What move-criu moves: a process that holds idle connections
    #[command(hide = true)]
    MoveHold {
        /// What they are made to
        address: std::net::SocketAddr,
        /// How many
        count: usize,
    },
    /// All measurements
    All(roam::Options),
}

impl Measurement {
    /// By what other program this is to be measured as well, and how. `roam-throughput` takes turns of its own, which
    /// are shorter than whole runs.
    fn beside(&self) -> Option<(PathBuf, roam::Options)> {
        let options = match self {
            Self::Tunnel(options) => options.in_turns(),
            Self::Roam(options)
            | Self::RoamHandoff(options)
            | Self::RoamMany(options)
            | Self::RoamParked(options)
            | Self::Reach(options)
            | Self::Udp(options)
            | Self::Links(options)
            | Self::Nat(options)
            | Self::Idle(options)
            | Self::Vnat(options)
            | Self::Flood(options)
            | Self::Anchor(options)
            | Self::Move(options)
            | Self::MoveGap(options)
            | Self::MoveBare(options)
            | Self::MoveCrowd(options)
            | Self::Process(options)
            | Self::MoveCall(options)
            | Self::MoveBulk(options)
            | Self::MoveTune(options)
            | Self::MoveThesis(options)
            | Self::MoveCriu(options) => options.clone(),
            Self::RoamThroughput(_) | Self::MoveSample { .. } | Self::MoveHold { .. } | Self::All(_) => return None,
        };
        Some((options.setup.beside.clone()?, options))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let tunnel = |options: &tunnel::Options| tunnel::run(options).map_err(|error| error.to_string());
    let roam = |result: whimbrel_bench::Result<()>| result.map_err(|error| error.to_string());
    // The first argument is the measurement's name: there are no options before it.
    if let Some((program, options)) = arguments.measurement.beside()
        && let Some(name) = std::env::args().nth(1)
    {
        return finish(roam(beside::run(&name, &program, &options)));
    }
    finish(match arguments.measurement {
        Measurement::Tunnel(options) => tunnel(&options),
        Measurement::Roam(options) => roam(roam::run(&options)),
        Measurement::RoamHandoff(options) => roam(handoff::run(&options)),
        Measurement::RoamThroughput(options) => roam(throughput::run(&options)),
        Measurement::RoamMany(options) => roam(many::run(&options)),
        Measurement::RoamParked(options) => roam(parked::run(&options)),
        Measurement::Reach(options) => roam(reach::run(&options)),
        Measurement::Udp(options) => roam(reach::udp(&options)),
        Measurement::Links(options) => roam(links::run(&options)),
        Measurement::Nat(options) => roam(nat::run(&options)),
        Measurement::Idle(options) => roam(idle::run(&options)),
        Measurement::Vnat(options) => roam(vnat::run(&options)),
        Measurement::Flood(options) => roam(flood::run(&options)),
        Measurement::Anchor(options) => roam(anchor::run(&options)),
        Measurement::Move(options) => roam(relocation::run(&options)),
        Measurement::MoveGap(options) => roam(gap::run(&options)),
        Measurement::MoveBare(options) => roam(bare::run(&options)),
        Measurement::MoveSample { count } => roam(bare::print_sample(count)),
        Measurement::MoveCrowd(options) => roam(crowd::run(&options)),
        Measurement::Process(options) => roam(process::run(&options)),
        Measurement::MoveCall(options) => roam(call::run(&options)),
        Measurement::MoveBulk(options) => roam(bulk::run(&options)),
        Measurement::MoveTune(options) => roam(tune::run(&options)),
        Measurement::MoveThesis(options) => roam(thesis::run(&options)),
        Measurement::MoveCriu(options) => roam(criu::run(&options)),
        Measurement::MoveHold { address, count } => roam(criu::hold(address, count)),
        Measurement::All(options) => tunnel(&tunnel::Options::default())
            .and_then(|()| roam(roam::run(&options)))
            .and_then(|()| roam(reach::run(&options)))
            .and_then(|()| roam(vnat::run(&options)))
            .and_then(|()| roam(relocation::run(&options)))
            .and_then(|()| roam(process::run(&options))),
    })
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whimbrel-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
