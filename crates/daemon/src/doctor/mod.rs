//! What stands between this host and a working daemon: looked at, judged, and how to mend it.
//!
//! Needs no running daemon and changes nothing.

mod answers;
mod firewall;
#[cfg(feature = "dbus")]
mod services;
mod wifi;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use whimbrel_ipc::{
    Client, Configuration, Connection, ConnectionState, Finding, NameServer, NameServerState, Peer, Status, Verdict,
};
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::privilege::{Capabilities, Capability};
use whimbrel_kernel::sysctl;

use crate::config::{self, Config, ConfigError, Lendable};
use crate::host::table::has_flows;
use crate::role::anchor::offer;
use crate::role::anchor::offer::Fault;
use crate::role::relocation::process::tool;
use crate::store::known_keys::{KNOWN_KEYS, KnownKeys};
use crate::{identity, instance};

use firewall::{Direction, Fate};

/// The check of the file alone.
const CONFIGURATION: &str = "configuration";

/// What is looked at.
#[derive(Clone, Debug)]
pub struct Patient<'a> {
    /// The configuration file; the default one where absent.
    pub config: Option<&'a Path>,
    /// The run directory of the daemon that is meant.
    pub run_dir: &'a Path,
}

/// Looks at everything.
#[must_use]
pub fn examine(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let running = instance::is_running(patient.run_dir);
    let client = || Client::connect(patient.run_dir);
    let used = running.then(|| client()?.configuration()).and_then(Result::ok);
    let status = running.then(|| client()?.status()).and_then(Result::ok);
    // The file that a running daemon reads, where nobody names another.
    let of_daemon =
        used.as_ref().map(|used| used.path.as_path()).filter(|path| *path != Path::new(config::DEFAULT_PATH));
    let path = patient.config.or(of_daemon);
    let config = match config::read(path) {
        Ok(config) => config,
        Err(error) => {
            findings.push(
                Finding::problem("daemon", CONFIGURATION, error.to_string()).lost("the daemon does not start").mend(
                    match error {
                        ConfigError::Missing(_) => {
                            "name one that is there, or leave `--config` out to use the defaults"
                        }
                        _ => "correct the file, or remove it to use the defaults",
                    },
                ),
            );
            Config::default()
        }
    };
    findings.extend(privileges());
    findings.extend(kernel());
    findings.push(wifi::finding());
    findings.push(tun_device());
    findings.push(bpf_file_system());
    findings.push(tool::finding(config.processes));
    findings.push(port(config.port, running));
    findings.extend(config.doubts.iter().map(|doubt| {
        Finding::warning("daemon", CONFIGURATION, doubt.to_string()).lost(doubt.lost).mend("correct the file there")
    }));
    findings.extend(event_log(&config, status.as_ref().map(|status| status.state_dir.as_path())));
    findings.extend(metrics(&config, running));
    findings.extend(firewall_findings(config.port, &ruleset()));
    findings.extend(reverse_path_filters());
    #[cfg(feature = "dbus")]
    findings.push(services::finding());
    findings.extend(forwarding(&config));
    findings.extend(config.anchor.iter().flat_map(|anchor| lending(&anchor.lendable())));
    findings.extend(config.psk_open.as_deref().map(|path| {
        Finding::warning("daemon", "psk_file", format!("others than its owner may read or write {}", path.display()))
            .lost("whoever can read the key can pass for one of your hosts")
            .mend(format!("`chmod 600 {}`", path.display()))
    }));
    findings.push(daemon(patient.run_dir, running));
    if running {
        findings.extend(protection(patient.run_dir, &config, status.as_ref()));
        findings.extend(status.as_ref().and_then(|status| name_server(status.name_server.as_ref()?)));
    } else {
        findings.extend(leftovers(patient.run_dir, &Path::new("/sys/class/net").join(crate::DEVICE)));
    }
    let in_force = used.as_ref().map(|used| in_force(path.unwrap_or(Path::new(config::DEFAULT_PATH)), used));
    if in_force.as_ref().is_some_and(|finding| finding.verdict == Verdict::Problem) {
        // One fault, told once: with what it means for the daemon that runs.
        findings.retain(|finding| finding.check != CONFIGURATION);
    }
    findings.extend(in_force);
    findings
}

