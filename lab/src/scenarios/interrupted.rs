//! Moves of sockets that are struck in the middle: by the death of a daemon or a program, by a daemon that stands
//! still, by a network that is gone for a moment. Where a blow falls is chance, of a seed that is printed; the
//! simulator tries every step (`crates/sim/tests/sim/relocation.rs`), and here are real kernels.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use whimbrel_ipc::ConnectionState;

use super::relocation::Three;
use super::world::LONG;
use super::{Scenario, scenario};
use crate::{Cut, Error, Lab, MonoTime, Random, Result, Ticker, TickerFar, Whimbrel, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-faults",
        "moves are struck at moments of chance: the connection is at one place and goes on, or its end is told",
        |lab| faults(lab, false),
    ),
    scenario("moved-faults-direct", "the same with a far end that runs Whimbrel, whose daemon may die too", |lab| {
        faults(lab, true)
    }),
    scenario(
        "moved-while-it-stops",
        "the donor's daemon dies while it waits for a program to stand still, for which another needs to have come: the program goes on",
        while_it_stops,
    ),
    scenario(
        "moved-as-it-ends",
        "the donor's daemon is asked to end while a socket rests that nobody takes: the program goes on before it has",
        |lab| as_it_ends(lab, false),
    ),
    scenario(
        "moved-as-it-ends-direct",
        "the same where the far end says whose it is, and does not: the program stands still until there is a daemon again",
        |lab| as_it_ends(lab, true),
    ),
];

/// Blows of each kind.
const ROUNDS: usize = 3;
const NAMES: [&str; 2] = ["desk", "guest"];
const EVERY: Duration = Duration::from_millis(1);
/// Bytes that show that a connection goes on.
const SOME: u64 = 100;
/// How long a daemon stands still, or a network is gone: several of the pauses after which words are said again.
const WHILE: Duration = Duration::from_millis(700);
/// Until a host that has lost its memory is found out, and asked again and again (P-71): pauses double to 30 s.
const SETTLED: Duration = Duration::from_secs(120);

/// What strikes. The donor is whoever has the socket at first, the acceptor who is to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    DonorDies,
    AcceptorDies,
    FarDies,
    DonorStands,
    AcceptorStands,
    DonorCutOff,
    AcceptorCutOff,
    GiverDies,
    TakerDies,
}

impl Blow {
    const ALL: [Self; 9] = [
        Self::DonorDies,
        Self::AcceptorDies,
        Self::FarDies,
        Self::DonorStands,
        Self::AcceptorStands,
        Self::DonorCutOff,
        Self::AcceptorCutOff,
        Self::GiverDies,
        Self::TakerDies,
    ];

    /// Whether a socket may die of it: with its program, or, where it was just handed over, with the daemon that had
    /// it.
    fn may_end(self) -> bool {
        matches!(self, Self::AcceptorDies | Self::GiverDies | Self::TakerDies)
    }
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    Stayed,
    Moved,
    Ended,
}

struct Stage {
    three: Three,
    tickers: [Ticker; 2],
    far: TickerFar,
    /// Which of the two hosts has the socket.
    owner: usize,
}

fn faults(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let seed = lab.seed();
    println!("    seed {seed:#x}");
    let mut random = Random::new(seed);
    // Their logs tell which step a move was at.
    let three = Three::with(lab, far_runs, "log = \"debug\"\n")?;
    let tickers = [ticker(&three, 0)?, ticker(&three, 1)?];
    let far = TickerFar::connect(&three.world.laptop, tickers[0].address())?;
    let mut stage = Stage { three, tickers, far, owner: 0 };
    stage.wait_ready()?;
    let mut typical = Duration::ZERO;
    for to in [1, 0] {
        let begun = MonoTime::now();
        let mut asked = stage.ask(to)?;
        asked.wait_success(LONG)?;
        typical = MonoTime::now().since(begun);
        stage.owner = to;
        stage.wait_ready()?;
    }
    if let Some(daemon) = stage.three.far_daemon.as_mut() {
        // Both ends take it for native again: what is under way on old paths is restored for a while, but by no daemon
        // that has begun after that.
        die(daemon)?;
        stage.far.heard()?;
        stage.wait_ready()?;
    }
    println!("    a move takes {:.0} ms", typical.as_secs_f64() * 1e3);
    let mut hit: BTreeMap<(Blow, String), [usize; 3]> = BTreeMap::new();
    for number in 0..ROUNDS * Blow::ALL.len() {
        let blow = Blow::ALL[number % Blow::ALL.len()];
        if blow == Blow::FarDies && !far_runs {
            continue;
        }
        let after = typical.mul_f64(1.1 * random.fraction());
        let begun = MonoTime::now();
        let (struck, became) = stage
            .strike(blow, after)
            .map_err(|error| Error::Expectation(format!("{blow:?} after {after:?}: {error}")))?;
        let phase = phase(lab, begun, struck)?;
        // That nobody takes it is known by the time that it would be rebuilt.
        let early = matches!(phase.as_str(), "nothing yet" | "admit" | "save-donation" | "freeze");
        expect!(blow != Blow::TakerDies || !early || became == Became::Stayed, "{blow:?} at {phase}: {became:?}");
        println!(
            "    {blow:?} {:.0} ms on, at {phase}: {became:?}, settled after {:.1} s",
            after.as_secs_f64() * 1e3,
            MonoTime::now().since(struck).as_secs_f64()
        );
        hit.entry((blow, phase)).or_default()[became as usize] += 1;
    }
    for ((blow, phase), [stayed, moved, ended]) in &hit {
        println!("    {blow:?} at {phase}: stayed {stayed}, moved {moved}, ended {ended}");
    }
    Ok(())
}

