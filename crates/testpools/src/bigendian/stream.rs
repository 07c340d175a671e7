//! Re-encodes a stream as a big-endian machine would have sent it (`byteswap_record`).
//!
//! Heads of records are turned field by field, what follows them as the type of its object says, and all is summed anew.
//! Bonus buffers of system attributes say their order themselves, and stay.

use super::contents::turn_plain;
use super::read::little;
use super::swap;
use cenote_format::ByteOrder;
use cenote_format::blkptr::EMBEDDED_PAYLOAD;
use cenote_format::checksum::Fletcher4;
use cenote_format::compress::{Compression, LEVEL_DEFAULT, compress, decompress};
use cenote_format::dmu::DmuType;
use cenote_format::stream::{Decoder, RECORD_SIZE, Record, package};

/// Where a record has its checksum.
const CHECKSUM_AT: usize = 280;

/// Fields of each type of record that have an order, behind its type and the length of what follows: place, size, how many.
fn fields(kind: u32) -> &'static [(usize, usize, usize)] {
    match kind {
        0 => &[(8, 8, 3), (32, 4, 2), (40, 8, 2)],
        1 => &[(8, 8, 1), (16, 4, 4), (36, 4, 1), (40, 8, 1), (56, 8, 1)],
        2 => &[(8, 8, 3)],
        3 => &[(8, 8, 1), (16, 4, 1), (24, 8, 3), (56, 8, 6)],
        4 | 10 => &[(8, 8, 4)],
        5 => &[(8, 8, 5)],
        7 => &[(8, 8, 3), (40, 8, 1)],
        8 => &[(8, 8, 4), (48, 4, 2)],
        kind => panic!("a record of type {kind}"),
    }
}

/// The stream, or the package of streams.
pub fn big_endian_stream(mut stream: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(stream.len());
    let (mut decoder, mut sum) = (None::<Decoder>, Fletcher4::new(ByteOrder::Big));
    let mut last = (0, DmuType::NONE);
    while let Some((head, rest)) = stream.split_first_chunk::<RECORD_SIZE>() {
        if decoder.as_ref().is_some_and(Decoder::ended) {
            if package::is_end(head) {
                out.extend(turned_head(head, &mut Fletcher4::new(ByteOrder::Big)));
                assert!(rest.is_empty());
                return out;
            }
            (decoder, sum) = (None, Fletcher4::new(ByteOrder::Big));
        }
        let decoder = decoder.get_or_insert_with(|| Decoder::new(head).unwrap());
        let record = decoder.record(head).unwrap();
        let (payload, rest) = rest.split_at(record.payload_len() as usize);
        decoder.payload(payload);
        if let Record::Object(object) = &record {
            last = (object.object, object.kind);
        }
        let mut head = *head;
        let payload = turned_payload(&record, &mut head, last.1, payload);
        out.extend(turned_head(&head, &mut sum));
        sum.update(&payload);
        out.extend(payload);
        stream = rest;
    }
    assert!(stream.is_empty());
    out
}

fn turned_head(head: &[u8; RECORD_SIZE], sum: &mut Fletcher4) -> [u8; RECORD_SIZE] {
    let mut new = *head;
    let kind = little(head).u32(0).unwrap();
    swap(&mut new[..8], 4);
    for (at, size, count) in fields(kind) {
        swap(&mut new[*at..at + size * count], *size);
    }
    let words = |sum: &Fletcher4| sum.finish().map(u64::to_be_bytes).concat();
    let is_summed = |at: usize| head[at..at + 32].iter().any(|b| *b != 0);
    if kind == 5 && is_summed(8) {
        new[8..40].copy_from_slice(&words(sum));
    }
    sum.update(&new[..CHECKSUM_AT]);
    if is_summed(CHECKSUM_AT) {
        new[CHECKSUM_AT..].copy_from_slice(&words(sum));
    }
    sum.update(&new[CHECKSUM_AT..]);
    new
}

/// What follows a record; an embedded block may have another length then.
fn turned_payload(record: &Record, head: &mut [u8], kind: DmuType, payload: &[u8]) -> Vec<u8> {
    let mut data = payload.to_vec();
    match record {
        Record::Object(object) => turn_plain(object.bonus_kind, &mut data),
        Record::Write(write) if write.compression == 0 => turn_plain(write.kind, &mut data),
        Record::WriteEmbedded(embedded) if !embedded.is_spill() => {
            let (function, mut plain) = (
                Compression::from_u8(embedded.compression).unwrap(),
                vec![0; embedded.length as usize],
            );
            decompress(function, &data[..embedded.psize as usize], &mut plain).unwrap();
            let before = plain.clone();
            turn_plain(kind, &mut plain);
            if plain != before {
                data = compress(function, LEVEL_DEFAULT, &plain, EMBEDDED_PAYLOAD).expect("room");
                head[52..56].copy_from_slice(&(data.len() as u32).to_le_bytes());
                data.resize(data.len().next_multiple_of(8), 0);
                head[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
            }
        }
        _ => {}
    }
    data
}
