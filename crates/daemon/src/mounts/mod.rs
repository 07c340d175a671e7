//! Mounting the file systems of an imported pool, and taking the mounts away.
//!
//! A file system is mounted where its `mountpoint` property says (below the alternate root). One of a
//! pool that is imported for writing is open for writing while it is mounted. Directories that are
//! missing are made; see [`Directory`] for when they are removed again. Parents are mounted before
//! what lies below them and unmounted after it: mountpoints are sorted with `/` as the least
//! character.
//!
//! What happens at a mountpoint inside another mount of this process depends on its user: root mounts there,
//! for other users the file system becomes a submount of that mount (see [`Submount`](cenote_fuse::Submount)),
//! where no directory need be made.
//!
//! The daemon looks up no path that may lead into its own mounts: an agent does, which is a process of its
//! own (see [`cenote_fuse::agent`]). A command that runs in another mount namespace is the agent itself, so
//! its mounts are made, seen and taken away in its namespace.
//!
//! A file system has one connection to the kernel, which all its mounts share: those in further places, and
//! those that are made while files of a former mount are open still. A connection without a mount that
//! a process still uses *lingers*: its dataset is not mounted, but busy.
//!
//! | room | what |
//! |---|---|
//! | [`table`] | the mounts of a pool, and how they are taken away |
//! | [`one`] | mounting one file system or snapshot |
//! | [`many`] | mounting the file systems of a pool |
//! | `handle` | what keeps a file system mounted: a mount or a submount |
//! | [`how`] | how file systems are mounted, and were before a change |
//! | `hooks` | what a mount asks the pool |
//! | `settings` | what properties and options say about a mount |
//! | [`exchange`] | other contents for what is mounted |
//! | [`moving`] | mounts that follow changes of properties and names |
//! | [`administered`] | what the library of administration asks of mounts |
//! | [`agents`] | the processes beside the daemon |

pub mod administered;
pub mod agents;
pub mod exchange;
mod handle;
mod hooks;
pub mod how;
pub mod many;
pub mod moving;
pub mod one;
mod settings;
pub mod table;

pub use how::How;
pub use many::{mount_each, mount_or_say, mountable};
pub use one::{NotMounted, is_meant, mount_one};
pub use settings::is_option;
pub use table::{Ask, Directory, Listed, Mounts, Seen, StaysMounted};
