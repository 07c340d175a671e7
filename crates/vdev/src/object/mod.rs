//! A device in an object store: S3, GCS, Azure, a directory, or what a program brings along.
//!
//! # Idea
//!
//! The blocks of the device are in a space of `cenote_objects`, whose addresses are never used twice ([`Growing`](crate::Growing)). Byte
//! [`LABEL_START`](cenote_format::LABEL_START) of the device is address 0. There are no labels on the store: what is written to the places of labels is kept in memory
//! and goes along with the root of the space (`labels`), so that blocks, labels and uberblocks become durable together, with one request
//! that only the host which has the space can make.
//!
//! # When something is durable
//!
//! [`Device::flush`] stores a root where there is an uberblock of a later group than the last one stored, or where nothing but labels was written. A
//! flush before the uberblock of a group does nothing: blocks that no uberblock leads to would be lost with a crash
//! anyway, since the next import deletes what no root names. So nothing may count on such a flush but the end of a group: no log block and
//! no block that is written ahead of its group goes to such a device (`store::alloc`).
//!
//! # Which host has the space
//!
//! A device that is opened for writing takes the space over when it is told to ([`Growing::take_over`](crate::Growing::take_over)), or with the first
//! labels that it stores, and not before: to look at a pool disturbs no one. From then on every other host is refused. If another host has written a
//! root since the labels were read, the space is not taken over. Of a directory one process can be a writer at a time (`place`).
//!
//! # When the store is away
//!
//! A request that fails although it was repeated for as long as its budget says nothing about the bytes that are kept. The device notes it: it is not
//! *there* ([`Device::is_there`]) for a moment, so that a probe takes it for silent and what is read or written is held; later it
//! is there as soon as the store answers. What could not be uploaded is sent again with the next write.
//!
//! # Rooms
//!
//! | file | what it has |
//! |---|---|
//! | `place` | where the store is: a directory that is kept open, a store by network, what a program provides; how devices are called |
//! | `core` | the space of a device, and when its roots are stored |
//! | `labels` | what goes along with a root |
//! | `device` | the device as others see it |
//!
//! Invariants: a root is stored with all blocks written before it. What was stored is never written again: the second write of a block has the
//! bytes of the first, or its object was held back ([`WriteReq::held`](crate::WriteReq::held)).

mod core;
mod device;
mod labels;
mod place;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

use cenote_objects::Tunables;
use object_store::ObjectStore;
use parking_lot::Mutex;

use self::core::Core;
use self::device::{ObjectDevice, WriterLock};
use self::place::Provided;
pub use self::place::{is_held, name_of, spelled};
use crate::device::Device;

/// Bytes of addresses that a new device has. It grows when half of them are given out ([`Device::size_by_now`]).
const FIRST_SIZE: u64 = 64 << 40;
/// It does not grow beyond this.
const LAST_SIZE: u64 = 8 << 50;
/// No device has fewer.
const LEAST_SIZE: u64 = 64 << 20;

/// Devices that are open for writing in this process, by what they are ([`name_of`]).
static WRITERS: LazyLock<Mutex<HashMap<PathBuf, Writer>>> = LazyLock::new(Mutex::default);

struct Writer {
    is_open: Weak<WriterLock>,
    core: Weak<Core>,
}

/// Decodes what goes along with a root and encodes it again: for fuzzers.
///
/// # Errors
/// It is no such thing.
#[doc(hidden)]
pub fn recode(payload: &[u8]) -> Result<Vec<u8>, String> {
    let (size, labels) = labels::decode(payload)?;
    Ok(labels::encode(size, &labels))
}

