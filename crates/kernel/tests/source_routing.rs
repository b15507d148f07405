//! A host with two networks: what is sent from an address that it leaves goes out by the network that it belongs to.

mod hosts;

use std::collections::BTreeMap;
use std::net::IpAddr;

use hosts::Host;
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::source_routing::{SourceRoute, SourceRoutes};

const MARK: Mark = Mark { value: 0x100, mask: 0xff00 };

struct Plan {
    ip: &'static str,
    addresses: [&'static str; 2],
    gateways: [&'static str; 2],
    far: &'static str,
}

const PLANS: [Plan; 2] = [
    Plan { ip: "ip", addresses: ["10.1.0.2/24", "10.2.0.2/24"], gateways: ["10.1.0.1", "10.2.0.1"], far: "192.0.2.9" },
    Plan {
        ip: "ip -6",
        addresses: ["2001:db8:1::2/64 nodad", "2001:db8:2::2/64 nodad"],
        gateways: ["2001:db8:1::1", "2001:db8:2::1"],
        far: "2001:db8:9::9",
    },
];

fn state(host: &Host) -> String {
    host.sh("for f in -4 -6; do ip $f rule; ip $f route show table all | grep -v fe80 | grep -v ff00; done")
}

#[test]
#[ignore = "needs root"]
fn an_address_that_is_left_keeps_its_way() {
    for plan in &PLANS {
        let (host, routers) = (Host::new(), [Host::new(), Host::new()]);
        for (index, router) in routers.iter().enumerate() {
            let device = format!("p{index}");
            host.cable(&device, router, "p0");
            host.sh(&format!("{} addr add {} dev {device}", plan.ip, plan.addresses[index]));
            // The second is preferred.
            let (gateway, metric) = (plan.gateways[index], 200 - 100 * index);
            host.sh(&format!("{} route add default via {gateway} dev {device} metric {metric}", plan.ip));
        }
        let before = state(&host);
        let left: IpAddr = plan.addresses[0].split('/').next().unwrap().parse().unwrap();
        let lookup = |mark: &str| host.sh(&format!("{} route get {} from {left} {mark}", plan.ip, plan.far));
        assert!(lookup("").contains("dev p1"), "{}", lookup(""));

        let mut ways = host.on(|| SourceRoutes::open(MARK).unwrap());
        let way = SourceRoute { interface: host.index("p0"), gateway: Some(plan.gateways[0].parse().unwrap()) };
        let wanted = BTreeMap::from([(left, way)]);
        assert!(ways.apply(&wanted).unwrap());
        assert!(!ways.apply(&wanted).unwrap());
        assert!(lookup("").contains(&format!("via {} dev p0", plan.gateways[0])), "{}", lookup(""));
        // Packets of moved flows, and the question how things would be without us, are not concerned.
        assert!(lookup("mark 0x100").contains("dev p1"), "{}", lookup("mark 0x100"));
        let mut under = host.on(|| PeerRoutes::open(MARK).unwrap());
        assert_eq!(under.under(plan.far.parse().unwrap(), Some(left)).unwrap().interface, host.index("p1"));

        // A step that fails leaves what was there; a new process takes over, and removes everything.
        let wrong = SourceRoute { interface: 9999, ..way };
        let present = state(&host);
        let error = ways.apply(&BTreeMap::from([(left, wrong)])).unwrap_err();
        assert_eq!(error.effect(), whimbrel_kernel::Effect::None, "{error}");
        assert_eq!(state(&host), present);
        drop(ways);
        host.on(|| SourceRoutes::open(MARK).unwrap()).release().unwrap();
        assert_eq!(state(&host), before);
    }
}
