//! The compiled objects: loading them, and what is found in them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use libbpf_rs::{Link, MapCore, Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::Error;
use crate::abi::Plain;
use crate::table::Table;

#[cfg(test)]
mod stack;

/// ELF wants its headers aligned.
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

macro_rules! object {
    ($name:literal) => {{
        static OBJECT: &Aligned<{ include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).len() }> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")));
        &OBJECT.0
    }};
}

/// The programs on tc, with all maps.
pub(crate) const DATAPATH: (&str, &[u8]) = ("datapath", object!("datapath"));
/// The programs that look at sockets; they share maps with the former.
pub(crate) const SOCKETS: (&str, &[u8]) = ("sockets", object!("sockets"));

/// The program that sees probes without an answer, where the kernel lets it.
pub(crate) const PROBES: (&str, &[u8]) = ("probes", object!("probes"));

/// The programs that tell programs what addresses are, and mean.
pub(crate) const NAMES: (&str, &[u8]) = ("names", object!("names"));

/// The programs that keep programs to what is on lease for them.
pub(crate) const LEASES: (&str, &[u8]) = ("leases", object!("leases"));

/// The program that writes and reads an option in TCP's handshake.
pub(crate) const GREETINGS: (&str, &[u8]) = ("greetings", object!("greetings"));

/// The congestion control of senders that come back to a network.
pub(crate) const WINDOWS: (&str, &[u8]) = ("windows", object!("windows"));

/// `TCP_CA_NAME_MAX`
pub(crate) const NAME_BYTES: usize = 16;

/// What outlives the process. Introductions for sessions that end with it come a while longer, and a program would read
/// them. The rest is worth nothing to the next one: events that nobody waits for any more, fragments in flight.
const PINNED: [&str; 14] = [
    "flows",
    "wire_flows",
    "unconnected",
    "helped",
    "bindings",
    "locators",
    "vacated",
    "kept",
    "lent",
    "endpoints",
    "namespaces",
    "introduction_indices",
    "settings",
    "counters",
];
const SHARED: [&str; 7] = ["settings", "counters", "events", "flows", "unconnected", "bindings", "namespaces"];
/// Maps of the programs on sockets, names and leases alone; the first are pinned, since sockets outlive the process.
const PINNED_OF_SOCKETS: [&str; 7] =
    ["devices", PARKED_SOCKETS, "aliases", "asked_own", "asked_peer", "shown", "leased_ports"];
/// What parked sockets had before.
pub(crate) const PARKED_SOCKETS: &str = "parked_sockets";
/// What a pass over the sockets is told, what is looked up, how often this process was woken, what those on leases
/// are told of it, and what is known of handshakes.
const OF_THIS_PROCESS: [&str; 6] = ["interfaces", "looked_up", "wakes_used", "lessee", "left_out", "greeted"];

/// What libbpf had to say since it was last asked; its messages go nowhere else.
static LOG: Mutex<String> = Mutex::new(String::new());
/// The end of a verifier log is what tells.
const LOG_BYTES: usize = 8192;

fn record(_level: PrintLevel, message: String) {
    if let Ok(mut log) = LOG.lock() {
        log.push_str(&message);
        if log.len() > 2 * LOG_BYTES {
            let cut = log.len() - LOG_BYTES;
            let cut = (cut..).find(|at| log.is_char_boundary(*at)).unwrap_or(cut);
            log.drain(..cut);
        }
    }
}

fn take_log() -> String {
    LOG.lock().map(|mut log| std::mem::take(&mut *log)).unwrap_or_default()
}

/// A loaded object. The file descriptors handed out are duplicates.
#[derive(Debug)]
pub(crate) struct Programs {
    name: &'static str,
    object: Object,
}

// SAFETY: libbpf ties an object to no thread.
unsafe impl Send for Programs {}
// SAFETY: once loaded it is only read: its lists of maps and programs, their names, sizes and descriptors.
unsafe impl Sync for Programs {}

impl Programs {
    /// Removes the maps of the data plane that are pinned in `pins`. Programs that are attached go on with them.
    pub(crate) fn leave_maps(pins: &Path) -> Result<(), Error> {
        unpin_all(pins, &PINNED)
    }

    /// Loads the data plane, on the maps pinned in `pins` if there are any, and pins them there else.
    pub(crate) fn load_datapath(pins: &Path) -> Result<Self, Error> {
        Self::load(DATAPATH, |object| {
            for mut map in object.maps_mut() {
                let name = map.name().to_owned();
                if PINNED.iter().any(|pinned| name == **pinned) {
                    map.set_pin_path(pins.join(name))?;
                }
            }
            Ok(())
        })
    }

    /// Loads the socket programs on the maps of `datapath`, and those of their own that are pinned in `pins`.
    pub(crate) fn load_sockets(datapath: &Self, pins: &Path) -> Result<Self, Error> {
        Self::load_beside(datapath, SOCKETS, pins)
    }

    /// Loads the program on probes on the maps of `datapath`.
    pub(crate) fn load_probes(datapath: &Self, pins: &Path) -> Result<Self, Error> {
        Self::load_beside(datapath, PROBES, pins)
    }

