//! BIND's name server and dig.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Error, Host, Process, Result, expect, wait_until};

/// The zone that it serves.
pub const ZONE: &str = "roam.test";
/// What is in it at the start: a name that has more than addresses of its own.
const CONTENT: &str = "$TTL 300\n@ IN SOA ns root 1 3600 600 86400 60\n@ IN NS ns\nns IN A 192.0.2.53\n\
     laptop IN TXT \"it has this as well\"\nlaptop IN A 192.0.2.99\nalias IN CNAME ns\n";

/// A name server with a zone that a key may change.
#[derive(Debug)]
pub struct Bind {
    process: Process,
    address: IpAddr,
    key: PathBuf,
}

impl Bind {
    /// Starts it on this address, port 53.
    pub fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let dir = host.dir().join(host.unique_label("bind"));
        let written = |name: &str, content: &str| {
            let path = dir.join(name);
            fs::write(&path, content).map_err(|e| Error::call("write", path.display().to_string(), e))?;
            Ok::<_, Error>(path)
        };
        fs::create_dir_all(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        let made = host.command("/usr/sbin/tsig-keygen").args(["-a", "hmac-sha256", "laptop-key"]).run()?;
        let key = written("laptop.key", &made)?;
        let zone = written("zone", CONTENT)?;
        let d = dir.display();
        let config = format!(
            "include \"{}\";\ncontrols {{ }};\n\
             options {{ directory \"{d}\"; pid-file \"{d}/pid\"; session-keyfile none; listen-on {{ {address}; }};\n\
             listen-on-v6 {{ none; }}; recursion no; notify no; dnssec-validation no; }};\n\
             zone \"{ZONE}\" {{ type primary; file \"{}\"; update-policy {{ grant laptop-key name laptop.{ZONE}. A AAAA; \
             grant laptop-key name alias.{ZONE}. A AAAA; }}; }};\n",
            key.display(),
            zone.display(),
        );
        let path = written("named.conf", &config)?;
        let process =
            host.command("/usr/sbin/named").args(["-g", "-n", "1", "-c"]).arg(&path).label("named").spawn()?;
        let mut bind = Self { process, address, key };
        let probe = || host.enter(|| std::net::TcpStream::connect((address, 53)).is_ok()).unwrap_or(false);
        wait_until(Duration::from_secs(20), "named listens", || !bind.process.is_running() || probe())?;
        expect!(bind.process.is_running(), "named ended: {}", bind.process.stderr());
        Ok(bind)
    }

    /// The file with the key that may change the zone, as tsig-keygen wrote it.
    pub fn key(&self) -> &PathBuf {
        &self.key
    }

    /// What it tells a host of a name, sorted.
    pub fn lookup(&self, from: &Host, name: &str, kind: &str) -> Result<Vec<String>> {
        let server = format!("@{}", self.address);
        let said = from.command("dig").args(["+short", "+tries=1", "+time=2", &server, name, kind]).output()?.stdout;
        let mut lines: Vec<String> = String::from_utf8_lossy(&said).lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Ok(lines)
    }
}
