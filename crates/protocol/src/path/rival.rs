//! The other one of two sources of what the peer says while neither has answered: somebody on the way may have sent a
//! copy, and which of the two that is shows by who answers (P-17, P-26).

use std::net::SocketAddr;

use crate::path::challenge::{Path, Rival, Said};
use crate::path::paths::Paths;

impl Paths {
    /// What the peer says came from there as well. Tells whether it is challenged: two are at a time.
    pub(crate) fn contest(&mut self, other: Path, said: Option<Said>) -> bool {
        let room = self.rival.is_none() && self.candidate.is_some();
        if room {
            self.rival = Some(Rival { path: other, said });
        }
        room
    }

    /// Whether there is none yet.
    pub(crate) fn is_uncontested(&self) -> bool {
        self.rival.is_none()
    }

    pub(crate) fn drop_rival(&mut self) {
        self.rival = None;
    }

    /// The challenge to the rival is due again: where to, its token, and how often it was sent then.
    pub(crate) fn try_rival_again(&mut self) -> Option<(SocketAddr, u64, u32)> {
        let path = &mut self.rival.as_mut()?.path;
        let again = path.try_again().map(|(token, tries)| (path.remote, token, tries));
        if again.is_none() {
            self.rival = None;
        }
        again
    }

    /// The endpoint that was challenged with this token has answered; and what the update said, if flows are not led
    /// there by now. Of two sources the first that answers counts, and after it only the one that the update names.
    pub(crate) fn take_answered(&mut self, token: u64) -> Option<(Path, Option<Said>)> {
        if let Some(candidate) = self.candidate.take_if(|candidate| candidate.token == token) {
            self.rival.take_if(|rival| !rival.is_named());
            return Some((candidate, None));
        }
        let Rival { path, said } = self.rival.take_if(|rival| rival.path.token == token)?;
        self.rival = self.candidate.take().map(|path| Rival { path, said }).filter(Rival::is_named);
        Some((path, said))
    }
}
