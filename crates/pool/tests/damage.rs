//! Pools with devices missing or damaged, of other hosts, of formats not known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::ObjectSet;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::devices::DeviceSet;
use cenote_pool::status::Reason;
use cenote_pool::{Candidate, ImportError, ImportOptions, Pool, discover};
use cenote_testpools::{TempPool, TestPool};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The host that made the pools.
const MAKER: u32 = 305_419_896;

fn readonly() -> ImportOptions {
    ImportOptions { readonly: true, hostid: Some(MAKER), ..ImportOptions::default() }
}

fn only(pool: &TestPool) -> Candidate {
    let mut found = discover(std::slice::from_ref(&pool.dir));
    assert_eq!(found.len(), 1, "{}", pool.name);
    found.remove(0)
}

/// The pool without some of its files.
fn without(name: &str, gone: &[usize]) -> TempPool {
    let copy = cenote_testpools::copy(name);
    gone.iter().for_each(|i| fs::remove_file(&copy.pool.files[*i]).unwrap());
    copy
}

fn overwrite(path: &Path, offset: u64, len: usize) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xa5; len], offset).unwrap();
}

/// Overwrites every copy of a block of a pool of one file.
fn spoil(pool: &TestPool, bp: &BlockPointer) {
    for dva in bp.dvas() {
        overwrite(&pool.files[0], dva.offset + cenote_format::LABEL_START, bp.psize() as usize);
    }
}

fn import(c: &Candidate) -> Result<Arc<Pool>, ImportError> {
    Pool::import(c, &readonly())
}

#[test]
fn degraded_within_redundancy() {
    for (name, gone) in [
        ("mir3", &[0, 2][..]),
        ("rz1", &[1]),
        ("rz2", &[0, 4]),
        ("rz3", &[1, 2, 5]),
        ("hole", &[0, 5]),
    ] {
        let copy = without(name, gone);
        let c = only(&copy.pool);
        let report = c.report();
        assert_eq!((report.state, &report.reason), ("DEGRADED", &Reason::MissingDevice), "{name}");
        assert_eq!(report.msgid, Some("ZFS-8000-2Q"));
        let text = report.text();
        assert_eq!(text.matches("UNAVAIL  cannot open").count(), gone.len(), "{text}");
        assert!(text.contains("status: One or more devices are missing from the system.\n"));

        let pool = import(&c).unwrap();
        let status = pool.status().unwrap();
        assert_eq!((status.state, status.reason), ("DEGRADED", Reason::MissingDevice), "{name}");
        let mut notes = Vec::new();
        status.tree.root.children.iter().flat_map(|t| &t.children).for_each(|leaf| {
            notes.extend(leaf.note.clone());
        });
        let wanted: Vec<String> =
            gone.iter().map(|i| format!("was /scratch/{name}/{i}.img")).collect();
        assert_eq!(notes, wanted);
    }
}

