//! OpenZFS pools for programs: create or open a pool, work with its datasets, files and volumes, snapshots and streams.
//!
//! No kernel module, no daemon, no mount: a pool is opened from its devices or images by the
//! process that uses it.
//!
//! # Writing and reading
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk");
//! use cenote::Pool;
//! use std::io::{Read, Write};
//!
//! let pool = Pool::create_in_file(&image, "tank", 128 << 20)?;
//! // Or one that is there: Pool::open_writable(["/images"], "tank")?
//!
//! let home = pool.create_filesystem("tank/home", &[("compression", "zstd")])?;
//! let files = home.filesystem()?;
//! files.create_dir("alice")?;
//! files.write("alice/notes.txt", "first line\n")?;
//! let mut log = files.create("alice/log")?;
//! writeln!(log, "started")?;
//! log.sync()?;
//!
//! home.snapshot("yesterday")?;
//! files.remove_file("alice/notes.txt")?;
//!
//! let disk = pool.create_volume("tank/disk", 16 << 20, &[("refreservation", "none")])?;
//! disk.volume()?.write_at(0, b"boot sector")?;
//! drop((files, log));
//! pool.export()?;
//!
//! let pool = Pool::open([&image], "tank")?;
//! println!("{} is {}", pool.name(), pool.health());
//! for dataset in pool.datasets() {
//!     let dataset = dataset?;
//!     println!("{:<30} {}", dataset.name(), dataset.property("used")?.unwrap_or_default());
//! }
//! let yesterday = pool.dataset("tank/home@yesterday")?.filesystem()?;
//! for entry in yesterday.read_dir("/alice")? {
//!     let entry = entry?;
//!     println!("{:>12} {}", entry.metadata()?.size, entry.name().display());
//! }
//! let mut text = String::new();
//! yesterday.open("/alice/notes.txt")?.read_to_string(&mut text)?;
//! assert_eq!(text, "first line\n");
//! # Ok::<(), cenote::Error>(())
//! ```
//!
//! Changes of files are in memory until their transaction group is written, some seconds later at
//! most; [`Pool::sync`] and [`File::sync`] wait for that. Changes of datasets are on disk when they
//! return. A crash leaves the last transaction group, whole. A pool that is open for writing belongs
//! to the process; it is exported, so that others may have it, by [`Pool::export`] or when the last
//! handle goes.
//!
//! A file system follows its properties (`readonly`, `recordsize`, `compression`, quotas), which
//! [`Dataset::set`] and [`Dataset::assign`] change. Permissions of files are kept, not enforced: the program acts as
//! any user it likes. New files belong to the process's user.
//!
//! # All on one page
//!
//! | to do what | with |
//! |---|---|
//! | find, open, create and export pools | [`Pool::find`], [`Pool::open`], [`Pool::open_writable`], [`Pool::create_in_file`], [`CreatePool`], [`Pool::export`] |
//! | new datasets, other names | [`Pool::create_filesystem`], [`Pool::create_volume`], [`Dataset::rename`] |
//! | list datasets | [`Pool::dataset`], [`Pool::datasets`], [`Dataset::children`], [`Dataset::snapshots`], [`Dataset::bookmarks`], [`Dataset::clones`] |
//! | properties with types and sources | [`property`], [`Dataset::get`], [`Dataset::assign`], [`Dataset::inherit`], [`Dataset::revert`] |
//! | properties as texts | [`Dataset::property`], [`Dataset::properties`], [`Dataset::set`] |
//! | snapshots | [`Pool::snapshot`], [`Dataset::snapshot`], [`Dataset::snapshot_all`] |
//! | destroy | [`Dataset::destroy`], [`Dataset::destroy_all`], [`Dataset::destroy_snapshots`] (ranges) |
//! | clones | [`Dataset::clone_to`], [`Dataset::promote`] |
//! | go back | [`Dataset::rollback`], [`Dataset::rollback_with`] |
//! | holds, bookmarks | [`Dataset::hold`], [`Dataset::release`], [`Dataset::holds`], [`Dataset::bookmark`] |
//! | compare | [`Dataset::diff`], [`Dataset::diff_now`] |
//! | who uses how much | [`Dataset::usage`] |
//! | send to any writer | [`Dataset::send`], [`Dataset::send_from`], [`Stream`] (packages), [`Pool::resume_send`] |
//! | receive from any reader | [`Pool::receive`], [`Pool::receive_with`], [`Pool::abort_receive`] |
//! | files and directories | [`Dataset::filesystem`], [`FileSystem`], [`File`] |
//! | encrypted datasets | [`Dataset::load_key`], [`Dataset::unload_key`], [`Key`] |
//! | volumes | [`Dataset::volume`], [`Volume`] |
//! | devices and their errors | [`Pool::vdevs`], [`Pool::clear`] |
//! | scrub, and what is damaged | [`Pool::scrub`], [`Pool::wait_for_scan`], [`Pool::scan`], [`Pool::damaged`] |
//! | devices that leave and join | [`Pool::replace`], [`Pool::attach`], [`Pool::detach`], [`Pool::offline`], [`Pool::online`] |
//! | numbers that may be changed while pools are in use | [`tunables`] |
//! | errors | [`Error`], [`Error::kind`], [`Error::in_the_way`] |
//!
//! Everything is cheap to clone and may be used from several threads. A pool stays open as long as
//! anything that came from it is alive. File systems and volumes that are open for writing are in use: to roll back,
//! receive into, or destroy one, drop what is open of it. Programs in `examples/`: `list`, `cat`, `verify` read,
//! `backup` writes.
//!
//! # Versions
//!
//! Semantic versioning. Until 1.0 a change that breaks programs raises the second number of the version; so does a higher
//! minimum Rust version. Enums that may grow are `#[non_exhaustive]`; texts of errors may change at any time. The crates below
//! this one are not covered by that, but for what this crate shows of them. [`Pool::view`], [`Pool::engine`] and
//! [`contents`] lead to those crates, and are not covered either.

mod create;
mod dataset;
mod error;
mod file;
mod filesystem;
mod host;
mod key;
mod live;
mod pool;
pub mod property;
mod repair;
mod snapshot;
mod stream;
mod volume;
mod write;

pub use cenote_admin::ErrorKind;
pub use cenote_admin::contents;
pub use cenote_admin::userspace::{OwnerKind, Usage};
pub use cenote_dsl::crypt::KeyError;
pub use cenote_dsl::props::{Account, Who as Owners};
pub use cenote_dsl::{DatasetKind, Source};
pub use cenote_engine::ScanError;
pub use cenote_engine::change::ChangeError;
pub use cenote_engine::tunables;
pub use cenote_pool::ImportOptions;
pub use cenote_zpl::{Attr as Metadata, Change, Difference, SetAttr, SetTime};
pub use create::CreatePool;
pub use dataset::{Dataset, Datasets};
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{DirEntry, FileSystem, ReadDir};
pub use key::Key;
pub use pool::{Found, Pool};
pub use property::Setting;
pub use repair::{Scan, ScanKind, ScanState, Vdev};
pub use snapshot::{Hold, Newer};
pub use stream::{Receive, Received, Stream};
pub use volume::Volume;
