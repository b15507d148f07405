//! The lab tries itself: the scenarios that need no daemon. Needs root.

use whimbrel_lab::{Lab, Options, scenarios};

#[test]
#[ignore = "needs root"]
fn the_lab_does_what_it_says() {
    for scenario in scenarios::all().filter(|scenario| !scenario.needs_daemon) {
        let mut lab = Lab::new(Options::default()).unwrap();
        let result = (scenario.run)(&mut lab);
        assert!(result.is_ok(), "{} (seed {}): {}", scenario.name, lab.seed(), result.unwrap_err());
    }
}
