//! The threads of a stream: one walks, [`READERS`] read, the caller writes.
//!
//! ```text
//!            ┌─> reader 0 ─┐
//!   walk ────┤             ├──> emit (checksum, write)
//!            └─> reader 1 ─┘
//! ```
//!
//! Batches go to the readers in turn and are taken from them in turn, so their order stays. Every channel holds one
//! batch: not more than ten batches exist at a time, whatever the snapshot holds. Whoever stops lets go of its channels,
//! which stops the others: the walk when the caller cannot write, the caller when the walk is done or failed.

use super::emit::{Emitter, How, how};
use super::walk::{Item, Walk};
use super::{Params, Result, SendError};
use cenote_dmu::ObjectSet;
use cenote_format::abd::Abd;
use cenote_store::{Block, BlockError, Bookmark};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Threads that read.
const READERS: usize = 2;

/// What an item needs of the devices.
pub(super) enum Read {
    /// Nothing.
    Nothing,
    /// A block, unpacked.
    Plain(std::result::Result<Block, BlockError>),
    /// A block as it is on disk.
    Packed(std::result::Result<Abd, BlockError>),
}

type Batch = Vec<(Item, Read)>;

/// Reads the data of a batch (`send_reader_thread`).
fn read(objset: &ObjectSet, features: u64, items: Vec<Item>) -> Batch {
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    let hows: Vec<How> = items.iter().map(|item| how(item, features)).collect();
    for (item, how) in items.iter().zip(&hows) {
        let Item::Data(data) = item else { continue };
        let (object, blkid) = (data.object, data.blkid);
        let request = (data.bp, Bookmark { objset: objset.id(), object, level: 0, blkid });
        match how {
            How::Plain => plain.push(request),
            How::Packed => packed.push(request),
            How::Pointer => {}
        }
    }
    let store = objset.store();
    let mut plain = store.read_many(&plain).into_iter();
    let mut packed = store.read_many_physical(&packed).into_iter();
    let take = |(item, how)| {
        let read = match (&item, how) {
            (Item::Data(_), How::Plain) => plain.next().map(Read::Plain),
            (Item::Data(_), How::Packed) => packed.next().map(Read::Packed),
            _ => None,
        };
        (item, read.unwrap_or(Read::Nothing))
    };
    items.into_iter().zip(hows).map(take).collect()
}

/// Walks, reads and writes.
pub(super) fn run(
    objset: &Arc<ObjectSet>,
    params: &Params,
    emitter: &mut Emitter<'_>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let (mut to_readers, mut from_readers) = (Vec::new(), Vec::new());
        for _ in 0..READERS {
            let (to_reader, items): (SyncSender<Vec<Item>>, Receiver<_>) = sync_channel(1);
            let (done, from_reader) = sync_channel(1);
            let read_all = move || {
                for items in items {
                    if done.send(read(objset, params.features, items)).is_err() {
                        return;
                    }
                }
            };
            spawn("send-read").spawn_scoped(scope, read_all)?;
            to_readers.push(to_reader);
            from_readers.push(from_reader);
        }
        let walk = move || {
            let mut turns = to_readers.iter().cycle();
            let mut put = |items| match turns.next().map(|reader| reader.send(items)) {
                Some(Ok(())) => Ok(()),
                _ => Err(SendError::Io(io::ErrorKind::BrokenPipe.into())),
            };
            Walk::new(objset, params, &mut put).objects()
        };
        let walk = spawn("send-walk").spawn_scoped(scope, walk)?;
        let turns = from_readers.iter().cycle();
        let written = turns.map_while(|reader| reader.recv().ok()).try_for_each(|batch| {
            batch.into_iter().try_for_each(|(item, read)| emitter.item(item, read))
        });
        // The walk may wait for a reader, and that for us.
        drop(from_readers);
        let walked = walk.join();
        written?;
        walked.unwrap_or_else(|_| Err(SendError::Io(io::Error::other("internal error"))))
    })
}

/// Walks and counts, without reading data.
pub(super) fn measure(
    objset: &Arc<ObjectSet>,
    params: &Params,
    emitter: &mut Emitter<'_>,
) -> Result<()> {
    let mut count =
        |items: Vec<Item>| items.into_iter().try_for_each(|item| emitter.item(item, Read::Nothing));
    Walk::new(objset, params, &mut count).objects()
}
