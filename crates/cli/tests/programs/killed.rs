//! The daemon is killed while programs work: what was synced is there afterwards.

use crate::recorder::{Random, Recorder};
use crate::rig::{Rig, can_run, run, times};
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

#[test]
fn nothing_synced_is_lost() {
    if !can_run(&["fio", "tar", "zdb"]) {
        return;
    }
    let rig = Rig::new("");
    let tar = rig.outside("crates.tar");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(rig.program("tar").arg("cf").arg(&tar).arg("-C").arg(project).arg("crates"));
    rig.dir("trees");
    rig.dir("fio");
    let mut random = Random(0x5eed);
    let writer = |i| Recorder::new(rig.path(&format!("writer-{i}")), random.next() ^ i);
    let mut writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let rounds = times(4, 50);
    for round in 0..rounds {
        let before: u64 = writers.iter().map(|w| w.changes).sum();
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
            std::thread::sleep(Duration::from_millis(500 + random.below(1500)));
            killed.store(true, Ordering::Relaxed);
            rig.kill();
        });
        loads.into_iter().for_each(end);
        rig.judge();
        rig.import();
        writers.iter_mut().for_each(Recorder::check);
        let changes = writers.iter().map(|w| w.changes).sum::<u64>() - before;
        eprintln!("round {} of {rounds}: {changes} changes were synced", round + 1);
        assert!(changes > 0, "nothing was synced in round {round}");
        rig.shell("rm -rf trees/*");
    }
    rig.reimport();
    writers.iter_mut().for_each(Recorder::check);
    rig.finish();
}
