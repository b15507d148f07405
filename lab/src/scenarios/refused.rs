//! Targets that cannot take a socket, each for a reason of its own: the donor is told it, and the connection stays
//! where it was.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::ConnectionState;

use super::relocation::Three;
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Error, Host, Lab, Many, Result, Ticker, TickerFar, Whimbrel, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "move-refused",
        "targets without descriptors, receiver or leave to take anything: each says why, and the connection stays and goes on",
        |lab| refused(lab, false),
    ),
    scenario(
        "move-refused-ipv6",
        "the same over IPv6, which a target has not in its own network, and takes all the same",
        |lab| refused(lab, true),
    ),
    scenario(
        "move-no-room",
        "one host after the other cannot write down what it decides: nothing moves, nothing is lost, and all goes on when it can; the far end runs nothing",
        |lab| no_room(lab, false),
    ),
    scenario("move-no-room-direct", "the same with a far end that runs Whimbrel, which cannot either", |lab| {
        no_room(lab, true)
    }),
    scenario(
        "move-refused-rights",
        "a target whose daemon lacks a right, and one whose program may not ask its daemon: each says so, and the connection stays and goes on",
        without_rights,
    ),
];

const EVERY: Duration = Duration::from_millis(1);

/// A connection that never rests, and its sender.
struct Ticking {
    tickers: [Ticker; 2],
    far: TickerFar,
}

impl Ticking {
    /// A move that has to fail, with what is to be in its complaint. The connection goes on where it was, and no byte
    /// was sent twice or not.
    fn stays(&mut self, donor: &Whimbrel, to: &str, receiver: &str, why: &str) -> Result<()> {
        let said = donor.cli(&["move", &self.far.local().to_string(), "--to", to, "--process", receiver]);
        let Err(error) = said else { return Err(Error::Usage(format!("it was moved to {to}, which cannot take it"))) };
        expect!(error.to_string().contains(why), "not {why:?} but: {error}");
        println!("    {}", error.to_string().lines().find(|line| line.contains(why)).unwrap_or(why).trim());
        self.goes_on()
    }

    /// A move to the other of the two; whether it succeeded. If not, this is to be in the complaint.
    fn moves(&mut self, donor: &Whimbrel, whose: usize, why: &str) -> Result<bool> {
        let to = ["guest", "desk"][whose];
        match donor.cli(&["move", &self.far.local().to_string(), "--to", to, "--process", to]) {
            Ok(said) => {
                expect!(said.contains("is with"), "{said}");
                self.tickers[whose].ticked()?;
                self.goes_on()?;
                Ok(true)
            }
            Err(error) => {
                expect!(error.to_string().contains(why), "it was refused, but so: {error}");
                self.goes_on()?;
                Ok(false)
            }
        }
    }

    fn goes_on(&mut self) -> Result<()> {
        self.far.wait_progress(300, LONG)?;
        expect!(!self.far.heard()?.1, "the far end was told that the connection is over");
        Ok(())
    }
}

/// Leaves a process this many free descriptors.
fn leave_descriptors(daemon: &mut Whimbrel, free: Option<usize>) -> Result<()> {
    let pid = daemon.process().pid();
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .map_err(|e| Error::call("readdir", format!("/proc/{pid}/fd"), e))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<usize>().ok())
        .collect::<Vec<_>>();
    // The limit is one of numbers: those below that are free are used first.
    let limit = match free {
        Some(free) => {
            let mut unused = (0..).filter(|number| !open.contains(number));
            unused.nth(free).unwrap_or(1024).to_string()
        }
        None => "1024".to_owned(),
    };
    let host = daemon.host().clone();
    host.command("prlimit").args(["--pid", &pid.to_string(), &format!("--nofile={limit}:")]).run()?;
    Ok(())
}

