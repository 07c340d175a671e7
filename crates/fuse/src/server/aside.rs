//! What the threads that answer requests may not do themselves.
//!
//! Making the kernel forget pages waits for reads and writes of them that are under way, and writes
//! those that somebody changed in a mapping. The threads that answer requests must be free to serve
//! these: a thread of its own makes the kernel forget, and answers the requests that wait for that.

use crate::tree::Tree;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// How long the thread waits for something to do before it ends.
const REST: Duration = Duration::from_secs(10);

/// Something that is done once.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// The thread, which is started when there is something to do.
#[derive(Clone, Default)]
pub(super) struct Aside(Arc<Mutex<Option<Sender<Work>>>>);

impl Aside {
    fn lock(&self) -> MutexGuard<'_, Option<Sender<Work>>> {
        self.0.lock()
    }

    /// Has the thread do something. Where there is none to be had it is done here: better than not at all.
    fn give(&self, work: Work) {
        let mut thread = self.lock();
        if thread.is_none() {
            let (queue, all) = channel();
            let aside = self.clone();
            match Builder::new().name("fuse-forget".into()).spawn(move || aside.run(&all)) {
                Ok(_) => *thread = Some(queue),
                Err(e) => tracing::warn!("no thread to make the kernel forget pages: {e}"),
            }
        }
        let left = match &*thread {
            Some(queue) => queue.send(work).err().map(|e| e.0),
            None => Some(work),
        };
        drop(thread);
        left.into_iter().for_each(|work| work());
    }

    fn run(&self, all: &Receiver<Work>) {
        loop {
            if let Ok(work) = all.recv_timeout(REST) {
                work();
                continue;
            }
            let mut thread = self.lock();
            // Nobody gives it anything while the lock is held.
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

    /// To be called with what is to be done after the kernel has written what was changed in mappings
    /// of a file, and has forgotten it: `len` bytes from `offset` on (0: all that follows).
    pub(super) fn after_pages(
        &self,
        tree: &Arc<Tree>,
        (ino, offset, len): (u64, u64, u64),
    ) -> impl FnOnce(Work) + Send + 'static {
        let (aside, tree) = (self.clone(), tree.clone());
        move |then| {
            aside.give(Box::new(move || {
                tree.contents_changed(ino, offset, len);
                then();
            }));
        }
    }
}
