//! An initramfs: a cpio archive of the "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst).
//! Written here so that its files belong to root whoever makes it.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;

/// An archive that is being written.
#[derive(Debug)]
pub(crate) struct Archive<W: Write> {
    out: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// A directory; its parent has to stand before it.
    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY, &[])
    }

    /// A file that may be executed.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, PROGRAM, content)
    }

    pub(crate) fn symlink(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.entry(path, SYMLINK, to.as_bytes())
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let name = path.trim_start_matches('/');
        let length = u32::try_from(content.len()).map_err(|_| io::Error::other("larger than cpio's 4 GiB"))?;
        let name_length = u32::try_from(name.len() + 1).map_err(|_| io::Error::other("a path without end"))?;
        // inode, mode, uid, gid, links, time, size, device (2), special device (2), length of the name, checksum
        let fields = [self.inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    /// Everything begins at a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..bytes.len().wrapping_neg() % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_newc_format() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("/etc").unwrap();
        archive.file("/etc/a", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.len() % 4, 0);
        // 110 bytes of header and "etc\0" make 114, padded to 116
        assert_eq!(&text[..14], "07070100000001");
        assert_eq!(&text[110..116], "etc\0\0\0");
        assert_eq!(&text[116..122], "070701");
        assert!(text.contains("etc/a\0") && text.contains("hello\0\0\0") && text.contains("TRAILER!!!\0"));
    }
}
