//! Tests of what is read and what is complained of.

use whimbrel_protocol::{Manner, View};
use whimbrel_wire::Transport;

use super::value::parse_prefix;
use whimbrel_protocol::SilenceMode;

use super::*;
use super::{LISTED, SECTIONS};
use crate::policy::{Matcher, PeerCondition, Policy, ProgramCondition, ProgramName, Treatment};

fn complaint(text: &str) -> String {
    parse(Path::new("/etc/w.toml"), text).expect_err("a mistake").to_string()
}

#[test]
fn keys_that_differ_are_named() {
    let config = |text| parse(Path::new("w.toml"), text).expect("valid");
    let before = config("port = 2000\n[ask]\nallow = ['10.0.0.0/8']\n");
    assert_eq!(before.differences(&before.clone()), [""; 0]);
    let after = config("carriers = ['tunnel']\nlog = 'debug'\n");
    assert_eq!(before.differences(&after), ["carriers", "port", "log", "ask.allow"]);
}

#[test]
fn every_key_is_compared() {
    let key = PublicKey::from([7; 32]);
    let folder = std::env::temp_dir().join(format!("whimbrel-compared-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("psk"), key.to_string()).unwrap();
    let text = format!(
        "trust = 'psk'\npsk_file = 'psk'\ncarriers = ['tunnel']\ntunnel = 'plain'\nport = 2000\ncontrol_mode = '0660'\n\
         kick = false\nmasked_updates = false\nwindows = true\nlate_introductions = 'unshared'\n\
         rendezvous = ['192.0.2.1']\n\
         serve_rendezvous = true\ncommunity_rendezvous = false\nstand_in = true\n\
         processes = true\nlisten_tcp = '[::]:443'\n\
         privileged_options = true\nlog = 'debug'\nevent_log = 'e'\n[ask]\nallow = ['192.0.2.0/24']\ndeny = ['192.0.2.1']\n\
         [limits]\nquestions = 1\nconnections = 2\nconnections_per_peer = 1\n[metrics]\nlisten = '[::1]:1'\n\
         [links]\nmode = 'off'\nsh1 = 10\nsh2 = 20\n\
         [gateway]\nbehind = ['192.0.2.0/24']\n[anchor]\naddresses = ['192.0.2.0/24']\n\
         [dns]\nname = 'a.b'\nzone = 'b'\nserver = '192.0.2.1'\nkey_file = 'psk'\nkey_name = 'k'\n\
         [[peers]]\naddress = '192.0.2.1'\nkey = '{key}'\n[[policy]]\nprotect = false\n\
         [[prefer]]\nnearest = true\n[[helper]]\nname = 'x'\nkind = 'hold'\n"
    );
    let config = parse(&folder.join("w.toml"), &text).expect("valid");
    let mut named: Vec<&str> = config.differences(&Config::default());
    for section in ["ask", "limits", "links", "metrics", "gateway"] {
        named.retain(|key| !key.starts_with(&format!("{section}.")));
        named.push(section);
    }
    named.sort_unstable();
    let known = complaint("nothing_like_a_key = 1");
    let mut known: Vec<&str> = known.split('`').skip(3).step_by(2).collect();
    known.sort_unstable();
    assert_eq!(named, known);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn lists_are_taken_for_no_sections() {
    let known = complaint("nothing_like_a_key = 1");
    for key in known.split('`').skip(3).step_by(2) {
        // What is no section is complained of for another reason, or is a list.
        let said = parse(Path::new("/etc/w.toml"), &format!("{key} = [1]")).expect_err(key).to_string();
        let section = SECTIONS.contains(&key) || LISTED.contains(&key);
        assert_eq!(said.contains("must be a section"), section, "{said}");
        let said = parse(Path::new("/etc/w.toml"), &format!("{key} = []")).map_err(|error| error.to_string());
        let section = SECTIONS.contains(&key);
        assert_eq!(said.is_err_and(|said| said.contains("must be a section, not an array")), section, "{key}");
    }
    assert!(complaint("ask = 2020-01-01").contains("`ask` must be a section, not a datetime"));
    assert!(complaint("[[ask]]\nallow = []").contains(":1:1: `ask` must be a section, not an array"));
    assert!(complaint("[anchor]\nown = []").contains("2:7: `own` says of which addresses"));
}

#[test]
fn numbers_beyond_all_types_are_answered_like_others() {
    for number in ["18446744073709551616", "9223372036854775808", "-1", "1_000_000", "1.5"] {
        let said = complaint(&format!("[limits]\nquestions = {number}"));
        assert_eq!(said, "/etc/w.toml:2:13: `questions` must be a number from 1 to 10000");
    }
    assert_eq!(
        complaint("kick = 18446744073709551616"),
        "/etc/w.toml:1:8: `kick` must be true or false, not an integer"
    );
    assert_eq!(complaint("kick = 2020-01-01"), "/etc/w.toml:1:8: `kick` must be true or false, not a datetime");
}

#[test]
fn a_network_is_left_after_it_was_asked() {
    let read = |text: &str| parse(Path::new("w.toml"), text).expect("valid").links;
    assert_eq!(read("").of_node().mode, SilenceMode::Idle);
    let set = read("[links]\nmode = 'vigilant'\nsh1 = 100\nsh2 = 150\n").of_node();
    assert_eq!((set.mode, set.thresholds.first.as_millis()), (SilenceMode::Vigilant, 100));
    let said = complaint("[links]\nsh2 = 30\n");
    assert!(said.starts_with("/etc/w.toml:2:7: ") && said.contains("must be above `sh1`, which is 30"), "{said}");
    assert!(complaint("[links]\nsh1 = 45\n").starts_with("/etc/w.toml:2:7: "));
    assert!(complaint("[links]\nmode = 'vigilent'\n").contains("did you mean \"vigilant\"?"));
}

#[test]
fn a_gateway_names_those_behind_it() {
    let read = |text: &str| parse(Path::new("w.toml"), text).expect("valid").gateway.behind;
    assert_eq!(read("[gateway]\n"), []);
    let prefixes = ["198.51.100.0/24", "2001:db8:5::/64"].map(|text| parse_prefix(text).expect("a prefix"));
    assert_eq!(read("[gateway]\nbehind = [\"198.51.100.0/24\", \"2001:db8:5::/64\"]\nanybody = true\n"), prefixes);
    // Else whoever has a session would be past the firewall.
    let said = complaint("[gateway]\nbehind = [\"198.51.100.0/24\"]\n");
    assert!(said.starts_with("/etc/w.toml:2:10: ") && said.contains("`anybody = true`"), "{said}");
    let peer = format!("[[peers]]\naddress = '192.0.2.1'\nkey = '{}'\n", PublicKey::from([7; 32]));
    let pinned = format!("trust = 'pinned'\n[gateway]\nbehind = ['198.51.100.0/24']\n{peer}");
    assert_eq!(read(&pinned).len(), 1);
    let said = complaint("[gateway]\nbehind = [\"0.0.0.0/0\"]\n");
    assert!(said.starts_with("/etc/w.toml:2:11: ") && said.contains("everybody"), "{said}");
    assert!(complaint("[gateway]\nbehind = \"198.51.100.0/24\"\n").contains("a list of prefixes"));
    assert!(complaint("[gateway]\nhosts = []\n").contains("`behind`"));
}

#[test]
fn a_key_that_is_configured_is_trusted_for_that() {
    let (listed, other) = (PublicKey::from([7; 32]), PublicKey::from([8; 32]));
    let text = format!("[[peers]]\naddress = '192.0.2.1'\nkey = '{listed}'\n");
    let mut config = parse(Path::new("w.toml"), &text).expect("valid");
    assert_eq!((config.trust_in(&listed), config.trust_in(&other)), (Trust::Pinned, Trust::Tofu));
    config.trust = Trust::Psk;
    assert_eq!(config.trust_in(&listed), Trust::Psk);
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse(Path::new("w.toml"), "").expect("valid"), Config::default());
}

#[test]
fn all_keys_are_read() {
    let config = parse(
        Path::new("w.toml"),
        "trust = 'tofu'\ncarriers = ['tunnel']\ntunnel = 'plain'\nport = 0x7d0\ncontrol_mode = '0660'\n\
         kick = false\nmasked_updates = false\nwindows = true\nlog = 'debug'\nevent_log = 'e.jsonl'\n\
         [ask]\nallow = ['10.0.0.0/8', '2001:db8::1']\ndeny = ['10.1.0.0/16']\n\
         [limits]\nquestions = 5\nconnections = 1000\nconnections_per_peer = 100\n[metrics]\nlisten = '[::1]:9203'\n",
    )
    .expect("valid");
    assert!(
        !config.carriers.rewrite && config.carriers.tunnel && !config.tunnel_sealed && !config.kick && config.windows
    );
    assert!(!config.masked_updates);
    assert_eq!((config.port, config.control_mode, config.log), (2000, Some(0o660), Level::Debug));
    let limits = &config.limits;
    assert_eq!((limits.questions, limits.connections, limits.connections_per_peer), (5, 1000, 100));
    assert_eq!(config.event_log.as_deref(), Some(Path::new("e.jsonl")));
    assert_eq!(config.metrics.listen, "[::1]:9203".parse().ok());
    assert_eq!(config.ask.allow[1], Prefix { address: "2001:db8::1".parse().expect("address"), length: 128 });
    assert!(config.ask.deny[0].contains("10.1.2.3".parse().expect("address")));
    assert!(!config.ask.deny[0].contains("10.2.2.3".parse().expect("address")));
}

#[test]
fn the_file_that_is_shipped_shows_the_defaults() {
    let shipped = include_str!("../../../../packaging/whimbrel.toml");
    assert_eq!(parse(Path::new("w.toml"), shipped).expect("valid"), Config::default());
    let is_key = |line: &str| {
        line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_alphanumeric() || c == '_'))
    };
    let taken: Vec<&str> = shipped
        .lines()
        .take_while(|line| !line.starts_with("#[[peers]]"))
        .map(|line| {
            // Those that are nothing unless they are set.
            let unset = |line: &str| {
                let anchor = ["ports", "own", "addresses", "to =", "leases", "lifetime"];
                let others = [
                    "control_mode",
                    "behind",
                    "anybody",
                    "psk_file",
                    "event_log",
                    "listen",
                    "name",
                    "zone",
                    "server",
                    "key_",
                ];
                anchor.iter().chain(&others).any(|key| line.starts_with(key))
            };
            line.strip_prefix('#').filter(|line| is_key(line) && !unset(line)).unwrap_or(line)
        })
        .collect();
    assert!(taken.contains(&"kick = true"), "{taken:?}");
    assert_eq!(parse(Path::new("w.toml"), &taken.join("\n")).expect("valid"), Config::default());
}

