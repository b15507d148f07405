//! What very many short connections cost, and how many of them are protected.
//!
//! Both hosts are on one machine, and what its processors do for the two cannot be told apart: so the figure is of both
//! ends together, the daemons and the kernel included.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use whimbrel_lab::EchoServer;

use crate::bed::{Bed, CLIENT_CPU, SERVER, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::roam::throughput::turn_of;
use crate::{Result, machine};

/// Connections a second that are asked for.
const RATE: u32 = 20_000;
/// For how long in one turn: a hundred and more of the steps that processors' time is told in.
const TURN: Duration = Duration::from_secs(2);
const VARIANTS: [Variant; 2] = [Variant::Without, Variant::Still];

/// What one turn gave.
struct Turn {
    /// Connections for a second of the machine's processors.
    each_second: f64,
    /// Connections a second.
    rate: f64,
    /// The share of them that both ends had agreed on, %; where nobody does that 0.
    protected: f64,
}

/// Measures and reports. Each turn has new hosts.
///
/// # Errors
/// When hosts cannot be set up, or a connection fails.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(20, 4);
    let mut cost = vec![Samples::default(); Variant::COUNT];
    let [mut rate, mut protected] = [Samples::default(), Samples::default()];
    for round in 0..rounds {
        for variant in turn_of(&VARIANTS, round) {
            let bed = Bed::build(options.setup.lab_options_of(variant), variant)?;
            let turn = one_turn(&bed).map_err(|error| format!("{}: {error}", variant.name()))?;
            let Turn { each_second, rate: reached, protected: share } = turn;
            eprintln!(
                "{}/{rounds} {:<8} {each_second:.0} connections for a second of processors, {reached:.0} a second, \
                 {share:.2} % protected",
                round + 1,
                variant.name()
            );
            cost[variant as usize].push(each_second);
            if variant == Variant::Still {
                rate.push(reached);
                protected.push(share);
            }
        }
    }
    let mut report = Report::new("reach-short");
    let [without, still] = [Variant::Without, Variant::Still].map(|variant| &cost[variant as usize]);
    report.add(Figure::paired("each_cpu_second", "connections", still, without).bound(Bound::RatioAtLeast(0.97)));
    report.add(Figure::new("rate", "1/s", &rate));
    report.add(Figure::new("protected", "%", &protected));
    Ok(report)
}

fn one_turn(bed: &Bed) -> Result<Turn> {
    let echo = EchoServer::start(&bed.server, IpAddr::V4(SERVER))?;
    let address = SocketAddr::new(bed.target(), echo.address().port());
    // The peer is known to run Whimbrel, where it does.
    let known = bed.client.enter(|| TcpStream::connect(address))??;
    bed.wait_introduced(&[(known.local_addr()?, address)])?;
    let before = (bed.introduced()?, machine::busy_seconds()?);
    let (count, took) = bed.client.enter(move || open(address))??;
    let busy = machine::busy_seconds()? - before.1;
    let protected = (bed.introduced()? - before.0) / count as f64 * 100.0;
    Ok(Turn { each_second: count as f64 / busy, rate: count as f64 / took.as_secs_f64(), protected })
}

/// Opens connections at the rate that is asked for, or as fast as it goes: how many, in what time.
fn open(address: SocketAddr) -> Result<(u32, Duration)> {
    pin(CLIENT_CPU)?;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        std::thread::sleep((Duration::from_secs(1) * done / RATE).saturating_sub(start.elapsed()));
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        // Aborted, not closed: TIME_WAIT would use up the ports within a second or two.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        done += 1;
    }
    Ok((done, start.elapsed()))
}
