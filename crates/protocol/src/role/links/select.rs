//! By which of this host's networks a peer is reached, as the user's file has it (decision 0108). Nothing here knows of
//! paths or messages: what is measured and what is wanted come in, and what was chosen goes out, with why.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use crate::base::config::Prefix;
use crate::base::id::LinkId;
use crate::base::link_facts::{LinkFacts, LinkFault};

/// A network that is in use stays until another one is nearer by so much, both of them.
const NEARER_SHARE: u32 = 5;
const NEARER_LEAST: Duration = Duration::from_millis(10);
/// To be taken, a network has to be below this share of a bound, in hundredths; to be kept, below the bound.
const ENTERED_BELOW: u32 = 80;
/// To be taken, a network has to be received by so many dB more than the bound; to be kept, as the bound says.
const ENTERED_ABOVE: i16 = 6;
/// To be taken, a network has to carry what the bound says; to be kept, this share of it, in hundredths.
const KEPT_ABOVE: u32 = 80;

/// A network by which a peer may be reached, and how the path there fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCandidate {
    /// The network.
    pub link: LinkId,
    /// The peer answers by it, as far as is known.
    pub answers: bool,
    /// It was asked by it.
    pub tried: bool,
    /// Smoothed round trip, where that was measured.
    pub round_trip: Option<Duration>,
    /// How many of a thousand questions go unanswered, where enough were asked.
    pub lost: Option<u16>,
    /// What is known of the link by itself.
    pub facts: LinkFacts,
}

/// What is wanted of the networks by which a peer is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkRules {
    /// The lower comes first. Networks without a rank come last.
    pub ranks: BTreeMap<LinkId, u32>,
    /// Of those of one rank the cheaper comes first. Those without cost nothing.
    pub prices: BTreeMap<LinkId, u32>,
    /// Those that are only taken where the peer answers by no other.
    pub never: BTreeSet<LinkId>,
    /// The longest round trip.
    pub delay_most: Option<Duration>,
    /// How many of a thousand questions may go unanswered.
    pub lost_most: Option<u16>,
    /// The least signal, in dBm. Links that have none are not compared by it.
    pub signal_least: Option<i16>,
    /// The least rate, in Mbit/s. Links of which none is known are not compared by it.
    pub rate_least: Option<u32>,
    /// Of those of one rank and price the nearest is taken; else the one that the routes lead to.
    pub nearest: bool,
}

/// What a section of the user's file wants, for some peers, or for some of their flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkWish {
    /// Where the file has it, from 1.
    pub line: u32,
    /// For which peers. Empty: all. Where it is of single flows, these were opened with such addresses.
    pub peers: Vec<PeerMeant>,
    /// It has other conditions as well, and means the flows that meet them
    /// ([`Node::handle_conditions_met`](crate::Node::handle_conditions_met)).
    pub of_flows: bool,
    /// These flows go by another network as well while the one that they go by is in doubt (P-263).
    pub duplicate: bool,
    /// What.
    pub rules: LinkRules,
}

/// A peer that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMeant {
    /// It is at such an address.
    At(Prefix),
    /// It has this key.
    Key(PublicKey),
}

impl LinkWish {
    /// Whether a peer is meant that is there and has this key, or its flows.
    #[must_use]
    pub fn means(&self, at: IpAddr, key: &PublicKey) -> bool {
        let is_meant = |meant: &PeerMeant| match meant {
            PeerMeant::At(prefix) => prefix.contains(at),
            PeerMeant::Key(of) => of == key,
        };
        self.peers.is_empty() || self.peers.iter().any(is_meant)
    }
}

impl LinkRules {
    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something is wanted that has to be measured.
    pub(super) fn measures(&self) -> bool {
        self.nearest || self.delay_most.is_some() || self.lost_most.is_some()
    }

    /// Whether something is wanted that detectors have to measure.
    #[must_use]
    pub fn reads_links(&self) -> bool {
        self.signal_least.is_some() || self.rate_least.is_some()
    }

    fn rank(&self, link: LinkId) -> (u32, u32) {
        (self.ranks.get(&link).copied().unwrap_or(u32::MAX), self.prices.get(&link).copied().unwrap_or(0))
    }
}

