//! A DHCP server and its clients: udhcpd and udhcpc (busybox).

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::{Error, Host, Network, Process, Result, wait_until};

/// A DHCP server that has a single address to give.
#[derive(Debug)]
pub struct DhcpServer {
    process: Process,
}

impl DhcpServer {
    /// Starts it on a network's router.
    pub fn start(network: &Network, address: Ipv4Addr) -> Result<Self> {
        let router = network.router();
        let dir = router.dir().join(router.unique_label("udhcpd"));
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        let Some((gateway, length)) = network.spec().v4 else {
            return Err(Error::Usage(format!("network {} has no IPv4", network.name())));
        };
        let mask = Ipv4Addr::from(u32::MAX << (32 - u32::from(length)));
        let leases = dir.join("leases");
        fs::write(&leases, "").map_err(|e| Error::call("write", leases.display().to_string(), e))?;
        let config = format!(
            "interface {}\nstart {address}\nend {address}\noption subnet {mask}\noption router {gateway}\n\
             option lease 60\nlease_file {}\npidfile {}\n",
            network.bridge(),
            leases.display(),
            dir.join("pid").display()
        );
        let path = dir.join("udhcpd.conf");
        fs::write(&path, config).map_err(|e| Error::call("write", path.display().to_string(), e))?;
        let process = router.command("busybox").args(["udhcpd", "-f"]).arg(&path).label("udhcpd").spawn()?;
        Ok(Self { process })
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// What udhcpc does with what it is told.
const SCRIPT: &str = r#"#!/bin/sh
case $1 in
	deconfig) ip -4 addr flush dev "$interface" ;;
	bound) ip addr replace "$ip/$mask" dev "$interface" &&
		ip route replace default via "$router" dev "$interface" metric "$METRIC" ;;
esac
"#;

/// An address that a host has leased, and renews.
#[derive(Debug)]
pub struct Lease {
    process: Process,
}

impl Lease {
    /// Asks for one on this interface, and waits until the host has `address`.
    pub fn take(host: &Host, interface: &str, address: Ipv4Addr, within: Duration) -> Result<Self> {
        Self::take_with(host, interface, address, 100, within)
    }

    /// The same where the default route has another metric.
    pub fn take_with(host: &Host, interface: &str, address: Ipv4Addr, metric: u32, within: Duration) -> Result<Self> {
        let script = host.dir().join(host.unique_label("udhcpc"));
        fs::write(&script, SCRIPT)
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .map_err(|e| Error::call("write", script.display().to_string(), e))?;
        // It gives the lease back when it ends.
        let command = host.command("busybox").args(["udhcpc", "-f", "-R", "-i", interface, "-s"]).arg(&script);
        let process = command.env("METRIC", metric.to_string()).label("udhcpc").spawn()?;
        let wanted = format!("inet {address}/");
        wait_until(within, &format!("{} leases {address}", host.name()), || {
            host.ip_output(&format!("-4 addr show dev {interface}")).is_ok_and(|shown| shown.contains(&wanted))
        })?;
        Ok(Self { process })
    }

    /// Gives it back: the host has no address any more, and whoever asks next may have it.
    pub fn release(mut self, within: Duration) -> Result<()> {
        self.process.terminate(within).map(drop)
    }
}
