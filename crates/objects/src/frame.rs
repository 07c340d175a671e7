//! The trailer that ends every structure, and the numbers in them.
//!
//! ```text
//! body | magic 8 | kind 1 | version 1 | zero 2 | length of the body 4 | checksum 16
//! ```
//!
//! All numbers are little-endian; those in bodies are LEB128 unless they say otherwise. The checksum is the first half of BLAKE3
//! over the body and the trailer before it. A decoder refuses other kinds and later versions by name.

use cenote_format::DecodeError;

/// Length of a trailer in bytes.
pub const TRAILER: usize = 32;
const MAGIC: [u8; 8] = *b"cnoteobj";
/// The version that is written, of all kinds.
const VERSION: u8 = 1;

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Table of the blocks of an object.
    Table = 1,
    /// Page of the index.
    Page = 2,
    /// Changes of one group.
    Record = 3,
    /// Directory of the index's pages.
    Directory = 4,
    /// Root of a group.
    Root = 5,
}

impl Kind {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table of an object",
            Self::Page => "page of the index",
            Self::Record => "record of the log",
            Self::Directory => "directory of the index",
            Self::Root => "root",
        }
    }
}

/// The body with its trailer. A body is shorter than 4 GiB.
pub fn seal(kind: Kind, mut body: Vec<u8>) -> Vec<u8> {
    let length = body.len() as u32;
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&[kind as u8, VERSION, 0, 0]);
    body.extend_from_slice(&length.to_le_bytes());
    let sum = blake3::hash(&body);
    body.extend_from_slice(&sum.as_bytes()[..16]);
    body
}

/// Whether these bytes end as a structure of this kind does, of whatever version, and damaged or not.
pub fn ends(kind: Kind, bytes: &[u8]) -> bool {
    let trailer = bytes.len().checked_sub(TRAILER).and_then(|end| bytes.get(end..));
    trailer.is_some_and(|trailer| trailer[..8] == MAGIC && trailer[8] == kind as u8)
}

/// The body of the structure that ends with these bytes, and where it begins.
///
/// # Errors
/// Too short, another kind, a later version, a wrong checksum.
pub fn open(kind: Kind, bytes: &[u8]) -> Result<(usize, &[u8]), DecodeError> {
    let what = kind.name();
    let invalid = |why: String| DecodeError::Invalid { what, why };
    let truncated = |need| DecodeError::Truncated { what, need, have: bytes.len() };
    let end = bytes.len().checked_sub(TRAILER).ok_or_else(|| truncated(TRAILER))?;
    let trailer = &bytes[end..];
    if trailer[..8] != MAGIC {
        return Err(invalid("no trailer where it ends".into()));
    }
    if trailer[8] != kind as u8 {
        return Err(invalid(format!("kind {} in place of {}", trailer[8], kind as u8)));
    }
    if trailer[9] != VERSION {
        return Err(invalid(format!("version {}; this program knows {VERSION}", trailer[9])));
    }
    if trailer[10..12] != [0, 0] {
        return Err(invalid("bytes that must be zero are not".into()));
    }
    let length = u32::from_le_bytes([trailer[12], trailer[13], trailer[14], trailer[15]]) as usize;
    let start = end.checked_sub(length).ok_or_else(|| truncated(length + TRAILER))?;
    if blake3::hash(&bytes[start..end + 16]).as_bytes()[..16] != trailer[16..] {
        return Err(invalid("wrong checksum".into()));
    }
    Ok((start, &bytes[start..end]))
}

/// Appends a number, LEB128.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes after their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A small number for a difference of either sign (wrapping).
pub fn zigzag(number: u64) -> u64 {
    (number << 1) ^ ((number as i64 >> 63) as u64)
}

/// What [`zigzag`] was given.
pub fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Reads a body.
pub struct Cursor<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// At the body's beginning.
    pub fn new(kind: Kind, body: &'a [u8]) -> Self {
        Self { what: kind.name(), rest: body }
    }

    /// An error of this structure.
    pub fn invalid(&self, why: impl Into<String>) -> DecodeError {
        DecodeError::Invalid { what: self.what, why: why.into() }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated {
            what: self.what,
            need: length,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The next byte.
    ///
    /// # Errors
    /// The bytes have ended.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn fixed(&mut self) -> Result<u64, DecodeError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// A number, LEB128.
    ///
    /// # Errors
    /// It ends too early, or does not fit 64 bits.
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.invalid("a number of more than 64 bits"))
    }

    /// A number of at most `most`.
    ///
    /// # Errors
    /// It is larger, or damaged.
    pub fn at_most(&mut self, most: u64) -> Result<u64, DecodeError> {
        let number = self.number()?;
        if number > most {
            return Err(self.invalid(format!("{number} where at most {most} can be")));
        }
        Ok(number)
    }

    /// How many items follow, each of at least one byte.
    ///
    /// # Errors
    /// More than there are bytes.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let most = self.rest.len() as u64;
        Ok(self.at_most(most)? as usize)
    }

    /// Bytes after their length.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn counted(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count()?;
        self.take(length)
    }

    /// Nothing follows.
    ///
    /// # Errors
    /// Something does.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.invalid(format!("{} bytes after its end", self.rest.len())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(number: u64) {
            let mut out = Vec::new();
            put(&mut out, number);
            put(&mut out, zigzag(number));
            let mut cursor = Cursor::new(Kind::Root, &out);
            prop_assert_eq!(cursor.number().unwrap(), number);
            prop_assert_eq!(unzigzag(cursor.number().unwrap()), number);
            cursor.end().unwrap();
        }

        #[test]
        fn a_changed_byte_is_found(body: Vec<u8>, at: prop::sample::Index, by in 1_u8..) {
            let sealed = seal(Kind::Page, body.clone());
            prop_assert_eq!(open(Kind::Page, &sealed).unwrap(), (0, &body[..]));
            prop_assert!(open(Kind::Table, &sealed).is_err());
            let mut damaged = sealed.clone();
            damaged[at.index(sealed.len())] ^= by;
            prop_assert!(open(Kind::Page, &damaged).is_err());
            prop_assert!(open(Kind::Page, &sealed[..sealed.len() - 1]).is_err());
        }
    }
}
