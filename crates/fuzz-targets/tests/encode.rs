//! What the encoders make of real structures is, byte for byte, what OpenZFS wrote.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::Checksum;
use cenote_format::compress::{self, Compression};
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys};
use cenote_format::dsl::{BookmarkPhys, BpobjPhys, DeadlistPhys, DslDatasetPhys, DslDirPhys};
use cenote_format::encode::blkptr::{BlockProps, encode_pointers};
use cenote_format::encode::dmu::encode_dnodes;
use cenote_format::encode::label::{encode_config, encode_slot};
use cenote_format::encode::sa::encode_attrs;
use cenote_format::encode::spacemap::EntryWriter;
use cenote_format::encode::zap::leaf::LeafMut;
use cenote_format::encode::zap::micro::{self as micro_mut, MicroIndex};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::encode::zil::chain_block;
use cenote_format::label;
use cenote_format::sa::{AttrDef, Layout, SaHeader};
use cenote_format::spacemap::{DebugAction, Entries, Entry, SpaceMapPhys};
use cenote_format::zap::fat::FatHeader;
use cenote_format::zap::leaf::{Leaf, LeafEntry};
use cenote_format::zap::micro::Micro;
use cenote_format::zap::{BlockKind, block_kind};
use cenote_format::zil::{Body, ChainBlock, Creates, Record, Renames, raw_records};
use cenote_format::{ByteOrder, Bytes};
use cenote_fuzz_targets::walk::{Block, Image};

const POOLS: [&str; 9] =
    ["basic", "clones", "ldnode", "dedup", "deduplog", "legacyd", "mir3", "fraglogsm", "bclone"];

fn little(data: &[u8]) -> Bytes<'_> {
    Bytes::new(data, ByteOrder::Little, "test")
}

/// How many structures of each kind were compared.
type Counts = BTreeMap<&'static str, u64>;

fn each_block(name: &str, mut visit: impl FnMut(&Block<'_>)) {
    let pool = cenote_testpools::pool(name);
    let image = Image::open(&pool.files[0]).unwrap();
    image
        .walk(|block| {
            visit(block);
            Ok(())
        })
        .unwrap();
}

fn compare(counts: &mut Counts, pool: &str, block: &Block<'_>) {
    assert_eq!(block.bp.byte_order(), ByteOrder::Little);
    let mut count = |what| *counts.entry(what).or_default() += 1;
    count(pointer(block.bp));
    let kind = DmuType(block.bp.object_type());
    if block.bp.level() > 0 {
        let bytes = little(block.data);
        let decode = |at| BlockPointer::decode(&bytes, at).unwrap();
        let all: Vec<_> = (0..block.data.len()).step_by(BLKPTR_SIZE).map(decode).collect();
        all.iter().for_each(|bp| count(pointer(bp)));
        assert!(encode_pointers(&all, block.data.len()).unwrap() == block.data);
    } else if kind == DmuType::OBJSET {
        let set = ObjsetPhys::decode(&little(block.data)).unwrap();
        assert!(set.encode(block.data.len()).unwrap() == block.data, "{pool}: {set:?}");
        count("object set");
    } else if kind == DmuType::DNODE {
        dnodes(counts, block.data);
    } else if kind == DmuType::SPACE_MAP {
        count("space map block");
        space_map(block.data);
    } else if kind.is_zap() {
        zap(counts, block.data, kind);
    }
}

/// A pointer that is made from its properties is the same pointer.
fn pointer(bp: &BlockPointer) -> &'static str {
    let kind = DmuType(bp.object_type());
    if bp.is_hole() {
        if bp.logical_birth() != 0 {
            let hole = BlockPointer::hole(kind, bp.level(), bp.lsize(), bp.logical_birth());
            assert_eq!(hole.unwrap(), *bp);
            return "hole with a birth";
        }
        assert_eq!(bp.0, BlockPointer::HOLE.0);
        return "hole";
    }
    let compression = Compression::from_u8(bp.compression()).unwrap();
    if bp.is_embedded() {
        let payload = bp.embedded_payload().unwrap();
        let made =
            BlockPointer::embedded(kind, compression, bp.lsize(), &payload, bp.logical_birth());
        assert_eq!(made.unwrap(), *bp);
        return "embedded pointer";
    }
    let dvas: Vec<_> = bp.dvas().collect();
    let props = BlockProps {
        kind,
        level: bp.level(),
        checksum: Checksum::from_u8(bp.checksum_type()).unwrap(),
        compression,
        lsize: bp.lsize(),
        psize: bp.psize(),
        dedup: bp.is_dedup(),
        dvas: &dvas,
        logical_birth: bp.logical_birth(),
        physical_birth: bp.physical_birth(),
        fill: bp.fill(),
        sum: bp.checksum(),
    };
    assert_eq!(BlockPointer::new(&props).unwrap(), *bp);
    "pointer"
}

