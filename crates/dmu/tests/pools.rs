//! Object sets, objects and ZAPs of pools made by OpenZFS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_dmu::zap::{Match, Zap};
use cenote_dmu::{Error, Object, ObjectSet, Seek, objset};
use cenote_format::dmu::{DmuType, ObjsetType};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The table in `object`: its count, its order, its cursors, and each entry found again.
fn check_zap(object: &Object) -> usize {
    let zap = Zap::open(object).unwrap();
    let entries = zap.entries().unwrap();
    assert_eq!(entries.len() as u64, zap.len(), "{object:?}");
    for pair in entries.windows(2) {
        let key = |c: u64| if zap.flags() & 1 != 0 { c << 16 } else { c << 36 };
        assert!(key(pair[0].cursor) <= key(pair[1].cursor), "{object:?}: order");
    }
    let mut paged = Vec::new();
    let mut cursor = 0;
    loop {
        let page = zap.entries_from(cursor, 13).unwrap();
        let Some(last) = page.last() else { break };
        cursor = last.cursor;
        paged.extend(page);
    }
    assert_eq!(paged, entries, "{object:?}");
    for entry in &entries {
        let found = if zap.has_word_keys() {
            zap.lookup_words(&entry.words()).unwrap()
        } else {
            let how = Match { fold_case: true };
            let norm = zap.lookup_norm(&entry.name, how).unwrap().unwrap();
            assert!(zap.norm_flags() != 0 || norm == *entry);
            zap.lookup(&entry.name).unwrap()
        };
        assert_eq!(found.as_ref(), Some(entry), "{object:?}");
    }
    if !zap.has_word_keys() {
        assert_eq!(zap.lookup(b"there is no such name").unwrap(), None);
    }
    let described = zap.describe();
    assert_eq!(described.entries, entries.len() as u64);
    if let Some(fat) = described.fat {
        assert_eq!(fat.entries_using_n_chunks.iter().sum::<u64>(), described.entries);
        assert_eq!(fat.blocks_with_n5_entries.iter().sum::<u64>(), fat.leafs);
    }
    entries.len()
}

#[test]
fn every_zap_of_every_pool() {
    let (mut zaps, mut entries, mut fat) = (0, 0, 0);
    for name in common::readable() {
        let pool = cenote_testpools::pool(&name);
        for set in common::objsets(&common::mos(&pool)) {
            let special = [objset::USER_USED, objset::GROUP_USED, objset::PROJECT_USED];
            let special = special.iter().filter_map(|n| set.special(*n).ok());
            let all = common::objects(&set).into_iter().map(|n| set.object(n).unwrap());
            for object in all.chain(special).filter(|o| o.dnode().kind.is_zap()) {
                zaps += 1;
                entries += check_zap(&object);
                fat += usize::from(!Zap::open(&object).unwrap().is_micro());
            }
        }
    }
    assert!(zaps > 5_000 && fat > 50 && entries > 30_000, "{zaps} {fat} {entries}");
}

/// Object number, levels and type name per object set, as `zdb -dd` lists them.
type Listing = BTreeMap<u64, Vec<(u64, u8, u64, String)>>;

fn zdb_listing(text: &str) -> Listing {
    let mut out = Listing::new();
    let mut id = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Dataset ") {
            let rest = rest.split(", ID ").nth(1).unwrap();
            let number = rest.split(',').next().unwrap().parse().unwrap();
            out.entry(number).or_default();
            id = Some(number);
            continue;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() < 9 {
            continue;
        }
        if let (Some(id), Some(number)) = (id, fields.first().and_then(|f| f.parse::<i64>().ok())) {
            let kind = fields[8..].join(" ");
            let kind = kind.split(" (").next().unwrap().to_owned();
            let dnode_size = match fields[5].strip_suffix('K') {
                Some(kib) => (kib.parse::<f64>().unwrap() * 1024.0) as u64,
                None => fields[5].parse().unwrap(),
            };
            out.get_mut(&id).unwrap().push((
                number as u64,
                fields[1].parse().unwrap(),
                dnode_size,
                kind,
            ));
        }
    }
    out
}

fn our_listing(set: &Arc<ObjectSet>) -> Vec<(u64, u8, u64, String)> {
    let mut objects = vec![set.special(objset::META_DNODE).unwrap()];
    for number in [objset::USER_USED, objset::GROUP_USED, objset::PROJECT_USED] {
        objects.extend(set.special(number));
    }
    objects.extend(common::objects(set).into_iter().map(|n| set.object(n).unwrap()));
    let line = |o: &Object| {
        let d = o.dnode();
        (o.number(), d.levels, d.slots() * 512, d.kind.name().to_owned())
    };
    objects.iter().map(line).collect()
}

