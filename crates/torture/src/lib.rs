//! Tests that lose devices, damage images and tamper with blocks; and tests of pools that are
//! written to, at random, through crashes and failures.
//!
//! What they demand is always the same: every byte that is delivered is right, whatever cannot be
//! right is a clean error, and nothing panics, hangs or eats memory. This library holds what the
//! tests share; they are in `tests/`:
//!
//! | test | damage |
//! |---|---|
//! | `devices` | devices removed, or overwritten with garbage, as many as the redundancy allows; and one more |
//! | `images` | bytes flipped and images cut short at random |
//! | `tamper` | blocks changed after their checksum was verified: what a hostile image could hold |
//! | `matrix` | bits flipped in all that redundancy makes up for, of every layout, under load |
//!
//! Those of [`live`] pools compare what is there with a model, and have OpenZFS's zdb judge it:
//!
//! | test | what happens |
//! |---|---|
//! | `random` | random changes to pools of every layout |
//! | `crash` | the power goes at any moment, again after that |
//! | `logs` | the same with many log space maps, and with few |
//! | `snapshots` | the power goes while snapshots and clones are made, promoted, rolled back to and destroyed |
//! | `faults` | devices fail writes and flushes |
//! | `metadata` | metadata that cannot be read, in all its copies, while datasets and files are changed |
//! | `leaks` | metadata that cannot be read is freed |
//! | `objects` | the host ends while a pool is in an object store whose requests fail, or another host imports it (our own zdb judges) |
//! | `large` | the power goes while files of many blocks are removed, piece by piece |
//!
//! They run a short version by default; `CENOTE_TORTURE=long` runs all of it (`make damage-long`,
//! `make torture-long`), and says how far it is. A failure names its seed; `CENOTE_SEED` runs that one.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

pub mod live;

use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cenote_dmu::zap::Zap;

use cenote_inspect::traverse::{self, Event, Options, Subject, Verify};
use cenote_manifest_check::{
    Checks, ZplTree, check_tree, check_volume, datasets_with_files, datasets_with_volume,
};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::{ImportError, ImportOptions, Pool, discover};
use cenote_store::tamper;
use cenote_zpl::{FileSystem, Volume};
use serde_json::Value;

/// Whether the long version was asked for.
pub fn long() -> bool {
    std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long")
}

/// Says how far a long run is: a line for each part that is done.
pub struct Progress {
    what: &'static str,
    parts: usize,
    done: AtomicUsize,
    start: Instant,
}

impl Progress {
    /// Of a run of so many parts, which starts now.
    pub fn of(what: &'static str, parts: usize) -> Progress {
        Progress { what, parts, done: AtomicUsize::new(0), start: Instant::now() }
    }

    /// A part is done.
    pub fn done(&self, part: impl Display) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if !long() {
            return;
        }
        let (what, parts, elapsed) = (self.what, self.parts, self.start.elapsed());
        let left = elapsed.mul_f64(parts.saturating_sub(done) as f64 / done as f64);
        let (elapsed, left) = (elapsed.as_secs(), left.as_secs());
        println!("{what}: {part} done, {done} of {parts}; {elapsed} s so far, about {left} s left");
    }
}

/// Imports the only pool in `dir`; `None` if no label is left that tells of one.
pub fn import(dir: &Path) -> Option<Result<Arc<Pool>, ImportError>> {
    let found = discover(&[dir.to_path_buf()]);
    let options = ImportOptions {
        readonly: true,
        force: true,
        arc_bytes: Some(32 << 20),
        ..ImportOptions::default()
    };
    Some(Pool::import(found.first()?, &options))
}

/// What [`compare`] found wrong, a line each.
pub fn compare(pool: &Pool, manifest: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for dataset in datasets_with_files(manifest) {
        if let Err(e) = compare_tree(pool, dataset) {
            wrong.push(format!("{}: {e}", dataset["name"]));
        }
    }
    for dataset in datasets_with_volume(manifest) {
        if let Err(e) = compare_volume(pool, dataset) {
            wrong.push(format!("{}: {e}", dataset["name"]));
        }
    }
    wrong
}