fn dnodes(counts: &mut Counts, data: &[u8]) {
    let mut all = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let dnode = DnodePhys::decode(&little(data), at).unwrap();
        let slots = dnode.as_ref().map_or(1, |d| d.slots() as usize);
        if let Some(dnode) = dnode {
            *counts.entry("dnode").or_default() += 1;
            assert!(dnode.encode().unwrap() == data[at..at + slots * DNODE_SLOT], "{dnode:?}");
            dnode.pointers.iter().chain(&dnode.spill).for_each(|bp| {
                *counts.entry(pointer(bp)).or_default() += 1;
            });
            bonus(counts, &dnode);
            all.push((at / DNODE_SLOT, dnode));
        } else {
            assert!(data[at..at + DNODE_SLOT].iter().all(|b| *b == 0), "a free slot is not blank");
        }
        at += slots * DNODE_SLOT;
    }
    let again = encode_dnodes(all.iter().map(|(slot, d)| (*slot, d)), data.len()).unwrap();
    assert!(again == data);
}

fn bonus(counts: &mut Counts, dnode: &DnodePhys) {
    let (data, b) = (&dnode.bonus[..], little(&dnode.bonus));
    let (what, again) = match dnode.bonus_kind {
        DmuType::DSL_DIR => ("directory", DslDirPhys::decode(&b).unwrap().encode()),
        DmuType::DSL_DATASET => ("dataset", DslDatasetPhys::decode(&b).unwrap().encode()),
        DmuType::DEADLIST_HDR => ("deadlist", DeadlistPhys::decode(&b).unwrap().encode()),
        DmuType::BPOBJ_HDR => ("bpobj", BpobjPhys::decode(&b).unwrap().encode(data.len()).unwrap()),
        DmuType::SPACE_MAP_HEADER => {
            ("space map", SpaceMapPhys::decode(&b).unwrap().encode().unwrap())
        }
        _ => return,
    };
    assert!(again == data, "{what} {data:?}");
    *counts.entry(what).or_default() += 1;
}

/// Each entry as it is; and ranges given to the writer one by one make the same block, where
/// OpenZFS chose the form itself.
fn space_map(data: &[u8]) {
    let entries: Vec<Entry> =
        Entries::new(little(data), data.len()).map_while(|e| e.ok()).collect();
    let mut out = Vec::new();
    for entry in &entries {
        let (first, second) = entry.encode().unwrap();
        out.extend(first.to_le_bytes());
        out.extend(second.into_iter().flat_map(u64::to_le_bytes));
    }
    // The unused rest of a block reads as entries of one unit; they encode to the zeros they are.
    assert!(data.starts_with(&out));
    assert!(data.len() - out.len() <= 8);
    let mut at = 0u64;
    for entry in &entries {
        let Entry::Range { change, vdev, offset, run } = *entry else {
            at += 8;
            continue;
        };
        // The vdev of two words in the map of a metaslab is 0 and does not make them necessary.
        let named = vdev.filter(|_| offset < 1 << 47 && run <= 1 << 15);
        let mut writer = EntryWriter::new(1 << 20, at, named, true).unwrap();
        writer.range(change, offset, run).unwrap();
        let made = writer.finish();
        if made.len() / 8 == entry.words() && (vdev.is_none() || named.is_some()) {
            assert_eq!(made, data[at as usize..at as usize + made.len()]);
        }
        at += 8 * entry.words() as u64;
    }
    let padding = Entry::Debug { action: DebugAction::Alloc, pass: 0, txg: 0 };
    assert!(entries.iter().all(|e| *e != padding || matches!(e.encode(), Ok((_, None)))));
}

