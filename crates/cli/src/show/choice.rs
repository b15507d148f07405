//! `whimbrel paths --explain` and `--dry-run`: by which network each peer is reached, why, and what would change it.

use std::time::Duration;

use whimbrel_ipc::{AgainstNetwork, ConnectionsChoice, Doubt, Explained, NetworkCandidate, NetworkChoice, WhyNetwork};

use super::{count, duration, milliseconds};
use crate::table::{width, wrap};

pub(crate) fn explained(explained: &Explained) -> String {
    explained_in(width(), explained)
}

/// The same on a screen of this width.
fn explained_in(most: usize, explained: &Explained) -> String {
    let mut out = String::new();
    let mut say = |indent: usize, text: &str| {
        out.push_str(&" ".repeat(indent));
        out.push_str(&wrap(text, most, indent));
        out.push('\n');
    };
    if explained.sections.is_empty() {
        let whose = if explained.trial { "The file has" } else { "The configuration has" };
        say(0, &format!("{whose} no [[prefer]] section: all peers are reached as the routes lead."));
    }
    for section in &explained.sections {
        let line = section.line;
        match (section.selects_nothing, section.peers) {
            (true, _) => say(
                0,
                &format!(
                    "The section in line {line} selects nothing: this host has no interface that it names. The routes \
                     decide, as without it."
                ),
            ),
            (false, _) if section.of_connections => say(
                0,
                &match section.connections {
                    Some(0) => format!("The section in line {line} counts for no connection that there is now."),
                    Some(connections) => {
                        format!("The section in line {line} counts for {}.", count(connections, "connection"))
                    }
                    None => format!(
                        "The section in line {line} means connections by who has them open, which is not looked for \
                         here."
                    ),
                },
            ),
            (false, 0) => say(0, &format!("The section in line {line} counts for no peer that is known now.")),
            (false, peers) => say(0, &format!("The section in line {line} counts for {}.", count(peers, "peer"))),
        }
    }
    if explained.peers.is_empty() {
        say(0, "No peer is reached now.");
    }
    for choice in &explained.peers {
        for (indent, sentence) in sentences(choice, explained.trial) {
            say(indent, &sentence);
        }
    }
    out
}

/// What is said of one peer, each sentence with how far it is set in.
fn sentences(choice: &NetworkChoice, trial: bool) -> Vec<(usize, String)> {
    let NetworkChoice { in_use, routes, selected, .. } = choice;
    let id = choice.peer.id;
    let peer = choice.peer.name.as_ref().map_or_else(|| format!("Peer #{id}"), |name| format!("{name} (#{id})"));
    let reached = match choice.unanswered {
        false => format!("{peer} is reached by {in_use}."),
        true => format!("{peer} is not confirmed: what is sent to it goes by {in_use}, and it does not answer there."),
    };
    let mut all = vec![(0, reached)];
    let line = choice.line.map_or_else(String::new, |line| format!("Line {line} "));
    let chosen = selected.as_deref().unwrap_or(in_use);
    let why = match choice.why {
        WhyNetwork::Default if choice.in_use == *routes => "No section means it: the routes lead there.".to_owned(),
        WhyNetwork::Default if chosen == routes => format!("No section means it; the routes lead to {routes}."),
        WhyNetwork::Default => format!("No section means it; {routes}, where the routes lead, is avoided: {chosen}."),
        WhyNetwork::Only => format!("{line}selects {chosen}: no other network fits."),
        WhyNetwork::Order => format!("{line}selects {chosen}: of those that fit it comes first by `order`."),
        WhyNetwork::Price => format!("{line}selects {chosen}: of those that fit and come first it is the cheapest."),
        WhyNetwork::Nearest => format!("{line}selects {chosen}: of those that are alike no other is nearer by enough."),
        WhyNetwork::Routes if chosen == routes => {
            format!("{line}selects {chosen}: all else is alike, and the routes lead there.")
        }
        WhyNetwork::Routes => format!("{line}selects {chosen}: all else is alike, and it is in use."),
        WhyNetwork::NothingFits => {
            format!("{line}selects nothing, since no network fits what it wants: {chosen}, as without it.")
        }
        WhyNetwork::NothingAnswers => format!("{line}selects nothing: the peer answers by no network. All stays."),
    };
    all.push((2, why));
    let moves = selected.as_ref().filter(|selected| *selected != in_use);
    let stays = if let Some(silent) = &choice.silent {
        Some(format!("{silent} is silent, and was left. It is come back to when the peer answers there again."))
    } else if choice.by_hand && (choice.line.is_some() || *in_use != *routes) {
        let until = "`whimbrel handoff` without an address gives that up.";
        Some(format!("It was moved there by hand, which counts more: {until}"))
    } else if choice.rests {
        Some("No connection depends on it, so that no other network is tried, and nothing is moved.".to_owned())
    } else {
        moves.map(|to| match (trial, choice.waits_ms) {
            (true, _) => format!("It would go to {to}, once the peer has answered there for two seconds."),
            (false, Some(ms)) => {
                format!("It goes to {to} in {} if nothing changes.", duration(Duration::from_millis(ms)))
            }
            (false, None) => format!("It goes to {to} once that may be."),
        })
    };
    all.extend(stays.map(|stays| (2, stays)));
    if trial && moves.is_none() && choice.silent.is_none() && !choice.by_hand {
        all.push((2, "Nothing would change for it.".to_owned()));
    }
    all.extend(choice.networks.iter().map(|network| (4, of_network(network, chosen, choice.line.is_some()))));
    for connections in &choice.connections {
        all.extend(of_connections(connections, choice, trial));
    }
    all
}

