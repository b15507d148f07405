//! Whole processes on their way (decision 0020): CRIU has the process, the moves of its connections have their packets.
//!
//! Every connection of a process is moved as any other is (`docs/protocol.md` §9). That they belong together is known here, at both
//! ends: an op of one of them is answered when all have come as far. The first of them decides for all.
//!
//! ```text
//! leaving.rs    at the donor: what is written down, ends, or goes on as if nothing had been
//! coming.rs     at the acceptor: what is rebuilt, waits at rest for its fate, and goes on or ends
//! ```

mod coming;
mod leaving;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{MoveName, OpDone, OpFailed, OpId, Refusal, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::OF_A_PROCESS;

use crate::host::{Failure, Host, Mover};
use crate::role::relocation::process;
use crate::work::Work;
use coming::Coming;
use leaving::{Leaving, Packed};

/// Connections that a process may have, and sockets without another end.
const MOST_PARTS: u32 = 1 << 20;

type Answer = Result<OpDone, OpFailed>;

/// What a thread has done.
#[derive(Debug)]
enum Report {
    /// What goes ahead of a process.
    Packed(u32, Result<Packed, String>),
    /// Nothing new comes to a process, and what had come is its own.
    Quiet(u32, Result<(), String>),
    /// The images of a process at rest.
    Dumped(u32, Result<Vec<u8>, String>),
    /// What came ahead of one: it can be taken.
    Prepared(MoveName, Result<Box<Coming>, String>),
    /// It is there, at rest.
    Rebuilt(MoveName, Result<(), String>),
    /// It goes on, under this number.
    Resumed(MoveName, Result<u32, String>),
}

/// What the loop has to see to.
#[derive(Debug)]
pub(crate) enum News {
    /// Donor: what goes ahead of the process with this number is to be sent, or it cannot be moved.
    Packed { root: u32, load: Result<Vec<u8>, String> },
    /// Donor: nothing new comes to it, so that its connections can be named; or they cannot.
    Quiet { root: u32, result: Result<(), String> },
    /// Donor: it is not to be moved after all.
    Doomed { root: u32, why: Option<String> },
    /// Acceptor: whether it is taken.
    Prepared { name: MoveName, refused: Option<String> },
    /// Acceptor: it could not be rebuilt.
    Failed { name: MoveName, why: String },
    /// Acceptor: it is being rebuilt in the namespace of this address, which may be on lease from one of these hosts.
    Settles { address: IpAddr, owners: Vec<PublicKey> },
    /// Acceptor: it goes on here.
    Running { name: MoveName, program: String, pid: u32 },
    /// Acceptor: it is lost.
    Lost { name: MoveName, why: String },
}

/// The processes on their way.
#[derive(Debug)]
pub(crate) struct Wholes {
    directory: PathBuf,
    work: Work<Report>,
    /// By the numbers of their first processes.
    leaving: HashMap<u32, Leaving>,
    /// Moves of connections of these.
    given: HashMap<MoveName, (u32, FlowTuple)>,
    /// By the names of their moves.
    coming: HashMap<MoveName, Coming>,
    /// Moves of connections of these.
    taken: HashMap<MoveName, Part>,
    finished: Vec<(OpId, Answer)>,
    news: Vec<News>,
}

impl Wholes {
    pub(crate) fn make_ready(&self, host: &mut Host, now: Time) -> Result<(), OpFailed> {
        host.make_ready(now, Mover::Processes, self.is_busy(), self.is_busy())
            .map_err(|error| failed(Refusal::NoRights, error.to_string()))
    }

    pub(crate) fn new(run_dir: &std::path::Path) -> Result<Self, Failure> {
        let work = Work::new().map_err(|errno| whimbrel_kernel::Error::Call {
            call: "eventfd",
            object: "for processes on their way".to_owned(),
            source: errno.into(),
            effect: whimbrel_kernel::error::Effect::None,
        })?;
        Ok(Self {
            directory: process::directory(run_dir),
            work,
            leaving: HashMap::new(),
            given: HashMap::new(),
            coming: HashMap::new(),
            taken: HashMap::new(),
            finished: Vec::new(),
            news: Vec::new(),
        })
    }

