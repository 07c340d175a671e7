//! Corrective receives (`zfs receive -c`) through the real binary: all copies of blocks are damaged while the pool is exported, and a
//! stream brings them back. OpenZFS's `zdb` judges what is on disk then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_format::LABEL_START;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::stream::{RECORD_SIZE, Record};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::Store;
use cenote_testpools::{encoded, records};
use common::keys::{contents, fed};
use common::{Session, can_mount, skip};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";

/// How many devices a pool has, and what they are.
#[derive(Clone, Copy)]
enum Layout {
    One,
    Mirror,
    /// Of three devices.
    RaidZ,
}

/// A pool `tank` that is damaged and healed.
struct Rig {
    s: Session,
    layout: Layout,
    files: Vec<PathBuf>,
}

impl Rig {
    fn new(layout: Layout, options: &str) -> Rig {
        let s = Session::new();
        let (kind, names): (_, &[&str]) = match layout {
            Layout::One => ("", &["d0"]),
            Layout::Mirror => ("mirror", &["d0", "d1"]),
            Layout::RaidZ => ("raidz1", &["d0", "d1", "d2"]),
        };
        let files: Vec<PathBuf> = names.iter().map(|name| s.path(name)).collect();
        for file in &files {
            File::create(file).unwrap().set_len(192 << 20).unwrap();
        }
        let devices: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
        let (root, devices) = (s.root(), devices.join(" "));
        s.run(&format!("zpool create -o ashift=12 -R {root} {options} tank {kind} {devices}")).ok();
        Rig { s, layout, files }
    }

    #[track_caller]
    fn zfs(&self, line: &str) -> String {
        self.s.run(&format!("zfs {line}")).ok()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.s.path("root").join(path)
    }

