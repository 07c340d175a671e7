//! NFSv4 access control lists: their entries, in the two forms that they have on disk.
//!
//! ```text
//! in a record of the intent log (ace_t, ace_object_t), 12 bytes or 44:
//!   who (32 bits)   permissions (32)   flags (16)   type (16)   two types of objects (16 bytes each)
//! in ZPL_DACL_ACES (zfs_ace_hdr_t, zfs_ace_t, zfs_object_ace_t), 8 bytes, 16 or 48:
//!   type (16 bits)   flags (16)   permissions (32)   who, a FUID (64)   two types of objects
//! ```
//!
//! The flags say whether an entry is about the owner, the owning group, everyone, or a user or group that it names.
//! In a stored list an entry that allows or denies something to one of the first three names no user and is
//! short; entries of other types have the word, as zero. Types of objects are in four types of entries only.
//!
//! Invariant: `decode_stored(encode_stored(x)) == x` for entries that one of the decoders returned.

use crate::{Bytes, DecodeError, Result};

const WHAT: &str = "NFSv4 ACL";
/// Most entries of a list that is set (`MAX_ACL_ENTRIES`).
pub const MAX_ENTRIES: u64 = 1024;
/// Most entries of a stored list: one that was handed down, or outlived a change of the mode, has up to six more, those of the mode.
const MAX_STORED: u64 = MAX_ENTRIES + 6;
/// Bytes of `ace_t` and of `zfs_oldace_t`.
const LOGGED: usize = 12;
/// Bytes of `zfs_ace_hdr_t`.
const HEADER: usize = 8;

/// Types of entries (`ACE_*_ACE_TYPE`).
pub mod kind {
    #![allow(missing_docs)]
    pub const ALLOWED: u16 = 0;
    pub const DENIED: u16 = 1;
    pub const AUDIT: u16 = 2;
    pub const ALARM: u16 = 3;
    /// The first of four with types of objects: allowed, denied, audit, alarm.
    pub const ALLOWED_OBJECT: u16 = 5;
    pub const ALARM_OBJECT: u16 = 8;
    /// The last one that there is.
    pub const ALARM_CALLBACK_OBJECT: u16 = 0x10;
}

/// Flags of entries (`ACE_*`).
pub mod flag {
    #![allow(missing_docs)]
    pub const FILE_INHERIT: u16 = 0x1;
    pub const DIRECTORY_INHERIT: u16 = 0x2;
    pub const NO_PROPAGATE_INHERIT: u16 = 0x4;
    pub const INHERIT_ONLY: u16 = 0x8;
    /// It was handed down.
    pub const INHERITED: u16 = 0x80;
    /// Whom the entry names is a group.
    pub const IDENTIFIER_GROUP: u16 = 0x40;
    pub const OWNER: u16 = 0x1000;
    /// The owning group: both bits.
    pub const OWNING_GROUP: u16 = 0x2000 | IDENTIFIER_GROUP;
    pub const EVERYONE: u16 = 0x4000;
    /// Those that say whom an entry is about (`ACE_TYPE_FLAGS`).
    pub const ABOUT: u16 = OWNER | OWNING_GROUP | EVERYONE;
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// What it does ([`kind`]).
    pub kind: u16,
    /// How it is inherited, and whom it is about ([`flag`]).
    pub flags: u16,
    /// Permissions.
    pub mask: u32,
    /// The user or group that it names: in a record an id, in a stored list a FUID.
    pub who: Option<u64>,
    /// Types of the objects that it is about, and that inherit it.
    pub objects: Option<[u8; 32]>,
}

impl Ace {
    /// Whom it is about: one of [`flag::OWNER`], [`flag::OWNING_GROUP`], [`flag::EVERYONE`],
    /// [`flag::IDENTIFIER_GROUP`] (a group that it names) and 0 (a user).
    pub fn about(&self) -> u16 {
        self.flags & flag::ABOUT
    }

