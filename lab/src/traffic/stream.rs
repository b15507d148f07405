//! A TCP connection that carries a checked byte stream in each direction.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::pattern::Pattern;
use super::{Flow, FlowOptions, FlowStatus, Line, PACE, Pacer, Shared, bind_device, lock, obey, print, report_errors};
use crate::{Error, Result, sys};

pub(super) fn serve(listen: SocketAddr, options: &FlowOptions) -> Result<()> {
    let listener = TcpListener::bind(listen).map_err(|e| Error::call("bind", listen.to_string(), e))?;
    let address = listener.local_addr().map_err(|e| Error::call("getsockname", listen.to_string(), e))?;
    print(&Line::Listening { address });
    let (stream, _) = listener.accept().map_err(|e| Error::call("accept", listen.to_string(), e))?;
    drop(listener);
    carry(stream, options, false)
}

pub(super) fn connect(to: SocketAddr, options: &FlowOptions) -> Result<()> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None).map_err(|e| Error::call("socket", "TCP", e))?;
    bind_device(&socket, options)?;
    if let Some(bind) = options.bind {
        sockopt::set_socket_reuseaddr(&socket, true)
            .and_then(|()| rustix::net::bind(&socket, &bind))
            .map_err(|e| Error::call("bind", bind.to_string(), e))?;
    }
    rustix::net::connect(&socket, &to).map_err(|e| Error::call("connect", to.to_string(), e))?;
    carry(socket.into(), options, true)
}

fn carry(stream: TcpStream, options: &FlowOptions, client: bool) -> Result<()> {
    let named = |e| Error::call("getpeername", "a new connection", e);
    let (local, peer) = (stream.local_addr().map_err(named)?, stream.peer_addr().map_err(named)?);
    report_errors(&stream, peer, options)?;
    if options.keepalive {
        let pause = Duration::from_secs(5);
        sockopt::set_socket_keepalive(&stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&stream, pause))
            .and_then(|()| sockopt::set_tcp_keepintvl(&stream, pause))
            .and_then(|()| sockopt::set_tcp_keepcnt(&stream, 2))
            .map_err(|e| Error::call("setsockopt(SO_KEEPALIVE)", local.to_string(), e))?;
    }
    stream.set_nodelay(true).map_err(|e| Error::call("setsockopt(TCP_NODELAY)", local.to_string(), e))?;
    let flow = Shared::new(Flow { rate: options.rate, ..Flow::default() }.into());
    let stream = Arc::new(stream);
    let (send, receive) = (Pattern::new(options.seed, client), Pattern::new(options.seed, !client));
    let (a, b) = ((stream.clone(), flow.clone()), (stream.clone(), flow.clone()));
    std::thread::spawn(move || sender(&a.0, send, &a.1));
    std::thread::spawn(move || receiver(&b.0, receive, &b.1));
    print(&Line::Connected { local, peer });
    obey(&flow, || sys::tcp_info(&*stream).ok())
}

fn sender(mut stream: &TcpStream, pattern: Pattern, flow: &Shared) {
    let mut buffer = vec![0u8; 128 << 10];
    let mut pacer = Pacer::new();
    loop {
        let (rate, finish, position) = {
            let flow = lock(flow);
            (flow.rate, flow.finish, flow.status.sent)
        };
        if finish {
            let result = stream.shutdown(Shutdown::Write);
            let status = &mut lock(flow).status;
            status.finished = true;
            note(status, result.err());
            return;
        }
        let n = pacer.allow(rate, buffer.len());
        if n == 0 {
            std::thread::sleep(PACE);
            continue;
        }
        pattern.fill(position, &mut buffer[..n]);
        let mut done = 0;
        while done < n {
            match stream.write(&buffer[done..n]) {
                Ok(w) => {
                    done += w;
                    lock(flow).status.sent += w as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return note(&mut lock(flow).status, Some(e)),
            }
        }
    }
}

fn receiver(mut stream: &TcpStream, pattern: Pattern, flow: &Shared) {
    let mut buffer = vec![0u8; 256 << 10];
    let mut scratch = Vec::new();
    let mut position = 0u64;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => {
                lock(flow).status.ended = true;
                return;
            }
            Ok(n) => {
                lock(flow).arrived(n as u64);
                let difference = pattern.first_difference(position, &buffer[..n], &mut scratch);
                position += n as u64;
                let status = &mut lock(flow).status;
                status.received = position;
                status.differs_at = status.differs_at.or(difference);
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return note(&mut lock(flow).status, Some(e)),
        }
    }
}

/// Keeps the first error.
fn note(status: &mut FlowStatus, error: Option<std::io::Error>) {
    if status.error.is_none() {
        status.error = error.map(|e| e.to_string());
    }
}
