//! Images with holes: what a program for rescue could not read from the disk is not in the image, and the map that it kept
//! beside the image says where ([`crate::mapfile`]).
//!
//! A map of `disk.img` is `disk.img.map`, `disk.img.mapfile` or `disk.img.log`, if its first line says that it is a map of
//! ddrescue: other files of such names mean nothing. So is `disk.map` and so on, if the command line in it names `disk.img`. A map
//! whose command line says that `disk.img` was read, or that another image was written which is there and has it by its own
//! name, is of that one. The output may have been given the image's name since, and image and map may have been copied together: where the
//! command line allows that, the map counts.
//! It is looked for beside the file that was opened, by the path that the kernel has it by, and then beside the name that
//! was given, which may be a link. A loop device has the map of the file behind it.
//! A read that touches an area which was not read fails, as the disk's own did, so that redundancy and not a page of
//! zeros answers for it. An image with such areas is not opened for writing.
//!
//! Invariant: no byte of an area that the map does not call finished is handed out. A map that cannot be understood
//! makes the image one that cannot be opened.

use std::fs::File;
use std::io::{self, Error, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::device::{Device, Identity, ReadReq};
use crate::mapfile::{self, Unread};

/// What the name of a map ends with.
const ENDINGS: [&str; 3] = ["map", "mapfile", "log"];

/// The areas of the image at `path` that were not read; `file` is what was opened there. `None`: there is no map beside it, or it
/// calls all `size` bytes finished.
///
/// # Errors
/// `Unsupported`: a map is there that cannot be read or understood. The image cannot be read.
pub(crate) fn unread(file: Option<&File>, path: &Path, size: u64) -> io::Result<Option<Unread>> {
    let link = |file: &File| std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    let own = file.and_then(link).or_else(|| path.canonicalize().ok());
    let own = own.as_deref();
    for path in own.into_iter().chain(Some(path).filter(|path| own != Some(*path))) {
        let Some((map, text)) = map_of(path)? else { continue };
        let unread = mapfile::parse(&text).map_err(|why| unsupported(&map, &why))?;
        let bytes = unread.bytes_below(size);
        if bytes > 0 {
            tracing::info!(path = %path.display(), map = %map.display(), bytes, "was not read");
            return Ok(Some(unread));
        }
        break;
    }
    Ok(None)
}

fn unsupported(map: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("its map {}, {why}", map.display()))
}

/// The map of an image: its path and its text.
fn map_of(path: &Path) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    let longer = |ending: &&str| {
        let mut name = path.as_os_str().to_os_string();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    };
    for map in ENDINGS.iter().map(longer) {
        if let Some(text) = text_of(&map, path, false).map_err(|e| unsupported(&map, &e))? {
            return Ok(Some((map, text)));
        }
    }
    for map in ENDINGS.iter().map(|ending| path.with_extension(ending)).filter(|map| map != path) {
        let text = match text_of(&map, path, true) {
            // It need not be this image's.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => continue,
            text => text.map_err(|e| unsupported(&map, &e))?,
        };
        if let Some(text) = text {
            return Ok(Some((map, text)));
        }
    }
    Ok(None)
}

/// Whether a map that begins so is of another image than that at `image`, by its command line. If that cannot be told, it is not
/// unless it is `to_be_named` there.
fn is_of_other(head: &[u8], (map, image): (&Path, &Path), to_be_named: bool) -> bool {
    let name = image.file_name();
    let Some([from, to]) = mapfile::files(head) else {
        return to_be_named && !mapfile::names(head, name.unwrap_or_default().as_bytes());
    };
    let facts = |path: &Path| Some(Identity::of(&map.with_file_name(path).metadata().ok()?));
    let own = facts(image);
    let is_own = |path: &Path| facts(path).is_some_and(|facts| Some(facts) == own);
    // What was read, not what was written. A relative name may have been another one's where ddrescue ran.
    let was_read = from.file_name() == name && is_own(from);
    let is_elsewhere = to.starts_with("/dev") || facts(to).is_some() && !is_own(to);
    if to.file_name() != name {
        // Another one, which has this map by its own name.
        let other = map.with_file_name(to.file_name().unwrap_or_default());
        let has = other.with_extension(map.extension().unwrap_or_default()) == map;
        // One that is there no more may have been given this name.
        let is_input = was_read && (from.is_absolute() || is_elsewhere);
        return to_be_named || is_input || has && other.exists();
    }
    // Both are called so, and the map may have been copied along with what was written.
    let is_of_output = map.file_stem() == to.file_name();
    was_read && is_elsewhere && (from.is_absolute() || !is_of_output)
}