fn objset(pool: &Pool, dataset: &Value) -> Result<Arc<cenote_dmu::ObjectSet>, String> {
    let name = dataset["name"].as_str().ok_or("no name")?;
    let dsl = pool.dsl();
    let found = dsl.find(name).map_err(|e| e.to_string())?.ok_or("no such dataset")?;
    dsl.open_objset(&found).map_err(|e| e.to_string())
}

fn compare_tree(pool: &Pool, dataset: &Value) -> Result<(), String> {
    let fs = FileSystem::open(objset(pool, dataset)?).map_err(|e| e.to_string())?;
    check_tree(dataset, &ZplTree::new(fs), &Checks::EXACT).map(drop)
}

fn compare_volume(pool: &Pool, dataset: &Value) -> Result<(), String> {
    let volume = Volume::open(objset(pool, dataset)?).map_err(|e| e.to_string())?;
    check_volume(dataset, volume.size(), |at: u64, buf: &mut [u8]| {
        volume.read(at, buf).map_err(|e| e.to_string())
    })
    .map(drop)
}

/// Those of [`compare`]'s lines that say that wrong data was delivered, rather than an error.
/// Datasets without checksums are left out: nothing can tell what is right there.
pub fn lies(wrong: &[String]) -> Vec<String> {
    let lines = wrong.iter().filter(|w| !w.contains("cs_off")).flat_map(|w| w.lines());
    lines.filter(|l| l.contains(" is ") && !l.contains("is not listed")).map(String::from).collect()
}

/// Reads all there is: every dataset with its properties, every object of every object set,
/// every file through the file system layer. Errors are fine; returns how many there were.
pub fn exercise(pool: &Pool) -> usize {
    let mut errors = account(pool) + read_objects(pool.mos());
    pool.get_all();
    errors += usize::from(pool.status().is_err()) + usize::from(pool.history().is_err());
    errors += usize::from(pool.error_names(&|_, _| None, &|_| None).is_err());
    let dsl = pool.dsl();
    let mut todo: Vec<_> = dsl.find(pool.name()).ok().flatten().into_iter().collect();
    while let Some(dataset) = todo.pop() {
        for more in [dsl.children(&dataset), dsl.snapshots(&dataset)] {
            more.map_or_else(|_| errors += 1, |found| todo.extend(found));
        }
        errors += usize::from(dsl.get_all(&dataset).is_err());
        errors += usize::from(dsl.bookmarks(&dataset).is_err());
        match dsl.open_objset(&dataset) {
            Ok(objset) => errors += read_objects(&objset) + read_files(&objset),
            Err(_) => errors += 1,
        }
    }
    errors
}

/// Accounts for every block, as `zdb -bcc` does.
fn account(pool: &Pool) -> usize {
    let Some(space) = pool.space() else { return 1 };
    for vdev in &space.vdevs {
        vdev.metaslabs.iter().for_each(|ms| drop(PoolSpace::load_free(pool.mos(), vdev, ms)));
    }
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::All, leaks: true, workers: 2 };
    let damaged = AtomicUsize::new(0);
    let event = |_: Event<'_>| {
        damaged.fetch_add(1, Ordering::Relaxed);
    };
    let ran = traverse::run(&subject, space, &options, &event, &|| false);
    usize::from(ran.is_err()) + damaged.into_inner()
}

fn read_objects(objset: &Arc<cenote_dmu::ObjectSet>) -> usize {
    let (mut errors, mut next) = (0, 0);
    while let Ok(Some(number)) = objset.next_object(next) {
        next = number + 1;
        let Ok(object) = objset.object(number) else {
            errors += 1;
            continue;
        };
        let walked = object.walk(&mut |_, _, _| Ok(()));
        errors += usize::from(walked.is_err()) + usize::from(object.spill().is_err());
        if object.dnode().kind.is_zap() {
            let entries = Zap::open(&object).and_then(|zap| zap.entries());
            errors += usize::from(entries.is_err());
        }
    }
    errors
}

