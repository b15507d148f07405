//! Ways to a peer: which are confirmed, and which are shared with others.

use crate::path::shared::Sightings;
use crate::session::SessionLayer;

pub(crate) mod challenge;
mod send;
pub(crate) mod shared;
pub(crate) mod shown;

/// Where peers are, and what is sent to them there.
pub(crate) struct PathLayer {
    pub(crate) session: SessionLayer,
    /// Who was seen at which address, and which several hosts share.
    pub(crate) sightings: Sightings,
}

impl PathLayer {
    pub(crate) fn new(session: SessionLayer) -> Self {
        Self { session, sightings: Sightings::default() }
    }
}
