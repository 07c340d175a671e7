//! The daemon is killed while programs work: what was synced is there afterwards.

use crate::recorder::{Recorder, check_files};
use crate::rig::{Rig, can_run, run, times};
use cenote_testpools::Random;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Writers that sync what they write.
const WRITERS: u64 = 2;

/// Starts a line of shell in a directory of the pool, in a process group of its own. It must not
/// name the directory: that is another one when nothing is mounted.
fn start(rig: &Rig, dir: &str, line: &str) -> Child {
    let mut shell = Command::new("sh");
    rig.at_home(&mut shell);
    shell.args(["-ec", line]).current_dir(rig.path(dir)).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits for the end of what cannot go on.
fn end(mut child: Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let all = run(Command::new("ps").args(["-eo", "pgid,pid,stat,wchan:32,time,args"]));
            let group = child.id().to_string();
            let left: Vec<_> = all.lines().filter(|l| l.trim().starts_with(&group)).collect();
            panic!("these programs outlive their file system: {left:#?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Unpacks and removes the same tree, in parallel, forever.
fn unpack(rig: &Rig, tar: &Path) -> Child {
    let tar = tar.display();
    let line = format!(
        "while :; do
           mkdir -p a b; tar xf {tar} -C a & tar xf {tar} -C b; wait $!
           mv a c; rm -r c & rm -r b; wait $!
         done"
    );
    start(rig, "trees", &line)
}

/// Reads and writes, now and then syncing.
fn write_at_random(rig: &Rig) -> Child {
    let line = "exec fio --name=load --directory=. --rw=randrw --bs=4k-128k --size=24m --numjobs=2 \
                --fsync=50 --ioengine=psync --fallocate=none --time_based --runtime=120";
    start(rig, "fio", line)
}

/// Kills the daemon of a pool again and again under load.
fn kill_again_and_again(layout: &str, rounds: u64) {
    if !can_run(&["fio", "tar"]) {
        return;
    }
    let rig = Rig::of(None, "", layout);
    let tar = rig.outside("crates.tar");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(rig.program("tar").arg("cf").arg(&tar).arg("-C").arg(project).arg("crates"));
    rig.dir("trees");
    rig.dir("fio");
    let mut random = Random(0x5eed);
    let writer = |i| Recorder::new(rig.path(&format!("writer-{i}")), random.next() ^ i);
    let mut writers: Vec<_> = (0..WRITERS).map(writer).collect();
    for round in 0..rounds {
        let before: u64 = writers.iter().map(|w| w.changes).sum();
        rig.cenote(&format!("zfs snapshot tank@{round}"));
        let snapshot: Vec<_> = writers.iter().map(Recorder::files).collect();
        let loads = [unpack(&rig, &tar), write_at_random(&rig)];
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| {
                    let failed = loop {
                        if let Err(e) = writer.step() {
                            break e;
                        }
                    };
                    assert!(killed.load(Ordering::Relaxed), "before the daemon died: {failed}");
                });
            }
            std::thread::sleep(Duration::from_millis(400 + random.below(1000)));
            if round > 0 {
                rig.cenote(&format!("zfs destroy tank@{}", round - 1));
            }
            std::thread::sleep(Duration::from_millis(random.below(500)));
            killed.store(true, Ordering::Relaxed);
            rig.kill();
        });
        loads.into_iter().for_each(end);
        rig.judge();
        rig.import();
        writers.iter_mut().for_each(Recorder::check);
        for (i, files) in snapshot.iter().enumerate() {
            check_files(&rig.path(&format!(".zfs/snapshot/{round}/writer-{i}")), files);
        }
        let listed = rig.cenote("zfs list -Ho name -t snapshot");
        assert_eq!(listed, format!("tank@{round}\n"));
        let changes = writers.iter().map(|w| w.changes).sum::<u64>() - before;
        eprintln!("{layout}: round {} of {rounds}: {changes} changes were synced", round + 1);
        assert!(changes > 0, "nothing was synced in round {round}");
        rig.shell("rm -rf trees/*");
    }
    rig.reimport();
    writers.iter_mut().for_each(Recorder::check);
    rig.finish();
}

#[test]
fn nothing_synced_is_lost() {
    kill_again_and_again("disk0", times(2, 50));
}

#[test]
fn nothing_synced_is_lost_on_raid_z() {
    kill_again_and_again("raidz2 disk0 disk1 disk2 disk3 disk4 log disk5", times(2, 50));
}