/// What is in the map of ddrescue at a path; `None`: there is no map, or it [is of another](is_of_other) image.
fn text_of(map: &Path, image: &Path, to_be_named: bool) -> io::Result<Option<Vec<u8>>> {
    let opened = || {
        // What is not a file, such as a pipe, is not opened: it may have the caller wait.
        let is_file = map.metadata()?.is_file();
        is_file.then(|| File::open(map)).transpose()
    };
    let file = match opened() {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
        Err(e) => {
            use ErrorKind::{InvalidFilename, NotADirectory, NotFound};
            let is_none = matches!(e.kind(), NotFound | NotADirectory | InvalidFilename);
            return if is_none { Ok(None) } else { Err(e) };
        }
    };
    let mut text = Vec::new();
    (&file).take(mapfile::HEAD as u64).read_to_end(&mut text)?;
    if !mapfile::is_map(&text) || is_of_other(&text, (map, image), to_be_named) {
        return Ok(None);
    }
    (&file).take(mapfile::MOST).read_to_end(&mut text)?;
    match text.len() as u64 > mapfile::MOST {
        true => Err(Error::other("it is too long")),
        false => Ok(Some(text)),
    }
}

/// An image of which parts were not read from the disk.
pub(crate) struct Holed {
    inner: Arc<dyn Device>,
    unread: Unread,
}

impl Holed {
    /// `image` without the areas that are `unread`.
    pub(crate) fn over(image: Arc<dyn Device>, unread: Unread) -> Arc<dyn Device> {
        Arc::new(Holed { inner: image, unread })
    }
}

