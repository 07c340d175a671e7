//! Databases that are killed, and whose file system is.

use crate::common::can_mount;
use crate::rig::{Rig, can_run, run, times, wait_until};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Which process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Program,
    Daemon,
}

/// Inserts rows one by one until something is killed; returns the number of the last row that
/// SQLite said was there for good. What it says after the daemon's end does not count: it takes a
/// directory that it cannot open any more to sync it for one that need not be synced.
fn insert(rig: &Rig, db: &Path, first: u64, victim: Victim) -> u64 {
    let mut sqlite = Command::new("stdbuf");
    sqlite.args(["-oL", "sqlite3", "-batch"]).arg(db);
    rig.at_home(&mut sqlite);
    sqlite.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sqlite = sqlite.spawn().unwrap();
    let (mut stdin, stdout) = (sqlite.stdin.take().unwrap(), sqlite.stdout.take().unwrap());
    let last = &AtomicU64::new(first - 1);
    std::thread::scope(|scope| {
        // It ends with the reader of what it writes.
        scope.spawn(move || {
            let _ = writeln!(stdin, ".timeout 5000\nPRAGMA synchronous = EXTRA;");
            for i in first.. {
                let size = i * 7919 % 20_000;
                let row = format!("INSERT INTO t VALUES ({i}, randomblob({size}), {size});");
                let old = format!("UPDATE t SET size = size WHERE i = {};", i / 2);
                if writeln!(stdin, "BEGIN; {row} {old} COMMIT; SELECT 'row', {i};").is_err() {
                    break;
                }
            }
        });
        let reader = scope.spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(row) = line.strip_prefix("row|").and_then(|i| i.parse().ok()) {
                    last.store(row, Ordering::SeqCst);
                }
            }
        });
        wait_until("rows are inserted", || last.load(Ordering::SeqCst) > first);
        std::thread::sleep(Duration::from_millis(500));
        let before = last.load(Ordering::SeqCst);
        if victim == Victim::Daemon {
            rig.kill();
        }
        sqlite.kill().unwrap();
        sqlite.wait().unwrap();
        reader.join().unwrap();
        if victim == Victim::Daemon { before } else { last.load(Ordering::SeqCst) }
    })
}

#[test]
fn sqlite_keeps_what_it_committed() {
    if !can_run(&["sqlite3", "stdbuf"]) {
        return;
    }
    let rig = Rig::new("");
    for mode in ["delete", "wal"] {
        let db = rig.path(&format!("{mode}.db"));
        let sql = |text: &str| run(rig.program("sqlite3").arg("-batch").arg(&db).arg(text));
        let made = sql(&format!(
            "PRAGMA journal_mode = {mode}; CREATE TABLE t (i INTEGER PRIMARY KEY, b BLOB, size INT); CREATE INDEX by_size ON t (size);"
        ));
        assert_eq!(made.trim(), mode);
        let mut next = 1;
        for round in 0..times(2, 50) {
            let victim = if round % 2 == 0 { Victim::Daemon } else { Victim::Program };
            let last = insert(&rig, &db, next, victim);
            if victim == Victim::Daemon {
                rig.import();
            }
            assert_eq!(sql("PRAGMA integrity_check;").trim(), "ok");
            let found = sql("SELECT count(*), max(i), sum(length(b) = size) FROM t;");
            let found: Vec<u64> = found.trim().split('|').map(|n| n.parse().unwrap_or(0)).collect();
            let (count, max) = (found[0], found[1]);
            let good = max >= last && count == max && found[2] == count;
            assert!(good, "{mode}, {victim:?} killed: row {last} was there, now {found:?}");
            assert!(last > next, "nothing was committed in round {round} of {mode}");
            next = max + 1;
        }
    }
    rig.finish();
}

/// A PostgreSQL server whose data is in the pool.
struct Postgres<'a> {
    rig: &'a Rig,
    programs: PathBuf,
    user: u32,
}

