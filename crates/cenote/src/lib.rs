//! OpenZFS pools for programs: create or open a pool, work with its datasets, files and volumes.
//!
//! No kernel module, no daemon, no mount: a pool is opened from its devices or images by the
//! process that uses it.
//!
//! # Reading
//!
//! ```no_run
//! # fn main() -> cenote::Result<()> {
//! let pool = cenote::Pool::open(["/images"], "tank")?;
//! println!("{} is {}", pool.name(), pool.health());
//!
//! for dataset in pool.datasets() {
//!     let dataset = dataset?;
//!     println!("{:<30} {}", dataset.name(), dataset.property("used")?.unwrap_or_default());
//! }
//!
//! let home = pool.dataset("tank/home@yesterday")?.filesystem()?;
//! for entry in home.read_dir("/alice")? {
//!     let entry = entry?;
//!     println!("{:>12} {}", entry.metadata()?.size, entry.name().display());
//! }
//! let mut text = String::new();
//! std::io::Read::read_to_string(&mut home.open("/alice/notes.txt")?, &mut text)?;
//! # Ok(()) }
//! ```
//!
//! # Writing
//!
//! ```no_run
//! # fn main() -> cenote::Result<()> {
//! use std::io::Write;
//!
//! let pool = cenote::CreatePool::new("tank", ["/images/disk"]).create()?;
//! // Or one that is there: Pool::open_writable(["/images"], "tank")?
//!
//! let home = pool.create_filesystem("tank/home", &[("compression", "zstd")])?;
//! let files = home.filesystem()?;
//! files.create_dir("alice")?;
//! files.write("alice/notes.txt", "first line\n")?;
//! let mut notes = files.create("alice/log")?;
//! writeln!(notes, "started")?;
//! notes.sync()?;
//!
//! home.snapshot("yesterday")?;
//! files.remove_file("alice/notes.txt")?;
//!
//! let disk = pool.create_volume("tank/disk", 1 << 30, &[("refreservation", "none")])?;
//! disk.volume()?.write_at(0, b"boot sector")?;
//! # Ok(()) }
//! ```
//!
//! Changes of files are in memory until their transaction group is written, some seconds later at
//! most; [`Pool::sync`] and [`File::sync`] wait for that. Changes of datasets are on disk when they
//! return. A crash leaves the last transaction group, whole. A pool that is open for writing belongs
//! to the process; it is exported, so that others may have it, by [`Pool::export`] or when the last
//! handle goes.
//!
//! A file system follows its properties (`readonly`, `recordsize`, `compression`, quotas), which
//! [`Dataset::set`] changes. Permissions of files are kept, not enforced: the program acts as
//! any user it likes. New files belong to the process's user.
//!
//! | | |
//! |---|---|
//! | [`Pool`] | find, open and export pools; properties, health; new datasets |
//! | [`CreatePool`] | new pools |
//! | [`Dataset`] | file systems, volumes, snapshots, bookmarks; properties, children, snapshots; renaming, destroying |
//! | [`FileSystem`] | directories, files, links, attributes of a file system or snapshot |
//! | [`File`] | contents of a file: `Read`, `Write`, `Seek`, [`File::read_at`], [`File::write_at`], holes |
//! | [`Volume`] | contents of a volume: `Read`, `Write`, `Seek`, [`Volume::read_at`], [`Volume::write_at`] |
//! | [`tunables`] | numbers that may be changed while pools are in use, of the whole process |
//! | [`contents`] | for those who change datasets with `cenote-pool` itself |
//!
//! Everything is cheap to clone and may be used from several threads. A pool stays open as long as
//! anything that came from it is alive. Programs in `examples/`: `list`, `cat`, `verify` read,
//! `backup` writes.

pub mod contents;
mod create;
mod dataset;
mod error;
mod file;
mod filesystem;
mod live;
mod pool;
mod volume;
mod write;

pub use cenote_dsl::{DatasetKind, Source};
pub use cenote_engine::change::ChangeError;
pub use cenote_engine::tunables;
pub use cenote_pool::ImportOptions;
pub use cenote_zpl::{Attr as Metadata, SetAttr, SetTime};
pub use create::CreatePool;
pub use dataset::{Dataset, Datasets};
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{DirEntry, FileSystem, ReadDir};
pub use pool::{Found, Pool};
pub use volume::Volume;
