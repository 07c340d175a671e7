//! `zstream dump`: what is in a stream (`zstream_do_dump`).
//!
//! BEGIN and END are always shown, the other records with `-v`, their checksums with `-vv`, contents with `-d`. A record
//! whose checksum is wrong ends the output, as does the end of a stream that is cut short; the summary tells how far it
//! was read.

use crate::record::{Broken, Raw, Reader, kind};
use crate::{Surroundings, failed};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_format::nvlist::NvList;
use std::io::{self, Read, Write};

/// Bytes on a line of contents.
const LINE: usize = 16;
/// Bytes that stand together.
const GROUP: usize = 4;
/// The kinds of records in the order of the summary, with the names that it gives them.
const SUMMARY: [(u32, &str); 9] = [
    (kind::BEGIN, "BEGIN"),
    (kind::END, "END"),
    (kind::OBJECT, "OBJECT"),
    (kind::FREEOBJECTS, "FREEOBJECTS"),
    (kind::WRITE, "WRITE"),
    (kind::WRITE_BYREF, "WRITE_BYREF"),
    (kind::WRITE_EMBEDDED, "WRITE_EMBEDDED"),
    (kind::FREE, "FREE"),
    (kind::SPILL, "SPILL"),
];

/// What is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// All records (`-v`).
    pub records: bool,
    /// Their checksums (`-vv`).
    pub checksums: bool,
    /// What follows them (`-d`).
    pub contents: bool,
    /// Checksums are not verified (`-C`).
    pub unverified: bool,
}

/// Records and bytes behind them.
#[derive(Default)]
struct Counts {
    records: u64,
    bytes: u64,
}

/// Runs `zstream dump` on a stream.
///
/// # Errors
/// It is no stream; a record is of no known type; the output cannot be written.
pub fn run(from: &mut dyn Read, shown: Shown, ctx: &mut Surroundings<'_>) -> Outcome {
    let mut reader = Reader::new(from, !shown.unverified);
    let mut counts: Vec<Counts> = (0..kind::COUNT).map(|_| Counts::default()).collect();
    loop {
        let raw = match reader.record() {
            Ok(Some(raw)) => raw,
            Ok(None) => break,
            Err(Broken::BadMagic) => return fail("Invalid stream (bad magic number)"),
            Err(Broken::Checksum(expected)) => {
                ctx.complain("invalid checksum");
                writeln!(ctx.out, "Incorrect checksum in record header.")?;
                writeln!(ctx.out, "Expected checksum = {}", words(expected))?;
                break;
            }
            Err(e) => return Err(failed(e)),
        };
        let Some(count) = counts.get_mut(raw.kind() as usize) else {
            writeln!(ctx.out, "INVALID record found: type {:#x}\nAborting.", raw.kind())?;
            return Err(Stop::Said(1));
        };
        count.records += 1;
        count.bytes += raw.payload_len();
        record(&raw, shown, &reader, ctx.out)?;
        let payload = match reader.payload(&raw) {
            Ok(payload) => payload,
            Err(Broken::Short) => {
                ctx.complain("the stream is cut short");
                break;
            }
            Err(e) => return Err(failed(e)),
        };
        match raw.kind() {
            kind::BEGIN if !payload.is_empty() => match NvList::decode(&payload) {
                Ok(list) => write!(ctx.out, "{list}")?,
                Err(e) => ctx.complain(e),
            },
            kind::END => reader.restart(),
            kind::BEGIN => {}
            _ if shown.contents => block(&payload, ctx.out)?,
            _ => {}
        }
        if raw.kind() != kind::BEGIN && shown.checksums {
            let own = raw.checksum_at(crate::record::CHECKSUM_AT);
            writeln!(ctx.out, "    checksum = {}", words(own))?;
        }
    }
    summary(&counts, reader.length, ctx.out)?;
    Ok(0)
}