/// Why a network is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No other fits.
    Only,
    /// Of those that fit it comes first by order.
    Rank,
    /// Of those that come first it is the cheapest.
    Price,
    /// Of those that are alike it is the nearest, or nothing else is nearer by enough.
    Nearest,
    /// Of those that are alike the routes lead there, or, where they lead to none of them, it is in use.
    Routes,
    /// None fits what is wanted: the routes decide.
    NothingFits,
    /// The peer answers by no network: all stays as it is.
    NothingAnswers,
}

/// Why a network is not taken, the first that would have to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The peer does not answer by it.
    Silent,
    /// The peer was not asked by it yet.
    Untried,
    /// What is known of the link speaks against it.
    Fault(LinkFault),
    /// It is not to be taken.
    Never,
    /// The round trip is too long.
    Delay {
        /// How long it is.
        is: Duration,
        /// From where on it would do.
        most: Duration,
    },
    /// Too much is lost.
    Lost {
        /// Of a thousand.
        is: u16,
        /// From where on it would do.
        most: u16,
    },
    /// It is received too weakly.
    Signal {
        /// How strongly it is, in dBm.
        is: i16,
        /// From where on it would do.
        least: i16,
    },
    /// It is too slow.
    Rate {
        /// How fast it is, in Mbit/s.
        is: u32,
        /// From where on it would do.
        least: u32,
    },
    /// Others come first by order.
    Rank,
    /// Others are cheaper.
    Price,
    /// It is not nearer by enough.
    Further,
    /// The routes lead elsewhere.
    Routes,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// The network; none where there is no candidate.
    pub link: Option<LinkId>,
    /// Why.
    pub why: Why,
    /// Each other candidate, with what speaks against it.
    pub others: Vec<(LinkId, Against)>,
}

/// Chooses. `in_use`: by which the peer is reached now. `natural`: to which the routes lead.
///
/// What comes out is stable: where it is in use, and nothing else has changed, it is chosen again.
#[must_use]
pub(crate) fn select(
    candidates: &[LinkCandidate],
    rules: &LinkRules,
    in_use: Option<LinkId>,
    natural: Option<LinkId>,
) -> Selected {
    let against = |candidate: &LinkCandidate| unfit(candidate, rules, in_use == Some(candidate.link));
    let fitting: Vec<&LinkCandidate> = candidates.iter().filter(|candidate| against(candidate).is_none()).collect();
    let (link, why) = match best(&fitting, rules, in_use, natural) {
        Some(best) => best,
        None => otherwise(candidates, rules, in_use, natural),
    };
    let speaks = |candidate: &LinkCandidate| {
        let chosen = link.and_then(|link| fitting.iter().find(|candidate| candidate.link == link));
        against(candidate).unwrap_or_else(|| match chosen.map(|chosen| (rules.rank(chosen.link), chosen)) {
            Some(((rank, _), _)) if rank != rules.rank(candidate.link).0 => Against::Rank,
            Some((rank, _)) if rank != rules.rank(candidate.link) => Against::Price,
            _ if rules.nearest => Against::Further,
            _ => Against::Routes,
        })
    };
    let mut others: Vec<(LinkId, Against)> = candidates
        .iter()
        .filter(|candidate| Some(candidate.link) != link)
        .map(|candidate| (candidate.link, speaks(candidate)))
        .collect();
    others.sort_by_key(|(link, _)| *link);
    Selected { link, why, others }
}

/// What of what is wanted a network does not meet by itself.
fn unfit(candidate: &LinkCandidate, rules: &LinkRules, in_use: bool) -> Option<Against> {
    // What is in use is not left for what was measured a moment ago, nor come back to for that.
    let bound = |most: u64| if in_use { most } else { most * u64::from(ENTERED_BELOW) / 100 };
    if !candidate.answers {
        return Some(if candidate.tried { Against::Silent } else { Against::Untried });
    }
    if let Some(fault) = candidate.facts.fault() {
        return Some(Against::Fault(fault));
    }
    if rules.never.contains(&candidate.link) {
        return Some(Against::Never);
    }
    if let (Some(is), Some(most)) = (candidate.round_trip, rules.delay_most) {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX / 100);
        let most = Duration::from_micros(bound(micros));
        if is > most {
            return Some(Against::Delay { is, most });
        }
    }
    if let (Some(is), Some(most)) = (candidate.lost, rules.lost_most) {
        let most = u16::try_from(bound(most.into())).unwrap_or(u16::MAX);
        if is > most {
            return Some(Against::Lost { is, most });
        }
    }
    if let (Some(is), Some(least)) = (candidate.facts.signal, rules.signal_least) {
        let least = if in_use { least } else { least.saturating_add(ENTERED_ABOVE) };
        if is < least {
            return Some(Against::Signal { is, least });
        }
    }
    let (is, least) = (candidate.facts.rate?, rules.rate_least?);
    let kept = u64::from(least) * u64::from(KEPT_ABOVE) / 100;
    let least = if in_use { u32::try_from(kept).unwrap_or(least) } else { least };
    (is < least).then_some(Against::Rate { is, least })
}

