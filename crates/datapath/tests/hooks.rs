//! Programs on devices come, go, and are taken over.

mod support;

use std::process::Command;

use support::{Bpffs, Namespace, index, is_root, tun};
use whimbrel_datapath::{Binding, Carrier, Datapath, Features, HelpedFlow, HelpedPhase, LocatorPair, Role, features};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(7));
fn pins(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("the directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.retain(|name| name.contains('-'));
    names.sort();
    names
}

fn takes_over(tcx: bool) {
    if !is_root() {
        return;
    }
    let bpffs = Bpffs::new();
    let namespace = Namespace::new();
    namespace.enter();
    let directory = bpffs.pins("hooks");
    namespace.run("ip link add va type veth peer name vb");
    namespace.run("ip link add vc type veth peer name vd");
    let _tun = tun("t");
    let [a, c, t] = ["va", "vc", "t"].map(index);

    let mut datapath = Datapath::open(&directory).expect("open");
    if !tcx {
        datapath.avoid_tcx();
    }
    assert_eq!(datapath.attached(), []);
    datapath.attach(a, Role::IntroductionsOnly).expect("attach");
    datapath.attach(a, Role::IntroductionsOnly).expect("attach again");
    assert_eq!(pins(&directory).len(), 1);
    datapath.attach(a, Role::Wire).expect("attach");
    datapath.attach(c, Role::Wire).expect("attach");
    datapath.attach(t, Role::Tunnel).expect("attach");
    assert_eq!(pins(&directory).len(), 6);
    datapath.attach(9999, Role::Wire).expect_err("there is no such interface");
    let local = "10.0.0.1".parse().expect("address");
    let peer = "10.0.0.2".parse().expect("address");
    let binding = Binding {
        local_place: 1,
        peer_place: 2,
        carrier: Carrier::Tunnel,
        local,
        peer,
        interface: a,
        arrival: a,
        mtu: 0,
        allowance: Some(5),
        parked: true,
        names_kept: false,
        accepted: vec![LocatorPair { local, peer }],
    };
    datapath.set_binding(BINDING, &binding).expect("bind");
    drop(datapath);

    // One device goes while nobody looks.
    namespace.run("ip link del vc");
    let mut datapath = Datapath::open(&directory).expect("open again");
    let mut attached = datapath.attached();
    attached.sort_by_key(|(interface, _)| *interface);
    assert_eq!(attached, [(a, Role::Wire), (t, Role::Tunnel)]);
    assert_eq!(pins(&directory).len(), 4);
    assert_eq!(datapath.bindings().expect("bindings"), [(BINDING, binding.clone())]);
    // Another goes while we hold it.
    namespace.run("ip link del va");
    datapath.detach(a).expect("detach what is gone");
    datapath.detach(t).expect("detach");
    datapath.detach(t).expect("detach again");
    assert_eq!((datapath.attached(), pins(&directory)), (vec![], vec![]));
    datapath.remove_binding(BINDING).expect("remove");
    assert_eq!(datapath.bindings().expect("bindings"), []);
    datapath.attach(t, Role::Wire).expect("attach");
    datapath.unload().expect("unload");
    assert!(!directory.exists());
}

#[test]
fn links_are_taken_over() {
    takes_over(true);
}

#[test]
fn filters_are_taken_over() {
    takes_over(false);
}

#[test]
fn pins_of_another_shape_are_replaced() {
    if !is_root() {
        return;
    }
    let bpffs = Bpffs::new();
    Namespace::new().enter();
    let directory = bpffs.pins("foreign");
    let datapath = Datapath::open(&directory).expect("open");
    drop(datapath);
    // A map of another shape under a name of ours, as another release may have left one (decision 0063).
    std::fs::remove_file(directory.join("settings")).expect("unpin");
    std::fs::rename(directory.join("locators"), directory.join("settings")).expect("rename");
    let mut datapath = Datapath::open(&directory).expect("it begins with maps of its own");
    assert!(datapath.others_work(), "what is there is another release's");
    // It dies with its maps half filled: who comes next begins anew.
    let ends = ["10.0.0.1:1", "10.0.0.2:2"].map(|end| end.parse().expect("an end"));
    let flow = FlowTuple { transport: Transport::Tcp, local: ends[0], remote: ends[1] };
    let rests = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };
    datapath.set_helped(&flow, &rests).expect("set");
    drop(datapath);
    datapath = Datapath::open(&directory).expect("open again");
    assert!(datapath.others_work(), "the programs are still another release's");
    assert_eq!(datapath.helped().expect("list"), []);
    datapath.take_over().expect("take over");
    assert!(!datapath.others_work());
    drop(datapath);
    datapath = Datapath::open(&directory).expect("open once more");
    assert!(!datapath.others_work());
    datapath.unload().expect("unload");
    assert!(!directory.exists());
}

#[test]
fn features_are_found() {
    if !is_root() {
        return;
    }
    let found = features();
    let Features { ring_buffer, redirect_neigh, datapath, tcx, clsact, .. } = found;
    assert!(ring_buffer && redirect_neigh && datapath, "{found:?}");
    assert!(tcx || clsact == Some(true), "{found:?}");
    println!("{found:?}");
}

#[test]
fn trying_clsact_leaves_nothing() {
    if !is_root() {
        return;
    }
    let namespace = Namespace::new();
    namespace.enter();
    assert!(features().clsact.is_some());
    let there = Command::new("tc").args(["qdisc", "show", "dev", "lo"]).output().expect("tc");
    let there = String::from_utf8_lossy(&there.stdout).into_owned();
    assert!(there.contains("qdisc") && !there.contains("clsact"), "{there}");
}
