//! Pools are created, changed, exported, imported and destroyed by the real binary, and judged by
//! OpenZFS's `zdb`. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod history;
mod reports;

use common::{Done, Session, can_mount, mounts_below, skip};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SIZE: u64 = 128 << 20;

/// A place with sparse files to make pools of.
struct Bench {
    s: Session,
}

impl Bench {
    fn new() -> Bench {
        Bench { s: Session::new() }
    }

    fn devices(&self) -> PathBuf {
        let dir = self.s.path("dev");
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// A sparse file of this size, made anew.
    fn file(&self, name: &str, size: u64) -> String {
        let path = self.devices().join(name);
        fs::File::create(&path).unwrap().set_len(size).unwrap();
        path.to_str().unwrap().into()
    }

    /// `line` with each word of one letter made a file, which is there afterwards.
    fn with_files(&self, line: &str) -> String {
        let word = |word: &str| match word.len() {
            1 if self.devices().join(word).exists() => {
                self.devices().join(word).to_str().unwrap().to_string()
            }
            1 => self.file(word, SIZE),
            _ => word.to_string(),
        };
        line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    }

    fn run(&self, line: &str) -> Done {
        self.s.run(&self.with_files(line))
    }

    /// Output and complaint with the files' names as the lines have them.
    fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.devices().display()), "")
    }

    fn import(&self, pool: &str) {
        let (dir, root) = (self.devices(), self.s.root());
        self.s.run(&format!("zpool import -d {} -R {root} {pool}", dir.display())).ok();
    }

    /// OpenZFS finds nothing wrong with the exported pool `tank`.
    #[track_caller]
    fn judge(&self) {
        judge(&self.devices());
    }
}

fn zdb(dir: &Path, args: &[&str]) -> String {
    cenote_testpools::zdb(dir, "tank", args)
}

#[track_caller]
fn judge(dir: &Path) {
    cenote_testpools::judge(dir, "tank");
}

/// Creates, exports, judges, imports and destroys.
#[track_caller]
fn round_trip(layout: &str, shown: &[&str]) {
    let b = Bench::new();
    let root = b.s.root();
    let mount = if can_mount() { format!("-R {root}") } else { "-m none".into() };
    b.run(&format!("zpool create -f {mount} tank {layout}")).ok();
    let status = b.short(&b.run("zpool status tank").ok());
    for line in shown {
        assert!(status.contains(line), "{status}");
    }
    if can_mount() {
        for i in 0..20u8 {
            fs::write(Path::new(&root).join(format!("tank/{i}")), vec![i; 1 << 17]).unwrap();
        }
    }
    b.run("zpool sync").ok();
    b.run("zpool export tank").ok();
    b.judge();
    b.import("tank");
    assert_eq!(b.short(&b.run("zpool status tank").ok()), status);
    if can_mount() {
        assert_eq!(fs::read(Path::new(&root).join("tank/7")).unwrap(), vec![7; 1 << 17]);
        fs::remove_file(Path::new(&root).join("tank/8")).unwrap();
    }
    b.run("zpool export tank").ok();
    b.judge();
    b.import("tank");
    b.run("zpool destroy tank").ok();
    assert_eq!(b.run("zpool list").ok(), "no pools available\n");
    let dir = b.devices();
    let found = b.run(&format!("zpool import -D -d {}", dir.display())).ok();
    assert!(found.contains("pool: tank") && found.contains("(DESTROYED)"), "{found}");
}

/// All at once: `zdb` spends most of its time waiting.
#[test]
fn every_layout() {
    let layouts: &[(&str, &[&str])] = &[
        ("a b c", &["tank  ", "\n\t  a  ", "\n\t  b  ", "\n\t  c  "]),
        ("mirror a b mirror c d e", &["mirror-0", "mirror-1", "    e"]),
        ("raidz a b c", &["raidz1-0"]),
        ("raidz2 a b c d", &["raidz2-0"]),
        ("raidz3 a b c d e", &["raidz3-0"]),
        (
            "mirror a b special mirror c d dedup e log mirror f g cache h spare i",
            &[
                "special\t\n\t  mirror-1",
                "dedup\t\n\t  e",
                "logs\t\n\t  mirror-3",
                "cache\n\t  h",
                "spares\n\t  i",
            ],
        ),
    ];
    std::thread::scope(|scope| {
        for (layout, shown) in layouts {
            scope.spawn(|| round_trip(layout, shown));
        }
    });
}