/// What is said of single connections with a peer that a section means.
fn of_connections(of: &ConnectionsChoice, choice: &NetworkChoice, trial: bool) -> Vec<(usize, String)> {
    let ConnectionsChoice { line, connections, apart, left_out, .. } = *of;
    let with_others = choice.in_use.as_str();
    let chosen = of.selected.as_deref().unwrap_or(with_others);
    let meant = count(connections, "connection");
    let why = match of.why {
        WhyNetwork::Only => "no other network fits",
        WhyNetwork::Order => "of those that fit it comes first by `order`",
        WhyNetwork::Price => "of those that fit and come first it is the cheapest",
        WhyNetwork::Nearest => "of those that are alike no other is nearer by enough",
        WhyNetwork::NothingFits => "no network fits what it wants, so that they go with the others",
        WhyNetwork::NothingAnswers => "the peer answers by no network, and all stays",
        WhyNetwork::Default | WhyNetwork::Routes => "all else is alike, so that they go with the others where they can",
    };
    let mut all = vec![(2, format!("Line {line} selects {chosen} for {meant} with it: {why}."))];
    if trial {
        let goes = if chosen == with_others { "They would go with the others." } else { "They would go there." };
        all.push((2, goes.to_owned()));
    } else if choice.by_hand {
        all.push((2, "It was moved by hand, which counts more: they go with the others.".to_owned()));
    } else {
        let goes = if apart == 0 { "none".to_owned() } else { apart.to_string() };
        let goes = format!("{goes} of them by a path of their own");
        let soon = of.waits_ms.map(|ms| format!("; to change in {}", duration(Duration::from_millis(ms))));
        all.push((2, format!("Now {goes}{}.", soon.unwrap_or_default())));
    }
    if let Some(duplicate) = &of.duplicate {
        let why = duplicate.doubt.map(|doubt| match doubt {
            Doubt::Overdue => "answers are overdue",
            Doubt::Link => "the link itself doubts that anything passes",
            Doubt::Leaving => "it is about to be taken down",
            Doubt::Captive => "behind it is a login page, or no Internet",
        });
        all.push((2, match (&duplicate.interface, why) {
            (Some(second), Some(why)) => {
                format!(
                    "The network that they go by is in doubt, since {why}: each of their packets goes by {second} as \
                     well."
                )
            }
            (Some(second), None) => {
                format!("While the network that they go by is in doubt each of their packets goes by {second} as well.")
            }
            (None, _) => "There is no other network that they can go by as well in moments of doubt.".to_owned(),
        }));
    }
    if left_out > 0 {
        let room = "there is room for 128 on each of four networks.";
        all.push((2, format!("{left_out} of them go with the others: {room}")));
    }
    let networks = of.networks.iter().filter(|network| network.against.is_some());
    all.extend(networks.map(|network| (4, of_network(network, chosen, true))));
    all
}

