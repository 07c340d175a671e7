//! Names: created, removed, renamed, linked, listed.

use crate::world::{World, settings};
use cenote_zpl::{CaseSensitivity, CreateProps};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn names(dir: impl AsRef<Path>) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn what_is_made_is_there_and_gone_when_it_is_removed() {
    let w = World::new();
    assert_eq!(names(w.dir.path()), set(&[]));
    fs::write(w.path("file"), "contents").unwrap();
    fs::create_dir(w.path("dir")).unwrap();
    symlink("file", w.path("link")).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, w.path("pipe"), FileType::Fifo, mode, 0).unwrap();
    mknodat(CWD, w.path("null"), FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
    mknodat(CWD, w.path("disk"), FileType::BlockDevice, mode, makedev(259, 70000)).unwrap();
    mknodat(CWD, w.path("sock"), FileType::Socket, mode, 0).unwrap();
    mknodat(CWD, w.path("plain"), FileType::RegularFile, mode, 0).unwrap();
    let all = ["dir", "disk", "file", "link", "null", "pipe", "plain", "sock"];
    assert_eq!(names(w.dir.path()), set(&all));
    assert_eq!(fs::read(w.path("link")).unwrap(), b"contents");
    assert_eq!(fs::read_link(w.path("link")).unwrap(), Path::new("file"));
    let meta = |name: &str| fs::symlink_metadata(w.path(name)).unwrap();
    assert!(meta("pipe").file_type().is_fifo() && meta("sock").file_type().is_socket());
    assert_eq!(meta("disk").rdev(), makedev(259, 70000));
    assert_eq!(meta("dir").nlink(), 2);
    assert_eq!(fs::metadata(w.dir.path()).unwrap().nlink(), 3);
    // The device works.
    OpenOptions::new().write(true).open(w.path("null")).unwrap().write_all(b"x").unwrap();
    // What is there is not made again.
    let kind = |r: std::io::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(fs::create_dir(w.path("file"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs::create_dir(w.path("none/dir"))), ErrorKind::NotFound);
    assert_eq!(kind(fs::create_dir(w.path("file/dir"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::remove_dir(w.path("file"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::remove_file(w.path("dir"))), ErrorKind::IsADirectory);
    let long = w.path(&"x".repeat(256));
    assert_eq!(kind(fs::create_dir(&long)), ErrorKind::InvalidFilename);
    // There cannot be one either.
    assert_eq!(fs::metadata(&long).unwrap_err().kind(), ErrorKind::InvalidFilename);
    assert_eq!(kind(fs::remove_file(&long)), ErrorKind::InvalidFilename);
    fs::create_dir(w.path("dir/sub")).unwrap();
    assert_eq!(kind(fs::remove_dir(w.path("dir"))), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir(w.path("dir/sub")).unwrap();
    for name in all {
        let path = w.path(name);
        if name == "dir" {
            fs::remove_dir(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
        assert_eq!(fs::symlink_metadata(w.path(name)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(names(w.dir.path()), set(&[]));
    let fs = w.unmount();
    assert!(fs.readdir(fs.root(), 0, 10).unwrap().is_empty());
}

#[test]
fn negative_entries_end_when_something_gets_the_name() {
    let w = World::new();
    for _ in 0..3 {
        assert!(!w.path("x").exists());
        fs::write(w.path("x"), "1").unwrap();
        assert!(w.path("x").exists());
        fs::rename(w.path("x"), w.path("y")).unwrap();
        assert!(!w.path("x").exists() && w.path("y").exists());
        fs::hard_link(w.path("y"), w.path("x")).unwrap();
        fs::remove_file(w.path("y")).unwrap();
        assert!(w.path("x").exists() && !w.path("y").exists());
        fs::remove_file(w.path("x")).unwrap();
    }
}

#[test]
fn renames_replace_exchange_and_refuse() {
    let w = World::new();
    let rename = |a: &str, b: &str, f| renameat_with(CWD, w.path(a), CWD, w.path(b), f);
    let read = |name: &str| fs::read_to_string(w.path(name)).unwrap();
    fs::write(w.path("a"), "A").unwrap();
    fs::write(w.path("b"), "B").unwrap();
    let open = File::open(w.path("b")).unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read("a"), read("b")), ("B".into(), "A".into()));
    rename("a", "b", RenameFlags::empty()).unwrap();
    assert_eq!(read("b"), "B");
    assert!(!w.path("a").exists());
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!(text, "B");
    // Directories: the parent's links, `..`, and not into themselves.
    fs::create_dir_all(w.path("d/e")).unwrap();
    fs::create_dir(w.path("f")).unwrap();
    assert_eq!(rename("d", "d/e/g", RenameFlags::empty()), Err(Errno::INVAL));
    rename("d/e", "f/e", RenameFlags::empty()).unwrap();
    assert_eq!(fs::metadata(w.path("d")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(w.path("f")).unwrap().nlink(), 3);
    let up = fs::metadata(w.path("f/e/..")).unwrap();
    assert_eq!(up.ino(), fs::metadata(w.path("f")).unwrap().ino());
    fs::write(w.path("f/e/file"), "").unwrap();
    fs::create_dir(w.path("h")).unwrap();
    assert_eq!(rename("h", "f/e", RenameFlags::empty()), Err(Errno::NOTEMPTY));
    rename("h", "f/e", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((names(w.path("f/e")), names(w.path("h"))), (set(&[]), set(&["file"])));
    assert_eq!(rename("b", "f", RenameFlags::empty()), Err(Errno::ISDIR));
    rename("b", "f/b", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(w.path("f")), set(&["b", "e"]));
}

/// Overlay file systems move a name away like this.
#[test]
fn whiteouts_take_the_old_place() {
    let w = World::new();
    let rename = |a: &str, b: &str, f| renameat_with(CWD, w.path(a), CWD, w.path(b), f);
    fs::write(w.path("a"), "A").unwrap();
    fs::create_dir(w.path("d")).unwrap();
    let whiteout = RenameFlags::WHITEOUT;
    assert_eq!(rename("a", "d", whiteout | RenameFlags::EXCHANGE), Err(Errno::INVAL));
    assert_eq!(rename("a", "d", whiteout | RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "d/b", whiteout | RenameFlags::NOREPLACE).unwrap();
    let left = fs::symlink_metadata(w.path("a")).unwrap();
    assert!(left.file_type().is_char_device());
    assert_eq!((left.rdev(), left.nlink(), left.mode() & 0o7777), (0, 1, 0));
    assert_eq!(fs::read_to_string(w.path("d/b")).unwrap(), "A");
    rename("d", "e", whiteout).unwrap();
    assert_eq!((names(w.dir.path()), names(w.path("e"))), (set(&["a", "d", "e"]), set(&["b"])));
    // What takes a whiteout's place is there, and it can be removed.
    rename("e/b", "a", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(w.path("a")).unwrap(), "A");
    fs::remove_file(w.path("d")).unwrap();
    assert_eq!((names(w.dir.path()), names(w.path("e"))), (set(&["a", "e"]), set(&[])));
}

#[test]
fn links_share_a_file() {
    let w = World::new();
    fs::write(w.path("a"), "1").unwrap();
    for i in 0..20 {
        fs::hard_link(w.path("a"), w.path(&format!("l{i}"))).unwrap();
        assert_eq!(fs::metadata(w.path("a")).unwrap().nlink(), i + 2);
    }
    assert_eq!(fs::metadata(w.path("l7")).unwrap().ino(), fs::metadata(w.path("a")).unwrap().ino());
    OpenOptions::new().append(true).open(w.path("l3")).unwrap().write_all(b"2").unwrap();
    assert_eq!(fs::read(w.path("l9")).unwrap(), b"12");
    assert_eq!(fs::metadata(w.path("a")).unwrap().len(), 2);
    for i in 0..20 {
        fs::remove_file(w.path(&format!("l{i}"))).unwrap();
    }
    assert_eq!(fs::metadata(w.path("a")).unwrap().nlink(), 1);
    fs::create_dir(w.path("dir")).unwrap();
    assert!(fs::hard_link(w.path("dir"), w.path("other")).is_err());
}

#[test]
fn files_without_names_live_until_they_are_closed() {
    let w = World::new();
    let mut files = Vec::new();
    for i in 0..50 {
        let path = w.path(&format!("f{i}"));
        let options = OpenOptions::new().read(true).write(true).create_new(true).to_owned();
        let mut file = options.open(&path).unwrap();
        file.write_all(format!("file {i}").as_bytes()).unwrap();
        if i % 2 == 0 {
            fs::remove_file(&path).unwrap();
        } else {
            fs::write(w.path("new"), "").unwrap();
            fs::rename(w.path("new"), &path).unwrap();
        }
        files.push(file);
    }
    // Numbers are not given again as long as the files are there.
    fs::write(w.path("more"), "x").unwrap();
    for (i, file) in files.iter_mut().enumerate() {
        use std::os::unix::fs::FileExt;
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"F", 0).unwrap();
        let mut text = vec![0; 16];
        let n = file.read_at(&mut text, 0).unwrap();
        assert_eq!(text[..n], *format!("File {i}").as_bytes());
    }
    let orphans = |fs: &cenote_zpl::FileSystem| {
        let set = fs.object(fs.unlinked_set().unwrap()).unwrap();
        cenote_dmu::zap::Zap::open(&set).unwrap().iter().count()
    };
    assert_eq!(orphans(&w.on_disk()), 50);
    drop(files);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while orphans(&w.on_disk()) > 0 {
        assert!(std::time::Instant::now() < deadline, "orphans stay");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // A directory that is a process's working directory.
    fs::create_dir(w.path("cwd")).unwrap();
    let dir = File::open(w.path("cwd")).unwrap();
    fs::remove_dir(w.path("cwd")).unwrap();
    assert_eq!(rustix::fs::fstat(&dir).unwrap().st_nlink, 0);
    let made = rustix::fs::mkdirat(&dir, "x", Mode::from_raw_mode(0o755));
    assert_eq!(made, Err(Errno::NOENT));
    // Unmounting by force lets go of what is still open.
    let open = File::create(w.path("last")).unwrap();
    fs::remove_file(w.path("last")).unwrap();
    let mut w = w;
    w.handle.unmount(cenote_fuse::Force::Yes).unwrap();
    assert_eq!(orphans(&w.on_disk()), 0);
    drop((open, dir));
}

#[test]
fn ten_thousand_names_in_one_directory() {
    const COUNT: usize = 10_000;
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    let name = |i: usize| w.path(&format!("d/file {i:05}"));
    std::thread::scope(|s| {
        for part in 0..4 {
            s.spawn(move || {
                (part..COUNT).step_by(4).for_each(|i| drop(File::create_new(name(i)).unwrap()));
            });
        }
    });
    let want: BTreeSet<_> = (0..COUNT).map(|i| format!("file {i:05}")).collect();
    assert_eq!(names(w.path("d")), want);
    assert_eq!(fs::metadata(w.path("d")).unwrap().size(), COUNT as u64 + 2);
    // Removing while listing leaves nothing and meets everything once.
    let mut seen = 0;
    for entry in fs::read_dir(w.path("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, COUNT);
    assert_eq!(names(w.path("d")), set(&[]));
    fs::remove_dir(w.path("d")).unwrap();
}

#[test]
fn a_listing_follows_changes() {
    let w = World::new();
    let mut want = BTreeSet::new();
    for i in 0..50 {
        fs::write(w.path(&format!("n{i}")), "").unwrap();
        want.insert(format!("n{i}"));
        assert_eq!(names(w.dir.path()), want);
        if i % 3 == 2 {
            fs::remove_file(w.path(&format!("n{}", i - 1))).unwrap();
            want.remove(&format!("n{}", i - 1));
            assert_eq!(names(w.dir.path()), want);
        }
    }
}

#[test]
fn names_that_can_be_written_in_several_ways() {
    let props = CreateProps { case: CaseSensitivity::Insensitive, ..CreateProps::default() };
    let w = World::with(settings(), &props, |_| {});
    assert!(!w.path("FILE").exists() && !w.path("file").exists());
    fs::write(w.path("File"), "1").unwrap();
    assert_eq!(fs::read(w.path("FILE")).unwrap(), b"1");
    assert!(w.path("file").exists());
    fs::rename(w.path("file"), w.path("other")).unwrap();
    assert!(!w.path("FILE").exists() && !w.path("File").exists());
    fs::remove_file(w.path("OTHER")).unwrap();
    assert!(!w.path("other").exists() && !w.path("Other").exists());
    fs::create_dir(w.path("Dir")).unwrap();
    fs::write(w.path("dir/x"), "").unwrap();
    assert!(w.path("DIR/X").exists());
    fs::remove_file(w.path("DIR/X")).unwrap();
    fs::remove_dir(w.path("dir")).unwrap();
    assert!(!w.path("Dir").exists());
}

#[test]
fn modes_of_new_files() {
    let w = World::new();
    let mode = |name: &str| fs::metadata(w.path(name)).unwrap().mode();
    w.as_user(0, "umask 027; : > f; mkdir d; mknod p p");
    assert_eq!((mode("f"), mode("d"), mode("p")), (0o100_640, 0o040_750, 0o010_640));
    // A directory hands on its group.
    w.as_user(0, "umask 022; mkdir -m 2777 g; chgrp 1234 g; chmod 2777 g");
    w.as_user(1000, "umask 022; : > g/f; mkdir g/d");
    let meta = |name: &str| fs::metadata(w.path(name)).unwrap();
    assert_eq!((meta("g/f").uid(), meta("g/f").gid()), (1000, 1234));
    assert_eq!((meta("g/d").gid(), mode("g/d")), (1234, 0o042_755));
    // Permissions are the kernel's to check.
    w.as_user(0, "mkdir -m 755 mine");
    assert!(!w.try_as_user(1000, "touch mine/f").status.success());
    assert!(!w.try_as_user(1000, "rm f").status.success());
    let exclusive = OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
    assert_eq!(exclusive.open(w.path("f")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(
        rustix::fs::accessat(CWD, w.path("f"), rustix::fs::Access::READ_OK, AtFlags::empty())
            .is_ok()
    );
}

/// A handle of a file that is gone does not lead to the one that was given its number in the same
/// transaction group.
#[test]
fn handles_do_not_outlive_their_files() {
    let script = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
os.chdir(sys.argv[1])
top = os.open(".", os.O_RDONLY)
again = 0
for i in range(30):
    handle, mount = Handle(128), ctypes.c_int()
    open("old", "w").close()
    number = os.stat("old").st_ino
    assert libc.name_to_handle_at(-100, b"old", ctypes.byref(handle), ctypes.byref(mount), 0) == 0
    fd = libc.open_by_handle_at(top, ctypes.byref(handle), 0)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    os.unlink("old")
    open("new", "w").close()
    again += os.stat("new").st_ino == number
    fd = libc.open_by_handle_at(top, ctypes.byref(handle), 0)
    if fd >= 0:
        # The kernel has not let go of the old file yet: its closing is not waited for.
        assert os.fstat(fd).st_nlink == 0
        os.close(fd)
    else:
        assert ctypes.get_errno() == errno.ESTALE
    os.unlink("new")
print(again)
"#;
    let w = World::new();
    let python = Command::new("python3").args(["-c", script]).arg(w.dir.path()).output().unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    println!("{} numbers again", String::from_utf8_lossy(&python.stdout).trim());
}

#[test]
fn a_name_that_the_kernel_cannot_take_is_left_out_of_a_listing() {
    let w = World::new();
    fs::write(w.path("before"), "").unwrap();
    let ino = fs::metadata(w.path("before")).unwrap().ino();
    for name in [&b"a/b"[..], b"/", b"../up"] {
        w.add_raw_entry(name, ino);
    }
    fs::write(w.path("behind"), "").unwrap();
    let mut found: Vec<_> =
        fs::read_dir(w.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    found.sort();
    assert_eq!(found, ["before", "behind"]);
}
