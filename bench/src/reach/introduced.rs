//! How soon a connection survives a move: from `connect` until both ends have agreed on it.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use whimbrel_lab::{Host, MonoTime, Whimbrel, wait_for};

use super::place::Place;
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// Of the path, ms.
const ROUND_TRIPS: [u64; 3] = [1, 46, 200];
/// Connections one after the other that are measured with each pair of daemons, after the first.
const LATER: usize = 6;
const SERVICE: u16 = 7100;
const LONG: Duration = Duration::from_secs(20);
/// After a connection, before the next one.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// A connection that lasts as long as it is held: when it was begun, and its two ends as the client has them.
    fn connect(self, client: &Host, to: SocketAddr) -> Result<(MonoTime, [SocketAddr; 2], Box<dyn std::any::Any>)> {
        let (begun, ends, held) = client.enter(|| -> std::io::Result<_> {
            let begun = MonoTime::now();
            Ok(match self {
                Self::Tcp => {
                    let stream = TcpStream::connect(to)?;
                    (begun, [stream.local_addr()?, to], Held::Tcp(stream))
                }
                Self::Udp => {
                    let unspecified: SocketAddr =
                        if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("it is one");
                    let socket = UdpSocket::bind(unspecified)?;
                    socket.connect(to)?;
                    socket.send(b"first")?;
                    (begun, [socket.local_addr()?, to], Held::Udp(socket))
                }
            })
        })??;
        Ok((begun, ends, Box::new(held)))
    }
}

/// How the two come to know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// Who opens the connection asks.
    Asked,
    /// The handshake says it as well (`handshake_option`).
    Option,
    /// So it does where the server's firewall lets in TCP alone, so that it cannot be asked.
    OptionShut,
}

/// What a packet filter takes that lets in TCP alone, and what answers.
const TCP_ALONE: &str = "table inet alone {\nchain input {\ntype filter hook input priority filter;\n\
                         iifname != lo udp dport 2031 ct state new drop\n}\n}\n";

impl Contact {
    fn suffix(self) -> &'static str {
        match self {
            Self::Asked => "",
            Self::Option => "_option",
            Self::OptionShut => "_option_shut",
        }
    }

    fn configuration(self) -> &'static str {
        if self == Self::Asked { "" } else { "[ask]\nhandshake_option = true\n" }
    }
}

/// The option is TCP's.
const CASES: [(Transport, Contact); 4] = [
    (Transport::Tcp, Contact::Asked),
    (Transport::Tcp, Contact::Option),
    (Transport::Tcp, Contact::OptionShut),
    (Transport::Udp, Contact::Asked),
];

/// What keeps a connection open.
enum Held {
    Tcp(#[expect(dead_code, reason = "it is open while it is there")] TcpStream),
    Udp(#[expect(dead_code, reason = "it is open while it is there")] UdpSocket),
}

/// When a daemon has had a connection introduced, on the clock of [`MonoTime`] in ms.
fn introduced(daemon: &Whimbrel, ends: [SocketAddr; 2]) -> Result<f64> {
    let names = ends.map(|end| end.to_string());
    let at = wait_for(LONG, "the connection is introduced", || {
        let events = daemon.events(0)?;
        let is_it = |event: &&whimbrel_ipc::EventRecord| {
            let flow = event.fields.get("flow").map(ToString::to_string).unwrap_or_default();
            event.kind == "flow-introduced" && names.iter().all(|name| flow.contains(name.as_str()))
        };
        Ok(events.iter().find(is_it).map(|event| event.monotonic_ms))
    })?;
    Ok(at as f64)
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up, or a connection is never introduced.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(10, 1);
    let mut report = Report::new("reach-introduced");
    for round_trip in ROUND_TRIPS {
        for (transport, contact) in CASES {
            let id = format!("{}_{round_trip}ms{}", transport.name(), contact.suffix());
            if !id.contains(&options.only) {
                continue;
            }
            let (mut first, mut later) =
                ([Samples::default(), Samples::default()], [Samples::default(), Samples::default()]);
            for round in 0..rounds {
                let took = one_run(options, round_trip, transport, contact)?;
                eprintln!("{}/{rounds} {id}: {took:.1?} ms at the client, at the server", round + 1);
                for (number, [here, there]) in took.into_iter().enumerate() {
                    let of = if number == 0 { &mut first } else { &mut later };
                    of[0].push(here);
                    of[1].push(there);
                }
            }
            for (end, (first, later)) in ["client", "server"].into_iter().zip(first.into_iter().zip(later)) {
                let name = |which: &str| format!("{id}_{which}_{end}");
                report.add(Figure::new(&name("first"), "ms", &first));
                let later = Figure::new(&name("later"), "ms", &later);
                let bound = Bound::AtMost(2.5 * round_trip as f64 + 10.0);
                report.add(if contact == Contact::OptionShut { later } else { later.bound(bound) });
            }
        }
    }
    Ok(report)
}

/// Of a first connection and of others after it, how long each took at either end, ms.
fn one_run(options: &Options, round_trip: u64, transport: Transport, contact: Contact) -> Result<Vec<[f64; 2]>> {
    let place = Place::build(&options.setup, true, round_trip)?;
    let to = SocketAddr::new(place.address, SERVICE);
    if contact == Contact::OptionShut {
        place.server.nft(TCP_ALONE)?;
    }
    let configuration = contact.configuration();
    let daemons = [place.laptop.whimbrel_with(configuration)?, place.server.whimbrel_with(configuration)?];
    // What listened before the daemon was started says nothing.
    let (_listener, _socket) =
        place.server.enter(|| -> std::io::Result<_> { Ok((TcpListener::bind(to)?, UdpSocket::bind(to)?)) })??;
    let mut took = Vec::new();
    for _ in 0..=LATER {
        let (begun, ends, held) = transport.connect(&place.laptop, to)?;
        let [here, there] = daemons.each_ref().map(|daemon| introduced(daemon, ends));
        took.push([here?, there?].map(|at| at - begun.0 as f64 / 1e6));
        drop(held);
        std::thread::sleep(PAUSE);
    }
    Ok(took)
}
