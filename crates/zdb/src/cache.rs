//! `zdb -l` of a cache device: its header and log blocks (`dump_l2arc_header`, `dump_l2arc_log_blocks`).
//!
//! With `-ll` each log block is shown, with `-lll` its entries too. The chain of log blocks is followed as an import does.

use super::args::Args;
use crate::Surroundings;
use cenote_format::LABEL_START;
use cenote_format::l2arc::{
    Entry, HEADER_MAGIC, HEADER_SIZE, Header, LOG_MAGIC, LogBlock, LogPointer,
};
use cenote_format::{DecodeError, blkptr};
use std::collections::HashSet;
use std::io::Result;

/// What is on a cache device.
pub struct Cached {
    header: Option<Header>,
    logs: Vec<(LogPointer, LogBlock)>,
    /// Why there are not more log blocks.
    cut: Option<Cut>,
}

enum Cut {
    Unread,
    Sum(LogPointer),
    Packed,
    Magic,
}

/// Reads it. `read` gives bytes of the device: offset, length.
pub fn read(read: &dyn Fn(u64, usize) -> Option<Vec<u8>>) -> Cached {
    let mut cached = Cached { header: None, logs: Vec::new(), cut: None };
    let header = read(LABEL_START, HEADER_SIZE).and_then(|data| Header::decode(&data).ok()?);
    let Some(header) = header else { return cached };
    cached.header = Some(header);
    let ring = header.ring();
    let ([mut log, mut next], mut seen) = (header.logs, HashSet::new());
    while ring.holds(&log) && seen.insert(log.place) {
        let Some(data) = read(log.place, log.props.psize() as usize) else {
            cached.cut = Some(Cut::Unread);
            break;
        };
        let block = match LogBlock::decode(&data, &log, header.entries) {
            Ok(block) => block,
            Err(why) => {
                cached.cut = Some(match why {
                    DecodeError::Checksum { .. } => Cut::Sum(log),
                    DecodeError::Invalid { why, .. } if why == "no log block" => Cut::Magic,
                    _ => Cut::Packed,
                });
                break;
            }
        };
        let previous = block.previous;
        let is_last = ring.ends_before(&next, &log);
        cached.logs.push((log, block));
        if is_last {
            break;
        }
        (log, next) = (next, previous);
    }
    cached
}

fn bytes_of(cached: &Cached) -> u64 {
    cached.logs.iter().map(|(log, _)| log.props.psize()).sum()
}

/// Shows it. Whether less was found than the header says that there is.
pub fn show(args: &Args, ctx: &mut Surroundings<'_>, cached: &Cached) -> Result<bool> {
    let Some(header) = &cached.header else {
        writeln!(ctx.out, "L2ARC device header not found\n")?;
        return Ok(false);
    };
    if !args.has('q') {
        show_header(ctx, header)?;
        show_logs(args, ctx, cached, header)?;
    }
    let (count, bytes) = (cached.logs.len() as u64, bytes_of(cached));
    Ok(header.log_bytes > bytes || header.log_count > count)
}

fn title(ctx: &mut Surroundings<'_>, title: &str) -> Result<()> {
    let line = "------------------------------------";
    writeln!(ctx.out, "{line}\n{title}\n{line}")
}

fn show_header(ctx: &mut Surroundings<'_>, h: &Header) -> Result<()> {
    title(ctx, "L2ARC device header")?;
    for (name, value) in [
        ("magic", HEADER_MAGIC),
        ("version", h.version),
        ("pool_guid", h.pool),
        ("flags", h.flags),
        ("start_lbps[0]", h.logs[0].place),
        ("start_lbps[1]", h.logs[1].place),
        ("log_blk_ent", h.entries),
        ("start", h.start),
        ("end", h.end),
        ("evict", h.evict),
        ("lb_asize_refcount", h.log_bytes),
        ("lb_count_refcount", h.log_count),
        ("trim_action_time", h.trim_time),
        ("trim_state", h.trim_state),
    ] {
        writeln!(ctx.out, "    {name}: {value}")?;
    }
    writeln!(ctx.out)
}

fn show_logs(
    args: &Args,
    ctx: &mut Surroundings<'_>,
    cached: &Cached,
    header: &Header,
) -> Result<()> {
    title(ctx, "L2ARC device log blocks")?;
    if header.logs[0].place == 0 {
        return writeln!(ctx.out, "No log blocks to read\n");
    }
    for (number, (log, block)) in (1..).zip(&cached.logs) {
        if args.level('l') > 1 {
            writeln!(ctx.out, "lb[{number:4}]\tmagic: {LOG_MAGIC}")?;
            show_pointer(ctx, log)?;
        }
        if args.level('l') > 2 {
            for (at, entry) in (1..).zip(&block.entries) {
                show_entry(ctx, (number, at), entry)?;
            }
            writeln!(ctx.out)?;
        }
    }
    let mut failed = 0;
    match &cached.cut {
        None => {}
        Some(Cut::Unread) => writeln!(ctx.out, "Error while reading next log block\n")?,
        Some(Cut::Sum(log)) => {
            failed = 1;
            writeln!(ctx.out, "Invalid cksum")?;
            show_pointer(ctx, log)?;
        }
        Some(Cut::Packed) => writeln!(ctx.out, "L2ARC block decompression failed")?,
        Some(Cut::Magic) => writeln!(ctx.out, "Invalid log block magic\n")?,
    }
    let count = cached.logs.len();
    writeln!(
        ctx.out,
        "log_blk_count:\t {count} with valid cksum\n\t\t {failed} with invalid cksum"
    )?;
    writeln!(ctx.out, "log_blk_asize:\t {}\n", bytes_of(cached))
}

fn show_pointer(ctx: &mut Surroundings<'_>, log: &LogPointer) -> Result<()> {
    for (name, value) in [
        ("daddr", log.place),
        ("payload_asize", log.payload),
        ("payload_start", log.payload_start),
        ("lsize", log.props.lsize()),
        ("asize", log.props.psize()),
        ("compralgo", log.props.compression().into()),
        ("cksumalgo", log.props.checksum().into()),
    ] {
        writeln!(ctx.out, "|\t\t{name}: {value}")?;
    }
    writeln!(ctx.out, "|\n")
}

fn show_entry(ctx: &mut Surroundings<'_>, (lb, le): (u64, u64), entry: &Entry) -> Result<()> {
    let mut words = [0; 16];
    words[..2].copy_from_slice(&entry.dva);
    let dva = blkptr::BlockPointer(words).dva(0);
    let (asize, vdev, offset) = dva.map_or((0, 0, 0), |dva| (dva.asize, dva.vdev, dva.offset));
    writeln!(
        ctx.out,
        "lb[{lb:4}]\tle[{le:4}]\tDVA asize: {asize}, vdev: {vdev}, offset: {offset}"
    )?;
    let props = entry.props;
    for (name, value) in [
        ("birth", entry.birth),
        ("lsize", props.lsize()),
        ("psize", props.psize()),
        ("compr", props.compression().into()),
        ("complevel", entry.level),
        // As a number of what is kept in memory it begins at 0.
        ("type", props.contents().wrapping_sub(1)),
        ("protected", props.is_protected().into()),
        ("prefetch", props.is_ahead().into()),
        ("address", entry.place),
        ("ARC state", props.state()),
    ] {
        writeln!(ctx.out, "|\t\t\t\t{name}: {value}")?;
    }
    writeln!(ctx.out, "|")
}
