//! nginx and curl.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Host, MonoTime, Process, Random, Result, expect, wait_until};

/// nginx with a configuration, directory and port of its own.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    address: SocketAddr,
    root: PathBuf,
}

impl Nginx {
    /// Starts it on this address; files are served from [`Nginx::root`].
    pub fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let dir = host.dir().join(host.unique_label("nginx"));
        let root = dir.join("files");
        fs::create_dir_all(&root).map_err(|e| Error::call("mkdir", root.display().to_string(), e))?;
        let address = SocketAddr::new(address, host.next_port());
        let (d, r) = (dir.display(), root.display());
        let config = format!(
            "daemon off; master_process off; user root; pid {d}/pid; error_log stderr;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; client_body_temp_path {d}/body; proxy_temp_path {d}/proxy;\n\
             fastcgi_temp_path {d}/fastcgi; uwsgi_temp_path {d}/uwsgi; scgi_temp_path {d}/scgi;\n\
             server {{ listen {address}; root {r}; }} }}\n"
        );
        let path = dir.join("nginx.conf");
        fs::write(&path, config).map_err(|e| Error::call("write", path.display().to_string(), e))?;
        let process = host.command("nginx").arg("-c").arg(&path).arg("-p").arg(&dir).label("nginx").spawn()?;
        let mut nginx = Self { process, address, root };
        let probe = || host.enter(|| std::net::TcpStream::connect(address).is_ok()).unwrap_or(false);
        wait_until(Duration::from_secs(10), "nginx listens", || !nginx.process.is_running() || probe())?;
        expect!(nginx.process.is_running(), "nginx ended: {}", nginx.process.stderr());
        Ok(nginx)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directory that it serves.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Writes a file of `size` random bytes and gives its URL.
    pub fn file(&self, name: &str, size: usize) -> Result<String> {
        let mut random = Random::new(Random::fresh_seed());
        let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bytes.truncate(size);
        let path = self.root.join(name);
        fs::write(&path, bytes).map_err(|e| Error::call("write", path.display().to_string(), e))?;
        Ok(format!("http://{}/{name}", self.address))
    }

    /// SHA-256 of a served file, as sha256sum(1) prints it.
    pub fn checksum(&self, host: &Host, name: &str) -> Result<String> {
        checksum(host, &self.root.join(name))
    }
}

/// A download by curl.
#[derive(Debug)]
pub struct Download {
    process: Process,
    host: Host,
    path: PathBuf,
    /// When it was started.
    pub started_at: MonoTime,
}

impl Download {
    /// Starts it; `args` are further options of curl.
    pub fn start(host: &Host, url: &str, args: &[&str]) -> Result<Self> {
        let path = host.dir().join(host.unique_label("download"));
        let command = host.command("curl").args(["--silent", "--show-error", "--fail", "--no-buffer"]).args(args);
        let process = command.arg("--output").arg(&path).arg(url).label("curl").spawn()?;
        Ok(Self { process, host: host.clone(), path, started_at: MonoTime::now() })
    }

    /// Bytes written so far.
    pub fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |m| m.len())
    }

    /// Waits until `more` bytes have come from now on.
    pub fn wait_progress(&mut self, more: u64, timeout: Duration) -> Result<()> {
        let goal = self.size() + more;
        wait_until(timeout, &format!("curl receives {more} bytes more"), || {
            self.size() >= goal || !self.process.is_running()
        })?;
        expect!(self.size() >= goal, "curl ended early: {}", self.process.stderr());
        Ok(())
    }

    /// Waits for its end and compares the checksum.
    pub fn finish(mut self, checksum_wanted: &str, timeout: Duration) -> Result<()> {
        self.process.wait_success(timeout)?;
        let got = checksum(&self.host, &self.path)?;
        expect!(got == checksum_wanted, "the download has checksum {got}, not {checksum_wanted}");
        Ok(())
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

pub(crate) fn checksum(host: &Host, path: &Path) -> Result<String> {
    let text = host.command("sha256sum").arg(path).run()?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
