//! The secrets with which two ends guard the datagrams of their tunnel (`docs/protocol.md` §1).

use core::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// What a session gives the tunnel.
#[derive(Clone, PartialEq, Eq)]
pub struct TunnelKeys {
    /// Key of sealed datagrams that this end sends.
    pub send: [u8; 32],
    /// Key of sealed datagrams that this end receives.
    pub receive: [u8; 32],
    /// Token of plain datagrams that this end sends.
    pub send_token: u64,
    /// Token of plain datagrams that this end receives.
    pub receive_token: u64,
}

impl Zeroize for TunnelKeys {
    fn zeroize(&mut self) {
        self.send.zeroize();
        self.receive.zeroize();
        self.send_token.zeroize();
        self.receive_token.zeroize();
    }
}

impl Drop for TunnelKeys {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for TunnelKeys {}

impl fmt::Debug for TunnelKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TunnelKeys")
    }
}
