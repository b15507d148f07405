//! What programs are shown of moved flows, and where addresses that the ends had lead the programs of lasting views
//! (decision 0011).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use whimbrel_datapath::{Alias, AliasUse, Datapath};
use whimbrel_protocol::{Binding, BindingId, FlowEntry, Places, View};
use whimbrel_wire::FlowTuple;

use crate::policy::ProgramName;

/// Flows that are alike as far as aliases go: binding, own address, the peer's, and where they are at home.
type Kind = (BindingId, IpAddr, IpAddr, (u32, u32));

/// What is to be shown.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Some policy asks for another view than that of the sockets.
    asked: bool,
    /// Whose aliases there are.
    programs: Vec<ProgramName>,
    /// How many flows have another view.
    seen: usize,
    /// How many flows with a lasting one there are of each kind.
    lasting: BTreeMap<Kind, usize>,
    /// The programs hang on the hooks.
    attached: bool,
    /// That they cannot was told.
    told: bool,
    changed: bool,
}

impl Names {
    /// Says which programs the policies give lasting views, and whether any asks for another view than usual.
    pub(crate) fn set_policy(&mut self, asked: bool, programs: Vec<ProgramName>) {
        self.changed |= (asked, &programs) != (self.asked, &self.programs);
        (self.asked, self.programs) = (asked, programs);
    }

    /// A flow was introduced.
    pub(crate) fn add(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        self.seen += usize::from(entry.manner.view != View::Virtual);
        if entry.manner.view == View::Lasting {
            *self.lasting.entry(kind(flow, entry)).or_default() += 1;
            self.changed = true;
        }
    }

    /// A flow that was, is no more, or is another.
    pub(crate) fn remove(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        self.seen -= usize::from(entry.manner.view != View::Virtual);
        if let Some(count) = self.lasting.get_mut(&kind(flow, entry)).filter(|_| entry.manner.view == View::Lasting) {
            *count -= 1;
            self.changed = true;
        }
        self.lasting.retain(|_, count| *count > 0);
    }

    /// Whether something was said since the last [`Names::apply`].
    pub(crate) fn changed(&self) -> bool {
        self.changed
    }

    /// Has it shown so.
    pub(crate) fn apply(
        &mut self,
        datapath: &mut Datapath,
        bindings: &HashMap<BindingId, Binding>,
        is_own: impl Fn(IpAddr) -> bool,
    ) {
        self.changed = false;
        let wanted = self.asked || self.seen > 0;
        if !wanted && !self.attached {
            return;
        }
        let result =
            if wanted { datapath.attach_names(&self.aliases(bindings, is_own)) } else { datapath.detach_names() };
        match result {
            Ok(()) => (self.attached, self.told) = (wanted, false),
            Err(error) if !self.told => {
                tracing::warn!(%error, "programs see the addresses that their sockets were made with, whatever a policy says");
                self.told = true;
            }
            Err(error) => tracing::debug!(%error, "programs cannot be shown other addresses yet"),
        }
    }