fn zap(counts: &mut Counts, data: &[u8], kind: DmuType) {
    let what = match block_kind(&little(data)) {
        Ok(BlockKind::Micro) => {
            micro_zap(data);
            "micro ZAP"
        }
        Ok(BlockKind::Header) => {
            let header = FatHeader::decode(&little(data)).unwrap();
            let mut again = data.to_vec();
            again[..104].fill(0xee);
            header.encode(&mut again).unwrap();
            assert!(again == data, "{header:?}");
            "fat ZAP"
        }
        Ok(BlockKind::Leaf) => {
            // Keys of dedup tables and of bookmarks' redaction are words; the name says so badly.
            let words = [DmuType::DDT_ZAP.0, 48].contains(&kind.0);
            leaf(data, words);
            "leaf"
        }
        _ => return,
    };
    *counts.entry(what).or_default() += 1;
}

fn micro_entries(data: &[u8]) -> Vec<(Vec<u8>, u64, u32)> {
    let micro = Micro::decode(little(data)).unwrap();
    let entries = micro.entries().map(|e| e.unwrap().1);
    let mut all: Vec<_> = entries.map(|e| (e.name.to_vec(), e.value, e.cd)).collect();
    all.sort();
    all
}

/// The same entries put into an empty block; and each is found, removed and put back.
fn micro_zap(data: &[u8]) {
    let expected = micro_entries(data);
    let micro = Micro::decode(little(data)).unwrap();
    let mut made = vec![0; data.len()];
    micro_mut::format(&mut made, micro.salt, micro.norm_flags).unwrap();
    let mut index = MicroIndex::load(&made).unwrap();
    let mut by_cd = expected.clone();
    by_cd.sort_by_key(|e| e.2);
    for (name, value, _) in &by_cd {
        index.insert(&mut made, name, *value).unwrap();
    }
    assert_eq!(micro_entries(&made), expected);
    let mut changed = data.to_vec();
    let mut index = MicroIndex::load(data).unwrap();
    assert_eq!(index.len(), expected.len());
    for (name, value, _) in expected.iter().take(50) {
        let found = index.find(&changed, name).unwrap().unwrap();
        assert_eq!(found.value, *value);
        assert!(index.find_normalized(&changed, name).unwrap().is_some());
        index.remove(&mut changed, &found).unwrap();
        assert_eq!(index.find(&changed, name).unwrap(), None);
        index.insert(&mut changed, name, *value).unwrap();
    }
    assert_eq!(micro_entries(&changed), expected);
}

type LeafContents = Vec<(u64, u32, Vec<u8>, u8, Vec<u64>)>;

fn leaf_entries(data: &[u8], words: bool) -> LeafContents {
    let leaf = Leaf::decode(little(data)).unwrap();
    let key = |e: &LeafEntry| {
        if words { leaf.word_key(e).unwrap() } else { leaf.name(e).unwrap() }
    };
    let entries = leaf.entries(if words { 2 | 1 } else { 1 }).unwrap();
    let read = |e: &LeafEntry| (e.hash, e.cd, key(e), e.int_size, leaf.value(e).unwrap());
    entries.iter().map(read).collect()
}

