//! Names that compare otherwise than by their bytes.

use crate::world::World;
use cenote_dmu::write::{OpenObjectSet, WriteError, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zap::norm::{NFC, NFD, NFKD};
use cenote_zpl::{CaseSensitivity, CreateProps, Error, NewNode, NodeKind, RenameFlags, Settings};

fn file() -> NewNode {
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: true }
}

fn errno<T>(done: Result<T, Error>) -> Result<T, i32> {
    done.map_err(|e| e.errno())
}

fn listed(world: &World) -> Vec<String> {
    let fs = &world.fs;
    let entries = fs.readdir(fs.root(), 0, 100).unwrap();
    let mut names: Vec<String> =
        entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn case_does_not_count() {
    let case = CaseSensitivity::Insensitive;
    let world = World::new(&CreateProps { case, ..CreateProps::default() }, Settings::default());
    let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
    let flags = RenameFlags::default();
    let ino = fs.create(root, b"Foo", &file()).unwrap().ino;
    assert_eq!(errno(fs.create(root, b"fOO", &file())).map(drop), Err(17));
    assert_eq!(fs.lookup(root, b"foo").unwrap(), ino);
    // To another case: the same file, the name as it is given.
    fs.rename(root, b"Foo", root, b"FOO", flags, &idle).unwrap();
    assert_eq!(listed(&world), ["FOO"]);
    // From a name that differs from the stored one in case: there is no entry of that case.
    assert_eq!(errno(fs.rename(root, b"foo", root, b"fOO", flags, &idle)).map(drop), Err(2));
    world.sync(|| {});
    fs.rename(root, b"foo", root, b"bar", flags, &idle).unwrap();
    fs.create(root, b"Foo", &file()).unwrap();
    let gone = fs.rename(root, b"bAR", root, b"fOo", flags, &idle).unwrap().unwrap();
    assert_eq!((gone.nlink, listed(&world)), (0, vec!["fOo".to_owned()]));
    assert_eq!(fs.unlink(root, b"FOO", &idle).unwrap().ino, ino);
    assert_eq!(listed(&world), [""; 0]);
}

#[test]
fn case_counts_when_it_is_mixed() {
    let case = CaseSensitivity::Mixed;
    let world = World::new(&CreateProps { case, ..CreateProps::default() }, Settings::default());
    let (fs, root) = (&world.fs, world.fs.root());
    for name in [&b"foo"[..], b"Foo", b"FOO"] {
        fs.create(root, name, &file()).unwrap();
        assert_eq!(errno(fs.create(root, name, &file())).map(drop), Err(17));
    }
    fs.unlink(root, b"Foo", &|_| false).unwrap();
    assert_eq!(listed(&world), ["FOO", "foo"]);
}

#[test]
fn names_of_one_hash_run_out_of_space() {
    let case = CaseSensitivity::Mixed;
    let world = World::new(&CreateProps { case, ..CreateProps::default() }, Settings::default());
    let (fs, root) = (&world.fs, world.fs.root());
    // Where case is mixed, the hash of a name takes no notice of it.
    let spelling = |n: u32| -> Vec<u8> {
        let letter = |bit: u32| if n >> bit & 1 == 0 { b'a' } else { b'A' };
        (0..9).map(letter).collect()
    };
    let made = |n: &u32| fs.create(root, &spelling(*n), &file()).map_err(|e| e.errno());
    let ends = (0..512).map(|n| made(&n).map(drop)).find(Result::is_err);
    assert_eq!(ends, Some(Err(28)));
    // Others find their place.
    fs.create(root, b"other", &file()).unwrap();
    assert!(fs.lookup(root, &spelling(0)).is_ok());
}

#[test]
fn forms_do_not_count() {
    for normalization in [NFC, NFD] {
        let props = CreateProps { normalization, ..CreateProps::default() };
        let world = World::new(&props, Settings::default());
        let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
        let (composed, decomposed) = ("caf\u{e9}".as_bytes(), "cafe\u{301}".as_bytes());
        let ino = fs.create(root, composed, &file()).unwrap().ino;
        assert_eq!(errno(fs.create(root, decomposed, &file())).map(drop), Err(17));
        assert_eq!(errno(fs.create(root, "CAF\u{c9}".as_bytes(), &file())).map(drop), Ok(()));
        // The same name: nothing is done.
        let flags = RenameFlags::default();
        assert_eq!(fs.rename(root, composed, root, decomposed, flags, &idle).unwrap(), None);
        assert_eq!(fs.unlink(root, decomposed, &idle).unwrap().ino, ino);
        assert_eq!(errno(fs.create(root, b"\xff", &file())).map(drop), Err(84));
        world.sync(|| {});
    }
}

#[test]
fn names_that_are_too_long_when_normalized() {
    let props = CreateProps { normalization: NFKD, ..CreateProps::default() };
    let world = World::new(&props, Settings::default());
    let (fs, root) = (&world.fs, world.fs.root());
    // 3 bytes become 33, and 255 are the most.
    let (most, longer) = ("\u{fdfa}".repeat(7), "\u{fdfa}".repeat(8));
    fs.create(root, most.as_bytes(), &file()).unwrap();
    assert_eq!(errno(fs.create(root, longer.as_bytes(), &file())).map(drop), Err(95));
    let flags = RenameFlags::default();
    let renamed = fs.rename(root, most.as_bytes(), root, longer.as_bytes(), flags, &|_| false);
    assert_eq!(errno(renamed).map(drop), Err(95));
    assert_eq!(listed(&world), [most]);
}

#[test]
fn names_that_cannot_be() {
    let world = World::new(&CreateProps::default(), Settings::default());
    let (fs, root) = (&world.fs, world.fs.root());
    for (name, errno) in
        [(&b""[..], 17), (b".", 17), (b"..", 17), (b"a/b", 22), (b"a\0", 22), (&[b'x'; 256], 36)]
    {
        assert_eq!(fs.create(root, name, &file()).unwrap_err().errno(), errno, "{name:?}");
    }
    fs.create(root, b"\xff\xfe", &file()).unwrap();
    let props = CreateProps { utf8_only: true, ..CreateProps::default() };
    let world = World::new(&props, Settings::default());
    assert_eq!(errno(world.fs.create(world.fs.root(), b"\xff", &file())).map(drop), Err(84));
    assert_eq!(world.fs.create(99, b"x", &file()).unwrap_err().errno(), 2);
}

#[test]
fn what_is_found_follows_every_change() {
    let world = World::new(&CreateProps::default(), Settings::default());
    let (fs, root) = (&world.fs, world.fs.root());
    let dir = fs.create(root, b"d", &NewNode { kind: NodeKind::Dir, ..file() }).unwrap().ino;
    let name = |n: usize| format!("{n}{}", "x".repeat(n / 100 * 20)).into_bytes();
    let mut inos = Vec::new();
    let check = |inos: &[Option<u64>]| {
        for (n, ino) in inos.iter().enumerate() {
            assert_eq!(errno(fs.lookup(dir, &name(n))), ino.ok_or(2), "{n}");
        }
        assert_eq!(errno(fs.lookup(dir, &name(inos.len()))), Err(2));
        assert_eq!(fs.lookup(dir, b".").unwrap(), dir);
        assert_eq!(fs.lookup(dir, b"..").unwrap(), root);
        assert_eq!(errno(fs.lookup(dir, b"")), Err(2));
        assert_eq!(errno(fs.lookup(dir, &[b'n'; 256])), Err(36));
        let file = inos.iter().flatten().next().unwrap();
        assert_eq!(errno(fs.lookup(*file, b"0")), Err(20));
    };
    // The last names are too long for a micro ZAP.
    for n in 0..310 {
        inos.push(Some(fs.create(dir, &name(n), &file()).unwrap().ino));
        if n % 7 == 3 {
            fs.unlink(dir, &name(n / 2), &|_| false).ok();
            inos[n / 2] = None;
        }
        match n % 60 {
            20 => check(&inos),
            // While a group is being written, and right after.
            40 => drop(world.sync(|| check(&inos))),
            50 => drop(world.sync(|| {})),
            51 => check(&inos),
            _ => {}
        }
    }
    check(&inos);
}

#[test]
fn names_of_another_system_that_are_longer_are_removed_and_renamed() {
    let world = World::new(&CreateProps::default(), Settings::default());
    let (fs, root, idle) = (&world.fs, world.fs.root(), |_| false);
    let flags = RenameFlags::default();
    let long = |letter: u8, length| vec![letter; length];
    let inos = [b"a", b"b", b"c"].map(|name| fs.create(root, name, &file()).unwrap().ino);
    let lengthen = |os: &mut OpenObjectSet, _| {
        for (ino, (letter, length)) in inos.iter().zip([(b'a', 256), (b'b', 700), (b'c', 1023)]) {
            let (kind, mut zap) = (8u64 << 60, ZapMut::open(os, root).with_long_names());
            zap.remove(&Key::Name(&[letter]))?;
            zap.add(&Key::Name(&long(letter, length)), &Value::U64(&[kind | ino]))?;
        }
        Ok::<(), WriteError>(())
    };
    world.live.transact(Default::default(), lengthen).unwrap();
    world.sync(|| {});
    for (ino, (letter, length)) in inos.iter().zip([(b'a', 256), (b'b', 700), (b'c', 1023)]) {
        assert_eq!(fs.lookup(root, &long(letter, length)).unwrap(), *ino);
    }
    let exchange = RenameFlags { exchange: true, ..flags };
    let (short, b) = (fs.create(root, b"short", &file()).unwrap().ino, long(b'b', 700));
    // The names stay, so no name is given.
    assert_eq!(errno(fs.rename(root, &b, root, &long(b'd', 256), flags, &idle)).map(drop), Err(36));
    fs.rename(root, b"short", root, &b, exchange, &idle).map(drop).unwrap_err();
    fs.rename(root, &b, root, b"short", exchange, &idle).unwrap();
    assert_eq!(fs.lookup(root, &b).unwrap(), short);
    fs.rename(root, &long(b'a', 256), root, b"renamed", flags, &idle).unwrap();
    fs.unlink(root, &b, &idle).unwrap();
    fs.unlink(root, &long(b'c', 1023), &idle).unwrap();
    assert_eq!(errno(fs.unlink(root, &long(b'c', 1023), &idle)).map(drop), Err(2));
    world.sync(|| {});
    assert_eq!(listed(&world), ["renamed", "short"]);
}
