//! Senders that have stopped go on when their peer can be reached again.
//!
//! ```text
//! kick.rs        looks at sockets, and what makes them send again
//! postponed.rs   where very many move to a path that is not confirmed
//! fitting.rs     when the options of sockets are made to fit what has become of their flows
//! windows.rs     what they have, and what those that come back to a network go on with
//! ```

mod fitting;
mod kick;
mod postponed;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use whimbrel_datapath::TcpSocket;
use whimbrel_protocol::{Comeback, PeerId, SendWindows, Time};

use super::Failure;
use crate::work::Work;

use fitting::Fitting;
pub(crate) use fitting::{Passed, pass};
use kick::Kicks;
pub(super) use postponed::FEW;
use postponed::Postponed;
use windows::Comebacks;

/// What is done about senders.
pub(crate) struct Senders {
    pub(super) kicks: Kicks,
    pub(super) postponed: Postponed,
    /// Peers whose flows go on by one of the ops at hand, and whether what they had in flight is lost.
    pub(super) going_on: Vec<(PeerId, bool)>,
    /// Those of them that have lost something, where senders are woken.
    pub(super) spared: BTreeSet<PeerId>,
    pub(super) fitting: Fitting,
    pub(super) passes: Work<Passed>,
    /// Peers whose senders are woken once more after the next pass, and whether what they had in flight is lost.
    pub(super) wake_again: BTreeMap<PeerId, bool>,
    /// Sockets whose options cannot be put back yet.
    pub(super) unfitted: usize,
    /// Senders are woken.
    pub(super) kick: bool,
    /// Peers whose flows are to say what they have.
    pub(super) acknowledging: BTreeSet<PeerId>,
    /// Those that come back to a network.
    comebacks: Comebacks,
}

impl Senders {
    /// `kick`: whether senders are woken; `windows`: whether those that come back go on with what they had.
    pub(super) fn new(kick: bool, windows: bool) -> Result<Self, Failure> {
        Ok(Self {
            kicks: Kicks::default(),
            postponed: Postponed::default(),
            going_on: Vec::new(),
            spared: BTreeSet::new(),
            fitting: Fitting::default(),
            passes: Work::new()?,
            wake_again: BTreeMap::new(),
            unfitted: 0,
            kick,
            acknowledging: BTreeSet::new(),
            comebacks: Comebacks::new(windows),
        })
    }

    /// Whether senders are woken from now on.
    pub(crate) fn set_kick(&mut self, kick: bool) {
        self.kick = kick;
    }

    /// Whether senders that come back to a network go on with what they had there, from now on.
    /// Whether it is of any use to know what senders have.
    pub(super) fn keeps_windows(&self) -> bool {
        self.comebacks.are_wanted()
    }

    pub(crate) fn set_windows(&mut self, windows: bool) {
        self.comebacks.set_wanted(windows);
    }

    /// What senders of one peer have together; they come back to a network, where anything is known of it.
    pub(super) fn turn_windows(
        &mut self,
        senders: &[TcpSocket],
        comeback: Option<&Comeback>,
        since: Duration,
    ) -> Option<SendWindows> {
        self.comebacks.take(senders, comeback, since);
        windows::had(senders)
    }

    /// Readable when a pass over the sockets is over.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.passes.wake()
    }

    /// Takes the passes that are over.
    pub(crate) fn take_passed(&self) -> Vec<Passed> {
        self.passes.take()
    }

    /// The flows of these peers go on by one of the ops at hand.
    pub(super) fn note_going_on(&mut self, peers: Vec<(PeerId, bool)>) {
        // What is lost is the first that the peers lack: little may go to a path that is not confirmed, and senders
        // that were not stopped would use it up with what comes after.
        self.spared = peers.iter().filter(|(_, lost)| *lost && self.kick).map(|(peer, _)| *peer).collect();
        self.going_on = peers;
    }

    /// Whether what may be sent to a peer is kept for what is lost.
    pub(super) fn spares(&self, peer: PeerId) -> bool {
        self.spared.contains(&peer)
    }

    /// A peer is gone.
    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        self.kicks.remove_peer(peer);
        self.postponed.remove(peer);
        self.fitting.want();
    }

    /// The options of sockets may not fit what has become of their flows.
    pub(super) fn want_fitting(&mut self) {
        self.fitting.want();
    }

    /// Flows go other ways.
    pub(super) fn on_routes_changed(&mut self, now: Time) {
        self.fitting.on_routes_changed(now);
    }

    /// Whether a pass goes through endpoint namespaces. `wanted`: there may be something to do.
    pub(super) fn looks_inside(&self, wanted: bool) -> bool {
        self.fitting.looks_inside(wanted)
    }

    /// Whether senders were told a path MTU only to have something sent again.
    pub(super) fn has_told(&self, destination: IpAddr, mtu: u32) -> bool {
        self.kicks.has_told(destination, mtu)
    }

    /// Takes what they were told long enough ago.
    pub(super) fn take_told(&mut self, now: Time) -> BTreeMap<(IpAddr, IpAddr), Vec<u16>> {
        self.kicks.take_told(now)
    }

    /// Whether the options of sockets are not as their programs have set them.
    pub(super) fn leaves_unfitted(&self) -> bool {
        self.unfitted > 0 || self.fitting.is_out()
    }

    /// Takes those whose turn it is, with whether what they had in flight is lost.
    pub(crate) fn take_postponed(&mut self) -> Vec<(PeerId, bool)> {
        self.postponed.take_next()
    }

    /// When there is something to do.
    pub(super) fn timeout(&self) -> Option<Time> {
        let postponed = self.postponed.timeout();
        // A pass over the sockets that is put off is not due meanwhile.
        let fitting = self.fitting.timeout().map(|due| postponed.map_or(due, |until| due.max(until)));
        [self.kicks.timeout(), postponed, fitting].into_iter().flatten().min()
    }
}
