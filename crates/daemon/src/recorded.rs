//! What commands put into the history of a pool.

use crate::context::Context;
use crate::pools::Imported;
use cenote_format::nvlist::NvList;
use cenote_pool::history;
use std::time::Duration;

impl Imported {
    /// Puts the command that runs into the pool's history, with the next transaction group. A command
    /// that has done its work does not fail for that, nor wait for it.
    pub fn record(&self, ctx: &Context) {
        let (line, who) = (ctx.line.clone(), u64::from(ctx.caller.user));
        self.record_later(move |now| history::command(&line, who, now));
    }

    /// As [`Imported::record`], for a request that OpenZFS's kernel module would have served.
    pub fn record_request(&self, name: &str, input: NvList, elapsed: Duration, ctx: &Context) {
        let (name, who) = (name.to_string(), u64::from(ctx.caller.user));
        self.record_later(move |now| history::ioctl(&name, input, who, elapsed, now));
    }
}
