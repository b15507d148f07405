use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    Carrier, FlowName, KnownPlace, LeaseName, LocalEnd, Manner, MoveName, Places, Request, SavedAcceptance,
    SavedDonation, SavedHeld, SavedLease, SavedTenancy, Ticket, View, Waits,
};
use whimbrel_wire::Transport;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::snapshot::Family;

use super::*;
use crate::host::table::{SavedNamespace, has_flows};
use crate::role::gateway::table::keep_lasting;
use crate::role::relocation::table::resting_in;
use crate::store::remove;
use crate::store::tests::Folder;

pub(crate) fn peer(id: u32) -> SavedPeer {
    SavedPeer {
        id: PeerId(id),
        key: key(u8::try_from(id).expect("small")),
        remote: "192.0.2.1:2031".parse().expect("address"),
        tcp_port: 443,
        source: Some("2001:db8::1".parse().expect("address")),
        locators: vec!["192.0.2.2".parse().expect("address")],
        former_locators: vec!["2001:db8::2".parse().expect("address")],
        sequence_sent: 7,
        sequence_accepted: 8,
        places: Places { local: 2, peer: 3 },
        carrier: Carrier::FollowRewrite,
        former: vec![("192.0.2.7".parse().expect("address"), "192.0.2.8".parse().expect("address"))],
        observed: Some("192.0.2.9:1024".parse().expect("endpoint")),
        absent: true,
        silent: true,
        life: 77,
        memory: 78,
        waiting: (5, 6),
        own_places: vec![(2, "192.0.2.7".parse().expect("address"))],
        // It has come to be seen under the endpoint that it claims, and is translated all the same.
        known_places: vec![KnownPlace {
            number: 3,
            claimed: "192.0.2.1:2031".parse().expect("endpoint"),
            observed: "192.0.2.1:2031".parse().expect("endpoint"),
            translated: true,
        }],
    }
}

pub(crate) fn flow(port: u16) -> FlowTuple {
    FlowTuple {
        transport: Transport::Tcp,
        local: SocketAddr::new("192.0.2.7".parse().expect("address"), port),
        remote: "192.0.2.1:22".parse().expect("address"),
    }
}

pub(crate) fn entry(peer: u32) -> FlowEntry {
    FlowEntry {
        side: 0,
        peer: PeerId(peer),
        name: 0x1234_5678_9abc_def0,
        home: Places { local: 1, peer: 1 },
        peer_tuple: flow(9).mirrored(),
        waits: Waits { here: true, there: false },
        manner: Manner { view: View::Lasting, gives_way: true },
        wire_local_port: 9,
        wire_remote_port: 22,
        end: LocalEnd::Endpoint,
        passed_on: true,
        hidden: true,
        beyond: true,
        late: false,
        unconnected: false,
        begun: false,
    }
}

fn key(byte: u8) -> PublicKey {
    PublicKey::from([byte; 32])
}

fn name(number: u64) -> MoveName {
    MoveName { donor: [1; 32], number }
}

fn at() -> Option<SocketAddr> {
    "192.0.2.4:2031".parse().ok()
}

fn donation(number: u64, port: u16) -> SavedDonation {
    let holder_at = at().filter(|_| number == 2);
    SavedDonation {
        name: name(number),
        tuple: flow(port),
        flow: FlowName::new(key(2), number),
        holder_at,
        acceptor: key(3),
    }
}

fn acceptance(number: u64, family: Family) -> SavedAcceptance {
    let request = Request {
        holder: [2; 32],
        holder_at: at().expect("endpoint"),
        flow: 7,
        tuple: flow(20),
        family,
        size: 0,
        options: Vec::new(),
        receiver: b"alice/films\xff".to_vec(),
    };
    let ticket = Ticket { name: name(number), flow: 7, acceptor: [3; 32], sequence: 4, lifetime: 60, mac: [9; 16] };
    SavedAcceptance { request, ticket, wire_port: 5 }
}

