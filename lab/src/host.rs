//! A host, router or middlebox: one network namespace.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::lab::LabInner;

use crate::netns::Netns;
use crate::network::Port;
use crate::process::Cmd;
use crate::{Error, Result, sys};

/// A TAP interface; it exists as long as the descriptor.
pub(crate) type Tap = Arc<OwnedFd>;

/// Frames that a TAP interface keeps for the emulator; it reads them at once, the queue of a link is its own.
const TAP_QUEUE: u32 = 4000;

/// A machine of the lab; clones are the same machine.
#[derive(Clone)]
pub struct Host(Arc<HostInner>);

struct HostInner {
    name: String,
    netns: Netns,
    dir: PathBuf,
    lab: Arc<LabInner>,
    /// Interfaces that can be plugged from network to network.
    plugs: Mutex<HashMap<String, Plug>>,
    labels: Mutex<HashMap<String, u32>>,
    /// Next port for a server.
    port: AtomicU16,
}

/// First port that the lab gives to a server.
const FIRST_PORT: u16 = 7000;

/// An interface of a mobile host.
pub(crate) struct Plug {
    /// `None`: a veth, which goes with its network.
    pub(crate) tap: Option<Tap>,
    /// Present while it is plugged in.
    pub(crate) port: Option<Port>,
}

