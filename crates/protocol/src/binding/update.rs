//! A binding update on its way: what it says, where it was sent, and what carries the flows until it is answered.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::Binding;
use crate::base::pace::Prompts;

/// Updates in a row to one address, and before a family is left in which they stay unanswered.
pub(super) const UPDATES_TO_ONE: u32 = 3;
const UPDATES_TO_A_FAMILY: u32 = 6;
/// And for how long, at the least: an answer may take so long, and names the update that it is to.
const IN_A_FAMILY: Duration = Duration::from_secs(2);

/// A binding update of ours that was not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct PendingUpdate {
    pub(super) sequence: u32,
    pub(super) started: Time,
    pub(super) sent: Time,
    pub(super) tries: u32,
    /// How many of these there were when the other address family was gone over to last, and how often it was.
    pub(super) family_since: u32,
    pub(super) changes: u32,
    /// When that was, or the update began.
    pub(super) in_family_since: Time,
    /// It goes back to a family that was left, while the other one carries.
    pub(super) returns: bool,
    /// The path before is gone, and with it what was under way.
    pub(super) lost: bool,
    /// What was under way in the tunnel is lost, since this host's daemon was started anew (P-226).
    pub(super) tunnel_lost: bool,
    /// No flow is at home where we are (P-33).
    pub(super) uprooted: bool,
    /// Flows wait for the answer. Else it only tells a peer that may have forgotten it where we are.
    pub(super) held: bool,
    /// It was given another sequence number already, since the peer knew of a newer one.
    pub(super) corrected: bool,
    /// Where it was sent beside the confirmed endpoint, and the challenge that went along.
    pub(super) asked: Vec<(SocketAddr, u64)>,
    /// The one of these that has answered its challenge.
    pub(super) proven: Option<SocketAddr>,
    /// What carries the flows until the answer is there.
    pub(super) meanwhile: Option<Meanwhile>,
    /// It says that we go away (P-44).
    pub(super) absent: bool,
    /// It said from the start that flows go by the tunnel alone.
    pub(super) only_tunnel: bool,
    /// Repetitions since the peer was heard.
    pub(super) prompts: Prompts,
    /// Masked updates that were sent beside it, and how many of these were answered (P-239).
    pub(super) masked: u32,
    pub(super) masked_seen: u32,
    /// When the last was sent.
    pub(super) masked_at: Time,
}

/// The path that is being left and still works: make before break (P-38).
#[derive(Clone, Debug)]
pub(crate) struct Meanwhile {
    /// Stays in force.
    pub(super) binding: Binding,
    /// What it depends on.
    pub(super) attachment: Attachment,
}

impl PendingUpdate {
    pub(crate) fn new(sequence: u32, now: Time, lost: bool, held: bool) -> Self {
        Self { sequence, started: now, sent: now, in_family_since: now, lost, held, ..Self::default() }
    }

    /// The peer may be there (again): it is asked as at first.
    pub(super) fn begin_again(&mut self, now: Time) {
        (self.tries, self.family_since, self.changes, self.in_family_since) = (0, 0, 0, now);
    }

    /// Whether it has stayed unanswered often and long enough in the family that it is sent in (P-53).
    pub(super) fn has_tried_family(&self, now: Time) -> bool {
        let most = if self.changes == 0 { UPDATES_TO_A_FAMILY } else { UPDATES_TO_ONE };
        self.tries >= self.family_since + most && now.since(self.in_family_since) >= IN_A_FAMILY
    }

    /// The same from an address of the other family.
    pub(super) fn by_other_family(&self, sequence: u32, now: Time) -> Self {
        let &Self { started, tries, lost, tunnel_lost, uprooted, prompts, .. } = self;
        let (family_since, changes) = (tries, self.changes + 1);
        let again = Self::new(sequence, now, lost, true);
        Self { started, tries, family_since, changes, tunnel_lost, uprooted, prompts, ..again }
    }

    /// Which of the addresses of the family in use it goes to, counted on beyond their number: to each so often in a
    /// row, and where the families take turns to the next one in each turn.
    pub(super) fn turn(&self) -> u32 {
        match self.changes {
            0 => self.tries.saturating_sub(1) / UPDATES_TO_ONE,
            // The first family has had two turns before it was left.
            changes if changes % 2 == 0 => UPDATES_TO_A_FAMILY / UPDATES_TO_ONE + changes / 2 - 1,
            changes => (changes - 1) / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_of_either_family_has_its_turn() {
        let mut update = PendingUpdate::new(1, Time::default(), true, true);
        let mut turns = [Vec::new(), Vec::new()];
        let mut now = Time::default();
        for _ in 0..60 {
            now = now + Duration::from_secs(1);
            if update.has_tried_family(now) {
                update = update.by_other_family(2, now);
            }
            update.tries += 1;
            turns[update.changes as usize % 2].push(update.turn());
        }
        for of_family in turns {
            let (first, last) = (of_family[0], of_family[of_family.len() - 1]);
            let expected: Vec<u32> = (first..=last).flat_map(|turn| [turn; UPDATES_TO_ONE as usize]).collect();
            assert_eq!((first, &of_family), (0, &expected), "three to each, and none is passed over");
        }
        update.begin_again(now);
        assert!(!update.has_tried_family(now) && update.turn() == 0);
        update.tries = UPDATES_TO_A_FAMILY;
        assert!(!update.has_tried_family(now + Duration::from_secs(1)), "an answer may be on its way");
        assert!(update.has_tried_family(now + Duration::from_secs(2)), "as at first");
    }
}
