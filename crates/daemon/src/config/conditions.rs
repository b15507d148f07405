//! The keys by which a section says which connections it means.

use serde::de::{Deserializer, Error};
use toml::Value;
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::Prefix;
use whimbrel_wire::Transport;

use super::value::{KEY, Written, choose, kind, list, parse_prefix, text, value};
use crate::policy::{PeerCondition, ProgramCondition};

/// Declares a section that says which connections it means, by the same keys in each, and has others beside these.
macro_rules! section_of_connections {
    ($(#[$about:meta])* struct $name:ident { $($others:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct $name {
            #[serde(deserialize_with = "crate::config::conditions::peers")]
            peer: Option<Vec<crate::policy::PeerCondition>>,
            #[serde(deserialize_with = "crate::config::value::read")]
            local_port: Option<std::ops::RangeInclusive<u16>>,
            #[serde(deserialize_with = "crate::config::value::read")]
            remote_port: Option<std::ops::RangeInclusive<u16>>,
            #[serde(deserialize_with = "crate::config::value::read")]
            transport: Option<whimbrel_wire::Transport>,
            #[serde(deserialize_with = "crate::config::value::read")]
            program: Option<crate::policy::ProgramCondition>,
            #[serde(deserialize_with = "crate::config::conditions::cgroup")]
            cgroup: Option<String>,
            $($others)*
        }

        impl $name {
            fn matcher(&mut self) -> crate::policy::Matcher {
                crate::policy::Matcher {
                    peer: self.peer.take(),
                    local_port: self.local_port.take(),
                    remote_port: self.remote_port.take(),
                    transport: self.transport.take(),
                    program: self.program.take(),
                    cgroup: self.cgroup.take(),
                }
            }
        }
    };
}
pub(crate) use section_of_connections;

pub(crate) fn peers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PeerCondition>>, D::Error> {
    let peers: Vec<_> = list(deserializer)?;
    match peers.is_empty() {
        true => Err(D::Error::custom("`peer` must name somebody; leave it out where all are meant")),
        false => Ok(Some(peers)),
    }
}

impl Written for PeerCondition {
    const LIST: &'static str = "a prefix or a public key, or a list of them, in quotes";
    const ALONE: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value, "a prefix or a public key, or a list of them,")?;
        let key = || text.parse::<PublicKey>().ok().map(Self::Key);
        parse_prefix(text).map(|prefix: Prefix| Self::Prefix(prefix)).or_else(key).ok_or_else(|| {
            let right =
                "write \"192.0.2.0/24\", \"2001:db8::/32\", one address, or the key that `whimbrel status` shows there";
            format!("`{text}` is neither a prefix nor a public key; {right}")
        })
    }
}

impl Written for Transport {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("tcp", Self::Tcp), ("udp", Self::Udp)])
    }
}

impl Written for ProgramCondition {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value, "the name of an executable or its absolute path")?;
        if text.is_empty() || text.ends_with('/') || !text.starts_with('/') && text.contains('/') {
            let right = "must be the name of an executable such as \"vsftpd\", or its absolute path";
            return Err(format!("`{KEY}` {right}"));
        }
        Ok(Self::new(text))
    }
}

pub(crate) fn cgroup<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = value(deserializer);
    // Where systemd mounts it; nobody's cgroups are called so.
    let fits = |text: &&str| text.starts_with('/') && !text.starts_with("/sys/fs/cgroup") && !text.contains("//");
    match value.as_str().filter(fits) {
        Some("/") => Ok(Some("/".to_owned())),
        Some(text) => Ok(Some(text.trim_end_matches('/').to_owned())),
        None => {
            let said = value.as_str().map_or_else(|| kind(value.type_str()), |text| format!("`{text}`"));
            let right = "must be a path below the root of cgroup v2, such as \"/system.slice/vsftpd.service\"";
            Err(D::Error::custom(format_args!("`cgroup` {right}, not {said}")))
        }
    }
}
