//! Rows in which several programs work in a mount at the same time, each a process of its own.
//!
//! All do the same amount together, however many they are, so that rows of more programs can be compared with those
//! of one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::fs::{OFlags, XattrFlags};

use super::rows::{SMALL_FILE, SMALL_WRITE, measure};
use super::systems::System;
use crate::MountArgs;
use crate::measure::Run;
use crate::noise::Noise;

/// Numbers of programs.
const PROGRAMS: [usize; 3] = [1, 2, 8];
/// Bytes that buffers and offsets of `O_DIRECT` are a multiple of.
const ALIGNMENT: usize = 4096;
/// The extended attribute that is read.
const ATTRIBUTE: &str = "user.bench";

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Makes small files in a directory.
    Create,
    /// Removes them.
    Delete,
    /// Overwrites blocks of 8 KiB of a file at random.
    Write,
    /// Reads an extended attribute of a file again and again.
    Xattr,
    /// Reads and overwrites blocks of 8 KiB of a file at random, past the kernel's pages.
    Mixed,
}

/// One of the programs.
#[derive(clap::Args)]
pub struct JobArgs {
    #[arg(value_enum)]
    kind: Kind,
    /// The directory or file.
    path: PathBuf,
    /// How often.
    count: u64,
    /// Tells programs apart.
    seed: u64,
}

/// Runs one of the programs.
pub fn job(args: &JobArgs) -> anyhow::Result<()> {
    let JobArgs { kind, path, count, seed } = args;
    match kind {
        Kind::Create => create(path, *count),
        Kind::Delete => (0..*count).try_for_each(|i| Ok(fs::remove_file(file_of(path, i))?)),
        Kind::Write => write(path, *count, *seed),
        Kind::Xattr => xattr(path, *count),
        Kind::Mixed => mixed(path, *count, *seed),
    }
}

fn file_of(directory: &Path, i: u64) -> PathBuf {
    directory.join(format!("f{i}"))
}

fn create(directory: &Path, count: u64) -> anyhow::Result<()> {
    let mut data = vec![0; SMALL_FILE];
    Noise(3).fill(&mut data);
    (0..count).try_for_each(|i| Ok(fs::write(file_of(directory, i), &data)?))
}

/// Blocks of 8 KiB that a file has.
fn blocks(file: &File) -> anyhow::Result<u64> {
    let blocks = file.metadata()?.len() / SMALL_WRITE as u64;
    ensure!(blocks > 0, "an empty file");
    Ok(blocks)
}

fn write(path: &Path, count: u64, seed: u64) -> anyhow::Result<()> {
    let (mut block, mut noise) = (vec![0; SMALL_WRITE], Noise(seed));
    noise.fill(&mut block);
    let file = OpenOptions::new().write(true).open(path)?;
    let blocks = blocks(&file)?;
    for _ in 0..count {
        block[..8].copy_from_slice(&noise.next().to_le_bytes());
        file.write_all_at(&block, noise.next() % blocks * SMALL_WRITE as u64)?;
    }
    Ok(())
}

fn xattr(path: &Path, count: u64) -> anyhow::Result<()> {
    let mut value = [0; 64];
    for _ in 0..count {
        rustix::fs::getxattr(path, ATTRIBUTE, &mut value)?;
    }
    Ok(())
}

fn mixed(path: &Path, count: u64, seed: u64) -> anyhow::Result<()> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let mut noise = Noise(seed);
    let mut bytes = vec![0; SMALL_WRITE + ALIGNMENT];
    let start = bytes.as_ptr().align_offset(ALIGNMENT);
    let block = &mut bytes[start..start + SMALL_WRITE];
    noise.fill(block);
    let blocks = blocks(&file)?;
    for _ in 0..count {
        let at = noise.next() % blocks * SMALL_WRITE as u64;
        match noise.next() % 2 {
            0 => file.read_exact_at(block, at)?,
            _ => file.write_all_at(block, at)?,
        }
    }
    Ok(())
}

/// Runs programs at the same time, each with its place, and `count` operations of all together.
fn run_all(kind: Kind, places: &[PathBuf], count: u64) -> anyhow::Result<()> {
    let each = count / places.len() as u64;
    let kind = clap::ValueEnum::to_possible_value(&kind).context("a kind without a name")?;
    let mut all: Vec<Child> = Vec::new();
    for (place, seed) in places.iter().zip(1u64..) {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mounted-job").arg(kind.get_name()).arg(place);
        command.args([each.to_string(), seed.to_string()]).stdin(Stdio::null());
        all.push(command.spawn()?);
    }
    // All are waited for, whatever became of the first.
    let ended: Vec<_> = all.iter_mut().map(Child::wait).collect();
    for status in ended {
        let status = status?;
        ensure!(status.success(), "a program that works in the mount: {status}");
    }
    Ok(())
}

fn measure_all(
    system: &dyn System,
    row: &str,
    kind: Kind,
    places: &[PathBuf],
    count: u64,
) -> anyhow::Result<Run> {
    let bytes = if matches!(kind, Kind::Write | Kind::Mixed) { SMALL_WRITE as u64 } else { 0 };
    measure(system, row, || {
        run_all(kind, places, count)?;
        Ok((bytes * count, count))
    })
}

/// A file of so many bytes, on disk.
fn make_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut block = vec![0; 1 << 20];
    Noise(5).fill(&mut block);
    let mut file = File::create(path)?;
    for _ in 0..bytes >> 20 {
        std::io::Write::write_all(&mut file, &block)?;
    }
    rustix::fs::fsetxattr(&file, ATTRIBUTE, b"0123456789", XattrFlags::empty())
        .or_else(|e| if e == rustix::io::Errno::OPNOTSUPP { Ok(()) } else { Err(e) })?;
    Ok(file.sync_all()?)
}

/// Runs the rows.
pub fn run(
    system: &mut dyn System,
    args: &MountArgs,
    print: &dyn Fn(Run) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let place = system.place().join("programs");
    fs::create_dir(&place)?;
    system.record_size(SMALL_WRITE as u64)?;
    let files: Vec<_> = (0..8).map(|i| place.join(format!("file{i}"))).collect();
    let each = (args.mount_size << 20) / 4 / files.len() as u64;
    files.iter().try_for_each(|file| make_file(file, each.max(1 << 20)))?;
    let count = args.mount_overwrites;
    for programs in PROGRAMS {
        let directories: Vec<_> = (0..programs).map(|i| place.join(format!("d{i}"))).collect();
        directories.iter().try_for_each(fs::create_dir)?;
        for (row, kind) in [("create", Kind::Create), ("delete", Kind::Delete)] {
            let row = format!("{row}, {programs} programs");
            print(measure_all(system, &row, kind, &directories, count)?)?;
        }
        directories.iter().try_for_each(fs::remove_dir)?;
        for (row, kind) in [("8K writes", Kind::Write), ("getxattr", Kind::Xattr)] {
            let row = format!("{row}, {programs} programs");
            print(measure_all(system, &row, kind, &files[..programs], count)?)?;
        }
        system.settle()?;
    }
    let (one, two) = ([files[0].clone(), files[0].clone()], [files[0].clone(), files[1].clone()]);
    for (row, kind, files) in [
        ("mixed direct, one file", Kind::Mixed, &one),
        ("mixed direct, two files", Kind::Mixed, &two),
    ] {
        print(measure_all(system, row, kind, files, count)?)?;
        system.settle()?;
    }
    fs::remove_dir_all(&place)?;
    system.record_size(super::rows::RECORD as u64)
}
