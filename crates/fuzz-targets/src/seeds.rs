//! Real structures from the sample pools, in the form that each target takes.

use std::collections::{HashMap, HashSet};
use std::io;

use cenote_format::dmu::{DmuType, ObjsetPhys};
use cenote_format::zil::chain::CHAIN_SIZE;
use cenote_format::{ByteOrder, Bytes};

use crate::walk::{Block, Image, dnodes};

/// Pools on one device (or a mirror), which between them hold every structure.
const POOLS: [&str; 6] = ["basic", "clones", "ldnode", "dedup", "legacyd", "mir3"];

/// Larger blocks are not worth the time that a target takes over them.
const MAX_SEED: usize = 64 << 10;

/// Seeds taken of one kind from one pool.
const PER_KIND: usize = 12;

/// Seeds by target.
pub type Seeds = HashMap<&'static str, Vec<Vec<u8>>>;

/// Collects seeds from the sample pools, and makes those that are in no pool; the same in every run.
pub fn collect() -> io::Result<Seeds> {
    let mut collector = Collector::default();
    for name in POOLS {
        let pool = cenote_testpools::pool(name);
        let path = pool.files.first().ok_or(io::ErrorKind::NotFound)?;
        let image = Image::open(path)?;
        collector.taken.clear();
        collector.label(&image.label()?);
        image.walk(|block| {
            collector.block(block);
            Ok(())
        })?;
    }
    collector.logs()?;
    collector.seeds.insert("l2arc", crate::l2arc::seeds());
    collector.seeds.insert("mapfile", crate::mapfile::seeds());
    collector.seeds.insert("object", crate::object::seeds());
    collector.seeds.insert("request", crate::request::seeds());
    collector.seeds.insert("stream", crate::stream::seeds());
    Ok(collector.seeds)
}

#[derive(Default)]
struct Collector {
    seeds: Seeds,
    seen: HashSet<Vec<u8>>,
    /// Seeds of this pool, by target and kind.
    taken: HashMap<(&'static str, u64), usize>,
}

impl Collector {
    fn add(&mut self, target: &'static str, kind: u64, head: &[u8], body: &[u8]) {
        let taken = self.taken.entry((target, kind)).or_default();
        if *taken >= PER_KIND || body.len() > MAX_SEED {
            return;
        }
        let seed = [head, body].concat();
        if self.seen.insert([target.as_bytes(), &seed].concat()) {
            *taken += 1;
            self.seeds.entry(target).or_default().push(seed);
        }
    }

    fn label(&mut self, label: &[u8]) {
        let config = &label[16 << 10..128 << 10];
        // The list ends long before its area does.
        let used = config.iter().rposition(|b| *b != 0).unwrap_or(0).min(config.len() - 48);
        let end = config[..used].iter().rposition(|b| *b != 0).map_or(0, |e| e + 16);
        self.add("nvlist", 0, &[], &config[..end.min(MAX_SEED)]);
        self.seeds.entry("label").or_default().push(config.to_vec());
        for slot in label[128 << 10..].chunks_exact(4096) {
            if slot[..8].iter().any(|b| *b != 0) {
                self.add("label", 1, &[], slot);
                self.add("checksum", 3, &[3, 0], slot);
            }
        }
    }

    fn block(&mut self, block: &Block<'_>) {
        let order = u8::from(block.bp.byte_order() == ByteOrder::Big);
        let (raw, data, kind) = (block.raw, block.data, DmuType(block.bp.object_type()));
        let pointer: Vec<u8> = block.bp.0.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.add("blkptr", u64::from(block.bp.is_embedded()), &[0], &pointer);
        let function = block.bp.compression();
        let [_, a, b, c] = (data.len() as u32).to_be_bytes();
        self.add("decompress", function.into(), &[function, a, b, c], raw);
        let function = block.bp.checksum_type();
        if !block.bp.is_embedded() {
            self.add("checksum", function.into(), &[function, order | 64], raw);
        }
        if block.bp.level() > 0 {
            self.add("blkptr", 2, &[order], &data[..data.len().min(4096)]);
            self.add("crypt", 2, &[order, 2], &data[..data.len().min(4096)]);
            return;
        }
        match kind {
            DmuType::DNODE => {
                self.add("crypt", 0, &[order, 0], &data[..data.len().min(4096)]);
                self.dnodes(order, block);
            }
            DmuType::OBJSET => {
                self.add("crypt", 3, &[order, 3], data);
                self.add("dnode", 1, &[order], data);
            }
            DmuType::SPACE_MAP => self.add("spacemap", 0, &[order, 9], data),
            DmuType::PACKED_NVLIST => self.add("nvlist", 1, &[], data),
            DmuType::BPOBJ | DmuType::DEADLIST => self.add("blkptr", 3, &[order], data),
            DmuType::SA => self.attributes(data),
            _ if kind.is_zap() => {
                let first = data.first_chunk::<8>().map_or(0, |w| u64::from_le_bytes(*w));
                self.add("zap", first, &[order, 0, 0], data);
                let ops = [0, 1, 2, 3, 60, 61, 62, 63, 0, 1, 2, 60, 240, 255, 240, 128];
                self.add("zap_change", first, &ops, data);
            }
            _ => {}
        }
    }

    /// Blocks of the logs of a pool that crashed.
    fn logs(&mut self) -> io::Result<()> {
        let pool = cenote_testpools::pool("zilmain");
        let path = pool.files.first().ok_or(io::ErrorKind::NotFound)?;
        let image = Image::open(path)?;
        self.taken.clear();
        image.walk(|block| {
            if block.bp.object_type() == DmuType::OBJSET.0
                && let Ok(set) =
                    ObjsetPhys::decode(&Bytes::new(block.data, block.bp.byte_order(), "object set"))
            {
                for (n, (_, log)) in image.log(&set.zil)?.iter().enumerate() {
                    self.add("zil", n as u64, &[0], log);
                    self.add("crypt", 1, &[0, 1], log);
                    let records = log.get(CHAIN_SIZE..).unwrap_or_default();
                    self.add("zil", n as u64, &[2], records);
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    fn dnodes(&mut self, order: u8, block: &Block<'_>) {
        self.add("dnode", 0, &[order], block.data);
        let bytes = Bytes::new(block.data, block.bp.byte_order(), "dnodes");
        for dnode in dnodes(&bytes).unwrap_or_default() {
            let bonus = &dnode.bonus[..];
            match dnode.bonus_kind {
                DmuType::SA => self.attributes(bonus),
                DmuType::SPACE_MAP_HEADER => self.add("spacemap", 1, &[order, 9], bonus),
                DmuType::NONE => {}
                kind => self.add("dsl", kind.0.into(), &[order], bonus),
            }
        }
    }

    /// The attributes' layout is elsewhere; sixteen of 8 bytes and two of any length stand in.
    fn attributes(&mut self, data: &[u8]) {
        let fixed = (0..16u64).map(|id| 8 << 24 | id);
        let variable = (16..18u64).map(|id| 3 << 16 | id);
        let head: Vec<u8> = fixed.chain(variable).flat_map(|w| w.to_le_bytes()).collect();
        self.add("sa", 0, &[&[18], &head[..]].concat(), data);
        // Extended attributes start with the header of a packed list.
        if let Some(at) = data.windows(4).position(|w| w == [1, 1, 0, 0]) {
            self.add("nvlist", 2, &[], &data[at..]);
        }
    }
}
