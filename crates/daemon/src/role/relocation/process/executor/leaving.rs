//! At the donor.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use whimbrel_handshake::PublicKey;
use whimbrel_kernel::duplicated::Halted;
use whimbrel_kernel::process_tree::{self, ProcessTree, Seen};
use whimbrel_protocol::process::{Departure, DepartureStep, Outcome};
use whimbrel_protocol::{Found, MoveEvent, MoveName, MoveOp, OpDone, OpId, PeerId, SavedDonation, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Answer, Around, News, Processes, Report};
use crate::host::Host;
use crate::role::relocation::executor::{Known, Relocation, URGENT};
use crate::role::relocation::process::helper::Criu;
use crate::role::relocation::process::load::{Manifest, archive, pack, write_queues};
use crate::role::relocation::process::{BEFORE, IMAGES, criu, helper, make, remove};

/// How long CRIU may take to be done with a process after the daemon has died that started it.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a process may take to stand still. To come so far has taken all of its connections and its memory.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
/// How long new connections may wait for a process to accept those that came before.
const QUIET_WITHIN: Duration = Duration::from_secs(2);
/// What a restarted daemon has to know.
const STATE: &str = "state.json";
/// Is there where a process is another host's.
const GONE: &str = "gone";

/// A process that is to go.
#[derive(Debug)]
pub(crate) struct Leaving {
    pids: Vec<u32>,
    /// These as they were when it began: no other is woken or ended for them.
    seen: Vec<Seen>,
    /// The number of the first in its PID namespace.
    inner: u32,
    /// As it was seen last. None: a daemon before this one has begun, and it does not go any more.
    whole: Option<ProcessTree>,
    /// Where new connections wait already.
    quiet: Vec<FlowTuple>,
    directory: PathBuf,
    criu: Option<Criu>,
    /// Its memory was written down once while it ran, so that what has changed since is enough.
    before: bool,
    stopped: Option<Instant>,
    /// How far its connections are; it has none before they are to be given.
    pub(super) departure: Departure,
    /// Who has it by now.
    to: Option<PeerId>,
}

/// What goes ahead of a process, and how it was made.
#[derive(Debug)]
pub(crate) struct Packed {
    load: Vec<u8>,
    criu: Criu,
    before: bool,
}

/// Of a [`Leaving`], for the next daemon.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    /// Each with what tells it from a later one of its number.
    pids: Vec<(u32, Option<u64>)>,
    inner: u32,
    flows: Vec<(u8, std::net::SocketAddr, std::net::SocketAddr)>,
    /// CRIU cuts its connections off.
    #[serde(default)]
    locks: bool,
}

impl State {
    /// Which are there still, and are not others by now. `started` tells what a process has now of what tells it from
    /// others.
    fn left(&self, started: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
        let is_there = |(pid, then): &&(u32, Option<u64>)| then.is_some() && started(*pid) == *then;
        self.pids.iter().filter(is_there).map(|(pid, _)| *pid).collect()
    }
}

impl Leaving {
    /// One that nothing has been done with yet.
    fn new(pids: Vec<u32>, inner: u32, departure: Departure, directory: PathBuf) -> Self {
        Self {
            seen: pids.iter().copied().map(Seen::now).collect(),
            pids,
            inner,
            whole: None,
            quiet: Vec::new(),
            directory,
            criu: None,
            before: false,
            stopped: None,
            departure,
            to: None,
        }
    }

    fn save(&self) -> std::io::Result<()> {
        let flow = |flow: &FlowTuple| (flow.transport.protocol(), flow.local, flow.remote);
        let state = State {
            pids: self.seen.iter().map(|seen| (seen.pid(), seen.started())).collect(),
            inner: self.inner,
            flows: self.departure.parts().iter().map(flow).collect(),
            locks: self.criu.as_ref().is_some_and(Criu::leaves_lock),
        };
        fs::write(self.directory.join(STATE), serde_json::to_vec(&state)?)
    }
}

