//! Safe wrappers of the system calls that Whimbrel uses.
