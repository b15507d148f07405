//! What a killed daemon leaves behind for the next one.
//!
//! JSON lines in the run directory, appended as things happen and rewritten when most lines are out of date. A line is
//! handed to the system in one write before its effect is reported as done, so that `kill -9` loses nothing; a power
//! failure ends the connections anyway, so nothing is synced. A last line that was torn is ignored.
//!
//! *Where there is no room* the file stays as it was, whole, and what was said since is written, as a new file, when there is. Decisions about
//! sockets and endpoints (P-76) are another matter: they are kept at once, or not at all.
//!
//! Those of hosts that this one is the gateway of live on when it is started anew. A gateway keeps them, and its peers, in a second
//! file in its state directory as well ([`Journal::keep_lasting`]). What it names its memory by there it tells its peers, which
//! find out by it whether it was lost (protocol.md P-123).

mod lines;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    FlowEntry, FlowName, LeaseName, LocalEnd, MoveName, PeerId, SavedAcceptance, SavedDonation, SavedHeld, SavedLease,
    SavedPeer, SavedTenancy,
};
use whimbrel_wire::FlowTuple;

use lines::{FlowLine, Line, PeerLine};

/// Lines that may be out of date before the file is rewritten, beside as many as are in force.
const SLACK: usize = 1024;

/// Where a new file found no room, so many times at the most what was said is not written before it is tried again.
const PASSED_OVER_MOST: u32 = 1024;

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the journal {path}: {source}")]
pub struct JournalError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// All that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Peers.
    pub peers: Vec<SavedPeer>,
    /// Flows that were introduced.
    pub flows: HashMap<FlowTuple, FlowEntry>,
    /// Flows that have become direct, as they were before: who has passed them on was not told yet.
    pub left: HashMap<FlowTuple, FlowEntry>,
    /// Whether this host is suspended.
    pub suspended: bool,
    /// Moves of sockets that were in the middle, and flows that are held for others.
    pub moves: SavedMoves,
}

/// What is kept of moves of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMoves {
    /// Of sockets that were being given away.
    pub donations: BTreeMap<MoveName, SavedDonation>,
    /// Of sockets that were being taken.
    pub acceptances: BTreeMap<MoveName, SavedAcceptance>,
    /// Of flows whose far ends this host holds, by their names.
    pub held: BTreeMap<FlowName, SavedHeld>,
    /// Endpoints that others have on lease, and whether the address was of a subnet of this host's links when it was lent.
    pub leases: BTreeMap<LeaseName, (SavedLease, bool)>,
    /// Endpoints of others, by what they and this host call the leases, with the namespaces that programs have brought along for them.
    pub tenancies: BTreeMap<FlowName, (SavedTenancy, Option<SavedNamespace>)>,
}

/// A network namespace that a program has brought along for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedNamespace {
    /// SO_NETNS_COOKIE.
    pub cookie: u64,
    /// Far ends are not to learn where it is.
    pub hidden: bool,
}

impl SavedMoves {
    fn len(&self) -> usize {
        let moves = self.donations.len() + self.acceptances.len() + self.held.len();
        moves + self.leases.len() + self.tenancies.len()
    }
}

/// The journal, open for appending.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    /// What is in the file, in bytes: all of it whole lines.
    length: u64,
    pending: Vec<u8>,
    wanting: Option<Wanting>,
    peers: BTreeMap<u32, SavedPeer>,
    flows: HashMap<FlowTuple, FlowEntry>,
    left: HashMap<FlowTuple, FlowEntry>,
    suspended: bool,
    lending_stopped: bool,
    moves: SavedMoves,
    halted: BTreeMap<u32, u64>,
    memory: Option<u64>,
    /// Lines that could not be read.
    skipped: usize,
    /// Of the hosts behind this one alone.
    lasting: Option<Box<Self>>,
}

/// The file lacks what was said: only a new one will do.
#[derive(Clone, Copy, Debug)]
struct Wanting {
    /// How often it is not tried before it is tried again.
    pause: u32,
    left: u32,
}

