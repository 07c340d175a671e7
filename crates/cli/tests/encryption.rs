//! Encrypted datasets through the real binary: keys are loaded in every way, wrong ones are refused, every file is as
//! OpenZFS showed it, and without keys nothing is shown.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use common::keys::fed;
use common::{Done, Session, can_mount};

const PHRASE: &str = "Grüße, public phrase 42";
const SECOND: &str = "second phrase after change-key";
const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
const RAW: &str = "e3969d1c8ed457c0a385e35b40cbf23aac6ce506ac8e47d916e735c3ab963739";
const WRONG: &str = "Key load error: Incorrect key provided for";

fn raw() -> Vec<u8> {
    let pairs = RAW.as_bytes().chunks(2);
    pairs.map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

/// A session with the sample pool imported read-only, and not mounted.
fn session() -> Session {
    let s = Session::new();
    let (root, dir) = (s.root(), cenote_testpools::pool("crypt").dir);
    s.run(&format!("zpool import -f -N -o readonly=on -R {root} -d {} crypt", dir.display()))
        .ok_but_for_logs();
    std::fs::write(s.path("raw"), raw()).unwrap();
    std::fs::write(s.path("hex"), HEX).unwrap();
    s
}

fn load_all(s: &Session) {
    fed(s, "zfs load-key crypt/phrase", format!("{PHRASE}\n").as_bytes()).ok();
    s.run(&format!("zfs load-key -L file://{} crypt/hexa", s.path("hex").display())).ok();
    fed(s, "zfs load-key -L prompt crypt/rawk", &raw()).ok();
    fed(s, "zfs load-key crypt/rawk/rekeyed", SECOND.as_bytes()).ok();
}

/// All was copied but large extended attributes, which not every file system takes.
#[track_caller]
fn copied(done: Done) {
    assert!(done.code == 0 && done.err.lines().all(|line| line.contains("not kept")), "{done:?}");
}

fn status(s: &Session, dataset: &str) -> String {
    s.run(&format!("zfs get -Ho value keystatus {dataset}")).ok().trim_end().into()
}

#[test]
fn keys_are_loaded_and_unloaded_in_openzfs_words() {
    let s = session();
    assert_eq!(status(&s, "crypt/phrase/child@enc"), "unavailable");
    assert_eq!(status(&s, "crypt"), "-");
    let other = format!("{WRONG} 'crypt/phrase'.");
    assert_eq!(fed(&s, "zfs load-key crypt/phrase", b"not this phrase\n").fails(255), other);
    assert_eq!(
        fed(&s, "zfs load-key crypt/phrase", b"short\n").fails(255),
        "Key load error: Passphrase too short (min 8)."
    );
    assert_eq!(
        fed(&s, "zfs load-key -L prompt crypt/rawk", &[7; 33]).fails(255),
        "Key load error: Raw key too long (expected 32)."
    );
    assert_eq!(
        s.run("zfs load-key crypt/phrase/child").fails(255),
        "Key load error: Keys must be loaded for encryption root of 'crypt/phrase/child' \
         (crypt/phrase)."
    );
    assert_eq!(
        s.run("zfs load-key crypt/rawk/clear").fails(255),
        "Key load error: 'crypt/rawk/clear' is not encrypted."
    );
    let unsupported = s.run("zfs load-key -L ftp://example.org/key crypt/hexa").fails(255);
    assert!(
        unsupported.starts_with("Key load error: URI scheme is not supported"),
        "{unsupported}"
    );
    let missing = s.run("zfs load-key crypt/hexa").fails(255);
    assert!(missing.starts_with("Key load error: Failed to open key material file"), "{missing}");
    let device = s.run("zfs load-key -L file:///dev/null crypt/hexa").fails(255);
    assert!(device.contains("not a regular file"), "{device}");
    assert!(s.run("zfs load-key").fails(2).starts_with("Missing dataset argument or -a option"));
    assert!(s.run("zfs load-key -a crypt").fails(2).starts_with("Cannot specify dataset with -a"));

    let checked = fed(&s, "zfs load-key -n crypt/phrase", PHRASE.as_bytes());
    assert_eq!(checked.ok(), "1 / 1 key(s) successfully verified\n");
    assert_eq!(status(&s, "crypt/phrase"), "unavailable");
    load_all(&s);
    for dataset in
        ["crypt/phrase/cloned", "crypt/hexa/disk@enc", "crypt/rawk", "crypt/rawk/rekeyed"]
    {
        assert_eq!(status(&s, dataset), "available");
    }
    assert_eq!(
        fed(&s, "zfs load-key crypt/phrase", PHRASE.as_bytes()).fails(255),
        "Key load error: Key already loaded for 'crypt/phrase'."
    );
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", s.daemon().unwrap())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(["0", "1"].contains(&core.split_whitespace().nth(4).unwrap()), "{core}");
    let keys = "encryption,keyformat,keylocation,encryptionroot,pbkdf2iters";
    let shown = s.run(&format!("zfs get -Ho value,source {keys} crypt/phrase/child")).ok();
    assert_eq!(shown, "aes-128-ccm\t-\npassphrase\t-\nnone\tdefault\ncrypt/phrase\t-\n120000\t-\n");
    assert_eq!(
        s.run("zfs unload-key crypt/phrase/child").fails(255),
        "Key unload error: Keys must be unloaded for encryption root of 'crypt/phrase/child' \
         (crypt/phrase)."
    );
    assert_eq!(s.run("zfs unload-key -r crypt").ok(), "4 / 4 key(s) successfully unloaded\n");
    assert_eq!(
        s.run("zfs unload-key crypt/hexa").fails(255),
        "Key unload error: Key already unloaded for 'crypt/hexa'."
    );
    assert_eq!(status(&s, "crypt/rawk/rekeyed@enc"), "unavailable");
    s.run("zpool export crypt").ok();
}

/// A typed key is not shown, and may be typed again.
#[test]
fn keys_are_typed_unseen() {
    let s = session();
    let line = format!(
        "(sleep 1; echo wrong phrase; sleep 1; echo '{PHRASE}'; sleep 1) | \
         script -qec \"{} zfs load-key crypt/phrase\" /dev/null",
        env!("CARGO_BIN_EXE_cenote")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).env("CENOTE_SOCKET", s.path("socket"));
    let output = cenote_testpools::output(&mut command);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(shown.matches("Enter passphrase for 'crypt/phrase':").count(), 2, "{shown}");
    assert!(shown.contains(WRONG) && !shown.contains("public phrase"), "{shown}");
    assert_eq!(status(&s, "crypt/phrase"), "available");
}

#[test]
fn copies_agree_with_the_manifest() {
    let s = session();
    let manifest = cenote_testpools::pool("crypt").manifest();
    let refused = s.run("cp -rq crypt/hexa@enc copy").fails(1);
    assert!(refused.contains("encrypted and the key of its dataset is not loaded"), "{refused}");
    load_all(&s);
    let root = rustix::process::geteuid().is_root();
    let mut files = 0;
    for dataset in datasets_with_files(&manifest) {
        let (name, dir) = (dataset["name"].as_str().unwrap(), tempfile::tempdir().unwrap());
        let target = dir.path().join("copy");
        copied(s.run(&format!("cp -rq {name} {}", target.display())));
        let checks = Checks { owner: root, devices: root, xattrs: false, ..Checks::COPY };
        let done = check_tree(dataset, &FsTree::new(target), &checks);
        files += done.unwrap_or_else(|e| panic!("{name}: {e}")).files;
    }
    assert!(files > 800, "only {files} files");
    s.run("zpool export crypt").ok();
    // A pool that is not imported, with a key that is given.
    let dir = cenote_testpools::pool("crypt").dir;
    let ls = format!("ls -d {} -L prompt crypt/phrase@enc", dir.display());
    assert!(fed(&s, &ls, PHRASE.as_bytes()).ok().lines().count() > 2);
    assert!(fed(&s, &ls, b"another phrase").fails(1).contains(WRONG));
}

#[test]
fn mounts_agree_with_the_manifest() {
    if !can_mount() {
        return;
    }
    let s = session();
    let not_loaded = "cannot mount 'crypt/phrase': encryption key not loaded";
    assert_eq!(s.run("zfs mount crypt/phrase").fails(1), not_loaded);
    s.run("zfs mount -R crypt/phrase").ok();
    assert_eq!(s.run("zfs list -Ho mounted crypt/phrase").ok(), "no\n");
    let refused = fed(&s, "zfs mount -l crypt/phrase", b"another phrase\n").fails(1);
    assert_eq!(refused, format!("{WRONG} 'crypt/phrase'."));
    fed(&s, "zfs mount -l crypt/phrase", PHRASE.as_bytes()).ok();
    assert_eq!(
        s.run("zfs unload-key crypt/phrase").fails(255),
        "Key unload error: 'crypt/phrase' is busy."
    );
    s.run("zfs unmount crypt/phrase").ok();
    s.run("zfs unload-key crypt/phrase").ok();
    load_all(&s);
    let manifest = cenote_testpools::pool("crypt").manifest();
    let mut files = 0;
    for dataset in datasets_with_files(&manifest) {
        let name = dataset["name"].as_str().unwrap();
        if name.contains('@') {
            continue;
        }
        s.run(&format!("zfs mount {name}")).ok();
        let at = s.run(&format!("zfs get -H -o value mountpoint {name}")).ok();
        let tree = FsTree::new(at.trim_end());
        let done = check_tree(dataset, &tree, &Checks::EXACT);
        files += done.unwrap_or_else(|e| panic!("{name}: {e}")).files;
        s.run(&format!("zfs unmount {name}")).ok();
    }
    assert!(files > 400, "only {files} files");
    s.run("zpool export crypt").ok();
    let (root, dir) = (s.root(), cenote_testpools::pool("crypt").dir);
    let import = format!("zpool import -l -f -o readonly=on -R {root} -d {} crypt", dir.display());
    let imported = fed(&s, &import, format!("{PHRASE}\n{SECOND}\n").as_bytes());
    assert!(imported.out.contains("2 / 4 keys successfully loaded\n"), "{imported:?}");
    assert_eq!(s.run("zfs list -Ho mounted crypt/phrase/child").ok(), "yes\n");
    s.run("zpool export crypt").ok();
}

/// Streams that are not raw carry what a key decrypts.
#[test]
fn streams_are_decrypted() {
    let s = session();
    let send = "zfs send crypt/phrase@enc";
    assert!(s.run(send).fails(1).contains("source key must be loaded"));
    load_all(&s);
    std::fs::File::create(s.path("disk")).unwrap().set_len(256 << 20).unwrap();
    s.run(&format!("zpool create -m none tank {}", s.path("disk").display())).ok();
    let manifest = cenote_testpools::pool("crypt").manifest();
    for (nth, (name, flag)) in
        [("crypt/phrase@enc", ""), ("crypt/rawk@enc", "-c"), ("crypt/hexa@enc", "-Lec")]
            .into_iter()
            .enumerate()
    {
        let stream = cenote_testpools::output(
            s.command()
                .args(format!("zfs send {flag} {name}").split_whitespace().collect::<Vec<_>>()),
        );
        assert!(stream.status.success(), "{name}: {stream:?}");
        fed(&s, &format!("zfs receive -u tank/{nth}"), &stream.stdout).ok();
        let dir = tempfile::tempdir().unwrap();
        copied(s.run(&format!("cp -rq tank/{nth}@enc {}", dir.path().join("copy").display())));
        let listed = datasets_with_files(&manifest);
        let dataset = listed.into_iter().find(|d| d["name"] == name).unwrap();
        let root = rustix::process::geteuid().is_root();
        let checks = Checks { owner: root, devices: root, xattrs: false, ..Checks::COPY };
        let done = check_tree(dataset, &FsTree::new(dir.path().join("copy")), &checks);
        done.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn zdb_shows_what_a_key_opens() {
    let s = Session::new();
    let dir = cenote_testpools::pool("crypt").dir.display().to_string();
    let zdb = |more: &[&str]| s.run_args(&[&["zdb", "-e", "-p", &dir, "-dddd"], more].concat());
    let closed = zdb(&["crypt/phrase", "2"]);
    let open = zdb(&["-K", PHRASE, "crypt/phrase", "2"]).ok();
    assert!(closed.out.contains("(bonus encrypted)") || closed.out.contains("(object encrypted)"));
    assert!(!open.contains("(bonus encrypted)") && !open.contains("(object encrypted)"), "{open}");
    assert!(zdb(&["-K", HEX, "crypt/hexa/dd", "2"]).code == 0);
    assert!(zdb(&["-K", "another phrase", "crypt/phrase"]).fails(1).contains("Incorrect key"));
    assert!(zdb(&["-K", PHRASE, "crypt/rawk/clear"]).fails(1).contains("not encrypted"));
}