fn held(owner: u8, value: u64, donor: u8) -> SavedHeld {
    SavedHeld {
        flow: FlowName::new(key(owner), value),
        far: (owner == 6).then(|| flow(30).mirrored()),
        wire_port: 6,
        sequence: 8,
        last: MoveName { donor: [donor; 32], number: 1 },
        unsettled: vec![(name(1), at()), (name(2), None)],
        hidden: owner == 6,
        ending: owner == 7,
    }
}

fn lease(number: u64) -> SavedLease {
    let first = "[2001:db8::5]:1024".parse().expect("endpoint");
    SavedLease { name: LeaseName { tenant: key(4), number }, ends: Ends { first, count: 64 } }
}

fn tenancy(number: u64) -> (SavedTenancy, Option<SavedNamespace>) {
    let first = "[2001:db8::5]:2048".parse().expect("endpoint");
    let anchor_at = at().filter(|_| number == 8);
    let moved = (number == 8).then_some(Transport::Udp);
    let brought = (number == 9).then_some(SavedNamespace { cookie: 77, hidden: true });
    let ends = Ends { first, count: 64 };
    (SavedTenancy { number, anchor: key(5), anchor_at, ends, moved, parts: false }, brought)
}

fn plain_peer() -> SavedPeer {
    let end = |text: &str| text.parse().expect("endpoint");
    SavedPeer {
        remote: end("[2001:db8::9]:2031"),
        tcp_port: 0,
        source: None,
        locators: Vec::new(),
        former_locators: Vec::new(),
        former: Vec::new(),
        observed: None,
        absent: false,
        silent: false,
        own_places: Vec::new(),
        known_places: vec![
            KnownPlace::new(1, end("192.0.2.1:2031"), end("192.0.2.1:2031")),
            KnownPlace::new(2, end("10.0.0.1:2031"), end("192.0.2.1:9")),
        ],
        ..peer(5)
    }
}

/// Of each end and each view one.
fn flows() -> HashMap<FlowTuple, FlowEntry> {
    let ends = [LocalEnd::Here, LocalEnd::Endpoint, LocalEnd::Behind, LocalEnd::Passing];
    let views = [View::Virtual, View::Real, View::Lasting, View::Virtual];
    let of = |(number, (end, view)): (u16, (LocalEnd, View))| {
        let transport = if number == 2 { Transport::Udp } else { Transport::Tcp };
        let entry = FlowEntry {
            end,
            waits: Waits { here: number == 1, there: number == 2 },
            manner: Manner { view, gives_way: number == 3 },
            passed_on: number == 4,
            hidden: number == 1,
            beyond: number == 2,
            unconnected: number == 2,
            ..entry(u32::from(number))
        };
        (FlowTuple { transport, ..flow(number) }, entry)
    };
    (1..).zip(ends.into_iter().zip(views)).map(of).chain([(flow(5), entry(5))]).collect()
}

/// What the files in `tests/data` tell of.
fn everything() -> Restored {
    let carriers = [Carrier::Hold, Carrier::Tunnel, Carrier::FollowRewrite];
    let peers = (1..).zip(carriers).map(|(id, carrier)| SavedPeer { carrier, ..peer(id) }).chain([plain_peer()]);
    let held = [held(6, 1, 9), held(7, 2, 9), held(9, 3, 8)];
    Restored {
        peers: peers.map(|peer| (peer.id, peer)).collect(),
        flows: flows().into_iter().filter(|(_, entry)| entry.peer != PeerId(4)).collect(),
        left: [(flow(8), entry(1))].into(),
        suspended: true,
        gone: gone().into(),
        moves: SavedMoves {
            donations: [(name(2), donation(2, 12))].into(),
            halted: [(71, 2)].into(),
            acceptances: [(name(3), acceptance(3, Family::Ipv6)), (name(4), acceptance(4, Family::Ipv4))].into(),
            held: held.map(|held| (held.flow, held)).into(),
            leases: [(lease(2).name, (lease(2), true)), (lease(3).name, (lease(3), false))].into(),
            lending_stopped: true,
            tenancies: [8, 9].map(|number| (tenancy(number).0.lease(), tenancy(number))).into(),
        },
    }
}

