//! `zdb -f`: where the blocks of files lie on the disks of a RAID-Z vdev.
//!
//! A table for each object: a column for each disk, and for each data block two lines, or four where the
//! block goes past the last disk and on from the first one. The upper line of a pair names the columns of
//! the block (`P0`: parity, `D0`: data) with their sectors, the lower one has the hexadecimal sector of the disk
//! at which each starts, labels included. With `-H` each column of a block is a line for scripts: disk,
//! first sector and sectors, in units of 512 bytes, with `-v` the column's name, with `-vv` the place in the
//! file. It does what `dump_file_data_layout` does in OpenZFS after 2.4; earlier ones have no `-f`.

use super::{Zdb, failed};
use cenote_command::outcome::{Stop, fail};
use cenote_dmu::Object;
use cenote_format::blkptr::BlockPointer;
use cenote_format::{LABEL_START, SECTOR};
use cenote_vdev::Vdev;
use std::sync::Arc;

/// Where a column of the table has nothing: two lines, each as wide as what else stands there.
const EMPTY: [&str; 2] = ["` ` ` ` ` ", " ` ` ` ` `"];
/// Width of what stands left of the table.
const MARGIN: usize = 12;

/// A column of a block on one disk.
struct Column {
    /// Index of the disk.
    disk: usize,
    /// `P0`, `D3`.
    name: String,
    parity: bool,
    /// Bytes from the disk's start, labels included.
    start: u64,
    /// Bytes.
    len: u64,
}

/// A data block: its place in the file and on one vdev.
struct Placed {
    offset: u64,
    lsize: u64,
    vdev: u64,
    at: u64,
    psize: u64,
    birth: u64,
}

