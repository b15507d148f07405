//! A peer is reached by another of this host's networks than the routes say: a role has found the one that they lead to
//! silent (P-231), or the user's file selects it (P-237).

use std::time::Duration;

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::binding::BindingLayer;
use crate::flow::peers::Away;
use crate::path::paths::{Choice, Paths, Wants};

/// What is found silent, and for how long nothing came by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub of: Attachment,
    pub lasts: Duration,
}

impl BindingLayer {
    /// Whether something depends on the paths to a peer, and this host may say so.
    pub(crate) fn depends_on_paths(&self, id: PeerId, base: &Base) -> bool {
        let Some(peer) = bound!(self, &id) else { return false };
        let is_there = peer.has_session() && peer.flow.away() != Some(Away::Announced);
        !peer.flow.flows().is_empty() && is_there && !base.is_suspended()
    }

    /// Has a path be kept ready to a peer by each network beside the one in use, or not any longer.
    pub(crate) fn keep_all(&mut self, now: Time, id: PeerId, keep: bool, base: &mut Base) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if std::mem::replace(&mut peer.keeps_all, keep) != keep {
            self.keep_ready(now, id, base);
        }
    }

    /// Nothing comes by the path in use, for so long, and the peer answers by another: its flows go by that.
    pub(crate) fn leave_silent(&mut self, now: Time, id: PeerId, wants: Wants, silence: Silence, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.path.choose(Choice { wants: Some(wants), ..peer.path.choice() });
        let flows = peer.flow.flows().len();
        let (Silence { of, lasts }, to) = (silence, wants.prefer.address);
        base.event(Event::NetworkSilent { peer: id, from: of.address, to, silent: lasts, flows });
        self.arrive(now, id, wants.prefer, None, base);
        self.keep_ready(now, id, base);
        self.refresh_sets(base);
    }

    /// The network that was left answers again: the peer's flows go by it, make before break, and as the routes say.
    pub(crate) fn come_back_to(&mut self, now: Time, id: PeerId, to: Attachment, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.path.choose(Choice { wants: None, ..peer.path.choice() });
        if base.attachments().is_current(&to) && peer.path.attachment() != Some(to) {
            self.go_to(now, id, to, base);
        }
    }

    /// The user's file selects this attachment for a peer: its flows go by that, make before break, as long as this
    /// host has it and it leads there (P-237).
    pub(crate) fn select(&mut self, now: Time, id: PeerId, to: Attachment, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let choice = peer.path.choice();
        if choice.selected == Some(to) && peer.path.attachment() == Some(to) {
            return;
        }
        let natural = peer.path.elsewhere().or(peer.path.attachment());
        let natural = natural.filter(|natural| natural.link != to.link && natural.link.leads_out());
        peer.path.choose(Choice { selected: Some(to), natural, ..choice });
        self.go_to(now, id, to, base);
    }

    /// The user's file selects nothing for a peer any more: its flows go where the routes lead, unless they were moved
    /// by hand.
    pub(crate) fn select_nothing(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let choice = peer.path.choice();
        if choice.selected.is_none() {
            return;
        }
        let natural = peer.path.elsewhere().filter(|_| choice.preferred.is_none());
        peer.path.choose(Choice { selected: None, natural: choice.natural.filter(|_| natural.is_none()), ..choice });
        if let Some(natural) = natural {
            self.go_to(now, id, natural, base);
        }
    }

    /// The peer's flows go by another attachment, make before break.
    fn go_to(&mut self, now: Time, id: PeerId, to: Attachment, base: &mut Base) {
        let at = self.flow.path().paths(&id).and_then(Paths::attachment);
        if base.attachments().is_current(&to) && at != Some(to) {
            let meanwhile = self.present_path(id);
            self.arrive(now, id, to, meanwhile, base);
        }
        self.keep_ready(now, id, base);
        self.refresh_sets(base);
    }

    /// Nothing is wanted of the way to a peer any more.
    pub(crate) fn want_nothing(&mut self, id: PeerId) {
        if let Some(peer) = bound_mut!(self, &id) {
            peer.path.choose(Choice { wants: None, ..peer.path.choice() });
        }
    }
}
