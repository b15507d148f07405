//! A lab: hosts, the links between them, and their end.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::link::{Emulator, Link, Shape};
use crate::run::Run;
use crate::{Error, Host, Random, Result};

/// How a lab is made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Seed of all randomness of links; `None`: a fresh one, which [`Lab::seed`] tells.
    pub seed: Option<u64>,
    /// The `whimbrel` binary; `None`: `WHIMBREL_BIN`, or the one beside this program.
    pub whimbrel: Option<PathBuf>,
    /// `log` of the daemons' configuration; `None`: their default.
    pub log_level: Option<String>,
    /// Write a pcap file of every emulated link to this directory.
    pub captures: Option<PathBuf>,
}

/// What two interfaces are connected by.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are a handful of them, and boxes would be in the way of every user"
)]
pub enum Wire {
    /// A veth pair: no delay, no limit, segmentation offload as the kernel does it. For throughput figures.
    Veth,
    /// An emulated link, each direction with its own shape.
    Emulated {
        /// From the first end to the second.
        up: Shape,
        /// From the second end to the first.
        down: Shape,
    },
}

impl Wire {
    /// An emulated link that is the same in both directions.
    pub fn shaped(shape: Shape) -> Self {
        Self::Emulated { up: shape.clone(), down: shape }
    }
}

/// Hosts and links of one run. Dropping it ends all processes in them and removes everything.
pub struct Lab {
    // Order matters: links stop before namespaces go, the run's directory goes last.
    inner: Arc<LabInner>,
    hosts: Vec<Host>,
    /// Where logs and files of the hosts go before they are removed.
    kept: Option<PathBuf>,
    run: Run,
}

/// What hosts need of their lab.
pub(crate) struct LabInner {
    emulator: Emulator,
    seed: u64,
    captures: Option<PathBuf>,
    whimbrel: Option<PathBuf>,
    log_level: Option<String>,
    /// Host and log of every daemon that was started.
    logs: Mutex<Vec<(String, PathBuf)>>,
    used_captures: Mutex<HashSet<PathBuf>>,
    /// Other labs that were made from this one.
    others: AtomicU32,
}

impl Lab {
    /// An empty lab. Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and /dev/net/tun.
    pub fn new(options: Options) -> Result<Self> {
        let seed = options.seed.unwrap_or_else(|| Random::fresh_seed() >> 32);
        let run = Run::create()?;
        if let Some(dir) = &options.captures {
            std::fs::create_dir_all(dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        }
        let inner = LabInner {
            emulator: Emulator::start(seed)?,
            seed,
            captures: options.captures,
            whimbrel: options.whimbrel,
            log_level: options.log_level,
            logs: Mutex::default(),
            used_captures: Mutex::default(),
            others: AtomicU32::default(),
        };
        Ok(Self { inner: Arc::new(inner), hosts: Vec::new(), kept: None, run })
    }

    /// Another empty lab with the same daemons and seed, for what is tried many times from the beginning. Where
    /// captures are kept, so are its own and its hosts' files, in a directory beside them.
    pub(crate) fn another(&self) -> Result<Self> {
        let LabInner { whimbrel, log_level, captures, seed, others, .. } = &*self.inner;
        let (whimbrel, log_level) = (whimbrel.clone(), log_level.clone());
        let number = others.fetch_add(1, Ordering::Relaxed).to_string();
        let kept = captures.as_ref().map(|captures| captures.with_file_name(number));
        let captures = kept.as_ref().map(|kept| kept.join("captures"));
        let mut lab = Self::new(Options { whimbrel, log_level, seed: Some(*seed), captures })?;
        lab.kept = kept;
        Ok(lab)
    }

    /// Six random hexadecimal digits that name the run: its namespaces are `wb-ID-HOST`.
    pub fn id(&self) -> &str {
        self.run.id()
    }

    /// Seed of the links' randomness: the same seed gives the same losses.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Directory for files of this run; it goes with the lab.
    pub fn dir(&self) -> &Path {
        self.run.dir()
    }

    /// All hosts and routers.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host: `lo` up, loose rp_filter (as systemd sets it), no duplicate address detection.
    pub fn host(&mut self, name: &str) -> Result<Host> {
        let host = Host::create(self.run.id(), self.run.dir(), name, self.inner.clone())?;
        host.ip(["link set lo up"])?;
        host.sysctl("net.ipv4.conf.all.rp_filter", "2")?;
        host.sysctl("net.ipv4.conf.default.rp_filter", "2")?;
        host.sysctl("net.ipv6.conf.all.accept_dad", "0")?;
        host.sysctl("net.ipv6.conf.default.accept_dad", "0")?;
        self.hosts.push(host.clone());
        Ok(host)
    }

    /// A router: forwards IPv4 and IPv6, filters nothing, sends no redirects.
    pub fn router(&mut self, name: &str) -> Result<Host> {
        let host = self.host(name)?;
        for (key, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            ("net.ipv4.conf.all.send_redirects", "0"),
            ("net.ipv4.conf.default.send_redirects", "0"),
        ] {
            host.sysctl(key, value)?;
        }
        Ok(host)
    }

    /// Connects a new interface of each host. The link is `None` for a veth pair.
    pub fn connect(&self, a: (&Host, &str), b: (&Host, &str), wire: &Wire) -> Result<Option<Link>> {
        self.inner.connect(a, b, wire)
    }

    /// Connects two routers by a numbered transfer network (`n` up to 31): 192.0.2.128+4n/30 and 2001:db8:f:n::/64, the
    /// first address at `a`. Neighbours are entered for good, so that no packet ever waits for ARP across a long link.
    pub fn transfer(&self, n: u8, a: (&Host, &str), b: (&Host, &str), wire: &Wire) -> Result<Transfer> {
        let link = self.connect(a, b, wire)?;
        let net = 128 + 4 * n;
        let mac = |end: u8| format!("02:00:00:00:{n:02x}:{end:02x}");
        let v4 = [Ipv4Addr::new(192, 0, 2, net + 1), Ipv4Addr::new(192, 0, 2, net + 2)];
        let v6 = [1, 2].map(|end| Ipv6Addr::new(0x2001, 0xdb8, 0xf, n.into(), 0, 0, 0, end));
        for (me, other, (host, dev)) in [(0, 1, a), (1, 0, b)] {
            host.ip([
                format!("link set {dev} down"),
                format!("link set {dev} address {}", mac(me as u8)),
                format!("link set {dev} up"),
                format!("addr add {}/30 dev {dev}", v4[me]),
                format!("addr add {}/64 dev {dev} nodad", v6[me]),
                format!("neigh replace {} lladdr {} dev {dev} nud permanent", v4[other], mac(other as u8)),
                format!("neigh replace {} lladdr {} dev {dev} nud permanent", v6[other], mac(other as u8)),
            ])?;
        }
        Ok(Transfer { link, v4, v6 })
    }

    /// Fails if the thread that carries frames has died of a panic in an observer or a hook.
    pub fn check_links(&self) -> Result<()> {
        if self.inner.emulator.works() { Ok(()) } else { Err(Error::Usage("the link emulator has died".into())) }
    }

    /// Copies logs and files of all hosts to a directory, which is made if it is missing.
    pub fn keep_files(&self, to: &Path) -> Result<()> {
        std::fs::create_dir_all(to).map_err(|e| Error::call("mkdir", to.display().to_string(), e))?;
        for host in &self.hosts {
            copy_tree(host.dir(), &to.join(host.name()))?;
        }
        Ok(())
    }

    /// Host and log file of every daemon that was started in this lab.
    pub fn daemon_logs(&self) -> Vec<(String, PathBuf)> {
        self.inner.logs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.kept.as_ref().map(|kept| self.keep_files(kept)) {
            eprintln!("{error}");
        }
        // Before the hosts go: their namespaces' names are what finds the processes inside.
        self.run.remove();
    }
}

/// A transfer network between two routers.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The emulated link, if it is one.
    pub link: Option<Link>,
    /// Addresses of both ends.
    pub v4: [Ipv4Addr; 2],
    /// Addresses of both ends.
    pub v6: [Ipv6Addr; 2],
}

