//! `whimbrel move` and `whimbrel receive`: sockets that change hosts.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use whimbrel_ipc::{
    Client, ClientError, Kept, Moved, MovedProcess, ProcessScope, Received, Reply, Request, WAITS_FOR, reply_to_line,
};

use crate::complaint::Complaint;
use crate::run::{Absence, LOOK};
use crate::{connect, print, show};

/// How long a daemon may take to be started anew, for who receives: an upgrade takes less.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// Gives connections to another host. Fails where one of them stays.
pub(crate) fn give(
    run_dir: &Path,
    connections: &[String],
    to: &str,
    receiver: Option<&str>,
    json: bool,
) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    let connections = connections.to_vec();
    client.start(&Request::Move { connections, to: to.to_owned(), receiver: receiver.map(str::to_owned) })?;
    let mut all = true;
    loop {
        // Whether it moves may take as long as the other hosts take.
        let (reply, _) = client.next_reply(None)?;
        if json {
            print(&reply_to_line(&reply)?)?;
        }
        match reply {
            Reply::Moved(moved) if !json => print(&is_there(&moved, receiver.is_none()))?,
            Reply::Moved(_) => {}
            Reply::Kept(Kept { flow, reason, lost, unheard, .. }) => {
                all = false;
                if !json {
                    let becomes = match (lost, unheard) {
                        (_, true) => "may be lost",
                        (true, false) => "is lost",
                        (false, false) => "stays here",
                    };
                    print(&format!("{} {becomes}: {reason}\n", flow.called()))?;
                }
            }
            Reply::End { .. } => return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
            _ => return Err(ClientError::Unexpected.into()),
        }
    }
}

/// What became of a connection that has moved, for people. `waits`: no program was said that receives it.
fn is_there(moved: &Moved, waits: bool) -> String {
    let Moved { flow, uuid, to } = moved;
    let what = format!("{} is with {to} now", flow.called());
    match waits {
        true => {
            let minutes = WAITS_FOR.as_secs() / 60;
            format!(
                "{what}, where it waits for {minutes} minutes for a program that takes it by its name (whimbrel(3)): {uuid}\n"
            )
        }
        false => format!("{what}\n"),
    }
}