/// Addresses that are gone.
fn gone() -> [(IpAddr, bool); 2] {
    [("192.0.2.7", true), ("2001:db8::7", false)].map(|(address, told)| (address.parse().expect("address"), told))
}

/// What a release before this one has told of it: it knew no addresses that a peer had given up, no ports of TCP, no
/// sockets that are not connected, and no addresses that are gone.
fn everything_of_before() -> Restored {
    let mut before = everything();
    before.gone.clear();
    before.peers.values_mut().for_each(|peer| {
        peer.former_locators.clear();
        peer.tcp_port = 0;
    });
    before.flows.values_mut().for_each(|entry| entry.unconnected = false);
    before
}

/// Says all of it, and more that is taken back.
fn say_everything(store: &mut Store) {
    let Restored { peers, left, moves, .. } = everything();
    peers.values().chain([&peer(4)]).for_each(|peer| store.save_peer(peer));
    flows().iter().chain([(&flow(6), &entry(5))]).for_each(|(flow, entry)| store.save_flow(flow, entry, None));
    store.forget_flow(&flow(6), &entry(5));
    left.iter().chain([(&flow(9), &entry(1))]).for_each(|(flow, former)| store.save_left(flow, Some(*former)));
    store.save_left(&flow(9), None);
    store.forget_peer(PeerId(4), &[flow(4)]);
    store.save_suspended(true);
    let back = "192.0.2.77".parse().expect("address");
    gone().into_iter().chain([(back, true)]).for_each(|(address, told)| store.save_gone(address, Some(told)));
    store.save_gone(back, None);
    store.save_lending_stopped(true).expect("kept");
    store.save_donation(&donation(1, 11), &[(70, 1), (71, 2)]).expect("kept");
    store.save_donation(&donation(2, 12), &[]).expect("kept");
    store.forget_donation(name(1));
    store.forget_halted(70);
    moves.acceptances.values().for_each(|saved| store.save_acceptance(saved).expect("kept"));
    store.save_acceptance(&acceptance(5, Family::Ipv4)).expect("kept");
    store.forget_acceptance(name(5));
    store.save_held(&[held(6, 1, 9), held(7, 2, 9), held(8, 3, 9)]).expect("kept");
    // It goes on to another host.
    store.save_held(&[held(9, 3, 8)]).expect("kept");
    store.save_held(&[held(10, 4, 9)]).expect("kept");
    store.forget_held(FlowName::new(key(10), 4));
    [1, 2, 3].into_iter().for_each(|number| store.save_lease(lease(number), number == 2).expect("kept"));
    store.forget_lease(lease(1).name);
    for (saved, brought) in [7, 8, 9].map(tenancy) {
        store.save_tenancy(saved, brought).expect("kept");
    }
    store.forget_tenancy(tenancy(7).0.lease());
}

fn restored(folder: &Folder) -> Restored {
    Restored::open(&folder.file()).expect("open").1
}

#[test]
fn what_was_said_is_there_after_a_kill() {
    let folder = Folder::new("kill");
    assert!(!has_flows(&folder.file()));
    let (mut store, nothing) = Restored::open(&folder.file()).expect("open");
    assert_eq!(nothing, Restored::default());
    store.save_peer(&peer(1));
    store.flush().expect("flush");
    assert!(!has_flows(&folder.file()));
    say_everything(&mut store);
    // Of a peer that is gone.
    store.save_flow(&flow(4), &entry(4), None);
    store.flush().expect("flush");
    std::mem::forget(store);
    assert!(has_flows(&folder.file()));
    // The second look is at what the first has rewritten.
    for _ in 0..2 {
        assert_eq!(restored(&folder), everything());
        assert_eq!(resting_in(&folder.file()).expect("of this release"), ([(71, 2)].into(), [flow(12)].into()));
    }
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    store.save_peer(&peer(4));
    store.save_suspended(false);
    store.save_lending_stopped(false).expect("kept");
    store.save_left(&flow(8), None);
    let parting = SavedTenancy { parts: true, ..tenancy(8).0 };
    store.save_tenancy(parting, None).expect("kept");
    store.flush().expect("flush");
    let restored = restored(&folder);
    assert_eq!(restored.moves.tenancies[&parting.lease()], (parting, None));
    assert_eq!(restored.flows, everything().flows, "a peer has the number of one that is gone");
    assert_eq!((restored.suspended, restored.moves.lending_stopped, restored.left.len()), (false, false, 0));
}

