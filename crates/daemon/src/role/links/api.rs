//! `whimbrel paths --explain` and `--dry-run`: by which networks peers are reached, and why.

use std::collections::HashMap;

use whimbrel_ipc as ipc;
use whimbrel_kernel::network::NetworkState;
use whimbrel_protocol::{Against, LinkCandidate, LinkChoice, LinkFault, LinkId, PeerId, Why};

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
        ipc::PreferSection { line: wish.line, selects_nothing, peers: meant }
    });
    ipc::Explained { trial, sections: sections.collect(), peers }
}

/// What an interface is called; its number where it is gone.
fn called(link: LinkId, network: &NetworkState) -> String {
    network.link(link.0).map_or_else(|| link.0.to_string(), |link| link.name.clone())
}

fn network_choice(
    peer: ipc::PeerName,
    unanswered: bool,
    choice: LinkChoice,
    network: &NetworkState,
) -> ipc::NetworkChoice {
    let name = |link| called(link, network);
    let LinkChoice { in_use, natural, line, by_hand, silent, rests, waits, candidates, selected } = choice;
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
    let why = match selected.why {
        _ if line.is_none() => ipc::WhyNetwork::Default,
        Why::Only => ipc::WhyNetwork::Only,
        Why::Rank => ipc::WhyNetwork::Order,
        Why::Price => ipc::WhyNetwork::Price,
        Why::Nearest => ipc::WhyNetwork::Nearest,
        Why::Routes => ipc::WhyNetwork::Routes,
        Why::NothingFits => ipc::WhyNetwork::NothingFits,
        Why::NothingAnswers => ipc::WhyNetwork::NothingAnswers,
    };
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
        waits_ms: waits.map(|waits| u64::try_from(waits.as_millis()).unwrap_or(u64::MAX)),
        networks,
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
