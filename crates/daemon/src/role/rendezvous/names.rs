//! Asking name servers where hosts are that have names (`[[peers]]`). A thread of its own asks and waits; what comes
//! back is tried and proves nothing (P-217).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder};
use domain::rdata::{A, Aaaa};
use rustix::event::{EventfdFlags, eventfd};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Node, Time};

use crate::reactor::clear;

/// Where the system says which name servers it uses.
const RESOLVER: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// How long a server's answer is waited for, before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(800);
/// Servers that are asked.
const SERVERS_MOST: usize = 3;

type DomainName = Name<Vec<u8>>;

/// Whether a text is the name of a host.
pub(crate) fn is_name(text: &str) -> bool {
    DomainName::from_str(text).is_ok_and(|name| !name.is_root())
}

/// A name that is to be asked for.
#[derive(Clone, Debug)]
struct Named {
    name: DomainName,
    /// Who is asked; `None`: whom the system asks.
    server: Option<IpAddr>,
}

/// The thread that asks, as the event loop has it.
#[derive(Debug)]
pub(crate) struct NameLookups {
    names: HashMap<PublicKey, Named>,
    /// Whose names are being asked for: a server that is slow is asked no more often for that.
    under_way: HashSet<PublicKey>,
    asked: Sender<(PublicKey, Named)>,
    answers: Receiver<(PublicKey, Vec<IpAddr>)>,
    wake: Arc<OwnedFd>,
}

impl NameLookups {
    /// Of hosts with these keys and names, each with who is asked; `None`: whom the system asks.
    ///
    /// # Errors
    /// The system has no room for a thread or a descriptor.
    pub(crate) fn new<'a>(hosts: impl Iterator<Item = (PublicKey, &'a str, Option<IpAddr>)>) -> io::Result<Self> {
        let named = hosts.filter_map(|(key, name, server)| {
            let name = DomainName::from_str(name).ok()?;
            Some((key, Named { name, server }))
        });
        let names: HashMap<PublicKey, Named> = named.collect();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((asked, requests), (answer, answers)) = (channel::<(PublicKey, Named)>(), channel());
        if !names.is_empty() {
            let wake = Arc::clone(&wake);
            std::thread::Builder::new().name("name-lookups".to_owned()).spawn(move || {
                for (key, named) in requests {
                    let found = look_up(&named);
                    tracing::debug!(name = %named.name, ?found, "looked up");
                    if answer.send((key, found)).is_err() {
                        return;
                    }
                    let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
                }
            })?;
        }
        Ok(Self { names, under_way: HashSet::new(), asked, answers, wake })
    }

    /// Readable when there is an answer.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Has the name of a host asked for, if it has one, and is not being asked for already.
    pub(crate) fn ask(&mut self, key: PublicKey) {
        if let Some(named) = self.names.get(&key)
            && self.under_way.insert(key)
        {
            // The thread lives as long as this does.
            let _ = self.asked.send((key, named.clone()));
        }
    }

    /// Tells the node what was answered.
    pub(crate) fn handle_answers(&mut self, now: Time, node: &mut Node) {
        for (key, addresses) in self.take_answers() {
            node.handle_named(now, &key, &addresses);
        }
    }

    fn take_answers(&mut self) -> Vec<(PublicKey, Vec<IpAddr>)> {
        clear(self.wake());
        let found: Vec<_> = self.answers.try_iter().collect();
        found.iter().for_each(|(key, _)| {
            self.under_way.remove(key);
        });
        found
    }
}

/// The addresses of a name, of the first server that answers.
fn look_up(named: &Named) -> Vec<IpAddr> {
    let servers = named.server.map_or_else(system_servers, |server| vec![server]);
    for server in servers {
        match ask(&named.name, SocketAddr::new(server, PORT)) {
            Ok(found) => return found,
            Err(error) => tracing::debug!(name = %named.name, %server, %error, "a name server does not answer"),
        }
    }
    Vec::new()
}

/// The name servers that the system uses now: they are others in each network.
fn system_servers() -> Vec<IpAddr> {
    let text = fs::read_to_string(RESOLVER).unwrap_or_default();
    servers_in(&text)
}

fn servers_in(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    lines.filter_map(|server| server.trim().parse().ok()).take(SERVERS_MOST).collect()
}

