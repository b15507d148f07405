//! The file's keys: which there are, and what of them goes together.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeTable;
use whimbrel_protocol::{Trust, View};

use crate::name_server::{NameServer, SigningKey};
use crate::policy::{Matcher, Policies, Policy, Treatment};

use super::conditions::matcher;
use super::doubt::{Doubted, dead};
use super::value::{
    Mistake, Section, Value, array, boolean, choice, endpoint, limit, mode, one_of, port, prefix, string, subtable,
};
use super::{Config, KnownPeer, Level, MOST_CONNECTIONS, MOST_RENDEZVOUS};

/// `[dns]`, before the key's file is read.
pub(super) struct Dns {
    name: String,
    zone: String,
    server: SocketAddr,
    ttl: u32,
    private: bool,
    pub(super) key_file: PathBuf,
    /// Where that stands.
    pub(super) key_at: Range<usize>,
    pub(super) key_name: Option<String>,
}

impl Dns {
    pub(super) fn with(self, key: SigningKey) -> NameServer {
        let Self { name, zone, server, ttl, private, .. } = self;
        NameServer { name, zone, server, key, ttl, private }
    }
}

/// What the file names that is yet to be looked at, and where it does.
pub(super) struct Found {
    pub(super) psk_file: Option<(PathBuf, Range<usize>)>,
    pub(super) dns: Option<Dns>,
    pub(super) event_log: Option<Range<usize>>,
    pub(super) metrics_listen: Option<Range<usize>>,
    pub(super) doubts: Vec<Doubted>,
}

