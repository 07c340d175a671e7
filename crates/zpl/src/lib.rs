//! POSIX file systems and volumes in object sets: the ZFS POSIX Layer.
//!
//! Floor 8 of cenote. A file system is an object set with a *master node* (object 1), a ZAP that
//! names everything else: the version of the layout (1 to 5), the root directory, the set of
//! unlinked files, the registry of system attributes, how names compare. Each file, directory or
//! other node is an object; its number is the inode number. The object's bonus buffer holds the
//! attributes, its data are the file's bytes or the directory's entries.
//!
//! | module | what lives there |
//! |---|---|
//! | [`fs`](FileSystem) | opening: master node, how names compare |
//! | [`attr`](Attr) | attributes as `stat` shows them |
//! | `znode` | an object's attributes, wherever they are: `znode_phys_t` (versions 1 to 4) or system attributes |
//! | `sa` | the registry of system attributes and their layouts |
//! | `dir` | directory entries: lookup, listing, search by object |
//! | `file` | reading files and symbolic links, holes |
//! | `xattr` | extended attributes: in a system attribute and in hidden directories |
//! | `acl` | POSIX access control lists |
//! | `fuid` | domains of owners from other systems |
//! | `path` | paths to objects and back |
//! | `quota` | space of projects, tables of quotas |
//! | `volume` | volumes |
//! | `source` | fixed and live object sets |
//! | `write` | all that changes file systems and volumes, and makes new ones |
//!
//! What is shown is what Linux programs see of a file system mounted by OpenZFS on Linux.

mod acl;
mod attr;
mod bits;
mod diff;
mod dir;
mod directories;
mod drain;
mod error;
mod file;
mod fs;
mod fuid;
mod nfs4;
mod path;
mod project;
mod quota;
mod sa;
mod settings;
mod source;
mod stored;
mod volume;
mod write;
mod xattr;
mod znode;

pub use attr::Attr;
pub use cenote_dmu::outside::{Clock, Time};
pub use cenote_dmu::write::{Births, Spare};
pub use cenote_store::{Caching, PrimaryCache};
pub use diff::{Change, Difference, Stop as DiffStop, differences};
pub use dir::DirEntry;
pub use error::{Error, Result};
pub use file::File;
pub use fs::{CaseSensitivity, FileSystem};
pub use project::ProjectSpace;
pub use settings::{AclInherit, AclMode, Atime, DirectIo, Settings, Visibility};
pub use stored::StoredAttrs;
pub use volume::Volume;
pub use write::{
    Allocate, CreateProps, InUse, NewNode, NodeKind, Owner, Removed, RenameFlags, Replayed,
    Rewrite, SetAttr, SetTime, SetXattr, Supervisor, flags, format, format_volume, replay, upgrade,
};