#[test]
fn options_of_create() {
    let b = Bench::new();
    let root = b.s.root();
    b.run(&format!(
        "zpool create -o ashift=12 -o comment=mine -o compatibility=openzfs-2.1-linux \
         -o feature@edonr=disabled -o feature@blake3=enabled -O compression=zstd-5 -O atime=off \
         -O com.example:note=x -O casesensitivity=insensitive -m none -R {root} tank a"
    ));
    let get = |property: &str| {
        let text = b.run(&format!("zpool get -H -p -o value {property} tank")).ok();
        text.trim().to_string()
    };
    assert_eq!(get("ashift,comment,compatibility"), "12\nmine\nopenzfs-2.1-linux");
    assert_eq!(get("feature@edonr"), "disabled");
    assert_eq!(get("feature@blake3"), "enabled");
    assert_eq!(get("altroot"), root);
    assert_eq!(get("readonly"), "off");
    let fs = b
        .run(
            "zfs get -H -o value,source \
             compression,atime,com.example:note,casesensitivity,mountpoint tank",
        )
        .ok();
    assert_eq!(fs, "zstd-5\tlocal\noff\tlocal\nx\tlocal\ninsensitive\t-\nnone\tlocal\n");
    b.run("zpool export tank").ok();
    let dir = b.devices().display().to_string();
    for twice in ["-R M -o altroot=/x", "-o altroot=/x -R M", "-R /x -R M"] {
        let refused = b.run(&format!("zpool import -d {dir} {twice} tank")).fails(1);
        assert_eq!(refused, "property 'altroot' specified multiple times", "{twice}");
    }
    let refused = b.run("zpool import -o readonly=on -o readonly=off tank").fails(1);
    assert_eq!(refused, "property 'readonly' specified multiple times");
    b.run(&format!("zpool import -o cachefile=none -o cachefile=none -d {dir} tank")).ok();
    b.run("zpool export tank").ok();
    b.judge();
    assert!(zdb(&b.devices(), &["-C"]).contains("ashift: 12"));
}

#[test]
fn without_features() {
    let b = Bench::new();
    b.run("zpool create -d -o compatibility=openzfs-2.1-linux -m none tank a").ok();
    let states = b.run("zpool get -H -o property,value all tank").ok();
    let on: Vec<&str> =
        states.lines().filter(|l| l.starts_with("feature@") && !l.ends_with("disabled")).collect();
    assert_eq!(on, [""; 0]);
    let wants = b.run("zpool create -d -O checksum=sha512 -m none other b").fails(1);
    assert_eq!(wants, "cannot create 'other': operation not supported on this type of pool");
    b.run("zpool export tank").ok();
    b.import("tank");
    let said = b.run("zpool upgrade tank").ok();
    assert!(
        said.contains("Enabled the following features on 'tank':\n  async_destroy\n"),
        "{said}"
    );
    let said = b.run("zpool upgrade -a").ok();
    assert!(said.contains("Every feature flags pool already has all supported"), "{said}");
    let said = b.run("zpool set feature@blake3=enabled tank").fails(1);
    assert!(said.contains("as it is not specified in this pool's current compatibility set"));
    b.run("zpool export tank").ok();
    b.judge();
}

