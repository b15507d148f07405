//! Compares the Rust mirror of `bpf/abi.h` with what clang made of it, by the BTF of `bpf/layout.bpf.c`.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{Enum, Struct};
use libbpf_rs::btf::{Btf, BtfType, HasSize};

use crate::abi::{
    CONFLICT_GIVES_WAY, CONFLICT_NATIVE, COUNTERS, Carrier, EVENT_ACKNOWLEDGED, EVENT_CLAIMED, EVENT_DATAGRAM_SENT,
    EVENT_FLOW_CLOSED, EVENT_FLOW_OPENED, EVENT_FLOW_OPENING, EVENT_FLOW_STALLED, EVENT_GREETED, EVENT_HEARD_NATIVELY,
    EVENT_INTRODUCTION, EVENT_OVERDUE, EVENT_STILL_THERE, FITTED_CHANGED, FITTED_WAITING, GREETED_FAR, GREETED_NEAR,
    HELD_BACK, HELD_BEYOND, HELD_HIDDEN, HELD_LATE, HELD_TUNNELLED, HELD_UNCONNECTED, HelpedPhase, IDLE_DATAGRAMS,
    IDLE_ENDPOINTS, IDLE_FORWARDED, IDLE_HELPED, IDLE_INTRODUCTIONS, IDLE_KEPT, IDLE_LAPSES, IDLE_LISTENING,
    IDLE_TRAFFIC, IDLE_TRANSLATION, IDLE_UNCONNECTED, IDLE_VACATED, ORIGIN_ACCEPTED, ORIGIN_CONNECTED, RawAddress,
    RawAlias, RawBinding, RawEndpoint, RawEvent, RawFlowEntry, RawHelpedFlow, RawHome, RawLent, RawLentKey, RawLocator,
    RawLocatorPair, RawPath, RawPorts, RawPosition, RawResumption, RawSent, RawSettings, RawShare, RawSocket,
    RawTraffic, RawTuple, RawWanted, RawWireFlow, UNKNOWN_DROPPED, UNKNOWN_ROUTED, UNKNOWN_TUNNELLED,
};

const OBJECT: &str = concat!(env!("OUT_DIR"), "/layout.bpf.o");

fn btf() -> Btf<'static> {
    Btf::from_path(OBJECT).expect("the object has BTF")
}

fn layout(btf: &Btf<'_>, name: &str) -> (Vec<(String, usize, usize)>, usize) {
    let found = btf.type_by_name::<Struct<'_>>(name).unwrap_or_else(|| panic!("no struct {name}"));
    let fields = found.iter().map(|member| {
        let libbpf_rs::btf::types::MemberAttr::Normal { offset } = member.attr else {
            panic!("{name} has a bit field");
        };
        let field: BtfType<'_> = btf.type_by_id(member.ty).expect("member has a type");
        let field = field.skip_mods_and_typedefs();
        (
            member.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            offset as usize / 8,
            size(btf, field),
        )
    });
    (fields.collect(), found.size())
}

fn size(btf: &Btf<'_>, ty: BtfType<'_>) -> usize {
    if let Ok(array) = libbpf_rs::btf::types::Array::try_from(ty) {
        let element: BtfType<'_> = btf.type_by_id(array.ty()).expect("array has a type");
        return array.capacity() * size(btf, element.skip_mods_and_typedefs());
    }
    if let Ok(found) = Struct::try_from(ty) {
        return found.size();
    }
    libbpf_rs::btf::types::Int::try_from(ty).map(|int| usize::from(int.bits) / 8).expect("integer, struct or array")
}

macro_rules! assert_layout {
    ($btf:expr, $($c:literal => $rust:ty),* $(,)?) => {
        $({
            let (fields, size) = layout($btf, $c);
            let ours: Vec<_> = <$rust>::LAYOUT.iter().map(|(name, at, size)| (name.to_string(), *at, *size)).collect();
            assert_eq!(fields, ours, "fields of struct {}", $c);
            assert_eq!(size, size_of::<$rust>(), "size of struct {}", $c);
        })*
    };
}

#[test]
fn structs_are_laid_out_as_in_c() {
    assert_layout!(&btf(),
        "alias" => RawAlias,
        "ports" => RawPorts,
        "lent_key" => RawLentKey,
        "lent" => RawLent,
        "endpoint" => RawEndpoint,
        "address" => RawAddress,
        "flow_tuple" => RawTuple,
        "flow_entry" => RawFlowEntry,
        "helped_flow" => RawHelpedFlow,
        "wire_flow" => RawWireFlow,
        "binding" => RawBinding,
        "locator_pair" => RawLocatorPair,
        "locator" => RawLocator,
        "path" => RawPath,
        "home" => RawHome,
        "traffic" => RawTraffic,
        "settings" => RawSettings,
        "event" => RawEvent,
        "share" => RawShare,
        "sent" => RawSent,
        "socket_position" => RawPosition,
        "socket_record" => RawSocket,
        "resumption" => RawResumption,
        "sockets_wanted" => RawWanted,
    );
}

fn constants(btf: &Btf<'_>, name: &str) -> Vec<(String, i64)> {
    let found = btf.type_by_name::<Enum<'_>>(name).unwrap_or_else(|| panic!("no enum {name}"));
    found
        .iter()
        .map(|member| (member.name.unwrap_or(OsStr::new("")).to_string_lossy().into_owned(), member.value))
        .collect()
}

#[test]
fn counters_are_named_in_order() {
    let names: Vec<_> = (0..)
        .zip(COUNTERS)
        .map(|(value, name)| (format!("COUNTER_{}", name.to_uppercase()), value))
        .chain([("COUNTER_MAX".to_owned(), COUNTERS.len() as i64)])
        .collect();
    assert_eq!(constants(&btf(), "counter"), names);
}

