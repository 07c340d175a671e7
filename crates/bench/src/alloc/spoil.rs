//! Spoiled metaslabs: what years of use leave behind, made in seconds from a seed.
//!
//! A metaslab of 16 GiB in sectors of 4 KiB has 1.33 million free segments of at most 42
//! sectors (168 KiB), with one to a few allocated sectors between them. Its space map says so in
//! 4 million records: all of it is allocated, then every segment is freed, allocated again, and
//! freed. What a transaction group changes is in order, and is spread over the whole metaslab.
//!
//! The maps are written by a sync task into the MOS of a real pool, with headers and the
//! feature's refcount as they must be. No block pointer leads to what they say is allocated, so
//! `zdb -b` finds it leaked; `zdb -m` is what judges them.

use anyhow::{Context, bail, ensure};
use cenote_dmu::write::zap::ZapMut;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError};
use cenote_engine::Engine;
use cenote_format::dmu::DmuType;
use cenote_format::encode::spacemap::EntryWriter;
use cenote_format::encode::zap::Key;
use cenote_format::spacemap::{Change, HISTOGRAM_BUCKETS, SPACE_MAP_SIZE, SpaceMapPhys};
use cenote_store::histogram::Histogram;

use crate::noise::Noise;

/// log2 of the bytes of a sector.
pub const SHIFT: u32 = 12;
/// log2 of the bytes of a metaslab.
pub const MS_SHIFT: u32 = 34;
/// Free segments of a spoiled metaslab.
const SEGMENTS: usize = 1_330_000;
/// Sectors of the longest of them: 168 KiB.
const LONGEST: u64 = 42;
/// Segments that one txg changes.
const PER_TXG: usize = 2000;
/// Bytes of a space map's block where there are logs (`zfs_metaslab_sm_blksz_with_log`).
const BLOCK: u64 = 128 << 10;
/// log2 of the bytes of its indirect blocks (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;
/// First txg that the records name.
const TXG: u64 = 1000;
/// Number of the object directory.
const DIRECTORY: u64 = 1;
const HISTOGRAM_FEATURE: &[u8] = b"com.delphix:spacemap_histogram";

/// The space map of one metaslab, and what it comes to.
pub struct Map {
    entries: Vec<u8>,
    header: SpaceMapPhys,
    /// Words of entries.
    pub records: u64,
    /// Bytes free.
    pub free: u64,
    /// Free segments by size.
    pub histogram: Histogram,
}

/// Length of the next free segment, in sectors: nine of ten are one or two.
fn segment(noise: &mut Noise) -> u64 {
    let of = |noise: &mut Noise, from: u64, to: u64| from + noise.next() % (to - from + 1);
    match noise.next() % 1000 {
        0..800 => 1,
        800..968 => 2,
        968..992 => of(noise, 3, 8),
        992..998 => of(noise, 9, 32),
        _ => of(noise, 33, LONGEST),
    }
}

/// Length of the next allocated run, in sectors.
fn gap(noise: &mut Noise) -> u64 {
    match noise.next() % 100 {
        0..60 => 1,
        60..83 => 2,
        83..96 => 3,
        _ => 4,
    }
}

/// The free segments `(start, sectors)` of a metaslab of so many sectors.
fn segments(noise: &mut Noise, sectors: u64) -> anyhow::Result<Vec<(u64, u64)>> {
    let (mut all, mut at) = (Vec::with_capacity(SEGMENTS), 0);
    for _ in 0..SEGMENTS {
        let start = at + gap(noise);
        let len = segment(noise);
        all.push((start, len));
        at = start + len;
    }
    ensure!(at < sectors, "{at} of {sectors} sectors");
    Ok(all)
}

/// Numbers of segments, one txg after another, in order within each.
fn shuffled(noise: &mut Noise) -> Vec<u32> {
    let txgs = SEGMENTS.div_ceil(PER_TXG);
    let mut of_txg = vec![Vec::with_capacity(2 * PER_TXG); txgs];
    for i in 0..SEGMENTS as u32 {
        of_txg[(noise.next() % txgs as u64) as usize].push(i);
    }
    of_txg.concat()
}