/// Asks a server for the addresses of both families at once.
fn ask(name: &DomainName, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
    let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(server)?;
    let mut open = Vec::new();
    for kind in [Rtype::A, Rtype::AAAA] {
        let (id, question) = question(name, kind)?;
        socket.send(&question)?;
        open.push(id);
    }
    let (until, mut found, mut buffer) = (Instant::now() + PATIENCE, Vec::new(), [0; 4096]);
    while !open.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return if found.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(found) };
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            Ok(length) => {
                if let Some((id, addresses)) = answer(&buffer[..length], name) {
                    found.extend(addresses.into_iter().filter(|_| open.contains(&id)));
                    open.retain(|asked| *asked != id);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A question, with the number that its answer is known by.
fn question(name: &DomainName, kind: Rtype) -> io::Result<(u16, Vec<u8>)> {
    let [first, second, ..] = crate::store::identity::random_bytes().map_err(io::Error::other)?;
    let id = u16::from_ne_bytes([first, second]);
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut question = message.question();
    question.push((name, kind, Class::IN)).map_err(io::Error::other)?;
    Ok((id, question.finish()))
}

/// The addresses in an answer about a name, and whose answer it is. A server that knows none says so, which is an
/// answer as well.
fn answer(datagram: &[u8], name: &DomainName) -> Option<(u16, Vec<IpAddr>)> {
    let message = Message::from_octets(datagram).ok()?;
    let header = message.header();
    let asked = message.sole_question().ok()?;
    if !header.qr() || asked.qname() != name || !matches!(header.rcode(), Rcode::NOERROR | Rcode::NXDOMAIN) {
        return None;
    }
    let records = message.answer().ok()?;
    let four = records.limit_to::<A>().filter_map(|record| Some(IpAddr::V4(record.ok()?.data().addr())));
    let six = records.limit_to::<Aaaa>().filter_map(|record| Some(IpAddr::V6(record.ok()?.data().addr())));
    Some((header.id(), four.chain(six).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_servers_are_read() {
        let text = "# by hand\nsearch example.org\nnameserver 192.0.2.53\n nameserver\t2001:db8::53\n\
                    nameserver fe80::1%eth0\n";
        let expected: [IpAddr; 2] = ["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        assert_eq!(servers_in(text), expected);
    }

    #[test]
    fn an_answer_is_about_the_name_that_was_asked_for() {
        let name = DomainName::from_str("server.example.org").unwrap();
        let (id, asked) = question(&name, Rtype::A).unwrap();
        let reply = |rcode: Rcode, addresses: &[[u8; 4]]| {
            let asked = Message::from_octets(asked.as_slice()).unwrap();
            let mut reply = MessageBuilder::new_vec().start_answer(&asked, rcode).unwrap();
            for address in addresses {
                reply.push((&name, 60, A::from(Ipv4Addr::from(*address)))).unwrap();
            }
            reply.finish()
        };
        let two = reply(Rcode::NOERROR, &[[192, 0, 2, 1], [192, 0, 2, 2]]);
        assert_eq!(answer(&two, &name).map(|(of, found)| (of, found.len())), Some((id, 2)));
        assert_eq!(answer(&reply(Rcode::NXDOMAIN, &[]), &name), Some((id, Vec::new())));
        assert_eq!(answer(&reply(Rcode::SERVFAIL, &[]), &name), None, "another server may know");
        assert_eq!(answer(&two, &DomainName::from_str("other.example.org").unwrap()), None);
        assert_eq!(answer(&asked, &name), None, "a question");
        assert_eq!(answer(&two[..two.len() - 3], &name).map(|(_, found)| found.len()), Some(1), "cut off");
        assert_eq!(answer(&[], &name), None);
    }

    #[test]
    fn a_name_that_is_being_asked_for_is_not_asked_for_again() {
        let key = whimbrel_handshake::StaticKey::from_bytes([1; 32]).public();
        let named = Named { name: DomainName::from_str("server.example.org").unwrap(), server: None };
        let ((asked, requests), (answer, answers)) = (channel(), channel());
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let names = HashMap::from([(key, named)]);
        let mut lookups = NameLookups { names, under_way: HashSet::new(), asked, answers, wake };
        (0..3).for_each(|_| lookups.ask(key));
        assert_eq!(requests.try_iter().count(), 1);
        answer.send((key, Vec::new())).unwrap();
        assert_eq!(lookups.take_answers(), [(key, Vec::new())]);
        lookups.ask(key);
        assert_eq!(requests.try_iter().count(), 1, "once it was answered it may have changed");
    }

    #[test]
    fn names_are_told_from_what_is_none() {
        assert!(is_name("server.example.org") && is_name("server"));
        assert!(!is_name("") && !is_name(".") && !is_name("a..b"));
    }
}