impl Zdb<'_> {
    /// The layout of an object.
    pub fn layout(&mut self, object: &Object) -> Result<(), Stop> {
        let first = self.pool.store().vdevs().top(0).cloned();
        let Some(vdev) = first.filter(|v| v.raidz_columns(0, 1, 0).is_some()) else {
            return fail("zdb: file layout only supports raidz");
        };
        let name = self.pool.name().to_string();
        let named = self.args.operands.first().map_or(name, |n| n.trim_end_matches('/').into());
        let number = object.number();
        writeln!(self.out(), "{:>MARGIN$}: '{named}'\n{:>MARGIN$}: {number}", "objset", "object")?;
        let blocks = self.placed(object)?;
        match self.args.has('H') {
            true => self.list_columns(&blocks)?,
            false => self.table(object, &vdev, &blocks)?,
        }
        writeln!(self.out())?;
        Ok(())
    }

    /// The data blocks in their order; what cannot be read of the tree is complained about and left out.
    fn placed(&mut self, object: &Object) -> Result<Vec<Placed>, Stop> {
        let size = object.dnode().block_size;
        let mut blocks = Vec::new();
        let walked = object.walk(&mut |level, blkid, bp: &BlockPointer| {
            if level == 0
                && let Some(dva) = bp.dva(0)
            {
                let (vdev, at) = (u64::from(dva.vdev), dva.offset);
                let (lsize, psize, birth) = (bp.lsize(), bp.psize(), bp.physical_birth());
                let offset = blkid.saturating_mul(size);
                blocks.push(Placed { offset, lsize, vdev, at, psize, birth });
            }
            Ok(())
        });
        if let Err(e) = walked {
            self.complain(e);
        }
        blocks.sort_by_key(|b| b.offset);
        Ok(blocks)
    }

    /// The vdev of a block and its columns there; `None` if it is not a RAID-Z vdev.
    fn columns(&self, block: &Placed) -> Option<(Arc<Vdev>, Vec<Column>)> {
        let vdev = self.pool.store().vdevs().top(block.vdev)?.clone();
        let parity = vdev.nparity() as usize;
        // A block that is narrower than the vdev is several stripes.
        let stripes = vdev.raidz_columns(block.at, block.psize, block.birth)?;
        let extents = stripes.iter().flat_map(|stripe| stripe.iter().enumerate());
        let extents = extents.filter(|(_, extent)| extent.len > 0);
        let columns = extents.map(|(c, extent)| Column {
            disk: extent.child,
            name: match c.checked_sub(parity) {
                None => format!("P{c}"),
                Some(data) => format!("D{data}"),
            },
            parity: c < parity,
            start: extent.offset.saturating_add(LABEL_START),
            len: extent.len as u64,
        });
        let columns = columns.collect();
        Some((vdev, columns))
    }

    fn table(&mut self, object: &Object, vdev: &Vdev, blocks: &[Placed]) -> Result<(), Stop> {
        let disks = vdev.children().len();
        let size = object.dnode().block_size;
        let (kind, parity, sector) = (vdev.kind(), vdev.nparity(), 1u64 << vdev.ashift().min(63));
        let out = self.out();
        writeln!(out, "{:>MARGIN$}: {size}", "block size")?;
        writeln!(out, "{:>MARGIN$}: {kind}{parity}", "vdev_type")?;
        writeln!(out, "{:>MARGIN$}: {sector}", "sector size")?;
        writeln!(out, "{:>MARGIN$}: {disks}\n", "child disks")?;
        let names: String =
            (0..disks).map(|d| format!(" {:>10} ", format!("V0:DISK-{d}"))).collect();
        writeln!(out, "{:MARGIN$} {names}", "")?;
        writeln!(out, "{:>MARGIN$}{}", "FILE OFFSET", rule(disks, " ┌─", "─┐"))?;
        for (i, block) in blocks.iter().enumerate() {
            let Some((on, columns)) = self.columns(block).filter(|_| block.vdev == 0) else {
                let (vdev, at, offset) = (block.vdev, block.at, block.offset);
                writeln!(self.out(), "{offset:>MARGIN$x} │ on vdev {vdev} at {at:x}")?;
                continue;
            };
            let last = i + 1 == blocks.len();
            self.table_rows(block, &columns, disks, on.ashift())?;
            let ends = if last { (" └─", "─┘") } else { (" ├─", "─┤") };
            writeln!(self.out(), "{:MARGIN$}{}", "", rule(disks, ends.0, ends.1))?;
        }
        Ok(())
    }

    /// The lines of a block: what lies on its first disk and those after it, then what lies before.
    fn table_rows(
        &mut self,
        block: &Placed,
        columns: &[Column],
        disks: usize,
        ashift: u32,
    ) -> Result<(), Stop> {
        let first = (block.at >> ashift.min(63)).checked_rem(disks as u64).unwrap_or(0) as usize;
        let mut margin = format!("{:>MARGIN$x}", block.offset);
        for part in [first..disks, 0..first] {
            if !columns.iter().any(|c| part.contains(&c.disk)) {
                continue;
            }
            for (line, empty) in EMPTY.into_iter().enumerate() {
                let cells = (0..disks).map(|disk| {
                    let column = columns.iter().find(|c| c.disk == disk && part.contains(&disk));
                    match column {
                        None => empty.to_string(),
                        Some(c) if line == 0 => {
                            format!("{:>3}  {:5}", c.name, c.len >> ashift.min(63))
                        }
                        Some(c) => format!("{:10x}", c.start >> ashift.min(63)),
                    }
                });
                let cells: Vec<String> = cells.collect();
                writeln!(self.out(), "{margin} │ {} │", cells.join("  "))?;
                margin = " ".repeat(MARGIN);
            }
        }
        Ok(())
    }

    /// `-H`: a line for each column of each block, and one for each gap in the file.
    fn list_columns(&mut self, blocks: &[Placed]) -> Result<(), Stop> {
        let detail = self.args.level('f').saturating_sub(1);
        let more = ["", "\tTYPE", "\tTYPE\tOFFSET"][detail.min(2) as usize];
        writeln!(self.out(), "DISK\t\t\tLBA\tCOUNT{more}")?;
        let mut next = 0;
        for block in blocks {
            if block.offset > next {
                writeln!(self.out(), "skip hole\t-\t\t{}", (block.offset - next) / SECTOR)?;
            }
            next = block.offset.saturating_add(block.lsize);
            let Some((vdev, columns)) = self.columns(block) else {
                self.complain(format_args!("vdev {} is not a RAID-Z vdev", block.vdev));
                continue;
            };
            let mut data = block.offset;
            for column in columns.iter().filter(|c| c.len > 0) {
                let disk =
                    vdev.children().get(column.disk).ok_or_else(|| failed("no such disk"))?;
                let path = disk.path().and_then(|p| p.file_name()).unwrap_or_default();
                let (start, count) = (column.start / SECTOR, column.len / SECTOR);
                let mut line = format!("{}\t\t{start}\t{count}", path.to_string_lossy());
                if detail > 0 {
                    line += &format!("\t{}", column.name);
                }
                if detail > 1 {
                    let at = if column.parity { block.offset } else { data };
                    line += &format!("\t{}", at / SECTOR);
                }
                writeln!(self.out(), "{line}")?;
                if !column.parity {
                    data = data.saturating_add(column.len);
                }
            }
        }
        Ok(())
    }
}

/// A line across the table.
fn rule(disks: usize, left: &str, right: &str) -> String {
    let cells = vec!["─".repeat(10); disks];
    format!("{left}{}{right}", cells.join("──"))
}