impl Host {
    pub(crate) fn create(run: &str, dir: &Path, name: &str, lab: Arc<LabInner>) -> Result<Self> {
        let netns = Netns::create(&format!("wb-{run}-{name}"))?;
        let dir = dir.join(name);
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        let (plugs, labels) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(HostInner {
            name: name.into(),
            netns,
            dir,
            lab,
            plugs,
            labels,
            port: AtomicU16::new(FIRST_PORT),
        })))
    }

    /// Its name in the lab.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its network namespace: `nsenter --net=/run/netns/NAME`.
    pub fn netns_name(&self) -> &str {
        self.0.netns.name()
    }

    /// Directory for its logs and files; it goes with the lab.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// A program to run inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Cmd {
        Cmd::new(self, program.as_ref())
    }

    /// Runs `f` on a thread inside; sockets that it makes belong to this host wherever they are used later.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        self.0.netns.enter(f)
    }

    /// Runs commands of ip(8), written without the leading `ip`, in one batch; the first failure ends it.
    pub fn ip<S: AsRef<str>>(&self, commands: impl IntoIterator<Item = S>) -> Result<()> {
        self.ip_batch(&[], commands)
    }

    /// The same as `ip -4`.
    pub(crate) fn ip4<S: AsRef<str>>(&self, commands: impl IntoIterator<Item = S>) -> Result<()> {
        self.ip_batch(&["-4"], commands)
    }

    /// The same as `ip -6`.
    pub(crate) fn ip6<S: AsRef<str>>(&self, commands: impl IntoIterator<Item = S>) -> Result<()> {
        self.ip_batch(&["-6"], commands)
    }

    fn ip_batch<S: AsRef<str>>(&self, family: &[&str], commands: impl IntoIterator<Item = S>) -> Result<()> {
        let batch: String = commands.into_iter().map(|c| c.as_ref().to_owned() + "\n").collect();
        if batch.is_empty() {
            return Ok(());
        }
        match self.command("ip").args(family).args(["-batch", "-"]).stdin(batch.clone()).run() {
            Ok(_) => Ok(()),
            Err(Error::Command { host, status, stderr, .. }) => {
                let command = format!("ip -batch: {}", batch.trim_end().replace('\n', "; "));
                Err(Error::Command { command, host, status, stderr })
            }
            Err(e) => Err(e),
        }
    }

    /// Runs one command of ip(8) that prints, such as `-j addr show`, and gives what it prints.
    pub fn ip_output(&self, arguments: &str) -> Result<String> {
        self.command("ip").args(arguments.split_whitespace()).run()
    }

    /// Loads a ruleset in nft(8)'s syntax.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.command("nft").args(["-f", "-"]).stdin(ruleset).run().map(drop)
    }

    /// Sets a variable of sysctl(8) of this namespace.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.enter(|| fs::write(&path, value))?
            .map_err(|e| Error::call("write", format!("{key} on {}", self.name()), e))
    }

    /// Reads a variable of sysctl(8) of this namespace.
    pub fn sysctl_value(&self, key: &str) -> Result<String> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let text = self.enter(|| fs::read_to_string(&path))?;
        Ok(text.map_err(|e| Error::call("read", format!("{key} on {}", self.name()), e))?.trim().to_owned())
    }

    /// Makes reverse path filtering strict, on interfaces that exist and on later ones.
    pub fn strict_rp_filter(&self) -> Result<()> {
        // The larger of `all` and the interface's own value counts, and 2 means loose: so each interface is set too.
        self.sysctl("net.ipv4.conf.all.rp_filter", "1")?;
        self.sysctl("net.ipv4.conf.default.rp_filter", "1")?;
        for dev in self.interfaces()? {
            self.sysctl(&format!("net.ipv4.conf.{dev}.rp_filter"), "1")?;
        }
        Ok(())
    }

    /// How many packets its reverse path filter has dropped so far (`TcpExt: IPReversePathFilter`).
    pub fn reverse_path_drops(&self) -> Result<u64> {
        let text = self.enter(|| fs::read_to_string("/proc/thread-self/net/netstat"))?;
        let text = text.map_err(|e| Error::call("read", format!("/proc/net/netstat on {}", self.name()), e))?;
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
        let (names, values) = (lines.next().into_iter().flatten(), lines.next().into_iter().flatten());
        let found = names.zip(values).find(|(name, _)| *name == "IPReversePathFilter");
        found.and_then(|(_, value)| value.parse().ok()).ok_or_else(|| Error::Output {
            program: "/proc/net/netstat".into(),
            expected: "a number for IPReversePathFilter",
            got: text.chars().take(300).collect(),
        })
    }

    /// Names of its interfaces.
    pub fn interfaces(&self) -> Result<Vec<String>> {
        let text = self.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        let text = text.map_err(|e| Error::call("read", format!("/proc/net/dev on {}", self.name()), e))?;
        Ok(text.lines().skip(2).filter_map(|l| Some(l.split_once(':')?.0.trim().to_owned())).collect())
    }

    /// Makes it translate what leaves by `outside` to that interface's address (masquerade). `random_ports`: source
    /// ports are always changed, as carrier-grade NATs do.
    pub fn masquerade(&self, outside: &str, random_ports: bool) -> Result<()> {
        let how = if random_ports { " fully-random" } else { "" };
        self.nft(&format!(
            "table inet nat {{ chain postrouting {{ type nat hook postrouting priority srcnat; \
             oifname \"{outside}\" meta nfproto ipv4 masquerade{how};\n}}\n}}\n"
        ))
    }

    /// Makes it a firewall: lets UDP, ICMP and new connections go out by `outside` and their answers in, and drops what
    /// conntrack calls invalid. TCP that it did not see from its first packet is invalid.
    pub fn firewall(&self, outside: &str) -> Result<()> {
        self.nft(&format!(
            "table inet filter {{ chain forward {{ type filter hook forward priority filter; policy drop; \
             ct state invalid drop; ct state established,related accept; oifname \"{outside}\" accept;\n}}\n}}\n"
        ))?;
        // After the rules: the variable appears with conntrack's first use in the namespace.
        self.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")
    }

    /// Makes a bridge.
    pub(crate) fn bridge(&self, name: &str) -> Result<()> {
        self.ip([
            format!("link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"),
            format!("link set {name} up"),
        ])
    }

    /// Opens a new TAP interface and sets it up.
    pub(crate) fn tap(&self, interface: &str) -> Result<Tap> {
        let opened: io::Result<OwnedFd> = self.enter(|| sys::open_tap(interface))?;
        let tap = opened.map_err(|e| Error::call("ioctl(TUNSETIFF)", format!("{interface} on {}", self.name()), e))?;
        self.ip([format!("link set {interface} txqueuelen {TAP_QUEUE} up")])?;
        Ok(Arc::new(tap))
    }

    /// True if the interface is up and has its carrier, as far as the kernel has noticed.
    pub(crate) fn is_running(&self, interface: &str) -> bool {
        self.enter(|| sys::interface_running(interface)).is_ok_and(|running| running.unwrap_or(false))
    }

    pub(crate) fn netns_fd(&self) -> BorrowedFd<'_> {
        self.0.netns.as_fd()
    }

    pub(crate) fn lab(&self) -> &LabInner {
        &self.0.lab
    }

    pub(crate) fn plugs(&self) -> MutexGuard<'_, HashMap<String, Plug>> {
        self.0.plugs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A label that no other program of this host has: the given one, or with a number.
    pub(crate) fn unique_label(&self, label: &str) -> String {
        let mut labels = self.0.labels.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let n = labels.entry(label.into()).and_modify(|n| *n += 1).or_insert(1);
        if *n == 1 { label.into() } else { format!("{label}.{n}") }
    }

    /// A port that no server of the lab uses on this host yet.
    pub fn next_port(&self) -> u16 {
        self.0.port.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn log_paths(&self, label: &str) -> (PathBuf, PathBuf) {
        let label = self.unique_label(label);
        (self.0.dir.join(format!("{label}.out")), self.0.dir.join(format!("{label}.err")))
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.name())
    }
}