#[test]
fn missing_vdevs_are_named() {
    for (name, gone, vdev) in [
        ("mir3", &[0, 1, 2][..2], None),
        ("rz1", &[0, 2], Some("raidz1-0")),
        ("rz2", &[0, 1, 2], Some("raidz2-0")),
        ("rz3", &[0, 1, 2, 3], Some("raidz3-0")),
        ("hole", &[4, 5], Some("mirror-2")),
        ("removal", &[2], Some("/scratch/removal/2.img")),
    ] {
        let copy = without(name, gone);
        let c = only(&copy.pool);
        let Some(vdev) = vdev else {
            import(&c).unwrap();
            continue;
        };
        let report = c.report();
        assert_eq!(report.state, "UNAVAIL", "{name}");
        assert_eq!(report.reason, Reason::MissingDeviceFatal, "{name}");
        match import(&c) {
            Err(e @ ImportError::MissingDevices { .. }) => {
                assert_eq!(
                    e.to_string(),
                    format!("cannot import '{name}': one or more devices is currently unavailable")
                );
                let notes = e.notes().unwrap();
                assert!(notes.contains(vdev), "{notes}");
                for i in gone {
                    assert!(
                        notes.contains(&format!("last path /scratch/{name}/{i}.img")),
                        "{notes}"
                    );
                }
            }
            other => panic!("{name}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn without_its_metadata_a_pool_cannot_tell_what_is_missing() {
    let copy = without("special", &[1, 2]);
    let c = only(&copy.pool);
    let report = c.report();
    assert_eq!((report.state, report.reason), ("FAULTED", Reason::CorruptPool));
    let notes = import(&c).err().unwrap().notes().unwrap();
    assert!(notes.contains("top-level vdev 1, of which no device was found"), "{notes}");
}

#[test]
fn a_log_can_be_given_up() {
    let copy = without("zilslog", &[1]);
    let c = only(&copy.pool);
    assert_eq!(c.report().state, "DEGRADED");
    let error = import(&c).err().unwrap();
    assert!(matches!(error, ImportError::MissingLogs { .. }), "{error}");
    assert!(error.notes().unwrap().contains("use '-m' to import the pool anyway:\n"));
    let pool = Pool::import(&c, &ImportOptions { allow_missing_log: true, ..readonly() }).unwrap();
    let status = pool.status().unwrap();
    assert_eq!(status.state, "DEGRADED");
    assert_eq!(status.tree.logs[0].state, "UNAVAIL");
}

#[test]
fn images_without_an_end_and_without_a_beginning() {
    // Labels 2 and 3 are gone, or 0 and 1; the data is there.
    let copy = cenote_testpools::copy("mir3");
    overwrite(&copy.pool.files[0], 0, 512 << 10);
    let len = fs::metadata(&copy.pool.files[1]).unwrap().len();
    overwrite(&copy.pool.files[1], len - (512 << 10), 512 << 10);
    let c = only(&copy.pool);
    assert_eq!(c.devices.len(), 3);
    assert_eq!(import(&c).unwrap().health(), "ONLINE");

    // What lies behind the last metaslab is not needed.
    let single = cenote_testpools::copy("basic");
    let file = OpenOptions::new().write(true).open(&single.pool.files[0]).unwrap();
    file.set_len((256 << 20) - (1 << 20)).unwrap();
    let c = only(&single.pool);
    assert_eq!((c.report().state, import(&c).unwrap().health()), ("ONLINE", "ONLINE"));

    // A device that is shorter than it was is an image that was cut off.
    let file = OpenOptions::new().write(true).open(&copy.pool.files[1]).unwrap();
    file.set_len(len / 2).unwrap();
    let c = only(&copy.pool);
    let pool = import(&c).unwrap();
    assert_eq!(pool.status().unwrap().reason, Reason::CutOff);
    assert_eq!(c.report().reason, Reason::CutOff);
}

#[test]
fn garbage_instead_of_a_device() {
    let copy = cenote_testpools::copy("rz2");
    for i in [1, 3] {
        let len = fs::metadata(&copy.pool.files[i]).unwrap().len();
        overwrite(&copy.pool.files[i], 0, len as usize);
    }
    let c = only(&copy.pool);
    assert_eq!(c.devices.len(), 3);
    assert_eq!(import(&c).unwrap().health(), "DEGRADED");
}

#[test]
fn the_newest_of_two_copies_of_a_device_is_taken() {
    let copy = cenote_testpools::copy("degr");
    // A second copy, and a link, of the same device: each guid counts once.
    fs::copy(&copy.pool.files[1], copy.pool.dir.join("a-copy.img")).unwrap();
    std::os::unix::fs::symlink(&copy.pool.files[2], copy.pool.dir.join("a-link.img")).unwrap();
    let c = only(&copy.pool);
    assert_eq!(c.devices.len(), 4);
    assert_eq!(import(&c).unwrap().health(), "DEGRADED");
}

#[test]
fn single_files_and_directories_are_searched() {
    let pool = cenote_testpools::pool("mir3");
    let found = discover(&[pool.files[1].clone()]);
    assert_eq!((found.len(), found[0].devices.len()), (1, 1));
    let found = cenote_pool::discover::search(&["/nonexistent".into(), pool.dir.clone()]);
    assert_eq!(found.candidates.len(), 1);
    assert_eq!(found.errors.len(), 1);
}

#[test]
fn pools_of_one_name_are_told_apart_by_guid() {
    let c = only(&cenote_testpools::pool("basic"));
    let twin = Candidate { guid: 7, ..c.clone() };
    let list = [c.clone(), twin];
    let error = cenote_pool::discover::find(&list, "basic").unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot import 'basic': more than one matching pool\nimport by numeric ID instead"
    );
    assert_eq!(cenote_pool::discover::find(&list, "7").unwrap().guid, 7);
    let error = cenote_pool::discover::find(&list, "nil").unwrap_err();
    assert_eq!(error.to_string(), "cannot import 'nil': no such pool available");
}

#[test]
fn another_hosts_pool_needs_force() {
    let c = only(&cenote_testpools::pool("zilmain"));
    let strange = ImportOptions { hostid: Some(1), ..readonly() };
    let error = Pool::import(&c, &strange).err().unwrap().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines[0],
        "cannot import 'zilmain': pool was previously in use from another system."
    );
    assert!(lines[1].starts_with("Last accessed by guest (hostid=12345678) at "), "{error}");
    assert_eq!(lines[2], "The pool can be imported, use 'zpool import -f' to import the pool.");
    Pool::import(&c, &ImportOptions { force: true, ..strange }).unwrap();
    // Exported pools belong to no system.
    let c = only(&cenote_testpools::pool("basic"));
    let exported = ImportOptions { hostid: Some(1), ..readonly() };
    Pool::import(&c, &exported).unwrap();
}

#[test]
fn read_write_is_refused_by_name() {
    let c = only(&cenote_testpools::pool("basic"));
    let error = Pool::import(&c, &ImportOptions { readonly: false, ..readonly() }).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cannot import 'basic': read-write import is not supported yet; use -o readonly=on"
    );
    let renamed = ImportOptions { new_name: Some("new".into()), ..readonly() };
    let pool = Pool::import(&c, &renamed).unwrap();
    assert_eq!(pool.name(), "new");
    assert!(pool.dsl().find("new").unwrap().is_some());
}

