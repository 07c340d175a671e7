//! Records and blocks, there and back.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::checksum::{Checksum, verify_embedded};
use crate::encode::zil::{capacity, chain_block};
use crate::{ByteOrder, Bytes};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// What records borrow.
#[derive(Debug, Clone)]
struct Parts {
    names: Vec<Vec<u8>>,
    data: Vec<u8>,
    words: [u64; 16],
    attrs: Option<Xvattr>,
    slots: u64,
    fuids: Vec<u64>,
    blocks: Vec<BlockPointer>,
}

fn xvattr() -> impl Strategy<Value = Xvattr> {
    (vec(any::<u32>(), 1..4), any::<u64>(), any::<[u64; 2]>(), any::<[u8; 32]>()).prop_map(
        |(requested, flags, crtime, scanstamp)| Xvattr { requested, flags, crtime, scanstamp },
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        vec(vec(1u8..=255, 0..20), 4),
        vec(any::<u8>(), 1..200),
        any::<[u64; 16]>(),
        option::of(xvattr()),
        1u64..=256,
        vec(any::<u64>(), 0..3),
        vec(any::<[u64; 16]>().prop_map(BlockPointer), 0..3),
    )
        .prop_map(|(names, data, words, attrs, slots, fuids, blocks)| Parts {
            names,
            data,
            words,
            attrs,
            slots,
            fuids,
            blocks,
        })
}

fn new(p: &Parts) -> NewObject {
    let w = p.words;
    NewObject {
        object: w[0] >> 16,
        slots: p.slots,
        mode: w[1],
        uid: w[2],
        gid: w[3],
        generation: w[4],
        crtime: [w[5], w[6]],
        rdev: w[7],
    }
}

fn domains(p: &Parts, uid: u64, gid: u64) -> Vec<&[u8]> {
    p.names.iter().skip(2).take(domains_of(uid, gid) as usize).map(Vec::as_slice).collect()
}

fn create<'a>(p: &'a Parts, what: Creates, acl: bool, attrs: bool) -> Body<'a> {
    let new = new(p);
    let domains = match what {
        _ if acl => Vec::new(),
        Creates::Symlink => Vec::new(),
        _ => domains(p, new.uid, new.gid),
    };
    Body::Create(Create {
        what,
        dir: p.words[8],
        new,
        attrs: p.attrs.clone().filter(|_| attrs),
        acl: acl.then(|| acl_of(p)),
        domains,
        name: &p.names[0],
        target: if what == Creates::Symlink { &p.names[1] } else { &[] },
    })
}

fn acl_of(p: &Parts) -> Acl<'_> {
    let domains = p.names.iter().skip(1).map(Vec::as_slice).collect();
    let (count, flags) = (p.words[9], p.words[10]);
    Acl { order: ByteOrder::Little, count, flags, aces: &p.data, fuids: p.fuids.clone(), domains }
}

/// A body of each type that `p` has the parts for.
fn bodies(p: &Parts) -> Vec<Body<'_>> {
    let [object, dir, ..] = p.words;
    let (offset, name) = (p.words[2] >> 2, p.names[0].as_slice());
    let rename = |how| {
        let (from_dir, to_dir) = (object, dir);
        Body::Rename(Rename { how, from_dir, to_dir, from: name, to: &p.names[1] })
    };
    let block = p.blocks.first().copied().unwrap_or(BlockPointer::HOLE);
    let inside = Write {
        object,
        offset,
        length: p.data.len() as u64,
        block_offset: p.words[4],
        block,
        data: Some(&p.data),
    };
    let outside = Write { data: None, length: p.words[5] >> 2, ..inside };
    let (uid, gid) = (p.words[8], p.words[9]);
    // Of Linux, or of another system.
    let (system, xvattr) = match p.words[5] & 1 {
        0 => (SetAttr::CTIME, ATTR_XVATTR),
        _ => (0, 0x1_0000),
    };
    let mask = p.words[6] & 0x38e | system | p.attrs.as_ref().map_or(0, |_| xvattr);
    let sets = set_attrs(mask, [uid, gid], p.words[10]);
    let id = |bit, id| if sets & bit != 0 { id } else { 0 };
    let set = SetAttr {
        object,
        mask,
        mode: p.words[7],
        uid,
        gid,
        size: p.words[10],
        atime: [p.words[11], p.words[12]],
        mtime: [p.words[13], p.words[14]],
        attrs: p.attrs.clone(),
        domains: domains(p, id(SetAttr::UID, uid), id(SetAttr::GID, gid)),
    };
    let aces = &p.data[..p.data.len() / 8 * 8];
    let mut all = vec![
        create(p, Creates::XattrDirectory, false, false),
        create(p, Creates::Symlink, false, false),
        Body::Remove { dir, name },
        Body::Rmdir { dir, name },
        Body::Link { dir, object, name },
        rename(Renames::Plain),
        rename(Renames::Exchange),
        rename(Renames::Whiteout(new(p))),
        Body::Write(inside),
        Body::Write(outside),
        Body::Write2(outside),
        Body::Truncate { object, offset, length: p.words[3] },
        Body::SetAttr(set),
        Body::AclV0 { object, order: ByteOrder::Little, count: p.words[3], aces },
        Body::Acl { object, acl: acl_of(p) },
        Body::SetSaXattr { object, name, value: &p.data },
        Body::SetSaXattr { object, name, value: &[] },
        Body::CloneRange {
            object,
            offset,
            length: p.words[3],
            block_size: p.words[4],
            blocks: p.blocks.clone(),
        },
    ];
    for what in [Creates::File, Creates::Directory] {
        for (acl, attrs) in [(false, false), (true, false), (false, true), (true, true)] {
            all.push(create(p, what, acl, attrs));
        }
    }
    all
}

