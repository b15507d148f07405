//! The configuration file.
//!
//! Optional, and each key has a default: with no file at all the daemon does the whole job. serde reads it
//! ([`value`]: what single values may be), each section as one struct; what of several values goes together is checked
//! after that. [`document`] knows where each value stands, so that every complaint names file, line and column and says
//! what would be right there.

pub(crate) mod conditions;
pub(crate) mod document;
pub(crate) mod value;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Value;
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Carriers, LateIntroductions, Prefix, STAND_IN_PORTS, Trust};
use zeroize::Zeroizing;

use crate::name_server::NameServer;
use crate::policy::{Policies, Policy};
pub use crate::role::anchor::config::{Anchor, Lendable};
pub use crate::role::gateway::config::Gateway;
use crate::role::helpers::section::Sections;
pub use crate::role::links::config::Links;
pub use crate::role::links::wishes::Preference;
use crate::role::rendezvous::names::is_name;
use document::Document;
pub use document::{ConfigError, Doubt, Spot};
use value::{KEY, Written, choose, limit, list};

/// Where the configuration is looked for when nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/whimbrel/whimbrel.toml";

/// The UDP port of control and tunnel datagrams (`docs/protocol.md` §1).
pub const DEFAULT_PORT: u16 = 2031;

/// Addresses that `rendezvous` may have: each costs a session.
pub(crate) const MOST_RENDEZVOUS: usize = 8;

/// Connections that the data plane has room for (`bpf/maps.h`).
const MOST_CONNECTIONS: u32 = 1 << 20;

/// A peer whose key is configured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownPeer {
    /// Where it is asked.
    #[serde(default, deserialize_with = "address")]
    pub address: Option<IpAddr>,
    /// What name servers call it: they are asked where it is when it is gone.
    #[serde(default, deserialize_with = "value::read")]
    pub name: Option<String>,
    /// The one that is asked, where it is not the system's.
    #[serde(default, deserialize_with = "address")]
    pub name_server: Option<IpAddr>,
    /// The key that must answer.
    #[serde(deserialize_with = "value::read")]
    pub key: PublicKey,
}

