//! The configuration file.
//!
//! Optional, and each key has a default: with no file at all the daemon does the whole job. The file is read by hand
//! from a tree that knows where each value stands, so that every complaint names file, line and column and says what
//! would be right there.

mod anchor;
mod conditions;
mod doubt;
mod file;
mod gateway;
mod helper;
mod value;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml::de::DeTable;
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Prefix, Trust};
use zeroize::Zeroizing;

use crate::helpers::section::Sections;
use crate::name_server::{NameServer, SigningKey};
use crate::policy::Policies;

use file::{Found, interpret};
use value::{Mistake, line_of};

pub use anchor::{Anchor, Lendable};
pub use doubt::{Doubt, Spot};

/// Where the configuration is looked for when nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/whimbrel/whimbrel.toml";

/// The UDP port of control and tunnel datagrams (`docs/protocol.md` §1).
pub const DEFAULT_PORT: u16 = 2031;

/// Addresses that `rendezvous` may have: each costs a session.
const MOST_RENDEZVOUS: usize = 8;

/// Connections that the data plane has room for (`bpf/maps.h`).
const MOST_CONNECTIONS: u32 = 1 << 20;

/// A peer whose key is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Where it is asked.
    pub address: IpAddr,
    /// The key that must answer.
    pub key: PublicKey,
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
    /// As a directive of a log filter.
    #[must_use]
    pub fn directive(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// All that can be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `trust`: whose key is accepted.
    pub trust: Trust,
    /// The content of `psk_file`.
    pub psk: Option<Zeroizing<[u8; 32]>>,
    /// The path of `psk_file`, where others than its owner may read or write it.
    pub psk_open: Option<PathBuf>,
    /// `[[peers]]`: keys that are known beforehand.
    pub peers: Vec<KnownPeer>,
    /// `ask.allow`: hosts in these prefixes may be asked whether they run Whimbrel. Empty: all.
    pub ask_allow: Vec<Prefix>,
    /// `ask.deny`: those that may not, whatever `allow` says.
    pub ask_deny: Vec<Prefix>,
    /// `carriers` has `rewrite`.
    pub rewrite: bool,
    /// `carriers` has `tunnel`.
    pub tunnel: bool,
    /// `tunnel` is `sealed`: tunnelled packets are encrypted by the session's keys.
    pub tunnel_sealed: bool,
    /// `port`: of control and tunnel datagrams, on both ends.
    pub port: u16,
    /// `control_mode`: permission bits of the control socket; without, it is for the group `whimbrel`, or for root where there is none.
    pub control_mode: Option<u32>,
    /// `kick`: senders in back-off are made to retransmit when a path is there again.
    pub kick: bool,
    /// `rendezvous`: hosts that this one meets its peers at.
    pub rendezvous: Vec<IpAddr>,
    /// `serve_rendezvous`: others may meet here.
    pub serve_rendezvous: bool,
    /// `processes`: hosts of the community may have this one run whatever they like, by moving processes here.
    pub processes: bool,
    /// `privileged_options`: sockets that come here keep the options that Linux keeps to those who administrate the network.
    pub privileged_options: bool,
    /// `stand_in`: hosts that meet others here, and leave this host's links, are stood in for.
    pub stand_in: bool,
    /// `limits.questions`: hosts are asked so often a second, in all, whether they run Whimbrel.
    pub questions: u32,
    /// `limits.connections`: so many can be movable at a time.
    pub connections: u32,
    /// `limits.connections_per_peer`: so many with one peer.
    pub connections_per_peer: u32,
    /// `[[policy]]`: how which connections are treated.
    pub policies: Policies,
    /// `[[helper]]`: what is done for which connections while their peer is away.
    pub helpers: Sections,
    /// `[anchor]`: what is lent to others.
    pub anchor: Option<Anchor>,
    /// `gateway.behind`: hosts that this one is the router of, and speaks for.
    pub behind: Vec<Prefix>,
    /// `[dns]`: the name server that is told where this host is.
    pub dns: Option<NameServer>,
    /// `log`: how much is logged.
    pub log: Level,
    /// `event_log`: the file that events are written to, relative to the state directory.
    pub event_log: Option<PathBuf>,
    /// Where that stands.
    pub event_log_at: Option<Spot>,
    /// `metrics.listen`: where Prometheus may ask for figures.
    pub metrics_listen: Option<SocketAddr>,
    /// Where that stands.
    pub metrics_listen_at: Option<Spot>,
    /// What is no mistake, but can hardly be meant or does not work on this host now.
    pub doubts: Vec<Doubt>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            psk: None,
            psk_open: None,
            peers: Vec::new(),
            ask_allow: Vec::new(),
            ask_deny: Vec::new(),
            rewrite: true,
            tunnel: true,
            tunnel_sealed: true,
            port: DEFAULT_PORT,
            control_mode: None,
            kick: true,
            rendezvous: Vec::new(),
            serve_rendezvous: false,
            processes: false,
            privileged_options: false,
            stand_in: false,
            questions: 20,
            connections: 524_288,
            connections_per_peer: 262_144,
            policies: Policies::default(),
            helpers: Sections::default(),
            anchor: None,
            behind: Vec::new(),
            dns: None,
            log: Level::default(),
            event_log: None,
            event_log_at: None,
            metrics_listen: None,
            metrics_listen_at: None,
            doubts: Vec::new(),
        }
    }
}

