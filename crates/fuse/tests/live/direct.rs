//! New files that are only written to, which the kernel keeps no pages of: others see what is written.

use crate::world::World;
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Opens a new file to be written to only.
fn created(w: &World, name: &str) -> File {
    OpenOptions::new().write(true).create_new(true).open(w.path(name)).unwrap()
}

/// A program that has mapped a page of a file, and tells its first byte for each line that it gets.
struct Mapped {
    child: Child,
    ask: Option<ChildStdin>,
    tell: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Mapped {
    fn new(w: &World, name: &str, kind: &str) -> Mapped {
        let script = format!(
            "import mmap, sys
f = open(sys.argv[1], 'rb')
m = mmap.mmap(f.fileno(), 4096, mmap.{kind}, mmap.PROT_READ)
for line in sys.stdin:
    print(m[0], flush=True)
"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]).arg(w.path(name));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let tell = BufReader::new(child.stdout.take().unwrap()).lines();
        Mapped { ask: child.stdin.take(), child, tell }
    }

    fn sees(&mut self) -> u8 {
        writeln!(self.ask.as_mut().unwrap()).unwrap();
        self.tell.next().unwrap().unwrap().parse().unwrap()
    }

    fn end(mut self) {
        drop(self.ask.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn who_has_mapped_a_new_file_sees_what_is_written() {
    let w = World::new();
    let out = created(&w, "f");
    out.write_all_at(&[1; 8192], 0).unwrap();
    let mut maps = ["MAP_SHARED", "MAP_PRIVATE"].map(|kind| Mapped::new(&w, "f", kind));
    for i in 1..60 {
        out.write_all_at(&[i], 0).unwrap();
        for map in &mut maps {
            let start = Instant::now();
            while map.sees() != i {
                assert!(start.elapsed() < Duration::from_secs(20), "{i} is not seen");
            }
        }
    }
    maps.into_iter().for_each(Mapped::end);
    drop(out);
    let mut want = vec![1; 8192];
    want[0] = 59;
    assert!(fs::read(w.path("f")).unwrap() == want);
}

/// One writes past the kernel's pages, another one to a mapping of the same page.
#[test]
fn who_writes_to_a_mapping_undoes_no_writes() {
    let w = World::new();
    let out = created(&w, "f");
    out.write_all_at(&[0; 8192], 0).unwrap();
    let script = "
import mmap, os, struct, sys
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192)
print(flush=True)
i = 0
while os.fstat(0).st_size == 0:
    i += 1
    m[2048:2056] = m[4096:4104] = struct.pack('<q', i)
print(i)
";
    let stop = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(w.path("f")).stdin(stop.reopen().unwrap());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
    let mut tell = BufReader::new(child.stdout.take().unwrap()).lines();
    tell.next().unwrap().unwrap();
    let look = File::open(w.path("f")).unwrap();
    let (start, mut writes) = (Instant::now(), 0u64);
    while start.elapsed() < Duration::from_secs(2) {
        writes += 1;
        let bytes = [writes.to_le_bytes(); 500].concat();
        out.write_all_at(&bytes[..8], 0).unwrap();
        // Over the end of a page, and what is written to the mapping is in neither part.
        out.write_all_at(&bytes[..2048], 2056).unwrap();
        if writes % 7 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        let mut got = vec![0; 8192];
        look.read_exact_at(&mut got, 0).unwrap();
        assert_eq!(got[..8], bytes[..8], "write {writes}");
        assert_eq!(got[2056..4096], bytes[..2040], "write {writes}");
    }
    stop.as_file().set_len(1).unwrap();
    let last: u64 = tell.next().unwrap().unwrap().parse().unwrap();
    assert!(child.wait().unwrap().success() && last > 0 && writes > 10);
    drop((out, look));
    let got = fs::read(w.path("f")).unwrap();
    assert_eq!(got[..8], writes.to_le_bytes());
    assert_eq!(got[2048..2056], last.to_le_bytes());
}

#[test]
fn a_reader_of_a_growing_file_reads_no_zeros() {
    let w = World::new();
    let mut out = created(&w, "f");
    let done = AtomicBool::new(false);
    let got = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut input, mut got) = (File::open(w.path("f")).unwrap(), Vec::new());
            loop {
                let last = done.load(Ordering::SeqCst);
                input.read_to_end(&mut got).unwrap();
                // What comes and goes meanwhile sees all there is, too.
                let all = fs::read(w.path("f")).unwrap();
                assert!(all.starts_with(&got));
                if last {
                    return got;
                }
            }
        });
        for i in 0..5000u32 {
            out.write_all(&[(i % 255 + 1) as u8; 77]).unwrap();
        }
        drop(out);
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    });
    assert_eq!(got.len(), 5000 * 77);
    assert!(got.chunks(77).zip(0..).all(|(c, i)| c.iter().all(|b| *b == (i % 255 + 1) as u8)));
}

