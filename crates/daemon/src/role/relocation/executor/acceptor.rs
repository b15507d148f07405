//! Getting a socket.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use whimbrel_kernel::checkpoint::{self, Checkpoint, Rights, Unmovable};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::namespace;
use whimbrel_kernel::owner::Owner;
use whimbrel_protocol::process::Place;
use whimbrel_protocol::{MoveName, OpFailed, Refusal, Request, SavedAcceptance, Time};
use whimbrel_wire::snapshot::{Body, Family, Metadata, OptionKind, Queued, Snapshot, SocketOption, Stream};
use whimbrel_wire::{FlowTuple, Transport};

use super::donor::is_of;
use super::{Arrived, Known, Relocation};
use crate::host::endpoints::{HIDDEN, PlaceName};
use crate::host::refusal::{failed, refusal_of, refused, unmovable};
use crate::host::{Failure, Host, own_addresses};

/// A socket that is coming.
#[derive(Debug)]
pub(crate) struct Taken {
    flow: FlowTuple,
    receiver: Vec<u8>,
    /// It is to live in the namespace of its address.
    endpoint: Option<PlaceName>,
    checkpoint: Option<(Checkpoint, Option<Metadata>)>,
    /// What comes into its queue when it wakes. Until then what is sent to its address goes where it comes from.
    queue: Vec<Queued>,
}

impl Taken {
    pub(crate) fn flow(&self) -> FlowTuple {
        self.flow
    }

    pub(crate) fn rests(&self) -> bool {
        self.checkpoint.is_some()
    }
}

/// Rebuilds a socket that is this owner's.
fn restore(snapshot: &Snapshot, injector: &Injector, rights: Rights, owner: Owner) -> Result<Checkpoint, Unmovable> {
    owner
        .make(|| Checkpoint::restore_with(snapshot, injector, rights))
        .map_err(Unmovable::from)
        .and_then(|restored| restored)
}

impl Relocation {
    pub(crate) fn admit(
        &mut self,
        host: &mut Host,
        now: Time,
        name: MoveName,
        request: Request,
    ) -> Result<(), OpFailed> {
        self.is_admissible(&request)?;
        self.make_place(host, now, name, &request)
    }

    /// Whether somebody takes a socket, of a family that this host has. Those of a whole process are taken by none but
    /// that.
    pub(crate) fn is_admissible(&self, request: &Request) -> Result<(), OpFailed> {
        let Request { tuple, family, receiver, .. } = request;
        if !is_of(*family, tuple.local.ip()) {
            return Err(failed(Refusal::BadSnapshot, &"an IPv4 socket with an IPv6 address"));
        }
        is_there(*family)?;
        if Place::of(receiver).is_some() {
            return Ok(());
        }
        if !self.is_received(receiver) {
            let who = String::from_utf8_lossy(receiver);
            return Err(failed(
                Refusal::NobodyReceives,
                &format!("no program receives sockets under the name {who:?}"),
            ));
        }
        if self.full.contains(receiver) {
            return Err(failed(Refusal::NoRoom, &"what has come already was not taken yet"));
        }
        may_set(&request.options, request, self.rights)
    }

    /// Sees to it that a socket has a place where its address is local.
    pub(crate) fn make_place(
        &mut self,
        host: &mut Host,
        now: Time,
        name: MoveName,
        request: &Request,
    ) -> Result<(), OpFailed> {
        let Request { tuple, receiver, .. } = request.clone();
        let own = own_addresses(&host.network).contains(&tuple.local.ip());
        let endpoint = (!own).then(|| host.endpoints.name_of(tuple.local));
        if endpoint.is_some() {
            let Host { endpoints, datapath, .. } = &mut *host;
            endpoints.need(now, tuple.local, datapath).map_err(|failure| match failure {
                Failure::Kernel(error) => refused(&error, Refusal::NotRestored),
                Failure::Datapath(error) => failed(refusal_of(error.raw_os_error(), Refusal::NotRestored), &error),
                other => failed(Refusal::NotRestored, &other),
            })?;
        }
        self.taken.insert(name, Taken { flow: tuple, receiver, endpoint, checkpoint: None, queue: Vec::new() });
        self.make_ready(host, now)
    }

