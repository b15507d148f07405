//! Sockets of processes that have no other end: those that listen, and those of UDP that are not connected. Which of
//! them are met at an address.

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::{FlowTuple, Transport};

use super::{ProcessTree, Unfit, tied};

/// A socket without another end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// Of TCP, one that listens.
    pub transport: Transport,
    /// What it is bound to: an address, or an unspecified one, and a port.
    pub at: SocketAddr,
}

/// How the kernel comes to a socket for what is sent to an address: the greater goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    /// Bound to all addresses of IPv6, it takes IPv4 as well unless its program does not want that.
    Both,
    /// Bound to all addresses of the family.
    Family,
    /// Bound to this one.
    Address,
}

impl End {
    fn met(&self, address: IpAddr) -> Option<Met> {
        let ip = self.at.ip().to_canonical();
        if ip == address {
            Some(Met::Address)
        } else if !ip.is_unspecified() {
            None
        } else if ip.is_ipv4() == address.is_ipv4() {
            Some(Met::Family)
        } else {
            ip.is_ipv6().then_some(Met::Both)
        }
    }
}

impl ProcessTree {
    /// Of the sockets without another end, those that go along with an address, each as it is met there; and where the
    /// others are bound, which nobody reaches any more.
    ///
    /// # Errors
    /// [`Unfit::Tied`]: one is bound to another address, which is not there, or a process that stays takes what comes
    /// to the same as well.
    pub fn met_at(&self, address: IpAddr) -> Result<(Vec<FlowTuple>, Vec<SocketAddr>), Unfit> {
        let (mut met, mut deaf) = (Vec::new(), Vec::new());
        for end in &self.ends {
            let ip = end.at.ip().to_canonical();
            let Some(how) = end.met(address) else {
                if !ip.is_unspecified() && !ip.is_loopback() {
                    return Err(tied(format!("it waits at {}, and there it can have but {address}", end.at)));
                }
                deaf.push(end.at);
                continue;
            };
            let beside = |other: &&End| (other.transport, other.at.port()) == (end.transport, end.at.port());
            match self.others.iter().filter(beside).filter_map(|other| other.met(address)).max() {
                Some(other) if other == how => {
                    return Err(tied(format!("a process that stays waits at {} as well", end.at)));
                }
                // What comes to that address is not its own here either.
                Some(other) if other > how => deaf.push(end.at),
                _ => met.push(FlowTuple::unconnected(end.transport, SocketAddr::new(address, end.at.port()))),
            }
        }
        let fits = |ip: IpAddr| ip == address || ip.is_unspecified() || ip.is_loopback();
        if let Some(other) = self.idle.iter().find(|at| !fits(at.ip().to_canonical())) {
            return Err(tied(format!(
                "it has a TCP socket that is bound to {other} and not connected, and there it can have but {address}"
            )));
        }
        met.sort_unstable();
        met.dedup();
        Ok((met, deaf))
    }

    /// Where those of its sockets that are bound to all addresses, and go along with `address`, are met as well, at
    /// these: nobody reaches them there any more.
    #[must_use]
    pub fn left_at(&self, address: IpAddr, others: &[IpAddr]) -> Vec<SocketAddr> {
        let all = self.ends.iter().filter(|end| end.at.ip().is_unspecified() && end.met(address).is_some());
        let met = |end: &End| {
            let end = *end;
            let there = others.iter().filter(move |other| **other != address && end.met(**other).is_some());
            there.map(move |other| SocketAddr::new(*other, end.at.port()))
        };
        let mut left: Vec<SocketAddr> = all.flat_map(met).collect();
        left.sort_unstable();
        left.dedup();
        left
    }