/// What is known of a network, and what would have it selected.
fn of_network(network: &NetworkCandidate, chosen: &str, wanted: bool) -> String {
    let measured = match (network.answers, network.round_trip_ms) {
        (true, took @ Some(_)) => format!("answers in {} ms", milliseconds(took)),
        (true, None) => "answers".to_owned(),
        (false, _) if network.tried => "does not answer".to_owned(),
        (false, _) => "not tried".to_owned(),
    };
    let lost = network.lost_percent.map_or_else(String::new, |lost| format!(", {lost:.1} % lost"));
    let signal = network.signal_dbm.map_or_else(String::new, |signal| format!(", {signal} dBm"));
    let rate = network.rate_mbit.map_or_else(String::new, |rate| format!(", {rate} Mbit/s"));
    let would = match network.against {
        None if network.tried && !network.answers => "It is left once the peer answers by another network.".to_owned(),
        None => format!(
            "It would be left if the peer did not answer by it{}.",
            if wanted { ", or it did not fit" } else { "" }
        ),
        Some(AgainstNetwork::Silent) => "It would count if the peer answered by it.".to_owned(),
        Some(AgainstNetwork::Untried) if wanted => "It counts once the peer has answered by it.".to_owned(),
        Some(AgainstNetwork::Untried) => "It would be tried if a section meant the peer.".to_owned(),
        Some(AgainstNetwork::Leaving) => "It is about to be taken down.".to_owned(),
        Some(AgainstNetwork::Captive) => {
            "Behind it is a login page, or no Internet: it is taken where the peer answers by nothing else.".to_owned()
        }
        Some(AgainstNetwork::Never) => {
            "Named by `never`: it is taken where the peer answers by nothing else.".to_owned()
        }
        Some(AgainstNetwork::Delay { most_ms }) => {
            format!("Too far: it would fit at {} ms.", milliseconds(Some(most_ms)))
        }
        Some(AgainstNetwork::Loss { most_percent }) => {
            format!("Too much is lost: it would fit at {most_percent:.1} %.")
        }
        Some(AgainstNetwork::Signal { least_dbm }) => format!("Too weak: it would fit at {least_dbm} dBm."),
        Some(AgainstNetwork::Rate { least_mbit }) => format!("Too slow: it would fit at {least_mbit} Mbit/s."),
        Some(AgainstNetwork::Order) => format!("Later by `order`: it would be taken if {chosen} did not fit."),
        Some(AgainstNetwork::Price) => format!("Dearer: it would be taken if {chosen} did not fit."),
        Some(AgainstNetwork::Further) => {
            format!("It would be taken if it were nearer than {chosen} by a fifth and 10 ms.")
        }
        Some(AgainstNetwork::Routes) => "It would be taken if the routes led there.".to_owned(),
    };
    format!("{}: {measured}{lost}{signal}{rate}. {would}", network.interface)
}

#[cfg(test)]
mod tests {
    use whimbrel_ipc::{Duplicate, PeerName, PreferSection};

    use super::*;

    fn network(interface: &str, against: Option<AgainstNetwork>) -> NetworkCandidate {
        NetworkCandidate {
            interface: interface.into(),
            answers: true,
            tried: true,
            round_trip_ms: Some(20.4),
            lost_percent: None,
            signal_dbm: None,
            rate_mbit: None,
            against,
        }
    }

    fn choice() -> NetworkChoice {
        NetworkChoice {
            peer: PeerName { id: 3, key: "key".into(), name: Some("desk".into()) },
            in_use: "wlan0".into(),
            unanswered: false,
            routes: "wlan0".into(),
            line: Some(12),
            selected: Some("eth0".into()),
            why: WhyNetwork::Price,
            by_hand: false,
            silent: None,
            rests: false,
            waits_ms: Some(1500),
            networks: vec![network("eth0", None), network("wlan0", Some(AgainstNetwork::Price))],
            connections: Vec::new(),
        }
    }

    fn section(line: u32, selects_nothing: bool) -> PreferSection {
        PreferSection { line, selects_nothing, peers: 1, of_connections: false, connections: None }
    }

    fn said(trial: bool, sections: Vec<PreferSection>, peers: Vec<NetworkChoice>) -> String {
        explained_in(120, &Explained { trial, sections, peers })
    }

    #[test]
    fn it_is_said_why_and_what_would_change_it() {
        let section = section(12, false);
        let said = said(false, vec![section], vec![choice()]);
        for part in [
            "The section in line 12 counts for 1 peer.\n",
            "desk (#3) is reached by wlan0.\n",
            "  Line 12 selects eth0: of those that fit and come first it is the cheapest.\n",
            "  It goes to eth0 in ",
            "    eth0: answers in 20 ms. It would be left if the peer did not answer by it, or it did not fit.\n",
            "    wlan0: answers in 20 ms. Dearer: it would be taken if eth0 did not fit.\n",
        ] {
            assert!(said.contains(part), "{part:?} in\n{said}");
        }
    }

