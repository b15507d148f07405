mod datagrams;
mod deliveries;
mod flows;
mod paths;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use whimbrel_wire::{BindingId, FlowTuple};

use crate::abi::{
    Alias, COUNTERS, HelpedFlow, IDLE_DATAGRAMS, IDLE_HELPED, IDLE_INTRODUCTIONS, IDLE_KEPT, IDLE_LAPSES,
    IDLE_LISTENING, IDLE_TRAFFIC, IDLE_TRANSLATION, IDLE_VACATED, LocatorPair, Plain, RawAddress, RawBinding,
    RawEndpoint, RawFlowEntry, RawHelpedFlow, RawHome, RawLent, RawLentKey, RawLocator, RawLocatorPair, RawPath,
    RawSent, RawSettings, RawShare, RawTraffic, RawTuple, RawWireFlow,
};
use crate::error::Error;
use crate::events::{Event, Most, Rings};
use crate::greetings::Greetings;
use crate::hook::{Direction, Hook, Mechanism, has_ethernet_header};
use crate::leases::{LeasedPorts, Leases};
use crate::names::Names;
use crate::object::Programs;
use crate::sockets::{Fitted, Follower, Position, Sockets, SocketsApart, TcpSocket};
use crate::table::{GrowingTable, Table};
pub use datagrams::Sent;
use deliveries::Deliveries;
pub use deliveries::{Guard, Watched};
pub use flows::FormerName;
pub use traffic::Traffic;

/// What an interface is to the data plane, and so which programs it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Packets to and from peers go through it: moved flows are translated, introductions consumed.
    Wire,
    /// The TUN device: packets of moved flows that were routed there are translated or passed to the daemon, and what
    /// the daemon writes is marked.
    Tunnel,
    /// Introductions are consumed and nothing else happens: nothing has moved yet.
    IntroductionsOnly,
    /// It is seen which remotes sockets of UDP send to ([`Datapath::follow_datagrams`]), and nothing else happens.
    Datagrams,
    /// The outer end of an endpoint namespace's pair of interfaces: what the namespace sends goes out as what this host
    /// sends, and nothing else of it gets anywhere.
    Endpoint,
    /// The loopback device, where ends with an address of this host are lent: what this host's own programs send to
    /// them goes there.
    Loopback,
}

impl Role {
    const ALL: [Self; 6] =
        [Self::Wire, Self::Tunnel, Self::IntroductionsOnly, Self::Datagrams, Self::Endpoint, Self::Loopback];
    const NAMES: [&str; 6] = ["wire", "tunnel", "introductions", "datagrams", "endpoint", "loopback"];

    fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Tunnel => "tunnel",
            Self::IntroductionsOnly => "introductions",
            Self::Datagrams => "datagrams",
            Self::Endpoint => "endpoint",
            Self::Loopback => "loopback",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The program for one direction, on a device with or without an Ethernet header.
    fn program(self, direction: Direction, ethernet: bool) -> Option<&'static str> {
        match (self, direction, ethernet) {
            (Self::Wire, Direction::Egress, true) => Some("egress_l2"),
            (Self::Wire, Direction::Egress, false) => Some("egress_l3"),
            (Self::Wire, Direction::Ingress, true) => Some("ingress_l2"),
            (Self::Wire, Direction::Ingress, false) => Some("ingress_l3"),
            (Self::Tunnel, Direction::Egress, _) => Some("egress_l3"),
            (Self::Tunnel, Direction::Ingress, _) => Some("ingress_tunnel"),
            (Self::IntroductionsOnly | Self::Endpoint, Direction::Egress, _)
            | (Self::Loopback | Self::Datagrams, Direction::Ingress, _) => None,
            (Self::Datagrams, Direction::Egress, true) => Some("datagrams_l2"),
            (Self::Datagrams, Direction::Egress, false) => Some("datagrams_l3"),
            (Self::Endpoint, Direction::Ingress, _) => Some("endpoint"),
            (Self::Loopback, Direction::Egress, _) => Some("egress_local"),
            (Self::IntroductionsOnly, Direction::Ingress, true) => Some("introductions_l2"),
            (Self::IntroductionsOnly, Direction::Ingress, false) => Some("introductions_l3"),
        }
    }
}

