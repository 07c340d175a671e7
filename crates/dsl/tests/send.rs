//! Streams of the snapshots of a sample pool are, byte for byte, those that OpenZFS made of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_dsl::send::package::{Step, Wanted};
use cenote_dsl::send::{Progress, Resume, SendError, SendOptions};
use cenote_dsl::{Dataset, Dsl};
use cenote_format::stream::{Decoder, RECORD_SIZE, Record, feature, package};
use cenote_manifest_check::import;
use cenote_pool::Pool;
use cenote_testpools::{encoded, records};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// OpenZFS 2.3.9 loses an embedded spill block here (`zfs send -e`).
const WRONG: &str = "streams.quirk-e.zsend";

/// What `zfs send` is asked for.
struct Asked {
    to: String,
    from: Option<String>,
    options: SendOptions,
    /// For a package, but for its snapshots.
    package: Option<Wanted>,
}

fn asked(args: &str, pool: &Pool) -> Asked {
    let words: Vec<&str> = args.split(' ').collect();
    let (snapshot, flags) = words.split_last().unwrap();
    let active = |guid: &str| pool.features().get(guid).is_some_and(|f| f.uses > 0);
    let mut options = SendOptions {
        pool_embeds: active("com.delphix:embedded_data"),
        pool_has_lz4: active("org.illumos:lz4_compress"),
        ..SendOptions::default()
    };
    let (mut from, mut package) = (None, Wanted::default());
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match *flag {
            "-L" => options.large_blocks = true,
            "-e" => options.embedded = true,
            "-c" => options.compressed = true,
            "-R" => package.replicate = true,
            "-p" => package.props = true,
            "-i" | "-I" => {
                package.all_snapshots = *flag == "-I";
                let start = *flags.next().unwrap();
                let (of, _) = snapshot.split_once('@').unwrap();
                from = Some(if start.starts_with('@') {
                    format!("{of}{start}")
                } else {
                    start.into()
                });
            }
            other => panic!("{other}"),
        }
    }
    package.all_snapshots |= package.replicate && from.is_none();
    let packed = package.replicate || package.props || package.all_snapshots;
    let to = snapshot.to_string();
    Asked { to, from, options, package: packed.then_some(package) }
}

/// The bytes of a package (`zfs_send`, or `zfs_send_one` for `-p` alone).
fn package(dsl: &Dsl, asked: &Asked, wanted: &Wanted) -> Vec<u8> {
    let (head, to) = asked.to.split_once('@').unwrap();
    let head = find(dsl, head);
    let from = asked.from.as_ref().and_then(|from| from.split_once('@'));
    let wanted =
        Wanted { to: to.into(), from: from.map(|(_, short)| short.to_string()), ..wanted.clone() };
    let mut said = Vec::new();
    let mut say = |line| said.push(line);
    let listed = wanted.replicate || wanted.props;
    let mut list = listed.then(|| dsl.gather(&head, &wanted, &mut say).unwrap());
    // The maker of the pool set this after the streams were made, to look into the snapshots of the volume.
    for props in
        list.iter_mut().flat_map(|list| &mut list.datasets).filter_map(|d| d.props.as_mut())
    {
        props.pairs.retain(|(name, _)| name != "snapdev");
    }
    let mut stream = package::head(&asked.to, 0, list.as_ref()).unwrap();
    let plan = match wanted.replicate || wanted.all_snapshots {
        true => dsl.plan(&head, list.as_ref(), &wanted, &mut say).unwrap().steps,
        false => vec![Step { to: find(dsl, &asked.to), from: None, from_origin: false }],
    };
    assert_eq!(said, [""; 0]);
    for step in plan {
        dsl.send(&step.to, step.from.as_ref(), asked.options, &mut stream).unwrap();
    }
    stream.extend(package::END);
    stream
}

fn find(dsl: &Dsl, name: &str) -> Dataset {
    dsl.find(name).unwrap().unwrap_or_else(|| panic!("{name}"))
}

