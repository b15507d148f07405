//! `whimbrel clean`.

use whimbrel_daemon::clean::{Others, Removed};

use crate::table::{width, wrap};

/// What was removed, a line for each kind.
pub(crate) fn removed(removed: &Removed) -> String {
    if removed.is_empty() {
        return "Nothing was left behind.\n".to_owned();
    }
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let rules = [
        removed.source_ways.then_some("for addresses of this host that had a way of their own"),
        removed.spoken_for.then_some("for hosts behind this one"),
    ];
    let kinds = [
        ("kept addresses", list(&mut removed.kept_addresses.iter().map(ToString::to_string))),
        ("routes to peers", list(&mut removed.peer_routes.iter().map(ToString::to_string))),
        ("rules", list(&mut rules.into_iter().flatten().map(str::to_owned))),
        ("namespaces' ends", list(&mut removed.endpoints.iter().cloned())),
        ("device", list(&mut removed.device.iter().map(ToString::to_string))),
        ("programs and maps", list(&mut removed.pins.iter().map(|path| path.display().to_string()))),
        ("files", list(&mut removed.files.iter().map(|path| path.display().to_string()))),
    ];
    let head = match kinds.iter().all(|(_, items)| items.is_empty()) {
        true => "Nothing was left behind by a daemon with this run directory.\n",
        false => "Removed what a stopped daemon had left:\n",
    };
    let mut out = head.to_owned();
    for (kind, items) in kinds.iter().filter(|(_, items)| !items.is_empty()) {
        let head = format!("  {kind:19}");
        out.push_str(&format!("{head}{}\n", wrap(items, width(), head.len())));
    }
    let peers = |count: usize| if count == 1 { "1 peer".to_owned() } else { format!("{count} peers") };
    if removed.told > 0 {
        out.push_str(&format!("{} {} told.\n", peers(removed.told), if removed.told == 1 { "was" } else { "were" }));
    }
    // Whether or not they could be asked.
    for (why, count) in &removed.untold {
        let have = if *count == 1 { "has" } else { "have" };
        out.push_str(&wrap(&format!("{} {have} not confirmed it: {why}.", peers(*count)), width(), 0));
        out.push('\n');
    }
    if let Some(Others { run_dir, kept_addresses }) = &removed.others {
        let (dir, kept) = (run_dir.display(), list(&mut kept_addresses.iter().map(ToString::to_string)));
        let kept = if kept.is_empty() { kept } else { format!(" (kept addresses {kept})") };
        let left = format!(
            "What the daemon with the run directory {dir} has left in this network namespace{kept} was not touched: \
             `whimbrel --run-dir {dir} clean` removes it."
        );
        out.push_str(&wrap(&left, width(), 0));
        out.push('\n');
    }
    out
}

/// The same as a line for programs (docs/json.md).
pub(crate) fn removed_json(removed: &Removed) -> String {
    let line = serde_json::json!({ "schema": whimbrel_ipc::SCHEMA, "removed": {
        "kept_addresses": removed.kept_addresses,
        "peer_routes": removed.peer_routes,
        "endpoints": removed.endpoints,
        "source_ways": removed.source_ways,
        "spoken_for": removed.spoken_for,
        "device": removed.device,
        "pins": removed.pins,
        "files": removed.files,
        "peers_told": removed.told,
        "peers_untold": removed.untold.values().sum::<usize>(),
        "untold": removed.untold.iter().map(|(reason, peers)| serde_json::json!({ "reason": reason, "peers": peers }))
            .collect::<Vec<_>>(),
        "others": removed.others.as_ref().map(|others| {
            serde_json::json!({ "run_dir": others.run_dir, "kept_addresses": others.kept_addresses })
        }),
    }});
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_was_there() {
        assert_eq!(removed(&Removed::default()), "Nothing was left behind.\n");
        let left = Removed {
            kept_addresses: ["198.51.100.10".parse().unwrap()].into(),
            device: Some("whimbrel0"),
            files: vec!["/run/whimbrel/journal".into()],
            told: 1,
            untold: [("no answer within 2 s".to_owned(), 2), ("there is no key in /x".to_owned(), 1)].into(),
            ..Removed::default()
        };
        assert_eq!(
            removed(&left),
            "\
Removed what a stopped daemon had left:
  kept addresses     198.51.100.10
  device             whimbrel0
  files              /run/whimbrel/journal
1 peer was told.
2 peers have not confirmed it: no answer within 2 s.
1 peer has not confirmed it: there is no key in /x.
"
        );
    }

    #[test]
    fn what_is_anothers_is_named() {
        let kept_addresses = ["198.51.100.10".parse().unwrap()].into();
        let others = Some(Others { run_dir: "/run/other".into(), kept_addresses });
        let told = removed(&Removed { others, ..Removed::default() }).replace('\n', " ");
        assert!(told.starts_with("Nothing was left behind by a daemon with this run directory. "), "{told}");
        assert!(
            told.contains("/run/other has left in this network namespace (kept addresses 198.51.100.10)"),
            "{told}"
        );
        assert!(told.contains("`whimbrel --run-dir /run/other clean` removes it."), "{told}");
    }

    #[test]
    fn programs_are_told_the_same() {
        let left = Removed {
            kept_addresses: ["198.51.100.10".parse().unwrap()].into(),
            untold: [("no answer within 2 s".to_owned(), 2)].into(),
            ..Removed::default()
        };
        assert_eq!(
            removed_json(&left),
            "{\"removed\":{\"device\":null,\"endpoints\":[],\"files\":[],\"kept_addresses\":[\"198.51.100.10\"],\
             \"others\":null,\"peer_routes\":[],\
             \"peers_told\":0,\"peers_untold\":2,\"pins\":null,\"source_ways\":false,\"spoken_for\":false,\
             \"untold\":[{\"peers\":2,\"reason\":\"no answer within 2 s\"}]},\
             \"schema\":1}\n"
        );
    }
}
