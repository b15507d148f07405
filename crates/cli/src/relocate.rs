//! `whimbrel move` and `whimbrel receive`: sockets that change hosts.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use whimbrel_ipc::{Client, ClientError, Kept, Moved, Received, Reply, Request, reply_to_line};

use crate::complaint::Complaint;
use crate::{connect, print};

/// Gives connections to another host. Fails where one of them stays.
pub(crate) fn give(
    run_dir: &Path,
    connections: &[String],
    to: &str,
    receiver: Option<&str>,
    json: bool,
) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    let (connections, receiver) = (connections.to_vec(), receiver.map(str::to_owned));
    client.start(&Request::Move { connections, to: to.to_owned(), receiver })?;
    let mut all = true;
    loop {
        // Whether it moves may take as long as the other hosts take.
        let (reply, _) = client.next_reply(None)?;
        if json {
            print(&reply_to_line(&reply)?)?;
        }
        match reply {
            Reply::Moved(Moved { flow, to, .. }) if !json => {
                print(&format!("{} -> {} is with {} now\n", flow.local, flow.remote, to.key))?;
            }
            Reply::Moved(_) => {}
            Reply::Kept(Kept { flow, reason, .. }) => {
                all = false;
                if !json {
                    print(&format!("{} -> {} stays here: {reason}\n", flow.local, flow.remote))?;
                }
            }
            Reply::End { .. } => return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
            _ => return Err(ClientError::Unexpected.into()),
        }
    }
}

/// Receives connections under a name, and starts a program for each: the connection is its standard input and output.
pub(crate) fn receive(
    run_dir: &Path,
    name: &str,
    program: &[String],
    once: bool,
    json: bool,
) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    client.start(&Request::Receive { name: name.to_owned() })?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let (reply, descriptors) = next(&mut client)?;
        if json {
            print(&reply_to_line(&reply)?)?;
        }
        match reply {
            Reply::Receiving { name } if !json => print(&format!("receiving sockets as {name}\n"))?,
            Reply::Receiving { .. } => {}
            Reply::Received(received) => {
                let Some(socket) = descriptors.into_iter().next() else { return Err(ClientError::Unexpected.into()) };
                if !json {
                    let flow = &received.flow;
                    print(&format!("{} -> {} has come from {}\n", flow.local, flow.remote, received.from.key))?;
                }
                let mut child = start(program, &received, socket)
                    .map_err(|error| Complaint::File(program.first().map(Into::into).unwrap_or_default(), error))?;
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

fn next(client: &mut Client) -> Result<(Reply, Vec<OwnedFd>), Complaint> {
    Ok(client.next_reply(None)?)
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
