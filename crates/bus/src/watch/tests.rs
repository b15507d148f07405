//! A bus that is made here, which does what no good one does.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use zbus::wire::Type;
use zbus::{ObjectPath, OwnedVariant};

use super::*;
use crate::message::told::{self, Asked};
use crate::services::Connectivity;

const MANAGER: &str = "org.freedesktop.NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const AT: &str = "/org/freedesktop/NetworkManager/Devices/1";
/// NetworkManager's name on this bus.
const OWNER: &str = ":1.2";
const SOON: Duration = Duration::from_secs(20);

/// A place for a bus.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("whimbrel-bus-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn address(&self) -> Address {
        Address::parse(&format!("unix:path={}", self.0.display())).unwrap()
    }

    /// A bus, on which this is done with each who comes.
    fn serve(&self, with: impl Fn(Client) + Send + 'static) {
        let listener = UnixListener::bind(&self.0).unwrap();
        thread::spawn(move || listener.incoming().for_each(|stream| with(Client::new(stream.unwrap()))));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Who listens to this bus.
struct Client(BufReader<UnixStream>);

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    fn greet(&mut self) {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.starts_with("\0AUTH EXTERNAL "), "{line}");
        self.say(b"OK 00ff\r\n");
        line.clear();
        self.0.read_line(&mut line).unwrap();
        assert_eq!(line, "BEGIN\r\n");
    }

    /// The next call.
    fn call(&mut self) -> Option<Asked> {
        let mut begin = [0; crate::message::FIXED];
        self.0.read_exact(&mut begin).ok()?;
        let mut bytes = begin.to_vec();
        bytes.resize(crate::message::length(&begin).unwrap(), 0);
        self.0.read_exact(&mut bytes[begin.len()..]).ok()?;
        Some(told::asked(bytes))
    }

    /// Answers as a bus does on which there is NetworkManager with a device in this state, until this is asked: gives
    /// the question's number.
    fn serve(&mut self, state: u32, until: &str) -> u32 {
        self.greet();
        while let Some(Asked { serial, member, path, about }) = self.call() {
            if member == until {
                return serial;
            }
            let answer = match (member.as_str(), about.as_deref()) {
                ("Hello", _) => told::answer(serial, BUS, &":1.9"),
                ("AddMatch", _) => told::answer(serial, BUS, &()),
                ("GetNameOwner", Some(MANAGER)) => told::answer(serial, BUS, &OWNER),
                ("GetNameOwner", _) => told::error(serial, BUS, "org.freedesktop.DBus.Error.NameHasNoOwner"),
                ("GetConnectionUnixProcessID", Some(OWNER)) => told::answer(serial, BUS, &std::process::id()),
                ("GetDevices", _) => told::answer(serial, OWNER, &vec![ObjectPath::try_from(AT).unwrap()]),
                ("GetAll", _) if path == AT => told::answer(serial, OWNER, &device(state)),
                (other, _) => panic!("{other}"),
            };
            self.say(&answer);
        }
        panic!("{until} is never asked");
    }

    /// Hears no more than when the other end goes.
    fn stay(mut self) {
        while self.call().is_some() {}
    }

    fn signal<T: serde::Serialize + Type>(&mut self, sender: &str, interface: &str, member: &str, body: &T) -> bool {
        let signal = Signal { path: AT.into(), interface: interface.into(), member: member.into() };
        self.say(&told::signal(sender, &signal, body))
    }

    fn state(&mut self, sender: &str, state: u32) -> bool {
        self.signal(sender, DEVICE, "StateChanged", &(state, 100u32, 0u32))
    }
}

fn device(state: u32) -> BTreeMap<&'static str, OwnedVariant> {
    let name = zbus::Variant::from("wlan0").try_into_owned().unwrap();
    let number = OwnedVariant::from;
    BTreeMap::from([("Interface", name), ("State", number(state)), ("Ip4Connectivity", number(2u32))])
}

/// Waits until this is heard.
fn wait_heard(watch: &Watch, what: &str, is: impl Fn(&Heard) -> bool) -> Heard {
    let until = Instant::now() + SOON;
    let mut last = Heard::default();
    while Instant::now() < until {
        let _ = wait(watch.wake(), PollFlags::IN, until, None);
        if let Some(heard) = watch.take() {
            if is(&heard) {
                return heard;
            }
            last = heard;
        }
    }
    panic!("{what}: {last:?}");
}

fn leaves(heard: &Heard) -> bool {
    heard.links.get("wlan0").is_some_and(|link| link.leaving)
}

