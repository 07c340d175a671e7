//! Headers and log blocks of cache devices (`l2arc_dev_hdr_update`, `l2arc_log_blk_commit`).

use super::{EncodeError, Result, embedded, push_words};
use crate::checksum::{Checksum, Fletcher4};
use crate::compress::{Compression, compress};
use crate::l2arc::{
    Entry, HEADER_MAGIC, HEADER_SIZE, Header, LOG_HEAD, LOG_MAGIC, LOG_SIZE, LogPointer,
    MOST_ENTRIES, Props,
};
use crate::{ByteOrder, LABEL_START};

/// The header with the `sector` bytes that it takes, to be written at [`LABEL_START`].
///
/// # Errors
/// The sector is smaller than a header.
pub fn encode_header(header: &Header, sector: u64) -> Result<Vec<u8>> {
    let h = header;
    let mut out = Vec::with_capacity(sector as usize);
    let head = [h.version, h.pool, h.vdev, h.entries, h.evict, h.flags, h.start, h.end];
    push_words(&mut out, &[HEADER_MAGIC]);
    push_words(&mut out, &head);
    h.logs.iter().for_each(|log| push_words(&mut out, &log.words()));
    push_words(&mut out, &[h.log_bytes, h.log_count, h.trim_time, h.trim_state]);
    if sector < HEADER_SIZE as u64 {
        let why = format!("a sector of {sector} bytes");
        return Err(EncodeError::unrepresentable("header of a cache device", why));
    }
    out.resize(sector as usize, 0);
    embedded::seal(Checksum::Label, &mut out, [LABEL_START, 0, 0, 0])?;
    Ok(out)
}

