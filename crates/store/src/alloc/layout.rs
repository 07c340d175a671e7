//! Which vdevs and classes there are. A layout is never changed: adding to one makes the next (see
//! [`Allocator`](super::Allocator)).
//!
//! Invariants: each group is in one class; each metaslab of a vdev is a member of one of its groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::class::{Class, ClassGroups, embedded_log};
use super::error::AllocError;
use super::group::{Group, VdevInfo};
use super::metaslab::Metaslab;

/// A vdev that is allocated from.
#[derive(Clone)]
pub(super) struct Vdev {
    pub class: Class,
    /// Its metaslabs (`vdev_mg`).
    pub group: Arc<Group>,
    /// The one that is kept for intent logs (`vdev_log_mg`).
    pub embedded: Option<Arc<Group>>,
}

/// See the head of the module.
#[derive(Clone, Default)]
pub(super) struct Layout {
    pub classes: BTreeMap<Class, Arc<ClassGroups>>,
    pub vdevs: BTreeMap<u64, Vdev>,
}

impl Layout {
    /// That of all metaslabs of a vdev but the one that is kept for intent logs.
    pub fn group(&self, vdev: u64) -> Option<&Arc<Group>> {
        self.vdevs.get(&vdev).map(|v| &v.group)
    }

    /// The group of a vdev of which a metaslab is a member (`vdev_get_mg`).
    pub fn group_with(&self, vdev: u64, metaslab: usize) -> Option<&Arc<Group>> {
        let v = self.vdevs.get(&vdev)?;
        v.embedded.iter().chain([&v.group]).find(|group| group.has(metaslab))
    }

    /// All groups, by vdev.
    pub fn all_groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.vdevs.values().flat_map(|v| [Some(&v.group), v.embedded.as_ref()]).flatten()
    }

    /// Memory, last txg of use, and place of each metaslab that is loaded.
    pub fn loaded_metaslabs(&self) -> impl Iterator<Item = (u64, u64, &Group, &Metaslab)> {
        let metaslabs = self.all_groups().flat_map(|group| {
            let group: &Group = group;
            group.members().map(move |metaslab| (group, metaslab))
        });
        metaslabs.filter_map(|(group, metaslab)| {
            let (used, memory) = metaslab.loaded_since()?;
            Some((memory, used, group, metaslab))
        })
    }

    /// This one with one more vdev.
    pub fn with(
        &self,
        class: Class,
        info: &VdevInfo,
        allocators: usize,
    ) -> Result<Layout, AllocError> {
        let bad = || AllocError::BadVdev(info.id);
        let (group, embedded) = Group::of_vdev(info).ok_or_else(bad)?;
        let (group, embedded) = (Arc::new(group), embedded.map(Arc::new));
        let mut new = self.clone();
        let vdev = Vdev { class, group: group.clone(), embedded: embedded.clone() };
        if new.vdevs.insert(info.id, vdev).is_some() {
            return Err(bad());
        }
        new.enter(class, group, allocators);
        if let Some(embedded) = embedded {
            new.enter(Class::EmbeddedLog, embedded, allocators);
        }
        Ok(new)
    }

    /// This one with a vdev that has `count` empty metaslabs more.
    pub fn grown(&self, vdev: u64, count: usize, allocators: usize) -> Result<Layout, AllocError> {
        let bad = AllocError::BadVdev(vdev);
        let mut new = self.clone();
        let Some(v) = new.vdevs.get_mut(&vdev) else { return Err(bad) };
        let all = v.group.metaslabs().len().saturating_add(count);
        let keeps = v.class == Class::Normal && embedded_log(all, []).is_some();
        let embedded = v.group.grow(count, keeps).ok_or(bad)?.map(Arc::new);
        if let Some(embedded) = embedded {
            v.embedded = Some(embedded.clone());
            new.enter(Class::EmbeddedLog, embedded, allocators);
        }
        Ok(new)
    }

    /// This one without a vdev.
    pub fn without(&self, vdev: u64) -> Layout {
        let mut new = self.clone();
        new.vdevs.remove(&vdev);
        for class in new.classes.values_mut() {
            if class.groups.iter().any(|group| group.vdev() == vdev) {
                let mut groups = class.groups.clone();
                groups.retain(|group| group.vdev() != vdev);
                *class = Arc::new(ClassGroups::new(groups, class.rotors.len()));
            }
        }
        new.classes.retain(|_, class| !class.groups.is_empty());
        new
    }

    fn enter(&mut self, class: Class, group: Arc<Group>, allocators: usize) {
        let mut groups = self.classes.get(&class).map_or_else(Vec::new, |c| c.groups.clone());
        groups.push(group);
        self.classes.insert(class, Arc::new(ClassGroups::new(groups, allocators)));
    }
}
