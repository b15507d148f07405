//! Whole processes on their way (decision 0020).
//!
//! Every connection of a process is moved as any other is. That they belong together is known here, at both ends: an op
//! of one of their moves is answered when all have come as far. The first of them decides for all.
//!
//! ```text
//! departure.rs  at the donor: what is written down, ends, or goes on as if nothing had been
//! arrival.rs    at the acceptor: what is rebuilt, waits at rest for its fate, and goes on or ends
//! ```
//!
//! Both stand between a node and who carries out its ops: they are given the ops of moves whose sockets belong to a
//! process, and give out steps, which are to be taken in their order.

mod arrival;
mod departure;

pub use arrival::{Arrival, ArrivalStep, Left};
pub use departure::{Departure, DepartureStep, Outcome};

use whimbrel_wire::moving::{OF_A_PROCESS, Refusal};

use crate::base::output::{OpDone, OpFailed};

/// Connections that a process may have, and sockets without another end.
const MOST_PARTS: u32 = 1 << 20;

/// What comes of an op.
pub type Answer = Result<OpDone, OpFailed>;

/// A connection of a process, or a socket of its without another end, as its move's receiver says it (P-94).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the load that has gone ahead of the process.
    pub load: u64,
    /// The how manieth it is; the first decides for all.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl Place {
    /// Under which name such a one goes.
    #[must_use]
    pub fn receiver(self) -> Vec<u8> {
        let Self { load, index, count } = self;
        let numbers = load.to_be_bytes().into_iter().chain(index.to_be_bytes()).chain(count.to_be_bytes());
        [OF_A_PROCESS].into_iter().chain(numbers).collect()
    }

    /// Where the receiver says that it is of a process.
    #[must_use]
    pub fn of(receiver: &[u8]) -> Option<Self> {
        let (load, rest) = receiver.strip_prefix(&[OF_A_PROCESS])?.split_first_chunk::<8>()?;
        let (index, count) = rest.split_first_chunk::<4>()?;
        let (load, index) = (u64::from_be_bytes(*load), u32::from_be_bytes(*index));
        let count = u32::from_be_bytes(count.try_into().ok()?);
        (index < count && count <= MOST_PARTS).then_some(Self { load, index, count })
    }
}

fn failed(refusal: Refusal, sentence: impl Into<String>) -> Answer {
    Err(OpFailed { refusal: Some(refusal), sentence: sentence.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_process_says_which_it_is() {
        let place = Place { load: 7, index: 2, count: 3 };
        assert_eq!(Place::of(&place.receiver()), Some(place));
        assert!(std::str::from_utf8(&place.receiver()).is_err(), "no program receives under that");
        for bad in
            [Place { index: 3, ..place }, Place { count: 0, index: 0, ..place }, Place { count: u32::MAX, ..place }]
        {
            assert_eq!(Place::of(&bad.receiver()), None, "{bad:?}");
        }
        let receiver = place.receiver();
        for bad in [&receiver[..16], &receiver[1..], &[receiver.as_slice(), &[0]].concat(), b"program", b""] {
            assert_eq!(Place::of(bad), None, "{bad:?}");
        }
    }
}