fn ticker(three: &Three, host: usize) -> Result<Ticker> {
    match host {
        0 => Ticker::start(&three.donor_daemon, three.world.at_server.ipv4()?, NAMES[0], EVERY),
        _ => Ticker::start(&three.acceptor_daemon, three.at_acceptor, NAMES[1], EVERY),
    }
}

impl Stage {
    fn daemon(&mut self, host: usize) -> &mut Whimbrel {
        if host == 0 { &mut self.three.donor_daemon } else { &mut self.three.acceptor_daemon }
    }

    /// The connection runs, and is introduced where the far end runs Whimbrel.
    fn wait_ready(&mut self) -> Result<()> {
        self.far.wait_progress(SOME, LONG)?;
        let local = self.far.local();
        if let Some(daemon) = &self.three.far_daemon {
            let known = |state| matches!(state, ConnectionState::Native | ConnectionState::Moved);
            let introduced =
                || daemon.connections().is_ok_and(|all| all.iter().any(|c| c.flow.local == local && known(c.state)));
            wait_until(LONG, "the connection is introduced", introduced)?;
        }
        Ok(())
    }

    fn ask(&mut self, to: usize) -> Result<crate::Process> {
        let local = self.far.local().to_string();
        self.daemon(1 - to).spawn_cli(&["move", &local, "--to", NAMES[to], "--process", NAMES[to]])
    }

    /// Has the connection move and strikes. When that was, and what became of the connection.
    fn strike(&mut self, blow: Blow, after: Duration) -> Result<(MonoTime, Became)> {
        let (from, to) = (self.owner, 1 - self.owner);
        let mut asked = self.ask(to)?;
        std::thread::sleep(after);
        let mut struck = MonoTime::now();
        match blow {
            Blow::DonorDies => die(self.daemon(from))?,
            Blow::AcceptorDies => die(self.daemon(to))?,
            Blow::FarDies => self.three.far_daemon.as_mut().map_or(Ok(()), die)?,
            Blow::DonorStands => stand(self.daemon(from))?,
            Blow::AcceptorStands => stand(self.daemon(to))?,
            Blow::DonorCutOff => self.cut(from)?,
            Blow::AcceptorCutOff => self.cut(to)?,
            Blow::GiverDies => self.tickers[from].kill()?,
            Blow::TakerDies => self.tickers[to].kill()?,
        }
        if matches!(blow, Blow::GiverDies | Blow::TakerDies) {
            // On a busy machine it takes a while to be gone.
            struck = MonoTime::now();
        }
        let became = self.settle(blow)?;
        asked.kill()?;
        let killed = match blow {
            Blow::GiverDies => Some(from),
            Blow::TakerDies => Some(to),
            _ => None,
        };
        if let Some(host) = killed {
            self.tickers[host] = ticker(&self.three, host)?;
        }
        if became == Became::Ended {
            expect!(blow.may_end(), "the connection has ended");
            self.far = TickerFar::connect(&self.three.world.laptop, self.tickers[0].address())?;
            self.owner = 0;
        }
        self.wait_ready()?;
        Ok((struck, became))
    }

    fn cut(&self, host: usize) -> Result<()> {
        let site = if host == 0 { &self.three.world.s } else { &self.three.network };
        site.link()?.cut(Cut::Silent)?;
        std::thread::sleep(WHILE);
        site.link()?.restore()
    }