/// Keys whose new values are taken in by a reload; those of all others count from the next start on.
pub const RELOADED: [&str; 4] = ["control_mode", "kick", "log", "policy"];

impl Config {
    /// The keys that have other values in `other`, in the order of the file.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        // Whole, so that a new key is not left out here.
        let Self {
            trust,
            psk,
            psk_open: _,
            peers,
            ask_allow,
            ask_deny,
            rewrite,
            tunnel,
            tunnel_sealed,
            port,
            control_mode,
            kick,
            rendezvous,
            serve_rendezvous,
            processes,
            privileged_options,
            stand_in,
            questions,
            connections,
            connections_per_peer,
            policies,
            helpers,
            anchor,
            behind,
            dns,
            log,
            event_log,
            event_log_at: _,
            metrics_listen,
            metrics_listen_at: _,
            doubts: _,
        } = self;
        let compared = [
            ("trust", *trust != other.trust),
            ("psk_file", *psk != other.psk),
            ("carriers", (*rewrite, *tunnel) != (other.rewrite, other.tunnel)),
            ("tunnel", *tunnel_sealed != other.tunnel_sealed),
            ("port", *port != other.port),
            ("control_mode", *control_mode != other.control_mode),
            ("kick", *kick != other.kick),
            ("rendezvous", *rendezvous != other.rendezvous),
            ("serve_rendezvous", *serve_rendezvous != other.serve_rendezvous),
            ("processes", *processes != other.processes),
            ("privileged_options", *privileged_options != other.privileged_options),
            ("stand_in", *stand_in != other.stand_in),
            ("log", *log != other.log),
            ("event_log", *event_log != other.event_log),
            ("ask.allow", *ask_allow != other.ask_allow),
            ("ask.deny", *ask_deny != other.ask_deny),
            ("limits.questions", *questions != other.questions),
            ("limits.connections", *connections != other.connections),
            ("limits.connections_per_peer", *connections_per_peer != other.connections_per_peer),
            ("metrics.listen", *metrics_listen != other.metrics_listen),
            ("anchor", *anchor != other.anchor),
            ("gateway.behind", *behind != other.behind),
            ("dns", *dns != other.dns),
            ("peers", *peers != other.peers),
            ("policy", *policies != other.policies),
            ("helper", *helpers != other.helpers),
        ];
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
}

/// Why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something in it is wrong.
    #[error("{path}:{line}:{column}: {sentence}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
        /// What is wrong and what would be right.
        sentence: String,
    },
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
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses the configuration's text; `path` is for messages and the place that `psk_file` is relative to.
///
/// # Errors
/// See [`read`].
pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let document = DeTable::parse(text)
        .map_err(|error| value::ungrammatical(text, error.span().unwrap_or(0..0), error.message()))
        .map_err(|mistake| mistake.located(path, text))?;
    let (mut config, found) = interpret(document.get_ref(), document.span(), &|at| line_of(text, at))
        .map_err(|mistake| mistake.located(path, text))?;
    let Found { psk_file, dns, event_log, metrics_listen, doubts } = found;
    let spot = |at: std::ops::Range<usize>| Spot::new(path, text, at.start);
    (config.event_log_at, config.metrics_listen_at) = (event_log.map(spot), metrics_listen.map(spot));
    config.doubts = doubts.into_iter().map(|doubted| doubted.located(path, text)).collect();
    if let Some((psk_file, at)) = psk_file {
        let psk_file = path.parent().unwrap_or(Path::new("/")).join(psk_file);
        let wrong = |sentence| Mistake::new(at.clone(), sentence).located(path, text);
        config.psk = Some(read_psk(&psk_file).map_err(wrong)?);
        let open = fs::metadata(&psk_file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
        config.psk_open = open.then_some(psk_file);
    }
    if let Some(dns) = dns {
        let key_file = path.parent().unwrap_or(Path::new("/")).join(&dns.key_file);
        let wrong = |sentence| {
            let sentence = format!("`dns.key_file` {} {sentence}", key_file.display());
            Mistake::new(dns.key_at.clone(), sentence).located(path, text)
        };
        let key = SigningKey::read(&key_file, dns.key_name.as_deref()).map_err(wrong)?;
        config.dns = Some(dns.with(key));
    }
    Ok(config)
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
