//! The targets. The first bytes of an input choose what is done with the rest.
//!
//! Each target decodes bytes as one structure, then uses all that it decoded: names, offsets and lists are walked,
//! so that a value that the decoder let through cannot break its user. Where it costs little, a target asserts an
//! invariant as well: sizes are within the format's bounds, a checksum does not depend on how its bytes are
//! divided, what is encoded again decodes to the same.
//!
//! The line above a target says how its input is read. A target may cut sizes below what the format allows, to keep
//! the fuzzer quick; it must not leave kinds of input out.

use std::hint::black_box;

use cenote_format::abd::Abd;
use cenote_format::acl::Ace;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::{self, Compression};
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys};
use cenote_format::nvlist::{self, NvList};
use cenote_format::redaction::{RedactBlocks, RedactionList};
use cenote_format::zil::{Body, ChainBlock, Record};
use cenote_format::{ByteOrder, Bytes, dsl as dsl_format, label as label_format};
use cenote_format::{sa as sa_format, spacemap as spacemap_format};
use cenote_format::{zap as zap_format, zil as zil_format};

fn order(byte: u8) -> ByteOrder {
    if byte & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big }
}

/// `order, block pointers…`
pub(crate) fn blkptr(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let bytes = Bytes::new(rest, order(first), "fuzz");
    for at in (0..rest.len()).step_by(BLKPTR_SIZE) {
        let Ok(bp) = BlockPointer::decode(&bytes, at) else { return };
        black_box(format!("{bp:?}"));
        black_box((bp.is_hole(), bp.is_gang(), bp.is_encrypted(), bp.is_dedup(), bp.byte_order()));
        black_box((bp.physical_birth(), bp.logical_birth(), bp.fill(), bp.checksum()));
        black_box(DmuType(bp.object_type()).name());
        // A hole is not read, so its sizes do not matter.
        if bp.check().is_ok() && !bp.is_hole() {
            assert!(
                bp.lsize() <= cenote_format::MAX_BLOCK && bp.psize() <= cenote_format::MAX_BLOCK
            );
        }
        let (Ok(payload), Ok(kind)) =
            (bp.embedded_payload(), Compression::from_u8(bp.compression()))
        else {
            continue;
        };
        if bp.check().is_ok() && bp.lsize() <= 1 << 17 {
            let _ = compress::decompress(kind, &payload, &mut vec![0; bp.lsize() as usize]);
        }
    }
}

/// `function, order and where to cut, data…`
pub(crate) fn checksum(data: &[u8]) {
    let &[kind, flags, ref rest @ ..] = data else { return };
    let Ok(kind) = Checksum::from_u8(kind % 16) else { return };
    let salt = Salt::new([flags; 32]);
    let whole = checksum::compute(kind, &Abd::copy_of(rest), order(flags), &salt);
    let (head, tail) = rest.split_at(usize::from(flags >> 1) * rest.len() / 128);
    let parts = Abd::gang(vec![Abd::copy_of(head), Abd::copy_of(tail)]);
    let again = checksum::compute(kind, &parts, order(flags), &salt);
    assert_eq!(whole.is_ok(), again.is_ok());
    assert!(whole.is_err() || whole == again, "{} depends on chunks", kind.name());
    black_box(checksum::verify_embedded(kind, rest, [1, 2, 3, 4])).ok();
}

/// `function, output size in bytes (3), data…`
pub(crate) fn decompress(data: &[u8]) {
    let &[kind, a, b, c, ref src @ ..] = data else { return };
    let Ok(kind) = Compression::from_u8(kind % 18) else { return };
    let size = u32::from_be_bytes([0, a, b, c]) as usize;
    // The largest block is 16 MiB; a smaller bound keeps the fuzzer quick.
    let mut dst = vec![0; size & ((1 << 18) - 1)];
    let _ = compress::decompress(kind, src, &mut dst);
}

