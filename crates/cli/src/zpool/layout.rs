//! The layout of a pool as `zpool create -n` and `zpool add -n` show it.

use cenote_engine::create::Prepared;
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::status::{NameStyle, vdev_name};
use cenote_vdev::draid::Shape;

/// The classes that have sections of their own, in order: `alloc_bias` and title.
const CLASSES: [(&str, &str); 3] = [("dedup", "dedup"), ("special", "special"), ("log", "logs")];

/// The layout of a new pool.
pub fn of_new(pool: &str, prepared: &Prepared, style: &NameStyle) -> String {
    let tops: Vec<&NvList> = config::children(&prepared.root).iter().collect();
    let mut text = section(Some(pool), &of_class(&tops, ""), style);
    for (class, title) in CLASSES {
        text += &section(Some(title), &of_class(&tops, class), style);
    }
    text += &aux("cache", &[&prepared.caches], style);
    text + &aux("spares", &[&prepared.spares], style)
}

/// The layout of a pool that is split off: `tops` are the leaves that it would have.
pub fn of_split(pool: &str, tops: &[NvList], style: &NameStyle) -> String {
    let tops: Vec<&NvList> = tops.iter().collect();
    let mut text = section(Some(pool), &of_class(&tops, ""), style);
    for (class, title) in &CLASSES[..2] {
        text += &section(Some(title), &of_class(&tops, class), &NameStyle::default());
    }
    text
}

/// The layout of a pool to which vdevs are added. `root` is what the pool has.
pub fn of_addition(
    pool: &str,
    (root, caches, spares): (&NvList, &[NvList], &[NvList]),
    prepared: &Prepared,
    style: &NameStyle,
) -> String {
    let old: Vec<&NvList> = config::children(root).iter().collect();
    let is_new = |top: &&NvList| prepared.new_tops.contains(&config::number(top, "id"));
    let new: Vec<&NvList> = config::children(&prepared.root).iter().filter(is_new).collect();
    let mut text = format!("\t{pool}\n");
    for (class, title) in [("", "")].into_iter().chain(CLASSES) {
        let (old, new) = (of_class(&old, class), of_class(&new, class));
        if class.is_empty() || !(old.is_empty() && new.is_empty()) {
            if !class.is_empty() {
                text += &format!("\t{title}\n");
            }
            let name = if class.is_empty() { vdev_name } else { new_name };
            old.iter().for_each(|top| lines(&name(top, style), top, 2, style, &mut text));
            text += &section(None, &new, style);
        }
    }
    text += &aux("cache", &[caches, &prepared.caches], style);
    text + &aux("spares", &[spares, &prepared.spares], style)
}

/// The top-level vdevs of a class; `""` is data.
fn of_class<'a>(tops: &[&'a NvList], class: &str) -> Vec<&'a NvList> {
    let class_of = |top: &NvList| match config::flag(top, "is_log") {
        true => "log".to_string(),
        false => top.str("alloc_bias").unwrap_or_default().to_string(),
    };
    let shown = |top: &&&NvList| top.str("type") != Some("hole") && class_of(top) == class;
    tops.iter().filter(shown).copied().collect()
}

/// Vdevs below a title; nothing without vdevs, unless it is the pool.
fn section(title: Option<&str>, tops: &[&NvList], style: &NameStyle) -> String {
    let mut text = String::new();
    for top in tops {
        if let (Some(title), true) = (title, text.is_empty()) {
            text = format!("\t{title}\n");
        }
        lines(&new_name(top, style), top, 2, style, &mut text);
    }
    text
}

/// A vdev that has no number yet, or is shown without it, as OpenZFS shows vdevs of classes.
fn new_name(top: &NvList, style: &NameStyle) -> String {
    match (top.str("type"), style.guid) {
        (Some("raidz"), false) => format!("raidz{}", config::number(top, "nparity")),
        (Some("mirror"), false) => "mirror".into(),
        (Some("draid"), false) => {
            Shape::of(top).map_or_else(|_| vdev_name(top, style), |shape| shape.name())
        }
        _ => vdev_name(top, style),
    }
}

fn lines(name: &str, vdev: &NvList, indent: usize, style: &NameStyle, text: &mut String) {
    *text += &format!("\t{:indent$}{name}\n", "");
    for child in config::children(vdev) {
        lines(&vdev_name(child, style), child, indent.saturating_add(2), style, text);
    }
}

fn aux(title: &str, lists: &[&[NvList]], style: &NameStyle) -> String {
    let mut text = String::new();
    for device in lists.iter().flat_map(|l| l.iter()) {
        if text.is_empty() {
            text = format!("\t{title}\n");
        }
        text += &format!("\t  {}\n", vdev_name(device, style));
    }
    text
}