impl KnownPeer {
    /// What is wrong with what is said of it together, if anything is.
    fn complaint(&self, trust: Trust) -> Option<&'static str> {
        match (&self.address, &self.name) {
            (None, None) => Some("a [[peers]] section needs `address`, or `name`, or both"),
            (None, Some(_)) if trust == Trust::Pinned => Some(
                "trust = \"pinned\" asks no host at an address that is not configured: this needs `address` as well",
            ),
            (_, Some(name)) if !is_name(name) => Some("`name` must be a name such as \"server.example.org\""),
            (_, None) if self.name_server.is_some() => Some("`name_server` is asked for `name`, which is missing"),
            _ => None,
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the levels of the tracing crate")]
pub enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl Level {
    const NAMES: [(&str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// As a directive of a log filter.
    #[must_use]
    pub fn directive(self) -> &'static str {
        Self::NAMES.iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

/// `[ask]`: which hosts may be asked whether they run Whimbrel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ask {
    /// Those in these prefixes. Empty: all.
    #[serde(deserialize_with = "list")]
    pub allow: Vec<Prefix>,
    /// Those that may not, whatever `allow` says.
    #[serde(deserialize_with = "list")]
    pub deny: Vec<Prefix>,
    /// This host says in the handshakes of TCP that it runs Whimbrel, and asks who says so (decision 0117).
    pub handshake_option: bool,
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Hosts are asked so often a second, in all, whether they run Whimbrel.
    #[serde(deserialize_with = "limit::<_, _, 10_000>")]
    pub questions: u32,
    /// So many connections can be movable at a time.
    #[serde(deserialize_with = "limit::<_, _, MOST_CONNECTIONS>")]
    pub connections: u32,
    /// So many with one peer.
    #[serde(deserialize_with = "limit::<_, _, MOST_CONNECTIONS>")]
    pub connections_per_peer: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { questions: 20, connections: 524_288, connections_per_peer: 262_144 }
    }
}

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where Prometheus may ask for figures.
    #[serde(deserialize_with = "value::read")]
    pub listen: Option<SocketAddr>,
    /// Where that stands.
    #[serde(skip)]
    pub listen_at: Option<Spot>,
}

/// The keys of [`Config`] that are sections, and those that are lists of sections.
const SECTIONS: [&str; 7] = ["anchor", "ask", "dns", "gateway", "limits", "links", "metrics"];
const LISTED: [&str; 4] = ["helper", "peers", "policy", "prefer"];

/// All that can be configured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whose key is accepted.
    #[serde(deserialize_with = "value::read")]
    pub trust: Trust,
    #[serde(deserialize_with = "value::read")]
    psk_file: Option<PathBuf>,
    /// The content of `psk_file`.
    #[serde(skip)]
    pub psk: Option<Zeroizing<[u8; 32]>>,
    /// The path of `psk_file`, where others than its owner may read or write it.
    #[serde(skip)]
    pub psk_open: Option<PathBuf>,
    /// Keys that are known beforehand.
    pub peers: Vec<KnownPeer>,
    policy: Vec<crate::policy::config::Section>,
    prefer: Vec<crate::role::links::wishes::Section>,
    /// `[[prefer]]`: by which networks which peers are reached, and which connections go.
    #[serde(skip)]
    pub preferences: Vec<Preference>,
    /// `[[policy]]`: how which connections are treated.
    #[serde(skip)]
    pub policies: Policies,
    helper: Vec<crate::role::helpers::config::Section>,
    /// `[[helper]]`: what is done for which connections while their peer is away.
    #[serde(skip)]
    pub helpers: Sections,
    /// Which hosts may be asked.
    pub ask: Ask,
    /// What is limited.
    pub limits: Limits,
    /// How networks of this host that are silent are found.
    pub links: Links,
    /// Figures for Prometheus.
    pub metrics: Metrics,
    /// Hosts that this one is the router of.
    pub gateway: Gateway,
    /// What is lent to others.
    pub anchor: Option<Anchor>,
    #[serde(rename = "dns")]
    name_server: crate::name_server::config::Section,
    /// `[dns]`: the name server that is told where this host is.
    #[serde(skip)]
    pub dns: Option<NameServer>,
    /// Ways to carry moved connections.
    #[serde(deserialize_with = "carriers")]
    pub carriers: Carriers,
    /// `tunnel` is `sealed`: tunnelled packets are encrypted by the session's keys.
    #[serde(rename = "tunnel", deserialize_with = "sealed")]
    pub tunnel_sealed: bool,
    /// Of control and tunnel datagrams, on both ends.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// Where connections of TCP are taken that carry datagrams, for peers in networks that let no UDP through.
    #[serde(deserialize_with = "value::read")]
    pub listen_tcp: Option<SocketAddr>,
    /// Permission bits of the control socket; without, it is for the group `whimbrel`, or for root where there is none.
    #[serde(deserialize_with = "mode")]
    pub control_mode: Option<u32>,
    /// Senders in back-off are made to retransmit when a path is there again.
    pub kick: bool,
    /// Peers behind NATs and filters are also told of a move by a datagram that bears the address that was left.
    pub masked_updates: bool,
    /// Senders that come back to a network go on with what they had there. Not by default (decision 0109).
    pub windows: bool,
    /// Which young connections a peer may name after it has left the address that they are from.
    #[serde(deserialize_with = "value::read")]
    pub late_introductions: LateIntroductions,
    /// Hosts that this one meets its peers at.
    #[serde(deserialize_with = "list")]
    pub rendezvous: Vec<IpAddr>,
    /// Others may meet here.
    pub serve_rendezvous: bool,
    /// Hosts of the community meet at one another, this one included.
    pub community_rendezvous: bool,
    /// Hosts of the community may have this one run whatever they like, by moving processes here.
    pub processes: bool,
    /// Sockets that come here keep the options that Linux keeps to those who administrate the network.
    pub privileged_options: bool,
    /// Hosts that meet others here, and leave this host's links, are stood in for.
    pub stand_in: bool,
    /// How much is logged.
    #[serde(deserialize_with = "value::read")]
    pub log: Level,
    /// The file that events are written to, relative to the state directory.
    #[serde(deserialize_with = "value::read")]
    pub event_log: Option<PathBuf>,
    /// Where that stands.
    #[serde(skip)]
    pub event_log_at: Option<Spot>,
    /// What is no mistake, but can hardly be meant or does not work on this host now.
    #[serde(skip)]
    pub doubts: Vec<Doubt>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            psk_file: None,
            psk: None,
            psk_open: None,
            peers: Vec::new(),
            policy: Vec::new(),
            prefer: Vec::new(),
            preferences: Vec::new(),
            policies: Policies::default(),
            helper: Vec::new(),
            helpers: Sections::default(),
            ask: Ask::default(),
            limits: Limits::default(),
            links: Links::default(),
            metrics: Metrics::default(),
            gateway: Gateway::default(),
            anchor: None,
            name_server: crate::name_server::config::Section::default(),
            dns: None,
            carriers: Carriers { rewrite: true, tunnel: true },
            tunnel_sealed: true,
            port: DEFAULT_PORT,
            listen_tcp: None,
            control_mode: None,
            kick: true,
            masked_updates: true,
            windows: false,
            late_introductions: LateIntroductions::default(),
            rendezvous: Vec::new(),
            serve_rendezvous: false,
            community_rendezvous: true,
            processes: false,
            privileged_options: false,
            stand_in: false,
            log: Level::default(),
            event_log: None,
            event_log_at: None,
            doubts: Vec::new(),
        }
    }
}

