//! Random changes to the pool itself: disks join it, its comment changes.

use super::super::lab::POOL;
use super::Driver;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
use cenote_pool::props::{self, PropContext, When};
use rand::Rng;
use std::path::PathBuf;

impl Driver {
    /// Changes the pool.
    pub(super) fn change_pool(&mut self) {
        match self.rng.random_range(0..3) {
            0 => self.comment(),
            _ => self.add(),
        }
    }

    fn comment(&mut self) {
        let comment = format!("comment {}", self.rng.random_range(0..100));
        self.set_pool_property("comment", &comment);
        self.model.setup.comment = comment;
    }

    /// `zpool set`.
    pub(super) fn set_pool_property(&mut self, name: &str, value: &str) {
        let context = PropContext {
            when: When::Set,
            version: cenote_pool::version::FEATURES,
            pool: POOL,
            hostid: 1,
            dataset: &|_: &str| None,
        };
        let change = props::parse(name, value, &context).unwrap();
        self.engine.set_properties(vec![change]).unwrap();
    }

    /// `zpool add` of disks that are left, if there are any.
    fn add(&mut self) {
        let all = self.lab.paths();
        let mut left: Vec<PathBuf> = all.filter(|d| !self.model.setup.has(d)).collect();
        let most = left.len().min(3);
        if most == 0 {
            return;
        }
        let disks = left.split_off(left.len() - self.rng.random_range(1..=most));
        let mut layout = Layout::default();
        let setup = &mut self.model.setup;
        match self.rng.random_range(0..10) {
            0 => {
                setup.spares.extend(disks.iter().cloned());
                layout.spares = disks;
            }
            1 => {
                setup.caches.extend(disks.iter().cloned());
                layout.caches = disks;
            }
            kind => {
                let class = match kind {
                    2..5 => Class::Special,
                    5..7 => Class::Log,
                    7 => Class::Dedup,
                    _ => Class::Normal,
                };
                let redundancy = match disks.len() {
                    1 => Redundancy::Single,
                    3 if class != Class::Log && self.rng.random() => Redundancy::RaidZ(1),
                    _ => Redundancy::Mirror,
                };
                setup.tops.push((class.bias(), disks.clone()));
                layout.tops.push(VdevSpec { class, ..VdevSpec::new(redundancy, disks) });
            }
        }
        let prepared = self.lab.prepare_to_add(&self.engine.pool(), &layout).unwrap();
        self.engine.add(prepared).unwrap();
    }
}
