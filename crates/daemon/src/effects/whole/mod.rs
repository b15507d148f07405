//! Whole processes on their way (decision 0020): CRIU has the process, the moves of its connections have their packets.
//!
//! Every connection of a process is moved as any other is (`docs/protocol.md` §9). That an op of one of them is answered when all have come
//! as far, and that the first decides for all, is `protocol::process`'s: its steps are taken here.
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
use whimbrel_protocol::process::{Answer, Departure};
use whimbrel_protocol::{MoveName, MoveOp, OpDone, OpFailed, OpId, Refusal, Time};
use whimbrel_wire::FlowTuple;

use super::Failure;
use super::{Effects, Known};
use crate::processes;
use crate::work::Work;
use coming::Coming;
use leaving::{Leaving, Packed};
pub(crate) use whimbrel_protocol::process::Place;

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
    Stays { root: u32, why: String },
    /// Donor: the move of one of its connections is to be called off.
    Cancel { name: MoveName },
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
    /// By the names of their moves.
    coming: HashMap<MoveName, Coming>,
    finished: Vec<(OpId, Answer)>,
    news: Vec<News>,
}

impl Wholes {
    pub(super) fn new(run_dir: &std::path::Path) -> Result<Self, Failure> {
        let work = Work::new().map_err(|errno| whimbrel_kernel::Error::Call {
            call: "eventfd",
            object: "for processes on their way".to_owned(),
            source: errno.into(),
            effect: whimbrel_kernel::error::Effect::None,
        })?;
        Ok(Self {
            directory: processes::directory(run_dir),
            work,
            leaving: HashMap::new(),
            coming: HashMap::new(),
            finished: Vec::new(),
            news: Vec::new(),
        })
    }

    /// Readable when there is something to take in.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.work.wake()
    }

    /// Whether the data plane has packets of a process to hold, or is about to.
    pub(super) fn is_busy(&self) -> bool {
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

    fn tell(&mut self, news: News) {
        self.news.push(news);
        self.work.stir();
    }

    /// The process that a move is about, which goes to another host.
    fn left_by(&self, name: &MoveName) -> Option<u32> {
        self.leaving.iter().find(|(_, leaving)| leaving.departure.has_move(name)).map(|(root, _)| *root)
    }

    /// The same of one that comes.
    fn come_by(&self, name: &MoveName) -> Option<MoveName> {
        self.coming.iter().find(|(_, coming)| coming.arrival.has_move(name)).map(|(of, _)| *of)
    }

    /// How far a process is that goes to another host.
    pub(crate) fn departure(&self, root: u32) -> Option<&Departure> {
        self.leaving.get(&root).map(|leaving| &leaving.departure)
    }

    /// One of its connections is being given, by this move.
    pub(crate) fn give(&mut self, root: u32, name: MoveName, flow: FlowTuple) {
        if let Some(leaving) = self.leaving.get_mut(&root) {
            leaving.departure.give(name, flow);
        }
    }
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
        let op = self.wait_for_namespace(id, op)?;
        if self.carry_out_of_leaving(now, id, &op, &peer) {
            return None;
        }
        match op {
            MoveOp::Admit { name, request } if Place::of(&request.receiver).is_some() => {
                Some(self.admit_of_whole(now, name, request).map(|()| OpDone::Done))
            }
            MoveOp::Restore { name, request, snapshot } if self.wholes.come_by(&name).is_some() => {
                let from = [name.donor, request.holder].map(PublicKey::from);
                let from = from.iter().filter_map(peer).map(|known| known.peer).collect();
                self.rebuild_whole(id, name, &snapshot, from)
            }
            MoveOp::SaveAcceptance(saved) if self.wholes.come_by(&saved.ticket.name).is_some() => {
                let name = saved.ticket.name;
                self.with_coming(&name, |arrival| arrival.save(id, saved));
                None
            }
            MoveOp::Thaw { name } if self.wholes.come_by(&name).is_some() => {
                self.with_coming(&name, |arrival| arrival.thaw(now, id, &name));
                None
            }
            MoveOp::Destroy { name, .. } if self.wholes.come_by(&name).is_some() => {
                self.drop_of_whole(id, &name);
                None
            }
            MoveOp::ForgetAcceptance { name } if self.wholes.come_by(&name).is_some() => {
                self.with_coming(&name, |arrival| arrival.forget(&name));
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
                Report::Dumped(root, images) => {
                    self.wholes.note_stays(root, images.as_ref().err());
                    self.with_leaving(now, root, |departure| departure.handle_written(images));
                }
                Report::Prepared(name, Ok(coming)) => {
                    self.wholes.note_prepared(now, name, *coming);
                    self.wholes.news.push(News::Prepared { name, refused: None });
                }
                Report::Prepared(name, Err(why)) => {
                    self.wholes.news.push(News::Prepared { name, refused: Some(why) });
                }
                Report::Rebuilt(name, result) => self.note_rebuilt(name, result),
                Report::Resumed(name, result) => self.note_resumed(name, result),
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
