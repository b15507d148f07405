//! Whole processes that change hosts: what is asked of this one, and what is told of it (decision 0020).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Code, Failure, MovedProcess, ProcessScope, Reply};
use whimbrel_kernel::process_tree::{self, ProcessTree, Scope};
use whimbrel_protocol::process::{Departure, Place};
use whimbrel_protocol::{Gift, LoadStanding, MoveEvent, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::Family;

use super::super::process::executor::News;
use super::{INVITE, Moves, SNAPSHOT_USUAL, STOPPING};
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::api::{Answer, views};
use crate::clock;
use crate::effects::Effects;
use crate::events::told;
use crate::host::inventory::flows::{is_global, is_movable};
use crate::host::refusal::sentence;

/// How long the acceptor may take to say that a process goes on there, once it is its.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// How long what a process has of an anchor's may take to be made known to that, so that it can move.
const CLAIMED_WITHIN: Duration = Duration::from_secs(3);

/// A process that somebody wants to have moved.
#[derive(Debug)]
pub(crate) struct ProcessJob {
    client: ClientId,
    whole: ProcessTree,
    going: Going,
    wanted: Wanted,
    to: PublicKey,
    /// Its connections are its own from then on: what is left of them to be made known is not waited for longer.
    claimed_by: Option<Time>,
    /// Of the load that was sent.
    number: Option<u64>,
    begun: bool,
    /// Why it stays.
    why: Option<String>,
    /// It goes on there: how long it stood still, and its number there.
    running: Option<(Duration, String)>,
    /// What the acceptor says is waited for until then.
    until: Option<Time>,
}

/// Somebody wants to have a process moved, which is looked at.
#[derive(Debug)]
pub(super) struct Asked {
    client: ClientId,
    wanted: Wanted,
    to: PublicKey,
    /// When the process that was named was started: its number may be another's by the time it is looked at.
    started: Option<u64>,
}

/// What of a process is asked to go.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    pid: u32,
    scope: Scope,
    /// With which address, where that was said.
    address: Option<IpAddr>,
}

/// What of a process goes to another host, beside itself.
#[derive(Clone, Debug, Default)]
struct Going {
    /// Its sockets without another end, as they are met at its address.
    met: Vec<FlowTuple>,
    /// Where it waits, and nobody comes to it there.
    deaf: Vec<SocketAddr>,
}

impl Moves {
    /// [`Request::MoveProcess`](whimbrel_ipc::Request::MoveProcess).
    pub(crate) fn move_process(
        &mut self,
        with: &mut With<'_, Effects>,
        id: ClientId,
        pid: u32,
        scope: ProcessScope,
        to: &str,
        address: Option<IpAddr>,
    ) -> Answer {
        let scope = match scope {
            ProcessScope::Alone => Scope::Alone,
            ProcessScope::Tree => Scope::Tree,
            ProcessScope::Cgroup => Scope::Cgroup,
        };
        let to = with.desk.host_named(to)?;
        let itself = || format!("process {pid}");
        if to == with.desk.node.public_key() {
            return Err(Failure::new("it is on this host already").on(itself()).code(Code::NotSupported));
        }
        if self.stopping {
            return Err(Failure::new(STOPPING).on(itself()));
        }
        let is_leaving = self.processes.values().any(|job| job.whole.pids.contains(&pid));
        if is_leaving || self.asked.contains_key(&pid) {
            return Err(Failure::new("it is being moved already").on(itself()).code(Code::NotSupported));
        }
        let started = process_tree::started(pid);
        with.own.processes.look(pid, scope);
        with.desk.server.answer_later(id);
        self.asked.insert(pid, Asked { client: id, wanted: Wanted { pid, scope, address }, to, started });
        Ok(None)
    }

