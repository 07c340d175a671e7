//! What was in a dataset after each change, what of it was committed, and whether a crash left a part of that
//! which it may leave.
//!
//! Changes are numbered: the state before the first one is that of *moment* 0. Names and nodes are kept apart, for
//! a commit of some objects makes all names stable, and the contents and attributes of these objects only. A node
//! has an [`Id`] of its own, which no other one ever gets, unlike the number of its object.
//!
//! What may be there after a crash: the names of one moment, from the last commit on, up to the last change that
//! had begun; and of each node that has a name then the contents and attributes since its own last commit. Changes of
//! several objects need not come in order: each byte and each attribute is that of some moment since. An attribute is whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A node, whatever number its object has.
pub type Id = u64;
/// Paths below the root directory, and what has them.
pub type Names = BTreeMap<Vec<u8>, Id>;

/// What a file, directory, symbolic link or volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What a file or volume holds, or where a symbolic link leads; `None`: a directory.
    pub content: Option<Vec<u8>>,
    /// A symbolic link.
    pub link: bool,
    /// Its permissions.
    pub mode: u32,
    /// The user that it belongs to.
    pub owner: u32,
    /// DOS flags, of those that are changed here.
    pub flags: u64,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What was found after a crash, by path.
pub type Tree = BTreeMap<Vec<u8>, Found>;

/// What was found under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub seen: Seen,
    /// The number of its object: names of one node share it.
    pub ino: u64,
    /// How many names it says that it has; 0: a directory, whose links are not counted here.
    pub links: u64,
}

/// What a commit made stable: everything up to a moment.
struct Stable {
    /// Operations in the journal when it returned.
    at: usize,
    moment: usize,
    /// The nodes whose contents and attributes it was of; `None`: all.
    nodes: Option<Vec<Id>>,
}

/// See the head of the module.
#[derive(Default)]
pub struct History {
    /// Operations in the journal when each change began; the first one is that of moment 1.
    begun: Vec<usize>,
    names: Vec<(usize, Names)>,
    nodes: HashMap<Id, Vec<(usize, Arc<Seen>)>>,
    /// Nodes that were renamed: what they are then is stable before their new name is.
    renamed: Vec<(usize, Id)>,
    stable: Vec<Stable>,
}

/// Those of `versions` that held at some moment from `first` to `last`.
fn between<T>(versions: &[(usize, T)], first: usize, last: usize) -> &[(usize, T)] {
    let from = versions.partition_point(|(moment, _)| *moment <= first).saturating_sub(1);
    let to = versions.partition_point(|(moment, _)| *moment <= last);
    &versions[from.min(to)..to]
}

impl History {
    /// The moment after the last change.
    pub fn now(&self) -> usize {
        self.begun.len()
    }

    /// A change, which began after `begun` operations, left these names and nodes.
    pub fn note(
        &mut self,
        begun: usize,
        names: &Names,
        nodes: &BTreeMap<Id, Seen>,
        renamed: &[Id],
    ) {
        self.begun.push(begun);
        self.set(names, nodes);
        let now = self.now();
        self.renamed.extend(renamed.iter().map(|id| (now, *id)));
    }

    /// What there is at the present moment.
    pub fn set(&mut self, names: &Names, nodes: &BTreeMap<Id, Seen>) {
        let now = self.now();
        if self.names.last().is_none_or(|(_, last)| last != names) {
            self.names.push((now, names.clone()));
        }
        for (id, seen) in nodes {
            let versions = self.nodes.entry(*id).or_default();
            if versions.last().is_none_or(|(_, last)| **last != *seen) {
                versions.push((now, Arc::new(seen.clone())));
            }
        }
    }

    /// A commit returned after `at` operations; `nodes`: what it was of, `None`: everything.
    pub fn committed(&mut self, at: usize, nodes: Option<Vec<Id>>) {
        self.stable.push(Stable { at, moment: self.now(), nodes });
    }

    /// Whether a crash after `at` operations may leave `tree`.
    ///
    /// # Errors
    /// What is wrong with what comes closest.
    pub fn check(&self, tree: &Tree, at: usize) -> Result<(), String> {
        let last = self.begun.partition_point(|begun| *begun <= at);
        let facts = || self.stable.iter().take_while(|stable| stable.at <= at);
        let first = facts().map(|stable| stable.moment).max().unwrap_or(0);
        let all = facts().filter(|stable| stable.nodes.is_none()).map(|stable| stable.moment);
        let all = all.max().unwrap_or(0);
        let mut floors = HashMap::<Id, usize>::new();
        for stable in facts() {
            for id in stable.nodes.iter().flatten() {
                floors.insert(*id, stable.moment);
            }
        }
        let mut whys = Vec::new();
        for (moment, names) in between(&self.names, first, last) {
            let renamed = |id: Id| {
                let its = self.renamed.iter().filter(|(m, of)| m <= moment && *of == id);
                its.map(|(moment, _)| *moment).max().unwrap_or(0)
            };
            let floor = |id: Id| {
                let committed = floors.get(&id).copied().unwrap_or(0);
                committed.max(all).max(renamed(id))
            };
            match self.fits(tree, names, last, &floor) {
                Ok(()) => return Ok(()),
                Err(why) => whys.push(format!("names of moment {moment}: {why}")),
            }
        }
        Err(format!("moments {first} to {last}; {}", whys.join("; ")))
    }