fn insert(leaf: &mut LeafMut<'_>, words: bool, e: &(u64, u32, Vec<u8>, u8, Vec<u64>)) {
    let (hash, cd, key, size, ints) = e;
    let key_words: Vec<u64> =
        key.as_chunks::<8>().0.iter().map(|w| u64::from_be_bytes(*w)).collect();
    let key = if words { Key::Words(&key_words) } else { Key::Name(key) };
    let done = match size {
        1 => leaf.insert(
            *hash,
            &key,
            &Value::U8(&ints.iter().map(|n| *n as u8).collect::<Vec<_>>()),
            Some(*cd),
        ),
        2 => leaf.insert(
            *hash,
            &key,
            &Value::U16(&ints.iter().map(|n| *n as u16).collect::<Vec<_>>()),
            Some(*cd),
        ),
        4 => leaf.insert(
            *hash,
            &key,
            &Value::U32(&ints.iter().map(|n| *n as u32).collect::<Vec<_>>()),
            Some(*cd),
        ),
        _ => leaf.insert(*hash, &key, &Value::U64(ints), Some(*cd)),
    };
    assert_eq!(done, Ok(*cd));
    assert!(leaf.find(*hash, &key).unwrap().is_some());
}

/// OpenZFS's leaf passes the check; its entries put into an empty leaf, removed from and put back
/// into their own, and split between two leaves are the same entries.
fn leaf(data: &[u8], words: bool) {
    let expected = leaf_entries(data, words);
    let mut own = data.to_vec();
    LeafMut::open(&mut own).unwrap().check(words).unwrap();
    let flags = Leaf::decode(little(data)).unwrap().flags;
    if Leaf::decode(little(data)).unwrap().prefix_len == 0 {
        let mut made = vec![0; data.len()];
        let mut new = LeafMut::format(&mut made, flags & 1 != 0).unwrap();
        expected.iter().for_each(|e| insert(&mut new, words, e));
        new.check(words).unwrap();
        assert_eq!(leaf_entries(&made, words), expected);
    }
    let mut changed = LeafMut::open(&mut own).unwrap();
    for e in expected.iter().take(60) {
        let key_words: Vec<u64> =
            e.2.as_chunks::<8>().0.iter().map(|w| u64::from_be_bytes(*w)).collect();
        let key = if words { Key::Words(&key_words) } else { Key::Name(&e.2) };
        let at = changed.find(e.0, &key).unwrap().unwrap();
        assert_eq!(at.cd, e.1);
        changed.remove(&at).unwrap();
        insert(&mut changed, words, e);
    }
    changed.check(words).unwrap();
    assert_eq!(leaf_entries(&own, words), expected);
    let mut low = LeafMut::open(&mut own).unwrap();
    let mut made = vec![0; data.len()];
    let mut high = LeafMut::format(&mut made, flags & 1 != 0).unwrap();
    low.split(&mut high, flags & 1 != 0).unwrap();
    low.check(words).unwrap();
    high.check(words).unwrap();
    let both = [leaf_entries(&own, words), leaf_entries(&made, words)].concat();
    assert_eq!(both, expected);
}

#[test]
fn structures_of_real_pools() {
    let mut counts = Counts::new();
    for pool in POOLS {
        each_block(pool, |block| compare(&mut counts, pool, block));
    }
    for what in [
        "pointer",
        "hole",
        "hole with a birth",
        "embedded pointer",
        "object set",
        "dnode",
        "directory",
        "dataset",
        "deadlist",
        "bpobj",
        "space map",
        "space map block",
        "micro ZAP",
        "fat ZAP",
        "leaf",
    ] {
        assert!(counts.get(what).is_some_and(|n| *n >= 10), "{what}: {counts:?}");
    }
}

#[test]
fn labels_of_real_pools() {
    let mut slots = 0;
    for pool in POOLS {
        let pool = cenote_testpools::pool(pool);
        let label = Image::open(&pool.files[0]).unwrap().label().unwrap();
        let config = &label[label::CONFIG_OFFSET as usize..][..label::CONFIG_SIZE];
        let list = label::decode_config(config, label::CONFIG_OFFSET).unwrap().unwrap();
        assert!(encode_config(&list, label::CONFIG_OFFSET).unwrap() == config);
        for ashift in [10, 12, 13] {
            let size = label::slot_size(ashift);
            for (i, slot) in label[label::RING_OFFSET as usize..].chunks_exact(size).enumerate() {
                let offset = label::RING_OFFSET + (i * size) as u64;
                let Some(u) = label::decode_slot(slot, offset).unwrap() else { continue };
                assert!(encode_slot(&u, ashift, offset).unwrap() == slot);
                slots += 1;
            }
        }
    }
    assert!(slots > 100);
}

