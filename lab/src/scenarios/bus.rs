//! What other services say on D-Bus: of networks, to the daemon; and what users are told on theirs.

use super::world::{LONG, SOME, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Bus, Lab, Leave, Result, expect};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "notify",
    "a user's session shows one notification for a hand-off, and one while the peer gives no answer; without a desktop \
     that shows any, and over the daemon's restart, it goes on",
    notify,
)];

fn notify(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let says = |client: &crate::Whimbrel| {
        let command = world.laptop.command(client.binary()).arg("--run-dir").arg(client.run_dir()).arg("notify");
        command.label("notify")
    };

    step("there is no session");
    let output = says(&client).env("DBUS_SESSION_BUS_ADDRESS", world.laptop.bus_address()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    expect!(!output.status.success() && said.contains("notifications cannot be shown"), "{said}");

    step("the laptop moves");
    let mut bus = Bus::start(&world.laptop)?;
    let mut desktop = bus.template("notification_daemon", "org.freedesktop.Notifications")?;
    let mut notifier = bus.with_bus(says(&client)).spawn()?;
    notifier.wait_line(LONG, "notifications begin", |line| line.contains("are shown").then_some(()))?;
    let shown = |line: &str| line.contains(" Notify ").then(|| line.to_owned());
    let to = world.b.clone();
    world.roam(&to)?;
    let told = desktop.wait_line(LONG, "a notification of the hand-off", shown)?;
    println!("    {told}");
    expect!(told.contains("Connections have moved") && told.contains("1 connection with 1 host"), "{told}");
    pair.wait_progress(SOME, LONG)?;

    step("the daemon is started anew, and the peer gives no answer");
    client.restart()?;
    pair.wait_progress(SOME, LONG)?;
    let before = client.status()?.newest_event;
    world.laptop.leave(&world.at, Leave::Silent)?;
    client.wait_event("not-confirmed", before, LONG)?;
    let told = desktop.wait_line(LONG, "a notification of the silence", shown)?;
    println!("    {told}");
    expect!(told.contains("Connections get no answer"), "{told}");
    world.at.access()?.restore()?;
    pair.wait_progress(SOME, LONG)?;
    expect!(notifier.is_running(), "{}", notifier.stderr());

    notifier.kill()?;
    desktop.kill()?;
    bus.process().kill()?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