    #[test]
    fn what_does_not_answer_is_not_said_to() {
        let silent = NetworkCandidate { answers: false, ..network("wlan0", None) };
        let selected = Some("wlan0".to_owned());
        let choice = NetworkChoice { unanswered: true, selected, waits_ms: None, networks: vec![silent], ..choice() };
        let said = said(false, Vec::new(), vec![choice]);
        for part in [
            "desk (#3) is not confirmed: what is sent to it goes by wlan0, and it does not answer there.\n",
            "    wlan0: does not answer. It is left once the peer answers by another network.\n",
        ] {
            assert!(said.contains(part), "{part:?} in\n{said}");
        }
    }

    #[test]
    fn what_links_tell_of_themselves_is_said() {
        let weak = AgainstNetwork::Signal { least_dbm: -64 };
        let wlan = NetworkCandidate { signal_dbm: Some(-66), rate_mbit: Some(54), ..network("wlan0", Some(weak)) };
        let choice = NetworkChoice { networks: vec![network("eth0", None), wlan], ..choice() };
        let said = said(false, Vec::new(), vec![choice]);
        let line = "    wlan0: answers in 20 ms, -66 dBm, 54 Mbit/s. Too weak: it would fit at -64 dBm.\n";
        assert!(said.contains(line), "{said}");
    }

    #[test]
    fn what_a_file_would_do_is_no_promise() {
        let section = section(12, false);
        let said = said(true, vec![section], vec![choice()]);
        assert!(said.contains("It would go to eth0, once the peer has answered there"), "{said}");
        let stays = NetworkChoice { selected: Some("wlan0".into()), waits_ms: None, ..choice() };
        let said = super::tests::said(true, vec![section], vec![stays]);
        assert!(said.contains("Nothing would change for it."), "{said}");
    }

    #[test]
    fn what_selects_nothing_is_said() {
        let section = section(7, true);
        let routes = NetworkChoice { why: WhyNetwork::NothingFits, selected: Some("wlan0".into()), ..choice() };
        let said = said(false, vec![section], vec![routes]);
        assert!(
            said.contains("The section in line 7 selects nothing: this host has no interface that it names."),
            "{said}"
        );
        assert!(said.contains("Line 12 selects nothing, since no network fits what it wants"), "{said}");
        let none = super::tests::said(true, Vec::new(), Vec::new());
        assert!(none.starts_with("The file has no [[prefer]] section: all peers are reached as the routes lead.\n"));
    }

    #[test]
    fn of_single_connections_it_is_said_how_many_go_where() {
        let of = |connections| PreferSection { of_connections: true, connections, ..section(20, false) };
        let apart = ConnectionsChoice {
            line: 20,
            connections: 3,
            apart: 2,
            left_out: 1,
            duplicate: Some(Duplicate { interface: Some("wwan0".into()), doubt: Some(Doubt::Overdue) }),
            selected: Some("wlan0".into()),
            why: WhyNetwork::Order,
            waits_ms: None,
            networks: vec![network("wlan0", None), network("eth0", Some(AgainstNetwork::Order))],
        };
        let with = |of: ConnectionsChoice| vec![NetworkChoice { connections: vec![of], ..choice() }];
        let so = said(false, vec![of(Some(3))], with(apart.clone()));
        for part in [
            "The section in line 20 counts for 3 connections.\n",
            "  Line 20 selects wlan0 for 3 connections with it: of those that fit it comes first by `order`.\n",
            "  Now 2 of them by a path of their own.\n",
            "  The network that they go by is in doubt, since answers are overdue: each of their packets goes by wwan0",
            "  1 of them go with the others: there is room for 128 on each of four networks.\n",
            "    eth0: answers in 20 ms. Later by `order`: it would be taken if wlan0 did not fit.\n",
        ] {
            assert!(so.contains(part), "{part:?} in\n{so}");
        }
        let none = said(true, vec![of(Some(0)), of(None)], with(ConnectionsChoice { left_out: 0, ..apart }));
        assert!(none.contains("The section in line 20 counts for no connection that there is now.\n"), "{none}");
        assert!(none.contains("means connections by who has them open, which is not looked for here.\n"), "{none}");
        assert!(none.contains("  They would go with the others.\n"), "{none}");
    }
}
