//! Send streams, packages of them, and the tokens that resume them.

use cenote_format::stream::package::Package;
use cenote_format::stream::token::Token;
use cenote_format::stream::{Decoder, Encoder, RECORD_SIZE, Record};
use std::hint::black_box;

/// Where the checksum of a record is.
const CHECKSUM: std::ops::Range<usize> = 280..RECORD_SIZE;
/// Streams that seeds are made of, the shortest of each kind.
const SEEDS: [&str; 6] =
    ["quirk", "quirk-e", "disk-inc-s1-s2-c", "tip-e-s1", "leaf-p-s1", "inc-s2-s3"];
/// Bytes of a seed.
const LENGTH: usize = 16 << 10;

/// The text of a token, or a stream. Checksums of records are taken away, as records of old senders have no checksums:
/// else nothing that was changed would be looked at.
pub(crate) fn stream(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(token) = Token::decode(text)
    {
        let again = token.encode().and_then(|text| Token::decode(&text));
        assert_eq!(again, Ok(token));
    }
    let Some(first) = data.first_chunk::<RECORD_SIZE>() else { return };
    let Ok(mut decoder) = Decoder::new(first) else { return };
    let mut rest = data;
    while let Some((head, behind)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let mut head = *head;
        if let Some(sum) = head.get_mut(CHECKSUM).filter(|_| rest.len() < data.len()) {
            sum.fill(0);
        }
        let Ok(record) = decoder.record(&head) else { return };
        black_box(record.name());
        let len = usize::try_from(record.payload_len()).unwrap_or(usize::MAX);
        let Some((payload, behind)) = behind.split_at_checked(len) else { return };
        if let Record::Begin(begin) = &record {
            black_box(Package::decode(payload)).ok();
            assert!(Encoder::new(begin.to_guid).record(&record).is_ok());
        }
        decoder.payload(payload);
        rest = behind;
    }
}

/// Beginnings of streams that OpenZFS made, and a token.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let streams = cenote_testpools::streams();
    let begin = |name: &&str| streams.get(*name).and_then(|s| s.get(..LENGTH.min(s.len())));
    let mut seeds: Vec<Vec<u8>> = SEEDS.iter().filter_map(begin).map(<[u8]>::to_vec).collect();
    let token = Token { to_name: "tank/a@b".into(), to_guid: 7, ..Token::default() };
    let raw = cenote_testpools::raw_stream();
    seeds.extend(raw.get(..LENGTH.min(raw.len())).map(<[u8]>::to_vec));
    seeds.extend(token.encode().map(String::into_bytes));
    seeds
}
