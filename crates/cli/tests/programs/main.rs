//! Real programs on a file system that is mounted for writing, and what is left of their work when
//! they or the daemon are killed. OpenZFS's `zdb` looks at every pool at the end.
//!
//! The programs are those that `scripts/setup.sh test` installs. Where one is missing, its test fails
//! in CI and is skipped elsewhere. `make programs` runs all of this much longer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod databases;
mod durable;
mod killed;
mod names;
mod posix;
mod recorder;
mod rig;
mod trees;
mod unnamed;
mod user;
