//! The keys by which a section says which connections it means.

use std::ops::RangeInclusive;

use whimbrel_wire::Transport;

use super::value::{Mistake, Section, Value, choice, kind, parse_prefix, string};
use crate::policy::{Matcher, PeerCondition, ProgramCondition};

/// Takes `peer`, `local_port`, `remote_port`, `transport`, `program` and `cgroup` out of a section.
pub(super) fn matcher(section: &mut Section<'_, '_>) -> Result<Matcher, Mistake> {
    Ok(Matcher {
        peer: section.take("peer").map(peers).transpose()?,
        local_port: section.take("local_port").map(|value| ports(value, "local_port")).transpose()?,
        remote_port: section.take("remote_port").map(|value| ports(value, "remote_port")).transpose()?,
        transport: section.take("transport").map(transport).transpose()?,
        program: section.take("program").map(program).transpose()?,
        cgroup: section.take("cgroup").map(cgroup).transpose()?,
    })
}

fn peers(value: Value<'_, '_>) -> Result<Vec<PeerCondition>, Mistake> {
    match value.get_ref().as_array() {
        Some(elements) if elements.is_empty() => {
            Err(Mistake::new(value.span(), "`peer` must name somebody; leave it out where all are meant"))
        }
        Some(elements) => elements.iter().map(peer).collect(),
        None => Ok(vec![peer(value)?]),
    }
}

fn peer(value: Value<'_, '_>) -> Result<PeerCondition, Mistake> {
    let text = string(value, "peer", "a prefix or a public key, or a list of them,")?;
    let key = || text.parse().ok().map(PeerCondition::Key);
    parse_prefix(text).map(PeerCondition::Prefix).or_else(key).ok_or_else(|| {
        let right =
            "write \"192.0.2.0/24\", \"2001:db8::/32\", one address, or the key that `whimbrel status` shows there";
        Mistake::new(value.span(), format!("`{text}` is neither a prefix nor a public key; {right}"))
    })
}

pub(super) fn ports(value: Value<'_, '_>, name: &str) -> Result<RangeInclusive<u16>, Mistake> {
    let wrong = || {
        let right = "must be a port such as 21, or a range in quotes such as \"6000-6063\", of ports from 1 to 65535";
        Mistake::new(value.span(), format!("`{name}` {right}"))
    };
    let (first, last) = match (value.get_ref().as_integer(), value.get_ref().as_str()) {
        (Some(number), _) => {
            let port = u16::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?;
            (port, port)
        }
        (None, Some(text)) => {
            let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            (port(first)?, port(last)?)
        }
        (None, None) => return Err(wrong()),
    };
    if 0 < last && last < first {
        let sentence = format!("`{name}` goes from {first} down to {last}; write \"{last}-{first}\"");
        return Err(Mistake::new(value.span(), sentence));
    }
    if first == 0 || last == 0 { Err(wrong()) } else { Ok(first..=last) }
}

fn transport(value: Value<'_, '_>) -> Result<Transport, Mistake> {
    choice(value, "transport", &[("tcp", Transport::Tcp), ("udp", Transport::Udp)])
}

fn program(value: Value<'_, '_>) -> Result<ProgramCondition, Mistake> {
    let text = string(value, "program", "the name of an executable or its absolute path")?;
    if text.is_empty() || text.ends_with('/') || !text.starts_with('/') && text.contains('/') {
        let right = "`program` must be the name of an executable such as \"vsftpd\", or its absolute path";
        return Err(Mistake::new(value.span(), right));
    }
    Ok(ProgramCondition::new(text))
}

fn cgroup(value: Value<'_, '_>) -> Result<String, Mistake> {
    let wrong = |said: &str| {
        let right = "`cgroup` must be a path below the root of cgroup v2, such as \"/system.slice/vsftpd.service\"";
        Mistake::new(value.span(), format!("{right}, not {said}"))
    };
    let text = value.get_ref().as_str().ok_or_else(|| wrong(&kind(value)))?;
    // Where systemd mounts it; nobody's cgroups are called so.
    if !text.starts_with('/') || text.starts_with("/sys/fs/cgroup") || text.contains("//") {
        return Err(wrong(&format!("`{text}`")));
    }
    Ok(if text == "/" { text } else { text.trim_end_matches('/') }.to_owned())
}
