//! Attributes: modes, owners, times, extended attributes, ACLs, flags.

use crate::world::{World, settings};
use cenote_zpl::{Atime, CreateProps, Settings, Visibility};
use rustix::fs::{FileType, IFlags, Mode, ioctl_getflags, ioctl_setflags, makedev};
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

const EPERM: i32 = 1;
const EEXIST: i32 = 17;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;

#[test]
fn owners_and_modes() {
    let w = World::new();
    let path = w.path("f");
    fs::write(&path, "x").unwrap();
    let meta = || fs::metadata(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(meta().mode(), 0o104_751);
    chown(&path, Some(1000), Some(1001)).unwrap();
    assert_eq!((meta().uid(), meta().gid(), meta().mode()), (1000, 1001, 0o100_751));
    chown(&path, None, Some(7)).unwrap();
    assert_eq!((meta().uid(), meta().gid()), (1000, 7));
    w.as_user(1000, "chmod 600 f && test $(stat -c %a f) = 600");
    assert!(!w.try_as_user(1001, "chmod 777 f").status.success());
    let before = (meta().ctime(), meta().ctime_nsec());
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!((meta().ctime(), meta().ctime_nsec()) > before);
}

#[test]
fn set_id_bits_go_when_others_write() {
    let w = World::new();
    let path = w.path("f");
    let mode = || fs::metadata(w.path("f")).unwrap().mode() & 0o7777;
    let reset = || {
        fs::write(&path, "0123456789").unwrap();
        chown(&path, Some(1), Some(1)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
    };
    reset();
    // Those with privilege keep them.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_eq!(mode(), 0o6777);
    for command in [
        "echo x >> f",
        ": > f",
        "truncate -s 3 f",
        "printf x | dd of=f conv=notrunc status=none",
        "fallocate -l 100000 f",
    ] {
        reset();
        w.as_user(1000, command);
        assert_eq!(mode(), 0o777, "{command}");
    }
    reset();
    fs::write(w.path("from"), "text").unwrap();
    w.as_user(1000, "cat from > f");
    assert_eq!(mode(), 0o777);
    // File capabilities go as well.
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    xattr::set(&path, "security.capability", &capability).unwrap();
    w.as_user(1000, "echo x >> f");
    assert_eq!(xattr::get(&path, "security.capability").unwrap(), None);
}

#[test]
fn times_are_what_was_set() {
    let w = World::new();
    let path = w.path("f");
    fs::write(&path, "x").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let second = Duration::new(1_234_567_890, 123_456_789);
    let past = UNIX_EPOCH - Duration::new(5, 300_000_000);
    for t in [UNIX_EPOCH + second, past, UNIX_EPOCH, UNIX_EPOCH + Duration::new(1 << 33, 1)] {
        file.set_times(FileTimes::new().set_accessed(t).set_modified(t)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.accessed().unwrap(), meta.modified().unwrap()), (t, t));
    }
    // Now, by the caller and by writing.
    w.as_user(0, "touch f");
    let age = |t: SystemTime| t.elapsed().unwrap_or_default();
    assert!(age(fs::metadata(&path).unwrap().modified().unwrap()) < Duration::from_secs(10));
    file.set_times(FileTimes::new().set_modified(past)).unwrap();
    (&file).write_all(b"y").unwrap();
    assert!(age(fs::metadata(&path).unwrap().modified().unwrap()) < Duration::from_secs(10));
    // A directory's times follow its entries.
    let dir = || fs::metadata(w.dir.path()).unwrap().modified().unwrap();
    let mut before = dir();
    for change in [
        &(|| fs::write(w.path("new"), "").unwrap()) as &dyn Fn(),
        &|| fs::rename(w.path("new"), w.path("newer")).unwrap(),
        &|| fs::remove_file(w.path("newer")).unwrap(),
    ] {
        std::thread::sleep(Duration::from_millis(5));
        change();
        assert!(dir() > before);
        before = dir();
    }
}

fn accessed(policy: Atime) -> [bool; 3] {
    let settings = cenote_zpl::Settings { atime: policy, ..settings() };
    let w = World::with(settings, &CreateProps::default(), |_| {});
    let path = w.path("f");
    fs::write(&path, "text").unwrap();
    let atime = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    let mut last = atime();
    let mut read = || {
        std::thread::sleep(Duration::from_millis(5));
        File::open(&path).unwrap().read_to_string(&mut String::new()).unwrap();
        let now = atime();
        now > std::mem::replace(&mut last, now)
    };
    let (first, second) = (read(), read());
    fs::write(&path, "other").unwrap();
    [first, second, read()]
}

#[test]
fn access_times_follow_the_property() {
    assert_eq!(accessed(Atime::Off), [false; 3]);
    assert_eq!(accessed(Atime::Relative), [true, false, true]);
    assert_eq!(accessed(Atime::On), [true; 3]);
}

#[test]
fn extended_attributes() {
    let w = World::new();
    let path = w.path("f");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8]| xattr::set(&path, name, value);
    set("user.a", b"one").unwrap();
    set("user.b", &vec![7; 60_000]).unwrap();
    set("trusted.t", b"t").unwrap();
    set("security.s", b"s").unwrap();
    set("user.a", b"two").unwrap();
    assert_eq!(xattr::get(&path, "user.a").unwrap().unwrap(), b"two");
    assert_eq!(xattr::get(&path, "user.b").unwrap().unwrap(), vec![7; 60_000]);
    let mut names: Vec<_> = xattr::list(&path).unwrap().map(|n| n.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["security.s", "trusted.t", "user.a", "user.b"]);
    use rustix::fs::{XattrFlags, setxattr};
    let flagged = |name: &str, flags| setxattr(&path, name, b"x", flags).map_err(Into::into);
    assert_eq!(errno(flagged("user.a", XattrFlags::CREATE)), EEXIST);
    assert_eq!(errno(flagged("user.n", XattrFlags::REPLACE)), ENODATA);
    flagged("user.a", XattrFlags::REPLACE).unwrap();
    flagged("user.n", XattrFlags::CREATE).unwrap();
    xattr::remove(&path, "user.n").unwrap();
    assert_eq!(errno(xattr::remove(&path, "user.n")), ENODATA);
    assert_eq!(errno(set("system.other", b"x")), EOPNOTSUPP);
    // Directories have them, too; of symbolic links only the superuser's.
    fs::create_dir(w.path("d")).unwrap();
    xattr::set(w.path("d"), "user.d", b"d").unwrap();
    std::os::unix::fs::symlink("f", w.path("l")).unwrap();
    xattr::set(w.path("l"), "trusted.l", b"l").unwrap();
    assert_eq!(errno(xattr::set(w.path("l"), "user.l", b"l")), EPERM);
    let disk = w.unmount();
    let ino = disk.resolve(b"f").unwrap();
    assert_eq!(disk.getxattr(ino, b"user.a").unwrap().unwrap(), b"x");
    assert_eq!(disk.getxattr(ino, b"user.n").unwrap(), None);
}

