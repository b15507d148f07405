//! By which of a host's networks its peers are reached, and why.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::PeerName;

/// A `[[prefer]]` section as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPreference {
    /// Where it stands, from 1.
    pub line: u32,
    /// Its keys, as in the file.
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}

/// What the sections of a file come to, for each peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Whether this is what other sections would come to than those in force.
    pub trial: bool,
    /// The `[[prefer]]` sections.
    pub sections: Vec<PreferSection>,
    /// The peers.
    pub peers: Vec<NetworkChoice>,
}

/// A section of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreferSection {
    /// Where it stands, from 1.
    pub line: u32,
    /// It names interfaces alone, and this host has none of them.
    pub selects_nothing: bool,
    /// For how many peers it counts.
    pub peers: usize,
    /// It means single connections, by more than their peer.
    pub of_connections: bool,
    /// For how many connections it counts, where it means such; `None` also where that is not looked for: who has which
    /// connection open, for what another file would do.
    pub connections: Option<usize>,
}

/// By which network a peer is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkChoice {
    /// Whom.
    pub peer: PeerName,
    /// The interface in use.
    pub in_use: String,
    /// The peer does not answer by it, so that nothing shows that what is sent there arrives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// The one that the routes lead to.
    pub routes: String,
    /// The line of the section that means the peer, if one does.
    pub line: Option<u32>,
    /// The interface that is selected; none where there is none.
    pub selected: Option<String>,
    /// Why.
    pub why: WhyNetwork,
    /// The peer was moved by hand, which counts more.
    pub by_hand: bool,
    /// The interface that was left since the network is silent.
    pub silent: Option<String>,
    /// No connection depends on the peer, so that no other network is tried.
    pub rests: bool,
    /// Milliseconds after which it goes to what is selected, if nothing changes until then.
    pub waits_ms: Option<u64>,
    /// Each network.
    pub networks: Vec<NetworkCandidate>,
    /// What sections come to that mean single connections with the peer.
    pub connections: Vec<ConnectionsChoice>,
}

/// By which network single connections with a peer go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionsChoice {
    /// The line of the section that means them.
    pub line: u32,
    /// How many they are.
    pub connections: usize,
    /// How many of them go by another network than the peer is reached by.
    pub apart: usize,
    /// How many of them have no room on the network that is selected, and so go with the others.
    pub left_out: usize,
    /// How they go by another interface as well while the one that they go by is in doubt, where the section wants
    /// that.
    pub duplicate: Option<Duplicate>,
    /// The interface that is selected; none where there is none.
    pub selected: Option<String>,
    /// Why. Where routes would decide these go with the others of the peer.
    pub why: WhyNetwork,
    /// Milliseconds after which they go to what is selected, if nothing changes until then.
    pub waits_ms: Option<u64>,
    /// Each network.
    pub networks: Vec<NetworkCandidate>,
}

/// By which interface connections go as well in moments of doubt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicate {
    /// None: there is none that fits, or the peer does not know of that, or was moved by hand.
    pub interface: Option<String>,
    /// They do so now, and why.
    pub doubt: Option<Doubt>,
}

/// Why it is in doubt whether what goes by a network arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// Answers are overdue.
    Overdue,
    /// The link itself says so: a fading signal, lost beacons.
    Link,
    /// It is about to be taken down.
    Leaving,
    /// Behind it is a login page, or no Internet.
    Captive,
}

/// Why a network is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyNetwork {
    /// No section means the peer: the routes decide.
    Default,
    /// No other fits.
    Only,
    /// It comes first by `order`.
    Order,
    /// It is the cheapest.
    Price,
    /// It is the nearest.
    Nearest,
    /// All else is alike, and the routes lead there.
    Routes,
    /// None fits what is wanted: the routes decide.
    NothingFits,
    /// The peer answers by none: all stays as it is.
    NothingAnswers,
}

/// A network by which a peer may be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkCandidate {
    /// Its interface.
    pub interface: String,
    /// Whether the peer answers by it.
    pub answers: bool,
    /// Whether it was asked by it.
    pub tried: bool,
    /// The round trip in milliseconds, once it was measured.
    pub round_trip_ms: Option<f64>,
    /// How many of a hundred questions go unanswered, once enough were asked.
    pub lost_percent: Option<f64>,
    /// How strongly it is received, in dBm, where that is known.
    pub signal_dbm: Option<i16>,
    /// What it carries, in Mbit/s, where that is known.
    pub rate_mbit: Option<u32>,
    /// What keeps it from being selected; `None` for the one that is.
    pub against: Option<AgainstNetwork>,
}

/// Why a network is not selected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum AgainstNetwork {
    /// The peer does not answer by it.
    Silent,
    /// The peer was not asked by it.
    Untried,
    /// It is about to be taken down.
    Leaving,
    /// Behind it is a portal that asks for a login, or no Internet.
    Captive,
    /// It is only taken where nothing else answers.
    Never,
    /// The round trip is too long.
    Delay {
        /// The longest that would do, in milliseconds.
        most_ms: f64,
    },
    /// Too much is lost.
    Loss {
        /// The most that would do, of a hundred.
        most_percent: f64,
    },
    /// It is received too weakly.
    Signal {
        /// The least that would do, in dBm.
        least_dbm: i16,
    },
    /// It is too slow.
    Rate {
        /// The least that would do, in Mbit/s.
        least_mbit: u32,
    },
    /// Others come first by `order`.
    Order,
    /// Others are cheaper.
    Price,
    /// It is not nearer by enough.
    Further,
    /// The routes lead elsewhere.
    Routes,
}
