//! Mounts that are written to: a file system over an object set in memory, mounted by FUSE and used
//! through system calls.
//!
//! These tests mount as root; parts that need another user run a shell as one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod attrs;
mod data;
mod direct;
mod exchange;
mod load;
mod mapped;
mod names;
mod places;
mod syncs;
mod tmpfile;
mod waits;
mod world;