    #[track_caller]
    fn sent(&self, line: &str) -> Vec<u8> {
        let words = ["zfs", "send"].into_iter().chain(line.split_whitespace());
        let output = cenote_testpools::output(self.s.command().args(words));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn number(&self, path: &str) -> u64 {
        fs::metadata(self.path(path)).unwrap().ino()
    }

    fn reimport(&self) {
        let dir = self.s.dir.path().display().to_string();
        self.s.run(&format!("zpool import -R {} -d {dir} tank", self.s.root())).ok();
    }

    /// Exports the pool, damages all copies of blocks of files of a snapshot, of each the blocks that are named, and imports it.
    fn damage(&self, snapshot: &str, blocks: &[(u64, u64)]) -> Vec<BlockPointer> {
        self.s.run("zpool export tank").ok();
        let pointers = self.pointers(snapshot, blocks);
        self.spoil_all(&pointers);
        self.reimport();
        pointers
    }

    fn spoil_all(&self, pointers: &[BlockPointer]) {
        for bp in pointers {
            assert!(!bp.is_hole() && !bp.is_embedded() && bp.dvas().count() > 0, "{bp:?}");
            bp.dvas().for_each(|dva| self.spoil(bp, dva));
        }
    }

    fn pointers(&self, snapshot: &str, blocks: &[(u64, u64)]) -> Vec<BlockPointer> {
        let options = ImportOptions { readonly: true, ..ImportOptions::default() };
        let found = discover(&[self.s.dir.path().to_path_buf()]);
        let pool = Pool::import(&found[0], &options).unwrap();
        Store::without_keys(|| {
            let dataset = pool.dsl().find(snapshot).unwrap().unwrap();
            let objset = pool.dsl().open_objset(&dataset).unwrap();
            let pointer = |(object, blkid): &(u64, u64)| {
                objset.object(*object).unwrap().block_pointer(0, *blkid).unwrap()
            };
            blocks.iter().map(pointer).collect()
        })
    }

    /// Turns the first bytes of each sector of a copy around, on all devices.
    fn spoil(&self, bp: &BlockPointer, dva: Dva) {
        let wide = if matches!(self.layout, Layout::RaidZ) { self.files.len() as u64 } else { 1 };
        let sectors = match self.layout {
            Layout::RaidZ => dva.asize,
            _ => bp.psize(),
        }
        .div_ceil(4096);
        for sector in dva.offset / 4096..dva.offset / 4096 + sectors {
            let at = LABEL_START + sector / wide * 4096;
            let devices: &[PathBuf] = match self.layout {
                Layout::RaidZ => std::slice::from_ref(&self.files[(sector % wide) as usize]),
                _ => &self.files,
            };
            for device in devices {
                let file = OpenOptions::new().read(true).write(true).open(device).unwrap();
                let mut bytes = [0; 64];
                file.read_exact_at(&mut bytes, at).unwrap();
                bytes.iter_mut().for_each(|b| *b = !*b);
                file.write_all_at(&bytes, at).unwrap();
            }
        }
    }

    /// What `cat` gives of a file.
    fn cat(&self, file: &str) -> Option<Vec<u8>> {
        let output = cenote_testpools::output(self.s.command().args(["cat", file]));
        output.status.success().then_some(output.stdout)
    }

    fn errors(&self) -> String {
        self.s.run("zpool status -v tank").ok()
    }

    /// A scrub finds nothing, the pool has no errors, and OpenZFS agrees.
    #[track_caller]
    fn finish(self) {
        self.scrub_and_export();
        cenote_testpools::judge(self.s.dir.path(), "tank");
    }

    /// The same with a pool that OpenZFS 2.1 does not open.
    #[track_caller]
    fn finish_newer(self) {
        self.scrub_and_export();
        let judged = cenote_testpools::try_judge_newer(self.s.dir.path(), "tank");
        judged.unwrap_or_else(|said| panic!("{said}"));
    }

    #[track_caller]
    fn scrub_and_export(&self) {
        self.s.run("zpool scrub -w tank").ok();
        let text = self.errors();
        assert!(text.contains("with 0 errors") && text.contains("No known data errors"), "{text}");
        assert!(text.contains("scrub repaired 0B"), "{text}");
        self.s.run("zpool export tank").ok();
    }
}

/// Text of so many lines.
fn text(seed: u64, lines: u64) -> Vec<u8> {
    let line = |n| format!("line {n} of text {seed}, which compresses: {}\n", n * seed % 977);
    (0..lines).map(line).collect::<String>().into_bytes()
}

/// Files in a file system with the snapshots `one` and `two`, and a clone of the first.
fn with_files(rig: &Rig, name: &str) {
    let path = |file: &str| rig.path(&format!("{name}/{file}"));
    fs::write(path("text"), text(1, 12_000)).unwrap();
    fs::write(path("noise"), contents(5, 700_000)).unwrap();
    fs::write(path("small"), contents(6, 3000)).unwrap();
    rig.zfs(&format!("snapshot {name}@one"));
    rig.zfs(&format!("clone {name}@one tank/clone"));
    fs::write(path("later"), text(2, 9_000)).unwrap();
    fs::write(path("small"), contents(7, 2000)).unwrap();
    rig.zfs(&format!("snapshot {name}@two"));
}

/// Every file of every snapshot, the head and the clone is as it was.
#[track_caller]
fn all_right(rig: &Rig, name: &str) {
    let two = [format!("{name}@two"), name.to_string()];
    let one = [format!("{name}@one"), "tank/clone".to_string()];
    for dataset in one.iter().chain(&two) {
        let is = |file: &str, right: Vec<u8>| {
            assert!(rig.cat(&format!("{dataset}:/{file}")) == Some(right), "{dataset}: {file}");
        };
        is("text", text(1, 12_000));
        is("noise", contents(5, 700_000));
        is("small", if two.contains(dataset) { contents(7, 2000) } else { contents(6, 3000) });
        if two.contains(dataset) {
            is("later", text(2, 9_000));
        }
    }
}

/// Damages blocks of each kind of file of `name`, and heals them with streams of these options.
fn heals(rig: &Rig, name: &str, options: &[&str]) {
    with_files(rig, name);
    let number = |file: &str| rig.number(&format!("{name}/{file}"));
    let (of_text, noise, small, later) =
        (number("text"), number("noise"), number("small"), number("later"));
    for option in options {
        let full = rig.sent(&format!("{option} {name}@one"));
        let changes = rig.sent(&format!("{option} -i @one {name}@two"));
        let blocks = [(of_text, 0), (of_text, 2), (noise, 1), (noise, 4), (small, 0)];
        rig.damage(&format!("{name}@one"), &blocks);
        let unread =
            [format!("{name}@one:/text"), "tank/clone:/noise".into(), format!("{name}:/text")];
        unread.iter().for_each(|file| assert!(rig.cat(file).is_none(), "{file}"));
        let line = format!("zfs receive -v -c {name}@one");
        let said = fed(&rig.s, &line, &full).ok();
        let told = format!("receiving corrective full stream of {name}@one into {name}@one");
        assert!(said.starts_with(&told), "{said}");
        all_right(rig, name);
        // Only what is new in a snapshot is in a stream of changes. A file system has the name of the snapshot from the stream.
        rig.damage(&format!("{name}@two"), &[(later, 1), (small, 0)]);
        assert!(rig.cat(&format!("{name}:/later")).is_none());
        fed(&rig.s, &format!("zfs receive -c {name}"), &changes).ok();
        all_right(rig, name);
        rig.s.run("zpool scrub -w tank").ok();
    }
}

#[test]
fn blocks_are_healed_on_all_kinds_of_vdevs() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    for (layout, options) in [
        (Layout::One, "-O compression=lz4"),
        (Layout::Mirror, "-O compression=zstd-7 -O copies=2"),
        (Layout::RaidZ, "-O compression=gzip-4 -O recordsize=32K"),
    ] {
        let rig = Rig::new(layout, options);
        rig.zfs("create tank/e");
        heals(&rig, "tank/e", &["", "-c", "-L -e -c"]);
        rig.finish();
    }
}

