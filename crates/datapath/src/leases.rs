//! The programs that keep programs to the ports that their anchor has lent (`bpf/leases.bpf.c`), on the root of cgroup
//! v2.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use crate::abi::RawPorts;
use crate::cgroup::Hooks;
use crate::error::Error;
use crate::object::Programs;
use crate::table::Table;

const HOOKS: Hooks = Hooks {
    pinned_as: "leases",
    programs: &[
        ("keep_to_lease_v4", libbpf_sys::BPF_CGROUP_INET4_POST_BIND),
        ("keep_to_lease_v6", libbpf_sys::BPF_CGROUP_INET6_POST_BIND),
    ],
    maps: &["leased_ports"],
};

/// The ports, in host order, that may be bound in network namespaces, by the cookies of these.
pub type LeasedPorts = BTreeMap<u64, Vec<RangeInclusive<u16>>>;

/// The programs, loaded and attached. Their links are pinned and outlive this.
#[derive(Debug)]
pub(crate) struct Leases {
    ports: Table<u64, RawPorts>,
    _programs: Programs,
}

impl Leases {
    /// Attaches them, those of a process before this one being replaced without a gap. They keep the calling process to
    /// nothing.
    pub(crate) fn attach(datapath: &Programs, pins: &Path) -> Result<Self, Error> {
        let programs = Programs::load_leases(datapath, pins)?;
        note_lessee(&programs)?;
        HOOKS.attach(&programs, pins)?;
        Ok(Self { ports: programs.table("leased_ports")?, _programs: programs })
    }

    /// Makes these what is on lease.
    pub(crate) fn set(&self, leased: &LeasedPorts) -> Result<(), Error> {
        let present: HashMap<u64, RawPorts> = self.ports.entries()?.into_iter().collect();
        for cookie in present.keys().filter(|cookie| !leased.contains_key(cookie)) {
            self.ports.remove(cookie)?;
        }
        for (cookie, ranges) in leased {
            let ports = RawPorts::new(ranges);
            if present.get(cookie) != Some(&ports) {
                self.ports.insert(cookie, &ports)?;
            }
        }
        Ok(())
    }

    /// Takes them off, of whatever process.
    pub(crate) fn detach(pins: &Path) -> Result<(), Error> {
        HOOKS.detach(pins)
    }
}

/// Has the calling process noted as the one that rebuilds sockets.
fn note_lessee(programs: &Programs) -> Result<(), Error> {
    let program = programs.program("note_lessee")?;
    // SAFETY: an open program, which takes nothing and gives nothing; null options mean defaults.
    let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), ptr::null_mut()) };
    if code == 0 { Ok(()) } else { Err(Error::code("bpf(BPF_PROG_TEST_RUN)", "note_lessee", code)) }
}
