//! Hosts that lose and get back a family of addresses: what is known of where a peer is outlives that (P-215).

use std::time::Duration;

use whimbrel_protocol::Config;
use whimbrel_sim::{Access, FlowId, Link, NetworkId, Verdict};

use crate::common::{INSIDE, SECOND, SERVICE, Two, introduced, seeds, stride};

const SERVER_SIX: &str = "2001:db8:9::1";
const SERVICE_SIX: &str = "[2001:db8:9::1]:80";
const BEAT: Duration = Duration::from_millis(97);

/// What a network gives a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    Four,
    Six,
    Both,
    Nat,
}

impl Gives {
    const ALL: [Self; 4] = [Self::Four, Self::Six, Self::Both, Self::Nat];

    fn four(self) -> bool {
        self != Self::Six
    }

    fn six(self) -> bool {
        matches!(self, Self::Six | Self::Both)
    }
}

/// One network, and what is opened there: a connection of either family (whether IPv6), or none.
#[derive(Clone, Copy, Debug)]
struct Step {
    gives: Gives,
    opens: Option<bool>,
}

/// The families that a server has.
#[derive(Clone, Copy, Debug)]
struct Server {
    four: bool,
    six: bool,
}

impl Server {
    /// Whether a host on such a network reaches it.
    fn is_reached(self, from: Gives) -> bool {
        (self.four && from.four()) || (self.six && from.six())
    }

    /// All steps that are possible with it.
    fn steps(self) -> Vec<Step> {
        let mut steps = Vec::new();
        for gives in Gives::ALL {
            let possible =
                [Some(false).filter(|_| self.four && gives.four()), Some(true).filter(|_| self.six && gives.six())];
            steps.extend(possible.into_iter().flatten().map(|six| Step { gives, opens: Some(six) }));
            steps.push(Step { gives, opens: None });
        }
        steps
    }
}

/// A client and a server of these families, and two networks of each kind, so that the next is always another one.
struct Roam {
    two: Two,
    server: Server,
    networks: [[NetworkId; 3]; 2],
    flows: Vec<FlowId>,
    moves: usize,
}

impl Roam {
    fn new(seed: u64, server: Server) -> Self {
        let mut two = Two::nowhere(seed, Config::default(), Config::default());
        if server.six {
            two.world.attach(two.server, two.far, SERVER_SIX);
        }
        if !server.four {
            two.world.detach(two.server, "10.9.0.1");
        }
        two.world.tracing = std::env::var_os("WHIMBREL_SIM_TRACE").is_some();
        two.world.set_beat(Some(BEAT));
        let networks = [0, 1].map(|_| [0, 1, 2].map(|_| two.world.network(Access::Open)));
        Self { two, server, networks, flows: Vec::new(), moves: 0 }
    }

    fn move_to(&mut self, gives: Gives) {
        let at = self.moves % 2;
        let [four, six, both] = self.networks[at];
        let (world, client) = (&mut self.two.world, self.two.client);
        let nat = [self.two.nat, self.two.second_nat][at];
        match gives {
            Gives::Four => world.move_to(client, four, &format!("10.2{at}.0.2")),
            Gives::Six => world.move_to(client, six, &format!("2001:db8:2{at}::2")),
            Gives::Nat => world.move_to(client, nat, INSIDE),
            Gives::Both => {
                let mut addresses = [format!("10.3{at}.0.2"), format!("2001:db8:3{at}::2")];
                // Either may be there first.
                if self.moves % 3 == 1 {
                    addresses.reverse();
                }
                world.move_to(client, both, &addresses[0]);
                world.run_for(Duration::from_millis(3));
                world.attach(client, both, &addresses[1]);
            }
        }
        self.moves += 1;
    }

    /// Goes to a network, opens what is to be opened there, and looks whether everything goes on that can.
    fn take(&mut self, step: Step, patience: u32) {
        self.move_to(step.gives);
        if let Some(six) = step.opens {
            let flow = self.two.world.connect(self.two.client, if six { SERVICE_SIX } else { SERVICE });
            self.flows.push(flow);
            let done = self.two.world.wait(6 * patience * SECOND, |world| world.introduced(flow));
            assert!(done, "{flow:?} is not introduced");
            self.await_all_addresses(6 * patience * SECOND);
        }
        if self.server.is_reached(step.gives) {
            self.two.world.assert_delivering(3 * patience * SECOND);
        } else {
            self.two.world.run_for(SECOND);
            self.assert_held();
        }
        self.two.world.check();
    }

    /// A connection may be introduced before the peer has told where else it is: who leaves before that cannot know it.
    fn await_all_addresses(&mut self, within: Duration) {
        let Server { four, six } = self.server;
        let client = self.two.client;
        let done = self.two.world.wait(within, |world| {
            let locators = &world.peer(client).locators;
            (!four || locators.iter().any(|locator| locator.is_ipv4()))
                && (!six || locators.iter().any(|locator| locator.is_ipv6()))
        });
        assert!(done, "the server has not told all its addresses: {:?}", self.two.world.peer(client).locators);
    }

