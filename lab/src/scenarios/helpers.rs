//! Migration helpers: what is done for a connection while its peer is away, and what becomes of those that fail.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_ipc::{Away, Connection, EventRecord, HelperState};

use super::absence::wait_away;
use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Error, Host, Join, Lab, Leave, Process, Result, Shape, SshServer, Whimbrel, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "helper-irc",
        "an IRC client sleeps for longer than its server's ping timeout: the server is answered, and nothing is lost",
        irc,
    ),
    scenario(
        "helper-irc-vanish",
        "an IRC client vanishes without a word for longer than its server's ping timeout, and is back elsewhere",
        irc_vanish,
    ),
    scenario(
        "helper-irc-v6",
        "an IRC client that is connected over IPv6 sleeps, and is back elsewhere and at home",
        irc_v6,
    ),
    scenario(
        "helper-woken",
        "an IRC client wakes for a moment, in which it gets a part of what was said, and sleeps on",
        woken,
    ),
    scenario("helper-irc-without", "the same without a helper: the server drops the client", irc_without),
    scenario("helper-crash", "a helper crashes again and again: the connection waits, and nothing is lost", crash),
    scenario("helper-hang", "a helper reads nothing: the connection waits, and nothing is lost", hang),
    scenario(
        "helper-flood",
        "a helper answers without end: it is stopped at its limit, and the session goes on",
        flood,
    ),
    scenario("helper-full", "more is sent than may be kept: the rest waits in the server, and nothing is lost", full),
    scenario(
        "helper-daemon-killed",
        "the live end's daemon is killed while a helper answers: the next one goes on where it was",
        daemon_killed,
    ),
    scenario(
        "helper-stop",
        "of a server that forks, the process that serves the sleeping laptop is stopped, through a kill of the daemon",
        stop,
    ),
    scenario("helper-stop-shared", "a process that serves others as well is not stopped", stop_shared),
];

const PORT: u16 = 6667;
/// Seconds after which the server asks a silent client, and after which it gives it up.
const PING: u32 = 3;
const PONG: u32 = 4;
/// Longer than any scenario.
const NEVER: u32 = 600;

/// An IRC server with a channel, and somebody who talks there.
struct Irc {
    server: Process,
    talker: Client,
    said: u32,
    address: String,
}

/// ii(1): a directory of named pipes and files.
struct Client {
    process: Process,
    /// What the server itself says.
    server: PathBuf,
    channel: PathBuf,
    /// What is said in the channel. It stays open: ii opens a pipe anew when its last writer has closed it, and loses
    /// what another has written meanwhile.
    says: File,
}

impl Client {
    fn join(host: &Host, address: &str, nick: &str) -> Result<Self> {
        let dir = host.dir().join(nick);
        let process = host
            .command("ii")
            .args(["-i", &dir.display().to_string(), "-s", address, "-p", &PORT.to_string(), "-n", nick])
            .label(format!("ii-{nick}"))
            .spawn()?;
        let at = dir.join(address);
        let (server, channel) = (at.join("out"), at.join("#whimbrel"));
        wait_for(LONG, "the client is welcome", || Ok(read(&server).contains("Welcome").then_some(())))?;
        write(&mut pipe(&at.join("in"))?, "/j #whimbrel")?;
        wait_for(LONG, "the client is in the channel", || Ok(channel.join("in").exists().then_some(())))?;
        let says = pipe(&channel.join("in"))?;
        Ok(Self { process, server, channel, says })
    }

    fn say(&self, line: &str) -> Result<()> {
        write(&mut &self.says, line)
    }

    /// What others have said in the channel, and what happened there.
    fn heard(&self) -> String {
        read(&self.channel.join("out"))
    }

    /// The numbers of the lines that a nick has said, as far as they are known here.
    fn numbers(&self, nick: &str) -> Vec<u32> {
        let before = format!("<{nick}> line ");
        self.heard().lines().filter_map(|line| line.split_once(&before)?.1.split(' ').next()?.parse().ok()).collect()
    }
}

/// Opens a named pipe to write. With a reader of its own: so it waits for nobody, and what is written stays until
/// somebody reads.
fn pipe(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|error| Error::call("open", path.display().to_string(), error))
}

