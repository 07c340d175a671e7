//! Streams and packages of streams, between pools in files. The pools are judged by OpenZFS's own `zdb` in the end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod rig;

use cenote_admin::destroy::Destroy;
use cenote_admin::host::{Entered, Exclusion};
use cenote_admin::receive::Receive;
use cenote_admin::rename::Rename;
use cenote_admin::send::{Send, decode_token};
use cenote_admin::{ErrorKind, Kinds, Session};
use cenote_dsl::send::package::Wanted;
use rig::{Noting, Rig};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A package of `tank/a` and what is below it.
fn package() -> Send {
    let wanted = Wanted { replicate: true, ..Wanted::default() };
    Send { wanted, ..Send::default() }
}

fn sent(rig: &Rig, name: &str, from: Option<&str>, how: &Send) -> Vec<u8> {
    let (mut out, mut host) = (Vec::new(), Noting::default());
    rig.session(&mut host).send(name, from, how, &mut out).unwrap();
    out
}

/// `tank/a` with children, and a snapshot of all of it.
fn sender() -> Rig {
    let rig = Rig::new("tank");
    rig.pool().create_filesystem("tank/a", &[("compression", "zstd")]).unwrap();
    for child in ["gone", "old", "stays"] {
        rig.pool().create_filesystem(&format!("tank/a/{child}"), &[]).unwrap();
    }
    rig.write("tank/a/old", "file", "one");
    snapshot(&rig, "one");
    rig
}

/// Takes a snapshot of `tank/a` and all below it.
fn snapshot(rig: &Rig, short: &str) {
    let mut host = Noting::default();
    let mut session = rig.session(&mut host);
    let head = session.dataset("tank/a", Kinds::HEAD).unwrap();
    let names = session.names_of_snapshots(&head, short, true).unwrap();
    session.snapshot(names, vec![]).unwrap();
}

#[test]
fn a_package_brings_what_happened_at_the_sender() {
    let (from, to) = (sender(), Rig::new("pool"));
    let mut host = Noting::default();
    let first = sent(&from, "tank/a@one", None, &package());
    let received = to.session(&mut host).receive("pool/a", &Receive::default(), &mut &first[..]);
    // Children come in the order in which the sender keeps them.
    let mut received = received.unwrap().snapshots;
    assert_eq!(received[0], "pool/a@one");
    received.sort();
    let all = ["pool/a/gone@one", "pool/a/old@one", "pool/a/stays@one", "pool/a@one"];
    assert_eq!(received, all);
    assert_eq!(to.read("pool/a/old", "file"), "one");
    let compression = to.pool().dataset("pool/a/old").unwrap().property("compression").unwrap();
    assert_eq!(compression.unwrap(), "zstd");

    let mut at_sender = Noting::default();
    let mut session = from.session(&mut at_sender);
    let recurse = Destroy { recurse: true, ..Destroy::default() };
    session.destroy("tank/a/gone", recurse).unwrap();
    let old = session.dataset("tank/a/old", Kinds::HEAD).unwrap();
    session.rename(&old, "tank/a/stays/new", Rename::default()).unwrap();
    session.rename_snapshot("tank/a/stays@one", "uno", false).unwrap();
    session.rename_snapshot("tank/a/stays@uno", "one", false).unwrap();
    from.write("tank/a/stays/new", "file", "two");
    snapshot(&from, "two");

    let second = sent(&from, "tank/a@two", Some("@one"), &package());
    let how = Receive { force: true, ..Receive::default() };
    host.take();
    to.session(&mut host).receive("pool/a", &how, &mut &second[..]).unwrap();
    let (told, asked) = host.take();
    for event in [
        r#"Destroying("pool/a/gone")"#,
        r#"Renaming { from: "pool/a/old", to: "pool/a/stays/new" }"#,
        "Settled(true)",
    ] {
        assert!(told.iter().any(|t| t == event), "{event}: {told:?}");
    }
    assert!(!told.iter().any(|t| t.starts_with("failed")), "{told:?}");
    assert!(asked.contains(&"give up pool/a/gone by force".into()), "{asked:?}");
    assert!(asked.contains(&"exchange".into()), "{asked:?}");
    assert_eq!(to.read("pool/a/stays/new", "file"), "two");
    assert!(!to.all().iter().any(|name| name.contains("gone")));
    from.end();
    to.end();
}

