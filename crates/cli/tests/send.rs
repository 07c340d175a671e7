//! `zfs send` writes streams of what was written here; OpenZFS's `zdb` judges the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_format::stream::{Decoder, RECORD_SIZE, Record};
use common::tank::Tank;

/// The names of the records of a stream that is whole.
fn records(mut stream: &[u8]) -> Vec<&'static str> {
    let (mut decoder, mut names) = (None, Vec::new());
    while let Some((head, rest)) = stream.split_first_chunk::<RECORD_SIZE>() {
        let decoder = decoder.get_or_insert_with(|| Decoder::new(head).unwrap());
        let record: Record = decoder.record(head).unwrap();
        let (payload, rest) = rest.split_at(record.payload_len() as usize);
        decoder.payload(payload);
        names.push(record.name());
        stream = rest;
    }
    assert!(stream.is_empty() && decoder.unwrap().ended());
    names
}

#[test]
fn snapshots_are_sent() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@one");
    tank.zfs("set com.example:x=1 tank/a");
    tank.zfs("snapshot tank/a@two");
    tank.zfs("create -s -V 8M tank/v");
    tank.zfs("snapshot tank/v@one");
    let send = |line: &str| {
        let mut command = tank.session.command();
        command.args(line.split(' '));
        let output = cenote_testpools::output(&mut command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let full = records(&send("zfs send tank/a@one"));
    assert_eq!((full[0], full[1]), ("BEGIN", "OBJECT"));
    assert!(full.contains(&"WRITE") && full.last() == Some(&"END"));
    assert_eq!(records(&send("zfs send -Lec -i @one tank/a@two")), ["BEGIN", "END"]);
    assert!(records(&send("zfs send --compressed tank/v@one")).contains(&"OBJECT"));

    let refused = |line: &str, code| tank.session.run(line).fails(code);
    let not_earlier = "warning: cannot send 'tank/a@one': not an earlier snapshot from the same fs";
    assert_eq!(refused("zfs send -i @two tank/a@one", 1), not_earlier);
    assert!(refused("zfs send -R tank/a@one", 2).starts_with("unsupported option: -R\n"));
    assert!(refused("zfs send", 2).starts_with("missing snapshot argument\n"));
    assert!(refused("zfs send tank/a", 1).contains("only snapshots can be sent"));
    tank.finish();
}
