//! Addresses at which a peer receives, as it has shown, beside the one where it is (P-150).

use std::net::IpAddr;
use std::time::Duration;

use crate::Time;

/// How long a peer that has received something at an address is taken to do so, and how many of these are remembered.
const SHOWN_FOR: Duration = Duration::from_secs(60);
const SHOWN_MOST: usize = 4;
/// How soon it is asked at an address again.
const ASKED_AGAIN: Duration = Duration::from_millis(200);

/// Where a peer has received something a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The newest first.
    at: Vec<(IpAddr, Time)>,
    /// The address where it is asked whether it receives there, the token, and when that was sent.
    asked: Option<(IpAddr, u64, Time)>,
}

impl Shown {
    /// It has received something that was sent to this address.
    pub(crate) fn record(&mut self, now: Time, address: IpAddr) {
        self.at.retain(|(at, _)| *at != address);
        self.at.insert(0, (address, now));
        self.at.truncate(SHOWN_MOST);
    }

    /// Whether it has received something there a moment ago.
    pub(crate) fn contains(&self, now: Time, address: IpAddr) -> bool {
        self.at.iter().any(|(at, when)| *at == address && *when + SHOWN_FOR > now)
    }

    /// All that are remembered.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.at.iter().map(|(address, _)| *address)
    }

    /// Whether it is to be asked there now, and by which token: `fresh`, or that of before.
    pub(crate) fn ask(&mut self, now: Time, address: IpAddr, fresh: u64) -> Option<u64> {
        let token = match self.asked {
            Some((_, _, sent)) if sent + ASKED_AGAIN > now => return None,
            Some((at, token, _)) if at == address => token,
            _ => fresh,
        };
        self.asked = Some((address, token, now));
        Some(token)
    }

    /// The same, where that is not known for half as long again as it is believed.
    pub(crate) fn ask_in_time(&mut self, now: Time, address: IpAddr, fresh: u64) -> Option<u64> {
        if self.contains(now + SHOWN_FOR / 2, address) { None } else { self.ask(now, address, fresh) }
    }

    /// An answer came. Tells whether it was one to such a question.
    pub(crate) fn handle_answer(&mut self, now: Time, token: u64) -> bool {
        let Some((address, ..)) = self.asked.take_if(|(_, sent, _)| *sent == token) else { return false };
        self.record(now, address);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_is_believed_for_a_while_and_asked_for_now_and_then() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (mut shown, now) = (Shown::default(), Time::default() + Duration::from_secs(9));
        assert_eq!(shown.ask(now, one, 7), Some(7));
        assert_eq!((shown.ask(now, one, 8), shown.ask(now, other, 8)), (None, None), "one question at a time");
        assert_eq!(shown.ask(now + ASKED_AGAIN, one, 9), Some(7), "the same again");
        assert!(!shown.handle_answer(now, 9) && !shown.contains(now, one));
        assert!(shown.handle_answer(now, 7) && !shown.handle_answer(now, 7));
        assert!(shown.contains(now, one) && !shown.contains(now, other));
        assert!(!shown.contains(now + SHOWN_FOR, one));
        (3..20).for_each(|last| shown.record(now, IpAddr::from([10, 0, 0, last])));
        assert!(shown.at.len() == SHOWN_MOST && !shown.contains(now, one));
    }
}