fn portal(heard: &Heard) -> bool {
    heard.links.get("wlan0").is_some_and(|link| link.connectivity == Connectivity::Portal)
}

#[test]
fn a_service_is_listened_to_and_nobody_else() {
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(100, "GetAll");
        // It has not answered yet: another says that the device goes, which counts for nothing.
        client.state(":1.66", 110);
        let answer = told::answer(asked, OWNER, &device(100));
        client.say(&answer);
        client.state(":1.66", 110);
        client.signal(
            OWNER,
            "org.freedesktop.DBus.Properties",
            "PropertiesChanged",
            &(DEVICE, BTreeMap::from([("Metered", OwnedVariant::from(1u32))]), Vec::<String>::new()),
        );
        client.stay();
    });
    let watch = Watch::start(place.address()).unwrap();
    let heard = wait_heard(&watch, "what NetworkManager says", |heard| {
        assert!(!leaves(heard), "somebody else was believed");
        portal(heard) && heard.links["wlan0"].metered
    });
    assert_eq!(heard.services["NetworkManager"], ServiceState::Heard);
    assert_eq!(heard.services["ModemManager"], ServiceState::Absent);
}

#[test]
fn a_bus_that_is_absent_goes_away_and_comes_back() {
    let place = Place::new();
    let watch = Watch::start(place.address()).unwrap();
    wait_heard(&watch, "no bus", |heard| heard.absent.as_ref().is_some_and(|why| why.contains("connect")));
    let first = Place(place.0.with_extension("first"));
    // The bus ends the first connection once it has been listened to.
    place.serve(move |mut client| {
        let is_first = !first.0.exists();
        let _ = fs::write(&first.0, "");
        let asked = client.serve(if is_first { 110 } else { 100 }, "GetAll");
        client.say(&told::answer(asked, OWNER, &device(if is_first { 110 } else { 100 })));
        if is_first {
            thread::sleep(Duration::from_millis(200));
            return;
        }
        client.stay();
    });
    wait_heard(&watch, "it goes", leaves);
    let gone = wait_heard(&watch, "the bus is gone", |heard| heard.absent.is_some());
    assert!(gone.links.is_empty(), "what it has said counts no more");
    wait_heard(&watch, "it is back", |heard| portal(heard) && !leaves(heard));
}

#[test]
fn a_service_that_goes_has_said_nothing() {
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(110, "GetAll");
        client.say(&told::answer(asked, OWNER, &device(110)));
        thread::sleep(Duration::from_millis(200));
        client.signal(BUS, BUS, "NameOwnerChanged", &(MANAGER, OWNER, ""));
        client.stay();
    });
    let watch = Watch::start(place.address()).unwrap();
    wait_heard(&watch, "it goes", leaves);
    let gone = wait_heard(&watch, "it has gone", |heard| heard.links.is_empty());
    assert_eq!((gone.services["NetworkManager"], gone.absent), (ServiceState::Absent, None));
}

#[test]
fn nonsense_floods_and_silence_of_a_service_end_a_connection() {
    for (what, says) in [
        ("nonsense", None),
        (
            "a message of two gigabytes",
            Some([b"l\x04\x00\x01\xff\xff\xff\x7f\x01\x00\x00\x00\x00\x00\x00\x00".to_vec()]),
        ),
        ("a byte order of nobody", Some([vec![0; 64]])),
    ] {
        let place = Place::new();
        place.serve(move |mut client| {
            let asked = client.serve(100, "GetAll");
            match &says {
                Some([bytes]) => drop(client.say(bytes)),
                // A service that answers otherwise than it should.
                None => drop(client.say(&told::answer(asked, OWNER, &"devices"))),
            }
            client.stay();
        });
        let watch = Watch::start(place.address()).unwrap();
        let ends = |heard: &Heard| match what {
            "nonsense" => heard.services.get("NetworkManager") == Some(&ServiceState::Silent),
            _ => heard.absent.as_ref().is_some_and(|why| why.contains("makes no sense")),
        };
        let heard = wait_heard(&watch, what, ends);
        assert!(heard.links.is_empty(), "{what}");
    }
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(100, "GetAll");
        client.say(&told::answer(asked, OWNER, &device(100)));
        while client.state(OWNER, 100) {}
    });
    let watch = Watch::start(place.address()).unwrap();
    wait_heard(&watch, "a flood", |heard| heard.absent.as_ref().is_some_and(|why| why.contains("more comes")));
    // It says no word at all, not even to the greeting.
    let place = Place::new();
    place.serve(|client| {
        thread::sleep(SOON);
        drop(client);
    });
    let watch = Watch::start(place.address()).unwrap();
    wait_heard(&watch, "silence", |heard| heard.absent.as_ref().is_some_and(|why| why.contains("does not answer")));
}