    /// Readable when there is something to take in.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.work.wake()
    }

    /// Takes in what threads have done, and gives what came of ops.
    pub(crate) fn take_in(&mut self, host: &mut Host, now: Time) -> Vec<(OpId, Answer)> {
        for report in self.work.take() {
            match report {
                Report::Packed(root, packed) => self.note_packed(root, packed),
                Report::Quiet(root, result) => self.news.push(News::Quiet { root, result }),
                Report::Dumped(root, images) => self.note_dumped(root, images),
                Report::Prepared(name, Ok(coming)) => {
                    self.note_prepared(now, name, *coming);
                    self.news.push(News::Prepared { name, refused: None });
                }
                Report::Prepared(name, Err(why)) => {
                    self.news.push(News::Prepared { name, refused: Some(why) });
                }
                Report::Rebuilt(name, result) => {
                    let flows: Vec<FlowTuple> = self.coming.get(&name).into_iter().flat_map(Coming::flows).collect();
                    host.end_way(&flows);
                    host.note_lives(&name);
                    if result.is_ok() {
                        self.refill_queues(host, &name);
                    }
                    self.note_rebuilt(&name, result);
                }
                Report::Resumed(name, result) => self.note_resumed(name, result),
            }
        }
        self.hasten_wholes(now);
        std::mem::take(&mut self.finished)
    }

    /// Whether a move gives a connection of a process away.
    pub(crate) fn has_given(&self, name: &MoveName) -> bool {
        self.given.contains_key(name)
    }

    /// Whether a connection of a process comes here by a move.
    pub(crate) fn has_taken(&self, name: &MoveName) -> bool {
        self.taken.contains_key(name)
    }

    /// Whether the data plane has packets of a process to hold, or is about to.
    pub(crate) fn is_busy(&self) -> bool {
        !self.leaving.is_empty() || !self.coming.is_empty()
    }

    /// Takes what the loop has to see to.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn finish(&mut self, id: OpId, answer: Answer) {
        self.finished.push((id, answer));
        self.work.stir();
    }

    fn finish_all(&mut self, ids: Vec<OpId>, answer: impl Fn() -> Answer) {
        ids.into_iter().for_each(|id| self.finish(id, answer()));
    }
}

/// A connection of a process, or a socket of its without another end, as its move's receiver says it (P-94).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the load.
    pub(crate) load: u64,
    /// The how manieth it is; the first decides for all.
    pub(crate) index: u32,
    /// Of how many.
    pub(crate) count: u32,
}

impl Place {
    /// Under which name such a one goes.
    pub(crate) fn receiver(self) -> Vec<u8> {
        let Self { load, index, count } = self;
        [OF_A_PROCESS]
            .into_iter()
            .chain(load.to_be_bytes())
            .chain(index.to_be_bytes())
            .chain(count.to_be_bytes())
            .collect()
    }

    /// Where the receiver says that it is of a process.
    pub(crate) fn of(receiver: &[u8]) -> Option<Self> {
        let (load, rest) = receiver.strip_prefix(&[OF_A_PROCESS])?.split_first_chunk::<8>()?;
        let (index, count) = rest.split_first_chunk::<4>()?;
        let (load, index) = (u64::from_be_bytes(*load), u32::from_be_bytes(*index));
        let count = u32::from_be_bytes(count.try_into().ok()?);
        (index < count && count <= MOST_PARTS).then_some(Self { load, index, count })
    }
}

/// Of a process that comes, what one of the moves is about.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Which process.
    of: MoveName,
    flow: FlowTuple,
    /// It decides for all.
    first: bool,
}

fn failed(refusal: Refusal, sentence: impl Into<String>) -> OpFailed {
    OpFailed { refusal: Some(refusal), sentence: sentence.into() }
}

/// A directory's name for a move of which another host is the donor.
fn key_and_number(name: &MoveName) -> String {
    let key = PublicKey::from(name.donor).to_string();
    let plain: String = key.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    format!("{plain}-{:016x}", name.number)
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
