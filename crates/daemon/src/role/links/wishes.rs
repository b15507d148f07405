//! `[[prefer]]`: by which of this host's networks which peers are reached, and which connections go.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::json;
use toml::Value;
use whimbrel_ipc as ipc;
use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{Carriers, LinkId, LinkRules, LinkWish, PeerMeant};
use whimbrel_wire::Transport;

use crate::config::conditions::section_of_connections;
use crate::config::document::{ConfigError, Document};
use crate::config::value::{KEY, Written, kind, limit, list, value};
use crate::policy::{Conditions, Matcher, PeerCondition, ProgramCondition};

/// In milliseconds.
const LONGEST: u32 = 60_000;
const PERCENT: u32 = 99;
/// In dBm: what no receiver makes out, and what none is meant for.
const WEAKEST: i16 = -120;
const STRONGEST: i16 = -1;
/// In Mbit/s.
const FASTEST: u32 = 1_000_000;

section_of_connections! {
    /// A section as it is written.
    struct Section {
        #[serde(deserialize_with = "list")]
        order: Vec<Name>,
        #[serde(deserialize_with = "list")]
        never: Vec<Name>,
        price: BTreeMap<String, u32>,
        #[serde(deserialize_with = "some_limit::<_, LONGEST>")]
        delay: Option<u32>,
        #[serde(deserialize_with = "some_limit::<_, PERCENT>")]
        loss: Option<u32>,
        #[serde(deserialize_with = "some_signal")]
        signal: Option<i16>,
        #[serde(deserialize_with = "some_limit::<_, FASTEST>")]
        rate: Option<u32>,
        nearest: bool,
        duplicate: bool,
    }
}

const ALL_DUPLICATED: &str = "what goes by two networks at once costs twice: `duplicate` needs a condition that says \
                              which connections, such as `program`, `remote_port` or `transport`";

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Where the file has it, from 1.
    line: u32,
    /// What it means.
    matcher: Matcher,
    /// What it wants.
    section: Section,
}

/// The name of an interface, or how such names begin: `wlan*`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name(String);

impl Name {
    fn means(&self, interface: &str) -> bool {
        means(&self.0, interface)
    }
}

fn means(name: &str, interface: &str) -> bool {
    match name.strip_suffix('*') {
        Some(begin) => interface.starts_with(begin),
        None => interface == name,
    }
}

impl Written for Name {
    const LIST: &'static str = "the name of an interface such as \"eth0\" or \"wlan*\", or a list of them, in quotes";
    const ALONE: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        let text =
            value.as_str().ok_or_else(|| format!("`{KEY}` must be {}, not {}", Self::LIST, kind(value.type_str())))?;
        match complaint(text) {
            None => Ok(Self(text.to_owned())),
            Some(right) => Err(format!("`{text}` {right}")),
        }
    }
}

/// What is wrong with the name of an interface, if anything is.
fn complaint(text: &str) -> Option<&'static str> {
    let begin = text.strip_suffix('*').unwrap_or(text);
    let fits = text.len() < 16 && !text.is_empty() && !begin.contains(['*', '/', ' ']);
    (!fits).then_some("is no name of an interface; write \"eth0\", or \"wlan*\" for all that begin so")
}

fn some_limit<'de, D: serde::Deserializer<'de>, const MOST: u32>(deserializer: D) -> Result<Option<u32>, D::Error> {
    limit::<D, u32, MOST>(deserializer).map(Some)
}

fn some_signal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i16>, D::Error> {
    let signal = value(deserializer).as_integer().and_then(|signal| i16::try_from(signal).ok());
    let signal = signal.filter(|signal| (WEAKEST..=STRONGEST).contains(signal));
    let wrong = || format!("`{KEY}` must be a number of dBm from {WEAKEST} to {STRONGEST}, such as -70");
    signal.map(Some).ok_or_else(|| serde::de::Error::custom(wrong()))
}

impl Section {
    /// What it says. `at`: which part of the file it is.
    pub(crate) fn preference(
        mut self,
        document: &Document<'_>,
        at: &str,
        carriers: Carriers,
    ) -> Result<Preference, ConfigError> {
        let matcher = self.matcher();
        if let Some((part, sentence)) = self.complaint() {
            return Err(document.wrong(&format!("{at}{part}"), sentence));
        }
        if self.duplicate && !matcher.means_flows() {
            return Err(document.wrong(&format!("{at}.duplicate"), ALL_DUPLICATED.to_owned()));
        }
        if matcher.means_flows() && !carriers.tunnel {
            let sentence = "single connections go by a network of their own in the tunnel alone: this needs \"tunnel\" \
                            among `carriers`, or a section that has no condition but `peer`";
            return Err(document.wrong(at, sentence));
        }
        Ok(Preference { line: document.line(at), matcher, section: self })
    }

    /// What is wrong with it beside its conditions, which are taken out of it, and in which part of it.
    fn complaint(&self) -> Option<(&'static str, String)> {
        if *self == Self::default() {
            let sentence = "this [[prefer]] says nothing; it must have `order`, `never`, `price`, `delay`, `loss`, \
                            `signal`, `rate`, `nearest` or `duplicate`";
            return Some(("", sentence.to_owned()));
        }
        let mut names = self.price.keys().filter_map(|name| Some((name, complaint(name)?)));
        names.next().map(|(name, right)| (".price", format!("`{name}` {right}")))
    }
}