fn set(config: &mut NvList, name: &str, value: NvValue) {
    cenote_pool::config::set(config, name, value);
}

#[test]
fn unknown_features_and_versions_are_refused() {
    let mut c = only(&cenote_testpools::pool("basic"));
    let mut features = c.config.list("features_for_read").unwrap().clone();
    set(&mut features, "com.example:later", NvValue::Boolean);
    set(&mut c.config, "features_for_read", NvValue::NvList(features));
    let error = import(&c).err().unwrap();
    assert_eq!(error.to_string(), "cannot import 'basic': unsupported version or feature");
    assert_eq!(
        error.notes().unwrap(),
        "This pool uses the following feature(s) not supported by this system:\n\
         \tcom.example:later\n"
    );
    let report = c.report();
    assert!(report.text().contains(
        "status: The pool uses the following feature(s) not supported on this system:\n\
         \tcom.example:later\n"
    ));
    assert!(report.text().contains("UNAVAIL  unsupported feature(s)\n"), "{}", report.text());

    let mut c = only(&cenote_testpools::pool("basic"));
    // No pool has a version between 28 and 5000.
    set(&mut c.config, "version", NvValue::Uint64(29));
    let error = import(&c).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cannot import 'basic': pool is formatted using an unsupported ZFS version"
    );
    assert!(error.notes().unwrap().contains("version 29"));
}

#[test]
fn draid_is_named_by_its_shape() {
    let report = only(&cenote_testpools::pool("dr1")).report();
    assert!(report.text().contains("draid1:2d:5c:1s-0"), "{}", report.text());
    assert_eq!(report.state, "ONLINE");
}

fn uberblocks(c: &Candidate) -> Vec<Uberblock> {
    let mut list: Vec<Uberblock> =
        c.devices.iter().flat_map(|d| &d.uberblocks).map(|(_, _, ub)| ub.clone()).collect();
    list.sort_by_key(|ub| std::cmp::Reverse(ub.rank()));
    list.dedup_by_key(|ub| ub.txg);
    list
}

#[test]
fn a_damaged_newest_state_can_be_given_up() {
    let copy = cenote_testpools::copy("basic");
    let c = only(&copy.pool);
    let list = uberblocks(&c);
    spoil(&copy.pool, &list[0].rootbp);
    let error = import(&c).err().unwrap();
    assert_eq!(error.to_string(), "cannot import 'basic': I/O error");
    let notes = error.notes().unwrap();
    assert!(notes.contains("zpool import -F basic"), "{notes}");
    assert_eq!(c.report().reason, Reason::CorruptPool);
    let pool = Pool::import(&c, &ImportOptions { rewind: true, ..readonly() }).unwrap();
    let rewind = pool.rewind().unwrap();
    assert_eq!((rewind.from_txg, rewind.to_txg), (list[0].txg, list[1].txg));
    assert_eq!(pool.uberblock().txg, list[1].txg);
    let time = |_| "then".to_string();
    assert!(rewind.done("basic", &time).starts_with("Pool basic returned to its state as of "));
}

