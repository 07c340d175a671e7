//! Packages of streams: what `zfs send -R`, `-I`, `-p`, `-h` and `-b` write (`DMU_COMPOUNDSTREAM`).
//!
//! ```text
//! BEGIN (header_type 2, no guid) | packed nvlist | END (checksum of BEGIN and list) | stream* | END (zeros)
//! ```
//!
//! Each stream is whole: BEGIN, records, END. Neither of the package's two END records has a checksum of its own. The
//! list is not padded; it is missing where only intermediate snapshots were asked for (`-I`). It says what the streams
//! hold (`send_prelim_records`):
//!
//! ```text
//! fromsnap        string, if the package is incremental
//! tosnap          string
//! not_recursive   boolean
//! raw             boolean
//! fss             GUID OF HEAD in hexadecimal: {
//!                     name, parentfromsnap, origin (if it is a clone), props, is_encroot,
//!                     snaps: {NAME: guid}, snapprops: {NAME: {property: value}}, snapholds: {NAME: {tag: time}}
//!                 }, ...
//! ```
//!
//! The pairs are in this order, file systems in the order in which their tree is walked, snapshots in the order in
//! which they were made.

use super::{Begin, Encoder, RECORD_SIZE, Record};
use crate::nvlist::{NvList, NvValue};
use crate::{DecodeError, Result, encode};

const WHAT: &str = "package of streams";
/// `header_type` of a package's BEGIN.
pub const HEADER_TYPE: u8 = 2;
/// The record behind the last stream (`send_conclusion_record`).
pub const END: [u8; RECORD_SIZE] = {
    let mut record = [0; RECORD_SIZE];
    record[0] = 5;
    record
};

/// What a package says of its streams.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Package {
    /// Name behind the `@` of the snapshot that the package starts from.
    pub from_snap: Option<String>,
    /// Name behind the `@` of the snapshot that it leads to.
    pub to_snap: String,
    /// The datasets below are in it as well (`-R`).
    pub recursive: bool,
    /// Its streams are raw (`-w`).
    pub raw: bool,
    /// File systems and volumes, parents before children.
    pub datasets: Vec<Sent>,
}

/// A file system or volume of a package.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sent {
    /// Guid of its head.
    pub guid: u64,
    /// Its name at the sender.
    pub name: String,
    /// Guid of the snapshot of its parent that its package starts from, or leads to if the parent has no such; 0 for
    /// the uppermost.
    pub parent_from_snap: u64,
    /// Guid of the snapshot that it was cloned from.
    pub origin: Option<u64>,
    /// Properties that are set on it, or were received: numbers or strings. `None` if they were not asked for.
    pub props: Option<NvList>,
    /// It has an encryption key of its own.
    pub encryption_root: bool,
    /// Its snapshots with their guids, oldest first.
    pub snaps: Vec<(String, u64)>,
    /// Properties of the snapshots that are sent.
    pub snap_props: Vec<(String, NvList)>,
    /// Holds of the snapshots that are sent: tags, and times in seconds since 1970 (`-h`).
    pub snap_holds: Option<Vec<(String, NvList)>>,
}

/// Whether a record is the one behind the last stream. `zstream` gives it a checksum of its own where it writes a
/// package anew.
pub fn is_end(record: &[u8; RECORD_SIZE]) -> bool {
    let (record, _) = record.split_at(super::CHECKSUM_AT);
    let (kind, rest) = record.split_at(8);
    let (little, big) = ([5, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 5, 0, 0, 0, 0]);
    (kind == little || kind == big) && rest.iter().all(|byte| *byte == 0)
}

/// The records before the first stream. `features` are the features of the package (`feature::SA_SPILL` for a file
/// system, `feature::HOLDS`); `to_name` is the name of the snapshot.
///
/// # Errors
/// The name or the list is too long.
pub fn head(to_name: &str, features: u64, package: Option<&Package>) -> encode::Result<Vec<u8>> {
    let list = package.map(|package| package.to_list().encode()).unwrap_or_default();
    let Ok(payload) = u32::try_from(list.len()) else {
        let why = format!("a list of {} bytes", list.len());
        return Err(encode::EncodeError::unrepresentable(WHAT, why));
    };
    let begin = Begin {
        header_type: HEADER_TYPE,
        features,
        creation_time: 0,
        kind: 0,
        flags: 0,
        to_guid: 0,
        from_guid: 0,
        to_name: to_name.as_bytes().to_vec(),
        payload,
    };
    let mut encoder = Encoder::new(0);
    let mut out = encoder.record(&Record::Begin(begin))?.to_vec();
    encoder.payload(&list);
    out.extend(list);
    let mut end = encoder.end()?;
    if let Some(own) = end.get_mut(super::CHECKSUM_AT..) {
        own.fill(0);
    }
    out.extend(end);
    Ok(out)
}