fn write(pipe: &mut impl Write, line: &str) -> Result<()> {
    pipe.write_all(format!("{line}\n").as_bytes())
        .map_err(|error| Error::call("write", "a pipe of ii".to_owned(), error))
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Irc {
    fn start(world: &World, ip: IpAddr, ping: u32) -> Result<Self> {
        let host = &world.server;
        let address = ip.to_string();
        let config = host.dir().join("ngircd.conf");
        let text = format!(
            "[Global]\nName = irc.whimbrel.test\nInfo = lab\nListen = {address}\nPorts = {PORT}\nMotdPhrase = hello\n\
             [Limits]\nPingTimeout = {ping}\nPongTimeout = {PONG}\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n\
             [Options]\nDNS = no\nIdent = no\nPAM = no\n"
        );
        fs::write(&config, text).map_err(|error| Error::call("write", config.display().to_string(), error))?;
        let mut server = host.command("ngircd").args(["-n", "-f", &config.display().to_string()]).spawn()?;
        let open = || host.enter(|| TcpStream::connect((ip, PORT)).is_ok()).unwrap_or(false);
        wait_until(LONG, "the server listens", || !server.is_running() || open())?;
        expect!(server.is_running(), "ngircd ended: {} {}", server.stdout(), server.stderr());
        let talker = Client::join(host, &address, "talker")?;
        Ok(Self { server, talker, said: 0, address })
    }

    /// The talker says a number of lines of some length.
    fn talk(&mut self, lines: u32, length: usize) -> Result<()> {
        for _ in 0..lines {
            self.said += 1;
            self.talker.say(&format!("line {} {}", self.said, "x".repeat(length)))?;
        }
        Ok(())
    }

    /// The client has every line that was said, once and in order.
    fn all_heard(&self, client: &mut Client) -> Result<()> {
        let all: Vec<u32> = (1..=self.said).collect();
        let mut numbers = Vec::new();
        let heard = wait_until(LONG, "the client has heard all", || {
            numbers = client.numbers("talker");
            numbers.len() >= all.len()
        });
        expect!(heard.is_ok() && numbers == all, "of {} lines the client has {numbers:?}", all.len());
        expect!(client.process.is_running(), "the client has ended");
        Ok(())
    }

    /// What the client says is heard, which it never left.
    fn is_alive(&self, client: &Client, word: &str) -> Result<()> {
        client.say(word)?;
        wait_until(LONG, "the talker hears the client", || self.talker.heard().contains(&format!("<sleeper> {word}")))?;
        expect!(!self.dropped(), "the server has dropped the client: {}", self.talker.heard());
        Ok(())
    }

    fn dropped(&self) -> bool {
        read(&self.talker.server).lines().any(|line| line.contains("sleeper") && line.contains("has quit"))
    }
}

/// The world, an IRC session that is introduced, and the daemons.
struct Session {
    world: World,
    irc: Irc,
    sleeper: Client,
    client: Whimbrel,
    server: Whimbrel,
}

impl Session {
    fn start(lab: &mut Lab, config: &str, ping: u32) -> Result<Self> {
        let world = World::new(lab, site("a"), site("b"))?;
        let ip = world.at_server.ipv4()?;
        Self::start_at(world, ip, config, ping)
    }

    fn start_at(world: World, ip: IpAddr, config: &str, ping: u32) -> Result<Self> {
        let (client, server) = (world.laptop.whimbrel()?, world.server.whimbrel_with(config)?);
        let mut irc = Irc::start(&world, ip, ping)?;
        let sleeper = Client::join(&world.laptop, &irc.address, "sleeper")?;
        wait_for(LONG, "the session is introduced", || {
            let introduced = [client.status()?, server.status()?].map(|status| status.counts.introduced);
            Ok((introduced == [1, 1]).then_some(()))
        })?;
        irc.talk(3, 10)?;
        let mut session = Self { world, irc, sleeper, client, server };
        session.irc.all_heard(&mut session.sleeper)?;
        session.irc.is_alive(&session.sleeper, "before")?;
        Ok(session)
    }

    /// The laptop sleeps, in nobody's network.
    fn sleep(&mut self) -> Result<()> {
        step("the laptop sleeps");
        self.client.cli(&["suspend"])?;
        wait_away(&self.server, Some(Away::Announced))?;
        self.world.laptop.leave(&self.world.at, Leave::Orderly)
    }

    /// It is awake, in network `b`, or at home.
    fn wake(&mut self, home: bool) -> Result<()> {
        let site = if home { &self.world.a } else { &self.world.b };
        self.world.at = self.world.laptop.join(&site.network, &Join::default())?;
        self.client.cli(&["resume"])?;
        step("the laptop is awake");
        Ok(())
    }

    /// The session as the server's daemon has it.
    fn connection(&self) -> Result<Connection> {
        let all = self.server.connections()?;
        let of_irc =
            all.into_iter().find(|connection| connection.flow.local.port() == PORT && connection.peer.is_some());
        of_irc.ok_or_else(|| Error::Usage("the server's daemon does not know the session any more".into()))
    }

    /// Waits until the server was answered so many bytes in this absence.
    fn answered(&self, bytes: u64) -> Result<()> {
        wait_for(LONG * 2, &format!("{bytes} bytes are answered"), || {
            let helper = self.connection()?.helper;
            Ok(helper.is_some_and(|helper| helper.answered >= bytes).then_some(()))
        })
    }

    fn helper_state(&self, state: HelperState) -> Result<()> {
        wait_for(LONG, &format!("the helper is {state:?}"), || {
            Ok(self.connection()?.helper.is_some_and(|helper| helper.state == state).then_some(()))
        })
    }

    fn failed(&self, since: u64, why: &str) -> Result<EventRecord> {
        let event = self.server.wait_event("helper-failed", since, LONG * 2)?;
        expect!(event.sentence.contains(why), "{}", event.sentence);
        step(&event.sentence);
        Ok(event)
    }

    fn finish(mut self) -> Result<()> {
        self.world.no_resets()?;
        expect!(self.irc.server.is_running(), "ngircd has ended");
        all_run(&mut [&mut self.client, &mut self.server])
    }
}

fn section(command: &str, limits: &str) -> String {
    format!("[[helper]]\nname = \"irc\"\nkind = \"program\"\nlocal_port = {PORT}\ncommand = {command}\n{limits}\n")
}

/// The helper that is shipped, where anybody may run it.
fn irc_pong(lab: &Lab) -> Result<String> {
    let built = crate::beside_this_program("irc-pong")
        .ok_or_else(|| Error::Usage("irc-pong is not beside this program: build it".into()))?;
    let there = lab.dir().join("irc-pong");
    let failed = |error| Error::call("copy", there.display().to_string(), error);
    fs::copy(&built, &there).map_err(failed)?;
    fs::set_permissions(&there, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o755)).map_err(failed)?;
    Ok(format!("[{:?}]", there.display().to_string()))
}