impl Processes {
    /// Whether processes stand still, or are about to, since they go elsewhere.
    pub(crate) fn is_leaving_any(&self) -> bool {
        let of = |departure: &Departure| !departure.is_decided() && !departure.parts().is_empty();
        self.leaving.values().any(|leaving| of(&leaving.departure))
    }

    /// Whether a process is on its way already.
    pub(crate) fn is_leaving(&self, root: u32) -> bool {
        self.leaving.contains_key(&root)
    }

    /// Begins to write a process down that runs, and what an acceptor has to know of it.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn pack(&mut self, whole: &ProcessTree) -> Result<(), String> {
        let root = whole.root;
        let directory = self.directory.join(format!("out-{root}"));
        make(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let inner = whole.inner.first().copied().unwrap_or(root);
        let leaving = Leaving::new(whole.pids.clone(), inner, Departure::new(Vec::new()), directory.clone());
        self.leaving.insert(root, Leaving { whole: Some(whole.clone()), ..leaving });
        let subject = whole.clone();
        let mut manifest = Manifest {
            criu: String::new(),
            architecture: std::env::consts::ARCH.to_owned(),
            name: whole.name.clone(),
            pids: whole.inner.clone(),
            job: !whole.leads,
            talks: whole.talks,
            files: whole.files.clone(),
            before: false,
        };
        let work = move || {
            let packed = Criu::find().and_then(|criu| {
                criu.may_dump()?;
                let before = criu.dump_before(&subject, &directory);
                if let Err(why) = &before {
                    // It only takes longer at rest.
                    tracing::info!(%why, "the memory of process {root} is not written down while it runs");
                    make(&directory).map_err(|error| error.to_string())?;
                }
                let before = before.is_ok();
                (manifest.criu, manifest.before) = (criu.version.clone(), before);
                pack(&manifest, &directory.join(BEFORE)).map(|load| Packed { load, criu, before })
            });
            Report::Packed(root, packed)
        };
        self.work.begin(work, |why| Report::Packed(root, Err(why)));
        Ok(())
    }

    /// How long a process has stood still, if it does or did.
    pub(crate) fn still_for(&self, root: u32) -> Option<Duration> {
        self.leaving.get(&root).and_then(|leaving| leaving.stopped).map(|stopped| stopped.elapsed())
    }

    pub(crate) fn on_packed(&mut self, root: u32, packed: Result<Packed, String>) {
        let load = packed.map(|Packed { load, criu, before }| {
            if let Some(leaving) = self.leaving.get_mut(&root) {
                (leaving.criu, leaving.before) = (Some(criu), before);
            }
            load
        });
        self.news.push(News::Packed { root, load });
    }

    /// Why a process stays, where it does.
    pub(crate) fn note_stays(&mut self, root: u32, why: Option<&String>) {
        if let Some(why) = why {
            self.tell(News::Stays { root, why: why.clone() });
        }
    }

    /// Nothing of it is under way any more.
    fn forget_leaving(&mut self, root: u32) {
        if let Some(leaving) = self.leaving.remove(&root)
            && let Err(error) = remove(&leaving.directory)
        {
            tracing::warn!(%error, "what was written down of process {root} stays");
        }
    }

