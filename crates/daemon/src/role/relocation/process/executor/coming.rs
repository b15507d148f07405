//! At the acceptor.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::process::{Arrival, ArrivalStep, Left as Remains, Place};
use whimbrel_protocol::{Found, MoveName, OpDone, OpFailed, OpId, PeerId, Refusal, Request, SavedAcceptance, Time};
use whimbrel_wire::snapshot::{Body, Datagrams, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Answer, Around, News, Processes, Report, failed, key_and_number};
use crate::host::Host;
use crate::host::refusal::not_kept;
use crate::role::relocation::process::criu::Left;
use crate::role::relocation::process::helper::Criu;
use crate::role::relocation::process::load::{Manifest, extract, read_queues, unpack};
use crate::role::relocation::process::{BEFORE, IMAGES, criu, helper, make, remove};

/// How many files are named that are missing.
const NAMED: usize = 8;
const MANIFEST: &str = "manifest.json";

/// Hosts that are asked for ports of a process's address at the most, one after the other.
const MOST_OWNERS: usize = 8;

/// A process that is to come.
#[derive(Debug)]
pub(crate) struct Coming {
    manifest: Manifest,
    /// Who may lend more ports of its address: whose it is, as far as that is known.
    owners: Vec<PublicKey>,
    directory: PathBuf,
    criu: Option<Criu>,
    /// In a PID namespace of its own.
    apart: bool,
    /// How far its connections are.
    pub(super) arrival: Arrival,
}

/// Looks at what came ahead of a process: whether it can be rebuilt here.
fn prepare(bytes: &[u8], directory: &Path) -> Result<Coming, String> {
    make(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let criu = Criu::find()?;
    let manifest = unpack(bytes, &directory.join(BEFORE)).map_err(|bad| bad.to_string())?;
    if manifest.architecture != std::env::consts::ARCH {
        let (there, here) = (&manifest.architecture, std::env::consts::ARCH);
        return Err(format!("it is a process of {there}, and this host is of {here}"));
    }
    if !criu.reads(&manifest.criu) {
        return Err(format!("it was written down by CRIU {}, and here is CRIU {}", manifest.criu, criu.version));
    }
    let lacking = helper::lacking(&manifest.files)?;
    if !lacking.is_empty() {
        let more = lacking.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let named: Vec<String> = lacking.into_iter().take(NAMED).collect();
        return Err(format!("it needs files that are not there as they are here: {}{more}", named.join(", ")));
    }
    let text = serde_json::to_vec(&manifest).map_err(|error| error.to_string())?;
    fs::write(directory.join(MANIFEST), text).map_err(|error| error.to_string())?;
    let apart = manifest.pids.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists());
    Ok(Coming::new(manifest, directory.to_owned(), Some(criu), apart, Arrival::new(Time::default())))
}

impl Coming {
    /// Whose its address may be: who holds its sockets without another end, the donor, or who holds its connections,
    /// far ends among them.
    fn record_owners(&mut self, flow: &FlowTuple, donor: PublicKey, holder: PublicKey) {
        if !self.owners.contains(&donor) {
            self.owners.push(donor);
        }
        if flow.is_unconnected() {
            self.owners.retain(|owner| *owner != holder);
            self.owners.insert(0, holder);
        } else if self.owners.len() < MOST_OWNERS && !self.owners.contains(&holder) {
            self.owners.push(holder);
        }
    }

    fn new(manifest: Manifest, directory: PathBuf, criu: Option<Criu>, apart: bool, arrival: Arrival) -> Self {
        Self { manifest, owners: Vec::new(), directory, criu, apart, arrival }
    }
}

impl Processes {
    /// Whether this connection, or socket without another end, comes here with a process: its socket may not be there
    /// yet.
    pub(crate) fn rebuilds(&self, flow: &FlowTuple) -> bool {
        self.coming.values().any(|coming| coming.arrival.awaits(flow))
    }

    /// Begins to look at what came ahead of a process.
    pub(crate) fn prepare(&mut self, name: MoveName, bytes: Vec<u8>) {
        let directory = self.directory.join(format!("in-{}", key_and_number(&name)));
        let work = move || {
            let prepared = prepare(&bytes, &directory);
            if prepared.is_err() {
                let _ = remove(&directory);
            }
            Report::Prepared(name, prepared.map(Box::new))
        };
        self.work.begin(work, |why| Report::Prepared(name, Err(why)));
    }