    /// Waits until one copy is left and goes on, or none, and the far end has heard of it.
    fn settle(&mut self, blow: Blow) -> Result<Became> {
        let mut before = self.far.heard()?.0;
        let mut last = String::new();
        let what = "the connection is at one place, or over";
        let settled = wait_for(SETTLED, what, || {
            let copies = [self.copies(0)?, self.copies(1)?];
            let (received, over) = self.far.heard()?;
            let goes_on = received >= before + SOME;
            before = if goes_on { received } else { before };
            last = format!("sockets {copies:?}, {received} bytes, over {over}");
            expect!(!over || blow.may_end(), "the far end was told that the connection is over");
            Ok(match copies {
                [1, 0] if goes_on => Some(Some(0)),
                [0, 1] if goes_on => Some(Some(1)),
                [0, 0] if over => Some(None),
                _ => None,
            })
        });
        match settled {
            Ok(None) => Ok(Became::Ended),
            Ok(Some(host)) if host == self.owner => Ok(Became::Stayed),
            Ok(Some(host)) => {
                self.owner = host;
                Ok(Became::Moved)
            }
            Err(Error::Timeout { what, after, .. }) => Err(Error::Timeout { what, after, last: format!("; {last}") }),
            Err(other) => Err(other),
        }
    }

    /// Sockets of the connection on a host, in its own namespace and those of its daemon.
    fn copies(&mut self, host: usize) -> Result<usize> {
        let far = self.far.local().to_string();
        let daemon = self.daemon(host);
        let pid = daemon.process().pid();
        let host = daemon.host().clone();
        let of = |said: &str| {
            let lines = said.lines().filter(|line| line.starts_with("ESTAB") && line.contains(&far));
            lines.count()
        };
        let mut all = of(&host.command("ss").args(["-tanH"]).run()?);
        let own = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let mut seen = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            if !link.to_string_lossy().starts_with("net:[") || Some(&link) == own.as_ref() || seen.contains(&link) {
                continue;
            }
            seen.push(link);
            let inside = format!("--net={}", entry.path().display());
            // It may have been taken down meanwhile.
            all += host.command("nsenter").args([&inside, "ss", "-tanH"]).run().map_or(0, |said| of(&said));
        }
        Ok(all)
    }
}

/// Echoes lines on one connection. Between some it starts a program whose input nobody writes to yet: until then it
/// waits for that uninterruptibly (vfork(2)), and does not stand still when it is told to.
const SPAWNS: &str = r#"
import os, socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
file = connection.makefile("rwb", buffering=0)
for line in file:
    if line == b"spawn\n":
        opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[2], os.O_RDONLY, 0)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens]), 0)
    file.write(line)
"#;

/// Such a program at the donor, and who talks to it.
struct Spawning {
    program: crate::Process,
    input: std::path::PathBuf,
    far: TcpStream,
    lines: std::io::Lines<BufReader<TcpStream>>,
}

impl Spawning {
    fn start(three: &Three) -> Result<Self> {
        let server = &three.world.server;
        let input = server.dir().join("input");
        server.command("mkfifo").arg(&input).run()?;
        let address = three.world.at_server.ipv4()?;
        let program = server.command("/usr/bin/python3").args(["-c", SPAWNS, &address.to_string()]).arg(&input);
        let mut program = program.label("spawns").spawn()?;
        let port = program.wait_line(LONG, "it listens", |line| line.trim().parse::<u16>().ok())?;
        let connect = || TcpStream::connect(SocketAddr::new(address, port));
        let far = three.world.laptop.enter(connect)?.map_err(Self::failed)?;
        far.set_read_timeout(Some(LONG)).map_err(Self::failed)?;
        let lines = BufReader::new(far.try_clone().map_err(Self::failed)?).lines();
        let mut this = Self { program, input, far, lines };
        this.say("one")?;
        this.hear("one")?;
        Ok(this)
    }

    fn failed(error: std::io::Error) -> Error {
        Error::call("talk", "the program", error)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.far, "{line}").map_err(Self::failed)
    }

    fn hear(&mut self, wanted: &str) -> Result<()> {
        let heard = self.lines.next().transpose().map_err(Self::failed)?;
        expect!(heard.as_deref() == Some(wanted), "heard {heard:?} and not {wanted}");
        Ok(())
    }

    fn status(&self) -> String {
        fs::read_to_string(format!("/proc/{}/status", self.program.pid())).unwrap_or_default()
    }

    fn status_line(&self, name: &str) -> String {
        let status = self.status();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    }

    fn stands_still(&self) -> bool {
        self.status_line("State:").starts_with('T')
    }

    fn is_stopped(&self) -> bool {
        let pending = u64::from_str_radix(&self.status_line("ShdPnd:"), 16).unwrap_or(0);
        pending & 1 << (Signal::STOP.as_raw() - 1) != 0 || self.stands_still()
    }

    /// Has it wait for its input, and its connection move, until the donor's daemon waits for it to stand still.
    fn ask(&mut self, three: &Three) -> Result<crate::Process> {
        self.say("spawn")?;
        wait_until(LONG, "it waits for what it has started", || self.status_line("State:").starts_with('D'))?;
        let local = self.far.local_addr().map_err(Self::failed)?.to_string();
        let asked = three.donor_daemon.spawn_cli(&["move", &local, "--to", NAMES[1], "--process", NAMES[1]])?;
        wait_until(LONG, "it is being stopped", || self.is_stopped())?;
        Ok(asked)
    }

    /// Gives it its input.
    fn feed(&self) -> Result<()> {
        fs::write(&self.input, "").map_err(|error| Error::call("write", self.input.display().to_string(), error))
    }
}