/// An answer to the server's PING.
const ONE_PONG: u64 = "PONG :irc.whimbrel.test\r\n".len() as u64;

fn irc(lab: &mut Lab) -> Result<()> {
    let config = section(&irc_pong(lab)?, "");
    let mut session = Session::start(lab, &config, PING)?;
    for (absence, home) in [(1, false), (2, true), (3, true)] {
        let since = session.server.status()?.newest_event;
        session.sleep()?;
        session.server.wait_event("helper-started", since, LONG)?;
        for pongs in 1..=3 {
            session.irc.talk(5, 100)?;
            session.answered(pongs * ONE_PONG)?;
        }
        step("the server was answered three times");
        session.wake(home)?;
        let over = session.server.wait_event("helper-over", since, LONG)?;
        step(&over.sentence);
        session.irc.all_heard(&mut session.sleeper)?;
        session.irc.is_alive(&session.sleeper, &format!("back {absence}"))?;
        session.irc.talk(3, 300)?;
        session.irc.all_heard(&mut session.sleeper)?;
        let helper = session.connection()?.helper;
        expect!(
            helper
                .as_ref()
                .is_some_and(|of| of.state == HelperState::Over && u64::from(of.shifted) >= absence * 3 * ONE_PONG),
            "{helper:?}"
        );
    }
    // Numbers are translated by whoever comes after.
    session.server.kill()?;
    session.irc.talk(2, 10)?;
    session.irc.is_alive(&session.sleeper, "without a daemon")?;
    session.server.restart()?;
    session.irc.talk(2, 10)?;
    session.irc.all_heard(&mut session.sleeper)?;
    session.irc.is_alive(&session.sleeper, "with another")?;
    session.server.stop()?;
    session.irc.is_alive(&session.sleeper, "with none again")?;
    session.server.restart()?;
    session.irc.is_alive(&session.sleeper, "at the end")?;
    session.finish()
}

