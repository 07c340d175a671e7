//! Reads every file of every dataset of a pool, on all processors, and says what cannot be read.
//!
//! `cargo run --release --example verify -- /images tank`

use cenote::{FileSystem, Pool};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts, over all datasets.
#[derive(Default)]
struct Totals {
    files: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Totals {
    fn failed(&self, message: &dyn std::fmt::Display) {
        println!("{message}");
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> cenote::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [paths, name] = args.as_slice() else {
        eprintln!("usage: verify DIRECTORY POOL");
        std::process::exit(2);
    };
    let pool = Pool::open([paths], name)?;
    let datasets = Mutex::new(pool.datasets());
    let totals = Totals::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let next = || datasets.lock().ok()?.next();
                while let Some(dataset) = next() {
                    let opened = dataset.and_then(|d| Ok((d.filesystem()?, d)));
                    match opened {
                        Ok((fs, dataset)) => read_tree(&fs, dataset.name(), &totals),
                        // Volumes have no files.
                        Err(cenote::Error::Kind { .. }) => {}
                        Err(e) => totals.failed(&e),
                    }
                }
            });
        }
    });
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (files, bytes, errors) =
        (count(&totals.files), count(&totals.bytes), count(&totals.errors));
    println!("{files} files, {bytes} bytes, {errors} errors");
    std::process::exit(i32::from(errors > 0));
}

fn read_tree(fs: &FileSystem, dataset: &str, totals: &Totals) {
    let failed = |path: &Path, e: cenote::Error| {
        totals.failed(&format_args!("{dataset}:{}: {e}", path.display()));
    };
    let mut directories = vec![PathBuf::from("/")];
    while let Some(directory) = directories.pop() {
        let entries = match fs.read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) => {
                failed(&directory, e);
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    failed(&directory, e);
                    break;
                }
            };
            let path = directory.join(entry.name());
            match entry.metadata() {
                Ok(m) if m.is_dir() => directories.push(path),
                Ok(m) if m.is_file() => match read_file(&entry) {
                    Ok(bytes) => {
                        totals.files.fetch_add(1, Ordering::Relaxed);
                        totals.bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                    Err(e) => failed(&path, e),
                },
                Ok(_) => {}
                Err(e) => failed(&path, e),
            }
        }
    }
}

/// Reads a file's data, passing over its holes; returns the bytes read.
fn read_file(entry: &cenote::DirEntry) -> cenote::Result<u64> {
    let file = entry.open()?;
    let mut buffer = vec![0; 1 << 20];
    let (mut offset, mut bytes) = (0, 0);
    while let Some(start) = file.next_data(offset)? {
        let end = file.next_hole(start)?.unwrap_or(file.size());
        offset = start;
        while offset < end {
            let n = file.read_at(offset, &mut buffer)? as u64;
            if n == 0 {
                return Ok(bytes);
            }
            (offset, bytes) = (offset + n, bytes + n);
        }
    }
    Ok(bytes)
}
