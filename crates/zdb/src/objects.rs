//! One object of `zdb -d` (`dump_object`): its line, its bonus, its contents, its blocks.
//!
//! More `d` shows more: the line alone; with four, flags, bonus buffer and contents by type (`object_viewer`, in
//! `viewers`); with five, all block pointers (`dump_indirect`, `visit_indirect`) and the ranges that have data.
//!
//! What cannot be read is reported and passed over, and the rest of the object follows.
//!
//! Invariants, which bound the time that a damaged pool takes: levels fall by one from block to block; a block that
//! leads to others is gone below once; [`Numbers`] ends after as many objects as fit onto the devices.

use super::print::{checksum_name, compression_name, fill, type_name};
use super::{Zdb, failed};
use cenote_command::outcome::Stop;
use cenote_dmu::{Object, ObjectSet, Seek};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer, Dva};
use cenote_format::compress::{Compression, ZstdHeader};
use cenote_format::dmu::*;
use cenote_store::{Bookmark, Store};
use std::collections::HashSet;
use std::sync::Arc;

/// Dnodes in a block of the meta dnode.
const DNODES_PER_BLOCK: u64 = 32;

/// The numbers of an object set's objects, in order. A damaged tree of dnode blocks may show the
/// same dnodes over and over: after as many objects as fit onto the devices there is an error.
pub struct Numbers<'a> {
    os: &'a Arc<ObjectSet>,
    from: u64,
    left: u64,
}

impl<'a> Numbers<'a> {
    /// The objects from number `from` on.
    pub fn new(os: &'a Arc<ObjectSet>, from: u64) -> Numbers<'a> {
        Numbers { os, from, left: cenote_dsl::bounds::max_objects(os) }
    }

    /// The next one; `None` after the last. An unreadable block of dnodes is an error and is passed
    /// over by the next one.
    pub fn advance(&mut self) -> Result<Option<u64>, Stop> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(failed(format_args!("objset {}: more objects than fit", self.os.id())));
        };
        self.left = left;
        match self.os.next_object(self.from) {
            Ok(found) => {
                self.from = found.map_or(u64::MAX, |n| n.saturating_add(1));
                Ok(found)
            }
            Err(e) => {
                self.from = self.os.next_dnode_block(self.from);
                Err(failed(e))
            }
        }
    }

    /// Whether [`Numbers::advance`] may be called after an error.
    pub fn goes_on(&self) -> bool {
        self.left > 0
    }
}