#[test]
fn blocks_of_encrypted_datasets_are_healed() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    for suite in ["aes-256-gcm", "aes-128-ccm"] {
        let rig = Rig::new(Layout::Mirror, "");
        fs::write(rig.s.path("key"), HEX).unwrap();
        let place = format!("file://{}", rig.s.path("key").display());
        let key = format!("-o encryption={suite} -o keyformat=hex -o keylocation={place}");
        rig.zfs(&format!("create {key} tank/e"));
        with_files(&rig, "tank/e");
        let (noise, of_text) = (rig.number("tank/e/noise"), rig.number("tank/e/text"));
        let streams =
            ["", "-c", "-w"].map(|option| (option, rig.sent(&format!("{option} tank/e@one"))));
        for (option, stream) in &streams {
            rig.damage("tank/e@one", &[(noise, 0), (of_text, 1)]);
            if *option != "-w" {
                let why = fed(&rig.s, "zfs receive -c tank/e@one", stream).fails(1);
                let expected = "cannot receive new filesystem stream: key must be loaded to do a non-raw corrective recv on an \
                                encrypted dataset.";
                assert_eq!(why.trim_end(), expected);
                rig.zfs("load-key -r tank");
            }
            fed(&rig.s, "zfs receive -c tank/e@one", stream).ok();
            if *option == "-w" {
                rig.zfs("load-key -r tank");
            }
            all_right(&rig, "tank/e");
        }
        rig.finish();
    }
}

/// A stream that stalls keeps the key that its blocks are encrypted with.
#[test]
fn the_key_of_what_is_being_healed_is_not_unloaded() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::One, "");
    fs::write(rig.s.path("key"), HEX).unwrap();
    let place = format!("file://{}", rig.s.path("key").display());
    rig.zfs(&format!("create -o encryption=on -o keyformat=hex -o keylocation={place} tank/e"));
    with_files(&rig, "tank/e");
    let stream = rig.sent("tank/e@one");
    rig.damage("tank/e@one", &[(rig.number("tank/e/noise"), 4)]);
    rig.zfs("load-key -r tank");
    let mut command = rig.s.command();
    command.args(["zfs", "receive", "-c", "tank/e@one"]).stdin(Stdio::piped());
    let mut healing = command.spawn().unwrap();
    let mut input = healing.stdin.take().unwrap();
    let (first, rest) = stream.split_at(stream.len() / 8);
    input.write_all(first).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !rig.s.run("zpool history -i tank").ok().contains("receive tank/e@one") {
        assert!(Instant::now() < end && healing.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let busy = rig.s.run("zfs unload-key tank/e").fails(255);
    assert!(busy.contains("'tank/e' is busy"), "{busy}");
    input.write_all(rest).unwrap();
    drop(input);
    assert!(healing.wait().unwrap().success());
    rig.zfs("unload-key tank/e");
    rig.zfs("load-key tank/e");
    all_right(&rig, "tank/e");
    rig.finish();
}

/// Large blocks that a stream has in parts.
#[test]
fn parts_of_large_blocks_are_joined() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::One, "-O recordsize=1M");
    rig.zfs("create tank/e");
    let large = [text(3, 60_000), contents(8, 1 << 20)].concat();
    fs::write(rig.path("tank/e/large"), &large).unwrap();
    rig.zfs("snapshot tank/e@one");
    let (stream, number) = (rig.sent("tank/e@one"), rig.number("tank/e/large"));
    rig.damage("tank/e@one", &[(number, 0), (number, 2)]);
    assert!(rig.cat("tank/e@one:/large").is_none());
    fed(&rig.s, "zfs receive -c tank/e@one", &stream).ok();
    assert!(rig.cat("tank/e@one:/large") == Some(large));
    rig.finish();
}