/// Whether the pool `tank` lacks features, which all that tell agree on. It is imported anew.
#[track_caller]
fn is_outdated(b: &Bench) -> bool {
    let notice = |text: &str| text.contains("Some supported ");
    let unmarked = |l: &str| l.starts_with("      ") && !l.ends_with("(*)");
    let outdated = notice(&b.run("zpool status tank").ok());
    assert_eq!(b.run("zpool upgrade").ok().lines().any(unmarked), outdated);
    b.run("zpool export tank").ok();
    b.judge();
    let dir = b.devices();
    let listed = b.run(&format!("zpool import -d {}", dir.display())).ok();
    assert_eq!(notice(&listed), outdated, "{listed}");
    b.run(&format!("zpool import -o readonly=on -d {} tank", dir.display())).ok();
    let status = b.run("zpool status tank").ok();
    assert_eq!(notice(&status), outdated, "{status}");
    b.run("zpool export tank").ok();
    b.import("tank");
    outdated
}

#[test]
fn features_that_a_pool_lacks() {
    for (options, outdated) in [
        ("", false),
        ("-d", true),
        ("-o feature@edonr=disabled", true),
        ("-o feature@blake3=enabled", false),
        ("-d -o compatibility=legacy", false),
        ("-o compatibility=openzfs-2.1-linux", false),
        ("-o compatibility=zol-0.8", false),
        ("-d -o compatibility=zol-0.8", true),
    ] {
        let b = Bench::new();
        b.run(&format!("zpool create {options} -m none tank a")).ok();
        assert_eq!(is_outdated(&b), outdated, "{options}");
        let said = b.run("zpool upgrade tank").ok();
        assert_eq!(said.contains("Enabled the following features"), outdated, "{said}");
        assert!(!is_outdated(&b), "{options}");
        b.run("zpool export tank").ok();
        b.judge();
    }
}

/// Checksums that OpenZFS 2.1 does not know can be had in a new pool, and cost it nothing there until
/// data is written with them.
#[test]
fn blake3_in_a_new_pool() {
    if !can_mount() {
        return skip("mounts");
    }
    let b = Bench::new();
    let root = b.s.root();
    b.run(&format!("zpool create -R {root} -O checksum=blake3 tank a")).ok();
    let state = |b: &Bench| b.run("zpool get -Ho value feature@blake3 tank").ok();
    assert_eq!(state(&b), "enabled\n");
    fs::write(format!("{root}/tank/file"), vec![7; 100_000]).unwrap();
    b.run("zpool sync tank").ok();
    assert_eq!(state(&b), "active\n");
    b.run("zpool export tank").ok();
    b.import("tank");
    assert_eq!(b.run("zfs get -Ho value checksum tank").ok(), "blake3\n");
    assert_eq!(fs::read(format!("{root}/tank/file")).unwrap(), vec![7; 100_000]);
    let looked_at = b.run("zdb -bcc tank");
    assert_eq!(looked_at.code, 0, "{looked_at:?}");
    let clean = "No leaks (block sum matches space maps exactly)";
    assert!(looked_at.out.contains(clean), "{looked_at:?}");
    b.run("zpool destroy tank").ok();

    b.run(&format!("zpool create -f -R {root} tank a")).ok();
    b.run("zfs create -o checksum=blake3 tank/b").ok();
    fs::write(format!("{root}/tank/b/file"), vec![7; 100_000]).unwrap();
    b.run("zfs snapshot tank/b@s").ok();
    assert_eq!(state(&b), "active\n");
    b.run("zfs destroy -r tank/b").ok();
    b.run("zpool sync tank").ok();
    assert_eq!(state(&b), "enabled\n");
    b.run("zpool export tank").ok();
    b.judge();
}

/// OpenZFS's `zdb` counts every log of a pool among the space maps with histograms.
#[test]
fn there_are_no_logs_where_space_maps_have_no_histograms() {
    for options in [
        "-o feature@spacemap_histogram=disabled",
        "-d -o feature@log_spacemap=enabled",
        "-d -o feature@spacemap_v2=enabled",
    ] {
        let b = Bench::new();
        b.run(&format!("zpool create {options} -m none tank a")).ok();
        for i in 0..5 {
            b.run(&format!("zfs create tank/{i}")).ok();
            b.run("zpool sync tank").ok();
        }
        b.run("zpool export tank").ok();
        b.judge();
        b.import("tank");
        b.run("zpool set feature@spacemap_histogram=enabled tank").ok();
        b.run("zpool set feature@log_spacemap=enabled tank").ok();
        for i in 5..10 {
            b.run(&format!("zfs create tank/{i}")).ok();
            b.run("zpool sync tank").ok();
        }
        let state = b.run("zpool get -H -o value feature@log_spacemap tank").ok();
        assert_eq!(state, "active\n", "{options}");
        b.run("zpool export tank").ok();
        b.judge();
    }
}