    /// Whether its type has these flags (`zfs_acl_valid_ace_type`).
    pub fn is_known(&self) -> bool {
        use flag::{EVERYONE, IDENTIFIER_GROUP, OWNER, OWNING_GROUP};
        let about = [OWNER, OWNING_GROUP, EVERYONE, IDENTIFIER_GROUP, 0];
        match self.kind {
            kind::ALLOWED..=kind::ALARM => about.contains(&self.about()),
            _ => self.kind <= kind::ALARM_CALLBACK_OBJECT,
        }
    }

    /// Decodes the `count` entries of a record, which fill `b`. `old`: they are as before ZPL version 3
    /// (`zfs_oldace_t`), without types of objects, and up to 7 bytes of padding may follow them.
    ///
    /// # Errors
    /// More or fewer bytes than the entries take; too many entries; unknown types.
    pub fn decode_logged(b: &Bytes<'_>, count: u64, old: bool) -> Result<Vec<Ace>> {
        let (list, end) = decode(b, (count, MAX_ENTRIES), |at| {
            let (flags, kind) = (b.u16(at + 8)?, b.u16(at + 10)?);
            let ace = Ace { kind, flags, mask: b.u32(at + 4)?, who: None, objects: None };
            let who = if names(&ace) { Some(u64::from(b.u32(at)?)) } else { None };
            if old && has_objects(kind) {
                return Err(DecodeError::invalid(WHAT, format!("an old entry of type {kind}")));
            }
            let objects = objects(b, at + LOGGED, kind)?;
            Ok((Ace { who, objects, ..ace }, LOGGED + objects.map_or(0, |o| o.len())))
        })?;
        let padding = if old { 7 } else { 0 };
        match b.rest(end)?.len() <= padding {
            true => Ok(list),
            false => {
                Err(DecodeError::invalid(WHAT, format!("{count} entries in {} bytes", b.len())))
            }
        }
    }

