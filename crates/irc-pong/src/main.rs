//! A migration helper for servers of IRC (RFC 1459, 2812): answers PING for a client that is away, and nothing else.
//!
//! It is handed what the server sends to the client on standard input, in pieces that end anywhere, and what it writes
//! to standard output reaches the server as the client's (docs/helpers.md). The client gets all of it when it is back,
//! the PINGs as well; answers to those come late and do no harm.

use std::io::{self, Read, Write};

/// Longer than any line may be: tags of 8191 bytes (IRCv3) and a message of 512.
const LONGEST: usize = 8704;

fn main() -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let mut lines = Lines::default();
    let mut piece = [0; 4096];
    loop {
        let read = match stdin.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut answers = Vec::new();
        lines.add(&piece[..read], |line| answers.extend(answer(line).into_iter().flatten()));
        // Whole answers at once: the client may be back in the middle of two.
        stdout.write_all(&answers)?;
        stdout.flush()?;
    }
}

/// Lines out of pieces.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    /// The line is longer than any of IRC: the rest of it is passed over.
    too_long: bool,
}

impl Lines {
    /// Gives each line that is complete now, without its end.
    fn add(&mut self, piece: &[u8], mut receiver: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (line, ends) = part.strip_suffix(b"\n").map_or((part, false), |line| (line, true));
            if self.begun.len() + line.len() > LONGEST {
                self.too_long = true;
                self.begun.clear();
            }
            if !self.too_long {
                self.begun.extend_from_slice(line);
            }
            if ends {
                if !std::mem::take(&mut self.too_long) {
                    receiver(self.begun.strip_suffix(b"\r").unwrap_or(&self.begun));
                }
                self.begun.clear();
            }
        }
    }
}

/// What the client would answer: to `PING :x` it is `PONG :x`.
fn answer(line: &[u8]) -> Option<Vec<u8>> {
    let mut rest = line;
    // Tags, and who says it.
    for mark in [b'@', b':'] {
        if rest.first() == Some(&mark) {
            let end = rest.iter().position(|byte| *byte == b' ')?;
            rest = rest[end..].trim_ascii_start();
        }
    }
    let (command, parameters) = rest.split_at_checked(4)?;
    if !command.eq_ignore_ascii_case(b"PING") || parameters.first() != Some(&b' ') {
        return None;
    }
    Some([b"PONG", parameters, b"\r\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(pieces: &[&[u8]]) -> String {
        let (mut lines, mut said) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.add(piece, |line| said.extend(answer(line).into_iter().flatten()));
        }
        String::from_utf8(said).expect("text")
    }

    #[test]
    fn ping_is_answered_wherever_the_pieces_end() {
        let stream =
            b":a!b@c PRIVMSG #d :PING :no\r\nPING :irc.example\r\nPING other\r\n@time=1 :irc.example PING :tagged\r\n";
        let expected = "PONG :irc.example\r\nPONG other\r\nPONG :tagged\r\n";
        for size in 1..=stream.len() {
            let pieces: Vec<&[u8]> = stream.chunks(size).collect();
            assert_eq!(answers(&pieces), expected, "pieces of {size}");
        }
    }

    #[test]
    fn nothing_else_is_answered() {
        let stream = b"\r\n\n:irc.example\r\nPINGS :x\r\nPING\r\nPONG :x\r\n:x PONG PING :x\r\n@tags\r\nNOTICE * :PING :x\r\nping :x";
        assert_eq!(answers(&[stream]), "");
        // The end of a line that was not there makes it one.
        assert_eq!(answers(&[stream, b"\n"]), "PONG :x\r\n");
    }

    #[test]
    fn a_line_that_is_no_line_of_irc_is_passed_over() {
        let long = vec![b'x'; 3 * LONGEST];
        assert_eq!(answers(&[&long, b" PING :no\r\nPING :yes\r\n"]), "PONG :yes\r\n");
        assert_eq!(answers(&[b"PING :", &long[..LONGEST], b"\r\nPING :y\r\n"]), "PONG :y\r\n");
    }
}
