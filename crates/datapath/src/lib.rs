//! Loads the eBPF programs and gives typed access to their maps.
