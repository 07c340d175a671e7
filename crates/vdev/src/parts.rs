//! Images that were split into parts: `disk.img.001`, `disk.img.002` and so on, or `xaa`, `xab` as `split` names them. The first
//! one is opened as the whole, for reading only.
//!
//! Files of such names may as well be vdevs of their own. So they are taken for parts only where the first one says that it is
//! longer than it is, by its labels or by its partition table, and no other one has labels. All but the last one
//! have the same size. A part that is missing between others cannot be read, as what is behind the last one.
//!
//! Invariant: a byte is read from the part that it is in, at its place, or not at all.

use std::fs::Metadata;
use std::io::{self, Error, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_format::abd::Abd;

use crate::assemble;
use crate::device::{Device, Identity, ReadReq, open_alone};
use crate::holes::{self, Holed};
use crate::labels::read_labels;
use crate::partition;

/// Most parts of an image.
const MOST: u64 = 1000;

/// How parts are numbered.
#[derive(Clone, Copy)]
enum Numbers {
    /// With so many digits, from this one on, which is 0 or 1.
    Digits(usize, u64),
    /// With two letters.
    Letters,
}

impl Numbers {
    /// Of a name that may be the first part's, and what the name is without them.
    fn of(name: &[u8]) -> Option<(Numbers, &[u8])> {
        if let Some(rest) = name.strip_suffix(b"aa") {
            return Some((Numbers::Letters, rest));
        }
        let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        let (rest, number) = name.split_at(name.len() - digits);
        let first: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
        (digits >= 2 && first < 2).then_some((Numbers::Digits(digits, first), rest))
    }

    /// The name of the part that is so many behind the first one.
    fn nth(self, rest: &[u8], n: u64) -> Option<Vec<u8>> {
        let number = match self {
            Numbers::Digits(digits, first) => {
                let number = format!("{:0digits$}", first + n);
                (number.len() == digits).then_some(number.into_bytes())?
            }
            Numbers::Letters => {
                let letter =
                    |n: u64| b'a'.checked_add(u8::try_from(n).ok()?).filter(|b| *b <= b'z');
                vec![letter(n / 26)?, letter(n % 26)?]
            }
        };
        Some([rest, &number].concat())
    }
}

/// The parts of an image.
pub(crate) struct Parts {
    /// What the image was called before it was split, if that is known.
    whole: Option<PathBuf>,
    joined: Joined,
}

impl Parts {
    /// The parts of which the file at `path` is the first one; `None`: it is none.
    ///
    /// # Errors
    /// `Unsupported`: it is one, and the parts do not fit together. They cannot be read.
    pub(crate) fn beside(path: &Path) -> io::Result<Option<Parts>> {
        let Some((numbers, rest)) = path.file_name().and_then(|name| Numbers::of(name.as_bytes()))
        else {
            return Ok(None);
        };
        let named = |n| {
            let name = numbers.nth(rest, n)?;
            Some(path.with_file_name(std::ffi::OsString::from_vec(name)))
        };
        let file = |path: &PathBuf| path.metadata().ok().filter(Metadata::is_file);
        // One may be missing.
        if (1..3).filter_map(named).all(|path| file(&path).is_none()) {
            return Ok(None);
        }
        let first = open_alone(path)?;
        if first.size() == 0 || !is_longer(&*first) {
            return Ok(None);
        }
        let (each, mut parts, mut last) = (first.size(), vec![Some(first)], 0);
        for path in (1..MOST).map_while(named) {
            let part = file(&path).map(|_| open_alone(&path)).transpose()?;
            if let Some(part) = &part {
                if read_labels(&**part).is_ok_and(|labels| labels.is_some()) {
                    return Ok(None);
                }
                last = parts.len();
            }
            parts.push(part);
        }
        parts.truncate(last + 1);
        let misfit = parts.iter().enumerate().find_map(|(n, part)| {
            let part = part.as_ref()?;
            let fits = part.size() == each || n == last && part.size() < each;
            (!fits).then(|| part.path().display().to_string())
        });
        if let Some(misfit) = misfit {
            let why = format!("a part of an image, of which {misfit} has another size");
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let whole = rest.strip_suffix(b".").filter(|name| !name.is_empty());
        let whole = whole.map(|name| path.with_file_name(std::ffi::OsStr::from_bytes(name)));
        Ok(Some(Parts { whole, joined: Joined { parts, each, path: path.to_path_buf() } }))
    }

    /// The parts as one device.
    ///
    /// # Errors
    /// `Unsupported`: beside them is a map of the image that cannot be understood.
    pub(crate) fn open(self) -> io::Result<Arc<dyn Device>> {
        let size = self.joined.size();
        let unread = self.whole.map(|whole| holes::unread(&whole, size)).transpose()?.flatten();
        let joined = Arc::new(self.joined);
        Ok(match unread {
            Some(unread) => Holed::over(joined, unread),
            None => joined,
        })
    }
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
    /// `None`: it is missing.
    parts: Vec<Option<Arc<dyn Device>>>,
    /// Bytes of each but the last one.
    each: u64,
    path: PathBuf,
}

impl Joined {
    fn present(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.parts.iter().flatten()
    }

    /// The pieces of a read: the part, and the place in it.
    fn pieces(&self, req: &ReadReq) -> Vec<(usize, ReadReq)> {
        let (mut at, mut left, mut pieces) = (req.offset, req.len, Vec::new());
        while left > 0 {
            let within = at % self.each;
            let len = usize::try_from(self.each - within).unwrap_or(usize::MAX).min(left);
            pieces.push(((at / self.each) as usize, ReadReq::new(within, len)));
            (at, left) = (at + len as u64, left - len);
        }
        pieces
    }
}

impl Device for Joined {
    fn size(&self) -> u64 {
        let last = self.parts.last().and_then(|part| part.as_ref()).map_or(0, |part| part.size());
        (self.parts.len() as u64 - 1).saturating_mul(self.each).saturating_add(last)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let size = self.size();
        let mut batches: Vec<(Vec<ReadReq>, Vec<usize>)> = Vec::new();
        batches.resize_with(self.parts.len(), Default::default);
        let mut answers: Vec<Vec<io::Result<Abd>>> = Vec::new();
        answers.resize_with(reqs.len(), Vec::new);
        for (i, req) in reqs.iter_mut().enumerate().filter(|(_, req)| req.result.is_none()) {
            if req.offset.checked_add(req.len as u64).is_none_or(|end| end > size) {
                req.result = Some(Err(ErrorKind::UnexpectedEof.into()));
                continue;
            }
            for (part, piece) in self.pieces(req) {
                if let Some((batch, whose)) = batches.get_mut(part) {
                    batch.push(piece);
                    whose.push(i);
                }
            }
        }
        // Parts are in order, and so are the pieces of a read.
        for (part, (mut batch, whose)) in self.parts.iter().zip(batches) {
            if let Some(part) = part {
                part.read_batch(&mut batch);
            }
            for (i, done) in whose.into_iter().zip(batch) {
                let missing = || Err(Error::other("the part of the image is missing"));
                let answer = if part.is_some() { done.take() } else { missing() };
                answers[i].push(answer);
            }
        }
        for (req, pieces) in reqs.iter_mut().zip(answers) {
            if req.result.is_none() {
                let pieces: io::Result<Vec<Abd>> = pieces.into_iter().collect();
                req.result = Some(pieces.map(Abd::gang));
            }
        }
    }

    fn is_current(&self) -> bool {
        self.present().all(|part| part.is_current())
    }

    fn is_there(&self) -> bool {
        self.present().all(|part| part.is_there())
    }

    fn identity(&self) -> Option<Identity> {
        self.present().next().and_then(|part| part.identity())
    }

    fn is_unlinked(&self) -> bool {
        self.present().any(|part| part.is_unlinked())
    }

    fn forget_cached(&self) {
        self.present().for_each(|part| part.forget_cached());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{open_device, open_device_rw, read_at};
    use std::fs;

    const EACH: usize = 5 << 20;

    /// The image of a pool in parts, and the image.
    fn split(name: impl Fn(usize) -> String) -> (tempfile::TempDir, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let pool = cenote_testpools::pool("mir3");
        let image = fs::read(&pool.files[0]).unwrap()[..4 * EACH + 512].to_vec();
        for (n, part) in image.chunks(EACH).enumerate() {
            fs::write(dir.path().join(name(n)), part).unwrap();
        }
        (dir, image)
    }

    fn check(device: &dyn Device, image: &[u8]) {
        assert_eq!(device.size(), image.len() as u64);
        for (at, len) in [(0, 512), (EACH - 1, 2), (EACH, EACH), (7, 3 * EACH), (4 * EACH, 512)] {
            assert!(read_at(device, at as u64, len).unwrap() == image[at..at + len]);
        }
        assert!(read_at(device, 4 * EACH as u64, 513).is_err());
        assert!(read_at(device, u64::MAX, 2).is_err());
    }

    #[test]
    fn parts_are_put_together() {
        let letters = |n: usize| format!("xa{}", char::from(b'a' + n as u8));
        let names: [&dyn Fn(usize) -> String; 4] = [
            &|n| format!("disk.img.{:03}", n + 1),
            &|n| format!("disk.img.{n:03}"),
            &|n| format!("x{n:02}"),
            &letters,
        ];
        for name in names {
            let (dir, image) = split(name);
            let first = dir.path().join(name(0));
            check(&*open_device(&first).unwrap(), &image);
            let refused = open_device_rw(&first).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
            // Another part is what it is.
            assert_eq!(open_device(&dir.path().join(name(1))).unwrap().size(), EACH as u64);
        }
    }

    #[test]
    fn a_part_that_is_missing_is_not_read() {
        let name = |n: usize| format!("disk.img.{:03}", n + 1);
        let (dir, image) = split(name);
        fs::remove_file(dir.path().join(name(1))).unwrap();
        let device = open_device(&dir.path().join(name(0))).unwrap();
        assert_eq!(device.size(), image.len() as u64);
        assert!(read_at(&*device, EACH as u64, 1).is_err());
        assert!(read_at(&*device, EACH as u64 - 1, 2).is_err());
        assert!(read_at(&*device, 2 * EACH as u64, 9).unwrap() == image[2 * EACH..2 * EACH + 9]);
        // The one behind it has another size.
        fs::write(dir.path().join(name(2)), [1; 512]).unwrap();
        let refused = open_device(&dir.path().join(name(0))).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("disk.img.003 has another size"), "{refused}");
    }

    #[test]
    fn files_of_their_own_are_no_parts() {
        let name = |n: usize| format!("disk.{:02}", n);
        let (dir, image) = split(name);
        let first = dir.path().join(name(0));
        // The second one has labels.
        fs::write(dir.path().join(name(1)), &image[..EACH]).unwrap();
        assert_eq!(open_device(&first).unwrap().size(), EACH as u64);
        // The first one is whole, or says nothing.
        let (dir, _) = split(name);
        let first = dir.path().join(name(0));
        let pool = cenote_testpools::pool("mir3");
        fs::copy(&pool.files[0], &first).unwrap();
        let size = fs::metadata(&first).unwrap().len();
        assert_eq!(open_device(&first).unwrap().size(), size);
        fs::write(&first, vec![0; EACH]).unwrap();
        assert_eq!(open_device(&first).unwrap().size(), EACH as u64);
        assert!(open_device_rw(&first).is_ok());
    }

    /// The map is that of the image before it was split.
    #[test]
    fn a_map_counts_through() {
        let name = |n: usize| format!("disk.img.{:03}", n + 1);
        let (dir, _) = split(name);
        let hole = EACH + 4096;
        let map =
            format!("# ddrescue\n0 - 1\n0 {hole} +\n{hole} 512 -\n{} 99999999 +\n", hole + 512);
        fs::write(dir.path().join("disk.img.map"), map).unwrap();
        let device = open_device(&dir.path().join(name(0))).unwrap();
        assert!(read_at(&*device, hole as u64 - 512, 512).is_ok());
        assert!(read_at(&*device, hole as u64, 512).is_err());
        assert!(read_at(&*device, hole as u64 + 512, 512).is_ok());
    }
}
