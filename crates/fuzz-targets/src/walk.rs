//! Every block of a pool that lies whole on one device, for tests that need real blocks.
//!
//! This is not the engine: it reads a single-device pool or one side of a mirror, breadth first from
//! the best uberblock, with nothing but the decoders. So it also serves as an independent check of
//! them: each block must match its checksum and decompress.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::{self, Compression};
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys, ZilHeader};
use cenote_format::label::{self, Uberblock};
use cenote_format::zap::leaf::Leaf;
use cenote_format::zil::ChainBlock;
use cenote_format::{Bytes, LABEL_START, dsl};

/// A block that was read, matched its checksum and was decompressed.
#[derive(Debug)]
pub struct Block<'a> {
    /// The pointer that led to it.
    pub bp: &'a BlockPointer,
    /// As on the device, `psize` bytes.
    pub raw: &'a [u8],
    /// As decompressed, `lsize` bytes.
    pub data: &'a [u8],
}

/// What is on the device.
pub struct Image {
    file: File,
    root: BlockPointer,
    salt: Salt,
}

/// What [`Image::walk`] could not read.
#[derive(Debug, Default)]
pub struct Skipped {
    /// Gang blocks.
    pub gangs: u64,
    /// Encrypted blocks.
    pub encrypted: u64,
}

