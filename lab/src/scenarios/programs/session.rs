//! One session of a program: server and client run, its life is watched, its outcome is checked.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use super::super::world::{LONG, World};
use super::{End, Program, REST};
use crate::process::tail;
use crate::{Cmd, Error, Host, Process, Result, expect, wait_for, wait_until};

/// By what is seen that a session lives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sign {
    /// What is below `OUT` grows.
    Grows,
    /// The client is given this line, with `{n}` replaced by a number, and in time prints `answer-` and that number
    /// plus a million, which only the server can have reckoned.
    Answers(&'static str),
    /// The client prints lines with a number after this text, each one more than the one before.
    Counts(&'static str),
    /// The same, with numbers left out; none is smaller than the one before.
    Climbs(&'static str),
}

/// Bytes by which a transfer must grow: more than can be on the way.
const GROWTH: u64 = 400_000;
/// Lines that must come.
const LINES: usize = 20;
/// What an answer is more than its question.
const MILLION: u64 = 1_000_000;

pub(super) struct Session {
    program: Program,
    place: Place,
    server: Option<Process>,
    feed: Option<Process>,
    client: Process,
    /// Number of the last question.
    asked: u64,
}

/// Where a session takes place.
struct Place {
    dir: PathBuf,
    laptop: Host,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    fn new(world: &World) -> Result<Self> {
        let dir = world.server.dir().join("session");
        for dir in [dir.clone(), dir.join("files"), dir.join("out"), dir.join("home")] {
            fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        }
        let shown = |name: &str| dir.join(name).display().to_string();
        let port = world.server.next_port();
        let next = world.server.next_port();
        let variables = vec![
            ("DIR", dir.display().to_string()),
            ("FILES", shown("files")),
            ("OUT", shown("out")),
            ("HOME", shown("home")),
            ("ADDRESS", world.at_server.ipv4()?.to_string()),
            ("PORT", port.to_string()),
            ("NEXT", next.to_string()),
            ("CLIENT", world.at.ipv4()?.to_string()),
            ("LC_ALL", "C".into()),
            ("TERM", "dumb".into()),
        ];
        Ok(Self { dir, laptop: world.laptop.clone(), variables })
    }

    fn configure(&self, name: &str, text: &str) -> Result<()> {
        let put_in = |text: String, (name, value): &(&str, String)| text.replace(&format!("${name}"), value);
        let text = self.variables.iter().fold(text.to_owned(), put_in);
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|e| Error::call("write", path.display().to_string(), e))
    }

    fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// A script to run on this host.
    fn script(&self, host: &Host, text: &str, label: &str) -> Cmd {
        let command = host.command("sh").args(["-euc", text]).label(label);
        self.variables.iter().fold(command, |command, (name, value)| command.env(name, value))
    }
}

impl Session {
    /// Prepares and starts the server, and the client as soon as that listens.
    pub(super) fn start(program: &Program, world: &World) -> Result<Self> {
        let place = Place::new(world)?;
        for (name, text) in program.configuration {
            place.configure(name, text)?;
        }
        place.script(&world.server, program.prepare, "prepare").run()?;
        let mut server = None;
        if !program.server.is_empty() {
            let process = place.script(&world.server, program.server, "server").spawn()?;
            server = Some(listening(process, world, &place)?);
        }
        let feed = match program.feed {
            "" => None,
            feed => Some(place.script(&world.server, feed, "feed").spawn()?),
        };
        let client = place.script(&world.laptop, program.client, "client").spawn()?;
        Ok(Self { program: *program, place, server, feed, client, asked: 0 })
    }

    /// Asks the client for something that may take until after the next move.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let Sign::Answers(question) = self.program.sign {
            self.asked += 1;
            self.client.send_line(&question.replace("{n}", &self.asked.to_string()))?;
        }
        Ok(())
    }

    /// Nothing is to be answered from now on, by a server that looks for this.
    pub(super) fn hold(&self) -> Result<()> {
        self.place.configure("hold", "")
    }

    /// It may answer again.
    pub(super) fn release(&self) -> Result<()> {
        let path = self.place.dir.join("hold");
        fs::remove_file(&path).map_err(|e| Error::call("remove", path.display().to_string(), e))
    }

    /// The session lives: what was begun before a move is completed, and then something new.
    pub(super) fn goes_on(&mut self) -> Result<()> {
        match self.program.sign {
            Sign::Grows => {
                let goal = size_below(&self.place.out()) + GROWTH;
                self.watch("more has arrived", |session| Ok(size_below(&session.place.out()) >= goal))
            }
            Sign::Answers(_) => {
                if self.asked > 0 {
                    self.answered()?;
                    if self.program.one_each {
                        return Ok(());
                    }
                }
                self.begin()?;
                self.answered()
            }
            Sign::Counts(before) | Sign::Climbs(before) => {
                let goal = self.numbers(before).len() + LINES;
                self.watch("more is counted", |session| Ok(session.numbers(before).len() >= goal))?;
                self.numbers_are_right()
            }
        }
    }

    /// Ends the session and checks what came of it.
    pub(super) fn finish(mut self) -> Result<()> {
        match self.program.end {
            End::Itself => self.client.wait_success(REST)?,
            End::Line(line) => {
                self.client.send_line(line)?;
                self.client.close_stdin();
                self.client.wait_success(LONG)?;
            }
            End::Killed => self.client.kill()?,
        }
        self.numbers_are_right()?;
        if let Some(feed) = &mut self.feed {
            feed.kill()?;
        }
        if !self.program.verify.is_empty() {
            let (place, verify) = (&self.place, self.program.verify);
            let mut last = String::new();
            let right = wait_until(LONG, "the outcome is right", || {
                match place.script(&place.laptop, verify, "verify").run() {
                    Ok(_) => true,
                    Err(error) => {
                        last = error.to_string();
                        false
                    }
                }
            });
            expect!(right.is_ok(), "the outcome is not right: {last}");
        }
        // After the check, which may ask it.
        if let Some(server) = &mut self.server {
            server.kill()?;
        }
        Ok(())
    }

    fn answered(&mut self) -> Result<()> {
        let answer = format!("answer-{}", self.asked + MILLION);
        self.watch(&format!("the client prints {answer}"), |session| Ok(session.client.stdout().contains(&answer)))
    }

    /// The numbers in the complete lines that the client has printed.
    fn numbers(&self, before: &str) -> Vec<u64> {
        let text = self.client.stdout();
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let number = |line: &str| line.split_once(before)?.1.trim().parse::<u64>().ok();
        complete.lines().filter_map(number).collect()
    }

    /// Numbers that are counted are so without a gap and none comes twice.
    fn numbers_are_right(&self) -> Result<()> {
        let (before, gaps) = match self.program.sign {
            Sign::Counts(before) => (before, false),
            Sign::Climbs(before) => (before, true),
            Sign::Grows | Sign::Answers(_) => return Ok(()),
        };
        for pair in self.numbers(before).windows(2) {
            let right = if gaps { pair[1] >= pair[0] } else { pair[1] == pair[0] + 1 };
            expect!(right, "{} is followed by {}", pair[0], pair[1]);
        }
        Ok(())
    }

    /// Waits until `good`, while server and client run.
    fn watch(&mut self, what: &str, good: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let mut left = None;
        let seen = wait_for(LONG, what, || {
            if good(self)? {
                return Ok(Some(()));
            }
            left = self.ended();
            Ok(left.is_some().then_some(()))
        });
        expect!(left.is_none(), "{}", left.unwrap_or_default());
        seen.map_err(|error| match error {
            Error::Timeout { what, after, .. } => Error::Timeout { what, after, last: format!("; {}", self.said()) },
            error => error,
        })
    }

    /// Who has ended, if somebody has, and what was said.
    fn ended(&mut self) -> Option<String> {
        let client = !self.client.is_running();
        let server = self.server.as_mut().is_some_and(|server| !server.is_running());
        (client || server).then(|| format!("the {} ended; {}", if client { "client" } else { "server" }, self.said()))
    }

    fn said(&self) -> String {
        let texts = [
            ("client", self.client.stderr()),
            ("client's output", self.client.stdout()),
            ("server", self.server.as_ref().map(Process::stderr).unwrap_or_default()),
            ("feed", self.feed.as_ref().map(Process::stderr).unwrap_or_default()),
        ];
        texts.map(|(who, text)| format!("{who}: {}", tail(&text))).join("\n")
    }
}