impl Device for Holed {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.inner)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let (mut good, mut whose) = (Vec::with_capacity(reqs.len()), Vec::new());
        for (i, req) in reqs.iter_mut().enumerate().filter(|(_, req)| req.result.is_none()) {
            match self.unread.first_in(req.offset, req.len as u64) {
                Some(at) => {
                    let why = format!("byte {at} of the image was not read from the disk");
                    req.result = Some(Err(Error::other(why)));
                }
                None => {
                    good.push(ReadReq::new(req.offset, req.len));
                    whose.push(i);
                }
            }
        }
        self.inner.read_batch(&mut good);
        for (i, done) in whose.into_iter().zip(good) {
            if let Some(req) = reqs.get_mut(i) {
                req.result = done.result;
            }
        }
    }

    fn unread(&self, offset: u64, len: u64) -> u64 {
        let inside = self.size().saturating_sub(offset).min(len);
        self.unread.bytes_in(offset, inside)
    }

    fn only_read(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{open_device, open_device_rw, read_at};

    const HEADING: &str = "# Mapfile. Created by GNU ddrescue version 1.27\n";

    fn image() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        (dir, path)
    }

    /// Which of these bytes of the image can be read, and whether it is opened for writing.
    fn seen(path: &Path) -> io::Result<([bool; 4], bool)> {
        let device = open_device(path)?;
        let read = |at| match read_at(&*device, at, 4096) {
            Ok(bytes) => bytes == [7; 4096],
            Err(_) => false,
        };
        // In a batch, too: large ones go past the page cache.
        let mut batch: Vec<ReadReq> = (0..16).map(|i| ReadReq::new(i << 16, 1 << 16)).collect();
        device.read_batch(&mut batch);
        let good = batch.into_iter().filter_map(|req| req.take().ok()).count();
        let all = [0, 4096, 8192, (1 << 20) - 4096].map(read);
        assert_eq!(good, if all == [true; 4] { 16 } else { 15 });
        Ok((all, open_device_rw(path).is_ok()))
    }

    #[test]
    fn what_the_map_does_not_have_is_not_read() {
        let holes = ([true, false, true, true], false);
        for name in ["disk.img.map", "disk.img.mapfile", "disk.img.log", "disk.map"] {
            let (dir, path) = image();
            assert_eq!(seen(&path).unwrap(), ([true; 4], true));
            let command = "# Command line: ddrescue /dev/sdb /tmp/disk.img disk.map\n";
            let map = format!("{HEADING}{command}0 - 1\n0 4096 +\n4096 512 -\n4608 0xfee00 +\n");
            std::fs::write(dir.path().join(name), &map).unwrap();
            assert_eq!(seen(&path).unwrap(), holes, "{name}");
            // By links too, whatever is beside them.
            let other = tempfile::tempdir().unwrap();
            for link in
                [dir.path().join("a"), other.path().join("disk.img"), other.path().join("b")]
            {
                std::os::unix::fs::symlink(&path, &link).unwrap();
                assert_eq!(seen(&link).unwrap(), holes, "{name}");
            }
            assert_eq!(open_device(&path).unwrap().unread(0, 1 << 20), 512);
            assert_eq!(open_device(&path).unwrap().unread(4100, 10), 10);
            let refused = open_device_rw(&path).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        }
    }

    #[test]
    fn a_finished_map_and_other_files_change_nothing() {
        let (dir, path) = image();
        let map = dir.path().join("disk.img.map");
        std::fs::write(&map, format!("{HEADING}0 + 1\n0 1048576 +\n")).unwrap();
        assert_eq!(seen(&path).unwrap(), ([true; 4], true));
        std::fs::write(&map, "0 - 1\n0 1 -\n").unwrap();
        // Of another image.
        std::fs::write(dir.path().join("disk.map"), format!("{HEADING}0 - 1\n0 1 -\n")).unwrap();
        std::fs::create_dir(dir.path().join("disk.img.log")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("disk.img.mapfile"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(seen(&path).unwrap(), ([true; 4], true));
    }

    #[test]
    fn a_map_that_is_not_understood_is_an_error() {
        let (dir, path) = image();
        for text in ["", "0 - 1\n0 1\n", "0 - 1\n0 4096 +\n0 4096 +\n", "0 - 1\n0 4096 \u{0}\n"] {
            std::fs::write(dir.path().join("disk.img.map"), format!("{HEADING}{text}")).unwrap();
            for refused in [open_device(&path).err(), open_device_rw(&path).err()] {
                let refused = refused.unwrap();
                assert_eq!(refused.kind(), ErrorKind::Unsupported);
                assert!(refused.to_string().contains("disk.img.map, line "), "{refused}");
            }
        }
    }

    /// An image that was copied, or written to another disk, or beside which another one is, has no holes by that map.
    #[test]
    fn maps_of_other_images() {
        let other = tempfile::tempdir().unwrap();
        let copy = other.path().join("disk.img");
        std::fs::write(&copy, "").unwrap();
        let copying = format!("disk.img {}", copy.display());
        let moved = format!("/dev/sdb {}", copy.display());
        for (line, name, is_own) in [
            (copying.as_str(), "disk.map", false),
            // This may be the copy of a copy and of its map.
            (&copying, "disk.img.map", true),
            ("/mnt/failing/disk.img gone.img", "disk.img.map", true),
            ("disk.img gone.img", "disk.img.map", true),
            ("disk.img /dev/sdc", "disk.img.map", false),
            ("-f ./disk.img /dev/sdc", "disk.map", false),
            ("/dev/sdb disk.img.raw", "disk.img.map", false),
            // A copy of an image, and of its map.
            ("/dev/sdb there.img", "disk.img.map", true),
            ("/dev/sdb gone.img", "disk.img.map", true),
            ("/dev/sdb gone.img", "disk.map", false),
            ("/dev/sdb disk.img", "disk.map", true),
            (&moved, "disk.map", true),
            ("/mnt/disk.img disk.img", "disk.img.map", true),
            ("/dev/sdb my disk.img", "disk.map", true),
        ] {
            let (dir, path) = image();
            ["there.img", "disk.img.raw"]
                .iter()
                .for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
            let command = format!("# Command line: ddrescue {line} {name}\n");
            let map = format!("{HEADING}{command}0 - 1\n0 4096 +\n4096 512 -\n4608 0xfee00 +\n");
            std::fs::write(dir.path().join(name), map).unwrap();
            let whole = ([true; 4], true);
            let holed = ([true, false, true, true], false);
            assert_eq!(seen(&path).unwrap(), if is_own { holed } else { whole }, "{line}, {name}");
        }
    }

    /// What was added to an image after it was read as a whole is no hole.
    #[test]
    fn an_image_that_has_grown_since() {
        let (dir, path) = image();
        let map = dir.path().join("disk.img.map");
        std::fs::write(&map, format!("{HEADING}0 + 1\n0 4096 +\n")).unwrap();
        assert_eq!(seen(&path).unwrap(), ([true; 4], true));
    }

    /// A map that cannot be looked at makes the image one that cannot be opened, and is named.
    #[test]
    fn a_map_that_cannot_be_opened() {
        let (dir, path) = image();
        let map = dir.path().join("disk.img.map");
        std::os::unix::fs::symlink(&map, &map).unwrap();
        for refused in [open_device(&path).err(), open_device_rw(&path).err()] {
            let refused = refused.unwrap();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("its map "), "{refused}");
        }
    }

    /// The map may lie beside a link, and not beside the file.
    #[test]
    fn a_map_beside_a_link() {
        let (dir, path) = image();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let map = format!("{HEADING}0 - 1\n0 4096 +\n4096 512 -\n4608 0xfee00 +\n");
        std::fs::write(dir.path().join("link.map"), map).unwrap();
        assert_eq!(seen(&link).unwrap(), ([true, false, true, true], false));
        assert_eq!(seen(&path).unwrap(), ([true; 4], true));
    }

    /// Logs of ddrescue that are no maps, and the map behind them.
    #[test]
    fn other_logs_are_passed_over() {
        let (dir, path) = image();
        let log = "# Events Logfile. Created by GNU ddrescue version 1.27\n0 x\n";
        for name in ["disk.img.map", "disk.img.log", "disk.log"] {
            std::fs::write(dir.path().join(name), log).unwrap();
        }
        assert_eq!(seen(&path).unwrap(), ([true; 4], true));
        let map = format!(
            "{HEADING}# Command line: ddrescue --log-events=disk.img.log a disk.img disk.mapfile\n\
             0 - 1\n0 4096 +\n4096 512 -\n4608 0xfee00 +\n"
        );
        std::fs::write(dir.path().join("disk.mapfile"), map).unwrap();
        assert_eq!(seen(&path).unwrap(), ([true, false, true, true], false));
    }
}
