//! The configuration file.
//!
//! Optional, and each key has a default: with no file at all the daemon does the whole job. The file is read by hand
//! from a tree that knows where each value stands, so that every complaint names file, line and column and says what
//! would be right there.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Prefix, Trust};

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
    pub psk: Option<[u8; 32]>,
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
    /// `control_mode`: permission bits of the control socket.
    pub control_mode: u32,
    /// `kick`: senders in back-off are made to retransmit when a path is there again.
    pub kick: bool,
    /// `rendezvous`: hosts that this one meets its peers at.
    pub rendezvous: Vec<IpAddr>,
    /// `serve_rendezvous`: others may meet here.
    pub serve_rendezvous: bool,
    /// `limits.questions`: hosts are asked so often a second, in all, whether they run Whimbrel.
    pub questions: u32,
    /// `limits.connections`: so many can be movable at a time.
    pub connections: u32,
    /// `limits.connections_per_peer`: so many with one peer.
    pub connections_per_peer: u32,
    /// `log`: how much is logged.
    pub log: Level,
    /// `event_log`: the file that events are written to, relative to the state directory.
    pub event_log: Option<PathBuf>,
    /// `metrics.listen`: where Prometheus may ask for figures.
    pub metrics_listen: Option<SocketAddr>,
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
            control_mode: 0o600,
            kick: true,
            rendezvous: Vec::new(),
            serve_rendezvous: false,
            questions: 20,
            connections: 524_288,
            connections_per_peer: 262_144,
            log: Level::default(),
            event_log: None,
            metrics_listen: None,
        }
    }
}

