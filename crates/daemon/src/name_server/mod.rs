//! Telling a name server where this host is, for connections to come (RFC 2136).
//!
//! A thread of its own asks and waits: name servers take their time, and nothing else waits for them. It deletes what
//! it has written before, which it remembers over restarts, and nothing else.

pub(crate) mod config;
mod key;
mod update;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use domain::base::name::Name;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use whimbrel_ipc as ipc;

use crate::events::{Kind, Report, told};
use crate::identity;
use crate::store::files;
use update::{Answer, Change, DomainName};

pub use key::SigningKey;

/// What was written is remembered here, in the state directory.
const MEMORY: &str = "dns.json";
/// How long the network has to be quiet before the server is told: addresses come one after the other.
const SETTLED: Duration = Duration::from_secs(1);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pauses before the server is asked again that did not answer, and one that refused.
const UNANSWERED: Duration = Duration::from_secs(2);
const REFUSED: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(600);
/// Tries without an answer after which it is told.
const TOLD_AFTER: u32 = 3;
/// Addresses that a name gets at the most: the message has to fit a datagram.
const ADDRESSES: usize = 16;

/// Why there is nothing to be told.
const PRIVATE_ALONE: &str = "this host has private addresses alone, which are told only with `dns.private = true`";

/// `[dns]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// The name of this host.
    pub name: String,
    /// The zone that it is in.
    pub zone: String,
    /// The primary server of that.
    pub server: SocketAddr,
    /// What updates are signed with.
    pub key: SigningKey,
    /// How long others may remember addresses, in seconds.
    pub ttl: u32,
    /// Whether addresses are told that do not lead here from everywhere.
    pub private: bool,
}

impl NameServer {
    /// What is wrong with the names, if anything is.
    pub(crate) fn complaint(name: &str, zone: &str) -> Option<String> {
        let (Some(host), Some(of)) = (parse_name(name), parse_name(zone)) else {
            let wrong = if parse_name(name).is_none() { name } else { zone };
            return Some(format!("\"{wrong}\" is no name such as \"laptop.example.org\""));
        };
        (!host.ends_with(&of)).then(|| format!("\"{name}\" is not in the zone \"{zone}\""))
    }
}

fn parse_name(text: &str) -> Option<DomainName> {
    Name::from_str(text).ok().filter(|name: &DomainName| !name.is_root())
}

/// What is known to be written, or may be.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    name: String,
    addresses: BTreeSet<IpAddr>,
}

/// The thread that tells the server, as the event loop has it.
pub(crate) struct NameUpdates {
    wanted: Sender<Wanted>,
    told: Receiver<Report>,
    wake: Arc<OwnedFd>,
    private: bool,
    last: Option<Wanted>,
    /// For people.
    view: ipc::NameServer,
}

/// What others are to find under the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    addresses: Vec<IpAddr>,
    /// There are others, which do not lead here from everywhere, and are not told.
    withheld: bool,
}

impl Wanted {
    /// Of what this host has; `private`: whatever leads where.
    fn of(addresses: impl Iterator<Item = IpAddr>, private: bool) -> Self {
        let (mut addresses, others): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.partition(|address| private || leads_here(*address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES);
        Self { addresses, withheld: !others.is_empty() }
    }
}

impl NameUpdates {
    /// Starts it.
    pub(crate) fn start(server: NameServer, state_dir: &Path) -> io::Result<Self> {
        let (wanted, changes) = channel();
        let (sender, told) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let private = server.private;
        let view = ipc::NameServer {
            name: server.name.clone(),
            server: server.server,
            state: ipc::NameServerState::Asked,
            addresses: Vec::new(),
            since: None,
            sentence: None,
        };
        let teller = Teller {
            memory_path: state_dir.join(MEMORY),
            server,
            told: sender,
            wake: Arc::clone(&wake),
            wanted: Wanted::default(),
            said: None,
        };
        std::thread::Builder::new().name("name-server".to_owned()).spawn(move || teller.run(&changes))?;
        Ok(Self { wanted, told, wake, private, last: None, view })
    }

    /// Readable when there is something to be told.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes what there is to be told.
    pub(crate) fn take(&mut self) -> Vec<Report> {
        let told: Vec<Report> = self.told.try_iter().collect();
        if let Some(last) = told.last() {
            note(&mut self.view, last);
            self.view.since = Some(ipc::rfc3339(SystemTime::now()));
        }
        told
    }

    /// What the server was told and has answered, for people.
    pub(crate) fn view(&self) -> ipc::NameServer {
        self.view.clone()
    }