#[test]
fn a_dry_run_creates_nothing() {
    let b = Bench::new();
    let line = "zpool create -n tank raidz2 a b c mirror d e";
    let said = b.short(&b.run(line).fails(1));
    assert_eq!(
        said,
        "invalid vdev specification\nuse '-f' to override the following errors:\n\
         mismatched replication level: raidz and mirror vdevs with different redundancy, \
         2 vs. 1 (2-way) are present"
    );
    let line = "zpool create -fn tank raidz2 a b c mirror d e special f log g cache h spare i";
    let said = b.short(&b.run(line).ok());
    assert_eq!(
        said,
        "would create 'tank' with the following layout:\n\n\ttank\n\t  raidz2\n\t    a\n\t    b\n\
         \t    c\n\t  mirror\n\t    d\n\t    e\n\tspecial\n\t  f\n\tlogs\n\t  g\n\tcache\n\t  h\n\
         \tspares\n\t  i\n"
    );
    let dir = b.devices();
    let found = b.run(&format!("zpool import -d {}", dir.display()));
    assert_eq!(found.err, "no pools available to import\n");
    assert_eq!(b.s.daemon(), None);
}

#[test]
fn what_cannot_be_created_is_refused_in_openzfs_words() {
    let b = Bench::new();
    let small = b.file("small", 32 << 20);
    let said = |line: &str, code: i32| b.short(&b.run(line).fails(code));
    assert!(said("zpool create", 2).starts_with("missing pool name argument\nusage:\n\tcreate ["));
    assert!(said("zpool create tank", 2).starts_with("missing vdev specification\nusage:"));
    assert_eq!(said("zpool create -o comment tank a", 1), "missing '=' for -o option");
    assert_eq!(
        said("zpool create -o nonsense=1 tank a", 1),
        "property 'nonsense' is not a valid pool or vdev property"
    );
    assert_eq!(
        said("zpool create -O nonsense=1 tank a", 1),
        "property 'nonsense' is not a valid filesystem property"
    );
    assert_eq!(
        said("zpool create -o ashift=12 -o ashift=9 tank a", 1),
        "property 'ashift' specified multiple times"
    );
    assert_eq!(
        said("zpool create -o ashift=20 tank a", 1),
        "invalid 'ashift=20' property: only values between 9 and 16 are allowed."
    );
    assert_eq!(
        said("zpool create ta/nk a", 1),
        "cannot create 'ta/nk': invalid character '/' in pool name\n\
         use 'zfs create' to create a dataset"
    );
    assert_eq!(
        said("zpool create 1tank a", 1),
        "cannot create '1tank': name must begin with a letter\npool name may have been omitted"
    );
    assert_eq!(
        said("zpool create mirrors a", 1),
        "cannot create 'mirrors': name is reserved\npool name may have been omitted"
    );
    assert_eq!(
        said("zpool create -m relative tank a", 1),
        "invalid mountpoint 'relative': must be an absolute path, 'legacy', or 'none'"
    );
    let full = b.s.dir.path().display().to_string();
    assert_eq!(
        said(&format!("zpool create -m {full} tank a"), 1),
        format!(
            "mountpoint '{full}' exists and is not empty\n\
             use '-m' option to provide a different default"
        )
    );
    assert_eq!(
        said("zpool create -R rel tank a", 1),
        "invalid alternate root 'rel': must be an absolute path"
    );
    assert_eq!(
        said(&format!("zpool create -m none tank {small}"), 1),
        "cannot create 'tank': one or more devices is less than the minimum size (64M)"
    );
    assert_eq!(
        said("zpool create -m none tank mirror a", 1),
        "invalid vdev specification: mirror requires at least 2 devices"
    );
    assert_eq!(
        said("zpool create -o compatibility=nope -m none tank a", 1),
        "Error: could not read/parse feature file(s): nope ".trim_end()
    );
    assert_eq!(
        said("zpool create -o feature@nope=enabled -m none tank a", 1),
        "cannot create 'tank': feature 'nope' unsupported by kernel"
    );
    assert_eq!(
        said("zpool create -O recordsize=3K -m none tank a", 1),
        "cannot create 'tank': 'recordsize' must be power of 2 from 512B to 16M"
    );
    b.run("zpool create -m none tank a").ok();
    assert_eq!(said("zpool create -m none tank b", 1), "cannot create 'tank': pool already exists");
    assert_eq!(
        said("zpool create -m none other a", 1),
        "invalid vdev specification\nuse '-f' to override the following errors:\n\
         a is part of active pool 'tank'"
    );
    assert_eq!(
        said("zpool create -f -m none other a", 1),
        "invalid vdev specification\nthe following errors must be manually repaired:\n\
         a is part of active pool 'tank'"
    );
    b.run("zpool export tank").ok();
    assert_eq!(
        said("zpool create -m none other a", 1),
        "invalid vdev specification\nuse '-f' to override the following errors:\n\
         a is part of exported pool 'tank'"
    );
    b.run("zpool create -f -m none other a").ok();
    b.run("zpool export other").ok();
    cenote_testpools::judge(&b.devices(), "other");
}