/// Keys whose new values are taken in by a reload; those of all others count from the next start on.
pub const RELOADED: [&str; 3] = ["control_mode", "kick", "log"];

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
            questions,
            connections,
            connections_per_peer,
            log,
            event_log,
            metrics_listen,
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
            ("log", *log != other.log),
            ("event_log", *event_log != other.event_log),
            ("ask.allow", *ask_allow != other.ask_allow),
            ("ask.deny", *ask_deny != other.ask_deny),
            ("limits.questions", *questions != other.questions),
            ("limits.connections", *connections != other.connections),
            ("limits.connections_per_peer", *connections_per_peer != other.connections_per_peer),
            ("metrics.listen", *metrics_listen != other.metrics_listen),
            ("peers", *peers != other.peers),
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
    /// The pre-shared key is not there or is none.
    #[error("psk_file {path}: {sentence}")]
    Psk {
        /// The key's file.
        path: PathBuf,
        /// What is wrong and what to do.
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
        .map_err(|error| Mistake { at: error.span().unwrap_or(0..0), sentence: error.message().to_owned() })
        .map_err(|mistake| mistake.located(path, text))?;
    let (mut config, psk_file) =
        interpret(document.get_ref(), document.span()).map_err(|mistake| mistake.located(path, text))?;
    if let Some(psk_file) = psk_file {
        let psk_file = path.parent().unwrap_or(Path::new("/")).join(psk_file);
        config.psk = Some(read_psk(&psk_file)?);
        let open = fs::metadata(&psk_file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
        config.psk_open = open.then_some(psk_file);
    }
    Ok(config)
}

/// Something wrong at a range of bytes of the text.
#[derive(Debug)]
struct Mistake {
    at: Range<usize>,
    sentence: String,
}

impl Mistake {
    fn new(at: Range<usize>, sentence: impl Into<String>) -> Self {
        Self { at, sentence: sentence.into() }
    }

    fn located(self, path: &Path, text: &str) -> ConfigError {
        let mut start = self.at.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        ConfigError::Wrong { path: path.to_owned(), line, column, sentence: self.sentence }
    }
}

/// A value and where it stands.
type Value<'a, 'i> = &'a Spanned<DeValue<'i>>;

/// Takes the keys of one table one after the other, and complains about those that are left.
struct Section<'a, 'i> {
    table: &'a DeTable<'i>,
    known: Vec<&'static str>,
}

impl<'a, 'i> Section<'a, 'i> {
    fn new(table: &'a DeTable<'i>) -> Self {
        Self { table, known: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Value<'a, 'i>> {
        self.known.push(key);
        self.table.get(key)
    }

    fn finish(self) -> Result<(), Mistake> {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if !self.known.contains(&name) {
                let near = nearest(name, &self.known);
                let sentence = match near {
                    Some(near) => format!("unknown key `{name}`; did you mean `{near}`?"),
                    None => format!("unknown key `{name}`; known here are {}", listed(&self.known)),
                };
                return Err(Mistake::new(key.span(), sentence));
            }
        }
        Ok(())
    }
}

fn interpret(table: &DeTable<'_>, whole: Range<usize>) -> Result<(Config, Option<PathBuf>), Mistake> {
    let mut config = Config::default();
    let mut section = Section::new(table);
    let trust = section.take("trust");
    if let Some(value) = trust {
        config.trust =
            choice(value, "trust", &[("tofu", Trust::Tofu), ("pinned", Trust::Pinned), ("psk", Trust::Psk)])?;
    }
    let psk_file = section.take("psk_file").map(|value| string(value, "psk_file", "a path")).transpose()?;
    if let Some(value) = section.take("peers") {
        for peer in array(value, "peers", "written as [[peers]] sections with `address` and `key`")? {
            config.peers.push(known_peer(peer)?);
        }
    }
    if let Some(value) = section.take("ask") {
        let mut ask = Section::new(subtable(value, "ask")?);
        for (key, into) in [("allow", &mut config.ask_allow), ("deny", &mut config.ask_deny)] {
            if let Some(value) = ask.take(key) {
                for element in array(value, key, "a list of prefixes such as [\"192.0.2.0/24\", \"2001:db8::/32\"]")? {
                    into.push(prefix(element)?);
                }
            }
        }
        ask.finish()?;
    }
    if let Some(value) = section.take("limits") {
        let mut limits = Section::new(subtable(value, "limits")?);
        for (key, most, into) in [
            ("questions", 10_000, &mut config.questions),
            ("connections", MOST_CONNECTIONS, &mut config.connections),
            ("connections_per_peer", MOST_CONNECTIONS, &mut config.connections_per_peer),
        ] {
            if let Some(value) = limits.take(key) {
                *into = limit(value, key, most)?;
            }
        }
        limits.finish()?;
    }
    if let Some(value) = section.take("metrics") {
        let mut metrics = Section::new(subtable(value, "metrics")?);
        config.metrics_listen = metrics.take("listen").map(endpoint).transpose()?;
        metrics.finish()?;
    }
    if let Some(value) = section.take("carriers") {
        (config.rewrite, config.tunnel) = (false, false);
        for element in array(value, "carriers", "a list of \"rewrite\" and \"tunnel\"")? {
            match choice(element, "a carrier", &[("rewrite", false), ("tunnel", true)])? {
                false => config.rewrite = true,
                true => config.tunnel = true,
            }
        }
        if !config.rewrite && !config.tunnel {
            return Err(Mistake::new(value.span(), "`carriers` must name \"rewrite\", \"tunnel\" or both"));
        }
    }
    if let Some(value) = section.take("tunnel") {
        config.tunnel_sealed = choice(value, "tunnel", &[("sealed", true), ("plain", false)])?;
    }
    if let Some(value) = section.take("port") {
        config.port = port(value)?;
    }
    if let Some(value) = section.take("control_mode") {
        config.control_mode = mode(value)?;
    }
    if let Some(value) = section.take("kick") {
        config.kick = boolean(value, "kick")?;
    }
    let rendezvous = section.take("rendezvous");
    if let Some(value) = rendezvous {
        config.rendezvous = meeting_places(value)?;
    }
    if let Some(value) = section.take("serve_rendezvous") {
        config.serve_rendezvous = boolean(value, "serve_rendezvous")?;
    }
    if let Some(value) = section.take("log") {
        config.log = choice(
            value,
            "log",
            &[
                ("error", Level::Error),
                ("warn", Level::Warn),
                ("info", Level::Info),
                ("debug", Level::Debug),
                ("trace", Level::Trace),
            ],
        )?;
    }
    if let Some(value) = section.take("event_log") {
        let path = string(value, "event_log", "a path")?;
        if path.is_empty() || path.ends_with('/') {
            return Err(Mistake::new(value.span(), "`event_log` must be the path of a file, such as \"events.jsonl\""));
        }
        config.event_log = Some(path.into());
    }
    section.finish()?;

    let at = trust.map_or(whole, Spanned::span);
    if config.trust == Trust::Psk && psk_file.is_none() {
        return Err(Mistake::new(at, "trust = \"psk\" needs `psk_file`, a file with 32 random bytes in base64"));
    }
    if config.trust == Trust::Pinned && config.peers.is_empty() {
        return Err(Mistake::new(
            at,
            "trust = \"pinned\" needs at least one [[peers]] section with `address` and `key`",
        ));
    }
    let unknown = |address: &&IpAddr| config.peers.iter().all(|peer| peer.address != **address);
    if let Some(address) = config.rendezvous.iter().find(|address| config.trust == Trust::Pinned && unknown(address)) {
        let sentence = format!("trust = \"pinned\" needs a [[peers]] section with the key of the rendezvous {address}");
        return Err(Mistake::new(rendezvous.map_or(at, Spanned::span), sentence));
    }
    Ok((config, psk_file.map(PathBuf::from)))
}

fn boolean(value: Value<'_, '_>, name: &str) -> Result<bool, Mistake> {
    let wrong = || Mistake::new(value.span(), format!("`{name}` must be true or false, not {}", kind(value)));
    value.get_ref().as_bool().ok_or_else(wrong)
}

fn meeting_places(value: Value<'_, '_>) -> Result<Vec<IpAddr>, Mistake> {
    let elements = array(value, "rendezvous", "a list of addresses such as [\"192.0.2.1\"]")?;
    if elements.len() > MOST_RENDEZVOUS {
        return Err(Mistake::new(value.span(), format!("`rendezvous` must have at most {MOST_RENDEZVOUS} addresses")));
    }
    let address = |element| {
        let text = string(element, "rendezvous", "addresses")?;
        text.parse().map_err(|_| {
            Mistake::new(
                element.span(),
                format!("`{text}` is no IP address; write one such as \"192.0.2.1\" (no name, no port)"),
            )
        })
    };
    elements.iter().map(address).collect()
}

fn known_peer(value: Value<'_, '_>) -> Result<KnownPeer, Mistake> {
    let mut section = Section::new(subtable(value, "peers")?);
    let address = section.take("address");
    let key = section.take("key");
    section.finish()?;
    let missing = |name: &str| Mistake::new(value.span(), format!("this peer has no `{name}`"));
    let address = address.ok_or_else(|| missing("address"))?;
    let key = key.ok_or_else(|| missing("key"))?;
    let text = string(address, "address", "an IP address")?;
    let parsed = text.parse().map_err(|_| {
        Mistake::new(
            address.span(),
            format!("`{text}` is no IP address; write one such as \"192.0.2.1\" (no name, no port)"),
        )
    })?;
    let text = string(key, "key", "a public key")?;
    let key = text.parse().map_err(|error| {
        Mistake::new(
            key.span(),
            format!("`{text}` is no public key ({error}); `whimbrel status` on that host shows its own"),
        )
    })?;
    Ok(KnownPeer { address: parsed, key })
}

fn string<'a>(value: Value<'a, '_>, name: &str, what: &str) -> Result<&'a str, Mistake> {
    value
        .get_ref()
        .as_str()
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be {what} in quotes, not {}", kind(value))))
}

fn array<'a, 'i>(value: Value<'a, 'i>, name: &str, what: &str) -> Result<&'a [Spanned<DeValue<'i>>], Mistake> {
    match value.get_ref().as_array() {
        Some(array) => Ok(array),
        None => Err(Mistake::new(value.span(), format!("`{name}` must be {what}, not {}", kind(value)))),
    }
}

fn subtable<'a, 'i>(value: Value<'a, 'i>, name: &str) -> Result<&'a DeTable<'i>, Mistake> {
    value
        .get_ref()
        .as_table()
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be a section, not {}", kind(value))))
}

fn kind(value: Value<'_, '_>) -> String {
    let name = value.get_ref().type_str();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}

fn choice<T: Copy>(value: Value<'_, '_>, name: &str, choices: &[(&'static str, T)]) -> Result<T, Mistake> {
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    let wanted = || names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let Some(text) = value.get_ref().as_str() else {
        return Err(Mistake::new(value.span(), format!("`{name}` must be one of {}, not {}", wanted(), kind(value))));
    };
    match choices.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let hint = nearest(text, &names).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            Err(Mistake::new(value.span(), format!("`{name}` must be one of {}, not \"{text}\"{hint}", wanted())))
        }
    }
}

fn port(value: Value<'_, '_>) -> Result<u16, Mistake> {
    let number =
        value.get_ref().as_integer().and_then(|number| u16::from_str_radix(number.as_str(), number.radix()).ok());
    number
        .filter(|port| *port != 0)
        .ok_or_else(|| Mistake::new(value.span(), "`port` must be a number from 1 to 65535, the same on both ends"))
}

fn endpoint(value: Value<'_, '_>) -> Result<SocketAddr, Mistake> {
    let wrong = || {
        let right = "`listen` must be an address and a port in quotes, such as \"127.0.0.1:9203\" or \"[::1]:9203\"";
        Mistake::new(value.span(), right)
    };
    let endpoint: SocketAddr = value.get_ref().as_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    if endpoint.port() == 0 { Err(wrong()) } else { Ok(endpoint) }
}

fn limit(value: Value<'_, '_>, name: &str, most: u32) -> Result<u32, Mistake> {
    let number =
        value.get_ref().as_integer().and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
    number
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| Mistake::new(value.span(), format!("`{name}` must be a number from 1 to {most}")))
}

