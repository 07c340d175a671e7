//! The sample pools of the test suite: unpacks them once, hands out paths and private copies. And
//! the judges of pools that tests wrote: OpenZFS's own `zdb`, and its engine.
//!
//! `tests/pools` holds pools made by OpenZFS, compressed: `NAME.0.img.zst` for a pool of one file,
//! `NAME.tar.zst` for a pool of several. They are unpacked sparsely into `target/test-pools/NAME/`
//! under a file lock, so that test processes that run side by side share one copy. A test that
//! damages a pool takes a private [`copy`].
//!
//! Any failure here is a failure of the test that asked, so this crate panics with a clear message.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

mod bigendian;
mod deadline;
mod dumps;
mod judge;
mod old;
mod random;
mod space_said;
mod streams;
mod writer;

pub use bigendian::{Turned, big_endian_stream, to_big_endian};
pub use deadline::{output, wait};
pub use dumps::dumps;
pub use judge::{
    judge, try_judge, try_judge_newer, try_judge_space, try_zdb, zdb, zdb_command, zdb_output,
};
pub use old::{OLD, old};
pub use random::Random;
pub use space_said::{LogSaid, MetaslabSaid, SpaceSaid};
pub use streams::{encoded, raw_stream, records, streams};
pub use writer::{openzfs, try_openzfs, try_openzfs_as};

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// An unpacked pool. Its files are read-only: use [`copy`] to damage one.
#[derive(Debug, Clone)]
pub struct TestPool {
    /// Name of the pool.
    pub name: String,
    /// Directory that holds this pool's device files and nothing else.
    pub dir: PathBuf,
    /// The device files, by number: `NAME.0.img`, `NAME.1.img`, …
    pub files: Vec<PathBuf>,
}

impl TestPool {
    /// The manifest: everything that is in the pool, as OpenZFS showed it.
    pub fn manifest(&self) -> serde_json::Value {
        let path = packed_dir().join(format!("{}.manifest.json", self.name));
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// What OpenZFS's `zdb` printed about the pool; sections start with `##### zdb …`.
    pub fn zdb_text(&self) -> String {
        let path = packed_dir().join(format!("{}.zdb.txt", self.name));
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The lines of the section of [`TestPool::zdb_text`] whose command line contains `args`
    /// (for example `" -m "`).
    pub fn zdb_section(&self, args: &str) -> String {
        let text = self.zdb_text();
        let mut lines = text.lines().skip_while(|l| !(l.starts_with("##### ") && l.contains(args)));
        lines.next().unwrap_or_else(|| panic!("{}: no zdb section {args:?}", self.name));
        let body: Vec<&str> = lines.take_while(|l| !l.starts_with("##### ")).collect();
        body.join("\n")
    }
}

/// A private copy of a pool, deleted when dropped.
#[derive(Debug)]
pub struct TempPool {
    /// The copy; its files may be written to.
    pub pool: TestPool,
    _dir: tempfile::TempDir,
}

/// Names of all sample pools.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(packed_dir())
        .unwrap()
        .filter_map(|e| {
            e.unwrap().file_name().to_str()?.strip_suffix(".manifest.json").map(String::from)
        })
        .collect();
    names.sort();
    names
}

/// The pool `name`, unpacked.
pub fn pool(name: &str) -> TestPool {
    let base = target_dir().join("test-pools");
    fs::create_dir_all(&base).unwrap();
    let lock = File::create(base.join(format!("{name}.lock"))).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let dir = base.join(name);
    if !dir.exists() {
        let partial = base.join(format!("{name}.partial"));
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir_all(&partial).unwrap();
        unpack(name, &partial).unwrap_or_else(|e| panic!("unpacking {name}: {e}"));
        fs::rename(&partial, &dir).unwrap();
    }
    let files =
        (0..).map(|i| dir.join(format!("{name}.{i}.img"))).take_while(|p| p.exists()).collect();
    TestPool { name: name.into(), dir, files }
}

/// A private, writable copy of the pool `name`.
pub fn copy(name: &str) -> TempPool {
    let from = pool(name);
    let dir = tempfile::Builder::new()
        .prefix(&format!("pool-{name}-"))
        .tempdir_in(target_dir().join("test-pools"))
        .unwrap();
    let mut files = Vec::new();
    for src in &from.files {
        let dst = dir.path().join(src.file_name().unwrap());
        copy_sparse(&mut File::open(src).unwrap(), &dst, fs::metadata(src).unwrap().len()).unwrap();
        files.push(dst);
    }
    TempPool { pool: TestPool { name: name.into(), dir: dir.path().into(), files }, _dir: dir }
}

fn workspace_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn packed_dir() -> PathBuf {
    workspace_dir().join("tests/pools")
}

fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_dir().join("target"), PathBuf::from)
}

fn unpack(name: &str, into: &Path) -> io::Result<()> {
    let single = packed_dir().join(format!("{name}.0.img.zst"));
    if single.exists() {
        return unpack_image(&single, &into.join(format!("{name}.0.img")));
    }
    let mut archive = tar::Archive::new(decoder(&packed_dir().join(format!("{name}.tar.zst")))?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let file = entry.path()?.file_name().unwrap().to_owned();
        let size = entry.size();
        copy_sparse(&mut entry, &into.join(file), size)?;
    }
    Ok(())
}

/// Unpacks one compressed device file, leaving holes for zeros.
pub fn unpack_image(from: &Path, to: &Path) -> io::Result<()> {
    copy_sparse(&mut decoder(from)?, to, 0)
}

fn decoder(path: &Path) -> io::Result<impl Read + use<>> {
    let mut d = zstd::Decoder::new(File::open(path)?)?;
    d.window_log_max(31)?;
    Ok(d)
}

/// Copies `from`, leaving holes for 64 KiB blocks of zeros; the file ends up at least `size` long.
fn copy_sparse(from: &mut impl Read, to: &Path, size: u64) -> io::Result<()> {
    let mut out = File::create(to)?;
    let mut block = vec![0u8; 64 << 10];
    let mut length = 0u64;
    loop {
        let n = read_full(from, &mut block)?;
        if n == 0 {
            break;
        }
        if block[..n].iter().any(|b| *b != 0) {
            out.seek(SeekFrom::Start(length))?;
            out.write_all(&block[..n])?;
        }
        length += n as u64;
    }
    out.set_len(length.max(size))
}

fn read_full(from: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match from.read(&mut buf[n..])? {
            0 => break,
            k => n += k,
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_pool_unpacks_to_its_checksummed_size() {
        for name in ["degr", "bclone"] {
            let pool = super::pool(name);
            let files = pool.manifest()["vdev_files"].as_array().unwrap().clone();
            assert_eq!(files.len(), pool.files.len());
            for (f, path) in files.iter().zip(&pool.files) {
                assert_eq!(f["size"].as_u64().unwrap(), std::fs::metadata(path).unwrap().len());
            }
        }
    }
}