#[test]
fn objects_are_those_that_zdb_lists() {
    for name in ["basic", "clones", "ldnode", "compat21", "dedup"] {
        let pool = cenote_testpools::pool(name);
        let text = pool.zdb_section(" -dd ");
        let listing = zdb_listing(&text);
        let mos = common::mos(&pool);
        let mut seen = 0;
        for set in common::objsets(&mos) {
            // The listing has no $ORIGIN and the like.
            let Some(theirs) = listing.get(&set.id()) else { continue };
            let ours = our_listing(&set);
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert_eq!(ours, theirs, "{name} objset {}", set.id());
            }
            // Long listings were cut off.
            let complete = !text.contains("[cut]") || ours.len() <= theirs.len();
            assert!(!complete || ours.len() == theirs.len(), "{name} objset {}", set.id());
            seen += 1;
        }
        assert_eq!(seen, listing.len(), "{name}");
    }
}

#[test]
fn numbers_inside_a_large_dnode_are_no_objects() {
    let pool = cenote_testpools::pool("ldnode");
    let mut large = 0;
    for set in common::objsets(&common::mos(&pool)) {
        for number in common::objects(&set) {
            let slots = set.object(number).unwrap().dnode().slots();
            for inside in number + 1..number + slots {
                assert!(matches!(set.object(inside), Err(Error::NoObject { .. })), "{inside}");
                large += 1;
            }
        }
        let past = set.max_object();
        assert!(matches!(set.object(past), Err(Error::NoObject { .. })));
        assert!(matches!(set.object(u64::MAX), Err(Error::NoObject { .. })));
        assert_eq!(set.next_object(past).unwrap(), None);
        assert_eq!(set.next_object(u64::MAX).unwrap(), None);
    }
    assert!(large > 100, "{large}");
}

#[test]
fn the_object_directory() {
    let mos = common::mos(&cenote_testpools::pool("basic"));
    assert_eq!(mos.phys().kind, ObjsetType::Meta);
    let directory = Zap::open(&mos.object(1).unwrap()).unwrap();
    let root = directory.u64(b"root_dataset").unwrap().unwrap();
    assert_eq!(mos.object(root).unwrap().dnode().bonus_kind, DmuType::DSL_DIR);
    assert!(directory.lookup(b"config").unwrap().unwrap().u64().is_some());
    let salt = directory.lookup(b"org.illumos:checksum_salt").unwrap().unwrap();
    assert_eq!((salt.int_size, salt.bytes().len()), (1, 32));
    assert!(directory.u64(b"org.illumos:checksum_salt").is_err());
    assert!(matches!(Zap::open(&mos.object(root).unwrap()), Err(Error::Corrupt { .. })));
}

#[test]
fn normalized_lookup() {
    let mos = common::mos(&cenote_testpools::pool("basic"));
    let mut folded = 0;
    for set in common::objsets(&mos) {
        for number in common::objects(&set) {
            let object = set.object(number).unwrap();
            if object.dnode().kind != DmuType::DIRECTORY_CONTENTS {
                continue;
            }
            let zap = Zap::open(&object).unwrap();
            if zap.norm_flags() == 0 {
                continue;
            }
            for entry in zap.entries().unwrap() {
                let Ok(name) = std::str::from_utf8(&entry.name) else { continue };
                let other = name.to_uppercase();
                if other == name {
                    continue;
                }
                let fold = Match { fold_case: true };
                let found = zap.lookup_norm(other.as_bytes(), fold).unwrap();
                // Where a letter becomes two, the cases are not equal.
                let one_to_one = other.chars().count() == name.chars().count();
                assert_eq!(found.is_some(), one_to_one, "{name}");
                let keep = Match { fold_case: false };
                assert_eq!(zap.lookup_norm(other.as_bytes(), keep).unwrap(), None, "{name}");
                folded += 1;
            }
        }
    }
    assert!(folded > 10, "{folded}");
}

/// Which data blocks are stored, asked one by one.
fn stored(object: &Object) -> Vec<bool> {
    let last = object.dnode().max_block;
    let is_stored = |blkid| {
        let bp = object.block_pointer(0, blkid).unwrap();
        assert!(bp.is_hole() || bp.lsize() == object.dnode().block_size, "{object:?}");
        !bp.is_hole()
    };
    (0..=last).map(is_stored).collect()
}