fn irc_v6(lab: &mut Lab) -> Result<()> {
    let config = section(&irc_pong(lab)?, "");
    let world = World::new(lab, site("a"), site("b"))?;
    let ip = world.at_server.ipv6()?;
    let mut session = Session::start_at(world, ip, &config, PING)?;
    for home in [false, true] {
        let since = session.server.status()?.newest_event;
        session.sleep()?;
        session.irc.talk(5, 100)?;
        session.answered(ONE_PONG)?;
        session.wake(home)?;
        session.server.wait_event("helper-over", since, LONG)?;
        session.irc.all_heard(&mut session.sleeper)?;
        session.irc.is_alive(&session.sleeper, &format!("at home: {home}"))?;
    }
    session.finish()
}

fn irc_vanish(lab: &mut Lab) -> Result<()> {
    let config = section(&irc_pong(lab)?, "");
    let mut session = Session::start(lab, &config, PING)?;
    let since = session.server.status()?.newest_event;
    step("the laptop vanishes");
    session.world.laptop.leave(&session.world.at, Leave::Orderly)?;
    session.irc.talk(5, 100)?;
    wait_away(&session.server, Some(Away::Silent))?;
    session.server.wait_event("helper-started", since, LONG)?;
    for pongs in 1..=2 {
        session.irc.talk(5, 100)?;
        session.answered(pongs * ONE_PONG)?;
    }
    session.world.at = session.world.laptop.join(&session.world.b.network, &Join::default())?;
    step("the laptop is back");
    // It speaks first: its words stand behind what was answered for it.
    session.sleeper.say("I am back")?;
    session.server.wait_event("helper-over", since, LONG)?;
    session.irc.all_heard(&mut session.sleeper)?;
    session.irc.is_alive(&session.sleeper, "and still there")?;
    let heard = session.irc.talker.heard();
    expect!(heard.matches("<sleeper> I am back").count() == 1, "{heard}");
    session.finish()
}

fn woken(lab: &mut Lab) -> Result<()> {
    let config = section(&irc_pong(lab)?, "");
    // So slow that not all of it passes in a moment.
    let world = World::new(lab, site("a"), site("b").uplink(Shape::delay_rate(20, 1)))?;
    let ip = world.at_server.ipv4()?;
    let mut session = Session::start_at(world, ip, &config, PING)?;
    let since = session.server.status()?.newest_event;
    session.sleep()?;
    session.irc.talk(400, 400)?;
    session.answered(ONE_PONG)?;
    session.wake(false)?;
    wait_for(LONG, "it has a part of what was kept", || {
        let helper = session.connection()?.helper;
        let part = |helper: &whimbrel_ipc::Helper| helper.state == HelperState::Delivers && helper.delivered > 0;
        Ok(helper.as_ref().is_some_and(part).then_some(()))
    })?;
    let again = session.server.status()?.newest_event;
    session.sleep()?;
    // It is answered on, for longer than the server waits.
    session.server.wait_event("helper-started", again, LONG)?;
    let answered = session.connection()?.helper.map_or(0, |helper| helper.answered);
    for pongs in 1..=3 {
        session.irc.talk(2, 100)?;
        session.answered(answered + pongs * ONE_PONG)?;
    }
    expect!(session.server.events(since)?.iter().all(|event| event.kind != "helper-over"), "it had everything");
    session.wake(true)?;
    session.server.wait_event("helper-over", again, LONG)?;
    session.irc.all_heard(&mut session.sleeper)?;
    session.irc.is_alive(&session.sleeper, "awake")?;
    session.finish()
}

fn irc_without(lab: &mut Lab) -> Result<()> {
    let mut session = Session::start(lab, "", PING)?;
    session.sleep()?;
    wait_until(LONG, "the server drops the client", || session.irc.dropped())?;
    step("the server has dropped the client");
    all_run(&mut [&mut session.client, &mut session.server])
}

/// A helper that fails: what it was to keep, and all after, arrives.
fn fails(lab: &mut Lab, command: &str, limits: &str, why: &str, lines: u32) -> Result<Session> {
    let mut session = Session::start(lab, &section(command, limits), NEVER)?;
    let since = session.server.status()?.newest_event;
    session.sleep()?;
    session.server.wait_event("helper-started", since, LONG)?;
    session.irc.talk(lines, 300)?;
    session.failed(since, why)?;
    session.helper_state(HelperState::Holds)?;
    session.irc.talk(lines.min(20), 300)?;
    session.wake(false)?;
    session.server.wait_event("helper-over", since, LONG)?;
    session.irc.all_heard(&mut session.sleeper)?;
    Ok(session)
}

