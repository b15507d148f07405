//! `whimbrel suspend` and `whimbrel resume`.

use whimbrel_ipc::Suspended;

use super::count;

/// `all`: and the host has gone away.
pub(crate) fn suspended(suspended: &Suspended, all: bool) -> String {
    let Suspended { flows, told, answered, already } = *suspended;
    let wait = if flows == 1 { "waits" } else { "wait" };
    let peers = match told {
        0 => "Nobody could be told".to_owned(),
        _ if told == answered => format!("Told {} of it", count(told, "peer")),
        _ => format!("Told {} of it, of which {} did not answer", count(told, "peer"), told - answered),
    };
    match flows {
        _ if already => {
            let who = if all { "This host is suspended" } else { "So it is" };
            format!("{who} already. {} {wait} until `whimbrel resume`.\n", count(flows, "connection"))
        }
        _ if !all => format!("{} {wait} until `whimbrel resume`. {peers}.\n", count(flows, "connection")),
        0 => "No connection would outlive a move, so nobody was told. `whimbrel resume` when this host is back.\n"
            .to_owned(),
        _ => format!("{} {wait} until `whimbrel resume`. {peers}.\n", count(flows, "connection")),
    }
}

/// `host`: and the host is back.
pub(crate) fn resumed(flows: usize, host: bool) -> String {
    match flows {
        0 if !host => {
            "No connection goes on yet: their peers have them wait, too, until `whimbrel resume` there.\n".to_owned()
        }
        0 => "This host is back. No connection has waited.\n".to_owned(),
        1 if !host => "1 connection goes on.\n".to_owned(),
        _ if !host => format!("{flows} connections go on.\n"),
        _ => format!(
            "This host is back. {} as soon as the peers know.\n",
            match flows {
                1 => "1 connection goes on".to_owned(),
                _ => format!("{flows} connections go on"),
            }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_said() {
        let text = |flows, told, answered| suspended(&Suspended { flows, told, answered, already: false }, true);
        assert_eq!(text(2, 1, 1), "2 connections wait until `whimbrel resume`. Told 1 peer of it.\n");
        assert_eq!(
            text(1, 2, 1),
            "1 connection waits until `whimbrel resume`. Told 2 peers of it, of which 1 did not answer.\n"
        );
        assert!(text(1, 0, 0).ends_with("Nobody could be told.\n"));
        assert!(text(0, 0, 0).starts_with("No connection"));
        let again = Suspended { flows: 2, told: 0, answered: 0, already: true };
        let text = suspended(&again, true);
        assert_eq!(text, "This host is suspended already. 2 connections wait until `whimbrel resume`.\n");
        assert!(suspended(&again, false).starts_with("So it is already. 2 connections wait"));
        assert!(resumed(0, false).starts_with("No connection goes on yet"));
        assert_eq!(resumed(1, true), "This host is back. 1 connection goes on as soon as the peers know.\n");
    }
}
