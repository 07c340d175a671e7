//! Changes files, waits until the change is on disk, and remembers what must be there then.

use cenote_testpools::Random;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Largest file that is made, in bytes.
const LARGEST: u64 = 400_000;
/// Most files at a time.
const MOST: usize = 60;

/// What is in files, by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A writer in a directory of its own.
pub struct Recorder {
    dir: PathBuf,
    random: Random,
    next: u64,
    /// What is on disk, by name.
    files: Files,
    /// The files that are being changed: they may have changed or not.
    open: Vec<String>,
    /// Changes that came to disk.
    pub changes: u64,
}

impl Recorder {
    pub fn new(dir: PathBuf, seed: u64) -> Recorder {
        fs::create_dir_all(&dir).unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
        let (files, open) = (BTreeMap::new(), Vec::new());
        Recorder { dir, random: Random(seed | 1), next: 0, files, open, changes: 0 }
    }

    /// Makes one change; when this returns `Ok` it is on disk.
    pub fn step(&mut self) -> io::Result<()> {
        let kind = if self.files.is_empty() { 0 } else { self.random.below(10) };
        match kind {
            _ if self.files.len() >= MOST => self.remove()?,
            0..=3 => self.create()?,
            4 => self.change(|file, content, random| {
                let more = bytes(random, LARGEST / 4);
                content.extend_from_slice(&more);
                (&mut &*file).write_all(&more)
            })?,
            5 | 6 => self.change(|file, content, random| {
                let at = random.below(content.len() as u64 + 1);
                let new = bytes(random, LARGEST / 8);
                let end = at as usize + new.len();
                content.resize(end.max(content.len()), 0);
                content[at as usize..end].copy_from_slice(&new);
                file.write_all_at(&new, at)
            })?,
            7 => self.change(|file, content, random| {
                let len = random.below(2 * content.len() as u64 + 1).min(LARGEST);
                content.resize(len as usize, 0);
                file.set_len(len)
            })?,
            8 => self.rename()?,
            _ => self.remove()?,
        }
        self.open.clear();
        self.changes += 1;
        Ok(())
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("f{}", self.next)
    }

    fn any(&mut self) -> String {
        let at = self.random.below(self.files.len() as u64) as usize;
        self.files.keys().nth(at).unwrap().clone()
    }

    fn create(&mut self) -> io::Result<()> {
        let (name, content) = (self.name(), bytes(&mut self.random, LARGEST));
        self.open = vec![name.clone()];
        let mut file = File::create(self.dir.join(&name))?;
        file.write_all(&content)?;
        file.sync_all()?;
        self.files.insert(name, content);
        Ok(())
    }

    /// Changes a file's contents by `how`, which does the same to a copy in memory. A writer that
    /// appends and one that writes in place open the file differently.
    fn change(
        &mut self,
        how: impl FnOnce(&File, &mut Vec<u8>, &mut Random) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = self.any();
        let mut content = self.files[&name].clone();
        self.open = vec![name.clone()];
        let file = OpenOptions::new().write(true).open(self.dir.join(&name))?;
        io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
        how(&file, &mut content, &mut self.random)?;
        if self.random.below(2) == 0 {
            file.sync_data()?
        } else {
            file.sync_all()?
        }
        self.files.insert(name, content);
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let from = self.any();
        let to = if self.random.below(2) == 0 { self.name() } else { self.any() };
        self.open = vec![from.clone(), to.clone()];
        fs::rename(self.dir.join(&from), self.dir.join(&to))?;
        File::open(&self.dir)?.sync_all()?;
        let content = self.files.remove(&from).unwrap();
        self.files.insert(to, content);
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        let name = self.any();
        self.open = vec![name.clone()];
        fs::remove_file(self.dir.join(&name))?;
        File::open(&self.dir)?.sync_all()?;
        self.files.remove(&name);
        Ok(())
    }

    /// What is on disk now, while nothing is being changed.
    pub fn files(&self) -> Files {
        assert!(self.open.is_empty());
        self.files.clone()
    }

    /// Compares what is there with what must be, and goes on from there.
    #[track_caller]
    pub fn check(&mut self) {
        for (name, content) in &self.files {
            if self.open.contains(name) {
                continue;
            }
            let found = fs::read(self.dir.join(name));
            let found = found.unwrap_or_else(|e| panic!("{name} was on disk: {e}"));
            if let Some(why) = difference(&found, content) {
                panic!("{name} in {} is not as it was on disk: {why}", self.dir.display());
            }
        }
        for entry in fs::read_dir(&self.dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = self.files.contains_key(&name) || self.open.contains(&name);
            assert!(known, "{name} in {} is back", self.dir.display());
        }
        for name in std::mem::take(&mut self.open) {
            match read_if_there(&self.dir.join(&name)) {
                Some(content) => self.files.insert(name, content),
                None => self.files.remove(&name),
            };
        }
    }
}

/// Checks that a directory has these files and no others.
#[track_caller]
pub fn check_files(dir: &Path, wanted: &Files) {
    for (name, content) in wanted {
        let found = fs::read(dir.join(name)).unwrap();
        let difference = difference(&found, content);
        assert!(difference.is_none(), "{name} in {}: {difference:?}", dir.display());
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), wanted.len(), "{}", dir.display());
}

fn read_if_there(path: &Path) -> Option<Vec<u8>> {
    match fs::read(path) {
        Ok(content) => Some(content),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => panic!("{}: {e}", path.display()),
    }
}

/// Where two contents differ.
fn difference(found: &[u8], wanted: &[u8]) -> Option<String> {
    if found == wanted {
        return None;
    }
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    let at = at.map_or("where one ends".into(), |at| format!("at byte {at}"));
    Some(format!("{} bytes instead of {}, different {at}", found.len(), wanted.len()))
}

/// Up to `most` bytes; half of the time they compress well.
fn bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let len = random.below(most) as usize;
    let mask = if random.below(2) == 0 { 0x0101_0101_0101_0101 } else { u64::MAX };
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&(random.next() & mask).to_le_bytes());
    }
    out.truncate(len);
    out
}
