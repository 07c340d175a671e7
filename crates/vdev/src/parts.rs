//! Images that were split into parts: `disk.img.001`, `disk.img.002` and so on, or `xaa`, `xab` as `split` names them. The first one is
//! opened for reading as all of them in a row, the image that was split. It is not written to.
//!
//! Files of such names may as well be vdevs, or images of several disks. So one is taken for a first part only where it
//! says that it is longer than it is, by its labels or by its partition table, and the next one is not larger, and has neither
//! labels at its beginning nor a table. The labels at the end of an image may be in a later part.
//!
//! Where a part is not there the image ends before it, as one that was cut off. A map of ddrescue is of the whole image, by the name
//! that it had before it was split, or of one part.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Error, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_format::abd::Abd;

use crate::assemble;
use crate::device::{Device, Identity, ReadReq, open_file};
use crate::holes::{self, Holed};
use crate::labels::{read_configs, read_labels};
use crate::partition;

/// How parts are numbered.
#[derive(Clone, Copy)]
enum Numbers {
    /// With so many digits.
    Digits(usize),
    /// With so many letters, from `aa` on.
    Letters(usize),
}

/// The most parts: of more no name with so few digits tells.
const MOST: u64 = 100_000;

impl Numbers {
    /// Of a name that may be a part's: its number, and what the name is without it.
    fn of(name: &[u8]) -> Option<(Numbers, u64, &[u8])> {
        let count = |is: fn(&u8) -> bool| name.iter().rev().take_while(|b| is(b)).count();
        let (letters, digits) = (count(u8::is_ascii_lowercase), count(u8::is_ascii_digit));
        if digits >= 2 {
            let (rest, number) = name.split_at(name.len() - digits);
            let number = std::str::from_utf8(number).ok()?.parse().ok()?;
            return Some((Numbers::Digits(digits), number, rest));
        }
        // The number is as long as the name of a first part has it, which ends with nothing but `a`.
        let own = name.iter().rev().take_while(|b| **b == b'a').count();
        (letters >= 2 && own >= 2).then(|| (Numbers::Letters(own), 0, &name[..name.len() - own]))
    }

    /// What the name of the part with this number ends with; `None`: none has it.
    fn name(self, number: u64) -> Option<Vec<u8>> {
        match self {
            Numbers::Digits(digits) => {
                let name = format!("{number:0digits$}").into_bytes();
                (name.len() == digits).then_some(name)
            }
            Numbers::Letters(letters) => {
                let mut name = vec![b'a'; letters];
                let mut left = number;
                for letter in name.iter_mut().rev() {
                    *letter += (left % 26) as u8;
                    left /= 26;
                }
                (left == 0).then_some(name)
            }
        }
    }
}

fn is_file(path: &Path) -> bool {
    path.metadata().as_ref().is_ok_and(Metadata::is_file)
}

/// The parts of an image in their order, by the path of the first one, and the name that the image may have had; `None`: it is no
/// first part, by its name and those beside it.
fn parts_by_name(path: &Path) -> Option<(Vec<PathBuf>, PathBuf)> {
    let (numbers, first, rest) = Numbers::of(path.file_name()?.as_bytes())?;
    let named = |name: Vec<u8>| path.with_file_name(OsString::from_vec(name));
    let part = |number| Some(named([rest, &numbers.name(number)?].concat()));
    if first > 1 || !is_file(path) {
        return None;
    }
    let others = (first + 1..MOST).map_while(part).take_while(|path| is_file(path));
    let all: Vec<PathBuf> = std::iter::once(path.to_path_buf()).chain(others).collect();
    (all.len() > 1).then(|| (all, named(name_of_whole(rest))))
}

