//! `whimbrel clean`.

use whimbrel_daemon::clean::Removed;

use crate::table::{width, wrap};

/// What was removed, a line for each kind.
pub(crate) fn removed(removed: &Removed) -> String {
    if removed.is_empty() {
        return "Nothing was left behind.\n".to_owned();
    }
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let rules = [
        removed.source_ways.then_some("for addresses that were being left"),
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
    let mut out = "Removed what a stopped daemon had left:\n".to_owned();
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
    fn programs_are_told_the_same() {
        let left = Removed {
            kept_addresses: ["198.51.100.10".parse().unwrap()].into(),
            untold: [("no answer within 2 s".to_owned(), 2)].into(),
            ..Removed::default()
        };
        assert_eq!(
            removed_json(&left),
            "{\"removed\":{\"device\":null,\"endpoints\":[],\"files\":[],\"kept_addresses\":[\"198.51.100.10\"],\"peer_routes\":[],\
             \"peers_told\":0,\"peers_untold\":2,\"pins\":null,\"source_ways\":false,\"spoken_for\":false,\
             \"untold\":[{\"peers\":2,\"reason\":\"no answer within 2 s\"}]},\
             \"schema\":1}\n"
        );
    }
}
