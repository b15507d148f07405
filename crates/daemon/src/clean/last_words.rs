//! Tells the peers of a daemon that does not run any more what is about to be forgotten (P-227): a short life of its
//! node, of which nothing is carried out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::DumpableBehavior;
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::udp::{ReceiveBatch, Transmit, UdpSocket};
use whimbrel_protocol::{FlowEntry, LastWords, LinkId, Node, Output, PeerId, SavedPeer, Time};
use whimbrel_wire::FlowTuple;

use crate::community_file::CommunityFile;
use crate::host::MARK;
use crate::host::table::{Flows, Home, SavedHome, flows_of, outlives, peers};
use crate::known_keys::{KNOWN_KEYS, KnownKeys};
use crate::link::attachments::{Attachments, sightings};
use crate::link::route_lookup::RouteLookup;
use crate::store::instance::StateLock;
use crate::store::{Found, JOURNAL, StoreError, read};
use crate::{clock, config, identity, node_config};

/// For how long peers are waited for, however many there are.
const WITHIN: Duration = Duration::from_secs(2);

/// What a daemon has left of its peers.
struct Left {
    peers: BTreeMap<PeerId, SavedPeer>,
    flows: HashMap<FlowTuple, FlowEntry>,
    home: Option<SavedHome>,
}

/// Who has heard it, and who has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spoken {
    pub(super) heard: usize,
    /// How many have not, for each reason.
    pub(super) unheard: BTreeMap<String, usize>,
}

/// Tells them. Whatever is in the way of that, what is to be removed can be: they find out by themselves.
pub(super) fn tell(run_dir: &Path) -> Spoken {
    let left = match Left::read(&run_dir.join(JOURNAL)) {
        Ok(left) => left,
        Err(error) => {
            tracing::warn!(%error, "peers are not told");
            return Spoken::default();
        }
    };
    let concerned: BTreeSet<PeerId> =
        left.flows.values().filter(|entry| !outlives(entry)).map(|entry| entry.peer).collect();
    if concerned.is_empty() {
        return Spoken::default();
    }
    match left.speak() {
        Ok(LastWords { heard, awaited, unreachable }) => {
            let silent = format!("no answer within {} s", WITHIN.as_secs());
            let nowhere = "no network of this host leads there".to_owned();
            let unheard = [(silent, awaited), (nowhere, unreachable)];
            Spoken { heard, unheard: unheard.into_iter().filter(|(_, count)| *count > 0).collect() }
        }
        Err(error) => {
            tracing::warn!(%error, "peers are not told");
            Spoken { heard: 0, unheard: BTreeMap::from([(error.to_string(), concerned.len())]) }
        }
    }
}

impl Left {
    fn read(path: &Path) -> Result<Self, StoreError> {
        let text = read(path)?;
        let mut found = Found::parse(path, &text)?;
        let peers = peers(&mut found);
        let flows = flows_of::<Flows>(&mut found, &peers);
        let home = found.rows::<Home>().pop().map(|(_, home)| home);
        Ok(Self { peers, flows, home })
    }

    /// In the name of the host whose daemon has left it.
    fn speak(self) -> Result<LastWords, Box<dyn Error>> {
        let home = self.home.ok_or("it is not written down where this host's key is")?;
        let state_dir = &home.state_dir;
        // None is made here.
        if !state_dir.join("key").exists() {
            return Err(format!("there is no key in {}", state_dir.display()).into());
        }
        // As a daemon does: there are secrets from here on.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let _state = StateLock::lock(state_dir)?;
        let config = config::read(home.config.as_deref())?;
        let key = identity::load_or_create(state_dir)?;
        let known_keys = KnownKeys::open(&state_dir.join(KNOWN_KEYS))?;
        let udp = UdpSocket::bind(config.port)?;
        if !config.gateway.behind.is_empty() {
            udp.speak_for_others()?;
        }
        let mut monitor = NetworkMonitor::open()?;
        let (network, configured) = (monitor.snapshot()?, monitor.configured()?);
        let mut routes = RouteLookup::new(PeerRoutes::open(MARK)?);
        let began = clock::now();
        let mut node = Node::new(node_config(&config, &known_keys), key, identity::random_bytes()?);
        node.restore(began, self.peers.into_values().collect(), self.flows.into_iter().collect());
        if let Some(saved) = CommunityFile::new(state_dir).read()? {
            node.restore_community(began, &saved).map_err(|_| "the community's file is forged")?;
        }
        routes.handle(&network, node.peers());
        let attachments = Attachments::default().update(&sightings(&network));
        node.forget_all(began, &attachments, &configured, &routes);
        converse(&mut node, &udp, began + WITHIN)
    }
}