    /// The addresses that sockets without another end are bound to, and whether any has all of IPv4, or of IPv6.
    #[must_use]
    pub fn bound_to(&self) -> (Vec<IpAddr>, [bool; 2]) {
        let ips = || self.ends.iter().map(|end| end.at.ip().to_canonical());
        let mut own: Vec<IpAddr> = ips().filter(|ip| !ip.is_unspecified() && !ip.is_loopback()).collect();
        own.sort_unstable();
        own.dedup();
        let all = |ipv4: bool| ips().any(|ip| ip.is_unspecified() && ip.is_ipv4() == ipv4);
        (own, [all(true), all(false)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Namespaces;
    use super::*;

    fn end(transport: Transport, at: &str) -> End {
        End { transport, at: at.parse().expect("an endpoint") }
    }

    fn process_tree(ends: &[&str], others: &[&str]) -> ProcessTree {
        let all = |of: &[&str]| of.iter().map(|at| end(Transport::Tcp, at)).collect();
        let namespaces = Namespaces::of(std::process::id()).expect("its own");
        ProcessTree {
            root: 1,
            pids: vec![1],
            inner: vec![1],
            name: String::new(),
            started: vec![None],
            namespaces,
            apart: false,
            leads: false,
            talks: false,
            flows: Vec::new(),
            ends: all(ends),
            others: all(others),
            idle: Vec::new(),
            files: Vec::new(),
            memory: 0,
        }
    }

    fn met(process_tree: &ProcessTree, address: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let (met, deaf) =
            process_tree.met_at(address.parse().expect("an address")).map_err(|unfit| unfit.to_string())?;
        Ok((met.iter().map(|flow| flow.local.to_string()).collect(), deaf.iter().map(SocketAddr::to_string).collect()))
    }

    #[test]
    fn what_is_met_at_an_address_goes_along() {
        let web = process_tree(&["0.0.0.0:80", "[::]:80", "[::]:81", "127.0.0.1:9", "[::1]:9", "192.0.2.1:22"], &[]);
        let (there, deaf) = met(&web, "192.0.2.1").expect("it goes");
        assert_eq!(there, ["192.0.2.1:22", "192.0.2.1:80", "192.0.2.1:81"]);
        assert_eq!(deaf, ["127.0.0.1:9", "[::1]:9"]);
        let said = met(&web, "192.0.2.2").expect_err("another address");
        assert!(said.contains("192.0.2.1:22") && said.contains("192.0.2.2"), "{said}");
        let others = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|other| other.parse().expect("an address"));
        let left: Vec<String> = web.left_at(others[0], &others).iter().map(SocketAddr::to_string).collect();
        assert_eq!(left, ["192.0.2.2:80", "192.0.2.2:81", "[2001:db8::1]:80", "[2001:db8::1]:81"]);
        let (there, deaf) = met(&process_tree(&["0.0.0.0:80", "[::]:81"], &[]), "2001:db8::1").expect("it goes");
        assert_eq!((there, deaf), (vec!["[2001:db8::1]:81".to_owned()], vec!["0.0.0.0:80".to_owned()]));
        assert_eq!(web.bound_to(), (vec!["192.0.2.1".parse().expect("an address")], [true, true]));
    }

    #[test]
    fn what_is_idle_is_bound_to_no_other_address() {
        let with = |idle: &str| {
            let idle = vec![idle.parse().expect("an endpoint")];
            met(&ProcessTree { idle, ..process_tree(&["0.0.0.0:80"], &[]) }, "192.0.2.1")
        };
        for fits in ["192.0.2.1:9", "0.0.0.0:9", "[::]:9", "127.0.0.1:9", "[::1]:9"] {
            with(fits).expect(fits);
        }
        let said = with("192.0.2.2:9").expect_err("another address");
        assert!(said.contains("bound to 192.0.2.2:9 and not connected") && said.contains("192.0.2.1"), "{said}");
    }

    #[test]
    fn what_others_take_is_left_to_them() {
        let said = met(&process_tree(&["0.0.0.0:80"], &["0.0.0.0:80"]), "192.0.2.1").expect_err("it is shared");
        assert!(said.contains("waits at 0.0.0.0:80 as well"), "{said}");
        let (there, deaf) = met(&process_tree(&["0.0.0.0:80"], &["192.0.2.1:80"]), "192.0.2.1").expect("it goes");
        assert_eq!((there.len(), deaf.len()), (0, 1));
        let (there, deaf) =
            met(&process_tree(&["192.0.2.1:80"], &["0.0.0.0:80", "[::]:81"]), "192.0.2.1").expect("it goes");
        assert_eq!((there.len(), deaf.len()), (1, 0));
        let (there, _) = met(&process_tree(&["0.0.0.0:80"], &["0.0.0.0:81"]), "192.0.2.1").expect("it goes");
        assert_eq!(there.len(), 1);
        let mut other = process_tree(&["0.0.0.0:80"], &[]);
        other.others.push(end(Transport::Udp, "0.0.0.0:80"));
        assert_eq!(met(&other, "192.0.2.1").expect("it goes").0.len(), 1, "of another transport");
    }
}