    /// From now on no new connections come to the sockets of a process that listen, at these ends: they wait until it
    /// is decided where it goes on. News tells when those that have come are all its own ([`News::Quiet`]).
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn quiet_process(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        now: Time,
        root: u32,
        listening: &[FlowTuple],
    ) -> Result<(), String> {
        self.make_ready(host, now).map_err(|error| error.to_string())?;
        let Some(leaving) = self.leaving.get(&root) else { return Err("it was given up".to_owned()) };
        let pids = leaving.pids.clone();
        let fresh: Vec<FlowTuple> = listening.iter().copied().filter(|flow| !leaving.quiet.contains(flow)).collect();
        for flow in fresh {
            relocation.keep_new(host, &flow).map_err(|error| error.to_string())?;
            if let Some(leaving) = self.leaving.get_mut(&root) {
                leaving.quiet.push(flow);
            }
        }
        let ends: Vec<SocketAddr> = listening.iter().map(|flow| flow.local).collect();
        let work = move || {
            let quiet = process_tree::grow_quiet(&pids, &ends, QUIET_WITHIN);
            Report::Quiet(root, quiet.map_err(|unfit| unfit.to_string()))
        };
        self.work.begin(work, |why| Report::Quiet(root, Err(why)));
        Ok(())
    }

    /// All of these of a process, as it was seen, are about to be given.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn begin_leaving(
        &mut self,
        host: &mut Host,
        now: Time,
        whole: &ProcessTree,
        flows: Vec<FlowTuple>,
    ) -> Result<(), String> {
        let leaving = self.leaving.get_mut(&whole.root);
        let Some(leaving) = leaving else { return Err("it was given up".to_owned()) };
        (leaving.departure, leaving.whole) = (Departure::new(flows), Some(whole.clone()));
        leaving.save().map_err(|error| error.to_string())?;
        self.make_ready(host, now).map_err(|error| error.to_string())
    }

    /// Nothing of a process is under way any more. Where it stays, what has waited comes to it.
    pub(crate) fn end_leaving(&mut self, relocation: &mut Relocation, host: &mut Host, now: Time, root: u32) {
        // What the process closed while it grew quiet goes nowhere with it.
        let leaving = self.leaving.get(&root);
        let waits = |leaving: &Leaving, flow: &FlowTuple| {
            !leaving.departure.is_decided() || !leaving.departure.parts().contains(flow)
        };
        let quiet: Vec<FlowTuple> = leaving.map_or_else(Vec::new, |leaving| {
            leaving.quiet.iter().filter(|flow| waits(leaving, flow)).copied().collect()
        });
        quiet.iter().for_each(|flow| relocation.give_aside_back(host, flow));
        self.forget_leaving(root);
        if let Err(error) = self.make_ready(host, now) {
            tracing::warn!(%error, "programs stay attached");
        }
    }

    /// A process is not to go any more.
    pub(crate) fn call_leaving_back(&mut self, around: &mut Around<'_>, now: Time, root: u32) {
        self.with_leaving(around, now, root, Departure::call_back);
    }

    /// What became of a connection: the process that it is of, the connection, and whether the process stays by that.
    pub(crate) fn note_outcome_of_leaving(
        &mut self,
        around: &mut Around<'_>,
        now: Time,
        event: &MoveEvent,
    ) -> Option<(u32, FlowTuple, bool)> {
        let (name, outcome) = match event {
            MoveEvent::Given { name, .. } => (name, Outcome::Given),
            MoveEvent::Kept { name, .. } => (name, Outcome::Kept),
            MoveEvent::Lost { name } => (name, Outcome::Lost),
            _ => return None,
        };
        let all = self.leaving.iter_mut();
        let found = all.filter_map(|(root, leaving)| Some((*root, leaving.departure.handle_outcome(name, outcome)?)));
        let (root, (flow, stays)) = found.into_iter().next()?;
        self.take_leaving_steps(around, now, root);
        Some((root, flow, stays))
    }

    /// Carries out an op of a move, where that is of a process that leaves. Tells whether it is.
    pub(crate) fn carry_out_of_leaving(
        &mut self,
        around: &mut Around<'_>,
        now: Time,
        id: OpId,
        op: &MoveOp,
        peer: &impl Fn(&PublicKey) -> Option<Known>,
    ) -> bool {
        let root = match op {
            MoveOp::Freeze { flow, .. } => {
                let mut all = self.leaving.iter();
                all.find(|(_, leaving)| leaving.departure.takes(flow)).map(|(root, _)| *root)
            }
            MoveOp::Dump { name }
            | MoveOp::Thaw { name }
            | MoveOp::Destroy { name, .. }
            | MoveOp::ForgetDonation { name } => self.left_by(name),
            _ => None,
        };
        let Some(root) = root else { return false };
        match op {
            MoveOp::Freeze { name, flow } => self.with_leaving(around, now, root, |of| of.freeze(id, *name, *flow)),
            MoveOp::Dump { name } => self.with_leaving(around, now, root, |of| of.dump(id, name)),
            MoveOp::Thaw { name } => self.with_leaving(around, now, root, |of| of.thaw(id, name)),
            MoveOp::Destroy { name, forward } => {
                if let Some(leaving) = self.leaving.get_mut(&root) {
                    leaving.to = forward.as_ref().and_then(peer).map(|to| to.peer);
                }
                self.with_leaving(around, now, root, |of| of.destroy(id, name));
            }
            MoveOp::ForgetDonation { name } => {
                let answer = self.forget_given_of_process(around.host, now, root, name);
                self.finish(id, answer);
            }
            _ => {}
        }
        true
    }

    /// Does something with a process that leaves, and what follows from it.
    pub(crate) fn with_leaving(
        &mut self,
        around: &mut Around<'_>,
        now: Time,
        root: u32,
        act: impl FnOnce(&mut Departure),
    ) {
        if let Some(leaving) = self.leaving.get_mut(&root) {
            act(&mut leaving.departure);
            self.take_leaving_steps(around, now, root);
        }
    }

    fn take_leaving_steps(&mut self, around: &mut Around<'_>, now: Time, root: u32) {
        while let Some(leaving) = self.leaving.get_mut(&root)
            && let Some(step) = leaving.departure.poll()
        {
            match step {
                DepartureStep::Answer(id, answer) => self.finish(id, answer),
                DepartureStep::Cancel(name) => self.tell(News::Cancel { name }),
                DepartureStep::Stop => {
                    let stopped = self.stop_process(around.relocation, around.host, root);
                    self.note_stays(root, stopped.as_ref().err());
                    self.with_leaving(around, now, root, |of| of.handle_stopped(stopped));
                }
                DepartureStep::Write => self.write_whole_down(root),
                DepartureStep::Wake => {
                    let woken = self.wake_leaving(around.relocation, around.host, root);
                    self.with_leaving(around, now, root, |of| of.handle_woken(woken));
                }
                DepartureStep::End => {
                    let ended = self.end_leaving_whole(around.host, root);
                    self.with_leaving(around, now, root, |of| of.handle_ended(ended));
                }
                DepartureStep::LetIn(flow) => around.relocation.give_aside_back(around.host, &flow),
                DepartureStep::PartWith(flow) => {
                    let to = leaving.to;
                    around.relocation.forget_new(&flow);
                    around.host.leave_home(&flow);
                    around.host.part_with(now, flow, to);
                }
                DepartureStep::Leave(flow) => {
                    around.host.drop_aside(&flow);
                }
            }
        }
    }

    /// Holds the packets of a process's connections, and has it stand still.
    fn stop_process(&mut self, relocation: &mut Relocation, host: &mut Host, root: u32) -> Result<(), String> {
        let Some(leaving) = self.leaving.get_mut(&root) else { return Err("it was given up".to_owned()) };
        leaving.stopped = Some(Instant::now());
        let (flows, pids) = (leaving.departure.parts().to_vec(), leaving.pids.clone());
        let (quiet, seen) = (leaving.quiet.clone(), leaving.whole.clone());
        let fresh: Vec<FlowTuple> = flows.iter().copied().filter(|flow| !quiet.contains(flow)).collect();
        fresh.iter().for_each(|flow| host.forget_late(flow));
        let stop = || {
            fresh.iter().try_for_each(|flow| host.set_aside(flow)).map_err(|error| error.to_string())?;
            let halted = Halted::stop_all(&pids, STOPS_WITHIN).map_err(|error| error.to_string())?;
            // Now that none of them does anything more.
            let seen = seen.ok_or("it does not go any more")?;
            seen.see_again().map_err(|unfit| unfit.to_string())?;
            if host.any_urgent(&flows) {
                return Err(URGENT.to_owned());
            }
            // Whatever becomes of this daemon, they do not go on with sockets at rest.
            halted.into_iter().for_each(Halted::leave);
            Ok(())
        };
        let stopped: Result<(), String> = stop();
        if stopped.is_err() {
            // Those that waited before are let in with the end of it.
            fresh.iter().for_each(|flow| relocation.give_aside_back(host, flow));
            if let Some(leaving) = self.leaving.get_mut(&root) {
                leaving.stopped = None;
            }
        }
        stopped
    }

    fn write_whole_down(&mut self, root: u32) {
        let Some(leaving) = self.leaving.get_mut(&root) else { return };
        let criu = leaving.criu.clone();
        let (directory, before) = (leaving.directory.clone(), leaving.before);
        let (seen, pids) = (leaving.whole.clone(), leaving.pids.clone());
        let work = move || {
            let (mut images, written) = (Vec::new(), directory.join(IMAGES));
            let dumped = seen.ok_or_else(|| "it does not go any more".to_owned());
            let criu = criu.ok_or_else(|| "there is no CRIU".to_owned());
            let dumped = dumped.and_then(|seen| criu?.dump(&seen, &directory, before));
            let dumped = dumped.and_then(|()| {
                let queues = process_tree::queues_of(&pids).map_err(|unfit| unfit.to_string())?;
                write_queues(&queues, &written).map_err(|error| error.to_string())
            });
            let dumped = dumped.and_then(|()| archive(&written, &mut images));
            Report::Dumped(root, dumped.map(|()| images))
        };
        self.work.begin(work, |why| Report::Dumped(root, Err(why)));
    }

    /// A process goes on here.
    fn wake_leaving(&mut self, relocation: &mut Relocation, host: &mut Host, root: u32) -> Result<(), String> {
        let Some(leaving) = self.leaving.get(&root) else { return Ok(()) };
        let (pids, seen, flows) = (leaving.pids.clone(), leaving.seen.clone(), leaving.departure.parts().to_vec());
        if flows.iter().any(|flow| flow.transport == Transport::Udp)
            && let Err(error) = process_tree::make_room(&pids)
        {
            tracing::warn!(%error, "datagrams that have come for process {root} meanwhile may be lost");
        }
        // First what holds their packets: their own first segments would be held with them.
        flows.iter().for_each(|flow| relocation.give_aside_back(host, flow));
        process_tree::wake(&seen).map_err(|error| error.to_string())
    }

    /// A process is another host's.
    fn end_leaving_whole(&mut self, host: &mut Host, root: u32) -> Result<(), String> {
        let Some(leaving) = self.leaving.get(&root) else { return Ok(()) };
        if let Err(error) = fs::write(leaving.directory.join(GONE), "") {
            tracing::warn!(%error, "that process {root} is another host's is not written down");
        }
        let ended = process_tree::end(&leaving.seen).map_err(|error| error.to_string());
        host.settle_ports();
        ended
    }

    fn forget_given_of_process(&mut self, host: &mut Host, now: Time, root: u32, name: &MoveName) -> Answer {
        host.store.forget_donation(*name);
        if let Some(leaving) = self.leaving.get_mut(&root) {
            leaving.departure.forget(name);
        }
        self.forget_restored(root);
        self.make_ready(host, now)?;
        host.write_store();
        Ok(OpDone::Done)
    }

    /// A process that a daemon before this one has begun to give has come to its end: nobody here waits to hear of it.
    fn forget_restored(&mut self, root: u32) {
        let over = |leaving: &Leaving| leaving.departure.is_restored() && leaving.departure.is_over();
        if self.leaving.get(&root).is_some_and(over) {
            self.forget_leaving(root);
        }
    }

    /// All connections of processes that were leaving are found.
    pub(crate) fn let_undecided_go_on(&mut self, around: &mut Around<'_>, now: Time) {
        let roots: Vec<u32> = self.leaving.keys().copied().collect();
        for root in roots {
            self.with_leaving(around, now, root, Departure::end_restoring);
            self.forget_restored(root);
        }
    }

    /// Finds processes again that were leaving when the daemon before this one died.
    pub(crate) fn adopt_leaving(&mut self) {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for directory in entries.map(|entry| entry.path()) {
            let root = directory.file_name().and_then(|name| name.to_str()?.strip_prefix("out-")?.parse::<u32>().ok());
            let Some(root) = root else { continue };
            let state = fs::read(directory.join(STATE)).ok();
            let state = state.and_then(|text| serde_json::from_slice::<State>(&text).ok());
            let Some(state) = state else {
                let _ = remove(&directory);
                continue;
            };
            let since = Instant::now();
            while state.left(process_tree::started).into_iter().any(process_tree::is_traced)
                && since.elapsed() < PATIENCE
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Some may have been killed meanwhile. The others stand still yet.
            let pids = state.left(process_tree::started);
            if state.locks
                && let Some(network) = pids.first().and_then(|pid| criu::network_of(*pid).ok())
            {
                helper::end_lock(state.inner, network.as_fd());
            }
            if pids.is_empty() {
                let _ = remove(&directory);
                continue;
            }
            if directory.join(GONE).exists() {
                // Whether or not it has ended, it never goes on here.
                let seen: Vec<Seen> = state.pids.iter().map(|(pid, started)| Seen::then(*pid, *started)).collect();
                if let Err(error) = process_tree::end(&seen) {
                    tracing::warn!(%error, "process {root} is another host's, and does not end");
                    continue;
                }
                let _ = remove(&directory);
                continue;
            }
            let flow = |(protocol, local, remote): &(u8, std::net::SocketAddr, std::net::SocketAddr)| {
                let transport = Transport::from_protocol(*protocol)?;
                Some(FlowTuple { transport, local: *local, remote: *remote })
            };
            let departure = Departure::restored(state.flows.iter().filter_map(flow).collect());
            let leaving = Leaving::new(pids, state.inner, departure, directory);
            self.leaving.insert(root, leaving);
        }
    }

    /// What is found of a connection of such a process.
    pub(crate) fn find_given_of_process(&mut self, host: &mut Host, saved: &SavedDonation) -> Option<Found> {
        let mut all = self.leaving.values_mut();
        let leaving = all.find(|leaving| leaving.departure.parts().contains(&saved.tuple))?;
        leaving.departure.restore_move(saved.name, saved.tuple);
        host.tunnel.set_aside(&saved.tuple);
        Some(Found::Frozen)
    }

    /// Connections of processes at rest.
    pub(crate) fn flows_of_leaving(&self) -> impl Iterator<Item = FlowTuple> {
        let undecided = self.leaving.values().filter(|leaving| !leaving.departure.is_decided());
        undecided.flat_map(|leaving| leaving.departure.parts().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_processes_that_stand_still_those_are_found_that_are_left() {
        let state = |text: &str| serde_json::from_str::<State>(text).expect("a state");
        // As a daemon before this one may have written it.
        let state = state(r#"{"pids":[[7,70],[8,80],[9,null],[10,100]],"inner":7,"apart":false,"flows":[]}"#);
        assert!(!state.locks);
        // The first was killed, and the number of the last is another's by now.
        let started = |pid: u32| (pid != 7).then_some(if pid == 10 { 101 } else { 10 * u64::from(pid) });
        assert_eq!(state.left(started), [8]);
    }
}
