//! Tunables are listed, set and reset by the real binary, at start and while a pool is imported, and as
//! files; what they do to a pool is judged by OpenZFS's `zdb`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Done, Session, can_mount, mounts_below, skip};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The value of a tunable, exact.
#[track_caller]
fn value(s: &Session, name: &str) -> String {
    let line = s.run(&format!("tunables -H -p {name}")).ok();
    line.split('\t').nth(1).unwrap().to_string()
}

/// Makes the pool `tank` of one file in `dev`, mounted below the root.
fn create(s: &Session) {
    let dev = s.path("dev");
    fs::create_dir_all(&dev).unwrap();
    fs::File::create(dev.join("a")).unwrap().set_len(256 << 20).unwrap();
    let (root, file) = (s.root(), dev.join("a").display().to_string());
    s.run(&format!("zpool create -R {root} tank {file}")).ok();
}

/// What OpenZFS's `zdb` says of the exported pool `tank`.
#[track_caller]
fn zdb(s: &Session, args: &[&str]) -> String {
    cenote_testpools::zdb(&s.path("dev"), "tank", args)
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn shell(line: &str) -> Done {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The tunables that OpenZFS 2.4's own tests set on Linux.
const SUITE: &str = "
    dbuf_cache_shift ddt_zap_default_bs ddt_zap_default_ibs l2arc_mfuonly l2arc_noprefetch
    l2arc_rebuild_blocks_min_l2size l2arc_rebuild_enabled l2arc_trim_ahead l2arc_write_boost
    l2arc_write_max metaslab_debug_load metaslab_force_ganging metaslab_force_ganging_pct
    raidz_expand_max_reflow_bytes send_holes_without_birth_time spa_asize_inflation
    spa_flush_txg_time spa_load_verify_data spa_load_verify_metadata spa_note_txg_time
    vdev_file_logical_ashift vdev_file_physical_ashift vdev_raidz_outlier_check_interval_ms
    vdev_raidz_outlier_insensitivity vdev_read_sit_out_secs vdev_validate_skip
    zap_micro_max_size zfs_admin_snapshot zfs_allow_redacted_dataset_mount zfs_arc_max
    zfs_arc_min zfs_async_block_max_blocks zfs_bclone_enabled zfs_bclone_wait_dirty
    zfs_checksum_events_per_second zfs_commit_timeout_pct zfs_compressed_arc_enabled
    zfs_condense_indirect_commit_entry_delay_ms zfs_condense_indirect_obsolete_pct
    zfs_condense_min_mapping_bytes zfs_ddt_data_is_special zfs_deadman_checktime_ms
    zfs_deadman_events_per_second zfs_deadman_failmode zfs_deadman_synctime_ms
    zfs_deadman_ziotime_ms zfs_dedup_log_flush_entries_max zfs_dedup_log_flush_entries_min
    zfs_dedup_log_txg_max zfs_dio_enabled zfs_dio_strict zfs_dio_write_verify_events_per_second
    zfs_disable_ivset_guid_check zfs_dmu_offset_next_sync zfs_embedded_slog_min_ms
    zfs_initialize_chunk_size zfs_initialize_value zfs_keep_log_spacemaps_at_export
    zfs_livelist_condense_new_alloc zfs_livelist_condense_sync_cancel
    zfs_livelist_condense_sync_pause zfs_livelist_condense_zthr_cancel
    zfs_livelist_condense_zthr_pause zfs_livelist_max_entries zfs_livelist_min_percent_shared
    zfs_lua_max_memlimit zfs_max_dataset_nesting zfs_max_missing_tvds
    zfs_multihost_fail_intervals zfs_multihost_history zfs_multihost_import_intervals
    zfs_multihost_interval zfs_override_estimate_recordsize zfs_prefetch_disable
    zfs_rebuild_scrub_enabled zfs_removal_suspend_progress zfs_remove_max_segment
    zfs_resilver_defer_percent zfs_resilver_min_time_ms zfs_scan_legacy
    zfs_scan_suspend_progress zfs_scan_vdev_limit zfs_scrub_after_expand
    zfs_slow_io_events_per_second zfs_spa_discard_memory_limit zfs_trim_extent_bytes_min
    zfs_trim_metaslab_skip zfs_trim_txg_batch zfs_txg_history zfs_txg_timeout
    zfs_unlink_suspend_progress zfs_vdev_direct_write_verify zfs_vdev_max_auto_ashift
    zfs_vdev_min_ms_count zfs_xattr_compat zfs_zevent_len_max zfs_zevent_retain_max
    zfs_zil_saxattr zio_slow_io_ms zvol_inhibit_dev zvol_request_sync zvol_use_blk_mq
    zvol_volmode
";

/// What the documentation says is absent on purpose is refused, not accepted and ignored. Of those that OpenZFS's tests set each is
/// there, or has its reason.
#[test]
fn those_that_are_absent_on_purpose_are_refused() {
    let s = Session::new();
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tunables.md"));
    let text = text.unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let absent: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
    assert!(absent.contains(&"zfs_scan_legacy") && absent.len() > 35, "{absent:?}");
    let there = s.run("tunables -H").ok();
    let there: Vec<&str> = there.lines().map(|line| line.split('\t').next().unwrap()).collect();
    for name in SUITE.split_whitespace() {
        let known = [there.contains(&name), absent.contains(&name)];
        assert!(known[0] != known[1], "{name}: {known:?}");
    }
    for name in absent {
        let said = s.run(&format!("tunables set {name}=1")).fails(1);
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn they_are_listed_set_and_reset() {
    let s = Session::new();
    // Without a daemon: as one would start.
    assert_eq!(s.daemon(), None);
    let all = s.run("tunables -H").ok();
    let names: Vec<&str> = all.lines().map(|l| l.split('\t').next().unwrap()).collect();
    assert!(names.len() > 40 && names.is_sorted());
    assert!(all.lines().all(|l| l.split('\t').count() == 6 && !l.ends_with('\t')));
    assert_eq!(s.daemon(), None);
    // One that is set needs a daemon to remember it.
    s.run("tunables set zfs_txg_timeout=7 zfs_dirty_data_max=512M metaslab_df_free_pct=0x5").ok();
    assert!(s.run("daemon status").ok().contains("tunables: not as they were at start"));
    let line = "zfs_dirty_data_max\t512M\t0\tbytes\tnow\tMost dirty data of a pool; 0: \
                zfs_dirty_data_max_percent says how much\n";
    assert_eq!(s.run("tunables -H zfs_dirty_data_max").ok(), line);
    assert_eq!(value(&s, "zfs_dirty_data_max"), (512 << 20).to_string());
    assert_eq!(value(&s, "metaslab_df_free_pct"), "5");
    let json = s.run("tunables --json zfs_txg_timeout zfs_arc_max").ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let facts = &json["zfs_txg_timeout"];
    assert_eq!(
        (&facts["value"], &facts["default"], &facts["most"]),
        (&7.into(), &5.into(), &1_000_000.into())
    );
    assert_eq!((&facts["unit"], &facts["counts"]), (&"seconds".into(), &"now".into()));
    assert_eq!(json["zfs_arc_max"]["counts"], "now");
    // Nothing is set if something is wrong.
    let wrong = |line: &str, code| s.run(line).fails(code);
    assert_eq!(
        wrong("tunables set zfs_txg_timeout=8 zfs_delay_min_dirty_percent=101", 1),
        "cenote tunables: zfs_delay_min_dirty_percent is from 0 to 100, not 101"
    );
    assert_eq!(
        wrong("tunables set zfs_txg_timeout=8 zfs_txg_timeuot=8", 1),
        "cenote tunables: there is no tunable 'zfs_txg_timeuot', but 'zfs_txg_timeout'"
    );
    assert_eq!(
        wrong("tunables set zfs_txg_timeout=5M", 1),
        "cenote tunables: zfs_txg_timeout is a number, not '5M'"
    );
    assert!(wrong("tunables set zfs_txg_timeout", 2).contains("is not NAME=VALUE\nusage: "));
    assert!(wrong("tunables set", 2).contains("NAME=VALUE"));
    assert!(wrong("tunables --csv", 2).contains("--csv"));
    assert_eq!(wrong("tunables nonsense", 1), "cenote tunables: there is no tunable 'nonsense'");
    assert_eq!(value(&s, "zfs_txg_timeout"), "7");
    s.run("tunables reset zfs_txg_timeout zfs_dirty_data_max metaslab_df_free_pct").ok();
    assert_eq!(value(&s, "zfs_txg_timeout"), "5");
    assert!(!s.run("daemon status").ok().contains("tunables"));
}

/// A small directory that is made so does not stay a micro ZAP.
#[test]
fn the_largest_micro_zap() {
    if !can_mount() {
        return skip("FUSE mounts");
    }
    let s = Session::new();
    create(&s);
    let below = |name: &str| Path::new(&s.root()).join("tank").join(name);
    let make = |dir: &str| {
        fs::create_dir(below(dir)).unwrap();
        (0..100).for_each(|n| drop(fs::File::create(below(dir).join(n.to_string())).unwrap()));
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(below(dir)).unwrap())
    };
    let micro = make("micro");
    s.run("tunables set zap_micro_max_size=2048 metaslab_debug_load=1").ok();
    let fat = make("fat");
    s.run("tunables reset zap_micro_max_size").ok();
    s.run("zpool export tank").ok();
    s.run(&format!("zpool import -R {} -d {} tank", s.root(), s.path("dev").display())).ok();
    let shown = |object: u64| s.run(&format!("zdb -dddd tank/ {object}")).ok();
    assert!(shown(micro).contains("\tmicrozap: 6656 bytes, 100 entries"), "{}", shown(micro));
    assert!(shown(fat).contains("Fat ZAP stats:"), "{}", shown(fat));
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("dev"), "tank");
}

/// A directory of more than 128 KiB stays a micro ZAP where the tunable allows it; the dataset then has the feature, and streams of
/// it are of large blocks. It grows no more once the tunable forbids that.
#[test]
fn large_micro_zaps_are_made_and_sent() {
    const FILES: u32 = 3000;
    if !can_mount() {
        return skip("FUSE mounts");
    }
    let s = Session::new();
    create(&s);
    s.run("zfs create tank/a").ok();
    let dir = |of: &str| Path::new(&s.root()).join("tank").join(of).join("dir");
    let feature = || s.run("zpool get -Ho value feature@large_microzap tank").ok();
    s.run("tunables set zap_micro_max_size=1048576").ok();
    fs::create_dir(dir("a")).unwrap();
    let object = std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir("a")).unwrap());
    assert_eq!(feature(), "enabled\n");
    for n in 0..FILES {
        fs::File::create(dir("a").join(n.to_string())).unwrap();
    }
    s.run("zpool sync").ok();
    assert_eq!(feature(), "active\n");
    s.run("zfs snapshot tank/a@s").ok();
    let refused = s.run("zfs send tank/a@s").fails(1);
    assert!(
        refused.contains("large microzaps, need -L (--large-block) or -w (--raw)"),
        "{refused}"
    );
    let stream = s.path("stream");
    let sending = s
        .command()
        .args(["zfs", "send", "-L", "tank/a@s"])
        .stdout(fs::File::create(&stream).unwrap())
        .status();
    assert!(sending.unwrap().success());
    let receiving = s
        .command()
        .args(["zfs", "receive", "tank/b"])
        .stdin(fs::File::open(&stream).unwrap())
        .status();
    assert!(receiving.unwrap().success());
    let again = || {
        s.run("zpool export tank").ok();
        cenote_testpools::judge(&s.path("dev"), "tank");
        cenote_testpools::try_judge_newer(&s.path("dev"), "tank").unwrap();
        s.run(&format!("zpool import -R {} -d {} tank", s.root(), s.path("dev").display())).ok();
    };
    again();
    let is_micro = |of: &str| {
        let shown = s.run(&format!("zdb -dddd tank/{of} {object}")).ok();
        shown.contains(&format!("\tmicrozap: 192512 bytes, {FILES} entries"))
    };
    assert!(is_micro("a") && is_micro("b"));
    for of in ["a", "b"] {
        assert_eq!(fs::read_dir(dir(of)).unwrap().count(), FILES as usize);
        assert!((0..FILES).all(|n| dir(of).join(n.to_string()).exists()));
    }
    s.run("tunables reset zap_micro_max_size").ok();
    for n in FILES..FILES + 9 {
        fs::File::create(dir("a").join(n.to_string())).unwrap();
    }
    again();
    assert!(is_micro("b") && !is_micro("a"));
    assert_eq!(fs::read_dir(dir("a")).unwrap().count(), FILES as usize + 9);
    s.run("zpool export tank").ok();
}