#[test]
fn a_transaction_group_can_be_chosen() {
    let c = only(&cenote_testpools::pool("basic"));
    let list = uberblocks(&c);
    let back = &list[1];
    let pool = Pool::import(&c, &ImportOptions { txg: Some(back.txg), ..readonly() }).unwrap();
    assert_eq!(pool.uberblock().txg, back.txg);
    assert!(pool.rewind().is_some());
    let error = Pool::import(&c, &ImportOptions { txg: Some(1), ..readonly() }).err().unwrap();
    assert!(matches!(error, ImportError::NoTxg { .. }), "{error}");
}

/// The first plain file of an object set with a data block of its own: object, block pointer.
fn some_file(os: &Arc<ObjectSet>) -> Option<(u64, BlockPointer)> {
    let mut at = 0;
    while let Some(number) = os.next_object(at).unwrap() {
        let object = os.object(number).unwrap();
        at = number + object.dnode().slots();
        if object.dnode().kind != DmuType::PLAIN_FILE_CONTENTS {
            continue;
        }
        let bp = object.block_pointer(0, 0).unwrap();
        if !bp.is_hole() && !bp.is_embedded() {
            return Some((number, bp));
        }
    }
    None
}

#[test]
fn damaged_files_are_listed_with_the_snapshots_that_share_them() {
    let copy = cenote_testpools::copy("clones");
    let c = only(&copy.pool);
    let pool = import(&c).unwrap();
    let dsl = pool.dsl();
    let mut waiting = vec![dsl.find("clones").unwrap().unwrap()];
    let mut victim = None;
    while let Some(d) = waiting.pop() {
        waiting.extend(dsl.children(&d).unwrap());
        let snapshots = dsl.snapshots(&d).unwrap();
        let Some(oldest) = snapshots.first().filter(|_| d.dir.origin == 0 || snapshots.len() > 1)
        else {
            continue;
        };
        let os = dsl.open_objset(oldest).unwrap();
        if let Some((number, bp)) = some_file(&os) {
            victim = Some((d.clone(), oldest.clone(), number, bp));
            break;
        }
    }
    let (head, snapshot, number, bp) = victim.expect("a snapshot with a file in it");
    spoil(&copy.pool, &bp);
    assert_eq!(pool.data_errors().unwrap(), []);
    let os = dsl.open_objset(&snapshot).unwrap();
    os.object(number).unwrap().read(0, &mut [0; 512]).unwrap_err();

    let errors = pool.data_errors().unwrap();
    assert!(errors.contains(&(snapshot.ds_obj, number)), "{errors:?}");
    // Every snapshot that shares the block, and no other.
    let mut sharing = Vec::new();
    for d in dsl.snapshots(&head).unwrap().into_iter().chain([head.clone()]) {
        let os = dsl.open_objset(&d).unwrap();
        let there = os.object(number).and_then(|o| o.block_pointer(0, 0));
        if there.is_ok_and(|there| there == bp) {
            sharing.push((d.ds_obj, number));
        }
    }
    for share in &sharing {
        assert!(errors.contains(share), "{share:?} {errors:?}");
    }
    let path = |_: &cenote_dsl::Dataset, object: u64| Some(format!("/file{object}"));
    let names = pool.error_names(&path, &|_| None).unwrap();
    assert!(names.contains(&format!("{}:/file{number}", snapshot.name)), "{names:?}");
    let status = pool.status().unwrap();
    assert_eq!(status.reason, Reason::CorruptData);
    assert_eq!(status.texts.msgid, Some("ZFS-8000-8A"));
    assert_eq!(pool.error_count().unwrap(), 1);
}

/// Makes the newest uberblock one of a host with `multihost=on` that writes every millisecond.
fn with_multihost(name: &str, seconds_ago: u64) -> Candidate {
    let mut c = only(&cenote_testpools::pool(name));
    let newest = uberblocks(&c)[0].rank();
    for (_, _, ub) in c.devices.iter_mut().flat_map(|d| &mut d.uberblocks) {
        if ub.rank() == newest {
            ub.mmp_delay = 1;
            ub.mmp_config = 0b101 | 1 << 8 | 1 << 48;
            ub.timestamp -= seconds_ago;
        }
    }
    c
}

