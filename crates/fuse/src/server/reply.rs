//! Answers: what the kernel may keep of them and for how long, and answers that wait until changes
//! are on disk.

use super::{FOREVER, Server, errno};
use crate::SyncPolicy;
use crate::branch::Branch;
use crate::node::Node;
use crate::session::{
    FileAttr, Found, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen,
    ReplyWrite,
};
use crate::syncer::Syncer;
use cenote_zpl::Attr;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// How long the attributes of a directory may be kept while some of it is not on disk: how much space it takes may
/// change without a request. The kernel asks for them for each name that it looks up there.
const A_MOMENT: Duration = Duration::from_secs(1);

/// A file as the kernel is told about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) found: Found,
    /// The number, if it is one that is counted.
    pub(super) counted: Option<u64>,
}

/// An answer that can be an error.
pub(super) trait Answer: Send + 'static {
    fn fail(self, e: Errno);
    /// The number of the request.
    fn number(&self) -> u64;
}

macro_rules! answers {
    ($($reply:ty),*) => { $(
        impl Answer for $reply {
            fn fail(self, e: Errno) {
                self.error(e);
            }

            fn number(&self) -> u64 {
                <$reply>::number(self)
            }
        }
    )* };
}

answers!(ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite);

impl Server {
    /// How long attributes may be kept.
    pub(super) fn attr_kept(&self, node: &Node, attr: &FileAttr) -> Duration {
        match attr.kind {
            _ if !attr.pending || !self.tree.changes || !node.may_change() => FOREVER,
            FileType::Directory => A_MOMENT,
            _ => Duration::ZERO,
        }
    }

    /// Whether the kernel may keep what the names in a directory lead to. Not if they can be written
    /// in several ways: it cannot know which of them a change is about.
    pub(super) fn keeps_names(&self, dir: &Node) -> bool {
        !dir.folds_names()
    }

    /// What the kernel is told of a node that it is led to by a name in `parent`. It counts as told.
    pub(super) fn entry(&self, parent: &Node, node: &Node, attr: (FileAttr, u64)) -> Entry {
        let entry = self.entry_in(self.keeps_names(parent), node, attr);
        if let Some(ino) = entry.counted {
            self.tree.inodes.learn(ino, entry.found.generation);
            self.told(&entry.found.attr);
        }
        entry
    }

    /// As [`Server::entry`]; the caller counts.
    pub(super) fn entry_in(&self, keeps: bool, node: &Node, attr: (FileAttr, u64)) -> Entry {
        let (attr, generation) = attr;
        // A submount makes the kernel forget the name of the directory that it covers. It cannot make
        // it forget all ways to write that name.
        let keeps = keeps || !self.tree.changes && attr.kind != FileType::Directory;
        let name_kept = if keeps { self.tree.name_kept(FOREVER) } else { Duration::ZERO };
        let attr_kept = self.attr_kept(node, &attr);
        let counted = (self.tree.changes && node.may_change()).then(|| node.ino());
        Entry { found: Found { attr, generation, name_kept, attr_kept }, counted }
    }

    /// What the kernel is told of a new node.
    pub(super) fn new_entry(&self, dir: &Node, node: &Node, attr: Attr) -> Result<Entry, Errno> {
        let attr = self.tree.attr_of(node, attr).map_err(|e| errno(&e))?;
        Ok(self.entry(dir, node, attr))
    }

    /// Remembers what the kernel is told of the mode of anything but a directory.
    pub(super) fn told(&self, attr: &FileAttr) {
        if attr.perm & 0o6000 != 0 && attr.kind != FileType::Directory {
            self.tree.inodes.tell_setid(attr.ino.0);
        }
    }

    /// Answers a change, under `sync=always` when it is on disk.
    pub(super) fn changed<R: Answer>(
        &self,
        branch: &Arc<Branch>,
        reply: R,
        answer: impl FnOnce(R) + Send + 'static,
    ) {
        changed(&self.syncer, branch, reply, answer);
    }

    /// Answers a change; when the change of the object `waits` is on disk if its maker waits for that, unless
    /// `sync=disabled`.
    pub(super) fn changed_for<R: Answer>(
        &self,
        waits: Option<u64>,
        branch: &Arc<Branch>,
        reply: R,
        answer: impl FnOnce(R) + Send + 'static,
    ) {
        if waits.is_some() && branch.sync_policy() != SyncPolicy::Disabled {
            self.when_on_disk(waits, branch, reply, answer);
        } else {
            self.changed(branch, reply, answer);
        }
    }

    /// Answers when everything that was changed so far in `object`, with all names, is on disk; with `None`,
    /// everything.
    pub(super) fn when_on_disk<R: Answer>(
        &self,
        object: Option<u64>,
        branch: &Arc<Branch>,
        reply: R,
        answer: impl FnOnce(R) + Send + 'static,
    ) {
        when_on_disk(&self.syncer, object, branch, reply, answer);
    }
}

/// As [`Server::changed`], for code that has no more of the server than this.
pub(super) fn changed<R: Answer>(
    syncer: &Syncer,
    branch: &Arc<Branch>,
    reply: R,
    answer: impl FnOnce(R) + Send + 'static,
) {
    match branch.sync_policy() {
        SyncPolicy::Always => when_on_disk(syncer, None, branch, reply, answer),
        SyncPolicy::Standard | SyncPolicy::Disabled => answer(reply),
    }
}

fn when_on_disk<R: Answer>(
    syncer: &Syncer,
    object: Option<u64>,
    branch: &Arc<Branch>,
    reply: R,
    answer: impl FnOnce(R) + Send + 'static,
) {
    syncer.wait(reply.number(), branch.sync_hook(), object, move |result| match result {
        Ok(()) => answer(reply),
        Err(e) => reply.fail(errno(e)),
    });
}