/// Whether the running daemon does what the file at `path` says.
fn in_force(path: &Path, used: &Configuration) -> Finding {
    let check = "configuration in force";
    let shown = used.path.display();
    let same = match (fs::canonicalize(path), fs::canonicalize(&used.path)) {
        (Ok(looked_at), Ok(used)) => looked_at == used,
        _ => path == used.path,
    };
    if !same {
        return Finding::warning("daemon", check, format!("the daemon reads {shown}, not {}", path.display()))
            .lost(format!("what {} says does not count", path.display()))
            .mend(format!("`whimbrel doctor --config {shown}`, or start the daemon with the other file"));
    }
    if let Some(error) = &used.error {
        return Finding::problem("daemon", check, format!("the file has changed and cannot be used: {error}"))
            .lost("the daemon works on as before, and will not start again")
            .mend("correct the file");
    }
    let differs = |keys: &[String]| format!("{shown} has changed since the daemon read it: {}", keys.join(", "));
    let lost = "the daemon works on with the former values";
    if !used.restart.is_empty() {
        let all = [used.restart.as_slice(), used.reload.as_slice()].concat();
        return Finding::warning("daemon", check, differs(&all)).lost(lost).mend(
            "`systemctl restart whimbrel`, or end `whimbrel up` and start it again: no connection is lost by that",
        );
    }
    if !used.reload.is_empty() {
        return Finding::warning("daemon", check, differs(&used.reload))
            .lost(lost)
            .mend("`systemctl reload whimbrel`, or `kill -HUP` the daemon");
    }
    Finding::ok(
        "daemon",
        check,
        format!("what {shown} says{}", if used.path.exists() { "" } else { " (it is not there: the defaults)" }),
    )
}

fn privileges() -> Vec<Finding> {
    let held = match Capabilities::effective() {
        Ok(held) => held,
        Err(error) => {
            return vec![
                Finding::warning("privileges", "capabilities", error.to_string())
                    .lost("which privileges are missing cannot be told")
                    .mend("see that /proc is mounted, and run `whimbrel doctor` as root"),
            ];
        }
    };
    let needed = [
        (Capability::NetAdmin, Verdict::Problem, "nothing works: addresses, routes and programs cannot be set"),
        (Capability::NetRaw, Verdict::Problem, "connections cannot be introduced, and senders cannot be woken"),
        (Capability::Bpf, Verdict::Problem, "nothing works: programs cannot be loaded"),
        (Capability::Perfmon, Verdict::Problem, "nothing works: programs cannot be loaded"),
        (Capability::SysAdmin, Verdict::Problem, "the daemon does not start: it has to mount a bpffs, and may not"),
        (Capability::DacReadSearch, Verdict::Warning, "`connections` does not say which program has a connection"),
        (Capability::SysPtrace, Verdict::Warning, "`connections` does not say which program has a connection"),
    ];
    needed
        .into_iter()
        .map(|(capability, verdict, lost)| {
            // Before Linux 5.8, and in some containers still, CAP_SYS_ADMIN stands for the younger two.
            let stands_in =
                matches!(capability, Capability::Bpf | Capability::Perfmon) && held.has(Capability::SysAdmin);
            if held.has(capability) || stands_in {
                Finding::ok("privileges", capability.name(), "held")
            } else if capability == Capability::SysAdmin && bpffs_is_mounted() {
                // BPF_MAP_GET_FD_BY_ID asks for it, which the maps that a former daemon left are opened with.
                Finding::warning("privileges", capability.name(), "not held")
                    .lost(
                        "a daemon cannot take over the moved connections of one before it, take sockets of other hosts or run \
                         programs behind an anchor",
                    )
                    .mend("run as root, or give the unit `AmbientCapabilities=` with this capability")
            } else {
                let mend = match capability {
                    Capability::SysAdmin => "`mount -t bpf bpf /sys/fs/bpf` as root, or run the daemon as root",
                    _ => "run as root, or give the unit `AmbientCapabilities=` with this capability",
                };
                Finding::new("privileges", capability.name(), verdict, "not held").lost(lost).mend(mend)
            }
        })
        .collect()
}