    /// Loads the programs on names on the maps of `datapath`, and those of their own that are pinned in `pins`.
    pub(crate) fn load_names(datapath: &Self, pins: &Path) -> Result<Self, Error> {
        Self::load_beside(datapath, NAMES, pins)
    }

    /// Loads the programs on leases, on the map of theirs that is pinned in `pins` if there is one.
    pub(crate) fn load_leases(datapath: &Self, pins: &Path) -> Result<Self, Error> {
        Self::load_beside(datapath, LEASES, pins)
    }

    /// Loads the program on handshakes on the maps of `datapath`.
    pub(crate) fn load_greetings(datapath: &Self, pins: &Path) -> Result<Self, Error> {
        Self::load_beside(datapath, GREETINGS, pins)
    }

    /// Loads the congestion control of senders that come back, under a name that ends with a zero. It has maps of its
    /// own, which nothing outlives but sockets that have it.
    pub(crate) fn load_windows(name: &[u8; NAME_BYTES]) -> Result<Self, Error> {
        Self::load(WINDOWS, |object| {
            for mut map in object.maps_mut() {
                let at = match map.name().to_str() {
                    // Behind the functions.
                    Some("resume") => map.initial_value().map_or(0, <[u8]>::len).saturating_sub(NAME_BYTES),
                    Some(".rodata.ours") => 0,
                    _ => continue,
                };
                if let Some(value) = map.initial_value_mut().and_then(|value| value.get_mut(at..at + NAME_BYTES)) {
                    value.copy_from_slice(name);
                }
            }
            Ok(())
        })
    }

    /// Registers what is in a map of functions, until what this gives is dropped.
    pub(crate) fn register(&mut self, map: &'static str) -> Result<Link, Error> {
        let found = self.object.maps_mut().find(|found| found.name() == map);
        let mut found = found.ok_or_else(|| Error::Mismatch { what: format!("map {map}") })?;
        found.attach_struct_ops().map_err(|source| Error::Load { object: self.name, source, log: take_log() })
    }

    fn load_beside(datapath: &Self, object: (&'static str, &[u8]), pins: &Path) -> Result<Self, Error> {
        let prepare = |object: &mut OpenObject| {
            for mut map in object.maps_mut() {
                let name = map.name().to_owned();
                if SHARED.iter().any(|shared| name == **shared) {
                    if let Some(theirs) = datapath.object.maps().find(|theirs| theirs.name() == name) {
                        map.reuse_fd(theirs.as_fd())?;
                    }
                } else if PINNED_OF_SOCKETS.iter().any(|pinned| name == **pinned) {
                    map.set_pin_path(pins.join(name))?;
                } else if OF_THIS_PROCESS.iter().all(|own| name != **own) {
                    map.set_autocreate(false)?;
                }
            }
            Ok(())
        };
        match Self::load(object, prepare) {
            Err(error) if error.is_of_another_layout() => {
                unpin_all(pins, &PINNED_OF_SOCKETS)?;
                Self::load(object, prepare)
            }
            result => result,
        }
    }

    /// Would it load here, on maps of its own?
    pub(crate) fn try_load(object: (&'static str, &[u8])) -> bool {
        Self::load(object, |_| Ok(())).is_ok()
    }

    fn load(
        (name, bytes): (&'static str, &[u8]),
        prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, Error> {
        libbpf_rs::set_print(Some((PrintLevel::Warn, record)));
        let result = ObjectBuilder::default().name(name).and_then(|builder| builder.open_memory(bytes)).and_then(
            |mut object| {
                prepare(&mut object)?;
                object.load()
            },
        );
        let log = take_log();
        match result {
            Ok(object) => Ok(Self { name, object }),
            Err(source) => Err(Error::Load { object: name, source, log }),
        }
    }

    pub(crate) fn table<K: Plain, V: Plain>(&self, name: &'static str) -> Result<Table<K, V>, Error> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map = map.ok_or_else(|| Error::Mismatch { what: format!("map {name}") })?;
        Table::new(name, duplicate(map.as_fd(), name)?, map.key_size(), map.value_size())
    }

    /// The map of a type without keys and values of ours.
    pub(crate) fn map(&self, name: &'static str) -> Result<OwnedFd, Error> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map = map.ok_or_else(|| Error::Mismatch { what: format!("map {name}") })?;
        duplicate(map.as_fd(), name)
    }

    pub(crate) fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, Error> {
        let program = self.object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| Error::Mismatch { what: format!("{} program {name}", self.name) })?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&program.as_fd());
        // SAFETY: libbpf keeps the program's descriptor open as long as the object lives, which `self` does.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

fn unpin_all(pins: &Path, maps: &[&str]) -> Result<(), Error> {
    for path in maps.iter().map(|map| pins.join(map)) {
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::call("unlink", path.display().to_string(), source));
            }
            _ => {}
        }
    }
    Ok(())
}

fn duplicate(fd: BorrowedFd<'_>, object: &str) -> Result<OwnedFd, Error> {
    fd.try_clone_to_owned().map_err(|source| Error::call("fcntl(F_DUPFD_CLOEXEC)", object, source))
}