#[test]
fn properties_are_set() {
    let b = Bench::new();
    b.run("zpool create -m none tank a").ok();
    b.run("zpool set comment=hello tank").ok();
    b.run("zpool delegation=off tank").ok();
    b.run("zpool set com.example:who=me tank").ok();
    b.run("zpool set bootfs=tank tank").ok();
    b.run("zpool set autoreplace=on tank").ok();
    let properties = "comment,delegation,com.example:who,bootfs,autoreplace";
    let get = || b.run(&format!("zpool get -H -o value,source {properties} tank")).ok();
    let expected = "hello\tlocal\noff\tlocal\nme\tlocal\ntank\tlocal\non\tlocal\n";
    assert_eq!(get(), expected);
    b.run("zpool export tank").ok();
    b.judge();
    b.import("tank");
    assert_eq!(get(), expected);
    let said = |line: &str, code| b.run(line).fails(code);
    let cannot = "cannot set property for 'tank':";
    assert_eq!(said("zpool set size=5 tank", 1), format!("{cannot} 'size' is readonly"));
    assert_eq!(said("zpool set nope=5 tank", 1), format!("{cannot} invalid property 'nope'"));
    assert_eq!(
        said("zpool set autotrim=maybe tank", 1),
        format!("{cannot} 'autotrim' must be one of 'on | off'")
    );
    assert_eq!(said("zpool set comment=x nope", 22), "cannot open 'nope': is not a pool");
    assert!(said("zpool set", 2).starts_with("missing property=value argument\n"));
    assert!(said("zpool set comment=x", 2).starts_with("missing pool name\n"));
    assert!(said("zpool set comment tank", 2).starts_with("missing value in property=value"));
    assert_eq!(
        said("zpool set comment=x tank nodisk", 22),
        "cannot find 'nodisk' in 'tank': device not in pool"
    );
    b.run("zpool export tank").ok();
    let dir = b.devices();
    b.run(&format!("zpool import -N -o readonly=on -d {} tank", dir.display())).ok();
    assert_eq!(said("zpool set comment=x tank", 1), format!("{cannot} pool is read-only"));
    // It is only let go of: nothing is written to its devices.
    b.run("zpool destroy tank").ok();
    b.import("tank");
}