    /// Nothing leads to the peer, and that is what is said.
    fn assert_held(&self) {
        for peer in self.two.world.peers(self.two.client) {
            assert_eq!(peer.source, None, "a way that there is not");
        }
        for flow in &self.flows {
            let view = self.two.world.view(*flow, 0).expect("the flow is known");
            assert!(matches!(self.two.world.verdict(*flow, 0), Verdict::Hold(_)), "{view:?}");
        }
    }
}

fn run(seed: u64, server: Server, steps: &[Step]) {
    run_over(seed, server, steps, Link::default(), 1);
}

/// The same, over links like this one, with so much more time.
fn run_over(seed: u64, server: Server, steps: &[Step], link: Link, patience: u32) {
    let outcome = std::panic::catch_unwind(|| {
        let mut roam = Roam::new(seed, server);
        roam.two.world.set_links(link);
        for step in steps {
            roam.take(*step, patience);
        }
    });
    if let Err(panic) = outcome {
        eprintln!("{server:?}: {steps:?}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_family_that_was_known_is_not_forgotten() {
    // Both know one another over IPv4; a connection over IPv6 makes the session anew; then there is IPv4 alone.
    for nat in [Gives::Four, Gives::Nat] {
        let steps = [
            Step { gives: Gives::Four, opens: Some(false) },
            Step { gives: Gives::Six, opens: Some(true) },
            Step { gives: nat, opens: Some(false) },
            Step { gives: Gives::Six, opens: Some(true) },
        ];
        run(2150, Server { four: true, six: true }, &steps);
    }
}

#[test]
fn connections_go_on_over_all_sequences_of_families() {
    let mut number = 0;
    for server in
        [Server { four: true, six: true }, Server { four: true, six: false }, Server { four: false, six: true }]
    {
        let steps = server.steps();
        let count = steps.len();
        for sequence in 0..count.pow(4) {
            number += 1;
            if number % stride(STRIDE) != 0 {
                continue;
            }
            let taken: Vec<Step> = (0..4).map(|at| steps[sequence / count.pow(at) % count]).collect();
            run(2151 + number as u64, server, &taken);
        }
    }
    // 9^4 + 7^4 + 6^4
    assert_eq!(number, 10_258);
}

/// Of so many sequences one is run where not all are.
const STRIDE: usize = 11;

#[test]
fn families_come_and_go_over_links_that_lose_much() {
    let server = Server { four: true, six: true };
    let steps = server.steps();
    for seed in seeds(8, 400) {
        let taken: Vec<Step> = (0..8).map(|at| steps[(seed as usize * 7919 + at * at * 31) % steps.len()]).collect();
        let link = Link { loss: 100, jitter: Duration::from_millis(10), ..Link::default() };
        run_over(2160 + seed, server, &taken, link, 10);
    }
}

#[test]
fn a_family_that_a_peer_has_given_up_for_a_while_is_tried_again() {
    let mut two = Two::new(2152);
    two.world.attach(two.server, two.far, SERVER_SIX);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.set_beat(Some(BEAT));
    introduced(&mut two.world, &[flow]);
    two.world.run_for(SECOND);
    two.world.detach(two.server, SERVER_SIX);
    two.world.run_for(5 * SECOND);
    assert!(two.world.peer(two.client).locators.iter().all(|locator| locator.is_ipv4()), "the server has told it");
    // While nobody could tell it that the family is back.
    two.world.move_to(two.client, two.away, "2001:db8:2::2");
    two.world.run_for(SECOND);
    two.world.attach(two.server, two.far, SERVER_SIX);
    two.world.assert_delivering(5 * SECOND);
    two.world.check();
}

#[test]
fn a_daemon_that_is_started_anew_in_another_family_finds_its_peer() {
    for (first, then) in [("10.2.0.2", "2001:db8:2::2"), ("2001:db8:2::2", "10.2.0.2")] {
        let mut two = Two::nowhere(2153, Config::default(), Config::default());
        two.world.attach(two.server, two.far, SERVER_SIX);
        two.world.attach(two.client, two.home, first);
        let service = if first.contains(':') { SERVICE_SIX } else { SERVICE };
        let flow = two.world.connect(two.client, service);
        two.world.set_beat(Some(BEAT));
        introduced(&mut two.world, &[flow]);
        two.world.run_for(SECOND);
        two.world.crash(two.client);
        two.world.move_to(two.client, two.away, then);
        two.world.run_for(SECOND);
        two.world.boot(two.client);
        two.world.assert_delivering(5 * SECOND);
        two.world.check();
    }
}
