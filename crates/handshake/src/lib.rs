//! Noise sessions: bytes in, bytes out.