#[test]
fn seek_and_walk_agree_with_the_pointers_one_by_one() {
    for name in common::readable() {
        let mos = common::mos(&cenote_testpools::pool(&name));
        for set in common::objsets(&mos) {
            for number in common::objects(&set) {
                let object = set.object(number).unwrap();
                if object.dnode().max_block > 1500 {
                    continue;
                }
                let (stored, size) = (stored(&object), object.dnode().block_size);
                for block in 0..=stored.len() {
                    for (what, is) in [(Seek::Data, true), (Seek::Hole, false)] {
                        let next = (block..stored.len()).find(|b| stored[*b] == is);
                        let offset = block as u64 * size;
                        let want = next.map(|b| b as u64 * size);
                        assert_eq!(object.seek(offset, what).unwrap(), want, "{object:?}");
                        let inside = next.map(|b| (b as u64 * size).max(offset + 1));
                        assert_eq!(
                            object.seek(offset + 1, what).unwrap(),
                            inside.filter(|_| next.is_some())
                        );
                    }
                }
                let mut walked = vec![false; stored.len()];
                let mut walk = |level: i64, blkid: u64, _: &_| {
                    if level == 0 {
                        walked[blkid as usize] = true;
                    }
                    Ok(())
                };
                object.walk(&mut walk).unwrap();
                assert_eq!(walked, stored, "{object:?}");
            }
        }
    }
}

/// Object sets by the names that `zdb -d` gives them.
fn named(pool: &cenote_testpools::TestPool) -> BTreeMap<String, u64> {
    let text = pool.zdb_section(" -d ");
    let lines = text.lines().filter_map(|l| l.strip_prefix("Dataset "));
    let parse = |l: &str| {
        let id = l.split(", ID ").nth(1)?.split(',').next()?.parse().ok()?;
        Some((l.split(" [").next()?.to_owned(), id))
    };
    lines.filter_map(parse).collect()
}

fn hash(object: &Object, offset: u64, len: u64) -> String {
    let mut sum = Sha256::new();
    let mut at = offset;
    // A size that is no multiple of anything.
    let mut buf = vec![0xaa; 777_777];
    while at < offset + len {
        let n = (offset + len - at).min(buf.len() as u64) as usize;
        object.read(at, &mut buf[..n]).unwrap();
        sum.update(&buf[..n]);
        at += n as u64;
    }
    sum.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn contents_of_files() {
    let mut files = 0;
    for name in ["basic", "rz2", "mir3"] {
        let pool = cenote_testpools::pool(name);
        let (mos, ids) = (common::mos(&pool), named(&pool));
        let sets: BTreeMap<u64, _> =
            common::objsets(&mos).into_iter().map(|s| (s.id(), s)).collect();
        let manifest = pool.manifest();
        for dataset in manifest["datasets"].as_array().unwrap() {
            let Some(id) = ids.get(dataset["name"].as_str().unwrap()) else { continue };
            for file in dataset["files"].as_array().into_iter().flatten() {
                let size = file["size"].as_u64().unwrap();
                if file["type"] != "f" || size > 40 << 20 {
                    continue;
                }
                let Some(sum) = file["sha256"].as_str() else { continue };
                let object = sets[id].object(file["ino"].as_u64().unwrap()).unwrap();
                assert_eq!(hash(&object, 0, size), sum, "{name} {}", file["path"]);
                files += 1;
            }
        }
    }
    assert!(files > 5000, "{files}");
}

#[test]
fn a_terabyte_of_holes_is_skipped() {
    let pool = cenote_testpools::pool("basic");
    let mos = common::mos(&pool);
    let id = named(&pool)["basic"];
    let set = common::objsets(&mos).into_iter().find(|s| s.id() == id).unwrap();
    let manifest = pool.manifest();
    let files = manifest["datasets"][0]["files"].as_array().unwrap();
    let file = files.iter().find(|f| f["path"] == "sparse/tera").unwrap();
    let object = set.object(file["ino"].as_u64().unwrap()).unwrap();
    let start = Instant::now();
    let mut extents = Vec::new();
    let mut at = 0;
    while let Some(data) = object.seek(at, Seek::Data).unwrap() {
        let end = object.seek(data, Seek::Hole).unwrap().unwrap_or(1 << 40);
        extents.push((data, end - data));
        at = end;
    }
    let mut walked = 0;
    object
        .walk(&mut |level, _, _| {
            walked += u64::from(level == 0);
            Ok(())
        })
        .unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    let wanted = file["extents"].as_array().unwrap();
    let wanted_extents: Vec<_> =
        wanted.iter().map(|e| (e[0].as_u64().unwrap(), e[1].as_u64().unwrap())).collect();
    assert_eq!(extents, wanted_extents);
    assert_eq!(
        walked,
        extents.iter().map(|e| e.1.div_ceil(object.dnode().block_size)).sum::<u64>()
    );
    for extent in wanted {
        let (at, len) = (extent[0].as_u64().unwrap(), extent[1].as_u64().unwrap());
        assert_eq!(hash(&object, at, len), extent[2].as_str().unwrap());
        let mut zeros = vec![1; 300_000];
        object.read(at + len + (5 << 20), &mut zeros).unwrap();
        assert!(zeros.iter().all(|b| *b == 0));
    }
    let mut past = vec![1; 4096];
    object.read(u64::MAX - 100, &mut past).unwrap();
    assert!(past.iter().all(|b| *b == 0));
}
