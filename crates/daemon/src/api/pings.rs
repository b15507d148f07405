//! Hosts that clients have this one ask whether they answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_ipc::Pinged;
use whimbrel_protocol::{PeerId, PeerView, Time};

use super::views;
use crate::api::server::ClientId;

/// How soon a peer is asked again, and how long it is waited for at the most.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
pub(crate) const PEER_WITHIN: Duration = Duration::from_millis(2_500);
/// How long who is not known yet is waited for: it is asked twice, and a session takes a round trip or two (P-10).
pub(crate) const STRANGER_WITHIN: Duration = Duration::from_secs(6);

/// A client that waits for an answer.
pub(crate) struct Pinging {
    pub(crate) client: ClientId,
    pub(crate) whom: Whom,
    pub(crate) tries: u32,
    pub(crate) next: Time,
    pub(crate) until: Time,
    pub(crate) begun: Time,
}

/// Who is asked.
#[derive(Clone, Copy)]
pub(crate) enum Whom {
    Peer(PeerId),
    /// Nothing was known of who is there.
    Address(IpAddr),
}

impl Pinging {
    /// When something is to be done for it at the latest.
    pub(crate) fn due(&self) -> Time {
        self.next.min(self.until)
    }
}

/// What is known of a host that did not answer when it was asked for the first time.
pub(crate) fn stranger(address: SocketAddr) -> Pinged {
    Pinged {
        address,
        peer: None,
        session: None,
        answered: false,
        round_trip_ms: None,
        tries: 2,
        local: None,
        observed: None,
        nat_here: None,
        nat_there: None,
        heard_ms: None,
        reason: Some(format!(
            "it runs no Whimbrel, or UDP {} is dropped on the way there or back, or its `trust` is another",
            address.port()
        )),
    }
}

/// The same of a peer. `answer`: the round trip, and where it sees this host.
pub(crate) fn of_peer(peer: &PeerView, now: Time, one: &Pinging, answer: Option<(Duration, SocketAddr)>) -> Pinged {
    let heard = now.since(peer.last_heard);
    let observed = answer.map(|(_, observed)| observed);
    let port = peer.remote.port();
    let reason = match (answer, peer.source, peer.session) {
        (Some(_), ..) => None,
        (_, None, _) => Some("no network of this host leads to it".to_owned()),
        (_, _, false) => {
            Some(format!("there is no session with it: it does not run, or UDP {port} does not get through"))
        }
        _ if peer.last_heard >= one.begun => {
            Some(format!("it is heard, but does not hear this host: UDP {port} passes in, and not out"))
        }
        _ if peer.away == Some(true) => Some("it is away, and said so".to_owned()),
        _ => Some(format!("it does not run any more, has moved, or UDP {port} is dropped on the way there or back")),
    };
    Pinged {
        answered: answer.is_some(),
        round_trip_ms: answer.map(|(took, _)| views::fraction(took)),
        tries: one.tries,
        local: peer.source,
        observed,
        nat_here: observed.zip(peer.source).map(|(seen, source)| seen.ip().to_canonical() != source),
        nat_there: answer.map(|_| peer.mapped),
        heard_ms: Some(u64::try_from(heard.as_millis()).unwrap_or(u64::MAX)),
        reason,
        ..stranger(peer.remote)
    }
}
