//! Tunables of the daemon: what it starts with, and where they are shown as files.
//!
//! | room | what |
//! |---|---|
//! | [`startup`] | what a file and the environment set at start |
//! | [`directory`] | a mount that shows them as `/sys/module/zfs/parameters` does |

pub mod directory;
pub mod mounted;
pub mod startup;
