//! A router answers in the name of hosts behind it, at one port.

mod hosts;

use std::net::UdpSocket as PlainSocket;
use std::time::Duration;

use hosts::Host;
use whimbrel_kernel::in_their_name::InTheirName;
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::route::Prefix;
use whimbrel_kernel::udp::{ReceiveBatch, Transmit, UdpSocket};

const PORT: u16 = 2031;
const MARK: Mark = Mark { value: 0x300, mask: 0x300 };

fn rules(host: &Host) -> String {
    host.sh("for f in -4 -6; do ip $f rule; ip $f route show table 20314 2>/dev/null; done; true")
}

#[test]
fn what_is_said_to_a_host_behind_is_answered_in_its_name() {
    let (peer, router, behind) = (Host::new(), Host::new(), Host::new());
    peer.cable("p0", &router, "o0");
    router.cable("i0", &behind, "h0");
    peer.sh("ip addr add 10.1.0.2/24 dev p0; ip addr add fd01::2/64 dev p0 nodad; ip link set p0 up");
    router.sh("ip addr add 10.1.0.1/24 dev o0; ip addr add fd01::1/64 dev o0 nodad; ip link set o0 up;
         ip addr add 10.2.0.1/24 dev i0; ip addr add fd02::1/64 dev i0 nodad; ip link set i0 up;
         echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    behind.sh("ip addr add 10.2.0.2/24 dev h0; ip addr add fd02::2/64 dev h0 nodad; ip link set h0 up;
         ip route add default via 10.2.0.1; ip -6 route add default via fd02::1");
    peer.sh("ip route add default via 10.1.0.1; ip -6 route add default via fd01::1");

    let before = rules(&router);
    let (mut names, socket) = router.on(|| (InTheirName::open().unwrap(), UdpSocket::bind(PORT).unwrap()));
    socket.speak_for_others().unwrap();
    // Any address of the range names it.
    let prefixes = [("10.2.0.7", 24), ("fd02::7", 64)];
    let prefixes = prefixes.map(|(address, length)| Prefix { address: address.parse().unwrap(), length });
    router.on(|| {
        assert!(names.apply(&prefixes, PORT, MARK).unwrap());
        assert!(!names.apply(&prefixes, PORT, MARK).unwrap(), "what is there is known again");
    });
    for (here, there) in [("0.0.0.0:0", "10.2.0.2"), ("[::]:0", "fd02::2")] {
        let there = there.parse().unwrap();
        let asking = peer.on(|| PlainSocket::bind(here).unwrap());
        asking.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        asking.connect((there, PORT)).unwrap();
        asking.send(b"who").unwrap();
        let mut batch = ReceiveBatch::new();
        hosts::wait("the router is asked", || socket.receive(&mut batch).unwrap() == 1);
        let received = batch.parts().1[0];
        assert_eq!(received.destination, Some(there));
        let answer = Transmit {
            destination: received.source,
            source: received.destination,
            interface: None,
            contents: b"it",
            segment_size: None,
        };
        assert_eq!(socket.send(&[answer]).sent, 1);
        // A connected socket takes nobody else's.
        let mut buffer = [0; 8];
        let length = asking.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"it");

        // At other ports the host is itself.
        let own = behind.on(|| PlainSocket::bind((there, PORT + 1)).unwrap());
        own.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        asking.connect((there, PORT + 1)).unwrap();
        asking.send(b"you").unwrap();
        let length = own.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"you");
    }
    router.on(|| {
        assert!(names.release().unwrap());
        assert!(!names.release().unwrap());
    });
    assert_eq!(rules(&router), before);
}
