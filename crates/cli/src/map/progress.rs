//! What the user sees while block pointers are visited: a bar on a terminal, a line now and then
//! otherwise.

use crate::context::Context;
use crate::progress::{Bar, Seldom};
use cenote_dsl::human::nicebytes;
use parking_lot::Mutex;

/// Shows how far a traversal is. Threads may share it.
pub struct Progress<'a> {
    shown: Mutex<(&'a mut Context, Seldom)>,
    bar: Option<Bar>,
}

impl<'a> Progress<'a> {
    /// On the user's standard error.
    pub fn new(ctx: &'a mut Context) -> Progress<'a> {
        let bar = Bar::on_terminal(ctx);
        Progress { shown: Mutex::new((ctx, Seldom::begin())), bar }
    }

    /// `done` bytes of blocks are accounted for, out of about `total`.
    pub fn show(&self, done: u64, total: u64) {
        let (ctx, seldom) = &mut *self.shown.lock();
        match &self.bar {
            Some(bar) => bar.set(done, total.max(done), ctx),
            None if seldom.is_due() => {
                let (done, total) = (nicebytes(done), nicebytes(total));
                ctx.complain(format_args!("{done} of {total} of blocks accounted for"));
            }
            None => {}
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            let (ctx, _) = &mut *self.shown.lock();
            bar.finish(ctx);
        }
    }
}
