//! Packet transforms and the chain of a tunnel.