#[test]
fn those_who_append_do_not_overwrite_each_other() {
    let w = World::new();
    let append = |new: bool| {
        let mut options = OpenOptions::new();
        options.append(true).create_new(new).open(w.path("f")).unwrap()
    };
    let first = append(true);
    let files = [first, append(false), append(false)];
    std::thread::scope(|scope| {
        for (n, mut file) in files.into_iter().enumerate() {
            scope.spawn(move || {
                for i in 0..300 {
                    file.write_all(format!("{n} {i:04}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(w.path("f")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let want: Vec<String> =
        (0..3).flat_map(|n| (0..300).map(move |i| format!("{n} {i:04}"))).collect();
    assert_eq!(lines, want);
}

#[test]
fn a_write_takes_capabilities_and_set_id_bits_away() {
    let w = World::new();
    let mut out = created(&w, "f");
    let name = "security.capability";
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for _ in 0..2 {
        xattr::set(w.path("f"), name, &capability).unwrap();
        assert!(xattr::get(w.path("f"), name).unwrap().is_some());
        out.write_all(b"x").unwrap();
        assert_eq!(xattr::get(w.path("f"), name).unwrap(), None);
        out.write_all(b"x").unwrap();
    }
    fs::set_permissions(w.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    w.as_user(1000, "exec 3>g; chmod 4777 g; echo x >&3");
    assert_eq!(fs::metadata(w.path("g")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn synchronous_writes_wait() {
    let w = World::new();
    let syncs = || w.store.syncs.load(Ordering::SeqCst);
    fs::write(w.path("source"), vec![1; 100_000]).unwrap();
    let source = File::open(w.path("source")).unwrap();
    // Not rustix's flags, for which both are one.
    for (name, flags) in [("f", libc::O_SYNC), ("g", libc::O_DSYNC)] {
        let mut options = OpenOptions::new();
        let out = options.write(true).create_new(true).custom_flags(flags).open(w.path(name));
        let mut out = out.unwrap();
        for n in 0..3 {
            let before = syncs();
            out.write_all(b"x").unwrap();
            assert!(syncs() > before);
            let before = syncs();
            let copied = rustix::fs::copy_file_range(&source, None, &out, None, 1000 * n + 1);
            assert!(copied.unwrap() > 0 && syncs() > before);
            let before = syncs();
            rustix::fs::fallocate(&out, FallocateFlags::KEEP_SIZE, 0, 1000).unwrap();
            assert!(syncs() > before);
        }
    }
}

/// A file without a name, which is given one while it is written to.
#[test]
fn files_that_are_named_later() {
    let w = World::new();
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let mut out = match OpenOptions::new().write(true).custom_flags(flags).open(w.path("")) {
        Ok(file) => file,
        Err(e) => panic!("{e}"),
    };
    out.write_all(&[5; 5000]).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&out));
    let (here, follow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
    rustix::fs::linkat(here, &own, here, w.path("f"), follow).unwrap();
    let other = File::open(w.path("f")).unwrap();
    out.write_all(&[6; 5000]).unwrap();
    let mut got = vec![0; 10_000];
    other.read_exact_at(&mut got, 0).unwrap();
    assert!(got[..5000] == [5; 5000] && got[5000..] == [6; 5000]);
    drop((out, other));
    assert!(fs::read(w.path("f")).unwrap() == got);
}

/// Writes a file again and again by `io_submit` and `O_DIRECT`, while two other processes read it through
/// the kernel's pages, and reads it through them after each write. Ends with 1 if what it reads is old.
const SUBMITS: &str = "
import ctypes, mmap, os, signal, struct, sys, time
N = 655360
setup, getevents, submit = (206, 208, 209) if os.uname().machine == 'x86_64' else (0, 4, 2)
call = ctypes.CDLL(None, use_errno=True).syscall
buf = mmap.mmap(-1, N)
address = ctypes.addressof(ctypes.c_char.from_buffer(buf))
d = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
if os.writev(d, [buf]) != N: sys.exit(2)
f = os.open(sys.argv[1], os.O_RDONLY)
readers = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        until = time.time() + 60
        while time.time() < until and os.getppid() != 1:
            for at in range(0, N, 4096): os.pread(f, 4096, at)
        os._exit(0)
    readers.append(pid)
context, status = ctypes.c_ulong(0), 0
if call(setup, 1, ctypes.byref(context)): sys.exit(3)
end, n = time.time() + 1.5, 0
while status == 0 and time.time() < end:
    n += 1
    pattern = bytes([0x55 if n % 2 else 0xaa]) * N
    buf[:] = pattern
    # aio_data, aio_key and aio_rw_flags, aio_lio_opcode (1: write), aio_reqprio, aio_fildes, ...
    cb = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', 0, 0, 0, 1, 0, d, address, N, 0, 0, 0, 0))
    list_ = (ctypes.c_void_p * 1)(ctypes.addressof(cb))
    event = ctypes.create_string_buffer(32)
    if call(submit, context, ctypes.c_long(1), list_) != 1: status = 4
    elif call(getevents, context, ctypes.c_long(1), ctypes.c_long(1), event, None) != 1: status = 5
    elif struct.unpack('<QQqq', event.raw)[2] != N: status = 6
    elif os.pread(f, N, 0) != pattern: status = 1
for pid in readers:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
sys.exit(status if n > 3 or status else 7)
";

#[test]
fn what_was_written_asynchronously_past_the_pages_is_what_pages_have() {
    let w = World::new();
    let status = Command::new("python3").args(["-c", SUBMITS]).arg(w.path("f")).status();
    assert_eq!(status.expect("python3").code(), Some(0));
}
