//! `whimbrel doctor`.

use whimbrel_ipc::{Finding, Verdict};

use super::count;
use crate::table::{width, wrap};

pub(crate) fn findings(findings: &[Finding]) -> String {
    let mut out = String::new();
    let mut areas: Vec<&str> = Vec::new();
    for finding in findings {
        if !areas.contains(&finding.area.as_str()) {
            areas.push(&finding.area);
        }
    }
    for area in areas {
        out.push_str(&format!("{area}\n"));
        for finding in findings.iter().filter(|finding| finding.area == area) {
            out.push_str(&one(finding));
        }
    }
    let of = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (problems, warnings) = (of(Verdict::Problem), of(Verdict::Warning));
    out.push_str(&match (problems, warnings) {
        (0, 0) => "All is well.\n".to_owned(),
        (0, _) => format!("Whimbrel works here, with less: {}.\n", count(warnings, "warning")),
        _ => format!("Whimbrel does not work here: {}, {}.\n", count(problems, "problem"), count(warnings, "warning")),
    });
    out
}

fn one(finding: &Finding) -> String {
    let mark = match finding.verdict {
        Verdict::Ok => " ok ",
        Verdict::Warning => "warn",
        Verdict::Problem => "FAIL",
    };
    let head = format!("  {mark}  ");
    let indent = head.chars().count();
    let mut out = format!("{head}{}\n", wrap(&format!("{}: {}", finding.check, finding.found), width(), indent));
    for (name, text) in [("lost", &finding.lost), ("mend", &finding.mend)] {
        if let Some(text) = text {
            let lead = format!("{}{name}: ", " ".repeat(indent));
            let text = unbroken(text, |text| wrap(text, width(), lead.len()));
            out.push_str(&format!("{lead}{text}\n"));
        }
    }
    out
}

/// Wraps a text whose commands, in backticks, stay on a line each, so that they can be copied.
fn unbroken(text: &str, wrap: impl Fn(&str) -> String) -> String {
    const BLANK: char = '\u{1}';
    let parts = text.split('`').enumerate().map(|(number, part)| match number % 2 {
        0 => part.to_owned(),
        _ => part.replace(' ', &BLANK.to_string()),
    });
    wrap(&parts.collect::<Vec<_>>().join("`")).replace(BLANK, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(area: &str, check: &str, verdict: Verdict, found: &str) -> Finding {
        Finding { area: area.into(), check: check.into(), verdict, found: found.into(), lost: None, mend: None }
    }

    #[test]
    fn groups_by_area_and_says_what_to_do() {
        let mut port = finding("firewall", "UDP port 2031", Verdict::Problem, "table inet filter drops it");
        port.lost = Some("no peer can reach this host".into());
        port.mend = Some("`nft add rule inet filter input udp dport 2031 accept`".into());
        let text = findings(&[
            finding("kernel", "BTF", Verdict::Ok, "present"),
            port,
            finding("kernel", "tcx", Verdict::Warning, "absent, clsact is used"),
        ]);
        assert_eq!(
            text,
            "\
kernel
   ok   BTF: present
  warn  tcx: absent, clsact is used
firewall
  FAIL  UDP port 2031: table inet filter drops it
        lost: no peer can reach this host
        mend: `nft add rule inet filter input udp dport 2031 accept`
Whimbrel does not work here: 1 problem, 1 warning.
"
        );
    }

    #[test]
    fn commands_are_not_broken() {
        let command =
            |chain: &str| format!("`nft insert rule inet a-table-with-a-long-name {chain} udp dport 2031 accept`");
        let mut port = finding("firewall", "UDP port 2031", Verdict::Problem, "dropped");
        port.mend = Some(format!("{} and {}", command("one"), command("two")));
        let text = findings(&[port]);
        assert!(text.contains(&format!("mend: {} and\n", command("one"))), "{text}");
        assert!(text.contains(&format!("  {}\n", command("two"))), "{text}");
    }

    #[test]
    fn a_healthy_machine() {
        assert!(findings(&[finding("kernel", "BTF", Verdict::Ok, "present")]).ends_with("All is well.\n"));
    }
}
