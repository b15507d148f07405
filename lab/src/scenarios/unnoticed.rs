//! A second network takes the default route: what connections say in the moment before a daemon can know.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use whimbrel_ipc::ConnectionState;

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Direction, Error, Gateway, Host, Join, Lab, Result, SiteSpec, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "unnoticed-resets",
        "a network takes the routes whose router resets everything, and idle connections of both families say a byte \
         each in that very moment, at both ends: none of it goes there, and all live on",
        resets,
    ),
    scenario(
        "unnoticed-nat",
        "the same of a NAT, which the connections move to: nothing goes there under the old address",
        nat,
    ),
];

const ROUNDS: u8 = 8;
/// Connections of each family, which say their byte one after the other.
const CONNECTIONS: usize = 16;
const APART: Duration = Duration::from_micros(250);
/// The priority of the rules that a daemon makes once it knows (`kernel::source_routing`).
const RULE: &str = "2034:";

fn resets(lab: &mut Lab) -> Result<()> {
    let closed = |router: &Host| {
        router.nft(
            "table inet everybody { chain forward { type filter hook forward priority filter; \
             iifname br-b meta l4proto tcp reject with tcp reset; iifname br-b drop; }; }",
        )
    };
    unnoticed(lab, site("b"), closed)
}

fn nat(lab: &mut Lab) -> Result<()> {
    unnoticed(lab, site("b").behind(Gateway::Nat { random_ports: false }), |_| Ok(()))
}

/// A connection whose ends are both held by the scenario.
struct Idle {
    near: TcpStream,
    far: TcpStream,
    names: (SocketAddr, SocketAddr),
}

impl Idle {
    fn new(world: &World, to: IpAddr) -> Result<Self> {
        let failed = |source| Error::call("connect", to.to_string(), source);
        let listener = world.server.enter(|| TcpListener::bind((to, 0)))?.map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let near = world.laptop.enter(|| TcpStream::connect_timeout(&at, LONG))?.map_err(failed)?;
        let far = listener.accept().map_err(failed)?.0;
        for stream in [&near, &far] {
            stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(LONG))).map_err(failed)?;
        }
        let names = (near.local_addr().map_err(failed)?, at);
        Ok(Self { near, far, names })
    }

    fn say(&mut self, byte: u8) -> Result<()> {
        let said = self.near.write_all(&[byte]).and_then(|()| self.far.write_all(&[!byte]));
        said.map_err(|source| Error::call("write", self.names.0.to_string(), source))
    }

    fn hear(&mut self, byte: u8) -> Result<()> {
        for (stream, wanted, end) in [(&mut self.far, byte, "server"), (&mut self.near, !byte, "laptop")] {
            let mut heard = [0];
            let read = stream.read_exact(&mut heard);
            read.map_err(|source| Error::call("read", format!("{} at the {end}", self.names.0), source))?;
            expect!(heard[0] == wanted, "{} heard {} at the {end}, and not {wanted}", self.names.0, heard[0]);
        }
        Ok(())
    }
}

/// ip(8) that waits for commands, so that each is carried out in an instant.
struct Routes(Child);

impl Routes {
    fn new(host: &Host) -> Result<Self> {
        let start = || Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn();
        host.enter(start)?.map(Self).map_err(|source| Error::call("spawn", "ip -batch -", source))
    }

    fn change(&mut self, commands: &[String]) -> Result<()> {
        let all = commands.iter().map(|command| command.clone() + "\n").collect::<String>();
        let input = self.0.stdin.as_mut().ok_or_else(|| Error::Usage("ip has no input".into()))?;
        input.write_all(all.as_bytes()).map_err(|source| Error::call("write", "ip -batch -", source))
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn all_native(client: &Whimbrel, connections: &[Idle]) -> Result<()> {
    wait_for(LONG * 3, "all connections are known, and at home", || {
        let known = client.connections()?;
        let native = |idle: &Idle| {
            known.iter().any(|one| {
                (one.flow.local, one.flow.remote) == idle.names
                    && one.peer.is_some()
                    && one.state == ConnectionState::Native
            })
        };
        Ok(connections.iter().all(native).then_some(()))
    })
}

/// The daemon has seen that the second network leads out, or that it does not any more.
fn noticed(host: &Host, there: bool) -> Result<()> {
    let what = format!("rules {} by source", if there { "lead" } else { "no longer lead" });
    wait_for(LONG, &what, || {
        let rules = host.ip_output("-4 rule")? + &host.ip_output("-6 rule")?;
        Ok((rules.contains(RULE) == there).then_some(()))
    })
}

fn unnoticed(lab: &mut Lab, second: SiteSpec, close: impl Fn(&Host) -> Result<()>) -> Result<()> {
    let world = World::new(lab, site("a"), second)?;
    close(&world.b.router)?;
    let (mut client, mut server) = world.daemons()?;
    // As with DHCP: the interface is there before the address, and that before the route.
    let second = world.laptop.join(&world.b.network, &Join { default_route: false, ..Join::by("eth0") })?;
    let spec = world.b.network.spec();
    let mut families = vec![(world.at.ipv4()?, world.at_server.ipv4()?)];
    let mut routes: Vec<String> = spec.v4.iter().map(|(gateway, _)| format!("default via {gateway}")).collect();
    if let Some((gateway, _)) = spec.v6 {
        families.push((world.at.ipv6()?, world.at_server.ipv6()?));
        routes.push(format!("::/0 via {gateway}"));
    }
    let own: Vec<IpAddr> = families.iter().map(|(own, _)| *own).collect();
    let astray = second.access()?.count(move |direction, packet| {
        let from = packet.tcp().and_then(|_| packet.endpoints()).map(|(from, _)| from.ip());
        direction == Direction::Up && from.is_some_and(|from| own.contains(&from))
    });
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        for (_, to) in &families {
            connections.push(Idle::new(&world, *to)?);
        }
    }
    all_native(&client, &connections)?;
    let mut ip = Routes::new(&world.laptop)?;
    let changed = |verb: &str| -> Vec<String> {
        routes.iter().map(|route| format!("route {verb} {route} dev {} metric 50", second.interface)).collect()
    };
    let gateways = spec.v4.map(|v4| IpAddr::from(v4.0)).into_iter().chain(spec.v6.map(|v6| IpAddr::from(v6.0)));
    let gateways: Vec<String> = gateways.map(|gateway| gateway.to_string()).collect();

    step(&format!("{ROUNDS} times it takes the default route, and loses it"));
    for round in 0..ROUNDS {
        for gateway in &gateways {
            world.laptop.command("ping").args(["-c", "1", "-W", "5", gateway]).run()?;
        }
        ip.change(&changed("add"))?;
        for idle in connections.chunks_mut(families.len()) {
            idle.iter_mut().try_for_each(|one| one.say(round))?;
            std::thread::sleep(APART);
        }
        connections.iter_mut().try_for_each(|one| one.hear(round))?;
        noticed(&world.laptop, true)?;
        ip.change(&changed("del"))?;
        noticed(&world.laptop, false)?;
        all_native(&client, &connections)?;
    }
    expect!(astray.get() == 0, "{} segments went by the second network under the old address", astray.get());
    world.no_resets()?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}