/// `order, dnodes or an object set…`
pub(crate) fn dnode(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let bytes = Bytes::new(rest, order(first), "fuzz");
    let mut at = 0;
    while at < rest.len() {
        match DnodePhys::decode(&bytes, at) {
            Ok(Some(dnode)) => {
                let slots = dnode.slots() as usize;
                assert!((1..=32).contains(&slots) && !dnode.pointers.is_empty());
                assert!(dnode.block_size <= cenote_format::MAX_BLOCK);
                at += slots * DNODE_SLOT;
            }
            Ok(None) => at += DNODE_SLOT,
            Err(_) => break,
        }
    }
    black_box(ObjsetPhys::decode(&bytes)).ok();
}

/// `order, a structure…`
pub(crate) fn dsl(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let bytes = Bytes::new(rest, order(first), "fuzz");
    black_box(dsl_format::DslDirPhys::decode(&bytes)).ok();
    black_box(dsl_format::DslDatasetPhys::decode(&bytes)).ok();
    black_box(dsl_format::DeadlistPhys::decode(&bytes)).ok();
    black_box(dsl_format::BpobjPhys::decode(&bytes)).ok();
    let words: Vec<u64> =
        rest.as_chunks::<8>().0.iter().take(32).map(|w| u64::from_le_bytes(*w)).collect();
    black_box(dsl_format::BookmarkPhys::decode(&words)).ok();
    if let Ok(list) = RedactionList::decode(&bytes) {
        assert!(bytes.order() == ByteOrder::Big || rest.starts_with(&list.encode()));
    }
    if let Ok(blocks) = RedactBlocks::decode(&bytes) {
        black_box(blocks.end());
        assert!(blocks.encode().is_ok());
    }
}

/// A label's config area or a slot of its ring.
pub(crate) fn label(data: &[u8]) {
    black_box(label_format::decode_config(data, 16 << 10)).ok();
    black_box(label_format::decode_slot(data, 128 << 10)).ok();
    if let Ok(Some(ub)) = label_format::Uberblock::decode(data) {
        black_box((ub.rank(), ub.mmp_valid(), ub.mmp_interval(), ub.mmp_fail_intervals()));
        black_box((ub.mmp_sequence(), ub.reflow_state(), ub.reflow_offset()));
        black_box(format!("{ub:?}"));
    }
    nvlist(data);
}

/// A packed list.
pub(crate) fn nvlist(data: &[u8]) {
    if let Ok(list) = NvList::decode(data) {
        // Compared as encoded: a NaN does not equal itself.
        let encoded = list.encode();
        let again = NvList::decode(&encoded).map(|list| list.encode());
        assert_eq!(again, Ok(encoded), "encoding loses something");
    }
    black_box(nvlist::decode_raw_names(data)).ok();
    black_box(sa_format::decode_xattrs(data)).ok();
}

/// `number of attributes, a registry entry (8) for each, a buffer…`
pub(crate) fn sa(data: &[u8]) {
    let Some((&count, rest)) = data.split_first() else { return };
    let Some((entries, buffer)) = rest.split_at_checked(usize::from(count) * 8) else { return };
    let attrs: Vec<sa_format::AttrDef> = entries
        .as_chunks::<8>()
        .0
        .iter()
        .map(|w| sa_format::AttrDef::decode(u64::from_le_bytes(*w)))
        .collect();
    black_box(sa_format::decode_xattrs(buffer)).ok();
    let Ok(header) = sa_format::SaHeader::decode(buffer) else { return };
    let layout = sa_format::Layout::new(attrs);
    let Ok(values) = layout.locate(buffer, &header) else { return };
    for value in &values {
        assert!(buffer.get(value.at..value.at + value.len).is_some(), "value outside its buffer");
    }
    let mut turned = buffer.to_vec();
    assert_eq!(layout.turn(&mut turned, &header), Ok(()), "values that were found");
    let now = sa_format::SaHeader::decode(&turned)
        .and_then(|now| Ok((now.layout, now.order != header.order, layout.locate(&turned, &now)?)));
    assert_eq!(now, Ok((header.layout, true, values)), "another shape after it was turned");
}