fn crash(lab: &mut Lab) -> Result<()> {
    let command = r#"["/bin/sh", "-c", "read line; echo oh >&2; kill -9 $$"]"#;
    let session = fails(lab, command, "", "has ended 4 times", 5)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}

fn hang(lab: &mut Lab) -> Result<()> {
    let session = fails(lab, r#"["/bin/sleep", "1000"]"#, "stall = 2\nkeep = 500000", "has left unread", 1)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}

fn flood(lab: &mut Lab) -> Result<()> {
    let command = r#"["/bin/sh", "-c", "while :; do echo PING :flood; done"]"#;
    let session = fails(lab, command, "answer = 1000", "answers more than 1000 bytes", 5)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}

fn full(lab: &mut Lab) -> Result<()> {
    let command = r#"["/bin/sh", "-c", "cat >/dev/null"]"#;
    let session = fails(lab, command, "keep = 3000", "of 3000 that may be", 20)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}

fn daemon_killed(lab: &mut Lab) -> Result<()> {
    let config = section(&irc_pong(lab)?, "");
    let mut session = Session::start(lab, &config, PING)?;
    session.sleep()?;
    session.irc.talk(5, 100)?;
    session.answered(ONE_PONG)?;
    session.server.kill()?;
    session.irc.talk(5, 100)?;
    session.server.restart()?;
    session.irc.talk(5, 100)?;
    session.answered(3 * ONE_PONG)?;
    session.wake(false)?;
    session.irc.all_heard(&mut session.sleeper)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}

/// State of a process, as in /proc/PID/stat.
fn state_of(pid: u64) -> char {
    let stat = read(Path::new(&format!("/proc/{pid}/stat")));
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next()).unwrap_or('?')
}

fn stop(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let bystander = lab.host("bystander")?;
    bystander.join(&world.a.network, &Join::default())?;
    let config = "[[helper]]\nname = \"forks\"\nkind = \"stop\"\nprogram = \"sshd\"\n";
    let (mut client, mut server) = (world.laptop.whimbrel()?, world.server.whimbrel_with(config)?);
    let mut sshd = SshServer::start(&world.server, world.at_server.ipv4()?)?;
    let mut session = sshd.session(&world.laptop)?;
    let mut other = sshd.session(&bystander)?;
    session.type_and_check(LONG)?;
    other.type_and_check(LONG)?;
    wait_until(LONG, "the session is introduced", || {
        [&client, &server].iter().all(|daemon| daemon.status().is_ok_and(|status| status.counts.introduced == 1))
    })?;
    let since = server.status()?.newest_event;
    client.cli(&["suspend"])?;
    let event = server.wait_event("process-stopped", since, LONG)?;
    step(&event.sentence);
    let pid = event.fields.get("pid").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let is = |wanted: char| wait_until(LONG, &format!("process {pid} is {wanted}"), || state_of(pid) == wanted);
    is('T')?;
    expect!(pid != u64::from(sshd.process().pid()), "the server itself was stopped");
    // Whoever else is served goes on.
    for _ in 0..3 {
        other.type_and_check(LONG)?;
    }
    sshd.session(&bystander)?.type_and_check(LONG)?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    server.kill()?;
    is('T')?;
    server.restart()?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    client.cli(&["resume"])?;
    is('S')?;
    session.type_and_check(LONG)?;
    session.finish(LONG)?;
    other.finish(Duration::from_secs(20))?;
    all_run(&mut [&mut client, &mut server])
}

fn stop_shared(lab: &mut Lab) -> Result<()> {
    let config = format!("[[helper]]\nname = \"all\"\nkind = \"stop\"\nlocal_port = {PORT}\n");
    let mut session = Session::start(lab, &config, NEVER)?;
    let since = session.server.status()?.newest_event;
    session.sleep()?;
    session.failed(since, "whose peer is there")?;
    // The one that talks is served.
    session.irc.talk(3, 10)?;
    session.wake(false)?;
    session.irc.all_heard(&mut session.sleeper)?;
    session.irc.is_alive(&session.sleeper, "back")?;
    session.finish()
}