    pub(crate) fn on_prepared(&mut self, now: Time, name: MoveName, mut coming: Coming) {
        coming.arrival = Arrival::new(now);
        self.coming.insert(name, coming);
    }

    pub(crate) fn admit_of_process(
        &mut self,
        around: &mut Around<'_>,
        now: Time,
        name: MoveName,
        request: Request,
    ) -> Result<(), OpFailed> {
        let none = || failed(Refusal::NobodyReceives, "no process with this connection is on its way here");
        let place = Place::of(&request.receiver).ok_or_else(none)?;
        let of = MoveName { donor: name.donor, number: place.load };
        let flow = request.tuple;
        let coming = self.coming.get_mut(&of).ok_or_else(none)?;
        if !coming.arrival.admit(name, place, flow) {
            return Err(none());
        }
        coming.record_owners(&flow, PublicKey::from(name.donor), PublicKey::from(request.holder));
        around.relocation.is_admissible(&request)?;
        around.relocation.make_place(around.host, now, name, &request)
    }

    /// `from`: the peers that may send packets for this connection of it.
    pub(crate) fn rebuild_process(
        &mut self,
        around: &mut Around<'_>,
        (id, name): (OpId, MoveName),
        snapshot: &[u8],
        from: Vec<PeerId>,
    ) -> Option<Answer> {
        let of = self.come_by(&name)?;
        let coming = self.coming.get(&of)?;
        let (flow, first) = coming.arrival.part(&name)?;
        let images = coming.directory.join(IMAGES);
        around.host.forget_late(&flow);
        // Its end may be on lease to the donor yet.
        if let Err(failed) = around.host.take_home(&flow) {
            return Some(Err(failed));
        }
        if let Err(failed) = around.relocation.hold_until_awake(around.host, &flow) {
            return Some(Err(failed));
        }
        around.host.tunnel.expect_flow(flow, from.into_iter().collect());
        if first && let Err(bad) = extract(snapshot, &images) {
            return Some(Err(failed(Refusal::BadSnapshot, bad.to_string())));
        }
        self.with_coming(around, &name, |arrival| arrival.restore(id, &name));
        None
    }

    /// Does something with the process that a move is of, and what follows from it.
    pub(crate) fn with_coming(&mut self, around: &mut Around<'_>, name: &MoveName, act: impl FnOnce(&mut Arrival)) {
        if let Some(of) = self.come_by(name)
            && let Some(coming) = self.coming.get_mut(&of)
        {
            act(&mut coming.arrival);
            self.take_coming_steps(around, of);
        }
    }

    fn take_coming_steps(&mut self, around: &mut Around<'_>, of: MoveName) {
        while let Some(coming) = self.coming.get_mut(&of)
            && let Some(step) = coming.arrival.poll()
        {
            match step {
                ArrivalStep::Answer(id, answer) => self.finish(id, answer),
                ArrivalStep::Save(id, saved) => {
                    let name = saved.ticket.name;
                    let kept = around.host.store.save_acceptance(&saved).map_err(not_kept);
                    self.with_coming(around, &name, |arrival| arrival.handle_saved(id, &name, kept));
                }
                ArrivalStep::Rebuild => self.begin_to_rebuild(around.host, of),
                ArrivalStep::Resume => {
                    let (directory, pids) = (coming.directory.clone(), coming.manifest.pids.clone());
                    let work = move || Report::Resumed(of, criu::resume(&directory, &pids));
                    self.work.begin(work, |why| Report::Resumed(of, Err(why)));
                }
                ArrivalStep::Discard => {
                    if let Err(error) = criu::tell(&coming.directory, false) {
                        tracing::warn!(%error, "a process that was rebuilt in vain cannot be told so");
                    }
                }
                ArrivalStep::LetIn(flow) => {
                    let images = coming.directory.join(IMAGES);
                    if flow.is_unconnected() && flow.transport == Transport::Udp {
                        self.refill_end(around.host, &flow, &images);
                    }
                    around.relocation.let_awake(around.host, &flow);
                }
                // Its program is to know.
                ArrivalStep::Abort(flow) => around.host.abort_inside(&flow),
                ArrivalStep::Over => self.end_coming(&of),
            }
        }
    }