/// What heals nothing says so, and changes nothing.
#[test]
fn what_does_not_fit_is_refused() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::One, "");
    rig.zfs("create tank/e");
    with_files(&rig, "tank/e");
    rig.zfs("snapshot tank/e@three");
    let (one, three) = (rig.sent("-c tank/e@one"), rig.sent("-c tank/e@three"));
    let (noise, of_text) = (rig.number("tank/e/noise"), rig.number("tank/e/text"));
    rig.damage("tank/e@one", &[(noise, 0), (of_text, 1)]);
    let refused = |line: &str, stream: &[u8], expected: &str| {
        let why = fed(&rig.s, &format!("zfs receive {line}"), stream).fails(1);
        assert_eq!(why.trim_end(), format!("cannot receive new filesystem stream: {expected}"));
    };
    let there = "corrective recv must specify an existing snapshot to heal";
    refused("-c tank/e@none", &one, there);
    refused("-c tank/none@one", &one, there);
    let other = "local snapshot doesn't match the snapshot in the provided stream";
    refused("-c tank/e@two", &one, other);
    refused("-c tank/e@one", &three, other);
    let flag = "corrective recv can not be used when combined with this flag";
    for options in ["-cF", "-cs", "-cu", "-ch", "-c -o atime=off", "-c -x atime"] {
        refused(&format!("{options} tank/e@one"), &one, flag);
    }
    fed(&rig.s, "zfs receive -cn tank/e@one", &one).ok();
    assert!(rig.cat("tank/e@one:/noise").is_none());

    // A stream whose data is another one's: the block stays damaged, the others are healed, the log names it.
    let mut all = records(&one);
    let wrong = all.iter_mut().find(|(record, _)| {
        matches!(record, Record::Write(write) if (write.object, write.offset) == (noise, 0))
    });
    wrong.unwrap().1[9] ^= 1;
    refused(
        "-c tank/e@one",
        &encoded(&all),
        "corrective receive was not able to reconstruct the data needed for healing.\n1 block(s) stay damaged: see 'zpool status \
         -v'.",
    );
    assert!(rig.cat("tank/e@one:/noise").is_none());
    assert!(rig.cat("tank/e@one:/text") == Some(text(1, 12_000)));
    let errors = rig.errors();
    assert!(errors.contains("noise") && !errors.contains("text"), "{errors}");
    rig.s.run("tunables set zfs_recv_best_effort_corrective=1").ok();
    fed(&rig.s, "zfs receive -c tank/e@one", &encoded(&all)).ok();
    rig.s.run("tunables set zfs_recv_best_effort_corrective=0").ok();

    // One that is cut off heals what came.
    let cut = fed(&rig.s, "zfs receive -c tank/e@one", &one[..one.len() - 500]).fails(1);
    assert!(cut.contains("incomplete stream"), "{cut}");
    fed(&rig.s, "zfs receive -c tank/e@one", &one).ok();
    all_right(&rig, "tank/e");
    // What was healed left the log.
    let errors = rig.errors();
    assert!(errors.contains("No known data errors"), "{errors}");
    let history = rig.s.run("zpool history -i tank").ok();
    assert!(history.contains("finish receiving") && history.contains("snap=one"), "{history}");
    rig.finish();
}

