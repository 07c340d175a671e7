//! Walking the source and making the copies.
//!
//! The walk has a stack of its own, of steps. A directory is made first, open to its owner only; its entries are
//! put on the stack above a step that sets its attributes once they are copied. A file with several names is copied
//! once; its other names become hard links.
//!
//! Contents are copied where the source has data, and holes come by themselves. With `salvage` a range that cannot
//! be read is copied block by block, and blocks that are lost become holes and are counted; without, a file that
//! cannot be read in full is removed again.
//!
//! Invariants: a name from the pool that would lead out of its directory is an error. A directory of the pool is
//! entered once. Nothing that is there is replaced without `force`, and no directory ever is.

use super::attributes::restore;
use super::progress::{Amount, Progress};
use crate::context::Context;
use crate::list::join;
use crate::locate::{Name, Place};
use cenote_zpl::{Attr, File, FileSystem, Volume};
use rustix::fs::{AtFlags, CWD, FileType, Mode};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directory entries read at a time.
const BATCH: usize = 1024;
/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Bytes asked for ahead of reading.
const AHEAD: u64 = 8 << 20;

/// How much there is to copy. What cannot be read counts for nothing.
pub fn measure(place: &Place, recursive: bool, ctx: &Context) -> Amount {
    let (fs, root) = match place {
        Place::Volume(volume) => return Amount { files: 1, bytes: volume.size() },
        Place::File(fs, ino) => (fs, *ino),
    };
    let mut amount = Amount::default();
    let mut seen = HashSet::new();
    let mut todo = vec![root];
    while let Some(ino) = todo.pop() {
        let Ok(attr) = fs.attr(ino) else { continue };
        if ctx.cancelled() || ((attr.is_dir() || attr.nlink > 1) && !seen.insert(ino)) {
            continue;
        }
        amount.files = amount.files.saturating_add(1);
        if attr.is_file() {
            amount.bytes = amount.bytes.saturating_add(attr.size);
        }
        let mut cookie = 0;
        while attr.is_dir() && recursive {
            let Ok(batch) = fs.readdir(ino, cookie, BATCH) else { break };
            let Some(last) = batch.last() else { break };
            cookie = last.cookie;
            todo.extend(batch.iter().map(|e| e.ino));
        }
    }
    amount
}

/// What is being copied, as blocks of bytes with holes.
enum Source {
    File(File),
    Volume(std::sync::Arc<Volume>),
}

impl Source {
    fn size(&self) -> u64 {
        match self {
            Source::File(f) => f.size(),
            Source::Volume(v) => v.size(),
        }
    }

    fn block_size(&self) -> u64 {
        match self {
            Source::File(f) => f.block_size(),
            Source::Volume(v) => v.block_size(),
        }
        .max(512)
    }

    /// The next byte at or after `offset` that is in no hole.
    fn data(&self, offset: u64) -> Result<Option<u64>, cenote_zpl::Error> {
        match self {
            Source::File(f) => f.seek(offset, false),
            Source::Volume(v) => v.next_data(offset),
        }
    }

