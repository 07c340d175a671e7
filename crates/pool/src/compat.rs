//! Sets of features that other systems understand, by the names of OpenZFS's compatibility files
//! (`zpool_load_compat`).
//!
//! The pool property `compatibility` names files, by their paths or in `/etc/zfs/compatibility.d` or
//! `/usr/share/zfs/compatibility.d`, each a list of features; several names mean the features that
//! are in all of them. `off` (or nothing) means all features, `legacy` no feature. The files that OpenZFS
//! ships are built in, for systems on which it is not installed; a file that exists comes first.

use cenote_format::features::FEATURES;
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

/// The OpenZFS release that this program presents itself as: features of later ones are understood,
/// and shown in pools that have them only.
pub const RELEASE: (u8, u8) = (2, 3);

/// Directories of compatibility files, first come first served.
const DIRECTORIES: [&str; 2] = ["/etc/zfs/compatibility.d", SYSTEM];
/// The one of them that belongs to the system.
const SYSTEM: &str = "/usr/share/zfs/compatibility.d";

/// Longest compatibility file, in bytes (`ZPOOL_COMPAT_MAXSIZE`).
const MAX_FILE: usize = 16 << 10;

/// The short names of the features that the value of `compatibility` asks for; `None` if a file is
/// not there or holds something that is no feature.
pub fn features(compatibility: &str) -> Option<HashSet<&'static str>> {
    let all: HashSet<&str> = FEATURES.iter().map(|f| f.name).collect();
    match compatibility {
        "" | "off" => Some(all),
        "legacy" => Some(HashSet::new()),
        names => names.split(',').try_fold(all, |wanted, name| {
            let file = set(name)?;
            Some(wanted.intersection(&file).copied().collect())
        }),
    }
}

/// The features of a file, by its name or whole path.
fn set(name: &str) -> Option<HashSet<&'static str>> {
    if name.starts_with('/') {
        return parse(&read(Path::new(name))?, false);
    }
    if name.contains('/') {
        return None;
    }
    let mut files = DIRECTORIES.iter().map(|d| Path::new(d).join(name));
    if let Some(path) = files.find(|path| path.exists()) {
        // Files of the system may be of a later release.
        return parse(&read(&path)?, path.starts_with(SYSTEM));
    }
    SHIPPED.iter().find(|(names, _)| names.contains(&name)).and_then(|(_, list)| parse(list, false))
}

/// A file of the size that it may have, which has its end. A pool may name any path: what is no file may
/// never end, or never begin.
fn read(path: &Path) -> Option<String> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mut text = String::new();
    let most = MAX_FILE as u64 + 1;
    std::fs::File::open(path).ok()?.take(most).read_to_string(&mut text).ok()?;
    (text.len() <= MAX_FILE && text.ends_with('\n')).then_some(text)
}

/// Features separated by blanks, commas and newlines; `#` begins a comment. What is no feature makes the
/// whole list wrong, or with `lenient` is passed over.
fn parse(text: &str, lenient: bool) -> Option<HashSet<&'static str>> {
    let words = text.lines().flat_map(|l| {
        let code = l.split('#').next().unwrap_or("");
        code.split([' ', ',', '\t']).filter(|w| !w.is_empty())
    });
    let known = |word| cenote_format::features::by_name(word).map(|f| f.name);
    words.map(known).filter(|name| name.is_some() || !lenient).collect()
}

