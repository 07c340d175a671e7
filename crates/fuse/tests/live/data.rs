//! Contents: written, appended, truncated, punched, mapped, copied, synced.

use crate::world::{World, settings};
use cenote_fuse::SyncPolicy;
use cenote_zpl::{CreateProps, Settings};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, seek, statvfs};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

fn rw(path: impl AsRef<std::path::Path>) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Programs such as `cp` look for data before they read.
#[test]
fn what_was_written_to_a_mapping_is_found() {
    let w = World::new();
    let script = "
import mmap, os, shutil, subprocess, sys
os.chdir(sys.argv[1])
fd = os.open('f', os.O_CREAT | os.O_RDWR)
os.posix_fallocate(fd, 0, 1 << 20)
m = mmap.mmap(fd, 1 << 20)
m[500000:500007] = b'journal'
other = os.open('f', os.O_RDONLY)
at = os.lseek(other, 0, os.SEEK_DATA)
assert at <= 500000 < os.lseek(other, at, os.SEEK_HOLE), at
m[900000:900005] = b'later'
subprocess.run(['cp', 'f', 'copy'], check=True)
out = os.open('range', os.O_CREAT | os.O_RDWR)
m[100:105] = b'first'
n = 0
while n < 1 << 20:
    n += os.copy_file_range(fd, out, (1 << 20) - n, n, n)
want = bytes(m)
assert open('range', 'rb').read() == want
m[100:105] = bytes(5)
want = bytes(m)
assert open('copy', 'rb').read() == want
";
    let done = Command::new("python3").args(["-c", script]).arg(w.dir.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn what_is_written_is_read() {
    let w = World::new();
    let data = pattern(5_000_001, 7);
    fs::write(w.path("f"), &data).unwrap();
    assert!(fs::read(w.path("f")).unwrap() == data);
    let file = rw(w.path("f"));
    let mut want = data;
    for (i, at) in [0usize, 1, 4095, 16384, 123_457, 4_999_990].into_iter().enumerate() {
        let piece = pattern(10_000 * i + 17, at as u64);
        file.write_all_at(&piece, at as u64).unwrap();
        want.resize(want.len().max(at + piece.len()), 0);
        want[at..at + piece.len()].copy_from_slice(&piece);
        assert_eq!(file.metadata().unwrap().len(), want.len() as u64);
        assert!(fs::read(w.path("f")).unwrap() == want);
    }
    drop(file);
    // Not from the kernel's memory.
    let direct =
        OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).to_owned();
    let mut got = vec![0; 1 << 20];
    direct.open(w.path("f")).unwrap().read_exact_at(&mut got, 8192).unwrap();
    assert!(got == want[8192..8192 + (1 << 20)]);
    let disk = w.unmount();
    let file = disk.open_file(disk.resolve(b"f").unwrap()).unwrap();
    let mut got = vec![0; want.len() + 1];
    assert_eq!(file.read(0, &mut got).unwrap(), want.len());
    assert!(got[..want.len()] == want);
}

#[test]
fn appends_go_to_the_end() {
    let w = World::new();
    std::thread::scope(|s| {
        for part in 0..4u8 {
            let path = w.path("log");
            s.spawn(move || {
                let mut log = OpenOptions::new().create(true).append(true).open(path).unwrap();
                for _ in 0..200 {
                    log.write_all(&[b'a' + part; 100]).unwrap();
                }
            });
        }
    });
    let log = fs::read(w.path("log")).unwrap();
    assert_eq!(log.len(), 4 * 200 * 100);
    assert!(log.chunks(100).all(|line| line.iter().all(|b| *b == line[0])));
    // After someone else made it shorter.
    let mut file = OpenOptions::new().append(true).open(w.path("log")).unwrap();
    rw(w.path("log")).set_len(10).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(fs::metadata(w.path("log")).unwrap().len(), 13);
}

#[test]
fn truncation_both_ways() {
    let w = World::new();
    let file = rw(w.path("f"));
    let data = pattern(100_000, 3);
    (&file).write_all(&data).unwrap();
    for len in [70_000, 16_385, 16_384, 5] {
        file.set_len(len).unwrap();
        assert_eq!(fs::metadata(w.path("f")).unwrap().len(), len);
        assert!(fs::read(w.path("f")).unwrap() == data[..len as usize]);
    }
    file.set_len(50_000).unwrap();
    let mut want = vec![0; 50_000];
    want[..5].copy_from_slice(&data[..5]);
    assert!(fs::read(w.path("f")).unwrap() == want);
    // Of many TB.
    file.set_len(1 << 45).unwrap();
    file.write_all_at(b"end", (1 << 45) - 3).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(1 << 20)).unwrap() >> 44, 1);
    let mut end = [0; 4];
    assert_eq!(file.read_at(&mut end, (1 << 45) - 3).unwrap(), 3);
    assert_eq!(&end[..3], b"end");
    // When it is opened.
    let before = fs::metadata(w.path("f")).unwrap();
    drop(File::create(w.path("f")).unwrap());
    let after = fs::metadata(w.path("f")).unwrap();
    assert_eq!(after.len(), 0);
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert_eq!(file.read_at(&mut end, 0).unwrap(), 0);
}

