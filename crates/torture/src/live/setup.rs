//! The model of what a pool is made of: its vdevs with their disks, spares, cache devices, and its
//! comment.

use super::{Verdict, demand};
use cenote_engine::create::Class;
use cenote_format::nvlist::NvList;
use cenote_pool::Pool;
use cenote_pool::config::{flag, for_each_leaf, path, tops};
use std::path::{Path, PathBuf};

/// What a pool is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Top-level vdevs in the order of their ids, with what each is for and its disks.
    pub tops: Vec<(Option<&'static str>, Vec<PathBuf>)>,
    /// Spares.
    pub spares: Vec<PathBuf>,
    /// Cache devices.
    pub caches: Vec<PathBuf>,
    /// The property `comment`.
    pub comment: String,
}

fn disks(vdev: &NvList) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for_each_leaf(vdev, &mut |leaf| all.extend(path(leaf)));
    all
}

/// What a top-level vdev is for.
fn class(top: &NvList) -> Option<&'static str> {
    let known = [Class::Log, Class::Special, Class::Dedup];
    let bias = if flag(top, "is_log") { Some("log") } else { top.str("alloc_bias") };
    known.into_iter().filter_map(Class::bias).find(|c| Some(*c) == bias)
}

impl Setup {
    /// What a pool says that it is made of.
    pub fn of(pool: &Pool) -> Setup {
        let tops = tops(pool.config());
        Setup {
            tops: tops.iter().map(|top| (class(top), disks(top))).collect(),
            spares: pool.spares().iter().flat_map(disks).collect(),
            caches: pool.caches().iter().flat_map(disks).collect(),
            comment: pool.config().str("comment").unwrap_or_default().to_string(),
        }
    }

    /// Whether a disk has a part in it.
    pub fn has(&self, disk: &Path) -> bool {
        let tops = self.tops.iter().flat_map(|(_, disks)| disks);
        tops.chain(&self.spares).chain(&self.caches).any(|d| d == disk)
    }

    /// Whether the pool is made of this.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, pool: &Pool) -> Verdict {
        let is = Setup::of(pool);
        demand!(is == *self, "the pool is {is:?}, not {self:?}");
        let vdevs = pool.store().vdevs();
        let root = vdevs.root();
        demand!(
            root.children().len() == self.tops.len(),
            "{} top-level vdevs are in use, not {}",
            root.children().len(),
            self.tops.len()
        );
        Ok(())
    }
}
