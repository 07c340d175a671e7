//! The daemon that owns imported pools, and the two ends of its socket.
//!
//! Floor 11 of cenote, below the commands: it knows neither their arguments nor what they print. Commands are
//! handed in as a function ([`server::RunCommand`]).
//!
//! ```text
//! user's process                        daemon (one per user)
//!   client ─ link ══════ socket ══════ server ─ RunCommand(tool, args, Context)
//!                                        └ pools ─ mounts
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`context`], [`input`] | what a command runs in: streams, its caller, standard input |
//! | [`pools`], [`mounts`] | imported pools, and where their datasets are mounted |
//! | [`client`], [`server`], [`protocol`], [`socket`], [`link`] | the two ends of the socket, and what is between |
//! | [`peer`] | which user and process is at the other end |
//! | [`cachefile`] | which cache file names a pool, and when it is written |
//! | [`injections`] | faults that administrators inject into imported pools |
//! | [`zed`] | programs of the administrator that run as events come |
//! | [`tunables`] | what tunables start with, and the mount that shows them |

pub mod cachefile;
pub mod client;
pub mod context;
pub mod each;
pub mod injections;
pub mod input;
pub mod link;
pub mod mounts;
pub mod peer;
pub mod pools;
pub mod protocol;
mod recorded;
pub mod server;
pub mod socket;
pub mod tunables;
mod zed;
