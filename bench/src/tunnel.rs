//! TCP throughput and CPU time through the tunnel carrier, plain and sealed, beside wireguard-go.
//!
//! ```text
//!   namespace A  ── veth, MTU 1500 ──  namespace B
//!   iperf3 -c                          iperf3 -s
//!   one tunnel device for each carrier on both sides, all up at once, used in turns
//! ```
//!
//! The pumps of both ends run in this process, on as many cores as the machine has, with iperf3 beside them, as
//! wireguard-go does. CPU time is that of all processes concerned; kernel work in a process' context counts as its.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::io::{Error as IoError, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::Value;
use whimbrel_kernel::namespace::Entered;
use whimbrel_kernel::tun::Tun;
use whimbrel_kernel::udp::UdpSocket;
use whimbrel_transform::Algorithm;
use whimbrel_tunnel::{Tunnel, TunnelFlow, TunnelPath};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport, TunnelKeys};

use crate::report::{Bound, Figure, Report, Samples};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MTU: u32 = 1500;
const IPERF_PORT: u16 = 5201;
/// Ports that clients in A get, and so flows that the tunnels know.
const CLIENT_PORTS: std::ops::RangeInclusive<u16> = 40_000..=40_999;
const PATIENCE: Duration = Duration::from_secs(10);
const PEER: PeerId = PeerId(1);
const BINDING: BindingId = BindingId::first(PEER);

/// How to measure.
#[derive(clap::Args)]
pub struct Options {
    /// How often each carrier has its turn
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Length of one turn, in seconds
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// Measure only carriers whose name contains this (and wireguard_go)
    #[arg(long, default_value = "")]
    only: String,
    /// The wireguard-go to compare with
    #[arg(long, default_value = "wireguard-go")]
    wireguard_go: PathBuf,
    /// Another whimbrel, which has a whimbrel-bench in its folder: both benches take turns
    #[arg(long)]
    beside: Option<PathBuf>,
}

