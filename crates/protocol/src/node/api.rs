//! What the caller does with parts of the node, passed on to their owners.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::NeighbourProxyStatus;
use whimbrel_wire::{ChainSpec, FlowTuple};

use crate::Time;
use crate::base::attachments::{Attachment, Routes};
use crate::base::id::LinkId;
use crate::base::link_facts::LinkFacts;
use crate::base::op::{Between, FlowEntry, PeerId, SavedCommunity};
use crate::binding::chain::{ChainTooLong, ChainView};
use crate::binding::placed::{PlaceError, Placement};
use crate::binding::untold::LastWords;
use crate::flow::known::Greeting;
use crate::flow::verdict::Verdict;
use crate::node::Node;
use crate::path::paths::Paths;
use crate::path::ping::Ping;
use crate::role::community::{CommunityRefused, CommunityView, OneTimeCode};
use crate::role::links::select::LinkWish;
use crate::role::links::wishes::{LinkChoice, LinkTrial};
use crate::role::rendezvous::client::RendezvousView;
use crate::session::contact::{Contact, Standing};

impl Node {
    /// Leads what goes to and comes from a peer in the tunnel through these transforms, once it has agreed; `None`:
    /// through none (P-170). Either end may ask, and the last one counts.
    ///
    /// # Errors
    /// [`ChainTooLong`].
    pub fn set_chain(&mut self, now: Time, id: PeerId, wanted: Option<ChainSpec>) -> Result<(), ChainTooLong> {
        if self.binding.session().peer(&id).is_some() {
            self.binding.chains_mut().ask(now, id, wanted)?;
            self.binding.carry_out_chains(&mut self.base);
            self.settle(now);
        }
        Ok(())
    }

    /// How far the chain of a peer's packets is.
    #[must_use]
    pub fn chain(&self, id: PeerId) -> Option<ChainView> {
        self.binding.chains().view(id)
    }

    /// This host goes away: its peers are told, and its flows wait. [`Node::leaving_peers`] tells how many have not
    /// answered yet. Whatever changes in the network before [`Node::resume`] is not acted on.
    pub fn suspend(&mut self, now: Time) {
        self.binding.suspend(now, &mut self.base);
        self.settle(now);
    }

    /// Takes over that this host was suspended when the daemon before this one ended. Its peers may not have heard of
    /// it: they are told as soon as anything is heard of them. Call it after [`Node::restore`], before anything else.
    pub fn restore_suspended(&mut self, now: Time) {
        self.binding.restore_suspended(now, &mut self.base);
        self.settle(now);
    }

    /// How many peers were told that this host goes away, or that single flows wait, and have not answered.
    #[must_use]
    pub fn leaving_peers(&self) -> usize {
        self.binding.leaving_peers()
    }