/// Whether a path names a device in an object store: it begins with a scheme, as `file:///srv/pool` does.
pub fn is_object(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let scheme = path.split_once("://").map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Whether a path names a store by network: to look there sends credentials of this host.
pub fn is_by_network(path: &Path) -> bool {
    let path = path.to_str().unwrap_or_default();
    let scheme = path.split_once("://").map_or("", |(scheme, _)| scheme);
    ["s3", "gs", "az"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
        && !place::is_provided(Path::new(path))
}

/// From now on devices called `path` are in this store, in this process.
pub fn provide(path: &Path, store: Arc<dyn ObjectStore>, tunables: Tunables) {
    place::provide(path, Provided { store, tunables, sizes: (FIRST_SIZE, LAST_SIZE) });
}

/// As [`provide`], of a device whose sizes, the first one and the last one that it grows to, are others than usual.
#[doc(hidden)]
pub fn provide_sized(
    path: &Path,
    store: Arc<dyn ObjectStore>,
    tunables: Tunables,
    sizes: (u64, u64),
) {
    place::provide(path, Provided { store, tunables, sizes });
}

/// Opens a device for reading. One that is open for writing in this process is that one.
pub(crate) fn open(path: &Path) -> io::Result<Arc<dyn Device>> {
    let open = WRITERS.lock().get(&name_of(path)).and_then(|writer| {
        writer.is_open.upgrade()?;
        writer.core.upgrade()
    });
    let core = match open {
        Some(core) => core,
        None => Core::look(path, false)?,
    };
    Ok(Arc::new(ObjectDevice { core, writer: None }))
}

/// Opens a device for writing, once on this host as far as it is a directory, and else once in this process.
pub(crate) fn open_rw(path: &Path) -> io::Result<Arc<dyn Device>> {
    writer(path, |path| Core::look(path, true))
}

/// Opens a device with a pool whose root or index cannot be read: it has the labels that went along with the root, if that can be read, nothing can
/// be read of it besides, and [`clear_labels`](crate::clear_labels) deletes it. `writes`: to do that.
///
/// # Errors
/// There is no root of a pool, or the store fails; it is open for writing.
pub fn open_wreck(path: &Path, writes: bool) -> io::Result<Arc<dyn Device>> {
    match writes {
        true => writer(path, |path| Core::look_at_wreck(path, true)),
        false => {
            let core = Core::look_at_wreck(path, false)?;
            Ok(Arc::new(ObjectDevice { core, writer: None }))
        }
    }
}

fn writer(
    path: &Path,
    look: impl FnOnce(&Path) -> io::Result<Arc<Core>>,
) -> io::Result<Arc<dyn Device>> {
    let name = name_of(path);
    let writer = {
        let mut writers = WRITERS.lock();
        if writers.get(&name).is_some_and(|writer| writer.is_open.strong_count() > 0) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let writer = Arc::new(WriterLock { _held: place::lock(path)? });
        let (is_open, core) = (Arc::downgrade(&writer), Weak::new());
        writers.insert(name.clone(), Writer { is_open, core });
        writer
    };
    let core = look(path)?;
    if let Some(known) = WRITERS.lock().get_mut(&name) {
        known.core = Arc::downgrade(&core);
    }
    Ok(Arc::new(ObjectDevice { core, writer: Some(writer) }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_cannot_be_opened_is_named() {
        for (name, part) in [
            ("file://srv", "a directory is named by its whole path"),
            ("ftp://x/y", "'ftp://' is no kind of store"),
            ("s3://key:word@bucket/x", "credentials do not belong"),
        ] {
            for opened in [crate::open_device, crate::open_device_rw] {
                let why = opened(Path::new(name)).err().unwrap();
                assert_eq!(why.kind(), ErrorKind::InvalidInput);
                assert!(why.to_string().contains(part), "{why}");
            }
        }
    }

    #[test]
    fn names_have_one_spelling() {
        for (given, is) in [
            ("file:///srv//x/", "file:///srv/x"),
            ("file:///srv/./x", "file:///srv/x"),
            ("gs://bucket/x/", "gs://bucket/x"),
        ] {
            assert_eq!(spelled(Path::new(given)).unwrap(), Path::new(is));
        }
    }

    /// Variables complete what a user says, and move nothing that has a name.
    #[test]
    fn the_environment_moves_no_device() {
        let own = "object::tests::the_environment_moves_no_device";
        let name = Path::new("s3://bucket/x");
        if std::env::var_os("AWS_ENDPOINT_URL").is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", own]).env("AWS_REGION", "eu");
            let output = again.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            assert_eq!(spelled(name).unwrap(), Path::new("s3://bucket/x?region=us-east-1"));
            return;
        }
        let whole = "s3://bucket/x?endpoint=http://127.0.0.1:9&region=eu";
        assert_eq!(spelled(name).unwrap(), Path::new(whole));
        assert_eq!(name_of(name), name);
        #[cfg(feature = "s3")]
        assert_eq!(place::Place::find(name).unwrap().named("y".into()), "s3://bucket/x: y");
    }

    #[test]
    fn schemes_are_told_from_paths() {
        for (path, is) in [
            ("file:///srv/x", true),
            ("s3://bucket/x", true),
            ("S3://bucket/x", true),
            ("/dev/sda", false),
            ("sda", false),
            ("/a://b", false),
            ("://x", false),
        ] {
            assert_eq!(is_object(Path::new(path)), is, "{path}");
        }
    }
}