fn kernel() -> Vec<Finding> {
    let may_try = Capabilities::effective().is_ok_and(|held| {
        held.has(Capability::SysAdmin) || (held.has(Capability::Bpf) && held.has(Capability::NetAdmin))
    });
    if !may_try {
        return vec![
            Finding::warning("kernel", "BPF", "cannot be tried without privileges")
                .mend("run `whimbrel doctor` as root"),
        ];
    }
    let features = whimbrel_datapath::features();
    let checks = [
        ("BTF (/sys/kernel/btf/vmlinux)", features.btf),
        ("BPF ring buffer", features.ring_buffer),
        ("bpf_redirect_neigh", features.redirect_neigh),
        ("BPF programs on tc", features.datapath),
        ("BPF programs on sockets", features.sockets),
    ];
    let mut findings: Vec<Finding> = checks
        .into_iter()
        .map(|(name, present)| match present {
            true => Finding::ok("kernel", name, "there"),
            false => Finding::problem("kernel", name, "missing")
                .lost("nothing works: the daemon does not start")
                .mend("use Linux 6.1 or newer, as distributions build it"),
        })
        .collect();
    let names = "policies with `view`: programs are shown the addresses that their sockets were made with";
    let leases = "a program behind an anchor may bind a port that was not lent to it, and hears nothing there";
    for (name, present, lost) in
        [("BPF programs on names", features.names, names), ("BPF programs on leases", features.leases, leases)]
    {
        findings.push(match present {
            true => Finding::ok("kernel", name, "there"),
            false => Finding::warning("kernel", name, "missing, or cgroup v2 is not mounted").lost(lost).mend(
                "mount cgroup v2; otherwise use Linux 6.1 or newer, as distributions build it (CONFIG_CGROUP_BPF)",
            ),
        });
    }
    let missing = "missing (Linux 6.6 has it)";
    findings.push(match (features.tcx, features.clsact) {
        (true, _) => Finding::ok("kernel", "tcx", "there"),
        // All works on clsact as well.
        (false, Some(true)) => Finding::ok("kernel", "tcx", format!("{missing}; clsact is there and used instead")),
        (false, Some(false)) => Finding::problem("kernel", "tcx", format!("{missing}, and so is clsact"))
            .lost("nothing works: programs cannot be attached to interfaces")
            .mend("`modprobe -a sch_ingress cls_bpf`; a kernel that lacks these modules cannot be used"),
        (false, None) => {
            Finding::warning("kernel", "tcx", format!("{missing}; whether clsact is there could not be tried"))
                .mend("run `whimbrel doctor` as root")
        }
    });
    let greetings = match features.greetings {
        true => "can be written (`handshake_option = true`)",
        false => "cannot be written (it takes cgroup v2 and Linux 5.15): `handshake_option = true` does nothing",
    };
    findings.push(Finding::ok("kernel", "option in TCP's handshake", greetings));
    // Nothing is lost without it but time.
    let windows = match features.windows {
        true => "can be kept for when they come back to a network (`windows = true`)",
        false => "cannot be kept (Linux 6.5 can): senders that come back to a network find out anew what it takes",
    };
    findings.push(Finding::ok("kernel", "windows of senders", windows));
    findings
}

fn tun_device() -> Finding {
    let check = "/dev/net/tun";
    match fs::OpenOptions::new().read(true).write(true).open(check) {
        Ok(_) => Finding::ok("kernel", check, "there"),
        Err(error) => Finding::problem("kernel", check, error.to_string())
            .lost("the daemon does not start: it has no tunnel")
            .mend(match error.kind() {
                io::ErrorKind::NotFound => {
                    "`mkdir -p /dev/net && mknod /dev/net/tun c 10 200`; in a container, pass the device in"
                }
                io::ErrorKind::PermissionDenied => "run as root",
                _ => "`modprobe tun`",
            }),
    }
}

/// Whether there is a bpffs where distributions mount it.
fn bpffs_is_mounted() -> bool {
    rustix::fs::statfs("/sys/fs/bpf").is_ok_and(|found| found.f_type == libc::BPF_FS_MAGIC)
}

fn bpf_file_system() -> Finding {
    let check = "bpffs on /sys/fs/bpf";
    match rustix::fs::statfs("/sys/fs/bpf") {
        Ok(found) if found.f_type == libc::BPF_FS_MAGIC => Finding::ok("kernel", check, "mounted"),
        Ok(_) => Finding::ok("kernel", check, "not mounted; the daemon mounts one of its own, with CAP_SYS_ADMIN"),
        Err(errno) => Finding::warning("kernel", check, io::Error::from(errno).to_string())
            .lost("the daemon has to mount one of its own; where it may not (CAP_SYS_ADMIN), it does not start")
            .mend("`mount -t bpf bpf /sys/fs/bpf`"),
    }
}

fn port(port: u16, running: bool) -> Finding {
    let check = format!("UDP port {port}");
    let addresses = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let failed = addresses.into_iter().find_map(|address| UdpSocket::bind((address, port)).err());
    match failed {
        None => Finding::ok("network", check, "free"),
        Some(error) if error.kind() == io::ErrorKind::AddrInUse && running => {
            Finding::ok("network", check, "held, by the daemon presumably, since it runs")
        }
        Some(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Finding::problem("network", check, "another program has it")
                .lost("the daemon does not start")
                .mend(format!("`ss -lunp sport = :{port}` shows which; end it, or set another `port` on all hosts"))
        }
        // A kernel without IPv6 is served as well.
        Some(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            Finding::ok("network", check, "free (no IPv6)")
        }
        Some(error) => Finding::problem("network", check, error.to_string()).lost("the daemon does not start").mend(
            match error.kind() {
                io::ErrorKind::PermissionDenied => "run as root, or set a `port` from 1024 up, the same on all hosts",
                _ => "see that IPv4 works on this host (`ip address`), or set another `port`, the same on all hosts",
            },
        ),
    }
}

