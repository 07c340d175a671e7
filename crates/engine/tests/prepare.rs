//! Devices are checked, described and labelled: in memory, as files, and before the eyes of
//! OpenZFS's `zdb`. Where it is not installed one of these tests fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::outside::Chance;
use cenote_engine::create::*;
use cenote_format::abd::Abd;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::config_write::PoolConfig;
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_testpools::{zdb_command, zdb_output};
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, VdevState, VdevTree, WriteReq, init_labels, label_owner, read_labels};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LABELS: u64 = 9 * MIB / 2;

/// Devices in memory, by name; `/disk…` are disks of 4 KiB physical sectors.
#[derive(Default)]
struct Shelf {
    devices: HashMap<PathBuf, Arc<MemDevice>>,
}

impl Shelf {
    fn of(devices: &[(&str, u64)]) -> Shelf {
        let device = |(name, mib): &(&str, u64)| {
            (PathBuf::from(name), MemDevice::new(name, vec![0; (mib * MIB) as usize]))
        };
        Shelf { devices: devices.iter().map(device).collect() }
    }

    fn get(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let device = self.devices.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(device)
    }
}

impl OpenDevices for Shelf {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        let device = self.devices.get(name).ok_or(io::ErrorKind::NotFound)?;
        let disk = name.to_string_lossy().starts_with("/disk");
        let opened = Opened {
            kind: if disk { LeafKind::Disk } else { LeafKind::File },
            identity: (0, Arc::as_ptr(device) as usize as u64),
            logical_shift: 9,
            physical_shift: if disk { 12 } else { 9 },
        };
        Ok((name.to_path_buf(), opened))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        self.get(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        self.get(path)
    }
}

fn layout(line: &str) -> Layout {
    let args: Vec<String> = line.split_whitespace().map(String::from).collect();
    parse(&args).unwrap()
}

struct Try<'a> {
    devices: &'a dyn OpenDevices,
    ashift: u64,
    force: bool,
    pool: Option<&'a NvList>,
    imported: &'a [Imported],
}

impl<'a> Try<'a> {
    fn with(devices: &'a dyn OpenDevices) -> Try<'a> {
        Try { devices, ashift: 0, force: false, pool: None, imported: &[] }
    }

    fn go(&self, line: &str) -> Result<Prepared, String> {
        prepare(&CreateSpec {
            name: "tank",
            layout: &layout(line),
            ashift: self.ashift,
            force: self.force.into(),
            pool: self.pool,
            txg: FIRST_TXG,
            imported: self.imported,
            devices: self.devices,
            chance: &Chance::default(),
        })
        .map_err(|e| e.to_string())
    }
}

/// A shelf of devices that may not be written to.
struct Locked(Shelf);

impl OpenDevices for Locked {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        self.0.find(name)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        self.0.open(path)
    }

