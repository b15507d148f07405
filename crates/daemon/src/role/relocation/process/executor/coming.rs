//! At the acceptor.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Found, MoveName, OpDone, OpFailed, OpId, PeerId, Refusal, Request, SavedAcceptance, Time};
use whimbrel_tunnel::Peer;
use whimbrel_wire::snapshot::{Body, Datagrams, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use super::{Answer, News, Part, Place, Report, Wholes, failed, key_and_number};
use crate::host::Host;
use crate::host::refusal::not_kept;
use crate::role::anchor::executor::lender::Lender;
use crate::role::relocation::executor::Relocation;
use crate::role::relocation::process::criu::Left;
use crate::role::relocation::process::helper::Criu;
use crate::role::relocation::process::load::{Manifest, extract, read_queues, unpack};
use crate::role::relocation::process::{BEFORE, IMAGES, criu, helper, make, remove};

/// How long a process whose fate is decided waits for the last of its connections.
const LAST_WITHIN: Duration = Duration::from_secs(3);
/// How long the connections of a process may take to be announced whose images are here.
const EXPECTED_WITHIN: Duration = Duration::from_secs(60);
/// How many files are named that are missing.
const NAMED: usize = 8;
const MANIFEST: &str = "manifest.json";

/// Hosts that are asked for ports of a process's address at the most, one after the other.
const MOST_OWNERS: usize = 8;

/// A process that is to come.
#[derive(Debug)]
pub(crate) struct Coming {
    manifest: Manifest,
    /// Its connections and sockets without another end that are announced, by their places, and how many there are to be.
    flows: BTreeMap<u32, FlowTuple>,
    count: Option<u32>,
    /// Who may lend more ports of its address: whose it is, as far as that is known.
    owners: Vec<PublicKey>,
    directory: PathBuf,
    criu: Option<Criu>,
    /// In a PID namespace of its own.
    apart: bool,
    /// The moves of its connections, and how they stand.
    moves: HashMap<MoveName, Standing>,
    rebuilding: Vec<OpId>,
    rebuilt: bool,
    /// CRIU is at it.
    begun: bool,
    saving: Vec<OpId>,
    waking: Vec<OpId>,
    /// Its first connection is this host's, and so it is. The others are waited for until then.
    decided: Option<Time>,
    resuming: bool,
    dropped: bool,
    /// Its connections are expected until then.
    until: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    OnItsWay,
    /// It waits for the process to go on.
    There,
    Over,
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
    Ok(Coming::new(manifest, directory.to_owned(), Some(criu), apart))
}

impl Coming {
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowTuple> {
        self.flows.values().copied()
    }

    /// Whether all are announced.
    fn is_complete(&self) -> bool {
        self.count.is_some_and(|count| self.flows.len() == count as usize)
    }

    /// Takes one more. `false`: it does not fit to the others.
    fn add(&mut self, place: Place, flow: FlowTuple) -> bool {
        let fits = self.count.is_none_or(|count| count == place.count)
            && self.flows.get(&place.index).is_none_or(|there| *there == flow)
            && self.flows.iter().all(|(index, there)| *index == place.index || *there != flow);
        if fits {
            self.count = Some(place.count);
            self.flows.insert(place.index, flow);
        }
        fits
    }

    /// Whose its address may be: who holds its sockets without another end, the donor, or who holds its connections, far ends among them.
    fn note_owners(&mut self, flow: &FlowTuple, donor: PublicKey, holder: PublicKey) {
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

    fn new(manifest: Manifest, directory: PathBuf, criu: Option<Criu>, apart: bool) -> Self {
        Self {
            flows: BTreeMap::new(),
            count: None,
            owners: Vec::new(),
            manifest,
            directory,
            criu,
            apart,
            moves: HashMap::new(),
            rebuilding: Vec::new(),
            rebuilt: false,
            begun: false,
            saving: Vec::new(),
            waking: Vec::new(),
            decided: None,
            resuming: false,
            dropped: false,
            until: None,
        }
    }
}

impl Wholes {
    /// Whether this connection, or socket without another end, comes here with a process: its socket may not be there yet.
    pub(crate) fn rebuilds(&self, flow: &FlowTuple) -> bool {
        self.taken.values().any(|part| part.flow == *flow)
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

    pub(crate) fn note_prepared(&mut self, now: Time, name: MoveName, mut coming: Coming) {
        coming.until = Some(now + EXPECTED_WITHIN);
        self.coming.insert(name, coming);
    }

    pub(crate) fn note_rebuilt(&mut self, name: &MoveName, result: Result<(), String>) {
        let Some(coming) = self.coming.get_mut(name) else { return };
        coming.rebuilt = result.is_ok();
        let waiting = std::mem::take(&mut coming.rebuilding);
        if coming.dropped {
            // Nobody wants it any more.
            let _ = criu::tell(&coming.directory, false);
        }
        self.finish_all(waiting, || match &result {
            Ok(()) => Ok(OpDone::Done),
            Err(why) => Err(failed(Refusal::NotRestored, why.clone())),
        });
        self.news.extend(result.err().map(|why| News::Failed { name: *name, why }));
    }

    pub(crate) fn note_resumed(&mut self, name: MoveName, result: Result<u32, String>) {
        let Some(coming) = self.coming.get_mut(&name) else { return };
        let waiting = std::mem::take(&mut coming.waking);
        let program = coming.manifest.name.clone();
        self.finish_all(waiting, || match &result {
            Ok(_) => Ok(OpDone::Done),
            Err(why) => Err(failed(Refusal::NotWoken, why.clone())),
        });
        self.news.push(match result {
            Ok(pid) => News::Running { name, program, pid },
            Err(why) => News::Lost { name, why },
        });
    }

    /// Lets a process go on if it may, and nothing is waited for any more.
    fn resume(&mut self, name: MoveName, in_any_case: bool) {
        let Some(coming) = self.coming.get_mut(&name) else { return };
        let open = coming.moves.values().any(|standing| *standing == Standing::OnItsWay);
        if coming.decided.is_none() || coming.resuming || open && !in_any_case {
            return;
        }
        coming.resuming = true;
        let (directory, pids) = (coming.directory.clone(), coming.manifest.pids.clone());
        let work = move || Report::Resumed(name, criu::resume(&directory, &pids));
        self.work.begin(work, |why| Report::Resumed(name, Err(why)));
    }

    fn coming_of(&mut self, name: &MoveName) -> Option<(Part, &mut Coming)> {
        let part = *self.taken.get(name)?;
        Some((part, self.coming.get_mut(&part.of)?))
    }
}

fn gone() -> OpFailed {
    failed(Refusal::NotRestored, "its process does not come any more")
}

impl Wholes {
    pub(crate) fn admit_of_whole(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        now: Time,
        name: MoveName,
        request: Request,
    ) -> Result<(), OpFailed> {
        let none = || failed(Refusal::NobodyReceives, "no process with this connection is on its way here");
        let place = Place::of(&request.receiver).ok_or_else(none)?;
        let of = MoveName { donor: name.donor, number: place.load };
        let flow = request.tuple;
        let coming = self.coming.get_mut(&of).filter(|coming| !coming.begun && !coming.dropped);
        if !coming.is_some_and(|coming| coming.add(place, flow)) {
            return Err(none());
        }
        relocation.is_admissible(&request)?;
        relocation.make_place(host, now, name, &request)?;
        self.taken.insert(name, Part { of, flow, first: place.index == 0 });
        if let Some(coming) = self.coming.get_mut(&of) {
            coming.moves.insert(name, Standing::OnItsWay);
            coming.note_owners(&flow, PublicKey::from(name.donor), PublicKey::from(request.holder));
        }
        Ok(())
    }

    /// `from`: the peers that may send packets for this connection of it.
    pub(crate) fn rebuild_whole(
        &mut self,
        relocation: &mut Relocation,
        lender: &mut Lender,
        host: &mut Host,
        (id, name): (OpId, MoveName),
        snapshot: &[u8],
        from: Vec<PeerId>,
    ) -> Option<Answer> {
        if let Some(Part { flow, .. }) = self.taken.get(&name).copied() {
            host.forget_late(&flow);
            // Its end may be on lease to the donor yet.
            if let Err(failed) = lender.take_home(host, &flow) {
                return Some(Err(failed));
            }
            if let Err(failed) = relocation.hold_until_awake(host, &flow) {
                return Some(Err(failed));
            }
            host.tunnel.expect_flow(flow, from.into_iter().map(|peer| Peer(peer.0)).collect());
        }
        let Some((Part { of, first, .. }, coming)) = self.coming_of(&name) else { return Some(Err(gone())) };
        if coming.dropped {
            return Some(Err(gone()));
        }
        if first && let Err(bad) = extract(snapshot, &coming.directory.join(IMAGES)) {
            return Some(Err(failed(Refusal::BadSnapshot, bad.to_string())));
        }
        coming.rebuilding.push(id);
        if !coming.is_complete() || coming.rebuilding.len() < coming.flows.len() {
            return None;
        }
        coming.begun = true;
        let (manifest, directory, apart) = (coming.manifest.clone(), coming.directory.clone(), coming.apart);
        let (criu, flows): (_, Vec<FlowTuple>) = (coming.criu.clone(), coming.flows().collect());
        let owners = coming.owners.clone();
        let network = self.network_for(host, of, &flows);
        if let (Ok(Some(_)), Some(first)) = (&network, flows.first())
            && !host.is_brought(first)
        {
            self.news.push(News::Settles { address: first.local.ip(), owners });
            self.work.stir();
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
        None
    }

    /// Puts what waited in the queues of a process's connected UDP sockets into those of the sockets that were rebuilt.
    pub(crate) fn refill_queues(&mut self, host: &mut Host, name: &MoveName) {
        let Some(coming) = self.coming.get(name) else { return };
        let pids = criu::numbers_here(&coming.directory, &coming.manifest.pids);
        if coming.flows().any(|flow| flow.transport == Transport::Udp)
            && let Err(error) = whimbrel_kernel::whole::make_room(&pids)
        {
            tracing::warn!(%error, "datagrams that come before a process goes on may be lost");
        }
        let flows: Vec<FlowTuple> = coming.flows().collect();
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

    /// The others are presented once the first is this host's: then nobody can revoke them on account of the process.
    pub(crate) fn save_of_whole(&mut self, host: &mut Host, id: OpId, saved: SavedAcceptance) -> Option<Answer> {
        let Some((Part { first, .. }, coming)) = self.coming_of(&saved.ticket.name) else {
            return Some(Err(gone()));
        };
        if coming.dropped {
            return Some(Err(gone()));
        }
        if first || coming.decided.is_some() {
            return Some(self.save_now(host, saved));
        }
        // So that the next daemon knows of it; what it may do, it knows from the first.
        let name = saved.ticket.name;
        if let Err(failed) = self.save_now(host, saved) {
            return Some(Err(failed));
        }
        if let Some((_, coming)) = self.coming_of(&name) {
            coming.saving.push(id);
        }
        None
    }

    fn save_now(&mut self, host: &mut Host, saved: SavedAcceptance) -> Answer {
        host.journal.save_acceptance(saved).map_err(not_kept)?;
        Ok(OpDone::Done)
    }

    pub(crate) fn wake_whole(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        now: Time,
        id: OpId,
        name: MoveName,
    ) -> Option<Answer> {
        let Some((Part { of, flow, first }, coming)) = self.coming_of(&name) else {
            return Some(Err(gone()));
        };
        let images = coming.directory.join(IMAGES);
        if coming.resuming && coming.waking.is_empty() {
            // It goes on already.
            if flow.is_unconnected() && flow.transport == Transport::Udp {
                self.refill_end(host, &flow, &images);
            }
            relocation.let_awake(host, &flow);
            return Some(Ok(OpDone::Done));
        }
        coming.waking.push(id);
        coming.moves.insert(name, Standing::There);
        if first {
            coming.decided = Some(now + LAST_WITHIN);
            let waiting = std::mem::take(&mut coming.saving);
            waiting.into_iter().for_each(|id| self.finish(id, Ok(OpDone::Done)));
        }
        if flow.is_unconnected() && flow.transport == Transport::Udp {
            self.refill_end(host, &flow, &images);
        }
        // Its socket rests still, and takes what comes.
        relocation.let_awake(host, &flow);
        self.resume(of, false);
        None
    }

    /// A connection is not this host's. Where it is the first, neither is the process.
    pub(crate) fn drop_of_whole(
        &mut self,
        relocation: &mut Relocation,
        lender: &mut Lender,
        host: &mut Host,
        name: &MoveName,
    ) -> Answer {
        if let Some(Part { flow, .. }) = self.taken.get(name).copied() {
            lender.leave_home(host, &flow);
            relocation.end_hold(host, &flow);
        }
        if let Some((Part { flow, first, .. }, coming)) = self.coming_of(name) {
            if first {
                self.drop_whole(name);
            } else if coming.decided.is_some() && !flow.is_unconnected() {
                // Its program is to know.
                host.abort_inside(&flow);
            }
        }
        Ok(OpDone::Done)
    }

    fn drop_whole(&mut self, name: &MoveName) {
        let Some((_, coming)) = self.coming_of(name) else { return };
        if coming.decided.is_some() || std::mem::replace(&mut coming.dropped, true) {
            return;
        }
        if coming.rebuilt
            && let Err(error) = criu::tell(&coming.directory, false)
        {
            tracing::warn!(%error, "a process that was rebuilt in vain cannot be told so");
        }
        let saving = std::mem::take(&mut coming.saving);
        let waiting: Vec<OpId> = std::mem::take(&mut coming.rebuilding).into_iter().chain(saving).collect();
        self.finish_all(waiting, || Err(gone()));
    }

    pub(crate) fn forget_taken_of_whole(
        &mut self,
        relocation: &mut Relocation,
        host: &mut Host,
        now: Time,
        name: &MoveName,
    ) -> Answer {
        if let Some((Part { of, first, .. }, coming)) = self.coming_of(name) {
            coming.moves.insert(*name, Standing::Over);
            let over = coming.moves.values().all(|standing| *standing == Standing::Over);
            if first {
                self.drop_whole(name);
            }
            self.resume(of, false);
            if over && let Some(coming) = self.coming.remove(&of) {
                if !(coming.resuming || coming.dropped && coming.rebuilt) {
                    let _ = criu::tell(&coming.directory, false);
                }
                if let Err(error) = remove(&coming.directory) {
                    tracing::warn!(%error, "what was written down of a process stays");
                }
            }
        }
        self.taken.remove(name);
        relocation.forget_taken(host, now, name)?;
        host.write_journal();
        Ok(OpDone::Done)
    }

    /// Processes do not wait for ever for the last of their connections.
    pub(crate) fn hasten_wholes(&mut self, now: Time) {
        let late = |coming: &Coming| coming.decided.is_some_and(|until| until <= now) && !coming.resuming;
        let late: Vec<MoveName> =
            self.coming.iter().filter(|(_, coming)| late(coming)).map(|(name, _)| *name).collect();
        late.into_iter().for_each(|name| self.resume(name, true));
        self.coming.retain(|_, coming| {
            let vain = coming.moves.is_empty() && coming.until.is_some_and(|until| until <= now);
            if vain {
                let _ = remove(&coming.directory);
            }
            !vain
        });
    }

    /// Ends what was on its way when the daemon before this one died, and that nothing is known of. To be called when all else was found.
    pub(crate) fn end_unknown_wholes(&mut self) {
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
    pub(crate) fn find_taken_of_whole(&mut self, saved: &SavedAcceptance) -> Option<Found> {
        let name = saved.ticket.name;
        let place = Place::of(&saved.request.receiver)?;
        let of = MoveName { donor: name.donor, number: place.load };
        let directory = self.directory.join(format!("in-{}", key_and_number(&of)));
        let text = fs::read(directory.join(MANIFEST)).ok();
        let Some(manifest) = text.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok()) else {
            return Some(Found::Gone);
        };
        let left = criu::left(&directory, &manifest.pids);
        let coming = self.coming.entry(of).or_insert_with(|| {
            let mut coming = Coming::new(manifest, directory.clone(), None, false);
            (coming.begun, coming.rebuilt) = (true, true);
            coming
        });
        coming.moves.insert(name, Standing::OnItsWay);
        let (flow, first) = (saved.request.tuple, place.index == 0);
        coming.add(place, flow);
        self.taken.insert(name, Part { of, flow, first });
        Some(match left {
            Left::Waits if first => Found::Frozen,
            Left::Waits => Found::Waiting,
            Left::GoesOn => Found::Awake,
            Left::Gone => Found::Gone,
        })
    }
}
