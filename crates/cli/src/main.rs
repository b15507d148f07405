//! The `whimbrel` command: starts the daemon, asks a running one, and looks after a machine's health.
#![forbid(unsafe_code)]

mod args;
mod community;
mod complaint;
mod handoff;
mod log;
#[cfg(feature = "dbus")]
mod notify;
mod ping;
mod relocate;
mod run;
mod show;
mod table;
mod timeline;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use whimbrel_daemon::config::Preference;
use whimbrel_daemon::doctor::Patient;
use whimbrel_ipc::{
    Client, EventsQuery, Finding, ProcessScope, Reply, Request, SCHEMA, Verdict, Why, WrittenPreference, exposition,
    reply_to_line,
};

use crate::args::{AnchorCommand, Arguments, Command, PeersCommand};
use crate::complaint::Complaint;

/// The exit status where the command line is wrong, as of clap.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match args::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if !io::stdout().is_terminal() {
        table::do_not_break();
    }
    match run(&arguments) {
        Ok(code) => code,
        // Whoever reads our output has had enough (`whimbrel events | head`): that is no failure.
        Err(Complaint::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(complaint) => {
            tell(&complaint, arguments.command.json());
            complaint.status()
        }
    }
}

/// What is wrong with the command line, where that asks for JSON as it does; or the help that it asks for.
fn usage(error: &clap::Error) -> ExitCode {
    let asks = std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| {
        argument.to_str().is_some_and(|argument| argument == "--json" || argument.starts_with("--json="))
    });
    if !error.use_stderr() || !asks {
        error.exit();
    }
    tell(&Complaint::Usage(error.to_string()), true);
    ExitCode::from(USAGE)
}