/// `line_of`: the line, from 1, that the byte at a place stands in.
pub(super) fn interpret(
    table: &DeTable<'_>,
    whole: Range<usize>,
    line_of: &dyn Fn(usize) -> u32,
) -> Result<(Config, Found), Mistake> {
    let mut doubts = Vec::new();
    let mut config = Config::default();
    let mut section = Section::new(table);
    let trust = section.take("trust");
    if let Some(value) = trust {
        config.trust =
            choice(value, "trust", &[("tofu", Trust::Tofu), ("pinned", Trust::Pinned), ("psk", Trust::Psk)])?;
    }
    let psk_file = section.take("psk_file");
    let psk_file = psk_file.map(|value| Ok((PathBuf::from(string(value, "psk_file", "a path")?), value.span())));
    let psk_file = psk_file.transpose()?;
    if let Some(value) = section.take("peers") {
        for peer in array(value, "peers", "written as [[peers]] sections with `address` and `key`")? {
            config.peers.push(known_peer(peer)?);
        }
    }
    if let Some(value) = section.take("policy") {
        let sections = array(value, "policy", "written as [[policy]] sections")?;
        let policy = |section| policy(section, line_of);
        let read: Vec<Policy> = sections.iter().map(policy).collect::<Result<_, _>>()?;
        let all = read.iter().map(|policy| policy.matcher == Matcher::default());
        let places: Vec<_> = sections.iter().map(Spanned::span).zip(all).collect();
        doubts.extend(dead("policy", &places, line_of));
        config.policies = Policies::new(read);
    }
    if let Some(value) = section.take("helper") {
        config.helpers = super::helper::sections(value, &mut doubts, line_of)?;
    }
    if let Some(value) = section.take("ask") {
        let mut ask = Section::new(subtable(value, "ask")?);
        for (key, into) in [("allow", &mut config.ask_allow), ("deny", &mut config.ask_deny)] {
            if let Some(value) = ask.take(key) {
                for element in array(value, key, "a list of prefixes such as [\"192.0.2.0/24\", \"2001:db8::/32\"]")? {
                    into.push(prefix(element, key)?);
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
        let of_peer = limits.take("connections_per_peer");
        limits.finish()?;
        if let Some(value) = of_peer.filter(|_| config.connections_per_peer > config.connections) {
            let sentence = format!(
                "`connections_per_peer` must not be above `connections`, which is {}: those of one peer count among all",
                config.connections
            );
            return Err(Mistake::new(value.span(), sentence));
        }
    }
    let mut metrics_listen = None;
    if let Some(value) = section.take("metrics") {
        let mut metrics = Section::new(subtable(value, "metrics")?);
        let listen = metrics.take("listen");
        config.metrics_listen = listen.map(endpoint).transpose()?;
        metrics_listen = listen.map(Spanned::span);
        metrics.finish()?;
    }
    let mut known_only = None;
    if let Some(value) = section.take("gateway") {
        (config.behind, known_only) = super::gateway::gateway(value)?;
    }
    if let Some(value) = section.take("anchor") {
        config.anchor = super::anchor::anchor(value)?;
    }
    let dns = section.take("dns").map(name_server).transpose()?.flatten();
    if let Some(value) = section.take("carriers") {
        (config.rewrite, config.tunnel) = (false, false);
        for element in array(value, "carriers", "a list of \"rewrite\" and \"tunnel\"")? {
            match one_of(element, "each of `carriers`", &[("rewrite", false), ("tunnel", true)])? {
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
        config.control_mode = Some(mode(value)?);
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
    if let Some(value) = section.take("processes") {
        config.processes = boolean(value, "processes")?;
    }
    if let Some(value) = section.take("privileged_options") {
        config.privileged_options = boolean(value, "privileged_options")?;
    }
    if let Some(value) = section.take("stand_in") {
        config.stand_in = boolean(value, "stand_in")?;
        if config.stand_in && !config.serve_rendezvous {
            let sentence = "`stand_in` is for hosts that meet others here: it needs `serve_rendezvous = true` as well";
            return Err(Mistake::new(value.span(), sentence));
        }
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
    let event_log = section.take("event_log");
    if let Some(value) = event_log {
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
    if let Some(at) = known_only.filter(|_| config.trust == Trust::Tofu) {
        return Err(Mistake::new(
            at,
            "`behind` with trust = \"tofu\" lets anybody past this router's forwarding rules to these hosts: set trust to \"pinned\" or \"psk\", or `anybody = true` if that is meant",
        ));
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
    let event_log = event_log.map(Spanned::span);
    Ok((config, Found { psk_file, dns, event_log, metrics_listen, doubts }))
}

/// How long others may remember an address where nothing else is said, in seconds, and at the longest: a day.
const DNS_TTL: u32 = 60;
const DNS_TTL_LONGEST: u32 = 86_400;
const DNS_PORT: u16 = 53;

/// `[dns]`; one without a key in it is none.
fn name_server(value: Value<'_, '_>) -> Result<Option<Dns>, Mistake> {
    let mut section = Section::new(subtable(value, "dns")?);
    let what = [
        ("name", "this host's name, such as \"laptop.example.org\""),
        ("zone", "the zone that it is in, such as \"example.org\""),
        ("server", "the address of its primary name server"),
        ("key_file", "the path of a file that `tsig-keygen` has written"),
    ];
    let texts = what.map(|(key, what)| {
        section.take(key).map(|value| string(value, key, what).map(|text| (text, value.span()))).transpose()
    });
    let key_name = section.take("key_name").map(|value| string(value, "key_name", "the name of a key")).transpose()?;
    let ttl = section.take("ttl").map(|value| limit(value, "ttl", DNS_TTL_LONGEST)).transpose()?.unwrap_or(DNS_TTL);
    let private = section.take("private").map(|value| boolean(value, "private")).transpose()?.unwrap_or(false);
    section.finish()?;
    let [name, zone, server, key_file] = texts;
    let (name, zone, server, key_file) = (name?, zone?, server?, key_file?);
    let given = [name.is_some(), zone.is_some(), server.is_some(), key_file.is_some()];
    if given == [false; 4] {
        return Ok(None);
    }
    let (Some((name, at)), Some((zone, _)), Some((server, of)), Some((key_file, key_at))) =
        (name, zone, server, key_file)
    else {
        let missing = what.iter().zip(given).find(|(_, given)| !given);
        let (key, what) = missing.map_or(("", ""), |((key, what), _)| (*key, *what));
        return Err(Mistake::new(value.span(), format!("`[dns]` needs `{key}` as well: {what}")));
    };
    if let Some(sentence) = NameServer::complaint(name, zone) {
        return Err(Mistake::new(at, sentence));
    }
    let alone = server.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
    let server = alone.ok().or_else(|| server.parse().ok()).filter(|server: &SocketAddr| server.port() != 0);
    let sentence = "`server` must be an address, or one with a port, such as \"192.0.2.53\" or \"[2001:db8::53]:5353\"";
    let server = server.ok_or_else(|| Mistake::new(of, sentence))?;
    let (name, zone, key_name) = (name.to_owned(), zone.to_owned(), key_name.map(str::to_owned));
    Ok(Some(Dns { name, zone, server, ttl, private, key_file: key_file.into(), key_at, key_name }))
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

fn policy(value: Value<'_, '_>, line_of: &dyn Fn(usize) -> u32) -> Result<Policy, Mistake> {
    let mut section = Section::new(subtable(value, "policy")?);
    let matcher = matcher(&mut section)?;
    let mut treatment = Treatment::default();
    let protect = section.take("protect");
    if let Some(value) = protect {
        treatment.protect = boolean(value, "protect")?;
    }
    let view = section.take("view");
    if let Some(value) = view {
        let views = [("virtual", View::Virtual), ("real", View::Real), ("lasting", View::Lasting)];
        treatment.manner.view = choice(value, "view", &views)?;
        if treatment.manner.view == View::Lasting && matcher.program.is_none() {
            let sentence = "`view` = \"lasting\" needs `program`, whose later connections it is about";
            return Err(Mistake::new(value.span(), sentence));
        }
    }
    let conflict = section.take("conflict");
    if let Some(value) = conflict {
        treatment.manner.gives_way = choice(value, "conflict", &[("pre-empt", false), ("abort", true)])?;
    }
    section.finish()?;
    if protect.or(view).or(conflict).is_none() {
        let sentence = "this policy says nothing; it must have `protect`, `view` or `conflict`";
        return Err(Mistake::new(value.span(), sentence));
    }
    for (value, name) in [(view, "view"), (conflict, "conflict")] {
        if let Some(value) = value.filter(|_| !treatment.protect) {
            let sentence = format!("`{name}` means nothing where `protect` is false: such connections are never moved");
            return Err(Mistake::new(value.span(), sentence));
        }
    }
    Ok(Policy { line: line_of(value.span().start), matcher, treatment })
}
