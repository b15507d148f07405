//! Whether Wi-Fi can be listened to.

use whimbrel_ipc::Finding;
use whimbrel_kernel::wireless::WirelessMonitor;

pub(super) fn finding() -> Finding {
    judged(WirelessMonitor::open().map(|monitor| monitor.is_some()).map_err(|error| error.to_string()))
}

fn judged(there: Result<bool, String>) -> Finding {
    let check = "Wi-Fi (nl80211)";
    match there {
        Ok(true) => Finding::ok("kernel", check, "is listened to"),
        // A host without Wi-Fi lacks nothing by that.
        Ok(false) => Finding::ok(
            "kernel",
            check,
            "not there (CONFIG_CFG80211): where this host has Wi-Fi all the same, its signal and its rate are not known, and \
             that beacons are lost is found out by what is not answered",
        ),
        Err(error) => Finding::warning("kernel", check, error)
            .lost("the signal and the rate of Wi-Fi, and being told when its access point is lost")
            .mend("run `whimbrel doctor` as root; see that nothing keeps the daemon from sockets of netlink"),
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_ipc::Verdict;

    use super::*;

    #[test]
    fn what_is_lost_without_it_is_told() {
        assert_eq!(judged(Ok(true)).found, "is listened to");
        let absent = judged(Ok(false));
        assert!(absent.verdict == Verdict::Ok && absent.found.contains("signal"), "{absent:?}");
        let refused = judged(Err("socket nl80211 mlme: Operation not permitted".into()));
        assert!(refused.verdict == Verdict::Warning && refused.lost.is_some() && refused.mend.is_some(), "{refused:?}");
    }
}
