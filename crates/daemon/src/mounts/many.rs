//! Mounting the file systems of a pool (`zpool_enable_datasets`), and unmounting those of all pools (`zpool_disable_datasets`).

use super::table::{Mounted, StaysMounted, Way};
use super::{How, NotMounted, mount_one};
use crate::context::Context;
use crate::pools::Imported;
use cenote_dsl::{Dataset, DatasetKind};
use std::path::Path;
use std::sync::Arc;

/// Datasets below one another when everything is walked; OpenZFS allows names of 255 bytes.
const MAX_DEPTH: usize = 128;

/// Makes a path sort behind its parents and before its parents' siblings: `/` sorts first.
fn sort_key(path: &Path) -> Vec<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    path.components().map(|c| c.as_os_str().as_bytes().to_vec()).collect()
}

/// The file systems of a pool (or at and below one of its datasets) that can be mounted, parents'
/// mountpoints first. What cannot be read is said and left out.
pub fn mountable(imported: &Imported, below: &Dataset, ctx: &mut Context) -> Vec<Dataset> {
    let pool = imported.pool();
    let dsl = pool.dsl();
    let mut found = Vec::new();
    let mut todo = vec![(below.clone(), 0)];
    while let Some((d, depth)) = todo.pop() {
        if d.kind != DatasetKind::Filesystem || depth > MAX_DEPTH {
            continue;
        }
        match dsl.children(&d) {
            Ok(children) => todo.extend(children.into_iter().map(|c| (c, depth + 1))),
            Err(e) => ctx.complain(format_args!("cannot list what is in '{}': {e}", d.name)),
        }
        let mountpoint = match dsl.get(&d, "mountpoint") {
            Ok(value) => value.map(|v| v.exact).unwrap_or_default(),
            Err(e) => {
                ctx.complain(format_args!("cannot mount '{}': {e}", d.name));
                continue;
            }
        };
        found.push((sort_key(Path::new(&mountpoint)), d));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    found.into_iter().map(|(_, d)| d).collect()
}

/// Mounts those that are meant to be mounted; says what fails. Returns whether all went well.
pub fn mount_each(imported: &Imported, all: &[Dataset], how: &How, ctx: &mut Context) -> bool {
    let mut good = true;
    for d in all {
        if ctx.cancelled() {
            return false;
        }
        good &= mount_or_say(imported, d, how, ctx);
    }
    good
}

/// Mounts a file system, if it is meant to be mounted; says what fails, and whether it went well.
pub fn mount_or_say(imported: &Imported, d: &Dataset, how: &How, ctx: &mut Context) -> bool {
    match mount_one(imported, d, false, how, ctx) {
        Ok(()) | Err(NotMounted::NotMeant(_)) => true,
        Err(NotMounted::Failed(message)) => {
            ctx.complain(message);
            false
        }
    }
}

/// Unmounts everything of all these pools that is `wanted`, by the names of datasets, and can be unmounted, last
/// mounted first; returns what stays.
pub fn unmount_each(
    pools: &[Arc<Imported>],
    wanted: &dyn Fn(&Imported, &str) -> bool,
    way: Way<'_>,
) -> Vec<StaysMounted> {
    let mut order = Vec::new();
    for imported in pools {
        let of = |m: &Mounted| (m.turn, m.listed.clone(), Arc::clone(&imported.mounts));
        let mut all: Vec<_> = imported.mounts.lock().mounted.iter().map(of).collect();
        all.retain(|(_, listed, _)| wanted(imported, &listed.dataset));
        order.extend(all);
    }
    order.sort_by_key(|(turn, ..)| std::cmp::Reverse(*turn));
    order.iter().filter_map(|(_, listed, mounts)| mounts.take(listed, way).err()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_sort_below_their_parents() {
        let mut paths = ["/foo.bar", "/foo/baz", "/foo/bar/baz", "/", "/foo/bar", "/foo"];
        paths.sort_by_key(|p| sort_key(Path::new(p)));
        assert_eq!(paths, ["/", "/foo", "/foo/bar", "/foo/bar/baz", "/foo/baz", "/foo.bar"]);
    }
}
