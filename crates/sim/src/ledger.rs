//! What must never happen, and the accounts that show it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_protocol::Time;

use crate::host::HostId;

/// What kind of thing must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A segment arrived at a socket of another flow.
    WrongSocket,
    /// A segment of a connection came to a host that neither has its socket nor was given it by who had it.
    Taken,
    /// A segment arrived where no socket has it, though both ends of the flow are there: it is answered with a reset.
    Reset,
    /// An introduction reached a UDP program as data.
    Leaked,
    /// More than three times the bytes received went to an address that has proven nothing (P-18).
    Allowance,
    /// More datagrams a second than any purpose justifies.
    Storm,
    /// A socket goes on at two hosts, or what its ends say does not fit together.
    Torn,
    /// A packet came by a chain of transforms that was not made for it, or is not known.
    Chain,
    /// A daemon does not come to rest at one moment.
    Endless,
}

/// Something that must not happen, and did.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What kind.
    pub kind: Kind,
    /// When.
    pub at: Time,
    /// The particulars.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.kind, self.at.as_micros(), self.what)
    }
}

/// Control datagrams that one host may send to one address within a second, beside two for each introduction.
const DATAGRAMS_A_SECOND: usize = 40 + MASKED_UPDATES;
/// Masked updates beside one update (P-239).
const MASKED_UPDATES: usize = 4;

/// Segments that one host may inject towards one address within a second (P-15).
const INTRODUCTIONS_A_SECOND: usize = 2100;

/// Answers to masked updates that one host may send within ten seconds, to wherever nothing has come from (P-244).
const KNOCKS_IN_TEN_SECONDS: usize = 32 + 40;

#[derive(Debug, Default)]
struct Account {
    received: u64,
    /// Since the address last proved itself, or ever.
    sent: u64,
    datagrams: VecDeque<Time>,
    introductions: VecDeque<Time>,
    /// Bytes of initiations.
    questions: u64,
    first: Option<Time>,
}

impl Account {
    /// What may be sent in any case, since a host may ask whether somebody is there: two dozen datagrams, for a few
    /// moves, and one more every 10 s.
    fn asked(&mut self, now: Time) -> u64 {
        let first = *self.first.get_or_insert(now);
        ASKED * (24 + now.since(first).as_secs() / 10)
    }
}

/// The longest datagram that asks.
const ASKED: u64 = 1300;

/// Accounts of what each host sent where.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: BTreeMap<(HostId, IpAddr), Account>,
    proven: BTreeSet<(HostId, IpAddr)>,
    /// Who was reached by what a host sent to an address, and whether it was heard since.
    reached: BTreeMap<(HostId, IpAddr), (HostId, bool)>,
    knocks: BTreeMap<HostId, VecDeque<Time>>,
    pub(crate) found: Vec<Violation>,
    /// Datagrams sent in all.
    pub(crate) datagrams: u64,
    /// Control datagrams a second to one address that are no storm, where more than usual.
    pub(crate) datagrams_a_second: Option<usize>,
}

impl Ledger {
    pub(crate) fn violation(&mut self, kind: Kind, at: Time, what: String) {
        if self.found.len() < 6 {
            self.found.push(Violation { kind, at, what });
        }
    }

    pub(crate) fn prove(&mut self, host: HostId, address: IpAddr) {
        self.proven.insert((host, address));
    }

    /// What `from` sent to `to` has come to `at`, which is there in truth.
    pub(crate) fn reach(&mut self, from: HostId, to: IpAddr, at: HostId) {
        let reached = self.reached.entry((from, to)).or_insert((at, false));
        if reached.0 != at {
            *reached = (at, false);
        }
        for ((to, _), (by, heard)) in &mut self.reached {
            *heard |= *to == at && *by == from;
        }
    }

    /// Who has answered what `host` sent to that address.
    pub(crate) fn answered(&self, host: HostId, address: IpAddr) -> Option<HostId> {
        self.reached.get(&(host, address)).filter(|(_, heard)| *heard).map(|(by, _)| *by)
    }