#[test]
fn what_a_daemon_of_before_has_written_is_taken_over() {
    let folder = Folder::new("before");
    for text in [
        &include_bytes!("../../../tests/data/journal-1-appended")[..],
        include_bytes!("../../../tests/data/journal-1-rewritten"),
    ] {
        fs::write(folder.file(), text).expect("write");
        assert!(has_flows(&folder.file()));
        assert_eq!(resting_in(&folder.file()).expect("of this release"), ([(71, 2)].into(), [flow(12)].into()));
        for _ in 0..2 {
            assert_eq!(restored(&folder), everything_of_before());
        }
        // Where it cannot be written anew, and is gone on with.
        fs::write(folder.file(), text).expect("write");
        let blocked = folder.file().with_extension("new");
        fs::create_dir(&blocked).expect("a folder");
        let (mut store, _) = Restored::open(&folder.file()).expect("open");
        store.forget_donation(name(2));
        store.forget_flow(&flow(1), &entry(1));
        store.save_held(&[held(8, 1, 6)]).expect("kept");
        store.flush().expect("flush");
        let (now, mut expected) = (restored(&folder), everything_of_before());
        expected.flows.remove(&flow(1));
        expected.moves.donations.clear();
        expected.moves.held.remove(&FlowName::new(key(6), 1));
        expected.moves.held.insert(FlowName::new(key(8), 1), held(8, 1, 6));
        assert_eq!(now, expected);
        fs::remove_dir(blocked).expect("remove");
        // A daemon before that has said of a flow, and of a lease, that it is over by its number alone.
        let text = [text, b"{\"held_over\":1}\n{\"tenancy_over\":8}\n{\"torn"].concat();
        fs::write(folder.file(), text).expect("write");
        let (now, mut expected) = (restored(&folder), everything_of_before());
        expected.moves.held.remove(&FlowName::new(key(6), 1));
        expected.moves.tenancies.remove(&tenancy(8).0.lease());
        assert_eq!(now, expected);
    }
}

#[test]
fn what_this_release_writes_is_read_by_those_to_come() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/journal-2");
    let folder = Folder::new("now");
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    say_everything(&mut store);
    store.flush().expect("flush");
    drop(Restored::open(&folder.file()).expect("written anew"));
    let text = fs::read(folder.file()).expect("read");
    if std::env::var_os("WHIMBREL_WRITE_DATA").is_some() {
        fs::write(&file, &text).expect("write");
    }
    let then = fs::read(&file).expect("the file");
    assert!(
        text == then,
        "rows look otherwise now: raise the version, and read the former ones, once this one is released"
    );
    fs::write(folder.file(), then).expect("write");
    assert_eq!(restored(&folder), everything());
}

#[test]
fn a_peer_whose_number_is_a_bindings_is_refused_with_its_flows() {
    // Decision 0080: else it would be taken for a binding of single flows of another peer.
    let folder = Folder::new("numbers");
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    let of = |number: u32| PeerId(number);
    for (port, number) in (20..).zip([0, PeerId::MOST + 1, (1 << 28) + 5, u32::MAX]) {
        store.save_peer(&SavedPeer { id: of(number), ..peer(3) });
        store.save_flow(&flow(port), &FlowEntry { peer: of(number), ..entry(3) }, None);
        let error = serde_json::from_str::<PeerId>(&number.to_string()).expect_err("no number").to_string();
        assert!(error.starts_with(&format!("{number} is no number of a peer: these are 1 to 268435455")), "{error}");
    }
    let last = SavedPeer { id: of(PeerId::MOST), ..peer(4) };
    [&peer(5), &last].into_iter().for_each(|peer| store.save_peer(peer));
    store.save_flow(&flow(7), &entry(5), None);
    store.flush().expect("flush");
    // The second look is at what the first has rewritten.
    for _ in 0..2 {
        let found = restored(&folder);
        assert_eq!(found.peers.into_values().collect::<Vec<_>>(), [peer(5), last.clone()]);
        assert_eq!(found.flows, HashMap::from([(flow(7), entry(5))]));
    }
}