#[test]
fn holes_and_zeros() {
    let w = World::new();
    let file = rw(w.path("f"));
    let mut want = pattern(200_000, 9);
    (&file).write_all(&want).unwrap();
    let f = |mode, at: u64, len: u64| fallocate(&file, mode, at, len);
    let keep = FallocateFlags::KEEP_SIZE;
    f(keep | FallocateFlags::PUNCH_HOLE, 10_000, 90_000).unwrap();
    want[10_000..100_000].fill(0);
    f(FallocateFlags::ZERO_RANGE, 150_000, 100_000).unwrap();
    want.truncate(150_000);
    want.resize(250_000, 0);
    assert_eq!(file.metadata().unwrap().len(), 250_000);
    assert!(fs::read(w.path("f")).unwrap() == want);
    f(keep | FallocateFlags::ZERO_RANGE, 1000, 1000).unwrap();
    want[1000..2000].fill(0);
    f(keep, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 250_000);
    f(FallocateFlags::empty(), 0, 300_000).unwrap();
    want.resize(300_000, 0);
    assert!(fs::read(w.path("f")).unwrap() == want);
    assert_eq!(f(FallocateFlags::COLLAPSE_RANGE, 0, 16 << 10), Err(Errno::OPNOTSUPP));
    assert_eq!(f(FallocateFlags::INSERT_RANGE, 0, 16 << 10), Err(Errno::OPNOTSUPP));
    // What is promised has to be there.
    assert_eq!(f(FallocateFlags::empty(), 0, 1 << 30), Err(Errno::NOSPC));
    assert_eq!(f(keep, 0, 900 << 20), Ok(()));
    // Holes are found while nothing of it is on disk.
    let hole = seek(&file, SeekFrom::Hole(0)).unwrap();
    assert!((10_000..=16_384).contains(&hole), "{hole}");
    let data = seek(&file, SeekFrom::Data(hole)).unwrap();
    assert!((80_000..=100_000).contains(&data), "{data}");
}

