//! What is done in each mounted file system: the same calls in the same order.
//!
//! The rows go from a sequential write (plain, then compressed) over cold reads and random writes of 8 KiB to many
//! small files: create, unpack an archive, stat all of them cold, delete. Between rows the machine rests, and what
//! must be cold is unmounted and mounted again.
//!
//! A row that writes ends when everything is on disk (`fsync`, or the system's `settle`). Data is noise, half of it
//! in the rows that compress, and no two records are the same, so that nothing is saved by deduplication. The
//! numbers drawn are the same in each file system. The processor time of the process that serves the mount counts
//! as well.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::systems::{System, succeed};
use crate::MountArgs;
use crate::measure::{Run, measure_with, rest};
use crate::noise::Noise;

/// Bytes of one call of the sequential rows.
const CHUNK: usize = 1 << 20;
/// Bytes of a record: what compresses is the second half of each.
pub const RECORD: usize = 128 << 10;
/// Bytes of a random write.
pub const SMALL_WRITE: usize = 8 << 10;
/// Bytes of a small file.
pub const SMALL_FILE: usize = 1024;
/// Small files in a directory.
const PER_DIRECTORY: usize = 1000;
/// Files in a directory of the tree that is unpacked.
const PER_TREE_DIRECTORY: usize = 20;

/// Runs all rows, and gives each to `print`.
pub fn run(
    system: &mut dyn System,
    args: &MountArgs,
    archive: &Path,
    print: &dyn Fn(Run) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let bytes = args.mount_size << 20;
    let file = system.place().join("sequential");
    // Of the device file of the system before.
    rest();
    print(sequential(system, "sequential write", &file, bytes, RECORD)?)?;
    system.remount()?;
    print(read(system, "sequential read, cold", &file, bytes)?)?;
    rest();
    fs::remove_file(&file)?;
    if system.compress(true)? {
        rest();
        print(sequential(system, "sequential write, lz4", &file, bytes, RECORD / 2)?)?;
        fs::remove_file(&file)?;
        system.compress(false)?;
        rest();
    }
    system.record_size(SMALL_WRITE as u64)?;
    print(random(system, bytes / 4, args.mount_overwrites)?)?;
    system.record_size(RECORD as u64)?;

    let mut all = Vec::new();
    for count in &args.mount_files {
        let directories = make_directories(system.place(), *count)?;
        print(create(system, &directories, *count)?)?;
        all.extend((0..*count).map(|i| directories[i / PER_DIRECTORY].join(format!("f{i}"))));
    }
    print(untar(system, archive, args.tree)?)?;
    system.remount()?;
    print(stat_all(system, all.len())?)?;
    rest();
    print(delete(system, &all)?)
}

/// Runs a row; the server's CPU time counts as well.
pub fn measure(
    system: &dyn System,
    row: &str,
    work: impl FnOnce() -> anyhow::Result<(u64, u64)>,
) -> anyhow::Result<Run> {
    measure_with(row, system.server(), work).with_context(|| row.to_owned())
}

fn sequential(
    system: &dyn System,
    row: &str,
    path: &Path,
    bytes: u64,
    noise: usize,
) -> anyhow::Result<Run> {
    let mut chunk = vec![0; CHUNK];
    let mut source = Noise(1);
    chunk.chunks_mut(RECORD).for_each(|record| source.fill(&mut record[..noise]));
    measure(system, row, || {
        let mut file = File::create(path)?;
        for at in (0..bytes).step_by(CHUNK) {
            // Records unlike all others, at the cost of eight bytes each.
            for (i, record) in chunk.chunks_mut(RECORD).enumerate() {
                record[..8].copy_from_slice(&(at + i as u64 + 1).to_le_bytes());
            }
            file.write_all(&chunk)?;
        }
        file.sync_all()?;
        Ok((bytes, bytes / CHUNK as u64))
    })
}

