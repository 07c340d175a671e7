use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn layout(ndata: u64, nparity: u64, nspares: u64, children: u64, ashift: u32) -> Layout {
    Layout::new(Shape::new(ndata, nparity, nspares, children).unwrap(), ashift).unwrap()
}

/// The sums that the format lists tell that each map is the one that OpenZFS has.
#[test]
fn all_maps_are_those_of_the_format() {
    for children in 2..=MAX_CHILDREN {
        let layout = layout(1, 1, 0, children, 12);
        for row in layout.map.chunks(children as usize) {
            let mut row = row.to_vec();
            row.sort_unstable();
            assert!(row.iter().enumerate().all(|(i, child)| i == usize::from(*child)));
        }
    }
}

#[test]
fn shapes_that_cannot_be() {
    for (ndata, nparity, nspares, children) in [
        (0, 1, 0, 3),
        (2, 0, 0, 3),
        (2, 4, 0, 9),
        (2, 1, 0, 2),
        (2, 1, 1, 3),
        (1, 1, 254, 256),
        (1, 1, 101, 200),
    ] {
        assert_eq!(Shape::new(ndata, nparity, nspares, children), None);
    }
    assert_eq!(Shape::new(2, 1, 1, 5).unwrap().ngroups, 4);
    assert_eq!(Shape::new(8, 1, 2, 14).unwrap().ngroups, 4);
    assert_eq!(Shape::new(2, 1, 1, 5).unwrap().name(), "draid1:2d:5c:1s");
}

#[test]
fn sizes_are_those_of_openzfs() {
    let shape = Shape::new(2, 1, 1, 5).unwrap();
    let mib = 1 << 20;
    assert_eq!(shape.asize(128 * mib - 9 * mib / 2), Some((5 * 16 * 4) / 48 * 48 * mib));
    assert_eq!(shape.asize(20 * mib), Some(0));
    assert_eq!(shape.asize(u64::MAX), None);
    assert_eq!(shape.child_asize(shape.asize(128 * mib).unwrap()), 128 * mib);
    assert_eq!(shape.psize_to_asize(512, 12), 3 << 12);
    assert_eq!(shape.psize_to_asize(8193, 12), 6 << 12);
}

#[test]
fn metaslabs_begin_and_end_at_lines() {
    assert_eq!(metaslab(3, 24, 1), Some((3 << 24, 1 << 24)));
    let line = 3 << 12;
    for id in 0..20 {
        let (start, size) = metaslab(id, 24, line).unwrap();
        assert!(start.is_multiple_of(line) && size.is_multiple_of(line));
        assert!(start >= id << 24 && start + size <= (id + 1) << 24);
        assert!(start + size + line > (id + 1) << 24);
    }
    assert_eq!(metaslab(1, 9, 3 << 12), None);
    assert_eq!(metaslab(u64::MAX, 24, 3), None);
}

