//! Snapshots into bytes.

use alloc::vec::Vec;

use super::{Body, Datagrams, Family, MAGIC, Shut, Snapshot, Stream, StreamState, VERSION, kind, record};
use crate::codec::{put_endpoint, put_u16, put_u32, put_u64};

impl Snapshot {
    /// Appends the snapshot to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.size_hint());
        out.extend_from_slice(&MAGIC);
        put_u16(out, VERSION);
        let length = reserve_length(out);
        let of = match &self.body {
            Body::Stream(_) => kind::STREAM,
            Body::Listening { .. } => kind::LISTENING,
            Body::Datagram(_) => kind::DATAGRAM,
        };
        put_record(out, record::SOCKET, |out| {
            out.push(of);
            out.push(match self.family {
                Family::Ipv4 => 4,
                Family::Ipv6 => 6,
            });
            put_endpoint(out, self.local);
        });
        match &self.body {
            Body::Stream(stream) => put_stream(out, stream),
            Body::Listening { backlog } => put_record(out, record::BACKLOG, |out| put_u32(out, *backlog)),
            Body::Datagram(datagrams) => put_datagrams(out, datagrams),
        }
        for option in &self.options {
            put_record(out, record::OPTION, |out| {
                put_u16(out, option.kind.number());
                put_u64(out, option.value);
            });
        }
        if let Some(metadata) = &self.metadata {
            put_record(out, record::METADATA, |out| {
                out.extend_from_slice(&metadata.uuid);
                out.extend_from_slice(&metadata.state);
            });
        }
        if self.shut != Shut::default() {
            let Shut { receive, send } = self.shut;
            put_record(out, record::SHUT, |out| out.push(u8::from(receive) | u8::from(send) << 1));
        }
        fill_length(out, length);
    }

    /// About as many bytes as it takes: most are those of its queues.
    fn size_hint(&self) -> usize {
        let in_queues = match &self.body {
            Body::Stream(stream) => stream.send.bytes.len() + stream.receive.bytes.len(),
            Body::Listening { .. } => 0,
            Body::Datagram(datagrams) => datagrams.queue.iter().map(|queued| 24 + queued.bytes.len()).sum(),
        };
        let handed_over = self.metadata.as_ref().map_or(0, |metadata| metadata.state.len());
        256 + 16 * self.options.len() + in_queues + handed_over
    }
}

fn put_stream(out: &mut Vec<u8>, stream: &Stream) {
    let Stream { remote, state, send, receive, negotiated, window, out_of_order, path } = stream;
    put_record(out, record::REMOTE, |out| put_endpoint(out, *remote));
    put_record(out, record::STATE, |out| out.push(state_number(*state)));
    put_record(out, record::SEND, |out| {
        put_u32(out, send.end);
        put_u32(out, send.unsent);
        out.extend_from_slice(&send.bytes);
    });
    put_record(out, record::RECEIVE, |out| {
        put_u32(out, receive.end);
        out.extend_from_slice(&receive.bytes);
    });
    put_record(out, record::NEGOTIATED, |out| {
        let scale = negotiated.scale;
        let flags = [scale.is_some(), negotiated.sack, negotiated.ecn, negotiated.timestamp.is_some()];
        out.push((0..).zip(flags).map(|(bit, on)| u8::from(on) << bit).sum());
        put_u16(out, negotiated.mss);
        out.push(scale.map_or(0, |scale| scale.send));
        out.push(scale.map_or(0, |scale| scale.receive));
        put_u32(out, negotiated.timestamp.unwrap_or(0));
    });
    put_record(out, record::WINDOW, |out| {
        let fields = [window.send_updated, window.send, window.send_max, window.receive, window.receive_updated];
        fields.into_iter().for_each(|field| put_u32(out, field));
    });
    for segment in out_of_order {
        put_record(out, record::OUT_OF_ORDER, |out| {
            put_u32(out, segment.sequence);
            out.extend_from_slice(&segment.bytes);
        });
    }
    if let Some(path) = path {
        put_record(out, record::PATH, |out| {
            let fields = [path.congestion_window, path.slow_start_threshold, path.round_trip, path.variation, path.mtu];
            fields.into_iter().for_each(|field| put_u32(out, field));
            out.extend_from_slice(path.congestion_control.as_bytes());
        });
    }
}

fn put_datagrams(out: &mut Vec<u8>, datagrams: &Datagrams) {
    if let Some(remote) = datagrams.remote {
        put_record(out, record::REMOTE, |out| put_endpoint(out, remote));
    }
    for datagram in &datagrams.queue {
        put_record(out, record::DATAGRAM, |out| {
            put_endpoint(out, datagram.from);
            out.extend_from_slice(&datagram.bytes);
        });
    }
}

fn put_record(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    put_u16(out, kind);
    let length = reserve_length(out);
    body(out);
    fill_length(out, length);
}

/// Room for a length; [`fill_length`] writes it once all that it counts is there.
fn reserve_length(out: &mut Vec<u8>) -> usize {
    put_u32(out, 0);
    out.len()
}

fn fill_length(out: &mut [u8], from: usize) {
    // What is longer is not read (`MAX_LEN`), so a length that does not fit need not be told.
    let length = u32::try_from(out.len() - from).unwrap_or(u32::MAX);
    out[from - 4..from].copy_from_slice(&length.to_be_bytes());
}

pub(super) fn state_number(state: StreamState) -> u8 {
    match state {
        StreamState::Established => 1,
        StreamState::FinWait1 => 2,
        StreamState::FinWait2 => 3,
        StreamState::CloseWait => 4,
        StreamState::LastAck => 5,
        StreamState::Closing => 6,
    }
}