/// What [`Datapath::set_busy`] says, as bits.
const IDLE_OF_NODE: u32 = IDLE_TRANSLATION | IDLE_INTRODUCTIONS | IDLE_LISTENING;

/// One instance of the data plane: maps, programs and attachments, pinned in one directory.
///
/// Dropping it leaves everything that is pinned in place and working; [`Datapath::unload`] removes it.
#[derive(Debug)]
pub struct Datapath {
    pins: PathBuf,
    programs: Programs,
    sockets: OnceLock<Arc<Sockets>>,
    follower: Option<Follower>,
    names: Option<Names>,
    leases: Option<Leases>,
    greetings: Option<Greetings>,
    flows: GrowingTable<RawTuple, RawFlowEntry>,
    wire_flows: GrowingTable<RawWireFlow, RawTuple>,
    unconnected: GrowingTable<RawTuple, RawAddress>,
    helped: Table<RawTuple, RawHelpedFlow>,
    bindings: Table<BindingId, RawBinding>,
    locators: Table<RawLocatorPair, RawLocator>,
    paths: Table<RawLocatorPair, RawPath>,
    homes: Table<RawLocatorPair, RawHome>,
    traffic: Table<RawLocatorPair, RawTraffic>,
    vacated: Table<RawAddress, u32>,
    kept: Table<RawAddress, u32>,
    lent: Table<RawLentKey, RawLent>,
    endpoints: Table<u32, RawEndpoint>,
    settings: Table<u32, RawSettings>,
    counters: Table<u32, u64>,
    introduction_indices: Table<u32, RawShare>,
    sent: Table<RawTuple, RawSent>,
    rings: Rings,
    /// What `locators` holds for each binding.
    accepted: Mutex<HashMap<BindingId, Vec<LocatorPair>>>,
    /// How many flows are toward what, and how many are of sockets that are not connected.
    deliveries: Mutex<Deliveries>,
    hooks: Vec<Hook>,
    /// What hangs on devices is still of another version, and has maps of its own.
    others_work: bool,
    tcx: bool,
}

impl Datapath {
    /// Loads the programs. What is pinned in `pins` (a directory on a bpffs, made if missing) is taken over: maps keep
    /// their contents, and the programs on devices are replaced by this version's, without a gap. Maps of a version
    /// that laid them out otherwise are left to the programs of that one, and these begin with empty ones: the caller
    /// fills them, and then has these programs [take over](Self::take_over).
    ///
    /// Acts on the calling thread's network namespace; all later calls have to come from the same one.
    ///
    /// # Errors
    /// When the kernel refuses. What is pinned then stays as it is, and works on.
    pub fn open(pins: &Path) -> Result<Self, Error> {
        let unfilled = pins.join(UNFILLED);
        if !unfilled.exists() {
            match Self::open_on(pins, false) {
                Err(error) if error.is_of_another_layout() => {}
                result => return result,
            }
            fs::create_dir(&unfilled).map_err(|source| Error::call("mkdir", unfilled.display().to_string(), source))?;
        }
        Programs::leave_maps(pins)?;
        Self::open_on(pins, true)
    }