    /// The namespace that a daemon before this one has made for a socket that comes here is needed until the move is
    /// over.
    pub(crate) fn find_place(&mut self, host: &mut Host, saved: &SavedAcceptance) {
        let Request { tuple: flow, receiver, .. } = saved.request.clone();
        let endpoint = host.endpoints.adopt_move(&flow);
        let taken = Taken { flow, receiver, endpoint, checkpoint: None, queue: Vec::new() };
        self.taken.insert(saved.ticket.name, taken);
    }

    /// `donor` and `holder`: the peers that may send packets for it.
    pub(crate) fn rebuild(
        &mut self,
        host: &mut Host,
        name: MoveName,
        request: &Request,
        snapshot: &[u8],
        [donor, holder]: [Option<Known>; 2],
    ) -> Result<(), OpFailed> {
        let mut snapshot = announced(request, snapshot)?;
        let rights = self.rights;
        let hidden = take_hidden(&mut snapshot);
        let options: Vec<u16> = snapshot.options.iter().map(|option| option.kind.number()).collect();
        may_set(&options, request, rights)?;
        let queue = match &mut snapshot.body {
            Body::Datagram(datagrams) if request.tuple.is_unconnected() => std::mem::take(&mut datagrams.queue),
            _ => Vec::new(),
        };
        // It may have ended since it was asked. Where nobody takes the socket the program that has it keeps it.
        if !self.is_received(&request.receiver) {
            return Err(failed(Refusal::NobodyReceives, &"the program that was to receive it has gone"));
        }
        host.forget_late(&request.tuple);
        self.make_way_for_listener(host, &request.tuple);
        host.take_home(&request.tuple)?;
        self.hold_until_awake(host, &request.tuple)?;
        let rebuilt = self.rebuild_held(host, name, request, (snapshot, queue), hidden, holder);
        if rebuilt.is_err() {
            self.end_hold(host, &request.tuple);
            return rebuilt;
        }
        let from = [donor, holder].into_iter().flatten().map(|known| known.peer).collect();
        host.tunnel.expect_flow(request.tuple, from);
        Ok(())
    }

    /// A connection that is rebuilt here is another host's until that is decided: what its timers have it send goes
    /// nowhere, and what comes for it waits, since it would acknowledge that. Other sockets do nothing by themselves.
    pub(crate) fn hold_until_awake(&mut self, host: &mut Host, flow: &FlowTuple) -> Result<(), OpFailed> {
        if flow.transport != Transport::Tcp || flow.is_unconnected() {
            return Ok(());
        }
        self.held.insert(*flow);
        host.set_aside(flow).map_err(|error| {
            self.end_hold(host, flow);
            failed(Refusal::NoRights, &error)
        })
    }

    /// It is this host's: it gets what has waited.
    pub(crate) fn let_awake(&mut self, host: &mut Host, flow: &FlowTuple) {
        if self.held.remove(flow) {
            host.give_aside_back(flow);
        }
        // Where the flow is of no peer's nobody else has said so.
        host.tunnel.open_flow(flow);
    }

    /// It is not. Nobody here is to answer what has waited; it is sent again.
    pub(crate) fn end_hold(&mut self, host: &mut Host, flow: &FlowTuple) {
        if self.held.remove(flow) {
            host.drop_aside(flow);
        }
    }

