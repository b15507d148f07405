//! A pair of connected UDP sockets that exchange numbered datagrams.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::{Flow, FlowOptions, Line, PACE, Pacer, Shared, bind_device, lock, obey, print, unspecified};
use crate::{Error, Result};

/// Several seconds of datagrams, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

pub(super) fn serve(listen: SocketAddr, options: &FlowOptions) -> Result<()> {
    let socket = UdpSocket::bind(listen).map_err(|e| Error::call("bind", listen.to_string(), e))?;
    make_room(&socket)?;
    print(&Line::Listening { address: listen });
    let (_, peer) = socket.peek_from(&mut [0]).map_err(|e| Error::call("recvfrom", listen.to_string(), e))?;
    socket.connect(peer).map_err(|e| Error::call("connect", peer.to_string(), e))?;
    exchange(socket, options)
}

pub(super) fn connect(to: SocketAddr, options: &FlowOptions) -> Result<()> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::DGRAM, None).map_err(|e| Error::call("socket", "UDP", e))?;
    bind_device(&socket, options)?;
    let from = options.bind.unwrap_or(unspecified(to));
    rustix::net::bind(&socket, &from).map_err(|e| Error::call("bind", from.to_string(), e))?;
    let socket = UdpSocket::from(socket);
    make_room(&socket)?;
    socket.connect(to).map_err(|e| Error::call("connect", to.to_string(), e))?;
    exchange(socket, options)
}

/// What waits for a program on a busy machine is not to be taken for lost on the way.
fn make_room(socket: &UdpSocket) -> Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .map_err(|e| Error::call("setsockopt", "SO_RCVBUFFORCE", e))
}

fn exchange(socket: UdpSocket, options: &FlowOptions) -> Result<()> {
    let named = |e| Error::call("getpeername", "a UDP socket", e);
    let (local, peer) = (socket.local_addr().map_err(named)?, socket.peer_addr().map_err(named)?);
    let flow = Shared::new(Flow { rate: options.rate, ..Flow::default() }.into());
    let socket = Arc::new(socket);
    let size = options.size.max(8);
    let (a, b) = ((socket.clone(), flow.clone()), (socket, flow.clone()));
    std::thread::spawn(move || sender(&a.0, size, &a.1));
    std::thread::spawn(move || receiver(&b.0, &b.1));
    print(&Line::Connected { local, peer });
    obey(&flow, || None)
}

fn sender(socket: &UdpSocket, size: usize, flow: &Shared) {
    let mut datagram = vec![0u8; size];
    let mut pacer = Pacer::new();
    let mut saved = 0;
    loop {
        let (rate, finish, number) = {
            let flow = lock(flow);
            (flow.rate, flow.finish, flow.status.sent)
        };
        if finish {
            lock(flow).status.finished = true;
            return;
        }
        saved += pacer.allow(rate, size - saved);
        if saved < size {
            std::thread::sleep(PACE);
            continue;
        }
        saved = 0;
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        let error = socket.send(&datagram).err();
        let mut flow = lock(flow);
        // A datagram that could not be sent is one that was lost: programs over UDP go on.
        flow.status.sent += 1;
        flow.status.error = error.map(|e| e.to_string()).or(flow.status.error.take());
    }
}

fn receiver(socket: &UdpSocket, flow: &Shared) {
    let mut buffer = [0u8; 65_536];
    let mut seen = HashSet::new();
    loop {
        match socket.recv(&mut buffer) {
            Ok(n) if n >= 8 => {
                let [a, b, c, d, e, f, g, h, ..] = buffer;
                let number = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                let mut flow = lock(flow);
                if seen.insert(number) {
                    flow.arrived(number);
                    flow.status.received += 1;
                } else {
                    flow.status.duplicates += 1;
                }
            }
            Ok(_) => {}
            // ICMP errors of earlier datagrams come up here.
            Err(e) => lock(flow).status.error = Some(e.to_string()),
        }
    }
}

/// Passes datagrams on in both directions; answers go to whoever sent last.
pub(super) fn relay(listen: SocketAddr, connect: SocketAddr) -> Result<()> {
    let bind = |address: SocketAddr| UdpSocket::bind(address).map_err(|e| Error::call("bind", address.to_string(), e));
    let (front, back) = (Arc::new(bind(listen)?), Arc::new(bind(unspecified(connect))?));
    back.connect(connect).map_err(|e| Error::call("connect", connect.to_string(), e))?;
    let caller = Arc::new(std::sync::Mutex::new(None));
    let answers = (front.clone(), back.clone(), caller.clone());
    std::thread::spawn(move || {
        let (front, back, caller) = answers;
        let mut buffer = [0u8; 65_536];
        loop {
            // An error is an ICMP message for an earlier datagram.
            let Ok(n) = back.recv(&mut buffer) else { continue };
            let to: Option<SocketAddr> = *caller.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(to) = to {
                let _ = front.send_to(&buffer[..n], to);
            }
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0u8; 65_536];
        loop {
            let Ok((n, from)) = front.recv_from(&mut buffer) else { continue };
            *caller.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(from);
            let _ = back.send(&buffer[..n]);
        }
    });
    print(&Line::Listening { address: listen });
    obey(&Shared::default(), || None)
}