    /// Appends the entry as it is in records.
    pub fn append_logged(&self, out: &mut Vec<u8>) {
        // In entries that name no user, all bits are set.
        out.extend((self.who.unwrap_or(u64::MAX) as u32).to_le_bytes());
        out.extend(self.mask.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        out.extend(self.objects.iter().flatten());
    }

    /// Decodes the `count` entries of a stored list.
    ///
    /// # Errors
    /// They do not lie in `b`; too many entries; unknown types.
    pub fn decode_stored(b: &Bytes<'_>, count: u64) -> Result<Vec<Ace>> {
        let (list, _) = decode(b, (count, MAX_STORED), |at| stored(b, at))?;
        Ok(list)
    }

    /// Decodes those of the `count` entries of a stored list that make sense, up to the end of `b`. Others say nothing of a mode,
    /// and are not handed down (`zfs_mode_compute`, `zfs_acl_inherit`).
    pub fn decode_known(b: &Bytes<'_>, count: u64) -> Vec<Ace> {
        let (mut list, mut at) = (Vec::new(), 0);
        for _ in 0..count {
            let Ok((ace, len)) = stored(b, at) else { break };
            if ace.is_known() {
                list.push(ace);
            }
            at += len;
        }
        list
    }

    /// Appends the entry as it is in stored lists.
    pub fn append_stored(&self, out: &mut Vec<u8>) {
        out.extend(self.kind.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.mask.to_le_bytes());
        if !is_short(self) {
            out.extend(self.who.unwrap_or(0).to_le_bytes());
            out.extend(self.objects.iter().flatten());
        }
    }
}

/// Bytes of the entry of a stored list at `at`.
pub(crate) fn stored_size(b: &Bytes<'_>, at: usize) -> Result<usize> {
    stored(b, at).map(|(_, size)| size)
}

/// The entry of a stored list at `at`, and its length.
fn stored(b: &Bytes<'_>, at: usize) -> Result<(Ace, usize)> {
    let (kind, flags, mask) = (b.u16(at)?, b.u16(at + 2)?, b.u32(at + 4)?);
    let ace = Ace { kind, flags, mask, who: None, objects: None };
    if is_short(&ace) {
        return Ok((ace, HEADER));
    }
    let word = b.u64(at + HEADER)?;
    let objects = objects(b, at + HEADER + 8, kind)?;
    let who = Some(word).filter(|_| names(&ace));
    Ok((Ace { who, objects, ..ace }, HEADER + 8 + objects.map_or(0, |o| o.len())))
}

/// Decodes `count` entries, `most` at most, with `one`, which returns the entry at an offset and its length; returns the end
/// of the last one, too.
fn decode(
    b: &Bytes<'_>,
    (count, most): (u64, u64),
    one: impl Fn(usize) -> Result<(Ace, usize)>,
) -> Result<(Vec<Ace>, usize)> {
    if count > most {
        return Err(DecodeError::invalid(WHAT, format!("{count} entries")));
    }
    let (mut list, mut at) = (Vec::new(), 0_usize);
    for _ in 0..count {
        let (ace, len) = one(at)?;
        if !ace.is_known() {
            let why = format!("an entry of type {}, flags {:#x}", ace.kind, ace.flags);
            return Err(DecodeError::invalid(WHAT, why));
        }
        list.push(ace);
        // What was read lies before: this is at most a few bytes beyond the end.
        at += len;
    }
    match at <= b.len() {
        true => Ok((list, at)),
        false => Err(DecodeError::Truncated { what: WHAT, need: at, have: b.len() }),
    }
}

/// Whether the entry names a user or group.
fn names(ace: &Ace) -> bool {
    !matches!(ace.about(), flag::OWNER | flag::OWNING_GROUP | flag::EVERYONE)
}

fn has_objects(kind: u16) -> bool {
    (kind::ALLOWED_OBJECT..=kind::ALARM_OBJECT).contains(&kind)
}

fn is_short(ace: &Ace) -> bool {
    matches!(ace.kind, kind::ALLOWED | kind::DENIED) && !names(ace)
}

/// The types of objects at `at` of an entry of type `kind`.
fn objects(b: &Bytes<'_>, at: usize, kind: u16) -> Result<Option<[u8; 32]>> {
    if !has_objects(kind) {
        return Ok(None);
    }
    Ok(b.slice(at, 32)?.first_chunk().copied())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ByteOrder::{Big, Little};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Entries of all types, as records have them.
    fn ace() -> impl Strategy<Value = Ace> {
        let about = [flag::OWNER, flag::OWNING_GROUP, flag::EVERYONE, flag::IDENTIFIER_GROUP, 0];
        let about = prop::sample::select(about.to_vec());
        let parts =
            (0_u16..=0x10, about, any::<u16>(), any::<u32>(), any::<u32>(), any::<[u8; 32]>());
        parts.prop_map(|(kind, about, more, mask, who, objects)| {
            let flags = about | more & !flag::ABOUT;
            let ace = Ace { kind, flags, mask, who: None, objects: None };
            Ace {
                who: Some(u64::from(who)).filter(|_| names(&ace)),
                objects: Some(objects).filter(|_| has_objects(kind)),
                ..ace
            }
        })
    }

    fn encoded(list: &[Ace], one: impl Fn(&Ace, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        list.iter().for_each(|ace| one(ace, &mut out));
        out
    }

    proptest! {
        #[test]
        fn lists_are_read_back_as_they_were_written(list in vec(ace(), 0..20)) {
            let count = list.len() as u64;
            let logged = encoded(&list, Ace::append_logged);
            let b = Bytes::new(&logged, Little, "t");
            prop_assert_eq!(&Ace::decode_logged(&b, count, false).unwrap(), &list);
            let stored = encoded(&list, Ace::append_stored);
            let b = Bytes::new(&stored, Little, "t");
            prop_assert_eq!(&Ace::decode_stored(&b, count).unwrap(), &list);
            prop_assert_eq!(&encoded(&list, Ace::append_stored), &stored);
            // An entry of no known type in front is passed over.
            let odd = [&[9, 0x20, 0xff, 0xff, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0][..], &stored].concat();
            let b = Bytes::new(&odd, Little, "t");
            prop_assert!(Ace::decode_stored(&b, count + 1).is_err());
            prop_assert_eq!(Ace::decode_known(&b, u64::MAX), list);
        }

        #[test]
        fn counts_that_lie_are_refused(list in vec(ace(), 1..20), more in 1_u64..2000) {
            let logged = encoded(&list, Ace::append_logged);
            let b = Bytes::new(&logged, Little, "t");
            let count = list.len() as u64;
            prop_assert!(Ace::decode_logged(&b, count - 1, false).is_err());
            prop_assert!(Ace::decode_logged(&b, count + more, false).is_err());
            prop_assert!(Ace::decode_logged(&b, u64::MAX - more, false).is_err());
            let short = Bytes::new(&logged[..logged.len() - 1], Little, "t");
            prop_assert!(Ace::decode_logged(&short, count, false).is_err());
            let stored = encoded(&list, Ace::append_stored);
            let short = Bytes::new(&stored[..stored.len() - 1], Little, "t");
            prop_assert!(Ace::decode_stored(&short, count).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(v in vec(any::<u8>(), 0..300), count in 0_u64..30, old: bool) {
            for order in [Little, Big] {
                let b = Bytes::new(&v, order, "t");
                let _ = Ace::decode_logged(&b, count, old);
                let known = Ace::decode_known(&b, count);
                prop_assert!(known.len() as u64 <= count);
                if let Ok(list) = Ace::decode_stored(&b, count) {
                    prop_assert_eq!(&known, &list);
                    let again = encoded(&list, Ace::append_stored);
                    prop_assert!(again.len() <= v.len());
                }
            }
        }
    }

    /// The layout of the structures, field by field.
    #[test]
    fn entries_have_their_lengths_and_fields() {
        let allow = Ace { kind: 0, flags: flag::OWNER, mask: 0x1e_019f, who: None, objects: None };
        let group = Ace { flags: flag::IDENTIFIER_GROUP | 3, who: Some(7), ..allow };
        let audit = Ace { kind: kind::AUDIT, flags: flag::EVERYONE, ..allow };
        let object = Ace { kind: kind::ALLOWED_OBJECT, objects: Some([9; 32]), ..group };
        let stored = |ace: &Ace| encoded(&[*ace], Ace::append_stored);
        assert_eq!(stored(&allow), [0, 0, 0, 0x10, 0x9f, 1, 0x1e, 0]);
        assert_eq!(stored(&group)[..8], [0, 0, 0x43, 0, 0x9f, 1, 0x1e, 0]);
        assert_eq!(stored(&group)[8..], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(stored(&audit)[8..], [0; 8]);
        assert_eq!(stored(&object).len(), 48);
        let logged = |ace: &Ace| encoded(&[*ace], Ace::append_logged);
        assert_eq!(logged(&group), [7, 0, 0, 0, 0x9f, 1, 0x1e, 0, 0x43, 0, 0, 0]);
        assert_eq!(logged(&allow)[..4], [0xff; 4]);
        assert_eq!(logged(&object).len(), 44);
    }

    #[test]
    fn old_entries_may_be_padded() {
        let ace = Ace { kind: 1, flags: 0, mask: 1, who: Some(5), objects: None };
        let mut bytes = encoded(&[ace], Ace::append_logged);
        bytes.resize(16, 0);
        let b = Bytes::new(&bytes, Little, "t");
        assert_eq!(Ace::decode_logged(&b, 1, true).unwrap(), [ace]);
        assert!(Ace::decode_logged(&b, 1, false).is_err());
        assert!(Ace::decode_logged(&b, 0, true).is_err());
        // The same of a machine of the other byte order.
        let big = [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 1];
        assert_eq!(Ace::decode_logged(&Bytes::new(&big, Big, "t"), 1, true).unwrap(), [ace]);
    }

    #[test]
    fn unknown_types_are_refused() {
        let ace = Ace { kind: 0, flags: 0, mask: 1, who: Some(5), objects: None };
        for bad in [
            Ace { kind: 0x11, ..ace },
            Ace { flags: flag::OWNER | flag::EVERYONE, ..ace },
            Ace { flags: 0x2000, ..ace },
        ] {
            let (logged, stored) =
                (encoded(&[bad], Ace::append_logged), encoded(&[bad], Ace::append_stored));
            assert!(Ace::decode_logged(&Bytes::new(&logged, Little, "t"), 1, false).is_err());
            assert!(Ace::decode_stored(&Bytes::new(&stored, Little, "t"), 1).is_err());
        }
    }
}
