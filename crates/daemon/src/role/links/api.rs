//! `whimbrel paths --explain` and `--dry-run`: by which networks peers are reached, and why.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_ipc as ipc;
use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{
    Against, Duplication, LinkCandidate, LinkChoice, LinkDoubt, LinkFault, LinkId, PeerId, Selected, Why,
};

use crate::role::links::wishes::{Preference, wishes};

/// What sections come to. `peers`: what each is called, and whether it owes an answer. `trial`: they are not those in
/// force.
pub(crate) fn explained(
    preferences: &[Preference],
    choices: Vec<(PeerId, LinkChoice)>,
    peers: &HashMap<PeerId, (ipc::PeerName, bool)>,
    network: &NetworkState,
    trial: bool,
) -> ipc::Explained {
    let choice = |(id, choice): (PeerId, LinkChoice)| {
        let (name, unanswered) = peers.get(&id)?;
        Some(network_choice(name.clone(), *unanswered, choice, network))
    };
    let mut peers: Vec<ipc::NetworkChoice> = choices.into_iter().filter_map(choice).collect();
    peers.sort_by_key(|choice| choice.peer.id);
    let sections = wishes(preferences, network).into_iter().zip(preferences).map(|(wish, preference)| {
        let meant = peers.iter().filter(|choice| choice.line == Some(wish.line)).count();
        let selects_nothing = preference.names_alone() && wish.rules.is_empty();
        let of_connections = wish.of_flows;
        // A trial does not look for who has which connection open.
        let is_known = of_connections && !(trial && preference.matcher().asks_for_holders());
        let of_peers = peers.iter().flat_map(|choice| &choice.connections).filter(|of| of.line == wish.line);
        let connections = is_known.then(|| of_peers.map(|of| of.connections).sum());
        ipc::PreferSection { line: wish.line, selects_nothing, peers: meant, of_connections, connections }
    });
    ipc::Explained { trial, sections: sections.collect(), peers }
}

/// What an interface is called; its number where it is gone.
pub(crate) fn called(link: LinkId, network: &NetworkState) -> String {
    network.link(link.0).map_or_else(|| link.0.to_string(), |link| link.name.clone())
}

fn network_choice(
    peer: ipc::PeerName,
    unanswered: bool,
    choice: LinkChoice,
    network: &NetworkState,
) -> ipc::NetworkChoice {
    let name = |link| called(link, network);
    let LinkChoice { in_use, natural, line, by_hand, silent, rests, waits, candidates, selected, placed } = choice;
    let networks = |selected: &Selected| {
        let against = |link: LinkId| selected.others.iter().find(|(other, _)| *other == link).map(|(_, why)| *why);
        let told = |candidate: &LinkCandidate| {
            // What has answered may do so no more.
            let answers = candidate.answers && !(unanswered && candidate.link == in_use);
            network_candidate(&LinkCandidate { answers, ..*candidate }, name(candidate.link), against)
        };
        let mut networks: Vec<_> = candidates.iter().map(told).collect();
        networks.sort_by(|one, other| {
            (one.against.is_some(), &one.interface).cmp(&(other.against.is_some(), &other.interface))
        });
        networks
    };
    let ms = |waits: Duration| u64::try_from(waits.as_millis()).unwrap_or(u64::MAX);
    let connections = placed.into_iter().map(|of| ipc::ConnectionsChoice {
        line: of.line,
        connections: of.flows,
        apart: of.apart,
        left_out: of.left_out,
        duplicate: of.duplication.map(|Duplication { second, doubt }| ipc::Duplicate {
            interface: second.map(name),
            doubt: doubt.map(|why| match why {
                LinkDoubt::Overdue => ipc::Doubt::Overdue,
                LinkDoubt::Link => ipc::Doubt::Link,
                LinkDoubt::Fault(LinkFault::Leaving) => ipc::Doubt::Leaving,
                LinkDoubt::Fault(LinkFault::Captive) => ipc::Doubt::Captive,
            }),
        }),
        selected: of.selected.link.map(name),
        why: why_network(of.selected.why),
        waits_ms: of.waits.map(ms),
        networks: networks(&of.selected),
    });
    let connections = connections.collect();
    let why = if line.is_none() { ipc::WhyNetwork::Default } else { why_network(selected.why) };
    ipc::NetworkChoice {
        peer,
        in_use: name(in_use),
        unanswered,
        routes: name(natural),
        line,
        selected: selected.link.map(name),
        why,
        by_hand,
        silent: silent.map(name),
        rests,
        waits_ms: waits.map(ms),
        networks: networks(&selected),
        connections,
    }
}

fn why_network(why: Why) -> ipc::WhyNetwork {
    match why {
        Why::Only => ipc::WhyNetwork::Only,
        Why::Rank => ipc::WhyNetwork::Order,
        Why::Price => ipc::WhyNetwork::Price,
        Why::Nearest => ipc::WhyNetwork::Nearest,
        Why::Routes => ipc::WhyNetwork::Routes,
        Why::NothingFits => ipc::WhyNetwork::NothingFits,
        Why::NothingAnswers => ipc::WhyNetwork::NothingAnswers,
    }
}

fn network_candidate(
    candidate: &LinkCandidate,
    interface: String,
    against: impl Fn(LinkId) -> Option<Against>,
) -> ipc::NetworkCandidate {
    let LinkCandidate { link, answers, tried, round_trip, lost, facts } = *candidate;
    let percent = |lost: u16| f64::from(lost) / 10.0;
    let against = against(link).map(|against| match against {
        Against::Silent => ipc::AgainstNetwork::Silent,
        Against::Untried => ipc::AgainstNetwork::Untried,
        Against::Fault(LinkFault::Leaving) => ipc::AgainstNetwork::Leaving,
        Against::Fault(LinkFault::Captive) => ipc::AgainstNetwork::Captive,
        Against::Never => ipc::AgainstNetwork::Never,
        Against::Delay { most, .. } => ipc::AgainstNetwork::Delay { most_ms: most.as_secs_f64() * 1e3 },
        Against::Lost { most, .. } => ipc::AgainstNetwork::Loss { most_percent: percent(most) },
        Against::Signal { least, .. } => ipc::AgainstNetwork::Signal { least_dbm: least },
        Against::Rate { least, .. } => ipc::AgainstNetwork::Rate { least_mbit: least },
        Against::Rank => ipc::AgainstNetwork::Order,
        Against::Price => ipc::AgainstNetwork::Price,
        Against::Further => ipc::AgainstNetwork::Further,
        Against::Routes => ipc::AgainstNetwork::Routes,
    });
    ipc::NetworkCandidate {
        interface,
        answers: answers && tried,
        tried,
        round_trip_ms: round_trip.map(|took| took.as_secs_f64() * 1e3),
        lost_percent: lost.map(percent),
        signal_dbm: facts.signal,
        rate_mbit: facts.rate,
        against,
    }
}