fn read_files(objset: &Arc<cenote_dmu::ObjectSet>) -> usize {
    let Ok(fs) = FileSystem::open(objset.clone()) else { return 1 };
    let (mut errors, mut seen, mut dirs) = (0, HashSet::new(), vec![fs.root()]);
    let mut buf = vec![0; 128 << 10];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs.readdir(dir, 0, 1000) else {
            errors += 1;
            continue;
        };
        for entry in entries {
            if !seen.insert(entry.ino) {
                continue;
            }
            let Ok(attr) = fs.attr(entry.ino) else {
                errors += 1;
                continue;
            };
            let xattrs = fs.listxattr(entry.ino).unwrap_or_default();
            errors += xattrs.iter().filter(|name| fs.getxattr(entry.ino, name).is_err()).count();
            let read = match attr.mode & 0o170000 {
                0o040000 => {
                    dirs.push(entry.ino);
                    Ok(())
                }
                0o120000 => fs.readlink(entry.ino).map(drop),
                _ => fs.read(entry.ino, 0, &mut buf).and(fs.seek(entry.ino, 0, true).map(drop)),
            };
            errors += usize::from(read.is_err());
        }
    }
    errors
}

/// Opens a sample pool whose blocks are changed as `data` says, and reads all there is: a fuzz
/// target for every decoder above the format, with the pools as its seeds. The first byte chooses the
/// pool; then each 6 bytes are a change: which of 65,536 classes of blocks, where in them (16 bits
/// each), a value and how it goes in.
pub fn fuzz_pool(data: &[u8]) {
    const POOLS: [&str; 6] = ["bclone", "clones", "dedup", "hole", "ldnode", "removal"];
    let Some((first, changes)) = data.split_first() else { return };
    let name = POOLS[usize::from(*first) % POOLS.len()];
    let changes: Vec<[u8; 6]> = changes.chunks_exact(6).map(|c| c.try_into().unwrap()).collect();
    tamper::install(Some(Box::new(move |at, bytes| {
        let mut hash = DefaultHasher::new();
        at.hash(&mut hash);
        let class = (hash.finish() as u16).to_le_bytes();
        let mut changed = false;
        // The low bit of the last byte says whether half of the class counts, so that one change
        // can reach many blocks.
        for [c0, c1, o0, o1, value, how] in &changes {
            let hit = class[0] == *c0 && (how & 1 == 1 || class[1] == *c1);
            let place = usize::from(u16::from_le_bytes([*o0, *o1])) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(place).filter(|_| hit) {
                *byte = if how & 2 == 0 { *value } else { *byte ^ *value };
                changed = true;
            }
        }
        changed
    })));
    if let Some(Ok(pool)) = import(&cenote_testpools::pool(name).dir) {
        exercise(&pool);
    }
    tamper::install(None);
}

/// Ends the process if a variant runs for longer than `limit` or memory grows past 6 GiB: a
/// decoder that loops or allocates what the disk tells it to.
pub struct Watchdog {
    variant: Arc<Mutex<(String, Instant)>>,
}

impl Watchdog {
    /// Starts watching.
    pub fn start(limit: Duration) -> Watchdog {
        let variant = Arc::new(Mutex::new((String::new(), Instant::now())));
        let watched = Arc::downgrade(&variant);
        std::thread::spawn(move || {
            while let Some(watched) = watched.upgrade() {
                let (name, since) = watched.lock().clone();
                let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
                let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
                if since.elapsed() > limit || pages * 4096 > 6 << 30 {
                    eprintln!("{name}: {:?}, {} MiB resident", since.elapsed(), pages >> 8);
                    std::process::abort();
                }
                drop(watched);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watchdog { variant }
    }

    /// The variant `name` begins.
    pub fn variant(&self, name: String) {
        *self.variant.lock() = (name, Instant::now());
    }
}

/// All sets of `k` numbers below `n`.
pub fn combinations(n: usize, k: usize) -> Vec<Vec<usize>> {
    let all = 0u32..1 << n;
    let of_size = all.filter(|set| set.count_ones() as usize == k);
    of_size.map(|set| (0..n).filter(|i| set >> i & 1 == 1).collect()).collect()
}
