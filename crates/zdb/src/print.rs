//! The forms in which `zdb` prints block pointers (`snprintf_blkptr`, `snprintf_blkptr_compact`), name-value lists
//! (`dump_nvlist`), histograms (`dump_histogram`) and uberblocks (`dump_uberblock`).
//!
//! Everything here is text that scripts read, so it is OpenZFS's to the last blank, also where that is odd: a hole
//! prints a first DVA that it does not have, and a histogram of one empty bucket still has its line. Names of types
//! and functions that are not known are `UNKNOWN`, never an error.
//!
//! The fill count and the IV of an encrypted block share a word: [`fill`] takes them apart.

use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Widest bar of a histogram.
const WIDTH: u64 = 40;

/// Name of an object type.
pub fn type_name(kind: DmuType) -> &'static str {
    if kind.is_valid() { kind.name() } else { "UNKNOWN" }
}

/// Name of a checksum function.
pub fn checksum_name(n: u8) -> String {
    Checksum::from_u8(n).map_or_else(|_| "UNKNOWN".into(), |c| c.name().into())
}

/// Name of a compression function as `zdb` has it.
pub fn compression_name(n: u8) -> String {
    match Compression::from_u8(n) {
        Ok(Compression::Off) => "uncompressed".into(),
        Ok(c) => c.name().into(),
        Err(_) => "UNKNOWN".into(),
    }
}

fn blkptr_type(bp: &BlockPointer) -> String {
    let kind = DmuType(bp.object_type());
    if kind.is_new() {
        let what = if kind.is_metadata() { "metadata" } else { "data" };
        return format!("bswap {what} {}", kind.name());
    }
    type_name(kind).into()
}

/// A block pointer in full (`snprintf_blkptr`).
pub fn blkptr(bp: &BlockPointer) -> String {
    let (level, kind) = (bp.level(), blkptr_type(bp));
    if bp.is_hole() {
        return format!(
            "HOLE [L{level} {kind}] size={:x}L birth={}L",
            bp.lsize(),
            bp.logical_birth()
        );
    }
    let compression = compression_name(bp.compression());
    if bp.is_embedded() {
        return format!(
            "EMBEDDED [L{level} {kind}] et={} {compression} size={:x}L/{:x}P birth={}L",
            bp.checksum_type(),
            bp.lsize(),
            bp.psize(),
            bp.logical_birth()
        );
    }
    let mut out = String::new();
    for (i, d) in bp.dvas().enumerate() {
        let _ = write!(out, "DVA[{i}]=<{}:{:x}:{:x}> ", d.vdev, d.offset, d.asize);
    }
    if bp.is_encrypted() {
        let _ = write!(out, "salt={:x} iv={:x}:{:x} ", bp.0[4], bp.0[5], bp.0[11] >> 32);
    }
    let crypt = match () {
        () if bp.is_encrypted() => "encrypted",
        () if bp.uses_crypt() && level == 0 => "authenticated",
        () if bp.uses_crypt() => "indirect-MAC",
        () => "unencrypted",
    };
    let copies = ["zero", "single", "double", "triple"][bp.dvas().count().min(3)];
    let order = if bp.byte_order() == ByteOrder::Big { "BE" } else { "LE" };
    let gang = if bp.is_gang() { "gang" } else { "contiguous" };
    let dedup = if bp.is_dedup() { "dedup" } else { "unique" };
    let [a, b, c, d] = bp.checksum();
    let checksum = checksum_name(bp.checksum_type());
    let _ = write!(
        out,
        "[L{level} {kind}] {checksum} {compression} {crypt} {order} {gang} {dedup} {copies} \
         size={:x}L/{:x}P birth={}L/{}P fill={} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}",
        bp.lsize(),
        bp.psize(),
        bp.logical_birth(),
        bp.physical_birth(),
        fill(bp),
    );
    out
}

/// A block pointer on part of a line (`snprintf_blkptr_compact`); `all` copies or the first.
pub fn blkptr_compact(bp: &BlockPointer, all: bool, freed: bool) -> String {
    if bp.is_embedded() {
        return format!(
            "EMBEDDED et={} {:x}L/{:x}P B={}",
            bp.checksum_type(),
            bp.lsize(),
            bp.psize(),
            bp.logical_birth()
        );
    }
    let mut out = String::new();
    if bp.is_hole() && !all {
        // The first DVA of a hole is printed although it does not exist.
        out.push_str("0:0:0 ");
    }
    for d in bp.dvas().take(if all { 3 } else { 1 }) {
        let _ = write!(
            out,
            "{}:{:x}:{:x}{} ",
            d.vdev,
            d.offset,
            d.asize,
            if d.gang { "G" } else { "" }
        );
    }
    if bp.is_hole() {
        let _ = write!(out, "{:x}L B={}", bp.lsize(), bp.logical_birth());
        return out;
    }
    let [a, b, c, d] = bp.checksum();
    let freed = if freed { " FREE" } else { "" };
    let _ = write!(
        out,
        "{:x}L/{:x}P F={} B={}/{}{freed} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}",
        bp.lsize(),
        bp.psize(),
        fill(bp),
        bp.logical_birth(),
        bp.physical_birth(),
    );
    out
}

/// The fill count; that of an encrypted block shares its word with a part of the IV.
pub fn fill(bp: &BlockPointer) -> u64 {
    if bp.is_encrypted() { bp.fill() & 0xffff_ffff } else { bp.fill() }
}

