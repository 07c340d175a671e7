//! Images that were split into parts: `disk.img.001`, `disk.img.002` and so on, or `xaa`, `xab` as `split` names them. They are not put
//! together here. Where pools are looked for the first one is named with the command that does it, since it would pass for an image
//! that was cut off. A file that is opened for writing is opened as any other file, so that the labels on it are seen.
//!
//! Files of such names may as well be vdevs, or images of several disks. So one is taken for a first part only where it
//! says that it is longer than it is, by its labels or by its partition table, and the next one is not larger, and has neither
//! labels nor a table.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::assemble;
use crate::device::{Device, open_device};
use crate::labels::read_labels;
use crate::partition;

/// How parts are numbered.
#[derive(Clone, Copy)]
enum Numbers {
    /// With so many digits, from this one on, which is 0 or 1.
    Digits(usize, u64),
    /// With so many letters, from `aa` on.
    Letters(usize),
}

impl Numbers {
    /// Of a name that may be the first part's, and what the name is without them.
    fn of(name: &[u8]) -> Option<(Numbers, &[u8])> {
        let count = |is: fn(&u8) -> bool| name.iter().rev().take_while(|b| is(b)).count();
        let (letters, digits) = (count(|b| *b == b'a'), count(u8::is_ascii_digit));
        let (rest, number) = name.split_at(name.len() - letters.max(digits));
        if letters >= 2 {
            return Some((Numbers::Letters(letters), rest));
        }
        let first: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
        (digits >= 2 && first < 2).then_some((Numbers::Digits(digits, first), rest))
    }

    /// The name of the second part.
    fn second(self, rest: &[u8]) -> Vec<u8> {
        let number = match self {
            Numbers::Digits(digits, first) => format!("{:0digits$}", first + 1),
            Numbers::Letters(letters) => "a".repeat(letters - 1) + "b",
        };
        [rest, number.as_bytes()].concat()
    }

    /// What a shell takes for the names of all parts, behind the rest of the name.
    fn pattern(self) -> String {
        match self {
            Numbers::Digits(digits, _) => "[0-9]".repeat(digits),
            Numbers::Letters(letters) => "[a-z]".repeat(letters),
        }
    }
}

/// What a file is that is the first part of an image, and the command that puts the image together; `None`: it is no such part.
pub fn joined_by(first: &dyn Device) -> Option<String> {
    let own = first.path();
    // By a link, too, and where there are links to the parts.
    joined_at(first, own).or_else(|| joined_at(first, &own.canonicalize().ok()?))
}

/// As [`joined_by`], of the first part by this path.
fn joined_at(first: &dyn Device, path: &Path) -> Option<String> {
    let (numbers, rest) = Numbers::of(path.file_name()?.as_bytes())?;
    let named = |name: Vec<u8>| path.with_file_name(OsString::from_vec(name));
    let second = named(numbers.second(rest));
    let is_file = |path: &Path| path.metadata().as_ref().is_ok_and(Metadata::is_file);
    if !is_file(path) || !is_file(&second) || !is_longer(first) {
        return None;
    }
    let second = open_device(&second).ok()?;
    let is_part = second.size() <= first.size() && partition::reach(&*second) == 0;
    if !is_part || !matches!(read_labels(&*second), Ok(None)) {
        return None;
    }
    let mut whole = named(name_of_whole(rest));
    while whole.symlink_metadata().is_ok() {
        // It is not written over.
        whole.as_mut_os_string().push(".joined");
    }
    let (parts, pattern) = (named(rest.to_vec()), numbers.pattern());
    Some(format!(
        "the first part of an image; 'cat {}{pattern} > {}' joins its parts",
        parts.display(),
        whole.display()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::open_device_rw;
    use std::fs;
    use std::io::ErrorKind;

    /// What is said of the file at a path.
    fn said(path: &Path) -> Option<String> {
        joined_by(&*open_device(path).unwrap())
    }

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

    #[test]
    fn the_first_part_is_named_with_what_joins_them() {
        let letters = |n: usize| format!("xa{}", char::from(b'a' + n as u8));
        let three = |n: usize| format!("disk.imgaa{}", char::from(b'a' + n as u8));
        type Names<'a> = (&'a dyn Fn(usize) -> String, &'a str, &'a str);
        let names: [Names<'_>; 6] = [
            (&|n| format!("disk.img.{:03}", n + 1), "disk.img.[0-9][0-9][0-9]", "disk.img"),
            (&|n| format!("disk.img.part{n:02}"), "disk.img.part[0-9][0-9]", "disk.img"),
            (&|n| format!("x{n:02}"), "x[0-9][0-9]", "joined.img"),
            (&|n| format!("{n:02}"), "[0-9][0-9]", "joined.img"),
            (&letters, "x[a-z][a-z]", "joined.img"),
            (&three, "disk.img[a-z][a-z][a-z]", "disk.img"),
        ];
        for (name, pattern, whole) in names {
            let (dir, image) = split(name);
            let first = dir.path().join(name(0));
            let shown = dir.path().display();
            let command = format!("cat {shown}/{pattern} > {shown}/{whole}");
            let why = said(&first).unwrap();
            assert!(why.contains(&format!("'{command}'")), "{why}");
            // What it says is so.
            let done = std::process::Command::new("sh").args(["-c", &command]).status().unwrap();
            assert!(done.success() && fs::read(dir.path().join(whole)).unwrap() == image);
            let why = said(&first).unwrap();
            assert!(why.contains(&format!("{whole}.joined'")), "{why}");
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(&first, &link).unwrap();
            assert_eq!(said(&link), Some(why));
            assert_eq!(said(&dir.path().join(name(1))), None);
        }
    }

    /// Images of several disks that are cut off are not parts of one.
    #[test]
    fn files_of_their_own_are_no_parts() {
        let name = |n: usize| format!("disk{:02}", n);
        let is_part = |dir: &tempfile::TempDir| said(&dir.path().join(name(0))).is_some();
        let (dir, image) = split(&name);
        assert!(is_part(&dir));
        // The second one has labels, or a table, or is larger, or cannot be read.
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
        let map = dir.path().join("disk01.map");
        fs::write(&map, "# Mapfile. Created by GNU ddrescue version 1.27\n0 + 1\n").unwrap();
        assert!(!is_part(&dir));
        fs::remove_file(map).unwrap();
        assert!(is_part(&dir));
        // The first one says nothing, or is whole.
        fs::write(dir.path().join(name(0)), vec![0; EACH]).unwrap();
        assert!(!is_part(&dir));
        let pool = cenote_testpools::pool("mir3");
        fs::copy(&pool.files[0], dir.path().join(name(0))).unwrap();
        assert!(!is_part(&dir));
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