impl Journal {
    /// Opens the journal at `path`, creates it where there is none, and gives what it holds.
    ///
    /// # Errors
    /// When the file cannot be read or created. Where there is no room to rewrite it, it serves as it is.
    pub fn open(path: &Path) -> Result<(Self, Restored), JournalError> {
        let failed = |action| move |source| JournalError { action, path: path.to_owned(), source };
        let text = read(path).map_err(failed("read"))?;
        let file = create(path).map_err(failed("create"))?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            lines: 0,
            length: 0,
            pending: Vec::new(),
            wanting: None,
            peers: BTreeMap::new(),
            flows: HashMap::new(),
            left: HashMap::new(),
            suspended: false,
            lending_stopped: false,
            moves: SavedMoves::default(),
            halted: BTreeMap::new(),
            memory: None,
            skipped: 0,
            lasting: None,
        };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            journal.lines += 1;
            match serde_json::from_slice::<Line>(line) {
                Ok(line) => journal.apply(line),
                Err(error) => {
                    journal.skipped += 1;
                    tracing::warn!(path = %path.display(), %error, "skipping a line of the journal");
                }
            }
        }
        // A flow whose peer is gone cannot be moved any more.
        let peers = &journal.peers;
        journal.flows.retain(|_, entry| peers.contains_key(&entry.peer.0));
        journal.left.retain(|_, entry| peers.contains_key(&entry.peer.0));
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        journal.length = u64::try_from(whole).unwrap_or(u64::MAX);
        if let Err(error) = journal.rewrite() {
            tracing::warn!(%error, "the journal serves as it is");
            if journal.cut().is_ok() {
                journal.wanting = None;
            }
        }
        let peers = journal.peers.values().cloned().collect();
        let (flows, left, moves) = (journal.flows.clone(), journal.left.clone(), journal.moves.clone());
        let restored = Restored { peers, flows, left, suspended: journal.suspended, moves };
        Ok((journal, restored))
    }

    /// Keeps peers, and flows of hosts behind this one, at `path` as well from now on, where they outlive this host's own life, and gives what names
    /// that memory: `fresh` where there was none, or not all of it can be read. Where this journal holds no peers (the host was
    /// started anew, or the run directory removed) `restored` gets what was there.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn keep_lasting(&mut self, path: &Path, fresh: u64, restored: &mut Restored) -> Result<u64, JournalError> {
        let (mut lasting, kept) = Self::open(path)?;
        let memory = lasting.memory.filter(|_| lasting.skipped == 0).unwrap_or(fresh);
        lasting.append(Line::Memory(memory));
        if self.peers.is_empty() {
            kept.peers.iter().for_each(|peer| self.save_peer(peer.clone()));
            kept.flows.iter().for_each(|(flow, entry)| self.save_flow(*flow, *entry));
            (restored.peers, restored.flows) = (kept.peers, kept.flows);
        } else {
            // This one has been written in the same life, and is at least as new.
            lasting.peers.clone_from(&self.peers);
            lasting.flows = self.flows.clone().into_iter().filter(|(_, entry)| outlives(entry)).collect();
        }
        lasting.rewrite()?;
        self.lasting = Some(Box::new(lasting));
        self.flush()?;
        Ok(memory)
    }

    /// Removes what [`Journal::keep_lasting`] has kept: this host is no gateway any more, and does not keep it up to date.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget_lasting(path: &Path) -> Result<(), JournalError> {
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError { action: "remove", path: path.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    /// Whether the journal at `path`, which stays as it is, tells of any flow, if one that has ended. One that cannot be read
    /// may do so.
    #[must_use]
    pub fn has_flows(path: &Path) -> bool {
        let Ok(text) = read(path) else { return true };
        text.split(|byte| *byte == b'\n').any(|line| matches!(serde_json::from_slice(line), Ok(Line::Flow(_))))
    }

    /// What the journal at `path`, which stays as it is, says of processes that stand still: see [`Self::halted`]; and of sockets that were being given
    /// away. Of one that cannot be read, nothing.
    #[must_use]
    pub fn resting_in(path: &Path) -> (BTreeMap<u32, u64>, BTreeSet<FlowTuple>) {
        let (mut halted, mut donations) = (BTreeMap::new(), BTreeMap::new());
        for line in read(path).unwrap_or_default().split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(Line::Halted(pid, started)) => drop(halted.insert(pid, started)),
                Ok(Line::HaltedOver(pid)) => drop(halted.remove(&pid)),
                Ok(Line::Donation(line)) => donations.extend(line.saved().map(|saved| (saved.name, saved.tuple))),
                Ok(Line::DonationOver(name)) => drop(donations.remove(&name.into())),
                _ => {}
            }
        }
        (halted, donations.into_values().collect())
    }

    /// The flow of a peer that is called so. Another peer may have one of the same name (protocol.md P-132).
    #[must_use]
    pub fn flow_called(&self, peer: PeerId, name: u64) -> Option<(FlowTuple, FlowEntry)> {
        let found = self.flows.iter().find(|(_, entry)| (entry.peer, entry.name) == (peer, name));
        found.map(|(flow, entry)| (*flow, *entry))
    }

    /// The flows in force.
    #[must_use]
    pub fn flows(&self) -> &HashMap<FlowTuple, FlowEntry> {
        &self.flows
    }

    /// The key of a peer.
    #[must_use]
    pub fn key_of(&self, peer: PeerId) -> Option<PublicKey> {
        self.peers.get(&peer.0).map(|saved| saved.key)
    }

    /// Keeps what is known of a peer.
    pub fn save_peer(&mut self, peer: SavedPeer) {
        if let Some(lasting) = &mut self.lasting {
            lasting.save_peer(peer.clone());
        }
        self.append(Line::Peer(PeerLine::from(peer)));
    }

    /// Keeps whether this host is suspended.
    pub fn save_suspended(&mut self, suspended: bool) {
        self.append(Line::Suspended(suspended));
    }

    /// Whether this host lends nothing new.
    #[must_use]
    pub fn is_lending_stopped(&self) -> bool {
        self.lending_stopped
    }

    /// Keeps whether this host lends nothing new.
    ///
    /// # Errors
    /// As [`Self::save_donation`].
    pub fn save_lending_stopped(&mut self, stopped: bool) -> Result<(), JournalError> {
        if self.lending_stopped == stopped {
            return Ok(());
        }
        self.keep(Line::LendingStopped(stopped))
    }

    /// Drops a peer and its flows.
    pub fn forget_peer(&mut self, key: PublicKey) {
        let id = self.peers.values().find(|peer| peer.key == key).map(|peer| peer.id.0);
        if let Some(id) = id {
            self.append(Line::Forget(id));
        }
        if let Some(lasting) = &mut self.lasting {
            lasting.forget_peer(key);
        }
    }

    /// Keeps a flow.
    pub fn save_flow(&mut self, flow: FlowTuple, entry: FlowEntry) {
        if let Some(lasting) = self.lasting.as_mut().filter(|_| outlives(&entry)) {
            lasting.save_flow(flow, entry);
        }
        self.append(Line::Flow(FlowLine { own: flow.into(), entry: entry.into() }));
    }

    /// Drops a flow.
    pub fn remove_flow(&mut self, flow: FlowTuple) {
        if self.flows.contains_key(&flow) {
            self.append(Line::Gone(flow.into()));
        }
        if let Some(lasting) = &mut self.lasting {
            lasting.remove_flow(flow);
        }
    }

    /// Keeps how a flow was before it became direct, until who has passed it on was told: `None`.
    pub fn save_left(&mut self, flow: FlowTuple, former: Option<FlowEntry>) {
        match former {
            Some(entry) => self.append(Line::Left(FlowLine { own: flow.into(), entry: entry.into() })),
            None if self.left.contains_key(&flow) => self.append(Line::LeftOver(flow.into())),
            None => {}
        }
    }

    /// Keeps a move of a socket that is given away, with the processes that are about to be stopped for it: their numbers, and when they were
    /// started ([`started`](whimbrel_kernel::whole::started)).
    ///
    /// # Errors
    /// When the file cannot be written. Then nothing is kept, here and with those below.
    pub fn save_donation(&mut self, saved: SavedDonation, halting: &[(u32, u64)]) -> Result<(), JournalError> {
        let halting = halting.iter().map(|(pid, started)| Line::Halted(*pid, *started));
        self.keep_all(halting.chain([Line::Donation(saved.into())]).collect())
    }

    /// Processes that may stand still for moves: their numbers, and when they were started.
    #[must_use]
    pub fn halted(&self) -> &BTreeMap<u32, u64> {
        &self.halted
    }

    /// A process stands still for no move any more.
    pub fn forget_halted(&mut self, pid: u32) {
        if self.halted.contains_key(&pid) {
            self.append(Line::HaltedOver(pid));
        }
    }

    /// It is over.
    pub fn forget_donation(&mut self, name: MoveName) {
        if self.moves.donations.contains_key(&name) {
            self.append(Line::DonationOver(name.into()));
        }
    }

    /// Keeps a move of a socket that comes here.
    ///
    /// # Errors
    /// As [`Self::save_donation`].
    pub fn save_acceptance(&mut self, saved: SavedAcceptance) -> Result<(), JournalError> {
        self.keep(Line::Acceptance(saved.into()))
    }

    /// It is over.
    pub fn forget_acceptance(&mut self, name: MoveName) {
        if self.moves.acceptances.contains_key(&name) {
            self.append(Line::AcceptanceOver(name.into()));
        }
    }

    /// Keeps whose some flows are whose far ends this host holds, in one write. Where that is cut short the first of them are kept.
    ///
    /// # Errors
    /// As [`Self::save_donation`]: then none is kept.
    pub fn save_held(&mut self, saved: Vec<SavedHeld>) -> Result<(), JournalError> {
        self.keep_all(saved.into_iter().map(|saved| Line::Held(saved.into())).collect())
    }

    /// It is nobody's any more.
    pub fn forget_held(&mut self, flow: FlowName) {
        if self.moves.held.contains_key(&flow) {
            self.append(flow.into());
        }
    }

    /// Keeps what another host has on lease. `on_link`: the address was of a subnet of this host's links when it was lent.
    ///
    /// # Errors
    /// As [`Self::save_donation`].
    pub fn save_lease(&mut self, saved: SavedLease, on_link: bool) -> Result<(), JournalError> {
        if self.moves.leases.get(&saved.name) == Some(&(saved, on_link)) {
            return Ok(());
        }
        self.keep(Line::Lease((saved, on_link).into()))
    }

    /// It has it no more.
    pub fn forget_lease(&mut self, name: LeaseName) {
        if self.moves.leases.contains_key(&name) {
            self.append(name.into());
        }
    }

    /// Keeps what this host has on lease, with the namespace that a program has brought along for it.
    ///
    /// # Errors
    /// As [`Self::save_donation`].
    pub fn save_tenancy(&mut self, saved: SavedTenancy, namespace: Option<SavedNamespace>) -> Result<(), JournalError> {
        self.keep(Line::Tenancy((saved, namespace).into()))
    }

    /// It has it no more.
    pub fn forget_tenancy(&mut self, lease: FlowName) {
        if self.moves.tenancies.contains_key(&lease) {
            self.append(lines::tenancy_over(lease));
        }
    }

    /// Hands all that was said since the last call to the system.
    ///
    /// # Errors
    /// When the file cannot be written. What was said stays in force here and is written when there is room; it is not said again each time
    /// that there is none.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        let lasting = self.lasting.as_mut().map_or(Ok(()), |lasting| lasting.flush());
        self.flush_own().and(lasting)
    }

    fn flush_own(&mut self) -> Result<(), JournalError> {
        if let Some(wanting) = &mut self.wanting {
            if wanting.left > 0 {
                wanting.left -= 1;
                return Ok(());
            }
            return self.rewrite();
        }
        let live = self.peers.len() + self.flows.len() + self.left.len() + self.moves.len() + self.halted.len();
        if self.lines > 2 * live + SLACK {
            return self.rewrite();
        }
        let pending = std::mem::take(&mut self.pending);
        if let Err(source) = self.write(&pending) {
            self.want();
            return Err(self.failed("write", source));
        }
        Ok(())
    }

    /// Keeps a decision, behind all that was said before. It is in force if and only if it is in the file: otherwise it would come into force with the
    /// next daemon after it had been taken back.
    fn keep(&mut self, line: Line) -> Result<(), JournalError> {
        self.keep_all(vec![line])
    }

    /// The same for decisions that come into force together.
    fn keep_all(&mut self, lines: Vec<Line>) -> Result<(), JournalError> {
        if self.wanting.is_some() {
            self.rewrite()?;
        }
        self.flush_own()?;
        let mut text = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut text, line).map_err(|error| self.failed("write", error.into()))?;
            text.push(b'\n');
        }
        self.write(&text).map_err(|source| self.failed("write", source))?;
        self.lines += lines.len();
        lines.into_iter().for_each(|line| self.apply(line));
        Ok(())
    }

    fn append(&mut self, line: Line) {
        // None of these types has a map with keys other than strings or a fallible serializer.
        if self.wanting.is_none() && serde_json::to_writer(&mut self.pending, &line).is_ok() {
            self.pending.push(b'\n');
            self.lines += 1;
        }
        self.apply(line);
    }

    /// Writes whole lines behind the others. Where that fails the file is as it was, or a new one is wanted.
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(text) {
            // The half of a line may be there.
            if self.cut().is_err() {
                self.want();
            }
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)
    }

    /// Has a new file written, after a while that gets longer.
    fn want(&mut self) {
        let pause = self.wanting.map_or(1, |before| (before.pause * 2).min(PASSED_OVER_MOST));
        self.wanting = Some(Wanting { pause, left: pause });
        self.pending.clear();
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError { action, path: self.path.clone(), source }
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Peer(peer) => {
                self.peers.insert(peer.id, peer.into());
            }
            Line::Suspended(suspended) => self.suspended = suspended,
            Line::LendingStopped(stopped) => self.lending_stopped = stopped,
            Line::Memory(memory) => self.memory = Some(memory),
            Line::Forget(id) => {
                self.peers.remove(&id);
                self.flows.retain(|_, entry| entry.peer.0 != id);
                self.left.retain(|_, entry| entry.peer.0 != id);
            }
            Line::Flow(line) => {
                if let (Some(own), Some(entry)) = (line.own.tuple(), line.entry.entry()) {
                    self.flows.insert(own, entry);
                }
            }
            Line::Gone(tuple) => {
                if let Some(tuple) = tuple.tuple() {
                    self.flows.remove(&tuple);
                }
            }
            Line::Left(line) => {
                if let (Some(own), Some(entry)) = (line.own.tuple(), line.entry.entry()) {
                    self.left.insert(own, entry);
                }
            }
            Line::LeftOver(tuple) => {
                if let Some(tuple) = tuple.tuple() {
                    self.left.remove(&tuple);
                }
            }
            Line::Donation(line) => {
                self.moves.donations.extend(line.saved().map(|saved| (saved.name, saved)));
            }
            Line::DonationOver(name) => {
                self.moves.donations.remove(&name.into());
            }
            Line::Halted(pid, started) => {
                self.halted.insert(pid, started);
            }
            Line::HaltedOver(pid) => {
                self.halted.remove(&pid);
            }
            Line::Acceptance(line) => {
                self.moves.acceptances.extend(line.saved().map(|saved| (saved.ticket.name, saved)));
            }
            Line::AcceptanceOver(name) => {
                self.moves.acceptances.remove(&name.into());
            }
            Line::Held(line) => {
                if let Some(saved) = line.saved() {
                    self.moves.held.remove(&saved.formerly());
                    self.moves.held.insert(saved.flow, saved);
                }
            }
            Line::HeldOver(value) => self.moves.held.retain(|flow, _| flow.value() != value),
            Line::HeldOverWith(owner, value) => {
                self.moves.held.remove(&FlowName::new(owner.key(), value));
            }
            Line::Lease(line) => {
                let saved = line.saved();
                self.moves.leases.insert(saved.0.name, saved);
            }
            Line::LeaseOver(tenant, number) => {
                self.moves.leases.remove(&LeaseName { tenant: tenant.key(), number });
            }
            Line::Tenancy(line) => {
                let saved = line.saved();
                self.moves.tenancies.insert(saved.0.lease(), saved);
            }
            Line::TenancyOver(number) => self.moves.tenancies.retain(|lease, _| lease.value() != number),
            Line::TenancyOverOf(anchor, number) => {
                self.moves.tenancies.remove(&FlowName::new(anchor.key(), number));
            }
        }
    }

    /// Writes what is in force to a new file that takes the old one's place.
    fn rewrite(&mut self) -> Result<(), JournalError> {
        let peers = self.peers.values().map(|peer| Line::Peer(peer.clone().into()));
        let flow = |(flow, entry): (&FlowTuple, &FlowEntry)| FlowLine { own: (*flow).into(), entry: (*entry).into() };
        let flows = self.flows.iter().map(|entry| Line::Flow(flow(entry)));
        let left = self.left.iter().map(|entry| Line::Left(flow(entry)));
        let donations = self.moves.donations.values().map(|saved| Line::Donation(saved.clone().into()));
        let acceptances = self.moves.acceptances.values().map(|saved| Line::Acceptance(saved.clone().into()));
        let held = self.moves.held.values().map(|saved| Line::Held(saved.clone().into()));
        let lines = peers.chain(flows).chain(left).chain(self.suspended.then_some(Line::Suspended(true)));
        let lines = lines.chain(self.lending_stopped.then_some(Line::LendingStopped(true)));
        let lines = lines.chain(self.memory.map(Line::Memory));
        let leases = self.moves.leases.values().map(|saved| Line::Lease((*saved).into()));
        let tenancies = self.moves.tenancies.values().map(|saved| Line::Tenancy((*saved).into()));
        let halted = self.halted.iter().map(|(pid, started)| Line::Halted(*pid, *started));
        let lines = lines.chain(halted).chain(donations).chain(acceptances).chain(held).chain(leases).chain(tenancies);
        let mut text = Vec::new();
        let mut count = 0;
        for line in lines {
            if serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
                count += 1;
            }
        }
        let fresh = self.path.with_extension("new");
        let written = create(&fresh).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(&text)?;
            fs::rename(&fresh, &self.path)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.file = file,
            Err(source) => {
                // It takes room that others need.
                let _ = fs::remove_file(&fresh);
                self.want();
                return Err(self.failed("rewrite", source));
            }
        }
        (self.lines, self.length) = (count, text.len() as u64);
        self.wanting = None;
        self.pending.clear();
        Ok(())
    }
}

