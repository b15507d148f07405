//! Network namespaces without names, a place for pins, and programs run on packets.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod packet;
pub(crate) mod pair;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_datapath::Datapath;

/// How long a condition is waited for before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The index of an interface of the namespace that the calling thread is in; 0: there is none.
pub(crate) fn index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("no zero in it");
    // SAFETY: a terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// What the programs have counted so far under this name.
pub(crate) fn counter(datapath: &Datapath, name: &str) -> u64 {
    let counters = datapath.counters().expect("counters");
    counters.iter().find(|(known, _)| *known == name).expect("a known counter").1
}

/// False, loudly, when the tests cannot run for want of privileges.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        // Not by a macro, whose output the test harness would keep to itself.
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("SKIPPED: {test} loads eBPF programs and needs root\n");
        io::stderr().write_all(line.as_bytes()).expect("write to stderr");
    }
    root
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A network namespace; it goes when this is dropped and nothing else holds it.
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    pub(crate) fn new() -> Self {
        let made = thread::spawn(|| {
            // SAFETY: takes flags; only this thread changes its namespace.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).expect("unshare(CLONE_NEWNET)");
            File::open("/proc/thread-self/ns/net").expect("open the namespace")
        });
        let namespace = Self(made.join().expect("the thread ends").into());
        namespace.run("ip link set lo up");
        // An interface's link-local address would be tentative for up to two seconds (RFC 4862 section 5.4).
        for which in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{which}.accept_dad"), "0");
        }
        namespace
    }

    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves the calling thread there for good.
    pub(crate) fn enter(&self) {
        // SAFETY: an open namespace descriptor.
        check(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) }).expect("setns");
    }

    /// Runs one command in it; returns what that prints.
    pub(crate) fn run(&self, command: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .args(command.split_whitespace())
            .output()
            .expect("nsenter runs");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Does something in it, on a thread of its own: /proc shows the opening thread's namespace.
    fn on<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter();
                work()
            });
            there.join().expect("the thread ends")
        })
    }

    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.on(|| std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{key}: {error}"));
    }

    /// Waits until an interface has an IPv6 link-local address that it may use.
    ///
    /// The kernel makes it when it has noticed the carrier, by a work item of its own. A router without one sends no
    /// neighbour solicitation for what it forwards (`ndisc_send_ns` gives up in silence), and after three of them it
    /// says that the host is unreachable.
    pub(crate) fn wait_link_local(&self, name: &str) {
        let start = Instant::now();
        // From include/uapi/linux/if_addr.h.
        const IFA_F_TENTATIVE: u8 = 0x40;
        const LINK_SCOPE: &str = "20";
        loop {
            let addresses = self.on(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6")).expect("if_inet6");
            let usable = addresses.lines().any(|line| {
                // Address, index, prefix length, scope, flags, name.
                let fields: Vec<_> = line.split_whitespace().collect();
                let [.., LINK_SCOPE, flags, of] = fields[..] else { return false };
                of == name && u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & IFA_F_TENTATIVE == 0)
            });
            if usable {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{name} has no link-local address:\n{addresses}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two ends of a veth pair, both ready for use.
pub(crate) fn veth(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str) {
    a.run(&format!("ip link add {a_name} type veth peer name {b_name} netns {}", b.path()));
    a.run(&format!("ip link set {a_name} up"));
    b.run(&format!("ip link set {b_name} up"));
    a.wait_link_local(a_name);
    b.wait_link_local(b_name);
}

/// A TUN device of the calling thread's namespace, whole IP packets without a header. Gone when dropped.
pub(crate) fn tun(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun").expect("open /dev/net/tun");
    // SAFETY: ifreq is plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: an open TUN file and a request that the kernel reads.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).expect("TUNSETIFF");
    file
}

/// A bpffs: the one of the machine, or one that only the calling thread and its children see. What was pinned in it
/// goes with this.
pub(crate) struct Bpffs {
    root: PathBuf,
    name: String,
}

impl Bpffs {
    pub(crate) fn new() -> Self {
        // SAFETY: takes flags; only this thread changes its mounts.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).expect("unshare(CLONE_NEWNS)");
        // SAFETY: terminated strings and null for what the call ignores.
        let private = unsafe {
            libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            )
        };
        check(private).expect("mount(MS_PRIVATE)");
        // SAFETY: terminated strings; tmpfs needs no data.
        let tmpfs = unsafe { libc::mount(c"t".as_ptr(), c"/mnt".as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
        check(tmpfs).expect("mount(tmpfs)");
        static MADE: AtomicUsize = AtomicUsize::new(0);
        Self {
            root: whimbrel_datapath::bpffs(Path::new("/mnt/bpf")).expect("a bpffs"),
            name: format!("whimbrel-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// A directory in it. The bpffs may be the machine's, so others' lie elsewhere.
    pub(crate) fn pins(&self, name: &str) -> PathBuf {
        self.root.join(format!("{}-{name}", self.name))
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}-", self.name)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// What a program made of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) verdict: i32,
    pub(crate) packet: Vec<u8>,
    pub(crate) mark: u32,
}

pub(crate) const NEXT: i32 = -1;
pub(crate) const SHOT: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

/// BPF_PROG_TEST_RUN: the packet begins with an Ethernet header, the device is the namespace's loopback.
pub(crate) fn run(program: BorrowedFd<'_>, packet: &[u8]) -> Outcome {
    run_on(1, program, packet)
}

/// The same, come in by another device of the namespace that the calling thread is in.
pub(crate) fn run_on(interface: u32, program: BorrowedFd<'_>, packet: &[u8]) -> Outcome {
    let mut out = vec![0u8; packet.len() + 256];
    // Offsets in struct __sk_buff of linux/bpf.h.
    const MARK: usize = 8;
    const IFINDEX: usize = 40;
    let mut context = [0u8; 192];
    context[IFINDEX..IFINDEX + 4].copy_from_slice(&interface.to_ne_bytes());
    let mut options = libbpf_sys::bpf_test_run_opts::default();
    options.sz = size_of_val(&options) as libbpf_sys::size_t;
    options.data_in = packet.as_ptr().cast();
    options.data_size_in = packet.len() as u32;
    options.data_out = out.as_mut_ptr().cast();
    options.data_size_out = out.len() as u32;
    let mut context_out = context;
    options.ctx_in = context.as_ptr().cast();
    options.ctx_size_in = context.len() as u32;
    options.ctx_out = context_out.as_mut_ptr().cast();
    options.ctx_size_out = context_out.len() as u32;
    options.repeat = 1;
    // SAFETY: buffers of the sizes given, living through the call.
    let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(code, 0, "test run: {}", io::Error::from_raw_os_error(-code));
    out.truncate(options.data_size_out as usize);
    let mark = u32::from_ne_bytes(context_out[MARK..MARK + 4].try_into().expect("four bytes"));
    Outcome { verdict: options.retval.cast_signed(), packet: out, mark }
}