fn refused(lab: &mut Lab, ipv6: bool) -> Result<()> {
    let stranger_host = lab.host("stranger")?;
    let mut three = Three::with(lab, false, "[anchor]\nports = \"40000-40999\"\n")?;
    let at = stranger_host.join(&three.world.b.network, &crate::Join::by("eth0"))?;
    let stranger = stranger_host.whimbrel()?;
    let at_donor: IpAddr = if ipv6 { three.world.at_server.ipv6()? } else { three.world.at_server.ipv4()? };
    let at_acceptor = if ipv6 { three.at.ipv6()? } else { three.at_acceptor };
    let tickers = [
        Ticker::start(&three.donor_daemon, at_donor, "desk", EVERY)?,
        Ticker::start(&three.acceptor_daemon, at_acceptor, "guest", EVERY)?,
    ];
    let far = TickerFar::connect(&three.world.laptop, tickers[0].address())?;
    let mut ticking = Ticking { tickers, far };
    ticking.goes_on()?;

    step("nobody receives it there");
    ticking.stays(&three.donor_daemon, "guest", "nobody", "no program on the other host receives it")?;

    step("a host that is none of the community's asks to receive, to hand over and to lend");
    let stranger_at = at.ipv4()?.to_string();
    ticking.stays(&three.donor_daemon, &stranger_at, "guest", "no host is known by this")?;
    let own = Ticker::start(&stranger, if ipv6 { at.ipv6()? } else { at.ipv4()? }, "own", EVERY)?;
    let mut theirs = TickerFar::connect(&three.world.laptop, own.address())?;
    theirs.wait_progress(100, LONG)?;
    let donor_at = three.world.at_server.ipv4()?.to_string();
    // The two know each other by a connection, and no more.
    let at_donor = three.world.at_server.ipv4()?;
    let server = EchoServer::start(&three.world.server, at_donor)?;
    let _known = Many::open(&stranger_host, &server, 1)?;
    let knows = |peer: &whimbrel_ipc::Peer| peer.address.ip() == at_donor;
    wait_until(LONG, "they are peers", || stranger.peers().is_ok_and(|peers| peers.iter().any(knows)))?;
    let refused = |said: Result<String>, why: &str| {
        let told = said.err().map(|error| error.to_string()).unwrap_or_default();
        expect!(told.contains(why), "it is not refused since {why}: {told}");
        Ok(())
    };
    let moved = stranger.cli(&["move", &theirs.local().to_string(), "--to", &donor_at, "--process", "desk"]);
    refused(moved, "the other host takes no sockets from this one")?;
    theirs.wait_progress(100, LONG)?;
    refused(stranger.cli(&["run", "--anchor", &donor_at, "--", "true"]), "it lends nothing to this host")?;

    step("the target has no descriptors left");
    for free in [0, 1, 3, 6, 9] {
        leave_descriptors(&mut three.acceptor_daemon, Some(free))?;
        let said =
            three.donor_daemon.cli(&["move", &ticking.far.local().to_string(), "--to", "guest", "--process", "guest"]);
        leave_descriptors(&mut three.acceptor_daemon, None)?;
        match said {
            Ok(said) => {
                println!("    {free} descriptors are enough");
                expect!(said.contains("is with"), "{said}");
                ticking.tickers[0].ticked()?;
                ticking.goes_on()?;
                three.acceptor_daemon.cli(&[
                    "move",
                    &ticking.far.local().to_string(),
                    "--to",
                    "desk",
                    "--process",
                    "desk",
                ])?;
                ticking.tickers[1].ticked()?;
            }
            Err(error) => {
                expect!(error.to_string().contains("has no room for it"), "with {free} descriptors: {error}");
            }
        }
        ticking.goes_on()?;
    }

    if ipv6 {
        step("the target has no IPv6 of its own");
        three.acceptor.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    }
    step("nothing of all that hinders the next");
    let said =
        three.donor_daemon.cli(&["move", &ticking.far.local().to_string(), "--to", "guest", "--process", "guest"])?;
    expect!(said.contains("is with"), "{said}");
    ticking.tickers[0].ticked()?;
    ticking.goes_on()?;
    three.world.no_resets()
}

/// Moves that are tried where a host has no room. The page in which its file ends is filled by the first.
const TRIES: usize = 24;
/// Of these, so many of the last must have been refused.
const REFUSED: usize = 6;

