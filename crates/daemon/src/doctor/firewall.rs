//! Whether this host's own firewall lets control datagrams in and out.
//!
//! Reads what `nft --json list ruleset` prints and follows a datagram of the control port through the base chains.
//! Where a rule looks at something that is not known beforehand, the answer is "maybe": better to ask for a look than
//! to promise.

use std::io;
use std::net::{IpAddr, UdpSocket};

use serde_json::Value;

/// What becomes of a control datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing stops it.
    Passes,
    /// It depends on something that is not known beforehand.
    Maybe(Obstacle),
    /// It is dropped.
    Dropped(Obstacle),
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// The rule or policy, for people.
    pub(super) place: String,
    /// The commands that let the datagram pass, one for each base chain that may drop it.
    pub(super) mend: String,
}

/// The way of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To this host, from one that it has not asked.
    In,
    /// To this host, from one that it has asked.
    Answer,
    /// To another one.
    Out,
}

impl Direction {
    /// The hooks that it passes (`enum nf_inet_hooks`, uapi/linux/netfilter.h). Those of single interfaces (`ingress`,
    /// `egress`) stop nothing for certain, as there may be others.
    fn hooks(self) -> &'static [&'static str] {
        match self {
            Self::In | Self::Answer => &["ingress", "prerouting", "input"],
            Self::Out => &["output", "postrouting", "egress"],
        }
    }

    /// What conntrack calls the state of it.
    fn state(self) -> &'static str {
        match self {
            Self::In | Self::Out => "new",
            Self::Answer => "established",
        }
    }
}

/// What is asked about: both ends of it have the control port.
#[derive(Clone, Copy)]
struct Datagram {
    port: u16,
    state: &'static str,
}

/// What becomes of a UDP datagram to `port` on its way.
pub(super) fn fate(ruleset: &Value, direction: Direction, port: u16) -> Fate {
    let Some(objects) = ruleset.get("nftables").and_then(Value::as_array) else { return Fate::Passes };
    let ruleset = Ruleset { objects };
    // Where it certainly is dropped comes before where it may be. A datagram has to pass all chains of a hook.
    let (mut drops, mut maybes) = (Vec::new(), Vec::new());
    let of_packets = |chain: &&Value| {
        direction.hooks().contains(&text(chain, "hook")) && matches!(text(chain, "type"), "filter" | "route")
    };
    for chain in ruleset.chains().filter(of_packets) {
        if !matches!(text(chain, "family"), "ip" | "ip6" | "inet" | "netdev") {
            continue;
        }
        let place = place(chain);
        let device = matches!(text(chain, "hook"), "ingress" | "egress");
        let policy_drops = text(chain, "policy") == "drop";
        match ruleset.walk(chain, Datagram { port, state: direction.state() }, 0) {
            Walk::Accepted => {}
            Walk::Dropped(place) if device => maybes.push((place, opening(chain, port))),
            Walk::Dropped(place) => drops.push((place, opening(chain, port))),
            Walk::Fell { unsure: Some(unsure), .. } => maybes.push((unsure, opening(chain, port))),
            Walk::Fell { accepted_maybe: true, .. } if policy_drops => maybes.push((place, opening(chain, port))),
            Walk::Fell { .. } if policy_drops && device => maybes.push((place, opening(chain, port))),
            Walk::Fell { .. } if policy_drops => drops.push((format!("the policy of {place}"), opening(chain, port))),
            Walk::Fell { .. } => {}
        }
    }
    let dropped = !drops.is_empty();
    let (places, commands): (Vec<_>, Vec<_>) = drops.into_iter().chain(maybes).unzip();
    let Some(place) = places.into_iter().next() else { return Fate::Passes };
    let obstacle = Obstacle { place, mend: commands.join(" and ") };
    if dropped { Fate::Dropped(obstacle) } else { Fate::Maybe(obstacle) }
}

/// The command that lets the datagram pass a base chain, whatever its rules say.
fn opening(chain: &Value, port: u16) -> String {
    let [family, table, name] = ["family", "table", "name"].map(|key| text(chain, key));
    format!("`nft insert rule {family} {table} {name} udp dport {port} accept`")
}

struct Ruleset<'a> {
    objects: &'a [Value],
}

