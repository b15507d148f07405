//! Why something does not come about.

use whimbrel_datapath as datapath;
use whimbrel_tunnel::PathError;
use whimbrel_wire::FlowTuple;

use crate::community_file::CommunityFileError;
use crate::journal::JournalError;
use crate::known_keys::KnownKeysError;

/// Why an effect did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    #[error(transparent)]
    Kernel(#[from] whimbrel_kernel::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    KnownKeys(#[from] KnownKeysError),
    #[error(transparent)]
    Community(#[from] CommunityFileError),
    #[error(transparent)]
    Tunnel(#[from] PathError),
    #[error("{0} has no socket any more")]
    NoSocket(FlowTuple),
    #[error("interface {0} is not watched over")]
    Unwatched(u32),
    #[error("{0}")]
    NoThread(String),
}
