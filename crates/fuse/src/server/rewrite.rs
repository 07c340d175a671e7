//! Having a range of a file written anew as it is.
//!
//! A program may ask for a whole file, which takes as long as it takes: so it is done by a thread of
//! its own, and others are answered meanwhile.

use super::{Server, missing};
use crate::RewriteRange;
use crate::server::handles::Handle;
use crate::session::{FileHandle, ReplyIoctl};
use cenote_zpl::{Births, Rewrite};
use rustix::io::Errno;
use std::sync::Arc;
use std::thread;

impl Server {
    pub(super) fn reply_rewrite(
        &self,
        fh: FileHandle,
        range: Result<RewriteRange, Errno>,
        reply: ReplyIoctl,
    ) {
        let asked = range.and_then(|range| Ok((range, self.handle_to_rewrite(fh, &range)?)));
        let (range, handle) = match asked {
            Ok(asked) => asked,
            Err(e) => return reply.error(e),
        };
        let work = move || match rewrite(&handle, &range) {
            Ok(()) => reply.ioctl(0, &[]),
            Err(e) => reply.error(e),
        };
        // If there can be no thread, the reply says so as it is dropped.
        if let Err(e) = thread::Builder::new().name("rewrite".into()).spawn(work) {
            tracing::warn!("thread: {e}");
        }
    }

    fn handle_to_rewrite(
        &self,
        fh: FileHandle,
        range: &RewriteRange,
    ) -> Result<Arc<Handle>, Errno> {
        let handle = self.handle_to_change(fh)?;
        match range {
            _ if !handle.how.writes => Err(Errno::BADF),
            range if range.physical && !handle.node.branch().may_keep_births() => {
                Err(Errno::OPNOTSUPP)
            }
            _ => Ok(handle),
        }
    }
}

fn rewrite(handle: &Handle, range: &RewriteRange) -> Result<(), Errno> {
    let branch = handle.node.branch();
    let newer_than = if range.skip_snapshots { branch.newest_snapshot() } else { 0 };
    let cloned = range.skip_cloned.then(|| branch.cloned()).flatten();
    let what = Rewrite {
        offset: range.offset,
        length: range.length,
        newer_than,
        spare: cloned.as_deref(),
        births: if range.physical { Births::Kept } else { Births::New },
    };
    let done = handle.fs.rewrite(handle.object, what, || matches!(handle.is_gone(), Ok(false)));
    match done {
        Ok(_) if handle.is_gone().unwrap_or(true) => Err(Errno::IO),
        Ok(_) => Ok(()),
        Err(e) => {
            tracing::debug!(object = handle.object, "rewrite: {e}");
            Err(missing(&e))
        }
    }
}
