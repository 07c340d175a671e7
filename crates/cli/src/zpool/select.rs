//! Which pools a command works on.

use crate::context::Context;
use crate::pools::Imported;
use crate::vdevs::{Item, items};
use cenote_pool::status::NameStyle;
use cenote_vdev::Vdev;
use std::sync::Arc;

/// Longest name of a pool, in bytes: with room for `$ORIGIN@$ORIGIN` behind it.
const MAX_NAME: usize = 256 - 2 - 2 * "$ORIGIN".len() - 1;

/// The named pools, or all, sorted by name; and whether every name is that of a pool.
pub fn select(ctx: &mut Context, names: &[String]) -> (Vec<Arc<Imported>>, bool) {
    if names.is_empty() {
        return (ctx.pools.all(), true);
    }
    let mut found: Vec<Arc<Imported>> = Vec::new();
    let mut good = true;
    for name in names {
        match open(ctx, name) {
            Ok(imported) if found.iter().any(|f| f.guid() == imported.guid()) => {}
            Ok(imported) => found.push(imported),
            Err(message) => {
                ctx.complain(message);
                good = false;
            }
        }
    }
    found.sort_by(|a, b| a.name().cmp(b.name()));
    (found, good)
}

/// A pool by name; the error is the message for the user.
pub fn open(ctx: &Context, name: &str) -> Result<Arc<Imported>, String> {
    let cannot = |why: &str| Err(format!("cannot open '{name}': {why}"));
    match misnamed(name) {
        Some(why) => cannot(&why),
        None => ctx.pools.get(name).map_or_else(|| cannot("no such pool"), Ok),
    }
}

/// The vdev of a pool that the user calls `name`; no spare and no cache device is found.
pub fn find_vdev(imported: &Imported, name: &str) -> Option<Arc<Vdev>> {
    let guid = guid_called(imported, name)?;
    items(imported, &NameStyle::default()).into_iter().find_map(|item| match item {
        Item::Vdev { vdev, .. } => (vdev.guid() == guid).then_some(vdev),
        Item::Aux { .. } | Item::Section(_) => None,
    })
}

/// The guid of what the user calls `name` in a pool: a vdev's name as shown, its path, or the guid
/// itself.
pub fn guid_called(imported: &Imported, name: &str) -> Option<u64> {
    let styles = [
        NameStyle::default(),
        NameStyle { full_path: true, ..NameStyle::default() },
        NameStyle { guid: true, ..NameStyle::default() },
    ];
    styles.iter().flat_map(|style| items(imported, style)).find_map(|item| match item {
        Item::Vdev { name: shown, vdev, .. } => {
            // A device that is not there is shown by its guid.
            let at = vdev.path().is_some_and(|path| path.as_os_str() == name);
            (at || shown == name).then(|| vdev.guid())
        }
        Item::Aux { name: shown, guid, .. } => (shown == name).then_some(guid),
        Item::Section(_) => None,
    })
}

/// [`kind`] of a vdev of the pool in question.
pub const IN_THIS_POOL: &str = "vdev in this pool";

/// What `name` is, seen from `pool`.
pub fn kind(ctx: &Context, pool: &str, name: &str) -> &'static str {
    let has = |imported: &Imported| guid_called(imported, name).is_some();
    if open(ctx, name).is_ok() {
        "pool"
    } else if open(ctx, pool).is_ok_and(|p| has(&p)) {
        IN_THIS_POOL
    } else if ctx.pools.all().iter().any(|p| has(p)) {
        "vdev in another pool"
    } else {
        "unknown"
    }
}

/// Why `name` cannot be the name of a pool.
pub fn misnamed(name: &str) -> Option<String> {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.: ".contains(*c);
    if name.len() > MAX_NAME {
        Some("name is too long".into())
    } else if let Some(c) = name.chars().find(|c| !allowed(c)) {
        Some(format!("invalid character '{c}' in pool name"))
    } else if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        Some("name must begin with a letter".into())
    } else if ["mirror", "raidz", "draid"].contains(&name) {
        Some("name is reserved".into())
    } else {
        None
    }
}

/// Refuses a name that no new pool can have: more is reserved than for pools that are there.
pub fn check_new(name: &str) -> Result<(), String> {
    let reserved = ["mirror", "raidz", "draid", "spare"].iter().any(|r| name.starts_with(r));
    match misnamed(name) {
        Some(why) => Err(why),
        None if reserved || name == "log" => Err("name is reserved".into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(misnamed("tank"), None);
        assert_eq!(misnamed("tank/a").unwrap(), "invalid character '/' in pool name");
        assert_eq!(misnamed("1tank").unwrap(), "name must begin with a letter");
        assert_eq!(misnamed("mirror").unwrap(), "name is reserved");
        assert_eq!(misnamed(&"x".repeat(300)).unwrap(), "name is too long");
    }
}
