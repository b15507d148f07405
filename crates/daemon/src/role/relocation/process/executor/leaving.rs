//! At the donor.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use whimbrel_datapath::{HelpedFlow, HelpedPhase};
use whimbrel_kernel::borrowed::Halted;
use whimbrel_kernel::whole::{self, Seen, Whole};
use whimbrel_protocol::{Found, MoveName, OpDone, OpId, PeerId, Refusal, SavedDonation, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Answer, News, Report, Wholes, failed};
use crate::host::Host;
use crate::role::anchor::executor::lender::Lender;
use crate::role::relocation::executor::{Relocation, URGENT};
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
    whole: Option<Whole>,
    /// Its connections and sockets without another end, that which decides first; none before they are to be given.
    flows: Vec<FlowTuple>,
    /// Where new connections wait already.
    quiet: Vec<FlowTuple>,
    directory: PathBuf,
    criu: Option<Criu>,
    /// Its memory was written down once while it ran, so that what has changed since is enough.
    before: bool,
    /// Ops that wait until all connections have come as far.
    freezing: Vec<OpId>,
    dumping: Vec<OpId>,
    thawing: Vec<OpId>,
    dumped: bool,
    stopped: Option<Instant>,
    fate: Option<Fate>,
    /// It does not go any more: what is still asked of it for that fails.
    doomed: bool,
}

/// What goes ahead of a process, and how it was made.
#[derive(Debug)]
pub(crate) struct Packed {
    load: Vec<u8>,
    criu: Criu,
    before: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Gone,
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
    /// Which are there still, and are not others by now. `started` tells what a process has now of what tells it from others.
    fn left(&self, started: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
        let is_there = |(pid, then): &&(u32, Option<u64>)| then.is_some() && started(*pid) == *then;
        self.pids.iter().filter(is_there).map(|(pid, _)| *pid).collect()
    }
}

impl Leaving {
    /// One that nothing has been done with yet.
    fn new(pids: Vec<u32>, inner: u32, flows: Vec<FlowTuple>, directory: PathBuf) -> Self {
        Self {
            seen: pids.iter().copied().map(Seen::now).collect(),
            pids,
            inner,
            whole: None,
            flows,
            quiet: Vec::new(),
            directory,
            criu: None,
            before: false,
            freezing: Vec::new(),
            dumping: Vec::new(),
            thawing: Vec::new(),
            dumped: false,
            stopped: None,
            fate: None,
            doomed: false,
        }
    }

    fn leads(&self, flow: &FlowTuple) -> bool {
        self.flows.first() == Some(flow)
    }

    fn save(&self) -> std::io::Result<()> {
        let flow = |flow: &FlowTuple| (flow.transport.protocol(), flow.local, flow.remote);
        let state = State {
            pids: self.seen.iter().map(|seen| (seen.pid(), seen.started())).collect(),
            inner: self.inner,
            flows: self.flows.iter().map(flow).collect(),
            locks: self.criu.as_ref().is_some_and(Criu::leaves_lock),
        };
        fs::write(self.directory.join(STATE), serde_json::to_vec(&state)?)
    }
}

impl Wholes {
    pub(crate) fn gives(&self, flow: &FlowTuple) -> bool {
        self.leaving.values().any(|leaving| leaving.flows.contains(flow) && leaving.fate.is_none())
    }

    /// Whether processes stand still, or are about to, since they go elsewhere.
    pub(crate) fn is_leaving_any(&self) -> bool {
        self.leaving.values().any(|leaving| leaving.fate.is_none() && !leaving.flows.is_empty())
    }

    /// Whether a process is on its way already.
    pub(crate) fn is_leaving(&self, root: u32) -> bool {
        self.leaving.contains_key(&root)
    }

