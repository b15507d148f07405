//! Whole processes that are servers change hosts: who comes later finds them there.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::anchor::{LENDS, address};
use super::library::Program;
use super::processes::{Ended, Three, give_with, is_there, needs_criu, refusal_with};
use super::world::{LONG, step};
use super::{Scenario, scenario};
use crate::{Download, Error, Host, Lab, Process, Result, checksum, expect, lab_binary, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-process-server",
        "a server goes to another host and back while clients come, stay and go, with connections in its queue and datagrams; they run nothing",
        |lab| server(lab, false, false),
    ),
    scenario("moved-process-server-ipv6", "the same over IPv6", |lab| server(lab, true, false)),
    scenario("moved-process-server-direct", "the same with clients whose host runs Whimbrel", |lab| {
        server(lab, false, true)
    }),
    scenario(
        "moved-process-nginx",
        "nginx, with its workers, goes to another host in the midst of a download, and back without any connection",
        nginx,
    ),
    scenario(
        "moved-process-opens",
        "a process opens connections where it has moved to, with the address that it had, and they go home with it",
        |lab| opens(lab, false),
    ),
    scenario("moved-process-opens-ipv6", "the same over IPv6", |lab| opens(lab, true)),
    scenario("kept-process-server", "servers that cannot go stay, and lose nobody", kept),
];

pub(super) const SERVER: &str = include_str!("server_processes/server.py");
/// Datagrams that may be lost where a server changes hosts; those that come while it stands still are many more.
pub(super) const FEW: u64 = 4;
const OPENER: &str = include_str!("server_processes/opener.py");
const CLIENTS: &str = include_str!("server_processes/clients.py");

/// A program that has nothing of the lab's, so that it can go to another host.
pub(super) struct Detached {
    process: Process,
    /// Its text, where it has one of its own.
    path: PathBuf,
}

impl Detached {
    fn start(host: &Host, command: &str, label: &str) -> Result<Self> {
        let shell = host.command(lab_binary()?).args(["traffic", "shell", "--command", &format!("exec {command}")]);
        Ok(Self { process: shell.label(label).spawn()?, path: PathBuf::new() })
    }

    pub(super) fn server(host: &Host, at: SocketAddr, text: &str) -> Result<Self> {
        let path = host.dir().join(host.unique_label("server.py"));
        fs::write(&path, text).map_err(|e| Error::call("write", path.display().to_string(), e))?;
        let started =
            Self::start(host, &format!("python3 -B {} {} {}", path.display(), at.ip(), at.port()), "a server")?;
        Ok(Self { path, ..started })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All processes that have its text: it, wherever it is, and copies of it.
    pub(super) fn everywhere(&self) -> Vec<u32> {
        let text = self.path.as_os_str().as_encoded_bytes();
        let has = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == text)
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(has).filter(|pid| is_there(*pid)).collect()
    }

    /// Has one that waits for it go on.
    fn wake(&self) -> Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(".go");
        fs::write(&name, "").map_err(|e| Error::call("write", name.display().to_string(), e))
    }
}

/// How clients fare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fare {
    pub(super) opened: u64,
    pub(super) exchanged: u64,
    pub(super) answered: u64,
    /// Datagrams that were sent.
    pub(super) asked: u64,
}

/// They check all that they hear, and a connection that is refused or reset is a failure to them. Resets are not
/// counted beside: who acknowledges the end of a connection twice hears one, as of any server that has closed.
pub(super) struct Clients(pub(super) Program);

impl Clients {
    pub(super) fn start(three: &Three, at: SocketAddr) -> Result<Self> {
        let program = Program::run(&three.world.laptop, CLIENTS, &three.donor.run_dir())?;
        let mut clients = Self(program);
        clients.0.does(&format!("address {} {}", at.ip(), at.port()))?;
        wait_for(LONG, "the server listens", || Ok(clients.0.does("opens").is_ok().then_some(())))?;
        Ok(clients)
    }

    pub(super) fn fare(&mut self) -> Result<Fare> {
        let said = self.0.does("fare")?;
        let mut numbers = said.split(' ').map_while(|number| number.parse().ok());
        let mut next = || numbers.next().unwrap_or(0);
        Ok(Fare { opened: next(), exchanged: next(), answered: next(), asked: next() })
    }

    /// They end: all that they have said was answered, except for so many datagrams.
    pub(super) fn end(&mut self, missing: u64) -> Result<()> {
        let ended = self.0.does("end")?;
        println!("    slowest to connect, in ms, and datagrams that were not answered, of how many: {ended}");
        let lost = ended.split(' ').nth(1).and_then(|lost| lost.parse::<u64>().ok());
        expect!(lost.is_some_and(|lost| lost <= missing), "{lost:?} datagrams are lost");
        Ok(())
    }

