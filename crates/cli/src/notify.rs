//! `whimbrel notify`: notifications on the desktop of who runs it.
//!
//! The daemon is root's and desktops are users', each with a bus of its own. So a program of the user's asks the one
//! and tells the other, and the daemon knows of no session (decision 0115).

mod digest;

use std::path::Path;
use std::time::{Duration, Instant};

use whimbrel_bus::BusError;
use whimbrel_bus::address::Address;
use whimbrel_bus::notification::Desktop;
use whimbrel_ipc::{Client, ClientError, EventsQuery};

use crate::complaint::Complaint;
use crate::print;
use digest::Digest;

/// How soon a daemon that has gone is looked for again.
const LOOK: Duration = Duration::from_secs(2);

/// Shows what happens from now on, for as long as the session lasts.
pub(crate) fn notify(run_dir: &Path) -> Result<(), Complaint> {
    let address = Address::session().map_err(|_| Complaint::NoSession)?;
    let mut desktop = Desktop::open(&address).map_err(Complaint::Desktop)?;
    let mut digest = Digest::default();
    print("Hand-offs, and peers that give no answer, are shown on the desktop of this session.\n")?;
    loop {
        match follow(run_dir, &mut desktop, &mut digest) {
            // One that is started anew has another socket.
            Err(complaint) if complaint.is_for_want_of_a_daemon() => {}
            Err(Complaint::Daemon(ClientError::Stopped { .. })) => {}
            Err(complaint) => return Err(complaint),
            Ok(()) => {}
        }
        show(&mut desktop, &mut digest)?;
        std::thread::sleep(LOOK);
    }
}

fn follow(run_dir: &Path, desktop: &mut Desktop, digest: &mut Digest) -> Result<(), Complaint> {
    let mut client = Client::connect(run_dir)?;
    let newest = client.status()?.newest_event;
    let mut events = client.events(EventsQuery { last: None, since: Some(newest), follow: true })?;
    loop {
        let wait = digest.due().map(|due| due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        events.set_timeout(wait)?;
        match events.next() {
            Some(Ok(event)) => digest.take(Instant::now(), &event),
            Some(Err(ClientError::Timeout { .. })) if wait.is_some() => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Ok(()),
        }
        show(desktop, digest)?;
    }
}

/// Shows what is due.
fn show(desktop: &mut Desktop, digest: &mut Digest) -> Result<(), Complaint> {
    while let Some((notification, last)) = digest.next(Instant::now()) {
        match desktop.show(&notification, *last) {
            Ok(shown) => *last = shown,
            // Nobody shows notifications in this session now; somebody may later.
            Err(error @ (BusError::Error(_) | BusError::Silent(_))) => {
                eprintln!("whimbrel: a notification is not shown: {error}");
            }
            Err(error) => return Err(Complaint::Desktop(error)),
        }
    }
    Ok(())
}
