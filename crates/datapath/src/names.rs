//! The programs that tell programs what addresses are, and mean (`bpf/names.bpf.c`), on the root of cgroup v2.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;

use crate::abi::{Alias, RawAddress, RawAlias};
use crate::cgroup::Hooks;
use crate::error::Error;
use crate::object::Programs;
use crate::table::Table;

const HOOKS: Hooks = Hooks {
    pinned_as: "names",
    programs: &[
        ("show_peer_v4", libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME),
        ("show_peer_v6", libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME),
        ("show_own_v4", libbpf_sys::BPF_CGROUP_INET4_GETSOCKNAME),
        ("show_own_v6", libbpf_sys::BPF_CGROUP_INET6_GETSOCKNAME),
        ("show_sender_v4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
        ("show_sender_v6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
        ("send_to_v4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
        ("send_to_v6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
        ("reach_v4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
        ("reach_v6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
        ("bind_to_v4", libbpf_sys::BPF_CGROUP_INET4_BIND),
        ("bind_to_v6", libbpf_sys::BPF_CGROUP_INET6_BIND),
    ],
    maps: &["aliases", "asked_own", "asked_peer", "shown"],
};

/// The programs, loaded and attached. Their links are pinned and outlive this.
#[derive(Debug)]
pub(crate) struct Names {
    aliases: Table<RawAlias, RawAddress>,
    _programs: Programs,
}

impl Names {
    /// Attaches all of them, those of a process before this one being replaced without a gap.
    pub(crate) fn attach(datapath: &Programs, pins: &Path) -> Result<Self, Error> {
        let programs = Programs::load_names(datapath, pins)?;
        HOOKS.attach(&programs, pins)?;
        Ok(Self { aliases: programs.table("aliases")?, _programs: programs })
    }

    /// Makes these the aliases.
    pub(crate) fn set_aliases(&self, aliases: &BTreeMap<Alias, IpAddr>) -> Result<(), Error> {
        let raw = |(alias, meant): (&Alias, &IpAddr)| (RawAlias::new(alias), RawAddress::new(*meant));
        let wanted: HashMap<RawAlias, RawAddress> = aliases.iter().map(raw).collect();
        let present: HashMap<RawAlias, RawAddress> = self.aliases.entries()?.into_iter().collect();
        for alias in present.keys().filter(|alias| !wanted.contains_key(alias)) {
            self.aliases.remove(alias)?;
        }
        for (alias, meant) in wanted.iter().filter(|(alias, meant)| present.get(alias) != Some(meant)) {
            self.aliases.insert(alias, meant)?;
        }
        Ok(())
    }

    /// Takes all of them off, of whatever process.
    pub(crate) fn detach(pins: &Path) -> Result<(), Error> {
        HOOKS.detach(pins)
    }
}
