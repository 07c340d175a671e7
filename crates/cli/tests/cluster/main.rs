//! Pools in object stores of a kind that users run, which stand still while programs write, or whose nodes die, and whose pool's own daemon
//! is killed: what was synced is there afterwards, and no object is left over.
//!
//! `make test-s3` runs this with SeaweedFS, and `make test-azure` with Azurite; `scripts/setup.sh s3` and `azure` install them. Our own `zdb` accounts for every block, a listing for every object, and OpenZFS's
//! `zdb` judges what is sent to a pool of files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod azurite;
#[path = "../common/mod.rs"]
mod common;
#[path = "../programs/recorder.rs"]
#[allow(dead_code)] // Other tests use more of it.
mod recorder;
mod seaweed;

use azurite::Azurite;
use cenote_objects::{Address, Environment, Space, Tunables, connect};
use cenote_testpools::Random;
use common::{Done, Session, can_mount, mounts_below};
use recorder::Recorder;
use rustix::process::{Pid, Signal, kill_process};
use seaweed::Cluster;
use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Writers that sync each change.
const WRITERS: u64 = 3;
/// Bytes of a large file, and how many are kept.
const LARGE: usize = 24 << 20;
const KEPT: u64 = 4;
/// Seconds for which objects that nothing needs are kept.
const GRACE: &str = "5";
/// Milliseconds that one try of a request has, less than nodes stand still for.
const DEADLINE: &str = "1500";

/// How often an import may be overtaken by what its host sent before it was killed.
const OVERTAKEN: usize = 3;

/// A daemon on the pool.
struct Host<'a> {
    session: Session,
    device: &'a str,
    credentials: &'a [(&'a str, &'a str)],
}