/// `order, shift, entries…`
pub(crate) fn spacemap(data: &[u8]) {
    let &[first, shift, ref rest @ ..] = data else { return };
    let bytes = Bytes::new(rest, order(first), "fuzz");
    black_box(spacemap_format::SpaceMapPhys::decode(&bytes)).ok();
    let mut words = 0;
    for entry in spacemap_format::Entries::new(bytes, rest.len()) {
        let Ok(entry) = entry else { break };
        words += entry.words();
        if let spacemap_format::Entry::Range { offset, run, .. } = entry {
            black_box(spacemap_format::unit_bytes(offset, u32::from(shift))).ok();
            assert!(run > 0);
        }
    }
    assert!(words <= rest.len() / 8);
}

/// `order, flags, normalization flags, a block…`
pub(crate) fn zap(data: &[u8]) {
    let &[first, flags, norm, ref rest @ ..] = data else { return };
    let bytes = Bytes::new(rest, order(first), "fuzz");
    let (flags, norm) = (u64::from(flags), u64::from(norm));
    let key = |name: &[u8]| {
        black_box(zap_format::hash::hash_name(1, flags, name));
        black_box(zap_format::norm::normalize(name, norm));
    };
    if let Ok(micro) = zap_format::micro::Micro::decode(bytes) {
        for entry in micro.entries() {
            let Ok((_, entry)) = entry else { break };
            key(entry.name);
        }
    }
    if let Ok(header) = zap_format::fat::FatHeader::decode(&bytes) {
        for hash in [0, 1 << 40, u64::MAX] {
            let index = header.index(hash);
            assert!(index < header.pointers());
            black_box(header.pointer_at(index));
        }
    }
    let Ok(leaf) = zap_format::leaf::Leaf::decode(bytes) else { return };
    for bucket in 0..leaf.buckets() {
        black_box(leaf.bucket_entries(bucket).count());
    }
    for entry in leaf.entries(flags).unwrap_or_default() {
        black_box(leaf.find(entry.hash).count());
        black_box(leaf.word_key(&entry)).ok();
        black_box(leaf.value(&entry)).ok();
        if let Ok(name) = leaf.name(&entry) {
            key(&name);
        }
    }
}

/// `order and form, block of an intent log`. What decodes is encoded and decoded again.
pub(crate) fn zil(data: &[u8]) {
    let Some((&first, block)) = data.split_first() else { return };
    let bytes = Bytes::new(block, order(first), "fuzz");
    let mut bp = BlockPointer([0; 16]);
    let kind = if first & 2 == 0 { Checksum::Zilog2 } else { Checksum::Zilog };
    // What a block's pointer says of the next block is taken from the block.
    let next = bytes.u64s::<4>(8 + 96).unwrap_or_default();
    bp.0[12..].copy_from_slice(&next);
    bp.0[15] = bp.0[15].wrapping_sub(1);
    bp.0[6] = (kind as u64) << 40 | (block.len() as u64).div_ceil(512).saturating_sub(1) & 0xffff;
    let chain = ChainBlock::decode(&bp, &bytes);
    let records = chain.map_or(bytes, |chain| chain.records);
    for raw in zil_format::raw_records(records) {
        let Ok(raw) = raw else { return };
        black_box(raw.write_block());
        let Ok(record) = Record::decode(&raw) else { continue };
        if let Body::Acl { acl, .. } = &record.body {
            let list = Bytes::new(acl.aces, acl.order, "fuzz");
            let _ = black_box(Ace::decode_logged(&list, acl.count, false));
            let _ = black_box(Ace::decode_stored(&list, acl.count));
        }
        let Ok(encoded) = record.encode() else { continue };
        let again = Bytes::new(&encoded, ByteOrder::Little, "fuzz");
        let again = zil_format::raw_records(again).next();
        let again = again.and_then(|raw| Record::decode(&raw.ok()?).ok());
        assert_eq!(again.as_ref(), Some(&record));
    }
}