/// An ACL in the form that programs see: tags, permissions and ids.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

const NONE: u32 = u32::MAX;

#[test]
fn access_control_lists() {
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    fs::write(w.path("d/f"), "text").unwrap();
    fs::set_permissions(w.path("d/f"), Permissions::from_mode(0o600)).unwrap();
    assert!(!w.try_as_user(1234, "cat d/f").status.success());
    let list = acl(&[(1, 6, NONE), (2, 4, 1234), (4, 0, NONE), (16, 4, NONE), (32, 0, NONE)]);
    xattr::set(w.path("d/f"), "system.posix_acl_access", &list).unwrap();
    // The mask is shown in place of the group.
    assert_eq!(fs::metadata(w.path("d/f")).unwrap().mode(), 0o100_640);
    assert_eq!(w.as_user(1234, "cat d/f"), "text");
    assert!(!w.try_as_user(1235, "cat d/f").status.success());
    assert!(!w.try_as_user(1234, "echo >> d/f").status.success());
    // Changing the mode changes the mask.
    fs::set_permissions(w.path("d/f"), Permissions::from_mode(0o600)).unwrap();
    assert!(!w.try_as_user(1234, "cat d/f").status.success());
    xattr::remove(w.path("d/f"), "system.posix_acl_access").unwrap();
    assert_eq!(xattr::get(w.path("d/f"), "system.posix_acl_access").unwrap(), None);
    // A default list is inherited, and then the umask does not count.
    let default = acl(&[(1, 7, NONE), (2, 6, 1234), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE)]);
    xattr::set(w.path("d"), "system.posix_acl_default", &default).unwrap();
    w.as_user(0, "umask 077; echo new > d/new; mkdir d/sub");
    let inherited = xattr::get(w.path("d/new"), "system.posix_acl_access").unwrap().unwrap();
    assert_eq!(inherited.len(), default.len());
    w.as_user(1234, "echo more >> d/new");
    assert_eq!(w.as_user(1234, "cat d/new"), "new\nmore\n");
    let handed_on = xattr::get(w.path("d/sub"), "system.posix_acl_default").unwrap();
    assert_eq!(handed_on, Some(default));
    // The set-group-id bit goes when someone outside the group sets a list.
    fs::write(w.path("g"), "").unwrap();
    chown(w.path("g"), Some(1000), Some(4321)).unwrap();
    fs::set_permissions(w.path("g"), Permissions::from_mode(0o2755)).unwrap();
    let list = list.iter().map(|b| format!("\\{b:03o}")).collect::<String>();
    if w.try_as_user(1000, "python3 -c pass").status.success() {
        let script = format!("import os; os.setxattr('g', 'system.posix_acl_access', b'{list}')");
        w.as_user(1000, &format!("python3 -c \"{script}\""));
        assert_eq!(fs::metadata(w.path("g")).unwrap().mode() & 0o2000, 0);
    }
}