    /// They go on, all of them, and new ones come.
    pub(super) fn go_on(&mut self, what: &str) -> Result<()> {
        let before = self.fare()?;
        wait_for(LONG, what, || {
            let now = self.fare()?;
            let goes_on = now.opened >= before.opened + 30
                && now.exchanged >= before.exchanged + 20
                && now.answered >= before.answered + 20;
            Ok(goes_on.then_some(()))
        })
    }
}

fn server(lab: &mut Lab, ipv6: bool, far_runs: bool) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, far_runs, true)?;
    let at = SocketAddr::new(address(&three.world.at_server, ipv6)?, three.world.server.next_port());
    // Of its own address, or of all.
    let bound = if ipv6 { at.ip() } else { IpAddr::from([0, 0, 0, 0]) };
    let server = Detached::server(&three.world.server, SocketAddr::new(bound, at.port()), SERVER)?;
    let mut clients = Clients::start(&three, at)?;
    clients.0.does(&format!("begin {} {}", at.ip(), at.port()))?;
    clients.go_on("the clients are served")?;

    step("the server goes to another host");
    let there = give_with(&three.donor, server.pid(), &[], &three.at_acceptor.to_string())?;
    expect!(there.met_at == [at, at], "it is met at {:?}", there.met_at);
    expect!(there.deaf.is_empty(), "it is deaf at {:?}", there.deaf);
    expect!(!is_there(server.pid()), "it is at the donor as well");
    clients.go_on("the clients are served there")?;

    step("it comes back");
    let Some(pid) = there.pid_there else {
        return Err(Error::Expectation("nobody says which process it is there".to_owned()));
    };
    let back = give_with(&three.acceptor, pid, &[], "desk")?;
    let _back = back.pid_there.map(Ended);
    clients.go_on("the clients are served at home again")?;
    clients.end(FEW)
}

/// What becomes of a socket that is bound to a port where a process lives that has come to the acceptor.
fn bind_beside(three: &mut Three, pid: u32, at: IpAddr, port: u16) -> Result<String> {
    let program = format!(
        "import errno, socket\ns = socket.socket(socket.AF_INET6 if ':' in '{at}' else socket.AF_INET)\n\
         try: s.bind(('{at}', {port})); print('bound')\n\
         except OSError as e: print('taken' if e.errno == errno.EADDRINUSE else e)"
    );
    // The process has its number where the daemon is.
    let daemon = three.acceptor.process().pid().to_string();
    let inside = ["--target", &daemon, "--mount", "--pid", "nsenter", &format!("--net=/proc/{pid}/ns/net")];
    let output = three.world.server.command("nsenter").args(inside).args(["python3", "-c", &program]).run()?;
    Ok(output.trim().to_owned())
}

fn opens(lab: &mut Lab, ipv6: bool) -> Result<()> {
    needs_criu()?;
    let mut three = Three::with_donor(lab, false, true, LENDS)?;
    let at = SocketAddr::new(address(&three.world.at_server, ipv6)?, three.world.server.next_port());
    let opener = Detached::server(&three.world.server, at, OPENER)?;
    let program = Program::run(&three.world.laptop, CLIENTS, &three.donor.run_dir())?;
    let mut far = Clients(program);
    far.0.does(&format!("address {} {}", at.ip(), at.port()))?;
    wait_for(LONG, "it opens a connection where it began", || Ok(far.0.does("opened_back tcp").is_ok().then_some(())))?;
    three.world.forget_resets();
    let mut open =
        || ["udp", "tcp"].into_iter().try_for_each(|kind| far.0.does(&format!("opened_back {kind}")).map(drop));
    open()?;

    step("it goes to another host, and opens connections there");
    let there = give_with(&three.donor, opener.pid(), &[], &three.at_acceptor.to_string())?;
    open()?;
    three.world.no_resets()?;

    step("what is bound beside it has a port on lease, or none");
    let pid = there.pid_there.unwrap_or_default();
    let beside = bind_beside(&mut three, pid, at.ip(), 7)?;
    expect!(beside == "taken", "a port that nobody has lent is {beside}");

    step("it comes back");
    let back = give_with(&three.acceptor, pid, &[], "desk")?;
    let _back = back.pid_there.map(Ended);
    open()?;
    three.world.no_resets()
}

