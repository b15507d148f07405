//! Captures of emulated links in pcap format with nanoseconds (draft-ietf-opsawg-pcap), for tcpdump and Wireshark.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A capture file being written.
#[derive(Debug)]
pub(crate) struct Pcap(BufWriter<File>);

impl Pcap {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        // Magic for nanoseconds, version 2.4, zone and accuracy 0, whole frames, LINKTYPE_ETHERNET.
        out.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&65_535_u32.to_le_bytes())?;
        out.write_all(&1_u32.to_le_bytes())?;
        Ok(Self(out))
    }

    pub(crate) fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = (frame.len() as u32).to_le_bytes();
        self.0.write_all(&(t.as_secs() as u32).to_le_bytes())?;
        self.0.write_all(&t.subsec_nanos().to_le_bytes())?;
        self.0.write_all(&len)?;
        self.0.write_all(&len)?;
        self.0.write_all(frame)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