    /// This host has these addresses from now on.
    pub(crate) fn set(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let wanted = Wanted::of(addresses, self.private);
        if self.last.as_ref() != Some(&wanted) {
            self.last = Some(wanted.clone());
            let nothing = wanted.addresses.is_empty();
            self.view.state = if nothing { ipc::NameServerState::Withheld } else { ipc::NameServerState::Asked };
            self.view.sentence = None;
            // The thread lives as long as this does.
            let _ = self.wanted.send(wanted);
        }
    }
}

/// What an event says of how the server stands.
fn note(view: &mut ipc::NameServer, told: &Report) {
    view.state = match told.kind {
        Kind::NameUpdated => ipc::NameServerState::Updated,
        Kind::NameWithheld => ipc::NameServerState::Withheld,
        Kind::NameRefused => ipc::NameServerState::Refused,
        _ => ipc::NameServerState::Unanswered,
    };
    view.sentence = Some(told.sentence.clone());
    if let Some(list) = told.fields.get("addresses").and_then(|list| list.as_array()) {
        view.addresses = list.iter().filter_map(|address| address.as_str()?.parse().ok()).collect();
    }
}

/// Whether an address leads to its host from everywhere: it is none of those that are given out again in each network
/// (RFC 1918, RFC 6598, RFC 4193) or mean something on a link only.
fn leads_here(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            let shared = a == 100 && b & 0xc0 == 64;
            let nowhere = address.is_loopback() || address.is_link_local() || address.is_multicast() || a == 0;
            !address.is_private() && !shared && !nowhere
        }
        IpAddr::V6(address) => {
            let local = address.is_unicast_link_local() || address.is_unique_local();
            !local && !address.is_loopback() && !address.is_multicast() && !address.is_unspecified()
        }
    }
}

struct Teller {
    server: NameServer,
    memory_path: PathBuf,
    told: Sender<Report>,
    wake: Arc<OwnedFd>,
    wanted: Wanted,
    /// What the last event was about, so that it is not told again and again.
    said: Option<String>,
}