    pub(crate) fn receive(&mut self, host: HostId, from: IpAddr, length: usize) {
        let account = self.accounts.entry((host, from)).or_default();
        if account.received == 0 {
            // What was sent before were questions.
            account.sent = 0;
        }
        account.received += length as u64;
    }

    /// Bytes that `host` sent to `address` and received from it.
    pub(crate) fn exchanged(&self, host: HostId, address: IpAddr) -> (u64, u64) {
        self.accounts.get(&(host, address)).map_or((0, 0), |account| (account.sent, account.received))
    }

    pub(crate) fn send(&mut self, now: Time, host: HostId, to: IpAddr, length: usize, what: Sent) {
        let proven = self.proven.contains(&(host, to));
        let account = self.accounts.entry((host, to)).or_default();
        // A question whether somebody is there is not an answer to anything.
        let asks = what == Sent::Initiation;
        *if asks { &mut account.questions } else { &mut account.sent } += length as u64;
        let second = now - Duration::from_secs(1);
        let recent = |times: &mut VecDeque<Time>| {
            while times.front().is_some_and(|first| *first <= second) {
                times.pop_front();
            }
            times.len()
        };
        match what {
            Sent::Control | Sent::Initiation | Sent::Knock => {
                self.datagrams += 1;
                account.datagrams.push_back(now);
                let allowed =
                    self.datagrams_a_second.unwrap_or(DATAGRAMS_A_SECOND) + 2 * recent(&mut account.introductions);
                if recent(&mut account.datagrams) > allowed {
                    account.datagrams.clear();
                    self.violation(Kind::Storm, now, format!("{host:?} sends more than {allowed} a second to {to}"));
                    return;
                }
            }
            Sent::Introduction => {
                account.introductions.push_back(now);
                if recent(&mut account.introductions) > INTRODUCTIONS_A_SECOND {
                    account.introductions.clear();
                    self.violation(Kind::Storm, now, format!("{host:?} injects without end towards {to}"));
                    return;
                }
            }
            Sent::Data => {}
        }
        let account = self.accounts.entry((host, to)).or_default();
        if what == Sent::Knock && account.received == 0 {
            let knocks = self.knocks.entry(host).or_default();
            knocks.push_back(now);
            knocks.retain(|at| now.since(*at) < Duration::from_secs(10));
            if knocks.len() > KNOCKS_IN_TEN_SECONDS {
                let what = format!("{host:?} answers masked updates without end, as to {to}");
                self.violation(Kind::Allowance, now, what);
                return;
            }
        }
        let asked = account.asked(now);
        if asks && account.questions > asked {
            account.questions = 0;
            self.violation(Kind::Storm, now, format!("{host:?} asks {to} over and over"));
            return;
        }
        // One that was heard and proved nothing may be asked no less than one that never was: its own updates go to all
        // addresses that the peer told.
        let asking = matches!(what, Sent::Control | Sent::Initiation | Sent::Knock);
        let grace = if asking { asked } else { 0 };
        if !proven && account.sent > (3 * account.received).max(grace) {
            let (sent, received) = (account.sent, account.received);
            self.violation(
                Kind::Allowance,
                now,
                format!("{host:?} has sent {sent} bytes to {to}, which has proven nothing, and received {received}"),
            );
        }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Control,
    Initiation,
    /// What answers a masked update, by its length.
    Knock,
    Introduction,
    Data,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_reached_at_an_address_answers_for_it() {
        let ([one, other, third], mut ledger) = ([HostId(0), HostId(1), HostId(2)], Ledger::default());
        let [at, elsewhere] = [1, 2].map(|of| IpAddr::from([10, 0, 0, of]));
        ledger.reach(other, at, one);
        ledger.reach(one, at, other);
        assert_eq!(ledger.answered(one, at), None, "it was heard before");
        ledger.reach(third, elsewhere, one);
        assert_eq!(ledger.answered(one, at), None, "that was somebody else");
        ledger.reach(other, elsewhere, one);
        assert_eq!((ledger.answered(one, at), ledger.answered(one, elsewhere)), (Some(other), None));
        ledger.reach(one, at, third);
        assert_eq!(ledger.answered(one, at), None, "it has another owner");
    }
}
