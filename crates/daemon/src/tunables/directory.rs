//! Tunables and figures as files, for programs that read and write the files of OpenZFS's module.
//!
//! ```text
//! DIR/parameters/NAME          the value and a newline; writing a number sets it
//! DIR/kstat/zfs/POOL/state     ONLINE, DEGRADED, …, or SUSPENDED
//! DIR/kstat/zfs/POOL/guid      the pool's guid
//! DIR/kstat/zfs/POOL/txgs      what the last transaction groups did; of pools that are written
//! DIR/kstat/zfs/POOL/io        what the devices did
//! DIR/kstat/zfs/POOL/iostats   blocks read past the cache, and blocks written; of pools that are written
//! DIR/kstat/zfs/POOL/reads     nothing: the last reads are not kept
//! DIR/kstat/zfs/POOL/objset-0x…  reads and writes of a mounted dataset
//! DIR/kstat/zfs/arcstats       the caches of all pools; likewise dmu_tx, vdev_cache_stats, zfetchstats,
//!                              zil
//! ```
//!
//! `DIR/parameters` is as `/sys/module/zfs/parameters`, `DIR/kstat/zfs` as `/proc/spl/kstat/zfs`. Names of
//! pools come and go with the pools.
//!
//! The daemon serves the directories and remembers them, and takes them away when it ends.

use crate::context::Context;
use crate::pools::{Imported, PoolTable};
use cenote_command::outcome::{Outcome, fail};
use cenote_engine::figures::kstat_txgs;
use cenote_engine::kstat;
use cenote_engine::tunables;
use cenote_fuse::Force;
use cenote_fuse::pseudo::{Contents, Entry, Mount, Refusal};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Weak};

/// `cenote tunables mount DIR`.
pub fn mount(ctx: &mut Context, dir: &OsStr) -> Outcome {
    let dir = ctx.path(dir);
    let watcher = ctx.pools.watcher();
    let pools = Arc::downgrade(&ctx.pools);
    let mut mounts = ctx.pools.directories.lock();
    // The caller is to see what it mounts.
    let (by, agent) = (ctx.agent(), ctx.pools.agent());
    let namespace = by.namespace();
    if by.canonicalize(&dir).is_ok_and(|dir| mounts.iter().any(|m| m.is_at(&dir, namespace))) {
        return fail(format!("'{}' shows them already", dir.display()));
    }
    match Mount::new("cenote", &dir, Arc::new(Files { pools }), watcher, &*by, agent) {
        Ok(mount) => mounts.push(mount),
        Err(e) => return fail(e.to_string()),
    }
    Ok(0)
}

/// `cenote tunables unmount DIR`.
pub fn unmount(ctx: &mut Context, dir: &OsStr) -> Outcome {
    let dir = ctx.path(dir);
    let mut mounts = ctx.pools.directories.lock();
    let by = ctx.agent();
    let found = by.canonicalize(&dir).ok().and_then(|dir| {
        let at = mounts.iter().position(|m| m.is_at(&dir, by.namespace()))?;
        mounts.get_mut(at).map(|mount| (at, mount.unmount(Force::No, &*by)))
    });
    match found {
        None => fail(format!("no tunables are mounted at '{}'", dir.display())),
        Some((_, Err(e))) => fail(e.to_string()),
        Some((at, Ok(()))) => {
            mounts.remove(at);
            Ok(0)
        }
    }
}

/// What the files are.
struct Files {
    pools: Weak<PoolTable>,
}

impl Files {
    fn pool(&self, name: &str) -> Option<Arc<Imported>> {
        self.pools.upgrade()?.get(name)
    }
}

/// The files about all pools.
const OF_ALL: [&str; 9] = [
    "abdstats",
    "arcstats",
    "dbufstats",
    "dmu_tx",
    "dnodestats",
    "vdev_cache_stats",
    "vdev_mirror_stats",
    "zfetchstats",
    "zil",
];

/// The file about a dataset, by the number of its object set.
fn objset_file(id: u64) -> String {
    format!("objset-0x{id:x}")
}

/// The parts of a path.
fn parts(path: &Path) -> Option<Vec<&str>> {
    path.iter().map(OsStr::to_str).collect()
}

