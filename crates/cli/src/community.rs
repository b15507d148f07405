//! `whimbrel community`: who belongs together, and how that comes about.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use whimbrel_ipc::{
    ClientError, CommunityReply, CommunityRequest, EventRecord, EventsQuery, Failure, Reply, Request, reply_to_line,
};

use crate::args::CommunityCommand;
use crate::complaint::Complaint;
use crate::{connect, print, show};

/// How long is waited for what becomes of a code: the daemon tries for 20 s.
const WAIT: Duration = Duration::from_secs(40);

pub(crate) fn community(run_dir: &Path, command: &CommunityCommand) -> Result<ExitCode, Complaint> {
    let request = match command {
        CommunityCommand::Init { name, .. } => CommunityRequest::Init { name: name.clone() },
        CommunityCommand::Invite { steward, .. } => CommunityRequest::Invite { steward: *steward },
        CommunityCommand::Grant { connection, .. } => CommunityRequest::Grant { connection: connection.clone() },
        CommunityCommand::Join { code, hosts, port, name, .. } => {
            let hosts = resolve(hosts)?;
            CommunityRequest::Join { code: code.clone(), hosts, port: *port, name: name.clone() }
        }
        CommunityCommand::Accept { code, hosts, port, .. } => {
            CommunityRequest::Accept { code: code.clone(), hosts: resolve(hosts)?, port: *port }
        }
        CommunityCommand::List { .. } => CommunityRequest::List,
        CommunityCommand::Revoke { what, .. } => CommunityRequest::Revoke { what: what.clone() },
        CommunityCommand::Leave { .. } => CommunityRequest::Leave,
    };
    let json = command.json();
    let (line, reply) = connect(run_dir)?.ask_for_line(&Request::Community(request))?;
    let Reply::Community(reply) = reply else { return Err(ClientError::Unexpected.into()) };
    match *reply {
        CommunityReply::Asking { since } => {
            if json {
                print(&line)?;
            }
            return follow(run_dir, since, json);
        }
        _ if json => print(&line)?,
        CommunityReply::Roster(_) if matches!(command, CommunityCommand::Leave { .. }) => print(show::LEFT)?,
        CommunityReply::Roster(roster) => print(&show::roster(&roster))?,
        CommunityReply::Code(code) => print(&show::code(&code))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All addresses of these hosts.
fn resolve(hosts: &[String]) -> Result<Vec<IpAddr>, Complaint> {
    let mut seen = BTreeSet::new();
    let mut addresses = Vec::new();
    for host in hosts {
        let found = (host.as_str(), 0).to_socket_addrs().map_err(|error| {
            let failure = Failure::new(format!("no address is found for this host: {error}")).on(host);
            Complaint::Daemon(ClientError::Refused(failure.hint("An address does as well as a name.")))
        })?;
        addresses.extend(found.map(|at| at.ip()).filter(|address| seen.insert(*address)));
    }
    Ok(addresses)
}

/// Whether an event says what became of a code.
fn is_outcome(event: &EventRecord) -> bool {
    matches!(event.kind.as_str(), "community-joined" | "may-receive" | "join-failed")
}

fn follow(run_dir: &Path, since: u64, json: bool) -> Result<ExitCode, Complaint> {
    let mut events = connect(run_dir)?.events(EventsQuery { last: None, since: Some(since), follow: true })?;
    let deadline = Instant::now() + WAIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Complaint::Code { what: "nothing has come of the code".to_owned(), good: false });
        }
        events.set_timeout(Some(left))?;
        let event = match events.next() {
            Some(Ok(event)) => event,
            Some(Err(ClientError::Timeout { .. })) | None => continue,
            Some(Err(error)) => return Err(error.into()),
        };
        if !is_outcome(&event) {
            continue;
        }
        if event.kind == "join-failed" {
            let good = event.fields.get("good").is_some_and(|good| good == true);
            return Err(Complaint::Code { what: event.sentence, good });
        }
        print(&if json { reply_to_line(&Reply::Event(event))? } else { show::outcome(&event) })?;
        return Ok(ExitCode::SUCCESS);
    }
}
