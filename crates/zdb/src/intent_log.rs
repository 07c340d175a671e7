//! `zdb -i`: intent logs, block by block and record by record (`dump_intent_log`).
//!
//! The log's header comes first, then the chain as [`cenote_dsl::zil::walk`] goes along it, then how many records
//! each type has. With more `i` or `d`, each block is printed with whether an import claims it (`print_log_block`),
//! and each record with its fields (`print_log_record`); the data of a write comes from the record, or from the
//! block that it points to.
//!
//! Records are decoded here field by field, not as the replay does: what a replay would refuse is shown as far as
//! it can be read. A field that lies beyond its record is an error. Records of encrypted datasets are not shown.

use super::print::{self, blkptr};
use super::{Zdb, failed};
use cenote_command::outcome::Stop;
use cenote_dmu::ObjectSet;
use cenote_dsl::zil::{self, Item};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::ZilHeader;
use cenote_format::zil::{RECORD_HEADER, RawRecord};
use cenote_store::Bookmark;
use std::sync::Arc;

/// In front of what belongs to a record.
const TAB: &str = "\t\t\t";
/// Bytes of a write that are shown.
const SHOWN: u64 = 20;
/// Top bit of a record's type: names without regard to case.
const CASE_INSENSITIVE: u64 = 1 << 63;
/// Names of the record types; the first is the sum.
const NAMES: [&str; 25] = [
    "Total",
    "TX_CREATE",
    "TX_MKDIR",
    "TX_MKXATTR",
    "TX_SYMLINK",
    "TX_REMOVE",
    "TX_RMDIR",
    "TX_LINK",
    "TX_RENAME",
    "TX_WRITE",
    "TX_TRUNCATE",
    "TX_SETATTR",
    "TX_ACL_V0",
    "TX_ACL_ACL",
    "TX_CREATE_ACL",
    "TX_CREATE_ATTR",
    "TX_CREATE_ACL_ATTR",
    "TX_MKDIR_ACL",
    "TX_MKDIR_ATTR",
    "TX_MKDIR_ACL_ATTR",
    "TX_WRITE2",
    "TX_SETSAXATTR",
    "TX_RENAME_EXCHANGE",
    "TX_RENAME_WHITEOUT",
    "TX_CLONE_RANGE",
];
const MKXATTR: u64 = 3;
const SYMLINK: u64 = 4;
const CREATE_ATTR: u64 = 15;
const MKDIR_ATTR: u64 = 18;
const WRITE2: u64 = 20;

/// The bytes at `at` up to a zero or the end, as text, and the offset after the zero.
fn string(data: &Bytes<'_>, at: usize) -> (String, usize) {
    let rest = data.slice(at.min(data.len()), data.len().saturating_sub(at)).unwrap_or_default();
    let len = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
    (print::text(rest.get(..len).unwrap_or_default()), at + len + 1)
}

/// Bytes as `printf("%c ")` or `printf("%2X")` of a signed `char` shows them.
fn show_bytes(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|b| match b {
            0x20..0x7f => format!("{} ", *b as char),
            _ => format!("{:2X}", i32::from(*b as i8)),
        })
        .collect()
}