impl Zdb<'_> {
    /// Shows an object (`dump_object`); `header` says whether the column titles are due.
    pub fn object(&mut self, object: &Object, header: &mut bool) -> Result<(), Stop> {
        let level = self.level('d');
        if std::mem::replace(header, false) {
            // The widths of the columns below.
            let titles = "    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type";
            writeln!(self.out(), "\n{titles}")?;
        }
        self.object_line(object)?;
        let dnode = object.dnode();
        if level >= 4 {
            if dnode.bonus_kind != DmuType::NONE {
                let size = self.args.number(dnode.bonus.len() as u64);
                let name = type_name(dnode.bonus_kind);
                writeln!(
                    self.out(),
                    "{:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>5}  {size:>5}  {:>6}  {name}",
                    "",
                    "",
                    "",
                    "",
                    "",
                    "",
                    "bonus"
                )?;
            }
            let flag = |bit: u8, name: &'static str| if dnode.flags & bit != 0 { name } else { "" };
            writeln!(
                self.out(),
                "\tdnode flags: {}{}{}{}",
                flag(DNODE_FLAG_USED_BYTES, "USED_BYTES "),
                flag(DNODE_FLAG_USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
                flag(DNODE_FLAG_USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
                flag(DNODE_FLAG_SPILL, "SPILL_BLKPTR")
            )?;
            writeln!(self.out(), "\tdnode maxblkid: {}", dnode.max_block)?;
            let encrypted = self.is_closed(object.objset());
            if encrypted && dnode.bonus_kind.is_encrypted() {
                writeln!(self.out(), "\t\t(bonus encrypted)")?;
            } else if let Err(e) = self.view_bonus(object) {
                self.cannot_show(object, e)?;
            }
            if encrypted && dnode.kind.is_encrypted() {
                writeln!(self.out(), "\t\t(object encrypted)")?;
            } else if let Err(e) = self.view_contents(object) {
                self.cannot_show(object, e)?;
            }
            *header = true;
        }
        if level >= 5 {
            if let Some(spill) = &dnode.spill {
                let spill = self.pointer(spill, false);
                writeln!(self.out(), "\nSpill block: {spill}")?;
            }
            self.block_tree(object)?;
            self.segments(object)?;
        }
        Ok(())
    }

    /// A part of an object that cannot be read is reported and passed over; a failing output ends
    /// the command.
    fn cannot_show(&mut self, object: &Object, e: Stop) -> Result<(), Stop> {
        match e {
            Stop::Fail(why) => {
                self.complain(format_args!("object {}: {why}", object.number()));
                Ok(())
            }
            other => Err(other),
        }
    }

    fn object_line(&mut self, object: &Object) -> Result<(), Stop> {
        let (dnode, number) = (object.dnode(), object.number());
        let n = |n: u64| self.args.number(n);
        let indirect =
            1u64.checked_shl(dnode.indirect_shift.into()).filter(|_| dnode.indirect_shift > 0);
        let iblk = n(indirect.unwrap_or(0));
        let lsize = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        // Rounded to sectors as `stat` does it.
        let asize = dnode.used.saturating_add(256) >> 9 << 9;
        let filled =
            dnode.pointers.iter().filter(|p| !p.is_hole()).map(fill).fold(0, u64::saturating_add);
        let per_block = if number == 0 { DNODES_PER_BLOCK } else { 1 };
        // Integer arithmetic of C, but for the first factor.
        let full =
            100.0 * filled as f64 * dnode.block_size as f64 / per_block as f64 / lsize as f64;
        let mut aux = String::new();
        if dnode.checksum != 0 || self.level('d') >= 6 {
            aux += &format!(" (K={})", checksum_name(dnode.checksum));
        }
        if dnode.compress != 0 || self.level('d') >= 6 {
            aux += &format!(" (Z={})", compression_name(dnode.compress));
        }
        let (dblk, asize, lsize) = (n(dnode.block_size), n(asize), n(lsize));
        let dnsize = n(dnode.slots() * DNODE_SLOT as u64);
        let kind = type_name(dnode.kind);
        writeln!(
            self.out(),
            "{:10}  {:3}  {iblk:>5}  {dblk:>5}  {asize:>5}  {dnsize:>6}  {lsize:>5}  {full:6.2}  {kind}{aux}",
            number as i64,
            dnode.levels,
        )?;
        Ok(())
    }

    /// All block pointers below the dnode (`dump_indirect`).
    fn block_tree(&mut self, object: &Object) -> Result<(), Stop> {
        writeln!(self.out(), "Indirect blocks:")?;
        let level = i64::from(object.dnode().levels) - 1;
        let mut seen = HashSet::new();
        for (blkid, bp) in (0u64..).zip(object.dnode().pointers.clone()) {
            self.tree_block(object, &bp, level, blkid, &mut seen)?;
        }
        writeln!(self.out())?;
        Ok(())
    }

    /// A block pointer at its place, then those below it. Levels fall by one, so this is no deeper
    /// than the dnode says (at most 20). A block that leads to others belongs to one place; if it
    /// is met at a second one, what is below it is not shown again (`seen`).
    fn tree_block(
        &mut self,
        object: &Object,
        bp: &BlockPointer,
        level: i64,
        blkid: u64,
        seen: &mut HashSet<Dva>,
    ) -> Result<(), Stop> {
        if bp.logical_birth() == 0 {
            return Ok(());
        }
        let dnode = object.dnode();
        let per_level = u32::from(dnode.indirect_shift.saturating_sub(7));
        let span = 1u64.checked_shl(per_level * level as u32).unwrap_or(0);
        let offset = blkid.wrapping_mul(span).wrapping_mul(dnode.block_size);
        let line = self.tree_line(object, bp, level, offset);
        writeln!(self.out(), "{line}")?;
        if level == 0 || bp.is_hole() || bp.is_embedded() || self.ctx.cancel.is_cancelled() {
            return Ok(());
        }
        if bp.dva(0).is_some_and(|dva| !seen.insert(dva)) {
            self.complain(format_args!("object {}: a block is in two places", object.number()));
            return Ok(());
        }
        let at = Bookmark { objset: object.objset().id(), object: object.number(), level, blkid };
        let objset = object.objset();
        let block = match Store::as_of(objset.as_of(), || objset.store().read(bp, at)) {
            Ok(block) => block,
            Err(e) => {
                self.complain(e);
                return Ok(());
            }
        };
        let data = block.data.bytes();
        let b = Bytes::new(&data, block.order, "indirect block");
        let count = data.len() / BLKPTR_SIZE;
        let mut filled = 0u64;
        for i in 0..count {
            let child = BlockPointer::decode(&b, i * BLKPTR_SIZE).map_err(failed)?;
            let id = blkid.wrapping_mul(count as u64).wrapping_add(i as u64);
            self.tree_block(object, &child, level - 1, id, seen)?;
            if !child.is_hole() {
                filled = filled.wrapping_add(fill(&child));
            }
        }
        if filled != fill(bp) {
            let stored = fill(bp);
            writeln!(
                self.out(),
                "{offset:16x}: Block pointer fill ({stored}) does not match calculated value ({filled})"
            )?;
            self.damaged = true;
        }
        Ok(())
    }

    /// What the tree shows of a block pointer, with what is wrong about it (`print_indirect`).
    fn tree_line(&mut self, object: &Object, bp: &BlockPointer, level: i64, offset: u64) -> String {
        let dnode = object.dnode();
        let mut line = format!("{offset:16x} ");
        for l in (-1..i64::from(dnode.levels)).rev() {
            if l == level {
                line += &format!("L{level:x}");
            } else {
                line.push(' ');
            }
        }
        line += &self.pointer(bp, false);
        if self.args.has('Z') {
            line += &self.zstd_header(object, bp);
        }
        if !bp.is_embedded() && !bp.is_hole() {
            if bp.object_type() != dnode.kind.0 {
                line += &format!(
                    " (ERROR: Block pointer type ({}) does not match dnode type ({}))",
                    bp.object_type(),
                    dnode.kind.0
                );
                self.damaged = true;
            }
            if i64::from(bp.level()) != level {
                line += &format!(
                    " (ERROR: Block pointer level ({}) does not match bookmark level ({level}))",
                    bp.level()
                );
                self.damaged = true;
            }
        }
        line
    }

    /// `-Z`: what stands before the compressed bytes of a block of zstd (`zfs_zstdhdr_t`).
    fn zstd_header(&mut self, object: &Object, bp: &BlockPointer) -> String {
        if bp.is_hole() || bp.compression() != Compression::Zstd as u8 {
            return String::new();
        }
        let at =
            Bookmark { objset: object.objset().id(), object: object.number(), level: 0, blkid: 0 };
        let (bytes, place) = match bp.is_embedded() {
            true => (bp.embedded_payload().map_err(|e| e.to_string()), "EMBEDDED"),
            false => {
                let objset = object.objset();
                let read = || objset.store().read_many_physical(&[(*bp, at)]).pop();
                let read = Store::as_of(objset.as_of(), read);
                let read =
                    read.map(|read| read.map(|bytes| bytes.to_vec()).map_err(|e| e.to_string()));
                (read.unwrap_or_else(|| Err("not read".into())), "NORMAL")
            }
        };
        let header = bytes.and_then(|bytes| {
            ZstdHeader::decode(&bytes).map(|(header, _)| header).map_err(|e| e.to_string())
        });
        match header {
            Ok(ZstdHeader { size, version, level }) => {
                format!(" ZSTD:size={size}:version={version}:level={level}:{place}")
            }
            Err(why) => {
                self.ctx.complain(format_args!("read failed: {why}"));
                String::new()
            }
        }
    }

    fn segment(&mut self, start: u64, stop: u64) -> Result<(), Stop> {
        let size = self.args.number(stop.saturating_sub(start));
        writeln!(self.out(), "\t\tsegment [{start:016x}, {stop:016x}) size {size:>5}")?;
        Ok(())
    }

    /// The ranges of the meta dnode that hold dnodes.
    fn dnode_segments(&mut self, os: &Arc<ObjectSet>) -> Result<(), Stop> {
        let slot = DNODE_SLOT as u64;
        let (mut run, mut numbers) = (None, Numbers::new(os, 1));
        while let Some(number) = numbers.advance()? {
            let slots = os.object(number).map_err(failed)?.dnode().slots();
            let (start, end) = (number.saturating_mul(slot), (number + slots).saturating_mul(slot));
            run = match run {
                Some((first, last)) if last == start => Some((first, end)),
                Some((first, last)) => {
                    self.segment(first, last)?;
                    Some((start, end))
                }
                None => Some((start, end)),
            };
        }
        match run {
            Some((first, last)) => self.segment(first, last),
            None => Ok(()),
        }
    }

    /// The ranges of the object that have data.
    fn segments(&mut self, object: &Object) -> Result<(), Stop> {
        let dnode = object.dnode();
        if dnode.kind == DmuType::DNODE && object.number() == 0 {
            return self.dnode_segments(&object.objset().clone());
        }
        let end = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        let mut at = 0;
        while at < end {
            let Some(start) = object.seek(at, Seek::Data).map_err(failed)? else { break };
            let stop = object.seek(start, Seek::Hole).map_err(failed)?.unwrap_or(end);
            self.segment(start, stop)?;
            if stop <= start || self.ctx.cancel.is_cancelled() {
                break;
            }
            at = stop;
        }
        Ok(())
    }
}