    fn rebuild_held(
        &mut self,
        host: &mut Host,
        name: MoveName,
        request: &Request,
        (snapshot, queue): (Snapshot, Vec<Queued>),
        hidden: bool,
        holder: Option<Known>,
    ) -> Result<(), OpFailed> {
        let rights = self.rights;
        let owner = self.owner_for(&request.receiver);
        let Self { taken, .. } = self;
        let Host { endpoints, ports, injector, .. } = host;
        let gone = || failed(Refusal::NotRestored, &"nobody has asked for it");
        let of = taken.get_mut(&name).ok_or_else(gone)?;
        let to_holder = holder.and_then(|holder| holder.round_trip);
        let path = match &snapshot.body {
            Body::Stream(Stream { path, .. }) => path.as_ref(),
            _ => None,
        };
        // Who is no peer is this host itself.
        let way = holder.map_or(Some(Duration::ZERO), |holder| holder.round_trip);
        let round_trip = path.and_then(|path| path.longest_round_trip(way));
        let checkpoint = match of.endpoint.and_then(|name| endpoints.place(name)) {
            Some(place) => {
                if let Some(path) = path {
                    let first_window = path.first_window(to_holder, name.donor == request.holder);
                    place.begin_with(request.tuple.local.ip(), first_window);
                }
                let _inside = place.endpoint.enter().map_err(|error| refused(&error, Refusal::NotRestored))?;
                round_trip.into_iter().for_each(|time| place.expected.say(&request.tuple, time, &place.injector));
                restore(&snapshot, &place.injector, rights, owner).and_then(|checkpoint| {
                    checkpoint.requeue(request.tuple.local, &queue, &place.injector).map(|()| checkpoint)
                })
            }
            None => {
                ports.make_way(request.tuple.transport, request.tuple.local);
                of.queue = queue;
                restore(&snapshot, injector, rights, owner)
            }
        };
        let checkpoint = checkpoint.map_err(|why| unmovable(&why, Refusal::NotRestored))?;
        if hidden && of.endpoint.is_some() {
            namespace::mark(checkpoint.as_fd(), HIDDEN).map_err(|error| refused(&error, Refusal::NotRestored))?;
        }
        of.checkpoint = Some((checkpoint, snapshot.metadata));
        Ok(())
    }

    /// The socket goes on, in the hands of whoever receives it.
    pub(crate) fn wake(&mut self, host: &mut Host, name: &MoveName) -> Result<(), OpFailed> {
        let lost = |why: &str| failed(Refusal::NotWoken, &why);
        let of = self.taken.get_mut(name).ok_or_else(|| lost("the socket is not there any more"))?;
        let Some((checkpoint, metadata)) = of.checkpoint.take() else { return Err(lost("the socket was not rebuilt")) };
        let (receiver, flow, endpoint) = (of.receiver.clone(), of.flow, of.endpoint);
        let queue = std::mem::take(&mut of.queue);
        if !self.is_received(&receiver) {
            // Dropped at rest, it says nothing by itself; the holder is told.
            self.end_hold(host, &flow);
            return Err(lost("the program that was to receive it has gone"));
        }
        if !queue.is_empty() {
            let refilled = checkpoint.requeue(flow.local, &queue, host.injector_at(endpoint));
            refilled.map_err(|why| unmovable(&why, Refusal::NotWoken))?;
        }
        // First what holds its packets: its own first segment would be held with them.
        self.let_awake(host, &flow);
        let socket = checkpoint.thaw(host.injector_at(endpoint)).map_err(|why| unmovable(&why, Refusal::NotWoken))?;
        let metadata = metadata.unwrap_or(Metadata { uuid: [0; 16], state: Vec::new() });
        self.arrived.push(Arrived { name: *name, receiver, flow, socket, metadata });
        Ok(())
    }

