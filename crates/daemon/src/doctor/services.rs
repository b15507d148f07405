//! Whether services that manage networks are listened to. Tried by a connection of this examination's own.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use whimbrel_bus::address::Address;
use whimbrel_bus::{Heard, ServiceState, Watch};
use whimbrel_ipc::Finding;

const CHECK: &str = "services on D-Bus";
/// All have answered within this, or are known to give no answer.
const WITHIN: Duration = Duration::from_secs(11);
/// Nothing is news any more after so long.
const SETTLED: Duration = Duration::from_millis(300);

pub(super) fn finding() -> Finding {
    match Address::system().and_then(Watch::start) {
        Ok(watch) => judged(&settled(&watch)),
        Err(error) => Finding::warning("network", CHECK, error.to_string())
            .lost("what services know of networks is not heard")
            .mend("correct DBUS_SYSTEM_BUS_ADDRESS, or leave it unset"),
    }
}

/// What has been heard when nothing is added any more.
fn settled(watch: &Watch) -> Heard {
    let (until, mut last) = (Instant::now() + WITHIN, None);
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let waits = |heard: &Heard| heard.services.values().any(|state| *state == ServiceState::Asked);
        let wait = if last.as_ref().is_some_and(|heard| !waits(heard)) { rest.min(SETTLED) } else { rest };
        let wake = watch.wake();
        let mut fds = [PollFd::new(&wake, PollFlags::IN)];
        let came = poll(&mut fds, Timespec::try_from(wait).ok().as_ref()).unwrap_or(0);
        match watch.take() {
            Some(heard) => last = Some(heard),
            None if came == 0 => return last.unwrap_or_default(),
            None => {}
        }
    }
}

fn judged(heard: &Heard) -> Finding {
    let unheard = heard.services.is_empty().then_some("it does not answer");
    if let Some(why) = heard.absent.as_deref().or(unheard) {
        let found = format!("no bus is listened to ({why}): what the kernel says of networks is all that is heard");
        return Finding::ok("network", CHECK, found);
    }
    let are = |state: ServiceState| -> Vec<&str> {
        heard.services.iter().filter(|(_, found)| **found == state).map(|(name, _)| *name).collect()
    };
    let say = |state: ServiceState, one: &str, several: &str| match are(state).as_slice() {
        [] => None,
        [name] => Some(format!("{name} {one}")),
        names => Some(format!("{} {several}", names.join(", "))),
    };
    let said = [
        say(ServiceState::Heard, "is listened to", "are listened to"),
        say(ServiceState::Silent, "gives no answer", "give no answer"),
        say(ServiceState::Elsewhere, "manages other networks", "manage other networks"),
        say(ServiceState::Absent, "is not there, nor needed", "are not there, nor needed"),
    ];
    let said = said.into_iter().flatten().collect::<Vec<_>>().join("; ");
    match are(ServiceState::Silent).is_empty() {
        true => Finding::ok("network", CHECK, said),
        false => Finding::warning("network", CHECK, said)
            .lost("what it knows of networks is not heard: that one is about to go, has a portal, or costs")
            .mend("see with `systemctl status` how it is; the daemon asks it again each minute"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_by_how_they_are() {
        let absent = Heard { absent: Some("the bus does not answer".into()), ..Heard::default() };
        assert!(judged(&absent).found.contains("no bus is listened to (the bus does not answer)"));
        let mut heard = Heard::default();
        assert!(judged(&heard).found.contains("no bus is listened to"));
        heard.services = [
            ("NetworkManager", ServiceState::Heard),
            ("ModemManager", ServiceState::Absent),
            ("systemd-networkd", ServiceState::Absent),
        ]
        .into();
        let said = "NetworkManager is listened to; ModemManager, systemd-networkd are not there, nor needed";
        assert_eq!(judged(&heard), Finding::ok("network", CHECK, said));
        heard.services.insert("ModemManager", ServiceState::Silent);
        assert!(judged(&heard).found.contains("ModemManager gives no answer"));
    }
}