    /// A process that is wanted to go has been looked at.
    fn handle_seen(
        &mut self,
        with: &mut With<'_, Effects>,
        pid: u32,
        seen: Result<Box<ProcessTree>, process_tree::Unfit>,
    ) {
        let Some(Asked { client, wanted, to, started }) = self.asked.remove(&pid) else { return };
        let is_it = |whole: &ProcessTree| {
            let mut all = whole.pids.iter().zip(&whole.started);
            all.any(|(of, since)| *of == pid && *since == started)
        };
        let begun = seen
            .and_then(|whole| if is_it(&whole) { Ok(whole) } else { Err(process_tree::Unfit::Gone(pid)) })
            .map_err(|unfit| not_seen(pid, &unfit))
            .and_then(|whole| self.begin_process(with, client, *whole, wanted, to));
        if let Err(failure) = begun {
            with.desk.server.reply(client, &Reply::Error(failure));
        }
    }

    fn begin_process(
        &mut self,
        with: &mut With<'_, Effects>,
        client: ClientId,
        whole: ProcessTree,
        wanted: Wanted,
        to: PublicKey,
    ) -> Result<(), Failure> {
        let going = fit_to_go(with.desk, &whole, wanted, &to)?;
        let root = whole.root;
        let itself = format!("process {}", wanted.pid);
        if self.stopping {
            return Err(Failure::new(STOPPING).on(itself));
        }
        if with.own.processes.is_leaving(root) {
            return Err(Failure::new("it is being moved already").on(itself).code(Code::NotSupported));
        }
        with.own.processes.pack(&whole).map_err(|why| Failure::new(why).on(itself))?;
        let job = ProcessJob {
            client,
            whole,
            going,
            wanted,
            to,
            claimed_by: None,
            number: None,
            begun: false,
            why: None,
            running: None,
            until: None,
        };
        self.processes.insert(root, job);
        Ok(())
    }

    /// What threads have done of processes on their way. Gives the addresses of those that have come, and which hosts
    /// may lend ports of them.
    pub(crate) fn handle_processes(
        &mut self,
        with: &mut With<'_, Effects>,
        now: Time,
    ) -> Vec<(IpAddr, Vec<PublicKey>)> {
        let mut settled = Vec::new();
        let (processes, mut around) = with.own.around_wholes(&mut with.desk.host);
        let finished = processes.handle(&mut around, now);
        // First why, then that it is so.
        for news in with.own.processes.take_news() {
            match news {
                News::Seen { pid, seen } => self.handle_seen(with, pid, seen),
                News::Packed { root, load } => self.send_ahead(with, now, root, load),
                News::Quiet { root, result } => match result {
                    Ok(()) => self.quiet.push(root),
                    Err(why) => self.call_process_back(with, now, root, Some(why)),
                },
                News::Stays { root, why } => self.call_process_back(with, now, root, Some(why)),
                News::Cancel { name } => with.desk.node.cancel_move(now, name),
                News::Prepared { name, refused } => match refused {
                    None => with.desk.node.answer_load(now, name, LoadStanding::Ready, ""),
                    Some(why) => with.desk.node.answer_load(now, name, LoadStanding::Refused, &why),
                },
                News::Failed { name, why } => with.desk.node.answer_load(now, name, LoadStanding::Refused, &why),
                News::Settles { address, owners } => settled.push((address, owners)),
                News::Running { name, program, pid } => {
                    with.desk.node.answer_load(now, name, LoadStanding::Running, &pid.to_string());
                    let from = with.desk.peer_name(&PublicKey::from(name.donor));
                    with.desk.tell(told!(
                        ProcessTaken { pid, from: from.key },
                        "{program} has come from {from} and goes on here as process {pid}"
                    ));
                }
                News::Lost { name, why } => {
                    let from = with.desk.peer_name(&PublicKey::from(name.donor));
                    with.desk.tell(told!(ProcessLost { from: from.key }, "a process that was {from}'s is lost: {why}"));
                }
            }
        }
        for (id, answer) in finished {
            with.desk.node.handle_done(now, id, answer);
        }
        let late = |job: &ProcessJob| job.until.is_some_and(|until| until <= now);
        let late: Vec<u32> = self.processes.iter().filter(|(_, job)| late(job)).map(|(root, _)| *root).collect();
        late.into_iter().for_each(|root| self.answer_for_process(with, root));
        settled
    }

