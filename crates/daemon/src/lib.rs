//! The event loop: carries out what the protocol asks for.
