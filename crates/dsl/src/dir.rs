//! DSL directories and names (`dsl_dir_t`).
//!
//! A directory knows its parent's object but not its own name: the name stands in the parent's
//! child map only. Going down, names are looked up; going up from an object (an origin, a clone,
//! an entry of an error log), the parent's child map is searched for the object. A snapshot's
//! name is found in the same way in its head's map of snapshot names.
//!
//! Full names: `pool/a/b`, `pool/a@snapshot`, `pool/a#bookmark`, at most 255 bytes.

use crate::props::LocalProps;
use crate::{Dsl, name_of};
use cenote_dmu::Result;
use cenote_format::dsl::DslDirPhys;
use std::sync::{Arc, OnceLock};

/// Longest full name, in bytes.
pub const MAX_NAME: usize = 255;
/// Deepest nesting of directories that names of [`MAX_NAME`] bytes allow.
const MAX_DEPTH: usize = MAX_NAME / 2 + 1;

/// A full name, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullName<'a> {
    /// A file system or volume.
    Head(&'a str),
    /// `head@snapshot`.
    Snapshot(&'a str, &'a str),
    /// `head#bookmark`.
    Bookmark(&'a str, &'a str),
}

impl<'a> FullName<'a> {
    /// Takes `name` apart; `None` if it cannot be the name of anything.
    pub fn parse(name: &'a str) -> Option<FullName<'a>> {
        if name.len() > MAX_NAME {
            return None;
        }
        let (head, parsed) = match name.find(['@', '#']) {
            None => (name, FullName::Head(name)),
            Some(at) => {
                let (head, short) = (&name[..at], &name[at + 1..]);
                if short.is_empty() || short.contains(['@', '#', '/']) {
                    return None;
                }
                let snapshot = name.as_bytes()[at] == b'@';
                let parsed = if snapshot {
                    FullName::Snapshot(head, short)
                } else {
                    FullName::Bookmark(head, short)
                };
                (head, parsed)
            }
        };
        (!head.split('/').any(str::is_empty)).then_some(parsed)
    }

    /// The file system or volume.
    pub fn head(&self) -> &'a str {
        match *self {
            FullName::Head(h) | FullName::Snapshot(h, _) | FullName::Bookmark(h, _) => h,
        }
    }
}

/// Whether users do not see a dataset of this name: `$MOS`, `$FREE`, `$ORIGIN` and the clones
/// that a receive works in (`%recv`).
pub fn is_hidden(component: &str) -> bool {
    component.contains(['$', '%'])
}

/// A directory with its full name.
pub(crate) struct Dir {
    pub(crate) object: u64,
    pub(crate) name: String,
    pub(crate) phys: Arc<DslDirPhys>,
    /// The directory's own properties, once they have been asked for.
    pub(crate) props: OnceLock<Arc<LocalProps>>,
}

impl Dsl {
    /// The object of the child `name` of a directory.
    pub(crate) fn child_object(&self, dir: &DslDirPhys, name: &str) -> Result<Option<u64>> {
        if dir.children == 0 { Ok(None) } else { self.zap(dir.children)?.u64(name.as_bytes()) }
    }

    /// The directory `object`, with its name (`dsl_dir_hold_obj`).
    pub(crate) fn dir(&self, object: u64) -> Result<Arc<Dir>> {
        let mut below = Vec::new();
        let mut at = object;
        let mut dir = loop {
            if let Some(known) = self.dirs.get(&at) {
                break known;
            }
            let phys = self.read_dir(at)?;
            if at == self.root {
                break self.remember_dir(at, self.pool.clone(), phys);
            }
            if phys.parent == 0 || below.len() >= MAX_DEPTH {
                return Err(self.corrupt(object, "the directory is not below the pool's root"));
            }
            let parent = phys.parent;
            below.push((at, phys));
            at = parent;
        };
        for (child, phys) in below.into_iter().rev() {
            let name = self.child_name(&dir, child)?;
            dir = self.remember_dir(child, format!("{}/{name}", dir.name), phys);
        }
        Ok(dir)
    }

    /// The child `object` of `parent`, known to be called `name`. A child that does not name
    /// `parent` as its parent is an error: following it could lead in circles.
    pub(crate) fn child_dir(&self, parent: &Dir, name: &str, object: u64) -> Result<Arc<Dir>> {
        if let Some(known) = self.dirs.get(&object)
            && known.phys.parent == parent.object
        {
            return Ok(known);
        }
        let phys = self.read_dir(object)?;
        if phys.parent != parent.object {
            return Err(self.corrupt(object, format!("not a child of directory {}", parent.object)));
        }
        let full = format!("{}/{name}", parent.name);
        if full.len() > MAX_NAME {
            return Err(self.corrupt(object, "name too long"));
        }
        Ok(self.remember_dir(object, full, phys))
    }

    fn remember_dir(&self, object: u64, name: String, phys: Arc<DslDirPhys>) -> Arc<Dir> {
        let dir = Arc::new(Dir { object, name, phys, props: OnceLock::new() });
        self.dirs.put(object, dir.clone());
        dir
    }

    /// Searches the child map of `parent` for an object. All names seen are remembered, so that
    /// naming every child costs one pass.
    fn child_name(&self, parent: &Dir, object: u64) -> Result<Arc<str>> {
        if let Some(name) = self.names.get(&(parent.object, object)) {
            return Ok(name);
        }
        let mut found = None;
        for entry in self.zap(parent.phys.children)?.entries()? {
            let Some(child) = entry.u64() else { continue };
            let name: Arc<str> = name_of(&entry).into();
            if child == object {
                found = Some(name.clone());
            }
            self.names.put((parent.object, child), name);
        }
        found.ok_or_else(|| self.corrupt(object, "the parent directory does not list it"))
    }

    /// The directory and all above it, up to the root.
    pub(crate) fn ancestry(&self, object: u64) -> Result<Vec<Arc<Dir>>> {
        let mut line = vec![self.dir(object)?];
        // Every directory that `dir` returns has a chain to the root of bounded length.
        while let Some(last) = line.last()
            && last.object != self.root
        {
            line.push(self.dir(last.phys.parent)?);
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(FullName::parse("a/b"), Some(FullName::Head("a/b")));
        assert_eq!(FullName::parse("a/b@c:d"), Some(FullName::Snapshot("a/b", "c:d")));
        assert_eq!(FullName::parse("a#c"), Some(FullName::Bookmark("a", "c")));
        let long = "a/".repeat(127) + "aa";
        for wrong in
            ["", "/", "a/", "/a", "a//b", "@x", "a@", "a@b@c", "a@b/c", "a#", "a#b@c", &long]
        {
            assert_eq!(FullName::parse(wrong), None, "{wrong:?}");
        }
    }
}