    fn open_on(pins: &Path, fresh: bool) -> Result<Self, Error> {
        let cookie = namespace_cookie()?;
        fs::create_dir_all(pins).map_err(|source| Error::call("mkdir", pins.display().to_string(), source))?;
        let programs = Programs::load_datapath(pins)?;
        let mut datapath = Self {
            pins: pins.to_owned(),
            sockets: OnceLock::new(),
            follower: None,
            names: None,
            leases: None,
            greetings: None,
            flows: GrowingTable::new("flows", programs.map("flows")?)?,
            wire_flows: GrowingTable::new("wire_flows", programs.map("wire_flows")?)?,
            unconnected: GrowingTable::new("unconnected", programs.map("unconnected")?)?,
            helped: programs.table("helped")?,
            bindings: programs.table("bindings")?,
            locators: programs.table("locators")?,
            paths: programs.table("paths")?,
            homes: programs.table("homes")?,
            traffic: programs.table("traffic")?,
            vacated: programs.table("vacated")?,
            kept: programs.table("kept")?,
            lent: programs.table("lent")?,
            endpoints: programs.table("endpoints")?,
            settings: programs.table("settings")?,
            counters: programs.table("counters")?,
            introduction_indices: programs.table("introduction_indices")?,
            sent: programs.table("sent")?,
            rings: Rings::new(programs.map("events")?, programs.map("arrivals")?)?,
            accepted: Mutex::new(HashMap::new()),
            deliveries: Mutex::default(),
            hooks: Vec::new(),
            others_work: fresh,
            tcx: true,
            programs,
        };
        datapath.change_settings(|settings| {
            settings.namespace_cookie = cookie;
            settings.idle |= IDLE_DATAGRAMS | IDLE_TRAFFIC;
            settings.home = 0;
        })?;
        for (pair, locator) in datapath.locators.entries()? {
            datapath.accepted().entry(locator.binding).or_default().push(pair.pair());
        }
        datapath.count_elsewhere()?;
        datapath.adopt_hooks()?;
        Ok(datapath)
    }

