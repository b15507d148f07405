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
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use whimbrel_handshake::PublicKey;
use whimbrel_kernel::whole;
use whimbrel_protocol::{MoveName, MoveOp, OpDone, OpFailed, OpId, Refusal, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::OF_A_PROCESS;

use crate::host::{Effects, Failure, Known};
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

impl Effects {
    /// Carries out one op of a move. `None`: what came of it is told by [`take_in_wholes`](Self::take_in_wholes), or
    /// [`take_in_namespaces`](Self::take_in_namespaces). `peer` tells which peer has a key.
    pub(crate) fn carry_out_move(
        &mut self,
        now: Time,
        id: OpId,
        op: MoveOp,
        peer: impl Fn(&PublicKey) -> Option<Known>,
    ) -> Option<Answer> {
        match self.wait_for_namespace(id, op)? {
            MoveOp::Freeze { name, flow } if self.wholes.gives(&flow) => self.freeze_whole(id, name, flow),
            MoveOp::Dump { name } if self.wholes.given.contains_key(&name) => self.dump_whole(id, &name),
            MoveOp::Thaw { name } if self.wholes.given.contains_key(&name) => self.let_whole_go_on(id, &name),
            MoveOp::Destroy { name, forward } if self.wholes.given.contains_key(&name) => {
                Some(self.end_whole(now, &name, forward.as_ref().and_then(peer).map(|to| to.peer)))
            }
            MoveOp::ForgetDonation { name } if self.wholes.given.contains_key(&name) => {
                Some(self.forget_given_of_whole(now, &name))
            }
            MoveOp::Admit { name, request } if Place::of(&request.receiver).is_some() => {
                Some(self.admit_of_whole(now, name, request).map(|()| OpDone::Done))
            }
            MoveOp::Restore { name, request, snapshot } if self.wholes.taken.contains_key(&name) => {
                let from = [name.donor, request.holder].map(PublicKey::from);
                let from = from.iter().filter_map(peer).map(|known| known.peer).collect();
                self.rebuild_whole(id, name, &snapshot, from)
            }
            MoveOp::SaveAcceptance(saved) if self.wholes.taken.contains_key(&saved.ticket.name) => {
                self.save_of_whole(id, saved)
            }
            MoveOp::Thaw { name } if self.wholes.taken.contains_key(&name) => self.wake_whole(now, id, name),
            MoveOp::Destroy { name, .. } if self.wholes.taken.contains_key(&name) => Some(self.drop_of_whole(&name)),
            MoveOp::ForgetAcceptance { name } if self.wholes.taken.contains_key(&name) => {
                Some(self.forget_taken_of_whole(now, &name))
            }
            op => Some(self.carry_out_move_of_socket(now, op, peer)),
        }
    }

    /// Whether a process is in the network namespace that a socket of its is in: this one, or that of the address.
    pub(crate) fn is_in_place(&mut self, pid: u32, flow: &FlowTuple) -> bool {
        let number = |namespace: BorrowedFd<'_>| rustix::fs::fstat(namespace).map(|stat| stat.st_ino).ok();
        let its = whole::network_of(pid).ok().and_then(|its| number(its.as_fd()));
        let place = match self.namespace_of(flow) {
            Some(namespace) => number(namespace),
            None => std::fs::File::open("/proc/thread-self/ns/net").ok().and_then(|own| number(own.as_fd())),
        };
        its.is_some() && its == place
    }

    /// The address of the endpoint namespace that a process is in, if it is in one.
    pub(crate) fn address_of_namespace(&self, pid: u32) -> Option<IpAddr> {
        let cookie = {
            let its = whole::network_of(pid).ok()?;
            let _inside = whimbrel_kernel::namespace::Entered::descriptor(its.as_fd()).ok()?;
            whimbrel_kernel::namespace::cookie().ok()?
        };
        self.address_with_cookie(cookie)
    }

    /// Takes in what threads have done, and gives what came of ops.
    pub(crate) fn take_in_wholes(&mut self, now: Time) -> Vec<(OpId, Answer)> {
        for report in self.wholes.work.take() {
            match report {
                Report::Packed(root, packed) => self.wholes.note_packed(root, packed),
                Report::Quiet(root, result) => self.wholes.news.push(News::Quiet { root, result }),
                Report::Dumped(root, images) => self.wholes.note_dumped(root, images),
                Report::Prepared(name, Ok(coming)) => {
                    self.wholes.note_prepared(now, name, *coming);
                    self.wholes.news.push(News::Prepared { name, refused: None });
                }
                Report::Prepared(name, Err(why)) => {
                    self.wholes.news.push(News::Prepared { name, refused: Some(why) });
                }
                Report::Rebuilt(name, result) => {
                    let flows: Vec<FlowTuple> =
                        self.wholes.coming.get(&name).into_iter().flat_map(Coming::flows).collect();
                    self.end_way(&flows);
                    self.note_lives(&name);
                    if result.is_ok() {
                        self.refill_queues(&name);
                    }
                    self.wholes.note_rebuilt(&name, result);
                }
                Report::Resumed(name, result) => self.wholes.note_resumed(name, result),
            }
        }
        self.hasten_wholes(now);
        std::mem::take(&mut self.wholes.finished)
    }
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