#[test]
fn complaints_name_line_and_column_and_what_would_be_right() {
    assert_eq!(complaint("\n  prot = 1"), "/etc/w.toml:2:3: unknown key `prot`; did you mean `port`?");
    assert!(complaint("port = 99999").starts_with("/etc/w.toml:1:8: `port` must be a number from 1 to 65535"));
    assert!(complaint("trust = 'toffu'").contains("did you mean \"tofu\"?"));
    assert!(complaint("kick = 'no'").contains("`kick` must be true or false, not a string"));
    assert!(complaint("[ask]\nalow = []").starts_with("/etc/w.toml:2:1: unknown key `alow`; did you mean `allow`?"));
    assert!(complaint("[ask]\nallow = ['10.0.0.0/33']").contains("`10.0.0.0/33` is no prefix"));
    assert!(complaint("trust = 'pinned'").contains("[[peers]]"));
    assert!(complaint("trust = ").starts_with("/etc/w.toml:1:"));
    assert!(complaint("[[peers]]\naddress = 'example.org'\nkey = 'x'").contains("is no IP address"));
    let key = PublicKey::from([7; 32]);
    let peer = |rest: &str| format!("[[peers]]\nkey = '{key}'\n{rest}\n");
    assert!(complaint(&peer("")).contains("needs `address`, or `name`, or both"));
    assert!(complaint(&peer("name = 'a..b'")).contains("must be a name such as"));
    assert!(complaint(&peer("address = '192.0.2.1'\nname_server = '192.0.2.53'")).contains("`name`, which is missing"));
    assert!(complaint(&format!("trust = 'pinned'\n{}", peer("name = 'a.b'"))).contains("needs `address` as well"));
    let named = parse(Path::new("/etc/w.toml"), &peer("name = 'a.b'\nname_server = '192.0.2.53'")).expect("valid");
    assert_eq!((named.peers[0].address, named.peers[0].name.as_deref()), (None, Some("a.b")));
    assert!(complaint("control_mode = 600").contains("octal"));
    for listen in ["'9203'", "9203", "'localhost:9203'", "'127.0.0.1:0'"] {
        let complaint = complaint(&format!("[metrics]\nlisten = {listen}"));
        assert!(complaint.starts_with("/etc/w.toml:2:10: `listen` must be an address and a port"), "{complaint}");
    }
    assert_eq!(
        complaint("event_log = '/var/log/'"),
        "/etc/w.toml:1:13: `event_log` must be the path of a file, such as \"events.jsonl\""
    );
    for (text, right) in [
        ("kick = yes", "/etc/w.toml:1:8: `kick` cannot be yes; did you mean true?"),
        ("port = 1\nkick = off # none", "/etc/w.toml:2:8: `kick` cannot be off; did you mean false?"),
        ("trust = tofu", "/etc/w.toml:1:9: `trust` cannot be tofu; did you mean \"tofu\"? Text stands in quotes"),
        ("trust = ", "/etc/w.toml:1:9: `trust` has no value; leave the line out"),
        ("port = 10.0.0.1", "/etc/w.toml:1:"),
        ("port = 853", "/etc/w.toml:1:8: `port` must not be from 512 to 1023: these stand for connections of TCP"),
        ("listen_tcp = '443'", "/etc/w.toml:1:14: `listen_tcp` must be an address and a port in quotes"),
        (
            "carriers = ['rewrite']\nlisten_tcp = '0.0.0.0:443'",
            "/etc/w.toml:2:14: `listen_tcp` is for what the tunnel carries: it needs \"tunnel\" among `carriers`",
        ),
        ("[dns\nname = 'x'", "/etc/w.toml:1:"),
        ("carriers = ['tunel']", "/etc/w.toml:1:13: each of `carriers` must be one of \"rewrite\", \"tunnel\", not"),
        ("[ask]\nallow = [5]", "/etc/w.toml:2:10: `allow` must be a list of prefixes in quotes, not an integer"),
        (
            "[limits]\nconnections = 10\nconnections_per_peer = 11",
            "/etc/w.toml:3:24: `connections_per_peer` must not be above `connections`, which is 10",
        ),
        ("psk_file = '/no/such'", "/etc/w.toml:1:12: `psk_file` /no/such cannot be read"),
    ] {
        let complaint = complaint(text);
        assert!(complaint.starts_with(right), "{complaint}");
    }
    assert!(complaint("port = 10.0.0.1").contains("the value of `port` is none ("));
    // What is set for all alone is no mistake.
    assert!(parse(Path::new("w.toml"), "[limits]\nconnections = 10").is_ok());
    assert!(complaint("[limits]\nquestions = 0").contains("`questions` must be a number from 1 to 10000"));
}

