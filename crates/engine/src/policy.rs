//! How blocks are written: from what a block is and the properties of its dataset to the checksum,
//! compression, copies and class of vdevs of the write pipeline (`dmu_write_policy`).
//!
//! Metadata is written with one copy more than data (`redundant_metadata`), is compressed with lz4
//! whatever the property says, and has a checksum fit for metadata. The MOS has three copies of
//! everything. Large blocks of data follow the dataset's properties.

use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::write::NewBlock;
use cenote_dsl::{Dataset, Dsl};
use cenote_format::checksum::Checksum;
use cenote_format::compress::{Compression, LEVEL_DEFAULT};
use cenote_format::dmu::DmuType;
use cenote_pool::ddt::CHECKSUMS;
use cenote_store::alloc::{Class, MAX_COPIES};
use cenote_store::write::Dedup;
use cenote_store::write::{WriteProps, is_strong};
use cenote_vdev::traffic::Content;

/// Which metadata of a dataset gets an additional copy (`redundant_metadata`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redundant {
    /// All of it.
    All,
    /// Indirect blocks above the lowest ones, and what is not a file's.
    Most,
    /// Only what is not a file's.
    Some,
    /// Nothing.
    None,
}

/// The properties of a dataset (or of the MOS) that say how its blocks are written.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub checksum: Checksum,
    pub compression: Compression,
    pub level: u8,
    pub copies: usize,
    pub redundant: Redundant,
    /// `special_small_blocks`: data blocks of up to so many bytes are for the special class.
    pub small_blocks: u64,
    /// `dedup`: the checksum function that names blocks of data, and whether equal names are enough.
    pub dedup: Option<(Checksum, Dedup)>,
    /// `logbias=throughput`: blocks that are committed are written for good.
    pub throughput: bool,
}

/// What holds for all of the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Feature `embedded_data`.
    pub embed: bool,
    /// Feature `hole_birth`.
    pub hole_birth: bool,
    /// Feature `lz4_compress`: lz4 is what compresses metadata.
    pub lz4: bool,
}

impl Policy {
    /// How the MOS is written.
    pub fn of_mos() -> Policy {
        Policy {
            checksum: Checksum::Fletcher4,
            compression: Compression::On,
            level: LEVEL_DEFAULT,
            copies: MAX_COPIES,
            redundant: Redundant::All,
            small_blocks: 0,
            dedup: None,
            throughput: false,
        }
    }

    /// How the first blocks of a new dataset with so many copies are written: all are metadata.
    pub fn of_new(copies: usize) -> Policy {
        Policy { copies: copies.clamp(1, MAX_COPIES), ..Policy::of_mos() }
    }

    /// How the blocks of `dataset` are written, by its properties.
    ///
    /// # Errors
    /// A property cannot be read.
    pub fn of(dsl: &Dsl, dataset: &Dataset) -> cenote_dmu::Result<Policy> {
        let get = |name: &str| {
            let value = dsl.get(dataset, name)?;
            Ok::<_, cenote_dmu::Error>(value.map(|v| v.exact).unwrap_or_default())
        };
        let (compression, level) = compression_named(&get("compression")?);
        Ok(Policy {
            checksum: checksum_named(&get("checksum")?),
            compression,
            level,
            copies: get("copies")?.parse().unwrap_or(1).clamp(1, MAX_COPIES),
            redundant: match get("redundant_metadata")?.as_str() {
                "most" => Redundant::Most,
                "some" => Redundant::Some,
                "none" => Redundant::None,
                _ => Redundant::All,
            },
            small_blocks: get("special_small_blocks")?.parse().unwrap_or(0),
            dedup: dedup_named(&get("dedup")?),
            throughput: get("logbias")? == "throughput",
        })
    }

    /// Whether a block that is what is there already need not be written.
    pub fn finds_same(&self) -> bool {
        self.dedup.is_none() && is_strong(self.checksum) && self.compression != Compression::Off
    }

