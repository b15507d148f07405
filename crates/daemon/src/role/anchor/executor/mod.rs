//! What the role asks of the kernel.

pub(crate) mod lender;
pub(crate) mod tenant;
pub(crate) mod young;
