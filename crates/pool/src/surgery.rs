//! What becomes of the config when a device joins a vdev, or leaves one (`vdev_add_parent`, `vdev_remove_parent`).
//!
//! ```text
//! attach B to A      A                 ->  mirror(A, B)
//! replace A by B     raidz(A, X, Y)    ->  raidz(replacing(A, B), X, Y)
//! a spare S for A    mirror(A, X)      ->  mirror(spare(A, S), X)
//! detach A           mirror(A, B)      ->  B
//! remove the log L   root(A, L, B)     ->  root(A, hole, B)
//! split off B        mirror(A, B)      ->  A, and B in another pool
//! ```
//!
//! A vdev that comes between a leaf and its parent takes the leaf's place, and what a top-level vdev says of its space
//! if the leaf was one. A vdev that is left with a single child goes, and the child takes its place again. If it was a
//! top-level vdev the child takes its guid, too: labels of devices that are away would otherwise seem to be of another
//! top-level vdev.
//!
//! Nothing here looks at devices, nor refuses what OpenZFS refuses: the engine does.

use crate::config;
use cenote_format::nvlist::{NvList, NvValue};

/// Pairs that stay with a leaf when something comes between it and the root. All others but the pairs of [`PLACE`] are of the
/// top-level vdev.
const OF_LEAF: [&str; 22] = [
    "path",
    "devid",
    "phys_path",
    "vdev_enc_sysfs_path",
    "fru",
    "whole_disk",
    "not_present",
    "is_spare",
    "unspare",
    "DTL",
    "offline",
    "faulted",
    "degraded",
    "removed",
    "aux_state",
    "resilver_txg",
    "rebuild_txg",
    "orig_guid",
    "com.delphix:vdev_zap_leaf",
    config::DEFERRED,
    "rotational",
    "expansion_time",
];

/// Pairs that every vdev has for itself.
const PLACE: [&str; 6] = ["type", "id", "guid", "create_txg", "top_guid", "children"];

/// The guid of the top-level vdev in each of the vdevs below it, if they have it (`ZPOOL_CONFIG_TOP_GUID`).
const TOP_GUID: &str = "top_guid";

/// What is at the end of the path of a device while another one takes its place at this path.
const OLD: &str = "/old";

/// Where a vdev is below the root: positions among children, from the top.
fn place(vdev: &NvList, guid: u64) -> Option<Vec<usize>> {
    for (i, child) in config::children(vdev).iter().enumerate() {
        if config::number(child, "guid") == guid && config::number(child, "guid") != 0 {
            return Some(vec![i]);
        }
        if let Some(mut below) = place(child, guid) {
            below.insert(0, i);
            return Some(below);
        }
    }
    None
}

fn children_mut(vdev: &mut NvList) -> Option<&mut Vec<NvList>> {
    match vdev.pairs.iter_mut().find(|(name, _)| name == "children") {
        Some((_, NvValue::NvListArray(children))) => Some(children),
        _ => None,
    }
}

fn at<'a>(vdev: &'a mut NvList, place: &[usize]) -> Option<&'a mut NvList> {
    place.iter().try_fold(vdev, |vdev, i| children_mut(vdev)?.get_mut(*i))
}

/// Takes the pairs with these names out of a vdev.
fn take(vdev: &mut NvList, which: impl Fn(&str) -> bool) -> Vec<(String, NvValue)> {
    let (taken, kept) =
        std::mem::take(&mut vdev.pairs).into_iter().partition(|(name, _)| which(name));
    vdev.pairs = kept;
    taken
}

/// The children have the numbers of their positions.
fn renumber(vdev: &mut NvList) {
    for (i, child) in children_mut(vdev).into_iter().flatten().enumerate() {
        child.set("id", NvValue::Uint64(i as u64));
    }
}

/// All vdevs at and below a top-level vdev that say which one that is say it right.
fn tell_top(top: &mut NvList) {
    fn tell(vdev: &mut NvList, guid: u64) {
        if vdev.contains(TOP_GUID) {
            vdev.set(TOP_GUID, NvValue::Uint64(guid));
        }
        children_mut(vdev).into_iter().flatten().for_each(|child| tell(child, guid));
    }
    let guid = config::number(top, "guid");
    tell(top, guid);
}