impl Package {
    /// The dataset that has the snapshot with this guid, and the snapshot's name (`fsavl_find`).
    pub fn sent(&self, guid: u64) -> Option<(&Sent, &str)> {
        let each = self.datasets.iter().flat_map(|sent| sent.snaps.iter().map(move |s| (sent, s)));
        let mut found = each.filter(|(_, (_, known))| *known == guid);
        found.next().map(|(sent, (name, _))| (sent, name.as_str()))
    }

    /// The list behind the BEGIN of a package.
    ///
    /// # Errors
    /// It is no packed nvlist, or lacks what every package has.
    pub fn decode(payload: &[u8]) -> Result<Package> {
        let list = NvList::decode(payload)?;
        let (Some(to_snap), Some(all)) = (list.str("tosnap"), list.list("fss")) else {
            return Err(DecodeError::invalid(WHAT, "its list names no snapshot or no datasets"));
        };
        let mut datasets = Vec::new();
        for (guid, value) in &all.pairs {
            let hex = guid.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let (Some(guid), NvValue::NvList(list)) = (hex, value) else {
                return Err(DecodeError::invalid(
                    WHAT,
                    format!("a dataset with the guid '{guid}'"),
                ));
            };
            datasets.push(Sent::from_list(guid, list)?);
        }
        Ok(Package {
            from_snap: list.str("fromsnap").map(str::to_owned),
            to_snap: to_snap.to_owned(),
            recursive: !list.contains("not_recursive"),
            raw: list.contains("raw"),
            datasets,
        })
    }

    /// The list to be packed.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::default();
        if let Some(from) = &self.from_snap {
            list.set("fromsnap", NvValue::String(from.clone()));
        }
        list.set("tosnap", NvValue::String(self.to_snap.clone()));
        if !self.recursive {
            list.set("not_recursive", NvValue::Boolean);
        }
        if self.raw {
            list.set("raw", NvValue::Boolean);
        }
        let all = self.datasets.iter().map(|sent| {
            let guid = format!("0x{:x}", sent.guid);
            (guid, NvValue::NvList(sent.to_list()))
        });
        list.set("fss", NvValue::NvList(NvList { pairs: all.collect() }));
        list
    }
}

impl Sent {
    fn from_list(guid: u64, list: &NvList) -> Result<Sent> {
        let (Some(name), Some(snaps)) = (list.str("name"), list.list("snaps")) else {
            let why = format!("dataset {guid:#x} without a name or snapshots");
            return Err(DecodeError::invalid(WHAT, why));
        };
        let number = |(snap, value): &(String, NvValue)| match value {
            NvValue::Uint64(guid) => Ok((snap.clone(), *guid)),
            _ => Err(DecodeError::invalid(WHAT, format!("snapshot {name}@{snap} without a guid"))),
        };
        let lists = |key: &str| -> Result<Option<Vec<(String, NvList)>>> {
            let Some(of) = list.list(key) else { return Ok(None) };
            let each = |(snap, value): &(String, NvValue)| match value {
                NvValue::NvList(list) => Ok((snap.clone(), list.clone())),
                _ => Err(DecodeError::invalid(WHAT, format!("{key} of {name}@{snap} is no list"))),
            };
            of.pairs.iter().map(each).collect::<Result<_>>().map(Some)
        };
        Ok(Sent {
            guid,
            name: name.to_owned(),
            parent_from_snap: list.u64("parentfromsnap").unwrap_or(0),
            origin: list.u64("origin"),
            props: list.list("props").cloned(),
            encryption_root: list.contains("is_encroot"),
            snaps: snaps.pairs.iter().map(number).collect::<Result<_>>()?,
            snap_props: lists("snapprops")?.unwrap_or_default(),
            snap_holds: lists("snapholds")?,
        })
    }

