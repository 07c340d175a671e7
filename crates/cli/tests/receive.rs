//! `zfs receive`, with streams of OpenZFS and of `zfs send`; OpenZFS's `zdb` judges the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::process::Stdio;

/// A pool, and streams in files beside it.
struct Receiver {
    tank: Tank,
    streams: BTreeMap<String, Vec<u8>>,
}

/// What a command said and returned.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Receiver {
    fn new(tank: Tank) -> Receiver {
        Receiver { tank, streams: cenote_testpools::streams() }
    }

    /// Runs `zfs LINE` with these bytes on its standard input.
    fn run(&self, line: &str, stream: &[u8]) -> Said {
        let path = self.tank.session.path("stream");
        fs::write(&path, stream).unwrap();
        let mut command = self.tank.session.command();
        command.arg("zfs").args(line.split(' ')).stdin(Stdio::from(File::open(&path).unwrap()));
        let output = cenote_testpools::output(&mut command);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        Said { code, out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn take(&self, line: &str, stream: &str) -> String {
        let said = self.run(line, &self.streams[stream]);
        assert!(said.code == 0, "{line}: {}", said.err);
        said.out
    }

    #[track_caller]
    fn refused(&self, line: &str, stream: &[u8]) -> String {
        let said = self.run(line, stream);
        assert!(said.code == 1, "{line}: {} {}", said.code, said.out);
        said.err.trim_end().to_string()
    }

    /// What `zfs send` writes.
    fn sent(&self, line: &str) -> Vec<u8> {
        let mut command = self.tank.session.command();
        command.args(["zfs", "send"]).args(line.split(' '));
        let output = cenote_testpools::output(&mut command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

#[test]
fn streams_become_snapshots_or_nothing() {
    let r = Receiver::new(Tank::unmounted());
    let said = r.take("receive -v tank/a@one", "full-s1");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "receiving full stream of streams/origin@s1 into tank/a@one");
    assert!(lines[1].starts_with("received 3.73M stream in "), "{said}");
    assert_eq!(r.tank.get("guid", "tank/a@one"), "5004574961756506888");
    let before = r.tank.names();

    // What is refused leaves nothing.
    let full = &r.streams["full-s1"];
    let new = "cannot receive new filesystem stream: ";
    assert_eq!(
        r.refused("receive tank/a@one", full),
        format!("{new}destination 'tank/a' exists\nmust specify -F to overwrite it")
    );
    assert_eq!(
        r.refused("receive -F tank/a", full),
        format!(
            "{new}destination has snapshots (eg. tank/a@one)\nmust destroy them to overwrite it"
        )
    );
    let mut damaged = full.clone();
    damaged[1_000_000] ^= 4;
    assert_eq!(r.refused("receive tank/b", &damaged), format!("{new}checksum mismatch"));
    for cut in [400, 40_000, 2_000_000, full.len() - 1] {
        let said = r.refused("receive tank/b", &full[..cut]);
        assert_eq!(said, format!("{new}incomplete stream"), "{cut}");
    }
    let short = "cannot receive: failed to read from stream";
    assert_eq!(r.refused("receive tank/b", b""), short);
    assert_eq!(r.refused("receive tank/b", &full[..200]), short);
    let no_stream = "cannot receive: invalid stream (bad magic number)";
    assert_eq!(r.refused("receive tank/b", &[7; 1000]), no_stream);
    let mut strange = full.clone();
    strange[16 + 7] |= 0x40;
    assert!(r.refused("receive tank/b", &strange).contains("stream has unsupported feature"));
    assert_eq!(r.tank.names(), before);

    // Incremental streams go on the snapshot that they start from.
    let inc = &r.streams["inc-s2-s3"];
    assert_eq!(
        r.refused("receive tank/a", inc),
        "cannot receive incremental stream: most recent snapshot of tank/a does not\n\
         match incremental source"
    );
    assert_eq!(
        r.refused("receive tank/x", inc),
        "cannot receive incremental stream: destination 'tank/x' does not exist"
    );
    r.take("receive tank/a", "inc-s1-s2");
    r.take("recv tank/a@three", "inc-mark-s3");
    assert_eq!(r.tank.get("guid", "tank/a@three"), "10859438038493005559");
    assert_eq!(r.take("recv -nv tank/q", "quirk").lines().count(), 1);
    assert!(!r.tank.names().contains(&"tank/q".to_string()));

    // What was sent from here comes back.
    let back = r.sent("-i @one tank/a@s2");
    r.take("receive tank/b@one", "full-s1");
    assert_eq!(r.run("receive tank/b", &back).code, 0);
    assert_eq!(r.tank.get("guid", "tank/b@s2"), "6800842420516419548");

    // Quotas are in the contents, which come with the stream.
    assert_eq!(
        r.refused("receive -o userquota@root=1M tank/d", full),
        "cannot receive: invalid property 'userquota@root'"
    );
    let done = r.run("receive -o defaultuserquota=1M tank/d", full);
    let why = "cannot receive defaultuserquota property on tank/d: pool or dataset is busy";
    assert_eq!((done.code, done.err.trim_end()), (0, why));
    assert_eq!(r.tank.get("defaultuserquota", "tank/d"), "0");
    r.tank.finish();
}

#[test]
fn what_is_received_keeps_to_a_refquota() {
    let r = Receiver::new(Tank::unmounted());
    r.take("receive tank/all@s1", "full-s1");
    let size: u64 = r.tank.get("referenced", "tank/all").parse().unwrap();
    r.tank.zfs("create tank/a");
    let empty = r.tank.get("referenced", "tank/a");
    for quota in [size / 2, size * 4 / 5] {
        r.tank.zfs(&format!("set refquota={quota} tank/a"));
        let said = r.refused("receive -F tank/a@s1", &r.streams["full-s1"]);
        let why = "destination tank/a space quota exceeded.";
        assert_eq!(said, format!("cannot receive new filesystem stream: {why}"));
        assert_eq!(r.tank.get("referenced", "tank/a"), empty);
        assert_eq!(r.tank.names(), ["tank", "tank/a", "tank/all", "tank/all@s1"]);
    }
    // A file system that is full may have passed its quota by a little.
    r.tank.zfs(&format!("set refquota={} tank/a", size - size / 20));
    r.take("receive -F tank/a@s1", "full-s1");
    r.tank.finish();
}

#[test]
fn a_terminal_is_shown_how_far_a_stream_is() {
    let r = Receiver::new(Tank::unmounted());
    let path = r.tank.session.path("stream");
    fs::write(&path, &r.streams["full-s1"]).unwrap();
    let (path, part) = (path.display(), 1_000_000);
    let slowly = format!("(head -c {part} {path}; sleep 3; tail -c +{} {path})", part + 1);
    let said = r.tank.session.on_terminal(&format!("{slowly} | cenote zfs receive -v tank/a@one"));
    assert!(said.contains("KiB/s  ") && said.contains(" so far"), "{said}");
    assert!(said.contains("received 3.73M stream in "), "{said}");
    let quiet = r.tank.session.on_terminal(&format!("cenote zfs receive tank/b@one <{path}"));
    assert_eq!(quiet, "");
    r.tank.finish();
}

#[test]
fn packages_bring_their_datasets_and_properties() {
    let r = Receiver::new(Tank::unmounted());
    let value = |property: &str, dataset: &str| {
        r.tank.zfs(&format!("get -Hpo value,source,received {property} {dataset}"))
    };
    r.take("receive tank/all", "R-s3");
    for (dataset, guid) in [
        ("tank/all@s1", "5004574961756506888"),
        ("tank/all@s3", "10859438038493005559"),
        ("tank/all/disk@s3", "6167801645607531575"),
        ("tank/all/leaf/tip@s2", "941574505188168652"),
        ("tank/all/branch@s3", "11220535454257397127"),
    ] {
        assert_eq!(r.tank.get("guid", dataset), guid, "{dataset}");
    }
    assert_eq!(r.tank.get("origin", "tank/all/branch"), "tank/all/leaf@s2");
    assert_eq!(value("recordsize", "tank/all"), "524288\treceived\t524288\n");
    assert_eq!(value("compression", "tank/all/leaf"), "gzip\treceived\tgzip\n");
    assert_eq!(value("org.pub:k", "tank/all/leaf"), "z\treceived\tz\n");
    let inherited = "z\tinherited from tank/all/leaf\t-\n";
    assert_eq!(value("org.pub:k", "tank/all/leaf/tip"), inherited);

    // What is set here counts, until it is inherited with -S.
    r.tank.zfs("set compression=off tank/all/leaf");
    assert_eq!(value("compression", "tank/all/leaf"), "off\tlocal\tgzip\n");
    r.tank.zfs("inherit -S compression tank/all/leaf");
    assert_eq!(value("compression", "tank/all/leaf"), "gzip\treceived\tgzip\n");
    r.tank.zfs("inherit compression tank/all/leaf");
    assert_eq!(value("compression", "tank/all/leaf"), "on\tdefault\tgzip\n");
    let received = r.tank.zfs("get -rHo name -s received recordsize tank/all");
    assert_eq!(received, "tank/all\ntank/all/leaf/tip\n");

    // What is there already is passed over; what is new goes on it.
    assert!(r.refused("receive tank/all", &r.streams["R-s3"]).contains("must specify -F"));
    let said = r.take("receive -v tank/all", "Inc-s1-s3");
    assert_eq!(said.matches("already exists; ignoring").count(), 2, "{said}");
    let said = r.take("receive -v tank/a@s1", "full-s1");
    assert!(said.contains("full stream"), "{said}");
    r.take("receive tank/a", "Inc-s1-s3");
    assert_eq!(r.tank.get("guid", "tank/a@s3"), "10859438038493005559");

    // The receiver sets properties and leaves some out.
    r.take("receive -o atime=off -x compression -o org.pub:here=1 tank/one@s1", "leaf-p-s1");
    assert_eq!(value("atime", "tank/one"), "off\tlocal\t-\n");
    assert_eq!(value("compression", "tank/one"), "on\tdefault\tgzip\n");
    assert_eq!(value("org.pub:here", "tank/one"), "1\tlocal\t-\n");
    assert_eq!(value("org.pub:k", "tank/one"), "z\treceived\tz\n");
    let refused = |line: &str| r.refused(line, &r.streams["leaf-p-s1"]);
    assert_eq!(refused("receive -o used=1 tank/x"), "cannot receive: invalid property 'used'");
    assert!(refused("receive -o atime=maybe tank/x").contains("must be one of 'on | off'"));
    assert!(refused("receive -o volsize=1G tank/x").contains("invalid property 'volsize'"));
    assert!(!r.tank.names().iter().any(|name| name.starts_with("tank/x")));
    r.take("receive -d tank/one", "leaf-p-s1");
    assert_eq!(r.tank.get("type", "tank/one/origin/leaf@s1"), "snapshot");
    r.take("receive -e tank/one", "tip-e-s1");
    assert_eq!(r.tank.get("type", "tank/one/tip@s1"), "snapshot");
    r.tank.finish();
}

#[test]
fn an_interrupted_receive_can_be_resumed_or_given_up() {
    let r = Receiver::new(Tank::unmounted());
    let full = &r.streams["full-s1"];
    let said = r.refused("receive -s tank/a", &full[..full.len() / 2]);
    let token = r.tank.get("receive_resume_token", "tank/a");
    assert!(said.ends_with(&format!("zfs send -t {token}")), "{said}");
    assert!(token.starts_with("1-"), "{token}");
    let said = r.refused("receive -F tank/a", full);
    assert!(said.contains("contains partially-complete state"), "{said}");
    r.tank.session.run("zpool export tank").ok();
    let dir = r.tank.session.dir.path().display().to_string();
    r.tank.session.run(&format!("zpool import -d {dir} tank")).ok();
    assert_eq!(r.tank.get("receive_resume_token", "tank/a"), token);
    r.tank.zfs("receive -A tank/a");
    assert_eq!(r.tank.names(), ["tank"]);
    assert!(
        r.tank.refused("receive -A tank").contains("does not have any resumable receive state")
    );
    r.take("receive tank/a@s1", "full-s1");
    let inc = &r.streams["inc-s1-s2"];
    r.refused("receive -s tank/a", &inc[..inc.len() / 2]);
    assert_ne!(r.tank.get("receive_resume_token", "tank/a"), "-");
    assert_eq!(
        r.tank.refused("promote tank/a/%recv"),
        "cannot promote 'tank/a/%recv': invalid character % in name"
    );
    r.tank.zfs("receive -A tank/a");
    assert_eq!(r.tank.get("receive_resume_token", "tank/a"), "-");
    r.take("receive tank/a", "inc-s1-s2");
    r.tank.finish();
}

#[test]
fn parts_of_streams_are_sent_on_and_completed() {
    let r = Receiver::new(Tank::unmounted());
    let token = |dataset: &str| r.tank.get("receive_resume_token", dataset);
    let same = |ours: &str, theirs: &str| {
        assert_eq!(r.tank.get("guid", ours), r.tank.get("guid", theirs), "{ours}");
    };
    r.take("receive tank/a@s1", "full-s1");
    let whole = r.sent("-L tank/a@s1");
    r.refused("receive -s tank/b@s1", &whole[..whole.len() / 2]);
    let said = r.tank.refused("send tank/b");
    let why = "it was received in part; 'zfs send -S' sends what has come";
    assert_eq!(said, format!("warning: cannot send 'tank/b': {why}"));
    let saved = r.sent("--saved tank/b");
    assert!((whole.len() / 3..whole.len() * 2 / 3).contains(&saved.len()), "{}", saved.len());
    let told = r.tank.zfs("send -nvP -S tank/b");
    assert!(told.starts_with("resume token contents:\n") && told.contains("full\ttank/b\t"));
    assert!(told.ends_with(&format!("\nsize\t{}\n", saved.len())), "{told}");
    r.refused("receive -s tank/c@s1", &saved);
    for dataset in ["tank/b", "tank/c"] {
        let rest = r.sent(&format!("-t {}", token(dataset)));
        let told = r.tank.zfs(&format!("send -nvP -t {}", token(dataset)));
        assert!(told.ends_with(&format!("\nsize\t{}\n", rest.len())), "{told}");
        let done = r.run(&format!("receive -s {dataset}@s1"), &rest);
        assert!(done.code == 0, "{}", done.err);
        same(&format!("{dataset}@s1"), "tank/a@s1");
    }

    // The stream of a file system itself.
    let head = r.sent("tank/a");
    r.refused("receive -s tank/d@now", &head[..head.len() / 2]);
    let rest = r.sent(&format!("-t {}", token("tank/d")));
    assert!(rest.len() < head.len() * 2 / 3);
    let done = r.run("receive -s tank/d@now", &rest);
    assert!(done.code == 0, "{}", done.err);
    r.refused("receive -s tank/e@now", &head[..head.len() / 2]);
    // The snapshot that came of it has the stream's guid, and would do as well.
    r.tank.zfs("destroy -r tank/d");
    // What was changed since is not mixed with what came before.
    r.tank.zfs("set userquota@1000=1G tank/a");
    let changed = r.tank.refused(&format!("send -t {}", token("tank/e")));
    let why = "'tank/a@--head--' is no longer the same snapshot used in the initial send";
    assert_eq!(changed, format!("cannot resume send: {why}"));
    r.tank.zfs("receive -A tank/e");
    let head = r.sent("tank/a");
    r.refused("receive -s tank/e@now", &head[..head.len() / 2]);
    r.tank.zfs("rename tank/a tank/z");
    r.sent(&format!("-t {}", token("tank/e")));
    r.tank.zfs("destroy -r tank/z");
    let gone = r.tank.refused(&format!("send -t {}", token("tank/e")));
    let why = "'tank/a@--head--' used in the initial send no longer exists";
    assert_eq!(gone, format!("cannot resume send: {why}"));
    r.tank.finish();
}

#[test]
fn what_the_sender_renamed_and_destroyed_is_so_here() {
    let r = Receiver::new(Tank::unmounted());
    r.take("receive tank/two@s1", "full-s1");
    r.take("receive tank/two/leaf@s1", "leaf-p-s1");
    r.take("receive tank/two/leaf/tip@s1", "tip-e-s1");
    r.take("receive tank/two/disk@s1", "disk-s1");
    r.tank.zfs("rename tank/two/leaf tank/two/blatt");
    r.tank.zfs("rename tank/two/disk@s1 @first");
    r.tank.zfs("create tank/two/extra");
    r.tank.zfs("snapshot tank/two@mine");
    let said = r.take("receive -v -F tank/two", "R-Inc-s1-s3");
    for what in [
        "attempting rename tank/two/blatt to tank/two/leaf\nsuccess\n",
        "attempting rename tank/two/disk@first to tank/two/disk@s1\nsuccess\n",
        "attempting destroy tank/two/extra\nsuccess\n",
        "attempting destroy tank/two@mine\nsuccess\n",
        "found clone origin tank/two/leaf@s2\n",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let mut names = r.tank.names();
    names.retain(|name| name.starts_with("tank/two"));
    names.sort();
    let heads = ["two", "two/disk", "two/leaf", "two/leaf/tip"];
    let snaps = |head: &&str| ["", "@s1", "@s2", "@s3"].map(|s| format!("tank/{head}{s}"));
    let mut expected: Vec<String> = heads.iter().flat_map(snaps).collect();
    expected.extend(["tank/two/branch".to_string(), "tank/two/branch@s3".to_string()]);
    expected.sort();
    assert_eq!(names, expected);
    r.tank.finish();
}

#[test]
fn properties_of_snapshots_that_are_here_follow_the_sender() {
    let r = Receiver::new(Tank::unmounted());
    r.tank.zfs("create tank/a");
    r.tank.zfs("snapshot -o x:was=old tank/a@one");
    let all = r.sent("-R tank/a@one");
    assert_eq!(r.run("receive tank/b", &all).code, 0);
    r.tank.zfs("set x:later=new tank/a@one");
    r.tank.zfs("snapshot tank/a@two");
    let more = r.sent("-R -I tank/a@one tank/a@two");
    let said = r.run("receive tank/b", &more);
    assert!(said.code == 0, "{}", said.err);
    let list = "get -Ho property,value,source x:was,x:later tank/b@one";
    assert_eq!(r.tank.zfs(list), "x:was\told\treceived\nx:later\tnew\treceived\n");
    r.tank.finish();
}

#[test]
fn mounted_file_systems_are_replaced() {
    if !common::can_mount() {
        return;
    }
    // Else reading changes it.
    let r = Receiver::new(Tank::new("-O atime=off"));
    r.tank.zfs("create tank/from");
    let file = |name: &str| r.tank.path(&format!("tank/{name}"));
    fs::write(file("from/a"), "first").unwrap();
    r.tank.zfs("snapshot tank/from@one");
    let full = r.sent("tank/from@one");
    assert_eq!(r.run("receive tank/to", &full).code, 0);
    assert_eq!(fs::read(file("to/a")).unwrap(), b"first");
    assert_eq!(r.run("receive -u tank/hidden", &full).code, 0);
    assert_eq!(r.tank.get("mounted", "tank/hidden"), "no");
    fs::write(file("from/a"), "second").unwrap();
    r.tank.zfs("snapshot tank/from@two");
    let inc = r.sent("-i @one tank/from@two");
    let said = r.run("receive tank/to", &inc);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(fs::read(file("to/a")).unwrap(), b"second");
    assert_eq!(fs::read(file("to/.zfs/snapshot/one/a")).unwrap(), b"first");

    // What was changed is lost with -F only. What is in use goes on, if the stream has it as well.
    fs::write(file("from/b"), "third").unwrap();
    r.tank.zfs("snapshot tank/from@three");
    let inc = r.sent("-i @two tank/from@three");
    fs::write(file("to/mine"), "mine").unwrap();
    r.tank.session.run("zpool sync tank").ok();
    assert!(r.refused("receive tank/to", &inc).contains("has been modified\nsince most recent"));
    let (mut open, mut mine) =
        (File::open(file("to/a")).unwrap(), File::open(file("to/mine")).unwrap());
    assert_eq!(r.run("receive -F tank/to", &inc).code, 0);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "second");
    assert!(mine.read(&mut [0; 4]).is_err() && !file("to/mine").exists());
    assert_eq!(fs::read(file("to/b")).unwrap(), b"third");
    // With -M it is unmounted all the same.
    fs::write(file("from/b"), "fourth").unwrap();
    r.tank.zfs("snapshot tank/from@four");
    let inc = r.sent("-i @three tank/from@four");
    assert_eq!(r.run("receive -F -M tank/to", &inc).code, 0);
    drop((open, mine));
    assert_eq!(fs::read(file("to/b")).unwrap(), b"fourth");
    r.tank.finish();
}