    /// Begins to write a process down that runs, and what an acceptor has to know of it.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn pack(&mut self, whole: &Whole) -> Result<(), String> {
        let root = whole.root;
        let directory = self.directory.join(format!("out-{root}"));
        make(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let inner = whole.inner.first().copied().unwrap_or(root);
        let leaving = Leaving::new(whole.pids.clone(), inner, Vec::new(), directory.clone());
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

    pub(crate) fn note_packed(&mut self, root: u32, packed: Result<Packed, String>) {
        let load = packed.map(|Packed { load, criu, before }| {
            if let Some(leaving) = self.leaving.get_mut(&root) {
                (leaving.criu, leaving.before) = (Some(criu), before);
            }
            load
        });
        self.news.push(News::Packed { root, load });
    }

    pub(crate) fn note_dumped(&mut self, root: u32, images: Result<Vec<u8>, String>) {
        let Some(leaving) = self.leaving.get_mut(&root) else { return };
        leaving.dumped = images.is_ok();
        let waiting = std::mem::take(&mut leaving.dumping);
        match images {
            Ok(images) => {
                // The first that asked is that of the connection which decides.
                let mut images = Some(images);
                for id in waiting {
                    let bytes = images.take().unwrap_or_else(|| vec![0]);
                    self.finish(id, Ok(OpDone::Dumped(bytes)));
                }
            }
            Err(why) => {
                leaving.doomed = true;
                self.finish_all(waiting, || Err(failed(Refusal::Unmovable, why.clone())));
                self.news.push(News::Doomed { root, why: Some(why) });
            }
        }
    }

    /// Processes that were found go on whose first connection is in no move: nobody has begun to move it, or it stays. It decides for all, and so nothing else
    /// would tell what becomes of them, whichever others are in the middle of theirs.
    pub(crate) fn let_undecided_go_on(&mut self) {
        let moves = |root: u32, flow: &FlowTuple| self.given.values().any(|of| *of == (root, *flow));
        let decided =
            |(root, leaving): &(&u32, &Leaving)| leaving.flows.first().is_some_and(|first| moves(**root, first));
        let idle: Vec<u32> = self.leaving.iter().filter(|found| !decided(found)).map(|(root, _)| *root).collect();
        for root in idle {
            let Some(leaving) = self.leaving.get_mut(&root) else { continue };
            if let Err(error) = whole::wake(&leaving.seen) {
                tracing::warn!(%error, "process {root} is not woken");
            }
            leaving.fate = Some(Fate::Kept);
            if self.given.values().all(|(of, _)| *of != root) {
                self.forget_leaving(root);
            }
        }
    }

    /// Nothing of it is under way any more.
    fn forget_leaving(&mut self, root: u32) {
        if let Some(leaving) = self.leaving.remove(&root) {
            self.given.retain(|_, (of, _)| *of != root);
            if let Err(error) = remove(&leaving.directory) {
                tracing::warn!(%error, "what was written down of process {root} stays");
            }
        }
    }

    /// From now on no new connections come to the sockets of a process that listen, at these ends: they wait until it is decided where it goes on.
    /// News tells when those that have come are all its own ([`News::Quiet`]).
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
            let quiet = whole::grow_quiet(&pids, &ends, QUIET_WITHIN);
            Report::Quiet(root, quiet.map_err(|unfit| unfit.to_string()))
        };
        self.work.begin(work, |why| Report::Quiet(root, Err(why)));
        Ok(())
    }

    /// What comes for a flow's socket waits.
    fn hold(&mut self, host: &mut Host, flow: &FlowTuple) -> Result<(), String> {
        let rests = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };
        host.tunnel.set_aside(flow);
        host.datapath.set_helped(flow, &rests).map_err(|error| error.to_string())
    }

    /// All of these of a process, as it was seen, are about to be given.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn begin_leaving(
        &mut self,
        host: &mut Host,
        now: Time,
        whole: &Whole,
        flows: Vec<FlowTuple>,
    ) -> Result<(), String> {
        let leaving = self.leaving.get_mut(&whole.root);
        let Some(leaving) = leaving else { return Err("it was given up".to_owned()) };
        (leaving.flows, leaving.whole) = (flows, Some(whole.clone()));
        leaving.save().map_err(|error| error.to_string())?;
        self.make_ready(host, now).map_err(|error| error.to_string())
    }

    /// Nothing of a process is under way any more. Where it stays, what has waited comes to it.
    pub(crate) fn end_leaving(&mut self, relocation: &mut Relocation, host: &mut Host, now: Time, root: u32) {
        // What the process closed while it grew quiet goes nowhere with it.
        let leaving = self.leaving.get(&root);
        let waits = |leaving: &Leaving, flow: &FlowTuple| leaving.fate.is_none() || !leaving.flows.contains(flow);
        let quiet: Vec<FlowTuple> = leaving.map_or_else(Vec::new, |leaving| {
            leaving.quiet.iter().filter(|flow| waits(leaving, flow)).copied().collect()
        });
        quiet.iter().for_each(|flow| self.let_in_again(relocation, host, flow));
        self.forget_leaving(root);
        if let Err(error) = self.make_ready(host, now) {
            tracing::warn!(%error, "programs stay attached");
        }
    }

    /// The process of these moves is not to go any more: what waits is told so.
    pub(crate) fn doom_leaving(&mut self, root: u32) {
        let Some(leaving) = self.leaving.get_mut(&root) else { return };
        leaving.doomed = true;
        let waiting = std::mem::take(&mut leaving.freezing);
        self.finish_all(waiting, || Err(failed(Refusal::Cancelled, "another of its connections does not move")));
    }

    pub(crate) fn freeze_whole(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        id: OpId,
        name: MoveName,
        flow: FlowTuple,
    ) -> Option<Answer> {
        let found = self.leaving.iter_mut().find(|(_, leaving)| leaving.flows.contains(&flow));
        let Some((root, leaving)) = found else { return Some(Err(failed(Refusal::Unmovable, "it was given up"))) };
        let root = *root;
        if leaving.doomed {
            return Some(Err(failed(Refusal::Cancelled, "another of its connections does not move")));
        }
        self.given.insert(name, (root, flow));
        leaving.freezing.push(id);
        if leaving.freezing.len() < leaving.flows.len() {
            return None;
        }
        let waiting = std::mem::take(&mut leaving.freezing);
        let stopped = self.stop_whole(relocation, host, root);
        if let Err(why) = &stopped {
            self.news.push(News::Doomed { root, why: Some(why.clone()) });
            self.given.retain(|_, (of, _)| *of != root);
            if let Some(leaving) = self.leaving.get_mut(&root) {
                leaving.doomed = true;
            }
        }
        let answer = || match &stopped {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => Err(failed(Refusal::Unmovable, why.clone())),
        };
        self.finish_all(waiting, answer);
        None
    }

    /// Holds the packets of a process's connections, and has it stand still.
    fn stop_whole(&mut self, relocation: &mut Relocation, host: &mut Host, root: u32) -> Result<(), String> {
        let Some(leaving) = self.leaving.get_mut(&root) else { return Err("it was given up".to_owned()) };
        leaving.stopped = Some(Instant::now());
        let (flows, pids) = (leaving.flows.clone(), leaving.pids.clone());
        let (quiet, seen) = (leaving.quiet.clone(), leaving.whole.clone());
        let fresh: Vec<FlowTuple> = flows.iter().copied().filter(|flow| !quiet.contains(flow)).collect();
        fresh.iter().for_each(|flow| host.forget_late(flow));
        let stop = || {
            fresh.iter().try_for_each(|flow| self.hold(host, flow))?;
            let live = pids.iter().filter(|pid| !whole::is_over(**pid));
            let halted: Result<Vec<Halted>, _> = live.map(|pid| Halted::stop_within(*pid, STOPS_WITHIN)).collect();
            let halted = halted.map_err(|error| error.to_string())?;
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
            fresh.iter().for_each(|flow| self.let_in_again(relocation, host, flow));
            if let Some(leaving) = self.leaving.get_mut(&root) {
                leaving.stopped = None;
            }
        }
        stopped
    }

    pub(crate) fn dump_whole(&mut self, id: OpId, name: &MoveName) -> Option<Answer> {
        let (root, flow) = *self.given.get(name)?;
        let Some(leaving) = self.leaving.get_mut(&root) else {
            return Some(Err(failed(Refusal::Unmovable, "it was given up")));
        };
        let criu = match leaving.criu.clone() {
            Some(criu) if !leaving.doomed => criu,
            _ => return Some(Err(failed(Refusal::Cancelled, "another of its connections does not move"))),
        };
        if !leaving.leads(&flow) {
            if leaving.dumped {
                return Some(Ok(OpDone::Dumped(vec![0])));
            }
            leaving.dumping.push(id);
            return None;
        }
        leaving.dumping.insert(0, id);
        let (directory, before) = (leaving.directory.clone(), leaving.before);
        let (seen, pids) = (leaving.whole.clone(), leaving.pids.clone());
        let work = move || {
            let (mut images, written) = (Vec::new(), directory.join(IMAGES));
            let dumped = seen.ok_or_else(|| "it does not go any more".to_owned());
            let dumped = dumped.and_then(|seen| criu.dump(&seen, &directory, before));
            let dumped = dumped.and_then(|()| {
                let queues = whole::queues_of(&pids).map_err(|unfit| unfit.to_string())?;
                write_queues(&queues, &written).map_err(|error| error.to_string())
            });
            let dumped = dumped.and_then(|()| archive(&written, &mut images));
            Report::Dumped(root, dumped.map(|()| images))
        };
        self.work.begin(work, |why| Report::Dumped(root, Err(why)));
        None
    }

    /// A connection stays. Whether the process does is for the first to say.
    pub(crate) fn let_whole_go_on(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        id: OpId,
        name: &MoveName,
    ) -> Option<Answer> {
        let (root, flow) = *self.given.get(name)?;
        let Some(leaving) = self.leaving.get_mut(&root) else { return Some(Ok(OpDone::Done)) };
        match leaving.fate {
            Some(Fate::Kept) => {
                self.let_in_again(relocation, host, &flow);
                Some(Ok(OpDone::Done))
            }
            Some(Fate::Gone) => {
                host.let_in(&flow);
                host.tunnel.forget_aside(&flow);
                Some(Err(failed(Refusal::NotWoken, "its process is with the other host, without it")))
            }
            None if !leaving.leads(&flow) => {
                leaving.doomed = true;
                leaving.thawing.push(id);
                self.news.push(News::Doomed { root, why: None });
                self.work.stir();
                None
            }
            None => {
                leaving.fate = Some(Fate::Kept);
                let waiting = std::mem::take(&mut leaving.thawing);
                let (pids, seen, flows) = (leaving.pids.clone(), leaving.seen.clone(), leaving.flows.clone());
                if flows.iter().any(|flow| flow.transport == Transport::Udp)
                    && let Err(error) = whole::make_room(&pids)
                {
                    tracing::warn!(%error, "datagrams that have come for process {root} meanwhile may be lost");
                }
                // First what holds their packets: their own first segments would be held with them.
                flows.iter().for_each(|flow| self.let_in_again(relocation, host, flow));
                let woken = whole::wake(&seen);
                let answer = || match &woken {
                    Ok(()) => Ok(OpDone::Done),
                    Err(error) => Err(failed(Refusal::NotWoken, error.to_string())),
                };
                self.finish_all(waiting, answer);
                Some(answer())
            }
        }
    }

    /// A connection is another host's, and so is the process.
    pub(crate) fn end_whole(
        &mut self,
        relocation: &mut Relocation,
        lender: &mut Lender,
        host: &mut Host,
        now: Time,
        name: &MoveName,
        to: Option<PeerId>,
    ) -> Answer {
        let Some((root, flow)) = self.given.get(name).copied() else { return Ok(OpDone::Done) };
        let mut ended = Ok(());
        if let Some(leaving) = self.leaving.get_mut(&root).filter(|leaving| leaving.fate.is_none()) {
            leaving.fate = Some(Fate::Gone);
            if let Err(error) = fs::write(leaving.directory.join(GONE), "") {
                tracing::warn!(%error, "that process {root} is another host's is not written down");
            }
            let waiting = std::mem::take(&mut leaving.thawing);
            ended = whole::end(&leaving.seen);
            self.finish_all(waiting, || {
                Err(failed(Refusal::NotWoken, "its process is with the other host, without it"))
            });
            host.settle_ports();
        }
        relocation.kept_new.remove(&flow);
        lender.leave_home(host, &flow);
        host.part_with(now, flow, to);
        ended.map(|()| OpDone::Done).map_err(|error| failed(Refusal::NotKept, error.to_string()))
    }

    /// What comes for a connection comes to it, after what has come meanwhile.
    fn let_in_again(&mut self, relocation: &mut Relocation, host: &mut Host, flow: &FlowTuple) {
        relocation.kept_new.remove(flow);
        host.let_in(flow);
        host.tunnel.hand_on(flow, None);
    }

    pub(crate) fn forget_given_of_whole(&mut self, host: &mut Host, now: Time, name: &MoveName) -> Answer {
        host.journal.forget_donation(*name);
        if let Some((root, _)) = self.given.remove(name)
            && self.given.values().all(|(of, _)| *of != root)
            && self.leaving.get(&root).is_some_and(|leaving| leaving.fate.is_some() && leaving.criu.is_none())
        {
            // A daemon before this one had begun; nobody here waits to hear of it.
            self.forget_leaving(root);
        }
        self.make_ready(host, now)?;
        host.write_journal();
        Ok(OpDone::Done)
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
            while state.left(whole::started).into_iter().any(whole::is_traced) && since.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Some may have been killed meanwhile. The others stand still yet.
            let pids = state.left(whole::started);
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
                if let Err(error) = whole::end(&seen) {
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
            let flows = state.flows.iter().filter_map(flow).collect();
            let leaving = Leaving { doomed: true, ..Leaving::new(pids, state.inner, flows, directory) };
            self.leaving.insert(root, leaving);
        }
    }

    /// What is found of a connection of such a process.
    pub(crate) fn find_given_of_whole(&mut self, host: &mut Host, saved: &SavedDonation) -> Option<Found> {
        let mut all = self.leaving.iter();
        let (root, _) = all.find(|(_, leaving)| leaving.flows.contains(&saved.tuple))?;
        self.given.insert(saved.name, (*root, saved.tuple));
        host.tunnel.set_aside(&saved.tuple);
        Some(Found::Frozen)
    }

    /// Connections of processes at rest.
    pub(crate) fn flows_of_leaving(&self) -> impl Iterator<Item = FlowTuple> {
        self.leaving.values().filter(|leaving| leaving.fate.is_none()).flat_map(|leaving| leaving.flows.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> FlowTuple {
        let remote = SocketAddr::from(([192, 0, 2, 9], port));
        FlowTuple { transport: Transport::Tcp, local: SocketAddr::from(([192, 0, 2, 1], 22)), remote }
    }

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

    #[test]
    fn processes_that_are_found_wait_for_their_first_connection_and_no_other() {
        let directory = std::env::temp_dir().join(format!("whimbrel-found-{}", std::process::id()));
        let mut wholes = Wholes::new(&directory).expect("an eventfd");
        for root in [1, 2, 3] {
            let flows = vec![flow(10 * root as u16), flow(10 * root as u16 + 1)];
            let leaving = Leaving::new(Vec::new(), root, flows, directory.join(format!("out-{root}")));
            wholes.leaving.insert(root, Leaving { doomed: true, ..leaving });
        }
        let name = |number| MoveName { donor: [1; 32], number };
        // Of the first both are on their way, of the second the other one alone, of the third none.
        wholes.given.extend([(name(1), (1, flow(10))), (name(2), (1, flow(11))), (name(3), (2, flow(21)))]);
        wholes.let_undecided_go_on();
        assert_eq!(wholes.leaving[&1].fate, None, "its first connection tells");
        assert_eq!(wholes.leaving[&2].fate, Some(Fate::Kept), "nothing else would ever tell");
        assert!(!wholes.leaving.contains_key(&3) && wholes.gives(&flow(10)) && !wholes.gives(&flow(21)));
    }
}
