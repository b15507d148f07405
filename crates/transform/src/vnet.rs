//! `struct virtio_net_hdr` (include/uapi/linux/virtio_net.h): what a TUN device with IFF_VNET_HDR puts before a packet.

/// Length of the header as TUN uses it unless TUNSETVNETHDRSZ says otherwise.
pub const VNET_LEN: usize = 10;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum field holds the sum of the pseudo-header only.
pub const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_NONE: a single packet.
pub const GSO_NONE: u8 = 0;
/// VIRTIO_NET_HDR_GSO_TCPV4.
pub const GSO_TCPV4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6.
pub const GSO_TCPV6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4: UDP segmentation (not fragmentation).
pub const GSO_UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN: a flag on the two TCP types, the super-packet has CWR set.
pub const GSO_ECN: u8 = 0x80;

/// The header's fields; on the device they are in native byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`] or 0.
    pub flags: u8,
    /// One of the `GSO_` constants.
    pub gso_type: u8,
    /// Bytes of headers before the payload: a hint, not to be relied on.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksummed bytes begin.
    pub csum_start: u16,
    /// The checksum field's place after `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Reads the header.
    #[must_use]
    pub fn decode(bytes: &[u8; VNET_LEN]) -> Self {
        let at = |i: usize| u16::from_ne_bytes([bytes[i], bytes[i + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: at(2),
            gso_size: at(4),
            csum_start: at(6),
            csum_offset: at(8),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; VNET_LEN] {
        let mut bytes = [0; VNET_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        for (i, value) in [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset].into_iter().enumerate() {
            bytes[2 + 2 * i..4 + 2 * i].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// Whether the checksum field holds only the sum of the pseudo-header.
    #[must_use]
    pub fn needs_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// The GSO type without the ECN flag.
    #[must_use]
    pub fn gso_kind(&self) -> u8 {
        self.gso_type & !GSO_ECN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let header = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV6 | GSO_ECN,
            hdr_len: 60,
            gso_size: 1400,
            csum_start: 40,
            csum_offset: 16,
        };
        assert_eq!(VnetHeader::decode(&header.encode()), header);
        assert_eq!(header.gso_kind(), GSO_TCPV6);
    }
}