    pub fn props(&self, block: &NewBlock, abilities: Abilities) -> WriteProps {
        let metadata = block.level > 0 || block.kind.is_metadata();
        let own = Compression::from_u8(block.compress).ok();
        let (compression, level) = match own {
            _ if metadata => (Compression::On, LEVEL_DEFAULT),
            Some(own) if own != Compression::Inherit => (own, LEVEL_DEFAULT),
            _ => (self.compression, self.level),
        };
        let compression = match compression {
            _ if block.raw && block.kind == DmuType::OBJSET => Compression::Off,
            Compression::On | Compression::Inherit if abilities.lz4 => Compression::Lz4,
            Compression::On | Compression::Inherit => Compression::Lzjb,
            other => other,
        };
        let own = Checksum::from_u8(block.checksum).ok();
        let own = own.filter(|c| *c != Checksum::Inherit && c.is_of_dnodes());
        let checksum = match own.unwrap_or(self.checksum) {
            Checksum::On => Checksum::Fletcher4,
            Checksum::Off | Checksum::NoParity | Checksum::Fletcher2 if metadata => {
                Checksum::Fletcher4
            }
            other => other,
        };
        let spill = block.at.blkid == SPILL_BLKID;
        let (checksum, dedup) = match self.dedup.filter(|_| !metadata && !spill) {
            Some((checksum, dedup)) => (checksum, dedup),
            None => (checksum, Dedup::Off),
        };
        let copies = (self.copies + usize::from(self.doubles(block, metadata))).min(MAX_COPIES);
        let fills = matches!(block.kind, DmuType::DNODE | DmuType::OBJSET);
        let props = WriteProps {
            object_type: block.kind,
            level: block.level,
            checksum,
            compression,
            compression_level: level,
            copies,
            gang_copies: self.header_copies(block),
            class: if metadata { Class::Special } else { Class::Normal },
            small: self.small_blocks,
            fill: block.fill,
            embed: abilities.embed && block.level == 0 && !fills,
            hole_birth: abilities.hole_birth,
            nopwrite: !metadata && !block.forced && dedup == Dedup::Off,
            keeps_birth: block.keeps_birth,
            dedup,
            content: if metadata { Content::Metadata } else { Content::Data },
            key: None,
            raw: false,
        };
        match block.raw {
            true => props.kept_raw(),
            false => props.protected_by(block.key.clone()),
        }
    }

    /// Whether the block gets a copy more than data.
    fn doubles(&self, block: &NewBlock, metadata: bool) -> bool {
        match self.redundant {
            Redundant::All => metadata,
            Redundant::Most => block.level >= 2 || block.kind.is_metadata(),
            Redundant::Some => is_critical(block),
            Redundant::None => false,
        }
    }

    /// Copies of the headers, should the block have to be divided (`zp_gang_copies`). Where
    /// metadata has one copy more, so have they, since a header is metadata.
    fn header_copies(&self, block: &NewBlock) -> usize {
        let one_more = match self.redundant {
            Redundant::All => true,
            Redundant::Most => block.level >= 1 || block.kind.is_metadata(),
            Redundant::Some => block.kind.is_metadata(),
            Redundant::None => false,
        };
        (self.copies + usize::from(one_more)).min(MAX_COPIES)
    }
}

/// Whether the loss of the block would lose more than one file (`DMU_OT_IS_CRITICAL`).
fn is_critical(block: &NewBlock) -> bool {
    let of_a_file = [DmuType::DIRECTORY_CONTENTS, DmuType::SA].contains(&block.kind);
    let dnodes = block.kind == DmuType::DNODE && block.level == 0;
    block.kind.is_metadata() && !of_a_file && !dnodes
}

/// The checksum function that a value of the property `checksum` names.
fn checksum_named(name: &str) -> Checksum {
    match name {
        "off" => Checksum::Off,
        "noparity" => Checksum::NoParity,
        "fletcher2" => Checksum::Fletcher2,
        "sha256" => Checksum::Sha256,
        "sha512" => Checksum::Sha512,
        "skein" => Checksum::Skein,
        "edonr" => Checksum::Edonr,
        "blake3" => Checksum::Blake3,
        _ => Checksum::Fletcher4,
    }
}

/// What a value of the property `dedup` means (`zio_checksum_dedup_select`).
fn dedup_named(value: &str) -> Option<(Checksum, Dedup)> {
    let (name, verify) = match value.split_once(',') {
        Some((name, "verify")) => (name, true),
        _ => (value, value == "verify"),
    };
    let checksum = match name {
        "on" | "verify" => Checksum::Sha256,
        name => checksum_named(name),
    };
    // Names by a weaker function may be equal by chance.
    let dedup = if verify || !checksum.is_dedup() { Dedup::Verify } else { Dedup::On };
    CHECKSUMS.contains(&checksum).then_some((checksum, dedup))
}