impl LabInner {
    pub(crate) fn whimbrel(&self) -> Option<&Path> {
        self.whimbrel.as_deref()
    }

    pub(crate) fn log_level(&self) -> Option<&str> {
        self.log_level.as_deref()
    }

    pub(crate) fn record_log(&self, host: &str, log: &Path) {
        self.logs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((host.into(), log.into()));
    }

    pub(crate) fn connect(&self, a: (&Host, &str), b: (&Host, &str), wire: &Wire) -> Result<Option<Link>> {
        match wire {
            Wire::Veth => {
                let (host, dev) = a;
                let (far, peer) = b;
                host.ip([format!("link add {dev} type veth peer name {peer} netns {}", far.netns_name())])?;
                host.ip([format!("link set {dev} up")])?;
                far.ip([format!("link set {peer} up")])?;
                Ok(None)
            }
            Wire::Emulated { up, down } => {
                let taps = [a.0.tap(a.1)?, b.0.tap(b.1)?];
                Ok(Some(self.plug(format!("{}:{}–{}:{}", a.0.name(), a.1, b.0.name(), b.1), taps, up, down)?))
            }
        }
    }

    pub(crate) fn plug(&self, name: String, taps: [crate::host::Tap; 2], up: &Shape, down: &Shape) -> Result<Link> {
        let link = self.emulator.add(name, taps, up.clone(), down.clone());
        if let Some(dir) = &self.captures {
            link.capture(&self.capture_path(dir, link.name()))?;
        }
        Ok(link)
    }

    /// Takes out the link that this interface is an end of.
    pub(crate) fn unplug(&self, tap: &crate::host::Tap) {
        self.emulator.remove_links_of(tap);
    }

    fn capture_path(&self, dir: &Path, link: &str) -> PathBuf {
        let stem = link.replace([':', '–'], "-");
        let mut used = self.used_captures.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut path = dir.join(format!("{stem}.pcap"));
        let mut n = 2;
        while !used.insert(path.clone()) {
            path = dir.join(format!("{stem}.{n}.pcap"));
            n += 1;
        }
        path
    }
}

/// Copies regular files; sockets, pins and the like have no meaning without their run.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let on = |call, path: &Path| {
        let path = path.display().to_string();
        move |e| Error::call(call, path, e)
    };
    std::fs::create_dir_all(to).map_err(on("mkdir", to))?;
    for entry in std::fs::read_dir(from).map_err(on("readdir", from))?.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && entry.file_name() != "bpffs" {
            copy_tree(&path, &target)?;
        } else if kind.is_file() {
            std::fs::copy(&path, &target).map_err(on("copy", &path))?;
        }
    }
    Ok(())
}