#[test]
fn a_service_that_hangs_is_left_alone() {
    let place = Place::new();
    place.serve(|mut client| {
        client.serve(100, "GetDevices");
        client.stay();
    });
    let watch = Watch::start(place.address()).unwrap();
    let heard = wait_heard(&watch, "it hangs", |heard| {
        let state = heard.services.get("NetworkManager");
        assert_ne!(state, Some(&ServiceState::Heard), "it has answered nothing");
        state == Some(&ServiceState::Silent)
    });
    assert_eq!(heard.absent, None, "the others are listened to");
}

/// Waits until the device goes, and nothing has ended until then.
fn wait_leaves(watch: &Watch, what: &str) {
    wait_heard(watch, what, |heard| {
        assert_eq!(heard.absent, None, "{what}");
        assert_ne!(heard.services.get("NetworkManager"), Some(&ServiceState::Silent), "{what}");
        leaves(heard)
    });
}

#[test]
fn a_stranger_ends_nothing() {
    type Says = fn(&mut Client);
    let says: [(&str, Says); 2] = [
        ("a long message", |client| {
            let long = "x".repeat(2 << 20);
            client.signal(":1.66", DEVICE, "StateChanged", &long);
        }),
        ("a flood", |client| (0..2 * MOST_HEARD).for_each(|_| assert!(client.state(":1.66", 110)))),
    ];
    for (what, says) in says {
        let place = Place::new();
        place.serve(move |mut client| {
            let asked = client.serve(100, "GetAll");
            client.say(&told::answer(asked, OWNER, &device(100)));
            says(&mut client);
            client.state(OWNER, 110);
            client.stay();
        });
        wait_leaves(&Watch::start(place.address()).unwrap(), what);
    }
}

#[test]
fn a_message_that_cannot_be_read_is_left_out() {
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(100, "GetAll");
        client.say(&told::answer(asked, OWNER, &device(100)));
        let signal = Signal { path: AT.into(), interface: DEVICE.into(), member: "StateChanged".into() };
        let mut bytes = told::signal(":1.66", &signal, &110u32);
        // The first field of the header has a signature that is none.
        bytes[crate::message::FIXED + 2] = b'!';
        client.say(&bytes);
        client.state(OWNER, 110);
        client.stay();
    });
    wait_leaves(&Watch::start(place.address()).unwrap(), "it is left out");
}

#[test]
fn what_is_being_asked_is_not_asked_again() {
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(100, "GetAll");
        client.say(&told::answer(asked, OWNER, &device(100)));
        let other = ObjectPath::try_from("/other").unwrap();
        for _ in 0..=MOST_ASKED {
            client.signal(OWNER, MANAGER, "DeviceAdded", &other);
        }
        client.state(OWNER, 110);
        client.stay();
    });
    wait_leaves(&Watch::start(place.address()).unwrap(), "a device is added again and again");
}

#[test]
fn a_service_of_another_place_is_not_believed() {
    let place = Place::new();
    place.serve(|mut client| {
        let asked = client.serve(110, "GetConnectionUnixProcessID");
        // A container has numbers of its own for processes: there is none of this number.
        client.say(&told::answer(asked, BUS, &u32::MAX));
        while let Some(Asked { serial, member, .. }) = client.call() {
            match member.as_str() {
                "GetDevices" => client.say(&told::answer(serial, OWNER, &vec![ObjectPath::try_from(AT).unwrap()])),
                "GetAll" => client.say(&told::answer(serial, OWNER, &device(110))),
                _ => client.say(&told::error(serial, BUS, "org.freedesktop.DBus.Error.NameHasNoOwner")),
            };
        }
    });
    let watch = Watch::start(place.address()).unwrap();
    wait_heard(&watch, "it is elsewhere", |heard| {
        assert!(!leaves(heard));
        heard.services.get("NetworkManager") == Some(&ServiceState::Elsewhere)
    });
}

#[test]
fn nobody_waits_for_a_bus_that_hangs() {
    let place = Place::new();
    let (came, comes) = std::sync::mpsc::channel();
    place.serve(move |client| {
        let _ = came.send(());
        thread::sleep(SOON);
        drop(client);
    });
    let watch = Watch::start(place.address()).unwrap();
    comes.recv_timeout(SOON).unwrap();
    let began = Instant::now();
    drop(watch);
    assert!(began.elapsed() < WITHIN / 2, "{:?}", began.elapsed());
}