fn nginx(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, false, true)?;
    let host = &three.world.server;
    let at = SocketAddr::new(three.world.at_server.ipv4()?, host.next_port());
    let dir = host.dir().join(host.unique_label("nginx"));
    let failed = |error| Error::call("write", dir.display().to_string(), error);
    fs::create_dir_all(dir.join("files")).map_err(failed)?;
    let d = dir.display();
    let config = format!(
        "daemon off; worker_processes 2; user root; pid {d}/pid; error_log {d}/errors;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {d}/body; proxy_temp_path {d}/proxy;\n\
         fastcgi_temp_path {d}/fastcgi; uwsgi_temp_path {d}/uwsgi; scgi_temp_path {d}/scgi;\n\
         server {{ listen {}; root {d}/files; }} }}\n",
        at.port()
    );
    fs::write(dir.join("nginx.conf"), config).map_err(failed)?;
    let film: Vec<u8> = (0..12_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.join("files/film"), film).map_err(failed)?;
    let sum = checksum(host, &dir.join("files/film"))?;
    let nginx = Detached::start(host, &format!("nginx -c {d}/nginx.conf -p {d}"), "nginx")?;
    let listens = || host.enter(|| std::net::TcpStream::connect(at).is_ok()).unwrap_or(false);
    wait_until(LONG, "nginx listens", listens)?;
    let url = format!("http://{at}/film");
    let whole = |what: &str, args: &[&str]| -> Result<()> {
        step(what);
        Download::start(&three.world.laptop, &url, args)?.finish(&sum, LONG * 3)
    };

    let mut curl = Download::start(&three.world.laptop, &url, &["--limit-rate", "500K"])?;
    curl.wait_progress(500_000, LONG)?;
    step("it goes to another host in the midst of a download");
    let there = give_with(&three.donor, nginx.pid(), &["--tree"], &three.at_acceptor.to_string())?;
    expect!(there.connections == 1 && there.met_at == [at], "{} went, met at {:?}", there.connections, there.met_at);
    whole("another begins there", &[])?;
    curl.finish(&sum, LONG * 3)?;

    step("it comes back without any connection");
    let pid = there.pid_there.unwrap_or_default();
    let back = give_with(&three.acceptor, pid, &["--tree"], "desk")?;
    let _back: Vec<Ended> = back.pid_there.into_iter().flat_map(super::processes::descendants).map(Ended).collect();
    expect!(back.connections == 0 && back.met_at == [at], "{} came, met at {:?}", back.connections, back.met_at);
    whole("and serves at home", &[])?;
    Ok(())
}

/// Serves one client, and goes on when it is told.
const SLEEPER: &str = "
import os, socket, sys, threading, time
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family, dualstack_ipv6=sys.argv[1] == '::')
def echo(sock):
    while heard := sock.recv(65536):
        sock.sendall(heard)
    sock.close()
echo(server.accept()[0])
while not os.path.exists(sys.argv[0] + '.go'):
    time.sleep(0.01)
while True:
    threading.Thread(target=echo, args=(server.accept()[0],)).start()
";

fn kept(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, false, true)?;
    let host = &three.world.server;
    let (v4, v6) = (three.world.at_server.ipv4()?, three.world.at_server.ipv6()?);
    let to = three.at_acceptor.to_string();

    step("clients wait, and the server does not take them");
    let at = SocketAddr::new(v4, host.next_port());
    let sleeper = Detached::server(host, at, SLEEPER)?;
    let mut clients = Clients::start(&three, at)?;
    clients.0.does(&format!("begin {} {}", at.ip(), at.port()))?;
    let said = refusal_with(&three.donor, sleeper.pid(), &[], &to)?;
    expect!(said.contains(&format!("wait at {at} to be accepted, and are not")), "{said}");
    let said = refusal_with(&three.donor, sleeper.pid(), &["--address", &v6.to_string()], &to)?;
    expect!(said.contains(&format!("it waits at {at}, and there it can have but {v6}")), "{said}");
    sleeper.wake()?;
    let before = clients.fare()?;
    wait_for(LONG, "they are served", || Ok((clients.fare()?.opened >= before.opened + 30).then_some(())))?;
    clients.0.does("end")?;

    step("a server of all addresses, without connections, goes with the one that is said");
    let at = SocketAddr::new(IpAddr::from([0u16; 8]), host.next_port());
    let idle = Detached::server(host, at, SLEEPER)?;
    let met = SocketAddr::new(v4, at.port());
    let mut late = Clients::start(&three, met)?;
    idle.wake()?;
    let gone = || Ok(refusal_with(&three.donor, idle.pid(), &[], &to)?.contains("say which").then_some(()));
    wait_for(LONG, "it has no connection any more", gone)?;
    let there = give_with(&three.donor, idle.pid(), &["--address", &v4.to_string()], &to)?;
    expect!(there.connections == 0 && there.met_at == [met], "{} went, met at {:?}", there.connections, there.met_at);
    late.0.does("opens")?;
    Ok(())
}
