//! What matches, and what decides.

use std::net::{IpAddr, SocketAddr};

use whimbrel_protocol::Prefix;
use whimbrel_wire::{FlowTuple, Transport};

use super::*;
use proptest::prelude::*;

fn flow(transport: Transport, local: u16, remote: SocketAddr) -> FlowTuple {
    FlowTuple { transport, local: SocketAddr::new([192, 0, 2, 1].into(), local), remote }
}

fn key(number: u8) -> PublicKey {
    PublicKey::from([number; 32])
}

fn holder(name: &str, executable: &str, cgroup: &str) -> Holder {
    Holder { pid: 7, name: name.into(), executable: executable.into(), cgroup: cgroup.into(), uid: Some(7) }
}

fn any_flow() -> impl Strategy<Value = FlowTuple> {
    (any::<bool>(), any::<u16>(), any::<u16>(), any::<[u8; 4]>()).prop_map(|(udp, local, port, address)| {
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        flow(transport, local, (address, port).into())
    })
}

fn any_holder() -> impl Strategy<Value = Holder> {
    (0..3usize, 0..3usize).prop_map(|(program, cgroup)| {
        let program = ["vsftpd", "ftp", "sshd"][program];
        holder(program, &format!("/usr/sbin/{program}"), ["/", "/system.slice", "/system.slice/ftp.service"][cgroup])
    })
}

fn any_matcher() -> impl Strategy<Value = Matcher> {
    let ports = || proptest::option::of((any::<u16>(), any::<u16>()).prop_map(|(a, b)| a.min(b)..=a.max(b)));
    let peer = prop_oneof![
        (any::<[u8; 4]>(), 0..=32u8)
            .prop_map(|(address, length)| PeerCondition::Prefix(Prefix { address: IpAddr::from(address), length })),
        (0..3u8).prop_map(|number| PeerCondition::Key(key(number))),
    ];
    (
        proptest::option::of(proptest::collection::vec(peer, 1..3)),
        ports(),
        ports(),
        proptest::option::of(prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)]),
        proptest::option::of(prop_oneof![Just("vsftpd"), Just("/usr/sbin/ftp")]),
        proptest::option::of(prop_oneof![Just("/"), Just("/system.slice")]),
    )
        .prop_map(|(peer, local_port, remote_port, transport, program, cgroup)| Matcher {
            peer,
            local_port,
            remote_port,
            transport,
            program: program.map(ProgramCondition::new),
            cgroup: cgroup.map(str::to_owned),
        })
}

fn numbered(matchers: Vec<Matcher>) -> Policies {
    let section = |(line, matcher)| Policy {
        line,
        matcher,
        treatment: Treatment { protect: line % 2 == 0, ..Treatment::default() },
    };
    Policies::new((1..).zip(matchers).map(section).collect())
}

proptest! {
    #[test]
    fn the_first_that_matches_decides(
        matchers in proptest::collection::vec(any_matcher(), 0..6),
        flow in any_flow(),
        named in proptest::option::of(0..4u8),
        holders in proptest::collection::vec(any_holder(), 0..3),
    ) {
        let named = named.map(key);
        let subject = Subject { flow: &flow, key: named.as_ref(), holders: &holders };
        let matching: Vec<bool> = matchers.iter().map(|matcher| matcher.matches(&subject)).collect();
        let policies = numbered(matchers);
        let first = matching.iter().position(|matches| *matches);
        prop_assert_eq!(policies.decide(&subject).map(|policy| policy.line as usize), first.map(|index| index + 1));
        // What it is decided without is not asked for.
        if !policies.asks_for_holders(&flow) {
            prop_assert_eq!(policies.decide(&subject), policies.decide(&Subject { holders: &[], ..subject }));
        }
    }

    #[test]
    fn each_condition_only_narrows(
        matcher in any_matcher(),
        flow in any_flow(),
        named in proptest::option::of(0..4u8),
        holders in proptest::collection::vec(any_holder(), 0..3),
    ) {
        let named = named.map(key);
        let subject = Subject { flow: &flow, key: named.as_ref(), holders: &holders };
        prop_assert!(Matcher::default().matches(&subject));
        let without = [
            Matcher { peer: None, ..matcher.clone() },
            Matcher { local_port: None, ..matcher.clone() },
            Matcher { remote_port: None, ..matcher.clone() },
            Matcher { transport: None, ..matcher.clone() },
            Matcher { program: None, ..matcher.clone() },
            Matcher { cgroup: None, ..matcher.clone() },
        ];
        if matcher.matches(&subject) {
            for wider in without {
                prop_assert!(wider.matches(&subject), "{wider:?}");
            }
        }
    }
}

