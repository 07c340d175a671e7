//! Making the kernel forget what it was told: names, attributes, contents, and what it keeps of files that are gone.
//!
//! What takes names and contents back may have to wait for answers: see [`kernel`](crate::kernel). Other threads tell
//! the kernel ([`notify`](crate::session)), and the thread that made the change waits, if at all, once it holds nothing
//! any more.

use crate::branch::Branch;
use crate::node::{CONTROL, FUSE_ROOT, slot_of};
use crate::session::{Forgetting, INodeNo, Notice, Work};
use crate::tree::Tree;
use crate::{SnapDir, inodes};
use std::sync::Arc;

impl Tree {
    /// Lets go of files without names whose numbers the kernel will not forget any more.
    pub(crate) fn release_orphans(&self, of: impl Fn(u64) -> bool) {
        self.inodes.take_orphans(of).into_iter().for_each(inodes::release);
    }

    /// Shows or hides the control directory, and makes the kernel look again.
    pub(crate) fn set_snapdir(&self, branch: &Arc<Branch>, snapdir: SnapDir) -> Forgetting {
        match branch.set_snapdir(snapdir) {
            true => self.announce([(branch.root().ino(), CONTROL)]),
            false => Forgetting::default(),
        }
    }

    /// Makes the kernel ask for the ACLs of a file system's files when it needs them next.
    pub(crate) fn acls_changed(&self, branch: &Arc<Branch>) -> Forgetting {
        let known = self.inodes.known(|ino| slot_of(ino) == branch.slot);
        let all = known.into_iter().chain([branch.root().ino()]);
        self.forget(all.map(|ino| Notice::Attributes(self.kernels(ino))).collect())
    }

    /// Makes the kernel ask for the attributes and ACLs of a file in use when it needs them next.
    pub(crate) fn attr_changed(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            notifier.attributes(self.kernels(ino));
        }
    }

    /// Does `then` after the kernel has written what was changed in mappings of a file, and has forgotten it: `len`
    /// bytes from `offset` on (0: all that follows).
    pub(crate) fn after_contents(&self, (ino, offset, len): (u64, u64, u64), then: Work) {
        match self.notifier.get() {
            Some(notifier) => notifier.after_contents((self.kernels(ino), offset, len), then),
            None => then(),
        }
    }

    /// Has the kernel write what was changed in mappings of files, those that `of` chooses, before it is
    /// told that they are gone. Waits for that, but not for long: the threads that answer it may be stuck.
    pub(crate) fn write_mapped(&self, of: impl Fn(u64) -> bool) {
        let mapped = self.inodes.mappable(of);
        if !mapped.is_empty() {
            let all = mapped.iter().map(|ino| self.contents(*ino, 0, 0)).collect();
            self.forget(all).wait();
        }
    }

    /// Has the kernel forget what it keeps of files, those that `of` chooses: it asks for their contents when they are read
    /// next. What was changed in mappings is written first. Waits for that as [`Tree::write_mapped`] does.
    pub(crate) fn forget_pages(&self, of: impl Fn(u64) -> bool) {
        let known = self.inodes.known(of);
        if !known.is_empty() {
            let all = known.iter().map(|ino| self.contents(*ino, 0, 0)).collect();
            self.forget(all).wait();
        }
    }

    /// The kernel's own number.
    fn kernels(&self, ino: u64) -> INodeNo {
        INodeNo(if ino == self.root.root().ino() { FUSE_ROOT } else { ino })
    }

    /// What a name in a directory leads to, for the kernel to forget.
    pub(crate) fn name(&self, dir: u64, name: &[u8]) -> Notice {
        Notice::Name { dir: self.kernels(dir), name: name.to_owned() }
    }

    /// `len` bytes of a file's contents (0: all that follows), for the kernel to forget.
    pub(crate) fn contents(&self, ino: u64, offset: u64, len: u64) -> Notice {
        Notice::Contents { ino: self.kernels(ino), offset, len }
    }

    /// Makes the kernel forget all of these, once the mount is served.
    pub(crate) fn forget(&self, all: Vec<Notice>) -> Forgetting {
        let notifier = self.notifier.get().filter(|_| !all.is_empty());
        notifier.map(|notifier| notifier.forget(all)).unwrap_or_default()
    }

    /// Makes the kernel forget entries, directory and name, and the listings of their directories.
    pub(crate) fn announce<'a>(
        &self,
        entries: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Forgetting {
        let of = |(dir, name)| [self.name(dir, name), self.contents(dir, 0, 0)];
        self.forget(entries.into_iter().flat_map(of).collect())
    }
}
