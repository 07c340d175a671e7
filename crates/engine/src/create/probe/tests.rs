//! The list against images made here, and against `blkid` where it is installed.

use super::*;
use cenote_vdev::inject::MemDevice;
use std::process::Command;

const SIZE: u64 = 4 << 20;

fn image(parts: &[(u64, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    for (at, magic) in parts {
        bytes[*at as usize..][..magic.len()].copy_from_slice(magic);
    }
    bytes
}

fn with(parts: &[(u64, &[u8])]) -> Option<String> {
    content(MemDevice::new("/disk", image(parts)).as_ref())
}

fn fs(kind: &str) -> Option<String> {
    Some(format!("a filesystem of type '{kind}'"))
}

#[test]
fn signatures_are_found() {
    assert_eq!(with(&[]), None);
    for (at, magic, name) in SIGNATURES {
        assert_eq!(with(&[(*at, magic)]), fs(name), "{name} at {at:#x}");
    }
    let (at, magic) = EXT_MAGIC;
    let magic: (u64, &[u8]) = (at, magic);
    assert_eq!(with(&[magic]), fs("ext2"));
    assert_eq!(with(&[magic, (0x45c, &[4])]), fs("ext3"));
    assert_eq!(with(&[magic, (0x45c, &[4]), (0x460, &[0xc2, 2])]), fs("ext4"));
    assert_eq!(with(&[NILFS]), fs("nilfs2"));
    // At the end: arrays of the versions 0.90 and 1.0, and firmware's.
    assert_eq!(with(&[(SIZE - 0x1_0000, RAID)]), fs(RAID_NAME));
    assert_eq!(with(&[(SIZE - 0x1_0000, RAID_SWAPPED)]), fs(RAID_NAME));
    assert_eq!(with(&[(SIZE - 0x2000, RAID)]), fs(RAID_NAME));
    assert_eq!(with(&[(SIZE - 512, &[0xde, 0x11, 0xde, 0x11])]), fs("ddf_raid_member"));
    assert_eq!(with(&[(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ")]), fs("isw_raid_member"));
    // In an array is what shows through.
    assert_eq!(with(&[(SIZE - 0x2000, RAID), magic]), fs(RAID_NAME));
    for size in [0, 512, 600, 0x10000, 0x10080, 100_000] {
        assert_eq!(content(MemDevice::new("/short", vec![0; size]).as_ref()), None, "{size}");
    }
    let mut short = vec![0; 1000];
    short[..4].copy_from_slice(b"XFSB");
    assert_eq!(content(MemDevice::new("/short", short).as_ref()), fs("xfs"));
}

#[test]
fn tables_of_partitions_are_found() {
    let table = |kind: &str| Some(format!("a partition table of type '{kind}'"));
    let end: (u64, &[u8]) = (510, &[0x55, 0xaa]);
    let protective: (u64, &[u8]) = (446 + 4, &[0xee]);
    assert_eq!(with(&[end, (446 + 16 + 4, &[0x83])]), table("dos"));
    assert_eq!(with(&[end, protective, (512, GPT)]), table("gpt"));
    assert_eq!(with(&[end, protective, (4096, GPT)]), table("gpt"));
    // The copy at the end, where the first one was overwritten.
    assert_eq!(with(&[(SIZE - 512, GPT)]), table("gpt"));
    assert_eq!(with(&[(SIZE - 4096, GPT)]), table("gpt"));
    for (at, magic, name) in OTHER_TABLES {
        assert_eq!(with(&[(at, magic)]), table(name));
    }
    // One with nothing in it.
    assert_eq!(with(&[end]), None);
    assert_eq!(with(&[end, (0x36, b"FAT16   "), (446, &[1; 64])]), fs("vfat"));
}

/// What programs that make file systems write is called as `blkid` calls it. Those that are not installed
/// are passed over, but for `mke2fs` and `mkswap`, which are part of every system.
#[test]
fn blkid_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let commands = [
        "mke2fs -q -F -t ext2",
        "mke2fs -q -F -t ext3",
        "mke2fs -q -F -t ext4",
        "mkswap -q",
        "mkswap -q -p 65536",
        "mkfs.xfs -q -f",
        "mkfs.btrfs -q -f",
        "mkfs.f2fs -q -f",
        "mkfs.vfat",
        "mkfs.vfat -F 32",
        "mkfs.exfat",
        "mkfs.ntfs -q -F -f",
        "mkfs.jfs -q",
        "mkfs.nilfs2 -q",
        "mkudffs",
        "pvcreate -q -f",
        "cryptsetup -q luksFormat --pbkdf-memory 64 --key-file /proc/self/exe --keyfile-size 32",
        "sfdisk -q --label gpt",
        "sfdisk -q --label dos",
    ];
    let mut judged = 0;
    for (number, line) in commands.into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        let made = made(line, &path);
        let must = ["mke2fs", "mkswap"].iter().any(|p| line.starts_with(p));
        assert!(made || !must, "{line}");
        if !made {
            continue;
        }
        let device = cenote_vdev::open_device(&path).unwrap();
        let found = content(device.as_ref());
        let probe = Command::new("blkid").arg("-p").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&probe.stdout).into_owned();
        let value = |name: &str| {
            let (_, rest) = said.split_once(&format!(" {name}=\""))?;
            rest.split_once('"').map(|(value, _)| value.to_string())
        };
        let expected = match (value("TYPE"), value("PTTYPE")) {
            (Some(kind), _) => fs(&kind),
            (None, Some(kind)) => Some(format!("a partition table of type '{kind}'")),
            (None, None) => panic!("{line}: {said} {probe:?}"),
        };
        assert_eq!(found, expected, "{line}");
        judged += 1;
    }
    assert!(judged >= 5, "{judged}");
}

/// Runs a command line on a file; false: there is no such program, or it refuses.
fn made(line: &str, path: &std::path::Path) -> bool {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).arg(path).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let Ok(mut child) = command.env("PATH", path).spawn() else { return false };
    // One partition, for a program that asks which.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"2048,2048\n");
    child.wait().unwrap().success()
}

/// What would be taken without being asked for has only zeros at its ends, and all of them can be read.
#[test]
fn only_what_is_known_to_be_zero_is_blank() {
    use crate::create::what_is_on;
    use cenote_vdev::inject::FaultyDevice;
    let large = 32 << 20;
    let zeros = || MemDevice::new("/disk", vec![0; large]);
    assert_eq!(what_is_on(zeros().as_ref()).unwrap(), None);
    for at in [7, 70_000, (4 << 20) - 1, large - (4 << 20), large - 1] {
        let device = zeros();
        device.bytes()[at] = 1;
        assert_eq!(what_is_on(device.as_ref()).unwrap().as_deref(), Some("is not empty"), "{at}");
        let device = FaultyDevice::new(zeros());
        let at = at as u64;
        device.fail(at..at + 1);
        assert!(what_is_on(device.as_ref()).is_err(), "{at}");
    }
    // A bad sector hides no file system.
    let device = zeros();
    device.bytes()[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    let device = FaultyDevice::new(device);
    device.fail(0x5000..0x5200);
    assert!(what_is_on(device.as_ref()).is_err());
}