#[test]
fn programs_are_known_by_their_file_or_their_name() {
    let flow = flow(Transport::Tcp, 21, ([198, 51, 100, 1], 40_000).into());
    let matches = |program: &str, holders: &[Holder]| {
        let matcher = Matcher { program: Some(ProgramCondition::new(program)), ..Matcher::default() };
        matcher.matches(&Subject { flow: &flow, key: None, holders })
    };
    let tnftp = [holder("ftp", "/usr/bin/tnftp", "/")];
    assert!(matches("ftp", &tnftp) && matches("tnftp", &tnftp) && matches("/usr/bin/tnftp", &tnftp));
    assert!(!matches("/usr/bin/ftp", &tnftp) && !matches("tnft", &tnftp) && !matches("ftp", &[]));
    let replaced = [holder("postgres", "/usr/lib/postgresql/15/bin/postgres (deleted)", "/")];
    assert!(matches("/usr/lib/postgresql/15/bin/postgres", &replaced) && matches("postgres", &replaced));
    let long = [holder("whimbrel-shower", "", "/")];
    assert!(matches("whimbrel-shower-of-birds", &long));
    let shared = [holder("inetd", "/usr/sbin/inetd", "/"), holder("in.telnetd", "/usr/sbin/telnetd", "/")];
    assert!(matches("in.telnetd", &shared));
}

#[test]
fn one_process_meets_both_program_and_cgroup() {
    let flow = flow(Transport::Tcp, 21, ([198, 51, 100, 1], 40_000).into());
    let matcher = Matcher {
        program: Some(ProgramCondition::new("vsftpd")),
        cgroup: Some("/system.slice".to_owned()),
        ..Matcher::default()
    };
    let matches = |holders: &[Holder]| matcher.matches(&Subject { flow: &flow, key: None, holders });
    assert!(matches(&[holder("vsftpd", "", "/system.slice/vsftpd.service")]));
    assert!(!matches(&[holder("vsftpd", "", "/user.slice"), holder("inetd", "", "/system.slice")]));
    assert!(!matches(&[holder("vsftpd", "", "/system.slices")]));
}

#[test]
fn every_cgroup_lies_in_the_root() {
    let matcher = Matcher { cgroup: Some("/".to_owned()), ..Matcher::default() };
    let flow = flow(Transport::Udp, 1, ([198, 51, 100, 1], 2).into());
    for cgroup in ["/", "/user.slice", "/user.slice/user-0.slice"] {
        assert!(matcher.matches(&Subject { flow: &flow, key: None, holders: &[holder("x", "", cgroup)] }), "{cgroup}");
    }
    assert!(!matcher.matches(&Subject { flow: &flow, key: None, holders: &[] }));
}

#[test]
fn keys_are_told_once() {
    let of = |keys: &[u8]| Matcher {
        peer: Some(keys.iter().map(|number| PeerCondition::Key(key(*number))).collect()),
        ..Matcher::default()
    };
    let policies = numbered(vec![of(&[2, 1]), Matcher::default(), of(&[2])]);
    assert_eq!(policies.keys(), [key(1), key(2)]);
}