/// Whether events can be written to a file, where one is configured. `state_dir`: that of the running daemon, if one
/// runs.
fn event_log(config: &Config, state_dir: Option<&Path>) -> Option<Finding> {
    let path = config.event_log.as_ref()?;
    let path = state_dir.unwrap_or(Path::new(identity::DEFAULT_STATE_DIR)).join(path);
    let at = config.event_log_at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("/"));
    // A start makes the state directory where there is none.
    let made = folder == Path::new(identity::DEFAULT_STATE_DIR);
    let (wrong, mend) = match (fs::metadata(folder), fs::metadata(&path)) {
        (_, Ok(found)) if found.is_dir() => {
            (format!("{} is a directory", path.display()), "name a file in it".to_owned())
        }
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound && !made => {
            (format!("there is no directory {}", folder.display()), format!("`mkdir -p {}`", folder.display()))
        }
        (Ok(found), _) if !found.is_dir() => {
            (format!("{} is no directory", folder.display()), "name a file in one".to_owned())
        }
        _ => return Some(Finding::ok("daemon", "event_log", path.display().to_string())),
    };
    Some(Finding::problem("daemon", "event_log", format!("{at}{wrong}")).lost("the daemon does not start").mend(mend))
}

/// Whether figures can be served, where that is configured.
fn metrics(config: &Config, running: bool) -> Option<Finding> {
    let listen = config.metrics.listen?;
    let check = format!("metrics at {listen}");
    let at = config.metrics.listen_at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
    let error = match TcpListener::bind(listen) {
        Ok(_) => return Some(Finding::ok("daemon", check, "free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && running => {
            return Some(Finding::ok("daemon", check, "held, by the daemon presumably, since it runs"));
        }
        Err(error) => error,
    };
    let mend = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "name an address that this host has (`ip address`), such as 127.0.0.1".into()
        }
        io::ErrorKind::AddrInUse => {
            format!("`ss -ltnp sport = :{}` shows who has it; name another port", listen.port())
        }
        _ => "name another address and port".into(),
    };
    Some(
        Finding::problem("daemon", check, format!("{at}cannot `listen` there: {error}"))
            .lost("the daemon does not start")
            .mend(mend),
    )
}

/// The rules in force, as far as they can be read.
enum Ruleset {
    /// nft's listing.
    Read(Value),
    /// Nothing lists them here.
    Unknown(String),
}

