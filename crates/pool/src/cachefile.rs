//! Cache files: which pools are imported, so that they can be found again without a search of all devices
//! (`spa_config_load`, `spa_write_cachefile`, `zpool_find_import_cached`).
//!
//! A cache file is a packed nvlist with an entry for each pool: its name, and its config as in the MOS. A
//! pool is opened from it by the paths of its leaves; guids in the labels say whether these are still the
//! devices that are meant. Entries that cenote writes carry a mark of their own
//! (`MARK`), by which a file that OpenZFS keeps is told from ours: programs that read cache files ignore it.
//!
//! Invariant: a file is replaced as a whole, by renaming, or not at all.

use crate::config;
use crate::discover::{self, Candidate, Found};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::object::{is_by_network, is_object};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The key in a pool's config that says that cenote wrote the entry.
const MARK: &str = "com.cenote:cachefile";
/// Bytes of a file that are read at most: a hundred times what a thousand devices need.
const MAX_BYTES: u64 = 64 << 20;

/// Why a cache file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheFileError {
    /// It cannot be opened.
    #[error("failed to open cache file: {}", why(.0))]
    Open(io::Error),
    /// It cannot be read.
    #[error("failed to read cache file contents: {}", why(.0))]
    Read(io::Error),
    /// It is no list of pools.
    #[error("invalid or corrupt cache file contents: invalid or missing cache file")]
    Corrupt,
}

fn why(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// The contents of a cache file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheFile {
    /// The whole list: a config for each pool, by name.
    pub list: NvList,
}

/// A pool in a cache file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Name of the pool.
    pub name: &'a str,
    /// Guid of the pool.
    pub guid: u64,
    /// Whether cenote wrote the entry.
    pub ours: bool,
    /// What it says of the pool.
    pub config: &'a NvList,
}

impl Entry<'_> {
    /// Whether a device of the pool is in an object store that is reached by network.
    pub fn is_by_network(&self) -> bool {
        places(self, |_| None).iter().any(|place| is_by_network(place))
    }
}

