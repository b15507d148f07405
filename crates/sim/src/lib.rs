//! Deterministic clock and network, for tests of the protocol.