/// Values of every leaf and micro ZAP of a type.
fn values(pool: &str, kind: u8) -> BTreeSet<(Vec<u8>, Vec<u64>)> {
    let mut out = BTreeSet::new();
    each_block(pool, |block| {
        if block.bp.level() > 0 || block.bp.object_type() != kind {
            return;
        }
        match block_kind(&little(block.data)) {
            Ok(BlockKind::Leaf) => {
                out.extend(leaf_entries(block.data, false).into_iter().map(|e| (e.2, e.4)));
            }
            Ok(BlockKind::Micro) => {
                out.extend(micro_entries(block.data).into_iter().map(|e| (e.0, vec![e.1])));
            }
            _ => {}
        }
    });
    out
}

/// Which file system a buffer is of is not known here, so one of those that have its layout must
/// make the same buffer.
#[test]
fn attributes_of_real_files() {
    for pool in ["basic", "ldnode", "clones"] {
        let registry: BTreeMap<u16, AttrDef> = values(pool, 46)
            .into_iter()
            .map(|(_, v)| AttrDef::decode(v[0]))
            .map(|a| (a.id, a))
            .collect();
        assert!(registry.values().all(|a| AttrDef::decode(a.encode()) == *a));
        let layouts = values(pool, 47);
        let mut seen = 0;
        let mut exact = 0;
        let mut check = |data: &[u8]| {
            let Ok(header) = SaHeader::decode(data) else { return };
            let name = header.layout.to_string().into_bytes();
            let made: Vec<Vec<u8>> = layouts
                .iter()
                .filter(|(n, _)| *n == name)
                .filter_map(|(_, ids)| {
                    let defs: Vec<AttrDef> = ids.iter().map(|id| registry[&(*id as u16)]).collect();
                    let found = Layout::new(defs.clone()).locate(data, &header).ok()?;
                    let values = found.iter().map(|v| &data[v.at..v.at + v.len]);
                    Some(encode_attrs(header.layout, defs.iter().copied().zip(values)).unwrap())
                })
                .collect();
            exact += u32::from(made.iter().any(|m| m == data));
            let same = made.iter().any(|m| data.starts_with(m));
            assert!(same, "{pool}: layout {} {data:?}", header.layout);
            seen += 1;
        };
        each_block(pool, |block| {
            if block.bp.level() > 0 {
                return;
            }
            match DmuType(block.bp.object_type()) {
                DmuType::SA => check(block.data),
                DmuType::DNODE => {
                    for d in cenote_fuzz_targets::walk::dnodes(&little(block.data)).unwrap() {
                        if d.bonus_kind == DmuType::SA {
                            check(&d.bonus);
                        }
                    }
                }
                _ => {}
            }
        });
        // Spill blocks are padded, and a bonus beside one has the length that all attributes had.
        assert!(seen > 20 && exact > seen / 3, "{pool}: {exact} of {seen}");
    }
}