impl Teller {
    fn run(mut self, changes: &Receiver<Wanted>) {
        let mut due: Option<Instant> = None;
        let mut tries = 0;
        loop {
            let change = match due {
                None => changes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => changes.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match change {
                Ok(wanted) => {
                    self.wanted = wanted;
                    due = Some(Instant::now() + SETTLED);
                    tries = 0;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tries += 1;
                    due = self.try_once(tries).map(|pause| Instant::now() + pause);
                }
            }
        }
    }

    /// Brings the server up to date; gives the pause until it is tried again, if it has to be.
    fn try_once(&mut self, tries: u32) -> Option<Duration> {
        let memory = self.recall();
        let wanted: BTreeSet<IpAddr> = self.wanted.addresses.iter().copied().collect();
        let remove: Vec<IpAddr> = memory.addresses.difference(&wanted).copied().collect();
        if wanted.is_empty() && remove.is_empty() {
            let NameServer { name, server, .. } = &self.server;
            let sentence = format!("the name server {server} is not told where {name} is: {PRIVATE_ALONE}");
            if self.wanted.withheld && self.said.as_ref() != Some(&sentence) {
                self.said = Some(sentence.clone());
                self.tell(Report::new(Kind::NameWithheld, sentence));
            }
            return None;
        }
        // Written before it is so: the server may have done what it could not answer.
        self.remember(memory.addresses.union(&wanted).copied().collect());
        let doubled = |first: Duration| (first * 2u32.pow(tries.saturating_sub(1).min(10))).min(LONGEST);
        match self.ask(&remove) {
            Ok(Answer::Done) => {
                self.remember(wanted.clone());
                let list: Vec<String> = wanted.iter().map(IpAddr::to_string).collect();
                let NameServer { name, server, .. } = &self.server;
                let sentence = match list.as_slice() {
                    [] if self.wanted.withheld => {
                        format!("the name server {server} was told that {name} has no address now: {PRIVATE_ALONE}")
                    }
                    [] => format!("the name server {server} was told that {name} has no address now"),
                    list => format!("the name server {server} was told that {name} is at {}", list.join(", ")),
                };
                self.said = None;
                self.tell(Report::new(Kind::NameUpdated, sentence).with("addresses", list));
                None
            }
            Ok(Answer::Refused { code, advice }) => {
                let NameServer { name, server, key, .. } = &self.server;
                let sentence = format!(
                    "the name server {server} does not take the address of {name} under the key \"{}\" ({code}): {advice}",
                    key.name()
                );
                let told = Report::new(Kind::NameRefused, sentence.clone()).with("code", code).with("advice", advice);
                if self.said.as_ref() != Some(&sentence) {
                    self.said = Some(sentence);
                    self.tell(told);
                }
                Some(doubled(REFUSED))
            }
            Err(error) => {
                let again = doubled(UNANSWERED);
                tracing::debug!(%error, tries, "the name server does not answer");
                if tries == TOLD_AFTER {
                    let NameServer { name, server, .. } = &self.server;
                    self.tell(told!(
                        NameUnanswered { again_in_ms: again.as_millis() as u64 },
                        "the name server {server} is not told where {name} is: {error}; it is asked on"
                    ));
                }
                Some(again)
            }
        }
    }

    fn ask(&self, remove: &[IpAddr]) -> io::Result<Answer> {
        let unusable = || io::Error::other("the names in the configuration cannot be used");
        let NameServer { name, zone, server, key, ttl, .. } = &self.server;
        let (name, zone) = (parse_name(name).ok_or_else(unusable)?, parse_name(zone).ok_or_else(unusable)?);
        let [high, low, ..] = identity::random_bytes().map_err(io::Error::other)?;
        let id = u16::from_be_bytes([high, low]);
        let change = Change { zone: &zone, name: &name, remove, add: &self.wanted.addresses, ttl: *ttl };
        let signing = key.tsig().ok_or_else(unusable)?;
        let asked = change.ask(signing, id, SystemTime::now()).map_err(|_| unusable())?;
        let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.connect(server)?;
        socket.send(&asked.datagram)?;
        let until = Instant::now() + PATIENCE;
        let mut buffer = [0; 4096];
        let mut unproven = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Whoever wrote it, nothing else came.
                return unproven.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "no answer came"));
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut buffer) {
                Ok(length) => match asked.read(&buffer[..length], SystemTime::now()) {
                    Some(Ok(answer)) => return Ok(answer),
                    Some(Err(answer)) => unproven = Some(answer),
                    None => {}
                },
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn tell(&self, told: Report) {
        let told = told.with("name", self.server.name.clone()).with("server", self.server.server.to_string());
        // The loop ends only when the daemon does.
        let _ = self.told.send(told);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// What was written under this name; what stands under another one is somebody else's by now.
    fn recall(&self) -> Memory {
        let read = fs::read(&self.memory_path).ok().and_then(|text| serde_json::from_slice::<Memory>(&text).ok());
        read.filter(|memory| memory.name == self.server.name).unwrap_or_default()
    }

    fn remember(&self, addresses: BTreeSet<IpAddr>) {
        let memory = Memory { name: self.server.name.clone(), addresses };
        let written = serde_json::to_vec(&memory).map_err(io::Error::from);
        let written = written.and_then(|text| files::replace(&self.memory_path, &text));
        if let Err(error) = written {
            tracing::warn!(path = %self.memory_path.display(), %error, "an address may stay with the name server");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_lead_here_are_told() {
        for (address, leads) in [
            ("198.51.100.7", true),
            ("2001:db8::7", true),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("192.168.1.2", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("169.254.1.1", false),
            ("127.0.0.1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("::1", false),
        ] {
            assert_eq!(leads_here(address.parse().unwrap()), leads, "{address}");
        }
    }

    #[test]
    fn a_host_with_private_addresses_alone_says_which_key_it_takes() {
        let dir = std::env::temp_dir().join(format!("whimbrel-names-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let of = |addresses: &[&str], private| Wanted::of(addresses.iter().map(|text| text.parse().unwrap()), private);
        assert_eq!(of(&["10.1.2.3"], false), Wanted { addresses: Vec::new(), withheld: true });
        assert_eq!(of(&["10.1.2.3"], true), Wanted { addresses: vec!["10.1.2.3".parse().unwrap()], withheld: false });
        let secret = dir.join("key");
        fs::write(&secret, "m3zgYfEx6qFNBTAbUGDh3bWXPTF5KbuIjpBMB2k3uVw=").unwrap();
        let (sender, told) = channel();
        let server = NameServer {
            name: "laptop.roam.test".to_owned(),
            zone: "roam.test".to_owned(),
            // Nobody is asked.
            server: "192.0.2.53:53".parse().unwrap(),
            key: SigningKey::read(&secret, Some("k")).unwrap(),
            ttl: 60,
            private: false,
        };
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let wanted = of(&["10.1.2.3"], false);
        let mut teller = Teller { server, memory_path: dir.join(MEMORY), told: sender, wake, wanted, said: None };
        assert_eq!(teller.try_once(1), None);
        let told = told.try_recv().unwrap();
        assert!(told.sentence.contains("192.0.2.53:53 is not told where laptop.roam.test is: "), "{}", told.sentence);
        assert!(told.sentence.contains("`dns.private = true`"), "{}", told.sentence);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn how_the_server_stands_is_what_was_told_last() {
        let mut view = ipc::NameServer {
            name: "laptop.roam.test".to_owned(),
            server: "192.0.2.53:53".parse().unwrap(),
            state: ipc::NameServerState::Asked,
            addresses: Vec::new(),
            since: None,
            sentence: None,
        };
        note(&mut view, &Report::new(Kind::NameUpdated, "it is so").with("addresses", vec!["198.51.100.7".to_owned()]));
        assert_eq!((view.state, view.addresses.len()), (ipc::NameServerState::Updated, 1));
        // What it had stays there.
        note(&mut view, &Report::new(Kind::NameUnanswered, "no answer"));
        assert_eq!((view.state, view.addresses.len()), (ipc::NameServerState::Unanswered, 1));
        assert_eq!(view.sentence.as_deref(), Some("no answer"));
        note(&mut view, &Report::new(Kind::NameRefused, "refused"));
        assert_eq!(view.state, ipc::NameServerState::Refused);
    }

    #[test]
    fn names_are_in_their_zones() {
        assert_eq!(NameServer::complaint("laptop.roam.test", "roam.test."), None);
        assert_eq!(NameServer::complaint("roam.test", "roam.test"), None);
        assert!(NameServer::complaint("laptop.roam.test", "room.test").unwrap().contains("not in the zone"));
        assert!(NameServer::complaint("laptop..test", "test").unwrap().contains("no name"));
    }
}