    fn adopt_hooks(&mut self) -> Result<(), Error> {
        let failed = |source| Error::call("readdir", self.pins.display().to_string(), source);
        let mut hooks = Vec::new();
        for entry in fs::read_dir(&self.pins).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(hook) = name.to_str().and_then(|name| Hook::parse(name, &Role::NAMES)) else { continue };
            // A device that is gone has left a defunct link, for which any program will do.
            let ethernet = has_ethernet_header(hook.interface).unwrap_or(true);
            let program = Role::from_name(hook.role).and_then(|role| role.program(hook.direction, ethernet));
            let program = program.ok_or_else(|| Error::Mismatch { what: format!("{hook:?}") })?;
            if self.others_work || hook.adopt(self.programs.program(program)?, &self.pins)? {
                hooks.push(hook);
            }
        }
        self.hooks = hooks;
        Ok(())
    }

    /// Puts these programs in the place of those of a version whose maps could not be read, now that the maps are
    /// filled. What was moved would be answered with resets before.
    ///
    /// # Errors
    /// When the kernel refuses; programs of either version may be on devices then.
    pub fn take_over(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.others_work) {
            self.adopt_hooks()?;
            let unfilled = self.pins.join(UNFILLED);
            fs::remove_dir(&unfilled).map_err(|source| Error::call("rmdir", unfilled.display().to_string(), source))?;
        }
        Ok(())
    }

    /// Whether programs of another version are at work until then.
    #[must_use]
    pub fn others_work(&self) -> bool {
        self.others_work
    }

    /// Never use tcx for what is attached from now on, as on a kernel before 6.6.
    pub fn avoid_tcx(&mut self) {
        self.tcx = false;
    }

    /// The TUN device that packets of the carrier `Tunnel` go to (0: none, they are held), and the mark that incoming
    /// packets of moved flows get: the bits of `mark_mask` become those of `mark`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_tunnel(&mut self, interface: u32, mark: u32, mark_mask: u32) -> Result<(), Error> {
        self.change_settings(|settings| {
            settings.tunnel = interface;
            settings.mark = mark;
            settings.mark_mask = mark_mask;
        })
    }

    /// What the attached programs have to do from now on: `translation` while any flow has moved or is held,
    /// `introductions` while any are expected, `listening` while any binding is
    /// [`Carrier::Listen`](crate::Carrier::Listen). Where there is nothing they pass every packet at once; a new
    /// instance does both. They translate as long as any flow is helped, or any local end is elsewhere ([`Delivery`],
    /// [`LentEnd`]), whatever is said here.
    ///
    /// Attaching waits for the kernel for tens of milliseconds; this is done in an instant.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_busy(&self, translation: bool, introductions: bool, listening: bool) -> Result<(), Error> {
        let idle = |busy, bit| if busy { 0 } else { bit };
        let translation = translation || !self.helped()?.is_empty() || self.deliveries().any();
        self.change_settings(|settings| {
            let all = idle(translation, IDLE_TRANSLATION)
                | idle(introductions, IDLE_INTRODUCTIONS)
                | idle(listening, IDLE_LISTENING);
            settings.idle = settings.idle & !IDLE_OF_NODE | all;
        })
    }

    /// Whether a device of this host filters by reverse paths strictly. The mark takes packets of moved flows past such
    /// a filter, so those that come by another device than [`Binding::arrival`](crate::Binding::arrival) are dropped
    /// then.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_strict(&self, any: bool) -> Result<(), Error> {
        self.change_settings(|settings| settings.strict = any.into())
    }

    /// The ports that the kernel draws from. What a socket of UDP that is not connected sends from another one to a
    /// port above 1023 may answer somebody: it is not told ([`Datapath::follow_datagrams`]). Until this is said all is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_drawn_ports(&self, drawn: &RangeInclusive<u16>) -> Result<(), Error> {
        self.change_settings(|settings| (settings.drawn_first, settings.drawn_last) = (*drawn.start(), *drawn.end()))
    }

    /// Whether any flow is parked, or has gone on after a lapse a moment ago ([`Datapath::fit_sockets`]), so that what
    /// comes in is looked at for stale echoes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_lapses(&self, any: bool) -> Result<(), Error> {
        let bit = if any { 0 } else { IDLE_LAPSES };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_LAPSES | bit)
    }

    /// Sets what becomes of a helped flow. The programs have to be on every interface that it may go by, as long as it
    /// is there; they are busy from now on ([`Datapath::set_busy`]).
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full.
    pub fn set_helped(&self, flow: &FlowTuple, helped: &HelpedFlow) -> Result<(), Error> {
        self.helped.insert(&RawTuple::new(flow), &RawHelpedFlow::new(helped))?;
        self.change_settings(|settings| settings.idle &= !(IDLE_HELPED | IDLE_TRANSLATION))
    }

    /// Forgets a helped flow, whose numbers are no longer translated; one that is not known is none the worse.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_helped(&self, flow: &FlowTuple) -> Result<(), Error> {
        self.helped.remove(&RawTuple::new(flow))?;
        let bit = if self.helped.is_empty()? { IDLE_HELPED } else { 0 };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_HELPED | bit)
    }

    /// All helped flows, among them those of a process before this one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn helped(&self) -> Result<Vec<(FlowTuple, HelpedFlow)>, Error> {
        let entries = self.helped.entries()?;
        let bit = if entries.is_empty() { IDLE_HELPED } else { 0 };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_HELPED | bit)?;
        Ok(entries.iter().filter_map(|(tuple, flow)| Some((tuple.tuple()?, flow.flow()?))).collect())
    }

    /// Sets which addresses moved peers have vacated on links of this host, each with the index of the link's
    /// interface. What is sent to such an address and is of no moved flow goes out there, to its owner of today.
    ///
    /// # Errors
    /// When the kernel refuses; some may have been set, and the same call may be made again.
    pub fn set_vacated(&self, addresses: &BTreeMap<IpAddr, u32>) -> Result<(), Error> {
        let present = self.vacated.entries()?;
        for (address, _) in present.iter().filter(|(address, _)| !addresses.contains_key(&address.address())) {
            self.vacated.remove(address)?;
        }
        for (address, interface) in addresses {
            let key = RawAddress::new(*address);
            if !present.contains(&(key, *interface)) {
                self.vacated.insert(&key, interface)?;
            }
        }
        let bit = if addresses.is_empty() { IDLE_VACATED } else { 0 };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_VACATED | bit)
    }

    /// Sets which addresses this host uses though it has them no longer. What it sends from them and is of no moved
    /// flow leaves by no device but the TUN device.
    ///
    /// # Errors
    /// When the kernel refuses; some may have been set, and the same call may be made again.
    pub fn set_kept(&self, addresses: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let present = self.kept.entries()?;
        for (address, _) in present.iter().filter(|(address, _)| !addresses.contains(&address.address())) {
            self.kept.remove(address)?;
        }
        for address in addresses {
            let key = RawAddress::new(*address);
            if !present.iter().any(|(kept, _)| *kept == key) {
                self.kept.insert(&key, &0)?;
            }
        }
        let bit = if addresses.is_empty() { IDLE_KEPT } else { 0 };
        self.change_settings(|settings| settings.idle = settings.idle & !IDLE_KEPT | bit)
    }

    fn change_settings(&self, change: impl FnOnce(&mut RawSettings)) -> Result<(), Error> {
        let mut settings = self.settings.get(&0)?.ok_or_else(|| Error::Mismatch { what: "map settings".to_owned() })?;
        change(&mut settings);
        self.settings.insert(&0, &settings)
    }

    /// Puts the programs of `role` on an interface; those of its former role go once the new ones are there.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses. The former role is kept then.
    pub fn attach(&mut self, interface: u32, role: Role) -> Result<(), Error> {
        if self.hooks.iter().any(|hook| hook.interface == interface && hook.role == role.name()) {
            return Ok(());
        }
        let ethernet = has_ethernet_header(interface)?;
        let mut made: Vec<Hook> = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            let Some(program) = role.program(direction, ethernet) else { continue };
            let attached = self
                .programs
                .program(program)
                .and_then(|program| Hook::attach(interface, direction, role.name(), program, &self.pins, self.tcx));
            match attached {
                Ok(hook) => made.push(hook),
                Err(error) => {
                    for hook in made {
                        // The first error is the one that tells.
                        let _ = hook.detach(&self.pins, false);
                    }
                    return Err(error);
                }
            }
        }
        let former: Vec<Hook> = self.hooks.extract_if(.., |hook| hook.interface == interface).collect();
        self.hooks.extend(made.iter().cloned());
        for hook in former {
            let replaced = made.iter().any(|new| {
                new.mechanism == Mechanism::Clsact
                    && hook.mechanism == Mechanism::Clsact
                    && new.direction == hook.direction
            });
            hook.detach(&self.pins, replaced)?;
        }
        Ok(())
    }

    /// Takes our programs off an interface, which may be gone already.
    ///
    /// # Errors
    /// When the kernel refuses; nothing of it is counted as attached any more, and the next `open` tries again.
    pub fn detach(&mut self, interface: u32) -> Result<(), Error> {
        let hooks: Vec<Hook> = self.hooks.extract_if(.., |hook| hook.interface == interface).collect();
        hooks.iter().map(|hook| hook.detach(&self.pins, false)).fold(Ok(()), Result::and)
    }

    /// The interfaces that have programs of ours, each once.
    #[must_use]
    pub fn attached(&self) -> Vec<(u32, Role)> {
        let mut seen: HashSet<(u32, Role)> = HashSet::new();
        let of_hook = |hook: &Hook| Some((hook.interface, Role::from_name(hook.role)?));
        self.hooks.iter().filter_map(of_hook).filter(|attached| seen.insert(*attached)).collect()
    }

    /// Consume introductions that ask for this session index, and report as many of them as one index may bring
    /// (P-142).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen_introductions(&self, index: u32) -> Result<(), Error> {
        self.introduction_indices.insert(&index, &RawShare::zeroed())
    }

    /// The session indices whose introductions are consumed, those of a process before this one included.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn introduction_indices(&self) -> Result<Vec<u32>, Error> {
        Ok(self.introduction_indices.entries()?.into_iter().map(|(index, _)| index).collect())
    }

    /// Let introductions that ask for this session index pass.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn ignore_introductions(&self, index: u32) -> Result<(), Error> {
        self.introduction_indices.remove(&index).map(drop)
    }

    /// Report TCP connections of this namespace as they open and close, and those of introduced flows that stall, or
    /// stop. It ends with this process. That a probe has no answer is seen only where [`Datapath::sees_probes`].
    ///
    /// That a connection opens or closes does not make [`Datapath::event_fd`] readable until many have gathered, since
    /// waking a process for each one would cost more than all the rest: drain them on a timer.
    ///
    /// # Errors
    /// When the kernel refuses, or lacks what the programs on sockets need ([`crate::Features::sockets`]).
    pub fn track(&mut self, enabled: bool) -> Result<(), Error> {
        if !enabled {
            self.follower = None;
        } else if self.follower.is_none() {
            self.follower = Some(self.sockets()?.follow(&self.programs, &self.pins)?);
        }
        Ok(())
    }

    /// Whether connections are being followed, and the kernel lets programs be attached to its functions (fentry),
    /// which it takes to report a keepalive or zero-window probe that has no answer.
    #[must_use]
    pub fn sees_probes(&self) -> bool {
        self.follower.as_ref().is_some_and(|follower| follower.sees_probes)
    }

    /// Says in the handshakes of TCP connections of this namespace that this host runs Whimbrel, and reports of
    /// whom the same is heard ([`Event::Greeted`](crate::Event::Greeted)): in those that it opens from now on, and,
    /// to who says it, in those that come to sockets which listen from now on. Not over loopback, nor where the
    /// first segment has no room for it, nor in what is sent again: for an hour none goes to an address that did
    /// not answer the first. It ends with this process.
    ///
    /// # Errors
    /// When the kernel refuses, or lacks what it needs ([`crate::Features::greetings`]).
    pub fn greet(&mut self, enabled: bool) -> Result<(), Error> {
        if !enabled {
            self.greetings = None;
        } else if self.greetings.is_none() {
            self.greetings = Some(Greetings::attach(&self.programs, &self.pins)?);
        }
        Ok(())
    }

    /// Has programs shown the locators of moved flows that are to be seen so ([`FlowEntry::real_view`]), by
    /// getsockname(2), getpeername(2) and accept(2) of connected sockets, and by recvmsg(2) of UDP, and `aliases`
    /// applied to what they open: each is an address and what is meant by it. Ports stay what they are. Both are of the
    /// same family.
    ///
    /// The programs hang on the root of cgroup v2 as long as this is not undone by [`Datapath::detach_names`], whether
    /// or not this process lives. They pass over what is in other network namespaces.
    ///
    /// # Errors
    /// When the kernel refuses, or lacks what they need ([`crate::Features::names`]).
    pub fn attach_names(&mut self, aliases: &BTreeMap<Alias, IpAddr>) -> Result<(), Error> {
        let names = match &self.names {
            Some(names) => names,
            None => self.names.insert(Names::attach(&self.programs, &self.pins)?),
        };
        names.set_aliases(aliases)
    }

    /// Undoes [`Datapath::attach_names`], of a process before this one as well.
    ///
    /// # Errors
    /// The first; all is tried.
    pub fn detach_names(&mut self) -> Result<(), Error> {
        self.names = None;
        Names::detach(&self.pins)
    }

    /// Has bind(2) of programs in these network namespaces refused (EADDRINUSE), of TCP and UDP, but to these ports and
    /// to loopback addresses; the calling process is kept to nothing.
    ///
    /// The programs hang on the root of cgroup v2 as long as this is not undone by [`Datapath::detach_leases`], whether
    /// or not this process lives. They pass over all other network namespaces.
    ///
    /// # Errors
    /// When the kernel refuses, or lacks what they need ([`crate::Features::leases`]).
    pub fn attach_leases(&mut self, leased: &LeasedPorts) -> Result<(), Error> {
        let leases = match &self.leases {
            Some(leases) => leases,
            None => self.leases.insert(Leases::attach(&self.programs, &self.pins)?),
        };
        leases.set(leased)
    }

    /// Undoes [`Datapath::attach_leases`], of a process before this one as well.
    ///
    /// # Errors
    /// The first; all is tried.
    pub fn detach_leases(&mut self) -> Result<(), Error> {
        self.leases = None;
        Leases::detach(&self.pins)
    }

    /// The programs on sockets, loaded when they are first needed: that takes tens of milliseconds.
    fn sockets(&self) -> Result<&Arc<Sockets>, Error> {
        if let Some(sockets) = self.sockets.get() {
            return Ok(sockets);
        }
        let sockets = Sockets::load(&self.programs, &self.pins)?;
        Ok(self.sockets.get_or_init(|| Arc::new(sockets)))
    }

    /// Readable when there are events to be drained at once: openings and closings only when there are many.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.rings.fd()
    }

    /// Gives events that have happened to `receiver`: first those of sockets, then those that packets have caused, of
    /// either kind oldest first and `most` at the most. True: there may be more, for which [`Datapath::event_fd`] need
    /// not be readable. Never blocks.
    ///
    /// # Errors
    /// When libbpf cannot read a ring buffer.
    pub fn drain_events(&mut self, most: Most, mut receiver: impl FnMut(Event)) -> Result<bool, Error> {
        self.rings.drain(most, &mut receiver)
    }

    /// The TCP sockets of these flows, of those that have one that is connected, in the calling thread's network
    /// namespace. None of them is locked, so no program can have this take long; what is told of one that is busy may
    /// not be of one moment. The first call loads programs, unless [`Datapath::track`] has done so.
    ///
    /// # Errors
    /// When the kernel refuses, or lacks what the programs on sockets need ([`crate::Features::sockets`]).
    pub fn look_up(&self, flows: &[FlowTuple]) -> Result<Vec<TcpSocket>, Error> {
        self.sockets()?.look_up(flows, false)
    }

    /// The same of flows that go on after a time in which what they sent may have got nowhere. Echoes of timestamps
    /// (RFC 7323) from before the last such call are renewed in what comes in for them, while [`Datapath::set_lapses`]
    /// says that there are such: the kernel would take the lapse for a round trip, and wait for multiples of it when
    /// something is lost next.
    ///
    /// # Errors
    /// As [`Datapath::look_up`].
    pub fn on_lapse(&self, flows: &[FlowTuple]) -> Result<Vec<TcpSocket>, Error> {
        self.sockets()?.look_up(flows, true)
    }

    /// Where the TCP socket of a flow is in its streams: what [`Datapath::look_up`] would tell, for one. None where
    /// there is none that is connected, or it is bound to a device.
    ///
    /// # Errors
    /// As [`Datapath::look_up`].
    pub fn tcp_position(&self, flow: &FlowTuple) -> Result<Option<Position>, Error> {
        Ok(self.sockets()?.find(flow)?.map(|(position, _)| position))
    }

    /// Whether the TCP socket of a flow, in the calling thread's network namespace, has sent an urgent byte (MSG_OOB),
    /// or is to, that its far end has not acknowledged. What there is no such socket for has not.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn is_urgent(&self, flow: &FlowTuple) -> Result<bool, Error> {
        Ok(self.sockets()?.find(flow)?.is_some_and(|(_, is_urgent)| is_urgent))
    }

    /// For another thread, which may then wait for a socket.
    ///
    /// # Errors
    /// As [`Datapath::look_up`].
    pub fn sockets_apart(&self) -> Result<SocketsApart, Error> {
        Ok(SocketsApart(Arc::clone(self.sockets()?)))
    }

    /// Makes TCP sockets fit what has become of their flows; orphans, which no process holds any more, are sockets too.
    ///
    /// *Moved*: unbinds them from the devices that they are bound to (SO_BINDTODEVICE), where they would stand still,
    /// and binds them again once their flows are native, if the device is among `interfaces` (indices).
    ///
    /// *Parked* ([`FlowEntry::held`], [`Binding::parked`]): keeps them from giving up, by the longest TCP_USER_TIMEOUT
    /// that the kernel's arithmetic bears (20 days; 30 minutes on a route with `tcp_usec_ts`) and SO_KEEPALIVE off.
    /// Both are put back once the flow is no longer parked, where the program has not set another value meanwhile, and
    /// as soon as that does not end the connection: see [`Fitted::waiting`]. A flow that is not known is not parked.
    ///
    /// What they had is remembered with each socket as long as `pins` is there.
    ///
    /// Flows that are parked count as [lapsed](Self::on_lapse): the first that their peer sends may be here before
    /// anybody says that they go on.
    ///
    /// Goes through all sockets of the namespace, and waits for each that is busy: a program can have that take as long
    /// as it likes. So whoever has anything else to do lets another thread do it ([`Self::sockets_apart`]).
    ///
    /// # Errors
    /// As [`Datapath::look_up`]; some may have been changed, and the same call may be made again.
    pub fn fit_sockets(&self, interfaces: &[u32]) -> Result<Fitted, Error> {
        self.sockets()?.fit(interfaces)
    }

    /// How often each verdict was given, for each reason (`enum counter` in `bpf/abi.h`), summed over the CPUs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        (0..).zip(COUNTERS).map(|(key, name)| Ok((name, self.counters.per_cpu(key)?.iter().sum()))).collect()
    }

    /// One of the programs in `bpf/`, for tests that run it on packets (BPF_PROG_TEST_RUN).
    ///
    /// # Errors
    /// When there is none of that name.
    #[doc(hidden)]
    pub fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, Error> {
        self.programs.program(name)
    }

    /// Puts back what sockets had. A program may keep one of its own busy, and this is not to wait for that without
    /// end.
    fn release_sockets(&self) -> Result<(), Error> {
        const OBJECT: &str = "release_sockets";
        let (sockets, interfaces) = (Arc::clone(self.sockets()?), interfaces()?);
        let (sender, receiver) = mpsc::channel();
        // In the calling thread's network namespace: threads are begun in it.
        let thread = std::thread::Builder::new().spawn(move || {
            // Nobody waits any more where it is late.
            let _ = sender.send(sockets.release(&interfaces));
        });
        thread.map_err(|source| Error::call("clone", OBJECT, source))?;
        let late = |_| Err(Error::call("read", OBJECT, io::ErrorKind::TimedOut.into()));
        receiver.recv_timeout(RELEASE_WITHIN).unwrap_or_else(late)
    }

    /// Takes all programs off and removes all pins and the directory. Sockets get back what they had, at once, as
    /// nobody can do it later: their devices, if those are in the calling thread's network namespace, and the options
    /// of those that are parked. Connections that have waited for longer than these allow end.
    ///
    /// # Errors
    /// The first one; everything that can be removed is. Nothing is where sockets cannot be given back what they had,
    /// as one of them is busy, so that it can be done later.
    pub fn unload(mut self) -> Result<(), Error> {
        let noted = self.pins.join(crate::object::PARKED_SOCKETS).exists();
        if noted {
            self.release_sockets()?;
        }
        let mut result = Ok(());
        for (interface, _) in self.attached() {
            result = result.and(self.detach(interface));
        }
        let failed = |source: io::Error| Error::call("unlink", self.pins.display().to_string(), source);
        match fs::read_dir(&self.pins) {
            Ok(entries) => {
                let remove = |entry: fs::DirEntry| match entry.file_name() == UNFILLED {
                    true => fs::remove_dir(entry.path()),
                    false => fs::remove_file(entry.path()),
                };
                for entry in entries {
                    result = result.and(entry.and_then(remove).map_err(failed));
                }
            }
            Err(source) => result = result.and(Err(failed(source))),
        }
        result.and(fs::remove_dir(&self.pins).map_err(failed))
    }
}