impl Map {
    /// A spoiled metaslab.
    pub fn spoiled(seed: u64) -> anyhow::Result<Map> {
        let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let sectors = 1 << (MS_SHIFT - SHIFT);
        let segments = segments(&mut noise, sectors)?;
        let mut writer = EntryWriter::new(BLOCK, 0, None, false)?;
        let mut txg = TXG;
        writer.debug(Change::Alloc, 1, txg)?;
        writer.range(Change::Alloc, 0, sectors)?;
        for change in [Change::Free, Change::Alloc, Change::Free] {
            for of_txg in shuffled(&mut noise).chunks(PER_TXG) {
                txg += 1;
                writer.debug(change, 1, txg)?;
                let mut of_txg = of_txg.to_vec();
                of_txg.sort_unstable();
                for i in of_txg {
                    let (start, len) = segments[i as usize];
                    writer.range(change, start, len)?;
                }
            }
        }
        let (mut histogram, mut free) = (Histogram::default(), 0);
        for (_, len) in &segments {
            histogram.add(len << SHIFT);
            free += len << SHIFT;
        }
        Ok(Map::of(writer, free, histogram))
    }

    /// A metaslab in which nothing is free.
    pub fn full() -> anyhow::Result<Map> {
        let mut writer = EntryWriter::new(BLOCK, 0, None, false)?;
        writer.debug(Change::Alloc, 1, TXG)?;
        writer.range(Change::Alloc, 0, 1 << (MS_SHIFT - SHIFT))?;
        Ok(Map::of(writer, 0, Histogram::default()))
    }

    fn of(writer: EntryWriter, free: u64, histogram: Histogram) -> Map {
        let length = writer.length();
        let alloc = ((1u64 << MS_SHIFT) - free) as i64;
        let mut header =
            SpaceMapPhys { object: 0, length, alloc, histogram: Some([0; HISTOGRAM_BUCKETS]) };
        header.add_histogram(histogram.counts(), SHIFT);
        Map { entries: writer.finish(), header, records: length / 8, free, histogram }
    }

    /// Number of free segments.
    pub fn segments(&self) -> u64 {
        self.histogram.counts().iter().sum()
    }

    /// Makes this the map of a metaslab without a map.
    fn write(mut self, mos: &mut OpenObjectSet, array: u64, ms: u64) -> Result<(), WriteError> {
        let object = mos.allocate(&NewObject {
            indirect_shift: INDIRECT_SHIFT,
            bonus_kind: DmuType::SPACE_MAP_HEADER,
            bonus: vec![0; SPACE_MAP_SIZE],
            ..NewObject::new(DmuType::SPACE_MAP, BLOCK)
        })?;
        self.header.object = object;
        mos.write(object, 0, &self.entries)?;
        mos.set_bonus(object, DmuType::SPACE_MAP_HEADER, &self.header.encode()?)?;
        mos.write(array, ms * 8, &object.to_le_bytes())?;
        let list = ZapMut::open(mos, DIRECTORY).lookup(&Key::Name(b"features_for_write"))?;
        let list = list.and_then(|(_, value)| value.first().copied()).unwrap_or(0);
        ZapMut::open(mos, list).increment(&Key::Name(HISTOGRAM_FEATURE), 1)?;
        Ok(())
    }
}

/// Gives a pool of one vdev, in which little was written so far, `count` spoiled metaslabs. All
/// others but those that the pool has begun to use become full. Returns the numbers of the spoiled
/// ones.
pub fn spoil(engine: &Engine, count: usize, seed: u64) -> anyhow::Result<Vec<u64>> {
    let pool = engine.pool();
    let space = pool.space().context("a pool without space maps")?;
    let [vdev] = space.vdevs.as_slice() else { bail!("a pool of one vdev") };
    ensure!(vdev.metaslab_shift == MS_SHIFT && vdev.ashift == SHIFT, "metaslabs of 16 GiB");
    let array = vdev.metaslab_array;
    let unused = vdev.metaslabs.iter().filter(|ms| ms.space_map == 0).map(|ms| ms.id);
    let unused: Vec<u64> = unused.collect();
    ensure!(unused.len() >= count, "only {} unused metaslabs", unused.len());
    let (spoiled, full) = unused.split_at(count);
    for ms in spoiled {
        let map = Map::spoiled(seed.wrapping_add(*ms))?;
        let ms = *ms;
        engine.sync_task(move |context| Ok(map.write(context.tx.mos, array, ms)?))?;
    }
    let full = full.to_vec();
    engine.sync_task(move |context| {
        for ms in full {
            let map = Map::full()
                .map_err(|e| WriteError::Invalid { object: array, why: e.to_string() })?;
            map.write(context.tx.mos, array, ms)?;
        }
        Ok(())
    })?;
    Ok(spoiled.to_vec())
}
