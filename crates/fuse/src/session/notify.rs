//! Telling the kernel what it does not know: that something is not as it was told.
//!
//! A notification is written as an answer is, with number 0 and its code in place of an error. The write returns when
//! the kernel has forgotten, for which it may have to wait for answers (see [`kernel`](crate::kernel)). So threads of their
//! own write notifications, which hold nothing: one for names and one for contents of each connection, started when there
//! is something to tell. A thread that has to know that the kernel has forgotten waits for a [`Forgetting`], not longer
//! than [`PATIENCE`]: an answer that waits for a device that is stuck keeps no command.
//!
//! Attributes alone are told at once, by any thread: the kernel waits for nothing then, as long as somebody uses the file.

use super::reply;
use super::request::INodeNo;
use crate::kernel;
use fuse_abi::linux::{fuse_notify_code, fuse_notify_inval_entry_out, fuse_notify_inval_inode_out};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a command waits until the kernel has forgotten.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a thread waits for something to tell before it ends.
const REST: Duration = Duration::from_secs(10);

/// Something that is done once.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// What the kernel is to forget.
#[derive(Debug, Clone)]
pub(crate) enum Notice {
    /// What a name in a directory leads to.
    Name { dir: INodeNo, name: Vec<u8> },
    /// A file's attributes, ACLs, and contents from `offset` on: `len` bytes, 0: to the end.
    Contents { ino: INodeNo, offset: u64, len: u64 },
    /// A file's attributes and ACLs.
    Attributes(INodeNo),
}

/// Tells the kernel to forget. It is no error if the kernel did not know.
#[derive(Clone)]
pub(crate) struct Notifier {
    device: Arc<OwnedFd>,
    names: Lane,
    contents: Lane,
}

impl Notifier {
    pub(super) fn new(device: Arc<OwnedFd>) -> Notifier {
        Notifier { device, names: Lane::default(), contents: Lane::default() }
    }

    /// Makes the kernel forget attributes and ACLs of a file in use, before this returns.
    pub(crate) fn attributes(&self, ino: INodeNo) {
        self.send(&Notice::Attributes(ino));
    }

    /// Has the kernel forget all of these, in this order.
    pub(crate) fn forget(&self, all: Vec<Notice>) -> Forgetting {
        let (done, wait) = channel::<()>();
        let lane = match all.iter().any(|notice| matches!(notice, Notice::Name { .. })) {
            true => &self.names,
            false => &self.contents,
        };
        let own = self.clone();
        lane.give(Box::new(move || {
            all.iter().for_each(|notice| own.send(notice));
            drop(done);
        }));
        Forgetting(Some(wait))
    }

    /// Does `then` after the kernel has written what was changed in mappings of a file, and has forgotten its
    /// contents: `len` bytes from `offset` on (0: all that follows).
    pub(crate) fn after_contents(&self, (ino, offset, len): (INodeNo, u64, u64), then: Work) {
        let own = self.clone();
        self.contents.give(Box::new(move || {
            own.send(&Notice::Contents { ino, offset, len });
            then();
        }));
    }

    fn send(&self, notice: &Notice) {
        let sent = match notice {
            Notice::Name { dir, name } => self.inval_entry(*dir, name),
            Notice::Contents { ino, offset, len } => {
                // What is too large for the kernel's signed numbers is all of the file.
                let range = i64::try_from(*offset).ok().zip(i64::try_from(*len).ok());
                let (offset, len) = range.unwrap_or((0, 0));
                self.inval_inode(*ino, offset, len)
            }
            Notice::Attributes(ino) => self.inval_inode(*ino, -1, 0),
        };
        if let Err(e) = sent {
            tracing::debug!("the kernel did not forget: {e}");
        }
    }

    fn inval_inode(&self, ino: INodeNo, offset: i64, len: i64) -> Result<(), Errno> {
        let out = fuse_notify_inval_inode_out { ino: ino.0, off: offset, len };
        self.write(fuse_notify_code::FUSE_NOTIFY_INVAL_INODE, [out.as_bytes(), &[]])
    }

    fn inval_entry(&self, parent: INodeNo, name: &[u8]) -> Result<(), Errno> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let out = fuse_notify_inval_entry_out { parent: parent.0, namelen, flags: 0 };
        let name = [name, b"\0"].concat();
        self.write(fuse_notify_code::FUSE_NOTIFY_INVAL_ENTRY, [out.as_bytes(), &name])
    }

    fn write(&self, code: fuse_notify_code, parts: [&[u8]; 2]) -> Result<(), Errno> {
        match reply::write(&self.device, (0, code as i32), parts) {
            Err(Errno::NOENT) => Ok(()),
            sent => sent,
        }
    }
}

/// Something that the kernel is forgetting.
#[must_use = "whoever changed it may have to wait"]
#[derive(Debug, Default)]
pub struct Forgetting(Option<Receiver<()>>);

impl Forgetting {
    /// Waits until the kernel has forgotten, but not for long. False: it has not yet, and will once it can.
    pub fn wait(self) -> bool {
        Forgetting::wait_for([self])
    }

    /// As [`Forgetting::wait`], for all of these together.
    pub fn wait_for(all: impl IntoIterator<Item = Forgetting>) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut done = true;
        for wait in all.into_iter().filter_map(|forgetting| forgetting.0) {
            kernel::waits("until it has forgotten");
            let left = until.saturating_duration_since(Instant::now());
            // Nothing is ever sent: the other end is dropped when it is done.
            done &= wait.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
        }
        if !done {
            tracing::warn!("the kernel has not forgotten yet: a request waits for its answer");
        }
        done
    }
}

/// A thread that does one thing after the other, which is started when there is something to do.
#[derive(Clone, Default)]
struct Lane(Arc<Mutex<Option<Sender<Work>>>>);

impl Lane {
    /// Has the thread do something. Where no thread can be had it is done here, if no answer depends on this thread; else
    /// it is dropped, and with it the answer to the request, which fails.
    fn give(&self, work: Work) {
        let mut thread = self.0.lock();
        if thread.is_none() {
            let (queue, all) = channel();
            let own = self.clone();
            match Builder::new().name("fuse-forget".into()).spawn(move || own.run(&all)) {
                Ok(_) => *thread = Some(queue),
                Err(e) => tracing::warn!("no thread to make the kernel forget: {e}"),
            }
        }
        let left = match &*thread {
            Some(queue) => queue.send(work).err().map(|e| e.0),
            None => Some(work),
        };
        drop(thread);
        left.into_iter().filter(|_| !kernel::is_needed()).for_each(|work| work());
    }

    fn run(&self, all: &Receiver<Work>) {
        loop {
            if let Ok(work) = all.recv_timeout(REST) {
                work();
                continue;
            }
            let mut thread = self.0.lock();
            // No thread gives it anything while the lock is held.
            match all.try_recv() {
                Ok(work) => {
                    drop(thread);
                    work();
                }
                Err(_) => {
                    *thread = None;
                    return;
                }
            }
        }
    }
}