impl Zdb<'_> {
    /// The intent log of an object set, if it has one (`dump_intent_log`).
    pub fn intent_log(&mut self, os: &Arc<ObjectSet>) -> Result<(), Stop> {
        let level = self.level('d').max(self.level('i'));
        let header = os.phys().zil;
        if header.log.is_hole() || level < 1 {
            return Ok(());
        }
        writeln!(
            self.out(),
            "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags 0x{:x}",
            header.claim_txg,
            header.claim_blk_seq,
            header.claim_lr_seq,
            header.replay_seq,
            header.flags
        )?;
        // With a checkpoint, unclaimed logs are of no use.
        if (self.pool.uberblock().checkpoint_txg != 0 && header.claim_txg == 0) || level < 2 {
            return Ok(());
        }
        writeln!(self.out())?;
        self.records(os, &header, level)
    }

    fn records(&mut self, os: &Arc<ObjectSet>, header: &ZilHeader, level: u32) -> Result<(), Stop> {
        let store = self.pool.store().clone();
        let mut counts = [0u64; NAMES.len()];
        let mut outcome = Ok(());
        zil::walk(&store, header, &mut |item| {
            outcome = match item {
                Item::Block(bp) => self.log_block(header, bp, level),
                Item::Record(record) => {
                    let kind = (record.kind & !CASE_INSENSITIVE) as usize;
                    if let Some(count) = counts.get_mut(kind).filter(|_| kind > 0) {
                        *count += 1;
                        counts[0] += 1;
                    }
                    self.record(os, header, &record, level)
                }
            };
            outcome.is_ok() && !self.ctx.cancel.is_cancelled()
        });
        outcome?;
        if level > 3 {
            writeln!(self.out())?;
        }
        if counts[0] == 0 {
            return Ok(());
        }
        let width = counts[0].to_string().len();
        for (name, count) in NAMES.iter().zip(counts) {
            if count > 0 || level >= 3 {
                writeln!(self.out(), "\t\t{name:<19} {count:width$}")?;
            }
        }
        writeln!(self.out())?;
        Ok(())
    }

    fn min_claim_txg(&self) -> u64 {
        Self::subject(&self.pool).min_claim_txg()
    }

    fn log_block(&mut self, header: &ZilHeader, bp: &BlockPointer, level: u32) -> Result<(), Stop> {
        if level <= 3 {
            return Ok(());
        }
        let claim = match () {
            () if header.claim_txg != 0 => "already claimed",
            () if bp.logical_birth() >= self.min_claim_txg() => "will claim",
            () => "won't claim",
        };
        let more = if level >= 5 { format!(", {}", blkptr(bp)) } else { String::new() };
        let seq = bp.checksum()[3];
        writeln!(self.out(), "\tBlock seqno {seq}, {claim}{more}")?;
        Ok(())
    }

    /// A record of the log (`print_log_record`).
    fn record(
        &mut self,
        os: &Arc<ObjectSet>,
        header: &ZilHeader,
        r: &RawRecord<'_>,
        level: u32,
    ) -> Result<(), Stop> {
        let kind = r.kind & !CASE_INSENSITIVE;
        let ci = if r.kind & CASE_INSENSITIVE != 0 { "CI-" } else { "" };
        let Some(name) = NAMES.get(kind as usize).filter(|_| kind > 0) else {
            self.complain(format_args!("intent log record of type {kind}"));
            return Ok(());
        };
        let (len, txg, seq) = (r.len, r.txg, r.seq);
        writeln!(self.out(), "\t\t{ci}{name:<19} len {len:6}, txg {txg}, seq {seq}")?;
        if level < 3 {
            return Ok(());
        }
        if self.is_closed(os) {
            writeln!(self.out(), "{TAB}(encrypted)")?;
            return Ok(());
        }
        if r.data.len() < RECORD_HEADER + 8 {
            self.complain(format_args!("intent log record of {len} bytes"));
            return Ok(());
        }
        match kind {
            1..=4 | 14..=19 => self.create(kind, &r.data),
            5 | 6 => self.remove(&r.data),
            7 => self.link(&r.data),
            8 | 22 | 23 => self.rename(kind, &r.data),
            9 | 20 => self.write(os, header, kind, &r.data, level),
            10 => self.truncate(&r.data),
            11 => self.setattr(&r.data),
            12 | 13 => {
                let [object, count] = r.data.u64s(RECORD_HEADER).map_err(failed)?;
                writeln!(self.out(), "{TAB}foid {object}, aclcnt {count}")?;
                Ok(())
            }
            21 => self.setsaxattr(&r.data),
            _ => self.clone_range(&r.data, level),
        }
    }

    fn create(&mut self, kind: u64, data: &Bytes<'_>) -> Result<(), Stop> {
        let w: [u64; 9] = data.u64s(RECORD_HEADER).map_err(failed)?;
        let [dir, object, mode, uid, gid, generation, seconds, _, rdev] = w;
        let mut at = RECORD_HEADER + 72;
        if kind == CREATE_ATTR || kind == MKDIR_ATTR {
            let words = data.u32(at).map_err(failed)? as usize;
            // Optional attributes: their bitmap, then seven words.
            at =
                at.saturating_add(8 + words.saturating_sub(1).saturating_mul(4)).saturating_add(56);
        }
        let (name, next) = string(data, at);
        match kind {
            SYMLINK => writeln!(self.out(), "{TAB}{name} -> {}", string(data, next).0)?,
            MKXATTR => {}
            _ => writeln!(self.out(), "{TAB}{name}")?,
        }
        let time = self.ctime(seconds);
        let (slots, object) = ((object >> 56) + 1, object & ((1 << 48) - 1));
        writeln!(self.out(), "{TAB}{time}")?;
        writeln!(self.out(), "{TAB}doid {dir}, foid {object}, slots {slots}, mode {mode:o}")?;
        writeln!(self.out(), "{TAB}uid {uid}, gid {gid}, gen {generation}, rdev 0x{rdev:x}")?;
        Ok(())
    }

    fn remove(&mut self, data: &Bytes<'_>) -> Result<(), Stop> {
        let dir = data.u64(RECORD_HEADER).map_err(failed)?;
        let (name, _) = string(data, RECORD_HEADER + 8);
        writeln!(self.out(), "{TAB}doid {dir}, name {name}")?;
        Ok(())
    }

    fn link(&mut self, data: &Bytes<'_>) -> Result<(), Stop> {
        let [dir, object] = data.u64s(RECORD_HEADER).map_err(failed)?;
        let (name, _) = string(data, RECORD_HEADER + 16);
        writeln!(self.out(), "{TAB}doid {dir}, link_obj {object}, name {name}")?;
        Ok(())
    }

    fn rename(&mut self, kind: u64, data: &Bytes<'_>) -> Result<(), Stop> {
        let [from, to] = data.u64s(RECORD_HEADER).map_err(failed)?;
        let (old, next) = string(data, RECORD_HEADER + 16);
        let (new, _) = string(data, next);
        writeln!(self.out(), "{TAB}sdoid {from}, tdoid {to}")?;
        writeln!(self.out(), "{TAB}src {old} tgt {new}")?;
        match kind {
            22 => writeln!(self.out(), "{TAB}flags RENAME_EXCHANGE")?,
            23 => writeln!(self.out(), "{TAB}flags RENAME_WHITEOUT")?,
            _ => {}
        }
        Ok(())
    }

    fn truncate(&mut self, data: &Bytes<'_>) -> Result<(), Stop> {
        let [object, offset, len] = data.u64s(RECORD_HEADER).map_err(failed)?;
        writeln!(self.out(), "{TAB}foid {object}, offset 0x{offset:x}, length 0x{len:x}")?;
        Ok(())
    }

    /// `zdb` names the mask's bits as Solaris had them; Linux writes others, so the names may not
    /// be the names of the attributes that were set.
    fn setattr(&mut self, data: &Bytes<'_>) -> Result<(), Stop> {
        let w: [u64; 10] = data.u64s(RECORD_HEADER).map_err(failed)?;
        let [object, mask, mode, uid, gid, size, a0, a1, m0, m1] = w;
        writeln!(self.out(), "{TAB}foid {object}, mask 0x{mask:x}")?;
        let times = [self.ctime(a0), self.ctime(m0)];
        for (bit, line) in [
            (0x2, format!("AT_MODE  {mode:o}")),
            (0x4, format!("AT_UID   {uid}")),
            (0x8, format!("AT_GID   {gid}")),
            (0x80, format!("AT_SIZE  {size}")),
            (0x100, format!("AT_ATIME {a0}.{a1:09} {}", times[0])),
            (0x200, format!("AT_MTIME {m0}.{m1:09} {}", times[1])),
        ] {
            if mask & bit != 0 {
                writeln!(self.out(), "{TAB}{line}")?;
            }
        }
        Ok(())
    }

    fn setsaxattr(&mut self, data: &Bytes<'_>) -> Result<(), Stop> {
        let [object, size] = data.u64s(RECORD_HEADER).map_err(failed)?;
        let (name, next) = string(data, RECORD_HEADER + 16);
        writeln!(self.out(), "{TAB}foid {object}")?;
        writeln!(self.out(), "{TAB}XAT_NAME  {name}")?;
        if size == 0 {
            writeln!(self.out(), "{TAB}XAT_VALUE  NULL")?;
            return Ok(());
        }
        // The value has no line end of its own.
        let len = usize::try_from(size).unwrap_or(usize::MAX).min(data.len().saturating_sub(next));
        let value = data.slice(next, len).map_err(failed)?.to_vec();
        write!(self.out(), "{TAB}XAT_VALUE  ")?;
        self.out().write_all(&value)?;
        Ok(())
    }

    fn write(
        &mut self,
        os: &Arc<ObjectSet>,
        header: &ZilHeader,
        kind: u64,
        data: &Bytes<'_>,
        level: u32,
    ) -> Result<(), Stop> {
        let [object, offset, len] = data.u64s(RECORD_HEADER).map_err(failed)?;
        writeln!(self.out(), "{TAB}foid {object}, offset {offset:x}, length {len:x}")?;
        if kind == WRITE2 || level < 4 {
            return Ok(());
        }
        let inline = RECORD_HEADER + 32 + BLKPTR_SIZE;
        let shown = len.min(if level < 6 { SHOWN } else { u64::MAX });
        let shown = usize::try_from(shown).unwrap_or(usize::MAX);
        let bytes = if data.len() == inline {
            let bp = BlockPointer::decode(data, RECORD_HEADER + 32).map_err(failed)?;
            let will = !bp.is_hole() && bp.logical_birth() >= self.min_claim_txg();
            let will = if will { "will claim" } else { "won't claim" };
            writeln!(self.out(), "{TAB}has blkptr, {will}")?;
            writeln!(self.out(), "{TAB}{}", blkptr(&bp))?;
            if level < 5 {
                return Ok(());
            }
            if bp.is_hole() {
                writeln!(self.out(), "\t\t\tLSIZE 0x{:x}\n{TAB}<hole>", bp.lsize())?;
                return Ok(());
            }
            if bp.logical_birth() < header.claim_txg {
                writeln!(self.out(), "{TAB}<block already committed>")?;
                return Ok(());
            }
            let blkid = offset.checked_div(bp.lsize()).unwrap_or(0);
            let at = Bookmark { objset: os.id(), object, level: -2, blkid };
            let Ok(block) = self.pool.store().read(&bp, at) else { return Ok(()) };
            let all = block.data.bytes();
            all.get(..shown.min(all.len())).unwrap_or_default().to_vec()
        } else {
            if level < 5 {
                return Ok(());
            }
            let have = data.len().saturating_sub(inline);
            data.slice(inline.min(data.len()), shown.min(have)).map_err(failed)?.to_vec()
        };
        writeln!(self.out(), "{TAB}{}", show_bytes(&bytes))?;
        Ok(())
    }

    fn clone_range(&mut self, data: &Bytes<'_>, level: u32) -> Result<(), Stop> {
        let [object, offset, len, size, count] = data.u64s(RECORD_HEADER).map_err(failed)?;
        writeln!(
            self.out(),
            "{TAB}foid {object}, offset {offset:x}, length {len:x}, blksize {size:x}"
        )?;
        if level < 4 {
            return Ok(());
        }
        let first = RECORD_HEADER + 40;
        let room = data.len().saturating_sub(first) / BLKPTR_SIZE;
        for i in 0..room.min(usize::try_from(count).unwrap_or(usize::MAX)) {
            let bp = BlockPointer::decode(data, first + i * BLKPTR_SIZE).map_err(failed)?;
            writeln!(self.out(), "{TAB}[{}/{count}] {}", i + 1, blkptr(&bp))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::show_bytes;

    #[test]
    fn bytes_as_signed_characters() {
        assert_eq!(show_bytes(b"a \0\x14\xa6~\x7f"), "a    014FFFFFFA6~ 7F");
    }
}