impl Options {
    /// The same as options of measurements that take turns with another program's.
    #[must_use]
    pub fn in_turns(&self) -> crate::roam::Options {
        let setup = crate::roam::Setup {
            beside: self.beside.clone(),
            wireguard_go: self.wireguard_go.clone(),
            ..crate::roam::Setup::default()
        };
        crate::roam::Options { runs: Some(self.rounds), only: self.only.clone(), setup, ..Default::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { rounds: 7, seconds: 4, only: String::new(), wireguard_go: "wireguard-go".into(), beside: None }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Direct,
    WireGuard,
    Plain,
    Sealed(Algorithm),
}

impl Carrier {
    const ALL: [Self; 5] = [
        Self::WireGuard,
        Self::Plain,
        Self::Sealed(Algorithm::Aes256Gcm),
        Self::Sealed(Algorithm::ChaCha20Poly1305),
        Self::Direct,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::WireGuard => "wireguard_go",
            Self::Plain => "plain",
            Self::Sealed(Algorithm::Aes256Gcm) => "sealed_aes",
            Self::Sealed(Algorithm::ChaCha20Poly1305) => "sealed_chacha",
        }
    }

    /// Third octet of its addresses, offset of its port, suffix of its devices.
    fn number(self) -> u8 {
        Self::ALL.iter().position(|carrier| *carrier == self).map_or(0, |position| position as u8 + 1)
    }

    /// What iperf3 in A connects to.
    fn target(self) -> Ipv4Addr {
        if self == Self::Direct { OUTER_B } else { Ipv4Addr::new(10, 77, self.number(), 2) }
    }
}

const OUTER_A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUTER_B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Measures and reports.
///
/// # Errors
/// When something cannot be set up or a transfer fails.
pub fn run(options: &Options) -> Result<()> {
    let testbed = Testbed::new(options)?;
    let wanted = |carrier: &Carrier| *carrier == Carrier::WireGuard || carrier.name().contains(&options.only);
    let carriers: Vec<Carrier> = Carrier::ALL.into_iter().filter(wanted).collect();
    let mut rates: Vec<Samples> = vec![Samples::default(); Carrier::ALL.len()];
    let mut costs = rates.clone();
    for round in 0..=options.rounds {
        for &carrier in &carriers {
            let index = usize::from(carrier.number()) - 1;
            // The first round only warms up.
            let seconds = if round == 0 { 1 } else { options.seconds };
            let turn = testbed.transfer(carrier, seconds).map_err(|error| format!("{}: {error}", carrier.name()))?;
            if round > 0 {
                eprintln!(
                    "{round}/{} {:<14} {:6.2} Gbit/s {:6.2} CPU s/GB {:6} retransmissions",
                    options.rounds,
                    carrier.name(),
                    turn.rate,
                    turn.cost,
                    turn.retransmissions
                );
                rates[index].push(turn.rate);
                costs[index].push(turn.cost);
            }
        }
    }
    let samples = |of: &[Samples], carrier: Carrier| of[usize::from(carrier.number()) - 1].clone();
    let mut report = Report::new("tunnel");
    for (kind, of, unit) in [("rate", &rates, "Gbit/s"), ("cpu", &costs, "s/GB")] {
        let baseline = samples(of, Carrier::WireGuard);
        for &carrier in carriers.iter().filter(|carrier| **carrier != Carrier::WireGuard) {
            let id = format!("{kind}_{}", carrier.name());
            let figure = Figure::against(&id, unit, &samples(of, carrier), &baseline);
            report.add(match (kind, carrier) {
                ("rate", Carrier::Plain) => figure.bound(Bound::RatioAtLeast(3.0)),
                ("rate", Carrier::Sealed(_)) => figure.bound(Bound::RatioAtLeast(1.5)),
                _ => figure,
            });
        }
    }
    report.finish()?;
    Ok(())
}

/// One transfer.
struct Turn {
    /// Gbit/s of payload.
    rate: f64,
    /// CPU seconds for 10^9 bytes.
    cost: f64,
    /// Segments that TCP sent again.
    retransmissions: u64,
}

struct Testbed {
    tunnels: Vec<Tunnel>,
    /// Each with the socket that it is configured through.
    wireguard: Vec<(Child, PathBuf)>,
    a: Namespace,
    b: Namespace,
}

/// A network namespace without a name: it goes with this process, however that ends.
struct Namespace {
    /// Reads from us until we are gone.
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut answer = [0];
        // The answer shows that the namespace is there.
        if let (Some(input), Some(output)) = (&mut holder.stdin, &mut holder.stdout) {
            input.write_all(b"?")?;
            output.read_exact(&mut answer).map_err(|_| "unshare --net: no namespace could be made (as root?)")?;
        }
        Ok(Self { holder })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }

