//! All chance comes from the seed.

use crate::common::{AWAY, HOME, SECOND, Two};

fn run(seed: u64) -> Vec<String> {
    let (mut two, _) = Two::flowing(seed, 5);
    two.world.attach(two.client, two.away, AWAY);
    two.world.attach(two.client, two.further, "2001:db8:3::2");
    two.world.run_for(SECOND);
    two.world.detach(two.client, HOME);
    two.world.run_for(SECOND);
    two.world.traced().map(str::to_owned).collect()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}