impl Contents for Files {
    fn list(&self, dir: &Path) -> Option<Vec<(String, Entry)>> {
        let all = |names: &[&str], entry| names.iter().map(|n| (n.to_string(), entry)).collect();
        match *parts(dir)?.as_slice() {
            [] => Some(all(&["kstat", "parameters"], Entry::Directory)),
            ["kstat"] => Some(all(&["zfs"], Entry::Directory)),
            ["kstat", "zfs"] => {
                let pools = self.pools.upgrade()?.all();
                let named = |name: &str| pools.iter().any(|pool| pool.name() == name);
                let mut list: Vec<_> =
                    pools.iter().map(|p| (p.name().to_string(), Entry::Directory)).collect();
                let files = OF_ALL.iter().filter(|name| !named(name));
                list.extend(files.map(|name| (name.to_string(), Entry::File)));
                Some(list)
            }
            ["kstat", "zfs", pool] => {
                let imported = self.pool(pool)?;
                let mut files: Vec<_> = all(&["guid", "io", "reads", "state"], Entry::File);
                if imported.engine().is_some() {
                    files.extend::<Vec<_>>(all(&["iostats", "txgs"], Entry::File));
                    files.extend(kstat::ddt_files().map(|name| (name, Entry::File)));
                }
                if imported.pool().store().vdevs().growing_figures().is_some() {
                    files.push(("objects".to_string(), Entry::File));
                }
                let datasets = imported.mounts.figures();
                files.extend(datasets.iter().map(|(id, _)| (objset_file(*id), Entry::File)));
                Some(files)
            }
            ["parameters"] => {
                let setting = |t: &&tunables::Tunable| (t.name.to_string(), Entry::Setting);
                Some(tunables::all().iter().map(setting).collect())
            }
            _ => None,
        }
    }

    fn read(&self, file: &Path) -> Option<String> {
        match *parts(file)?.as_slice() {
            ["parameters", name] => Some(format!("{}\n", tunables::find(name)?.get())),
            ["kstat", "zfs", name] => {
                let pools = self.pools.upgrade()?;
                match name {
                    "arcstats" | "dbufstats" => {
                        let pools: Vec<_> = pools.all().iter().map(|p| p.pool()).collect();
                        Some(match name {
                            "arcstats" => kstat::arcstats(&pools),
                            _ => kstat::dbufstats(&pools),
                        })
                    }
                    "abdstats" => Some(kstat::abdstats()),
                    "dmu_tx" => Some(kstat::dmu_tx()),
                    "dnodestats" => Some(kstat::dnodestats()),
                    "vdev_cache_stats" => Some(kstat::vdev_cache_stats()),
                    "vdev_mirror_stats" => Some(kstat::vdev_mirror_stats()),
                    "zfetchstats" => Some(kstat::zfetchstats()),
                    "zil" => Some(kstat::zil()),
                    _ => None,
                }
            }
            ["kstat", "zfs", pool, name] => {
                let imported = self.pool(pool)?;
                match name {
                    "guid" => Some(format!("{}\n", imported.guid())),
                    "state" => {
                        let health = imported.property(&imported.pool(), "health")?;
                        Some(format!("{}\n", health.exact))
                    }
                    "txgs" => Some(kstat_txgs(imported.engine()?)),
                    "io" => Some(kstat::io(&imported.pool())),
                    "iostats" => Some(kstat::iostats(imported.engine()?)),
                    "reads" => Some(kstat::reads()),
                    "objects" => kstat::objects(&imported.pool()),
                    name if name.starts_with("ddt_stats_") => {
                        kstat::ddt_stats(imported.engine()?, name)
                    }
                    name => {
                        let datasets = imported.mounts.figures();
                        let of = |(id, _): &&(u64, _)| objset_file(*id) == name;
                        datasets.iter().find(of).map(|(_, figures)| kstat::objset(figures))
                    }
                }
            }
            _ => None,
        }
    }

    fn write(&self, file: &Path, text: &str) -> Result<(), Refusal> {
        let parts = parts(file).unwrap_or_default();
        let ["parameters", name] = *parts.as_slice() else { return Err(Refusal::ReadOnly) };
        let tunable = tunables::find(name).ok_or(Refusal::ReadOnly)?;
        let number = tunable.parse(text).map_err(|_| Refusal::Invalid)?;
        tunable.set(number).map_err(|_| Refusal::Invalid)?;
        tracing::info!("{name} is {number}");
        Ok(())
    }
}
