//! What a hand-off is held against: an application that reconnects, and wireguard-go.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use whimbrel_lab::{Host, MonoTime, Process, wait_until};

use super::moment::{Change, Changes};
use crate::Result;

/// How long an outage and what follows may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Moves the laptop while an application on it waits to be told of the new network, connects anew to an address of the
/// server and asks for more. Gives what `go` does, and the time of its first byte.
pub(crate) fn reconnect<T>(
    laptop: &Host,
    changes: &Changes,
    (server, address): (&Host, IpAddr),
    go: impl FnOnce() -> Result<T>,
) -> Result<(T, MonoTime)> {
    let server = Feeder::start(server, address)?;
    let (to, from) = (server.address, MonoTime::now());
    std::thread::scope(|scope| {
        let application = scope.spawn(move || {
            laptop.enter(|| -> Result<MonoTime> {
                changes.first(from, Change::Route { default: true }, PATIENCE)?;
                let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.write_all(b"?")?;
                stream.read_exact(&mut [0])?;
                Ok(MonoTime::now())
            })?
        });
        let moved = go()?;
        let first = application.join().map_err(|_| "the application's thread panicked")??;
        Ok((moved, first))
    })
}

/// A server that answers one byte of one connection with many.
struct Feeder {
    address: SocketAddr,
}

impl Feeder {
    fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let listener = host.enter(|| TcpListener::bind((address, host.next_port())))??;
        let address = listener.local_addr()?;
        std::thread::Builder::new().name("feeder".into()).spawn(move || {
            let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let mut fds = [PollFd::new(&listener, PollFlags::IN)];
            if poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0)
                && let Ok((mut stream, _)) = listener.accept()
                && stream.read_exact(&mut [0]).is_ok()
            {
                // The reader goes away after the first byte.
                let _ = stream.write_all(&[0; 100_000]);
            }
        })?;
        Ok(Self { address })
    }
}

/// Two wireguard-go, one on each host, and the addresses inside.
pub(crate) struct WireGuard {
    processes: Vec<(Process, PathBuf)>,
}

impl WireGuard {
    /// The server's address inside the tunnel.
    pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 2));

    /// The laptop sends a keepalive every second, the shortest time that wg(8) allows.
    pub(crate) fn start(program: &Path, [laptop, server]: [&Host; 2], address: IpAddr, lab: &str) -> Result<Self> {
        let mut this = Self { processes: Vec::new() };
        let keys = [keys(laptop)?, keys(server)?];
        for (me, host) in [laptop, server].into_iter().enumerate() {
            // Its control socket has the device's name and is in no namespace.
            let device = format!("wg{lab}{me}");
            let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
            // Without the variable the older ones print a page about kernels that have WireGuard themselves.
            let command = host.command(program).args(["-f", &device]).env("LOG_LEVEL", "error");
            let process = command.env("WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD", "1").spawn()?;
            this.processes.push((process, socket.clone()));
            wait_until(Duration::from_secs(10), "wireguard-go listens", || socket.exists())?;
            let (other, private) = (&keys[1 - me].1, &keys[me].0);
            let endpoint = match me {
                0 => format!("Endpoint={}\nPersistentKeepalive=1\n", SocketAddr::new(address, 51820)),
                _ => String::new(),
            };
            let text = format!(
                "[Interface]\nPrivateKey={private}\nListenPort=51820\n[Peer]\nPublicKey={other}\nAllowedIPs=10.99.0.0/24\n{endpoint}"
            );
            host.command("wg").args(["setconf", &device, "/dev/stdin"]).stdin(text).run()?;
            host.ip([
                format!("addr add 10.99.0.{}/24 dev {device}", me + 1),
                format!("link set {device} mtu 1420 up"),
            ])?;
        }
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

fn keys(host: &Host) -> Result<(String, String)> {
    let private = host.command("wg").arg("genkey").run()?.trim().to_owned();
    let public = host.command("wg").arg("pubkey").stdin(private.as_str()).run()?.trim().to_owned();
    Ok((private, public))
}