#[test]
fn devices_are_added() {
    let b = Bench::new();
    let root = b.s.root();
    let mount = if can_mount() { format!("-R {root}") } else { "-m none".into() };
    b.run(&format!("zpool create {mount} tank mirror a b")).ok();
    let said = b.short(&b.run("zpool add tank c").fails(1));
    assert_eq!(
        said,
        "invalid vdev specification\nuse '-f' to override the following errors:\n\
         mismatched replication level: pool uses mirror and new vdev is file"
    );
    let said = b.run("zpool add -o ashift=12 tank mirror c d").fails(1);
    assert_eq!(
        said,
        "cannot add to 'tank': adding devices with different physical sector sizes is not allowed"
    );
    let plan = b.short(&b.run("zpool add -n tank mirror c d log e").ok());
    assert_eq!(
        plan,
        "would update 'tank' to the following configuration:\n\n\ttank\n\t  mirror-0\n\t    a\n\
         \t    b\n\t  mirror\n\t    c\n\t    d\n\tlogs\n\t  e\n"
    );
    b.run("zpool add tank mirror c d").ok();
    b.run("zpool add tank cache e spare f").ok();
    assert_eq!(
        b.run("zpool add tank spare f").fails(1),
        "cannot add to 'tank': one or more vdevs refer to the same device"
    );
    b.run("zpool add tank log g special mirror h i").ok();
    if can_mount() {
        for i in 0..40u8 {
            fs::write(Path::new(&root).join(format!("tank/{i}")), vec![i; 1 << 20]).unwrap();
        }
    }
    let status = b.short(&b.run("zpool status tank").ok());
    for line in ["mirror-1", "logs\t\n\t  g", "mirror-3", "cache\n\t  e", "spares\n\t  f"] {
        assert!(status.contains(line), "{status}");
    }
    let used = b.short(&b.run("zpool iostat -v tank").ok());
    assert!(used.contains("mirror-1") && used.contains("cache") && !used.contains("spare"));
    assert!(b.run("zpool add tank").fails(2).starts_with("missing vdev specification"));
    assert_eq!(b.run("zpool add nope j").fails(1), "cannot open 'nope': no such pool");
    b.run("zpool export tank").ok();
    b.judge();
    b.import("tank");
    assert_eq!(b.short(&b.run("zpool status tank").ok()), status);
    // Vdevs of a class are shown without their numbers.
    let plan = b.short(&b.run("zpool add -n tank special mirror j k").ok());
    assert!(
        plan.contains("\tspecial\n\t  mirror\n\t    h\n\t    i\n\t  mirror\n\t    j\n"),
        "{plan}"
    );
    // What `-f` allows can be allowed one by one.
    let sectors = b.run("zpool add --allow-replication-mismatch -o ashift=12 tank j").fails(1);
    assert!(sectors.contains("different physical sector sizes"), "{sectors}");
    let levels = b.run("zpool add --allow-ashift-mismatch --allow-in-use tank j").fails(1);
    assert!(levels.contains("mismatched replication level"), "{levels}");
    let twice = b.run("zpool add -f --allow-in-use tank j").fails(2);
    assert!(twice.starts_with("'-f' option is not allowed with"), "{twice}");
    let both = "--allow-replication-mismatch --allow-ashift-mismatch";
    b.run(&format!("zpool add {both} -o ashift=12 tank j")).ok();
    b.run("zpool export tank").ok();
    b.judge();
}

#[test]
fn a_pool_is_mounted_where_it_is_told_to_be() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (at, dir) = (b.s.path("elsewhere"), b.devices());
    b.run(&format!("zpool create -m {} tank a", at.display())).ok();
    assert_eq!(mounts_below(&at).len(), 1);
    let told = b.run("zfs get -Ho value,source mountpoint tank").ok();
    assert_eq!(told, format!("{}\tlocal\n", at.display()));
    fs::write(at.join("file"), "kept").unwrap();
    b.run("zpool export tank").ok();
    assert!(!at.join("file").exists());
    b.s.run(&format!("zpool import -d {} tank", dir.display())).ok();
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "kept");
    b.run("zpool export tank").ok();
    b.judge();
}