#[test]
fn what_a_file_grew_by_is_a_hole() {
    let w = World::new();
    fs::write(w.path("f"), pattern(128 << 10, 3)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(w.path("f")).unwrap();
    file.set_len(1 << 30).unwrap();
    for _ in 0..2 {
        for (from, hole) in [(0, 128 << 10), (128 << 10, 128 << 10), (200_000, 200_000)] {
            assert_eq!(seek(&file, SeekFrom::Hole(from)), Ok(hole));
        }
        assert_eq!(seek(&file, SeekFrom::Hole((1 << 30) - 1)), Ok((1 << 30) - 1));
        assert_eq!(seek(&file, SeekFrom::Data(128 << 10)), Err(Errno::NXIO));
        file.sync_all().unwrap();
    }
}

/// Memory maps are no safe code here; Python has them.
#[test]
fn maps_are_shared_with_writers() {
    if Command::new("python3").arg("-c").arg("import mmap").status().is_ok_and(|s| s.success()) {
        let w = World::new();
        let data = pattern(1 << 20, 5);
        fs::write(w.path("f"), &data).unwrap();
        let script = "
import mmap, os, sys
f = open(sys.argv[1], 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[5000:5010] = b'0123456789'
m[1048576-3:] = b'end'
os.pwrite(f.fileno(), b'written', 70000)
assert m[70000:70007] == b'written'
assert os.pread(f.fileno(), 10, 5000) == b'0123456789'
m.flush()
m[9000:9003] = b'xyz'
m.close()
";
        let python = Command::new("python3").args(["-c", script]).arg(w.path("f")).status();
        assert!(python.unwrap().success());
        let mut want = data;
        want[5000..5010].copy_from_slice(b"0123456789");
        want[(1 << 20) - 3..].copy_from_slice(b"end");
        want[70_000..70_007].copy_from_slice(b"written");
        want[9000..9003].copy_from_slice(b"xyz");
        assert!(fs::read(w.path("f")).unwrap() == want);
        let disk = w.unmount();
        let mut got = vec![0; 1 << 20];
        disk.read(disk.resolve(b"f").unwrap(), 0, &mut got).unwrap();
        assert!(got == want);
    }
}

#[test]
fn what_is_mapped_when_it_is_unmounted_by_force_was_written() {
    if Command::new("python3").arg("-c").arg("import mmap").status().is_ok_and(|s| s.success()) {
        let mut w = World::new();
        fs::write(w.path("f"), vec![1; 1 << 20]).unwrap();
        let script = "
import mmap, sys
f = open(sys.argv[1], 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[:] = b'2' * len(m)
print('changed', flush=True)
sys.stdin.read()
";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(w.path("f"));
        let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 8];
        python.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        w.handle.unmount(cenote_fuse::Force::Yes).unwrap();
        assert!(!w.handle.is_mounted());
        let (disk, mut got) = (w.on_disk(), vec![0; 1 << 20]);
        disk.read(disk.resolve(b"f").unwrap(), 0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == b'2'));
        drop(python.stdin.take());
        assert!(python.wait().unwrap().success());
    }
}

#[test]
fn ranges_are_copied() {
    let w = World::new();
    let data = pattern(3 << 20, 11);
    fs::write(w.path("from"), &data).unwrap();
    let (from, to) = (File::open(w.path("from")).unwrap(), rw(w.path("to")));
    let (mut at, mut left) = (1000u64, 2 << 20);
    let mut out = 500u64;
    while left > 0 {
        let n = copy_file_range(&from, Some(&mut at), &to, Some(&mut out), left).unwrap();
        assert!(n > 0);
        left -= n;
    }
    let mut want = vec![0; 500];
    want.extend_from_slice(&data[1000..1000 + (2 << 20)]);
    assert!(fs::read(w.path("to")).unwrap() == want);
    // Out of a snapshot or another file system the kernel copies by itself.
    assert_eq!(fs::copy(w.path("from"), w.path("again")).unwrap(), 3 << 20);
    assert!(fs::read(w.path("again")).unwrap() == data);
}

#[test]
fn a_random_model() {
    let w = World::new();
    let file = rw(w.path("f"));
    let mut model: Vec<u8> = Vec::new();
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut random = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % below
    };
    for i in 0..600 {
        let (at, len) = (random(300_000) as usize, 1 + random(60_000) as usize);
        match random(7) {
            0 => {
                file.set_len(at as u64).unwrap();
                model.resize(at, 0);
            }
            1 => {
                let mode = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
                fallocate(&file, mode, at as u64, len as u64).unwrap();
                let end = model.len().min(at + len);
                model[at.min(end)..end].fill(0);
            }
            2 => {
                let mut got = vec![0; len];
                let n = file.read_at(&mut got, at as u64).unwrap();
                let end = model.len().min(at + len);
                assert!(got[..n] == model[at.min(end)..end], "step {i}");
            }
            3 => file.sync_data().unwrap(),
            _ => {
                let data = pattern(len, i);
                file.write_all_at(&data, at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&data);
            }
        }
        assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "step {i}");
    }
    assert!(fs::read(w.path("f")).unwrap() == model);
    drop(file);
    let disk = w.unmount();
    let mut got = vec![0; model.len()];
    disk.read(disk.resolve(b"f").unwrap(), 0, &mut got).unwrap();
    assert!(got == model);
}