fn bad(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl Image {
    /// Opens the device at `path`, finds the best uberblock of its first label and the pool's salt.
    pub fn open(path: &Path) -> io::Result<Image> {
        let file = File::open(path)?;
        let mut ring = vec![0; label::RING_SIZE];
        file.read_exact_at(&mut ring, label::RING_OFFSET)?;
        let mut found = Vec::new();
        for ashift in [10, 11, 12, 13] {
            let size = label::slot_size(ashift);
            for (i, slot) in ring.chunks_exact(size).enumerate() {
                let offset = label::RING_OFFSET + (i * size) as u64;
                found.extend(label::decode_slot(slot, offset).map_err(bad)?);
            }
        }
        let best = Uberblock::best(&found).ok_or_else(|| bad("no uberblock"))?;
        let mut image = Image { file, root: best.rootbp, salt: Salt::new([0; 32]) };
        if let Some(salt) = image.find_salt()? {
            image.salt = Salt::new(salt);
        }
        Ok(image)
    }

    /// The first 256 KiB of the device: the first label.
    pub fn label(&self) -> io::Result<Vec<u8>> {
        let mut label = vec![0; label::LABEL_SIZE as usize];
        self.file.read_exact_at(&mut label, 0)?;
        Ok(label)
    }

    /// The salt is in the object directory, whose blocks are checksummed with functions that do
    /// not need it.
    fn find_salt(&self) -> io::Result<Option<[u8; 32]>> {
        let mut salt = None;
        self.traverse(false, &mut |block| {
            if block.bp.level() > 0 || block.bp.object_type() != DmuType::OBJECT_DIRECTORY.0 {
                return Ok(());
            }
            let bytes = Bytes::new(block.data, block.bp.byte_order(), "object directory");
            let Ok(leaf) = Leaf::decode(bytes) else { return Ok(()) };
            for entry in leaf.entries(0).map_err(bad)? {
                if leaf.name(&entry).map_err(bad)? == b"org.illumos:checksum_salt" {
                    let value: Vec<u8> =
                        leaf.value(&entry).map_err(bad)?.iter().map(|b| *b as u8).collect();
                    salt = Some(value.try_into().map_err(|_| bad("salt of another size"))?);
                }
            }
            Ok(())
        })?;
        Ok(salt)
    }

    /// Calls `visit` with every block of the pool, each once.
    pub fn walk(&self, mut visit: impl FnMut(&Block<'_>) -> io::Result<()>) -> io::Result<Skipped> {
        self.traverse(true, &mut visit)
    }

    fn traverse(
        &self,
        datasets: bool,
        visit: &mut dyn FnMut(&Block<'_>) -> io::Result<()>,
    ) -> io::Result<Skipped> {
        let mut skipped = Skipped::default();
        let mut seen = HashSet::new();
        let mut todo = vec![self.root];
        while let Some(bp) = todo.pop() {
            if bp.is_hole() || !seen.insert(bp) {
                continue;
            }
            if bp.is_gang() {
                skipped.gangs += 1;
                continue;
            }
            if bp.is_encrypted() {
                skipped.encrypted += 1;
                continue;
            }
            let (raw, data) = self.read(&bp)?;
            visit(&Block { bp: &bp, raw: &raw, data: &data })?;
            let children = children(&bp, &data, datasets).map_err(bad)?;
            todo.extend(children);
        }
        Ok(skipped)
    }

    fn read(&self, bp: &BlockPointer) -> io::Result<(Vec<u8>, Vec<u8>)> {
        bp.check().map_err(bad)?;
        let kind = Compression::from_u8(bp.compression()).map_err(bad)?;
        let mut data = vec![0; bp.lsize() as usize];
        let raw = if bp.is_embedded() {
            bp.embedded_payload().map_err(bad)?
        } else {
            let dva = bp.dva(0).ok_or_else(|| bad("no DVA"))?;
            let mut raw = vec![0; bp.psize() as usize];
            self.file.read_exact_at(&mut raw, dva.offset + LABEL_START)?;
            self.verify(bp, &raw)?;
            raw
        };
        compress::decompress(kind, &raw, &mut data).map_err(|e| bad(format!("{bp:?}: {e}")))?;
        Ok((raw, data))
    }

    /// The blocks of an intent log on this device, with what points to them, up to the first that is not what
    /// its pointer says.
    pub fn log(&self, header: &ZilHeader) -> io::Result<Vec<(BlockPointer, Vec<u8>)>> {
        let (mut bp, mut found) = (header.log, Vec::new());
        while let Some(dva) = bp.dva(0).filter(|_| !bp.is_hole()) {
            let mut block = vec![0; bp.psize() as usize];
            self.file.read_exact_at(&mut block, dva.offset + LABEL_START)?;
            let kind = Checksum::from_u8(bp.checksum_type()).map_err(bad)?;
            let whole = checksum::verify_embedded(kind, &block, bp.checksum()).map_err(bad)?;
            let Some(order) = whole else { break };
            let bytes = Bytes::new(&block, order, "log block");
            let Ok(chain) = ChainBlock::decode(&bp, &bytes) else { break };
            let next = chain.next;
            found.push((bp, block));
            bp = next;
        }
        Ok(found)
    }

    fn verify(&self, bp: &BlockPointer, raw: &[u8]) -> io::Result<()> {
        let kind = Checksum::from_u8(bp.checksum_type()).map_err(bad)?;
        if kind == Checksum::Off {
            return Ok(());
        }
        let data = Abd::copy_of(raw);
        let mut actual =
            checksum::compute(kind, &data, bp.byte_order(), &self.salt).map_err(bad)?;
        let mut expected = bp.checksum();
        if bp.uses_crypt() && bp.object_type() != DmuType::OBJSET.0 {
            if !kind.is_dedup() {
                actual[0] ^= actual[2];
                actual[1] ^= actual[3];
            }
            actual[2..].fill(0);
            expected[2..].fill(0);
        }
        if actual == expected {
            return Ok(());
        }
        Err(bad(format!("{bp:?}: {} does not match", kind.name())))
    }
}

/// The pointers in a block: pointers of an indirect block, of the dnodes in it, or of the object sets
/// of the datasets among them.
fn children(
    bp: &BlockPointer,
    data: &[u8],
    datasets: bool,
) -> cenote_format::Result<Vec<BlockPointer>> {
    let bytes = Bytes::new(data, bp.byte_order(), "block");
    let mut out = Vec::new();
    if bp.level() > 0 {
        for at in (0..data.len()).step_by(BLKPTR_SIZE) {
            out.push(BlockPointer::decode(&bytes, at)?);
        }
    } else if bp.object_type() == DmuType::OBJSET.0 {
        let objset = ObjsetPhys::decode(&bytes)?;
        out.extend(objset.meta_dnode.pointers);
        for dnode in [objset.user_used, objset.group_used, objset.project_used] {
            out.extend(dnode.into_iter().flat_map(|d| d.pointers));
        }
    } else if bp.object_type() == DmuType::DNODE.0 {
        for dnode in dnodes(&bytes)? {
            if datasets && dnode.bonus_kind == DmuType::DSL_DATASET {
                let bonus = Bytes::new(&dnode.bonus, bp.byte_order(), "dataset");
                out.push(dsl::DslDatasetPhys::decode(&bonus)?.bp);
            }
            out.extend(dnode.pointers);
            out.extend(dnode.spill);
        }
    }
    Ok(out)
}

/// The dnodes of a block of them.
pub fn dnodes(bytes: &Bytes<'_>) -> cenote_format::Result<Vec<DnodePhys>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let dnode = DnodePhys::decode(bytes, at)?;
        at += dnode.as_ref().map_or(1, |d| d.slots() as usize) * DNODE_SLOT;
        out.extend(dnode);
    }
    Ok(out)
}
