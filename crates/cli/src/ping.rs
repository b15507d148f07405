//! `whimbrel ping`: whether another host answers, and by which way.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use whimbrel_ipc::{Pinged, Reply, reply_to_line};

use crate::complaint::Complaint;
use crate::{connect, print, show};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks so often, and tells what came of it. Fails where nothing was answered.
pub(crate) fn ping(run_dir: &Path, host: &str, count: u32, json: bool) -> Result<ExitCode, Complaint> {
    let mut client = connect(run_dir)?;
    let mut all: Vec<Pinged> = Vec::new();
    for number in 1..=count {
        if number > 1 {
            std::thread::sleep(PAUSE);
        }
        let pinged = client.ping(host.to_owned())?;
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