/// Keys whose new values are taken in by a reload; those of all others count from the next start on.
pub const RELOADED: [&str; 6] = ["control_mode", "kick", "log", "policy", "prefer", "windows"];

/// Keys, and whether the fields after them differ.
macro_rules! differing {
    ($one:ident, $other:ident: $($key:literal $($field:ident).+),+) => {
        [$(($key, $one.$($field).+ != $other.$($field).+)),+]
    };
}

impl Config {
    /// The keys that have other values in `other`, in the order of the file.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let compared = differing!(self, other:
            "trust" trust, "psk_file" psk, "carriers" carriers, "tunnel" tunnel_sealed, "port" port,
            "listen_tcp" listen_tcp, "control_mode" control_mode, "kick" kick, "windows" windows,
            "masked_updates" masked_updates,
            "late_introductions" late_introductions,
            "rendezvous" rendezvous, "serve_rendezvous" serve_rendezvous, "community_rendezvous" community_rendezvous,
            "processes" processes, "privileged_options" privileged_options, "stand_in" stand_in, "log" log,
            "event_log" event_log, "ask.allow" ask.allow, "ask.deny" ask.deny,
            "ask.handshake_option" ask.handshake_option, "limits.questions" limits.questions,
            "limits.connections" limits.connections, "limits.connections_per_peer" limits.connections_per_peer,
            "links.mode" links.mode, "links.sh1" links.sh1, "links.sh2" links.sh2,
            "metrics.listen" metrics.listen, "anchor" anchor, "gateway.behind" gateway.behind, "dns" dns,
            "peers" peers, "policy" policies, "prefer" preferences,
            "helper" helpers);
        compared.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// How somebody with this key comes to be trusted: what stands under `[[peers]]` is pinned under `tofu` as well.
    #[must_use]
    pub fn trust_in(&self, key: &PublicKey) -> Trust {
        match self.trust {
            Trust::Tofu if self.peers.iter().any(|peer| peer.key == *key) => Trust::Pinned,
            trust => trust,
        }
    }

    /// What it calls hosts, by their keys.
    #[must_use]
    pub fn names(&self) -> HashMap<PublicKey, String> {
        self.peers.iter().filter_map(|peer| Some((peer.key, peer.name.clone()?))).collect()
    }

    /// Whether what goes together is there together.
    fn check(&self, document: &Document<'_>) -> Result<(), ConfigError> {
        let wrong = |key: &str, sentence: &str| Err(document.wrong(key, sentence));
        let Limits { connections, connections_per_peer, .. } = self.limits;
        if document.has("limits.connections_per_peer") && connections_per_peer > connections {
            let why = format!("`connections`, which is {connections}: those of one peer count among all");
            let key = "limits.connections_per_peer";
            return wrong(key, &format!("`connections_per_peer` must not be above {why}"));
        }
        self.anchor.as_ref().map_or(Ok(()), |anchor| anchor.check(document))?;
        if STAND_IN_PORTS.contains(&self.port) {
            let (least, most) = (STAND_IN_PORTS.start(), STAND_IN_PORTS.end());
            let why = "these stand for connections of TCP";
            return wrong("port", &format!("`port` must not be from {least} to {most}: {why}; 2031 is usual"));
        }
        if self.listen_tcp.is_some() && !self.carriers.tunnel {
            let sentence = "`listen_tcp` is for what the tunnel carries: it needs \"tunnel\" among `carriers`";
            return wrong("listen_tcp", sentence);
        }
        self.links.check(document)?;
        if self.rendezvous.len() > MOST_RENDEZVOUS {
            return wrong("rendezvous", &format!("`rendezvous` must have at most {MOST_RENDEZVOUS} addresses"));
        }
        if self.stand_in && !self.serve_rendezvous {
            let sentence = "`stand_in` is for hosts that meet others here: it needs `serve_rendezvous = true` as well";
            return wrong("stand_in", sentence);
        }
        let event_log = self.event_log.as_ref().and_then(|path| path.to_str());
        if event_log.is_some_and(|path| path.is_empty() || path.ends_with('/')) {
            return wrong("event_log", "`event_log` must be the path of a file, such as \"events.jsonl\"");
        }
        if self.trust == Trust::Psk && self.psk_file.is_none() {
            return wrong("trust", "trust = \"psk\" needs `psk_file`, a file with 32 random bytes in base64");
        }
        self.gateway.check(self.trust, document)?;
        if self.trust == Trust::Pinned && self.peers.is_empty() {
            let sentence = "trust = \"pinned\" needs at least one [[peers]] section with `address` and `key`";
            return wrong("trust", sentence);
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let complaint = peer.complaint(self.trust);
            complaint.map_or(Ok(()), |sentence| wrong(&format!("peers.{index}"), sentence))?;
        }
        let unknown = |address: &&IpAddr| self.peers.iter().all(|peer| peer.address != Some(**address));
        match self.rendezvous.iter().find(unknown) {
            Some(address) if self.trust == Trust::Pinned => {
                let needs = "needs a [[peers]] section with the key of the rendezvous";
                wrong("rendezvous", &format!("trust = \"pinned\" {needs} {address}"))
            }
            _ => Ok(()),
        }
    }

    /// Reads what is told in sections that need more than their own values, and the files that the configuration names.
    fn complete(mut self, document: &Document<'_>, folder: &Path) -> Result<Self, ConfigError> {
        let policies = std::mem::take(&mut self.policy).into_iter().enumerate();
        let policies = policies.map(|(index, section)| section.policy(document, &format!("policy.{index}")));
        let policies: Vec<Policy> = policies.collect::<Result<_, _>>()?;
        self.doubts.extend(document.dead("policy", policies.iter().map(|policy| &policy.matcher)));
        self.policies = Policies::new(policies);
        let preferences = std::mem::take(&mut self.prefer).into_iter().enumerate();
        let preferences =
            preferences.map(|(index, section)| section.preference(document, &format!("prefer.{index}"), self.carriers));
        self.preferences = preferences.collect::<Result<_, _>>()?;
        self.doubts.extend(document.dead("prefer", self.preferences.iter().map(Preference::matcher)));
        self.helpers =
            crate::role::helpers::config::sections(std::mem::take(&mut self.helper), &mut self.doubts, document)?;
        self.event_log_at = self.event_log.as_ref().map(|_| document.spot("event_log"));
        self.metrics.listen_at = self.metrics.listen.map(|_| document.spot("metrics.listen"));
        if let Some(path) = self.psk_file.take() {
            let path = folder.join(path);
            self.psk = Some(read_psk(&path).map_err(|sentence| document.wrong("psk_file", sentence))?);
            let open = fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
            self.psk_open = open.then_some(path);
        }
        self.dns = std::mem::take(&mut self.name_server).name_server(document, folder)?;
        Ok(self)
    }
}

