//! FUIDs of the records of intent logs (`zfs_fuid_create`, `zfs_fuid_find_by_domain`, `zfs_fuid_sync`).
//!
//! A record has its own table of domains: the upper half of an id in it is the number of a domain in the
//! record, counted from 1. The file system's table may give the domain another index, or not have it yet.

use super::context::Cx;
use crate::fs::MASTER_NODE;
use crate::fuid::{ENTRY, FuidTable};
use crate::{Error, Result};
use cenote_dmu::write::{NewObject, WriteError, ZapMut};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::zil::{self, OBJECT_BITS};

/// The master node's entry.
const KEY: Key<'static> = Key::Name(ENTRY.as_bytes());
/// Bytes of a block of a table.
const BLOCK: u64 = 16 << 10;
/// What a change of the table writes, at most, in bytes.
pub(super) const TABLE: u64 = 64 << 10;

/// The domains of a record.
#[derive(Clone, Copy)]
pub(super) struct Domains<'a> {
    /// Their names.
    pub(super) names: &'a [&'a [u8]],
    /// Where a new table goes: at the first free one of these numbers and some above it.
    pub(super) table_at: u64,
}

impl Cx<'_> {
    /// The FUID of an id in a record (`zfs_fuid_create`).
    ///
    /// Errors: [`Error::Invalid`] if the record does not have its domain; [`Error::Corrupt`] for a table that
    /// makes no sense.
    pub(super) fn fuid(&mut self, id: u64, domains: &Domains<'_>) -> Result<u64> {
        let (number, rid) = (id >> 32, id & u64::from(u32::MAX));
        let Some(place) = number.checked_sub(1) else { return Ok(id) };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let name = domains.names.get(place).ok_or_else(|| {
            let all = domains.names.len();
            Error::Invalid(format!("owner {id:#x} of domain {number} where there are {all}"))
        })?;
        Ok(u64::from(self.domain_index(name, domains.table_at)?) << 32 | rid)
    }

    /// The index of a domain in the file system's table, to which it is added if need be (`zfs_fuid_find_by_domain`).
    /// The empty name stands for no domain.
    fn domain_index(&mut self, name: &[u8], table_at: u64) -> Result<u32> {
        if name.is_empty() {
            return Ok(0);
        }
        let name = std::str::from_utf8(name)
            .map_err(|_| Error::Invalid(format!("a domain {:?}", crate::error::show(name))))?;
        let (object, mut table) = self.fuid_table()?;
        if let Some(index) = table.index(name) {
            return Ok(index);
        }
        let full = || Error::Unsupported("more domains than there are indexes".into());
        let index = table.add(name).ok_or_else(full)?;
        // Else the owner would be another one.
        invariant!(table.domain(index) == Some(name), "domain {name:?} is not that of {index}");
        let packed = table.encode();
        let size = (packed.len() as u64).to_le_bytes();
        let object = match object {
            Some(object) => {
                self.os.set_bonus(object, DmuType::FUID_SIZE, &size)?;
                object
            }
            None => {
                let (bonus_kind, bonus) = (DmuType::FUID_SIZE, size.to_vec());
                let new = NewObject { bonus_kind, bonus, ..NewObject::new(DmuType::FUID, BLOCK) };
                let object = self.claim_from(table_at, &new)?;
                ZapMut::open(self.os, MASTER_NODE).update(&KEY, &Value::U64(&[object]))?;
                object
            }
        };
        self.os.write(object, 0, &packed)?;
        Ok(index)
    }

    /// The file system's table, and the object that holds it.
    fn fuid_table(&mut self) -> Result<(Option<u64>, FuidTable)> {
        match ZapMut::open(self.os, MASTER_NODE).word(&KEY)?.filter(|object| *object != 0) {
            Some(object) => Ok((Some(object), FuidTable::read(&self.os.view(object)?)?)),
            None => Ok((None, FuidTable::default())),
        }
    }

    /// Has a record say owner and group by domains of its own (`zfs_fuid_node_add`), and returns their names;
    /// `None` if the file system's table does not have one.
    pub(super) fn logged_domains(
        &mut self,
        new: &mut zil::NewObject,
    ) -> Result<Option<Vec<String>>> {
        let mut names = Vec::new();
        if (new.uid | new.gid) >> 32 == 0 {
            return Ok(Some(names));
        }
        let (_, table) = self.fuid_table()?;
        for id in [&mut new.uid, &mut new.gid].into_iter().filter(|id| **id >> 32 != 0) {
            let Some(name) = table.domain((*id >> 32) as u32) else { return Ok(None) };
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
            let Some(place) = names.iter().position(|known| known == name) else {
                broken(format_args!("domain {name:?} is not among those of a record: {names:?}"))
            };
            *id = (place as u64 + 1) << 32 | *id & u64::from(u32::MAX);
        }
        Ok(Some(names))
    }

    /// Creates an object with the number `from`, or one above it.
    fn claim_from(&mut self, from: u64, new: &NewObject) -> Result<u64> {
        let steps = (0..OBJECT_BITS).map(|bit| from.saturating_add((1 << bit) - 1));
        for number in steps.take_while(|number| number >> OBJECT_BITS == 0) {
            match self.os.claim(number, new) {
                Err(WriteError::Taken(_)) => {}
                claimed => return Ok(claimed.map(|()| number)?),
            }
        }
        Err(Error::Write(WriteError::NoSlots.into()))
    }
}