/// A histogram: one line per bucket from the first to the last that is not 0. Nothing if all are.
pub fn histogram(out: &mut dyn Write, counts: &[u64], offset: u32) -> io::Result<()> {
    let Some(first) = counts.iter().position(|c| *c != 0) else {
        // An empty histogram of one bucket still has its line.
        return match counts {
            [_] => writeln!(out, "\t\t\t{offset:3}: {:6} ", 0),
            _ => Ok(()),
        };
    };
    let last = counts.iter().rposition(|c| *c != 0).unwrap_or(first);
    let max = counts.iter().copied().max().unwrap_or(0).max(WIDTH);
    for (i, count) in counts.iter().enumerate().take(last + 1).skip(first) {
        let blank = u128::from(max - count) * u128::from(WIDTH) / u128::from(max);
        let stars = "*".repeat((WIDTH as usize).saturating_sub(blank as usize));
        writeln!(out, "\t\t\t{:3}: {count:6} {stars}", i + offset as usize)?;
    }
    Ok(())
}

/// A name-value list (`dump_nvlist`).
pub fn nvlist(out: &mut dyn Write, list: &NvList, indent: usize) -> io::Result<()> {
    for (name, value) in &list.pairs {
        pair(out, name, value, indent)?;
    }
    Ok(())
}

fn pair(out: &mut dyn Write, name: &str, value: &NvValue, indent: usize) -> io::Result<()> {
    let mut one = |text: &dyn std::fmt::Display| writeln!(out, "{:indent$}{name}: {text}", "");
    match value {
        NvValue::Boolean => writeln!(out, "{:indent$}{name}", ""),
        NvValue::BooleanValue(v) => one(v),
        NvValue::Byte(v) | NvValue::Uint8(v) => one(v),
        NvValue::Int8(v) => one(v),
        NvValue::Int16(v) => one(v),
        NvValue::Uint16(v) => one(v),
        NvValue::Int32(v) => one(v),
        NvValue::Uint32(v) => one(v),
        NvValue::Int64(v) => one(v),
        NvValue::Uint64(v) => one(v),
        NvValue::Hrtime(v) => one(v),
        NvValue::Double(v) => one(v),
        NvValue::String(v) => one(&format_args!("'{v}'")),
        NvValue::NvList(list) => {
            writeln!(out, "{:indent$}{name}:", "")?;
            nvlist(out, list, indent + 4)
        }
        NvValue::NvListArray(lists) => {
            for (i, list) in lists.iter().enumerate() {
                writeln!(out, "{:indent$}{name}[{i}]:", "")?;
                nvlist(out, list, indent + 4)?;
            }
            Ok(())
        }
        NvValue::ByteArray(v) => array(out, name, v, indent),
        NvValue::BooleanArray(v) => array(out, name, v, indent),
        NvValue::Int8Array(v) => array(out, name, v, indent),
        NvValue::Uint8Array(v) => array(out, name, v, indent),
        NvValue::Int16Array(v) => array(out, name, v, indent),
        NvValue::Uint16Array(v) => array(out, name, v, indent),
        NvValue::Int32Array(v) => array(out, name, v, indent),
        NvValue::Uint32Array(v) => array(out, name, v, indent),
        NvValue::Int64Array(v) => array(out, name, v, indent),
        NvValue::Uint64Array(v) => array(out, name, v, indent),
        NvValue::StringArray(v) => {
            let quoted: Vec<String> = v.iter().map(|s| format!("'{s}'")).collect();
            array(out, name, &quoted, indent)
        }
    }
}

fn array<T: std::fmt::Display>(
    out: &mut dyn Write,
    name: &str,
    values: &[T],
    indent: usize,
) -> io::Result<()> {
    for (i, v) in values.iter().enumerate() {
        writeln!(out, "{:indent$}{name}[{i}]: {v}", "")?;
    }
    Ok(())
}

/// An uberblock; `time` is its timestamp as `ctime` prints it, `rootbp` says it again.
pub fn uberblock(out: &mut dyn Write, ub: &Uberblock, time: &str, rootbp: bool) -> io::Result<()> {
    writeln!(out, "\tmagic = {:016x}", 0x00ba_b10c)?;
    writeln!(out, "\tversion = {}", ub.version)?;
    writeln!(out, "\ttxg = {}", ub.txg)?;
    writeln!(out, "\tguid_sum = {}", ub.guid_sum)?;
    writeln!(out, "\ttimestamp = {} UTC = {time}", ub.timestamp)?;
    writeln!(out, "\tbp = {}", blkptr(&ub.rootbp))?;
    writeln!(out, "\tmmp_magic = {:016x}", ub.mmp_magic)?;
    if ub.mmp_valid() {
        writeln!(out, "\tmmp_delay = {}", ub.mmp_delay)?;
        if let Some(seq) = ub.mmp_sequence() {
            writeln!(out, "\tmmp_seq = {seq}")?;
        }
        if let Some(fail) = ub.mmp_fail_intervals() {
            writeln!(out, "\tmmp_fail = {fail}")?;
        }
        if let Some(interval) = ub.mmp_interval() {
            writeln!(out, "\tmmp_write = {interval}")?;
        }
        writeln!(out, "\tmmp_valid = {:x}", ub.mmp_config & 0xff)?;
    }
    if rootbp {
        writeln!(out, "\trootbp = {}", blkptr(&ub.rootbp))?;
    }
    writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg)?;
    writeln!(out, "\traidz_reflow state={} off={}", ub.reflow_state(), ub.reflow_offset())
}

/// Bytes as text: names may be anything.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_have_no_empty_ends() {
        let mut out = Vec::new();
        histogram(&mut out, &[0, 3, 0, 80, 0], 9).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "\t\t\t 10:      3 **");
        assert_eq!(lines[1], "\t\t\t 11:      0 ");
        assert_eq!(lines[2], format!("\t\t\t 12:     80 {}", "*".repeat(40)));
        assert_eq!(lines.len(), 3);
    }
}