#[test]
fn bookmarks_of_real_pools() {
    let mut seen = 0;
    // Bookmarks are in ZAPs of no type of their own; their values have 3 or 12 words.
    for (_, words) in
        values("clones", 196).into_iter().chain(values("clones", DmuType::ZAP_OTHER.0))
    {
        if words.len() == 3 || words.len() == 12 {
            let mark = BookmarkPhys::decode(&words).unwrap();
            assert_eq!(mark.encode(words.len()).unwrap(), words);
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// Every block of a pool through every compressor and back.
#[test]
fn blocks_of_a_real_pool_compress() {
    let kinds = [
        (Compression::Lzjb, 0),
        (Compression::Gzip1, 0),
        (Compression::Gzip6, 0),
        (Compression::Zle, 0),
        (Compression::Lz4, 0),
        (Compression::Zstd, 3),
        (Compression::Zstd, 103),
    ];
    let mut packed_blocks = BTreeMap::<_, u32>::new();
    let mut blocks = 0;
    each_block("mir3", |block| {
        blocks += 1;
        if blocks % 4 != 0 {
            return;
        }
        let data = &block.data[..block.data.len().min(256 << 10)];
        assert_eq!(compress::is_zero(data), data.iter().all(|b| *b == 0));
        for (kind, level) in kinds {
            let limit = compress::max_compressed_size(kind, data.len(), 512, 512);
            let Some(packed) = compress::compress(kind, level, data, limit) else { continue };
            let mut back = vec![0; data.len()];
            compress::decompress(kind, &packed, &mut back).unwrap();
            assert!(back == data, "{}", kind.name());
            *packed_blocks.entry((kind.name(), level)).or_default() += 1;
        }
    });
    assert_eq!(packed_blocks.len(), kinds.len());
}

/// Records and blocks of intent logs that a crash left.
#[test]
fn intent_logs() {
    let (mut kinds, mut blocks) = (BTreeMap::<u64, u64>::new(), 0);
    for name in ["zilmain", "zilslog", "fragcrash"] {
        let pool = cenote_testpools::pool(name);
        let image = Image::open(&pool.files[0]).unwrap();
        let log = |block: &Block<'_>| {
            if block.bp.object_type() != DmuType::OBJSET.0 || block.bp.level() > 0 {
                return Ok(());
            }
            let header = ObjsetPhys::decode(&little(block.data)).unwrap().zil;
            for (bp, data) in image.log(&header).unwrap_or_default() {
                let chain = ChainBlock::decode(&bp, &little(&data)).unwrap();
                let mut records = Vec::new();
                for raw in raw_records(chain.records) {
                    let raw = raw.unwrap();
                    let bytes = raw.data.slice(0, raw.data.len()).unwrap();
                    let record = Record::decode(&raw).unwrap();
                    let encoded = record.encode().unwrap();
                    let padded = encoded.len() - unpadded(&record);
                    let exact = encoded.len() - padded;
                    assert_eq!(encoded.len(), bytes.len(), "{name}: {record:?}");
                    assert!(encoded[..exact] == bytes[..exact], "{name}: {record:?}");
                    *kinds.entry(record.body.kind()).or_default() += 1;
                    records.extend(bytes);
                }
                let made = chain_block(&bp, chain.next, &records).unwrap();
                // What is past the part that is used is left over from before.
                let used = 184 + records.len();
                assert!(made[184..used] == data[184..used] && made[..144] == data[..144], "{name}");
                blocks += 1;
            }
            Ok(())
        };
        image.walk(log).unwrap();
    }
    assert!(blocks > 50, "{blocks}");
    assert!(kinds.len() >= 15, "{kinds:?}");
}

/// Bytes of a record before its padding.
fn unpadded(record: &Record<'_>) -> usize {
    let strings = |names: &[&[u8]]| names.iter().map(|n| n.len() + 1).sum::<usize>();
    match &record.body {
        Body::Create(c) if c.what == Creates::Symlink => 104 + strings(&[c.name, c.target]),
        Body::Create(c) => 104 + strings(&[c.name]),
        Body::Remove { name, .. } | Body::Rmdir { name, .. } => 40 + strings(&[name]),
        Body::Link { name, .. } => 48 + strings(&[name]),
        Body::Rename(r) => {
            let new = if matches!(r.how, Renames::Whiteout(_)) { 64 } else { 0 };
            48 + new + strings(&[r.from, r.to])
        }
        Body::Write(w) => 192 + w.data.map_or(0, <[u8]>::len),
        Body::SetSaXattr { name, value, .. } => 48 + strings(&[name]) + value.len(),
        _ => record.encode().unwrap().len(),
    }
}