    /// Whether this host is suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.binding.is_suspended(&self.base)
    }

    /// All that was agreed on with peers is about to be forgotten, and what leads moved flows to be removed: each peer
    /// with flows is told of it (P-227), and [`Node::last_words`] tells who has answered. `attachments`: as in
    /// [`Node::handle_network`]; `configured`: these and the addresses of this host that cannot be used at this moment.
    /// Call it behind [`Node::restore`]; from then on the node is told of nothing but what comes and what is due, and
    /// what it asks for need not be carried out.
    pub fn forget_all(
        &mut self,
        now: Time,
        attachments: &[Attachment],
        configured: &BTreeSet<IpAddr>,
        routes: &dyn Routes,
    ) {
        self.base.attachments_mut().set(attachments);
        self.base.attachments_mut().settle();
        self.binding.forget_all(now, configured, routes, &mut self.base);
        self.settle(now);
    }

    /// Which peers have heard that this host forgets what it had with them ([`Node::forget_all`]).
    #[must_use]
    pub fn last_words(&self) -> LastWords {
        self.binding.last_words()
    }

    /// Somebody else of this host has the wire port of a UDP flow with this peer, and would get what comes under it. So
    /// nothing is to come rewritten until one of the ends moves (P-160).
    pub fn handle_wire_port_taken(&mut self, now: Time, id: PeerId) {
        self.binding.handle_wire_port_taken(now, id, &mut self.base);
        self.settle(now);
    }

    /// Keeps paths ready to a peer from these addresses of this host, beside the one in use (P-180), and from no others
    /// than those that the configuration has it keep. They are there as long as flows with the peer are, and this host
    /// has the addresses; [`PeerView::kept`](crate::PeerView::kept) tells how they stand. A hand-off to one that is
    /// confirmed needs no challenge.
    pub fn keep_paths(&mut self, now: Time, id: PeerId, from: BTreeSet<IpAddr>) {
        self.binding.keep_paths(now, id, from, &mut self.base);
        self.settle(now);
    }

    /// Has a flow go from another address of this host than the others with its peer, both ways, as long as a path from
    /// there works (P-186), or by both (P-262); `None`: no longer. Where it does not, and where that is the address in
    /// use, the flow goes with the others. It is asked for again after a restart.
    ///
    /// # Errors
    /// [`PlaceError`]; nothing is changed.
    pub fn place_flow(&mut self, now: Time, flow: &FlowTuple, to: Option<Placement>) -> Result<(), PlaceError> {
        self.binding.place_flow(now, flow, to, &mut self.base)?;
        self.settle(now);
        Ok(())
    }

    /// What the user wants of the networks that peers are reached by, from now on: the first that means a peer counts.
    pub fn set_link_wishes(&mut self, now: Time, wishes: Vec<LinkWish>) {
        self.act(now, |roles, at| roles.links.set_wishes(wishes, at));
    }

    /// Whether nobody has said yet which sections about networks have conditions that a flow meets.
    #[must_use]
    pub fn awaits_conditions(&self, flow: &FlowTuple) -> bool {
        self.binding.flow().awaits_conditions(flow)
    }

    /// The sections about networks that are of single flows ([`LinkWish::of_flows`]), by their lines, whose conditions
    /// a flow meets beside those on its peer. The flow goes as the first of all sections wants that means it (P-238).
    /// What was said of it before is void.
    pub fn handle_conditions_met(&mut self, now: Time, flow: FlowTuple, met: Vec<u32>) {
        self.act(now, |roles, at| roles.links.handle_conditions_met(flow, met, at));
    }

    /// What is known of this host's links by themselves, all of it. Of those that are not named nothing is known.
    pub fn handle_link_facts(&mut self, now: Time, facts: &[(LinkId, LinkFacts)]) {
        self.act(now, |roles, at| roles.links.handle_facts(facts, at));
    }

    /// By which network each peer is reached on which something depends, where there are several, and why; or what
    /// other wishes would come to.
    pub fn explain_links(&mut self, now: Time, trial: Option<LinkTrial<'_>>) -> Vec<(PeerId, LinkChoice)> {
        self.act(now, |roles, at| roles.links.explain(trial, at))
    }

    /// Moves by hand: every peer is told where we are now, from `to` where that is given and reaches it.
    pub fn hand_off(&mut self, now: Time, routes: &dyn Routes, to: Option<IpAddr>) {
        self.binding.hand_off(now, routes, to, &mut self.base);
        self.settle(now);
    }

    /// As [`Node::hand_off`], towards one peer alone.
    pub fn hand_off_towards(&mut self, now: Time, routes: &dyn Routes, to: Option<IpAddr>, peer: PeerId) {
        self.binding.hand_off_towards(now, routes, to, peer, &mut self.base);
        self.settle(now);
    }

    /// A packet came in on a held flow under its own names: the flow is at home here, whoever does not answer (P-39).
    pub fn handle_heard_natively(&mut self, now: Time, flow: FlowTuple) {
        self.binding.handle_heard_natively(now, flow, &mut self.base);
        self.settle(now);
    }

    /// A flow has sent the same again so often, and nobody answers: told at the second time, or at the first of a
    /// probe, and whenever that number has doubled. The checks of the path show whether its peer is there (P-45).
    pub fn handle_flow_stalled(&mut self, now: Time, flow: FlowTuple, attempts: u32) {
        self.binding.handle_flow_stalled(now, flow, attempts, &mut self.base);
        self.settle(now);
    }

    /// Something left between these addresses ([`BindingOp::Watch`](crate::BindingOp::Watch)), so long ago, and what
    /// usually comes by then does not: the peer is asked (P-260).
    pub fn handle_overdue(&mut self, now: Time, between: Between, lasts: Duration) {
        self.act(now, |roles, at| roles.links.handle_overdue(between, lasts, at));
    }

    /// Who has opened a flow that this host was told of. Of those of nobody the questions count together.
    pub fn record_user(&mut self, flow: &FlowTuple, user: u32) {
        self.binding.flow_mut().record_user(flow, user);
    }

    /// A socket came into being, or was found: only flows that were told so are introduced (P-35). `accepted`: its
    /// local port listens, so the other end opened it.
    pub fn handle_flow_opened(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        self.binding.flow_mut().handle_flow_opened(now, flow, accepted, &mut self.base);
        self.settle(now);
    }

    /// As [`Node::handle_flow_opened`], of a socket that is in a list of all: nobody knows how old it is.
    pub fn handle_flow_found(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        self.binding.flow_mut().handle_flow_found(now, flow, accepted, &mut self.base);
        self.settle(now);
    }

    /// A socket of UDP that is not connected sends to an endpoint: with that it has a flow, `local` being the address
    /// that the kernel sends from. It need be told once of each; of one that is forgotten again, if it still sends.
    pub fn handle_datagram_sent(&mut self, now: Time, flow: FlowTuple) {
        self.binding.flow_mut().handle_datagram_sent(now, flow, &self.base);
        self.settle(now);
    }

    /// A socket begins to connect to this address. Where a peer is there, what precedes the connection's introduction
    /// is done meanwhile. It need not be told of all.
    pub fn handle_flow_opening(&mut self, now: Time, remote: IpAddr) {
        self.binding.flow_mut().expect_introduction(now, remote, &mut self.base);
        self.settle(now);
    }

    /// The other end of a connection said in its handshake that it runs Whimbrel (P-242). It is told after the flow.
    pub fn handle_greeting(&mut self, now: Time, flow: FlowTuple, greeting: Greeting) {
        self.binding.flow_mut().handle_greeting(now, flow, greeting);
        self.settle(now);
    }

    /// A socket is gone, or in TIME_WAIT.
    pub fn handle_flow_closed(&mut self, now: Time, flow: FlowTuple) {
        self.binding.flow_mut().handle_flow_closed(now, flow, &mut self.base);
        self.settle(now);
    }

    /// Whether there is a socket with this tuple, as far as the node was told.
    #[must_use]
    pub fn has_flow(&self, flow: &FlowTuple) -> bool {
        self.binding.flow().has_flow(flow)
    }

    /// Flows that this host has wait.
    #[must_use]
    pub fn waiting_flows(&self) -> Vec<FlowTuple> {
        self.binding.flow().waiting_flows()
    }

    /// Whether flows that are opened from now on wait for [`Node::handle_verdict`] before anything is done about them.
    /// At first they do not: then nothing is ruled of any flow.
    pub fn await_verdicts(&mut self, awaited: bool) {
        self.binding.flow_mut().await_verdicts(awaited);
    }

    /// Whether a flow waits for its ruling.
    #[must_use]
    pub fn awaits_verdict(&self, flow: &FlowTuple) -> bool {
        self.binding.flow().awaits_verdict(flow)
    }

    /// What is wanted for a flow; one that does not wait for it keeps what was said before.
    pub fn handle_verdict(&mut self, now: Time, flow: FlowTuple, verdict: Verdict) {
        self.binding.flow_mut().handle_verdict(now, flow, verdict);
        self.settle(now);
    }

    /// Looks whether the far end of a flow that is passed on for this host runs Whimbrel, and asks it to introduce the
    /// flow. To be said of connections that this host has opened: those that others open are introduced by them.
    pub fn seek_far_end(&mut self, now: Time, flow: FlowTuple) {
        self.act(now, |roles, at| roles.referral.seek_far_end(flow, at));
    }

    /// Takes over flows that had just become direct when the daemon before this one ended, as they were before. To be
    /// called once, behind [`Node::restore`].
    pub fn restore_left(&mut self, now: Time, left: Vec<(FlowTuple, FlowEntry)>) {
        self.act(now, |roles, at| roles.referral.restore_left(left, at));
    }

    /// Whether a host belongs to this host's community. This host itself does, where there is one.
    #[must_use]
    pub fn is_in_community(&self, host: &PublicKey) -> bool {
        self.roles.community.is_in_community(host, &self.base)
    }

    /// What people call a host of this host's community, where no other host of it is called so (P-120).
    #[must_use]
    pub fn name_of_member(&self, host: &PublicKey) -> Option<&str> {
        self.roles.community.name_of_member(host, &self.base)
    }

    /// Takes over what was saved of the community, behind [`Node::restore`].
    ///
    /// # Errors
    /// A statement is not the community's. Nothing is taken over.
    pub fn restore_community(&mut self, now: Time, saved: &SavedCommunity) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.restore_community(saved, at))
    }

    /// Makes a community of this host alone. It is its steward.
    ///
    /// # Errors
    /// This host belongs to one, or may not be called so.
    pub fn found_community(&mut self, now: Time, name: &str) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.found_community(name, at))
    }

    /// Opens a code by which a host can join this host's community.
    ///
    /// # Errors
    /// This host may not invite, or too many codes are open.
    pub fn invite(&mut self, now: Time, steward: bool) -> Result<OneTimeCode, CommunityRefused> {
        self.act(now, |roles, at| roles.community.invite(steward, at))
    }

    /// Opens a code by which a host that is a stranger may be given one connection, once.
    ///
    /// # Errors
    /// This host moves no sockets, has no such connection, or too many codes are open.
    pub fn offer_connection(&mut self, now: Time, flow: FlowTuple) -> Result<OneTimeCode, CommunityRefused> {
        self.act(now, |roles, at| roles.community.offer_connection(flow, at))
    }

    /// From now on a host belongs to the community no more.
    ///
    /// # Errors
    /// This host may not say so, or the other is no member.
    pub fn revoke(&mut self, now: Time, host: &PublicKey) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.revoke(host, at))
    }

    /// Forgets the community. The others go on to count this host as theirs until one of them revokes it.
    ///
    /// # Errors
    /// There is none.
    pub fn leave_community(&mut self, now: Time) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.leave_community(at))
    }

    /// What people are shown of the community.
    #[must_use]
    pub fn community(&self, now: Time) -> CommunityView {
        self.roles.community.community(now, &self.binding, &self.base)
    }

    /// Joins a community by a code that somebody was told at a host of it, which is at one of these places. What comes
    /// of it is told by events.
    ///
    /// # Errors
    /// Nothing was done.
    pub fn join_community(
        &mut self,
        now: Time,
        code: OneTimeCode,
        hosts: Vec<SocketAddr>,
        name: &str,
    ) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.join_community(code, hosts, name, at))
    }

    /// Gets the right to receive one connection, by a code that somebody was told at the host that has it.
    ///
    /// # Errors
    /// Nothing was done.
    pub fn accept_connection(
        &mut self,
        now: Time,
        code: OneTimeCode,
        hosts: Vec<SocketAddr>,
    ) -> Result<(), CommunityRefused> {
        self.act(now, |roles, at| roles.community.accept_connection(code, hosts, at))
    }

    /// An introduction has come for a host behind this one: the flow is taken for one that is there, as its socket is
    /// not seen (P-101). The introduction, which has this nonce and came for the session of this index, is to be told
    /// after.
    pub fn handle_flow_passing(&mut self, now: Time, flow: FlowTuple, index: u32, nonce: u64) {
        self.act(now, |roles, at| roles.gateway.handle_flow_passing(flow, index, nonce, at));
    }

    /// A host behind this one has opened a connection, which has been answered: this router has seen both.
    pub fn handle_passing_opened(&mut self, now: Time, flow: FlowTuple) {
        self.act(now, |roles, at| roles.gateway.handle_passing_opened(flow, at));
    }

    /// The configured rendezvous, and how they stand.
    #[must_use]
    pub fn rendezvous(&self) -> Vec<RendezvousView> {
        self.roles.rendezvous.rendezvous(&self.binding, &self.base)
    }

    /// What a name server has answered that was [asked](crate::AddressOp::LookUp) for the name of the host with this
    /// key. It is tried, and not believed (P-217).
    pub fn handle_named(&mut self, now: Time, key: &PublicKey, addresses: &[IpAddr]) {
        self.act(now, |roles, at| roles.rendezvous.handle_named(key, addresses, at));
    }

    /// A datagram came to the control port of an address that this host stands in for.
    pub fn handle_intercepted(&mut self, now: Time, address: IpAddr, source: SocketAddr, datagram: &[u8]) {
        self.act(now, |roles, at| roles.rendezvous.handle_intercepted(address, source, datagram, at));
    }

    /// An address that this host stands in for is somebody's, or on none of its links: it is given up (P-62).
    pub fn stand_aside(&mut self, address: IpAddr, reason: NeighbourProxyStatus) {
        self.act(self.settled, |roles, at| roles.rendezvous.stand_aside(address, reason, at));
    }

    /// Addresses that this host stands in for.
    pub fn stands_in_for(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.roles.rendezvous.stands_in_for()
    }

    /// Hosts that are registered here as wanting to be met, and pairs of them that could meet now.
    #[must_use]
    pub fn meetings(&self) -> (usize, usize) {
        self.roles.rendezvous.meetings()
    }

    /// Asks a peer, now and once, on the path in use; [`PeerView::ping`](crate::PeerView::ping) tells what comes of it.
    /// Tells whether that is possible: there is a session, and a way. Where there is none but a way, one is begun.
    /// Where the question before was asked in vain, it is found out as well whether what goes to the peer arrives.
    pub fn ping(&mut self, now: Time, id: PeerId) -> bool {
        let ping = self.binding.path().paths(&id).and_then(Paths::ping);
        if ping.is_some_and(|ping| ping.is_unanswered()) {
            self.binding.check_soon(now, id, &mut self.base);
        }
        let asked = self.binding.path_mut().ping(now, id, &mut self.base);
        if !asked && self.binding.path().paths(&id).is_some_and(|paths| paths.attachment().is_some()) {
            self.binding.path_mut().start_handshake_with(now, id, &mut self.base);
        }
        self.settle(now);
        asked
    }

    /// Asks an address whether it runs Whimbrel, whether or not a connection waits for that, and though it may have
    /// been asked in vain before. Tells whether that may be; [`Node::standing`] tells what comes of it.
    pub fn ask_address(&mut self, now: Time, address: IpAddr) -> bool {
        let may = self.binding.session().may_ask(address, &self.base);
        if may {
            self.binding.session_mut().ask_by_hand(now, address, &mut self.base);
            self.settle(now);
        }
        may
    }

    /// How many questions have gone out to an address that is being asked.
    #[must_use]
    pub fn questions_to(&self, address: IpAddr) -> Option<u32> {
        match self.binding.session().contacts().get(&address)? {
            Contact::Asking { sent, .. } => Some(sent),
            Contact::Known(_) | Contact::Silent { .. } => None,
        }
    }

    /// Who has answered at an address, and whether there is a session with that peer.
    #[must_use]
    pub fn known_at(&self, address: IpAddr) -> Option<(PeerId, bool)> {
        match self.binding.session().contacts().get(&address)? {
            Contact::Known(id) => Some((id, self.binding.session().has_session(id))),
            Contact::Asking { .. } | Contact::Silent { .. } => None,
        }
    }

    /// The endpoint of a peer, and what came of the last question by hand; `None`: it is not known any more.
    #[must_use]
    pub fn last_ping(&self, id: PeerId) -> Option<(SocketAddr, Option<Ping>)> {
        self.binding.path().paths(&id).map(|paths| (paths.remote(), paths.ping()))
    }

    /// What is known of whether an address runs Whimbrel.
    #[must_use]
    pub fn standing(&self, address: IpAddr) -> Standing {
        self.binding.session().standing(address, &self.base)
    }
}
