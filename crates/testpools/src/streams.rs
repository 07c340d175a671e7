//! The send streams that OpenZFS made of the sample pool `streams`; streams taken apart and put together.

use super::{decoder, packed_dir};
use cenote_format::stream::{Decoder, Encoder, RECORD_SIZE, Record, package};
use std::collections::BTreeMap;
use std::io::Read;

/// All of them, by name: `full-s1`, `R-s3`, … The manifest of the pool says what each was asked for with.
pub fn streams() -> BTreeMap<String, Vec<u8>> {
    let mut archive =
        tar::Archive::new(decoder(&packed_dir().join("streams.streams.tar.zst")).unwrap());
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let short = name.strip_prefix("streams.").and_then(|n| n.strip_suffix(".zsend"));
        let short = short.unwrap_or_else(|| panic!("{name}")).to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        found.insert(short, bytes);
    }
    found
}

/// The stream of `zfs send -w crypt/rawk@enc` of the sample pool `crypt`, as OpenZFS made it.
pub fn raw_stream() -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = packed_dir().join("crypt.raw-rawk-enc.zsend.zst");
    decoder(&packed).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The records of a stream or a package, with what follows each; without the END of a package.
pub fn records(mut stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let (mut decoder, mut out): (Option<Decoder>, _) = (None, Vec::new());
    while let Some((head, rest)) = stream.split_first_chunk::<RECORD_SIZE>() {
        if decoder.as_ref().is_some_and(Decoder::ended) {
            if package::is_end(head) {
                assert!(rest.is_empty());
                return out;
            }
            decoder = None;
        }
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

/// The streams that have these records, one after the other.
pub fn encoded(records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(0), Vec::new());
    for (record, payload) in records {
        if let Record::Begin(begin) = record {
            encoder = Encoder::new(begin.to_guid);
        }
        out.extend(match record {
            Record::End { .. } => encoder.end().unwrap(),
            record => encoder.record(record).unwrap(),
        });
        encoder.payload(payload);
        out.extend(payload);
    }
    out
}
