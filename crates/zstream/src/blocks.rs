//! `zstream decompress` and `zstream recompress`: how blocks in a stream are compressed (`zstream_do_decompress`,
//! `zstream_do_recompress`).
//!
//! Both change WRITE records and leave all others as they are; [`rewrite::run`] reads the stream, hands over one
//! record at a time and mends the checksums. `decompress` unpacks the blocks that its operands name, whatever their
//! records say: for streams whose records are wrong. `recompress` unpacks every block and packs it by one function,
//! or by none; a block that does not get smaller stays as it is, and encrypted ones are not touched.
//!
//! Invariants: no block is unpacked to more than the format's largest. Deduplicated streams are refused.

use crate::record::{Raw, kind};
use crate::{Surroundings, UsageError, rewrite};
use cenote_command::outcome::{Outcome, Stop, fail};
use cenote_format::SECTOR_SHIFT;
use cenote_format::compress::{Compression, compress, decompress};
use std::collections::HashMap;
use std::io::Read;

/// Compression functions by the names that `decompress` takes.
const BY_NAME: [(&str, Compression); 6] = [
    ("off", Compression::Off),
    ("lz4", Compression::Lz4),
    ("lzjb", Compression::Lzjb),
    ("gzip", Compression::Gzip1),
    ("zle", Compression::Zle),
    ("zstd", Compression::Zstd),
];
/// Those that `recompress` takes (`zio_compress_table`).
const TABLE: [(&str, Compression); 14] = [
    ("off", Compression::Off),
    ("uncompressed", Compression::Off),
    ("lzjb", Compression::Lzjb),
    ("gzip-1", Compression::Gzip1),
    ("gzip-2", Compression::Gzip2),
    ("gzip-3", Compression::Gzip3),
    ("gzip-4", Compression::Gzip4),
    ("gzip-5", Compression::Gzip5),
    ("gzip-6", Compression::Gzip6),
    ("gzip-7", Compression::Gzip7),
    ("gzip-8", Compression::Gzip8),
    ("gzip-9", Compression::Gzip9),
    ("zle", Compression::Zle),
    ("lz4", Compression::Lz4),
];

/// Exit code where a compression is not known that the command line names.
pub const NO_FUNCTION: i32 = 2;
/// Exit code where a compression is not known that the stream names.
pub const UNKNOWN: i32 = 3;
/// Exit code where a block of the stream cannot be unpacked.
pub const NOT_UNPACKED: i32 = 4;

/// Blocks by object and offset, with what they are compressed by.
pub type Blocks = HashMap<(u64, u64), Compression>;

