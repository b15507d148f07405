//! Hosts that clients have this one ask whether they answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_ipc::Pinged;
use whimbrel_protocol::{Node, PeerId, PeerView, Ping, Standing, Time};

use super::views;
use crate::api::server::ClientId;

/// How soon a peer is asked again, and how long it is waited for at the most.
const AGAIN: Duration = Duration::from_secs(1);
const PEER_WITHIN: Duration = Duration::from_millis(2_500);
/// How long who is not known yet is waited for: it is asked twice, and a session takes a round trip or two (P-10).
const STRANGER_WITHIN: Duration = Duration::from_secs(6);

/// A client that waits for an answer.
pub(crate) struct Pinging {
    client: ClientId,
    whom: Whom,
    /// Where that is, as far as is known; it outlives the peer.
    address: SocketAddr,
    tries: u32,
    next: Time,
    until: Time,
    begun: Time,
    /// Another key answers there than the one that is known.
    other_key: bool,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Peer(PeerId),
    /// Nothing was known of who is there.
    Address(IpAddr),
}

/// Whether an address can be that of another host alone.
pub(crate) fn is_of_one_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let on_a_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    !(broadcast || on_a_link || address.is_unspecified() || address.is_multicast())
}

impl Pinging {
    /// `address`: where that is, as far as is known.
    pub(crate) fn new(client: ClientId, whom: Whom, address: SocketAddr, now: Time) -> Self {
        let (next, until) = match whom {
            Whom::Peer(_) => (now, now + PEER_WITHIN),
            // The node asks.
            Whom::Address(_) => (now + STRANGER_WITHIN, now + STRANGER_WITHIN),
        };
        Self { client, whom, address, tries: 0, next, until, begun: now, other_key: false }
    }

    /// When something is to be done for it at the latest.
    pub(crate) fn due(&self) -> Time {
        self.next.min(self.until)
    }

    /// Who is asked, once that is known.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        match self.whom {
            Whom::Peer(id) => Some(id),
            Whom::Address(_) => None,
        }
    }

    /// Where.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Another key answers there than the one that is known.
    pub(crate) fn find_another_key(&mut self) {
        self.other_key = true;
    }

    /// Who is answered.
    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Asks where it is time. Tells whether the client is to be answered, as it is when its time is over at the latest.
    pub(crate) fn go_on(&mut self, now: Time, node: &mut Node) -> bool {
        if let Whom::Address(address) = self.whom {
            match node.known_at(address) {
                Some((id, true)) => self.find_peer(now, id),
                Some((id, false)) if self.until <= now => self.whom = Whom::Peer(id),
                // The session is under way.
                Some((_, false)) => return false,
                None => {
                    self.tries = node.questions_to(address).unwrap_or(self.tries);
                    if self.until > now && node.standing(address) == Standing::Asking {
                        return false;
                    }
                    // It may have come by itself meanwhile.
                    match node.peers().find(|peer| peer.session && peer.remote.ip() == address) {
                        Some(peer) => self.find_peer(now, peer.id),
                        None => return true,
                    }
                }
            }
        }
        let Some((id, (remote, last))) = self.peer().and_then(|id| Some((id, node.last_ping(id)?))) else {
            // It was forgotten meanwhile.
            return true;
        };
        self.address = remote;
        if self.until <= now || last.is_some_and(|ping| self.is_answered_by(&ping)) {
            return true;
        }
        if self.next <= now {
            self.tries += u32::from(node.ping(now, id));
            self.next = now + AGAIN;
        }
        false
    }

    /// It is a peer, which is asked at once whether the path to it works.
    fn find_peer(&mut self, now: Time, id: PeerId) {
        (self.whom, self.tries) = (Whom::Peer(id), 0);
        (self.next, self.until) = (now, now + PEER_WITHIN);
    }

    fn is_answered_by(&self, ping: &Ping) -> bool {
        ping.answer_since(self.begun).is_some()
    }
}