/// A spare has the places of its slices that no group has, and no other spare.
#[test]
fn spares_have_what_groups_leave() {
    let l = layout(2, 1, 2, 7, 12);
    let slice = l.shape.width() * l.shape.ngroups / l.shape.ndisks() * ROW_HEIGHT;
    for n in 0..700 {
        let mut children: Vec<usize> = (0..5).map(|place| l.child(n, place)).collect();
        for number in 0..2 {
            let (child, left) = l.spare_child(number, n * slice + 4096);
            assert_eq!(left, slice - 4096);
            children.push(child);
        }
        children.sort_unstable();
        assert_eq!(children, [0, 1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn hostile_offsets_do_not_overflow() {
    let l = layout(3, 2, 1, 9, 9);
    for offset in [u64::MAX / l.shape.line(9) * l.shape.line(9), 0, l.shape.group()] {
        let _ = l.stripes(offset, u64::MAX);
        let _ = l.stripes(offset, ROW_HEIGHT);
    }
    assert_eq!(l.stripes(512, 512), None);
    let _ = l.asize(u64::MAX);
}

/// No two bytes of the vdev are at the same place, over more than one slice.
#[test]
fn places_are_used_once() {
    for (ndata, nparity, nspares, children) in
        [(2, 1, 1, 5), (4, 2, 1, 11), (3, 1, 0, 4), (1, 1, 3, 7)]
    {
        let l = layout(ndata, nparity, nspares, children, 16);
        let mut seen: HashMap<(usize, u64), u64> = HashMap::new();
        let line = l.shape.line(16);
        // The first line and the last of each group.
        for group in 0..l.shape.ngroups * 3 {
            for offset in [group * l.shape.group(), (group + 1) * l.shape.group() - line] {
                let stripes = l.stripes(offset, ndata << 16).unwrap();
                assert_eq!(stripes.len(), 1);
                for c in &stripes[0] {
                    assert_eq!((c.len, c.skip), (1 << 16, 0));
                    assert_eq!(seen.insert((c.child, c.offset), offset), None, "{offset:#x}");
                }
            }
        }
        // Rows are full, but for the spares.
        let rows = 3 * l.shape.ngroups * l.shape.width() / l.shape.ndisks();
        assert_eq!(seen.len() as u64, 2 * rows * l.shape.ndisks());
        assert!(seen.keys().all(|(_, at)| at / ROW_HEIGHT < rows));
    }
}

proptest! {
    /// A block has as many sectors as it needs, in whole lines, on different children.
    #[test]
    fn columns_of_a_block(
        ndata in 1u64..9, nparity in 1u64..4, nspares in 0u64..3, more in 0u64..6,
        ashift in 9u32..14, line in 0u64..2_000_000, psize in 1u64..(16 << 20),
    ) {
        let l = layout(ndata, nparity, nspares, ndata + nparity + nspares + more, ashift);
        let offset = line * l.shape.line(ashift);
        let stripes = l.stripes(offset, psize).unwrap();
        prop_assert!(stripes.len() <= 2);
        let sector = 1usize << ashift;
        let (mut data, mut all) = (0, 0);
        for stripe in &stripes {
            prop_assert_eq!(stripe.len() as u64, l.shape.width());
            let mut children: Vec<usize> = stripe.iter().map(|c| c.child).collect();
            children.sort_unstable();
            children.dedup();
            prop_assert_eq!(children.len(), stripe.len());
            let height = stripe[0].len;
            for c in stripe {
                prop_assert_eq!(c.len + c.skip, height);
                prop_assert!(c.skip <= sector);
                prop_assert!(c.offset % ROW_HEIGHT + height as u64 <= ROW_HEIGHT);
            }
            data += stripe[nparity as usize..].iter().map(|c| c.len).sum::<usize>();
            all += height * stripe.len();
        }
        prop_assert_eq!(data, (psize as usize).next_multiple_of(sector));
        prop_assert_eq!(all as u64, l.asize(psize));
    }
}

/// What is on a child of a range is what blocks in it have there, and nothing of a spare's.
#[test]
fn ranges_are_on_children_where_blocks_are() {
    for (ndata, nparity, nspares, children) in
        [(2, 1, 1, 5), (1, 1, 0, 3), (4, 2, 0, 6), (3, 2, 2, 9), (1, 1, 2, 5), (8, 1, 2, 14)]
    {
        // Few lines: of 8 MiB sectors a row has two.
        let layout = layout(ndata, nparity, nspares, children, 23);
        let (line, sector) = (layout.shape.line(23), 1 << 23);
        let lines = 3 * layout.slice().0 / line;
        for (first, end) in [(0, lines), (1, 2), (0, 1), (3, lines / 2), (lines / 3, lines - 1)] {
            let mut found: HashMap<usize, Vec<Range<u64>>> = HashMap::new();
            for at in first..end {
                for column in layout.stripe(at * line, ndata).unwrap() {
                    let place = column.offset..column.offset + sector;
                    let all = found.entry(column.child).or_default();
                    match all.last_mut() {
                        Some(last) if last.end == place.start => last.end = place.end,
                        _ => all.push(place),
                    }
                }
            }
            for child in 0..children as usize {
                let own = found.remove(&child).unwrap_or_default();
                let is = layout.ranges_on(child, first * line..end * line);
                assert_eq!(is, own, "{:?}, child {child}, lines {first}..{end}", layout.shape);
                let last = own.last().map_or(0, |range| range.end);
                assert!(layout.end_on(child, end * line) >= last);
            }
        }
    }
}
