//! Removes what a daemon that does not run any more has left: what carries its moved connections, which end with it.

mod last_words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use whimbrel_datapath::Datapath;
use whimbrel_ipc::socket_path;
use whimbrel_kernel::dead_link::DeadLinks;
use whimbrel_kernel::endpoint;
use whimbrel_kernel::in_their_name::InTheirName;
use whimbrel_kernel::kept_address::KeptAddresses;
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::optimistic::OptimisticAddresses;
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::source_routing::{SourceRoutes, SourceWays};
use whimbrel_kernel::tun::Tun;
use whimbrel_wire::FlowTuple;

use crate::DEVICE;
use crate::host::table::has_flows;
use crate::host::{Addresses, DEFAULT_MTU, MARK};
use crate::instance::{self, DEFAULT_RUN_DIR, Instance, InstanceError};
use crate::role::relocation::table::resting_in;
use crate::store::place::{Place, remove_pin, run_dirs};
use crate::store::{JOURNAL, StoreError};

/// Why nothing, or not all, was removed. What was not can be tried again by the same call.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The daemon runs.
    #[error(
        "a daemon (process {pid}) runs in {}, and needs what is there. Stop it first: `systemctl stop whimbrel`, or \
         `kill {pid}`", .run_dir.display()
    )]
    Runs {
        /// Its run directory.
        run_dir: PathBuf,
        /// Its process id, as it wrote it.
        pid: String,
    },
    /// Another one works in this network namespace.
    #[error(
        "a daemon with another run directory works in this network namespace (it has the device {DEVICE} open). Nothing \
         was removed; name its run directory with --run-dir once it is stopped"
    )]
    Elsewhere,
    /// A move is not decided: to let the program go on could make two copies of its socket, and to end it could end the
    /// connection.
    #[error(
        "sockets rest here that were being given to another host, which may have them by now ({}). Nothing was removed: start the \
         daemon first (`systemctl start whimbrel`, or `whimbrel up`), which asks whose they are, and stop it again",
        listed(.flows)
    )]
    Undecided {
        /// Their connections.
        flows: BTreeSet<FlowTuple>,
    },
    /// The run directory cannot be used.
    #[error(transparent)]
    Instance(InstanceError),
    /// What is left is a later release's, and with it which processes stand still.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kernel refused.
    #[error("{0}. Run it as root, in the network namespace that the daemon ran in")]
    Kernel(#[from] whimbrel_kernel::Error),
    /// No bpffs to look into.
    #[error(transparent)]
    Place(Box<crate::Error>),
    /// A file cannot be removed.
    #[error("cannot remove {}: {source}", .path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// What unlink(2) said.
        source: io::Error,
    },
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Former addresses of this host, with their rules and routes, and the settings that went with them.
    pub kept_addresses: BTreeSet<IpAddr>,
    /// Addresses of peers that had a route of ours.
    pub peer_routes: BTreeSet<IpAddr>,
    /// Whether there were rules for addresses of this host that had a way of their own.
    pub source_ways: bool,
    /// Interfaces that led to endpoint namespaces.
    pub endpoints: BTreeSet<String>,
    /// Whether there were rules that led here what was said to hosts behind this one.
    pub spoken_for: bool,
    /// The TUN device.
    pub device: Option<&'static str>,
    /// The directory of a bpffs that programs, maps and links were pinned in.
    pub pins: Option<PathBuf>,
    /// Files in the run directory.
    pub files: Vec<PathBuf>,
    /// Peers that have heard that what was agreed on with them is forgotten, and what had moved is over.
    pub told: usize,
    /// How many have not, for each reason.
    pub untold: BTreeMap<String, usize>,
    /// What is there and was not touched.
    pub others: Option<Others>,
}

/// What a daemon with another run directory has left in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others {
    /// Its run directory.
    pub run_dir: PathBuf,
    /// The addresses that it keeps.
    pub kept_addresses: BTreeSet<IpAddr>,
}