/// The best of those that fit.
fn best(
    fitting: &[&LinkCandidate],
    rules: &LinkRules,
    in_use: Option<LinkId>,
    natural: Option<LinkId>,
) -> Option<(Option<LinkId>, Why)> {
    let first = fitting.iter().map(|candidate| rules.rank(candidate.link)).min()?;
    let alike: Vec<&LinkCandidate> =
        fitting.iter().copied().filter(|candidate| rules.rank(candidate.link) == first).collect();
    let has = |link: Option<LinkId>| alike.iter().copied().find(|candidate| Some(candidate.link) == link);
    if let [only] = alike[..] {
        let of_rank = fitting.iter().filter(|candidate| rules.rank(candidate.link).0 == first.0).count();
        let why = match (fitting.len(), of_rank) {
            (1, _) => Why::Only,
            (_, 1) => Why::Rank,
            _ => Why::Price,
        };
        return Some((Some(only.link), why));
    }
    if rules.nearest {
        let round_trip = |candidate: &LinkCandidate| candidate.round_trip.unwrap_or(Duration::MAX);
        let nearest = alike.iter().copied().min_by_key(|candidate| {
            let stays = (Some(candidate.link) != in_use, Some(candidate.link) != natural, candidate.link);
            (round_trip(candidate), stays)
        })?;
        let stays = has(in_use).filter(|present| !is_nearer(round_trip(nearest), round_trip(present)));
        return Some((Some(stays.unwrap_or(nearest).link), Why::Nearest));
    }
    let least = alike.iter().copied().min_by_key(|candidate| candidate.link);
    let taken = has(natural).or_else(|| has(in_use)).or(least)?;
    Some((Some(taken.link), Why::Routes))
}

/// Whether one is nearer than another by so much that it is worth a hand-off.
fn is_nearer(one: Duration, other: Duration) -> bool {
    let margin = (other / NEARER_SHARE).max(NEARER_LEAST);
    one.checked_add(margin).is_some_and(|with| with <= other)
}