impl CacheFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It is missing, unreadable or no cache file.
    pub fn read(path: &Path) -> Result<CacheFile, CacheFileError> {
        let file = File::open(path).map_err(CacheFileError::Open)?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(CacheFileError::Read)?;
        let list = NvList::decode(&bytes).map_err(|_| CacheFileError::Corrupt)?;
        let whole = list.pairs.iter().all(|(_, value)| match value {
            NvValue::NvList(pool) => pool.u64("pool_guid").is_some() && pool.str("name").is_some(),
            _ => false,
        });
        if whole { Ok(CacheFile { list }) } else { Err(CacheFileError::Corrupt) }
    }

    /// The pools in it.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.list.pairs.iter().filter_map(|(_, value)| {
            let NvValue::NvList(config) = value else { return None };
            Some(Entry {
                name: config.str("name")?,
                guid: config.u64("pool_guid")?,
                ours: config.contains(MARK),
                config,
            })
        })
    }

    /// Forgets the pools that `f` is false for.
    pub fn retain(&mut self, f: impl Fn(&Entry<'_>) -> bool) {
        let kept: Vec<u64> = self.entries().filter(|e| f(e)).map(|e| e.guid).collect();
        self.list.pairs.retain(|(_, value)| match value {
            NvValue::NvList(pool) => pool.u64("pool_guid").is_some_and(|g| kept.contains(&g)),
            _ => false,
        });
    }

    /// Adds a pool, in place of one of the same name or guid.
    pub fn add(&mut self, name: &str, pool_config: &NvList) {
        let guid = config::number(pool_config, "pool_guid");
        self.retain(|entry| entry.name != name && entry.guid != guid);
        let mut marked = pool_config.clone();
        marked.set(MARK, NvValue::Uint64(1));
        self.list.set(name, NvValue::NvList(marked));
    }

    /// Replaces a file; without pools it is removed. Half of it is never visible.
    ///
    /// # Errors
    /// Errors of writing beside the file and of renaming.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if self.list.pairs.is_empty() {
            return missing_is_fine(fs::remove_file(path));
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".tmp");
        let beside = PathBuf::from(beside);
        missing_is_fine(fs::remove_file(&beside))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside)?;
        let written = file.write_all(&self.list.encode()).and_then(|()| file.sync_all());
        let done = written.and_then(|()| fs::rename(&beside, path));
        if done.is_err() {
            let _ = fs::remove_file(&beside);
        }
        done
    }

    /// The pools as they are on the devices that the file names; pools of which no device is there as the file
    /// has them. Of what could not be looked at, only what does not answer is noted.
    pub fn candidates(&self) -> Found {
        self.search(
            |leaf| Some(leaf.to_path_buf()),
            |entry, found| found.guid == entry.guid || self.got_another_guid(entry, found),
        )
    }

    /// Whether a pool is the one of the entry, whose guid was changed right before a crash (`spa_change_guid`):
    /// it has the same devices, and no entry is about it.
    fn got_another_guid(&self, entry: &Entry<'_>, found: &Candidate) -> bool {
        let leaves = |config: &NvList| {
            let mut guids = BTreeSet::new();
            if let Some(tree) = config.list("vdev_tree") {
                config::for_each_leaf(tree, &mut |leaf| {
                    guids.insert(leaf.u64("guid"));
                });
            }
            guids
        };
        found.name == entry.name
            && leaves(&found.config) == leaves(entry.config)
            && !self.entries().any(|other| other.guid == found.guid)
    }

    /// The pools as they are on the devices in the directories that the file names, should devices have
    /// got other names; otherwise as [`CacheFile::candidates`].
    pub fn candidates_nearby(&self) -> Found {
        self.search(
            |leaf| leaf.parent().map(Path::to_path_buf),
            |entry, found| found.guid == entry.guid,
        )
    }

    fn search(
        &self,
        place: impl Fn(&Path) -> Option<PathBuf>,
        is_meant: impl Fn(&Entry<'_>, &Candidate) -> bool,
    ) -> Found {
        let mut found = Found::default();
        let all: Vec<(Entry<'_>, Vec<PathBuf>)> = self
            .entries()
            .map(|entry| (entry, places(&entry, &place)))
            .filter(|(_, places)| !places.is_empty())
            .collect();
        for some in all.chunks(SIDE_BY_SIDE) {
            for ((entry, places), seen) in some.iter().zip(side_by_side(some)) {
                // A place that was named is not there because of something, which the user should know.
                let of_store = seen.errors.into_iter().filter(|(path, _)| is_object(path));
                found.errors.extend(of_store.filter(|(path, _)| places.contains(path)));
                found.silent.extend(seen.silent);
                let seen = seen.candidates.into_iter();
                let mut meant = seen.filter(|candidate| is_meant(entry, candidate)).peekable();
                if meant.peek().is_none() {
                    let pool = Candidate::without_devices(entry.name, entry.guid, entry.config);
                    found.candidates.push(pool);
                }
                found.candidates.extend(meant);
            }
        }
        found.silent.sort();
        found.silent.dedup();
        found
    }
}

/// So many pools are searched for at once: one whose store is away keeps few others waiting.
const SIDE_BY_SIDE: usize = 16;

/// What a search of each of these finds.
fn side_by_side(all: &[(Entry<'_>, Vec<PathBuf>)]) -> Vec<Found> {
    std::thread::scope(|scope| {
        let search = |places: &'_ Vec<PathBuf>| {
            let places = places.clone();
            let builder = std::thread::Builder::new().name("search".into());
            builder.spawn_scoped(scope, move || discover::search(&places))
        };
        let begun: Vec<_> = all.iter().map(|(_, places)| search(places)).collect();
        let answers = begun.into_iter().zip(all);
        let answer = answers.map(|(thread, (_, places))| match thread.map(|t| t.join()) {
            Ok(Ok(found)) => found,
            // There is no thread to be had, or it failed.
            _ => discover::search(places),
        });
        answer.collect()
    })
}

/// Where the devices of a pool may be.
fn places(entry: &Entry<'_>, place: impl Fn(&Path) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut places = BTreeSet::new();
    let mut add = |leaf: &NvList| {
        places.extend(config::path(leaf).and_then(|path| match is_object(&path) {
            // A name of a place has nothing nearby.
            true => Some(path),
            false => place(&path).filter(|_| path.is_absolute()),
        }));
    };
    if let Some(tree) = entry.config.list("vdev_tree") {
        config::for_each_leaf(tree, &mut add);
        for name in ["spares", "l2cache"] {
            tree.lists(name).unwrap_or_default().iter().for_each(&mut add);
        }
    }
    places.into_iter().collect()
}

fn missing_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, guid: u64) -> NvList {
        let mut config = NvList::default();
        config.set("name", NvValue::String(name.into()));
        config.set("pool_guid", NvValue::Uint64(guid));
        config
    }

    fn names(file: &CacheFile) -> Vec<(String, bool)> {
        file.entries().map(|e| (e.name.to_string(), e.ours)).collect()
    }

    #[test]
    fn files_are_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zpool.cache");
        let mut file = CacheFile::default();
        file.add("a", &pool("a", 1));
        file.add("b", &pool("b", 2));
        file.write(&path).unwrap();
        let mut again = CacheFile::read(&path).unwrap();
        assert_eq!(again, file);
        again.add("a", &pool("a", 3));
        assert_eq!(again.entries().map(|e| e.guid).collect::<Vec<_>>(), [2, 3]);
        again.add("c", &pool("c", 2));
        assert_eq!(names(&again), [("a".into(), true), ("c".into(), true)]);
        again.retain(|_| false);
        again.write(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        again.write(&path).unwrap();
        assert!(matches!(CacheFile::read(&path), Err(CacheFileError::Open(_))));
    }

    #[test]
    fn what_others_wrote_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zpool.cache");
        let mut list = NvList::default();
        list.set("theirs", NvValue::NvList(pool("theirs", 7)));
        fs::write(&path, list.encode()).unwrap();
        let mut file = CacheFile::read(&path).unwrap();
        file.add("ours", &pool("ours", 8));
        assert_eq!(names(&file), [("theirs".into(), false), ("ours".into(), true)]);
        list.set("stray", NvValue::Uint64(1));
        for bytes in [&b"no list"[..], &[], &list.encode()] {
            fs::write(&path, bytes).unwrap();
            assert!(matches!(CacheFile::read(&path), Err(CacheFileError::Corrupt)));
        }
    }
}