    fn to_list(&self) -> NvList {
        let lists = |of: &[(String, NvList)]| {
            let each = of.iter().map(|(snap, list)| (snap.clone(), NvValue::NvList(list.clone())));
            NvValue::NvList(NvList { pairs: each.collect() })
        };
        let mut list = NvList::default();
        list.set("name", NvValue::String(self.name.clone()));
        list.set("parentfromsnap", NvValue::Uint64(self.parent_from_snap));
        if let Some(origin) = self.origin {
            list.set("origin", NvValue::Uint64(origin));
        }
        if let Some(props) = &self.props {
            list.set("props", NvValue::NvList(props.clone()));
        }
        if self.encryption_root {
            list.set("is_encroot", NvValue::Boolean);
        }
        let guids = self.snaps.iter().map(|(snap, guid)| (snap.clone(), NvValue::Uint64(*guid)));
        list.set("snaps", NvValue::NvList(NvList { pairs: guids.collect() }));
        list.set("snapprops", lists(&self.snap_props));
        if let Some(holds) = &self.snap_holds {
            list.set("snapholds", lists(holds));
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;
    use proptest::prelude::*;

    fn props() -> impl Strategy<Value = NvList> {
        let value = prop_oneof![
            any::<u64>().prop_map(NvValue::Uint64),
            "[ -~]{0,9}".prop_map(NvValue::String),
        ];
        let pairs = proptest::collection::btree_map("[a-z:]{1,9}", value, 0..4);
        pairs.prop_map(|pairs| NvList { pairs: pairs.into_iter().collect() })
    }

    fn sent() -> impl Strategy<Value = Sent> {
        use proptest::collection::{btree_map, vec};
        let of_snaps = || vec(("[a-z]{1,9}", props()), 0..3);
        let snaps = btree_map("[a-z]{1,9}", any::<u64>(), 0..4);
        let ids = (any::<u64>(), any::<u64>(), proptest::option::of(any::<u64>()), any::<bool>());
        let options = (proptest::option::of(props()), proptest::option::of(of_snaps()));
        ("[a-z/]{1,20}", ids, snaps, of_snaps(), options).prop_map(
            |(name, ids, snaps, snap_props, (props, snap_holds))| Sent {
                guid: ids.0,
                name,
                parent_from_snap: ids.1,
                origin: ids.2,
                props,
                encryption_root: ids.3,
                snaps: snaps.into_iter().collect(),
                snap_props,
                snap_holds,
            },
        )
    }

    fn package() -> impl Strategy<Value = Package> {
        let from = proptest::option::of("[a-z]{1,9}");
        let flags = (any::<bool>(), any::<bool>());
        let all = proptest::collection::vec(sent(), 0..4);
        (from, "[a-z]{1,9}", flags, all).prop_map(|(from_snap, to_snap, flags, datasets)| Package {
            from_snap,
            to_snap,
            recursive: flags.0,
            raw: flags.1,
            datasets,
        })
    }

    /// The package in the head of a stream, and what follows the head.
    fn read(stream: &[u8]) -> Result<(Option<Package>, &[u8])> {
        let short = || DecodeError::invalid(WHAT, "cut short");
        let (first, rest) = stream.split_first_chunk().ok_or_else(short)?;
        let mut decoder = Decoder::new(first)?;
        let begin = decoder.record(first)?;
        let (list, rest) = rest.split_at_checked(begin.payload_len() as usize).ok_or_else(short)?;
        decoder.payload(list);
        let package = if list.is_empty() { None } else { Some(Package::decode(list)?) };
        let (end, rest) = rest.split_first_chunk().ok_or_else(short)?;
        decoder.record(end)?;
        assert!(decoder.ended());
        Ok((package, rest))
    }

    proptest! {
        #[test]
        fn packages_round_trip(package in package(), at: usize, bit in 0u32..8) {
            let mut stream = head("tank/a@b", 4, Some(&package)).unwrap();
            let length = stream.len();
            stream.extend(END);
            let (read_back, rest) = read(&stream).unwrap();
            prop_assert_eq!(read_back.as_ref(), Some(&package));
            prop_assert!(is_end(rest.first_chunk().unwrap()) && rest.len() == RECORD_SIZE);
            // A bit that is wrong is noticed, but in what END holds beside its checksum and guid.
            let at = at % length;
            stream[at] ^= 1 << bit;
            let in_end = at.checked_sub(length - RECORD_SIZE);
            let unused = in_end.is_some_and(|at| (4..8).contains(&at) || (48..280).contains(&at));
            prop_assert!(unused || read(&stream).is_err());
            prop_assert!(read(&stream[..at]).is_err());
        }

        #[test]
        fn lists_of_other_things_are_no_packages(list in crate::nvlist::tests::list()) {
            prop_assert!(Package::decode(&list.encode()).is_err());
        }
    }

    #[test]
    fn a_package_without_a_list() {
        let stream = head("tank@x", 0, None).unwrap();
        let (package, rest) = read(&stream).unwrap();
        assert!(package.is_none() && rest.is_empty());
        assert!(!is_end(stream.first_chunk().unwrap()));
    }
}