/// The image whose first part `first` is, which was opened; `None`: it is no first part.
///
/// # Errors
/// A later part cannot be opened; the map of the image is not understood.
pub(crate) fn joined(first: &Arc<dyn Device>) -> io::Result<Option<Arc<dyn Device>>> {
    let own = first.path();
    // By a link, too, and where there are links to the parts.
    let found = parts_by_name(own).or_else(|| parts_by_name(&own.canonicalize().ok()?));
    let Some((paths, whole)) = found.filter(|_| is_longer(&**first)) else { return Ok(None) };
    let mut parts = vec![first.clone()];
    for path in paths.iter().skip(1) {
        let part = match open_file(path) {
            // It may be no part.
            Err(_) if parts.len() == 1 => return Ok(None),
            part => part?,
        };
        if !is_part(&*part, &**first) {
            break;
        }
        parts.push(part);
    }
    if parts.len() == 1 {
        return Ok(None);
    }
    let image: Arc<dyn Device> = Arc::new(Joined::of(parts));
    // A file with the name of the image that is as long as all parts has the map for itself. A shorter file is not the image.
    let is_whole = whole.metadata().is_ok_and(|whole| whole.len() >= image.size());
    Ok(Some(match holes::unread(None, &whole, image.size())? {
        Some(unread) if !is_whole => Holed::over(image, unread),
        _ => image,
    }))
}

/// Whether a device goes on with the image that `first` begins.
fn is_part(part: &dyn Device, first: &dyn Device) -> bool {
    let Ok([front, second, ..]) = read_configs(part) else { return false };
    let begins = front.is_some() || second.is_some() || partition::reach(part) > 0;
    part.size() <= first.size() && !begins
}

/// Whether the file at a path is a later part of an image whose first part is there: it is no device by itself.
pub fn is_later_part(path: &Path) -> bool {
    let is_part = |path: &Path| {
        let name = path.file_name()?.as_bytes();
        let lengths = match Numbers::of(name) {
            Some((numbers @ Numbers::Digits(_), ..)) => vec![numbers],
            _ => (2..=name.len().min(5)).map(Numbers::Letters).collect(),
        };
        let firsts = lengths.into_iter().flat_map(|numbers| {
            let firsts = [0, 1].into_iter().filter_map(move |number| numbers.name(number));
            firsts.map(|end| {
                let rest = name.len().saturating_sub(end.len());
                path.with_file_name(OsString::from_vec([&name[..rest], &end].concat()))
            })
        });
        let leads_here = |first: PathBuf| {
            let (parts, _) = parts_by_name(&first)?;
            let at = parts.iter().position(|part| part == path).filter(|at| *at > 0)?;
            let first = open_file(&first).ok().filter(|first| is_longer(&**first))?;
            let part = |path: &PathBuf| open_file(path).is_ok_and(|part| is_part(&*part, &*first));
            // Each one between is looked at for itself: all of them here would be as many looks as there are pairs.
            let before = at.saturating_sub(1).max(1);
            (part(&parts[1]) && parts[before..=at].iter().all(part)).then_some(())
        };
        firsts.filter(|first| first != path).find_map(leads_here)
    };
    is_part(path).is_some()
}

/// What the image may have been called before it was split.
fn name_of_whole(rest: &[u8]) -> Vec<u8> {
    let ends: [&[u8]; 4] = [b".", b"_", b"-", b"part"];
    let mut name = rest;
    while let Some(shorter) = ends.iter().find_map(|end| name.strip_suffix(*end)) {
        name = shorter;
    }
    if name.len() < 2 { b"joined.img".to_vec() } else { name.to_vec() }
}

/// Whether the beginning of a device says that it is longer.
fn is_longer(first: &dyn Device) -> bool {
    let size = first.size();
    if let Ok(Some(labels)) = read_labels(first) {
        return assemble::size_of_leaf(&labels.config).is_some_and(|needed| needed > size);
    }
    partition::reach(first) > size
}

/// The parts of an image, one behind the other.
struct Joined {
    /// Each with its first byte. The first part is there, and answers for the image as a whole.
    parts: Vec<(u64, Arc<dyn Device>)>,
    first: Arc<dyn Device>,
    size: u64,
}

impl Joined {
    fn of(parts: Vec<Arc<dyn Device>>) -> Joined {
        let first = parts[0].clone();
        let mut size = 0;
        let placed = parts.into_iter().map(|part| {
            let at = size;
            size += part.size();
            (at, part)
        });
        let parts = placed.collect();
        Joined { parts, first, size }
    }

