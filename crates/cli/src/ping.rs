//! `whimbrel ping`: whether another host answers, and by which way.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use whimbrel_ipc::{ClientError, Code, Pinged, Reply, reply_to_line};

use crate::complaint::Complaint;
use crate::{connect, print, show};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);

/// The first address that a name has, where it is one and has one: numbers and keys are none.
fn resolved(name: &str) -> Option<String> {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if !is_name || name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let found = (name, 0).to_socket_addrs().ok()?.next()?;
    Some(found.ip().to_string())
}

/// Asks so often, and tells what came of it. Fails where nothing was answered.
pub(crate) fn ping(run_dir: &Path, host: &str, count: u32, json: bool) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    // As `connections` shows it: the host is there, whatever the port is.
    let mut host = host.parse().map_or_else(|_| host.to_owned(), |end: SocketAddr| end.ip().to_string());
    let mut all: Vec<Pinged> = Vec::new();
    for number in 1..=count {
        if number > 1 {
            std::thread::sleep(PAUSE);
        }
        let pinged = match client.ping(host.clone()) {
            Err(ClientError::Refused(failure)) if number == 1 && failure.code == Some(Code::Unknown) => {
                // What the daemon does not know a name server may.
                host = resolved(&host).ok_or(ClientError::Refused(failure))?;
                client.ping(host.clone())?
            }
            pinged => pinged?,
        };
        print(&match json {
            true => reply_to_line(&Reply::Pinged(Box::new(pinged.clone())))?,
            false => show::pong(&pinged, number),
        })?;
        // Who is not there at all is not asked again.
        let over = pinged.session.is_none();
        all.push(pinged);
        if over {
            break;
        }
    }
    if !json {
        print(&show::pongs(&all))?;
    }
    let answered = all.iter().any(|pinged| pinged.answered);
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