    /// Works in the namespace; sockets and devices that are made stay there.
    fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let _entered = Entered::path(&self.path())?;
        Ok(work())
    }

    /// A program that runs in the namespace and ends with this process.
    fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let path = self.path();
        command.arg(format!("--net={}", path.display())).args(["setpriv", "--pdeathsig", "KILL"]).arg(program);
        command.stdin(Stdio::null());
        command
    }

    fn ip(&self, arguments: &str) -> Result<()> {
        pipe(self.program("ip").args(arguments.split(' ')), "").map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

impl Testbed {
    fn new(options: &Options) -> Result<Self> {
        let (a, b) = (Namespace::new()?, Namespace::new()?);
        a.ip(&format!("link add veth type veth peer name veth netns {}", b.holder.id()))?;
        for (namespace, address) in [(&a, OUTER_A), (&b, OUTER_B)] {
            namespace.ip("link set lo up")?;
            namespace.ip(&format!("addr add {address}/24 dev veth"))?;
            namespace.ip(&format!("link set veth mtu {MTU} up"))?;
        }
        let ports = format!("{} {}", CLIENT_PORTS.start(), CLIENT_PORTS.end());
        a.enter(|| fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports))??;
        let mut testbed = Self { tunnels: Vec::new(), wireguard: Vec::new(), a, b };
        for carrier in Carrier::ALL {
            match carrier {
                Carrier::Direct => {}
                Carrier::WireGuard => testbed.add_wireguard(options)?,
                Carrier::Plain => testbed.add_tunnels(carrier, None)?,
                Carrier::Sealed(algorithm) => testbed.add_tunnels(carrier, Some(algorithm))?,
            }
        }
        Ok(testbed)
    }

    fn add_wireguard(&mut self, options: &Options) -> Result<()> {
        let number = Carrier::WireGuard.number();
        let sides = [(&self.a, "a", 1, OUTER_B), (&self.b, "b", 2, OUTER_A)];
        let mut keys = Vec::new();
        for _ in &sides {
            let private = pipe(Command::new("wg").arg("genkey"), "")?;
            let public = pipe(Command::new("wg").arg("pubkey"), &private)?;
            keys.push((private, public));
        }
        for (index, (namespace, side, host, outer)) in sides.into_iter().enumerate() {
            let device = format!("wb{:x}{side}", std::process::id());
            // wg(8) talks to it through a socket of the device's name, which has no namespace.
            let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
            let _ = fs::remove_file(&socket);
            let child = namespace
                .program(&options.wireguard_go)
                .arg(&device)
                .envs([("LOG_LEVEL", "error"), ("WG_PROCESS_FOREGROUND", "1")])
                .stdout(Stdio::null())
                .spawn()
                .map_err(|error| format!("{}: {error}", options.wireguard_go.display()))?;
            self.wireguard.push((child, socket.clone()));
            until("wireguard-go to listen", || Ok(socket.exists()))?;
            let configuration = format!(
                "[Interface]\nPrivateKey={}\nListenPort=51820\n[Peer]\nPublicKey={}\nAllowedIPs=0.0.0.0/0\nEndpoint={outer}:51820\n",
                keys[index].0.trim(),
                keys[1 - index].1.trim(),
            );
            pipe(Command::new("wg").args(["setconf", &device, "/dev/stdin"]), &configuration)?;
            namespace.ip(&format!("addr add 10.77.{number}.{host}/24 dev {device}"))?;
            namespace.ip(&format!("link set {device} mtu 1420 up"))?;
        }
        Ok(())
    }

    /// The flows have other addresses at B than at A, as behind a NAT: 10.77 is what A calls itself and B, 10.78 what B
    /// calls itself and A.
    fn add_tunnels(&mut self, carrier: Carrier, sealed: Option<Algorithm>) -> Result<()> {
        let number = carrier.number();
        let port = 2031 + u16::from(number);
        let forward = TunnelKeys { send: [1; 32], receive: [2; 32], send_token: 3, receive_token: 4 };
        let back = TunnelKeys { send: [2; 32], receive: [1; 32], send_token: 4, receive_token: 3 };
        let flows = CLIENT_PORTS.map(|client| {
            let tuple = |net, local, local_port, remote, remote_port| FlowTuple {
                transport: Transport::Tcp,
                local: SocketAddr::new(Ipv4Addr::new(10, net, number, local).into(), local_port),
                remote: SocketAddr::new(Ipv4Addr::new(10, net, number, remote).into(), remote_port),
            };
            (tuple(77, 1, client, 2, IPERF_PORT), tuple(78, 2, IPERF_PORT, 1, client))
        });
        let flows: Vec<_> = flows.collect();
        for (namespace, net, host, local, remote, keys) in
            [(&self.a, 77, 1, OUTER_A, OUTER_B, forward), (&self.b, 78, 2, OUTER_B, OUTER_A, back)]
        {
            let device = format!("whimbrel{number}");
            let path = TunnelPath {
                send_index: 1,
                sealed: sealed.is_some(),
                accept_plain: sealed.is_none(),
                former: Vec::new(),
                source: Some(IpAddr::V4(local)),
                interface: None,
                remote: SocketAddr::new(remote.into(), port),
                second: None,
                allowance: None,
                path_mtu: MTU,
                chain: None,
            };
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let tunnel = namespace.enter(|| -> Result<Tunnel> {
                Ok(Tunnel::start(Tun::open(&device, path.inner_mtu())?, UdpSocket::bind(port)?, wake)?)
            })??;
            tunnel.add_keys(PEER, 1, sealed.unwrap_or(Algorithm::ChaCha20Poly1305), &keys);
            tunnel.set_path(BINDING, 1, path)?;
            tunnel.set_flows(flows.iter().map(|(a, b)| {
                let (own, peer_tuple) = if host == 1 { (*a, *b) } else { (*b, *a) };
                TunnelFlow { own, binding: BINDING, peer_tuple, elsewhere: false }
            }));
            namespace.ip(&format!("addr add 10.{net}.{number}.{host}/24 dev {device}"))?;
            self.tunnels.push(tunnel);
        }
        Ok(())
    }

    fn transfer(&self, carrier: Carrier, seconds: u32) -> Result<Turn> {
        let before = self.cpu_seconds()?;
        let mut server = self
            .b
            .program("iperf3")
            .args(["-s", "-1", "-p", &IPERF_PORT.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("iperf3: {error}"))?;
        let listening = until("iperf3 to listen", || {
            let table = self.b.enter(|| fs::read_to_string("/proc/thread-self/net/tcp6"))??;
            let port = format!(":{IPERF_PORT:04X} ");
            Ok(table.lines().any(|line| line.contains(&port) && line.contains(" 0A ")))
        });
        let result = listening.and_then(|()| {
            let (target, seconds) = (carrier.target().to_string(), seconds.to_string());
            let arguments = ["-J", "-C", "cubic", "-c", &target, "-t", &seconds];
            Ok(self.a.program("iperf3").args(arguments).output()?)
        });
        if result.as_ref().map_or(true, |output| !output.status.success()) {
            let _ = server.kill();
        }
        server.wait()?;
        let cpu = self.cpu_seconds()? - before;
        let output: Value = serde_json::from_slice(&result?.stdout)?;
        if let Some(error) = output["error"].as_str() {
            return Err(error.into());
        }
        let received = &output["end"]["sum_received"];
        let missing = || "iperf3 printed no result";
        let rate = received["bits_per_second"].as_f64().ok_or_else(missing)? / 1e9;
        let bytes = received["bytes"].as_f64().ok_or_else(missing)?;
        let retransmissions = output["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or(0);
        Ok(Turn { rate, cost: cpu / (bytes / 1e9), retransmissions })
    }

    /// CPU time so far of this process, of its children that have ended, and of those that run on.
    fn cpu_seconds(&self) -> Result<f64> {
        let mut ticks = stat_ticks("self", &[11, 12, 13, 14])?;
        for (child, _) in &self.wireguard {
            // nsenter and setpriv have become wireguard-go.
            ticks += stat_ticks(&child.id().to_string(), &[11, 12])?;
        }
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for (child, socket) in &mut self.wireguard {
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_file(socket);
        }
        self.tunnels.clear();
    }
}

/// Sum of fields of /proc/PID/stat, counted from the one after the name: 11 utime, 12 stime, 13 cutime, 14 cstime.
fn stat_ticks(process: &str, fields: &[usize]) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = stat.rsplit_once(") ").ok_or("malformed /proc/PID/stat")?.1;
    let values: Vec<&str> = after_name.split(' ').collect();
    let field = |index: &usize| values.get(*index).and_then(|value| value.parse::<u64>().ok());
    fields.iter().map(field).sum::<Option<u64>>().ok_or_else(|| "malformed /proc/PID/stat".into())
}

/// Runs a program to its end with `input` and gives what it printed.
fn pipe(command: &mut Command, input: &str) -> Result<String> {
    let mut run = || -> std::io::Result<std::process::Output> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            match stdin.write_all(input.as_bytes()) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
        child.wait_with_output()
    };
    let result = run();
    let output = result.map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > PATIENCE {
            return Err(IoError::new(ErrorKind::TimedOut, format!("waited in vain for {what}")).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