    fn aliases(
        &self,
        bindings: &HashMap<BindingId, Binding>,
        is_own: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<Alias, IpAddr> {
        let mut kinds: Vec<_> = self.lasting.iter().collect();
        // Where a host is now is shown as one of the addresses that it had: that which most of them know.
        kinds.sort_by_key(|(_, count)| **count);
        let mut uses: BTreeMap<AliasUse, IpAddr> = BTreeMap::new();
        for ((id, local, remote, home), _) in kinds {
            let Some(binding) = bindings.get(id) else { continue };
            // A peer says where it is before it has shown it: until then nobody is led there, nor taken for it.
            let (Some(there), Some(here)) = (&binding.proven, &own_locator(binding)) else { continue };
            let places = &binding.places;
            let is_like = |a: &IpAddr, b: &IpAddr| a.is_ipv4() == b.is_ipv4() && !b.is_unspecified();
            if *home == numbers(places)
                || (remote, local) == (there, here)
                || !is_like(local, here)
                || !is_like(remote, there)
            {
                continue;
            }
            // What is opened under a name that still is right is noted as well, for what it is shown of the other end.
            if remote != there {
                uses.insert(AliasUse::Reach(*remote), *there);
                uses.insert(AliasUse::ShowPeer(*there), *remote);
            } else {
                uses.entry(AliasUse::Reach(*remote)).or_insert(*remote);
            }
            if local != here {
                uses.insert(AliasUse::ShowOwn(*here, *there), *local);
            }
            // What it has again, or has still, is meant as such.
            if !is_own(*local) {
                uses.insert(AliasUse::Bind(*local), *here);
            } else if remote != there {
                uses.insert(AliasUse::Bind(*local), *local);
            }
        }
        let of = |program: &ProgramName| {
            let program = *program.as_bytes();
            uses.iter().map(move |(used, meant)| (Alias { program, used: *used }, *meant)).collect::<Vec<_>>()
        };
        self.programs.iter().flat_map(of).collect()
    }
}

/// Where this host is towards the peer, whether or not anything goes rewritten there.
pub(crate) fn own_locator(binding: &Binding) -> Option<IpAddr> {
    Some(binding.local_locator).filter(|local| !local.is_unspecified()).or(binding.source)
}

fn kind(flow: &FlowTuple, entry: &FlowEntry) -> Kind {
    (entry.binding(), flow.local.ip(), flow.remote.ip(), numbers(&entry.home))
}

fn numbers(places: &Places) -> (u32, u32) {
    (places.local, places.peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_protocol::{Carrier, LocalEnd, Manner, PeerId, Waits};
    use whimbrel_wire::Transport;

    fn flow(local: &str, remote: &str, home: u32) -> (FlowTuple, FlowEntry) {
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: local.parse().expect("endpoint"),
            remote: remote.parse().expect("endpoint"),
        };
        let entry = FlowEntry {
            peer: PeerId(1),
            name: 0,
            home: Places { local: home, peer: 0 },
            peer_tuple: flow.mirrored(),
            side: 0,
            waits: Waits::default(),
            manner: Manner { view: View::Lasting, gives_way: false },
            wire_local_port: 1,
            wire_remote_port: 2,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        };
        (flow, entry)
    }

    fn bindings(place: u32, local: &str, peer: &str) -> HashMap<BindingId, Binding> {
        let binding = Binding {
            places: Places { local: place, peer: 0 },
            carrier: Carrier::Tunnel,
            local_locator: local.parse().expect("address"),
            peer_locator: peer.parse().expect("address"),
            proven: peer.parse().ok(),
            former: Vec::new(),
            source: local.parse().ok(),
            parked: false,
            listens: false,
        };
        HashMap::from([(BindingId::first(PeerId(1)), binding)])
    }

    #[test]
    fn only_what_has_moved_has_aliases_and_the_address_that_most_know_is_shown() {
        let mut names = Names::default();
        names.set_policy(true, vec![ProgramName::new("ftp")]);
        let mut flows = vec![flow("192.0.2.1:1", "198.51.100.1:21", 0), flow("192.0.2.9:2", "198.51.100.1:21", 1)];
        flows.push(flow("192.0.2.9:3", "198.51.100.1:21", 1));
        flows.iter().for_each(|(flow, entry)| names.add(flow, entry));
        let at = |text: &str| text.parse::<IpAddr>().expect("address");
        let uses = |names: &Names, place, local| {
            let aliases = names.aliases(&bindings(place, local, "198.51.100.1"), |_| false);
            aliases.into_iter().map(|(alias, meant)| (alias.used, meant)).collect::<BTreeMap<_, _>>()
        };
        // The second and the third are at home.
        let (here, there) = (at("192.0.2.9"), at("198.51.100.1"));
        let first = [
            (AliasUse::Bind(at("192.0.2.1")), here),
            (AliasUse::ShowOwn(here, there), at("192.0.2.1")),
            (AliasUse::Reach(there), there),
        ];
        assert_eq!(uses(&names, 1, "192.0.2.9"), first.into());
        let here = at("203.0.113.1");
        let all = [
            (AliasUse::Bind(at("192.0.2.1")), here),
            (AliasUse::Bind(at("192.0.2.9")), here),
            (AliasUse::ShowOwn(here, there), at("192.0.2.9")),
            (AliasUse::Reach(there), there),
        ];
        assert_eq!(uses(&names, 2, "203.0.113.1"), all.into());
        // In another family nothing can be meant.
        assert!(names.aliases(&bindings(2, "2001:db8::1", "2001:db8::2"), |_| false).is_empty());
        // An address that is the host's again is meant as such.
        let again = names.aliases(&bindings(2, "203.0.113.1", "198.51.100.1"), |_| true);
        assert!(!again.keys().any(|alias| matches!(alias.used, AliasUse::Bind(_))), "{again:?}");
        flows.iter().for_each(|(flow, entry)| names.remove(flow, entry));
        assert_eq!((names.seen, names.lasting.len()), (0, 0));
    }

    #[test]
    fn a_peer_that_has_moved_is_reached_where_it_was() {
        let mut names = Names::default();
        names.set_policy(true, vec![ProgramName::new("vsftpd")]);
        let (flow, entry) = flow("192.0.2.1:21", "198.51.100.1:40000", 0);
        names.add(&flow, &entry);
        let mut bindings = bindings(1, "192.0.2.1", "203.0.113.7");
        // Behind a NAT nothing goes rewritten, and so there is no locator for that.
        bindings.values_mut().for_each(|binding| binding.local_locator = std::net::Ipv4Addr::UNSPECIFIED.into());
        let aliases = names.aliases(&bindings, |_| true);
        let (was, there): (IpAddr, IpAddr) = ("198.51.100.1".parse().unwrap(), "203.0.113.7".parse().unwrap());
        let own: IpAddr = "192.0.2.1".parse().unwrap();
        let program = *b"vsftpd\0\0\0\0\0\0\0\0\0\0";
        let wanted = [
            (Alias { program, used: AliasUse::Reach(was) }, there),
            (Alias { program, used: AliasUse::ShowPeer(there) }, was),
            // What it listens at is noted: there it may be found by the peer.
            (Alias { program, used: AliasUse::Bind(own) }, own),
        ];
        assert_eq!(aliases, wanted.into());

        // It says so, and has not shown it.
        bindings.values_mut().for_each(|binding| {
            (binding.places.peer, binding.proven) = (u32::MAX, Some(was));
        });
        assert!(names.aliases(&bindings, |_| true).is_empty());
        // A daemon that was started anew does not know whether it had.
        bindings.values_mut().for_each(|binding| binding.proven = None);
        assert!(names.aliases(&bindings, |_| true).is_empty());
    }
}