#[test]
fn rendezvous_are_addresses_whose_keys_are_known_where_keys_are_pinned() {
    let config = parse(Path::new("w.toml"), "rendezvous = ['192.0.2.1', '2001:db8::1']\nserve_rendezvous = true\n");
    let config = config.expect("valid");
    assert_eq!(config.rendezvous.len(), 2);
    assert!(config.serve_rendezvous);
    assert_eq!(config.differences(&Config::default()), ["rendezvous", "serve_rendezvous"]);
    assert_eq!(
        complaint("rendezvous = ['192.0.2.1', 'meet.example.org']"),
        "/etc/w.toml:1:28: `meet.example.org` is no IP address; write one such as \"192.0.2.1\" (no name, no port)"
    );
    assert!(complaint("rendezvous = '192.0.2.1'").contains("`rendezvous` must be a list of addresses such as"));
    assert!(complaint("rendezvous = [1]").contains("`rendezvous` must be addresses in quotes, not an integer"));
    assert!(complaint("rendezvouz = []").contains("did you mean `rendezvous`?"));
    assert!(complaint("stand_in = true").contains("w.toml:1:12: `stand_in` is for hosts that meet others here"));
    assert!(complaint("serve_rendezvous = 'yes'").contains("`serve_rendezvous` must be true or false, not a string"));
    let nine = ["'192.0.2.1'"; 9].join(", ");
    assert!(complaint(&format!("rendezvous = [{nine}]")).contains("at most 8 addresses"));
    let key = "A".repeat(43) + "=";
    let pinned = |at: &str| {
        format!("trust = 'pinned'\nrendezvous = ['192.0.2.1']\n[[peers]]\naddress = '{at}'\nkey = '{key}'\n")
    };
    assert!(parse(Path::new("w.toml"), &pinned("192.0.2.1")).is_ok());
    assert!(complaint(&pinned("192.0.2.2")).starts_with("/etc/w.toml:2:14: trust = \"pinned\" needs a [[peers]]"));
}