fn words([a, b, c, d]: [u64; 4]) -> String {
    format!("{a:x}/{b:x}/{c:x}/{d:x}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Salt, initialization vector and code of an encrypted block, which begin at `at`.
fn secrets(raw: &Raw, at: usize) -> String {
    let (salt, iv, mac) = (raw.slice(at, 8), raw.slice(at + 8, 12), raw.slice(at + 20, 16));
    format!("salt = {} iv = {} mac = {}", hex(salt), hex(iv), hex(mac))
}

/// The lines of a record.
fn record(raw: &Raw, shown: Shown, reader: &Reader<'_>, out: &mut dyn Write) -> io::Result<()> {
    match raw.kind() {
        kind::BEGIN => begin(raw, shown, out),
        kind::END => {
            let found = raw.checksum_at(8);
            let expected = reader.sum_before();
            if !shown.unverified && found != expected {
                writeln!(out, "Expected checksum differs from checksum in stream.")?;
                writeln!(out, "Expected checksum = {}", words(expected))?;
            }
            writeln!(out, "END checksum = {}", words(found))
        }
        _ if shown.records => writeln!(out, "{}", line(raw)),
        _ => Ok(()),
    }
}

fn begin(raw: &Raw, shown: Shown, out: &mut dyn Write) -> io::Result<()> {
    let version = raw.u64(8);
    // A name fills its field, or ends before.
    let name = raw.slice(48, 256).split(|byte| *byte == 0).next().unwrap_or_default();
    writeln!(out, "BEGIN record")?;
    writeln!(out, "\thdrtype = {}", version & 3)?;
    writeln!(out, "\tfeatures = {:x}", version >> 2 & 0x3fff_ffff)?;
    writeln!(out, "\tmagic = {:x}", raw.u64(0))?;
    writeln!(out, "\tcreation_time = {:x}", raw.u64(16))?;
    writeln!(out, "\ttype = {}", raw.u32(24))?;
    writeln!(out, "\tflags = {:#x}", raw.u32(28))?;
    writeln!(out, "\ttoguid = {:x}", raw.u64(32))?;
    writeln!(out, "\tfromguid = {:x}", raw.u64(40))?;
    writeln!(out, "\ttoname = {}", String::from_utf8_lossy(name))?;
    writeln!(out, "\tpayloadlen = {}", raw.list_len())?;
    if shown.records { writeln!(out) } else { Ok(()) }
}

/// The line of any other record.
fn line(raw: &Raw) -> String {
    let (w, d, b) = (|at| raw.u64(at), |at| raw.u32(at), |at| raw.u8(at));
    match raw.kind() {
        kind::OBJECT => object_line(raw),
        kind::FREEOBJECTS => format!("FREEOBJECTS firstobj = {} numobjs = {}", w(0), w(8)),
        kind::WRITE => write_line(raw),
        kind::WRITE_BYREF => byref_line(raw),
        kind::FREE => {
            format!("FREE object = {} offset = {} length = {}", w(0), w(8), w(16).cast_signed())
        }
        kind::SPILL => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {} {}",
            w(0),
            w(8),
            b(24),
            b(25),
            w(32),
            raw.payload_len(),
            secrets(raw, 40),
        ),
        kind::WRITE_EMBEDDED => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} \
             psize = {}",
            w(0),
            w(8),
            w(16),
            w(24),
            b(32),
            b(33),
            d(40),
            d(44),
        ),
        kind::OBJECT_RANGE => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
            w(0),
            w(8),
            b(60),
            secrets(raw, 24),
        ),
        _ => format!("REDACT object = {} offset = {} length = {}", w(0), w(8), w(16)),
    }
}

fn object_line(raw: &Raw) -> String {
    let (w, d, b) = (|at| raw.u64(at), |at| raw.u32(at), |at| raw.u8(at));
    format!(
        "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
         flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
        w(0),
        d(8),
        d(12),
        d(16),
        d(20),
        b(26),
        d(28),
        b(27),
        w(48),
        b(40),
        b(41),
        b(42),
    )
}

fn write_line(raw: &Raw) -> String {
    let (w, b) = (|at| raw.u64(at), |at| raw.u8(at));
    format!(
        "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
         logical_size = {} compressed_size = {} payload_size = {} props = {:x} {}",
        w(0),
        raw.u32(8),
        b(40),
        b(42),
        b(41),
        w(16),
        w(24),
        w(88),
        raw.payload_len(),
        w(80),
        secrets(raw, 96),
    )
}

fn byref_line(raw: &Raw) -> String {
    let w = |at| raw.u64(at);
    format!(
        "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
         refguid = {:x} refobject = {} refoffset = {}",
        w(0),
        raw.u8(56),
        w(96),
        w(8),
        w(16),
        w(24),
        w(32),
        w(40),
        w(48),
    )
}

/// Contents in hexadecimal and as text (`print_block`).
fn block(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let text_at = LINE * 3 + LINE / GROUP + 2;
    for line in bytes.chunks(LINE) {
        let mut shown = String::new();
        for group in line.chunks(GROUP) {
            shown += " ";
            group.iter().for_each(|byte| shown += &format!("{byte:02x} "));
        }
        let width = text_at.max(shown.len() + 1);
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        let text = line.chunks(GROUP).map(|group| group.iter().map(printable).collect());
        let text: Vec<String> = text.collect();
        writeln!(out, "{shown:<width$}{}", text.join(" "))?;
    }
    Ok(())
}

fn summary(counts: &[Counts], length: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "SUMMARY:")?;
    for (kind, name) in SUMMARY {
        let Some(Counts { records, bytes }) = counts.get(kind as usize) else { continue };
        writeln!(out, "\tTotal DRR_{name} records = {records} ({bytes} bytes)")?;
    }
    let (records, bytes) =
        counts.iter().fold((0, 0u64), |(r, b), c| (r + c.records, b.saturating_add(c.bytes)));
    let heads = records * cenote_format::stream::RECORD_SIZE as u64;
    writeln!(out, "\tTotal records = {records}")?;
    writeln!(out, "\tTotal payload size = {bytes} ({bytes:#x})")?;
    writeln!(out, "\tTotal header overhead = {heads} ({heads:#x})")?;
    writeln!(out, "\tTotal stream length = {length} ({length:#x})")
}
