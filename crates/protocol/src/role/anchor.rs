//! Flows whose address is one host's, and whose socket is another's.

pub(crate) mod referral;