/// A number as C reads it: decimal, or with `0x` or `0` before it.
fn number(text: &str) -> Option<u64> {
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (_, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// Takes the operands of `decompress`: `OBJECT,OFFSET[,TYPE]`.
///
/// # Errors
/// An operand is not of that form.
pub fn blocks(operands: &[String]) -> Result<Blocks, UsageError> {
    let mut blocks = Blocks::new();
    for operand in operands {
        let mut parts = operand.splitn(3, ',');
        let (Some(object), Some(offset)) = (parts.next(), parts.next()) else {
            return Err(UsageError::Usage(String::new()));
        };
        let invalid =
            |what: &str| UsageError::Stop(1, format!("zstream: invalid value for {what}"));
        let object = number(object).ok_or_else(|| invalid("object"))?;
        let offset = number(offset).ok_or_else(|| invalid("offset"))?;
        let by = parts.next().unwrap_or("lz4");
        let Some((_, by)) = BY_NAME.iter().find(|(name, _)| *name == by) else {
            let supported = "Supported types are off, lz4, lzjb, gzip, zle, and zstd";
            let why = format!("Invalid compression type {by}.\n{supported}");
            return Err(UsageError::Stop(NO_FUNCTION, why));
        };
        blocks.insert((object, offset), *by);
    }
    Ok(blocks)
}

/// The function that `recompress` is asked for; zstd has levels.
///
/// # Errors
/// The name is unknown.
pub fn function(name: &str) -> Result<Compression, UsageError> {
    if name == "zstd" {
        return Ok(Compression::Zstd);
    }
    match TABLE.iter().find(|(known, _)| *known == name) {
        Some((_, function)) => Ok(*function),
        None => Err(UsageError::Stop(NO_FUNCTION, format!("Invalid compression type {name}."))),
    }
}

fn place(raw: &Raw) -> (u64, u64) {
    (raw.u64(0), raw.u64(16))
}

fn set(raw: &mut Raw, compression: u8, size: u64) {
    raw.set_u8(42, compression);
    raw.set_u64(88, size);
}

fn no_dedup(raw: &Raw) -> Result<(), Stop> {
    match raw.kind() {
        kind::WRITE_BYREF => fail("Deduplicated streams are not supported"),
        _ => Ok(()),
    }
}

/// A block unpacked.
fn unpacked(by: Compression, payload: &[u8], raw: &Raw) -> Option<Vec<u8>> {
    let size = raw.u64(24);
    if size > cenote_format::MAX_BLOCK {
        return None;
    }
    let mut plain = vec![0; size as usize];
    decompress(by, payload, &mut plain).ok().map(|()| plain)
}

/// Runs `zstream decompress` (`zstream_do_decompress`): blocks that are compressed although their records do not say
/// so, or say it wrongly.
///
/// # Errors
/// Errors of [`rewrite::run`]; the stream is a deduplicated one.
pub fn decompress_some(
    from: &mut dyn Read,
    blocks: &Blocks,
    verbose: bool,
    ctx: &mut Surroundings<'_>,
) -> Outcome {
    let mut change =
        |raw: &mut Raw, payload: &mut Vec<u8>, _at: u64, ctx: &mut Surroundings<'_>| {
            no_dedup(raw)?;
            if raw.kind() != kind::WRITE {
                return Ok(());
            }
            let (object, offset) = place(raw);
            let Some(by) = blocks.get(&(object, offset)) else { return Ok(()) };
            if *by == Compression::Off {
                set(raw, 0, 0);
                if verbose {
                    let what = "Resetting compression type to off for";
                    ctx.complain(format_args!("{what} ino {object} offset {offset}"));
                }
                return Ok(());
            }
            match unpacked(*by, payload, raw) {
                Some(plain) => {
                    *payload = plain;
                    set(raw, 0, 0);
                    if verbose {
                        ctx.complain(format_args!(
                            "successfully decompressed ino {object} offset {offset}"
                        ));
                    }
                }
                None => ctx.complain(format_args!(
                    "zstream: decompression failed for ino {object} offset {offset}"
                )),
            }
            Ok(())
        };
    rewrite::run(from, &mut change, ctx).map(|_| 0)
}

/// Runs `zstream recompress` (`zstream_do_recompress`): all blocks are compressed by one function, or by none.
///
/// # Errors
/// Errors of [`rewrite::run`]; the stream is a deduplicated one; a block cannot be unpacked.
pub fn recompress(
    from: &mut dyn Read,
    by: Compression,
    level: u8,
    ctx: &mut Surroundings<'_>,
) -> Outcome {
    let mut change = |raw: &mut Raw,
                      payload: &mut Vec<u8>,
                      _at: u64,
                      ctx: &mut Surroundings<'_>| {
        no_dedup(raw)?;
        // Encrypted blocks stay as they are.
        if raw.kind() != kind::WRITE || raw.slice(96, 8).iter().any(|byte| *byte != 0) {
            return Ok(());
        }
        let number = raw.u8(42);
        if number != 0 {
            let Ok(old) = Compression::from_u8(number) else {
                ctx.complain(format_args!("Invalid compression type in stream: {number}"));
                return Err(Stop::Said(UNKNOWN));
            };
            if old != Compression::Off {
                let Some(plain) = unpacked(old, payload, raw) else {
                    let (object, offset) = place(raw);
                    ctx.complain(format_args!(
                        "zstream: decompression type {number} failed for ino {object} offset {offset}"
                    ));
                    return Err(Stop::Said(NOT_UNPACKED));
                };
                *payload = plain;
            }
        }
        set(raw, 0, 0);
        let size = payload.len();
        // Without a level zstd leaves blocks as they are.
        if by == Compression::Off || by == Compression::Zstd && level == 0 {
            return Ok(());
        }
        let Some(mut packed) = compress(by, level, payload, size) else { return Ok(()) };
        packed.resize(packed.len().next_multiple_of(1 << SECTOR_SHIFT), 0);
        if packed.len() < size {
            set(raw, by as u8, packed.len() as u64);
            *payload = packed;
        }
        Ok(())
    };
    rewrite::run(from, &mut change, ctx).map(|_| 0)
}
