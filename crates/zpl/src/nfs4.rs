//! NFSv4 lists in the form that programs see: the extended attribute `system.nfs4_acl_xdr`, of the tools `nfs4xdr_getfacl` and
//! `nfs4xdr_setfacl`, TrueNAS and Samba (`nfsacl41i` of NFS 4.1).
//!
//! ```text
//! flags of the list (32 bits)   number of entries (32)   entries of 20 bytes, all big-endian:
//!   type (32)   flags (32)   whom it is about: 1 of owner, group, everyone; 0 an id (32)   permissions (32)   1, 2, 3 or the id (32)
//! ```
//!
//! It is there with `acltype=nfsv4`, for every file: that of a file without a list of its own says what the mode does, and is
//! not listed. Entries with types of objects are not shown. Users and groups of domains are shown as `nobody`.

use crate::attr::local_id;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::write::nfs4::{FLAG_TRIVIAL, IN_RECORDS, of_mode};
use crate::znode::Znode;
use crate::{Error, Result};
use cenote_format::acl::{Ace, MAX_ENTRIES, flag, kind};
use cenote_format::{ByteOrder, Bytes};

/// The attribute.
pub(crate) const NAME: &[u8] = b"system.nfs4_acl_xdr";

const HEADER: usize = 8;
const ENTRY: usize = 20;
/// An entry is about the owner, the owning group or everyone (`ACEI4_SPECIAL_WHO`), by these numbers.
const SPECIAL: u32 = 1;
const WHOM: [(u32, u16); 3] = [(1, flag::OWNER), (2, flag::OWNING_GROUP), (3, flag::EVERYONE)];
/// The flags of an entry that are shown, and may be set.
const SHOWN: u16 = flag::FILE_INHERIT
    | flag::DIRECTORY_INHERIT
    | flag::NO_PROPAGATE_INHERIT
    | flag::INHERIT_ONLY
    | flag::INHERITED
    | flag::IDENTIFIER_GROUP;

/// A list of a file whose `zp_flags` are `flags`.
fn encode(entries: &[Ace], flags: u64) -> Vec<u8> {
    let whole = IN_RECORDS.into_iter().filter(|(_, flag)| flags & flag != 0);
    let whole = whole.fold(0, |all, (bit, _)| all | bit) as u32;
    let shown: Vec<&Ace> = entries.iter().filter(|ace| ace.objects.is_none()).collect();
    let mut out = Vec::with_capacity(HEADER + ENTRY * shown.len());
    let mut put = |word: u32| out.extend(word.to_be_bytes());
    [whole, shown.len() as u32].into_iter().for_each(&mut put);
    for ace in shown {
        let whom = WHOM.into_iter().find(|(_, about)| *about == ace.about());
        let (special, who) = match whom {
            Some((number, _)) => (SPECIAL, number),
            None => (0, local_id(ace.who.unwrap_or(0))),
        };
        let (kind, flags) = (u32::from(ace.kind), u32::from(ace.flags & SHOWN));
        [kind, flags, special, ace.mask, who].into_iter().for_each(&mut put);
    }
    out
}

/// The entries and the flags of the whole list that a program sets.
///
/// # Errors
/// [`Error::Invalid`], for what is no list; [`Error::TooLarge`] for one of more than [`MAX_ENTRIES`] entries.
pub(crate) fn decode(value: &[u8]) -> Result<(Vec<Ace>, u64)> {
    let bad = |why: &str| Error::Invalid(format!("NFSv4 ACL: {why}"));
    let len = value.len().checked_sub(HEADER).filter(|len| len.is_multiple_of(ENTRY));
    let count = len.ok_or_else(|| bad("no whole entries"))? / ENTRY;
    if count as u64 > MAX_ENTRIES {
        return Err(Error::TooLarge(format!("an NFSv4 ACL of {count} entries")));
    }
    let b = Bytes::new(value, ByteOrder::Big, "NFSv4 ACL");
    let word = |at| b.u32(at).map_err(|e| bad(&e.to_string()));
    if word(4)? as usize != count {
        return Err(bad("another number of entries than it says"));
    }
    let entry = |at: usize| {
        let (kind, special, who) = (word(at)?, word(at + 8)?, word(at + 16)?);
        let kind = u16::try_from(kind).ok().filter(|kind| *kind <= kind::ALARM);
        let kind = kind.ok_or_else(|| bad("an entry of an unknown type"))?;
        let flags = word(at + 4)? as u16 & SHOWN;
        let about = match special & SPECIAL {
            0 => None,
            _ => {
                let found = WHOM.into_iter().find(|(number, _)| *number == who);
                Some(found.ok_or_else(|| bad("an entry about nobody"))?.1)
            }
        };
        let flags = about.map_or(flags, |about| flags & !flag::IDENTIFIER_GROUP | about);
        let who = about.is_none().then_some(u64::from(who));
        Ok(Ace { kind, flags, mask: word(at + 12)?, who, objects: None })
    };
    let entries = (0..count).map(|i| entry(HEADER + i * ENTRY)).collect::<Result<Vec<Ace>>>()?;
    Ok((entries, word(0)?.into()))
}