    /// Nothing of a process is under way any more.
    fn end_coming(&mut self, of: &MoveName) {
        let Some(coming) = self.coming.remove(of) else { return };
        if !coming.arrival.is_decided() {
            let _ = criu::tell(&coming.directory, false);
        }
        if let Err(error) = remove(&coming.directory) {
            tracing::warn!(%error, "what was written down of a process stays");
        }
    }

    fn begin_to_rebuild(&mut self, host: &mut Host, of: MoveName) {
        let Some(coming) = self.coming.get(&of) else { return };
        let (manifest, directory, apart) = (coming.manifest.clone(), coming.directory.clone(), coming.apart);
        let (criu, flows): (_, Vec<FlowTuple>) = (coming.criu.clone(), coming.arrival.parts().collect());
        let owners = coming.owners.clone();
        let network = self.network_for(host, of, &flows);
        if let (Ok(Some(_)), Some(first)) = (&network, flows.first())
            && !host.is_brought(first)
        {
            self.tell(News::Settles { address: first.local.ip(), owners });
        }
        let work = move || {
            let rebuild = || {
                if manifest.before {
                    let parent = directory.join(IMAGES).join("parent");
                    std::os::unix::fs::symlink(format!("../{BEFORE}"), parent).map_err(|error| error.to_string())?;
                }
                let criu = criu.ok_or("there is no CRIU")?;
                criu.rebuild(&directory, (manifest.job, manifest.talks), apart, network?)
            };
            Report::Rebuilt(of, rebuild())
        };
        self.work.begin(work, |why| Report::Rebuilt(of, Err(why)));
    }

    pub(crate) fn on_rebuilt(&mut self, around: &mut Around<'_>, name: MoveName, result: Result<(), String>) {
        let flows: Vec<FlowTuple> =
            self.coming.get(&name).into_iter().flat_map(|coming| coming.arrival.parts()).collect();
        around.host.end_way(&flows);
        around.host.on_lives(&name);
        if result.is_ok() {
            self.refill_queues(around.host, &name);
        }
        let Some(coming) = self.coming.get_mut(&name) else { return };
        self.news.extend(result.as_ref().err().map(|why| News::Failed { name, why: why.clone() }));
        coming.arrival.handle_rebuilt(result);
        self.take_coming_steps(around, name);
    }

    pub(crate) fn on_resumed(&mut self, around: &mut Around<'_>, name: MoveName, result: Result<u32, String>) {
        let Some(coming) = self.coming.get_mut(&name) else { return };
        let program = coming.manifest.name.clone();
        coming.arrival.handle_resumed(result.as_ref().map(|_| ()).map_err(Clone::clone));
        self.news.push(match result {
            Ok(pid) => News::Running { name, program, pid },
            Err(why) => News::Lost { name, why },
        });
        self.take_coming_steps(around, name);
    }

    /// Puts what waited in the queues of a process's connected UDP sockets into those of the sockets that were rebuilt.
    pub(crate) fn refill_queues(&mut self, host: &mut Host, name: &MoveName) {
        let Some(coming) = self.coming.get(name) else { return };
        let pids = criu::numbers_here(&coming.directory, &coming.manifest.pids);
        if coming.arrival.parts().any(|flow| flow.transport == Transport::Udp)
            && let Err(error) = whimbrel_kernel::process_tree::make_room(&pids)
        {
            tracing::warn!(%error, "datagrams that come before a process goes on may be lost");
        }
        let flows: Vec<FlowTuple> = coming.arrival.parts().collect();
        for snapshot in read_queues(&coming.directory.join(IMAGES)) {
            let Body::Datagram(Datagrams { remote: Some(remote), .. }) = &snapshot.body else { continue };
            let flow = FlowTuple { transport: Transport::Udp, local: snapshot.local, remote: *remote };
            // Of its own connections alone.
            if flows.contains(&flow) {
                self.put_into_queue(host, &flow, &snapshot);
            }
        }
    }

    /// The same for one that is not connected, to which what is sent comes now.
    fn refill_end(&mut self, host: &mut Host, flow: &FlowTuple, images: &Path) {
        for snapshot in read_queues(images) {
            let Body::Datagram(Datagrams { remote: None, queue }) = snapshot.body else { continue };
            let there = snapshot.local.ip().is_unspecified() || snapshot.local.ip() == flow.local.ip();
            if !there || snapshot.local.port() != flow.local.port() {
                continue;
            }
            // One that was bound to all addresses has nothing to say to the other family any more.
            let queue = queue.into_iter().filter(|datagram| datagram.from.is_ipv4() == flow.local.is_ipv4());
            let body = Body::Datagram(Datagrams { remote: None, queue: queue.collect() });
            self.put_into_queue(host, flow, &Snapshot { local: flow.local, body, ..snapshot });
        }
    }