fn streams(pool: &Arc<Pool>, manifest: &Value) -> Vec<(String, Vec<u8>, u64, String)> {
    let mut out = Vec::new();
    for entry in manifest["streams"].as_array().unwrap() {
        let file = entry["file"].as_str().unwrap();
        let asked = asked(entry["zfs_send_args"].as_str().unwrap(), pool);
        let from = asked.from.as_ref().map(|name| find(pool.dsl(), name));
        let (to, options) = (find(pool.dsl(), &asked.to), asked.options);
        let mut stream = Vec::new();
        match &asked.package {
            Some(wanted) => stream = package(pool.dsl(), &asked, wanted),
            None => {
                pool.dsl().send(&to, from.as_ref(), options, &mut stream).unwrap();
                let measured = pool.dsl().send_measure(&to, from.as_ref(), options).unwrap();
                assert_eq!(measured, stream.len() as u64, "{file}");
            }
        }
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
    assert_eq!(made.len(), 19);
    let mut wrong = Vec::new();
    for (file, stream, size, sha256) in &made {
        let parts = records(stream);
        // The head of a package has an END without a checksum of its own.
        if !matches!(&parts[0].0, Record::Begin(begin) if begin.header_type == package::HEADER_TYPE)
        {
            assert_eq!(&encoded(&parts), stream, "{file}");
        }
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

/// A writer whose reader goes away after so many bytes.
struct Closes(usize);

impl std::io::Write for Closes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(std::io::ErrorKind::BrokenPipe.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_stream() {
    let pool = import("streams");
    let to = find(pool.dsl(), "streams/origin@s1");
    for after in [0, 312, 5000, 700_000, 3_900_000] {
        let sent = pool.dsl().send(&to, None, SendOptions::default(), &mut Closes(after));
        let Err(SendError::Io(e)) = sent else { panic!("after {after} bytes: {sent:?}") };
        assert_eq!(e.kind(), std::io::ErrorKind::BrokenPipe);
    }
    let (progress, mut out) = (Progress::default(), Vec::new());
    pool.dsl().send_and_tell(&to, None, SendOptions::default(), &mut out, &progress).unwrap();
    let bytes = progress.bytes.into_inner();
    assert_eq!(bytes + RECORD_SIZE as u64, out.len() as u64);
    assert!(progress.blocks.into_inner() > 100);
}

#[test]
fn a_stream_goes_on_where_it_was_interrupted() {
    let pool = import("streams");
    let to = find(pool.dsl(), "streams/origin@s1");
    let send = |options| {
        let mut out = Vec::new();
        pool.dsl().send(&to, None, options, &mut out).map(|()| records(&out))
    };
    // Blocks are whole in it: a stream goes on at the beginning of one.
    let options = SendOptions { large_blocks: true, ..SendOptions::default() };
    let whole = send(options).unwrap();
    let places = whole.iter().enumerate().filter_map(|(i, (record, _))| match record {
        Record::Write(write) => Some((i, write.object, write.offset)),
        _ => None,
    });
    for (i, object, offset) in places.step_by(5) {
        let resume = Some(Resume { object, offset });
        let rest = send(SendOptions { resume, ..options }).unwrap();
        let (Record::Begin(begin), list) = &rest[0] else { panic!("no BEGIN") };
        assert!(begin.features & feature::RESUMING != 0);
        let list = cenote_format::nvlist::NvList::decode(list).unwrap();
        let at = (list.u64("resume_object"), list.u64("resume_offset"));
        assert_eq!(at, (Some(object), Some(offset)));
        // What comes is the object again, then all from the block on.
        assert!(matches!(&rest[1].0, Record::Object(o) if o.object == object));
        let after = |records: &[(Record, Vec<u8>)]| -> Vec<_> {
            let data = |(r, _): &&(Record, Vec<u8>)| {
                matches!(r, Record::Write(_) | Record::Object(_) | Record::Spill(_))
            };
            records.iter().filter(data).cloned().collect()
        };
        assert!(after(&rest[2..]) == after(&whole[i..]), "object {object}, offset {offset}");
    }
    let nowhere = Some(Resume { object: 1 << 40, offset: 0 });
    let refused = send(SendOptions { resume: nowhere, ..options });
    assert!(matches!(refused, Err(SendError::NothingToResume(_))));
}

#[test]
fn the_estimate_is_near() {
    let pool = import("streams");
    let dsl = pool.dsl();
    for (to, from) in [
        ("streams/origin@s1", None),
        ("streams/origin@s2", Some("streams/origin@s1")),
        ("streams/origin@s3", Some("streams/origin#mark")),
        ("streams/origin/disk@s1", None),
    ] {
        let (to, from) = (find(dsl, to), from.map(|from| find(dsl, from)));
        for compressed in [false, true] {
            let options = SendOptions {
                compressed,
                embedded: true,
                large_blocks: true,
                pool_embeds: true,
                pool_has_lz4: true,
                ..SendOptions::default()
            };
            let estimate = dsl.send_estimate(&to, from.as_ref(), options).unwrap();
            let size = dsl.send_measure(&to, from.as_ref(), options).unwrap();
            assert!(
                estimate.abs_diff(size) < size / 4 + (64 << 10),
                "{}: {estimate} {size} {compressed}",
                to.name
            );
        }
    }
}

#[test]
fn the_estimate_of_a_rest_is_what_is_left() {
    let pool = import("streams");
    let dsl = pool.dsl();
    let to = find(dsl, "streams/origin@s1");
    for compressed in [false, true] {
        let whole = SendOptions { compressed, large_blocks: true, ..SendOptions::default() };
        let mut stream = Vec::new();
        dsl.send(&to, None, whole, &mut stream).unwrap();
        let places: Vec<Resume> = records(&stream)
            .iter()
            .filter_map(|(record, _)| match record {
                Record::Write(w) => Some(Resume { object: w.object, offset: w.offset }),
                _ => None,
            })
            .collect();
        let mut before = u64::MAX;
        // The last one too: of the stream there is next to nothing left then.
        for at in places.iter().step_by(7).chain(places.last()) {
            let options = SendOptions { resume: Some(*at), ..whole };
            let (rest, mut out) = (dsl.send_estimate(&to, None, options).unwrap(), Vec::new());
            dsl.send(&to, None, options, &mut out).unwrap();
            assert!(rest == out.len() as u64 && rest <= before, "{at:?}: {rest}");
            before = rest;
        }
    }
}
