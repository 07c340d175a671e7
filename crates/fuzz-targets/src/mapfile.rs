//! The target of maps of ddrescue.

use cenote_vdev::mapfile::{Unread, files, is_map, names, parse};
use std::hint::black_box;

/// Text of a map.
pub(crate) fn mapfile(data: &[u8]) {
    black_box((is_map(data), names(data, b"disk.img"), files(data)));
    let Ok(unread) = parse(data) else { return };
    let areas = unread.areas();
    assert!(areas.iter().all(|area| !area.is_empty()));
    assert!(areas.windows(2).all(|two| matches!(two, [a, b] if a.end < b.start)));
    for area in areas {
        assert_eq!(unread.first_in(area.start, 1), Some(area.start));
        assert_eq!(
            unread.first_in(area.start.saturating_sub(1), 2),
            Some(first(&unread, area.start))
        );
        assert_eq!(unread.first_in(area.end - 1, 1), Some(area.end - 1));
    }
    assert!(unread.bytes_below(1 << 40) <= 1 << 40);
}

/// The first byte not read among the one at `start`, which was not, and the one before.
fn first(unread: &Unread, start: u64) -> u64 {
    let before = start.saturating_sub(1);
    let is_unread = unread.areas().iter().any(|area| area.contains(&before));
    if is_unread { before } else { start }
}

/// Maps as ddrescue writes them.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let heading = "# Mapfile. Created by GNU ddrescue version 1.27\n\
                   # Command line: ddrescue -d -r3 /dev/sdb disk.img disk.map\n\
                   # current_pos  current_status  current_pass\n";
    let bodies = [
        "0x00120000     ?               1\n0x00000000  0x00117000  +\n0x00117000  0x00000200  -\n",
        "0x00000000     +               1\n0x00000000  0x10000000  +\n",
        "0x118200 *\n0x0 0x1000 ?\n0x1000 0x200 /\n0x1200 0x1000 * # a comment\n0x2200 1 +\n",
        "0 - 2\n4096 4096 +\n8192 010000 -\n",
        "0x7FFFFFFFFFFFFFFF F 9\r\n0x0 0x7FFFFFFFFFFFFFFF ?\r\n",
        "",
    ];
    bodies.iter().map(|body| format!("{heading}{body}").into_bytes()).collect()
}