/// The compression function and level that a value of the property `compression` names.
fn compression_named(name: &str) -> (Compression, u8) {
    let default = |kind| (kind, LEVEL_DEFAULT);
    if let Some(level) = name.strip_prefix("gzip-").and_then(|n| n.parse::<u8>().ok()) {
        let kind = Compression::from_u8(Compression::Gzip1 as u8 + level.clamp(1, 9) - 1);
        return default(kind.unwrap_or(Compression::Gzip6));
    }
    if let Some(n) = name.strip_prefix("zstd-fast-").and_then(|n| n.parse::<u64>().ok()) {
        return (Compression::Zstd, zstd_fast(n));
    }
    if let Some(level) = name.strip_prefix("zstd-").and_then(|n| n.parse::<u8>().ok()) {
        return (Compression::Zstd, level.clamp(1, 19));
    }
    match name {
        "off" => default(Compression::Off),
        "lzjb" => default(Compression::Lzjb),
        "gzip" => default(Compression::Gzip6),
        "zle" => default(Compression::Zle),
        "lz4" => default(Compression::Lz4),
        "zstd" => default(Compression::Zstd),
        "zstd-fast" => (Compression::Zstd, zstd_fast(1)),
        _ => default(Compression::On),
    }
}

/// The number that stands for `zstd-fast-N` (`enum zio_zstd_levels`): 1 to 10, then tens to 100,
/// then 500 and 1000.
fn zstd_fast(n: u64) -> u8 {
    const BASE: u8 = 102;
    let step = match n {
        0..=10 => n.max(1),
        11..=100 => 10 + n / 10 - 1,
        101..=500 => 20,
        _ => 21,
    };
    BASE + step as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::blkptr::BlockPointer;

    #[test]
    fn headers_of_divided_blocks_have_the_copies_of_metadata() {
        let of = |redundant, copies, kind, level| {
            let policy = Policy { redundant, copies, ..Policy::of_new(copies) };
            let at = cenote_store::Bookmark { objset: 5, object: 7, level: 0, blkid: 0 };
            let block = NewBlock {
                data: cenote_format::abd::Abd::from_vec(vec![1; 512]).into(),
                at,
                kind,
                level,
                checksum: 0,
                compress: 0,
                fill: 1,
                previous: BlockPointer::HOLE,
                forced: false,
                keeps_birth: false,
                key: Option::None,
                raw: false,
            };
            policy.header_copies(&block)
        };
        use Redundant::{All, Most, None, Some};
        let (data, metadata) = (DmuType::PLAIN_FILE_CONTENTS, DmuType::DIRECTORY_CONTENTS);
        for copies in 1..=3 {
            let more = (copies + 1).min(3);
            assert_eq!([0, 1].map(|l| of(All, copies, data, l)), [more, more]);
            assert_eq!([0, 1].map(|l| of(Most, copies, data, l)), [copies, more]);
            assert_eq!([0, 1].map(|l| of(Some, copies, data, l)), [copies, copies]);
            assert_eq!(
                [Most, Some, None].map(|r| of(r, copies, metadata, 0)),
                [more, more, copies]
            );
        }
    }

    #[test]
    fn names_of_deduplication() {
        let named = dedup_named;
        assert_eq!(named("off"), None);
        assert_eq!(named("on"), Some((Checksum::Sha256, Dedup::On)));
        assert_eq!(named("verify"), Some((Checksum::Sha256, Dedup::Verify)));
        assert_eq!(named("blake3"), Some((Checksum::Blake3, Dedup::On)));
        assert_eq!(named("skein,verify"), Some((Checksum::Skein, Dedup::Verify)));
        assert_eq!(named("edonr,verify"), Some((Checksum::Edonr, Dedup::Verify)));
    }

    #[test]
    fn names_of_compression() {
        assert_eq!(compression_named("gzip-9").0, Compression::Gzip9);
        assert_eq!(compression_named("zstd-7"), (Compression::Zstd, 7));
        assert_eq!(compression_named("zstd-fast-1"), (Compression::Zstd, 103));
        assert_eq!(compression_named("zstd-fast-500").1, 122);
        assert_eq!(compression_named("on").0, Compression::On);
    }
}