impl Postgres<'_> {
    /// A program of PostgreSQL's, run as the user that it wants.
    fn program(&self, name: &str) -> Command {
        let mut command = self.rig.program("env");
        command.arg(self.programs.join(name)).uid(self.user).gid(self.user);
        command.env("PGDATA", self.data()).env("PGHOST", self.rig.outside("pg"));
        command.env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command.current_dir(self.rig.outside("pg"));
        command
    }

    fn data(&self) -> PathBuf {
        self.rig.path("pg/data")
    }

    fn log(&self) -> PathBuf {
        self.rig.outside("pg/log")
    }

    fn start(&self) {
        let sockets = self.rig.outside("pg");
        let options = format!("-c listen_addresses= -k {}", sockets.display());
        let mut start = self.program("pg_ctl");
        start.args(["start", "-w", "-t", "60", "-s", "-o", &options, "-l"]).arg(self.log());
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let started = start.status().unwrap();
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        assert!(started.success(), "PostgreSQL does not start: {log}");
    }

    fn sql(&self, text: &str) -> String {
        run(self.program("psql").args(["-XAtc", text])).trim().into()
    }

    /// The number of the server's process, which leads its group.
    fn leader(&self) -> Pid {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        Pid::from_raw(text.lines().next().unwrap().parse().unwrap()).unwrap()
    }

    /// Works until something is killed; returns how many transactions were committed.
    fn work(&self, round: u64, victim: Victim) -> u64 {
        let leader = self.leader();
        let log = self.rig.outside(&format!("pg/bench-{round}"));
        let mut bench = self.program("pgbench");
        bench.args(["-n", "-c", "4", "-j", "2", "-T", "60", "-l", "--log-prefix"]).arg(&log);
        let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // It is written in pieces.
        wait_until("transactions are committed", || self.committed(round) > 0);
        std::thread::sleep(Duration::from_millis(500));
        if victim == Victim::Daemon {
            self.rig.kill();
        }
        let _ = kill_process_group(leader, Signal::KILL);
        wait_until("PostgreSQL ends", || test_kill_process_group(leader).is_err());
        bench.wait().unwrap();
        self.committed(round)
    }

    /// How many transactions `pgbench` has noted as committed in a round.
    fn committed(&self, round: u64) -> u64 {
        let logs = fs::read_dir(self.rig.outside("pg")).unwrap().map(|e| e.unwrap());
        let prefix = format!("bench-{round}.");
        let logs = logs.filter(|e| e.file_name().to_str().unwrap().starts_with(&prefix));
        logs.map(|e| fs::read_to_string(e.path()).unwrap().lines().count() as u64).sum()
    }
}

/// Where the newest PostgreSQL is.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let dirs = versions.flatten().map(|e| e.path().join("bin"));
    dirs.filter(|d| d.join("pgbench").exists()).max()
}

#[test]
fn postgresql_keeps_what_it_committed() {
    let Some(programs) = postgres_programs() else {
        assert!(!can_run(&["postgres"]), "PostgreSQL is not where Debian has it");
        return;
    };
    if !can_mount() {
        return;
    }
    let rig = Rig::new("");
    let user = run(Command::new("id").args(["-u", "postgres"])).trim().parse().unwrap();
    let pg = Postgres { rig: &rig, programs, user };
    for dir in [rig.path("pg"), rig.outside("pg")] {
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(user), Some(user)).unwrap();
    }
    run(pg.program("initdb").args(["-k", "-A", "trust", "-U", "postgres"]));
    pg.start();
    run(pg.program("pgbench").args(["-i", "-q"]));
    let mut committed = 0;
    for round in 0..times(2, 50) {
        let victim = if round % 2 == 0 { Victim::Daemon } else { Victim::Program };
        let now = pg.work(round, victim);
        assert!(now > 0, "nothing was committed in round {round}");
        committed += now;
        if victim == Victim::Daemon {
            rig.import();
        }
        pg.start();
        let found: u64 = pg.sql("SELECT count(*) FROM pgbench_history").parse().unwrap();
        assert!(found >= committed, "{found} of {committed} transactions in round {round}");
        committed = found;
        let sums = "SELECT count(DISTINCT s) FROM (SELECT sum(abalance) s FROM pgbench_accounts
            UNION ALL SELECT sum(bbalance) FROM pgbench_branches
            UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
            UNION ALL SELECT sum(delta) FROM pgbench_history) sums";
        assert_eq!(pg.sql(sums), "1", "sums differ in round {round}");
    }
    run(pg.program("pg_ctl").args(["stop", "-s", "-w", "-m", "fast"]));
    run(pg.program("pg_checksums").arg("-c"));
    rig.finish();
}
