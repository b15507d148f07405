//! Two hosts joined by veth, with or without what is measured between them.
//!
//! ```text
//!   client ── veth, no delay, no limit, offloads as the kernel has them ── server
//!   on processor 0                                             on processor 1
//! ```
//!
//! Each turn of a measurement has two new hosts, so that none profits or suffers from the one before.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use whimbrel_ipc::{Carrier, Connection, ConnectionState};
use whimbrel_lab::{Host, Lab, Options as LabOptions, Whimbrel, Wire, wait_for};

use crate::{Result, machine};

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FIRST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const SECOND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 20);
/// What the client asks for where its own host translates it to the server's address.
const TRANSLATED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const CLIENT_CPU: usize = 0;
pub(crate) const SERVER_CPU: usize = 1;
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Between a move and the first measurement, and between measurements.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// No Whimbrel.
    Without,
    /// It runs, and the connections are introduced.
    Still,
    /// The client has moved; the connections are rewritten.
    Moved,
    /// The same with another build of Whimbrel.
    Beside,
    /// No Whimbrel; nftables on the client's host translates the destination.
    Nftables,
    /// No Whimbrel; both hosts track connections, with no other rule.
    Conntrack,
}

impl Variant {
    /// How many there are.
    pub(crate) const COUNT: usize = 6;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Without => "without",
            Self::Still => "still",
            Self::Moved => "moved",
            Self::Beside => "beside",
            Self::Nftables => "nftables_dnat",
            Self::Conntrack => "conntrack",
        }
    }
}

/// The two hosts of one turn.
pub(crate) struct Bed {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) variant: Variant,
    daemons: Option<[Whimbrel; 2]>,
    pub(crate) lab: Lab,
}

impl Bed {
    pub(crate) fn build(options: LabOptions, variant: Variant) -> Result<Self> {
        let mut lab = Lab::new(options)?;
        let (client, server) = (lab.host("client")?, lab.host("server")?);
        lab.connect((&client, "eth0"), (&server, "eth0"), &Wire::Veth)?;
        client.ip([format!("addr add {FIRST}/24 dev eth0")])?;
        server.ip([format!("addr add {SERVER}/24 dev eth0")])?;
        let mut daemons = None;
        match variant {
            Variant::Without => {}
            Variant::Still | Variant::Moved | Variant::Beside => {
                daemons = Some([client.whimbrel()?, server.whimbrel()?])
            }
            Variant::Conntrack => {
                for host in [&client, &server] {
                    host.nft("table inet tracked { chain input { type filter hook input priority 0; ct state established accept;\n}\n}\n")?;
                }
            }
            Variant::Nftables => {
                client.ip([format!("route add {TRANSLATED}/32 dev eth0")])?;
                client.nft(&format!(
                    "table ip nat {{ chain output {{ type nat hook output priority -100; ip daddr {TRANSLATED} dnat to {SERVER};\n}}\n}}\n"
                ))?;
            }
        }
        Ok(Self { client, server, variant, daemons, lab })
    }

    /// Where programs of the client find its daemon, if it has one.
    pub(crate) fn client_run_dir(&self) -> Option<std::path::PathBuf> {
        self.daemons.as_ref().map(|[client, _]| client.run_dir())
    }

    /// What the client connects to.
    pub(crate) fn target(&self) -> IpAddr {
        if self.variant == Variant::Nftables { TRANSLATED.into() } else { SERVER.into() }
    }

    /// Moves the client where that is what is measured, and waits until its `flows` (local, remote) are rewritten.
    pub(crate) fn move_client(&self, flows: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        if matches!(self.variant, Variant::Moved | Variant::Beside) {
            self.client.ip(["addr flush dev eth0 scope global".into(), format!("addr add {SECOND}/24 dev eth0")])?;
            self.wait_rewritten(flows)?;
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Waits until all are introduced, where there is somebody to do it.
    pub(crate) fn wait_introduced(&self, flows: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        let Some([client, server]) = &self.daemons else { return Ok(()) };
        let native = |connection: &Connection| connection.state == ConnectionState::Native;
        let reversed: Vec<_> = flows.iter().map(|(local, remote)| (*remote, *local)).collect();
        wait_connections(client, "introduced", flows, native)?;
        wait_connections(server, "introduced", &reversed, native)
    }

    /// Waits until the client rewrites all; the server answers as it is asked (P-24 of docs/protocol.md).
    fn wait_rewritten(&self, flows: &[(SocketAddr, SocketAddr)]) -> Result<()> {
        let Some([client, _]) = &self.daemons else { return Ok(()) };
        wait_connections(client, "rewritten", flows, |connection| {
            connection.state == ConnectionState::Moved && connection.carrier == Some(Carrier::Rewrite)
        })
    }

    /// Packets that have gone through the tunnel so far.
    pub(crate) fn tunnelled(&self) -> Result<u64> {
        let mut packets = 0;
        for daemon in self.daemons.iter().flatten() {
            packets += daemon.status()?.tunnel.map_or(0, |tunnel| tunnel.packets_sent);
        }
        Ok(packets)
    }

    /// Connections that the client's daemon has had introduced so far, where there is one.
    pub(crate) fn introduced(&self) -> Result<f64> {
        let Some([client, _]) = &self.daemons else { return Ok(0.0) };
        let figures = client.cli(&["metrics"])?;
        let mut lines = figures.lines();
        let line = lines.find_map(|line| line.strip_prefix("whimbrel_events_total{kind=\"flow-introduced\"} "));
        Ok(line.ok_or("the client's daemon does not count introductions")?.trim().parse()?)
    }

    /// Memory of the server's daemon and of its maps in the kernel, in bytes; 0 where there is none.
    pub(crate) fn server_memory(&mut self) -> Result<f64> {
        let Some([_, server]) = &mut self.daemons else { return Ok(0.0) };
        let pid = server.process().pid();
        Ok((machine::status_bytes(pid, "VmRSS")? + machine::map_bytes(pid)?) as f64)
    }
}

fn wait_connections(
    daemon: &Whimbrel,
    what: &str,
    flows: &[(SocketAddr, SocketAddr)],
    good: impl Fn(&Connection) -> bool,
) -> Result<()> {
    wait_for(LONG, &format!("all connections are {what}"), || {
        // Each question is a program that is started; asked without a pause they would take a processor.
        std::thread::sleep(Duration::from_millis(20));
        let found = daemon.connections()?;
        let all = flows.iter().all(|(local, remote)| {
            found.iter().any(|found| found.flow.local == *local && found.flow.remote == *remote && good(found))
        });
        Ok(all.then_some(()))
    })?;
    Ok(())
}

/// Keeps the calling thread on one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