#[test]
fn what_names_a_row_is_one_text() {
    let folder = Folder::new("owners");
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    let kept = || restored(&folder).moves.held.into_values().collect::<Vec<_>>();
    // Two hosts have one each of the same name.
    store.save_held(&[held(1, 7, 1), held(2, 7, 2)]).expect("kept");
    assert_eq!(kept(), [held(1, 7, 1), held(2, 7, 2)]);
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    // One goes on to a third, and back.
    store.save_held(&[held(3, 7, 1)]).expect("kept");
    assert_eq!(kept(), [held(2, 7, 2), held(3, 7, 1)]);
    let (mut store, _) = Restored::open(&folder.file()).expect("open");
    store.save_held(&[held(1, 7, 3)]).expect("kept");
    store.forget_held(FlowName::new(key(2), 7));
    store.forget_held(FlowName::new(key(3), 7));
    store.flush().expect("flush");
    assert_eq!(kept(), [held(1, 7, 3)]);
}

#[test]
fn what_a_gateway_remembers_outlives_its_host() {
    // P-123
    let folder = Folder::new("lasting");
    let (run, state) = (folder.file(), folder.0.join("gateway"));
    let passing = FlowEntry { end: LocalEnd::Passing, ..entry(1) };
    let open = |fresh| {
        let (mut store, mut restored) = Restored::open(&run).expect("open");
        let memory =
            keep_lasting(&mut store, &state, fresh, &mut restored.peers, &mut restored.flows).expect("open the second");
        (store, restored, memory)
    };
    let (mut store, nothing, memory) = open(5);
    assert_eq!((nothing, memory), (Restored::default(), 5));
    store.save_peer(&peer(1));
    store.save_flow(&flow(1), &passing, None);
    store.save_flow(&flow(2), &FlowEntry { end: LocalEnd::Here, ..entry(1) }, None);
    store.save_flow(&flow(3), &passing, None);
    store.save_flow(&flow(3), &FlowEntry { end: LocalEnd::Here, ..entry(1) }, Some(&passing));
    store.flush().expect("write");
    drop(store);
    // Another daemon.
    let (_, restored, memory) = open(6);
    assert_eq!((restored.flows.len(), memory), (3, 5));
    // Another life.
    let another_life = || fs::remove_file(&run).expect("remove");
    another_life();
    let (mut store, restored, memory) = open(7);
    assert_eq!((restored.peers.values().collect::<Vec<_>>(), memory), (vec![&peer(1)], 5));
    assert_eq!(restored.flows, HashMap::from([(flow(1), passing)]));
    store.forget_flow(&flow(1), &passing);
    store.flush().expect("write");
    drop(store);
    another_life();
    assert!(open(8).1.flows.is_empty());
    // What cannot be read may have been a flow.
    let mut text = fs::read(&state).expect("read");
    text.extend(b"what is this\n");
    fs::write(&state, &text).expect("write");
    assert_eq!((open(9).2, open(10).2), (9, 9));
    remove(&state).expect("remove");
    remove(&state).expect("nothing to remove");
    assert_eq!(open(11).2, 11);
    // As a gateway of before has written it.
    fs::write(&state, include_bytes!("../../../tests/data/gateway-1")).expect("write");
    another_life();
    let (_, restored, memory) = open(12);
    assert_eq!((restored.flows, memory), (HashMap::from([(flow(1), passing)]), 5));
}
