//! Sans-io state machines: peers, paths, bindings, introductions, hand-offs.
