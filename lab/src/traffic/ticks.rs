//! A byte every so often over a connection that changes hosts, and the far end that notes when each comes.
//!
//! ```text
//! sender A ── 0 1 2 … ─┐
//!                      ├──> far end
//! sender B ── HELLO ───┘ <── how many it has ── then from there on
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::Timespec;

use super::{Flow, Line, Shared, end_with_stdin, lock, obey, print, receive_sockets};
use crate::{Error, MonoTime, Result, sys};

/// What a sender begins with. The far end answers with the number of bytes that it has, eight bytes, little-endian.
const HELLO: u8 = 255;
/// The bytes that are counted repeat after so many.
const ROUND: u64 = 251;

/// Sends on a connection that is accepted, and on those that are received from other hosts under a name.
pub(super) fn serve(listen: SocketAddr, run_dir: &Path, name: &str, every: Duration) -> Result<()> {
    let listener = TcpListener::bind(listen).map_err(|e| Error::call("bind", listen.to_string(), e))?;
    let address = listener.local_addr().map_err(|e| Error::call("getsockname", listen.to_string(), e))?;
    end_with_stdin();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || send(stream, every));
        }
    });
    receive_sockets(
        run_dir,
        name,
        || print(&Line::Listening { address }),
        |socket| {
            std::thread::spawn(move || send(socket.into(), every));
        },
    )
}

/// Sends until the connection is another host's.
fn send(mut stream: TcpStream, every: Duration) {
    // Sleeps end when they should, not 50 µs later.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let _ = stream.set_nodelay(true);
    let mut has = [0u8; 8];
    let begun = stream.write_all(&[HELLO]).and_then(|()| stream.read_exact(&mut has));
    let from = u64::from_le_bytes(has);
    let mut position = from;
    if begun.is_ok() {
        let mut due = MonoTime::now();
        // What was due while the process stood still is not made up for.
        while stream.write_all(&[(position % ROUND) as u8]).is_ok() {
            position += 1;
            due = (due + every).max(MonoTime::now());
            let time = Timespec { tv_sec: (due.0 / 1_000_000_000) as i64, tv_nsec: (due.0 % 1_000_000_000) as _ };
            while clock_nanosleep_absolute(ClockId::Monotonic, &time).is_err() {}
        }
    }
    print(&Line::Ticked { from, until: position });
}

/// Connects, and notes what comes.
pub(super) fn hear(to: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(to).map_err(|e| Error::call("connect", to.to_string(), e))?;
    let named = |e| Error::call("getpeername", "a new connection", e);
    let (local, peer) = (stream.local_addr().map_err(named)?, stream.peer_addr().map_err(named)?);
    // It has nothing to say, and is to hear all the same that nobody is there any more.
    let pause = Duration::from_secs(2);
    sockopt::set_socket_keepalive(&stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&stream, pause))
        .and_then(|()| sockopt::set_tcp_keepintvl(&stream, pause))
        .and_then(|()| sockopt::set_tcp_keepcnt(&stream, 100))
        .map_err(|e| Error::call("setsockopt(SO_KEEPALIVE)", local.to_string(), e))?;
    let flow = Shared::new(Flow::default().into());
    let ear = (stream.try_clone().map_err(named)?, flow.clone());
    std::thread::spawn(move || listen(ear.0, &ear.1));
    print(&Line::Connected { local, peer });
    obey(&flow, || sys::tcp_info(&stream).ok())
}

fn listen(mut stream: TcpStream, flow: &Shared) {
    let mut buffer = [0u8; 4096];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(0) => return lock(flow).status.ended = true,
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return lock(flow).status.error = Some(e.to_string()),
        };
        let mut flow = lock(flow);
        flow.arrived(length as u64);
        for byte in &buffer[..length] {
            let status = &mut flow.status;
            if *byte == HELLO {
                if let Err(e) = stream.write_all(&status.received.to_le_bytes()) {
                    status.error = Some(e.to_string());
                }
                continue;
            }
            if u64::from(*byte) != status.received % ROUND {
                status.differs_at = status.differs_at.or(Some(status.received));
            }
            status.received += 1;
        }
    }
}