#[test]
fn what_a_destroyed_snapshot_left_can_be_sent_from() {
    let (from, to) = (sender(), Rig::new("pool"));
    let mut host = Noting::default();
    let stream = sent(&from, "tank/a/old@one", None, &Send::default().raw());
    to.session(&mut host).receive("pool/x", &Receive::default(), &mut &stream[..]).unwrap();
    from.session(&mut host).bookmark("tank/a/old@one", "#one").unwrap();
    from.session(&mut host).destroy("tank/a/old@one", Destroy::default()).unwrap();
    from.write("tank/a/old", "file", "two");
    snapshot(&from, "two");
    let stream = sent(&from, "tank/a/old@two", Some("#one"), &Send::default());
    to.session(&mut host).receive("pool/x", &Receive::default(), &mut &stream[..]).unwrap();
    assert_eq!(to.read("pool/x", "file"), "two");

    // What was changed here since is lost only by force.
    to.write("pool/x", "file", "mine");
    from.write("tank/a/old", "file", "three");
    snapshot(&from, "three");
    let stream = sent(&from, "tank/a/old@three", Some("@two"), &Send::default());
    let refused = to.session(&mut host).receive("pool/x", &Receive::default(), &mut &stream[..]);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Stream);
    assert_eq!(
        refused.to_string(),
        "cannot receive incremental stream: destination pool/x has been modified\n\
         since most recent snapshot"
    );
    assert_eq!(to.read("pool/x", "file"), "mine");
    let how = Receive { force: true, ..Receive::default() };
    to.session(&mut host).receive("pool/x", &how, &mut &stream[..]).unwrap();
    assert_eq!(to.read("pool/x", "file"), "three");
    from.end();
    to.end();
}

#[test]
fn a_receive_that_was_interrupted_goes_on() {
    let (from, to) = (sender(), Rig::new("pool"));
    from.write("tank/a/old", "large", &"a text ".repeat(200_000));
    snapshot(&from, "two");
    let mut host = Noting::default();
    let stream = sent(&from, "tank/a/old@two", None, &Send::default());
    let resumable = Receive { resumable: true, ..Receive::default() };
    let cut = &stream[..stream.len() / 2];
    let cut = to.session(&mut host).receive("pool/x", &resumable, &mut &cut[..]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Stream);
    let text = cut.to_string();
    let token = text.rsplit("zfs send -t ").next().unwrap();
    let token = decode_token(token).unwrap();
    let mut rest = Vec::new();
    from.session(&mut host).resume_send(&token, &Send::default(), &mut rest).unwrap();
    assert!(rest.len() < stream.len());
    to.session(&mut host).receive("pool/x", &resumable, &mut &rest[..]).unwrap();
    assert_eq!(to.read("pool/x", "large").len(), 1_400_000);

    // Or it is given up.
    let cut = &stream[..stream.len() / 2];
    to.session(&mut host).receive("pool/y", &resumable, &mut &cut[..]).unwrap_err();
    to.session(&mut host).abort_receive("pool/y").unwrap();
    let nothing = to.session(&mut host).abort_receive("pool/x").unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::NotFound);
    assert!(!to.all().iter().any(|name| name.starts_with("pool/y")));
    from.end();
    to.end();
}

/// Counts those who keep others out.
#[derive(Default)]
struct Door {
    inside: AtomicUsize,
    entered: AtomicUsize,
}

struct Inside<'a>(&'a Door);

impl Exclusion for Door {
    fn enter(&self) -> Box<dyn Entered + '_> {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "nobody enters twice");
        self.entered.fetch_add(1, SeqCst);
        Box::new(Inside(self))
    }
}

impl Entered for Inside<'_> {}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

/// A stream that may stall: nobody is kept out while it is read.
struct Stalling<'a>(&'a [u8], Arc<Door>);