#[test]
fn a_pool_that_is_too_small_for_what_its_root_is_to_have_is_not_made() {
    let b = Bench::new();
    for setting in ["reservation=1T", "refreservation=1T", "quota=1", "refquota=1"] {
        let failed = b.run(&format!("zpool create -m none -O {setting} tank a")).fails(1);
        assert_eq!(
            failed, "cannot create 'tank': one or more devices is out of space",
            "{setting}"
        );
        assert_eq!(b.run("zpool list").ok(), "no pools available\n");
    }
    b.run("zpool create -m none -O reservation=20M -O refquota=30M tank a").ok();
    let told = b.run("zfs get -Hpo value reservation,refquota tank").ok();
    assert_eq!(told, "20971520\n31457280\n");
    b.run("zpool export tank").ok();
    b.judge();
}

#[test]
fn labels_are_cleared() {
    let b = Bench::new();
    b.run("zpool create -m none tank a").ok();
    let said = |line: &str, code| b.short(&b.run(line).fails(code));
    assert_eq!(said("zpool labelclear a", 1), "a is a member (ACTIVE) of pool \"tank\"");
    assert_eq!(
        said("zpool labelclear -f a", 1),
        "a is a member (ACTIVE) of pool \"tank\". Offline the disk first to clear its label."
    );
    b.run("zpool export tank").ok();
    assert_eq!(
        said("zpool labelclear a", 1),
        "use '-f' to override the following error:\na is a member of exported pool \"tank\""
    );
    b.run("zpool labelclear -f a").ok();
    assert_eq!(said("zpool labelclear a", 255), "failed to clear label for a");
    assert_eq!(
        said("zpool labelclear /nonexistent", 1),
        "failed to open /nonexistent: No such file or directory"
    );
    assert!(said("zpool labelclear", 2).starts_with("missing vdev name\n"));
    b.run("zpool create -m none tank a").ok();
    b.run("zpool export tank").ok();
    b.judge();
}