/// A log block that is to be written at byte `place` of a device with sectors of `sector` bytes: its bytes, in whole sectors,
/// and the pointer to it. `previous`: the log block before the last. `payload` and `payload_start` are as in
/// [`LogPointer`].
///
/// # Errors
/// There are more entries than a log block has room for.
pub fn encode_log(
    previous: &LogPointer,
    entries: &[Entry],
    (place, payload_start, payload): (u64, u64, u64),
    sector: u64,
) -> Result<(Vec<u8>, LogPointer)> {
    if entries.len() as u64 > MOST_ENTRIES {
        let why = format!("{} entries", entries.len());
        return Err(EncodeError::unrepresentable("log block of a cache device", why));
    }
    let mut plain = Vec::with_capacity(LOG_SIZE);
    push_words(&mut plain, &[LOG_MAGIC]);
    push_words(&mut plain, &previous.words());
    plain.resize(LOG_HEAD, 0);
    for e in entries {
        let [a, b] = e.dva;
        push_words(&mut plain, &[a, b, e.birth, e.props.0, e.place, e.level, 0, 0]);
    }
    plain.resize(LOG_SIZE, 0);
    // At least a sector has to be saved.
    let packed = compress(Compression::Lz4, 0, &plain, LOG_SIZE - sector as usize);
    let (mut data, how) = match packed {
        Some(packed) => (packed, Compression::Lz4),
        None => (plain, Compression::Off),
    };
    data.resize(data.len().next_multiple_of(sector as usize), 0);
    let mut sum = Fletcher4::new(ByteOrder::Little);
    sum.update(&data);
    let props = Props::default().sized(LOG_SIZE as u64, data.len() as u64).compressed(how as u8);
    let props = props.checked(Checksum::Fletcher4);
    let sum = sum.finish();
    Ok((data, LogPointer { place, payload, payload_start, props, sum }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l2arc::{LogBlock, Ring, State, is_between};
    use proptest::prelude::*;

    fn entry(n: u64) -> Entry {
        let props = Props::default().sized(131_072, 512 * (1 + n % 200)).compressed(15);
        let props = props.metadata(n.is_multiple_of(2)).of(if n.is_multiple_of(3) {
            State::Mfu
        } else {
            State::Mru
        });
        let place = (4 << 20) + 4096 * n;
        Entry {
            dva: [n << 32 | 8, n * 77],
            birth: n,
            props: props.protected(n.is_multiple_of(5)),
            place,
            level: 0,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(count in 0u64..=1022, words in any::<[u64; 10]>(), ashift in 9u32..13) {
            let entries: Vec<Entry> = (0..count).map(|n| entry(n.wrapping_mul(words[9] % 1000))).collect();
            let previous = LogPointer { place: words[0], payload: words[1], ..LogPointer::default() };
            let (data, pointer) = encode_log(&previous, &entries, (words[2], words[3], words[4]), 1 << ashift).unwrap();
            prop_assert_eq!(data.len() as u64, pointer.props.psize());
            prop_assert_eq!(data.len() % (1 << ashift), 0);
            let log = LogBlock::decode(&data, &pointer, count).unwrap();
            prop_assert_eq!(log, LogBlock { previous, entries });
            let header = Header {
                version: 1, pool: words[5], vdev: words[6], entries: count, evict: words[7], flags: 1,
                start: words[8], end: words[9], logs: [pointer, previous], log_bytes: 5, log_count: 6,
                trim_time: 7, trim_state: 8,
            };
            let mut sector = encode_header(&header, 1 << ashift).unwrap();
            prop_assert_eq!(Header::verified(&sector).unwrap(), Some(header));
            sector[100] ^= 1;
            prop_assert_eq!(Header::verified(&sector).unwrap(), None);
        }
    }

    #[test]
    fn a_damaged_log_block_is_refused() {
        let entries: Vec<Entry> = (0..50).map(entry).collect();
        let (mut data, pointer) =
            encode_log(&LogPointer::default(), &entries, (8 << 20, 5 << 20, 9), 512).unwrap();
        assert!(pointer.props.psize() < LOG_SIZE as u64);
        data[77] ^= 4;
        assert!(LogBlock::decode(&data, &pointer, 50).is_err());
        assert!(encode_log(&pointer, &[Entry::default(); 1023], (0, 0, 0), 512).is_err());
        assert!(Header::decode(&data[..500]).is_err());
        assert_eq!(Header::decode(&data), Ok(None));
    }

    #[test]
    fn properties_are_where_the_format_has_them() {
        let all = Props::default().sized(512, 32 << 20).compressed(0x7f).ahead(true).metadata(true);
        let all = all.checked(Checksum::Fletcher4).protected(true).of(State::Mfu);
        assert_eq!(
            all.0,
            0xffff << 16 | 0x7f << 32 | 1 << 39 | 7 << 40 | 2 << 48 | 1 << 56 | 3 << 57
        );
        assert_eq!((all.lsize(), all.psize(), all.state()), (512, 32 << 20, 3));
        assert!(all.is_ahead() && all.is_metadata() && all.is_protected());
        assert_eq!((all.compression(), all.checksum()), (0x7f, 7));
    }

    #[test]
    fn a_ring_holds_what_is_behind_the_hand() {
        let (start, end) = (100 << 20, 200 << 20);
        let log = |begin: u64, place: u64| LogPointer {
            place: place << 20,
            payload_start: begin << 20,
            props: Props::default().sized(LOG_SIZE as u64, 4096),
            ..LogPointer::default()
        };
        let ring = Ring { start, end, hand: 150 << 20, evict: 100 << 20, first: true };
        assert!(ring.holds(&log(100, 120)));
        assert!(!ring.holds(&log(120, 150)) && !ring.holds(&log(99, 120)));
        assert!(!ring.holds(&LogPointer::default()));
        let ring = Ring { hand: 150 << 20, evict: 160 << 20, first: false, ..ring };
        assert!(ring.holds(&log(100, 140)) && ring.holds(&log(161, 170)));
        for (begin, place) in [(140, 155), (155, 158), (159, 170), (140, 170), (190, 200)] {
            assert!(!ring.holds(&log(begin, place)), "{begin} {place}");
        }
        assert!(ring.ends_before(&log(140, 145), &log(180, 190)));
        assert!(!ring.ends_before(&log(120, 130), &log(130, 140)));
        assert!(is_between(9, 3, 1) && is_between(9, 3, 10) && !is_between(9, 3, 5));
    }
}