/// The files that OpenZFS ships: names, features.
const SHIPPED: [(&[&str], &str); 25] = [
    (
        &["compat-2018", "2018"],
        "async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth \
         extensible_dataset embedded_data bookmarks filesystem_limits large_blocks",
    ),
    (
        &["compat-2019", "2019"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein",
    ),
    (
        &["compat-2020", "2020"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein",
    ),
    (
        &["compat-2021", "2021"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein device_removal obsolete_counts zpool_checkpoint \
         spacemap_v2",
    ),
    (
        &["freebsd-11.0", "freebsd-11.1", "freenas-11.0", "freenas-11.1"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein",
    ),
    (
        &["freebsd-11.2", "freenas-11.2"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein device_removal obsolete_counts zpool_checkpoint",
    ),
    (
        &[
            "freebsd-11.3",
            "freebsd-11.4",
            "freebsd-12.0",
            "freebsd-12.1",
            "freebsd-12.2",
            "freebsd-12.3",
            "freebsd-12.4",
            "freenas-11.3",
        ],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein device_removal obsolete_counts zpool_checkpoint \
         spacemap_v2",
    ),
    (
        &["freenas-9.10.2"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks",
    ),
    (
        &["grub2-2.06"],
        "async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth \
         embedded_data zpool_checkpoint spacemap_v2 allocation_classes resilver_defer \
         log_spacemap device_rebuild block_cloning",
    ),
    (
        &["grub2-2.12", "grub2"],
        "async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth \
         extensible_dataset embedded_data bookmarks filesystem_limits large_blocks \
         userobj_accounting project_quota zpool_checkpoint spacemap_v2 allocation_classes \
         resilver_defer log_spacemap livelist device_rebuild zilsaxattr block_cloning",
    ),
    (
        &["openzfs-2.0-freebsd", "truenas-12.0"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein userobj_accounting encryption project_quota \
         device_removal obsolete_counts zpool_checkpoint spacemap_v2 allocation_classes \
         resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets bookmark_written \
         log_spacemap livelist device_rebuild zstd_compress",
    ),
    (
        &["openzfs-2.0-linux"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets \
         bookmark_written log_spacemap livelist device_rebuild zstd_compress",
    ),
    (
        &["openzfs-2.1-freebsd", "freebsd-13.0", "freebsd-13.1", "freebsd-13.2"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein userobj_accounting encryption project_quota \
         device_removal obsolete_counts zpool_checkpoint spacemap_v2 allocation_classes \
         resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets bookmark_written \
         log_spacemap livelist device_rebuild zstd_compress draid",
    ),
    (
        &["openzfs-2.1-linux", "ubuntu-22.04"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets \
         bookmark_written log_spacemap livelist device_rebuild zstd_compress draid",
    ),
    (
        &["openzfs-2.2", "openzfs-2.2-linux", "openzfs-2.2-freebsd"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets \
         bookmark_written log_spacemap livelist device_rebuild zstd_compress draid zilsaxattr \
         head_errlog blake3 block_cloning vdev_zaps_v2",
    ),
    (
        &["openzfs-2.3", "openzfs-2.3-linux", "openzfs-2.3-freebsd"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets \
         bookmark_written log_spacemap livelist device_rebuild zstd_compress draid zilsaxattr \
         head_errlog blake3 block_cloning vdev_zaps_v2 redaction_list_spill raidz_expansion \
         fast_dedup longname large_microzap",
    ),
    (
        &["openzfs-2.4", "openzfs-2.4-linux", "openzfs-2.4-freebsd"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2 redaction_bookmarks redacted_datasets \
         bookmark_written log_spacemap livelist device_rebuild zstd_compress draid zilsaxattr \
         head_errlog blake3 block_cloning vdev_zaps_v2 redaction_list_spill raidz_expansion \
         fast_dedup longname large_microzap dynamic_gang_header block_cloning_endian \
         physical_rewrite",
    ),
    (
        &["openzfsonosx-1.7.0"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein edonr",
    ),
    (
        &["openzfsonosx-1.8.1"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks sha512 skein edonr device_removal obsolete_counts zpool_checkpoint \
         spacemap_v2",
    ),
    (
        &["openzfsonosx-1.9.3", "openzfsonosx-1.9.4"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2",
    ),
    (&["zol-0.6.1"], "async_destroy empty_bpobj lz4_compress"),
    (
        &["zol-0.6.4"],
        "async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth \
         extensible_dataset embedded_data bookmarks",
    ),
    (
        &["zol-0.6.5"],
        "async_destroy empty_bpobj lz4_compress spacemap_histogram enabled_txg hole_birth \
         extensible_dataset embedded_data bookmarks filesystem_limits large_blocks",
    ),
    (
        &["zol-0.7", "ubuntu-18.04"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting",
    ),
    (
        &["zol-0.8", "ubuntu-20.04"],
        "async_destroy empty_bpobj lz4_compress multi_vdev_crash_dump spacemap_histogram \
         enabled_txg hole_birth extensible_dataset embedded_data bookmarks filesystem_limits \
         large_blocks large_dnode sha512 skein edonr userobj_accounting encryption \
         project_quota device_removal obsolete_counts zpool_checkpoint spacemap_v2 \
         allocation_classes resilver_defer bookmark_v2",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_files_hold_known_features() {
        for (names, list) in SHIPPED {
            assert!(parse(list, false).is_some(), "{names:?}");
        }
        let old = features("openzfs-2.1-linux").unwrap();
        assert!(old.contains("draid") && !old.contains("blake3"));
        let both = features("openzfs-2.1-linux,grub2").unwrap();
        assert!(both.contains("lz4_compress") && !both.contains("draid"));
    }

    #[test]
    fn special_values() {
        assert_eq!(features("off").unwrap().len(), FEATURES.len());
        assert!(features("legacy").unwrap().is_empty());
        assert_eq!(features("no-such-file"), None);
        assert_eq!(features("../../passwd"), None);
        assert_eq!(features("/dev/zero"), None);
        assert_eq!(parse("lz4_compress # but not\nbookmarks", false).unwrap().len(), 2);
        assert_eq!(parse("lz4_compress later", true).unwrap().len(), 1);
        assert_eq!(parse("lz4_compress later", false), None);
    }

    #[test]
    fn files_are_whole_and_neither_empty_nor_large() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap();
        let most = format!("lz4_compress\n{}\n", " ".repeat(MAX_FILE - 14));
        for (text, found) in [
            ("lz4_compress\n", true),
            (&most, true),
            (&format!("{most}\n"), false),
            ("", false),
            ("lz4_compress", false),
            ("later\n", false),
        ] {
            std::fs::write(name, text).unwrap();
            assert_eq!(features(name).is_some(), found, "{} bytes", text.len());
        }
    }
}
