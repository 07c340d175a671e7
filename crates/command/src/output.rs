//! Where a command's output goes, and what of it reaches a terminal.
//!
//! Names of datasets, properties, files and devices come from pools, which anybody may have made. On a
//! terminal their escape sequences would move the cursor, change the title or feed the keyboard buffer.
//! So [`Output`] writes control characters to a terminal as `ls -b` does (`\033`), and leaves files and
//! pipes what they get. Line ends and tabs pass, for the commands themselves write them. What a command
//! itself draws with escape sequences, and contents of files that were asked for, go past this
//! ([`Output::raw`]); names that are part of a drawing go through [`printable`] first.
//!
//! Escaped are: the control characters of ASCII, DEL, the control characters of Latin-1 (U+0080 to U+009F, which
//! terminals take for the beginnings of sequences as well), and bytes that are not UTF-8.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

/// Bytes that are collected before they are sent, where a command writes many short lines.
const BUFFER: usize = 64 << 10;

/// A stream of output.
pub struct Output {
    to: Box<dyn Write + Send>,
    terminal: bool,
    /// Carriage returns pass.
    returns: bool,
    /// The beginning of a character whose other bytes have not come yet.
    part: Vec<u8>,
}

impl Output {
    /// Output to `to`, which is or leads to a terminal, or does not.
    pub fn new(to: Box<dyn Write + Send>, terminal: bool) -> Output {
        Output { to, terminal, returns: false, part: Vec::new() }
    }

    /// The stream itself, for what is to arrive as it is.
    pub fn raw(&mut self) -> &mut (dyn Write + Send) {
        &mut *self.to
    }

    /// From now on carriage returns pass, for a command whose progress begins its line again and again.
    pub fn pass_returns(&mut self) {
        self.returns = true;
    }

    /// Writes a name: to a terminal in one line.
    pub fn write_name(&mut self, name: &[u8]) -> io::Result<()> {
        match self.terminal {
            true => self.write_all(printable_bytes(name).as_bytes()),
            false => self.write_all(name),
        }
    }

    /// From now on many short writes become few.
    pub fn buffer(&mut self) {
        let to = std::mem::replace(&mut self.to, Box::new(io::sink()));
        self.to = Box::new(BufWriter::with_capacity(BUFFER, to));
    }

    /// For `write!`, as [`Write::write_fmt`].
    ///
    /// # Errors
    /// Errors of writing.
    pub fn write_fmt(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        Write::write_fmt(self, text)
    }

    /// As [`Write::write_all`].
    ///
    /// # Errors
    /// Errors of writing.
    pub fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        Write::write_all(self, data)
    }

    /// As [`Write::flush`].
    ///
    /// # Errors
    /// Errors of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        Write::flush(self)
    }

    /// Writes what is left of a character that never became whole.
    fn finish_part(&mut self) -> io::Result<()> {
        let part = std::mem::take(&mut self.part);
        match part.is_empty() {
            true => Ok(()),
            false => self.to.write_all(escaped(&part, self.returns).as_bytes()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if !self.terminal {
            return self.to.write(data);
        }
        let mut whole = std::mem::take(&mut self.part);
        whole.extend_from_slice(data);
        let (text, rest) = escaped_but_end(&whole, self.returns);
        self.part = rest.to_vec();
        self.to.write_all(text.as_bytes())?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.finish_part()?;
        self.to.flush()
    }
}

/// `text` with its control characters escaped, line ends and tabs as well.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => push(c, false, &mut out),
        }
    }
    out
}

/// As [`printable`], of a name that may not be UTF-8.
pub fn printable_bytes(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        out.push_str(&printable(chunk.valid()));
        chunk.invalid().iter().for_each(|b| octal(*b, &mut out));
    }
    out
}

fn push(c: char, returns: bool, out: &mut String) {
    match c {
        '\r' if returns => out.push(c),
        '\n' | '\t' => out.push(c),
        c if c.is_control() => {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().for_each(|b| octal(b, out));
        }
        c => out.push(c),
    }
}

fn octal(byte: u8, out: &mut String) {
    // Writing to a string does not fail.
    let _ = write!(out, "\\{byte:03o}");
}

/// What a terminal gets of `data`.
fn escaped(data: &[u8], returns: bool) -> String {
    let mut out = String::with_capacity(data.len());
    for chunk in data.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push(c, returns, &mut out));
        chunk.invalid().iter().for_each(|b| octal(*b, &mut out));
    }
    out
}

/// As [`escaped`], without the beginning of a character at the end, whose other bytes may come yet.
fn escaped_but_end(data: &[u8], returns: bool) -> (String, &[u8]) {
    let tail = data.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let unfinished = std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none());
    let later = if unfinished { tail.len() } else { 0 };
    let (now, later) = data.split_at(data.len() - later);
    (escaped(now, returns), later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(data);
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(terminal: bool, pieces: &[&[u8]]) -> Vec<u8> {
        let sink = Sink::default();
        let mut out = Output::new(Box::new(sink.clone()), terminal);
        for piece in pieces {
            out.write_all(piece).unwrap();
        }
        out.flush().unwrap();
        let got = sink.0.lock();
        got.clone()
    }

    const HOSTILE: &[u8] = "a\u{1b}]0;title\u{7}\tä\u{9b}2J\r\u{7f}日\n".as_bytes();

    #[test]
    fn terminals_get_no_control_characters() {
        let text = String::from_utf8(shown(true, &[HOSTILE])).unwrap();
        assert_eq!(text, "a\\033]0;title\\007\tä\\302\\2332J\\015\\177日\n");
        assert_eq!(shown(false, &[HOSTILE]), HOSTILE);
        assert_eq!(shown(true, &[b"\xff\x9b1m"]), b"\\377\\2331m");
    }

    #[test]
    fn wherever_the_text_is_cut() {
        let whole = shown(true, &[HOSTILE]);
        for at in 0..HOSTILE.len() {
            assert_eq!(shown(true, &[&HOSTILE[..at], &HOSTILE[at..]]), whole, "{at}");
        }
        let bytes: Vec<&[u8]> = HOSTILE.chunks(1).collect();
        assert_eq!(shown(true, &bytes), whole);
        // A character that never becomes whole.
        assert_eq!(shown(true, &["日".as_bytes()[..2].into(), b"x"]), b"\\346\\227x");
        assert_eq!(shown(true, &[&"日".as_bytes()[..2]]), b"\\346\\227");
    }

    #[test]
    fn names_are_one_line() {
        assert_eq!(printable("a\nb\tc\u{1b}"), "a\\nb\\tc\\033");
        assert_eq!(printable_bytes(b"\xffa\n"), "\\377a\\n");
        assert_eq!(printable("größe 日"), "größe 日");
    }

    #[test]
    fn what_is_raw_stays_raw() {
        let sink = Sink::default();
        let mut out = Output::new(Box::new(sink.clone()), true);
        out.buffer();
        out.raw().write_all(b"\x1b[1m").unwrap();
        out.write_all(b"\x1b").unwrap();
        out.flush().unwrap();
        assert_eq!(*sink.0.lock(), b"\x1b[1m\\033");
        out.write_all(b"\r").unwrap();
        out.pass_returns();
        out.write_all(b"\r\x08").unwrap();
        out.flush().unwrap();
        assert!(sink.0.lock().ends_with(b"\\015\r\\010"));
    }
}