    fn send_ahead(&mut self, with: &mut With<'_, Effects>, now: Time, root: u32, load: Result<Vec<u8>, String>) {
        let Some(job) = self.processes.get_mut(&root) else { return };
        let to = job.to;
        let sent = load.and_then(|load| {
            let number = with.desk.node.send_load(now, to, load);
            number.ok_or_else(|| "this host takes no part in moves, or may not give that host anything".to_owned())
        });
        match sent {
            Ok(number) => job.number = Some(number),
            Err(why) => {
                job.why = Some(why);
                self.answer_for_process(with, root);
            }
        }
    }

    /// The acceptor says how a process stands there.
    pub(crate) fn on_load_answered(
        &mut self,
        with: &mut With<'_, Effects>,
        from: PublicKey,
        number: u64,
        standing: LoadStanding,
        said: String,
    ) {
        let mut jobs = self.processes.iter_mut();
        let found = jobs.find(|(_, job)| job.number == Some(number) && job.to == from);
        let Some((root, job)) = found else { return };
        let root = *root;
        match standing {
            LoadStanding::Ready if !job.begun => {
                job.begun = true;
                self.quiet_down(with, root);
            }
            LoadStanding::Refused if !job.begun => {
                job.why = Some(format!("the other host does not take it: {said}"));
                self.answer_for_process(with, root);
            }
            LoadStanding::Refused => {
                job.why.get_or_insert_with(|| format!("the other host could not rebuild it: {said}"));
            }
            LoadStanding::Running => {
                let still = with.own.processes.still_for(root).unwrap_or_default();
                job.running = Some((still, said));
                if with.own.processes.departure(root).is_none_or(Departure::is_told) {
                    self.answer_for_process(with, root);
                }
            }
            _ => {}
        }
    }

    /// All is there that the process needs. Before its connections can be named no new ones are to come.
    fn quiet_down(&mut self, with: &mut With<'_, Effects>, root: u32) {
        let now = clock::now();
        let Some(job) = self.processes.get_mut(&root) else { return };
        job.claimed_by.get_or_insert(now + CLAIMED_WITHIN);
        if job.going.met.iter().any(FlowTuple::listens) {
            self.let_settle(with, root);
        } else {
            self.quiet.push(root);
        }
    }

    /// Waits until what a process has is its own, and the same for a moment.
    fn let_settle(&mut self, with: &mut With<'_, Effects>, root: u32) {
        let now = clock::now();
        let Some(job) = self.processes.get(&root) else { return };
        let listening: Vec<FlowTuple> = job.going.met.iter().copied().filter(FlowTuple::listens).collect();
        if let Err(why) =
            with.own.processes.quiet_process(&mut with.own.relocation, &mut with.desk.host, now, root, &listening)
        {
            self.call_process_back(with, now, root, Some(why));
        }
    }

    /// Whether there are processes whose connections can be named. All of these are to be known then.
    pub(crate) fn any_is_quiet(&self) -> bool {
        !self.quiet.is_empty()
    }

    /// Has the connections follow of processes that have no new ones.
    pub(crate) fn go_on_with_quiet(&mut self, with: &mut With<'_, Effects>) {
        for root in std::mem::take(&mut self.quiet) {
            self.name_connections(with, root);
        }
    }