impl Removed {
    /// Whether there was anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Removes it, in the network namespace of the calling thread, and tells the peers of it before, for two seconds at the
/// most. Where nothing is left it does nothing. The key and the remembered keys, in the state directory, stay.
///
/// # Errors
/// When a daemon runs there, and when something cannot be removed.
pub fn clean(run_dir: &Path) -> Result<Removed, CleanError> {
    let instance = match fs::exists(run_dir) {
        // Not made for this alone: what is in the kernel may have outlived its run directory.
        Ok(false) => None,
        _ => Some(Instance::lock(run_dir, has_flows).map_err(|error| match error {
            InstanceError::Taken { run_dir, pid } => CleanError::Runs { run_dir, pid },
            error => CleanError::Instance(error),
        })?),
    };
    let removed = match &instance {
        Some(instance) if instance.is_orphaned() => return remove_orphans(instance, run_dir),
        _ => {
            let (_, flows) = resting_in(&run_dir.join(JOURNAL))?;
            if !flows.is_empty() {
                return Err(CleanError::Undecided { flows });
            }
            match whose(run_dir) {
                None => remove_from_kernel(run_dir)?,
                Some(other) if instance::is_running(&other) => return Err(CleanError::Elsewhere),
                Some(other) => leave_in_kernel(other, run_dir)?,
            }
        }
    };
    remove_pins_and_files(removed, instance.as_ref(), run_dir)
}

/// Removes what a daemon left for a network namespace that is gone. What it made there is gone with it; nothing here is
/// of it.
pub(crate) fn remove_orphans(instance: &Instance, run_dir: &Path) -> Result<Removed, CleanError> {
    let mut removed = Removed::default();
    for settings in ["sysctls", "optimistic", "dead-links"] {
        remove_file(run_dir.join(settings), &mut removed)?;
    }
    remove_pins_and_files(removed, Some(instance), run_dir)
}

/// Another run directory whose daemon has worked last in this network namespace: what is in the kernel is of that one,
/// since each daemon that starts makes of what it finds what it needs itself.
fn whose(run_dir: &Path) -> Option<PathBuf> {
    let own = instance::worked_here(run_dir);
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let here = real(run_dir);
    let all = run_dirs().into_iter().chain([DEFAULT_RUN_DIR.into()]).filter(|other| real(other) != here);
    let last = all.filter_map(|other| Some((instance::worked_here(&other)?, other))).max()?;
    own.is_none_or(|own| own < last.0).then_some(last.1)
}

/// Nothing in the kernel is of this run directory's daemon. Its peers are told all the same.
fn leave_in_kernel(other: PathBuf, run_dir: &Path) -> Result<Removed, CleanError> {
    // Opened where the settings are that it has changed.
    let kept_addresses = KeptAddresses::open(&other)?.kept()?;
    let spoken = last_words::tell(run_dir);
    let others = Some(Others { run_dir: other, kept_addresses });
    Ok(Removed { told: spoken.heard, untold: spoken.unheard, others, ..Removed::default() })
}

fn remove_from_kernel(run_dir: &Path) -> Result<Removed, CleanError> {
    let mut removed = Removed::default();
    // The device first: whoever else needs what follows has it open.
    let there = NetworkMonitor::open()?.snapshot()?.links.iter().any(|link| link.name == DEVICE);
    let device = match there.then(|| Tun::open(DEVICE, DEFAULT_MTU)).transpose() {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(CleanError::Elsewhere),
        device => device?,
    };
    // While there is a way to them.
    let spoken = last_words::tell(run_dir);
    (removed.told, removed.untold) = (spoken.heard, spoken.unheard);
    removed.kept_addresses = KeptAddresses::open(run_dir)?.kept()?;
    removed.peer_routes = PeerRoutes::open(MARK)?.routed()?;
    removed.source_ways = SourceRoutes::open(MARK)?.apply(&SourceWays::default())?.changed;
    removed.spoken_for = InTheirName::open()?.release()?;
    Addresses::open(run_dir)?.release()?;
    OptimisticAddresses::open(run_dir)?;
    DeadLinks::open(run_dir)?;
    // Before the programs that watch over them.
    removed.endpoints = endpoint::remove_all()?;
    if let Some(device) = device {
        device.remove()?;
        removed.device = Some(DEVICE);
    }
    Ok(removed)
}

/// `instance` is there where the run directory is; what is pinned may have outlived it.
fn remove_pins_and_files(
    mut removed: Removed,
    instance: Option<&Instance>,
    run_dir: &Path,
) -> Result<Removed, CleanError> {
    if instance.is_some() || whimbrel_datapath::common_bpffs().is_some() {
        let place = Place::find(run_dir).map_err(|error| CleanError::Place(Box::new(error)))?;
        if !place.is_fresh() {
            let pins = place.pins().to_owned();
            // Maps of another release cannot be opened; without its pins a link on tcx goes as well.
            let orphaned = instance.is_some_and(Instance::is_orphaned);
            if orphaned || Datapath::open(&pins).and_then(Datapath::unload).is_err() {
                tracing::debug!("removing the pins by hand");
                remove_pins(&pins)?;
            }
            removed.pins = Some(pins);
        }
        place.leave();
    }
    if let Some(instance) = instance {
        crate::role::helpers::continue_stopped(run_dir);
        crate::role::relocation::executor::adopt::continue_halted(&run_dir.join(JOURNAL));
        let helped = run_dir.join("helpers");
        for entry in fs::read_dir(&helped).into_iter().flatten().flatten() {
            remove_file(entry.path(), &mut removed)?;
        }
        let _ = fs::remove_dir(&helped);
        // The lock stays: a daemon that starts at this moment may hold it already.
        for path in [run_dir.join(JOURNAL), socket_path(run_dir)] {
            remove_file(path, &mut removed)?;
        }
        instance.forget_namespace(run_dir);
    }
    Ok(removed)
}

fn listed(flows: &BTreeSet<FlowTuple>) -> String {
    let shown: Vec<String> = flows.iter().take(3).map(FlowTuple::to_string).collect();
    let more = flows.len().saturating_sub(shown.len());
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn remove_file(path: PathBuf, removed: &mut Removed) -> Result<(), CleanError> {
    match fs::remove_file(&path) {
        Ok(()) => removed.files.push(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(CleanError::Remove { path, source }),
    }
    Ok(())
}

fn remove_pins(pins: &Path) -> Result<(), CleanError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CleanError::Remove { path, source }
    };
    let entries = match fs::read_dir(pins) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(pins)(source)),
    };
    for entry in entries {
        let path = entry.map_err(failed(pins))?.path();
        remove_pin(&path).map_err(failed(&path))?;
    }
    fs::remove_dir(pins).map_err(failed(pins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_a_daemon_that_died_while_its_maps_were_filled_can_be_removed() {
        let directory = std::env::temp_dir().join(format!("whimbrel-pins-{}", std::process::id()));
        let pins = directory.join("pins");
        fs::create_dir_all(pins.join("unfilled")).unwrap();
        fs::write(pins.join("flows"), "").unwrap();
        remove_pins(&pins).unwrap();
        assert!(!pins.exists());
        remove_pins(&pins).unwrap();
        fs::remove_dir(directory).unwrap();
    }

    #[test]
    fn what_a_later_release_has_left_is_not_touched() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-clean-later-{}", std::process::id()));
        fs::create_dir_all(&run_dir).expect("a directory");
        let store = run_dir.join(JOURNAL);
        fs::write(&store, "{\"whimbrel\":\"store\",\"version\":9,\"rows\":0}\n").expect("write");
        let refusal = clean(&run_dir).expect_err("later").to_string();
        assert!(refusal.contains("later release") && store.exists(), "{refusal}");
        fs::remove_dir_all(&run_dir).expect("remove");
    }

    #[test]
    fn refuses_while_the_daemon_runs() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-clean-{}", std::process::id()));
        let instance = Instance::lock(&run_dir, has_flows).expect("lock");
        let refusal = clean(&run_dir).expect_err("it runs");
        assert!(matches!(refusal, CleanError::Runs { .. }), "{refusal}");
        assert!(refusal.to_string().contains(&format!("kill {}", std::process::id())), "{refusal}");
        drop(instance);
        fs::remove_dir_all(&run_dir).expect("remove");
    }
}