/// How a walk through a chain ended.
enum Walk {
    Accepted,
    Dropped(String),
    /// At its end; a rule may have accepted, or dropped at `unsure`, what is not known.
    Fell {
        accepted_maybe: bool,
        unsure: Option<String>,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Match {
    Yes,
    No,
    Unknown,
}

impl<'a> Ruleset<'a> {
    fn chains(&self) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter_map(|object| object.get("chain"))
    }

    fn walk(&self, chain: &Value, datagram: Datagram, depth: usize) -> Walk {
        let (mut accepted_maybe, mut unsure) = (false, None);
        let rules = self.objects.iter().filter_map(|object| object.get("rule")).filter(|rule| {
            text(rule, "family") == text(chain, "family")
                && text(rule, "table") == text(chain, "table")
                && text(rule, "chain") == text(chain, "name")
        });
        for rule in rules {
            let mut matched = Match::Yes;
            for statement in rule.get("expr").and_then(Value::as_array).into_iter().flatten() {
                let before = matched;
                if let Some(test) = statement.get("match") {
                    matched = match (matched, matches(test, datagram)) {
                        (Match::No, _) | (_, Match::No) => Match::No,
                        (Match::Unknown, _) | (_, Match::Unknown) => Match::Unknown,
                        _ => Match::Yes,
                    };
                } else if matched == Match::Yes
                    && ["xt", "limit", "ct count", "vmap"].iter().any(|kind| statement.get(kind).is_some())
                {
                    matched = Match::Unknown;
                }
                if matched == Match::No {
                    break;
                }
                let mapped = statement.get("vmap").and_then(|map| verdict_of(map, datagram.state));
                let statement = match mapped {
                    Some(verdict) => {
                        matched = before;
                        verdict
                    }
                    None => statement,
                };
                if statement.get("accept").is_some() {
                    if matched == Match::Yes {
                        // What may have been dropped before stays so.
                        return match unsure {
                            None => Walk::Accepted,
                            unsure => Walk::Fell { accepted_maybe: true, unsure },
                        };
                    }
                    accepted_maybe = true;
                } else if statement.get("drop").is_some() || statement.get("reject").is_some() {
                    let place = format!("a rule of {}", place(chain));
                    match matched {
                        Match::Yes if !accepted_maybe => return Walk::Dropped(place),
                        _ => unsure = unsure.or(Some(place)),
                    }
                } else if let Some(target) = statement.get("jump").or_else(|| statement.get("goto")) {
                    let called = self.chains().find(|candidate| {
                        text(candidate, "family") == text(chain, "family")
                            && text(candidate, "table") == text(chain, "table")
                            && text(candidate, "name") == text(target, "target")
                    });
                    // The kernel allows 16 jumps; a loop cannot be loaded.
                    let Some(called) = called.filter(|_| depth < 16) else { continue };
                    match (self.walk(called, datagram, depth + 1), matched) {
                        (Walk::Accepted, Match::Yes) if unsure.is_none() => return Walk::Accepted,
                        (Walk::Dropped(place), Match::Yes) if !accepted_maybe => return Walk::Dropped(place),
                        (Walk::Accepted, _) => accepted_maybe = true,
                        (Walk::Dropped(place), _) => unsure = unsure.or(Some(place)),
                        (Walk::Fell { accepted_maybe: maybe, unsure: place }, _) => {
                            accepted_maybe |= maybe;
                            unsure = unsure.or(place);
                        }
                    }
                }
            }
        }
        Walk::Fell { accepted_maybe, unsure }
    }
}

/// Whether the datagram passes one test.
fn matches(test: &Value, datagram: Datagram) -> Match {
    let (left, right) = (&test["left"], &test["right"]);
    let op = text(test, "op");
    let holds = if let Some(payload) = left.get("payload") {
        match (text(payload, "protocol"), text(payload, "field")) {
            ("udp" | "th", "dport") => among(right, &Value::from(datagram.port)),
            ("tcp" | "icmp" | "icmpv6" | "sctp" | "esp" | "ah", _) => Some(false),
            ("ip" | "ip6", "protocol" | "nexthdr") => among(right, &Value::from("udp")),
            // Container engines drop what comes from outside for their containers' addresses.
            ("ip" | "ip6", "daddr") => right.as_str().and_then(|text| text.parse().ok()).and_then(not_ours),
            _ => None,
        }
    } else if let Some(meta) = left.get("meta") {
        match text(meta, "key") {
            "l4proto" => among(right, &Value::from("udp")).or_else(|| among(right, &Value::from(17))),
            // The question is about other hosts.
            "iif" | "iifname" | "oif" | "oifname" if right.as_str() == Some("lo") => Some(false),
            _ => None,
        }
    } else if let Some(ct) = left.get("ct") {
        match text(ct, "key") {
            "state" => among(right, &Value::from(datagram.state)),
            _ => None,
        }
    } else if let Some(fib) = left.get("fib") {
        match (text(fib, "result"), right) {
            // A reverse path filter asks whether there is no way back; who is answered has one.
            ("oif" | "oifname", Value::Bool(found)) => Some(*found),
            _ => None,
        }
    } else {
        None
    };
    match holds {
        None => Match::Unknown,
        Some(holds) if holds == (op != "!=") => Match::Yes,
        Some(_) => Match::No,
    }
}

/// The verdict of a map of conntrack's states (`ct state vmap { established : accept }`), where it has one for this.
fn verdict_of<'a>(map: &'a Value, state: &str) -> Option<&'a Value> {
    if map["key"]["ct"]["key"] != "state" {
        return None;
    }
    let entries = map["data"]["set"].as_array().or_else(|| map["data"].as_array())?;
    let of_state = |entry: &&Value| among(&entry[0], &Value::from(state)) == Some(true);
    entries.iter().find(of_state).map(|entry| &entry[1])
}

