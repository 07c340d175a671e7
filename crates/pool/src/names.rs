//! Names of vdevs.
//!
//! They are OpenZFS's (`zpool_vdev_name`): `mirror-0`, a path without the directories that devices are looked for
//! in, or the guid of a leaf that could not be opened.

use crate::config;
use cenote_format::nvlist::NvList;
use cenote_vdev::look;
use std::path::Path;

/// Where OpenZFS looks for devices, and for names that are not paths, when it is not told where to.
pub const DEFAULT_DIRS: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// How vdevs are named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameStyle {
    /// `-P`: full paths.
    pub full_path: bool,
    /// `-L`: what links lead to.
    pub follow_links: bool,
    /// `-g`: guids.
    pub guid: bool,
}

/// A vdev's name by its config: `mirror-0`, `raidz2-1`, `sda`, `/images/1.img` (`zpool_vdev_name`).
pub fn vdev_name(config: &NvList, style: &NameStyle) -> String {
    let kind = config.str("type").unwrap_or("unknown");
    let not_present = config::flag(config, "not_present");
    if style.guid || not_present {
        return config::number(config, "guid").to_string();
    }
    let Some(path) = config.str("path") else {
        return format!("{}-{}", group_name(config, kind), config::number(config, "id"));
    };
    let resolved = style.follow_links.then(|| look::resolved(Path::new(path))).flatten();
    let path = resolved.as_ref().and_then(|p| p.to_str()).unwrap_or(path);
    if style.full_path || kind != "disk" {
        return path.to_string();
    }
    let name = strip_directory(path);
    if config::flag(config, "whole_disk") { strip_partition(name) } else { name.to_string() }
}

/// `raidz2`, `draid1:2d:5c:1s`, `mirror`.
fn group_name(config: &NvList, kind: &str) -> String {
    let number = |name| config::number(config, name);
    match kind {
        "raidz" => format!("raidz{}", number("nparity")),
        "draid" => format!(
            "draid{}:{}d:{}c:{}s",
            number("nparity"),
            number("draid_ndata"),
            config::children(config).len(),
            number("draid_nspares")
        ),
        other => other.to_string(),
    }
}

/// Takes off the directory, if it is one where devices are looked for (`zfs_strip_path`).
fn strip_directory(path: &str) -> &str {
    let name = |dir: &&str| path.strip_prefix(dir)?.strip_prefix('/');
    DEFAULT_DIRS.iter().find_map(name).unwrap_or(path)
}

/// Takes the partition off a device's name (`zfs_strip_partition`): `sda1` → `sda`, `nvme0n1p1` → `nvme0n1`, `ata-X-part1` →
/// `ata-X`.
fn strip_partition(name: &str) -> String {
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = digits.len() < name.len();
    let whole = match digits {
        d if !numbered => d,
        d if d.ends_with("-part") => d.trim_end_matches("-part"),
        d if d.ends_with('p')
            && d.trim_end_matches('p').ends_with(|c: char| c.is_ascii_digit()) =>
        {
            d.trim_end_matches('p')
        }
        d if ["sd", "hd", "vd", "xvd"].iter().any(|p| d.starts_with(p)) => d,
        _ => name,
    };
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::nvlist::NvValue;

    fn vdev(pairs: &[(&str, NvValue)]) -> NvList {
        NvList { pairs: pairs.iter().map(|(n, v)| (n.to_string(), v.clone())).collect() }
    }

    fn s(v: &str) -> NvValue {
        NvValue::String(v.into())
    }

    #[test]
    fn names() {
        let plain = NameStyle::default();
        let n = NvValue::Uint64;
        let raidz = vdev(&[("type", s("raidz")), ("id", n(3)), ("nparity", n(2)), ("guid", n(9))]);
        assert_eq!(vdev_name(&raidz, &plain), "raidz2-3");
        assert_eq!(vdev_name(&raidz, &NameStyle { guid: true, ..plain }), "9");
        let disk = vdev(&[("type", s("disk")), ("path", s("/dev/sda1")), ("whole_disk", n(1))]);
        assert_eq!(vdev_name(&disk, &plain), "sda");
        assert_eq!(vdev_name(&disk, &NameStyle { full_path: true, ..plain }), "/dev/sda1");
        let link = vdev(&[("type", s("disk")), ("path", s("/dev/disk/by-id/ata-X"))]);
        assert_eq!(vdev_name(&link, &plain), "ata-X");
        let file = vdev(&[("type", s("file")), ("path", s("/images/1.img"))]);
        assert_eq!(vdev_name(&file, &plain), "/images/1.img");
        let gone =
            vdev(&[("type", s("file")), ("path", s("/x")), ("guid", n(5)), ("not_present", n(1))]);
        assert_eq!(vdev_name(&gone, &plain), "5");
    }

    #[test]
    fn partitions() {
        for (name, whole) in [
            ("sda1", "sda"),
            ("nvme0n1p1", "nvme0n1"),
            ("ata-WDC_X-part1", "ata-WDC_X"),
            ("loop0", "loop0"),
            ("wwn-0x5000", "wwn-0x5000"),
            ("sdb", "sdb"),
        ] {
            assert_eq!(strip_partition(name), whole);
        }
    }
}
