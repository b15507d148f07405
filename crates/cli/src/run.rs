//! `whimbrel run` and `whimbrel anchor`: programs with the address of another host, and what this host lends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use whimbrel_ipc::{Anchors, ClientError, Family, LentEnds, Offer, Reply, Request, reply_to_line};

use crate::args::WholeAddress;
use crate::complaint::Complaint;
use crate::{connect, print};

/// How often it is looked whether anything depends on an anchor that stops.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// How long a daemon may take to be started anew.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// How long an anchor may take, or several that are asked one after the other.
const ANCHORED_WITHIN: Duration = Duration::from_secs(60);

/// What a program is to have of an anchor.
pub(crate) struct Wanted<'a> {
    pub(crate) anchor: &'a str,
    pub(crate) ports: &'a [u16],
    pub(crate) address: Option<WholeAddress>,
    pub(crate) ipv6: bool,
    pub(crate) hidden: bool,
}

/// The anchor that is this host itself: the program is nobody's but its own.
const OWN: &str = "self";

impl Wanted<'_> {
    /// What only another host can lend, if it is wanted.
    fn of_another(&self) -> Option<&'static str> {
        let wanted = [
            (!self.ports.is_empty(), "--port"),
            (self.address.is_some(), "--address"),
            (self.ipv6, "--ipv6"),
            (self.hidden, "--hidden"),
        ];
        wanted.into_iter().find(|(wanted, _)| *wanted).map(|(_, option)| option)
    }

    fn request(&self) -> Result<Request, Complaint> {
        let any: IpAddr = if self.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let address = match self.address {
            None => None,
            Some(WholeAddress::Any) => Some(any),
            Some(WholeAddress::Exactly(address)) if self.ipv6 && address.is_ipv4() => {
                return Err(Complaint::NotIpv6(address));
            }
            Some(WholeAddress::Exactly(address)) => Some(address),
        };
        let family = if address.unwrap_or(any).is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let (anchor, ports) = (self.anchor.to_owned(), self.ports.to_vec());
        Ok(Request::Namespace { anchor, family, ports, address, hidden: self.hidden })
    }
}

/// Starts a program behind an anchor. Comes back only where that fails.
pub(crate) fn run(run_dir: &Path, wanted: &Wanted<'_>, program: &[String]) -> Result<ExitCode, Complaint> {
    let Some((first, rest)) = program.split_first() else { return Err(ClientError::Unexpected.into()) };
    if first.is_empty() {
        return Err(Complaint::Program("\"\"".into(), std::io::ErrorKind::NotFound.into()));
    }
    let mut command = Command::new(first);
    let mut start = move || Err(Complaint::Program(first.into(), command.args(rest).exec()));
    if wanted.anchor == OWN {
        return match wanted.of_another() {
            Some(option) => Err(Complaint::OwnAnchor(option)),
            None => start(),
        };
    }
    let request = wanted.request()?;
    let mut client = connect(run_dir)?;
    let namespace = whimbrel_daemon::apart::leave_network().map_err(|error| Complaint::Apart(error.into()))?;
    match client.exchange(&request, &[namespace.as_fd()], Some(ANCHORED_WITHIN))? {
        (Reply::Namespace(_), _) => {}
        _ => return Err(ClientError::Unexpected.into()),
    }
    // The daemon sees by this when the program has ended, and what it has started.
    rustix::io::fcntl_setfd(client.as_fd(), rustix::io::FdFlags::empty())
        .map_err(|errno| Complaint::Output(errno.into()))?;
    start()
}

fn ask(run_dir: &Path, request: &Request) -> Result<(Anchors, Reply), Complaint> {
    match connect(run_dir)?.exchange(request, &[], Some(whimbrel_ipc::REPLY_TIMEOUT))?.0 {
        Reply::Anchors(anchors) => Ok((anchors.clone(), Reply::Anchors(anchors))),
        _ => Err(ClientError::Unexpected.into()),
    }
}

/// Shows what is lent and leased.
pub(crate) fn anchors(run_dir: &Path, json: bool) -> Result<(), Complaint> {
    let (anchors, reply) = ask(run_dir, &Request::Anchors { brief: false })?;
    print(&if json { reply_to_line(&reply)? } else { shown(&anchors) })
}