/// Reads the configuration.
///
/// With `path` the file must be there; without, [`DEFAULT_PATH`] is read if it exists and the defaults hold if not.
///
/// # Errors
/// When the file cannot be read or has a mistake; the sentence says where and what would be right.
pub fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
    let (path, optional) = match path {
        Some(path) => (path, false),
        None => (Path::new(DEFAULT_PATH), true),
    };
    match fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if optional && error.kind() == io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ConfigError::Missing(path.to_owned())),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses the configuration's text; `path` is for messages and the place that the files in it are relative to.
///
/// # Errors
/// See [`read`].
pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let document = Document::parse(path, text)?;
    let mut config: Config = document.config(&SECTIONS, &LISTED)?;
    config.anchor.take_if(|_| !document.has_keys("anchor"));
    config.check(&document)?;
    config.complete(&document, path.parent().unwrap_or(Path::new("/")))
}

impl Written for Trust {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("tofu", Self::Tofu), ("pinned", Self::Pinned), ("psk", Self::Psk)])
    }
}

impl Written for LateIntroductions {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("everywhere", Self::Everywhere), ("unshared", Self::Alone), ("never", Self::Never)])
    }
}

impl Written for Level {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &Self::NAMES)
    }
}

/// One of `carriers`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Rewrite,
    Tunnel,
}

