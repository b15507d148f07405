//! Getting a socket.

use std::net::IpAddr;

use whimbrel_datapath::Toward;
use whimbrel_kernel::endpoint;
use whimbrel_kernel::frozen::Frozen;
use whimbrel_protocol::{FlowEntry, LocalEnd, MoveFailed, MoveName, Refusal, Request, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::{Body, Luggage, Snapshot};

use super::donor::is_of;
use super::{Arrived, Relocation, failed, refused, unmovable};
use crate::effects::{Effects, own_addresses};

/// A socket that is coming.
#[derive(Debug)]
pub(super) struct Taken {
    flow: FlowTuple,
    receiver: Vec<u8>,
    /// It is to live in the namespace of its address.
    endpoint: Option<IpAddr>,
    frozen: Option<(Frozen, Option<Luggage>)>,
}

impl Taken {
    pub(super) fn flow(&self) -> FlowTuple {
        self.flow
    }
}

impl Effects {
    pub(super) fn admit(&mut self, now: Time, name: MoveName, request: Request) -> Result<(), MoveFailed> {
        let Request { tuple, family, receiver, .. } = request;
        if !self.relocation.is_received(&receiver) {
            let who = String::from_utf8_lossy(&receiver);
            return Err(failed(
                Refusal::NobodyReceives,
                &format!("no program receives sockets under the name {who:?}"),
            ));
        }
        if self.relocation.full.contains(&receiver) {
            return Err(failed(Refusal::NoRoom, &"what has come already was not taken yet"));
        }
        let address = tuple.local.ip();
        if !is_of(family, address) {
            return Err(failed(Refusal::BadSnapshot, &"an IPv4 socket with an IPv6 address"));
        }
        let own = own_addresses(&self.network).contains(&address);
        let endpoint = (!own).then_some(address);
        if let Some(address) = endpoint {
            let Self { relocation: Relocation { endpoints, .. }, datapath, routes, .. } = self;
            endpoints.need(address, datapath, routes).map_err(|failure| failed(Refusal::NoRights, &failure))?;
        }
        self.relocation.taken.insert(name, Taken { flow: tuple, receiver, endpoint, frozen: None });
        self.make_ready(now)
    }

    pub(super) fn rebuild(&mut self, name: MoveName, request: &Request, snapshot: &[u8]) -> Result<(), MoveFailed> {
        let snapshot = Snapshot::decode(snapshot).map_err(|why| failed(Refusal::BadSnapshot, &why))?;
        let remote = match &snapshot.body {
            Body::Stream(stream) => Some(stream.remote),
            Body::Datagram(datagrams) => datagrams.remote,
            Body::Listening { .. } => None,
        };
        // Nothing else was asked for, and nothing else is bound to the ticket.
        if snapshot.local != request.tuple.local
            || remote != Some(request.tuple.remote)
            || snapshot.family != request.family
        {
            return Err(failed(Refusal::BadSnapshot, &"it is the snapshot of another socket than was announced"));
        }
        let Relocation { taken, endpoints, ports, .. } = &mut self.relocation;
        let gone = || failed(Refusal::NotRestored, &"nobody has asked for it");
        let of = taken.get_mut(&name).ok_or_else(gone)?;
        let frozen = match of.endpoint.and_then(|address| endpoints.at(address)) {
            Some(place) => {
                let _inside = place.endpoint.enter().map_err(|error| refused(&error, Refusal::NotRestored))?;
                Frozen::restore(&snapshot, &place.injector)
            }
            None => {
                ports.make_way(request.tuple.transport, request.tuple.local);
                Frozen::restore(&snapshot, &self.injector)
            }
        };
        of.frozen = Some((frozen.map_err(|why| unmovable(&why, Refusal::NotRestored))?, snapshot.luggage));
        Ok(())
    }

    /// The socket goes on, in the hands of whoever receives it.
    pub(super) fn wake(&mut self, name: &MoveName) -> Result<(), MoveFailed> {
        let Relocation { taken, endpoints, receivers, arrived, .. } = &mut self.relocation;
        let lost = |why: &str| failed(Refusal::NotWoken, &why);
        let of = taken.get_mut(name).ok_or_else(|| lost("the socket is not there any more"))?;
        let Some((frozen, luggage)) = of.frozen.take() else { return Err(lost("the socket was not rebuilt")) };
        if !of.receiver.is_empty() && !receivers.contains(&of.receiver) {
            // Dropped at rest, it says nothing by itself; the holder is told.
            return Err(failed(Refusal::NotWoken, &"the program that was to receive it has gone"));
        }
        let injector = match of.endpoint.and_then(|address| endpoints.at(address)) {
            Some(place) => &place.injector,
            None => &self.injector,
        };
        let socket = frozen.thaw(injector).map_err(|why| unmovable(&why, Refusal::NotWoken))?;
        let luggage = luggage.unwrap_or(Luggage { uuid: [0; 16], state: Vec::new() });
        let (receiver, flow) = (of.receiver.clone(), of.flow);
        arrived.push(Arrived { name: *name, receiver, flow, socket, luggage });
        Ok(())
    }

    pub(super) fn drop_taken(&mut self, name: &MoveName) -> Result<(), MoveFailed> {
        let frozen = self.relocation.taken.get_mut(name).and_then(|of| of.frozen.take());
        frozen.map_or(Ok(()), |(frozen, _)| frozen.destroy().map_err(|why| unmovable(&why, Refusal::NotKept)))
    }

    /// A move is over, one way or the other: what was found on admittance is not kept free any more.
    pub(super) fn forget_taken(&mut self, now: Time, name: &MoveName) -> Result<(), MoveFailed> {
        self.journal.forget_acceptance(*name);
        if let Some(address) = self.relocation.taken.remove(name).and_then(|of| of.endpoint) {
            self.release_endpoint(address);
        }
        self.make_ready(now)
    }

    /// Where the data plane finds this host's end of a flow that is to be known to it.
    pub(in crate::effects) fn toward(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> Toward {
        let before = self.journal.flows().get(flow).map(|before| before.end);
        if let Some(before) = before.filter(|before| *before != entry.end) {
            self.release_flow_endpoint(flow, before);
        }
        if entry.end == LocalEnd::Endpoint && before != Some(LocalEnd::Endpoint) {
            let Self { relocation: Relocation { endpoints, .. }, datapath, routes, .. } = self;
            if let Err(error) = endpoints.need(flow.local.ip(), datapath, routes) {
                tracing::error!(%flow, %error, "a connection has no namespace for its address");
            }
        }
        self.toward_adopted(flow, entry)
    }

    /// As [`Effects::toward`], of a flow whose namespace is there, if it is to be in one: that of a daemon before this one, say.
    pub(in crate::effects) fn toward_adopted(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> Toward {
        self.keep_port(flow, entry);
        match entry.end {
            LocalEnd::Here => Toward::Stack,
            LocalEnd::Behind => {
                self.let_forward();
                Toward::Routes
            }
            // Without a namespace nothing of it gets anywhere.
            LocalEnd::Endpoint => {
                Toward::Endpoint(self.relocation.endpoints.interface(flow.local.ip()).unwrap_or_default())
            }
        }
    }

    /// What comes by the tunnel for other hosts may be passed on.
    fn let_forward(&mut self) {
        if !std::mem::replace(&mut self.relocation.forwards, true)
            && let Err(error) = endpoint::let_forward(self.tunnel.device().name())
        {
            tracing::error!(%error, "connections whose sockets are with other hosts stand still");
        }
    }

    /// A flow is over, or its end not there any more: with a socket in a namespace of its own, or with another host's socket.
    pub(in crate::effects) fn release_flow_endpoint(&mut self, flow: &FlowTuple, end: LocalEnd) {
        match end {
            LocalEnd::Endpoint => self.release_endpoint(flow.local.ip()),
            LocalEnd::Behind => self.release_port(flow),
            LocalEnd::Here => {}
        }
    }

    fn release_endpoint(&mut self, address: IpAddr) {
        let Self { relocation: Relocation { endpoints, .. }, datapath, .. } = self;
        if let Err(error) = endpoints.release(address, datapath) {
            tracing::warn!(%address, %error, "what is left of a namespace stays");
        }
    }
}