#[test]
fn constants_are_those_of_c() {
    let named =
        |names: &[(&str, i64)]| -> Vec<_> { names.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() };
    let btf = btf();
    let kinds = [
        ("EVENT_INTRODUCTION", EVENT_INTRODUCTION.into()),
        ("EVENT_FLOW_OPENED", EVENT_FLOW_OPENED.into()),
        ("EVENT_FLOW_CLOSED", EVENT_FLOW_CLOSED.into()),
        ("EVENT_HEARD_NATIVELY", EVENT_HEARD_NATIVELY.into()),
        ("EVENT_FLOW_STALLED", EVENT_FLOW_STALLED.into()),
        ("EVENT_ACKNOWLEDGED", EVENT_ACKNOWLEDGED.into()),
        ("EVENT_CLAIMED", EVENT_CLAIMED.into()),
        ("EVENT_FLOW_OPENING", EVENT_FLOW_OPENING.into()),
        ("EVENT_DATAGRAM_SENT", EVENT_DATAGRAM_SENT.into()),
        ("EVENT_STILL_THERE", EVENT_STILL_THERE.into()),
        ("EVENT_OVERDUE", EVENT_OVERDUE.into()),
        ("EVENT_GREETED", EVENT_GREETED.into()),
    ];
    assert_eq!(constants(&btf, "event_kind"), named(&kinds));
    let greeted = [("GREETED_NEAR", GREETED_NEAR.into()), ("GREETED_FAR", GREETED_FAR.into())];
    assert_eq!(constants(&btf, "greeted_end"), named(&greeted));
    let fitted = [("FITTED_CHANGED", FITTED_CHANGED.into()), ("FITTED_WAITING", FITTED_WAITING.into())];
    assert_eq!(constants(&btf, "fitted"), named(&fitted));
    let unknown = [
        ("UNKNOWN_DROPPED", UNKNOWN_DROPPED.into()),
        ("UNKNOWN_ROUTED", UNKNOWN_ROUTED.into()),
        ("UNKNOWN_TUNNELLED", UNKNOWN_TUNNELLED.into()),
    ];
    assert_eq!(constants(&btf, "unknown"), named(&unknown));
    let idle = [
        ("IDLE_TRANSLATION", IDLE_TRANSLATION.into()),
        ("IDLE_INTRODUCTIONS", IDLE_INTRODUCTIONS.into()),
        ("IDLE_VACATED", IDLE_VACATED.into()),
        ("IDLE_LISTENING", IDLE_LISTENING.into()),
        ("IDLE_LAPSES", IDLE_LAPSES.into()),
        ("IDLE_HELPED", IDLE_HELPED.into()),
        ("IDLE_KEPT", IDLE_KEPT.into()),
        ("IDLE_ENDPOINTS", IDLE_ENDPOINTS.into()),
        ("IDLE_FORWARDED", IDLE_FORWARDED.into()),
        ("IDLE_UNCONNECTED", IDLE_UNCONNECTED.into()),
        ("IDLE_DATAGRAMS", IDLE_DATAGRAMS.into()),
        ("IDLE_TRAFFIC", IDLE_TRAFFIC.into()),
    ];
    assert_eq!(constants(&btf, "idle"), named(&idle));
    let origins = [
        ("ORIGIN_UNKNOWN", 0),
        ("ORIGIN_CONNECTED", ORIGIN_CONNECTED.into()),
        ("ORIGIN_ACCEPTED", ORIGIN_ACCEPTED.into()),
    ];
    assert_eq!(constants(&btf, "event_origin"), named(&origins));
    let held = [
        ("HELD_BACK", HELD_BACK.into()),
        ("HELD_TUNNELLED", HELD_TUNNELLED.into()),
        ("HELD_HIDDEN", HELD_HIDDEN.into()),
        ("HELD_BEYOND", HELD_BEYOND.into()),
        ("HELD_LATE", HELD_LATE.into()),
        ("HELD_UNCONNECTED", HELD_UNCONNECTED.into()),
    ];
    assert_eq!(constants(&btf, "held"), named(&held));
    let conflicts = [
        ("CONFLICT_GIVES_WAY", CONFLICT_GIVES_WAY.into()),
        ("CONFLICT_REPORTED", 2),
        ("CONFLICT_NATIVE", CONFLICT_NATIVE.into()),
        ("CONFLICT_STILL_THERE", 8),
    ];
    assert_eq!(constants(&btf, "conflict"), named(&conflicts));
    let phases = [
        ("HELPED_KEPT", HelpedPhase::Kept as i64),
        ("HELPED_HELD", HelpedPhase::Held as i64),
        ("HELPED_DELIVERED", HelpedPhase::Delivered as i64),
        ("HELPED_OVER", HelpedPhase::Over as i64),
        ("HELPED_RESTS", HelpedPhase::Rests as i64),
    ];
    assert_eq!(constants(&btf, "helped"), named(&phases));
    let carriers = [
        ("CARRIER_NATIVE", Carrier::Native as i64),
        ("CARRIER_REWRITE", Carrier::Rewrite as i64),
        ("CARRIER_TUNNEL", Carrier::Tunnel as i64),
        ("CARRIER_HOLD", Carrier::Hold as i64),
        ("CARRIER_FOLLOW", Carrier::Follow as i64),
        ("CARRIER_LISTEN", Carrier::Listen as i64),
    ];
    assert_eq!(constants(&btf, "carrier"), named(&carriers));
}