/// Lends again.
pub(crate) fn start(run_dir: &Path, json: bool) -> Result<(), Complaint> {
    let (anchors, reply) = ask(run_dir, &Request::Lending { stop: false })?;
    print(&if json { reply_to_line(&reply)? } else { shown(&anchors) })
}

/// Lends nothing new, and waits until nothing depends on this host.
pub(crate) fn stop(run_dir: &Path, within: u64, json: bool) -> Result<ExitCode, Complaint> {
    let (mut anchors, mut reply) = ask(run_dir, &Request::Lending { stop: true })?;
    let before = depending(&anchors);
    let waits = !is_free(&anchors) && within > 0;
    if !json && waits {
        print(&format!("This host lends nothing new.\n{before}Waiting for these to move or end.\n"))?;
    }
    let since = Instant::now();
    let mut absence = Absence::default();
    while !is_free(&anchors) && since.elapsed() < Duration::from_secs(within) {
        std::thread::sleep(LOOK);
        match ask(run_dir, &Request::Anchors { brief: true }) {
            Ok(now) => ((anchors, reply), absence) = (now, Absence::default()),
            Err(error) => absence.record(Instant::now(), STARTED_WITHIN, error)?,
        }
    }
    if let Some((_, error)) = absence.0 {
        return Err(error);
    }
    let free = is_free(&anchors);
    if json {
        print(&reply_to_line(&reply)?)?;
    } else if free {
        print("Nothing depends on this host as an anchor.\n")?;
    } else {
        print(&left(&anchors, waits.then_some(&before)))?;
    }
    Ok(if free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Since when a daemon has not answered that is waited for, and why.
#[derive(Default)]
pub(crate) struct Absence(Option<(Instant, Complaint)>);

impl Absence {
    /// It may be being started anew: the next one lends nothing new either, and lets others receive. It is waited for
    /// so long: `within`.
    ///
    /// # Errors
    /// No daemon is waited for any more.
    pub(crate) fn record(&mut self, now: Instant, within: Duration, error: Complaint) -> Result<(), Complaint> {
        let since = self.0.as_ref().map_or(now, |(since, _)| *since);
        if !error.is_for_want_of_a_daemon() || now.duration_since(since) >= within {
            return Err(error);
        }
        self.0 = Some((since, error));
        Ok(())
    }
}

fn is_free(anchors: &Anchors) -> bool {
    anchors.lent.is_empty() && anchors.passed_on.is_empty()
}

/// What still depends on this host, of what `before` has told.
fn left(anchors: &Anchors, before: Option<&String>) -> String {
    let now = depending(anchors);
    if before == Some(&now) { "All of these are still there.\n".to_owned() } else { format!("Still there:\n{now}") }
}

fn shown(anchors: &Anchors) -> String {
    let mut text = match (anchors.lends, anchors.stopping) {
        (false, _) => "This host lends nothing: `ports` or `addresses` below `[anchor]` in the configuration would, once its daemon is started anew.\n".to_owned(),
        (true, true) => "This host lends nothing new: `whimbrel anchor start` has it lend again.\n".to_owned(),
        (true, false) => String::new(),
    };
    text.extend(anchors.offer.iter().map(|offer| offered(offer, anchors.stopping)));
    text += &depending(anchors);
    for rented in &anchors.rented {
        text += &format!("on lease from {}: {}\n", rented.host, ends(rented));
    }
    if text.is_empty() { "Nothing is lent.\n".to_owned() } else { text }
}

/// What depends on this host.
fn depending(anchors: &Anchors) -> String {
    let mut text = String::new();
    for lent in &anchors.lent {
        text += &format!("lent to {}: {}\n", lent.host, ends(lent));
    }
    for passed in &anchors.passed_on {
        let (flow, host) = (&passed.flow, &passed.host);
        text += &format!("passed on to {host}: {} -> {}\n", flow.local, flow.remote);
    }
    text
}

/// What is lent if somebody asks for it, or would be if the host were not about to stop.
fn offered(offer: &Offer, stopping: bool) -> String {
    let mut text = String::new();
    let ports = offer.ports.iter().map(range).collect::<Vec<_>>().join(", ");
    let count: u64 = offer.ports.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
    // What cannot be lent at all is said to be so, and no more.
    for of in offer.of.iter().filter(|of| of.fault.is_none() || of.lent > 0) {
        let room = match of.room.filter(|_| of.fault.is_none() && !stopping) {
            None => "",
            Some(0) => ", no room for a program",
            Some(1) => ", room for 1 program",
            Some(more) => &format!(", room for {more} programs"),
        };
        text += &format!("for lease: {} ports {ports}; {}{room}\n", of.address, part(u64::from(of.lent), Some(count)));
        if !of.used.is_empty() {
            text += &format!("used by this host itself: {} {}\n", of.address, few(&of.used));
        }
    }
    for of in offer.addresses.iter().filter(|of| of.fault.is_none() || of.room != Some(0) || of.lent > 0) {
        let left = of.addresses.map(|all| all.saturating_sub(of.lent));
        let room = match of.room {
            Some(room) if of.room != left && !stopping => format!(", room for {room} more"),
            _ => String::new(),
        };
        text += &format!("for lease: {}, as a whole; {}{room}\n", of.prefix, part(of.lent, of.addresses));
    }
    text.extend(offer.faults.iter().map(|fault| format!("cannot be lent: {fault}\n")));
    text.extend(offer.unreached.iter().map(|fault| format!("not reached: {fault}\n")));
    text
}

fn range((first, last): &(u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

/// Stretches of ports, of which there may be very many.
fn few(ranges: &[(u16, u16)]) -> String {
    const SHOWN: usize = 8;
    let count = |all: &[(u16, u16)]| all.iter().map(|(first, last)| u32::from(last - first) + 1).sum::<u32>();
    let (shown, more) = ranges.split_at(ranges.len().min(SHOWN));
    let word = if count(ranges) == 1 { "port" } else { "ports" };
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", count(more)) };
    format!("{word} {}{more}", shown.iter().map(range).collect::<Vec<_>>().join(", "))
}

/// So much of so much.
fn part(lent: u64, of: Option<u64>) -> String {
    match (lent, of) {
        (0, _) => "nothing of it is lent".to_owned(),
        (lent, Some(of)) => format!("{lent} of {of} lent"),
        (lent, None) => format!("{lent} lent"),
    }
}

fn ends(of: &LentEnds) -> String {
    match of.count {
        0 => format!("{}, as a whole", of.address),
        1 => format!("{} port {}", of.address, of.port),
        count => {
            let last = u32::from(of.port) + u32::from(count) - 1;
            format!("{} ports {} to {last}", of.address, of.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use whimbrel_ipc::{OfferedAddress, OfferedPrefix, PeerName};

    use super::*;

    #[test]
    fn what_can_be_lent_is_told_once_and_how_much_more_there_is_room_for() {
        let of = |address: &str, lent, room, used: &[(u16, u16)], fault: Option<&str>| OfferedAddress {
            address: address.parse().expect("an address"),
            lent,
            room: Some(room),
            used: used.to_vec(),
            fault: fault.map(str::to_owned),
        };
        let prefix = |prefix: &str, addresses, lent, room, fault: Option<&str>| OfferedPrefix {
            prefix: prefix.to_owned(),
            addresses,
            lent,
            room,
            fault: fault.map(str::to_owned),
        };
        let many: Vec<(u16, u16)> = (0..10).map(|n| (8000 + 10 * n, 8001 + 10 * n)).collect();
        let offer = Offer {
            ports: vec![(8000, 8127), (9000, 9130)],
            of: vec![
                of("192.0.2.1", 0, 2, &[], None),
                of("192.0.2.2", 128, 1, &[(9001, 9001)], None),
                of("192.0.2.3", 258, 0, &many, None),
                of("192.0.2.4", 0, 0, &[], Some("it is none")),
            ],
            addresses: vec![
                prefix("192.0.2.64/28", Some(14), 0, Some(14), None),
                prefix("192.0.2.80/28", Some(14), 2, Some(11), Some("one is its own")),
                prefix("192.0.2.9", Some(1), 0, Some(0), Some("its own")),
                prefix("2001:db8::/64", None, 3, None, None),
            ],
            faults: vec!["it is none".into(), "one is its own".into(), "its own".into()],
            unreached: vec!["one is lent".into()],
        };
        let ports = "ports 8000 to 8127, 9000 to 9130";
        let right = format!(
            "for lease: 192.0.2.1 {ports}; nothing of it is lent, room for 2 programs\n\
             for lease: 192.0.2.2 {ports}; 128 of 259 lent, room for 1 program\n\
             used by this host itself: 192.0.2.2 port 9001\n\
             for lease: 192.0.2.3 {ports}; 258 of 259 lent, no room for a program\n\
             used by this host itself: 192.0.2.3 ports 8000 to 8001, 8010 to 8011, 8020 to 8021, 8030 to 8031, 8040 to 8041, \
             8050 to 8051, 8060 to 8061, 8070 to 8071 and 4 more\n\
             for lease: 192.0.2.64/28, as a whole; nothing of it is lent\n\
             for lease: 192.0.2.80/28, as a whole; 2 of 14 lent, room for 11 more\n\
             for lease: 2001:db8::/64, as a whole; 3 lent\n\
             cannot be lent: it is none\ncannot be lent: one is its own\ncannot be lent: its own\n\
             not reached: one is lent\n"
        );
        assert_eq!(offered(&offer, false), right);
        // There is room for nobody where nothing new is lent, and none is told of that the daemon does not say.
        let stopping = offered(&offer, true);
        assert_eq!((stopping.matches("for lease").count(), stopping.matches("room").count()), (6, 0), "{stopping}");
        let mut unknown = offer.clone();
        unknown.of.iter_mut().for_each(|of| of.room = None);
        assert_eq!(offered(&unknown, false).matches("program").count(), 0);
    }

    #[test]
    fn what_an_anchor_waits_for_is_listed_again_only_where_it_is_not_the_same() {
        let host = PeerName { id: 1, key: "key".into(), name: Some("tablet".into()) };
        let lent = |port| LentEnds { host: host.clone(), address: "192.0.2.1".parse().expect("one"), port, count: 1 };
        let lent = vec![lent(8000), lent(8001)];
        let mut anchors =
            Anchors { lends: true, stopping: true, offer: None, lent, passed_on: Vec::new(), rented: Vec::new() };
        let before = depending(&anchors);
        assert_eq!(before, "lent to tablet: 192.0.2.1 port 8000\nlent to tablet: 192.0.2.1 port 8001\n");
        assert_eq!(left(&anchors, Some(&before)), "All of these are still there.\n");
        assert_eq!(left(&anchors, None), format!("Still there:\n{before}"));
        anchors.lent.pop();
        assert_eq!(left(&anchors, Some(&before)), "Still there:\nlent to tablet: 192.0.2.1 port 8000\n");
    }

    #[test]
    fn a_daemon_is_waited_for_while_it_may_be_being_started_anew() {
        let connect =
            |errno| ClientError::Connect { socket: "/run/x".into(), source: io::Error::from_raw_os_error(errno) };
        let timeout = || ClientError::Timeout { socket: "/run/x".into(), after: STARTED_WITHIN };
        let begun = Instant::now();
        let mut absence = Absence::default();
        for (after, error) in [(0, connect(111)), (1, connect(2)), (9, timeout())] {
            assert!(absence.record(begun + Duration::from_secs(after), STARTED_WITHIN, error.into()).is_ok());
        }
        assert!(absence.0.as_ref().is_some_and(|(since, _)| *since == begun));
        assert!(
            absence.record(begun + STARTED_WITHIN, STARTED_WITHIN, connect(111).into()).is_err(),
            "it does not come back"
        );
        // This user may not ask it: another daemon will not let him either.
        assert!(Absence::default().record(begun, STARTED_WITHIN, connect(13).into()).is_err());
        assert!(Absence::default().record(begun, STARTED_WITHIN, ClientError::Unexpected.into()).is_err());
    }
}
