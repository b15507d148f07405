//! The ports of this host that are in use, so that a moved flow is called by one that is not (`docs/protocol.md` §4,
//! P-16).

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use crate::base::config::Config;
use crate::base::random::Random;

/// A port is drawn so many times at the most, 16 at once.
const ROUNDS: usize = 8;
const FIRST_UNPRIVILEGED: u16 = 1024;

/// The ports that this host uses, or may come to use by itself.
pub(crate) struct Ports {
    /// What its kernel gives to connections by itself.
    drawn: RangeInclusive<u16>,
    /// What daemons talk by.
    control: u16,
    /// What sockets are bound to that take what anybody sends.
    bound: BTreeSet<u16>,
    /// Local ports of flows that are known, and of how many.
    flows: HashMap<u16, usize>,
    /// Who asks for a port need not be one who may change anything.
    lots: RefCell<Random>,
}

impl Ports {
    pub(crate) fn new(config: &Config, random: &mut Random) -> Self {
        let mut seed = [0; 32];
        random.fill(&mut seed);
        let lots = RefCell::new(Random::new(seed));
        let (drawn, control) = (config.drawn_ports.clone(), config.port);
        Self { drawn, control, bound: BTreeSet::new(), flows: HashMap::new(), lots }
    }

    pub(crate) fn set_bound(&mut self, bound: BTreeSet<u16>, drawn: RangeInclusive<u16>) {
        (self.bound, self.drawn) = (bound, drawn);
    }

    fn is_used(&self, port: u16) -> bool {
        port == self.control || self.bound.contains(&port) || self.flows.contains_key(&port)
    }

    pub(crate) fn record_flow(&mut self, port: u16) {
        *self.flows.entry(port).or_default() += 1;
    }

    pub(crate) fn forget_flow(&mut self, port: u16) {
        if let Some(count) = self.flows.get_mut(&port) {
            *count -= 1;
            if *count == 0 {
                self.flows.remove(&port);
            }
        }
    }

    /// Entries of its tables.
    pub(crate) fn entries(&self) -> usize {
        self.bound.len() + self.flows.len()
    }

    /// A wire port that nothing native bears: no socket has it, and the kernel gives it to none by itself (P-16).
    /// `free` tells which are left beside those of other flows. By lot, so that nobody knows it beforehand, and in so
    /// many tries at the most: where these find none, nearly all are had.
    pub(crate) fn wire_port(&self, free: impl Fn(u16) -> bool) -> Option<u16> {
        let unused = |port: &u16| free(*port) && !self.is_used(*port);
        let outside = |from: u16, to: u16| {
            let below = (from < *self.drawn.start()).then(|| from..=to.min(self.drawn.start() - 1));
            let above = (to > *self.drawn.end()).then(|| from.max(self.drawn.end() + 1)..=to);
            [below, above]
        };
        let (unprivileged, privileged) = (outside(FIRST_UNPRIVILEGED, u16::MAX), outside(1, FIRST_UNPRIVILEGED - 1));
        if unprivileged.iter().chain(&privileged).all(Option::is_none) {
            // The kernel draws from all ports; what it draws later P-138 sees to.
            return self.draw(&[Some(1..=u16::MAX), None], unused);
        }
        self.draw(&unprivileged, unused).or_else(|| self.draw(&privileged, unused))
    }

    fn draw(&self, from: &[Option<RangeInclusive<u16>>; 2], unused: impl Fn(&u16) -> bool) -> Option<u16> {
        let count: usize = from.iter().flatten().map(ExactSizeIterator::len).sum();
        let at = |place: usize| {
            let before = from[0].as_ref().map_or(0, ExactSizeIterator::len);
            let (range, place) = if place < before { (&from[0], place) } else { (&from[1], place - before) };
            range.clone()?.nth(place)
        };
        (0..ROUNDS).filter(|_| count > 0).find_map(|_| {
            let mut lots = [0; 32];
            self.lots.borrow_mut().fill(&mut lots);
            let places =
                lots.chunks_exact(2).map(|lot| (usize::from(u16::from_be_bytes([lot[0], lot[1]])) * count) >> 16);
            places.filter_map(at).find(&unused)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ports(drawn: RangeInclusive<u16>) -> Ports {
        Ports::new(&Config { drawn_ports: drawn, ..Config::default() }, &mut Random::new([7; 32]))
    }

    #[test]
    fn a_wire_port_is_none_that_anything_native_bears() {
        // P-16
        for drawn in [32_768..=60_999, 1024..=65_535, 10_000..=65_535, 1024..=40_000, 2..=65_535, 1..=65_534] {
            let bound = BTreeSet::from([22, 443, 1100, 2032, 8080]);
            let ports = Ports { bound, ..ports(drawn.clone()) };
            let mut had = HashSet::new();
            while let Some(port) = ports.wire_port(|port| !had.contains(&port)).filter(|_| had.len() < 500) {
                assert!(port != 0 && port != 2031 && !drawn.contains(&port), "{port} of {drawn:?}");
                assert!(!ports.bound.contains(&port), "{port} is bound");
                assert!(had.insert(port), "{port} twice");
            }
            assert!(had.len() == 500 || *drawn.start() <= 2, "{} of {drawn:?}", had.len());
        }
    }

    #[test]
    fn nobody_foretells_a_wire_port() {
        let ports = ports(32_768..=60_999);
        let drawn: HashSet<_> = (0..1000).filter_map(|_| ports.wire_port(|_| true)).collect();
        assert!(drawn.len() > 950, "{} different ones of a thousand", drawn.len());
        assert!(drawn.iter().any(|port| *port < 4096) && drawn.iter().any(|port| *port > 60_999));
    }

    #[test]
    fn who_has_nearly_all_ports_is_refused_another_after_few_tries() {
        let ports = ports(32_768..=60_999);
        let (mut had, mut asked) = (HashSet::new(), 0);
        let none = loop {
            let tries = std::cell::Cell::new(0);
            let drawn = ports.wire_port(|port| {
                tries.set(tries.get() + 1);
                !had.contains(&port)
            });
            asked = asked.max(tries.get());
            let Some(port) = drawn else { break had.len() };
            assert!(port != 443 || had.len() > 30_000, "privileged ones come last");
            had.insert(port);
        };
        assert!(none > 35_000 && asked <= 2 * ROUNDS * 16, "{none} had, {asked} tries for one");
        assert!(!had.contains(&2031) && had.iter().all(|port| !ports.drawn.contains(port)));
    }

    #[test]
    fn ports_of_flows_are_passed_over_until_the_last_of_them_is_gone() {
        // All but two are the kernel's.
        let mut ports = ports(3..=65_535);
        let drawn = |ports: &Ports| (0..100).filter_map(|_| ports.wire_port(|_| true)).collect::<BTreeSet<_>>();
        ports.record_flow(1);
        ports.record_flow(1);
        assert_eq!(drawn(&ports), BTreeSet::from([2]));
        ports.forget_flow(1);
        assert_eq!(drawn(&ports), BTreeSet::from([2]));
        ports.forget_flow(1);
        assert_eq!((drawn(&ports), ports.entries()), (BTreeSet::from([1, 2]), 0));
    }

    #[test]
    fn where_the_kernel_draws_from_all_ports_none_is_taken_twice() {
        let ports = Ports { bound: BTreeSet::from([5000]), ..ports(1..=65_535) };
        let mut had = HashSet::new();
        for _ in 0..1000 {
            let port = ports.wire_port(|port| !had.contains(&port)).expect("there are others");
            assert!(port != 0 && port != 5000 && had.insert(port), "{port} twice");
        }
    }
}