impl Written for Carrier {
    const LIST: &'static str = "a list of \"rewrite\" and \"tunnel\"";

    fn read(value: &Value) -> Result<Self, String> {
        let read = choose(value, &[("rewrite", Self::Rewrite), ("tunnel", Self::Tunnel)]);
        read.map_err(|sentence| format!("each of {sentence}"))
    }
}

fn carriers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Carriers, D::Error> {
    let named: Vec<Carrier> = list(deserializer)?;
    match named.is_empty() {
        true => Err(D::Error::custom("`carriers` must name \"rewrite\", \"tunnel\" or both")),
        false => Ok(Carriers { rewrite: named.contains(&Carrier::Rewrite), tunnel: named.contains(&Carrier::Tunnel) }),
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let value = value::value(deserializer);
    value::text(&value, "an IP address").and_then(|_| IpAddr::read(&value)).map(Some).map_err(D::Error::custom)
}

fn sealed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    choose(&value::value(deserializer), &[("sealed", true), ("plain", false)]).map_err(D::Error::custom)
}

fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let read = value::number(&value::value(deserializer), u16::MAX.into());
    read.map_err(|sentence| D::Error::custom(format_args!("{sentence}, the same on both ends")))
}

fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = value::value(deserializer);
    let mode = value.as_str().and_then(|text| u32::from_str_radix(text, 8).ok());
    let right = "must be octal digits in quotes, such as \"0600\" or \"0660\"";
    let fits = |mode: &u32| *mode <= 0o777 && mode & 0o600 == 0o600;
    mode.filter(fits).map(Some).ok_or_else(|| D::Error::custom(format_args!("`{KEY}` {right}")))
}

fn read_psk(path: &Path) -> Result<Zeroizing<[u8; 32]>, String> {
    let wrong = |sentence: String| format!("`psk_file` {} {sentence}", path.display());
    let text = fs::read_to_string(path).map(Zeroizing::new).map_err(|error| {
        wrong(format!(
            "cannot be read ({error}); make one with `head -c 32 /dev/urandom | base64` and give it to both ends"
        ))
    })?;
    // A pre-shared key is written as keys are: 32 bytes in base64.
    let key: PublicKey = text.trim().parse().map_err(|_| {
        wrong("holds no key; it must be 32 random bytes in base64, as `head -c 32 /dev/urandom | base64` prints".into())
    })?;
    Ok(Zeroizing::new(*key.as_bytes()))
}

#[cfg(test)]
mod tests;