/// Waits until the server's port is open.
fn listening(mut server: Process, world: &World, place: &Place) -> Result<Process> {
    let address = world.at_server.ipv4()?;
    let port = place.variables.iter().find(|(name, _)| *name == "PORT").and_then(|(_, port)| port.parse::<u16>().ok());
    let open = || world.server.enter(|| TcpStream::connect((address, port.unwrap_or(0))).is_ok()).unwrap_or(false);
    wait_until(LONG, "the server listens", || !server.is_running() || open())?;
    expect!(server.is_running(), "the server ended: {} {}", tail(&server.stderr()), tail(&server.stdout()));
    Ok(server)
}

/// Bytes in the files below a directory.
fn size_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        // It was renamed meanwhile.
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Where `./setup programs` puts what Debian does not have.
const WHEELS: &str = "/usr/local/lib/whimbrel-test/python";

/// Debian's packages with their installed versions, and those of Python's.
pub(super) fn versions(packages: &[&str]) -> String {
    let version = |package: &&str| {
        let mut query = std::process::Command::new("dpkg-query");
        let asked = query.args(["--show", "--showformat=${Version}", package]).output();
        let version = asked.ok().filter(|answer| answer.status.success());
        let version = version.and_then(|answer| String::from_utf8(answer.stdout).ok());
        let version = version.or_else(|| wheel(package));
        format!("{package} {}", version.as_deref().unwrap_or("(is missing: ./setup programs)"))
    };
    packages.iter().map(version).collect::<Vec<_>>().join(", ")
}

/// Version of a package of Python's that is no package of Debian's.
fn wheel(package: &str) -> Option<String> {
    let entries = fs::read_dir(WHEELS).ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| Some(name.strip_prefix(package)?.strip_prefix('-')?.strip_suffix(".dist-info")?.to_owned()))
}