    fn put_into_queue(&mut self, host: &mut Host, flow: &FlowTuple, snapshot: &Snapshot) {
        if let Err(error) = host.refill(flow, snapshot) {
            tracing::warn!(%flow, %error, "datagrams that waited in a queue are lost");
        }
    }

    /// The network namespace that these connections are to be in, where it is not this one, and their ports kept free.
    fn network_for(&mut self, host: &mut Host, name: MoveName, flows: &[FlowTuple]) -> Result<Option<OwnedFd>, String> {
        let Some(first) = flows.first() else { return Ok(None) };
        match host.namespace_to_live_in(name, first) {
            Some(namespace) => namespace.try_clone_to_owned().map(Some).map_err(|error| error.to_string()),
            None => {
                host.make_way(flows);
                Ok(None)
            }
        }
    }

    /// A connection is not this host's.
    pub(crate) fn drop_of_process(&mut self, around: &mut Around<'_>, id: OpId, name: &MoveName) {
        let of = self.come_by(name).and_then(|of| self.coming.get(&of));
        if let Some((flow, _)) = of.and_then(|coming| coming.arrival.part(name)) {
            around.host.leave_home(&flow);
            around.relocation.end_hold(around.host, &flow);
        }
        self.with_coming(around, name, |arrival| arrival.destroy(id, name));
    }

    pub(crate) fn forget_taken_of_process(&mut self, around: &mut Around<'_>, now: Time, name: &MoveName) -> Answer {
        around.relocation.forget_taken(around.host, now, name)?;
        around.host.write_store();
        Ok(OpDone::Done)
    }

    /// Processes do not wait for ever for the last of their connections.
    pub(crate) fn hasten_processes(&mut self, around: &mut Around<'_>, now: Time) {
        let due = |coming: &Coming| coming.arrival.poll_timeout().is_some_and(|due| due <= now);
        let late = self.coming.iter().filter(|(_, coming)| due(coming)).map(|(name, _)| *name);
        for name in late.collect::<Vec<_>>() {
            if let Some(coming) = self.coming.get_mut(&name) {
                coming.arrival.handle_timeout(now);
            }
            self.take_coming_steps(around, name);
        }
    }

    /// Ends what was on its way when the daemon before this one died, and that nothing is known of. To be called when
    /// all else was found.
    pub(crate) fn end_unknown_processes(&mut self) {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for directory in entries.map(|entry| entry.path()) {
            let known = self.coming.values().any(|coming| coming.directory == directory);
            let coming =
                directory.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("in-"));
            if !coming || known {
                continue;
            }
            if criu::waits(&directory) {
                let _ = criu::tell(&directory, false);
            }
            if let Err(error) = remove(&directory) {
                tracing::warn!(%error, "what was written down of a process stays");
            }
        }
    }

    /// What is found of a process's connection that was on its way here when the daemon before this one died.
    /// `first_saved`: so was that of the connection which decides.
    pub(crate) fn find_taken_of_process(
        &mut self,
        around: &mut Around<'_>,
        saved: &SavedAcceptance,
        first_saved: impl Fn(u64) -> bool,
    ) -> Option<Found> {
        let name = saved.ticket.name;
        let place = Place::of(&saved.request.receiver)?;
        let of = MoveName { donor: name.donor, number: place.load };
        let directory = self.directory.join(format!("in-{}", key_and_number(&of)));
        let text = fs::read(directory.join(MANIFEST)).ok();
        let Some(manifest) = text.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok()) else {
            return Some(Found::Gone);
        };
        let remains = match criu::left(&directory, &manifest.pids) {
            Left::Waits => Remains::Waits,
            Left::GoesOn => Remains::GoesOn,
            Left::Gone => Remains::Gone,
        };
        let coming = self.coming.entry(of).or_insert_with(|| {
            let arrival = Arrival::restored(remains != Remains::Waits || first_saved(place.load));
            Coming::new(manifest, directory.clone(), None, false, arrival)
        });
        let found = coming.arrival.restore_move(name, place, saved.request.tuple, remains);
        self.take_coming_steps(around, of);
        Some(found)
    }
}