/// A vdev of this kind over `below`, in its place (`vdev_add_parent`, `vdev_top_transfer`).
fn parent(kind: &str, guid: u64, mut below: NvList, is_top: bool) -> NvList {
    let mut parent = NvList::default();
    parent.set("type", NvValue::String(kind.into()));
    parent.set("id", NvValue::Uint64(config::number(&below, "id")));
    parent.set("guid", NvValue::Uint64(guid));
    if is_top {
        let of_top = |name: &str| !OF_LEAF.contains(&name) && !PLACE.contains(&name);
        parent.pairs.extend(take(&mut below, of_top));
    }
    for name in ["create_txg", TOP_GUID] {
        if let Some(value) = below.get(name) {
            parent.set(name, value.clone());
        }
    }
    parent.set("children", NvValue::NvListArray(vec![below]));
    parent
}

/// Puts the leaf `new` beside the leaf `old`, below a vdev of the type `kind`: the one that is above `old` if it is of
/// this type, or else a new one with the guid `parent_guid`. `new` has its own pairs alone. If both have the same path,
/// that of `old` is marked. Returns the id of the top-level vdev; `None`: there is no `old`.
pub fn attach(
    root: &mut NvList,
    old: u64,
    kind: &str,
    parent_guid: u64,
    mut new: NvList,
) -> Option<u64> {
    let where_old = place(root, old)?;
    let top = *where_old.first()?;
    let leaf = at(root, &where_old)?;
    match (leaf.str("path").map(String::from), new.str("path")) {
        (Some(path), Some(same)) if path == same => {
            leaf.set("path", NvValue::String(format!("{path}{OLD}")));
            leaf.pairs.retain(|(name, _)| name != "devid");
        }
        _ => {}
    }
    for name in ["create_txg", TOP_GUID] {
        if let Some(value) = leaf.get(name) {
            new.set(name, value.clone());
        }
    }
    let above = where_old.split_last()?.1;
    let joins = !above.is_empty() && at(root, above)?.str("type") == Some(kind);
    let parent_place = if joins { above } else { &where_old };
    if !joins {
        let leaf = at(root, &where_old)?;
        let below = std::mem::take(leaf);
        *leaf = parent(kind, parent_guid, below, above.is_empty());
    }
    let parent = at(root, parent_place)?;
    children_mut(parent)?.push(new);
    renumber(parent);
    tell_top(at(root, &[top])?);
    Some(top as u64)
}

/// What a leaf that left has changed.
#[derive(Debug, PartialEq)]
pub struct Detached {
    /// The id of its top-level vdev.
    pub top: u64,
    /// The leaf's own pairs, as they were.
    pub leaf: NvList,
    /// A leaf that has another guid from now on: the one that it had, and the one that it has.
    pub renamed: Option<(u64, u64)>,
    /// The guid, before that, of a spare that is a device like others from now on.
    pub unspared: Option<u64>,
}

