//! Anchors in user space: VPNs whose one end is a program of the middle, which the far end's packets are routed
//! through.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_lab::{Host, Process, wait_until};

use super::bed::{Hosts, INSIDE};
use crate::Result;

const PATIENCE: Duration = Duration::from_secs(20);

/// The middle's address in a VPN, and the guest's.
type Ends = [Ipv4Addr; 2];

const fn ends(number: u8) -> Ends {
    [Ipv4Addr::new(10, 77, number, 1), Ipv4Addr::new(10, 77, number, 2)]
}

const OPENVPN: Ends = ends(1);
const WIREGUARD: Ends = ends(2);

/// OpenVPN's device, in namespaces of its own.
const DEVICE: &str = "tun0";

/// OpenVPN without its kernel part, with AES-256-GCM.
pub(super) struct OpenVpn {
    _processes: Vec<Process>,
}

impl OpenVpn {
    pub(super) const GUEST: Ipv4Addr = OPENVPN[1];

    pub(super) fn start(hosts: &Hosts) -> Result<Self> {
        let sides = [&hosts.middle, &hosts.guest];
        let mut prints = Vec::new();
        for host in sides {
            let [key, certificate] = files(host);
            let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
            let to = ["-subj", "/CN=bench", "-days", "2", "-keyout"];
            host.command("openssl").args(make).args(to).arg(&key).arg("-out").arg(&certificate).run()?;
            let print = ["x509", "-noout", "-fingerprint", "-sha256", "-in"];
            let print = host.command("openssl").args(print).arg(&certificate).run()?;
            prints.push(print.trim().rsplit_once('=').map_or("", |(_, print)| print).to_owned());
        }
        let mut processes = Vec::new();
        for (me, host) in sides.into_iter().enumerate() {
            let [key, certificate] = files(host);
            let (own, other) = (OPENVPN[me].to_string(), OPENVPN[1 - me].to_string());
            let usual =
                ["--dev", DEVICE, "--disable-dco", "--auth-nocache", "--data-ciphers", "AES-256-GCM", "--verb", "3"];
            let mut command = host.command("openvpn").args(usual).args(["--ifconfig", &own, &other]);
            command = command.arg("--key").arg(&key).arg("--cert").arg(&certificate);
            command = command.args(["--peer-fingerprint", &prints[1 - me]]);
            command = match me {
                0 => command.args(["--tls-server", "--dh", "none", "--local", &INSIDE.to_string()]),
                _ => command.args(["--tls-client", "--remote", &INSIDE.to_string(), "--nobind"]),
            };
            processes.push(command.spawn()?);
        }
        for process in &mut processes {
            let up = |process: &Process| process.stdout().contains("Initialization Sequence Completed");
            wait_until(PATIENCE, "OpenVPN is up", || up(process) || !process.is_running())?;
            if !up(process) {
                return Err(format!("openvpn ended: {}{}", process.stdout(), process.stderr()).into());
            }
        }
        lead(&hosts.guest, OPENVPN[1], DEVICE)?;
        Ok(Self { _processes: processes })
    }
}

/// What the guest sends from its address in a VPN goes by that.
fn lead(guest: &Host, address: Ipv4Addr, device: &str) -> Result<()> {
    let table = 1000 + u32::from(address.octets()[2]);
    Ok(guest.ip([
        format!("route add default dev {device} table {table}"),
        format!("rule add from {address} lookup {table}"),
    ])?)
}

/// A host's key and certificate.
fn files(host: &Host) -> [PathBuf; 2] {
    ["openvpn.key", "openvpn.crt"].map(|name| host.dir().join(name))
}

/// wireguard-go.
pub(super) struct WireGuard {
    processes: Vec<(Process, PathBuf)>,
}

impl WireGuard {
    pub(super) const GUEST: Ipv4Addr = WIREGUARD[1];

    pub(super) fn start(program: &Path, hosts: &Hosts) -> Result<Self> {
        let mut this = Self { processes: Vec::new() };
        let sides = [&hosts.middle, &hosts.guest];
        let mut keys = Vec::new();
        for host in sides {
            let private = host.command("wg").arg("genkey").run()?.trim().to_owned();
            let public = host.command("wg").arg("pubkey").stdin(private.as_str()).run()?.trim().to_owned();
            keys.push((private, public));
        }
        for (me, host) in sides.into_iter().enumerate() {
            // Its control socket has the device's name and is in no namespace.
            let device = format!("wa{}{me}", hosts.lab.id());
            let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
            // Without the variable the older ones print a page about kernels that have WireGuard themselves.
            let command = host.command(program).args(["-f", &device]).env("LOG_LEVEL", "error");
            let process = command.env("WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD", "1").spawn()?;
            this.processes.push((process, socket.clone()));
            wait_until(PATIENCE, "wireguard-go listens", || socket.exists())?;
            let (private, public) = (&keys[me].0, &keys[1 - me].1);
            let endpoint = if me == 1 { format!("Endpoint={INSIDE}:51820\n") } else { String::new() };
            let text = format!(
                "[Interface]\nPrivateKey={private}\nListenPort=51820\n[Peer]\nPublicKey={public}\nAllowedIPs=0.0.0.0/0\n{endpoint}"
            );
            host.command("wg").args(["setconf", &device, "/dev/stdin"]).stdin(text).run()?;
            host.ip([
                format!("addr add {} peer {} dev {device}", WIREGUARD[me], WIREGUARD[1 - me]),
                format!("link set {device} mtu 1420 up"),
            ])?;
        }
        lead(&hosts.guest, WIREGUARD[1], &format!("wa{}1", hosts.lab.id()))?;
        Ok(this)
    }
}

impl Drop for WireGuard {
    fn drop(&mut self) {
        for (process, socket) in &mut self.processes {
            // It removes its socket itself unless it has to be killed.
            let _ = process.terminate(Duration::from_secs(2));
            let _ = std::fs::remove_file(socket);
        }
    }
}
