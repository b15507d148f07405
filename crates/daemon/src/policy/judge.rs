//! Has the node wait for what policy says of each flow, tells it which flows meet the conditions of sections about
//! networks, and finds out who has a flow open where either asks for that.
//!
//! Whose a socket is shows in the descriptors of all processes alone, and to read them takes milliseconds on a busy
//! host. So a thread of its own does that, for all flows at once that have come up meanwhile, and rests four times as
//! long as it took. It is started with the first flow that it is needed for. A flow is looked at shortly before it
//! could be introduced that has not had its turn before: servers hand what they accept to other processes. What a
//! program of this host has opened is its own, and looked at at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use whimbrel_kernel::process;
use whimbrel_kernel::sock_diag::{MOVABLE, SockDiag};
use whimbrel_protocol::{Node, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Conditions, Holder, Policies};

/// Age at which a flow is looked at that was accepted. It is introduced at 1 s (P-15).
const AGE: Duration = Duration::from_millis(750);
/// The least time from one look to the next.
const PAUSE: Duration = Duration::from_millis(250);
/// The share of its time that looking may take: one in so many.
const SHARE: u32 = 5;
/// How often a socket is looked at that nobody has open: its program has not accepted it yet, or has ended.
const LOOKS: u32 = 20;
/// So many sockets are asked for one by one; of more, all are listed.
const SINGLY: usize = 64;

/// Who has each flow open.
type Found = Vec<(FlowTuple, Vec<Holder>)>;

/// Policy at work.
pub(crate) struct Judge {
    policies: Policies,
    conditions: Conditions,
    /// Flows whose holders are asked for, oldest first.
    due: VecDeque<(Time, FlowTuple)>,
    looking: Option<Sender<FlowTuple>>,
    found: (Sender<Found>, Receiver<Found>),
    wake: Arc<OwnedFd>,
}

impl Judge {
    /// # Errors
    /// When eventfd(2) fails.
    pub(crate) fn new(policies: Policies, conditions: Conditions, node: &mut Node) -> Result<Self, rustix::io::Errno> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        node.await_verdicts(!policies.is_empty());
        Ok(Self { policies, conditions, due: VecDeque::new(), looking: None, found: channel(), wake })
    }

    /// Other policies count for flows of which nothing was said yet, and other conditions for all.
    pub(crate) fn replace(&mut self, policies: Policies, conditions: Conditions, node: &mut Node, now: Time) {
        node.await_verdicts(!policies.is_empty());
        self.policies = policies;
        if self.conditions != conditions {
            self.conditions = conditions;
            self.consider_all(node, now);
        }
    }

    /// What a daemon before this one has left is known: says which conditions it meets.
    pub(crate) fn begin(&mut self, node: &mut Node, now: Time) {
        if !self.conditions.is_empty() {
            self.consider_all(node, now);
        }
    }

    /// Says of all flows which conditions they meet.
    fn consider_all(&mut self, node: &mut Node, now: Time) {
        let all: Vec<FlowTuple> = node.flows().map(|view| view.tuple).collect();
        for flow in all {
            // Of what nobody has looked up yet that is all that is certain.
            node.handle_conditions_met(now, flow, self.conditions.met(&flow, &[]));
            if self.conditions.asks_for_holders(&flow) {
                self.due.push_front((now, flow));
            }
        }
    }

    /// Readable when somebody was found.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// A flow was opened, or noticed. Says what is wanted for it, if that is known.
    pub(crate) fn consider(&mut self, node: &mut Node, now: Time, flow: FlowTuple, accepted: bool) {
        let (rules, meant) = self.awaited(node, &flow);
        let rules_ask = rules && self.policies.asks_for_holders(&flow);
        let meant_asks = meant && self.conditions.asks_for_holders(&flow);
        if rules_ask || meant_asks {
            if accepted {
                self.due.push_back((now + AGE, flow));
            } else {
                self.due.push_front((now, flow));
            }
        }
        if rules && !rules_ask {
            node.handle_verdict(now, flow, self.policies.verdict(&flow, &[]));
        }
        if meant && !meant_asks {
            node.handle_conditions_met(now, flow, self.conditions.met(&flow, &[]));
        }
    }

    /// Whether something is to be said of a flow: what is wanted for it, and which conditions it meets.
    fn awaited(&self, node: &Node, flow: &FlowTuple) -> (bool, bool) {
        let rules = !self.policies.is_empty() && node.awaits_verdict(flow);
        (rules, !self.conditions.is_empty() && node.awaits_conditions(flow))
    }

    /// Says of a flow what it is that is known who has it open.
    fn decide(&self, node: &mut Node, now: Time, flow: FlowTuple, holders: &[Holder]) {
        node.handle_verdict(now, flow, self.policies.verdict(&flow, holders));
        if !self.conditions.is_empty() {
            node.handle_conditions_met(now, flow, self.conditions.met(&flow, holders));
        }
    }

    /// Begins to look for who has the flows that are old enough.
    pub(crate) fn look(&mut self, node: &mut Node, now: Time) {
        while let Some(&(due, flow)) = self.due.front() {
            if due > now {
                return;
            }
            self.due.pop_front();
            if !node.has_flow(&flow) {
                continue;
            }
            let looking = match self.looking.take() {
                Some(looking) => Some(looking),
                None => start(self.found.0.clone(), Arc::clone(&self.wake)),
            };
            self.looking = looking.filter(|looking| looking.send(flow).is_ok());
            if self.looking.is_none() {
                // It is treated as if nobody had it open.
                self.decide(node, now, flow, &[]);
            }
        }
    }

    /// Takes in who was found.
    pub(crate) fn take(&mut self, node: &mut Node, now: Time) {
        for (flow, holders) in self.found.1.try_iter().flatten() {
            self.decide(node, now, flow, &holders);
        }
    }
}

