//! What an anchor says of what it lends, and what it lends no more.

use std::net::SocketAddr;

use super::anchor::{Four, LENDS, PORT};
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Lab, Many, Result, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "anchor-stopped",
    "an anchor that lends nothing new does so over a restart, until it is told otherwise; connections that were opened just before its daemon went depend on it once it is back",
    stopped,
)];

/// Connections that open just before the anchor's daemon goes.
const COUNT: usize = 3;

fn stopped(lab: &mut Lab) -> Result<()> {
    let mut four = Four::new(lab, LENDS)?;
    let at = SocketAddr::new(four.world.at_server.ipv4()?, PORT);
    let server = EchoServer::start_behind(&four.guest, "desk", at)?;
    step("connections are opened, and the anchor's daemon is gone before they have lasted");
    let mut many = Many::open(&four.world.laptop, &server, COUNT)?;
    let echo = |many: &mut Many| -> Result<()> {
        let report = many.echo(LONG)?;
        expect!(report.answered() == COUNT, "{} of {COUNT} connections answered", report.answered());
        Ok(())
    };
    // Both ends have them.
    echo(&mut many)?;
    four.anchor.kill()?;
    let refused = four.guest.wait_event("claim-refused", 0, LONG)?;
    expect!(refused.sentence.contains("does not answer"), "{}", refused.sentence);
    step("it comes back");
    four.anchor.restart()?;
    let passed_on = || four.anchor.anchors().is_ok_and(|all| all.passed_on.len() == COUNT);
    wait_until(LONG, "they are claimed", passed_on)?;
    echo(&mut many)?;

    step("it is told to lend nothing new");
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    expect!(four.anchor.cli(&["anchor", "stop", "--within", "0"]).is_err(), "connections depend on it");
    let told = |kind: &str| four.anchor.events(0).map(|all| all.iter().filter(|event| event.kind == kind).count());
    expect!(told("lending-stopped")? == 1, "it is told once");
    four.anchor.kill()?;
    four.anchor.restart()?;
    expect!(four.anchor.anchors()?.stopping, "another daemon lends again");
    four.anchor.wait_event("lending-stopped", 0, LONG)?;
    let refused = four.third.cli(&["run", "--anchor", "desk", "--", "true"]);
    expect!(refused.is_err_and(|error| error.to_string().contains("about to stop lending")), "it lends on");
    echo(&mut many)?;
    four.anchor.cli(&["anchor", "start"])?;
    four.anchor.wait_event("lending-started", 0, LONG)?;
    four.anchor.kill()?;
    four.anchor.restart()?;
    expect!(!four.anchor.anchors()?.stopping, "another daemon lends nothing");
    four.third.cli(&["run", "--anchor", "desk", "--", "true"])?;
    Ok(())
}
