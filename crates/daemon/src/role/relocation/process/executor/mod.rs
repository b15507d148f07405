//! Whole processes on their way (decision 0020): CRIU has the process, the moves of its connections have their packets.
//!
//! Every connection of a process is moved as any other is (`docs/protocol.md` §9). That an op of one of them is
//! answered when all have come as far, and that the first decides for all, is `protocol::process`'s: its steps are
//! taken here.
//!
//! ```text
//! leaving.rs    at the donor: what is written down, ends, or goes on as if nothing had been
//! coming.rs     at the acceptor: what is rebuilt, waits at rest for its fate, and goes on or ends
//! ```

mod coming;
mod leaving;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use whimbrel_handshake::PublicKey;
use whimbrel_kernel::process_tree::{self, ProcessTree, Scope, Unfit};
use whimbrel_protocol::process::{Answer, Departure, Place};
use whimbrel_protocol::{MoveName, MoveOp, OpDone, OpFailed, OpId, Refusal, Time};
use whimbrel_wire::FlowTuple;

use crate::host::{Failure, Host, Mover};
use crate::role::relocation::executor::{Known, Relocation};
use crate::role::relocation::process;
use crate::work::Work;
use coming::Coming;
use leaving::{Leaving, Packed};

/// What a thread has done.
#[derive(Debug)]
enum Report {
    /// What a process with this number is, and what would go with it.
    Seen(u32, Result<Box<ProcessTree>, Unfit>),
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
    /// Donor: what somebody wants to have moved who named the process with this number.
    Seen { pid: u32, seen: Result<Box<ProcessTree>, Unfit> },
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
pub(crate) struct Processes {
    directory: PathBuf,
    work: Work<Report>,
    /// By the numbers of their first processes.
    leaving: HashMap<u32, Leaving>,
    /// By the names of their moves.
    coming: HashMap<MoveName, Coming>,
    finished: Vec<(OpId, Answer)>,
    news: Vec<News>,
}

/// What the steps of processes are taken with.
pub(crate) struct Around<'a> {
    pub(crate) relocation: &'a mut Relocation,
    pub(crate) host: &'a mut Host,
}

impl Processes {
    pub(crate) fn make_ready(&self, host: &mut Host, now: Time) -> Result<(), OpFailed> {
        host.make_ready(now, Mover::Processes, self.is_busy(), self.is_busy())
    }

    pub(crate) fn new(run_dir: &std::path::Path) -> Result<Self, Failure> {
        Ok(Self {
            directory: process::directory(run_dir),
            work: Work::new()?,
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

    /// Looks at a process that is wanted to go, in a thread: descriptors of all processes are compared with its own.
    /// [`News::Seen`] tells.
    pub(crate) fn look(&mut self, pid: u32, scope: Scope) {
        let look = move || Report::Seen(pid, process_tree::look(pid, scope).map(Box::new));
        self.work.begin(look, move |why| Report::Seen(pid, Err(Unfit::Tied(why))));
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

    /// Carries out one op of a move, where that is of a process. `None`: the answer comes from
    /// [`take_in`](Self::take_in). `peer` tells which peer has a key. What is of no process is given back.
    pub(crate) fn carry_out(
        &mut self,
        around: &mut Around<'_>,
        now: Time,
        id: OpId,
        op: MoveOp,
        peer: &impl Fn(&PublicKey) -> Option<Known>,
    ) -> ControlFlow<Option<Answer>, MoveOp> {
        if self.carry_out_of_leaving(around, now, id, &op, peer) {
            return ControlFlow::Break(None);
        }
        ControlFlow::Break(match op {
            MoveOp::Admit { name, request } if Place::of(&request.receiver).is_some() => {
                Some(self.admit_of_process(around, now, name, request).map(|()| {
                    around.host.write_store();
                    OpDone::Done
                }))
            }
            MoveOp::Restore { name, request, snapshot } if self.come_by(&name).is_some() => {
                let from = [name.donor, request.holder].map(PublicKey::from);
                let from = from.iter().filter_map(peer).map(|known| known.peer).collect();
                self.rebuild_process(around, (id, name), &snapshot, from)
            }
            MoveOp::SaveAcceptance(saved) if self.come_by(&saved.ticket.name).is_some() => {
                let name = saved.ticket.name;
                self.with_coming(around, &name, |arrival| arrival.save(id, saved));
                None
            }
            MoveOp::Thaw { name } if self.come_by(&name).is_some() => {
                self.with_coming(around, &name, |arrival| arrival.thaw(now, id, &name));
                None
            }
            MoveOp::Destroy { name, .. } if self.come_by(&name).is_some() => {
                self.drop_of_process(around, id, &name);
                None
            }
            MoveOp::ForgetAcceptance { name } if self.come_by(&name).is_some() => {
                self.with_coming(around, &name, |arrival| arrival.forget(&name));
                Some(self.forget_taken_of_process(around, now, &name))
            }
            op => return ControlFlow::Continue(op),
        })
    }

    /// Takes in what threads have done, and gives what came of ops.
    pub(crate) fn handle(&mut self, around: &mut Around<'_>, now: Time) -> Vec<(OpId, Answer)> {
        for report in self.work.take() {
            match report {
                Report::Seen(pid, seen) => self.news.push(News::Seen { pid, seen }),
                Report::Packed(root, packed) => self.on_packed(root, packed),
                Report::Quiet(root, result) => self.news.push(News::Quiet { root, result }),
                Report::Dumped(root, images) => {
                    self.note_stays(root, images.as_ref().err());
                    self.with_leaving(around, now, root, |departure| departure.handle_written(images));
                }
                Report::Prepared(name, Ok(coming)) => {
                    self.on_prepared(now, name, *coming);
                    self.news.push(News::Prepared { name, refused: None });
                }
                Report::Prepared(name, Err(why)) => {
                    self.news.push(News::Prepared { name, refused: Some(why) });
                }
                Report::Rebuilt(name, result) => self.on_rebuilt(around, name, result),
                Report::Resumed(name, result) => self.on_resumed(around, name, result),
            }
        }
        self.hasten_processes(around, now);
        std::mem::take(&mut self.finished)
    }
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