/// `Some(false)` where an address is certainly not one of this host's.
fn not_ours(address: IpAddr) -> Option<bool> {
    let bound = UdpSocket::bind((address, 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable).then_some(false)
}

/// Whether `value` is the right side of a test, or in its set, list or range.
fn among(right: &Value, value: &Value) -> Option<bool> {
    if let Some(elements) = right.as_array().or_else(|| right.get("set").and_then(Value::as_array)) {
        let mut unknown = false;
        for element in elements {
            match among(element, value) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => unknown = true,
            }
        }
        return (!unknown).then_some(false);
    }
    if let Some(range) = right.get("range").and_then(Value::as_array) {
        let [low, high] = [range.first()?.as_u64()?, range.get(1)?.as_u64()?];
        return Some((low..=high).contains(&value.as_u64()?));
    }
    match (right, value) {
        // A named set ("@blocked") is not looked into.
        (Value::String(name), _) if name.starts_with('@') => None,
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) => Some(right == value),
        _ => None,
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or("")
}

fn place(chain: &Value) -> String {
    format!("chain {} of table {} {}", text(chain, "name"), text(chain, "family"), text(chain, "table"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chain(policy: &str) -> Value {
        json!({"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input",
            "prio": 0, "policy": policy}})
    }

    fn rule(expr: Value) -> Value {
        json!({"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": expr}})
    }

    fn dport(right: Value) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": right}})
    }

    fn fate_of(objects: Vec<Value>) -> Fate {
        fate(&json!({ "nftables": objects }), Direction::In, 2031)
    }

    /// A rule in a chain of its own at a hook.
    fn at(family: &str, hook: &str, prio: i32, expr: Value) -> Vec<Value> {
        vec![
            json!({"chain": {"family": family, "table": "t", "name": "c", "type": "filter", "hook": hook, "prio": prio,
                "policy": "accept"}}),
            json!({"rule": {"family": family, "table": "t", "chain": "c", "expr": expr}}),
        ]
    }

    #[test]
    fn a_datagram_passes_more_hooks_than_one() {
        let drop = json!([dport(json!(2031)), {"drop": null}]);
        for prio in [-300, -150] {
            assert!(matches!(fate_of(at("inet", "prerouting", prio, drop.clone())), Fate::Dropped(obstacle)
                if obstacle.mend == "`nft insert rule inet t c udp dport 2031 accept`"));
        }
        let out = json!({ "nftables": at("ip", "postrouting", 0, drop.clone()) });
        assert!(matches!(fate(&out, Direction::Out, 2031), Fate::Dropped(_)));
        assert_eq!(fate(&out, Direction::In, 2031), Fate::Passes);
        assert!(matches!(fate_of(at("netdev", "ingress", 0, drop)), Fate::Maybe(_)));
    }

    #[test]
    fn what_others_put_there_stops_no_datagram() {
        let fib = |found: bool| {
            json!([{"match": {"op": "==", "left": {"fib": {"result": "oif",
            "flags": ["saddr", "mark", "iif"]}}, "right": found}}, {"drop": null}])
        };
        assert_eq!(fate_of(at("inet", "prerouting", -290, fib(false))), Fate::Passes);
        let elsewhere = json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
            "right": "203.0.113.2"}}, {"drop": null}]);
        assert_eq!(fate_of(at("ip", "prerouting", -300, elsewhere)), Fate::Passes);
    }

    #[test]
    fn without_rules_it_passes() {
        assert_eq!(fate_of(vec![]), Fate::Passes);
        assert_eq!(fate_of(vec![chain("accept")]), Fate::Passes);
    }

    #[test]
    fn a_policy_of_drop_needs_a_rule() {
        let established =
            json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
        let closed = vec![chain("drop"), rule(json!([established, {"accept": null}]))];
        assert!(matches!(fate_of(closed.clone()), Fate::Dropped(obstacle) if obstacle.place.contains("policy")));
        // Who was asked may answer.
        assert_eq!(fate(&json!({ "nftables": closed }), Direction::Answer, 2031), Fate::Passes);
        let map = json!({"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [
            ["established", {"accept": null}], ["related", {"accept": null}], ["invalid", {"drop": null}]]}}});
        let mapped = json!({ "nftables": [chain("drop"), rule(json!([map]))] });
        assert_eq!(fate(&mapped, Direction::Answer, 2031), Fate::Passes);
        assert!(matches!(fate(&mapped, Direction::In, 2031), Fate::Dropped(_)));
        let wall = json!({ "nftables": [chain("drop")] });
        assert!(matches!(fate(&wall, Direction::Answer, 2031), Fate::Dropped(_)));
        for right in [json!(2031), json!({"set": [53, 2031]}), json!({"set": [{"range": [2000, 2100]}]})] {
            let mut open = closed.clone();
            open.push(rule(json!([dport(right), {"accept": null}])));
            assert_eq!(fate_of(open), Fate::Passes);
        }
    }

    #[test]
    fn a_rule_may_drop_what_the_policy_lets_in() {
        let rules = vec![chain("accept"), rule(json!([dport(json!(2031)), {"drop": null}]))];
        assert!(matches!(fate_of(rules), Fate::Dropped(_)));
        let rules = vec![chain("accept"), rule(json!([dport(json!(53)), {"drop": null}]))];
        assert_eq!(fate_of(rules), Fate::Passes);
    }

    #[test]
    fn the_remedy_opens_every_chain_that_is_in_the_way() {
        let mut rules = vec![chain("drop"), rule(json!([dport(json!(2031)), {"drop": null}]))];
        rules.push(
            json!({"chain": {"family": "ip", "table": "other", "name": "INPUT", "type": "filter", "hook": "input",
            "prio": 0, "policy": "drop"}}),
        );
        let Fate::Dropped(obstacle) = fate_of(rules) else { panic!("passes") };
        assert_eq!(
            obstacle.mend,
            "`nft insert rule inet filter input udp dport 2031 accept` and `nft insert rule ip other INPUT udp dport 2031 accept`"
        );
    }

    #[test]
    fn what_is_not_known_is_a_maybe() {
        let source = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "192.0.2.1"}});
        let rules = vec![chain("drop"), rule(json!([source, {"accept": null}]))];
        assert!(matches!(fate_of(rules), Fate::Maybe(_)));
        let rules = vec![chain("accept"), rule(json!([source, {"drop": null}]))];
        assert!(matches!(fate_of(rules), Fate::Maybe(_)));
    }

    #[test]
    fn jumps_are_followed() {
        let called = json!({"chain": {"family": "inet", "table": "filter", "name": "services"}});
        let inner = json!({"rule": {"family": "inet", "table": "filter", "chain": "services",
            "expr": [dport(json!(2031)), {"accept": null}]}});
        let rules = vec![chain("drop"), called, inner, rule(json!([{"jump": {"target": "services"}}]))];
        assert_eq!(fate_of(rules), Fate::Passes);
    }
}