    fn open_rw(&self, _: &Path) -> io::Result<Arc<dyn Device>> {
        Err(rustix::io::Errno::PERM.into())
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_named() {
    let locked = Locked(Shelf::of(&[("/disk1", 64)]));
    let error = Try::with(&locked).go("/disk1").err().unwrap();
    assert_eq!(error, "cannot open '/disk1': Operation not permitted");
}

fn pool_of(p: &Prepared) -> PoolConfig {
    PoolConfig::new("tank", p.pool_guid, p.root.clone())
}

fn built(p: &Prepared) -> Arc<VdevTree> {
    p.tree(&mut |_, _| None).unwrap()
}

/// Every layout: sizes as OpenZFS computes them, a tree that is healthy once there are labels.
#[test]
fn layouts_become_trees() {
    let names = ["/a", "/b", "/c", "/d", "/e"];
    for (line, asizes) in [
        ("/a", vec![64 * MIB - LABELS]),
        ("/a /b", vec![64 * MIB - LABELS; 2]),
        ("mirror /a /b /c", vec![64 * MIB - LABELS]),
        ("raidz /a /b", vec![2 * (64 * MIB - LABELS)]),
        ("raidz1 /a /b /c", vec![3 * (64 * MIB - LABELS)]),
        ("raidz2 /a /b /c /d", vec![4 * (64 * MIB - LABELS)]),
        ("raidz3 /a /b /c /d /e", vec![5 * (64 * MIB - LABELS)]),
        ("/a log /b", vec![64 * MIB - LABELS; 2]),
        ("mirror /a /b special mirror /c /d", vec![64 * MIB - LABELS; 2]),
    ] {
        for ashift in [0, 12] {
            let shelf = Shelf::of(&names.map(|n| (n, 64)));
            let p = Try { ashift, ..Try::with(&shelf) }.go(line).unwrap();
            write_labels(&p, &pool_of(&p)).unwrap();
            let tree = built(&p);
            let tops = tree.root().children();
            let got: Vec<u64> = tops.iter().map(|t| t.asize()).collect();
            assert_eq!(got, asizes, "{line}");
            assert!(tree.leaves().iter().all(|l| l.state() == VdevState::Healthy), "{line}");
            assert!(tops.iter().all(|t| t.ashift() == ashift.max(9) as u32));
            assert_eq!(config::guid_sum(&p.root), {
                let mut sum = p.pool_guid;
                for t in tops {
                    sum = sum.wrapping_add(t.guid());
                    t.children().iter().for_each(|c| sum = sum.wrapping_add(c.guid()));
                }
                sum
            });
        }
    }
}

#[test]
fn labels_say_what_they_are_for() {
    let shelf = Shelf::of(&["/a", "/b", "/l", "/s", "/c"].map(|n| (n, 64)));
    let p = Try::with(&shelf).go("mirror /a /b log /l spare /s cache /c").unwrap();
    write_labels(&p, &pool_of(&p)).unwrap();
    let label = |name: &str| {
        let device = shelf.get(Path::new(name)).unwrap();
        read_labels(device.as_ref()).unwrap().unwrap().config
    };
    let a = label("/a");
    assert_eq!((a.u64("txg"), a.u64("create_txg"), a.u64("state")), (Some(0), Some(4), Some(0)));
    let top = a.list("vdev_tree").unwrap();
    assert_eq!(a.u64("top_guid"), top.u64("guid"));
    assert_eq!(a.u64("guid"), config::children(top)[0].u64("guid"));
    assert_eq!(label("/l").u64("is_log"), Some(1));
    assert!(!label("/l").list("vdev_tree").unwrap().contains("alloc_bias"));
    assert_eq!(label("/s").u64("state"), Some(config::STATE_SPARE));
    assert_eq!(label("/c").u64("state"), Some(config::STATE_L2CACHE));
    assert_eq!(label("/c").u64("ashift"), Some(9));
    // Until the first transaction group they belong to no pool.
    assert!(label_owner(shelf.get(Path::new("/a")).unwrap().as_ref()).unwrap().is_none());
    assert_eq!((p.spares.len(), p.caches.len()), (1, 1));
}

#[test]
fn sectors_decide_on_ashift() {
    let shelf = Shelf::of(&[("/disk1", 64), ("/disk2", 64), ("/a", 64)]);
    let ashift = |line: &str, asked| {
        let p = Try { ashift: asked, force: true, ..Try::with(&shelf) }.go(line).unwrap();
        config::children(&p.root)[0].u64("ashift").unwrap()
    };
    assert_eq!(ashift("/disk1", 0), 12);
    assert_eq!(ashift("/disk1", 9), 9);
    assert_eq!(ashift("mirror /disk1 /disk2", 0), 12);
    assert_eq!(ashift("mirror /a /disk2", 0), 12);
    assert_eq!(ashift("/a", 0), 9);
    assert_eq!(ashift("/a", 13), 13);
    let p = Try::with(&shelf).go("/disk1").unwrap();
    let top = &config::children(&p.root)[0];
    assert_eq!((top.str("type"), top.u64("whole_disk")), (Some("disk"), Some(0)));
    let error = Try { ashift: 17, ..Try::with(&shelf) }.go("/a").err().unwrap();
    assert!(error.starts_with("invalid 'ashift=17' property: only values between 9 and 16"));
}

/// The devices of this system, with another host that is quicker: before one is opened for writing it has a pool there.
struct Raced;

impl OpenDevices for Raced {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        SystemDevices.find(name)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        SystemDevices.open(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let first = SystemDevices.open_rw(path)?;
        let label = Abd::from_vec(vec![7; 512]);
        first.write_batch(&mut [WriteReq::new(16 << 10, label)]);
        first.flush()?;
        drop(first);
        SystemDevices.open_rw(path)
    }
}

#[test]
fn a_pool_that_was_made_meanwhile_in_an_object_store_stays() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("file://{}", dir.path().display());
    let root = dir.path().join("commits/0000000000000000");
    for force in [false, true] {
        let error = Try { force, ..Try::with(&Raced) }.go(&name).err().unwrap();
        assert!(error.contains("is not empty: delete what is below it"), "{error}");
        assert!(root.exists());
    }
    // It was seen to be empty, opened, and then taken: the root is created and no other one replaced.
    let dir = tempfile::tempdir().unwrap();
    let name = format!("file://{}", dir.path().display());
    let prepared = Try::with(&SystemDevices).go(&name).unwrap();
    let device = prepared.devices().next().unwrap().2;
    std::fs::create_dir(dir.path().join("commits")).unwrap();
    std::fs::write(dir.path().join("commits/0000000000000000"), "another's").unwrap();
    device.write_batch(&mut [WriteReq::new(16 << 10, Abd::from_vec(vec![7; 512]))]);
    device.flush().unwrap_err();
    assert!(!device.growing().unwrap().erase().unwrap());
    assert!(dir.path().join("commits/0000000000000000").exists());
}

#[test]
fn classes_need_their_feature() {
    let shelf = Shelf::of(&[]);
    let layout = layout("/a special /b");
    let spec = CreateSpec {
        name: "tank",
        layout: &layout,
        ashift: 0,
        force: false.into(),
        pool: None,
        txg: FIRST_TXG,
        imported: &[],
        devices: &shelf,
        chance: &Chance::default(),
    };
    let check = |none| {
        let choice = FeatureChoice { none, ..FeatureChoice::default() };
        check_features(&spec, &choose_features(&choice).unwrap().0).map_err(|e| e.to_string())
    };
    assert_eq!(check(false), Ok(()));
    let why = "cannot create 'tank': operation not supported on this type of pool";
    assert_eq!(check(true), Err(why.into()));
}

#[test]
fn devices_with_file_systems_are_spared() {
    for name in ["/disk1", "/file"] {
        spares(name);
    }
}

fn spares(name: &str) {
    let shelf = Shelf::of(&[(name, 64)]);
    shelf.devices[Path::new(name)].bytes()[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    let error = Try::with(&shelf).go(name).err().unwrap();
    assert_eq!(error, format!("{OVERRIDE}{name} contains a filesystem of type 'ext2'"));
    let p = Try { force: true, ..Try::with(&shelf) }.go(name).unwrap();
    write_labels(&p, &pool_of(&p)).unwrap();
    assert_eq!(shelf.devices[Path::new(name)].bytes()[0x438], 0);
}

const OVERRIDE: &str = "invalid vdev specification\nuse '-f' to override the following errors:\n";

#[test]
fn what_does_not_match_is_refused() {
    let mut devices = vec![("/small", 32), ("/big", 256), ("/disk1", 128)];
    devices.extend(["/a", "/b", "/c", "/d", "/e"].map(|n| (n, 128)));
    devices.extend(["/x", "/y", "/z"].map(|n| (n, 64)));
    let shelf = Shelf::of(&devices);
    for (line, why) in [
        ("mirror /a /b /c", None),
        ("mirror /a /b raidz /c /d /e", None),
        ("mirror /a /b log /c", None),
        ("mirror /a /b /c", None),
        ("/a mirror /b /c", Some("both file and mirror vdevs are present")),
        (
            "mirror /a /b raidz2 /c /d /e",
            Some("raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present"),
        ),
        ("mirror /a /b mirror /c /d /e", Some("both 2-way and 3-way mirror vdevs are present")),
        (
            "raidz /a /b raidz2 /c /d /e",
            Some("raidz and raidz vdevs with different redundancy, 1 vs. 2 are present"),
        ),
        ("raidz /a /b raidz /c /d /e", None),
        ("draid /a /b draid /c /d /e", None),
        ("mirror /a /disk1", Some("mirror contains both files and devices")),
        ("mirror /a /b special /c", Some("both mirror and file vdevs are present")),
    ] {
        let result = Try::with(&shelf).go(line).err();
        let why = why.map(|w| format!("{OVERRIDE}mismatched replication level: {w}"));
        assert_eq!(result, why, "{line}");
        assert!(Try { force: true, ..Try::with(&shelf) }.go(line).is_ok(), "{line}");
    }
    let error = |line: &str| Try::with(&shelf).go(line).err().unwrap();
    assert_eq!(
        error("raidz /a /b /big"),
        format!("{OVERRIDE}raidz contains devices of different sizes")
    );
    // Of these dRAID has one row, which is less than OpenZFS opens.
    for small in ["/small", "draid /x /y", "draid1:1d:3c /x /y /z"] {
        assert_eq!(
            error(small),
            "cannot create 'tank': one or more devices is less than the minimum size (64M)"
        );
    }
    assert!(Try::with(&shelf).go("raidz /x /y").is_ok());
    assert_eq!(
        error("/a /a"),
        "cannot create 'tank': one or more vdevs refer to the same device, or one of\n\
         the devices is part of an active md or lvm device"
    );
    assert_eq!(error("/nope"), "cannot resolve path '/nope'");
    assert_eq!(
        error("nope"),
        "cannot open 'nope': no such device in /dev\nmust be a full path or shorthand device name"
    );
    assert_eq!(
        error("log /a"),
        format!("{OVERRIDE}at least one general top-level vdev must be specified")
    );
    assert_eq!(
        Try { force: true, ..Try::with(&shelf) }.go("log /a").err().unwrap(),
        "invalid vdev specification\nthe following errors must be manually repaired:\n\
         at least one general top-level vdev must be specified"
    );
    assert_eq!(
        error("spare /a"),
        "invalid vdev specification: at least one toplevel vdev must be specified"
    );
}

/// A label of a pool in this state.
fn owned(state: u64, pool_guid: u64, guid: u64) -> NvList {
    let mut label = NvList::default();
    label.set("name", NvValue::String("other".into()));
    label.set("state", NvValue::Uint64(state));
    label.set("txg", NvValue::Uint64(7));
    label.set("pool_guid", NvValue::Uint64(pool_guid));
    label.set("guid", NvValue::Uint64(guid));
    label
}

#[test]
fn devices_of_others_are_refused() {
    let names = ["/active", "/exported", "/destroyed", "/imported", "/gone", "/spare", "/free"];
    let shelf = Shelf::of(&names.map(|n| (n, 64)));
    for (name, state, pool, guid) in [
        ("/active", config::STATE_ACTIVE, 1, 11),
        ("/exported", config::STATE_EXPORTED, 2, 12),
        ("/destroyed", config::STATE_DESTROYED, 3, 13),
        ("/imported", config::STATE_ACTIVE, 9, 14),
        ("/gone", config::STATE_ACTIVE, 9, 15),
        ("/spare", config::STATE_SPARE, 0, 16),
    ] {
        let device = shelf.get(Path::new(name)).unwrap();
        init_labels(device.as_ref(), &owned(state, pool, guid)).unwrap();
    }
    let imported = [Imported {
        name: "other".into(),
        guid: 9,
        devices: vec![14],
        spares: vec![16],
        caches: vec![],
    }];
    let go =
        |line: &str, force| Try { force, imported: &imported, ..Try::with(&shelf) }.go(line).err();
    let refused = |line: &str| format!("{OVERRIDE}{line}");
    for (line, why) in [
        ("/active", "/active is part of potentially active pool 'other'"),
        ("/exported", "/exported is part of exported pool 'other'"),
    ] {
        assert_eq!(go(line, false), Some(refused(why)));
        assert_eq!(go(line, true), None);
    }
    for (line, why) in [
        ("/imported", "/imported is part of active pool 'other'"),
        ("/spare", "/spare is reserved as a hot spare for pool other"),
    ] {
        assert_eq!(go(line, false), Some(refused(why)));
        assert!(go(line, true).unwrap().ends_with(why));
    }
    assert_eq!(go("/destroyed /gone /free", false), None);
    assert_eq!(
        go("/active /exported", false),
        Some(refused(
            "/active is part of potentially active pool 'other'\n\
             /exported is part of exported pool 'other'"
        ))
    );
    // A spare is shared between pools as it is.
    let p = Try { imported: &imported, ..Try::with(&shelf) }.go("/free spare /spare").unwrap();
    assert_eq!(p.spares[0].u64("guid"), Some(16));
    assert!(p.device(16).is_none());
}

#[test]
fn vdevs_are_added_behind_those_there_are() {
    let shelf = Shelf::of(&["/a", "/b", "/c", "/d", "/e"].map(|n| (n, 64)));
    let first = Try::with(&shelf).go("mirror /a /b").unwrap();
    let mut pool = pool_of(&first);
    // A log was removed.
    let hole = NvList {
        pairs: vec![
            ("type".into(), NvValue::String("hole".into())),
            ("id".into(), NvValue::Uint64(1)),
            ("guid".into(), NvValue::Uint64(0)),
        ],
    };
    let mut tops = config::children(&pool.vdev_tree).to_vec();
    tops.push(hole);
    pool.vdev_tree.set("children", NvValue::NvListArray(tops));
    write_labels(&first, &pool).unwrap();
    let config = pool.mos(9);
    let adding = Try { pool: Some(&config), ..Try::with(&shelf) };
    let added = adding.go("mirror /c /d").unwrap();
    assert_eq!((added.new_tops.as_slice(), added.pool_guid), (&[2][..], first.pool_guid));
    let ids: Vec<_> = config::children(&added.root).iter().map(|t| t.u64("id")).collect();
    assert_eq!(ids, [Some(0), Some(1), Some(2)]);
    pool.vdev_tree = added.root.clone();
    write_labels(&added, &pool).unwrap();
    let tree = added.tree(&mut |guid, _| first.device(guid)).unwrap();
    assert!(tree.leaves().iter().all(|l| l.state() == VdevState::Healthy));
    assert_eq!(
        adding.go("/c").err().unwrap(),
        format!("{OVERRIDE}mismatched replication level: pool uses mirror and new vdev is file")
    );
    assert_eq!(
        adding.go("mirror /c /d /e").err().unwrap(),
        format!(
            "{OVERRIDE}mismatched replication level: pool uses 2-way mirror and new vdev uses \
             3-way mirror"
        )
    );
    assert!(adding.go("log /e").is_ok());
    assert!(adding.go("spare /e").unwrap().new_tops.is_empty());
}

/// Files, as the system has them: held for one, found by full path only, and their labels read by
/// `zdb`.
#[test]
fn zdb_reads_the_labels_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(64 * MIB).unwrap();
        path.display().to_string()
    };
    let (a, b, c) = (file("a"), file("b"), file("c"));
    let go = |line: String| Try { ashift: 12, ..Try::with(&SystemDevices) }.go(&line);
    let p = go(format!("raidz {a} {b} {c}")).unwrap();
    write_labels(&p, &pool_of(&p)).unwrap();
    // Held by another.
    let busy = go(a.clone()).err().unwrap();
    assert!(busy.contains("one or more vdevs refer to the same device"), "{busy}");
    let (_, text) = zdb_output(zdb_command(&["-l", &b]));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let guid = |l: &NvList| format!("guid: {}", l.u64("guid").unwrap());
    let top = &config::children(&p.root)[0];
    for wanted in [
        "name: 'tank'",
        "state: 0",
        "txg: 0",
        "type: 'raidz'",
        "nparity: 1",
        "ashift: 12",
        "metaslab_shift: 24",
        &format!("asize: {}", 3 * (64 * MIB - LABELS)),
        "create_txg: 4",
        "labels = 0 1 2 3",
        &format!("path: '{b}'"),
        &guid(top),
        &guid(&config::children(top)[1]),
    ] {
        assert!(lines.contains(&wanted), "{wanted} is not in\n{text}");
    }
    drop(p);
    assert!(go(format!("mirror {a} {b}")).is_ok());
    let missing = dir.path().join("none").display().to_string();
    assert_eq!(go(missing.clone()).err().unwrap(), format!("cannot resolve path '{missing}'"));
    let not_one = dir.path().display().to_string();
    let why = format!("cannot use '{not_one}': must be a block device or regular file");
    assert_eq!(go(not_one).err().unwrap(), why);
}