/// Whether a flow goes on when this host is started anew: its socket is another host's, which is reached through this one.
fn outlives(entry: &FlowEntry) -> bool {
    entry.end == LocalEnd::Passing
}

/// What is there, if anything.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result,
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use whimbrel_protocol::{Carrier, KnownPlace, LocalEnd, Manner, Places, Request, Ticket, View, Waits};
    use whimbrel_wire::Transport;
    use whimbrel_wire::lending::Ends;
    use whimbrel_wire::snapshot::Family;

    use super::*;

    fn peer(id: u32) -> SavedPeer {
        SavedPeer {
            id: PeerId(id),
            key: PublicKey::from([u8::try_from(id).expect("small"); 32]),
            remote: "192.0.2.1:2031".parse().expect("address"),
            source: Some("2001:db8::1".parse().expect("address")),
            locators: vec!["192.0.2.2".parse().expect("address")],
            sequence_sent: 7,
            sequence_accepted: 8,
            places: Places { local: 2, peer: 3 },
            carrier: Carrier::FollowRewrite,
            former: vec![("192.0.2.7".parse().expect("address"), "192.0.2.8".parse().expect("address"))],
            observed: Some("192.0.2.9:1024".parse().expect("endpoint")),
            absent: true,
            silent: true,
            life: 77,
            memory: 78,
            waiting: (5, 6),
            own_places: vec![(2, "192.0.2.7".parse().expect("address"))],
            // It has come to be seen under the endpoint that it claims, and is translated all the same.
            known_places: vec![KnownPlace {
                number: 3,
                claimed: "192.0.2.1:2031".parse().expect("endpoint"),
                observed: "192.0.2.1:2031".parse().expect("endpoint"),
                translated: true,
            }],
        }
    }

    fn flow(port: u16) -> FlowTuple {
        FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new("192.0.2.7".parse().expect("address"), port),
            remote: "192.0.2.1:22".parse().expect("address"),
        }
    }

    fn entry(peer: u32) -> FlowEntry {
        FlowEntry {
            peer: PeerId(peer),
            name: 0x1234_5678_9abc_def0,
            home: Places { local: 1, peer: 1 },
            peer_tuple: flow(9).mirrored(),
            waits: Waits { here: true, there: false },
            manner: Manner { view: View::Lasting, gives_way: true },
            wire_local_port: 9,
            wire_remote_port: 22,
            end: LocalEnd::Endpoint,
            passed_on: true,
            hidden: true,
            beyond: true,
        }
    }

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("whimbrel-journal-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }
        fn file(&self) -> PathBuf {
            self.0.join("journal")
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_said_is_there_after_a_kill() {
        let folder = Folder::new("kill");
        assert!(!Journal::has_flows(&folder.file()));
        let (mut journal, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored, Restored::default());
        journal.save_peer(peer(1));
        journal.flush().expect("flush");
        assert!(!Journal::has_flows(&folder.file()));
        journal.save_peer(peer(2));
        for port in 1..=3 {
            journal.save_flow(flow(port), entry(1));
        }
        journal.save_flow(flow(4), entry(2));
        journal.remove_flow(flow(2));
        [1, 3, 4]
            .into_iter()
            .for_each(|port| journal.save_left(flow(port), Some(entry(if port == 4 { 2 } else { 1 }))));
        journal.save_left(flow(1), None);
        journal.forget_peer(peer(2).key);
        journal.flush().expect("flush");
        std::mem::forget(journal);

        assert!(Journal::has_flows(&folder.file()));
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.peers, vec![peer(1)]);
        assert_eq!(restored.flows.len(), 2);
        assert_eq!(restored.flows[&flow(3)], entry(1));
        // Written anew once.
        let (mut journal, again) = Journal::open(&folder.file()).expect("open");
        assert!([restored.left, again.left].into_iter().all(|left| left == [(flow(3), entry(1))].into()));
        journal.save_left(flow(3), None);
        journal.flush().expect("flush");
        assert!(Journal::open(&folder.file()).expect("open").1.left.is_empty());
    }

    #[test]
    fn moves_in_the_middle_are_found_again() {
        let folder = Folder::new("moves");
        let (mut journal, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.moves, SavedMoves::default());
        let key = |byte| PublicKey::from([byte; 32]);
        let name = |number| MoveName { donor: *key(1).as_bytes(), number };
        let at = Some("192.0.2.1:2031".parse().expect("endpoint"));
        let donation = |number| SavedDonation {
            name: name(number),
            tuple: flow(1),
            flow: FlowName::new(key(2), 0xfedc_ba98_7654_3210),
            holder_at: at,
            acceptor: key(3),
        };
        let request = Request {
            holder: *key(2).as_bytes(),
            holder_at: "[2001:db8::1]:2031".parse().expect("endpoint"),
            flow: 7,
            tuple: flow(2),
            family: Family::Ipv6,
            size: 0,
            options: Vec::new(),
            receiver: b"mail".to_vec(),
        };
        let ticket = Ticket { name: name(3), flow: 7, acceptor: [3; 32], sequence: 4, lifetime: 60, mac: [5; 16] };
        let acceptance = SavedAcceptance { request, ticket, wire_port: 1024 };
        let held = SavedHeld {
            flow: FlowName::new(key(3), 7),
            far: Some(flow(2).mirrored()),
            wire_port: 1024,
            sequence: 4,
            last: name(3),
            unsettled: vec![(name(3), at), (name(4), None)],
            hidden: true,
            ending: true,
        };
        journal.save_donation(donation(1), &[(70, 1), (71, 2)]).expect("kept");
        journal.save_donation(donation(2), &[]).expect("kept");
        journal.forget_halted(70);
        journal.forget_donation(name(1));
        journal.save_acceptance(acceptance.clone()).expect("kept");
        journal.save_held(vec![held.clone()]).expect("kept");
        let ends = |port| Ends { first: SocketAddr::new("2001:db8::5".parse().expect("address"), port), count: 64 };
        let lease = |number: u64| SavedLease { name: LeaseName { tenant: key(4), number }, ends: ends(1024) };
        let tenancy = |number: u64| {
            let anchor_at = at.filter(|_| number == 8);
            let moved = (number == 8).then_some(Transport::Udp);
            let brought = (number == 9).then_some(SavedNamespace { cookie: 77, hidden: true });
            (SavedTenancy { number, anchor: key(5), anchor_at, ends: ends(2048), moved }, brought)
        };
        [1, 2].into_iter().for_each(|number| journal.save_lease(lease(number), number == 2).expect("kept"));
        journal.forget_lease(lease(1).name);
        [7, 8, 9]
            .map(tenancy)
            .into_iter()
            .for_each(|(saved, brought)| journal.save_tenancy(saved, brought).expect("kept"));
        journal.forget_tenancy(tenancy(7).0.lease());
        journal.flush().expect("flush");
        drop(journal);
        let all = SavedMoves {
            donations: [(name(2), donation(2))].into(),
            acceptances: [(name(3), acceptance)].into(),
            held: [(held.flow, held.clone())].into(),
            leases: [(lease(2).name, (lease(2), true))].into(),
            tenancies: [8, 9].map(|number| (tenancy(number).0.lease(), tenancy(number))).into(),
        };
        // The second look is at what the first has rewritten.
        for _ in 0..2 {
            let (journal, restored) = Journal::open(&folder.file()).expect("open");
            assert_eq!((restored.moves, journal.halted()), (all.clone(), &[(71, 2)].into()));
            assert_eq!(Journal::resting_in(&folder.file()), ([(71, 2)].into(), [donation(2).tuple].into()));
        }
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        journal.forget_halted(71);
        journal.forget_donation(name(2));
        journal.forget_acceptance(name(3));
        journal.forget_held(held.flow);
        journal.forget_lease(lease(2).name);
        [8, 9].into_iter().for_each(|number| journal.forget_tenancy(tenancy(number).0.lease()));
        journal.flush().expect("flush");
        let (journal, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!((restored.moves, journal.halted().len()), (SavedMoves::default(), 0));
    }

    #[test]
    fn a_flow_is_found_by_its_name_among_those_of_its_peer() {
        // Also where another peer's is called the same: whoever has it closed is not to have that one closed.
        let folder = Folder::new("called");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        for peer in [2, 1, 3] {
            journal.save_flow(flow(7000 + peer), entry(u32::from(peer)));
        }
        let name = entry(1).name;
        for peer in [1, 2, 3] {
            assert_eq!(journal.flow_called(PeerId(peer), name), Some((flow(7000 + peer as u16), entry(peer))));
        }
        assert_eq!(journal.flow_called(PeerId(4), name), None);
        assert_eq!(journal.flow_called(PeerId(1), name + 1), None);
    }

    #[test]
    fn what_is_held_is_kept_under_its_owner_and_goes_with_the_flow() {
        let folder = Folder::new("owners");
        let key = |byte| PublicKey::from([byte; 32]);
        let held = |owner: u8, donor: u8, port| SavedHeld {
            flow: FlowName::new(key(owner), 7),
            far: Some(flow(port).mirrored()),
            wire_port: 1,
            sequence: 1,
            last: MoveName { donor: [donor; 32], number: 1 },
            unsettled: Vec::new(),
            hidden: false,
            ending: false,
        };
        let kept = |journal: Journal| {
            drop(journal);
            let (journal, restored) = Journal::open(&folder.file()).expect("open");
            (journal, restored.moves.held.into_values().collect::<Vec<_>>())
        };
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        // Two hosts have one each of the same name.
        journal.save_held(vec![held(1, 1, 10), held(2, 2, 20)]).expect("kept");
        let (mut journal, all) = kept(journal);
        assert_eq!(all, [held(1, 1, 10), held(2, 2, 20)]);
        // One goes on to a third, and back.
        journal.save_held(vec![held(3, 1, 10)]).expect("kept");
        let (mut journal, all) = kept(journal);
        assert_eq!(all, [held(2, 2, 20), held(3, 1, 10)]);
        journal.save_held(vec![held(1, 3, 10)]).expect("kept");
        journal.forget_held(FlowName::new(key(2), 7));
        journal.forget_held(FlowName::new(key(3), 7));
        journal.flush().expect("flush");
        let (journal, all) = kept(journal);
        assert_eq!(all, [held(1, 3, 10)]);
        drop(journal);
        // A daemon of before has said of a flow that it is over by its name alone.
        let mut text = fs::read_to_string(folder.file()).expect("read");
        text.push_str("{\"held_over\":7}\n");
        fs::write(folder.file(), text).expect("write");
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.moves, SavedMoves::default());
    }

    #[test]
    fn what_is_on_lease_is_kept_by_its_anchor_and_number() {
        let folder = Folder::new("anchors");
        let tenancy = |of: u8, port| SavedTenancy {
            number: 7,
            anchor: PublicKey::from([of; 32]),
            anchor_at: None,
            ends: Ends { first: SocketAddr::from(([192, 0, 2, 1], port)), count: 1 },
            moved: Some(Transport::Udp),
        };
        let kept = |journal: Journal| {
            drop(journal);
            let (journal, restored) = Journal::open(&folder.file()).expect("open");
            (journal, restored.moves.tenancies.into_values().map(|(saved, _)| saved).collect::<Vec<_>>())
        };
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        // Sockets of two anchors have come that are called the same.
        for saved in [tenancy(1, 10), tenancy(2, 20)] {
            journal.save_tenancy(saved, None).expect("kept");
        }
        let (mut journal, all) = kept(journal);
        assert_eq!(all, [tenancy(1, 10), tenancy(2, 20)]);
        journal.forget_tenancy(tenancy(1, 10).lease());
        journal.flush().expect("flush");
        let (journal, all) = kept(journal);
        assert_eq!(all, [tenancy(2, 20)]);
        drop(journal);
        // A daemon of before has said of a lease that it is over by its number alone.
        let mut text = fs::read_to_string(folder.file()).expect("read");
        text.push_str("{\"tenancy_over\":7}\n");
        fs::write(folder.file(), text).expect("write");
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.moves, SavedMoves::default());
    }

    #[test]
    fn a_host_that_lends_nothing_new_does_so_until_it_is_told_otherwise() {
        let folder = Folder::new("lending");
        let open = || Journal::open(&folder.file()).expect("open").0;
        assert!(!open().is_lending_stopped());
        for stopped in [true, false] {
            open().save_lending_stopped(stopped).expect("kept");
            // The second look is at what the first has rewritten.
            assert_eq!([open().is_lending_stopped(), open().is_lending_stopped()], [stopped; 2]);
        }
    }

    #[test]
    fn a_host_that_is_suspended_stays_so() {
        let folder = Folder::new("suspended");
        let (mut journal, restored) = Journal::open(&folder.file()).expect("open");
        assert!(!restored.suspended);
        for suspended in [true, false, true] {
            journal.save_suspended(suspended);
            journal.flush().expect("flush");
            drop(journal);
            // The second look is at what the first has rewritten.
            for _ in 0..2 {
                let (_, restored) = Journal::open(&folder.file()).expect("open");
                assert_eq!(restored.suspended, suspended);
            }
            journal = Journal::open(&folder.file()).expect("open").0;
        }
    }

    #[test]
    fn a_torn_last_line_costs_that_line_alone() {
        let folder = Folder::new("torn");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        journal.save_peer(peer(1));
        journal.save_flow(flow(1), entry(1));
        journal.save_flow(flow(2), entry(1));
        journal.flush().expect("flush");
        let text = fs::read(folder.file()).expect("read");
        fs::write(folder.file(), &text[..text.len() - 20]).expect("tear");
        let (mut journal, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.flows.keys().collect::<Vec<_>>(), [&flow(1)]);
        journal.save_flow(flow(3), entry(1));
        journal.flush().expect("flush");
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.flows.len(), 2);
    }

    #[test]
    fn the_file_does_not_grow_with_flows_that_came_and_went() {
        let folder = Folder::new("growth");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        journal.save_peer(peer(1));
        for round in 0..20_000_u32 {
            let port = u16::try_from(round % 1000).expect("small") + 1;
            journal.save_flow(flow(port), entry(1));
            journal.remove_flow(flow(port));
            journal.flush().expect("flush");
        }
        let lines = fs::read_to_string(folder.file()).expect("read").lines().count();
        assert!(lines < 2 * SLACK, "{lines} lines");
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!((restored.peers.len(), restored.flows.len()), (1, 0));
    }

    fn lease(number: u64) -> SavedLease {
        let first = "192.0.2.5:1024".parse().expect("endpoint");
        SavedLease { name: LeaseName { tenant: peer(4).key, number }, ends: Ends { first, count: 64 } }
    }

    #[test]
    fn what_cannot_be_written_is_not_decided() {
        let folder = Folder::new("not-decided");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        journal.save_lease(lease(1), true).expect("kept");
        // Neither this file can be written nor another be made.
        let blocked = folder.file().with_extension("new");
        fs::create_dir(&blocked).expect("a folder");
        journal.file = File::open(folder.file()).expect("open");
        journal.save_peer(peer(1));
        assert!(journal.flush().is_err());
        for _ in 0..3 {
            assert!(journal.save_lease(lease(2), false).is_err());
        }
        assert_eq!(journal.moves.leases.len(), 1);

        fs::remove_dir(&blocked).expect("remove");
        journal.save_lease(lease(3), false).expect("kept");
        let (_, restored) = Journal::open(&folder.file()).expect("open");
        let kept: Vec<u64> = restored.moves.leases.keys().map(|name| name.number).collect();
        let on_link: Vec<bool> = restored.moves.leases.values().map(|(_, on_link)| *on_link).collect();
        assert_eq!(on_link, [true, false]);
        assert_eq!((kept, restored.peers.len()), (vec![1, 3], 1), "what was said is there, what failed is not");
    }

    #[test]
    fn what_was_said_is_written_when_there_is_room() {
        let folder = Folder::new("room");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        let blocked = folder.file().with_extension("new");
        fs::create_dir(&blocked).expect("a folder");
        journal.file = File::open(folder.file()).expect("open");
        let mut refused = 0;
        for number in 1..=200 {
            journal.save_peer(peer(number));
            refused += usize::from(journal.flush().is_err());
        }
        assert!((2..20).contains(&refused), "it was tried {refused} times");
        fs::remove_dir(&blocked).expect("remove");
        for _ in 0..PASSED_OVER_MOST {
            journal.flush().expect("flush");
        }
        assert_eq!(Journal::open(&folder.file()).expect("open").1.peers.len(), 200);
    }

    #[test]
    fn a_journal_that_cannot_be_rewritten_serves_as_it_is() {
        let folder = Folder::new("as-it-is");
        let (mut journal, _) = Journal::open(&folder.file()).expect("open");
        journal.save_lease(lease(1), true).expect("kept");
        let mut text = fs::read(folder.file()).expect("read");
        text.extend_from_slice(b"{\"torn");
        fs::write(folder.file(), text).expect("tear");
        fs::create_dir(folder.file().with_extension("new")).expect("a folder");
        let (mut journal, restored) = Journal::open(&folder.file()).expect("open");
        assert_eq!(restored.moves.leases.len(), 1);
        journal.save_lease(lease(2), false).expect("kept");
        assert_eq!(Journal::open(&folder.file()).expect("open").1.moves.leases.len(), 2);
    }

    #[test]
    fn what_a_gateway_remembers_outlives_its_host() {
        // P-123
        let folder = Folder::new("lasting");
        let (run, state) = (folder.file(), folder.0.join("gateway"));
        let passing = FlowEntry { end: LocalEnd::Passing, ..entry(1) };
        let open = |fresh| {
            let (mut journal, mut restored) = Journal::open(&run).expect("open");
            let memory = journal.keep_lasting(&state, fresh, &mut restored).expect("open the second");
            (journal, restored, memory)
        };
        let (mut journal, restored, memory) = open(5);
        assert_eq!((restored, memory), (Restored::default(), 5));
        journal.save_peer(peer(1));
        journal.save_flow(flow(1), passing);
        journal.save_flow(flow(2), FlowEntry { end: LocalEnd::Here, ..entry(1) });
        journal.flush().expect("write");
        drop(journal);
        // Another daemon.
        let (_, restored, memory) = open(6);
        assert_eq!((restored.flows.len(), memory), (2, 5));
        // Another life.
        fs::remove_file(&run).expect("remove");
        let (mut journal, restored, memory) = open(7);
        assert_eq!((&restored.peers, memory), (&vec![peer(1)], 5));
        assert_eq!(restored.flows, HashMap::from([(flow(1), passing)]));
        assert_eq!(journal.flows(), &restored.flows);
        journal.remove_flow(flow(1));
        journal.flush().expect("write");
        drop(journal);
        fs::remove_file(&run).expect("remove");
        assert!(open(8).1.flows.is_empty());
        // What cannot be read may have been a flow.
        let mut text = fs::read(&state).expect("read");
        text.extend(b"what is this\n");
        fs::write(&state, &text).expect("write");
        assert_eq!(open(9).2, 9);
        Journal::forget_lasting(&state).expect("remove");
        Journal::forget_lasting(&state).expect("nothing to remove");
        assert_eq!(open(10).2, 10);
    }
}