/// The record at the start of `bytes`.
fn first(bytes: &[u8]) -> crate::Result<RawRecord<'_>> {
    raw_records(Bytes::new(bytes, ByteOrder::Little, "t")).next().unwrap()
}

proptest! {
    #[test]
    fn records_are_read_back_as_they_were_written(p in parts(), txg: u64, seq: u64, ci: bool) {
        let mut seen = std::collections::HashSet::new();
        for body in bodies(&p) {
            let record = Record { txg, seq, ignore_case: ci, body };
            let bytes = record.encode().unwrap();
            prop_assert_eq!(bytes.len() % 8, 0);
            let raw = first(&bytes).unwrap();
            prop_assert_eq!(raw.kind & TX_CI != 0, ci);
            prop_assert_eq!(raw.len, bytes.len() as u64);
            seen.insert(raw.kind & !TX_CI);
            let back = Record::decode(&raw).unwrap();
            prop_assert_eq!(&back, &record);
            prop_assert_eq!(back.encode().unwrap(), bytes);
        }
        prop_assert!((1..=24).all(|kind| p.attrs.is_none() || seen.contains(&kind)));
    }

    #[test]
    fn records_that_were_cut_or_changed_decode_to_something_or_an_error(
        p in parts(), at in 0usize..64, bit in 0u32..8, cut in 32usize..400,
    ) {
        for body in bodies(&p) {
            let mut bytes = Record { txg: 1, seq: 2, ignore_case: false, body }.encode().unwrap();
            bytes.truncate(cut);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Ok(raw) = first(&bytes)
                && let Ok(record) = Record::decode(&raw)
            {
                // A record that no writer makes may be refused.
                let _ = record.encode();
            }
        }
    }

    #[test]
    fn blocks_are_read_back_as_they_were_written(
        p in parts(), slim: bool, log: [u64; 4], pages in 1u64..5,
    ) {
        let kind = if slim { Checksum::Zilog2 } else { Checksum::Zilog };
        let mut bp = BlockPointer([7; 16]);
        bp.0[6] = (kind as u64) << 40 | (pages * 8 - 1);
        bp.0[12..].copy_from_slice(&log);
        let mut records = Vec::new();
        for body in bodies(&p) {
            let record = Record { txg: 1, seq: 2, ignore_case: false, body }.encode().unwrap();
            if records.len() + record.len() <= capacity(bp.lsize() as usize) {
                records.extend(record);
            }
        }
        let next = BlockPointer([9; 16]);
        let mut block = chain_block(&bp, next, &records).unwrap();
        prop_assert_eq!(verify_embedded(kind, &block, log).unwrap(), Some(ByteOrder::Little));
        block.resize(bp.lsize() as usize, 0);
        let view = Bytes::new(&block, ByteOrder::Little, "t");
        let back = ChainBlock::decode(&bp, &view).unwrap();
        prop_assert_eq!(&back.next.0[..12], &next.0[..12]);
        prop_assert_eq!(back.next.checksum()[3], log[3].wrapping_add(1));
        let bytes = back.records.slice(0, back.records.len()).unwrap();
        prop_assert_eq!(bytes, &records[..]);
        prop_assert!(raw_records(back.records).all(|r| Record::decode(&r.unwrap()).is_ok()));
        let other = BlockPointer({ let mut w = bp.0; w[13] ^= 1; w });
        prop_assert!(ChainBlock::decode(&other, &view).is_err());
        let long = vec![0; capacity(bp.lsize() as usize) + 1];
        prop_assert!(chain_block(&bp, next, &long).is_err());
    }
}