fn ruleset() -> Ruleset {
    let listed = Command::new("nft").args(["--json", "list", "ruleset"]).output();
    match listed {
        Ok(output) if output.status.success() => match serde_json::from_slice(&output.stdout) {
            Ok(ruleset) => Ruleset::Read(ruleset),
            Err(error) => Ruleset::Unknown(format!("`nft --json list ruleset` printed no JSON ({error})")),
        },
        Ok(output) => Ruleset::Unknown(format!(
            "`nft --json list ruleset` failed: {}",
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("no reason given")
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ruleset::Unknown("nft is not installed".into()),
        Err(error) => Ruleset::Unknown(format!("nft cannot be run: {error}")),
    }
}

fn firewall_findings(port: u16, ruleset: &Ruleset) -> Vec<Finding> {
    let mut findings = Vec::new();
    match ruleset {
        Ruleset::Unknown(why) => {
            findings.push(Finding::warning("firewall", "nftables", format!("cannot be looked at: {why}")).mend(
                "`apt install nftables`, run `whimbrel doctor` as root, or look yourself that UDP on the control port passes",
            ))
        }
        Ruleset::Read(ruleset) => {
            for (direction, words) in [(Direction::In, "to this host"), (Direction::Out, "from this host")] {
                let check = format!("UDP {port} {words}");
                findings.push(match firewall::fate(ruleset, direction, port) {
                    Fate::Passes => Finding::ok("firewall", check, "passes"),
                    Fate::Maybe(obstacle) => {
                        Finding::warning("firewall", check, format!("may be dropped by {}", obstacle.place))
                            .lost("where it is dropped, nobody can open a session with this host")
                            .mend(obstacle.mend)
                    }
                    // As a firewall of a workstation has it.
                    Fate::Dropped(obstacle) if lets_answers_in(direction, ruleset, port) => {
                        let found = format!("what this host has not asked for is dropped by {}; answers pass", obstacle.place);
                        Finding::warning("firewall", check, found)
                            .lost(
                                "other hosts cannot reach this one first, so neither one that opens a connection to it \
                                 nor one that has moved meanwhile; this host's own moves are not affected",
                            )
                            .mend(obstacle.mend)
                    }
                    Fate::Dropped(obstacle) => Finding::problem("firewall", check, format!("dropped by {}", obstacle.place))
                        .lost("no session with any host, so no connection outlives a move")
                        .mend(obstacle.mend),
                });
            }
        }
    }
    // iptables' own tables do not show in nft; they exist where this file lists any.
    let legacy = fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    if legacy.lines().any(|table| table == "filter") {
        findings.push(
            Finding::warning("firewall", "iptables (legacy)", "has a filter table, which is not looked into")
                .mend(format!("`iptables-legacy -S INPUT` shows it; `iptables-legacy -I INPUT -p udp --dport {port} -j ACCEPT` lets it pass")),
        );
    }
    findings
}

/// Whether what comes in is dropped only as long as this host has not asked for it.
fn lets_answers_in(direction: Direction, ruleset: &Value, port: u16) -> bool {
    let passes = |direction| firewall::fate(ruleset, direction, port) == Fate::Passes;
    direction == Direction::In && passes(Direction::Answer) && passes(Direction::Out)
}

/// What this host is configured to lend has to be there, and be nobody else's.
fn lending(lendable: &Lendable) -> Vec<Finding> {
    let check = "anchor";
    let network = match NetworkMonitor::open().and_then(|mut monitor| monitor.snapshot()) {
        Ok(network) => network,
        Err(error) => {
            let found = format!("this host's addresses cannot be looked at: {error}");
            return vec![
                Finding::warning("network", check, found).lost("whether `[anchor]` can be as it is cannot be told"),
            ];
        }
    };
    let faults = offer::faults(lendable, &[], &network);
    if faults.is_empty() {
        return vec![Finding::ok("network", check, "what `[anchor]` names can be lent")];
    }
    let told = |fault: Fault| {
        let verdict = if fault.whole { Verdict::Problem } else { Verdict::Warning };
        Finding::new("network", check, verdict, format!("`[anchor]`: {}", fault.sentence))
            .lost(fault.lost)
            .mend(fault.mend)
    };
    faults.into_iter().map(told).collect()
}

/// A gateway has to be the router of the hosts that it speaks for.
fn forwarding(config: &Config) -> Option<Finding> {
    let named = |ipv4: bool| config.gateway.behind.iter().any(|prefix| prefix.address.is_ipv4() == ipv4);
    let families = [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")];
    let off = families.into_iter().find(|(ipv4, key)| named(*ipv4) && sysctl::get_number(key).unwrap_or(0) == 0);
    let check = "gateway";
    match off {
        _ if config.gateway.behind.is_empty() => None,
        None => Some(Finding::ok("network", check, "this host forwards for those behind it")),
        Some((_, key)) => {
            let key = key.replace('/', ".");
            let found = format!("`[gateway]` names hosts behind this one, and {key} is off");
            Some(
                Finding::warning("network", check, found)
                    .lost("their packets do not pass here, so nothing of theirs can be moved")
                    .mend(format!("`sysctl -w {key}=1`, if this host is their router; else leave them out")),
            )
        }
    }
}

/// Strict filters are no harm (moved packets are marked), but where a mark does not count they are.
fn reverse_path_filters() -> Vec<Finding> {
    let strict = sysctl::strict_filters();
    if strict.is_empty() {
        return vec![Finding::ok("network", "rp_filter", "not strict on any interface")];
    }
    let check = format!("rp_filter on {}", strict.join(", "));
    let writable = Path::new("/proc/sys/net/ipv4/conf/all/src_valid_mark");
    match rustix::fs::access(writable, rustix::fs::Access::WRITE_OK) {
        Ok(()) => {
            vec![Finding::ok("network", check, "strict; packets of moved connections are marked so that they pass")]
        }
        Err(_) => vec![
            Finding::warning("network", check, "strict, and src_valid_mark cannot be set")
                .lost("packets of moved connections may be dropped")
                .mend("`sysctl -w net.ipv4.conf.all.src_valid_mark=1`, or set `rp_filter` to 2 on these interfaces"),
        ],
    }
}

/// What a daemon that has stopped has left for the next one, if anything. `device`: where its device is, if it is
/// there.
fn leftovers(run_dir: &Path, device: &Path) -> Option<Finding> {
    let store = run_dir.join(crate::store::JOURNAL);
    // One that cannot be read says nothing.
    let flows = fs::File::open(&store).is_ok() && has_flows(&store);
    let device = device.exists();
    let found = match (flows, device) {
        (false, false) => return None,
        (true, true) => format!("connections that a daemon has moved, and its device {}", crate::DEVICE),
        (true, false) => "notes about connections that a daemon has introduced".to_owned(),
        (false, true) => format!("the device {}, of a daemon with this run directory or another", crate::DEVICE),
    };
    let finding = Finding::warning("daemon", "what a stopped daemon has left", found)
        .lost("moved connections go on as far as they can without a daemon, and survive no other move")
        .mend("`whimbrel up` takes them over; `whimbrel clean` removes all that is left, and ends them");
    Some(finding)
}

fn daemon(run_dir: &Path, running: bool) -> Finding {
    let check = format!("daemon in {}", run_dir.display());
    if !running {
        return Finding::warning("daemon", check, "does not run")
            .lost("connections are not protected")
            .mend("`whimbrel up`, or `systemctl start whimbrel`");
    }
    match Client::connect(run_dir).and_then(|mut client| client.status()) {
        Ok(status) if status.ready => Finding::ok("daemon", check, format!("runs as process {}", status.pid)),
        Ok(status) => Finding::warning("daemon", check, format!("process {} is not ready yet", status.pid))
            .lost("connections are not protected yet")
            .mend("wait a moment, and look again with `whimbrel status`"),
        Err(error) if error.is_denied() => Finding::warning("daemon", check, "runs, and this user may not ask it")
            .lost("only what it would say itself is missing here")
            .mend("run `whimbrel doctor` as root, or as a member of the group `whimbrel`"),
        Err(error) => Finding::problem("daemon", check, error.to_string())
            .lost("status and hand-offs by hand; moved connections are carried on by the kernel meanwhile")
            .mend(
                "`systemctl restart whimbrel`, or end `whimbrel up` and start it again: no connection is lost by that",
            ),
    }
}

/// How the running daemon gets on with other hosts. What it cannot be asked shows in [`daemon`].
fn protection(run_dir: &Path, config: &Config, status: Option<&Status>) -> Vec<Finding> {
    let Ok(mut client) = Client::connect(run_dir) else { return Vec::new() };
    let Ok(peers) = client.peers() else { return Vec::new() };
    let answers = answers::ask(run_dir, &peers);
    let Ok(connections) = client.connections() else { return Vec::new() };
    let mut known: BTreeSet<IpAddr> = config.peers.iter().filter_map(|peer| peer.address).collect();
    // Who may not read what is remembered is told of what is configured.
    let remembered = status.and_then(|status| KnownKeys::open(&status.state_dir.join(KNOWN_KEYS)).ok());
    known.extend(remembered.iter().flat_map(|keys| keys.all().keys()));
    let mut findings = answers::of_peers(&peers, &answers);
    findings.extend(status.map(|status| answers::of_rendezvous(&status.rendezvous, status.port)).into_iter().flatten());
    let silent = answers::of_known(&known, &connections, config.port);
    let told: BTreeSet<IpAddr> = silent.as_ref().map(|(told, _)| told.clone()).unwrap_or_default();
    findings.extend(silent.map(|(_, finding)| finding));
    let others: Vec<Connection> =
        connections.into_iter().filter(|one| !(was_asked(one) && told.contains(&one.flow.remote.ip()))).collect();
    let missed = answers::missed(&peers, &answers).into_iter().map(|peer| peer.id).collect();
    findings.extend(protected(&peers, &others, &missed));
    findings
}

/// Whether the name server takes what the running daemon tells it.
fn name_server(of: &NameServer) -> Option<Finding> {
    let check = format!("name server {}", of.server);
    let found = of.sentence.clone().unwrap_or_else(|| format!("is not told where {} is", of.name));
    let mend = match of.state {
        NameServerState::Asked => return None,
        NameServerState::Updated => return Some(Finding::ok("daemon", check, found)),
        NameServerState::Withheld => {
            "set `dns.private` if that zone is seen in this network alone; take `[dns]` out if not"
        }
        NameServerState::Refused => {
            "see that `dns.key_file` holds the key that the server knows, and may change this name"
        }
        NameServerState::Unanswered => "see that the server is there and that UDP reaches it: `dig` at that address",
    };
    Some(
        Finding::warning("daemon", check, found)
            .lost(format!("who looks up {} does not find this host", of.name))
            .mend(mend),
    )
}

/// Whether the other end was asked in vain.
fn was_asked(connection: &Connection) -> bool {
    connection.reason.as_deref().is_some_and(|reason| reason.starts_with(crate::api::views::ASKED))
}

/// `missed`: peers that do not answer, which nothing is promised of.
fn protected(peers: &[Peer], connections: &[Connection], missed: &BTreeSet<u32>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lost_peers = peers.iter().filter(|peer| peer.session.is_none() && peer.away.is_none());
    let lost_peers: Vec<&Peer> = lost_peers.filter(|peer| peer.flows.introduced > 0).collect();
    if !lost_peers.is_empty() {
        let names: Vec<String> = lost_peers.iter().map(|peer| answers::called(peer)).collect();
        findings.push(
            Finding::warning("connections", "sessions", format!("none with peer {}", names.join(", ")))
                .lost("their connections do not survive a move before there is one")
                .mend(
                    "see there that the daemon runs, lets UDP in and has the same `trust`: `whimbrel doctor`, `whimbrel \
                     events`",
                ),
        );
    }
    let is_missed = |one: &&Connection| one.peer.as_ref().is_some_and(|peer| missed.contains(&peer.id));
    let survives = |one: &&Connection| {
        matches!(one.state, ConnectionState::Native | ConnectionState::Moved | ConnectionState::Held) && !is_missed(one)
    };
    let survive = connections.iter().filter(survives).count();
    let all = connections.iter().filter(|one| one.state != ConnectionState::Server).count();
    let silent = connections.iter().filter(|one| was_asked(one));
    let silent: BTreeSet<IpAddr> = silent.map(|one| one.flow.remote.ip()).collect();
    let check = "hosts that were asked";
    if let Some(first) = silent.first() {
        let more = match silent.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let found = format!("{first}{more} did not answer");
        if survive > 0 {
            // Most hosts of the world run nothing.
            findings.push(Finding::ok("connections", check, format!("{found}; {survive} of {all} survive a move")));
        } else {
            findings.push(
                Finding::warning("connections", check, format!("{found}, and no connection would survive a move"))
                    .lost("connections with hosts that do run Whimbrel, but do not answer")
                    .mend(
                        "`whimbrel doctor` there, and then, to ask again at once, `systemctl reload whimbrel`, or `kill \
                         -HUP` the daemon here",
                    ),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stopped_daemon_has_left_is_told_of() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-doctor-left-{}", std::process::id()));
        fs::create_dir_all(&run_dir).expect("a directory");
        let found = |device: &str| leftovers(&run_dir, Path::new(device)).map(|finding| finding.found);
        assert_eq!(found("/nonexistent"), None);
        assert!(found("/").is_some_and(|found| found.contains("the device whimbrel0")));
        let tuple = r#"[6,"192.0.2.1:1","192.0.2.2:2"]"#;
        let entry = r#""peer":1,"name":1,"home":[0,0],"waits":[false,false],"wire":[1,2]"#;
        let line = format!(r#"{{"flow":{{"own":{tuple},"peer_tuple":{tuple},{entry}}}}}"#) + "\n";
        fs::write(run_dir.join(crate::store::JOURNAL), line).expect("a journal");
        assert!(found("/nonexistent").is_some_and(|found| found.contains("notes about connections")));
        fs::remove_dir_all(&run_dir).expect("remove");
    }

    #[test]
    fn every_ailment_comes_with_a_remedy() {
        let run_dir = std::env::temp_dir().join("whimbrel-doctor-nobody-here");
        let findings = examine(&Patient { config: Some(Path::new("/nonexistent/whimbrel.toml")), run_dir: &run_dir });
        assert!(findings.iter().any(|finding| finding.check == "configuration" && finding.verdict == Verdict::Problem));
        assert!(findings.iter().any(|finding| finding.area == "daemon" && finding.found == "does not run"));
        for finding in findings.iter().filter(|finding| finding.verdict != Verdict::Ok) {
            assert!(finding.mend.is_some(), "{finding:?}");
            assert!(finding.lost.is_some() || finding.verdict == Verdict::Warning, "{finding:?}");
        }
        assert!(
            firewall_findings(2031, &Ruleset::Unknown("a test".into())).iter().all(|finding| finding.mend.is_some())
        );
        // A firewall that lets in what it was asked for keeps nothing from working that this host begins.
        let guarded = |answers: bool| {
            let chain = serde_json::json!({"chain": {"family": "inet", "table": "t", "name": "in", "type": "filter",
                "hook": "input", "prio": 0, "policy": "drop"}});
            let rule = serde_json::json!({"rule": {"family": "inet", "table": "t", "chain": "in", "expr": [
                {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}},
                {"accept": null}]}});
            let rules: Vec<_> = std::iter::once(chain).chain(answers.then_some(rule)).collect();
            let read = Ruleset::Read(serde_json::json!({ "nftables": rules }));
            firewall_findings(2031, &read).remove(0)
        };
        let stateful = guarded(true);
        assert!(stateful.verdict == Verdict::Warning && stateful.found.contains("answers pass"), "{stateful:?}");
        assert_eq!(guarded(false).verdict, Verdict::Problem);
        // A port that another program has, if only on one address.
        let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let held = port(taken.local_addr().expect("its address").port(), false);
        assert!(held.verdict == Verdict::Problem && held.mend.is_some(), "{held:?}");
    }

    #[test]
    fn what_a_start_would_fail_on_is_found() {
        let parsed = |text: &str| config::parse(Path::new("/etc/w.toml"), text).expect("valid");
        let log = |text: &str| event_log(&parsed(text), None).expect("configured");
        let lost = log("event_log = '/nonexistent/events.jsonl'");
        assert_eq!(lost.verdict, Verdict::Problem);
        assert_eq!(lost.found, "/etc/w.toml:1:13: there is no directory /nonexistent");
        assert_eq!(log("event_log = '/etc'").found, "/etc/w.toml:1:13: /etc is a directory");
        assert_eq!(log("event_log = '/etc/passwd/events'").found, "/etc/w.toml:1:13: /etc/passwd is no directory");
        assert_eq!(log("event_log = 'events.jsonl'").verdict, Verdict::Ok);
        assert!(event_log(&Config::default(), None).is_none() && metrics(&Config::default(), false).is_none());
        let served = |text: &str| metrics(&parsed(text), false).expect("configured");
        let elsewhere = served("[metrics]\nlisten = '192.0.2.1:9203'");
        assert_eq!(elsewhere.verdict, Verdict::Problem);
        assert!(elsewhere.found.starts_with("/etc/w.toml:2:10: cannot `listen` there: "), "{elsewhere:?}");
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let text = format!("[metrics]\nlisten = '{}'", taken.local_addr().expect("its address"));
        assert!(served(&text).mend.expect("a remedy").contains("`ss -ltnp sport = :"));
        assert_eq!(metrics(&parsed(&text), true).expect("configured").verdict, Verdict::Ok);
    }

    #[test]
    fn a_name_server_that_does_not_take_it_is_found() {
        let of = |state, sentence: Option<&str>| {
            name_server(&NameServer {
                name: "laptop.roam.test".into(),
                server: "192.0.2.53:53".parse().expect("an endpoint"),
                state,
                addresses: Vec::new(),
                since: None,
                sentence: sentence.map(str::to_owned),
            })
        };
        assert!(of(NameServerState::Asked, None).is_none());
        assert_eq!(of(NameServerState::Updated, Some("so it is")).expect("told").verdict, Verdict::Ok);
        for state in [NameServerState::Withheld, NameServerState::Refused, NameServerState::Unanswered] {
            let found = of(state, Some("it is not so")).expect("told");
            assert!(found.verdict == Verdict::Warning && found.found == "it is not so", "{found:?}");
            assert!(found.mend.is_some() && found.lost.is_some());
        }
    }

    #[test]
    fn unprotected_connections_are_not_called_well() {
        let line = r#"{"flow":{"transport":"tcp","local":"192.0.2.1:4000","remote":"192.0.2.9:22"},"state":"unprotected",
            "since":"","reason":"asked, silent until 03:52"}"#;
        let connection: Connection = serde_json::from_str(line).expect("a connection");
        let found = protected(&[], std::slice::from_ref(&connection), &BTreeSet::new());
        assert!(matches!(found.as_slice(), [one] if one.verdict == Verdict::Warning), "{found:?}");
        assert!(found[0].mend.as_ref().is_some_and(|mend| mend.contains("reload")));
        // Where others are protected, this one is a host that runs nothing.
        let native = Connection { state: ConnectionState::Native, reason: None, ..connection.clone() };
        let found = protected(&[], &[connection, native.clone()], &BTreeSet::new());
        assert!(matches!(found.as_slice(), [one] if one.verdict == Verdict::Ok), "{found:?}");
        assert!(protected(&[], &[native], &BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_file_that_changed_under_the_daemon_is_told() {
        let path = Path::new("/nonexistent/whimbrel.toml");
        let used = |restart: &[&str], reload: &[&str], error: Option<&str>| Configuration {
            path: path.into(),
            restart: restart.iter().map(ToString::to_string).collect(),
            reload: reload.iter().map(ToString::to_string).collect(),
            error: error.map(str::to_owned),
        };
        assert_eq!(in_force(path, &used(&[], &[], None)).verdict, Verdict::Ok);
        let changed = in_force(path, &used(&["port"], &["log"], None));
        assert!(changed.verdict == Verdict::Warning && changed.found.ends_with("port, log"), "{changed:?}");
        assert!(changed.mend.is_some_and(|mend| mend.contains("restart")));
        let reload = in_force(path, &used(&[], &["log"], None));
        assert!(reload.mend.is_some_and(|mend| mend.contains("reload")));
        assert_eq!(in_force(path, &used(&[], &[], Some("w.toml:1:1: no"))).verdict, Verdict::Problem);
        assert!(in_force(Path::new("/etc/other.toml"), &used(&[], &[], None)).found.contains("not /etc/other.toml"));
    }

    #[test]
    fn a_closed_firewall_is_a_problem_with_a_command() {
        let ruleset = serde_json::json!({"nftables": [{"chain": {"family": "inet", "table": "filter", "name": "input",
            "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}]});
        let findings = firewall_findings(2031, &Ruleset::Read(ruleset));
        assert_eq!(findings[0].verdict, Verdict::Problem);
        assert_eq!(findings[0].mend.as_deref(), Some("`nft insert rule inet filter input udp dport 2031 accept`"));
        assert_eq!(findings[1].verdict, Verdict::Ok);
    }
}