    pub(crate) fn drop_taken(&mut self, host: &mut Host, name: &MoveName) -> Result<(), OpFailed> {
        if let Some(flow) = self.taken.get(name).map(Taken::flow) {
            host.leave_home(&flow);
        }
        let Some(of) = self.taken.get_mut(name) else { return Ok(()) };
        let (flow, Some((checkpoint, _))) = (of.flow(), of.checkpoint.take()) else { return Ok(()) };
        let destroyed = checkpoint.destroy(host.sockets_beside(&flow)).map_err(|why| unmovable(&why, Refusal::NotKept));
        self.end_hold(host, &flow);
        destroyed
    }

    /// A move is over, one way or the other: what was found on admittance is not kept free any more.
    pub(crate) fn forget_taken(&mut self, host: &mut Host, now: Time, name: &MoveName) -> Result<(), OpFailed> {
        host.store.forget_acceptance(*name);
        let taken = self.taken.remove(name);
        if let Some(of) = &taken {
            self.end_hold(host, &of.flow);
            host.tunnel.forget_expected(&of.flow);
        }
        if let Some(place) = taken.and_then(|of| of.endpoint) {
            host.endpoints.release(now, place);
        }
        self.make_ready(host, now)
    }
}

/// Whether this host has a family at all.
fn is_there(family: Family) -> Result<(), OpFailed> {
    let wanted = match family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    let made = socket_with(wanted, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    made.map(drop).map_err(|error| failed(refusal_of(Some(error.raw_os_error()), Refusal::NotRestored), &error))
}

/// Whether the far end of a socket is not to learn where it is: its mark, which is Whimbrel's own and means something
/// in endpoint namespaces only, is none of the options that are left.
fn take_hidden(snapshot: &mut Snapshot) -> bool {
    let before = snapshot.options.len();
    let is_hidden = |option: &SocketOption| option.kind == OptionKind::Mark && option.value == u64::from(HIDDEN);
    snapshot.options.retain(|option| !is_hidden(option));
    snapshot.options.len() < before
}

/// Refuses a socket with an option that is not set here (protocol.md P-147).
fn may_set(options: &[u16], request: &Request, rights: Rights) -> Result<(), OpFailed> {
    let Request { tuple, family, .. } = request;
    let why = checkpoint::why_not_set(options, tuple.transport, *family, rights);
    match why.map_err(|error| refused(&error, Refusal::NotRestored))? {
        Some(why) => Err(failed(Refusal::NoOption, &why)),
        None => Ok(()),
    }
}

/// The snapshot of the socket that was announced.
fn announced(request: &Request, bytes: &[u8]) -> Result<Snapshot, OpFailed> {
    let snapshot = Snapshot::decode(bytes).map_err(|why| failed(Refusal::BadSnapshot, &why))?;
    let Request { tuple, family, .. } = request;
    let remote = match &snapshot.body {
        Body::Stream(stream) => Some(stream.remote),
        Body::Datagram(datagrams) => datagrams.remote,
        Body::Listening { .. } => None,
    };
    let transport = match &snapshot.body {
        Body::Stream(_) | Body::Listening { .. } => Transport::Tcp,
        Body::Datagram(_) => Transport::Udp,
    };
    // One without another end may be bound to all addresses that there are: in the namespace of one, that is this one.
    let everywhere = remote.is_none() && snapshot.local.ip().is_unspecified();
    let local = if everywhere { SocketAddr::new(tuple.local.ip(), snapshot.local.port()) } else { snapshot.local };
    // Nothing else was asked for, and nothing else is bound to the ticket.
    let same = (transport, local, snapshot.family) == (tuple.transport, tuple.local, *family);
    let remote = remote.unwrap_or(FlowTuple::unconnected(transport, tuple.local).remote);
    if !same || remote != tuple.remote {
        return Err(failed(Refusal::BadSnapshot, &"it is the snapshot of another socket than was announced"));
    }
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::snapshot::{Datagrams, MAX_LEN};

    fn request() -> Request {
        let tuple = FlowTuple {
            transport: Transport::Udp,
            local: "192.0.2.1:53".parse().expect("an endpoint"),
            remote: "198.51.100.7:4000".parse().expect("an endpoint"),
        };
        Request {
            holder: [1; 32],
            holder_at: tuple.remote,
            flow: 9,
            tuple,
            family: Family::Ipv4,
            size: 100,
            options: Vec::new(),
            receiver: Vec::new(),
        }
    }

    fn snapshot(change: impl FnOnce(&mut Snapshot)) -> Vec<u8> {
        let Request { tuple, family, .. } = request();
        let queue = vec![Queued { from: tuple.remote, bytes: b"asked".to_vec() }];
        let body = Body::Datagram(Datagrams { remote: Some(tuple.remote), queue });
        let mut snapshot = Snapshot {
            family,
            local: tuple.local,
            body,
            shut: whimbrel_wire::snapshot::Shut::default(),
            options: Vec::new(),
            metadata: None,
        };
        change(&mut snapshot);
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        bytes
    }

    #[test]
    fn what_needs_a_privilege_is_set_only_where_it_is_allowed() {
        let set = |kind: OptionKind, all| may_set(&[kind.number()], &request(), Rights { all });
        set(OptionKind::TypeOfService, false).expect("anybody may");
        let failed = set(OptionKind::Mark, false).expect_err("not anybody may");
        assert_eq!(failed.refusal, Some(Refusal::NoOption));
        assert!(failed.sentence.contains("SO_MARK") && failed.sentence.contains("`privileged_options`"), "{failed:?}");
        set(OptionKind::Mark, true).expect("it is allowed");
        let failed = may_set(&[9999], &request(), Rights { all: true }).expect_err("nobody knows it");
        assert_eq!(failed.refusal, Some(Refusal::NoOption));
        // Whimbrel's own.
        let marked = |value| {
            let options = vec![SocketOption { kind: OptionKind::Mark, value }];
            let mut snapshot = Snapshot::decode(&snapshot(|snapshot| snapshot.options = options)).expect("a snapshot");
            (take_hidden(&mut snapshot), snapshot.options.len())
        };
        assert_eq!((marked(u64::from(HIDDEN)), marked(7)), ((true, 0), (false, 1)));
    }

    fn refused(bytes: &[u8]) -> String {
        let failed = announced(&request(), bytes).expect_err("it is taken");
        assert_eq!(failed.refusal, Some(Refusal::BadSnapshot));
        failed.sentence
    }

    #[test]
    fn a_snapshot_that_is_damaged_newer_or_too_large_is_refused() {
        let right = snapshot(|_| ());
        assert!(announced(&request(), &right).is_ok());
        for length in 0..right.len() {
            refused(&right[..length]);
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut other = right.clone();
            other[at..at + bytes.len()].copy_from_slice(bytes);
            refused(&other)
        };
        assert!(with(0, b"ELF").contains("no snapshot"));
        assert!(with(4, &[0, 2]).contains("version 2"));
        assert!(with(6, &(MAX_LEN as u32 + 1).to_be_bytes()).contains("at most"));
        // A record that must be understood, and is of no kind that is known.
        assert!(with(10, &[0xbf, 0xff]).contains("must not ignore"));
    }

    #[test]
    fn a_snapshot_of_another_socket_is_refused() {
        let elsewhere = "192.0.2.2:53".parse().expect("an endpoint");
        for forged in [
            snapshot(|snapshot| snapshot.local = elsewhere),
            snapshot(|snapshot| snapshot.family = Family::Ipv6),
            snapshot(|snapshot| snapshot.body = Body::Listening { backlog: 1 }),
            snapshot(|snapshot| {
                let Body::Datagram(datagrams) = &mut snapshot.body else { return };
                datagrams.remote = Some(elsewhere);
            }),
            snapshot(|snapshot| {
                let Body::Datagram(datagrams) = &mut snapshot.body else { return };
                datagrams.remote = None;
            }),
        ] {
            assert!(refused(&forged).contains("another socket"));
        }
    }
}