/// Takes the leaf with this guid out of the vdev above it, and that one away if it has one child left
/// (`vdev_remove_parent`). `None`: there is no such leaf below a mirror, a replacing or a spare vdev with others.
pub fn detach(root: &mut NvList, guid: u64) -> Option<Detached> {
    let where_leaf = place(root, guid)?;
    let (position, above) = where_leaf.split_last()?;
    let top = *above.first()?;
    let parent = at(root, above)?;
    let kind = parent.str("type").unwrap_or_default().to_string();
    let siblings = children_mut(parent)?;
    let fits = matches!(kind.as_str(), "mirror" | "replacing" | "spare");
    if !fits || siblings.len() < 2 {
        return None;
    }
    let leaf = siblings.remove(*position);
    if let Some(path) = leaf.str("path").filter(|_| kind == "replacing" && *position > 0) {
        let marked = format!("{path}{OLD}");
        let mut others = siblings.iter_mut();
        if let Some(other) = others.find(|other| other.str("path") == Some(&marked)) {
            other.set("path", NvValue::String(path.into()));
        }
    }
    let mut unspared = None;
    if let Some(last) = siblings.last_mut().filter(|_| kind == "spare" && *position == 0)
        && config::flag(last, "is_spare")
        // A distributed spare stays one.
        && last.str("type") != Some("dspare")
    {
        last.pairs.retain(|(name, _)| name != "is_spare");
        last.set("unspare", NvValue::Uint64(1));
        unspared = Some(config::number(last, "guid"));
    }
    let last = if siblings.len() == 1 { siblings.pop() } else { None };
    let mut renamed = None;
    match last {
        None => renumber(parent),
        Some(mut child) => {
            if kind == "spare" {
                child.pairs.retain(|(name, _)| name != "unspare");
            }
            renamed = take_place(parent, child, above.len() == 1);
        }
    }
    tell_top(at(root, &[top])?);
    Some(Detached { top: top as u64, leaf, renamed, unspared })
}

/// `child` takes the place of `parent` (`vdev_remove_parent`). Returns the guid that it had and the one that it has, if
/// that is another one.
fn take_place(parent: &mut NvList, mut child: NvList, is_top: bool) -> Option<(u64, u64)> {
    child.set("id", NvValue::Uint64(config::number(parent, "id")));
    let mut renamed = None;
    if is_top {
        let of_top = take(parent, |name| !PLACE.contains(&name));
        let own = |name: &str| child.contains(name);
        let of_top: Vec<_> = of_top.into_iter().filter(|(name, _)| !own(name)).collect();
        child.pairs.extend(of_top);
        let (had, has) = (config::number(&child, "guid"), config::number(parent, "guid"));
        child.set("guid", NvValue::Uint64(has));
        // A config from before has it by that (`vdev_validate`).
        child.set("orig_guid", NvValue::Uint64(had));
        renamed = Some((had, has));
    }
    *parent = child;
    renamed
}

/// The leaf `side` takes the place of the top-level mirror that it is in, with its own guid: the others stay in another pool
/// (`vdev_split`). `None`: it is in no such mirror.
pub fn keep_side(root: &mut NvList, side: u64) -> Option<()> {
    let where_leaf = place(root, side)?;
    let [top, position] = where_leaf.as_slice() else { return None };
    let mirror = at(root, &[*top]).filter(|mirror| mirror.str("type") == Some("mirror"))?;
    let mut leaf = children_mut(mirror)?.remove(*position);
    leaf.set("id", NvValue::Uint64(config::number(mirror, "id")));
    let of_top = take(mirror, |name| !PLACE.contains(&name));
    let of_top: Vec<_> = of_top.into_iter().filter(|(name, _)| !leaf.contains(name)).collect();
    leaf.pairs.extend(of_top);
    *mirror = leaf;
    tell_top(mirror);
    Some(())
}