/// What systems write when a file gets another mode, owner, group, size, and other times.
#[test]
fn masks_of_all_systems_are_understood() {
    const M: u64 = SetAttr::MODE;
    const U: u64 = SetAttr::UID;
    const G: u64 = SetAttr::GID;
    const S: u64 = SetAttr::SIZE;
    const TIMES: u64 = SetAttr::ATIME | SetAttr::MTIME;
    let set =
        |mask, gid, size| set_attrs(mask, [0, gid], size) & (M | U | G | S | TIMES | ATTR_XVATTR);
    for (linux, freebsd, is) in [
        (0x41, 0x2, M),
        (0x42, 0x4, U),
        (0x44, 0x8, G),
        (0x46, 0xc, U | G),
        (0x1f0, 0x300, TIMES),
        (0x8000_0040, 0x1_0000, ATTR_XVATTR),
    ] {
        assert_eq!(set(linux, 5, 7), is, "{linux:#x}");
        assert_eq!(set(freebsd, u64::from(u32::MAX), u64::MAX), is, "{freebsd:#x}");
    }
    // A size alone, cut by path, by descriptor, and where privileges go.
    for mask in [0x8, 0x208, 0x68] {
        assert_eq!(set(mask, 0, 100) & !TIMES, S, "{mask:#x}");
    }
    // A core file is cut, and an overlay copies owners: without the time of change.
    assert_eq!(set(0x2008, 0, 0), S);
    for (mask, gid, size) in [(6, 5, 0), (6, 0, 0), (2, 5, 0), (4, 5, 0), (4, 0, 0), (0xe, 0, 9)] {
        assert_eq!(set(mask, gid, size), mask, "{mask:#x} {gid} {size}");
    }
    // FreeBSD takes set-id bits away, with all else zero.
    assert_eq!(set(0x2, 0, 0), M);
    assert_eq!(set(0x80, 0, 100), S);
    // A group of a domain, which no record of Linux has.
    assert_eq!(set(0x8, 1 << 32, 100), G);
    assert_eq!(set(0, 0, 0), 0);
}

#[test]
fn what_would_not_be_read_back_is_refused() {
    let new = NewObject {
        object: 1,
        slots: 1,
        mode: 0,
        uid: 0,
        gid: 0,
        generation: 1,
        crtime: [0, 0],
        rdev: 0,
    };
    let refused = |body| Record { txg: 1, seq: 1, ignore_case: false, body }.encode().is_err();
    let create = |new, domains, target| {
        let (what, name) = (Creates::File, b"name".as_slice());
        Body::Create(Create { what, dir: 1, new, attrs: None, acl: None, domains, name, target })
    };
    assert!(!refused(create(new, vec![], b"")));
    assert!(refused(create(NewObject { slots: 0, ..new }, vec![], b"")));
    assert!(refused(create(NewObject { slots: 257, ..new }, vec![], b"")));
    assert!(refused(create(NewObject { object: 1 << 48, ..new }, vec![], b"")));
    assert!(refused(create(new, vec![b"domain"], b"")));
    assert!(refused(create(NewObject { uid: 1 << 32, ..new }, vec![], b"")));
    assert!(refused(create(new, vec![], b"target")));
    assert!(refused(Body::Remove { dir: 1, name: b"a\0b" }));
    let block = BlockPointer::HOLE;
    let data = Some(b"four".as_slice());
    let write = Write { object: 1, offset: 0, length: 4, block_offset: 0, block, data };
    assert!(!refused(Body::Write(write)));
    assert!(refused(Body::Write(Write { length: 5, ..write })));
    assert!(refused(Body::Write(Write { offset: u64::MAX - 2, ..write })));
    assert!(refused(Body::Write2(write)));
}
