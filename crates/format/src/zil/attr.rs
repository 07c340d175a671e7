//! Attributes and ACLs in records.

use crate::encode::EncodeError;
use crate::{ByteOrder, Bytes, DecodeError, Result};

const WHAT: &str = "attributes in an intent log record";
/// Bytes of the fields after the bitmap (`lr_attr_end_t`): attributes, time of creation, scan stamp.
const END: usize = 8 + 16 + 32;
/// No version of the format has more words of attributes.
const MAX_WORDS: usize = 64;

/// `lr_attr_t` and `lr_attr_end_t`: attributes beyond those that every file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xvattr {
    /// Which ones are set (`xva_reqattrmap`).
    pub requested: Vec<u32>,
    /// Values of those that are flags (`XAT0_*`).
    pub flags: u64,
    /// Time of creation: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// The virus scanner's stamp, or the project number in the first eight bytes, little-endian.
    pub scanstamp: [u8; 32],
}

impl Xvattr {
    /// Bit of the first word of `requested`: the stamp is the project number (`XAT_PROJID`).
    pub const PROJECT: u32 = 0x4_0000;

    /// Decodes at `at`; returns the offset of what follows too.
    pub(super) fn decode(b: &Bytes<'_>, at: usize) -> Result<(Xvattr, usize)> {
        let words = b.u32(at)? as usize;
        if words == 0 || words > MAX_WORDS {
            return Err(DecodeError::invalid(WHAT, format!("{words} words of attributes")));
        }
        let requested = (0..words).map(|i| b.u32(at + 4 + 4 * i)).collect::<Result<Vec<_>>>()?;
        let end = at + 4 + 4 * words;
        let [flags, seconds, nanoseconds] = b.u64s(end)?;
        let mut scanstamp = [0; 32];
        scanstamp.copy_from_slice(b.slice(end + 24, 32)?);
        // A stamp is bytes. A project is a number of the machine that wrote it.
        if b.order() == ByteOrder::Big && requested.first().is_some_and(|w| w & Self::PROJECT != 0)
        {
            scanstamp[..8].reverse();
        }
        let crtime = [seconds, nanoseconds];
        Ok((Xvattr { requested, flags, crtime, scanstamp }, end + END))
    }

    /// Appends what [`Xvattr::decode`] reads.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> std::result::Result<(), EncodeError> {
        let words = self.requested.len();
        if words == 0 || words > MAX_WORDS {
            let why = format!("{words} words of attributes");
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        out.extend((words as u32).to_le_bytes());
        out.extend(self.requested.iter().flat_map(|w| w.to_le_bytes()));
        let [seconds, nanoseconds] = self.crtime;
        out.extend([self.flags, seconds, nanoseconds].iter().flat_map(|w| w.to_le_bytes()));
        out.extend(self.scanstamp);
        Ok(())
    }
}

/// An ACL with the FUIDs and domains that it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl<'a> {
    /// Byte order of the record, and so of the entries.
    pub order: ByteOrder,
    /// Number of entries.
    pub count: u64,
    /// Flags of the whole (`VSA_ACE_ACLFLAGS`).
    pub flags: u64,
    /// The entries ([`Ace::decode_logged`](crate::acl::Ace::decode_logged)).
    pub aces: &'a [u8],
    /// FUIDs of the log's own that stand for ephemeral ids of the entries.
    pub fuids: Vec<u64>,
    /// Names of the domains of the FUIDs.
    pub domains: Vec<&'a [u8]>,
}

/// The five words before an ACL.
pub(super) struct AclSizes {
    count: u64,
    domains: u64,
    fuids: u64,
    bytes: u64,
    flags: u64,
}

impl AclSizes {
    pub(super) fn decode(b: &Bytes<'_>, at: usize) -> Result<AclSizes> {
        let [count, domains, fuids, bytes, flags] = b.u64s(at)?;
        Ok(AclSizes { count, domains, fuids, bytes, flags })
    }
}

impl<'a> Acl<'a> {
    /// Bytes of the words that say how long the parts are.
    pub(super) const SIZES: usize = 40;

    /// Decodes what `sizes` says from `at`; returns the offset of what follows too.
    pub(super) fn decode(b: &Bytes<'a>, at: usize, sizes: &AclSizes) -> Result<(Acl<'a>, usize)> {
        let aces = b.counted(at, sizes.bytes, 1)?;
        let at = at + aces.len().next_multiple_of(8);
        let all = b.counted(at, sizes.fuids, 8)?.len();
        let fuids = (at..at + all).step_by(8).map(|at| b.u64(at)).collect::<Result<Vec<_>>>()?;
        let (domains, at) = strings(b, at + all, sizes.domains)?;
        let (order, count, flags) = (b.order(), sizes.count, sizes.flags);
        Ok((Acl { order, count, flags, aces, fuids, domains }, at))
    }

    pub(crate) fn sizes(&self) -> [u64; 5] {
        let len = |n: usize| n as u64;
        let (domains, fuids) = (len(self.domains.len()), len(self.fuids.len()));
        [self.count, domains, fuids, len(self.aces.len()), self.flags]
    }

    /// Appends the parts after the sizes.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) -> std::result::Result<(), EncodeError> {
        out.extend(self.aces);
        out.resize(out.len() + self.aces.len().next_multiple_of(8) - self.aces.len(), 0);
        out.extend(self.fuids.iter().flat_map(|f| f.to_le_bytes()));
        self.domains.iter().try_for_each(|domain| push_string(out, domain))
    }
}

/// The bytes from `at` up to a zero, and the offset after the zero.
pub(super) fn string<'a>(b: &Bytes<'a>, at: usize) -> Result<(&'a [u8], usize)> {
    let rest = b.rest(at)?;
    match rest.iter().position(|byte| *byte == 0) {
        Some(len) => Ok((b.slice(at, len)?, at + len + 1)),
        None => Err(DecodeError::invalid("intent log record", "a name without an end")),
    }
}

/// `count` strings one after another.
pub(super) fn strings<'a>(
    b: &Bytes<'a>,
    mut at: usize,
    count: u64,
) -> Result<(Vec<&'a [u8]>, usize)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let (s, next) = string(b, at)?;
        found.push(s);
        at = next;
    }
    Ok((found, at))
}

/// Appends a string with a zero after it.
///
/// Errors: it has a zero in it.
pub(crate) fn push_string(out: &mut Vec<u8>, s: &[u8]) -> std::result::Result<(), EncodeError> {
    if s.contains(&0) {
        return Err(EncodeError::unrepresentable("intent log record", "a name with a zero in it"));
    }
    out.extend(s);
    out.push(0);
    Ok(())
}
