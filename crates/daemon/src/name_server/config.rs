//! `[dns]`: the name server that is told where this host is.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::document::{ConfigError, Document};
use crate::config::value::{limit, read};
use crate::name_server::{NameServer, SigningKey};

/// How long others may remember an address where nothing else is said, in seconds, and at the longest: a day.
const TTL: u32 = 60;
const LONGEST: u32 = 86_400;
const PORT: u16 = 53;

/// The section as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
    #[serde(deserialize_with = "read")]
    name: Option<String>,
    #[serde(deserialize_with = "read")]
    zone: Option<String>,
    #[serde(deserialize_with = "read")]
    server: Option<String>,
    #[serde(deserialize_with = "read")]
    key_file: Option<PathBuf>,
    #[serde(deserialize_with = "read")]
    key_name: Option<String>,
    #[serde(deserialize_with = "limit::<_, _, LONGEST>")]
    ttl: Option<u32>,
    private: bool,
}

impl Section {
    /// What it says, with the key that its file has; `folder`: what that is relative to. A section without a key in it
    /// is none.
    pub(crate) fn name_server(self, document: &Document<'_>, folder: &Path) -> Result<Option<NameServer>, ConfigError> {
        let missing = |key: &str, what: &str| document.wrong("dns", format!("`[dns]` needs `{key}` as well: {what}"));
        if self.name.is_none() && self.zone.is_none() && self.server.is_none() && self.key_file.is_none() {
            return Ok(None);
        }
        let name = self.name.ok_or_else(|| missing("name", "this host's name, such as \"laptop.example.org\""))?;
        let zone = self.zone.ok_or_else(|| missing("zone", "the zone that it is in, such as \"example.org\""))?;
        let server = self.server.ok_or_else(|| missing("server", "the address of its primary name server"))?;
        let key_file = self.key_file.ok_or_else(|| missing("key_file", "a file that `tsig-keygen` has written"))?;
        if let Some(sentence) = NameServer::complaint(&name, &zone) {
            return Err(document.wrong("dns.name", sentence));
        }
        let alone = server.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
        let server = alone.or_else(|_| server.parse()).ok().filter(|server| server.port() != 0).ok_or_else(|| {
            let right = "must be an address, or one with a port, such as \"192.0.2.53\" or \"[2001:db8::53]:5353\"";
            document.wrong("dns.server", format!("`server` {right}"))
        })?;
        let key_file = folder.join(key_file);
        let key = SigningKey::read(&key_file, self.key_name.as_deref()).map_err(|sentence| {
            document.wrong("dns.key_file", format!("`dns.key_file` {} {sentence}", key_file.display()))
        })?;
        Ok(Some(NameServer { name, zone, server, key, ttl: self.ttl.unwrap_or(TTL), private: self.private }))
    }
}