/// A snapshot of a package that is not healed, or is not there, keeps no other one from being healed.
#[test]
fn a_package_goes_on_after_a_snapshot_that_is_not_healed() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::One, "");
    rig.zfs("create tank/e");
    rig.zfs("snapshot tank/e@zero");
    with_files(&rig, "tank/e");
    let package = rig.sent("-R tank/e@two");
    let (noise, later) = (rig.number("tank/e/noise"), rig.number("tank/e/later"));
    let mut all = records(&package);
    let wrong = all.iter_mut().find(|(record, _)| {
        matches!(record, Record::Write(write) if (write.object, write.offset) == (noise, 0))
    });
    wrong.unwrap().1[9] ^= 1;
    rig.zfs("destroy tank/e@zero");
    rig.damage("tank/e@two", &[(noise, 0), (noise, 1), (later, 0)]);
    // The end of the package is a record without anything in it.
    let end = &package[package.len() - RECORD_SIZE..];
    let changed = [encoded(&all).as_slice(), end].concat();
    let said = fed(&rig.s, "zfs receive -c tank/e", &changed).fails(1);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "tank/e@zero: cannot receive new filesystem stream: corrective recv must specify an existing snapshot to heal",
            "tank/e@one: cannot receive incremental stream: corrective receive was not able to reconstruct the data needed for healing.",
            "1 block(s) stay damaged: see 'zpool status -v'.",
        ]
    );
    assert!(rig.cat("tank/e@two:/later") == Some(text(2, 9_000)));
    assert!(rig.cat("tank/e@two:/noise").is_none());
    fed(&rig.s, "zfs receive -c tank/e", &package).fails(1);
    all_right(&rig, "tank/e");
    rig.finish();
}

/// A block that the head's reader had in the error log is healed through the snapshot: new damage of it is listed again.
#[test]
fn new_damage_of_a_healed_block_is_listed() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::One, "-o feature@head_errlog=enabled");
    rig.zfs("create tank/e");
    with_files(&rig, "tank/e");
    let stream = rig.sent("tank/e@one");
    let pointers = rig.damage("tank/e@one", &[(rig.number("tank/e/noise"), 1)]);
    for _ in 0..2 {
        assert!(rig.cat("tank/e:/noise").is_none());
        rig.s.run("zpool sync tank").ok();
        let errors = rig.errors();
        assert!(errors.contains("tank/e") && errors.contains("noise"), "{errors}");
        fed(&rig.s, "zfs receive -c tank/e@one", &stream).ok();
        let errors = rig.errors();
        assert!(errors.contains("No known data errors"), "{errors}");
        rig.spoil_all(&pointers);
    }
    assert!(rig.cat("tank/e:/noise").is_none());
    fed(&rig.s, "zfs receive -c tank/e@one", &stream).ok();
    all_right(&rig, "tank/e");
    rig.finish_newer();
}

/// What a stream has is right already: nothing is written, and nothing is said.
#[test]
fn what_is_right_is_left_alone() {
    if !can_mount() {
        return skip("nothing can be mounted here");
    }
    let rig = Rig::new(Layout::Mirror, "");
    rig.zfs("create tank/e");
    with_files(&rig, "tank/e");
    let (guid, used) =
        (rig.zfs("get -Hpo value guid tank/e@one"), "get -Hpo value used tank/e@one");
    let before = rig.zfs(used);
    fed(&rig.s, "zfs receive -c tank/e@one", &rig.sent("tank/e@one")).ok();
    // A package heals its snapshots one after the other, and changes no property.
    rig.zfs("set compression=off tank/e");
    let package = rig.sent("-R tank/e@two");
    rig.zfs("set compression=on tank/e");
    let number = rig.number("tank/e/later");
    rig.damage("tank/e@two", &[(number, 0)]);
    fed(&rig.s, "zfs receive -c tank/e", &package).ok();
    assert_eq!(rig.zfs("get -Hpo value compression tank/e").trim_end(), "on");
    assert_eq!((rig.zfs("get -Hpo value guid tank/e@one"), rig.zfs(used)), (guid, before));
    all_right(&rig, "tank/e");
    assert!(Path::new(&rig.path("tank/e/later")).exists());
    rig.finish();
}