fn read(system: &dyn System, row: &str, path: &Path, bytes: u64) -> anyhow::Result<Run> {
    let mut chunk = vec![0; CHUNK];
    measure(system, row, || {
        let mut file = File::open(path)?;
        for _ in (0..bytes).step_by(CHUNK) {
            file.read_exact(&mut chunk)?;
        }
        Ok((bytes, bytes / CHUNK as u64))
    })
}

fn random(system: &dyn System, bytes: u64, count: u64) -> anyhow::Result<Run> {
    let path = system.place().join("random");
    let (mut block, mut noise) = (vec![0; SMALL_WRITE], Noise(7));
    noise.fill(&mut block);
    let mut file = File::create(&path)?;
    for _ in (0..bytes).step_by(SMALL_WRITE) {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let run = measure(system, "random 8K writes", || {
        for _ in 0..count {
            let at = noise.next() % (bytes / SMALL_WRITE as u64) * SMALL_WRITE as u64;
            block[..8].copy_from_slice(&noise.next().to_le_bytes());
            file.write_all_at(&block, at)?;
        }
        file.sync_all()?;
        Ok((count * SMALL_WRITE as u64, count))
    })?;
    fs::remove_file(&path)?;
    Ok(run)
}

fn make_directories(place: &Path, count: usize) -> anyhow::Result<Vec<PathBuf>> {
    let make = |i| {
        let path = place.join(format!("of{count}-{i}"));
        fs::create_dir(&path)?;
        Ok(path)
    };
    (0..count.div_ceil(PER_DIRECTORY)).map(make).collect()
}

fn create(system: &dyn System, directories: &[PathBuf], count: usize) -> anyhow::Result<Run> {
    let mut data = vec![0; SMALL_FILE];
    Noise(3).fill(&mut data);
    measure(system, &format!("create {count} files"), || {
        for i in 0..count {
            let mut file = File::create(directories[i / PER_DIRECTORY].join(format!("f{i}")))?;
            file.write_all(&data)?;
        }
        system.settle()?;
        Ok((0, count as u64))
    })
}

/// Lists every directory and asks for the attributes of whatever is in it, as `find -ls` does.
fn stat_all(system: &dyn System, least: usize) -> anyhow::Result<Run> {
    measure(system, "stat all, cold", || {
        let (mut seen, mut todo) = (0, vec![system.place().to_path_buf()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                seen += 1;
                if entry.metadata()?.is_dir() {
                    todo.push(entry.path());
                }
            }
        }
        anyhow::ensure!(seen >= least as u64, "only {seen} files were found");
        Ok((0, seen))
    })
}

fn delete(system: &dyn System, all: &[PathBuf]) -> anyhow::Result<Run> {
    measure(system, "delete all", || {
        for path in all {
            fs::remove_file(path)?;
        }
        system.settle()?;
        Ok((0, all.len() as u64))
    })
}

/// A tree like that of a program's source, in an archive: many small files, a few large ones.
pub fn make_archive(tree: &Path, archive: &Path, files: usize) -> anyhow::Result<()> {
    let mut noise = Noise(11);
    let mut data = vec![0; 128 << 10];
    noise.fill(&mut data);
    for i in 0..files {
        let directory =
            tree.join(format!("part{}", i / 400)).join(format!("sub{}", i / PER_TREE_DIRECTORY));
        if i % PER_TREE_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        // 1 to 64 KiB, small ones being the more frequent.
        let len = (1 << 10) + noise.next() as usize % (1 << (10 + noise.next() % 7));
        fs::write(directory.join(format!("file{i}.c")), &data[..len])?;
        if i % 50 == 0 {
            std::os::unix::fs::symlink(format!("file{i}.c"), directory.join(format!("link{i}")))?;
        }
    }
    let mut tar = Command::new("tar");
    succeed(tar.arg("-cf").arg(archive).arg("-C").arg(tree).arg("."))?;
    Ok(fs::remove_dir_all(tree)?)
}

fn untar(system: &dyn System, archive: &Path, files: usize) -> anyhow::Result<Run> {
    let to = system.place().join("tree");
    fs::create_dir(&to)?;
    measure(system, "untar", || {
        succeed(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&to))?;
        system.settle()?;
        Ok((0, files as u64))
    })
}