/// A directory beside the pinned maps as long as they are not filled ([`Datapath::take_over`]): a process that ends
/// meanwhile is followed by one that begins again with empty ones.
const UNFILLED: &str = "unfilled";

/// How long putting back what sockets had may take when the data plane goes.
const RELEASE_WITHIN: Duration = Duration::from_secs(3);

/// The indices of all interfaces.
pub(crate) fn interfaces() -> Result<Vec<u32>, Error> {
    // SAFETY: takes nothing.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(Error::call("if_nameindex", "interfaces", io::Error::last_os_error()));
    }
    let mut indices = Vec::new();
    let mut at = list;
    // SAFETY: an array that ends with an entry whose index is 0.
    while let index @ 1.. = unsafe { (*at).if_index } {
        indices.push(index);
        // SAFETY: this one was not the last.
        at = unsafe { at.add(1) };
    }
    // SAFETY: what if_nameindex returned, once.
    unsafe { libc::if_freenameindex(list) };
    Ok(indices)
}

/// SO_NETNS_COOKIE (Linux 5.14), the same number that the programs find in a socket's namespace.
pub(crate) fn namespace_cookie() -> Result<u64, Error> {
    let failed = |call, source| Error::call(call, "network namespace", source);
    let socket = std::os::unix::net::UnixDatagram::unbound().map_err(|source| failed("socket(AF_UNIX)", source))?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: an open socket, and room for the cookie and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(failed("getsockopt(SO_NETNS_COOKIE)", io::Error::last_os_error())) }
}