    /// What a process has now goes with it.
    fn name_connections(&mut self, with: &mut With<'_, Effects>, root: u32) {
        let now = clock::now();
        let Some(job) = self.processes.get(&root) else { return };
        let Some(number) = job.number else { return };
        let (wanted, to, before, claimed_by) = (job.wanted, job.to, job.whole.clone(), job.claimed_by);
        let whole = process_tree::look(wanted.pid, wanted.scope).map_err(|unfit| not_seen(wanted.pid, &unfit));
        let named = match whole.and_then(|whole| fit_to_go(with.desk, &whole, wanted, &to).map(|going| (whole, going)))
        {
            Ok((whole, _)) if (&whole.pids, &whole.started) != (&before.pids, &before.started) => {
                Err("it has started or ended processes meanwhile; try again".to_owned())
            }
            Ok((whole, _)) if whole.namespaces != before.namespaces => {
                Err("it has gone into other namespaces meanwhile".to_owned())
            }
            other => other.map_err(|failure| failure.what),
        };
        let (whole, going) = match named {
            Ok(named) => named,
            Err(why) => return self.call_process_back(with, now, root, Some(why)),
        };
        let all = whole.flows.iter().chain(&going.met).copied();
        let unclaimed: Vec<FlowTuple> = all.filter(|flow| self.is_unclaimed(with.desk, flow)).collect();
        if !unclaimed.is_empty() && claimed_by.is_some_and(|until| now < until) {
            for flow in unclaimed {
                let hidden = !flow.is_unconnected() && with.desk.host.is_hidden(&flow);
                with.desk.node.claim_flow(now, flow, hidden);
            }
            return self.let_settle(with, root);
        }
        if let Some(end) = unclaimed.iter().find(|flow| flow.is_unconnected()) {
            let why = format!("it waits at {}, which its anchor does not let go on with it", end.local);
            return self.call_process_back(with, now, root, Some(why));
        }
        if let Some(job) = self.processes.get_mut(&root) {
            (job.whole, job.going) = (whole, going);
        }
        self.give_connections(with, root, number);
    }

    /// Whether a connection is of an anchor's end, and no flow of the anchor's yet; or a socket without another end,
    /// and its endpoint not yet one that can go on with it.
    fn is_unclaimed(&self, desk: &Desk, flow: &FlowTuple) -> bool {
        let known = if flow.is_unconnected() { self.has_endpoint(desk, flow) } else { desk.node.has_flow(flow) };
        !known && desk.node.lessor_of(flow.local).is_some()
    }

