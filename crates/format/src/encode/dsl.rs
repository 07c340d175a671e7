//! The Dataset and Snapshot Layer's bonus buffers and ZAP values (`dsl_dir_phys_t`, `dsl_dataset_phys_t`,
//! `dsl_deadlist_phys_t`, `bpobj_phys_t`, `zfs_bookmark_phys_t`).
//!
//! All are words of 64 bits, in the order in which OpenZFS declares them. Bonus buffers end in zeros up to a fixed
//! length: 256 bytes for a directory, 320 for a dataset or a deadlist. A bpobj has four lengths, and the
//! value of a bookmark two, by the features that they were made with.
//!
//! Invariant: a field that a shorter form has no place for must be zero; otherwise encoding it is an error.

use super::{EncodeError, Result, push_words, words};
use crate::dsl::{BookmarkPhys, BpobjPhys, DeadlistPhys, DslDatasetPhys, DslDirPhys};

/// Bytes of a `dsl_dir_phys_t`.
pub const DIR_SIZE: usize = 256;
/// Bytes of a `dsl_dataset_phys_t`.
pub const DATASET_SIZE: usize = 320;
/// Bytes of a `dsl_deadlist_phys_t`.
pub const DEADLIST_SIZE: usize = 320;
/// Words of a bookmark of version 1.
pub const BOOKMARK_WORDS_V1: usize = 3;
/// Words of a bookmark of version 2 (feature `bookmark_v2`).
pub const BOOKMARK_WORDS_V2: usize = 12;

impl DslDirPhys {
    /// The bonus buffer of 256 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let [head, snaps, child, child_reserved, refreserved] = self.used_breakdown;
        let fields = [
            self.creation_time,
            self.head_dataset,
            self.parent,
            self.origin,
            self.children,
            self.used,
            self.compressed,
            self.uncompressed,
            self.quota,
            self.reserved,
            self.props,
            self.deleg,
            self.flags,
            head,
            snaps,
            child,
            child_reserved,
            refreserved,
            self.clones,
        ];
        words(&fields, DIR_SIZE)
    }
}

impl DslDatasetPhys {
    /// The bonus buffer of 320 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(DATASET_SIZE);
        let fields = [
            self.dir,
            self.prev_snap,
            self.prev_snap_txg,
            self.next_snap,
            self.snap_names,
            self.num_children,
            self.creation_time,
            self.creation_txg,
            self.deadlist,
            self.referenced,
            self.compressed,
            self.uncompressed,
            self.unique,
            self.fsid_guid,
            self.guid,
            self.flags,
        ];
        push_words(&mut out, &fields);
        push_words(&mut out, &self.bp.0);
        push_words(&mut out, &[self.next_clones, self.props, self.userrefs]);
        out.resize(DATASET_SIZE, 0);
        out
    }
}

impl DeadlistPhys {
    /// The bonus buffer of 320 bytes.
    pub fn encode(&self) -> Vec<u8> {
        words(&[self.used, self.compressed, self.uncompressed], DEADLIST_SIZE)
    }
}

impl BpobjPhys {
    /// The bonus buffer of `len` bytes: 16 (version 0), 32 (1), 48 (2) or 56 (3).
    /// Errors: another length, or a field that it has no place for and that is not zero.
    pub fn encode(&self, len: usize) -> Result<Vec<u8>> {
        const WHAT: &str = "bpobj";
        let fields = [
            self.entries,
            self.bytes,
            self.compressed,
            self.uncompressed,
            self.subobjs,
            self.num_subobjs,
            self.freed,
        ];
        let (kept, cut) = fields.split_at(fields.len().min(len / 8));
        if !matches!(len, 16 | 32 | 48 | 56) || cut.iter().any(|w| *w != 0) {
            return Err(EncodeError::unrepresentable(WHAT, format!("{self:?} in {len} bytes")));
        }
        Ok(words(kept, len))
    }
}

impl BookmarkPhys {
    /// Whether the bookmark says more than version 1 can: its ZAP value then has 12 words.
    pub fn needs_v2(&self) -> bool {
        self.v2().iter().any(|w| *w != 0)
    }

    /// The words of version 2 that are not in version 1.
    fn v2(&self) -> [u64; BOOKMARK_WORDS_V2 - BOOKMARK_WORDS_V1] {
        [
            self.redaction,
            self.flags,
            self.referenced,
            self.compressed,
            self.uncompressed,
            self.freed,
            self.freed_compressed,
            self.freed_uncompressed,
            self.ivset_guid,
        ]
    }

    /// The words of the ZAP value: [`BOOKMARK_WORDS_V1`] or [`BOOKMARK_WORDS_V2`] of them.
    /// Errors: another number, or version 1 for what [needs version 2](BookmarkPhys::needs_v2).
    pub fn encode(&self, count: usize) -> Result<Vec<u64>> {
        let mut out = vec![self.guid, self.creation_txg, self.creation_time];
        match count {
            BOOKMARK_WORDS_V1 if !self.needs_v2() => Ok(out),
            BOOKMARK_WORDS_V2 => {
                out.extend(self.v2());
                Ok(out)
            }
            _ => {
                Err(EncodeError::unrepresentable("bookmark", format!("{self:?} in {count} words")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteOrder, Bytes};
    use proptest::prelude::*;

    fn encode_words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn b(data: &[u8]) -> Bytes<'_> {
        Bytes::new(data, ByteOrder::Little, "t")
    }

    proptest! {
        #[test]
        fn structures_come_back(words: [u64; 35]) {
            let at = |n: usize, len: usize| {
                let mut v = encode_words(&words[..n]);
                v.resize(len, 0);
                v
            };
            let v = at(19, 256);
            prop_assert_eq!(DslDirPhys::decode(&b(&v)).unwrap().encode(), v.clone());
            let v = at(35, 320);
            prop_assert_eq!(DslDatasetPhys::decode(&b(&v)).unwrap().encode(), v.clone());
            let v = at(3, 320);
            prop_assert_eq!(DeadlistPhys::decode(&b(&v)).unwrap().encode(), v.clone());
            for n in [2, 4, 6, 7] {
                let v = at(n, n * 8);
                prop_assert_eq!(BpobjPhys::decode(&b(&v)).unwrap().encode(n * 8).unwrap(), v.clone());
            }
            for n in [3, 12] {
                let mark = BookmarkPhys::decode(&words[..n]).unwrap();
                prop_assert_eq!(mark.encode(n).unwrap(), &words[..n]);
            }
        }
    }

    #[test]
    fn what_is_cut_off_must_be_zero() {
        let v = encode_words(&[1, 2, 3, 4, 5, 6, 7]);
        let bpobj = BpobjPhys::decode(&Bytes::new(&v, ByteOrder::Little, "t")).unwrap();
        assert!(bpobj.encode(48).is_err() && bpobj.encode(57).is_err());
        let mark = BookmarkPhys::decode(&[1, 2, 3, 0, 1]).unwrap();
        assert!(mark.needs_v2() && mark.encode(3).is_err() && mark.encode(5).is_err());
        assert_eq!(mark.encode(12).unwrap()[..5], [1, 2, 3, 0, 1]);
    }
}
