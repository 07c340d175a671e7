//! The `cenote` command: `zpool`, `zfs` and `zdb` as OpenZFS's users know them, and reading of pools without
//! mounting.
//!
//! Floor 12 of cenote: argument parsing, columns and messages; no engine logic. The daemon that owns imported
//! pools is a crate of its own, [`cenote_daemon`], and so is what whole operations on datasets are, [`cenote_admin`].
//!
//! ```text
//! user's process                        daemon (one per user)
//!   main ─ dispatch ─ client ══socket══ server ─ dispatch ─ command(args, Context)
//!              └ no daemon needed: command(args, Context) right here
//! ```
//!
//! A command is one function of its arguments and a [`Context`](context::Context); the same function runs
//! in the daemon and in the user's process. [`dispatch::place`] says which command runs where.
//!
//! | module | what |
//! |---|---|
//! | [`dispatch`] | tool and command by name; where it runs |
//! | [`access`] | which commands others than the daemon's user may give |
//! | [`commands`] | tables of commands, usage messages |
//! | [`options`] | `getopt` habits, usage errors |
//! | [`interval`], [`table`], [`json`], [`vdevs`] | repeated reports, columns, JSON, the vdev tree |
//! | `colour` | colours on the user's terminal |
//! | [`zpool`], [`zfs`] | the commands, one room per group; `zdb` is a crate of its own |
//! | [`mod@zinject`] | `zinject` |
//! | [`locate`], [`list`], [`copy`] | `cenote ls`, `cat` and `cp` |
//! | [`rewrite`] | `zfs rewrite`, `cenote rewrite` |
//! | [`progress`] | a bar on the user's terminal |
//! | `replay` | intent logs, replayed before what has them is mounted |
//! | [`txgs`] | `cenote txgs`: figures of transaction groups |
//! | [`map`] | `cenote map`: the map of free space |
//! | [`age`] | `cenote age` |
//! | [`daemon`] | `cenote daemon` |
//! | [`tunables`] | `cenote tunables` |
//! | [`manual`] | what commands, options and properties mean |
//! | [`complete`] | what may come next on a command line |
//! | [`generate`] | man pages and shell completions |

pub mod access;
pub mod age;
mod colour;
pub mod commands;
pub mod complete;
pub mod copy;
pub mod daemon;
pub mod dispatch;
pub mod generate;
pub mod interval;
pub mod json;
mod key_fetch;
pub mod keys;
pub mod list;
pub mod locate;
pub mod manual;
pub mod map;
mod new_key;
pub mod options;
pub mod progress;
mod replay;
pub mod rewrite;
pub mod table;
pub mod tunables;
pub mod txgs;
pub mod vdevs;
pub mod zfs;
pub mod zinject;
pub mod zpool;

pub use dispatch::main;

use cenote_daemon::{cachefile, client, context, mounts, pools, server, socket};
