//! Cached reads of small compressed records: the part of `cenote-bench read` in which no device takes part.
//!
//! The peer makes a pool with an object of 8 KiB records that lz4 makes 3 KiB of, on sectors of 512 bytes, and reads it
//! first (`peer/cached.c`). Then the same object is read here, by the same calls: each read asks for one record and
//! copies it to a buffer of the caller's. All of it is in the cache, as it is on disk, so a read is a look-up, a
//! decompression and a copy. One and two threads read, in order and at random. Beside the rate stand the processor time
//! of a read and the bytes that it copied between buffers (`Abd` counts them; decompression does not count).

use std::fs;
use std::process::Command;

use anyhow::Context;
use cenote_dmu::Object;
use cenote_format::abd;

use crate::ReadArgs;
use crate::measure::{Run, forget, measure, medians_by};
use crate::read::{import, open, rows_of};
use crate::report;

/// Bytes of a record.
const RECORD: u64 = 8 << 10;
/// Records that are asked for ahead of a reader that reads in order.
const AHEAD: u64 = 8;

/// Name, whether in order, and threads of each row, as the peer has them.
const ROWS: [(&str, bool, u64); 4] = [
    ("sequential, 1 thread", true, 1),
    ("random, 1 thread", false, 1),
    ("sequential, 2 threads", true, 2),
    ("random, 2 threads", false, 2),
];

/// A run of a row, and the bytes that it copied.
#[derive(Clone)]
pub struct Cached {
    pub run: Run,
    pub copied: u64,
}

/// Runs all rows and prints the table.
pub fn run(args: &ReadArgs) -> anyhow::Result<()> {
    let image = args.dir.join("cached.img");
    eprintln!("libzpool makes a pool of {} MiB of small records and reads it ...", args.size);
    let mut command = Command::new(&args.peer);
    command.arg("cached").arg(&image);
    command.args([args.size, args.cache, args.cached_reads].map(|n| n.to_string()));
    let peer = rows_of(&mut command)?;
    forget(&image)?;
    let pool = import(&args.dir, "bench", args.cache << 20)?;
    let object = open(&pool, "packed")?;
    let records = (args.size << 20) / RECORD;
    read(&object, records, true, 1, records)?;
    let mut ours = Vec::new();
    for i in 0..args.runs {
        eprintln!("run {} of {} ...", i + 1, args.runs);
        for (row, in_order, threads) in ROWS {
            let before = abd::copies();
            let run = measure(row, || {
                let reads = read_by(&object, records, in_order, threads, args.cached_reads)?;
                Ok((reads * RECORD, reads))
            })?;
            ours.push(Cached { run, copied: abd::copies().since(&before).bytes });
        }
    }
    drop(object);
    drop(pool);
    fs::remove_file(&image)?;
    report::print_cached(&medians_by(&ours, |c| &c.run.row, |c| c.run.seconds), &peer);
    Ok(())
}

/// Has threads read so many records each.
fn read_by(
    object: &Object,
    records: u64,
    in_order: bool,
    threads: u64,
    reads: u64,
) -> anyhow::Result<u64> {
    std::thread::scope(|scope| {
        // The second one is half of the object ahead.
        let start =
            |i| scope.spawn(move || read(object, records, in_order, 1 + i * records / 2, reads));
        let all: Vec<_> = (0..threads).map(start).collect();
        all.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
    })?;
    Ok(threads * reads)
}

fn read(
    object: &Object,
    records: u64,
    in_order: bool,
    seed: u64,
    reads: u64,
) -> anyhow::Result<()> {
    let mut buf = vec![0; RECORD as usize];
    let mut state = seed;
    for i in 0..reads {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let record = if in_order { seed + i } else { state } % records;
        if in_order && record.is_multiple_of(AHEAD) {
            object.prefetch((record + AHEAD) * RECORD, AHEAD * RECORD);
        }
        object.read(record * RECORD, &mut buf)?;
    }
    Ok(())
}