    /// Whether the tree has these names, and each node contents and attributes of the moments from its `floor`
    /// to `last`.
    fn fits(
        &self,
        tree: &Tree,
        names: &Names,
        last: usize,
        floor: &dyn Fn(Id) -> usize,
    ) -> Result<(), String> {
        let show = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let missing: Vec<_> = names.keys().filter(|n| !tree.contains_key(*n)).collect();
        let more: Vec<_> = tree.keys().filter(|n| !names.contains_key(*n)).collect();
        if !missing.is_empty() || !more.is_empty() {
            let all = |names: Vec<&Vec<u8>>| names.into_iter().map(|n| show(n)).collect::<Vec<_>>();
            return Err(format!("{:?} are missing, {:?} too many", all(missing), all(more)));
        }
        let (mut inos, mut ids) = (HashMap::new(), HashMap::new());
        for (name, id) in names {
            let found = &tree[name];
            let links = names.values().filter(|other| *other == id).count() as u64;
            if found.seen.content.is_some() && found.links != links {
                return Err(format!("{} has {} links, not {links}", show(name), found.links));
            }
            if *inos.entry(*id).or_insert(found.ino) != found.ino
                || *ids.entry(found.ino).or_insert(*id) != *id
            {
                return Err(format!("{} is another node", show(name)));
            }
            let versions: Vec<&Seen> = between(&self.nodes[id], floor(*id), last)
                .iter()
                .map(|(_, seen)| &**seen)
                .collect();
            mixed(&found.seen, &versions).map_err(|why| {
                format!("{}: {why} (moments {} to {last})", show(name), floor(*id))
            })?;
        }
        Ok(())
    }
}

/// Whether each byte, attribute and extended attribute is that of one of these versions.
fn mixed(now: &Seen, versions: &[&Seen]) -> Result<(), String> {
    if versions.contains(&now) {
        return Ok(());
    }
    let any = |same: &dyn Fn(&Seen) -> bool| versions.iter().any(|v| same(v));
    match &now.content {
        None if !any(&|v| v.content.is_none()) => return Err("a directory".into()),
        None => {}
        Some(content) => bytes(content, versions)?,
    }
    if !any(&|v| v.mode == now.mode) {
        return Err(format!("mode {:o}", now.mode));
    }
    if !any(&|v| v.owner == now.owner) {
        return Err(format!("owner {}", now.owner));
    }
    if !any(&|v| v.flags == now.flags) {
        return Err(format!("flags {:x}", now.flags));
    }
    if !any(&|v| v.link == now.link) {
        return Err("kind".into());
    }
    let names = versions.iter().flat_map(|v| v.xattrs.keys()).chain(now.xattrs.keys());
    for name in names {
        let value = now.xattrs.get(name);
        if !any(&|v| v.xattrs.get(name) == value) {
            return Err(format!("attribute {name:?} of {:?} bytes", value.map(Vec::len)));
        }
    }
    Ok(())
}

fn bytes(now: &[u8], versions: &[&Seen]) -> Result<(), String> {
    let contents: Vec<&[u8]> = versions.iter().filter_map(|v| v.content.as_deref()).collect();
    let least = contents.iter().map(|c| c.len()).min().unwrap_or(0);
    let most = contents.iter().map(|c| c.len()).max().unwrap_or(0);
    if contents.is_empty() || now.len() < least || now.len() > most {
        return Err(format!("{} bytes, not {least} to {most}", now.len()));
    }
    let known = |(at, byte): (usize, &u8)| {
        contents.iter().any(|content| content.get(at).copied().unwrap_or(0) == *byte)
    };
    match now.iter().enumerate().position(|at| !known(at)) {
        Some(at) => {
            Err(format!("byte {at} of {} is of no version of {}", now.len(), contents.len()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check that says yes to everything would be of no use.
    #[test]
    fn a_history_tells_what_a_crash_may_leave() {
        let seen = |content: &[u8], mode| {
            let (content, link, owner, flags) = (Some(content.to_vec()), false, 1, 0);
            Seen { content, link, mode, owner, flags, xattrs: BTreeMap::new() }
        };
        let names =
            |all: &[(&str, Id)]| all.iter().map(|(n, id)| (n.as_bytes().to_vec(), *id)).collect();
        let found =
            |name: &str, seen: Seen| (name.as_bytes().to_vec(), Found { seen, ino: 5, links: 1 });
        let mut history = History::default();
        history.set(&Names::new(), &BTreeMap::new());
        // Created, committed; then written, chmod, renamed, of which only names are committed.
        history.note(10, &names(&[("a", 1)]), &BTreeMap::from([(1, seen(b"", 6))]), &[]);
        history.committed(20, None);
        history.note(20, &names(&[("a", 1)]), &BTreeMap::from([(1, seen(b"xy", 6))]), &[]);
        history.note(30, &names(&[("a", 1)]), &BTreeMap::from([(1, seen(b"xy", 7))]), &[]);
        history.committed(40, Some(vec![9]));
        history.note(50, &names(&[("b", 1)]), &BTreeMap::from([(1, seen(b"zy", 7))]), &[1]);
        let may =
            |at, tree: &[(Vec<u8>, Found)]| history.check(&tree.iter().cloned().collect(), at);
        assert!(may(10, &[]).is_ok() && may(20, &[]).is_err());
        assert!(may(5, &[found("a", seen(b"", 6))]).is_err());
        assert!(may(45, &[found("a", seen(b"", 6))]).is_ok());
        assert!(may(45, &[found("a", seen(b"x", 7))]).is_ok());
        assert!(may(45, &[found("a", seen(b"z", 7))]).is_err());
        assert!(may(25, &[found("a", seen(b"xy", 7))]).is_err());
        // With its new name it has what it had then.
        assert!(may(60, &[found("b", seen(b"", 6))]).is_err());
        assert!(may(60, &[found("b", seen(b"zy", 7))]).is_ok());
        assert!(may(60, &[found("a", seen(b"xy", 7)), found("b", seen(b"zy", 7))]).is_err());
    }
}