    /// Its connections, and its sockets without another end, follow what went ahead.
    fn give_connections(&mut self, with: &mut With<'_, Effects>, root: u32, number: u64) {
        let now = clock::now();
        let Some(job) = self.processes.get(&root) else { return };
        let (acceptor, memory, whole) = (job.to, job.whole.memory, job.whole.clone());
        let flows: Vec<FlowTuple> = job.whole.flows.iter().chain(&job.going.met).copied().collect();
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        self.call_prepared_off(with.desk, now, &flows);
        let mut given = with.own.processes.begin_leaving(&mut with.desk.host, now, &whole, flows.clone());
        let mut first = None;
        for (index, flow) in (0..count).zip(&flows) {
            if given.is_err() {
                break;
            }
            let (name, holder_at) = with.desk.node.holder_of(flow);
            // What has changed since the images were made that are there.
            let size = if index == 0 { u32::try_from(memory / 4).unwrap_or(u32::MAX).max(SNAPSHOT_USUAL) } else { 1 };
            let gift = Gift {
                tuple: *flow,
                family: if flow.local.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 },
                size,
                options: Vec::new(),
                receiver: Place { load: number, index, count }.receiver(),
                flow: name,
                holder_at,
                acceptor,
                acceptor_at: None,
                after: first,
            };
            given = match with.desk.node.give_socket(now, gift) {
                Ok(name) => {
                    first.get_or_insert(name.number);
                    with.own.processes.give(root, name, *flow);
                    Ok(())
                }
                Err(why) => Err(format!("{} -> {}: {why}", flow.local, flow.remote)),
            };
        }
        if let Err(why) = given {
            self.call_process_back(with, now, root, Some(why));
        }
    }

    /// No process is to go, as this daemon stops.
    pub(crate) fn call_processes_back(&mut self, with: &mut With<'_, Effects>, now: Time) {
        let roots: Vec<u32> = self.processes.keys().copied().collect();
        roots.into_iter().for_each(|root| self.call_process_back(with, now, root, Some(STOPPING.to_owned())));
    }

    /// A process is not to go: what is under way of its connections is called back.
    fn call_process_back(&mut self, with: &mut With<'_, Effects>, now: Time, root: u32, why: Option<String>) {
        let Some(job) = self.processes.get_mut(&root) else { return };
        job.why = job.why.take().or(why);
        let (processes, mut around) = with.own.around_wholes(&mut with.desk.host);
        processes.call_leaving_back(&mut around, now, root);
        if with.own.processes.departure(root).is_none_or(|of| of.is_told() && !of.is_given()) {
            self.answer_for_process(with, root);
        }
    }

    /// What became of a connection of a process. Tells whether it is of one.
    pub(crate) fn on_move_of_process(&mut self, with: &mut With<'_, Effects>, event: &MoveEvent) -> bool {
        let now = clock::now();
        let (processes, mut around) = with.own.around_wholes(&mut with.desk.host);
        let outcome = processes.note_outcome_of_leaving(&mut around, now, event);
        let Some((root, flow, stays)) = outcome else { return false };
        let Some(job) = self.processes.get_mut(&root) else { return true };
        if let (true, MoveEvent::Kept { why, .. }) = (stays, event) {
            job.why.get_or_insert_with(|| format!("{} -> {}: {}", flow.local, flow.remote, sentence(*why)));
        }
        let Some(departure) = with.own.processes.departure(root).filter(|of| of.is_told()) else { return true };
        if departure.is_given() && job.running.is_none() {
            job.until = Some(now + TOLD_WITHIN);
        } else {
            self.answer_for_process(with, root);
        }
        true
    }

    /// All is decided, or nothing is to be waited for any more.
    fn answer_for_process(&mut self, with: &mut With<'_, Effects>, root: u32) {
        let Some(job) = self.processes.remove(&root) else { return };
        let departure = with.own.processes.departure(root);
        let decided = departure.is_some_and(Departure::is_given);
        let gone = departure.map_or(0, Departure::gone);
        let lost = departure.map(|of| of.lost().to_vec()).unwrap_or_default();
        with.own.processes.end_leaving(&mut with.own.relocation, &mut with.desk.host, clock::now(), root);
        let ProcessJob { client, whole, going, to, why, running, .. } = job;
        let to = with.desk.peer_name(&to);
        let name = whole.name;
        let reply = if decided {
            let (still, there) = running.map_or((None, None), |(still, there)| (Some(still), there.parse().ok()));
            let moved = MovedProcess {
                pid: root,
                name: name.clone(),
                to: to.clone(),
                connections: gone,
                met_at: going.met.iter().filter(|flow| !lost.contains(flow)).map(|flow| flow.local).collect(),
                lost: lost.into_iter().map(views::flow).collect(),
                still_ms: still.and_then(|still| u64::try_from(still.as_millis()).ok()),
                pid_there: there,
                deaf: going.deaf,
            };
            with.desk.tell(told!(ProcessGiven { pid: root, to: to.key }, "{name} (process {root}) is with {to} now"));
            Reply::MovedProcess(Box::new(moved))
        } else {
            let why = why.unwrap_or_else(|| "the move was called off".to_owned());
            with.desk.tell(told!(ProcessKept { pid: root }, "{name} (process {root}) stays here: {why}"));
            Reply::Error(Failure::new(format!("it stays here: {why}")).on(format!("process {root}")))
        };
        with.desk.server.reply(client, &reply);
    }
}

