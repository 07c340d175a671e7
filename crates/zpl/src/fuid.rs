//! Domains of owners from other systems (`zfs_fuid_table_load`, `zfs_fuid_idx_domain`).
//!
//! An owner, a group, or a user that an ACL names is stored as a FUID: the lower 32 bits are an id, the
//! upper ones the index of its domain in the file system's table. A domain is the name of an authority,
//! such as the first part of a Windows SID; index 0 stands for the ids of POSIX.
//!
//! The master node's entry `FUID` leads to the table: a packed nvlist, whose length is in the bonus buffer.
//! It has one array of lists, `fuid_nvlist`, ordered by their domains; in each list are `fuid_idx`,
//! `fuid_domain` and `fuid_offset`, which is always 0. Domains are added to a table and never taken away.
//!
//! Invariant: no index and no domain is twice in a table, and no index is 0.

use crate::fs::{FileSystem, MASTER_NODE};
use crate::{Error, Result};
use cenote_dmu::{Object, zap::Zap};
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::{NvList, NvValue};
use std::collections::BTreeMap;

/// The master node's entry (`ZFS_FUID_TABLES`).
pub(crate) const ENTRY: &str = "FUID";
/// Longest table that is believed.
const MAX_TABLE: u64 = 16 << 20;

/// The domains of a file system, with their indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FuidTable(BTreeMap<String, u32>);

impl FuidTable {
    /// Reads the table that is in `object` (`zfs_fuid_table_load`).
    ///
    /// Errors: [`Error::Corrupt`] if it is not a table.
    pub(crate) fn read(object: &Object) -> Result<FuidTable> {
        let number = object.number();
        let corrupt = |why: String| Error::Corrupt(number, format!("table of domains: {why}"));
        if object.dnode().kind != DmuType::FUID {
            return Err(corrupt(format!("an object of type {}", object.dnode().kind.0)));
        }
        let size = object.bonus().u64(0).map_err(|e| corrupt(e.to_string()))?;
        if size == 0 {
            return Ok(FuidTable::default());
        }
        if size > MAX_TABLE {
            return Err(corrupt(format!("{size} bytes")));
        }
        let mut packed = vec![0; size as usize];
        object.read(0, &mut packed)?;
        let list = NvList::decode(&packed).map_err(|e| corrupt(e.to_string()))?;
        FuidTable::decode(&list).map_err(corrupt)
    }

    fn decode(list: &NvList) -> std::result::Result<FuidTable, String> {
        let entries = list.lists("fuid_nvlist").ok_or("no list of domains")?;
        let mut table = FuidTable::default();
        for entry in entries {
            let domain = entry.str("fuid_domain").ok_or("an entry without a domain")?;
            let index = entry.u64("fuid_idx").ok_or("an entry without an index")?;
            let index = u32::try_from(index).ok().filter(|index| *index > 0);
            let index = index.ok_or_else(|| format!("the index of domain {domain:?}"))?;
            if table.domain(index).is_some() || table.0.insert(domain.into(), index).is_some() {
                return Err(format!("domain {domain:?} or its index {index} twice"));
            }
        }
        Ok(table)
    }

    /// The table as it is stored.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let entry = |(domain, index): (&String, &u32)| NvList {
            pairs: vec![
                ("fuid_idx".into(), NvValue::Uint64((*index).into())),
                ("fuid_offset".into(), NvValue::Uint64(0)),
                ("fuid_domain".into(), NvValue::String(domain.clone())),
            ],
        };
        let entries = NvValue::NvListArray(self.0.iter().map(entry).collect());
        NvList { pairs: vec![("fuid_nvlist".into(), entries)] }.encode()
    }

    /// The domain with this index.
    pub(crate) fn domain(&self, index: u32) -> Option<&str> {
        self.0.iter().find(|(_, i)| **i == index).map(|(domain, _)| domain.as_str())
    }

    /// The index of a domain.
    pub(crate) fn index(&self, domain: &str) -> Option<u32> {
        self.0.get(domain).copied()
    }

    /// Adds a domain and returns its index; `None` if there is no index left.
    pub(crate) fn add(&mut self, domain: &str) -> Option<u32> {
        let index = self.0.values().max().map_or(Some(1), |last| last.checked_add(1))?;
        self.0.insert(domain.into(), index);
        Some(index)
    }
}

impl FileSystem {
    /// The object that holds the table of domains, if there is one.
    pub(crate) fn fuid_object(&self) -> Result<Option<u64>> {
        let master = Zap::open(&self.source.object(MASTER_NODE)?)?;
        Ok(master.u64(ENTRY.as_bytes())?.filter(|object| *object != 0))
    }

    /// The domain to which a stored owner or group belongs; `None` for ids of POSIX, and for a domain that the
    /// file system's table does not have (`zfs_fuid_find_by_idx`).
    ///
    /// Errors: [`Error::Corrupt`] for a table that makes no sense.
    pub fn domain_of(&self, fuid: u64) -> Result<Option<String>> {
        let (index, object) = ((fuid >> 32) as u32, self.fuid_object()?);
        let Some(object) = object.filter(|_| index != 0) else { return Ok(None) };
        let table = FuidTable::read(&self.object(object)?)?;
        Ok(table.domain(index).map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decode(table: &[u8]) -> std::result::Result<FuidTable, String> {
        FuidTable::decode(&NvList::decode(table).unwrap())
    }

    #[test]
    fn tables_are_read_back_as_they_were_written() {
        let mut table = FuidTable::default();
        assert_eq!(decode(&table.encode()).unwrap(), table);
        for (domain, index) in [("S-1-5-21-9", 1), ("S-1-5-21-1", 2), ("S-1-1", 3)] {
            assert_eq!(table.index(domain), None);
            assert_eq!(table.add(domain), Some(index));
            assert_eq!((table.index(domain), table.domain(index)), (Some(index), Some(domain)));
        }
        assert_eq!(decode(&table.encode()).unwrap(), table);
        // In the order of the domains, as OpenZFS has them.
        let list = NvList::decode(&table.encode()).unwrap();
        let domains: Vec<_> =
            list.lists("fuid_nvlist").unwrap().iter().map(|l| l.str("fuid_domain")).collect();
        assert_eq!(domains, [Some("S-1-1"), Some("S-1-5-21-1"), Some("S-1-5-21-9")]);
        assert_eq!(FuidTable([("x".into(), u32::MAX)].into()).add("y"), None);
    }

    #[test]
    fn tables_that_make_no_sense_are_refused() {
        let entry = |index: u64, domain: &str| NvList {
            pairs: vec![
                ("fuid_idx".into(), NvValue::Uint64(index)),
                ("fuid_domain".into(), NvValue::String(domain.into())),
            ],
        };
        let no_domain = NvList { pairs: vec![("fuid_idx".into(), NvValue::Uint64(1))] };
        for (entries, why) in [
            (vec![entry(1, "a"), entry(2, "a")], "twice"),
            (vec![entry(1, "a"), entry(1, "b")], "twice"),
            (vec![entry(0, "a")], "index"),
            (vec![entry(1 << 32, "a")], "index"),
            (vec![no_domain], "without a domain"),
        ] {
            let list =
                NvList { pairs: vec![("fuid_nvlist".into(), NvValue::NvListArray(entries))] };
            let said = FuidTable::decode(&list).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert!(FuidTable::decode(&NvList::default()).is_err());
    }
}
