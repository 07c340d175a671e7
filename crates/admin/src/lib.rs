//! The library of administration (OpenZFS's libzfs). It knows how a whole operation on datasets is made of single changes
//! of the engine.
//!
//! To destroy a file system with its snapshots is to find what depends on it, to put that in order, to unmount it,
//! and to make one change after the other. The engine makes the changes
//! ([`Changes`](cenote_engine::change::Changes)); this crate knows the rest.
//!
//! Floor 9 of cenote: commands, and programs that embed the engine, stand above it, and the engine with its file systems
//! below. It prints nothing, and knows neither FUSE nor the daemon. A program that uses it implements [`Host`]. The library
//! tells the program what happens ([`Event`]), and asks it for what only the program can do: [`Mounts`] and [`Exclusion`].
//!
//! ```text
//! command, daemon, cenote ── Session ──► this crate ──► engine, zpl
//!            ▲                               │
//!            └────── Host: events, mounts ───┘
//! ```
//!
//! | module | what | OpenZFS |
//! |---|---|---|
//! | [`session`] | a pool, the rights that count, and the program that is told | `libzfs_handle_t` |
//! | [`host`] | what the program is told and asked | |
//! | [`error`] | why something was not done, in OpenZFS's words | `zfs_error_fmt` |
//! | [`kinds`] | datasets by name and kind; what is below them | `zfs_open`, `zfs_iter_filesystems` |
//! | [`snapshot`] | snapshots of one moment | `zfs_snapshot_nvl` |
//! | [`destroy`] | datasets, ranges of snapshots, bookmarks, and what depends on them | `zfs_do_destroy`, `zfs_destroy_snaps_nvl` |
//! | [`clone`] | clones, their ancestors, promotion | `zfs_clone`, `zfs_promote` |
//! | [`rename`] | datasets and snapshots get other names | `zfs_rename` |
//! | [`set`](mod@set) | properties are set and inherited, and mounts follow | `zfs_prop_set_list`, `changelist_gather` |
//! | [`rollback`] | a file system goes back to a snapshot | `zfs_rollback` |
//! | [`holds`] | holds of snapshots; bookmarks | `zfs_hold`, `zfs_release`, `zfs_bookmark` |
//! | [`diff`] | what differs between two states of a file system | `zfs_show_diffs` |
//! | [`userspace`] | what users, groups and projects use | `zfs_userspace` |
//! | [`send`] | streams of snapshots, and packages of them | `zfs_send`, `zfs_send_one`, `zfs_send_resume` |
//! | [`redact`] | redaction bookmarks | `lzc_redact`, `find_redact_book` |
//! | [`receive`] | streams, and packages of them, become snapshots | `zfs_receive` |
//! | [`contents`] | what new file systems have in them; replay of intent logs | |

pub mod clone;
pub mod contents;
pub mod destroy;
pub mod diff;
pub mod error;
pub mod holds;
pub mod host;
pub mod kinds;
pub mod receive;
pub mod redact;
pub mod rename;
pub mod rollback;
pub mod send;
pub mod session;
pub mod set;
pub mod snapshot;
pub mod userspace;

pub use error::{Error, ErrorKind, Result};
pub use host::{
    Event, Exclusion, Host, InUse, Mounts, NoMounts, NoOthers, Quiet, Streaming, Unmount,
};
pub use kinds::{Kinds, family};
pub use session::{Opened, Rights, Session};