/// What is known of a host that did not answer when it was asked for the first time, or was forgotten meanwhile.
pub(crate) fn stranger(one: &Pinging) -> Pinged {
    let port = one.address.port();
    let reason = match one.whom {
        _ if one.other_key => other_key(one.address.ip()),
        Whom::Peer(_) => "it is not known any more: it has said that it ends, or has not answered for long".to_owned(),
        Whom::Address(_) if one.tries == 0 => "it was not asked: this host has asked others as often as it may \
                                               (`limits.questions`); try again in a moment"
            .to_owned(),
        Whom::Address(_) => {
            format!("it runs no Whimbrel, or UDP {port} is dropped on the way there or back, or its `trust` is another")
        }
    };
    Pinged {
        address: one.address,
        peer: None,
        session: None,
        answered: false,
        round_trip_ms: None,
        tries: one.tries,
        local: None,
        observed: None,
        nat_here: None,
        nat_there: None,
        heard_ms: None,
        reason: Some(reason),
    }
}

fn other_key(at: IpAddr) -> String {
    format!(
        "another key answers there than the one that is known: where that host was set up anew, `whimbrel peers forget \
         {at}` has the new one believed"
    )
}

/// The same of a peer.
pub(crate) fn of_peer(peer: &PeerView, now: Time, one: &Pinging) -> Pinged {
    let answer = peer.ping.and_then(|ping| ping.answer_since(one.begun));
    let heard = now.since(peer.last_heard);
    let observed = answer.map(|(_, observed)| observed);
    let port = peer.remote.port();
    let reason = match (answer, peer.source, peer.session) {
        (Some(_), ..) => None,
        _ if one.other_key => Some(other_key(one.address.ip())),
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
        address: peer.remote,
        peer: None,
        session: None,
        answered: answer.is_some(),
        round_trip_ms: answer.map(|(took, _)| views::fraction(took)),
        tries: one.tries,
        local: peer.source,
        observed,
        nat_here: observed.zip(peer.source).map(|(seen, source)| seen.ip().to_canonical() != source),
        nat_there: answer.map(|_| peer.mapped),
        heard_ms: Some(u64::try_from(heard.as_millis()).unwrap_or(u64::MAX)),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_handshake::StaticKey;
    use whimbrel_protocol::Config;

    const PORT: u16 = 2031;

    fn pinging(whom: Whom, address: IpAddr) -> Pinging {
        Pinging::new(ClientId(1), whom, SocketAddr::new(address, PORT), Time::default())
    }

    fn node(questions_per_second: u32) -> Node {
        let config = Config { questions_per_second, ..Config::default() };
        Node::new(config, StaticKey::from_bytes([1; 32]), [2; 32])
    }

    #[test]
    fn a_peer_that_is_forgotten_is_answered_for() {
        let mut one = pinging(Whom::Peer(PeerId(7)), [203, 0, 113, 5].into());
        assert!(one.go_on(Time::default(), &mut node(20)));
        let said = stranger(&one);
        assert!(!said.answered && said.reason.unwrap().starts_with("it is not known any more"));
    }

    #[test]
    fn a_stranger_is_waited_for_and_what_is_said_of_it_is_so() {
        let address: IpAddr = [203, 0, 113, 5].into();
        let (begun, over) = (Time::default(), Time::default() + STRANGER_WITHIN);
        let mut node = node(1);
        let mut one = pinging(Whom::Address(address), address);
        assert!(node.ask_address(begun, address));
        assert!(!one.go_on(begun, &mut node) && one.due() == over);
        // What this host may ask a second is used up by that.
        let next: IpAddr = [203, 0, 113, 6].into();
        let mut unasked = pinging(Whom::Address(next), next);
        assert!(node.ask_address(begun, next));
        assert!(!unasked.go_on(begun, &mut node));
        for one in [&mut one, &mut unasked] {
            assert!(one.go_on(over, &mut node), "none waits for ever");
        }
        let said = stranger(&one);
        assert_eq!((said.address, said.tries), (SocketAddr::new(address, PORT), 1));
        assert!(said.reason.unwrap().starts_with("it runs no Whimbrel"));
        let said = stranger(&unasked);
        assert!(said.tries == 0 && said.reason.unwrap().starts_with("it was not asked"));
        one.find_another_key();
        assert!(stranger(&one).reason.unwrap().contains("`whimbrel peers forget 203.0.113.5`"));
    }

    #[test]
    fn addresses_of_many_hosts_or_none_are_told() {
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "fe80::1"] {
            assert!(!is_of_one_host(address.parse().unwrap()), "{address}");
        }
        assert!(["203.0.113.5", "2001:db8::5"].into_iter().all(|address| is_of_one_host(address.parse().unwrap())));
    }
}