impl Preference {
    /// What it means.
    pub(crate) fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// Whether it wants nothing but interfaces by their names.
    pub(crate) fn names_alone(&self) -> bool {
        let Section { delay, loss, signal, rate, nearest, duplicate, .. } = &self.section;
        delay.is_none() && loss.is_none() && signal.is_none() && rate.is_none() && !nearest && !duplicate
    }

    /// As it stands in the file, for the local API.
    #[must_use]
    pub fn written(&self) -> ipc::WrittenPreference {
        let Section { order, never, price, delay, loss, signal, rate, nearest, duplicate, .. } = &self.section;
        let Matcher { peer, local_port, remote_port, transport, program, cgroup } = &self.matcher;
        let ports = |ports: &Option<RangeInclusive<u16>>| {
            ports.as_ref().map(|ports| json!(format!("{}-{}", ports.start(), ports.end())))
        };
        let transport = transport.map(|transport| match transport {
            Transport::Tcp => json!("tcp"),
            Transport::Udp => json!("udp"),
        });
        let program = program.as_ref().map(|program| match program {
            ProgramCondition::Name(name) => json!(name),
            ProgramCondition::Path(path) => json!(path),
        });
        let names = |names: &[Name]| names.iter().map(|name| name.0.clone()).collect::<Vec<_>>();
        let peers = peer.iter().flatten().map(|peer| match peer {
            PeerCondition::Prefix(prefix) => format!("{}/{}", prefix.address, prefix.length),
            PeerCondition::Key(key) => key.to_string(),
        });
        let peers: Vec<String> = peers.collect();
        let all = [
            ("peer", (!peers.is_empty()).then(|| json!(peers))),
            ("local_port", ports(local_port)),
            ("remote_port", ports(remote_port)),
            ("transport", transport),
            ("program", program),
            ("cgroup", cgroup.as_ref().map(|cgroup| json!(cgroup))),
            ("order", (!order.is_empty()).then(|| json!(names(order)))),
            ("never", (!never.is_empty()).then(|| json!(names(never)))),
            ("price", (!price.is_empty()).then(|| json!(price))),
            ("delay", delay.map(|delay| json!(delay))),
            ("loss", loss.map(|loss| json!(loss))),
            ("signal", signal.map(|signal| json!(signal))),
            ("rate", rate.map(|rate| json!(rate))),
            ("nearest", nearest.then(|| json!(true))),
            ("duplicate", duplicate.then(|| json!(true))),
        ];
        let keys = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        ipc::WrittenPreference { line: self.line, keys }
    }

    /// One that was written so.
    pub(crate) fn read(written: ipc::WrittenPreference) -> Result<Self, String> {
        let mut section: Section =
            serde_json::from_value(written.keys.into()).map_err(|error| error.to_string().replace(KEY, "a key"))?;
        let matcher = section.matcher();
        section.complaint().map_or(Ok(()), |(_, complaint)| Err(complaint))?;
        if section.duplicate && !matcher.means_flows() {
            return Err(ALL_DUPLICATED.to_owned());
        }
        Ok(Self { line: written.line, matcher, section })
    }

    /// What it comes to with these interfaces.
    fn wish(&self, network: &NetworkState) -> LinkWish {
        let Section { order, never, price, delay, loss, signal, rate, nearest, .. } = &self.section;
        let (signal_least, rate_least) = (*signal, *rate);
        let mut rules = LinkRules { nearest: *nearest, signal_least, rate_least, ..LinkRules::default() };
        for link in network.links.iter().filter(|link| !link.loopback) {
            let (id, name) = (LinkId(link.index), &*link.name);
            if let Some(rank) = order.iter().position(|meant| meant.means(name)) {
                rules.ranks.insert(id, u32::try_from(rank).unwrap_or(u32::MAX));
            }
            if never.iter().any(|meant| meant.means(name)) {
                rules.never.insert(id);
            }
            // A whole name says more than how names begin, and of those the longest.
            let of = price.iter().filter(|(meant, _)| means(meant, name));
            if let Some((_, price)) = of.max_by_key(|(meant, _)| (!meant.ends_with('*'), meant.len())) {
                rules.prices.insert(id, *price);
            }
        }
        rules.delay_most = delay.map(|ms| Duration::from_millis(ms.into()));
        rules.lost_most = loss.map(|percent| u16::try_from(percent * 10).unwrap_or(1000));
        let meant = |condition: &PeerCondition| match condition {
            PeerCondition::Prefix(prefix) => PeerMeant::At(*prefix),
            PeerCondition::Key(key) => PeerMeant::Key(*key),
        };
        let peers = self.matcher.peer.iter().flatten().map(meant).collect();
        LinkWish {
            line: self.line,
            peers,
            of_flows: self.matcher.means_flows(),
            duplicate: self.section.duplicate,
            rules,
        }
    }
}

/// The conditions of sections that mean single connections.
pub(crate) fn conditions(preferences: &[Preference]) -> Conditions {
    Conditions::new(preferences.iter().map(|preference| (preference.line, &preference.matcher)))
}

/// What all sections come to with these interfaces.
pub(crate) fn wishes(preferences: &[Preference], network: &NetworkState) -> Vec<LinkWish> {
    preferences.iter().map(|preference| preference.wish(network)).collect()
}