/// A hole takes the place of the top-level vdev `id`, so that those behind it keep their numbers
/// (`vdev_remove_make_hole_and_free`). `None`: there is no such vdev.
pub fn make_hole(root: &mut NvList, id: u64) -> Option<()> {
    let top = children_mut(root)?.get_mut(usize::try_from(id).ok()?)?;
    let mut hole = NvList::default();
    hole.set("type", NvValue::String("hole".into()));
    hole.set("id", NvValue::Uint64(id));
    for name in
        ["guid", "whole_disk", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"]
    {
        hole.set(name, NvValue::Uint64(0));
    }
    hole.set("is_hole", NvValue::Uint64(1));
    *top = hole;
    Some(())
}

/// An indirect vdev with this guid takes the place of the top-level vdev `id`, whose config names its mapping
/// (`vdev_remove_replace_with_indirect`). `prev`: the one that was removed before; `u64::MAX` if none was. `None`: there is no
/// such vdev.
pub fn make_indirect(root: &mut NvList, (id, guid): (u64, u64), prev: u64) -> Option<()> {
    let top = children_mut(root)?.get_mut(usize::try_from(id).ok()?)?;
    let kept = [
        "metaslab_shift",
        "ashift",
        "asize",
        "min_alloc",
        "is_log",
        "non_allocating",
        "com.delphix:indirect_object",
        "com.delphix:indirect_births",
        "create_txg",
        "com.delphix:vdev_zap_top",
    ];
    let mut indirect = NvList::default();
    indirect.set("type", NvValue::String("indirect".into()));
    for (name, value) in [("id", id), ("guid", guid), ("whole_disk", 0), ("metaslab_array", 0)] {
        indirect.set(name, NvValue::Uint64(value));
    }
    for name in kept {
        if let Some(value) = top.get(name) {
            indirect.set(name, value.clone());
        }
    }
    if prev != u64::MAX {
        indirect.set("com.delphix:prev_indirect_vdev", NvValue::Uint64(prev));
    }
    *top = indirect;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{children, find, guid_sum, number};

    fn leaf(id: u64, guid: u64) -> NvList {
        let mut leaf = NvList::default();
        leaf.set("type", NvValue::String("file".into()));
        leaf.set("id", NvValue::Uint64(id));
        leaf.set("guid", NvValue::Uint64(guid));
        leaf.set("path", NvValue::String(format!("/{guid}")));
        leaf
    }

    fn with(kind: &str, guid: u64, below: Vec<NvList>) -> NvList {
        let mut vdev = leaf(0, guid);
        vdev.pairs.retain(|(name, _)| name != "path");
        vdev.set("type", NvValue::String(kind.into()));
        vdev.set("children", NvValue::NvListArray(below));
        vdev
    }

    fn top(mut vdev: NvList) -> NvList {
        for (name, value) in [("asize", 900), ("ashift", 12), ("com.delphix:vdev_zap_top", 33)] {
            vdev.set(name, NvValue::Uint64(value));
        }
        vdev.set("create_txg", NvValue::Uint64(4));
        vdev
    }

    fn new(guid: u64) -> NvList {
        let mut new = leaf(0, guid);
        new.pairs.retain(|(name, _)| name != "id");
        new
    }

    fn kinds(root: &NvList) -> String {
        fn show(vdev: &NvList) -> String {
            let below: Vec<String> = children(vdev).iter().map(show).collect();
            let name = match below.is_empty() {
                true => number(vdev, "guid").to_string(),
                false => format!("{}({})", vdev.str("type").unwrap(), below.join(" ")),
            };
            let own = children(vdev).iter().enumerate();
            assert!(own.clone().all(|(i, child)| number(child, "id") == i as u64), "{vdev:?}");
            name
        }
        show(root)
    }

    #[test]
    fn a_disk_becomes_a_mirror_and_a_disk_again() {
        let mut before = leaf(0, 10);
        before.set("com.delphix:vdev_zap_leaf", NvValue::Uint64(34));
        let mut root = with("root", 1, vec![top(before.clone())]);
        assert_eq!(attach(&mut root, 10, "mirror", 99, new(11)), Some(0));
        assert_eq!(kinds(&root), "root(mirror(10 11))");
        let mirror = children(&root)[0].clone();
        assert_eq!((number(&mirror, "asize"), number(&mirror, "create_txg")), (900, 4));
        let below = &children(&mirror)[0];
        assert!(!below.contains("asize") && below.contains("com.delphix:vdev_zap_leaf"));
        assert_eq!((guid_sum(&root), number(&children(&mirror)[1], "create_txg")), (121, 4));
        assert_eq!(attach(&mut root, 11, "mirror", 98, new(12)), Some(0));
        assert_eq!(kinds(&root), "root(mirror(10 11 12))");
        assert_eq!(detach(&mut root, 11).unwrap().renamed, None);
        let gone = detach(&mut root, 12).unwrap();
        assert_eq!((gone.renamed, number(&gone.leaf, "guid")), (Some((10, 99)), 12));
        assert_eq!(kinds(&root), "root(99)");
        let mut after = children(&root)[0].clone();
        assert_eq!(number(&after, "orig_guid"), 10);
        after.pairs.retain(|(name, _)| name != "orig_guid");
        after.set("guid", NvValue::Uint64(10));
        let sorted = |mut list: NvList| {
            list.pairs.sort_by(|a, b| a.0.cmp(&b.0));
            list
        };
        assert_eq!(sorted(after), sorted(top(before)));
        assert_eq!(detach(&mut root, 99), None);
    }

    #[test]
    fn a_child_is_replaced_at_its_path() {
        let raidz = top(with("raidz", 5, vec![leaf(0, 10), leaf(1, 11)]));
        let mut root = with("root", 1, vec![raidz]);
        let mut same = new(12);
        same.set("path", NvValue::String("/11".into()));
        attach(&mut root, 11, "replacing", 99, same).unwrap();
        assert_eq!(kinds(&root), "root(raidz(10 replacing(11 12)))");
        assert_eq!(find(&root, 11).unwrap().str("path"), Some("/11/old"));
        attach(&mut root, 12, "replacing", 98, new(13)).unwrap();
        assert_eq!(kinds(&root), "root(raidz(10 replacing(11 12 13)))");
        detach(&mut root, 13).unwrap();
        let gone = detach(&mut root, 12).unwrap();
        assert_eq!((gone.top, gone.renamed), (0, None));
        assert_eq!(kinds(&root), "root(raidz(10 11))");
        assert_eq!(find(&root, 11).unwrap().str("path"), Some("/11"));
        assert!(!find(&root, 11).unwrap().contains("asize"));
    }

    #[test]
    fn a_hole_keeps_the_numbers_of_the_others() {
        let mut root = with("root", 1, vec![top(leaf(0, 10)), top(leaf(1, 11)), top(leaf(2, 12))]);
        assert_eq!(make_hole(&mut root, 3), None);
        make_hole(&mut root, 1).unwrap();
        let hole = &children(&root)[1];
        assert_eq!(
            (hole.str("type"), number(hole, "id"), number(hole, "asize")),
            (Some("hole"), 1, 0)
        );
        assert_eq!((guid_sum(&root), find(&root, 11)), (23, None));
    }

    #[test]
    fn a_side_becomes_a_vdev_of_another_pool() {
        let log = top(with("mirror", 6, vec![leaf(0, 20), leaf(1, 21)]));
        let mut mirror = top(with("mirror", 5, vec![leaf(0, 10), leaf(1, 11)]));
        mirror.set("id", NvValue::Uint64(1));
        let mut root = with("root", 1, vec![log, mirror]);
        assert_eq!(keep_side(&mut root, 5), None);
        keep_side(&mut root, 11).unwrap();
        assert_eq!(kinds(&root), "root(mirror(20 21) 11)");
        let side = &children(&root)[1];
        assert_eq!((number(side, "asize"), number(side, "create_txg")), (900, 0));
        assert_eq!((side.str("path"), side.contains("orig_guid")), (Some("/11"), false));
        assert_eq!(keep_side(&mut root, 11), None);
    }

    #[test]
    fn a_spare_stays_or_goes() {
        let mirror = top(with("mirror", 5, vec![leaf(0, 10), leaf(1, 11)]));
        let mut root = with("root", 1, vec![mirror]);
        let mut spare = new(12);
        spare.set("is_spare", NvValue::Uint64(1));
        attach(&mut root, 10, "spare", 99, spare).unwrap();
        assert_eq!(kinds(&root), "root(mirror(spare(10 12) 11))");
        let mut back = root.clone();
        assert_eq!(detach(&mut back, 12).unwrap().unspared, None);
        assert_eq!(kinds(&back), "root(mirror(10 11))");
        assert_eq!(detach(&mut root, 10).unwrap().unspared, Some(12));
        assert_eq!(kinds(&root), "root(mirror(12 11))");
        let stays = find(&root, 12).unwrap();
        assert!(!stays.contains("is_spare") && !stays.contains("unspare"));
    }
}