#[test]
fn multihost_pools_are_watched() {
    let elsewhere = ImportOptions { hostid: Some(1), ..readonly() };
    // What is on the devices is what was seen before: no system writes.
    let quiet = with_multihost("basic", 0);
    Pool::import(&quiet, &elsewhere).unwrap();
    let error = Pool::import(&quiet, &ImportOptions { hostid: Some(0), ..readonly() });
    assert!(matches!(error.err().unwrap(), ImportError::NoHostid(_)));

    let active = with_multihost("basic", 1);
    let forced = ImportOptions { force: true, ..elsewhere };
    let error = Pool::import(&active, &forced).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cannot import 'basic': pool is imported on guest (hostid: 0x12345678)\n\
         Export the pool on the other system, then run 'zpool import'."
    );
    let inspect = ImportOptions { skip_activity_check: true, ..readonly() };
    Pool::import(&active, &inspect).unwrap();
    // The host that exported it need not wait.
    Pool::import(&active, &readonly()).unwrap();
}

/// Where an image that was cut off would have its last labels is something else: no claim is written there.
#[test]
fn no_host_claims_an_image_that_was_cut_off() {
    let copy = cenote_testpools::copy("basic");
    let claims = |c: &Candidate| {
        let newest = uberblocks(c)[0].clone();
        DeviceSet::new(c, true).claim(&newest, |_| true)
    };
    let image = OpenOptions::new().write(true).open(&copy.pool.files[0]).unwrap();
    image.set_len(110 << 20).unwrap();
    let before = fs::read(&copy.pool.files[0]).unwrap();
    // That it was cut off is what is said, not that another host has it.
    assert!(claims(&only(&copy.pool)));
    assert!(fs::read(&copy.pool.files[0]).unwrap() == before);
    assert!(claims(&only(&cenote_testpools::copy("mir3").pool)));
}

#[test]
fn the_list_of_pools_is_laid_out_as_openzfs_does() {
    let pool = cenote_testpools::pool("special");
    let mut c = only(&pool);
    let dir = pool.dir.canonicalize().unwrap();
    let lines = |c: &Candidate| {
        let text = c.report().text().replace(dir.to_str().unwrap(), "/dir");
        // The names' column is as wide as the longest path here.
        let squeezed = text.lines().map(|l| {
            let start = l.len() - l.trim_start().len();
            let words: Vec<&str> = l.split_whitespace().collect();
            format!("{}{}\n", &l[..start], words.join(" "))
        });
        squeezed.collect::<String>()
    };
    assert_eq!(
        lines(&c),
        "  pool: special\n    id: 5293512467123093676\n state: ONLINE\n\
         status: Some supported features are not enabled on the pool.\n\
         \t(Note that they may be intentionally disabled if the\n\
         \t'compatibility' property is set.)\n\
         action: The pool can be imported using its name or numeric identifier, though\n\
         \tsome features will not be available without an explicit 'zpool upgrade'.\n\
         config:\n\n\
         \tspecial ONLINE\n\
         \t  /dir/special.0.img ONLINE\n\
         \tspecial\n\
         \t  mirror-1 ONLINE\n\
         \t    /dir/special.1.img ONLINE\n\
         \t    /dir/special.2.img ONLINE\n"
    );
    set(&mut c.config, "comment", NvValue::String("backup".into()));
    c.state = cenote_pool::config::STATE_DESTROYED;
    assert!(lines(&c).starts_with(
        "   pool: special\n     id: 5293512467123093676\n  state: ONLINE (DESTROYED)\n \
         status: Some supported features are not enabled on the pool.\n"
    ));
    assert!(lines(&c).contains("comment: backup\n config:\n\n"));
}

#[test]
fn offline_devices_are_listed_as_such() {
    let report = only(&cenote_testpools::pool("degrz")).report();
    assert_eq!((report.state, &report.reason), ("DEGRADED", &Reason::Offline));
    let text = report.text();
    assert!(text.contains("status: One or more devices are offlined.\n"), "{text}");
    assert_eq!(text.matches("  OFFLINE\n").count(), 2, "{text}");
}
