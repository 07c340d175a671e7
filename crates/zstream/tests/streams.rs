//! Streams of OpenZFS are shown as its own `zstream` shows them, and changed without losing anything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_command::Caller;
use cenote_command::outcome::Stop;
use cenote_format::ByteOrder;
use cenote_format::checksum::Fletcher4;
use cenote_format::compress::Compression;
use cenote_format::stream::token::Token;
use cenote_format::stream::{RECORD_SIZE, Record};
use cenote_testpools::{big_endian_stream, dumps, records, streams};
use cenote_zstream::dump::{self, Shown};
use cenote_zstream::{Surroundings, blocks, redup};
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// What a command writes; its error is its last line of standard error.
fn output(
    run: impl FnOnce(&mut Surroundings<'_>) -> Result<i32, Stop>,
) -> (Result<i32, String>, Vec<u8>, String) {
    let (mut out, mut err, caller) = (Vec::new(), Vec::new(), Caller::of_process());
    let done = run(&mut Surroundings { out: &mut out, err: &mut err, caller: &caller });
    let done = done.map_err(|stop| match stop {
        Stop::Fail(why) | Stop::Usage(why) => why,
        Stop::Said(code) => format!("exit code {code}"),
        Stop::Io(e) => e.to_string(),
    });
    (done, out, String::from_utf8_lossy(&err).into_owned())
}

fn dump(stream: &[u8], shown: Shown) -> (Result<i32, String>, String, String) {
    let (done, out, err) = output(|ctx| dump::run(&mut { stream }, shown, ctx));
    (done, String::from_utf8_lossy(&out).into_owned(), err)
}

const RECORDS: Shown =
    Shown { records: true, checksums: false, contents: false, unverified: false };

#[test]
fn dumps_are_those_of_openzfs() {
    let (streams, dumps) = (streams(), dumps());
    assert_eq!(dumps.len(), 19);
    for (name, expected) in &dumps {
        let (done, text, err) = dump(&streams[name], RECORDS);
        assert_eq!((done, err.as_str()), (Ok(0), ""), "{name}");
        let differ = text.lines().zip(expected.lines()).find(|(ours, theirs)| ours != theirs);
        assert_eq!(differ, None, "{name}");
        assert_eq!(text.len(), expected.len(), "{name}");
    }
}

/// They say the same as those in this machine's order; but for sums, and embedded blocks, which may be packed into another
/// length. OpenZFS's `zstream` takes them for right.
#[test]
fn streams_of_big_endian_machines_are_shown() {
    for (name, stream) in streams() {
        let big = big_endian_stream(&stream);
        let [(done, ours, err), (_, native, _)] = [&big, &stream].map(|s| dump(s, RECORDS));
        assert_eq!((done, err.as_str()), (Ok(0), ""), "{name}");
        assert_eq!(ours.lines().count(), native.lines().count(), "{name}");
        let is_own = ["EMBEDDED", "otal", "END checksum"];
        let mut differ = ours.lines().zip(native.lines()).filter(|(ours, native)| ours != native);
        if big.len() == stream.len() {
            let said = differ.find(|(ours, _)| !is_own.iter().any(|own| ours.contains(own)));
            assert_eq!(said, None, "{name}");
        }
        let mut theirs = Command::new("/usr/sbin/zstream");
        theirs.args(["dump", "-v"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut theirs = theirs.stderr(Stdio::piped()).spawn().unwrap();
        let mut to = theirs.stdin.take().unwrap();
        let sends = std::thread::spawn(move || to.write_all(&big));
        let theirs = theirs.wait_with_output().unwrap();
        // It says itself why it does not read on.
        drop(sends.join().unwrap());
        let said =
            String::from_utf8_lossy(&theirs.stdout) + String::from_utf8_lossy(&theirs.stderr);
        assert!(theirs.status.success() && said.contains("Total"), "{name}: {said}");
        assert!(!said.contains("checksum mismatch"), "{name}: {said}");
    }
}

#[test]
fn damaged_streams_are_shown_as_far_as_they_are_whole() {
    let streams = streams();
    let stream = &streams["branch-from-leaf"];
    let mut damaged = stream.clone();
    damaged[2000] ^= 1;
    let (done, text, err) = dump(&damaged, RECORDS);
    assert_eq!((done, err.as_str()), (Ok(0), "invalid checksum\n"));
    assert!(text.contains("Incorrect checksum in record header.\nExpected checksum = "), "{text}");
    assert!(text.contains("SUMMARY:"));
    let (_, text, err) = dump(&damaged, Shown { unverified: true, ..RECORDS });
    assert!(err.is_empty() && !text.contains("Incorrect") && text.contains("END checksum"));
    let cut = &stream[..stream.len() - 100];
    let (done, text, _) = dump(cut, RECORDS);
    assert!(done == Ok(0) && !text.contains("END checksum"), "{text}");
    let (done, ..) = dump(&[7; 400], RECORDS);
    assert_eq!(done, Err("Invalid stream (bad magic number)".into()));
}

#[test]
fn contents_are_shown() {
    let streams = streams();
    let shown = Shown { checksums: true, contents: true, ..RECORDS };
    let (_, text, _) = dump(&streams["branch-from-leaf"], shown);
    let line = text.lines().find(|line| line.starts_with(" 5a 50 2f 00 ")).unwrap();
    assert_eq!(line.len(), 53 + 1 + 16 + 3, "{line}");
    assert!(line.contains("  ZP/. "), "{line}");
    assert!(text.contains("    checksum = "));
}

fn recompressed(stream: &[u8], by: Compression, level: u8) -> Vec<u8> {
    let (done, out, err) = output(|ctx| blocks::recompress(&mut { stream }, by, level, ctx));
    assert_eq!((done, err.as_str()), (Ok(0), ""));
    out
}

#[test]
fn blocks_are_packed_and_unpacked() {
    let streams = streams();
    for name in ["full-s1-Lec", "disk-inc-s1-s2-c", "R-Inc-s1-s3"] {
        let plain = recompressed(&streams[name], Compression::Off, 0);
        let writes = |stream: &[u8]| {
            let all = records(stream);
            let size: usize = all.iter().map(|(_, payload)| payload.len()).sum();
            let packed =
                |(r, _): &&(Record, _)| matches!(r, Record::Write(w) if w.compression != 0);
            (all.iter().filter(packed).count(), all.len(), size)
        };
        let (none, count, size) = writes(&plain);
        assert_eq!(none, 0, "{name}");
        for (by, level) in [
            (Compression::Lz4, 0),
            (Compression::Gzip6, 0),
            (Compression::Lzjb, 0),
            (Compression::Zle, 0),
            (Compression::Zstd, 3),
        ] {
            let packed = recompressed(&plain, by, level);
            let (some, same, smaller) = writes(&packed);
            assert!(same == count && smaller <= size && (some > 0) == (smaller < size), "{name}");
            assert!(recompressed(&packed, Compression::Off, 0) == plain, "{name} {by:?}");
        }
        // Nothing that is packed any other way: zstd without a level leaves blocks alone.
        assert!(recompressed(&streams[name], Compression::Zstd, 0) == plain);
    }
}

#[test]
fn single_blocks_are_unpacked() {
    let streams = streams();
    let packed = recompressed(&streams["full-s1"], Compression::Lz4, 0);
    let all = records(&packed);
    let block = all.iter().find_map(|(record, _)| match record {
        Record::Write(write) if write.compression != 0 => Some((write.object, write.offset)),
        _ => None,
    });
    let (object, offset) = block.unwrap();
    let chosen = blocks::blocks(&[format!("{object},{offset:#x}")]).ok().unwrap();
    let (done, out, err) =
        output(|ctx| blocks::decompress_some(&mut packed.as_slice(), &chosen, true, ctx));
    let said = format!("successfully decompressed ino {object} offset {offset}\n");
    assert_eq!((done, err), (Ok(0), said));
    let plain = records(&streams["full-s1"]);
    for ((record, payload), was) in records(&out).into_iter().zip(all) {
        match &record {
            Record::Write(write) if (write.object, write.offset) == (object, offset) => {
                assert!(plain.contains(&(record.clone(), payload)));
            }
            Record::End { .. } => {}
            _ => assert!((record, payload) == was),
        }
    }
    for (operand, code) in [("1", 1), ("1,x", 1), ("x,1", 1), ("1,2,none", 2)] {
        match blocks::blocks(&[operand.to_string()]) {
            Err(cenote_zstream::UsageError::Stop(got, _)) => assert_eq!(got, code, "{operand}"),
            Err(cenote_zstream::UsageError::Usage(_)) => assert_eq!(operand, "1"),
            Ok(_) => panic!("{operand}"),
        }
    }
}

/// A stream of these records, whose checksums are filled in.
fn forge(records: &[([u8; RECORD_SIZE], Vec<u8>)]) -> Vec<u8> {
    let (mut sum, mut out) = (Fletcher4::new(ByteOrder::Little), Vec::new());
    for (record, payload) in records {
        let mut record = *record;
        let put = |record: &mut [u8; RECORD_SIZE], at: usize, words: [u64; 4]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            record[at..at + 32].copy_from_slice(&bytes);
        };
        if record[0] == 5 {
            put(&mut record, 8, sum.finish());
        }
        sum.update(&record[..280]);
        if record[0] != 0 {
            put(&mut record, 280, sum.finish());
        }
        sum.update(&record[280..]);
        sum.update(payload);
        out.extend(record);
        out.extend(payload);
    }
    out
}

/// A record of this type with these words.
fn words(kind: u8, words: &[u64]) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    record[0] = kind;
    for (i, word) in words.iter().enumerate() {
        record[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_le_bytes());
    }
    record
}

#[test]
fn deduplicated_streams_become_ordinary_ones() {
    let (magic, guid) = (0x2_f5ba_cbac, 77);
    let begin = |features: u64| words(0, &[magic, 1 | features << 2, 0, 2, guid, 0]);
    let write = |offset| (words(3, &[9, 19, offset, 512, guid, 2]), vec![0x5a; 512]);
    let same = |from| words(6, &[9, 512, 512, guid, guid, 9, from, 2]);
    let end = (words(5, &[0, 0, 0, 0, guid]), vec![]);
    let stream =
        forge(&[(begin(3 | 4), vec![]), write(0), (same(0), vec![]), write(1024), end.clone()]);
    let expected = forge(&[(begin(4), vec![]), write(0), write(512), write(1024), end.clone()]);
    let dir = std::env::temp_dir().join(format!("redup-{}", std::process::id()));
    let redup = |stream: &[u8]| {
        std::fs::write(&dir, stream).unwrap();
        output(|ctx| redup::run(&File::open(&dir).unwrap(), true, ctx))
    };
    let (done, out, err) = redup(&stream);
    assert_eq!(done, Ok(0));
    assert!(out == expected);
    let said =
        "converted stream with 5 total records, including 1 dedup records, using 80B memory.\n";
    assert_eq!(err, said);
    let nowhere = forge(&[(begin(3), vec![]), write(0), (same(4096), vec![]), end]);
    let (done, ..) = redup(&nowhere);
    assert_eq!(
        done,
        Err("zstream: the data of object 9, offset 4096, is not in the stream".into())
    );
    let (done, ..) =
        output(|ctx| blocks::recompress(&mut stream.as_slice(), Compression::Off, 0, ctx));
    assert_eq!(done, Err("Deduplicated streams are not supported".into()));
    std::fs::remove_file(&dir).unwrap();
}

#[test]
fn tokens_are_shown() {
    let token = Token {
        object: 5,
        offset: 131_072,
        bytes: 4096,
        to_guid: 7,
        to_name: "tank/a@b".into(),
        compressed: true,
        ..Token::default()
    };
    let text = token.encode().unwrap();
    let (done, out, _) = output(|ctx| cenote_zstream::token::run(&text, ctx));
    let expected = "     object: 5\n     offset: 131072\n     bytes: 4096\n     toguid: 7\n\
                    \x20    toname: 'tank/a@b'\n     compressok\n";
    assert_eq!((done, String::from_utf8(out).unwrap()), (Ok(0), expected.to_string()));
    let (done, ..) = output(|ctx| cenote_zstream::token::run("1-2-3-4", ctx));
    assert!(done.unwrap_err().starts_with("Unable to parse resume token: "));
}

/// A small stream.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| streams().remove("branch-from-leaf").unwrap());

fn try_everything(stream: &[u8]) {
    let shown = Shown { checksums: true, contents: true, ..RECORDS };
    let _ = dump(stream, shown);
    let _ = dump(stream, Shown { unverified: true, ..shown });
    let _ = output(|ctx| blocks::recompress(&mut { stream }, Compression::Off, 0, ctx));
    let chosen = blocks::blocks(&["128,0".to_string()]).ok().unwrap();
    let _ = output(|ctx| blocks::decompress_some(&mut { stream }, &chosen, true, ctx));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_survived(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..9),
    ) {
        try_everything(&bytes);
        // As a stream begins.
        bytes.resize(bytes.len().max(700), 0);
        bytes[..24].copy_from_slice(&words(0, &[0x2_f5ba_cbac, 1])[..24]);
        bytes[312] %= 11;
        try_everything(&bytes);
        let mut stream = SMALL.clone();
        for (at, value) in flips {
            let at = at % stream.len();
            stream[at] = value;
        }
        try_everything(&stream);
    }
}
