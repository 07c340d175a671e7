//! What `decompress`, `recompress` and `redup` have in common: a stream is copied, with some of its blocks changed.
//!
//! Every checksum is made anew. Checksums of the stream that comes in are verified first: a damaged stream does not
//! become one that looks whole.

use crate::record::{Raw, Reader, kind};
use crate::{Surroundings, failed};
use cenote_command::outcome::{Stop, fail};
use cenote_format::ByteOrder;
use cenote_format::checksum::Fletcher4;
use cenote_format::stream::RECORD_SIZE;
use std::io::{self, Read, Write};

/// What is done with a record and what follows it, before both are written. The record begins so many bytes after the
/// stream's own beginning.
pub type Change<'c> =
    dyn FnMut(&mut Raw, &mut Vec<u8>, u64, &mut Surroundings<'_>) -> Result<(), Stop> + 'c;

/// Writes a stream anew. Returns the number of its records.
///
/// # Errors
/// It is no whole stream; errors of `change`; it cannot be written.
pub fn run(
    from: &mut dyn Read,
    change: &mut Change<'_>,
    ctx: &mut Surroundings<'_>,
) -> Result<u64, Stop> {
    let mut reader = Reader::new(from, true);
    let mut out = Writer { sum: Fletcher4::new(ByteOrder::Little) };
    let (mut records, mut begun, mut seen) = (0, false, false);
    loop {
        let at = reader.length;
        let Some(mut raw) = reader.record().map_err(failed)? else { break };
        if !raw.is_native() {
            return fail("zstream: a stream of a big-endian machine is not supported");
        }
        records += 1;
        let mut payload = reader.payload(&raw).map_err(failed)?;
        match raw.kind() {
            kind::BEGIN if begun => {
                return fail("zstream: a BEGIN record before the end of a stream");
            }
            kind::BEGIN => {
                out.restart();
                (begun, seen) = (true, true);
            }
            kind::END if seen => {
                // The last END of a package has no checksum.
                if raw.checksum_at(8) != [0; 4] {
                    raw.set_checksum(8, out.sum.finish());
                }
                reader.restart();
                begun = false;
            }
            other if other >= kind::COUNT || other == kind::REDACT => {
                return fail(format!("INVALID record type {other:#x}"));
            }
            _ if !begun => return fail("zstream: a record before BEGIN"),
            _ => {}
        }
        change(&mut raw, &mut payload, at, ctx)?;
        out.put(&mut raw, &payload, ctx.out)?;
        if raw.kind() == kind::END {
            out.restart();
        }
    }
    if begun || !seen {
        return fail("zstream: the stream is cut short");
    }
    Ok(records)
}

struct Writer {
    sum: Fletcher4,
}

impl Writer {
    fn restart(&mut self) {
        self.sum = Fletcher4::new(ByteOrder::Little);
    }

    /// Writes a record (`dump_record`).
    fn put(&mut self, raw: &mut Raw, payload: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let at = crate::record::CHECKSUM_AT;
        let (head, _) = raw.bytes.split_at(at);
        self.sum.update(head);
        if raw.kind() != kind::BEGIN {
            raw.set_checksum(at, self.sum.finish());
        }
        let own: [u8; RECORD_SIZE] = raw.bytes;
        self.sum.update(own.get(at..).unwrap_or_default());
        self.sum.update(payload);
        out.write_all(&own)?;
        out.write_all(payload)
    }
}