impl Host<'_> {
    fn run(&self, line: &str) -> Done {
        let mut command = self.session.command();
        done(command.envs(self.credentials.iter().copied()).args(line.split_whitespace()))
    }

    fn shell(&self, line: &str) -> Done {
        let line = line.replace("cenote ", &format!("{} ", env!("CARGO_BIN_EXE_cenote")));
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", &line]).envs(self.credentials.iter().copied());
        command.env("CENOTE_SOCKET", self.session.path("socket"));
        done(command.current_dir(self.session.dir.path()))
    }

    fn root(&self) -> PathBuf {
        self.session.path("root")
    }

    /// A place in the pool.
    fn path(&self, name: &str) -> PathBuf {
        self.root().join("tank").join(name)
    }

    /// Starts the daemon; the times that the tests set are those of pools that are opened afterwards.
    fn begin(&self) {
        self.run("daemon").ok();
        self.run(&format!("tunables set object_grace={GRACE}")).ok();
        // A node that stands still has requests end without an answer.
        self.run(&format!("tunables set object_deadline_ms={DEADLINE}")).ok();
    }

    /// Imports the pool. A root that the daemon sent before it was killed may reach the store late: an import that it overtakes is refused, and
    /// tried again.
    fn import(&self) {
        let line = format!("zpool import -R {} -d {} tank", self.root().display(), self.device);
        for tries in 1.. {
            let done = self.run(&line);
            let overtaken = ["has taken over the pool", "has written to it since"];
            let is_overtaken = overtaken.iter().any(|part| done.err.contains(part));
            // A host that goes on to commit although it was killed would be seen by that.
            if !is_overtaken || tries > OVERTAKEN {
                done.ok();
                break;
            }
            eprintln!("overtaken {tries} times: {}", done.err.trim_end());
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(!mounts_below(&self.root()).is_empty());
    }

    /// Kills the daemon, and waits until its mounts are gone.
    fn kill(&self) {
        let daemon = self.session.daemon().unwrap();
        kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while !mounts_below(&self.root()).is_empty() {
            assert!(Instant::now() < end, "{:?}", mounts_below(&self.root()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tries of requests after the first ones, since the pool was opened.
    fn retries(&self) -> u64 {
        let prometheus = self.run("txgs --prometheus tank").ok();
        let count = |name: &str| {
            let name = format!("cenote_store_{name}_total{{pool=\"tank\"}} ");
            let line = prometheus.lines().find_map(|line| line.strip_prefix(&name));
            line.unwrap_or_else(|| panic!("{name}: {prometheus}")).parse::<u64>().unwrap()
        };
        count("put_retries") + count("get_retries") + count("other_retries")
    }
}

fn done(command: &mut std::process::Command) -> Done {
    let output = cenote_testpools::output(command);
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Writes large files, one after the other, and removes old ones.
struct Large {
    dir: PathBuf,
    /// The numbers of those that were synced and are not being removed.
    first: u64,
    next: u64,
}

impl Large {
    fn new(dir: PathBuf) -> Large {
        fs::create_dir_all(&dir).unwrap();
        Large { dir, first: 0, next: 0 }
    }

    fn path(&self, n: u64) -> PathBuf {
        self.dir.join(n.to_string())
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.path(self.next);
        let mut file = File::create(&path)?;
        for part in common::keys::contents(self.next, LARGE).chunks(1 << 20) {
            file.write_all(part)?;
        }
        file.sync_all()?;
        self.next += 1;
        if self.next - self.first > KEPT {
            self.first += 1;
            fs::remove_file(self.path(self.first - 1))?;
        }
        Ok(())
    }

    fn check(&self) {
        for n in self.first..self.next {
            let found = fs::read(self.path(n)).unwrap_or_else(|e| panic!("large file {n}: {e}"));
            assert!(found == common::keys::contents(n, LARGE), "large file {n} has other bytes");
        }
    }
}

/// What writes.
struct Load {
    writers: Vec<Recorder>,
    large: Large,
}

impl Load {
    fn new(host: &Host<'_>) -> Load {
        let writer = |n: u64| Recorder::new(host.path(&format!("writer-{n}")), 0x5eed ^ (n << 8));
        Load { writers: (0..WRITERS).map(writer).collect(), large: Large::new(host.path("large")) }
    }

    fn changes(&self) -> u64 {
        self.writers.iter().map(|writer| writer.changes).sum::<u64>() + self.large.next
    }

    /// Writes for as long as `work` takes. Afterwards writers may fail.
    fn beside(&mut self, work: impl FnOnce(&AtomicBool)) {
        let (over, longest) = (AtomicBool::new(false), AtomicU64::new(0));
        let go_on = |step: &mut dyn FnMut() -> io::Result<()>| {
            while !over.load(Relaxed) {
                let begun = Instant::now();
                if let Err(why) = step() {
                    assert!(over.load(Relaxed), "a write failed before its time: {why}");
                }
                longest.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let go_on = &go_on;
            for writer in &mut self.writers {
                scope.spawn(move || go_on(&mut || writer.step()));
            }
            let large = &mut self.large;
            scope.spawn(move || go_on(&mut || large.step()));
            // They end as well where the work fails.
            let _over = Over(&over);
            work(&over);
        });
        eprintln!("the longest change took {} ms", longest.into_inner());
    }

    /// All that was synced is there. Where it is not, this tells what the pool says of it, and whether it is there later.
    fn check(&mut self, host: &Host<'_>) {
        let mut look = || {
            self.writers.iter_mut().for_each(Recorder::check);
            self.large.check();
        };
        let Err(why) = catch_unwind(AssertUnwindSafe(&mut look)) else { return };
        let tell = || {
            let log = fs::read_to_string(host.session.path("socket.log")).unwrap_or_default();
            eprintln!("{}\n{log}", host.run("zpool status -v tank").out);
        };
        tell();
        std::thread::sleep(Duration::from_secs(30));
        let later = catch_unwind(AssertUnwindSafe(&mut look));
        eprintln!("half a minute later it is there: {}", later.is_ok());
        tell();
        resume_unwind(why);
    }
}

/// Says in the end that it is over.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What is on the store is what the last root names, once what is garbage was deleted.
fn audit(device: &str, credentials: &[(&str, &str)]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = Address::parse(device).unwrap();
        let store = connect(&address, &Environment::of(credentials)).unwrap();
        let tunables = Tunables { grace: Duration::ZERO, ..Tunables::default() };
        let prefix = Default::default();
        let found = Space::look(store, prefix, tunables).await.unwrap();
        let space = found.open("the test").await.unwrap();
        space.sweep().await.unwrap();
        let failed = space.tidy().await;
        assert!(failed.is_none(), "{failed:?}");
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
    });
}

/// Nothing that is stored is damaged.
fn scrub(host: &Host<'_>) {
    host.run("zpool scrub -w tank").ok();
    let status = host.run("zpool status -v tank").ok();
    assert!(
        status.contains("scrub repaired 0B") && status.contains("errors: No known data errors"),
        "{status}"
    );
}

/// Our own `zdb` accounts for every block.
fn judge_exported(host: &Host<'_>) {
    let bcc = host.run(&format!("zdb -e -p {} -bcc tank", host.device));
    assert!(bcc.code == 0 && bcc.out.contains("No leaks"), "{bcc:?}");
}

/// A pool of files gets all of it, and OpenZFS judges that.
fn judge_a_copy(host: &Host<'_>, load: &mut Load) {
    let dir = host.session.path("d");
    fs::create_dir(&dir).unwrap();
    File::create(dir.join("disk")).unwrap().set_len(2 << 30).unwrap();
    host.run(&format!("zpool create -m none files {}", dir.join("disk").display())).ok();
    host.run("zfs snapshot tank@end").ok();
    load.check(host);
    host.shell("cenote zfs send -Rw tank@end | cenote zfs receive -u files/copy").ok();
    let guid = |name: &str| host.run(&format!("zfs get -Hp -o value guid {name}")).ok();
    assert_eq!(guid("tank@end"), guid("files/copy@end"));
    // And the files of it are the same.
    let copy = host.session.path("copy");
    host.run(&format!("zfs set mountpoint={} files/copy", copy.display())).ok();
    assert!(mounts_below(&copy).len() == 1, "the copy is not mounted");
    let mut diff = std::process::Command::new("diff");
    let same = done(diff.arg("-r").arg(host.path("")).arg(&copy));
    assert!(same.code == 0, "{same:?}");
    host.run("zpool export files").ok();
    cenote_testpools::judge(&dir, "files");
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())
        .map_or(usual, |text| text.parse().unwrap())
}

/// The store stands still now and then; the daemon is killed; another host takes the pool over.
#[test]
#[ignore = "minutes, and a program that speaks as Azure's Blob Storage does: make test-azure"]
fn nothing_synced_is_lost_in_azure() {
    assert!(can_mount());
    let (rounds, seed) = (number("CENOTE_ROUNDS", 3), number("CENOTE_SEED", 1));
    let harms = number("CENOTE_HARMS", 3);
    let dir = tempfile::tempdir().unwrap();
    eprintln!("seed {seed}");
    let azurite = Azurite::new(dir.path());
    let (device, credentials) = (azurite.device("tank"), azurite.credentials());
    let host = || Host { session: Session::new(), device: &device, credentials: &credentials };
    let (first, second) = (host(), host());
    first.begin();
    first.run(&format!("zpool create -R {} tank {device}", first.root().display())).ok();
    let (mut load, mut random, mut retries) = (Load::new(&first), Random(seed | 1), 0);
    for round in 1..=rounds {
        let before = load.changes();
        load.beside(|over| {
            for _ in 0..harms {
                std::thread::sleep(Duration::from_millis(random.below(1500)));
                azurite.stands_still(Duration::from_millis(random.below(4000)));
            }
            retries += first.retries();
            over.store(true, Relaxed);
            first.kill();
        });
        first.begin();
        first.import();
        load.check(&first);
        let changes = load.changes() - before;
        eprintln!(
            "round {round} of {rounds}: {changes} changes were synced, {} requests were repeated so far",
            retries
        );
        assert!(changes > 0, "nothing was synced in round {round}");
    }
    assert!(retries > 0, "no request met a store that stood still");
    scrub(&first);
    second.begin();
    second.import();
    // What the first host has from now on comes nowhere.
    fs::write(first.path("late"), "late").unwrap();
    let refused = first.run("zpool sync tank");
    assert!(refused.code != 0, "{refused:?}");
    let status = first.run("zpool status tank").ok();
    assert!(status.contains("SUSPENDED"), "{status}");
    first.run("zpool export -f tank").ok();
    assert!(!second.path("late").exists());
    fs::write(second.path("later"), "later").unwrap();
    second.run("zpool export tank").ok();
    judge_exported(&second);
    audit(&device, &credentials);
    first.import();
    load.check(&first);
    assert_eq!(fs::read(first.path("later")).unwrap(), b"later");
    first.run("zpool destroy tank").ok();
    assert_eq!(azurite.objects(&device), 0);
}

#[test]
#[ignore = "minutes, and a distributed store: make test-s3"]
fn nothing_synced_is_lost_while_nodes_die() {
    assert!(can_mount());
    let (rounds, seed) = (number("CENOTE_ROUNDS", 6), number("CENOTE_SEED", 1));
    let harms = number("CENOTE_HARMS", 5);
    let dir = tempfile::tempdir().unwrap();
    eprintln!("seed {seed}");
    let mut cluster = Cluster::new(dir.path());
    let device = cluster.device("tank");
    let credentials = Cluster::environment();
    let host = Host { session: Session::new(), device: &device, credentials: &credentials };
    host.begin();
    host.run(&format!("zpool create -R {} tank {device}", host.root().display())).ok();
    let (mut load, mut random) = (Load::new(&host), Random(seed | 1));
    let (mut retries, mut so_far) = (0, 0);
    for round in 1..=rounds {
        let before = load.changes();
        load.beside(|over| {
            for _ in 0..harms {
                std::thread::sleep(Duration::from_millis(random.below(1500)));
                cluster.harm(&mut random);
            }
            // They count since the pool was opened; every third time the daemon lives on.
            so_far = host.retries();
            if round % 3 != 0 {
                retries += std::mem::take(&mut so_far);
                over.store(true, Relaxed);
                host.kill();
            }
        });
        std::thread::scope(|scope| {
            let back = scope.spawn(|| {
                if round % 3 != 0 {
                    host.begin();
                    host.import();
                }
                load.check(&host);
            });
            // Nodes die while the pool is imported and read as well.
            cluster.harm(&mut random);
            back.join().unwrap();
        });
        let changes = load.changes() - before;
        eprintln!(
            "round {round} of {rounds}: {changes} changes were synced, {} requests were repeated so far",
            retries + so_far
        );
        assert!(changes > 0, "nothing was synced in round {round}");
    }
    scrub(&host);
    judge_a_copy(&host, &mut load);
    host.run("zpool export tank").ok();
    judge_exported(&host);
    audit(&device, &credentials);
    retries += so_far;
    let [killed, stopped] = cluster.harmed;
    eprintln!(
        "nodes were killed {killed} times and stopped {stopped} times; {retries} requests were repeated; {} changes",
        load.changes()
    );
    assert!(retries > 0, "no request met a node that was away");
    host.import();
    load.check(&host);
    host.run("zpool destroy tank").ok();
}
