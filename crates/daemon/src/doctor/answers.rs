//! Which other hosts answer the running daemon, as far as it knows them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use whimbrel_ipc::{Away, Client, ClientError, Connection, Finding, Peer, Rendezvous, RendezvousState, duration};

/// A hand-off takes a moment, in which nothing is answered.
const MOMENT: Duration = Duration::from_secs(1);

/// Peers that are asked at the most, those that most depends on first.
const ASKED_MOST: usize = 64;
/// So many at once.
const AT_ONCE: usize = 8;

/// What peers have said that were asked just now, by their numbers: whether they answer, where that could be asked.
pub(super) type Answers = HashMap<u32, bool>;

/// Asks peers whether they answer now.
pub(super) fn ask(run_dir: &Path, peers: &[Peer]) -> Answers {
    let mut asked: Vec<&Peer> = peers.iter().filter(|peer| is_asked(peer)).collect();
    asked.sort_by_key(|peer| Reverse(peer.flows.introduced));
    asked.truncate(ASKED_MOST);
    let (next, answers) = (Mutex::new(asked.into_iter()), Mutex::new(HashMap::new()));
    let work = || {
        let Ok(mut client) = Client::connect(run_dir) else { return };
        loop {
            let peer = lock(&next).next();
            let Some(peer) = peer else { return };
            match client.ping(format!("#{}", peer.id)) {
                // Nothing could be sent.
                Ok(pinged) if pinged.session.is_some() && pinged.local.is_none() => {}
                Ok(pinged) => drop(lock(&answers).insert(peer.id, pinged.answered)),
                // It was forgotten meanwhile.
                Err(ClientError::Refused(_)) => {}
                // What comes late would be taken for the answer of another.
                Err(_) => return,
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an answer is to be expected.
fn is_asked(peer: &Peer) -> bool {
    peer.session.is_some() && peer.away != Some(Away::Announced)
}

/// A peer, for people.
pub(super) fn called(peer: &Peer) -> String {
    match &peer.name {
        Some(name) => format!("{name} at {}", peer.address.ip()),
        None => format!("#{} at {}", peer.id, peer.address.ip()),
    }
}

/// Those that do not answer. `answers`: what those said that were asked just now.
pub(super) fn missed<'a>(peers: &'a [Peer], answers: &Answers) -> Vec<&'a Peer> {
    let is_missed = |peer: &&Peer| match answers.get(&peer.id) {
        Some(answers) => !answers,
        None => {
            let unanswered = peer.unanswered_ms.map(Duration::from_millis);
            peer.away == Some(Away::Silent) || unanswered.is_some_and(|since| since >= MOMENT)
        }
    };
    peers.iter().filter(|peer| is_asked(peer)).filter(is_missed).collect()
}

/// Whether the peers answer with whom there is a session. `answers`: what those said that were asked just now.
pub(super) fn of_peers(peers: &[Peer], answers: &Answers) -> Vec<Finding> {
    let check = "peers";
    let all = peers.iter().filter(|peer| is_asked(peer)).count();
    if all == 0 {
        return Vec::new();
    }
    let silent = missed(peers, answers);
    if silent.is_empty() {
        let asked = answers.len();
        let found = match asked {
            0 => format!("of {all} none is known not to answer; none could be asked now"),
            _ if asked == all => format!("{all} of {all} answer"),
            _ => format!("{asked} of {asked} answer that were asked, of {all}"),
        };
        return vec![Finding::ok("connections", check, found)];
    }
    let told = silent.iter().map(|peer| {
        let heard = peer.session.as_ref().and_then(|session| session.heard_ms).map(Duration::from_millis);
        let port = peer.address.port();
        let flows = peer.flows.introduced;
        let found = match heard {
            Some(heard) => format!("{} does not answer, last heard {} ago", called(peer), duration(heard)),
            None => format!("{} does not answer", called(peer)),
        };
        let lost = match (flows, peer.flows.moved) {
            (0, _) => "connections with it that are opened now do not survive a move".to_owned(),
            (_, 0) => "its connections go on as long as nobody moves; at a move they wait until it answers".to_owned(),
            (1, _) => "that its connection goes on is not confirmed before it answers".to_owned(),
            _ => format!("that its {flows} connections go on is not confirmed before it answers"),
        };
        Finding::warning("connections", check, found).lost(lost).mend(passes(port, peer.address.ip()))
    });
    told.collect()
}

/// Whether the hosts answer at which this one could be met.
pub(super) fn of_rendezvous(all: &[Rendezvous], port: u16) -> Vec<Finding> {
    let unanswered = all.iter().filter(|one| one.state == RendezvousState::Unanswered);
    let told = unanswered.map(|one| {
        Finding::warning("connections", "rendezvous", format!("{} does not answer", one.address))
            .lost("where both ends of a connection move at once, it does not help them to find one another")
            .mend(passes(port, one.address))
    });
    told.collect()
}

/// Hosts whose key is configured or remembered, so that they have run Whimbrel, and which were asked in vain.
pub(super) fn of_known(
    known: &BTreeSet<IpAddr>,
    connections: &[Connection],
    port: u16,
) -> Option<(BTreeSet<IpAddr>, Finding)> {
    let asked = connections.iter().filter(|one| super::was_asked(one)).map(|one| one.flow.remote.ip());
    let silent: BTreeSet<IpAddr> = asked.filter(|address| known.contains(address)).collect();
    let first = *silent.first()?;
    let names: Vec<String> = silent.iter().map(ToString::to_string).collect();
    let (does, is) = if silent.len() == 1 { ("does", "its key is") } else { ("do", "their keys are") };
    let found = format!("{} {does} not answer, and {is} known: Whimbrel has run there", names.join(", "));
    let finding = Finding::warning("connections", "known hosts", found)
        .lost("connections with these hosts do not survive a move")
        .mend(passes(port, first));
    Some((silent, finding))
}

/// What to look for where a host does not answer that runs Whimbrel.
fn passes(port: u16, at: IpAddr) -> String {
    format!(
        "does UDP {port} pass, out of this network and into the other one? `whimbrel ping {at}` asks again; see there \
         that the daemon runs (`whimbrel doctor`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_ipc::{
        ConnectionState, Flow, PeerFlows, Places, RendezvousBy, Sequence, Session, Transport, Trust, Verdict,
    };

    fn peer(name: Option<&str>, unanswered_ms: Option<u64>) -> Peer {
        let session = Session {
            age_ms: 90_000,
            round_trip_ms: Some(40.0),
            heard_ms: Some(28_400),
            version: 1,
            capabilities: Vec::new(),
        };
        Peer {
            id: 3,
            key: "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo".into(),
            name: name.map(str::to_owned),
            address: "203.0.113.5:2031".parse().expect("an endpoint"),
            trust: Trust::Tofu,
            remembered: Vec::new(),
            session: Some(session),
            sequence: Sequence::default(),
            places: Places::default(),
            locators: Vec::new(),
            carrier: None,
            flows: PeerFlows { introduced: 2, moved: 1 },
            away: None,
            unanswered_ms,
        }
    }

    #[test]
    fn peers_that_do_not_answer_are_warned_of_by_name() {
        let unasked = HashMap::new();
        let healthy = of_peers(&[peer(None, None), peer(None, Some(80))], &unasked);
        assert!(matches!(healthy.as_slice(), [one] if one.verdict == Verdict::Ok), "{healthy:?}");
        let answers = of_peers(&[peer(None, None)], &HashMap::from([(3, true)]));
        assert!(matches!(answers.as_slice(), [one] if one.found == "1 of 1 answer"), "{answers:?}");
        // Nothing was missed of it until it was asked.
        let gone = of_peers(&[peer(None, None)], &HashMap::from([(3, false)]));
        assert!(matches!(gone.as_slice(), [one] if one.verdict == Verdict::Warning), "{gone:?}");
        assert!(of_peers(&[], &unasked).is_empty());
        let found = of_peers(&[peer(None, None), peer(Some("desk"), Some(21_000))], &unasked);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(one.verdict, Verdict::Warning);
        assert_eq!(one.found, "desk at 203.0.113.5 does not answer, last heard 28 s ago");
        assert!(one.mend.as_ref().is_some_and(|mend| mend.contains("does UDP 2031 pass")), "{one:?}");
        assert!(one.lost.as_ref().is_some_and(|lost| lost.contains("2 connections go on")), "{one:?}");
        // One that is silent and waited for, and one that said that it goes.
        let silent = Peer { away: Some(Away::Silent), ..peer(None, None) };
        assert!(of_peers(&[silent], &unasked)[0].found.starts_with("#3 at 203.0.113.5 does not answer"));
        let gone = Peer { away: Some(Away::Announced), ..peer(None, None) };
        assert!(of_peers(&[gone], &unasked).is_empty());
    }

    #[test]
    fn who_is_known_and_was_asked_in_vain_is_no_host_that_runs_nothing() {
        let one = |remote: &str, reason: Option<&str>| Connection {
            reason: reason.map(str::to_owned),
            ..Connection::bare(
                Flow {
                    transport: Transport::Tcp,
                    local: "192.0.2.1:4000".parse().expect("an endpoint"),
                    remote: remote.parse().expect("an endpoint"),
                },
                ConnectionState::Unprotected,
            )
        };
        let silent = Some("asked, silent until 03:52");
        let connections = [one("192.0.2.9:22", silent), one("192.0.2.8:22", silent), one("192.0.2.7:22", None)];
        let known = ["192.0.2.9", "192.0.2.7"].map(|address| address.parse().expect("an address")).into();
        let (told, finding) = of_known(&known, &connections, 2031).expect("one of them");
        assert_eq!((told.len(), finding.verdict), (1, Verdict::Warning));
        assert!(finding.found.starts_with("192.0.2.9 does not answer"), "{finding:?}");
        assert!(of_known(&BTreeSet::new(), &connections, 2031).is_none());
    }

    #[test]
    fn a_rendezvous_that_does_not_answer_is_told() {
        let of = |state| Rendezvous {
            address: "192.0.2.53".parse().expect("an address"),
            by: RendezvousBy::Configured,
            state,
            peers: 0,
        };
        let all = [RendezvousState::Registered, RendezvousState::Unneeded, RendezvousState::Unanswered].map(of);
        let found = of_rendezvous(&all, 2031);
        assert!(matches!(found.as_slice(), [one] if one.verdict == Verdict::Warning), "{found:?}");
    }
}