/// Where none fits: what is about to go comes after all else, before that what is never to be taken, and what leads
/// nowhere; of the rest the routes decide.
fn otherwise(
    candidates: &[LinkCandidate],
    rules: &LinkRules,
    in_use: Option<LinkId>,
    natural: Option<LinkId>,
) -> (Option<LinkId>, Why) {
    let answering = candidates.iter().filter(|candidate| candidate.answers);
    let key = |candidate: &&LinkCandidate| {
        let link = Some(candidate.link);
        let fault = candidate.facts.fault();
        let leaves = fault == Some(LinkFault::Leaving);
        (leaves, rules.never.contains(&candidate.link), fault, link != natural, link != in_use, candidate.link)
    };
    match answering.min_by_key(key) {
        Some(taken) => (Some(taken.link), Why::NothingFits),
        None => {
            let there = |link: &LinkId| candidates.iter().any(|candidate| candidate.link == *link);
            (in_use.or(natural).filter(there), Why::NothingAnswers)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ETH: LinkId = LinkId(2);
    const WLAN: LinkId = LinkId(3);
    const WWAN: LinkId = LinkId(4);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn up(link: LinkId, round_trip: u64, lost: u16) -> LinkCandidate {
        let facts = LinkFacts::default();
        LinkCandidate { link, answers: true, tried: true, round_trip: Some(ms(round_trip)), lost: Some(lost), facts }
    }

    fn ordered(links: &[LinkId]) -> LinkRules {
        LinkRules { ranks: links.iter().copied().zip(0..).collect(), ..LinkRules::default() }
    }

    fn all() -> [LinkCandidate; 3] {
        [up(ETH, 5, 0), up(WLAN, 20, 10), up(WWAN, 60, 20)]
    }

    #[test]
    fn without_a_wish_the_routes_decide() {
        let selected = select(&all(), &LinkRules::default(), Some(ETH), Some(WLAN));
        assert_eq!((selected.link, selected.why), (Some(WLAN), Why::Routes));
        assert_eq!(selected.others, [(ETH, Against::Routes), (WWAN, Against::Routes)]);
        // Where they lead to none of them, all stays.
        assert_eq!(select(&all(), &LinkRules::default(), Some(ETH), None).link, Some(ETH));
        assert_eq!(select(&[], &LinkRules::default(), Some(ETH), None).link, None);
    }

    #[test]
    fn the_first_that_answers_is_taken() {
        let rules = ordered(&[WLAN, ETH]);
        let selected = select(&all(), &rules, Some(ETH), Some(ETH));
        assert_eq!((selected.link, selected.why), (Some(WLAN), Why::Rank));
        assert_eq!(selected.others, [(ETH, Against::Rank), (WWAN, Against::Rank)]);
        let mut silent = all();
        silent[1].answers = false;
        let selected = select(&silent, &rules, Some(WLAN), Some(ETH));
        assert_eq!((selected.link, selected.why), (Some(ETH), Why::Rank));
        assert_eq!(selected.others[0], (WLAN, Against::Silent));
    }

    #[test]
    fn of_equals_the_cheapest_is_taken() {
        let rules = LinkRules { prices: [(ETH, 1), (WWAN, 9)].into(), ..LinkRules::default() };
        let selected = select(&all(), &rules, Some(ETH), Some(ETH));
        assert_eq!((selected.link, selected.why), (Some(WLAN), Why::Price));
        assert_eq!(selected.others, [(ETH, Against::Price), (WWAN, Against::Price)]);
    }

    #[test]
    fn a_bound_is_entered_below_it_and_left_above_it() {
        let rules = LinkRules { delay_most: Some(ms(100)), ..ordered(&[ETH, WLAN]) };
        let with = |round_trip, in_use| {
            let two = [up(ETH, round_trip, 0), up(WLAN, 20, 0)];
            select(&two, &rules, Some(in_use), Some(ETH))
        };
        assert_eq!(with(99, ETH).link, Some(ETH), "it stays");
        let out = with(101, ETH);
        assert_eq!(
            (out.link, &out.others[..]),
            (Some(WLAN), &[(ETH, Against::Delay { is: ms(101), most: ms(100) })][..])
        );
        let out = with(99, WLAN);
        assert_eq!(
            (out.link, &out.others[..]),
            (Some(WLAN), &[(ETH, Against::Delay { is: ms(99), most: ms(80) })][..])
        );
        assert_eq!(with(80, WLAN).link, Some(ETH), "and is come back to");
        let rules = LinkRules { lost_most: Some(50), ..ordered(&[ETH, WLAN]) };
        let two = [up(ETH, 5, 60), up(WLAN, 20, 0)];
        let selected = select(&two, &rules, Some(ETH), Some(ETH));
        assert_eq!(selected.others, [(ETH, Against::Lost { is: 60, most: 50 })]);
    }

    #[test]
    fn a_weak_network_comes_after_a_strong_one_and_one_that_has_no_signal_is_not_weak() {
        let rules = LinkRules { signal_least: Some(-70), ..ordered(&[WLAN, ETH]) };
        let with = |signal, in_use| {
            let mut two = [up(ETH, 5, 0), up(WLAN, 20, 0)];
            two[1].facts.signal = signal;
            select(&two, &rules, Some(in_use), Some(ETH))
        };
        assert_eq!(with(Some(-70), WLAN).link, Some(WLAN), "it stays");
        let out = with(Some(-71), WLAN);
        assert_eq!((out.link, out.others[0]), (Some(ETH), (WLAN, Against::Signal { is: -71, least: -70 })));
        let out = with(Some(-65), ETH);
        assert_eq!((out.link, out.others[0]), (Some(ETH), (WLAN, Against::Signal { is: -65, least: -64 })));
        assert_eq!(with(Some(-64), ETH).link, Some(WLAN), "and is come back to");
        assert_eq!(with(None, ETH).link, Some(WLAN), "nothing is known");
    }

    #[test]
    fn a_slow_network_comes_after_a_fast_one() {
        let rules = LinkRules { rate_least: Some(100), ..ordered(&[ETH, WLAN]) };
        let with = |rate, in_use| {
            let mut two = [up(ETH, 5, 0), up(WLAN, 20, 0)];
            two[0].facts.rate = rate;
            select(&two, &rules, Some(in_use), Some(ETH))
        };
        assert_eq!(with(Some(100), WLAN).link, Some(ETH), "as much as is wanted");
        assert_eq!(with(Some(80), ETH).link, Some(ETH), "it stays");
        let out = with(Some(79), ETH);
        assert_eq!((out.link, out.others[0]), (Some(WLAN), (ETH, Against::Rate { is: 79, least: 80 })));
        let out = with(Some(99), WLAN);
        assert_eq!((out.link, out.others[0]), (Some(WLAN), (ETH, Against::Rate { is: 99, least: 100 })));
        assert_eq!(with(None, WLAN).link, Some(ETH), "nothing is known");
    }

    #[test]
    fn the_nearest_has_to_be_nearer_by_enough() {
        let rules = LinkRules { nearest: true, ..LinkRules::default() };
        let with = |one, other| select(&[up(ETH, one, 0), up(WLAN, other, 0)], &rules, Some(ETH), Some(ETH));
        assert_eq!(with(15, 6).link, Some(ETH), "by 9 ms");
        assert_eq!(with(15, 5).link, Some(WLAN), "by 10 ms");
        assert_eq!(with(200, 170).link, Some(ETH), "by 15 %");
        let selected = with(200, 160);
        assert_eq!((selected.link, selected.why), (Some(WLAN), Why::Nearest));
        assert_eq!(selected.others, [(ETH, Against::Further)]);
    }

    #[test]
    fn what_selects_nothing_leaves_it_to_the_routes() {
        let rules = LinkRules { delay_most: Some(ms(1)), never: [WLAN].into(), ..LinkRules::default() };
        let selected = select(&all(), &rules, Some(WLAN), Some(WLAN));
        assert_eq!((selected.link, selected.why), (Some(ETH), Why::NothingFits));
        // What is never to be taken is better than nothing.
        let mut alone = all();
        (alone[0].answers, alone[2].answers) = (false, false);
        let selected = select(&alone, &rules, Some(ETH), Some(ETH));
        assert_eq!((selected.link, selected.why), (Some(WLAN), Why::NothingFits));
        alone[1].answers = false;
        let selected = select(&alone, &rules, Some(ETH), Some(WWAN));
        assert_eq!((selected.link, selected.why), (Some(ETH), Why::NothingAnswers));
    }

    #[test]
    fn what_a_link_says_of_itself_comes_first() {
        let rules = ordered(&[ETH, WLAN, WWAN]);
        for (facts, fault) in [
            (LinkFacts { captive: true, ..LinkFacts::default() }, LinkFault::Captive),
            (LinkFacts { leaving: true, captive: true, ..LinkFacts::default() }, LinkFault::Leaving),
        ] {
            let mut candidates = all();
            candidates[0].facts = facts;
            let selected = select(&candidates, &rules, Some(ETH), Some(ETH));
            assert_eq!((selected.link, selected.others[0]), (Some(WLAN), (ETH, Against::Fault(fault))));
            (candidates[1].answers, candidates[2].answers) = (false, false);
            assert_eq!(select(&candidates, &rules, Some(ETH), Some(ETH)).link, Some(ETH), "better than nothing");
        }
    }

    fn candidates() -> impl Strategy<Value = Vec<LinkCandidate>> {
        let facts = (any::<bool>(), any::<bool>(), prop::option::of(-90i16..-30), prop::option::of(1u32..2000));
        let facts = facts.prop_map(|(leaving, captive, signal, rate)| LinkFacts {
            leaving,
            captive,
            signal,
            rate,
            ..LinkFacts::default()
        });
        let one = (any::<bool>(), prop::option::of(0u64..300), prop::option::of(0u16..200), facts);
        prop::collection::vec(one, 0..5).prop_map(|all| {
            let with_number = all.into_iter().zip(2..);
            let candidate = |((answers, round_trip, lost, facts), link): ((_, Option<u64>, _, _), _)| LinkCandidate {
                link: LinkId(link),
                answers,
                tried: true,
                round_trip: round_trip.map(ms),
                lost,
                facts,
            };
            with_number.map(candidate).collect()
        })
    }

    fn rules() -> impl Strategy<Value = LinkRules> {
        let link = || (2u32..7).prop_map(LinkId);
        let numbers = || prop::collection::btree_map(link(), 0u32..3, 0..5);
        (
            numbers(),
            numbers(),
            prop::collection::btree_set(link(), 0..3),
            prop::option::of(0u64..300),
            prop::option::of(0u16..200),
            (prop::option::of(-90i16..-30), prop::option::of(1u32..2000)),
            any::<bool>(),
        )
            .prop_map(|(ranks, prices, never, delay, lost_most, (signal_least, rate_least), nearest)| {
                LinkRules {
                    ranks,
                    prices,
                    never,
                    delay_most: delay.map(ms),
                    lost_most,
                    signal_least,
                    rate_least,
                    nearest,
                }
            })
    }

    fn some_link() -> impl Strategy<Value = Option<LinkId>> {
        prop::option::of((2u32..7).prop_map(LinkId))
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_chosen_again(
            candidates in candidates(),
            rules in rules(),
            in_use in some_link(),
            natural in some_link(),
        ) {
            let first = select(&candidates, &rules, in_use, natural);
            let again = select(&candidates, &rules, first.link.or(in_use), natural);
            prop_assert_eq!(first.link, again.link);
        }

        #[test]
        fn what_fits_comes_before_what_does_not(
            candidates in candidates(),
            rules in rules(),
            in_use in some_link(),
            natural in some_link(),
        ) {
            let selected = select(&candidates, &rules, in_use, natural);
            let fits = |link: LinkId| {
                let of = candidates.iter().find(|candidate| candidate.link == link);
                of.is_some_and(|candidate| unfit(candidate, &rules, in_use == Some(link)).is_none())
            };
            if candidates.iter().any(|candidate| fits(candidate.link)) {
                prop_assert!(selected.link.is_some_and(fits));
                let best = candidates.iter().filter(|c| fits(c.link)).map(|c| rules.rank(c.link)).min();
                prop_assert_eq!(selected.link.map(|link| rules.rank(link)), best);
            }
            // One that answers is never left for one that does not.
            let answers = |link| candidates.iter().any(|candidate| candidate.link == link && candidate.answers);
            let any = candidates.iter().any(|candidate| candidate.answers);
            prop_assert!(!any || selected.link.is_some_and(answers));
            // What is never taken is taken only where there is no other that stays, and what leaves where all do.
            let leaves = |c: &LinkCandidate| c.facts.leaving;
            if selected.link.is_some_and(|link| rules.never.contains(&link) && answers(link)) {
                prop_assert!(candidates.iter().all(|c| !c.answers || rules.never.contains(&c.link) || leaves(c)));
            }
            let chosen = candidates.iter().find(|c| Some(c.link) == selected.link);
            if chosen.is_some_and(|c| c.answers && leaves(c)) {
                prop_assert!(candidates.iter().all(|c| !c.answers || leaves(c)));
            }
        }

        #[test]
        fn each_other_is_told_once_and_the_order_says_nothing(
            candidates in candidates(),
            rules in rules(),
            in_use in some_link(),
            natural in some_link(),
        ) {
            let selected = select(&candidates, &rules, in_use, natural);
            let told: BTreeSet<LinkId> = selected.others.iter().map(|(link, _)| *link).chain(selected.link).collect();
            prop_assert_eq!(told.len(), candidates.len());
            prop_assert_eq!(selected.others.len() + usize::from(selected.link.is_some()), candidates.len());
            let backwards: Vec<LinkCandidate> = candidates.into_iter().rev().collect();
            prop_assert_eq!(select(&backwards, &rules, in_use, natural), selected);
        }

        #[test]
        fn what_wavers_by_less_than_the_margin_moves_nothing(
            round_trips in prop::collection::vec((100u64..110, 100u64..110), 1..50),
            nearest in any::<bool>(),
        ) {
            let rules = LinkRules { nearest, delay_most: Some(ms(150)), ..LinkRules::default() };
            let mut in_use = None;
            let mut moves = 0;
            for (one, other) in round_trips {
                let now = select(&[up(ETH, one, 0), up(WLAN, other, 0)], &rules, in_use, Some(ETH)).link;
                moves += u32::from(in_use.is_some() && now != in_use);
                in_use = now;
            }
            prop_assert_eq!(moves, 0);
        }
    }
}
