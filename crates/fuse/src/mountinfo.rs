//! What the kernel says is mounted: `/proc/self/mountinfo`.
//!
//! A line is `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG…] - TYPE SOURCE SUPEROPTIONS`, with
//! octal escapes in paths and sources. Every FUSE mount has a device number of its own, which stays
//! the same wherever the mount is moved or bound to. Numbers are given again once they are free, so a
//! mount is identified by its number together with its type and source: `0:57 fuse.zfs tank/home`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A FUSE mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FuseMount {
    /// `MAJOR:MINOR TYPE SOURCE`.
    id: String,
    mountpoint: PathBuf,
}

/// The FUSE mount that is on top at `mountpoint`.
pub(crate) fn mount_at(mountpoint: &Path) -> Option<String> {
    mounts().into_iter().rev().find(|m| m.mountpoint == mountpoint).map(|m| m.id)
}

/// Every place where a FUSE mount is visible, innermost last.
pub(crate) fn mountpoints(id: &str) -> Vec<PathBuf> {
    mounts().into_iter().filter(|m| m.id == id).map(|m| m.mountpoint).collect()
}

fn mounts() -> Vec<FuseMount> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|b| *b == b'\n').filter_map(parse).collect()
}

fn parse(line: &[u8]) -> Option<FuseMount> {
    let mut fields = line.split(|b| *b == b' ');
    let device = fields.nth(2)?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    let id = String::from_utf8_lossy(&[device, kind, source].join(&b' ')).into_owned();
    let mountpoint = PathBuf::from(OsString::from_vec(mountpoint));
    kind.starts_with(b"fuse").then_some(FuseMount { id, mountpoint })
}

/// Whether it is a mount of a file system.
pub(crate) fn is_zfs(id: &str) -> bool {
    id.split(' ').nth(1) == Some("fuse.zfs")
}

/// `MAJOR:MINOR` of a mount.
pub(crate) fn device(id: &str) -> &str {
    id.split(' ').next().unwrap_or_default()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        if let Some(byte) = octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            out.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = br"36 35 0:57 / /mnt/with\040space ro,nosuid shared:1 master:2 - fuse.zfs tank/a ro,user_id=0";
        let id = "0:57 fuse.zfs tank/a";
        let want = FuseMount { id: id.into(), mountpoint: "/mnt/with space".into() };
        assert_eq!(parse(line), Some(want));
        assert!(device(id) == "0:57" && is_zfs(id) && !is_zfs("0:57 fuse.sshfs tank/a"));
        assert_eq!(parse(br"36 35 0:57 / /mnt rw - ext4 /dev/sda rw"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(br"a\134b\12"), br"a\b\12");
    }
}
