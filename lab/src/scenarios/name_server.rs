//! A name server is told where the laptop is, for connections to come.

use std::fs;

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Bind, Cut, Error, Join, Lab, Result, ZONE, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "name-follows",
        "BIND is told by signed updates where the laptop is, also after it could not be reached; what others have written stays",
        name_follows,
    ),
    scenario("name-refused", "a key that BIND does not take, and a name that is an alias: both are told", name_refused),
];

/// An address that the name has from the start, and a record of another type.
const OTHERS: &str = "192.0.2.99";
const TEXT: &str = "\"it has this as well\"";

fn name_follows(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let names = lab.host("names")?;
    let address = names.join(&c.network, &Join::by("eth0"))?.ipv4()?;
    let bind = Bind::start(&names, address)?;
    let name = format!("laptop.{ZONE}");
    let config = format!(
        "[dns]\nname = \"{name}\"\nzone = \"{ZONE}\"\nserver = \"{address}\"\nkey_file = \"{}\"\nttl = 30\n",
        bind.key().display()
    );
    let mut client = world.laptop.whimbrel_with(&config)?;
    let server = world.server.clone();
    let told = |world: &World| -> Result<()> {
        let mut v4 = vec![world.at.ipv4()?.to_string(), OTHERS.to_owned()];
        v4.sort_unstable();
        let v6 = vec![world.at.ipv6()?.to_string()];
        wait_until(LONG, "the name has the laptop's addresses", || {
            let found = |kind| bind.lookup(&server, &name, kind).unwrap_or_default();
            found("A") == v4 && found("AAAA") == v6
        })?;
        let text = bind.lookup(&server, &name, "TXT")?;
        expect!(text == [TEXT], "of others there is {text:?}");
        Ok(())
    };
    told(&world)?;
    client.wait_event("name-updated", 0, LONG)?;

    step("the laptop moves");
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    told(&world)?;

    step("it moves while the name server cannot be reached");
    let since = client.status()?.newest_event;
    c.link()?.cut(Cut::Silent)?;
    world.roam(&a)?;
    client.wait_event("name-unanswered", since, LONG * 2)?;
    c.link()?.restore()?;
    told(&world)?;

    step("the daemon is started anew elsewhere");
    client.stop()?;
    world.roam(&b)?;
    client.restart()?;
    told(&world)?;
    all_run(&mut [&mut client])
}

fn name_refused(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let names = lab.host("names")?;
    let address = names.join(&c.network, &Join::by("eth0"))?.ipv4()?;
    let bind = Bind::start(&names, address)?;
    let forged = names.dir().join("forged.key");
    let made = names.command("/usr/sbin/tsig-keygen").args(["-a", "hmac-sha256", "laptop-key"]).run()?;
    fs::write(&forged, made).map_err(|e| Error::call("write", forged.display().to_string(), e))?;
    let config = |name: &str, key: &std::path::Path| {
        format!(
            "[dns]\nname = \"{name}.{ZONE}\"\nzone = \"{ZONE}\"\nserver = \"{address}:53\"\nkey_file = \"{}\"\n",
            key.display()
        )
    };
    step("another secret");
    let mut client = world.laptop.whimbrel_with(&config("laptop", &forged))?;
    for (name, key, code) in
        [("laptop", &forged, "BADSIG"), ("alias", bind.key(), "YXRRSET"), ("other", bind.key(), "REFUSED")]
    {
        if code != "BADSIG" {
            step(code);
            client.reconfigure(&config(name, key))?;
            client.stop()?;
            client.restart()?;
        }
        let event = client.wait_event("name-refused", 0, LONG)?;
        expect!(event.fields["code"] == code, "it is refused as {}: {}", event.fields["code"], event.sentence);
    }
    let found = bind.lookup(&world.server, &format!("laptop.{ZONE}"), "A")?;
    expect!(found == [OTHERS], "the name has {found:?}");
    all_run(&mut [&mut client])
}