fn mode(value: Value<'_, '_>) -> Result<u32, Mistake> {
    let wrong =
        || Mistake::new(value.span(), "`control_mode` must be octal digits in quotes, such as \"0600\" or \"0660\"");
    let text = value.get_ref().as_str().ok_or_else(wrong)?;
    let mode = u32::from_str_radix(text, 8).map_err(|_| wrong())?;
    if mode > 0o777 || mode & 0o600 != 0o600 {
        return Err(wrong());
    }
    Ok(mode)
}

fn prefix(value: Value<'_, '_>) -> Result<Prefix, Mistake> {
    let text = string(value, "a prefix", "an address with a length")?;
    parse_prefix(text).ok_or_else(|| {
        Mistake::new(
            value.span(),
            format!("`{text}` is no prefix; write \"192.0.2.0/24\", \"2001:db8::/32\" or one address"),
        )
    })
}

fn parse_prefix(text: &str) -> Option<Prefix> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address.parse::<IpAddr>().ok()?, Some(length.parse::<u8>().ok()?)),
        None => (text.parse().ok()?, None),
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(longest);
    (length <= longest).then_some(Prefix { address, length })
}

fn read_psk(path: &Path) -> Result<[u8; 32], ConfigError> {
    let wrong = |sentence: String| ConfigError::Psk { path: path.to_owned(), sentence };
    let text = fs::read_to_string(path).map_err(|error| {
        wrong(format!(
            "cannot be read ({error}); make one with `head -c 32 /dev/urandom | base64` and give it to both ends"
        ))
    })?;
    // A pre-shared key is written as keys are: 32 bytes in base64.
    let key: PublicKey = text.trim().parse().map_err(|_| {
        wrong("holds no key; it must be 32 random bytes in base64, as `head -c 32 /dev/urandom | base64` prints".into())
    })?;
    Ok(*key.as_bytes())
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The candidate that `name` was probably meant to be.
fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    candidates
        .iter()
        .map(|candidate| (distance(&name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements that make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse(Path::new("/etc/w.toml"), text).expect_err("a mistake").to_string()
    }

    #[test]
    fn keys_that_differ_are_named() {
        let config = |text| parse(Path::new("w.toml"), text).expect("valid");
        let before = config("port = 2000\n[ask]\nallow = ['10.0.0.0/8']\n");
        assert_eq!(before.differences(&before.clone()), [""; 0]);
        let after = config("carriers = ['tunnel']\nlog = 'debug'\n");
        assert_eq!(before.differences(&after), ["carriers", "port", "log", "ask.allow"]);
    }

    #[test]
    fn a_key_that_is_configured_is_trusted_for_that() {
        let (listed, other) = (PublicKey::from([7; 32]), PublicKey::from([8; 32]));
        let text = format!("[[peers]]\naddress = '192.0.2.1'\nkey = '{listed}'\n");
        let mut config = parse(Path::new("w.toml"), &text).expect("valid");
        assert_eq!((config.trust_in(&listed), config.trust_in(&other)), (Trust::Pinned, Trust::Tofu));
        config.trust = Trust::Psk;
        assert_eq!(config.trust_in(&listed), Trust::Psk);
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse(Path::new("w.toml"), "").expect("valid"), Config::default());
    }

    #[test]
    fn all_keys_are_read() {
        let config = parse(
            Path::new("w.toml"),
            "trust = 'tofu'\ncarriers = ['tunnel']\ntunnel = 'plain'\nport = 0x7d0\ncontrol_mode = '0660'\n\
             kick = false\nlog = 'debug'\nevent_log = 'e.jsonl'\n[ask]\nallow = ['10.0.0.0/8', '2001:db8::1']\ndeny = ['10.1.0.0/16']\n\
             [limits]\nquestions = 5\nconnections = 1000\nconnections_per_peer = 100\n[metrics]\nlisten = '[::1]:9203'\n",
        )
        .expect("valid");
        assert!(!config.rewrite && config.tunnel && !config.tunnel_sealed && !config.kick);
        assert_eq!((config.port, config.control_mode, config.log), (2000, 0o660, Level::Debug));
        assert_eq!((config.questions, config.connections, config.connections_per_peer), (5, 1000, 100));
        assert_eq!(config.event_log.as_deref(), Some(Path::new("e.jsonl")));
        assert_eq!(config.metrics_listen, "[::1]:9203".parse().ok());
        assert_eq!(config.ask_allow[1], Prefix { address: "2001:db8::1".parse().expect("address"), length: 128 });
        assert!(config.ask_deny[0].contains("10.1.2.3".parse().expect("address")));
        assert!(!config.ask_deny[0].contains("10.2.2.3".parse().expect("address")));
    }

    #[test]
    fn the_file_that_is_shipped_shows_the_defaults() {
        let shipped = include_str!("../../../packaging/whimbrel.toml");
        assert_eq!(parse(Path::new("w.toml"), shipped).expect("valid"), Config::default());
        let is_key = |line: &str| {
            line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_alphanumeric() || c == '_'))
        };
        let taken: Vec<&str> = shipped
            .lines()
            .take_while(|line| !line.starts_with("#[[peers]]"))
            .map(|line| {
                // Those that are nothing unless they are set.
                let unset = |line: &str| ["psk_file", "event_log", "listen"].iter().any(|key| line.starts_with(key));
                line.strip_prefix('#').filter(|line| is_key(line) && !unset(line)).unwrap_or(line)
            })
            .collect();
        assert!(taken.contains(&"kick = true"), "{taken:?}");
        assert_eq!(parse(Path::new("w.toml"), &taken.join("\n")).expect("valid"), Config::default());
    }

    #[test]
    fn complaints_name_line_and_column_and_what_would_be_right() {
        assert_eq!(complaint("\n  prot = 1"), "/etc/w.toml:2:3: unknown key `prot`; did you mean `port`?");
        assert!(complaint("port = 99999").starts_with("/etc/w.toml:1:8: `port` must be a number from 1 to 65535"));
        assert!(complaint("trust = 'toffu'").contains("did you mean \"tofu\"?"));
        assert!(complaint("kick = 'no'").contains("`kick` must be true or false, not a string"));
        assert!(
            complaint("[ask]\nalow = []").starts_with("/etc/w.toml:2:1: unknown key `alow`; did you mean `allow`?")
        );
        assert!(complaint("[ask]\nallow = ['10.0.0.0/33']").contains("`10.0.0.0/33` is no prefix"));
        assert!(complaint("trust = 'pinned'").contains("[[peers]]"));
        assert!(complaint("trust = ").starts_with("/etc/w.toml:1:"));
        assert!(complaint("[[peers]]\naddress = 'example.org'\nkey = 'x'").contains("is no IP address"));
        assert!(complaint("control_mode = 600").contains("octal"));
        for listen in ["'9203'", "9203", "'localhost:9203'", "'127.0.0.1:0'"] {
            let complaint = complaint(&format!("[metrics]\nlisten = {listen}"));
            assert!(complaint.starts_with("/etc/w.toml:2:10: `listen` must be an address and a port"), "{complaint}");
        }
        assert_eq!(
            complaint("event_log = '/var/log/'"),
            "/etc/w.toml:1:13: `event_log` must be the path of a file, such as \"events.jsonl\""
        );
        assert!(complaint("[limits]\nquestions = 0").contains("`questions` must be a number from 1 to 10000"));
    }

    #[test]
    fn rendezvous_are_addresses_whose_keys_are_known_where_keys_are_pinned() {
        let config = parse(Path::new("w.toml"), "rendezvous = ['192.0.2.1', '2001:db8::1']\nserve_rendezvous = true\n");
        let config = config.expect("valid");
        assert_eq!(config.rendezvous.len(), 2);
        assert!(config.serve_rendezvous);
        assert_eq!(config.differences(&Config::default()), ["rendezvous", "serve_rendezvous"]);
        assert_eq!(
            complaint("rendezvous = ['192.0.2.1', 'meet.example.org']"),
            "/etc/w.toml:1:28: `meet.example.org` is no IP address; write one such as \"192.0.2.1\" (no name, no port)"
        );
        assert!(complaint("rendezvous = '192.0.2.1'").contains("`rendezvous` must be a list of addresses such as"));
        assert!(complaint("rendezvous = [1]").contains("`rendezvous` must be addresses in quotes, not an integer"));
        assert!(complaint("rendezvouz = []").contains("did you mean `rendezvous`?"));
        assert!(
            complaint("serve_rendezvous = 'yes'").contains("`serve_rendezvous` must be true or false, not a string")
        );
        let nine = ["'192.0.2.1'"; 9].join(", ");
        assert!(complaint(&format!("rendezvous = [{nine}]")).contains("at most 8 addresses"));
        let key = "A".repeat(43) + "=";
        let pinned = |at: &str| {
            format!("trust = 'pinned'\nrendezvous = ['192.0.2.1']\n[[peers]]\naddress = '{at}'\nkey = '{key}'\n")
        };
        assert!(parse(Path::new("w.toml"), &pinned("192.0.2.1")).is_ok());
        assert!(complaint(&pinned("192.0.2.2")).starts_with("/etc/w.toml:2:14: trust = \"pinned\" needs a [[peers]]"));
    }

    #[test]
    fn a_key_that_others_can_read_is_noticed() {
        let folder = std::env::temp_dir().join(format!("whimbrel-psk-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let psk = folder.join("psk");
        fs::write(&psk, format!("{}=\n", "A".repeat(43))).unwrap();
        let file = folder.join("whimbrel.toml");
        fs::write(&file, "trust = \"psk\"\npsk_file = \"psk\"\n").unwrap();
        for (mode, open) in [(0o600, false), (0o640, true), (0o604, true)] {
            fs::set_permissions(&psk, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(Some(&file)).unwrap().psk_open.is_some(), open, "{mode:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_prefix_of_length_zero_has_every_address_of_its_family() {
        let all = parse_prefix("0.0.0.0/0").expect("prefix");
        assert!(all.contains("203.0.113.9".parse().expect("address")));
        assert!(!all.contains("2001:db8::1".parse().expect("address")));
    }
}