impl FileSystem {
    /// The list of a file (`zfs_getacl`, `zfs_getsecattr`). Errors: [`Error::Corrupt`], for one that makes no sense.
    pub(crate) fn nfs4_xattr(&self, ino: u64) -> Result<Vec<u8>> {
        let z = self.attributes(ino)?;
        let mut entries = self.nfs4_acl(ino)?;
        if entries.is_empty() {
            entries = of_mode(z.mode()?);
        }
        Ok(encode(&entries, z.required(ZplAttr::Flags)?))
    }
}

/// Whether a file has a list that says more than its mode.
pub(crate) fn says_more(z: &Znode) -> Result<bool> {
    Ok(z.required(ZplAttr::Flags)? & FLAG_TRIVIAL == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ace() -> impl Strategy<Value = Ace> {
        let about = prop::sample::select(vec![0, flag::IDENTIFIER_GROUP, 0x1000, 0x2040, 0x4000]);
        (0u16..4, about, any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
            |(kind, about, more, mask, who)| {
                let flags = about | more & SHOWN & !flag::IDENTIFIER_GROUP;
                let names = about & !flag::IDENTIFIER_GROUP == 0;
                Ace { kind, flags, mask, who: names.then_some(who.into()), objects: None }
            },
        )
    }

    proptest! {
        #[test]
        fn lists_come_back(list in prop::collection::vec(ace(), 0..20), whole in 0u64..8) {
            let flags = IN_RECORDS.into_iter().filter(|(bit, _)| whole & bit != 0);
            let flags = flags.fold(0x8_0000_0000, |all, (_, flag)| all | flag);
            let value = encode(&list, flags);
            prop_assert_eq!(decode(&value).unwrap(), (list, whole));
        }

        #[test]
        fn arbitrary_bytes_never_panic(value in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&value);
        }
    }

    /// `nfs4xdr_setfacl` of `owner@:rw-p--aARWcCos:-------:allow`, `group:100:r-----:fd-----:allow` would send this.
    #[test]
    fn the_layout_field_by_field() {
        let owner = Ace { kind: 0, flags: flag::OWNER, mask: 0x1e_019f, who: None, objects: None };
        let flags = flag::IDENTIFIER_GROUP | flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
        let group = Ace { kind: 0, flags, mask: 1, who: Some(100), objects: None };
        let object = Ace { kind: 5, objects: Some([0; 32]), ..group };
        let words: Vec<u32> = encode(&[owner, object, group], 0x10)
            .chunks(4)
            .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [2, 2, 0, 0, 1, 0x1e_019f, 1, 0, 0x43, 0, 1, 100]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let owner = Ace { kind: 0, flags: flag::OWNER, mask: 1, who: None, objects: None };
        let good = encode(&[owner, owner], 0);
        assert!(decode(&good).is_ok());
        for bad in [&good[..0], &good[..7], &good[..good.len() - 1], &good[..HEADER + ENTRY]] {
            assert!(matches!(decode(bad), Err(Error::Invalid(_))), "{} bytes", bad.len());
        }
        for (at, byte) in [(7, 3), (11, 4), (27, 4), (27, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(matches!(decode(&bad), Err(Error::Invalid(_))), "byte {at}");
        }
        let many = encode(&vec![owner; 1025], 0);
        assert!(matches!(decode(&many), Err(Error::TooLarge(_))));
    }
}
