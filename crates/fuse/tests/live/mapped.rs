//! Files that are changed in mappings. Memory maps are no safe code here; Python has them.

use crate::world::{World, settings};
use cenote_fuse::SyncPolicy;
use cenote_zpl::{CreateProps, Settings};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that maps a file of two pages, in which it goes on when it is told.
struct Program {
    child: Child,
    tell: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// `script` has the file open as `fd`, mapped as `m`, and calls `wait`.
    fn start(w: &World, name: &str, script: &str) -> Program {
        fs::write(w.path(name), [b'x'; 8192]).unwrap();
        let begin = "
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 8192)
def wait():
    print(flush=True)
    sys.stdin.readline()
";
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{begin}{script}")]).arg(w.path(name));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Program { tell: child.stdin.take(), child, said }
    }

    /// Waits until it waits.
    fn waits(&mut self) {
        self.said.next().expect("it goes on").unwrap();
    }

    fn goes_on(&mut self) {
        writeln!(self.tell.as_mut().unwrap()).unwrap();
    }

    fn ends(mut self) {
        drop(self.tell.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// What is on disk of a file when all of its mappings are gone.
fn on_disk(w: &World, name: &str) -> Vec<u8> {
    let (disk, mut got) = (w.on_disk(), vec![0; 20_000]);
    let n = disk.read(disk.resolve(name.as_bytes()).unwrap(), 0, &mut got).unwrap();
    got.truncate(n);
    got
}

#[test]
fn what_was_changed_before_it_became_read_only_is_written() {
    let w = World::new();
    let script = "
m[:6] = b'before'
wait()
m[10:17] = b'between'
wait()
def refused(at):
    try:
        os.pwrite(fd, b'written', at)
    except OSError as e:
        return e.errno == errno.EROFS
assert refused(4096)
m[20:25] = b'after'
m.flush()
assert refused(20) and os.pread(fd, 5, 20) == b'after'
m[5000:5004] = b'last'
";
    let mut program = Program::start(&w, "f", script);
    program.waits();
    w.handle.write_mapped();
    program.goes_on();
    program.waits();
    w.fs.set_settings(Settings { read_only: true, ..settings() });
    program.goes_on();
    program.ends();
    let mut want = [b'x'; 8192];
    for (at, text) in [(0, "before"), (10, "between"), (20, "after"), (5000, "last")] {
        want[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let got = on_disk(&w, "f");
    let wrong = got.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!((wrong, got.len()), (None, want.len()));
    assert!(fs::write(w.path("f"), "x").is_err());
}

#[test]
fn times_that_are_set_stay_when_mappings_are_written() {
    for sync_policy in [SyncPolicy::Standard, SyncPolicy::Always] {
        let w = World::with(settings(), &CreateProps::default(), |spec| {
            spec.sync_policy = sync_policy;
        });
        let script = "
def mtime():
    return os.stat(sys.argv[1]).st_mtime_ns
m[:1] = b'1'
os.utime(sys.argv[1], ns=(11, 13))
m.flush()
assert mtime() == 13
m[4096:4097] = b'2'
os.utime(fd, ns=(11, 14))
assert mtime() == 14
m.close()
os.close(fd)
assert mtime() == 14
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 8192)
m[2:3] = b'3'
m.flush()
m.close()
os.close(fd)
assert mtime() > 14
";
        Program::start(&w, "f", script).ends();
        let got = on_disk(&w, "f");
        assert!(got[..3] == *b"1x3" && got[4096] == b'2');
    }
}
