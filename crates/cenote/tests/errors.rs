//! What can fail fails with the errors that the documentation says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote::{Error, Pool, SetAttr};
use std::io::ErrorKind::{self, *};
use std::os::unix::ffi::OsStrExt;

#[track_caller]
fn fails<T>(done: cenote::Result<T>, kind: ErrorKind) {
    let e = std::io::Error::from(done.err().unwrap());
    assert_eq!(e.kind(), kind, "{e}");
}

#[test]
fn files_fail_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20).unwrap();
    let home = pool.create_filesystem("tank/home", &[]).unwrap();
    let files = home.filesystem().unwrap();
    files.create_dir("dir").unwrap();
    files.write("dir/file", "text").unwrap();
    files.symlink("file", "dir/link").unwrap();

    fails(files.open("no"), NotFound);
    fails(files.open("dir").and_then(|dir| dir.read_at(0, &mut [0; 8])), IsADirectory);
    fails(files.read_dir("dir/file"), NotADirectory);
    fails(files.read_link("dir/file"), InvalidInput);
    fails(files.create_new("dir/file"), AlreadyExists);
    fails(files.create("no/file"), NotFound);
    fails(files.create_dir("dir"), AlreadyExists);
    fails(files.create_dir_all("dir/file/below"), AlreadyExists);
    fails(files.hard_link("dir", "again"), PermissionDenied);
    fails(files.hard_link("no", "again"), NotFound);
    fails(files.remove_file("dir"), IsADirectory);
    fails(files.remove_dir("dir"), DirectoryNotEmpty);
    fails(files.remove_dir("dir/file"), NotADirectory);
    fails(files.rename("no", "to"), NotFound);
    fails(files.rename("dir", "dir/inside"), InvalidInput);
    fails(files.set_attributes("no", &SetAttr::default()), NotFound);
    let snapshot = home.snapshot("s").unwrap().filesystem().unwrap();
    fails(snapshot.write("dir/file", "x"), ReadOnlyFilesystem);
    fails(snapshot.sync(), ReadOnlyFilesystem);

    let disk = pool.create_volume("tank/disk", 8 << 20, &[]).unwrap();
    assert!(disk.volume().unwrap().write_at((8 << 20) - 1, b"past").is_err());
    assert!(matches!(disk.filesystem(), Err(Error::Kind { .. })));
    assert!(matches!(home.volume(), Err(Error::Kind { .. })));
    fails(Pool::create_in_file(dir.path().join("disk"), "other", 128 << 20), AlreadyExists);
    let small = Pool::create_in_file(dir.path().join("small"), "small", 1 << 20);
    assert!(matches!(small, Err(Error::Create(_))));
    assert!(!dir.path().join("small").exists());
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    fails(Pool::create_in_file(&odd, "odd", 128 << 20), InvalidInput);
    assert!(!odd.exists());
    drop((files, snapshot, home, disk));
    pool.export().unwrap();
    cenote_testpools::judge(dir.path(), "tank");
}
