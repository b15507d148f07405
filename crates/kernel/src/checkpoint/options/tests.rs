use std::collections::BTreeSet;

use super::*;

#[test]
fn every_option_of_the_format_is_carried() {
    let carried: BTreeSet<_> = all_carried().map(|row| row.kind).collect();
    // It is the other one of SO_PRIORITY.
    let all: BTreeSet<_> = OptionKind::ALL.iter().copied().filter(|kind| *kind != OptionKind::HighPriority).collect();
    assert_eq!(carried, all);
    assert_eq!(all_carried().count(), all.len(), "one is there twice");
    assert_eq!(Carried::of(OptionKind::HighPriority).expect("it is carried").kind_with(7), OptionKind::HighPriority);
}

#[test]
fn the_table_is_in_order_and_says_why() {
    let level = |row: &Row| {
        [libc::SOL_SOCKET, libc::SOL_IP, libc::SOL_IPV6, libc::IPPROTO_TCP, libc::IPPROTO_UDP]
            .iter()
            .position(|level| *level == row.name.level)
    };
    assert!(
        ROWS.windows(2).all(|pair| { (level(&pair[0]), pair[0].name.name) < (level(&pair[1]), pair[1].name.name) })
    );
    for row in ROWS {
        match row.fate {
            Fate::Refused { why, .. } => assert!(why.contains("cannot be moved"), "{}: {why}", row.name.text),
            Fate::NoState(why) => assert!(!why.is_empty(), "{}", row.name.text),
            Fate::Carried { .. } => {}
        }
    }
}

/// Names in headers that are no options: values, flags and lengths.
fn is_value(name: &str) -> bool {
    const VALUES: [&str; 15] = [
        "IP_PMTUDISC_",
        "IP_DEFAULT_",
        "IP_MAX_",
        "IPV6_FL_",
        "IPV6_FLOWINFO_FLOWLABEL",
        "IPV6_FLOWINFO_PRIORITY",
        "IPV6_PRIORITY_",
        "IPV6_TLV_",
        "IPV6_PMTUDISC_",
        "IPV6_PREFER_SRC_",
        "TCP_MSS_",
        "TCP_REPAIR_O",
        "TCP_MD5SIG_",
        "TCP_RECEIVE_ZEROCOPY_FLAG",
        "UDP_ENCAP_",
    ];
    let names = ["MCAST_EXCLUDE", "MCAST_INCLUDE", "IPV6_2292PKTINFO_", "TCP_AO_KEYF_", "TCP_AO_MAXKEYLEN"];
    // Those of repair mode that switch it, and the key that is an option.
    let options = ["TCP_REPAIR_OPTIONS", "TCP_MD5SIG_EXT"];
    !options.contains(&name) && VALUES.iter().chain(&names).any(|value| name.starts_with(value))
}

/// Every option that the kernel's headers on this machine have is in the table, under its level and number.
#[test]
fn the_table_has_every_option_of_the_installed_headers() {
    use libc::{IPPROTO_TCP, IPPROTO_UDP, SOL_IP, SOL_IPV6, SOL_SOCKET};
    let headers: [(&str, libc::c_int, &[&str]); 5] = [
        ("asm-generic/socket.h", SOL_SOCKET, &["SO_", "SCM_"]),
        ("linux/in.h", SOL_IP, &["IP_", "MCAST_"]),
        ("linux/in6.h", SOL_IPV6, &["IPV6_"]),
        ("linux/tcp.h", IPPROTO_TCP, &["TCP_"]),
        ("linux/udp.h", IPPROTO_UDP, &["UDP_"]),
    ];
    let mut seen = 0;
    for (header, level, prefixes) in headers {
        let path = format!("/usr/include/{header}");
        // They come with whatever a program is linked with here (linux-libc-dev, kernel-headers).
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() != Some("#define") {
                continue;
            }
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            let Ok(number) = value.parse::<libc::c_int>() else { continue };
            if !prefixes.iter().any(|prefix| name.starts_with(prefix)) || is_value(name) {
                continue;
            }
            let row = ROWS.iter().find(|row| (row.name.level, row.name.name) == (level, number));
            assert!(row.is_some(), "{header}: nothing says what becomes of {name} ({number})");
            seen += 1;
        }
    }
    assert!(seen > 150, "only {seen} options were found in the headers");
}

#[test]
fn what_a_host_does_not_set_is_said() {
    let why = |number, transport, privileged| {
        why_not_set(&[OptionKind::KeepAlive.number(), number], transport, Family::Ipv4, Rights { all: privileged })
            .expect("a socket")
    };
    assert_eq!(why(OptionKind::NoDelay.number(), Transport::Tcp, false), None);
    let said = why(0x1234, Transport::Tcp, true).expect("it is not known");
    assert!(said.contains("number 4660, which this host does not know"), "{said}");
    for kind in OptionKind::ALL.iter().filter(|kind| kind.is_privileged()) {
        let said = why(kind.number(), Transport::Udp, false).expect("it needs a privilege");
        assert!(said.contains("privilege") && said.contains("`privileged_options`"), "{said}");
    }
    assert_eq!(why(OptionKind::Mark.number(), Transport::Udp, true), None);
    // No kernel has it for datagrams, as an old one has it for nothing.
    let said = why(OptionKind::NoDelay.number(), Transport::Udp, false).expect("it is none of UDP's");
    assert!(said.contains("TCP_NODELAY, which this host's kernel does not know"), "{said}");
}