fn no_room(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::started(lab, far_runs, Host::whimbrel_with_little_room)?;
    let tickers = [
        Ticker::start(&three.donor_daemon, three.world.at_server.ipv4()?, "desk", EVERY)?,
        Ticker::start(&three.acceptor_daemon, three.at_acceptor, "guest", EVERY)?,
    ];
    let far = TickerFar::connect(&three.world.laptop, tickers[0].address())?;
    let mut ticking = Ticking { tickers, far };
    ticking.goes_on()?;
    if let Some(far) = &three.far_daemon {
        let native = || far.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
        wait_until(LONG, "the connection is introduced", native)?;
    }

    // Whose the socket is: 0 for the donor's, 1 for the acceptor's.
    let mut whose = 0;
    for full in 0..if far_runs { 3 } else { 2 } {
        step(["the donor has no room", "the acceptor has no room", "the holder has no room"][full]);
        let Three { donor_daemon, acceptor_daemon, far_daemon, .. } = &mut three;
        let narrow = |donor: &Whimbrel, acceptor: &Whimbrel, far: Option<&Whimbrel>, none| match (full, far) {
            (0, _) => donor.fill(none),
            (1, _) => acceptor.fill(none),
            (_, far) => far.map_or(Ok(()), |far| far.fill(none)),
        };
        narrow(donor_daemon, acceptor_daemon, far_daemon.as_ref(), true)?;
        // A holder that is another host says no more than that.
        let why = if full == 2 { "called off" } else { "could not be kept" };
        let mut refused = 0;
        let mut moved = 0;
        for _ in 0..TRIES {
            let from = if whose == 0 { &*donor_daemon } else { &*acceptor_daemon };
            if ticking.moves(from, whose, why)? {
                whose = 1 - whose;
                (refused, moved) = (0, moved + 1);
            } else {
                refused += 1;
            }
            if refused == REFUSED {
                break;
            }
        }
        println!("    {moved} moves found room");
        expect!(refused == REFUSED, "there is room for {moved} moves where there is none");
        step("there is room again");
        narrow(donor_daemon, acceptor_daemon, far_daemon.as_ref(), false)?;
        for _ in 0..4 {
            let from = if whose == 0 { &*donor_daemon } else { &*acceptor_daemon };
            expect!(ticking.moves(from, whose, why)?, "it is refused all the same");
            whose = 1 - whose;
        }
        step("what was not written then is by now: its daemon is killed");
        let full = match (full, &mut *far_daemon) {
            (0, _) => donor_daemon,
            (_, Some(far)) if full == 2 => far,
            _ => acceptor_daemon,
        };
        full.kill()?;
        ticking.goes_on()?;
        full.restart()?;
        ticking.goes_on()?;
    }
    three.world.no_resets()
}

fn without_rights(lab: &mut Lab) -> Result<()> {
    let mut three = Three::new(lab, false)?;
    let at_donor: IpAddr = three.world.at_server.ipv4()?;
    let first = Ticker::start(&three.donor_daemon, at_donor, "desk", EVERY)?;
    let far = TickerFar::connect(&three.world.laptop, first.address())?;

    step("a program of a user who may not ask the daemon there");
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let binary = three.acceptor_daemon.binary().to_owned();
    let command = three.acceptor.command("setpriv").args(nobody).arg(&binary);
    let command = command.arg("--run-dir").arg(three.acceptor_daemon.run_dir());
    let Err(error) = command.args(["receive", "guest", "--", "true"]).run() else {
        return Err(Error::Usage("anybody may receive sockets".into()));
    };
    expect!(error.to_string().contains("this user may not ask the daemon"), "{error}");
    let second = Ticker::start(&three.acceptor_daemon, three.at_acceptor, "other", EVERY)?;
    let mut ticking = Ticking { tickers: [first, second], far };
    ticking.goes_on()?;
    ticking.stays(&three.donor_daemon, "guest", "guest", "no program on the other host receives it")?;

    step("the daemon there may not make the namespace that the socket needs");
    three.acceptor_daemon.stop()?;
    three.acceptor_daemon.deny(Some("sys_admin"));
    three.acceptor_daemon.restart()?;
    ticking.tickers[1] = Ticker::start(&three.acceptor_daemon, three.at_acceptor, "guest", EVERY)?;
    ticking.stays(&three.donor_daemon, "guest", "guest", "the other host may not rebuild sockets")?;

    step("nor anything at all, and says so when it is started");
    three.acceptor_daemon.stop()?;
    three.acceptor_daemon.deny(Some("net_admin"));
    let Err(error) = three.acceptor_daemon.restart() else {
        return Err(Error::Usage("a daemon without CAP_NET_ADMIN works".into()));
    };
    println!("    {error}");
    expect!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    ticking.stays(&three.donor_daemon, "guest", "guest", "the other host does not answer")?;

    step("once it has its rights it takes it");
    three.acceptor_daemon.deny(None);
    three.acceptor_daemon.restart()?;
    // Its program asks for it again by itself.
    let moved = || {
        let remote = ticking.far.local().to_string();
        Ok(three.donor_daemon.cli(&["move", &remote, "--to", "guest", "--process", "guest"]).ok())
    };
    let said = wait_for(LONG, "it moves", moved)?;
    expect!(said.contains("is with guest"), "{said}");
    ticking.tickers[0].ticked()?;
    ticking.goes_on()?;
    three.world.no_resets()
}