#[test]
fn a_file_and_the_environment_set_them_at_start() {
    let s = Session::new();
    let file = s.path("zfs.conf");
    fs::write(
        &file,
        "# as for the module\noptions zfs zfs_txg_timeout=9 zfs_scan_legacy=1 \\\n  zfs_dirty_data_sync_percent=30\n\
         options spl spl_hostid=1\nmetaslab_aliquot=4194304\n",
    )
    .unwrap();
    let run = |line: &str| {
        let mut command = s.command();
        command.env("CENOTE_TUNABLES_FILE", &file);
        command.env("CENOTE_TUNABLES", "zfs_txg_timeout=11 zfs_delay_scale=0");
        let output = command.args(line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let names = "zfs_txg_timeout zfs_dirty_data_sync_percent metaslab_aliquot zfs_delay_scale";
    let values = |listed: &str| -> Vec<String> {
        listed.lines().map(|l| l.split('\t').nth(1).unwrap().to_string()).collect()
    };
    let want = ["11", "30", "4194304", "500000"];
    let warned = |text: &str| {
        assert!(text.contains("zfs.conf, line 2: there is no tunable 'zfs_scan_legacy'"), "{text}");
        let why = "CENOTE_TUNABLES, line 1: zfs_delay_scale is from 1 to ";
        assert!(text.contains(why) && !text.contains("spl_hostid"), "{text}");
    };
    // Before there is a daemon: what it would start with.
    let (out, err) = run(&format!("tunables -H -p {names}"));
    assert_eq!(values(&out), want);
    warned(&err);
    run("daemon");
    warned(&fs::read_to_string(s.path("socket.log")).unwrap());
    // They are the daemon's, for all users.
    assert_eq!(values(&s.run(&format!("tunables -H -p {names}")).out), want);
    assert!(!s.run("daemon status").ok().contains("tunables"));
    s.run("daemon stop").ok();
    assert_eq!(value(&s, "zfs_txg_timeout"), "5");
    let missing = s.path("none");
    let done =
        s.command().env("CENOTE_TUNABLES_FILE", &missing).args(["tunables"]).output().unwrap();
    let text = String::from_utf8(done.stderr).unwrap();
    assert!(text.contains("none: No such file or directory") && done.status.success(), "{text}");
}

#[test]
fn new_values_count_while_a_pool_is_imported() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    create(&s);
    let root = s.path("root/tank");
    s.run("zpool sync tank").ok();
    // A change waits for as long as it is told to, and for as long as it is told to meanwhile.
    let referenced = || s.run("zfs get -Hp -o value referenced tank").ok();
    s.run("tunables set zfs_txg_timeout=1000000").ok();
    let before = referenced();
    fs::write(root.join("f"), vec![7; 1 << 20]).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(referenced(), before);
    s.run("tunables set zfs_txg_timeout=1").ok();
    wait_until("the group is written", || referenced() != before);
    s.run("tunables reset zfs_txg_timeout").ok();
    // Logs of space maps are kept at export.
    s.run("tunables set zfs_keep_log_spacemaps_at_export=1").ok();
    for i in 0..5 {
        fs::write(root.join("f"), vec![i; 3 << 20]).unwrap();
        s.run("zpool sync tank").ok();
    }
    s.run("zpool export tank").ok();
    let kept = logs(&zdb(&s, &["-m"]));
    assert!(kept > 1, "{kept}");
    cenote_testpools::judge(&s.path("dev"), "tank");
    s.run("tunables set zfs_keep_log_spacemaps_at_export=0").ok();
    let (dev, path) = (s.path("dev"), s.root());
    s.run(&format!("zpool import -d {} -R {path} tank", dev.display())).ok();
    s.run("zpool export tank").ok();
    assert_eq!(logs(&zdb(&s, &["-m"])), 1);
    cenote_testpools::judge(&s.path("dev"), "tank");
}

/// Log space maps that `zdb -m` lists.
fn logs(text: &str) -> usize {
    text.lines().filter(|l| l.trim_start().starts_with("Log Spacemap object")).count()
}

/// What a directory of tunables does, given a way to run `cenote`.
fn directory(s: &Session, dir: &Path, run: &dyn Fn(&str) -> Done) {
    let place = dir.display();
    run(&format!("tunables mount {place}")).ok();
    assert_eq!(mounts_below(dir).len(), 1);
    let parameters = format!("{place}/parameters");
    assert_eq!(shell(&format!("cat {parameters}/zfs_txg_timeout")).ok(), "5\n");
    shell(&format!("echo 6 > {parameters}/zfs_txg_timeout")).ok();
    assert_eq!(shell(&format!("cat {parameters}/zfs_txg_timeout")).ok(), "6\n");
    assert_eq!(run("tunables -H -p zfs_txg_timeout").ok().split('\t').nth(1), Some("6"));
    for wrong in ["0", "x", "99999999999999999999999", "-1", "1 2"] {
        let done = shell(&format!("LC_ALL=C; echo '{wrong}' > {parameters}/zfs_txg_timeout"));
        assert!(
            done.err.contains("Invalid argument") || done.err.contains("I/O error"),
            "{done:?}"
        );
        let file = fs::OpenOptions::new().write(true).open(format!("{parameters}/zfs_txg_timeout"));
        let error = std::io::Write::write(&mut file.unwrap(), wrong.as_bytes()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(22));
    }
    run("tunables reset zfs_txg_timeout").ok();
    assert_eq!(shell(&format!("cat {parameters}/zfs_txg_timeout")).ok(), "5\n");
    let names = shell(&format!("ls {parameters}")).ok();
    let listed = run("tunables -H").ok();
    let listed: Vec<&str> = listed.lines().map(|l| l.split('\t').next().unwrap()).collect();
    let mut sorted: Vec<&str> = names.lines().collect();
    sorted.sort_unstable();
    assert_eq!(sorted, listed);
    // No other names can be made, and no name can be removed.
    assert!(fs::write(format!("{parameters}/zfs_new"), "1").is_err());
    assert!(fs::remove_file(format!("{parameters}/zfs_txg_timeout")).is_err());
    // Pools come and go.
    let kstat = format!("{place}/kstat/zfs");
    let of_all = "abdstats\narcstats\ndbufstats\ndmu_tx\ndnodestats\nvdev_cache_stats\n\
                  vdev_mirror_stats\nzfetchstats\nzil\n";
    assert_eq!(shell(&format!("ls {kstat}")).ok(), of_all);
    let dev = s.path("dev/a");
    run(&format!("zpool create -m none tank {}", dev.display())).ok();
    let tables = ["blake3", "edonr", "sha256", "sha512", "skein"].map(|t| format!("ddt_stats_{t}"));
    let rest = "guid\nio\niostats\nreads\nstate\ntxgs\n";
    assert_eq!(shell(&format!("ls {kstat}/tank")).ok(), format!("{}\n{rest}", tables.join("\n")));
    assert_eq!(shell(&format!("cat {kstat}/tank/state")).ok(), "ONLINE\n");
    let guid = run("zpool get -H -o value guid tank").ok();
    assert_eq!(shell(&format!("cat {kstat}/tank/guid")).ok(), guid);
    run("zpool sync tank").ok();
    let txgs = shell(&format!("cat {kstat}/tank/txgs")).ok();
    assert!(txgs.starts_with("txg ") && txgs.lines().count() > 1, "{txgs}");
    assert!(fs::write(format!("{kstat}/tank/guid"), "1").is_err());
    run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("dev"), "tank");
    assert_eq!(shell(&format!("ls {kstat}")).ok(), of_all);
    assert!(!Path::new(&format!("{kstat}/tank/guid")).exists());
    assert!(run(&format!("tunables mount {place}")).fails(1).contains("shows them already"));
    run(&format!("tunables unmount {place}")).ok();
    assert!(mounts_below(dir).is_empty());
    let none = run(&format!("tunables unmount {place}")).fails(1);
    assert!(none.contains("no tunables are mounted at"), "{none}");
    // The daemon takes them away when it ends.
    run(&format!("tunables mount {place}")).ok();
    run("daemon stop").ok();
    assert!(mounts_below(dir).is_empty());
}

