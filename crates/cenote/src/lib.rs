//! OpenZFS pools for programs: find a pool, open it, read its datasets, files and volumes.
//!
//! No kernel module, no daemon, no mount: a pool is opened from its devices or images by the
//! process that reads it. Nothing is written.
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
//! | | |
//! |---|---|
//! | [`Pool`] | find and open pools; properties, health, history |
//! | [`Dataset`] | file systems, volumes, snapshots, bookmarks; properties, children, snapshots |
//! | [`FileSystem`] | directories, files, links, attributes of a file system or snapshot |
//! | [`File`] | contents of a file: `Read`, `Seek`, [`File::read_at`], holes |
//! | [`Volume`] | contents of a volume: `Read`, `Seek`, [`Volume::read_at`] |
//!
//! Everything is cheap to clone and may be used from several threads. A pool stays open as long as
//! anything that came from it is alive. Programs in `examples/`: `list`, `cat`, `verify`.

mod dataset;
mod error;
mod file;
mod filesystem;
mod pool;
mod volume;

pub use cenote_dsl::{DatasetKind, Source};
pub use cenote_pool::ImportOptions;
pub use cenote_zpl::Attr as Metadata;
pub use dataset::{Dataset, Datasets};
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{DirEntry, FileSystem, ReadDir};
pub use pool::{Found, Pool};
pub use volume::Volume;