    /// The pieces of `len` bytes at `offset`: in which part, where in it, how many.
    fn pieces(&self, offset: u64, len: u64) -> Vec<(usize, u64, u64)> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        let mut all = Vec::new();
        for (n, (start, part)) in self.parts.iter().enumerate() {
            let stop = (start + part.size()).min(end);
            if at >= *start && at < stop {
                all.push((n, at - start, stop - at));
                at = stop;
            }
        }
        all
    }
}

impl Device for Joined {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.first)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Path {
        self.first.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let mut of_parts: Vec<(Vec<ReadReq>, Vec<usize>)> =
            self.parts.iter().map(|_| Default::default()).collect();
        for (i, req) in reqs.iter().enumerate().filter(|(_, req)| req.result.is_none()) {
            for (part, at, len) in self.pieces(req.offset, req.len as u64) {
                of_parts[part].0.push(ReadReq::new(at, len as usize));
                of_parts[part].1.push(i);
            }
        }
        let mut read: Vec<(Vec<Abd>, Option<Error>)> =
            reqs.iter().map(|_| Default::default()).collect();
        for ((_, part), (mut batch, whose)) in self.parts.iter().zip(of_parts) {
            part.read_batch(&mut batch);
            for (i, done) in whose.into_iter().zip(batch) {
                match done.take() {
                    Ok(data) => read[i].0.push(data),
                    Err(e) => read[i].1 = Some(e),
                }
            }
        }
        for (req, (pieces, failed)) in reqs.iter_mut().zip(read) {
            if req.result.is_some() {
                continue;
            }
            let data = Abd::gang(pieces);
            req.result = Some(match failed {
                Some(e) => Err(e),
                None if data.len() == req.len => Ok(data),
                None => Err(ErrorKind::UnexpectedEof.into()),
            });
        }
    }

    fn unread(&self, offset: u64, len: u64) -> u64 {
        let of_piece = |(part, at, len): (usize, u64, u64)| self.parts[part].1.unread(at, len);
        self.pieces(offset, len).into_iter().map(of_piece).sum()
    }

    fn only_read(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.first.identity()
    }

    fn is_current(&self) -> bool {
        self.parts.iter().all(|(_, part)| part.is_current())
    }

    fn is_there(&self) -> bool {
        self.parts.iter().all(|(_, part)| part.is_there())
    }

    fn forget_cached(&self) {
        self.parts.iter().for_each(|(_, part)| part.forget_cached());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{open_device, open_device_rw, read_at};
    use std::fs;

    const EACH: usize = 5 << 20;

    /// The beginning of the image of a pool in parts, and the image.
    fn split(name: &dyn Fn(usize) -> String) -> (tempfile::TempDir, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let pool = cenote_testpools::pool("mir3");
        let image = fs::read(&pool.files[0]).unwrap()[..3 * EACH + 512].to_vec();
        for (n, part) in image.chunks(EACH).enumerate() {
            fs::write(dir.path().join(name(n)), part).unwrap();
        }
        (dir, image)
    }

    /// Whether the file at a path is opened as these bytes.
    fn is_image(path: &Path, image: &[u8]) -> bool {
        let device = open_device(path).unwrap();
        device.size() == image.len() as u64
            && read_at(&*device, 0, image.len()).unwrap() == image
            && read_at(&*device, EACH as u64 - 7, 9).unwrap() == image[EACH - 7..EACH + 2]
            && read_at(&*device, image.len() as u64 - 1, 2).is_err()
    }

    #[test]
    fn the_first_part_is_opened_as_the_image() {
        let letters = |n: usize| format!("xa{}", char::from(b'a' + n as u8));
        let three = |n: usize| format!("disk.imgaa{}", char::from(b'a' + n as u8));
        let names: [&dyn Fn(usize) -> String; 6] = [
            &|n| format!("disk.img.{:03}", n + 1),
            &|n| format!("disk.img.part{n:02}"),
            &|n| format!("x{n:02}"),
            &|n| format!("{n:02}"),
            &letters,
            &three,
        ];
        for name in names {
            let (dir, image) = split(name);
            let path = |n: usize| dir.path().join(name(n));
            assert!(is_image(&path(0), &image), "{}", name(0));
            let refused = open_device_rw(&path(0)).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(path(0), &link).unwrap();
            assert!(is_image(&link, &image));
            assert!(!is_later_part(&path(0)));
            for n in 1..4 {
                assert!(is_later_part(&path(n)), "{}", name(n));
            }
            // What comes behind a part that is not there is not read as what is in it.
            fs::remove_file(path(2)).unwrap();
            assert!(is_image(&path(0), &image[..2 * EACH]));
            assert!(!is_later_part(&path(3)));
        }
    }

    /// The map is that of the whole image, or of a part.
    #[test]
    fn maps_of_images_in_parts() {
        let name = |n: usize| format!("disk.img.{n:03}");
        let (dir, image) = split(&name);
        let path = dir.path().join(name(0));
        let heading = "# Mapfile. Created by GNU ddrescue version 1.27\n";
        let good = |at: usize| read_at(&*open_device(&path).unwrap(), at as u64, 512).is_ok();
        // From the second part on.
        let (at, end) = (EACH + 4096, EACH + 8192);
        let rest = image.len() - end;
        let map = format!("{heading}0 + 1\n0 {at} +\n{at} 4096 -\n{end} {rest} +\n");
        fs::write(dir.path().join("disk.img.map"), map).unwrap();
        assert_eq!([at - 512, at, end - 512, end].map(good), [true, false, false, true]);
        assert_eq!(open_device(&path).unwrap().unread(0, image.len() as u64), 4096);
        fs::remove_file(dir.path().join("disk.img.map")).unwrap();
        assert!([at - 512, at, end - 512, end].map(good) == [true; 4]);
        let map = format!("{heading}0 + 1\n0 4096 +\n4096 4096 -\n8192 {} +\n", EACH - 8192);
        fs::write(dir.path().join("disk.img.001.map"), map).unwrap();
        assert_eq!([at - 512, at, end - 512, end].map(good), [true, false, false, true]);
        assert_eq!(open_device(&path).unwrap().unread(0, image.len() as u64), 4096);
    }

    /// Images of several disks that are cut off are not parts of one.
    #[test]
    fn files_of_their_own_are_no_parts() {
        let name = |n: usize| format!("disk{:02}", n);
        let is_part = |dir: &tempfile::TempDir| {
            open_device(&dir.path().join(name(0))).unwrap().size() > EACH as u64
        };
        let (dir, image) = split(&name);
        assert!(is_part(&dir));
        // The second one has labels, or a table, or is larger.
        let mut table = vec![0; EACH];
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
        table[446 + 4] = 0x83;
        table[446 + 8] = 63;
        table[446 + 12] = 100;
        for second in [&image[..EACH], &table, &image[EACH..2 * EACH + 512]] {
            fs::write(dir.path().join(name(1)), second).unwrap();
            assert!(!is_part(&dir));
        }
        fs::write(dir.path().join(name(1)), &image[EACH..2 * EACH]).unwrap();
        assert!(is_part(&dir));
        // The first one says nothing, or is whole.
        fs::write(dir.path().join(name(0)), vec![0; EACH]).unwrap();
        assert!(!is_part(&dir));
        let pool = cenote_testpools::pool("mir3");
        fs::copy(&pool.files[0], dir.path().join(name(0))).unwrap();
        let size = open_device(&dir.path().join(name(0))).unwrap().size();
        assert_eq!(size, pool.files[0].metadata().unwrap().len());
    }

    /// Two disks' images with partition tables, cut off at the same length.
    #[test]
    fn images_of_whole_disks_are_no_parts() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = vec![0; EACH];
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[446 + 4] = 0x83;
        disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
        disk[446 + 12..446 + 16].copy_from_slice(&1_000_000u32.to_le_bytes());
        for n in 1..4u8 {
            disk[(2 << 20) + 5] = n;
            fs::write(dir.path().join(format!("disk0{n}")), &disk).unwrap();
        }
        let first = open_device(&dir.path().join("disk01-part1")).unwrap();
        assert_eq!(first.size(), EACH as u64 - (1 << 20));
        assert_eq!(crate::device::read_at(&*first, 1 << 20, 6).unwrap()[5], 1);
        assert!(crate::device::read_at(&*first, first.size() - 1, 2).is_err());
        let refused = open_device_rw(&dir.path().join("disk01-part1")).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}
