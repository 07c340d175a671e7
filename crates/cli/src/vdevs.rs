//! The vdev tree in the order in which `zpool list -v` and `zpool iostat -v` show it: data first,
//! then the sections dedup, special, logs, cache and spare.

use crate::context::Context;
use crate::pools::Imported;
use crate::zpool::vdev_json::class_of;
use cenote_format::LABEL_START;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::metaslab::stats::SpaceStats;
use cenote_pool::status::{NameStyle, VdevLine, vdev_name};
use cenote_pool::{Pool, config};
use cenote_vdev::{Vdev, VdevState};
use std::sync::Arc;

/// A line below the pool's own.
pub enum Item {
    /// A section begins.
    Section(&'static str),
    /// A vdev.
    Vdev {
        /// Name as shown.
        name: String,
        /// Columns by which the name is indented.
        depth: usize,
        /// The vdev.
        vdev: Arc<Vdev>,
        /// Whether it is a top-level vdev.
        top: bool,
        /// The class of its top-level vdev.
        class: String,
    },
    /// A cache device or a spare: not part of the tree.
    Aux {
        /// Name as shown.
        name: String,
        /// Its guid.
        guid: u64,
        /// Its config.
        config: NvList,
        /// Its state.
        state: &'static str,
        /// Its state as that of a vdev.
        vdev_state: Option<VdevState>,
        /// Bytes of the device, if it is there.
        size: Option<u64>,
        /// What can be cached on it, and what is. `None`: it is a spare.
        space: Option<SpaceStats>,
    },
}

impl Item {
    /// Columns by which a vdev is indented; `None` for the head of a section.
    pub fn depth(&self) -> Option<usize> {
        match self {
            Item::Section(_) => None,
            Item::Vdev { depth, .. } => Some(*depth),
            Item::Aux { .. } => Some(2),
        }
    }
}

/// How a command's `-g`, `-L` and `-P`, and the environment, want vdevs named.
pub fn style(letters: &str, ctx: &Context) -> NameStyle {
    let caller = &ctx.caller;
    NameStyle {
        full_path: letters.contains('P') || caller.is_set("ZPOOL_VDEV_NAME_PATH"),
        follow_links: letters.contains('L') || caller.is_set("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
        guid: letters.contains('g') || caller.is_set("ZPOOL_VDEV_NAME_GUID"),
    }
}

/// Name of a vdev; a device that is not there is called by its guid.
fn name_of(vdev: &Vdev, style: &NameStyle) -> String {
    let absent = vdev.is_leaf() && matches!(vdev.state(), VdevState::CantOpen(_));
    let mut described = vdev.config().clone();
    // What the config had of before may have changed.
    config::set(&mut described, "not_present", NvValue::Uint64(absent.into()));
    vdev_name(&described, style)
}

/// The lines below a pool's own. Holes are left out.
pub fn items(imported: &Imported, style: &NameStyle) -> Vec<Item> {
    let pool = imported.pool();
    let vdevs = pool.store().vdevs();
    let root = vdevs.root();
    let mut items = Vec::new();
    let tops = |class: Option<&'static str>| {
        root.children().iter().filter(move |v| section(v) == class && v.kind() != "hole")
    };
    for top in tops(None) {
        add(top, 2, class_of(top.config()), style, &mut items);
    }
    for class in ["dedup", "special", "logs"] {
        let mut members = tops(Some(class)).filter(|v| v.kind() != "indirect").peekable();
        if members.peek().is_some() {
            items.push(Item::Section(class));
        }
        members.for_each(|v| add(v, 2, class_of(v.config()), style, &mut items));
    }
    let tree = pool.tree();
    for (title, lines) in [("cache", &tree.cache), ("spare", &tree.spares)] {
        if !lines.is_empty() {
            items.push(Item::Section(title));
        }
        items.extend(lines.iter().map(|line| aux(&pool, line, title == "cache", style)));
    }
    items
}

fn aux(pool: &Pool, line: &VdevLine, cache: bool, style: &NameStyle) -> Item {
    let size = pool.device_size(&line.config);
    let usable = size
        .filter(|_| cache)
        .and_then(|size| (size / LABEL_SIZE * LABEL_SIZE).checked_sub(LABEL_START + LABEL_END));
    let guid = config::number(&line.config, "guid");
    let alloc = pool.cache_figures(guid).map_or(0, |cache| cache.allocated);
    let space = usable.map(|size| SpaceStats { size, alloc, fragmentation: Some(0) });
    let config = line.config.clone();
    let (state, vdev_state) = (line.state, line.vdev_state);
    Item::Aux { name: line.name(style), guid, config, state, vdev_state, size, space }
}

/// The section that a top-level vdev is shown in; `None` for data.
fn section(top: &Vdev) -> Option<&'static str> {
    match top.alloc_bias() {
        _ if top.is_log() => Some("logs"),
        Some("dedup") => Some("dedup"),
        Some("special") => Some("special"),
        Some("log") => Some("logs"),
        _ => None,
    }
}

fn add(vdev: &Arc<Vdev>, depth: usize, class: &str, style: &NameStyle, items: &mut Vec<Item>) {
    let (name, vdev) = (name_of(vdev, style), Arc::clone(vdev));
    let below = vdev.children().to_vec();
    items.push(Item::Vdev { name, depth, vdev, top: depth == 2, class: class.into() });
    for child in &below {
        add(child, depth.saturating_add(2), class, style, items);
    }
}

/// Width that the names of a pool and its vdevs need.
pub fn names_width(imported: &Imported, items: &[Item]) -> usize {
    let width = |item: &Item| match item {
        Item::Section(_) => 0,
        Item::Vdev { name, depth, .. } => name.chars().count() + depth,
        Item::Aux { name, .. } => name.chars().count() + 2,
    };
    let own = imported.name().chars().count();
    items.iter().map(width).max().unwrap_or(0).max(own)
}