    /// Where the data at `offset` ends; the end of the volume if that is not known.
    fn hole(&self, offset: u64) -> Result<u64, cenote_zpl::Error> {
        match self {
            Source::File(f) => Ok(f.seek(offset, true)?.unwrap_or(f.size())),
            // A chunk at a time: the next look for data skips what follows.
            Source::Volume(v) => Ok(offset.saturating_add(CHUNK as u64).min(v.size())),
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, cenote_zpl::Error> {
        match self {
            Source::File(f) => {
                f.prefetch(offset, AHEAD);
                f.read(offset, buffer)
            }
            Source::Volume(v) => v.read(offset, buffer),
        }
    }
}

/// A step of the walk.
enum Step {
    /// Copy this object to this path.
    Copy { ino: u64, path: Vec<u8>, target: PathBuf },
    /// All that is in this directory is copied: set its attributes.
    Finish { ino: u64, attr: Box<Attr>, target: PathBuf },
}

/// Copies one source.
pub struct Copier<'a> {
    recursive: bool,
    force: bool,
    salvage: bool,
    name: &'a Name,
    progress: &'a mut Progress,
    ctx: &'a mut Context,
    /// Where the first name of a file with several went.
    links: HashMap<u64, PathBuf>,
    /// Directories entered.
    entered: HashSet<u64>,
    /// Path of the file being copied.
    current: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Copier<'a> {
    /// `name` is what the user called the source.
    pub fn new(
        recursive: bool,
        force: bool,
        salvage: bool,
        name: &'a Name,
        progress: &'a mut Progress,
        ctx: &'a mut Context,
    ) -> Copier<'a> {
        Copier {
            recursive,
            force,
            salvage,
            name,
            progress,
            ctx,
            links: HashMap::new(),
            entered: HashSet::new(),
            current: name.path.clone(),
            buffer: vec![0; CHUNK],
        }
    }

    /// Copies the source to `target`.
    pub fn copy(&mut self, place: &Place, target: &Path) {
        match place {
            Place::Volume(volume) => {
                let made = self
                    .make_file(target, 0o600)
                    .and_then(|out| self.contents(&Source::Volume(volume.clone()), &out));
                match made {
                    Ok(()) => self.progress.summary.files += 1,
                    Err(why) => self.error(&self.name.path.clone(), &why),
                }
            }
            Place::File(fs, ino) => self.walk(fs, *ino, target),
        }
    }

    fn error(&mut self, path: &[u8], why: &str) {
        let source = format!("{}:{}", self.name.dataset, String::from_utf8_lossy(path));
        self.progress.error(format_args!("'{source}': {why}"), self.ctx);
    }

    fn walk(&mut self, fs: &FileSystem, ino: u64, target: &Path) {
        let mut todo =
            vec![Step::Copy { ino, path: self.name.path.clone(), target: target.to_path_buf() }];
        while let Some(step) = todo.pop() {
            if self.ctx.cancelled() {
                self.progress.error("interrupted", self.ctx);
                return;
            }
            match step {
                Step::Finish { ino, attr, target } => self.keep(fs, ino, &attr, &target),
                Step::Copy { ino, path, target } => match fs.attr(ino) {
                    Err(e) => self.error(&path, &format!("cannot read: {e}")),
                    Ok(attr) if attr.is_dir() => {
                        if let Err(why) = self.directory(fs, ino, attr, &path, &target, &mut todo) {
                            self.error(&path, &why);
                        }
                    }
                    Ok(attr) => {
                        self.current.clone_from(&path);
                        if let Err(why) = self.file(fs, ino, &attr, &target) {
                            self.error(&path, &why);
                        }
                    }
                },
            }
        }
    }