#[test]
fn what_another_daemon_has_is_not_imported() {
    let b = Bench::new();
    let (one, two) = (b.file("a", 128 << 20), b.file("b", 128 << 20));
    b.run(&format!("zpool create -O canmount=off tank mirror {one} {two}")).ok();
    let import = |how: &str| {
        let mut command = b.s.command();
        command.env("CENOTE_SOCKET", b.s.path("other"));
        let line = format!("zpool import {how} -N -d {} tank", b.devices().display());
        let output = command.args(line.split(' ')).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    for how in ["-f", "-f -o readonly=off"] {
        let (code, text) = import(how);
        assert_eq!(code, Some(1), "{text}");
        let words = "cannot import 'tank': one or more devices are already in use";
        assert!(text.contains(words) && text.contains(&one) && text.contains(&two), "{text}");
    }
    b.run("zpool export tank").ok();
    assert_eq!(import("-f").0, Some(0));
    let mut end = b.s.command();
    end.env("CENOTE_SOCKET", b.s.path("other"));
    assert!(end.args(["daemon", "stop"]).status().unwrap().success());
    judge(&b.devices());
}

#[test]
fn ordinary_users_have_pools_too() {
    if !can_mount() {
        return;
    }
    const NOBODY: u32 = 65534;
    let b = Bench::new();
    fs::set_permissions(b.s.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = b.s.path("nobody");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = |program: &str, line: &str| {
        let mut command = match program {
            "cenote" => b.s.command(),
            program => Command::new(program),
        };
        command.env("CENOTE_SOCKET", dir.join("socket")).current_dir("/").uid(NOBODY).gid(NOBODY);
        let output = command.args(line.split_whitespace()).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let (device, root) = (dir.join("disk"), dir.join("root"));
    let (shown, mnt) = (device.display(), root.join("tank"));
    as_nobody("truncate", &format!("-s 256M {shown}")).ok();
    let done = as_nobody("cenote", &format!("zpool create -R {} tank {shown}", root.display()));
    if done.code == 0 {
        as_nobody("mkdir", mnt.join("dir").to_str().unwrap()).ok();
        let copy = format!("/etc/passwd {}", mnt.join("dir/passwd").display());
        as_nobody("cp", &copy).ok();
        let read = as_nobody("cat", mnt.join("dir/passwd").to_str().unwrap()).ok();
        assert_eq!(read, fs::read_to_string("/etc/passwd").unwrap());
    } else {
        skip(&format!("mounts by fusermount3 do not work here: {}", done.err));
    }
    let history = as_nobody("cenote", "zpool history -l tank").ok();
    assert!(history.contains(&format!("[user {NOBODY} ")), "{history}");
    // Root is a user of this daemon as well.
    let mut by_root = b.s.command();
    by_root.env("CENOTE_SOCKET", dir.join("socket"));
    assert!(by_root.args(["zpool", "set", "comment=x", "tank"]).status().unwrap().success());
    let history = as_nobody("cenote", "zpool history -l tank").ok();
    assert!(history.contains("zpool set comment=x tank [user 0 "), "{history}");
    as_nobody("cenote", "zpool export tank").ok();
    // An image that the user may not read is named by whatever looks for pools.
    chown(&device, Some(0), Some(0)).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o600)).unwrap();
    let (complaint, at) = (format!("cannot open '{shown}': Permission denied"), dir.display());
    for (line, code, why) in [
        ("zpool import -d", 0, "no pools available to import"),
        ("zpool import tank -d", 1, "cannot import 'tank': no such pool available"),
    ] {
        let said = as_nobody("cenote", &format!("{line} {at}")).fails(code);
        assert_eq!(said, format!("{complaint}\n{why}"), "{line}");
    }
    let said = as_nobody("cenote", &format!("zdb tank -e -p {at}")).fails(1);
    assert_eq!(said, format!("zdb: can't open 'tank': {complaint}"));
    let said = as_nobody("cenote", &format!("ls -d {at} tank:/")).fails(1);
    assert!(said.contains(&complaint), "{said}");
    as_nobody("cenote", "daemon stop").ok();
    judge(&dir);
}

/// A directory on a file system of its own that is soon full.
struct Small(PathBuf);

impl Small {
    fn new(at: PathBuf, size: &str) -> Small {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&at);
        assert!(mounted.status().unwrap().success());
        Small(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_pool_whose_device_fails_is_suspended() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let small = Small::new(b.s.path("small"), "16M");
    let device = small.0.join("disk");
    fs::File::create(&device).unwrap().set_len(SIZE).unwrap();
    let root = b.s.root();
    // Programs that write get an error, and do not wait.
    let options = format!("-o failmode=continue -O compression=off -R {root}");
    b.run(&format!("zpool create {options} tank {}", device.display())).ok();
    let file = Path::new(&root).join("tank/large");
    // The device cannot take all of this. Whether writing already fails is a matter of time.
    let _ = fs::write(file, vec![7; 32 << 20]);
    let said = b.run("zpool sync").fails(1);
    assert_eq!(said, "sync 'tank' failed: pool I/O is currently suspended");
    assert_eq!(b.run("zpool list -Ho health").ok(), "SUSPENDED\n");
    let status = b.run("zpool status").ok();
    assert!(status.contains(" state: SUSPENDED\nstatus: One or more devices are"), "{status}");
    let why = "pool I/O is currently suspended";
    assert_eq!(
        b.run("zpool set comment=x tank").fails(1),
        format!("cannot set property for 'tank': {why}")
    );
    b.run("zfs unmount -f tank");
    assert_eq!(b.run("zpool export tank").fails(1), format!("cannot export 'tank': {why}"));
    b.run("zpool export -f tank").ok();
    // It is as the last transaction group left it.
    b.run(&format!("zpool import -N -o readonly=on -d {} tank", small.0.display())).ok();
    assert_eq!(b.run("zpool list -Ho health").ok(), "ONLINE\n");
    b.run("zpool export tank").ok();
    judge(&small.0);
}
