//! Making the kernel forget what it was told: names, attributes, contents, and what it keeps of files that are gone.
//!
//! Invariant: nobody waits for the kernel with the lock of the table of slots. The kernel may be waiting for an answer
//! that needs it.

use crate::branch::Branch;
use crate::session::{INodeNo, Notifier};
use crate::tree::{CONTROL, FUSE_ROOT, Tree, slot_of};
use crate::{SnapDir, inodes};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long what was changed in mappings may take to be written, where somebody does not want to wait.
const MAPPED: Duration = Duration::from_secs(2);

impl Tree {
    /// Lets go of files without names whose numbers the kernel will not forget any more.
    pub(crate) fn release_orphans(&self, of: impl Fn(u64) -> bool) {
        self.inodes.take_orphans(of).into_iter().for_each(inodes::release);
    }

    /// Shows or hides the control directory, and makes the kernel look again.
    pub(crate) fn set_snapdir(&self, branch: &Arc<Branch>, snapdir: SnapDir) {
        if branch.set_snapdir(snapdir) {
            self.announce(branch.root().ino(), CONTROL);
        }
    }

    /// Makes the kernel ask for the ACLs of a file system's files when it needs them next.
    pub(crate) fn acls_changed(&self, branch: &Arc<Branch>) {
        let known = self.inodes.known(|ino| slot_of(ino) == branch.slot);
        known.into_iter().chain([branch.root().ino()]).for_each(|ino| self.attr_changed(ino));
    }

    /// Makes the kernel ask for a file's attributes and ACLs when it needs them next.
    pub(crate) fn attr_changed(&self, ino: u64) {
        self.tell(|notifier| notifier.inval_inode(self.kernels(ino), -1, 0));
    }

    /// Makes the kernel forget `len` bytes of a file's contents.
    pub(crate) fn contents_changed(&self, ino: u64, offset: u64, len: u64) {
        let whole = i64::try_from(offset).ok().zip(i64::try_from(len).ok());
        let (offset, len) = whole.unwrap_or((0, 0));
        self.tell(|notifier| notifier.inval_inode(self.kernels(ino), offset, len));
    }

    /// Has the kernel write what was changed in mappings of files, those that `of` chooses, before it is
    /// told that they are gone. Waits for that, but not for long: those who answer it may be stuck.
    pub(crate) fn write_mapped(self: &Arc<Tree>, of: impl Fn(u64) -> bool) {
        let mapped = self.inodes.mappable(of);
        if mapped.is_empty() {
            return;
        }
        let (tree, (done, wait)) = (self.clone(), channel::<()>());
        let work = move || {
            mapped.iter().for_each(|ino| tree.contents_changed(*ino, 0, 0));
            drop(done);
        };
        match std::thread::Builder::new().name("fuse-forget".into()).spawn(work) {
            Ok(_) => drop(wait.recv_timeout(MAPPED)),
            Err(e) => tracing::warn!("what was changed in mappings is not written: {e}"),
        }
    }

    /// The kernel's own number.
    fn kernels(&self, ino: u64) -> INodeNo {
        INodeNo(if ino == self.root.root().ino() { FUSE_ROOT } else { ino })
    }

    fn tell(&self, what: impl FnOnce(&Notifier) -> Result<(), Errno>) {
        if let Some(notifier) = self.notifier.get()
            && let Err(e) = what(notifier)
        {
            tracing::debug!("the kernel did not forget: {e}");
        }
    }

    /// Makes the kernel forget what a name in a directory leads to.
    pub(crate) fn forget_name(&self, dir: u64, name: &[u8]) {
        self.tell(|notifier| notifier.inval_entry(self.kernels(dir), name));
    }

    /// Makes the kernel forget an entry and the listing of its directory.
    pub(crate) fn announce(&self, dir: u64, name: &[u8]) {
        let dir = self.kernels(dir);
        self.tell(|notifier| {
            notifier.inval_entry(dir, name)?;
            notifier.inval_inode(dir, 0, 0)
        });
    }
}
