//! `zdb`: the on-disk structures of a pool.

use crate::context::Context;
use std::ffi::OsString;

/// Runs `zdb`; returns the exit code.
pub fn run(_args: &[OsString], ctx: &mut Context) -> i32 {
    ctx.complain("zdb: not supported yet");
    1
}
