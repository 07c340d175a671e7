//! What the threads that answer requests may not do themselves.
//!
//! Making the kernel forget pages waits for reads and writes of them that are under way, and writes
//! those that somebody changed in a mapping. The threads that answer requests must be free to serve
//! these: a thread of its own makes the kernel forget, and answers who waits for that.

use crate::tree::Tree;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

/// Something that is done once.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// The thread, which is started when there is something to do. It ends when this is dropped.
#[derive(Default)]
pub(super) struct Aside(OnceLock<Option<Sender<Work>>>);

impl Aside {
    fn start() -> Option<Sender<Work>> {
        let (queue, all) = channel::<Work>();
        let run = move || all.into_iter().for_each(|work| work());
        match std::thread::Builder::new().name("fuse-forget".into()).spawn(run) {
            Ok(_) => Some(queue),
            Err(e) => {
                tracing::warn!("no thread to make the kernel forget pages: {e}");
                None
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
        let queue = self.0.get_or_init(Aside::start).clone();
        let tree = tree.clone();
        move |then| {
            let work: Work = Box::new(move || {
                tree.contents_changed(ino, offset, len);
                then();
            });
            let left = match queue {
                Some(queue) => queue.send(work).err().map(|e| e.0),
                None => Some(work),
            };
            // Better here than not at all.
            left.into_iter().for_each(|work| work());
        }
    }
}
