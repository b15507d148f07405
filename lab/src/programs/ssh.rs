//! OpenSSH: a server with keys of its own, and an interactive session on a pseudo-terminal.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::process::tail;
use crate::{Error, Host, Process, Result, expect, wait_for, wait_until};

/// sshd's compiled-in directory for privilege separation.
const PRIVSEP_DIR: &str = "/run/sshd";

/// An sshd with its own host key, which lets one key of its own log in as the present user.
#[derive(Debug)]
pub struct SshServer {
    process: Process,
    address: SocketAddr,
    dir: PathBuf,
}

impl SshServer {
    /// Starts it on this address.
    pub fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let dir = host.dir().join(host.unique_label("sshd"));
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        fs::create_dir_all(PRIVSEP_DIR).map_err(|e| Error::call("mkdir", PRIVSEP_DIR, e))?;
        for key in ["host_key", "user_key"] {
            host.command("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"])
                .arg(dir.join(key))
                .run()?;
        }
        let address = SocketAddr::new(address, host.next_port());
        let d = dir.display();
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|e| Error::call("write", path.display().to_string(), e))
        };
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(|e| Error::call("read", path.display().to_string(), e))
        };
        write(
            "sshd_config",
            format!(
                "ListenAddress {}\nPort {}\nHostKey {d}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n\
             AuthorizedKeysFile {d}/user_key.pub\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
             PrintMotd no\nPrintLastLog no\nUseDNS no\nClientAliveInterval 0\nTCPKeepAlive no\n",
                address.ip(),
                address.port(),
            ),
        )?;
        write("known_hosts", format!("[{}]:{} {}", address.ip(), address.port(), read("host_key.pub")?))?;
        let mut process = host
            .command("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(dir.join("sshd_config"))
            .label("sshd")
            .spawn()?;
        wait_until(Duration::from_secs(10), "sshd listens", || {
            process.stderr().contains("Server listening") || !process.is_running()
        })?;
        expect!(process.is_running(), "sshd ended: {}", process.stderr());
        Ok(Self { process, address, dir })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Opens an interactive session from `client`, with a shell that has no start-up files.
    pub fn session(&self, client: &Host) -> Result<SshSession> {
        let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
        let args = [
            "-tt".into(),
            "-Fnone".into(),
            "-oIdentitiesOnly=yes".into(),
            "-oStrictHostKeyChecking=yes".into(),
            "-oServerAliveInterval=0".into(),
            "-oTCPKeepAlive=no".into(),
            option("IdentityFile", &self.dir.join("user_key")),
            option("UserKnownHostsFile", &self.dir.join("known_hosts")),
            format!("-p{}", self.address.port()),
            self.address.ip().to_string(),
            "env PS1='ready> ' bash --norc --noprofile -i".into(),
        ];
        SshSession::start(client, &args)
    }
}

/// An ssh client on a pseudo-terminal, typed into as a person does.
#[derive(Debug)]
pub struct SshSession {
    process: Process,
    terminal: fs::File,
    screen: Arc<Mutex<Vec<u8>>>,
    typed: u64,
}

impl SshSession {
    fn start(client: &Host, args: &[String]) -> Result<Self> {
        let on = |e| Error::call("openpt", "/dev/ptmx", e);
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(on)?;
        grantpt(&master).and_then(|()| unlockpt(&master)).map_err(on)?;
        let name = ptsname(&master, Vec::new()).map_err(on)?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, rustix::fs::Mode::empty())
            .map_err(|e| Error::call("open", name.to_string_lossy(), e))?;
        let process = client.command("ssh").args(args).env("TERM", "dumb").label("ssh").terminal(slave).spawn()?;
        let terminal = fs::File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) =
            (terminal.try_clone().map_err(|e| Error::call("dup", "/dev/ptmx", e))?, screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            // EIO when the last process on the terminal has ended.
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                seen.lock().unwrap_or_else(|p| p.into_inner()).extend_from_slice(&buffer[..n]);
            }
        });
        let mut session = Self { process, terminal, screen, typed: 0 };
        wait_for(Duration::from_secs(30), "the shell prompts", || {
            expect!(session.process.is_running(), "ssh ended: {}", tail(&session.screen()));
            Ok(session.screen().contains("ready> ").then_some(()))
        })?;
        Ok(session)
    }

    /// All that the terminal has shown.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap_or_else(|p| p.into_inner())).into_owned()
    }

    /// Types a command whose output the shell has to compute, and waits until it is there. Gives the time it took.
    pub fn type_and_check(&mut self, timeout: Duration) -> Result<Duration> {
        self.typed += 1;
        // The echo of the keys shows the sum, only the shell its result.
        let (n, want) = (self.typed, format!("answer-{}\r\n", self.typed + 1_000_000));
        let start = Instant::now();
        self.terminal
            .write_all(format!("echo answer-$(({n}+1000000))\n").as_bytes())
            .map_err(|e| Error::call("write", "the terminal", e))?;
        wait_for(timeout, "the shell answers what was typed", || {
            let screen = self.screen();
            expect!(self.process.is_running(), "ssh ended: {}", tail(&screen));
            Ok(screen.contains(&want).then_some(()))
        })?;
        Ok(start.elapsed())
    }

    /// Logs out and waits for ssh's end.
    pub fn finish(mut self, timeout: Duration) -> Result<()> {
        self.terminal.write_all(b"exit 0\n").map_err(|e| Error::call("write", "the terminal", e))?;
        self.process.wait_success(timeout)
    }

    /// The client's process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