#[test]
fn a_change_of_the_owner_to_the_same_one_takes_set_ids_away() {
    let w = World::new();
    fs::write(w.path("f"), "").unwrap();
    fs::set_permissions(w.path("f"), Permissions::from_mode(0o6755)).unwrap();
    chown(w.path("f"), None, None).unwrap();
    assert_eq!(fs::metadata(w.path("f")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn set_id_bits_stay_if_somebody_else_changes_nothing() {
    let w = World::new();
    let mode = || fs::metadata(w.path("f")).unwrap().mode() & 0o7777;
    let set = |mode| fs::set_permissions(w.path("f"), Permissions::from_mode(mode)).unwrap();
    fs::write(w.path("f"), "").unwrap();
    set(0o6755);
    w.try_as_user(1000, "chown : f");
    assert_eq!(mode(), 0o6755);
    // A user who may write to the file takes the bits away by that.
    set(0o6777);
    w.as_user(1000, "fallocate -l 1000 f");
    assert_eq!(mode(), 0o777);
    set(0o6755);
    chown(w.path("f"), Some(1000), None).unwrap();
    set(0o6755);
    w.as_user(1000, "chown : f");
    assert_eq!(mode(), 0o755);
}

/// As the kernel has it with other file systems.
#[test]
fn only_members_leave_a_set_group_id_bit_of_what_the_group_may_not_run() {
    let w = World::new();
    let path = w.path("f");
    let copy = "import os; f = os.open('f', os.O_RDWR); os.copy_file_range(f, f, 10, 0, 100)";
    let copy = format!("python3 -c \"{copy}\"");
    for command in ["fallocate -l 1000 f", "fallocate -p -o 0 -l 10 f", &copy] {
        for (group, want) in [(0, 0o766), (1000, 0o2766)] {
            fs::write(&path, "0123456789").unwrap();
            chown(&path, None, Some(group)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6766)).unwrap();
            w.as_user(1000, command);
            let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(mode, want, "{command}, group {group}");
        }
    }
}

/// A process in a user namespace of its own has all capabilities, over nothing here.
#[test]
fn capabilities_of_other_namespaces_keep_no_set_id_bits() {
    let w = World::new();
    if !w.try_as_user(1000, "unshare -U true").status.success() {
        return;
    }
    let path = w.path("f");
    for command in [": > f", "truncate -s 3 f", "echo x >> f", "fallocate -l 1000 f"] {
        fs::write(&path, "0123456789").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        w.as_user(1000, &format!("unshare -U sh -c '{command}'"));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{command}");
    }
}

#[test]
fn owners_of_anything_but_directories_take_set_ids_away() {
    let w = World::new();
    for (n, kind) in [FileType::Fifo, FileType::CharacterDevice].into_iter().enumerate() {
        let path = w.path(&format!("n{n}"));
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::RUSR, makedev(1, 3)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    }
    fs::create_dir(w.path("d")).unwrap();
    fs::set_permissions(w.path("d"), Permissions::from_mode(0o6755)).unwrap();
    chown(w.path("d"), Some(1000), None).unwrap();
    assert_eq!(fs::metadata(w.path("d")).unwrap().mode() & 0o7777, 0o6755);
}

#[test]
fn flags_that_keep_files_as_they_are() {
    let w = World::new();
    let path = w.path("f");
    fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    let flags = |f: IFlags| ioctl_setflags(&file, f).unwrap();
    flags(IFlags::IMMUTABLE);
    assert_eq!(ioctl_getflags(&file).unwrap(), IFlags::IMMUTABLE);
    let write = || OpenOptions::new().write(true).open(&path);
    let append = || OpenOptions::new().append(true).open(&path);
    assert_eq!(errno(write()), EPERM);
    assert_eq!(errno(append()), EPERM);
    assert_eq!(errno(fs::remove_file(&path)), EPERM);
    assert_eq!(errno(fs::rename(&path, w.path("g"))), EPERM);
    assert_eq!(errno(fs::set_permissions(&path, Permissions::from_mode(0o600))), EPERM);
    flags(IFlags::APPEND | IFlags::NODUMP);
    assert_eq!(ioctl_getflags(&file).unwrap(), IFlags::APPEND | IFlags::NODUMP);
    assert_eq!(errno(write()), EPERM);
    assert_eq!(errno(File::create(&path)), EPERM);
    append().unwrap().write_all(b" more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"text more");
    flags(IFlags::empty());
    write().unwrap();
    assert!(ioctl_setflags(&file, IFlags::COMPRESSED).is_err());
    fs::remove_file(&path).unwrap();
}

#[test]
fn space_is_shown_when_it_is_known() {
    let w = World::new();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    fs::write(w.path("f"), data).unwrap();
    let mut file = File::open(w.path("f")).unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
    fs::metadata(w.path("f")).unwrap();
    w.store.sync();
    // At once: the kernel has kept nothing that may change without a request.
    let blocks = fs::metadata(w.path("f")).unwrap().blocks();
    assert!(blocks * 512 >= 1_000_000, "{blocks}");
}

#[test]
fn only_a_read_changes_the_access_time() {
    for policy in [Atime::Relative, Atime::On] {
        let settings = cenote_zpl::Settings { atime: policy, ..settings() };
        let w = World::with(settings, &CreateProps::default(), |_| {});
        let (file, dir) = (w.path("f"), w.path("d"));
        fs::write(&file, "text").unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("in"), "").unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(981_158_400);
        let atime = |path: &Path| fs::metadata(path).unwrap().accessed().unwrap();
        let read = |path: &Path| match path.is_dir() {
            true => assert_eq!(fs::read_dir(path).unwrap().count(), 1),
            false => assert_eq!(fs::read(path).unwrap(), b"text"),
        };
        for path in [&file, &dir] {
            // The kernel has what is read in memory from here on.
            read(path);
            let times = fs::FileTimes::new().set_accessed(old);
            File::open(path).unwrap().set_times(times).unwrap();
            drop(File::open(path).unwrap());
            assert_eq!(atime(path), old);
            read(path);
            assert!(atime(path).elapsed().unwrap() < Duration::from_secs(10));
        }
    }
}

/// The kernel does not know NFSv4 lists: only the owner sets one, and what it grants or denies is the mode that it comes to.
#[test]
fn nfs4_lists() {
    let visibility = Visibility { posix_acl: false, nfs4_acl: true, xattr: true };
    let w = World::with(Settings { visibility, ..settings() }, &CreateProps::default(), |_| {});
    const NAME: &str = "system.nfs4_acl_xdr";
    fs::write(w.path("f"), "text").unwrap();
    chown(w.path("f"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(w.path("f"), Permissions::from_mode(0o600)).unwrap();
    assert!(!w.try_as_user(1234, "cat f").status.success());
    assert_eq!(xattr::list(w.path("f")).unwrap().count(), 0);
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
    // The owner may read and write; the user 1234 may read, which is no bit of the mode.
    let owner = [0, 0, 1, 0x1e_019f, 1];
    let user = [0, 0, 0, 0x12_0089, 1234];
    let named = words(&[&[0, 2][..], &owner, &user].concat());
    xattr::set(w.path("f"), NAME, &named).unwrap();
    assert_eq!(xattr::get(w.path("f"), NAME).unwrap().unwrap(), named);
    assert_eq!(fs::metadata(w.path("f")).unwrap().mode(), 0o100_600);
    assert!(!w.try_as_user(1234, "cat f").status.success(), "no more than the mode");
    assert_eq!(xattr::list(w.path("f")).unwrap().collect::<Vec<_>>(), [NAME]);
    // Everyone: the kernel hears of the mode at once.
    let everyone = words(&[&[0, 2][..], &owner, &[0, 0, 1, 0x12_0089, 3]].concat());
    xattr::set(w.path("f"), NAME, &everyone).unwrap();
    assert_eq!(w.as_user(1234, "cat f"), "text");
    assert_eq!(fs::metadata(w.path("f")).unwrap().mode(), 0o100_644);
    xattr::set(w.path("f"), NAME, &named).unwrap();
    assert!(!w.try_as_user(1234, "cat f").status.success());
    // Nobody else sets or removes a list, whatever it says.
    if w.try_as_user(1000, "python3 -c pass").status.success() {
        let list = everyone.iter().map(|b| format!("\\{b:03o}")).collect::<String>();
        let set = format!("python3 -c \"import os; os.setxattr('f', '{NAME}', b'{list}')\"");
        let remove = format!("python3 -c \"import os; os.removexattr('f', '{NAME}')\"");
        for script in [&set, &remove] {
            assert!(!w.try_as_user(1234, script).status.success(), "{script}");
            assert_eq!(xattr::get(w.path("f"), NAME).unwrap().unwrap(), named);
            assert!(w.try_as_user(1000, script).status.success(), "{script}");
            xattr::set(w.path("f"), NAME, &named).unwrap();
        }
    }
    // A directory hands down what it is told to; the umask does not take that back.
    fs::create_dir(w.path("d")).unwrap();
    let down = [&[0, 2][..], &[0, 0, 1, 0x1e_01ff, 1], &[0, 3, 1, 0x12_00a9, 3]].concat();
    xattr::set(w.path("d"), NAME, &words(&down)).unwrap();
    w.as_user(0, "umask 077; echo new > d/new");
    assert_eq!(fs::metadata(w.path("d/new")).unwrap().mode(), 0o100_755);
    assert_eq!(w.as_user(1234, "cat d/new"), "new\n");
}