/// A complaint as a sentence on standard error, or, for a program that reads JSON, as the line `error` where it reads.
fn tell(complaint: &Complaint, json: bool) {
    let line = match complaint {
        Complaint::Output(_) => None,
        _ if json => reply_to_line(&Reply::Error(complaint.failure())).ok(),
        _ => None,
    };
    if line.is_none_or(|line| print(&line).is_err()) {
        eprintln!("whimbrel: {complaint}");
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Complaint> {
    let run_dir = arguments.run_dir.as_path();
    match &arguments.command {
        Command::Up { config, state_dir } => {
            let options = whimbrel_daemon::Options {
                config: config.clone(),
                run_dir: run_dir.to_owned(),
                state_dir: state_dir.clone(),
            };
            whimbrel_daemon::run(options).map_err(Complaint::daemon)?;
        }
        Command::Status { json } => return status(run_dir, *json),
        Command::Connections { json: true, servers: true, .. } => pass_on(run_dir, &Request::Connections)?,
        Command::Connections { json, moved, servers } => {
            let mut connections = connect(run_dir)?.connections()?;
            connections.retain(|one| (*servers || !show::is_server(one)) && (!*moved || show::is_away(one)));
            print(&match json {
                true => reply_to_line(&Reply::Connections(connections))?,
                false => show::connections(&connections, *moved),
            })?;
        }
        Command::Peers { command: Some(PeersCommand::Forget { host, force, json }), .. } => {
            let request = Request::ForgetPeer { address: host.clone(), force: *force };
            match json {
                true => pass_on(run_dir, &request)?,
                false => print(&show::forgotten(&connect(run_dir)?.ask_for_line(&request)?.1))?,
            }
        }
        Command::Peers { json: true, .. } => pass_on(run_dir, &Request::Peers)?,
        Command::Peers { .. } => print(&show::peers(&connect(run_dir)?.peers()?))?,
        Command::Paths { dry_run: Some(file), json, .. } => {
            let config = whimbrel_daemon::config::read(Some(file)).map_err(Complaint::daemon)?;
            explain_paths(run_dir, Some(config.preferences.iter().map(Preference::written).collect()), *json)?;
        }
        Command::Paths { explain: true, json, .. } => explain_paths(run_dir, None, *json)?,
        Command::Paths { json: true, .. } => pass_on(run_dir, &Request::Paths)?,
        Command::Paths { .. } => print(&show::paths(&connect(run_dir)?.paths()?))?,
        Command::Events { follow, last, since, from, plot, json } => {
            let all = !follow && (since.is_some() || from.is_some() || plot.is_some());
            let last = last.or((!all).then_some(args::EVENTS_SHOWN));
            let query = EventsQuery { last, since: *since, follow: *follow };
            match plot {
                Some(file) => log::plot(run_dir, from.as_deref(), query, file)?,
                None => log::events(run_dir, from.as_deref(), query, *json)?,
            }
        }
        Command::Handoff { to, peer, no_wait, json } => {
            return handoff::handoff(run_dir, *to, peer.clone(), !*no_wait, *json);
        }
        Command::Suspend { json: true, connections, .. } => {
            pass_on(run_dir, &Request::Suspend { connections: connections.clone() })?;
        }
        Command::Suspend { connections, .. } => {
            let suspended = connect(run_dir)?.suspend(connections.clone())?;
            print(&show::suspended(&suspended, connections.is_empty()))?;
        }
        Command::Resume { json: true, connections } => {
            pass_on(run_dir, &Request::Resume { connections: connections.clone() })?;
        }
        Command::Resume { json: false, connections } => {
            let (flows, host) = connect(run_dir)?.resume(connections.clone())?;
            print(&show::resumed(flows, host))?;
        }
        Command::Ping { host, count, json } => return ping::ping(run_dir, host, *count, *json),
        Command::Why { connection, json } => why(run_dir, connection, *json)?,
        Command::Community { command } => return community::community(run_dir, command),
        Command::Metrics { json: true } => pass_on(run_dir, &Request::Metrics)?,
        Command::Metrics { json: false } => print(&exposition(&connect(run_dir)?.metrics()?))?,
        Command::Watch => watch::watch(run_dir)?,
        #[cfg(feature = "dbus")]
        Command::Notify => notify::notify(run_dir)?,
        Command::Move { pid: Some(pid), tree, cgroup, to, address, json, .. } => {
            let scope = match (tree, cgroup) {
                (true, _) => ProcessScope::Tree,
                (_, true) => ProcessScope::Cgroup,
                _ => ProcessScope::Alone,
            };
            return relocate::give_process(run_dir, *pid, scope, to, *address, *json);
        }
        Command::Move { connections, to, process, json, .. } => {
            return relocate::give(run_dir, connections, to, process.as_deref(), *json);
        }
        Command::Receive { name, program, once, json } => {
            return relocate::receive(run_dir, name, program, *once, *json);
        }
        Command::Run { anchor, ports, address, ipv6, hidden, program } => {
            let wanted = run::Wanted { anchor, ports, address: *address, ipv6: *ipv6, hidden: *hidden };
            return run::run(run_dir, &wanted, program);
        }
        Command::Anchor { command: None, json } => run::anchors(run_dir, *json)?,
        Command::Anchor { command: Some(AnchorCommand::Stop { within, json }), .. } => {
            return run::stop(run_dir, *within, *json);
        }
        Command::Anchor { command: Some(AnchorCommand::Start { json }), .. } => run::start(run_dir, *json)?,
        Command::CriuHelper => {
            if let Err(why) = whimbrel_daemon::serve_criu() {
                eprintln!("whimbrel: {why}");
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Clean { json } => {
            let removed = whimbrel_daemon::clean::clean(run_dir).map_err(Complaint::daemon)?;
            print(&if *json { show::removed_json(&removed) } else { show::removed(&removed) })?;
        }
        Command::Doctor { config, json } => return doctor(run_dir, config.as_deref(), *json),
    }
    Ok(ExitCode::SUCCESS)
}

fn connect(run_dir: &Path) -> Result<Client, Complaint> {
    Client::connect(run_dir).map_err(Complaint::Daemon)
}

fn print(text: &str) -> Result<(), Complaint> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Complaint::Output)
}

/// Prints the daemon's line as it came: what `--json` promises is what `docs/json.md` says.
fn pass_on(run_dir: &Path, request: &Request) -> Result<(), Complaint> {
    let (line, _) = connect(run_dir)?.ask_for_line(request)?;
    print(&line)
}

/// Says by which networks peers are reached, and why, or what these sections would do.
fn explain_paths(run_dir: &Path, prefer: Option<Vec<WrittenPreference>>, json: bool) -> Result<(), Complaint> {
    match json {
        true => pass_on(run_dir, &Request::ExplainPaths { prefer }),
        false => print(&show::explained(&connect(run_dir)?.explain_paths(prefer)?)),
    }
}

/// Says of what is named so what becomes of it.
fn why(run_dir: &Path, name: &str, json: bool) -> Result<(), Complaint> {
    let mut client = connect(run_dir)?;
    let (connections, peers) = (client.connections()?, client.peers()?);
    let named = connections.iter().filter(|one| show::is_named(one, name));
    let said: Vec<Why> = named.map(|one| show::why(one, &peers)).collect();
    if said.is_empty() {
        return Err(Complaint::NoConnection(name.to_owned()));
    }
    print(&match json {
        true => format!("{}\n", serde_json::json!({ "schema": SCHEMA, "why": said })),
        false => show::sentences(&said),
    })
}

/// Fails when the daemon is not ready, as service managers and scripts wish.
fn status(run_dir: &Path, json: bool) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    let status = client.status()?;
    if json {
        print(&reply_to_line(&Reply::Status(Box::new(status.clone())))?)?;
    } else {
        print(&show::status(&status))?;
    }
    Ok(if status.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails when something is found that keeps Whimbrel from working.
fn doctor(run_dir: &Path, config: Option<&Path>, json: bool) -> Result<ExitCode, Complaint> {
    let findings: Vec<Finding> = whimbrel_daemon::doctor::examine(&Patient { config, run_dir });
    if json {
        let line = serde_json::json!({ "schema": SCHEMA, "findings": findings });
        print(&format!("{line}\n"))?;
    } else {
        print(&show::findings(&findings))?;
    }
    let broken = findings.iter().any(|finding| finding.verdict == Verdict::Problem);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
