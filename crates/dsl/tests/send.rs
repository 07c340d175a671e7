//! Streams of the snapshots of a sample pool are, byte for byte, those that OpenZFS made of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_dsl::send::{SendError, SendOptions};
use cenote_dsl::{Dataset, Dsl};
use cenote_format::stream::{Decoder, Encoder, RECORD_SIZE, Record};
use cenote_manifest_check::import;
use cenote_pool::Pool;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// OpenZFS 2.3.9 loses an embedded spill block here (`zfs send -e`).
const WRONG: &str = "streams.quirk-e.zsend";

/// What `zfs send` is asked for, without options of packages; `None` for a package.
fn asked(args: &str, pool: &Pool) -> Option<(String, Option<String>, SendOptions)> {
    let words: Vec<&str> = args.split(' ').collect();
    let (snapshot, flags) = words.split_last().unwrap();
    let active = |guid: &str| pool.features().get(guid).is_some_and(|f| f.uses > 0);
    let mut options = SendOptions {
        pool_embeds: active("com.delphix:embedded_data"),
        pool_has_lz4: active("org.illumos:lz4_compress"),
        ..SendOptions::default()
    };
    let mut from = None;
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match *flag {
            "-L" => options.large_blocks = true,
            "-e" => options.embedded = true,
            "-c" => options.compressed = true,
            "-i" => {
                let start = *flags.next().unwrap();
                let (of, _) = snapshot.split_once('@').unwrap();
                from = Some(if start.starts_with('@') {
                    format!("{of}{start}")
                } else {
                    start.into()
                });
            }
            _ => return None,
        }
    }
    Some((snapshot.to_string(), from, options))
}

fn find(dsl: &Dsl, name: &str) -> Dataset {
    dsl.find(name).unwrap().unwrap_or_else(|| panic!("{name}"))
}

/// The records of a stream, with what follows each.
fn records(mut stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let (mut decoder, mut out) = (None, Vec::new());
    while let Some((head, rest)) = stream.split_first_chunk::<RECORD_SIZE>() {
        let decoder = decoder.get_or_insert_with(|| Decoder::new(head).unwrap());
        let record = decoder.record(head).unwrap();
        let (payload, rest) = rest.split_at(record.payload_len() as usize);
        decoder.payload(payload);
        out.push((record, payload.to_vec()));
        stream = rest;
    }
    assert!(stream.is_empty() && decoder.unwrap().ended());
    out
}

fn encoded(records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let Some((Record::Begin(begin), _)) = records.first() else { panic!("no BEGIN") };
    let mut encoder = Encoder::new(begin.to_guid);
    let mut out = Vec::new();
    for (record, payload) in records {
        out.extend(encoder.record(record).unwrap());
        encoder.payload(payload);
        out.extend(payload);
    }
    out
}

fn streams(pool: &Arc<Pool>, manifest: &Value) -> Vec<(String, Vec<u8>, u64, String)> {
    let mut out = Vec::new();
    for entry in manifest["streams"].as_array().unwrap() {
        let file = entry["file"].as_str().unwrap();
        let Some((to, from, options)) = asked(entry["zfs_send_args"].as_str().unwrap(), pool)
        else {
            continue;
        };
        let from = from.map(|name| find(pool.dsl(), &name));
        let mut stream = Vec::new();
        let to = find(pool.dsl(), &to);
        pool.dsl().send(&to, from.as_ref(), options, &mut stream).unwrap();
        let sha256 = entry["sha256"].as_str().unwrap().to_string();
        out.push((file.to_string(), stream, entry["size"].as_u64().unwrap(), sha256));
    }
    out
}

#[test]
fn streams_are_those_of_openzfs() {
    let sample = cenote_testpools::pool("streams");
    let pool = import("streams");
    let made = streams(&pool, &sample.manifest());
    assert_eq!(made.len(), 13);
    let mut wrong = Vec::new();
    for (file, stream, size, sha256) in &made {
        let parts = records(stream);
        assert_eq!(&encoded(&parts), stream, "{file}");
        let ours: String = Sha256::digest(stream).iter().map(|b| format!("{b:02x}")).collect();
        if file == WRONG {
            let spills = parts.iter().filter(|(r, _)| matches!(r, Record::Spill(_))).count();
            assert!(spills > 0 && ours != *sha256);
            continue;
        }
        if (stream.len() as u64, &ours) != (*size, sha256) {
            if let Some(dir) = std::env::var_os("CENOTE_KEEP_STREAMS") {
                std::fs::write(std::path::Path::new(&dir).join(file), stream).unwrap();
            }
            wrong.push(format!("{file}: {} bytes, not {size}", stream.len()));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn streams_that_cannot_be() {
    let pool = import("streams");
    let dsl = pool.dsl();
    let send = |to: &str, from: &str| {
        let (to, from) = (find(dsl, to), find(dsl, from));
        let mut out = Vec::new();
        let error = dsl.send(&to, Some(&from), SendOptions::default(), &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    for (to, from) in [
        ("streams/origin@s1", "streams/origin@s2"),
        ("streams/origin@s2", "streams/origin@s2"),
        ("streams/origin@s3", "streams/origin/leaf@s1"),
        ("streams/origin/branch@s3", "streams/origin/leaf@s3"),
        ("streams/origin@s1", "streams/origin#mark"),
    ] {
        assert!(matches!(send(to, from), SendError::NotEarlier), "{to} {from}");
    }
    let refused = |e: SendError| matches!(e, SendError::Refused(_));
    assert!(refused(send("streams/origin", "streams/origin@s1")));
    assert!(refused(send("streams/origin@s3", "streams/origin")));
}

#[test]
fn damaged_streams_are_noticed() {
    let pool = import("streams");
    let (from, to) = (find(pool.dsl(), "streams/origin@s2"), find(pool.dsl(), "streams/origin@s3"));
    let mut stream = Vec::new();
    pool.dsl().send(&to, Some(&from), SendOptions::default(), &mut stream).unwrap();
    let whole = |stream: &[u8]| {
        let (mut rest, mut decoder) = (stream, None);
        while let Some((head, after)) = rest.split_first_chunk::<RECORD_SIZE>() {
            let decoder = match &mut decoder {
                Some(decoder) => decoder,
                none => none.insert(Decoder::new(head).ok()?),
            };
            let record = decoder.record(head).ok()?;
            let (payload, after) = after.split_at_checked(record.payload_len() as usize)?;
            decoder.payload(payload);
            rest = after;
        }
        decoder.filter(|d| d.ended() && rest.is_empty()).map(|_| ())
    };
    assert!(whole(&stream).is_some());
    // Nothing but an end that is there and right makes a stream whole, wherever a bit is wrong.
    for at in (0..stream.len()).step_by(37) {
        let mut damaged = stream.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(whole(&damaged).is_none(), "byte {at}");
        assert!(whole(&stream[..at]).is_none(), "cut at {at}");
    }
}