fn while_it_stops(lab: &mut Lab) -> Result<()> {
    let mut three = Three::with(lab, false, "log = \"debug\"\n")?;
    let _receiver = ticker(&three, 1)?;
    let mut program = Spawning::start(&three)?;
    let mut asked = program.ask(&three)?;
    die(&mut three.donor_daemon)?;
    asked.kill()?;
    wait_until(LONG, "nobody stops it any more", || !program.is_stopped())?;
    program.feed()?;
    program.hear("spawn")?;
    program.say("two")?;
    program.hear("two")?;
    let pid = program.program.pid();
    wait_until(LONG, "the daemon notes nothing of it", || {
        let journal = fs::read_to_string(three.donor_daemon.run_dir().join("journal"));
        journal.is_ok_and(|journal| {
            !journal.contains(&format!("\"halted\":[{pid},")) || journal.contains(&format!("\"halted_over\":{pid}"))
        })
    })?;
    three.world.no_resets()
}

/// How often a program may be too late.
const TRIES: usize = 5;

/// Has its connection move until it stands still, and nobody answers what is said then.
fn unanswered(three: &mut Three, program: &mut Spawning) -> Result<crate::Process> {
    for _ in 0..TRIES {
        let mut asked = program.ask(three)?;
        let mut all = |signal| {
            three.acceptor_daemon.process().signal(signal)?;
            three.far_daemon.as_mut().map_or(Ok(()), |far| far.process().signal(signal))
        };
        all(Signal::STOP)?;
        program.feed()?;
        wait_until(LONG, "it stands still", || program.stands_still() || !asked.is_running())?;
        // It answers when it has done what it was at.
        three.donor_daemon.status()?;
        if program.stands_still() {
            return Ok(asked);
        }
        // It has a second for that, in which this one may not have been run.
        all(Signal::CONT)?;
        program.hear("spawn")?;
    }
    Err(Error::Expectation("it never stands still".to_owned()))
}

/// `far_runs`: it has to say whose the socket is, and does not.
fn as_it_ends(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::with(lab, far_runs, "log = \"debug\"\n")?;
    let _receiver = ticker(&three, 1)?;
    let mut program = Spawning::start(&three)?;
    if let Some(far) = &three.far_daemon {
        let native = || far.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
        wait_until(LONG, "the connection is introduced", native)?;
    }
    let mut asked = unanswered(&mut three, &mut program)?;
    three.donor_daemon.stop()?;
    if far_runs {
        let refused = three.donor_daemon.cli(&["clean"]);
        expect!(refused.is_err_and(|error| error.to_string().contains("sockets rest here")), "it is cleaned away");
    }
    asked.kill()?;
    three.acceptor_daemon.kill()?;
    if let Some(far) = &mut three.far_daemon {
        expect!(program.stands_still(), "it goes on, and its connection may be another host's");
        far.process().signal(Signal::CONT)?;
        three.donor_daemon.restart()?;
    }
    program.hear("spawn")?;
    program.say("two")?;
    program.hear("two")?;
    if !far_runs {
        three.donor_daemon.restart()?;
        program.say("three")?;
        program.hear("three")?;
    }
    three.world.no_resets()
}

fn die(daemon: &mut Whimbrel) -> Result<()> {
    daemon.kill()?;
    daemon.restart()
}

fn stand(daemon: &mut Whimbrel) -> Result<()> {
    daemon.process().signal(Signal::STOP)?;
    std::thread::sleep(WHILE);
    daemon.process().signal(Signal::CONT)
}

/// The last step of any move that was begun between two moments, as the daemons' logs tell.
fn phase(lab: &Lab, from: MonoTime, to: MonoTime) -> Result<String> {
    let mut last = (0, "nothing yet".to_owned());
    for (_, path) in lab.daemon_logs() {
        let log = fs::read_to_string(&path).map_err(|e| Error::call("read", path.display().to_string(), e))?;
        for told in log.lines().filter_map(|line| Some(line.split_once("move: ")?.1)) {
            let mut words = told.split_whitespace();
            let (Some(kind), Some(at)) = (words.next(), words.find_map(|word| word.strip_prefix("at_us="))) else {
                continue;
            };
            let at = at.parse::<u64>().unwrap_or_default();
            if (from.0 / 1000..=to.0 / 1000).contains(&at) && at >= last.0 {
                last = (at, kind.to_owned());
            }
        }
    }
    Ok(last.1)
}
