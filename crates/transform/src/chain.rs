//! The ordered list of transforms that the packets of a tunnel go through.

use crate::batch::Batch;

/// Why a batch could not be transformed. The packets concerned are gone from the batch, the others remain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transform {transform}: {reason}")]
pub struct TransformError {
    /// [`PacketTransform::name`].
    pub transform: &'static str,
    /// What was wrong.
    pub reason: &'static str,
}

/// One stage of a tunnel, for one direction: each end has one instance that encodes and another that decodes, so that
/// the two directions share no state.
///
/// Order and number of packets may change: a stage may merge, split, drop or add packets, in place where it can. It
/// keeps the batch's rooms before and after each packet ([`Batch`]). A stage may remember, but holds no packet back
/// beyond the end of a batch: whoever waits for it has nothing else to wake it with.
pub trait PacketTransform: Send {
    /// A short name for messages and counters.
    fn name(&self) -> &'static str;

    /// The most bytes that encoding adds to a packet; the inner MTU is lowered by it.
    fn overhead(&self) -> usize;

    /// From inner packets towards the wire.
    ///
    /// # Errors
    /// [`TransformError`] when packets could not be encoded; they are dropped.
    fn encode(&mut self, batch: &mut Batch) -> Result<(), TransformError>;

    /// From the wire towards inner packets; what arrives is not trusted.
    ///
    /// # Errors
    /// [`TransformError`] when packets could not be decoded; they are dropped.
    fn decode(&mut self, batch: &mut Batch) -> Result<(), TransformError>;
}

/// Transforms in the order in which a sender applies them.
#[derive(Default)]
pub struct Chain {
    transforms: Vec<Box<dyn PacketTransform>>,
}

impl Chain {
    /// The chain of the given transforms; chain 0 of the protocol is the empty one.
    #[must_use]
    pub fn new(transforms: Vec<Box<dyn PacketTransform>>) -> Self {
        Self { transforms }
    }

    /// Whether packets pass unchanged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transforms.is_empty()
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.transforms.iter().map(|transform| transform.name())).finish()
    }
}

/// A chain is itself a transform: encoding goes from the first to the last, decoding back.
impl PacketTransform for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn overhead(&self) -> usize {
        self.transforms.iter().map(|transform| transform.overhead()).sum()
    }

    fn encode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
        self.transforms.iter_mut().try_for_each(|transform| transform.encode(batch))
    }

    fn decode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
        self.transforms.iter_mut().rev().try_for_each(|transform| transform.decode(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subtracts on the way out what it adds on the way in, so that order matters together with [`Reverse`].
    struct Shift(u8);
    /// Reverses the order of the packets and drops empty ones.
    struct Reverse;

    impl PacketTransform for Shift {
        fn name(&self) -> &'static str {
            "shift"
        }
        fn overhead(&self) -> usize {
            3
        }
        fn encode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
            let (buffer, spans) = batch.parts_mut();
            for (span, by) in spans.iter().zip(self.0..) {
                buffer[span.range()].iter_mut().for_each(|byte| *byte = byte.wrapping_add(by));
            }
            Ok(())
        }
        fn decode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
            let (buffer, spans) = batch.parts_mut();
            for (span, by) in spans.iter().zip(self.0..) {
                buffer[span.range()].iter_mut().for_each(|byte| *byte = byte.wrapping_sub(by));
            }
            Ok(())
        }
    }

    impl PacketTransform for Reverse {
        fn name(&self) -> &'static str {
            "reverse"
        }
        fn overhead(&self) -> usize {
            0
        }
        fn encode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
            batch.spans_mut().reverse();
            Ok(())
        }
        fn decode(&mut self, batch: &mut Batch) -> Result<(), TransformError> {
            batch.spans_mut().reverse();
            Ok(())
        }
    }

    #[test]
    fn decoding_undoes_encoding_in_reverse_order() {
        let make = || Chain::new(vec![Box::new(Shift(3)), Box::new(Reverse), Box::new(Shift(40))]);
        let (mut sender, mut receiver) = (make(), make());
        let packets: [&[u8]; 3] = [b"one", b"three", b""];
        let mut batch = Batch::new(18, 16);
        packets.iter().for_each(|packet| batch.push_packet(packet));
        sender.encode(&mut batch).unwrap();
        assert_ne!(batch.packets().last(), Some(packets[2]));
        receiver.decode(&mut batch).unwrap();
        assert_eq!(batch.packets().collect::<Vec<_>>(), packets);
        assert_eq!((sender.overhead(), format!("{sender:?}").as_str()), (6, r#"["shift", "reverse", "shift"]"#));
    }
}