#[test]
fn syncs_wait_and_policies_hold() {
    let w = World::new();
    let syncs = || w.store.syncs.load(Ordering::SeqCst);
    let on_disk = |name: &str| {
        // The background syncs as well, so only what has to be there is looked at.
        let disk = w.on_disk();
        disk.resolve(name.as_bytes()).is_ok()
    };
    let before = syncs();
    let mut file = File::create(w.path("f")).unwrap();
    file.write_all(b"x").unwrap();
    file.sync_all().unwrap();
    assert!(syncs() > before);
    let before = syncs();
    File::open(w.dir.path()).unwrap().sync_all().unwrap();
    assert!(syncs() > before && on_disk("f"));
    let synced = OpenOptions::new().write(true).custom_flags(OFlags::SYNC.bits() as i32).to_owned();
    let before = syncs();
    synced.open(w.path("f")).unwrap().write_all(b"y").unwrap();
    assert!(syncs() > before);
    w.handle.set_sync_policy(SyncPolicy::Always);
    for change in [
        &(|| fs::create_dir(w.path("d")).unwrap()) as &dyn Fn(),
        &|| fs::write(w.path("g"), "text").unwrap(),
        &|| fs::rename(w.path("g"), w.path("h")).unwrap(),
        &|| fs::hard_link(w.path("h"), w.path("i")).unwrap(),
        &|| fs::remove_file(w.path("h")).unwrap(),
        &|| rw(w.path("i")).set_len(1).unwrap(),
        &|| xattr::set(w.path("i"), "user.a", b"b").unwrap(),
    ] {
        let before = syncs();
        change();
        assert!(syncs() > before);
    }
    // Many threads that wait at once wait together.
    w.handle.set_sync_policy(SyncPolicy::Standard);
    std::thread::scope(|s| {
        for i in 0..16 {
            let path = w.path(&format!("many{i}"));
            s.spawn(move || {
                let mut file = File::create(path).unwrap();
                for _ in 0..10 {
                    file.write_all(b"z").unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    assert!((0..16).all(|i| on_disk(&format!("many{i}"))));
}

#[test]
fn disabled_syncs_do_not_wait() {
    let w = World::with(settings(), &CreateProps::default(), |spec| {
        spec.sync = std::sync::Arc::new(|_| Err(cenote_zpl::Error::Invalid("never".into())));
        spec.sync_policy = SyncPolicy::Disabled;
    });
    let mut file = File::create(w.path("f")).unwrap();
    file.write_all(b"x").unwrap();
    file.sync_all().unwrap();
    w.handle.set_sync_policy(SyncPolicy::Standard);
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(22));
}

#[test]
fn statfs_tells_what_is_now() {
    let w = World::new();
    assert_eq!(statvfs(w.dir.path()).unwrap().f_bavail, (1 << 30) / (16 << 10));
    w.available.store(1 << 20, Ordering::SeqCst);
    assert_eq!(statvfs(w.dir.path()).unwrap().f_bavail, 64);
}

#[test]
fn many_small_files_at_once() {
    let w = World::new();
    std::thread::scope(|s| {
        for part in 0..8usize {
            let dir = w.path(&format!("d{part}"));
            s.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for i in 0..200usize {
                    let path = dir.join(i.to_string());
                    fs::write(&path, pattern(i * 37, i as u64)).unwrap();
                    if i % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    let disk = w.unmount();
    for (part, i) in (0..8usize).flat_map(|p| (0..200usize).map(move |i| (p, i))) {
        let found = disk.resolve(format!("d{part}/{i}").as_bytes());
        if i % 3 == 0 {
            assert!(found.is_err());
            continue;
        }
        let mut got = vec![0; i * 37 + 1];
        assert_eq!(disk.read(found.unwrap(), 0, &mut got).unwrap(), i * 37);
        got.pop();
        assert!(got == pattern(i * 37, i as u64));
    }
}

#[test]
fn reading_what_is_being_written() {
    let w = World::new();
    let mut out = File::create(w.path("f")).unwrap();
    let mut input = File::open(w.path("f")).unwrap();
    let mut got = Vec::new();
    for i in 0..100u8 {
        out.write_all(&[i; 1000]).unwrap();
        input.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), (usize::from(i) + 1) * 1000);
    }
    assert!(got.chunks(1000).zip(0..).all(|(c, i)| c.iter().all(|b| *b == i)));
    input.rewind().unwrap();
    out.set_len(0).unwrap();
    assert_eq!(input.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_large_read_is_answered_from_many_small_blocks_and_holes() {
    let small = Settings { record_size: 512, ..settings() };
    let w = World::with(small, &CreateProps::default(), |_| {});
    // Every third block is written: thousands of pieces for each request.
    let mut bytes = vec![0u8; 3 << 20];
    let file = File::create_new(w.path("f")).unwrap();
    for (i, block) in bytes.chunks_mut(512).enumerate().filter(|(i, _)| i % 3 == 1) {
        block.fill(1 + (i % 251) as u8);
        file.write_all_at(block, i as u64 * 512).unwrap();
    }
    file.set_len(bytes.len() as u64).unwrap();
    drop(file);
    // Pending, on disk, and past the page cache of the mount.
    for flags in [0, 0, OFlags::DIRECT.bits().cast_signed()] {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags).open(w.path("f")).unwrap();
        let mut read = vec![1; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
        let mut some = [1; 5000];
        file.read_exact_at(&mut some, 300_001).unwrap();
        assert_eq!(some[..], bytes[300_001..305_001]);
        w.store.sync();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// A program that runs is not written to; an open that is refused has not truncated it either.
#[test]
fn a_program_that_runs_stays_whole() {
    let w = World::new();
    let program = w.path("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let whole = fs::read(&program).unwrap();
    let mut running = Command::new(&program).arg("60").spawn().unwrap();
    for how in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        let opened = rustix::fs::open(&program, how, rustix::fs::Mode::empty());
        assert_eq!(opened.err(), Some(Errno::TXTBSY), "{how:?}");
        assert!(fs::read(&program).unwrap() == whole, "{how:?}");
    }
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
    let now = rustix::fs::open(&program, OFlags::RDONLY | OFlags::TRUNC, rustix::fs::Mode::empty());
    assert!(now.is_ok() && fs::read(&program).unwrap().is_empty());
}
