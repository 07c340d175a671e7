//! The target of cache devices: headers and log blocks.

use cenote_format::ByteOrder;
use cenote_format::checksum::Fletcher4;
use cenote_format::encode::l2arc::{encode_header, encode_log};
use cenote_format::l2arc::{
    Entry, Header, LOG_SIZE, LogBlock, LogPointer, MOST_ENTRIES, Props, State,
};
use std::hint::black_box;

/// `compression, entries / 4, a header or a log block…`; log blocks get the checksum that they need.
pub(crate) fn l2arc(data: &[u8]) {
    let &[how, entries, ref rest @ ..] = data else { return };
    black_box(Header::verified(rest)).ok();
    if let Ok(Some(header)) = Header::decode(rest) {
        let ring = header.ring();
        for log in &header.logs {
            // What the ring holds is within it.
            if ring.holds(log) {
                assert!(log.place >= ring.start && log.place + log.props.psize() <= ring.end);
                assert!(log.props.psize() <= LOG_SIZE as u64);
            }
            black_box(ring.ends_before(&header.logs[1], log));
        }
        let again = encode_header(&header, 512).map(|sector| Header::verified(&sector));
        assert_eq!(again, Ok(Ok(Some(header))));
    }
    let mut sum = Fletcher4::new(ByteOrder::Little);
    sum.update(rest);
    let props = Props::default().compressed(how);
    let pointer = LogPointer { sum: sum.finish(), props, ..LogPointer::default() };
    if let Ok(log) = LogBlock::decode(rest, &pointer, 4 * u64::from(entries)) {
        assert_eq!(log.entries.len() as u64, (4 * u64::from(entries)).min(MOST_ENTRIES));
        for entry in &log.entries {
            let p = entry.props;
            assert!(p.lsize() <= 32 << 20 && p.psize() <= 32 << 20);
            black_box((p.compression(), p.is_ahead(), p.checksum(), p.is_metadata(), p.state()));
        }
        let place = (0, 0, 0);
        let written = encode_log(&log.previous, &log.entries, place, 512);
        let again =
            written.map(|(data, at)| LogBlock::decode(&data, &at, log.entries.len() as u64));
        assert_eq!(again, Ok(Ok(log)));
    }
}

/// Headers and log blocks as they are written.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    [1, 12, 50].into_iter().flat_map(seeds_of).collect()
}

/// Those with four times so many entries.
fn seeds_of(fours: u8) -> Vec<Vec<u8>> {
    let count = 4 * u64::from(fours);
    let entry = |n: u64| {
        let props = Props::default().sized(131_072, 512 * (n + 1)).compressed(15).of(State::Mru);
        Entry { dva: [8, n], birth: n, props, place: (5 << 20) + 4096 * n, level: 0 }
    };
    let entries: Vec<Entry> = (0..count).map(entry).collect();
    let place = (8 << 20, 5 << 20, 77);
    let Ok((log, pointer)) = encode_log(&LogPointer::default(), &entries, place, 512) else {
        return Vec::new();
    };
    let (start, end) = (4_194_816, 1 << 30);
    let header = Header {
        version: 1,
        pool: 5,
        vdev: 6,
        entries: count,
        evict: start,
        flags: 1,
        start,
        end,
        logs: [pointer, LogPointer::default()],
        log_bytes: pointer.props.psize(),
        log_count: 1,
        trim_time: 0,
        trim_state: 0,
    };
    let header = encode_header(&header, 512).unwrap_or_default();
    let how = pointer.props.compression();
    [header, log].map(|bytes| [&[how, fours], &bytes[..]].concat()).to_vec()
}
