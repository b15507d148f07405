//! The option in TCP's handshake by which hosts know of each other (`bpf/greetings.bpf.c`), on the root of cgroup v2.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use crate::cgroup::root_cgroup;
use crate::error::Error;
use crate::object::Programs;

const PROGRAM: &str = "greet";

/// The program, loaded and attached until this is dropped: without a process that hears of it nothing is to be said.
#[derive(Debug)]
pub(crate) struct Greetings {
    _link: OwnedFd,
    _programs: Programs,
}

impl Greetings {
    pub(crate) fn attach(datapath: &Programs, pins: &Path) -> Result<Self, Error> {
        let programs = Programs::load_greetings(datapath, pins)?;
        let root = root_cgroup()?;
        let program = programs.program(PROGRAM)?.as_raw_fd();
        // SAFETY: an open directory and an open program; null options mean defaults, which let others be beside it.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(program, root.as_raw_fd(), libbpf_sys::BPF_CGROUP_SOCK_OPS, ptr::null())
        };
        if fd < 0 {
            return Err(Error::code("bpf(BPF_LINK_CREATE)", PROGRAM, fd));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let link = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { _link: link, _programs: programs })
    }
}