#[test]
fn a_key_that_others_can_read_is_noticed() {
    let folder = std::env::temp_dir().join(format!("whimbrel-psk-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let psk = folder.join("psk");
    fs::write(&psk, format!("{}=\n", "A".repeat(43))).unwrap();
    let file = folder.join("whimbrel.toml");
    fs::write(&file, "trust = \"psk\"\npsk_file = \"psk\"\n").unwrap();
    for (mode, open) in [(0o600, false), (0o640, true), (0o604, true)] {
        fs::set_permissions(&psk, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read(Some(&file)).unwrap().psk_open.is_some(), open, "{mode:o}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_prefix_of_length_zero_has_every_address_of_its_family() {
    let all = parse_prefix("0.0.0.0/0").expect("prefix");
    assert!(all.contains("203.0.113.9".parse().expect("address")));
    assert!(!all.contains("2001:db8::1".parse().expect("address")));
}

#[test]
fn the_policy_that_is_shipped_as_an_example_is_one() {
    let shipped = include_str!("../../../../packaging/whimbrel.toml");
    let lines = shipped.lines().skip_while(|line| *line != "#[[policy]]").filter_map(|line| line.strip_prefix('#'));
    let text: Vec<&str> = lines.filter(|line| !line.starts_with(' ')).collect();
    assert!(!parse(Path::new("w.toml"), &text.join("\n")).expect("valid").policies.is_empty(), "{text:?}");
}

#[test]
fn policies_are_read_in_their_order() {
    let key = PublicKey::from([7; 32]);
    let text = format!(
        "[[policy]]\nremote_port = 25\nprotect = false\n\n[[policy]]\npeer = ['10.0.0.0/8', '{key}']\n\
         local_port = '6000-6063'\ntransport = 'udp'\nprogram = '/usr/bin/ftp'\ncgroup = '/user.slice/'\nprotect = true\n\
         view = 'lasting'\nconflict = 'abort'\n"
    );
    let config = parse(Path::new("w.toml"), &text).expect("valid");
    let first = Policy {
        line: 1,
        matcher: Matcher { remote_port: Some(25..=25), ..Matcher::default() },
        treatment: Treatment { protect: false, ..Treatment::default() },
    };
    let prefix = PeerCondition::Prefix(Prefix { address: "10.0.0.0".parse().expect("address"), length: 8 });
    let second = Policy {
        line: 5,
        matcher: Matcher {
            peer: Some(vec![prefix, PeerCondition::Key(key)]),
            local_port: Some(6000..=6063),
            remote_port: None,
            transport: Some(Transport::Udp),
            program: Some(ProgramCondition::new("/usr/bin/ftp")),
            cgroup: Some("/user.slice".to_owned()),
        },
        treatment: Treatment { manner: Manner { view: View::Lasting, gives_way: true }, ..Treatment::default() },
    };
    assert_eq!(config.policies, Policies::new(vec![first, second]));
    assert_eq!(config.differences(&Config::default()), ["policy"]);
    assert!(config.policies.ask_for_views());
    assert_eq!(config.policies.lasting_programs(), [ProgramName::new("ftp")]);
}

#[test]
fn policies_that_never_count_are_doubted() {
    let some = "[[policy]]\nremote_port = 25\nprotect = false\n";
    let all = "[[policy]]\nprotect = true\n";
    let doubts = |text: String| {
        let config = parse(Path::new("/etc/w.toml"), &text).expect("valid");
        config.doubts.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(doubts(format!("{some}{all}")), [""; 0]);
    assert_eq!(
        doubts(format!("{all}{some}{some}")),
        [
            "/etc/w.toml:1:1: this [[policy]] has no condition and means all connections, so those after it (lines 3, 6) \
          never count; put it last"
        ]
    );
}

#[test]
fn where_things_stand_is_known_for_what_fails_later() {
    let text = "event_log = 'a/b'\n[metrics]\nlisten = '127.0.0.1:9203'\n";
    let config = parse(Path::new("/etc/w.toml"), text).expect("valid");
    assert_eq!(config.event_log_at.map(|at| at.to_string()).as_deref(), Some("/etc/w.toml:1:13"));
    assert_eq!(config.metrics.listen_at.map(|at| at.to_string()).as_deref(), Some("/etc/w.toml:3:10"));
}

#[test]
fn complaints_about_policies_say_what_would_be_right() {
    for (text, right) in [
        ("[[policy]]\nprotext = false", "/etc/w.toml:2:1: unknown key `protext`; did you mean `protect`?"),
        (
            "[[policy]]\nremote_port = 25",
            "/etc/w.toml:1:1: this policy says nothing; it must have `protect`, `view` or `conflict`",
        ),
        ("[policy]\nprotect = false", "/etc/w.toml:1:1: `policy` must be written as [[policy]] sections, not a table"),
        ("[[policy]]\nprotect = 'no'", "/etc/w.toml:2:11: `protect` must be true or false, not a string"),
        (
            "[[policy]]\nprotect = true\nremote_port = '25-20'",
            "/etc/w.toml:3:15: `remote_port` goes from 25 down to 20; write \"20-25\"",
        ),
        (
            "[[policy]]\ntransport = 'sctp'",
            "/etc/w.toml:2:13: `transport` must be one of \"tcp\", \"udp\", not \"sctp\"",
        ),
        ("[[policy]]\nprogram = 'bin/ftp'", "/etc/w.toml:2:11: `program` must be the name of an executable"),
        (
            "[[policy]]\ncgroup = '/sys/fs/cgroup/system.slice'",
            "/etc/w.toml:2:10: `cgroup` must be a path below the root of cgroup v2, such as \
             \"/system.slice/vsftpd.service\", not `/sys/fs/cgroup/system.slice`",
        ),
        (
            "[[policy]]\nview = 'reel'",
            "/etc/w.toml:2:8: `view` must be one of \"virtual\", \"real\", \"lasting\", not \"reel\"; did",
        ),
        ("[[policy]]\nlocal_port = 21\nview = 'lasting'", "/etc/w.toml:3:8: `view` = \"lasting\" needs `program`"),
        (
            "[[policy]]\nprotect = false\nview = 'real'",
            "/etc/w.toml:3:8: `view` means nothing where `protect` is false",
        ),
        (
            "[[policy]]\nconflict = 'preempt'",
            "/etc/w.toml:2:12: `conflict` must be one of \"pre-empt\", \"abort\", not \"preempt\"; did you mean \"pre-empt\"?",
        ),
        ("[[policy]]\npeer = []", "/etc/w.toml:2:8: `peer` must name somebody"),
        ("[[policy]]\npeer = 'example.org'", "/etc/w.toml:2:8: `example.org` is neither a prefix nor a public key"),
    ] {
        let complaint = complaint(text);
        assert!(complaint.starts_with(right), "{complaint}");
    }
    for port in ["0", "65536", "true", "'a-b'", "'0-5'", "-1"] {
        let complaint = complaint(&format!("[[policy]]\nprotect = true\nlocal_port = {port}"));
        assert!(complaint.starts_with("/etc/w.toml:3:14: `local_port` must be a port such as 21"), "{complaint}");
    }
}

#[test]
fn a_name_server_is_told_under_a_key() {
    let dir = std::env::temp_dir().join(format!("whimbrel-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let secret = "m3zgYfEx6qFNBTAbUGDh3bWXPTF5KbuIjpBMB2k3uVw=";
    std::fs::write(dir.join("laptop.key"), format!("key \"k\" {{ algorithm hmac-sha256; secret \"{secret}\"; }};"))
        .unwrap();
    let read = |text: &str| parse(&dir.join("w.toml"), text).map_err(|error| error.to_string());
    let whole =
        "[dns]\nname = 'laptop.roam.test'\nzone = 'roam.test'\nserver = '192.0.2.53'\nkey_file = 'laptop.key'\n";
    let dns = read(whole).unwrap().dns.unwrap();
    assert_eq!((dns.server.port(), dns.ttl, dns.private), (53, 60, false));
    assert_eq!(read("[dns]\n"), Ok(Config::default()), "switched off");
    let missing = read(&whole.replace("zone =", "#")).unwrap_err();
    assert!(missing.contains("`[dns]` needs `zone` as well"), "{missing}");
    let elsewhere = read(&whole.replace("'roam.test'", "'room.test'")).unwrap_err();
    assert!(elsewhere.contains("w.toml:2:8: \"laptop.roam.test\" is not in the zone \"room.test\""), "{elsewhere}");
    assert!(
        read(&whole.replace("192.0.2.53", "ns.test")).unwrap_err().contains("w.toml:4:10: `server` must be an address")
    );
    assert!(read(&whole.replace("laptop.key", "lost.key")).unwrap_err().contains("lost.key cannot be read"));
    let lost = read(&whole.replace("laptop.key", "lost.key")).unwrap_err();
    assert!(lost.contains("w.toml:5:12: `dns.key_file` "), "{lost}");
    assert!(read(&format!("{whole}key_name = 'other'\n")).unwrap_err().contains("`key_name` is \"other\""));
    assert_eq!(read(whole).unwrap().differences(&Config::default()), ["dns"]);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_is_lent_is_read() {
    let key = PublicKey::from([7; 32]);
    let text = format!(
        "[anchor]\nports = '40000-40999'\nown = ['192.0.2.1']\naddresses = ['192.0.2.64/28', '2001:db8::/64']\nto = ['{key}']\n\
         leases = 3\nlifetime = 60\n"
    );
    let anchor = parse(Path::new("w.toml"), &text).expect("valid").anchor.expect("it lends");
    assert_eq!((anchor.ports, anchor.leases, anchor.lifetime.as_secs()), (vec![40_000..=40_999], 3, 60));
    assert_eq!((anchor.own.len(), anchor.addresses.len(), anchor.to), (1, 2, vec![key]));
    let several = parse(Path::new("w.toml"), "[anchor]\nports = ['50000-50127', 8080, '40000-40999']").expect("valid");
    let ports = several.anchor.expect("it lends").ports;
    assert_eq!(ports, [8080..=8080, 40_000..=40_999, 50_000..=50_127]);
    let adjoining =
        parse(Path::new("w.toml"), "[anchor]\nports = ['8100-8200', '8000-8099', 8201, 8203]").expect("valid");
    assert_eq!(adjoining.anchor.expect("it lends").ports, [8000..=8201, 8203..=8203]);
    for (text, right) in [
        ("lifetime = 60", "/etc/w.toml:1:1: `[anchor]` lends nothing: it needs `ports`"),
        ("ports = '0-4'", "/etc/w.toml:2:9: `ports` must be a port such as 21, or a range"),
        ("ports = '44999-40000'", "/etc/w.toml:2:9: `ports` goes from 44999 down to 40000; write \"40000-44999\""),
        ("addresses = ['192.0.2.64/33']", "is no prefix"),
        ("ports = '1024-2048'\nown = ['here']", "/etc/w.toml:3:8: `here` is no IP address"),
        ("ports = '1024-2048'\nto = ['me']", "`me` is no public key"),
        ("ports = '1024-2048'\nlifetime = 0", "`lifetime` must be a number from 1 to 86400"),
        // What cannot work, whatever the host is.
        ("ports = '40000-40126'", "/etc/w.toml:2:9: `ports` has no 128 ports in a row"),
        ("ports = ['40000-40099', '40101-40199']", "`ports` has no 128 ports in a row"),
        ("ports = []", "`[anchor]` lends nothing"),
        ("ports = ['40000-40999', '40999-41500']", "`ports` names port 40999 twice"),
        ("ports = ['40000-40999', true]", "/etc/w.toml:2:25: `ports` must be a port such as 21"),
        ("ports = '1024-2048'\nown = ['127.0.0.1']", "127.0.0.1 is a loopback address"),
        ("ports = '1024-2048'\nown = ['::']", ":: is the unspecified address"),
        ("ports = '1024-2048'\nown = ['fe80::1']", "fe80::1 is an address of one link alone"),
        ("ports = '1024-2048'\nown = ['192.0.2.1', '192.0.2.2']", "192.0.2.1 and 192.0.2.2 are two"),
        ("addresses = ['192.0.2.64/28']\nown = ['192.0.2.1']", "/etc/w.toml:3:7: `own` says of which addresses"),
        ("addresses = ['0.0.0.0/0']", "/etc/w.toml:2:14: 0.0.0.0/0 has the unspecified address in it"),
        ("addresses = ['::/0']", "::/0 has the unspecified address in it"),
        ("addresses = ['128.0.0.0/1']", "128.0.0.0/1 has an address of one link alone in it"),
        ("addresses = ['224.1.0.0/16']", "has a multicast address in it"),
        (
            "addresses = ['192.0.2.70/28']",
            "192.0.2.70/28 begins with 192.0.2.64: write \"192.0.2.64/28\" for all of it, or \"192.0.2.70\" for this address alone",
        ),
        ("addresses = ['2001:db8:5::6:1/112']", "write \"2001:db8:5::6:0/112\" for all of it"),
        ("addresses = ['192.0.2.64/28', '192.0.2.72/30']", "192.0.2.72/30 and 192.0.2.64/28 have addresses in common"),
    ] {
        let complaint = complaint(&format!("[anchor]\n{text}"));
        assert!(complaint.contains(right), "{complaint}");
    }
}

#[test]
fn what_is_preferred_comes_to_interfaces_that_are_there() {
    let config = parse(
        Path::new("w.toml"),
        "[[prefer]]\npeer = \"203.0.113.0/24\"\norder = [\"eth*\", \"wlan0\"]\nnever = \"wwan*\"\n\
         price = { \"w*\" = 3, \"wlan*\" = 2 }\ndelay = 200\nloss = 5\nsignal = -70\nrate = 100\n\n[[prefer]]\nnearest = true\n",
    )
    .expect("valid");
    let link = |index, name: &str| whimbrel_kernel::route::Link {
        index,
        name: name.into(),
        up: true,
        carrier: true,
        loopback: name == "lo",
        kind: String::new(),
        mtu: 1500,
        carrier_losses: 0,
        controller: None,
        below: None,
        beyond: None,
    };
    let names = ["lo", "wlan0", "eth1", "wwan0", "tun7"];
    let links = names.iter().zip(1..).map(|(name, index)| link(index, name)).collect();
    let network = whimbrel_kernel::network::NetworkState { links, ..Default::default() };
    let wishes = crate::role::links::wishes::wishes(&config.preferences, &network);
    let id = whimbrel_protocol::LinkId;
    assert_eq!((wishes[0].line, wishes[0].peers.len(), wishes[1].line, wishes[1].peers.len()), (1, 1, 11, 0));
    let rules = &wishes[0].rules;
    assert_eq!(rules.ranks, [(id(2), 1), (id(3), 0)].into());
    assert_eq!(rules.prices, [(id(2), 2), (id(4), 3)].into());
    assert_eq!(rules.never, [id(4)].into());
    assert_eq!((rules.delay_most, rules.lost_most), (Some(std::time::Duration::from_millis(200)), Some(50)));
    assert_eq!((rules.signal_least, rules.rate_least), (Some(-70), Some(100)));
    assert!(wishes[1].rules.nearest && !wishes[1].of_flows);
    for (text, says) in [
        ("[[prefer]]\n", "says nothing"),
        ("[[prefer]]\nprogram = \"rsync\"\n", "says nothing"),
        (
            "\n[[prefer]]\nnever = \"eth0\"\nprogram = \"a/b\"\n",
            "w.toml:4:11: `program` must be the name of an executable",
        ),
        ("[[prefer]]\nnever = \"eth0\"\nlocal_port = \"9-3\"\n", "w.toml:3:14: `local_port` goes from 9 down to 3"),
        (
            "carriers = [\"rewrite\"]\n[[prefer]]\nnever = \"eth0\"\nremote_port = 22\n",
            "w.toml:2:1: single connections go",
        ),
        ("[[prefer]]\norder = \"e*h\"\n", "is no name of an interface"),
        ("[[prefer]]\norder = 3\n", "`order` must be the name of an interface"),
        ("[[prefer]]\nprice = { \"\" = 1 }\n", "is no name of an interface"),
        ("[[prefer]]\ndelay = 0\n", "`delay` must be a number from 1 to 60000"),
        ("[[prefer]]\nsignal = 70\n", "`signal` must be a number of dBm from -120 to -1, such as -70"),
        ("[[prefer]]\nrate = \"fast\"\n", "`rate` must be a number from 1 to 1000000"),
        ("[prefer]\norder = \"eth0\"\n", "must be written as [[prefer]] sections"),
        ("[[prefer]]\nduplicate = true\n", "`duplicate` needs a condition that says which connections"),
        (
            "[[prefer]]\npeer = \"203.0.113.0/24\"\nduplicate = true\norder = \"eth0\"\n",
            "w.toml:3:13: what goes by two networks at once costs twice",
        ),
        ("[[prefer]]\nlocal_port = 1\nduplicate = 1\n", "`duplicate` must be"),
    ] {
        let error = parse(Path::new("w.toml"), text).expect_err("wrong").to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn sections_about_networks_mean_connections_by_the_conditions_of_policies() {
    let text = "[[prefer]]\nprogram = \"rsync\"\npeer = [\"203.0.113.0/24\"]\norder = \"wlan0\"\n\n\
                [[prefer]]\nremote_port = \"5060-5061\"\ntransport = \"udp\"\norder = \"eth0\"\n\n\
                [[prefer]]\npeer = \"203.0.113.0/24\"\nnever = \"wlan0\"\n\n\
                [[prefer]]\nlocal_port = 22\ncgroup = \"/system.slice/\"\nnearest = true\nduplicate = true\n";
    let config = parse(Path::new("w.toml"), text).expect("valid");
    let wishes = crate::role::links::wishes::wishes(&config.preferences, &Default::default());
    let of: Vec<_> = wishes.iter().map(|wish| (wish.line, wish.of_flows, wish.peers.len())).collect();
    assert_eq!(of, [(1, true, 1), (6, true, 0), (11, false, 1), (15, true, 0)]);
    assert_eq!(wishes.iter().map(|wish| wish.duplicate).collect::<Vec<_>>(), [false, false, false, true]);
    // As the local API is told them they come to the same.
    for preference in &config.preferences {
        let written = serde_json::to_string(&preference.written()).expect("JSON");
        let read = Preference::read(serde_json::from_str(&written).expect("JSON")).expect("as it was written");
        assert_eq!(read, *preference, "{written}");
    }
    let conditions = crate::role::links::wishes::conditions(&config.preferences);
    let flow = |transport, local, remote| whimbrel_wire::FlowTuple {
        transport,
        local: std::net::SocketAddr::new([192, 0, 2, 1].into(), local),
        remote: std::net::SocketAddr::new([198, 51, 100, 9].into(), remote),
    };
    let holder = |name: &str, cgroup: &str| crate::policy::Holder {
        pid: 7,
        name: name.into(),
        executable: Default::default(),
        cgroup: cgroup.into(),
        uid: None,
    };
    let call = flow(Transport::Udp, 40_000, 5061);
    assert_eq!(conditions.met(&call, &[]), [6]);
    // What is said of the peer is the node's to find out.
    assert_eq!(conditions.met(&call, &[holder("rsync", "/")]), [1, 6]);
    let shell = flow(Transport::Tcp, 22, 50_000);
    assert_eq!(conditions.met(&shell, &[]), [0; 0]);
    assert_eq!(conditions.met(&shell, &[holder("sshd", "/system.slice/ssh.service")]), [15]);
    assert!(conditions.asks_for_holders(&call) && conditions.asks_for_holders(&shell));
    assert!(config.doubts.is_empty());
    let all =
        parse(Path::new("w.toml"), "[[prefer]]\nnever = \"eth0\"\n\n[[prefer]]\nlocal_port = 1\nnearest = true\n");
    let doubts = all.expect("valid").doubts;
    assert!(doubts.len() == 1 && doubts[0].to_string().contains("means all connections"), "{doubts:?}");
}