    /// Makes a directory and puts what is in it on the list.
    fn directory(
        &mut self,
        fs: &FileSystem,
        ino: u64,
        attr: Attr,
        path: &[u8],
        target: &Path,
        todo: &mut Vec<Step>,
    ) -> Result<(), String> {
        if !self.recursive {
            return Err("is a directory (use -r)".into());
        }
        if !self.entered.insert(ino) {
            return Err("damaged pool: the directory is in several places".into());
        }
        match fs::DirBuilder::new().mode(0o700).create(target) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // A link would lead out of the destination.
                let real = fs::symlink_metadata(target).is_ok_and(|m| m.is_dir());
                let given = path == self.name.path && target.is_dir();
                if !real && !given {
                    return Err(format!("'{}' exists and is no directory", target.display()));
                }
            }
            Err(e) => return Err(cannot_make(target, &e)),
        }
        self.progress.summary.directories += 1;
        todo.push(Step::Finish { ino, attr: Box::new(attr), target: target.to_path_buf() });
        let mut cookie = 0;
        loop {
            let batch = fs.readdir(ino, cookie, BATCH).map_err(|e| format!("cannot read: {e}"))?;
            let Some(last) = batch.last() else { return Ok(()) };
            cookie = last.cookie;
            for entry in batch {
                let below = join(path, &entry.name);
                if !is_plain(&entry.name) {
                    self.error(&below, "not a file name");
                    continue;
                }
                let target = target.join(OsStr::from_bytes(&entry.name));
                todo.push(Step::Copy { ino: entry.ino, path: below, target });
            }
        }
    }

    /// Copies anything but a directory.
    fn file(
        &mut self,
        fs: &FileSystem,
        ino: u64,
        attr: &Attr,
        target: &Path,
    ) -> Result<(), String> {
        if attr.nlink > 1
            && let Some(first) = self.links.get(&ino).cloned()
        {
            self.clear(target)?;
            fs::hard_link(&first, target).map_err(|e| cannot_make(target, &e))?;
            self.progress.summary.hard_links += 1;
            return Ok(());
        }
        if attr.is_file() {
            self.regular(fs, ino, target)?;
        } else if attr.is_symlink() {
            let link = fs.readlink(ino).map_err(|e| format!("cannot read link: {e}"))?;
            self.clear(target)?;
            std::os::unix::fs::symlink(OsStr::from_bytes(&link), target)
                .map_err(|e| cannot_make(target, &e))?;
            self.progress.summary.symlinks += 1;
        } else {
            self.special(attr, target)?;
        }
        if attr.nlink > 1 {
            self.links.insert(ino, target.to_path_buf());
        }
        self.keep(fs, ino, attr, target);
        Ok(())
    }

    /// Sets the attributes of a copy.
    fn keep(&mut self, fs: &FileSystem, ino: u64, attr: &Attr, target: &Path) {
        let lost = restore(fs, ino, attr, target);
        self.progress.lost(target.display(), &lost, self.ctx);
    }

    fn regular(&mut self, fs: &FileSystem, ino: u64, target: &Path) -> Result<(), String> {
        let file = fs.open_file(ino).map_err(|e| format!("cannot read: {e}"))?;
        let out = self.make_file(target, 0o600)?;
        if let Err(why) = self.contents(&Source::File(file), &out) {
            // Half a file looks like a whole one.
            let _ = fs::remove_file(target);
            return Err(why);
        }
        self.progress.summary.files += 1;
        Ok(())
    }

    /// A socket, named pipe or device.
    fn special(&mut self, attr: &Attr, target: &Path) -> Result<(), String> {
        let kind = FileType::from_raw_mode(attr.mode);
        match kind {
            FileType::Fifo | FileType::Socket => {}
            FileType::CharacterDevice | FileType::BlockDevice => {
                if !rustix::process::geteuid().is_root() {
                    return Err("only root can make devices".into());
                }
            }
            _ => return Err(format!("unknown type of file (mode {:o})", attr.mode)),
        }
        self.clear(target)?;
        let device = rustix::fs::makedev(attr.rdev.0, attr.rdev.1);
        rustix::fs::mknodat(CWD, target, kind, Mode::RUSR | Mode::WUSR, device)
            .map_err(|e| cannot_make(target, &e))?;
        self.progress.summary.special += 1;
        Ok(())
    }

    /// Makes room for a copy: with `-f`, by removing what is there.
    fn clear(&self, target: &Path) -> Result<(), String> {
        match fs::symlink_metadata(target) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(cannot_make(target, &e)),
            Ok(m) if m.is_dir() => Err(format!("'{}' is a directory", target.display())),
            Ok(_) if !self.force => {
                Err(format!("'{}' exists (use -f to replace it)", target.display()))
            }
            Ok(_) => rustix::fs::unlinkat(CWD, target, AtFlags::empty())
                .map_err(|e| format!("cannot replace '{}': {e}", target.display())),
        }
    }

    fn make_file(&self, target: &Path, mode: u32) -> Result<fs::File, String> {
        self.clear(target)?;
        let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(target);
        made.map_err(|e| cannot_make(target, &e))
    }

    /// Copies what is not hole; the holes come by themselves.
    fn contents(&mut self, source: &Source, out: &fs::File) -> Result<(), String> {
        let size = source.size();
        let mut offset = 0;
        while offset < size {
            let at = offset;
            let unreadable = |e: cenote_zpl::Error| format!("cannot read at byte {at}: {e}");
            let start = match source.data(offset) {
                Ok(start) => start.unwrap_or(size).min(size),
                // Where the map of blocks is damaged, each block is tried by itself.
                Err(_) if self.salvage => offset,
                Err(e) => return Err(unreadable(e)),
            };
            self.progress.advance(start.saturating_sub(offset), 0, self.ctx);
            offset = start;
            if offset < size {
                let end = match source.hole(offset) {
                    Ok(end) => end.clamp(offset.saturating_add(1), size),
                    Err(_) if self.salvage => offset.saturating_add(source.block_size()).min(size),
                    Err(e) => return Err(unreadable(e)),
                };
                self.extent(source, offset, end, out)?;
                offset = end;
            }
        }
        out.set_len(size).map_err(|e| format!("cannot write: {e}"))
    }

    /// Copies the bytes from `offset` to `end`.
    fn extent(
        &mut self,
        source: &Source,
        mut offset: u64,
        end: u64,
        out: &fs::File,
    ) -> Result<(), String> {
        while offset < end {
            if self.ctx.cancelled() {
                return Err("interrupted".into());
            }
            let want = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
            let (n, written) = match self.read(source, offset, want) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    let data = self.buffer.get(..n).unwrap_or_default();
                    out.write_all_at(data, offset).map_err(|e| format!("cannot write: {e}"))?;
                    (n as u64, n as u64)
                }
                Err(e) if !self.salvage => {
                    return Err(format!("cannot read at byte {offset}: {e}"));
                }
                Err(_) => self.salvage_blocks(source, offset, want as u64, out)?,
            };
            self.progress.advance(n, written, self.ctx);
            offset = offset.saturating_add(n);
        }
        Ok(())
    }

    fn read(
        &mut self,
        source: &Source,
        offset: u64,
        want: usize,
    ) -> Result<usize, cenote_zpl::Error> {
        match self.buffer.get_mut(..want) {
            Some(buffer) => source.read(offset, buffer),
            None => Ok(0),
        }
    }

    /// Copies a range of which not all can be read, block by block; leaves holes where blocks are
    /// lost. Returns bytes passed and bytes written.
    fn salvage_blocks(
        &mut self,
        source: &Source,
        offset: u64,
        length: u64,
        out: &fs::File,
    ) -> Result<(u64, u64), String> {
        let (mut done, mut written, mut lost) = (0, 0, 0u64);
        let block = source.block_size();
        while done < length {
            let at = offset.saturating_add(done);
            let to_edge = block - at % block;
            let want = to_edge.min(length - done).min(CHUNK as u64);
            match self.read(source, at, want as usize) {
                Ok(0) => break,
                Ok(n) => {
                    let data = self.buffer.get(..n).unwrap_or_default();
                    out.write_all_at(data, at).map_err(|e| format!("cannot write: {e}"))?;
                    (done, written) = (done + n as u64, written + n as u64);
                }
                Err(_) => (done, lost) = (done + want, lost + want),
            }
        }
        if lost > 0 {
            self.progress.summary.bytes_lost =
                self.progress.summary.bytes_lost.saturating_add(lost);
            let path = self.current.clone();
            self.error(&path, &format!("{lost} bytes from byte {offset} on are lost"));
        }
        Ok((done.max(1), written))
    }
}

/// Whether a name is that of a file in a directory, and not a way out of it.
fn is_plain(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0))
}

fn cannot_make(target: &Path, e: &dyn std::fmt::Display) -> String {
    format!("cannot make '{}': {e}", target.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        assert!(is_plain(b"a b") && is_plain(b"...") && is_plain(b"\xff"));
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