impl Read for Stalling<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        assert_eq!(self.1.inside.load(SeqCst), 0, "others wait for a stream");
        let most = buffer.len().min(4096);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn others_do_not_wait_for_a_stream() {
    let (from, to) = (sender(), Rig::new("pool"));
    let mut host = Noting::default();
    let stream = sent(&from, "tank/a@one", None, &package());
    let door = Arc::new(Door::default());
    let mut input = Stalling(&stream, door.clone());
    let mut session = Session::new(to.opened(), Default::default(), &mut host).beside(door.clone());
    session.receive("pool/a", &Receive::default(), &mut input).unwrap();
    // At the beginning and at the end of each of four streams, and to mount what came.
    assert_eq!(door.entered.load(SeqCst), 9);
    from.end();
    to.end();
}

#[test]
fn properties_are_set_and_left_out_as_they_come() {
    let (from, to) = (sender(), Rig::new("pool"));
    let mut host = Noting::default();
    let stream = sent(&from, "tank/a@one", None, &package());
    let how = Receive {
        set: vec![("recordsize".into(), "16K".into())],
        inherit: vec!["compression".into()],
        ..Receive::default()
    };
    to.session(&mut host).receive("pool/a", &how, &mut &stream[..]).unwrap();
    let value = |name: &str, property: &str| {
        to.pool().dataset(name).unwrap().property(property).unwrap().unwrap()
    };
    assert_eq!(value("pool/a", "recordsize"), "16384");
    assert_eq!(value("pool/a/old", "recordsize"), "16384");
    assert_ne!(value("pool/a", "compression"), "zstd");
    let how = Receive { set: vec![("volsize".into(), "1M".into())], ..Receive::default() };
    let refused = to.session(&mut host).receive("pool/b", &how, &mut &stream[..]).unwrap_err();
    assert_eq!(refused.to_string(), "cannot receive: invalid property 'volsize'");
    from.end();
    to.end();
}

/// Takes so many bytes, and no more.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(data.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_end_of_a_package_is_written_or_an_error() {
    let rig = sender();
    let one = Send { wanted: Wanted { props: true, ..Wanted::default() }, ..Send::default() };
    for how in [one, package()] {
        let length = sent(&rig, "tank/a@one", None, &how).len();
        for (room, whole) in [(length, true), (length - 1, false)] {
            let mut out = io::BufWriter::with_capacity(2 * length, Full(room));
            let mut host = Noting::default();
            let done = rig.session(&mut host).send("tank/a@one", None, &how, &mut out);
            let kind = done.err().map(|e| e.into_io().unwrap().kind());
            assert_eq!(kind, (!whole).then_some(io::ErrorKind::StorageFull));
            // What could not be written is not tried again.
            drop(out.into_parts());
        }
    }
    rig.end();
}

#[test]
fn what_cannot_be_sent_is_refused_by_name() {
    let rig = sender();
    let mut host = Noting::default();
    let mut send = |name: &str, from: Option<&str>, how: &Send| {
        rig.session(&mut host).send(name, from, how, &mut Vec::new()).unwrap_err().to_string()
    };
    assert_eq!(
        send("tank/a@no", None, &Send::default()),
        "cannot open 'tank/a@no': dataset does not exist"
    );
    assert_eq!(
        send("tank/a@one", Some("tank/a/old@one"), &Send::default()),
        "warning: cannot send 'tank/a@one': not an earlier snapshot from the same fs"
    );
    assert_eq!(
        send("tank/a@one", Some("#b"), &package()),
        "Error: multiple snapshots cannot be sent from a bookmark."
    );
    assert_eq!(
        send("tank/a@one", Some("other@one"), &Send::default()),
        "warning: cannot send 'tank/a@one': not an earlier snapshot from the same fs"
    );
    // A reader that has gone away is an error of the writer.
    struct Gone;
    impl io::Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let gone = rig.session(&mut host).send("tank/a@one", None, &package(), &mut Gone).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Io);
    assert_eq!(gone.into_io().unwrap().kind(), io::ErrorKind::BrokenPipe);
    rig.end();
}