/// Starts the thread that looks.
fn start(found: Sender<Found>, wake: Arc<OwnedFd>) -> Option<Sender<FlowTuple>> {
    let (sender, receiver) = channel();
    let started = SockDiag::open().map_err(std::io::Error::other).and_then(|diag| {
        std::thread::Builder::new().name("holders".to_owned()).spawn(move || search(diag, &receiver, &found, &wake))
    });
    match started {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "cannot find out which program has which connection");
            None
        }
    }
}

fn search(mut diag: SockDiag, asked: &Receiver<FlowTuple>, found: &Sender<Found>, wake: &OwnedFd) {
    let mut looks: HashMap<FlowTuple, u32> = HashMap::new();
    loop {
        if looks.is_empty() {
            // The end of the daemon, or a flow.
            let Ok(flow) = asked.recv() else { return };
            looks.insert(flow, 0);
        }
        looks.extend(asked.try_iter().map(|flow| (flow, 0)));
        let began = Instant::now();
        let sockets = inodes(&mut diag, &looks);
        if sockets.is_none() {
            // It may have lost count of what was asked and answered.
            diag = SockDiag::open().unwrap_or(diag);
        }
        let open = sockets.iter().flat_map(HashMap::values).copied().filter(|inode| *inode != 0);
        let answers = settled(&mut looks, sockets.as_ref(), &process::holders(&open.collect::<HashSet<u32>>()));
        if !answers.is_empty() {
            if found.send(answers).is_err() {
                return;
            }
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        std::thread::sleep((began.elapsed() * (SHARE - 1)).max(PAUSE));
    }
}

/// Takes out the flows that need not be looked at again, with who has them open. `sockets`: the inodes of those that
/// are there; `None`: they could not be asked for, which says of no flow that it is gone.
fn settled(
    looks: &mut HashMap<FlowTuple, u32>,
    sockets: Option<&HashMap<FlowTuple, u32>>,
    holders: &HashMap<u32, Vec<Holder>>,
) -> Found {
    let mut answers = Found::new();
    looks.retain(|flow, looks| {
        *looks += 1;
        let inode = sockets.and_then(|sockets| sockets.get(flow));
        let holders = inode.and_then(|inode| holders.get(inode));
        let gone = sockets.is_some() && inode.is_none();
        let over = holders.is_some() || gone || *looks >= LOOKS;
        if over {
            // One that is gone has nobody.
            answers.push((*flow, holders.cloned().unwrap_or_default()));
        }
        !over
    });
    answers
}

/// The inode of each socket that is there; 0 of one that no process has open. `None`: the kernel does not say.
fn inodes(diag: &mut SockDiag, flows: &HashMap<FlowTuple, u32>) -> Option<HashMap<FlowTuple, u32>> {
    let listed = if flows.len() <= SINGLY {
        flows.keys().filter_map(|flow| diag.find(flow).transpose()).collect::<Result<Vec<_>, _>>()
    } else {
        diag.tcp(&MOVABLE).and_then(|tcp| Ok(tcp.into_iter().chain(diag.udp()?).collect()))
    };
    let inodes = listed.and_then(|listed| {
        let mut inodes: HashMap<FlowTuple, u32> =
            listed.into_iter().map(|socket| (socket.tuple, socket.inode)).collect();
        for flow in flows.keys().filter(|flow| flow.transport == Transport::Udp) {
            // It may be one of a socket that is not connected.
            if let (false, Some(socket)) = (inodes.contains_key(flow), diag.find_unconnected(flow)?) {
                inodes.insert(*flow, socket.inode);
            }
        }
        Ok(inodes)
    });
    inodes.inspect_err(|error| tracing::warn!(%error, "cannot look for the sockets of connections")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_looked_at_again_where_the_kernel_did_not_answer() {
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: "192.0.2.1:5000".parse().expect("endpoint"),
            remote: "198.51.100.1:80".parse().expect("endpoint"),
        };
        let nobody = HashMap::new();
        let mut looks = HashMap::from([(flow, 0)]);
        assert_eq!(settled(&mut looks, None, &nobody), [], "that says nothing of the flow");
        assert_eq!(looks, HashMap::from([(flow, 1)]));
        // Not accepted yet.
        assert_eq!(settled(&mut looks, Some(&HashMap::from([(flow, 0)])), &nobody), []);
        // Gone.
        assert_eq!(settled(&mut looks, Some(&HashMap::new()), &nobody), [(flow, Vec::new())]);
        assert!(looks.is_empty());
        // It does not wait for ever.
        let mut looks = HashMap::from([(flow, 0)]);
        let answers: Vec<_> = (0..LOOKS).map(|_| settled(&mut looks, None, &nobody)).collect();
        assert_eq!(answers.concat(), [(flow, Vec::new())]);
        assert_eq!(answers.iter().position(|found| !found.is_empty()), Some(LOOKS as usize - 1));
    }
}