/// Gives a whole process to another host. Fails where it stays.
pub(crate) fn give_process(
    run_dir: &Path,
    pid: u32,
    scope: ProcessScope,
    to: &str,
    address: Option<IpAddr>,
    json: bool,
) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    client.start(&Request::MoveProcess { pid, scope, to: to.to_owned(), address })?;
    // Writing its memory down and sending it may take long.
    let (reply, _) = client.next_reply(None)?;
    let Reply::MovedProcess(moved) = &reply else { return Err(ClientError::Unexpected.into()) };
    print(&if json { reply_to_line(&reply)? } else { went(moved) })?;
    Ok(if moved.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of a process, for people.
fn went(moved: &MovedProcess) -> String {
    let MovedProcess { pid, name, to, connections, lost, met_at, still_ms, pid_there, deaf } = moved;
    let there = pid_there.map(|there| format!(" as process {there}")).unwrap_or_default();
    let mut said =
        format!("{name} (process {pid}) is with {} now{there}, with {}", to, show::count(*connections, "connection"));
    said.push_str(&match still_ms {
        Some(ms) => format!("; it stood still for {ms} ms\n"),
        None => "; whether it goes on there was not heard yet\n".to_owned(),
    });
    for flow in lost {
        said.push_str(&format!("{} was lost on the way\n", flow.called()));
    }
    for at in met_at {
        said.push_str(&format!("who comes to {at} reaches it there\n"));
    }
    for at in deaf {
        said.push_str(&format!("what it waits for at {at} does not reach it there\n"));
    }
    said
}

/// Receives connections under a name, and starts a program for each: the connection is its standard input and output.
pub(crate) fn receive(
    run_dir: &Path,
    name: &str,
    program: &[String],
    once: bool,
    json: bool,
) -> Result<ExitCode, Complaint> {
    // A connection that has come is lost where its program cannot be started.
    let first = program.first().map(String::as_str).unwrap_or_default();
    runnable(first).map_err(|error| Complaint::Program(first.into(), error))?;
    let mut client = register(run_dir, name)?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let (reply, descriptors) = match client.next_reply(None).map_err(Complaint::from) {
            Ok(next) => next,
            Err(gone) => {
                client = register_again(run_dir, name, gone)?;
                continue;
            }
        };
        if json {
            print(&reply_to_line(&reply)?)?;
        }
        match reply {
            Reply::Receiving { name } if !json => print(&format!("receiving sockets as {name}\n"))?,
            Reply::Receiving { .. } => {}
            Reply::Received(received) => {
                let Some(socket) = descriptors.into_iter().next() else { return Err(ClientError::Unexpected.into()) };
                if !json {
                    print(&format!("{} has come from {}\n", received.flow.called(), received.from))?;
                }
                let mut child =
                    start(program, &received, socket).map_err(|error| Complaint::Program(first.into(), error))?;
                if once {
                    drop(client);
                    let status = child.wait().map_err(Complaint::Output)?;
                    return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
                children.push(child);
            }
            _ => return Err(ClientError::Unexpected.into()),
        }
        // Those that have ended are not to be kept; how they ended is their own business.
        children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

fn register(run_dir: &Path, name: &str) -> Result<Client, Complaint> {
    let mut client = connect(run_dir)?;
    client.start(&Request::Receive { name: name.to_owned() })?;
    Ok(client)
}

/// A daemon that has gone may be being started anew: the name is registered with the next one.
fn register_again(run_dir: &Path, name: &str, gone: Complaint) -> Result<Client, Complaint> {
    let mut absence = Absence::default();
    absence.record(Instant::now(), STARTED_WITHIN, gone)?;
    eprintln!(
        "whimbrel: the daemon has gone; another is waited for, for {} s, and nothing is received meanwhile",
        STARTED_WITHIN.as_secs()
    );
    loop {
        match register(run_dir, name) {
            Ok(client) => return Ok(client),
            Err(error) => absence.record(Instant::now(), STARTED_WITHIN, error)?,
        }
        thread::sleep(LOOK);
    }
}

/// Whether a program can be run, as far as can be said without doing so. One without a `/` is looked for as execvp(3)
/// does.
fn runnable(program: &str) -> io::Result<()> {
    let usual = || "/bin:/usr/bin".into();
    let places: Vec<PathBuf> = match program {
        "" => Vec::new(),
        _ if program.contains('/') => vec![program.into()],
        _ => env::split_paths(&env::var_os("PATH").unwrap_or_else(usual)).map(|place| place.join(program)).collect(),
    };
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match fs::metadata(&place) {
            Ok(of) if of.is_file() => match accessat(CWD, &place, Access::EXEC_OK, AtFlags::EACCESS) {
                Ok(()) => return Ok(()),
                Err(errno) => why = errno.into(),
            },
            Ok(_) => why = io::ErrorKind::PermissionDenied.into(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => why = error,
            Err(_) => {}
        }
    }
    Err(why)
}

fn start(program: &[String], received: &Received, socket: OwnedFd) -> io::Result<Child> {
    let (first, rest) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let second = socket.try_clone()?;
    Command::new(first)
        .args(rest)
        .env("WHIMBREL_UUID", received.uuid.to_string())
        .env("WHIMBREL_LOCAL", received.flow.local.to_string())
        .env("WHIMBREL_REMOTE", received.flow.remote.to_string())
        .stdin(Stdio::from(socket))
        .stdout(Stdio::from(second))
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_a_connection_to_nobody_is_told_how_it_is_taken() {
        let line = include_str!("../../ipc/tests/golden/moved.json");
        let Ok(Reply::Moved(moved)) = whimbrel_ipc::reply_from_line(line) else { panic!("{line}") };
        let waiting = is_there(&moved, true);
        let uuid = moved.uuid.to_string();
        assert!(waiting.contains("waits for 5 minutes") && waiting.ends_with(&format!("{uuid}\n")), "{waiting}");
        let taken = is_there(&moved, false);
        assert!(taken.ends_with(" now\n") && !taken.contains(&uuid), "{taken}");
    }
}
