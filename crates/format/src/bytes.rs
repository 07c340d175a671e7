//! Reading integers out of a byte slice in either byte order, with bounds checked.
//!
//! Invariant: no method panics, whatever the offset; out of bounds is
//! [`DecodeError::Truncated`].

use crate::{DecodeError, Result};

/// Byte order in which a block was written; the `B` bit of a block pointer says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first (x86, arm64).
    Little,
    /// Most significant byte first (SPARC, POWER).
    Big,
}

/// A named byte slice with the byte order of its integers. `what` names the structure in errors.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    data: &'a [u8],
    order: ByteOrder,
    what: &'static str,
}

impl<'a> Bytes<'a> {
    /// A view of `data`, called `what` in errors.
    pub fn new(data: &'a [u8], order: ByteOrder, what: &'static str) -> Self {
        Bytes { data, order, what }
    }

    /// The byte order of the view.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Bytes `at..at + len`.
    pub fn slice(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        let have = self.data.len();
        match at.checked_add(len) {
            Some(end) if end <= have => Ok(&self.data[at..end]),
            Some(need) => Err(DecodeError::Truncated { what: self.what, need, have }),
            None => Err(self.beyond(at, format_args!("{len}"))),
        }
    }

    /// `n` elements of `size` bytes from byte `at` on, where the bytes themselves say how many they are.
    pub fn counted(&self, at: usize, n: u64, size: usize) -> Result<&'a [u8]> {
        let len = usize::try_from(n).ok().and_then(|n| n.checked_mul(size));
        match len {
            Some(len) => self.slice(at, len),
            None => Err(self.beyond(at, format_args!("{n} times {size}"))),
        }
    }

    /// All bytes from byte `at` on.
    pub fn rest(&self, at: usize) -> Result<&'a [u8]> {
        let have = self.data.len();
        let truncated = DecodeError::Truncated { what: self.what, need: at, have };
        self.data.get(at..).ok_or(truncated)
    }

    /// The first `len` bytes: all, if there are fewer.
    pub fn first(&self, len: usize) -> &'a [u8] {
        &self.data[..len.min(self.data.len())]
    }

    /// More bytes than can be numbered.
    fn beyond(&self, at: usize, len: std::fmt::Arguments<'_>) -> DecodeError {
        DecodeError::invalid(self.what, format!("{len} bytes from byte {at} on"))
    }

    /// A view of bytes `at..at + len`, under a new name.
    pub fn sub(&self, at: usize, len: usize, what: &'static str) -> Result<Bytes<'a>> {
        Ok(Bytes { data: self.slice(at, len)?, order: self.order, what })
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut a = [0; N];
        a.copy_from_slice(self.slice(at, N)?);
        Ok(a)
    }

    /// The byte at `at`.
    pub fn u8(&self, at: usize) -> Result<u8> {
        Ok(self.array::<1>(at)?[0])
    }

    /// The 16-bit integer at byte `at`.
    pub fn u16(&self, at: usize) -> Result<u16> {
        let a = self.array(at)?;
        Ok(match self.order {
            ByteOrder::Little => u16::from_le_bytes(a),
            ByteOrder::Big => u16::from_be_bytes(a),
        })
    }

    /// The 32-bit integer at byte `at`.
    pub fn u32(&self, at: usize) -> Result<u32> {
        let a = self.array(at)?;
        Ok(match self.order {
            ByteOrder::Little => u32::from_le_bytes(a),
            ByteOrder::Big => u32::from_be_bytes(a),
        })
    }

    /// The 64-bit integer at byte `at`.
    pub fn u64(&self, at: usize) -> Result<u64> {
        let a = self.array(at)?;
        Ok(match self.order {
            ByteOrder::Little => u64::from_le_bytes(a),
            ByteOrder::Big => u64::from_be_bytes(a),
        })
    }

    /// `N` 64-bit integers from byte `at`.
    pub fn u64s<const N: usize>(&self, at: usize) -> Result<[u64; N]> {
        // One check for all of them: indirect blocks are decoded by way of this.
        let (words, _) = self.slice(at, N * 8)?.as_chunks::<8>();
        let mut out = [0; N];
        for (to, word) in out.iter_mut().zip(words) {
            *to = match self.order {
                ByteOrder::Little => u64::from_le_bytes(*word),
                ByteOrder::Big => u64::from_be_bytes(*word),
            };
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bytes_say_of_their_number_is_not_believed() {
        let b = Bytes::new(&[1, 2, 3, 4, 5], ByteOrder::Little, "test");
        assert_eq!(b.counted(1, 2, 2), Ok(&[2u8, 3, 4, 5][..]));
        assert_eq!(b.counted(5, 0, 8), Ok(&[][..]));
        let short = |need| Err(DecodeError::Truncated { what: "test", need, have: 5 });
        assert_eq!(b.counted(1, 3, 2), short(7));
        // More than can be numbered is said as it is.
        for (at, n, size) in [(1, u64::MAX, 1), (0, u64::MAX, 2), (usize::MAX, 2, 1)] {
            let why = b.counted(at, n, size).unwrap_err().to_string();
            assert!(why.contains(&n.to_string()) || at == usize::MAX, "{why}");
        }
        assert!(b.slice(usize::MAX, 2).is_err());
        assert_eq!((b.rest(3), b.rest(5)), (Ok(&[4u8, 5][..]), Ok(&[][..])));
        assert_eq!(
            b.rest(6).map(<[u8]>::len),
            Err(DecodeError::Truncated { what: "test", need: 6, have: 5 })
        );
        assert_eq!((b.first(2), b.first(9).len()), (&[1u8, 2][..], 5));
    }
}