/// Until all have answered, or that moment.
fn converse(node: &mut Node, udp: &UdpSocket, until: Time) -> Result<LastWords, Box<dyn Error>> {
    let mut batch = ReceiveBatch::new();
    loop {
        send(node, udp);
        let (now, words) = (clock::now(), node.last_words());
        if words.awaited == 0 || now >= until {
            return Ok(words);
        }
        let due = node.poll_timeout().map_or(until, |due| due.min(until));
        wait(udp, due.since(now))?;
        while let Some(report) = udp.receive_error()? {
            // Nobody hurries for that: anybody may say so.
            tracing::debug!(?report, "a datagram did not arrive");
        }
        udp.receive(&mut batch)?;
        let (buffer, messages) = batch.parts();
        let now = clock::now();
        for message in messages {
            let end = message.start + message.len;
            for start in (message.start..end).step_by(message.stride.max(1)) {
                let datagram = &buffer[start..end.min(start + message.stride)];
                let link = message.interface.map(LinkId);
                node.handle_datagram(now, message.source, message.destination, link, datagram);
            }
        }
        node.handle_timeout(now);
    }
}

/// Sends what the node has to say; what else it asks for a daemon would carry out.
fn send(node: &mut Node, udp: &UdpSocket) {
    while let Some(output) = node.poll() {
        let Output::Transmit(transmit) = output else { continue };
        let report = udp.send(&[Transmit {
            destination: transmit.destination,
            source: transmit.source,
            interface: transmit.link.map(|link| link.0),
            contents: &transmit.payload,
            segment_size: None,
        }]);
        if let Some(error) = report.error {
            tracing::debug!(%error, destination = %transmit.destination, "a datagram is not sent");
        }
    }
}

/// For something to come in.
fn wait(udp: &UdpSocket, most: Duration) -> Result<(), rustix::io::Errno> {
    let mut watched = [PollFd::new(udp, PollFlags::IN)];
    let most = Timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: most.subsec_nanos().into() };
    match rustix::event::poll(&mut watched, Some(&most)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::restored::tests::{entry, flow, peer};
    use crate::store::tests::Folder;
    use crate::store::{Log, Store};

    #[test]
    fn who_cannot_be_told_is_counted_and_keeps_nothing_from_being_removed() {
        let folder = Folder::new("last-words");
        let path = folder.file();
        assert_eq!(tell(&folder.0), Spoken::default(), "there is no store");
        let parsed = Found::default();
        let mut store = Store::new(Log::open(&path, &parsed).expect("created"));
        store.save_peer(&peer(1));
        store.save_peer(&peer(2));
        store.flush().expect("written");
        assert_eq!(tell(&folder.0), Spoken::default(), "nothing was agreed on with them");
        store.save_flow(&flow(1), &entry(1), None);
        store.save_flow(&flow(2), &entry(1), None);
        store.flush().expect("written");
        let untold = |why: &str| Spoken { heard: 0, unheard: BTreeMap::from([(why.to_owned(), 1)]) };
        let unknown = untold("it is not written down where this host's key is");
        assert_eq!(tell(&folder.0), unknown, "a release before this one has not written down where its key is");
        let state_dir = folder.0.join("state");
        let home = SavedHome { state_dir: state_dir.clone(), config: None };
        store.put::<Home>(&(), &home);
        store.flush().expect("written");
        assert_eq!(tell(&folder.0), untold(&format!("there is no key in {}", state_dir.display())));
        assert!(!state_dir.exists(), "and none is made");
    }
}