/// With which address a process goes: that which is `said`, that of its connections, or the one at which it can be
/// met. `None`: it needs none.
fn address_of(desk: &Desk, whole: &ProcessTree, said: Option<IpAddr>) -> Result<Option<IpAddr>, String> {
    if said.is_some() {
        return Ok(said);
    }
    if let Some(first) = whole.flows.first() {
        return Ok(Some(first.local.ip()));
    }
    let (bound, all) = whole.bound_to();
    match bound[..] {
        [address] => return Ok(Some(address)),
        [] => {}
        [one, other, ..] => {
            return Err(format!("it waits at {one} and at {other}, and there it can have but one address"));
        }
    }
    let here = reached_at(desk, whole.root);
    // One that has all addresses of IPv6 has those of IPv4 as well, usually.
    let fits = |address: &IpAddr| all[usize::from(address.is_ipv6())] || all[1];
    let mut fit: Vec<IpAddr> = here.into_iter().filter(fits).collect();
    fit.sort_unstable();
    match fit[..] {
        [] => Ok(None),
        [address] => Ok(Some(address)),
        [one, other, ..] => Err(format!(
            "it waits at all addresses of this host, and there it can have but one: say which (`--address {one}`, `--address {other}`)"
        )),
    }
}

/// The addresses that sockets of a process may be reached at.
fn reached_at(desk: &Desk, root: u32) -> Vec<IpAddr> {
    match desk.host.address_of_namespace(root) {
        Some(address) => vec![address],
        None => desk.own_addresses().into_iter().filter(|address| is_global(*address)).collect(),
    }
}

/// Why a process stays. What is said of the process itself need not name it once more.
fn refused(pid: u32, sentence: &str) -> Failure {
    let sentence = sentence
        .strip_prefix(&format!("process {pid} "))
        .map_or_else(|| sentence.to_owned(), |rest| format!("it {rest}"));
    Failure::new(sentence).on(format!("process {pid}")).code(Code::NotSupported)
}

/// Why it cannot be looked at.
fn not_seen(pid: u32, unfit: &process_tree::Unfit) -> Failure {
    match unfit {
        process_tree::Unfit::Gone(_) => {
            Failure::new("there is no such process").on(format!("process {pid}")).code(Code::Unknown)
        }
        process_tree::Unfit::Closed(_) => refused(pid, &unfit.to_string()).code(Code::Denied),
        _ => refused(pid, &unfit.to_string()),
    }
}

/// Whether a process can go, and what goes with it.
fn fit_to_go(desk: &mut Desk, whole: &ProcessTree, wanted: Wanted, to: &PublicKey) -> Result<Going, Failure> {
    let refused = |sentence: String| refused(wanted.pid, &sentence);
    let Some(address) = address_of(desk, whole, wanted.address).map_err(refused)? else {
        return Err(refused(
            "it has no connection and waits for none, so there is nothing that would have to go on with it: start it there"
                .to_owned(),
        ));
    };
    let own = desk.own_addresses();
    let reached = reached_at(desk, whole.root);
    if wanted.address.is_some_and(|said| !reached.contains(&said)) {
        return Err(refused(format!("{address} is no address that it is reached at here")));
    }
    for flow in &whole.flows {
        if !is_movable(flow, &|address| own.contains(&address)) {
            return Err(refused(format!(
                "its connection {} -> {} is with this host itself, which stays",
                flow.local, flow.remote
            )));
        }
        if flow.local.ip() != address {
            return Err(refused(format!(
                "it has connections of {address} and of {}, and there it can have but one address",
                flow.local.ip()
            )));
        }
    }
    let (met, mut deaf) = whole.met_at(address).map_err(|unfit| refused(unfit.to_string()))?;
    deaf.extend(whole.left_at(address, &reached));
    if whole.flows.is_empty() && met.is_empty() {
        return Err(refused(format!("nobody reaches it at {address}, so there is nothing to go on with it")));
    }
    for flow in whole.flows.iter().chain(&met) {
        if !desk.node.may_give(clock::now(), to, flow) {
            return Err(refused(format!("that host does not belong to this host's community: {INVITE}")));
        }
    }
    let first = whole.flows.first().or(met.first()).copied();
    if !first.is_some_and(|first| desk.host.is_in_place(whole.root, &first)) {
        return Err(refused("it is in a network namespace that is not this host's".to_owned()));
    }
    Ok(Going { met, deaf })
}