#[test]
fn they_are_files_in_a_directory() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    fs::create_dir_all(s.path("dev")).unwrap();
    fs::File::create(s.path("dev/a")).unwrap().set_len(128 << 20).unwrap();
    fs::create_dir(s.path("shown")).unwrap();
    directory(&s, &s.path("shown"), &|line| s.run(line));
}

#[test]
fn ordinary_users_have_such_a_directory_too() {
    if !can_mount() {
        return;
    }
    let s = Session::new();
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    own(s.dir.path());
    let as_nobody = |line: &str| {
        let mut command = s.command();
        let output = command.uid(65534).gid(65534).args(line.split_whitespace()).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let shown = s.path("shown");
    fs::create_dir(&shown).unwrap();
    own(&shown);
    let done = as_nobody(&format!("tunables mount {}", shown.display()));
    if done.code != 0 {
        return skip(&format!("an ordinary user cannot mount here: {done:?}"));
    }
    let cat = |line: &str| {
        let out = Command::new("sh").args(["-c", line]).uid(65534).gid(65534).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap())
    };
    let file = format!("{}/parameters/zfs_txg_timeout", shown.display());
    assert_eq!(cat(&format!("echo 8 > {file} && cat {file}")), (true, "8\n".into()));
    assert!(!cat(&format!("echo 0 > {file}")).0);
    as_nobody(&format!("tunables unmount {}", shown.display())).ok();
    as_nobody("daemon stop").ok();
}
