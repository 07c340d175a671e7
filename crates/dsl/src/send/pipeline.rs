//! The threads of a stream (`send_traverse_thread`, `send_reader_thread`): one walks, [`READERS`] read, the caller writes.
//!
//! ```text
//!            ┌─> reader ─┐
//!   walk ────┼─> reader ─┼──> emit (checksum, write)
//!            └─> reader ─┘
//! ```
//!
//! Batches go to the readers in turn and are taken from them in turn, so their order stays. Many small batches that are
//! read at the same time keep a device busy; a large one is waited for at its end. What all batches together may hold is
//! bounded by [`BUDGET`]: the walk waits for its share, which a batch gives back when it is written or let go of.
//!
//! A stage that stops lets go of its channels, which stops the others: the walk when the caller cannot write, the caller
//! when the walk is done or failed.

use super::emit::{Emitter, How, Read, how};
use super::redact::Lists;
use super::walk::{Item, Walk};
use super::{Params, Result, SendError};
use crate::budget::{Budget, Share};
use cenote_dmu::ObjectSet;
use cenote_format::invariant;
use cenote_format::stream::feature;
use cenote_store::{Bookmark, Store};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Threads that read.
const READERS: usize = 8;
/// Logical bytes of data that are in memory at most; more only where a single batch has more.
const BUDGET: u64 = 64 << 20;

/// What was found, with its share of the memory.
type Found = (Vec<Item>, Share);
/// What was read.
type Batch = Vec<(Item, Read)>;

/// Reads the data of a batch (`send_reader_thread`).
fn read(objset: &ObjectSet, features: u64, items: Vec<Item>) -> Batch {
    let (mut plain, mut packed, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    let hows: Vec<How> = items.iter().map(|item| how(item, features)).collect();
    for (item, how) in items.iter().zip(&hows) {
        let Item::Data(data) = item else { continue };
        let (object, blkid) = (data.object, data.blkid);
        let request = (data.bp, Bookmark { objset: objset.id(), object, level: 0, blkid });
        match how {
            How::Plain => plain.push(request),
            How::Packed => packed.push(request),
            How::Raw => raw.push(request),
            How::Pointer => {}
        }
    }
    let (store, asked) = (objset.store(), [plain.len(), packed.len(), raw.len()]);
    let mut plain = store.read_many(&plain).into_iter();
    let mut packed = store.read_many_physical(&packed).into_iter();
    let mut raw = store.read_many_raw(&raw).into_iter();
    let found = [plain.len(), packed.len(), raw.len()];
    invariant!(found == asked, "{found:?} blocks of a stream are read, and {asked:?} wanted");
    let take = |(item, how)| {
        let read = match (&item, how) {
            (Item::Data(_), How::Plain) => plain.next().map(Read::Plain),
            (Item::Data(_), How::Packed) => packed.next().map(Read::Packed),
            (Item::Data(_), How::Raw) => raw.next().map(Read::Packed),
            _ => None,
        };
        (item, read.unwrap_or(Read::Nothing))
    };
    items.into_iter().zip(hows).map(take).collect()
}

/// Walks a raw stream without the key.
fn without_keys<T>(params: &Params, walk: impl FnOnce() -> T) -> T {
    match params.features & feature::RAW {
        0 => walk(),
        _ => Store::without_keys(walk),
    }
}

/// Walks, reads and writes.
pub(super) fn run(
    objset: &Arc<ObjectSet>,
    params: &Params,
    lists: Lists,
    emitter: &mut Emitter<'_>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let (mut to_readers, mut from_readers) = (Vec::new(), Vec::new());
        for _ in 0..READERS {
            let (to_reader, found): (SyncSender<Found>, Receiver<_>) = sync_channel(1);
            let (done, from_reader) = sync_channel(1);
            let read_all = move || {
                for (items, share) in found {
                    if done.send((read(objset, params.features, items), share)).is_err() {
                        return;
                    }
                }
            };
            spawn("send-read").spawn_scoped(scope, read_all)?;
            to_readers.push(to_reader);
            from_readers.push(from_reader);
        }
        let budget = Budget::new(BUDGET);
        let walk = move || {
            let mut turns = to_readers.iter().cycle();
            let mut put = |items, bytes| {
                let share = budget.take(bytes);
                match turns.next().map(|reader| reader.send((items, share))) {
                    Some(Ok(())) => Ok(()),
                    _ => Err(SendError::Io(io::ErrorKind::BrokenPipe.into())),
                }
            };
            without_keys(params, || Walk::new(objset, params, lists, &mut put).objects())
        };
        let walk = spawn("send-walk").spawn_scoped(scope, walk)?;
        let turns = from_readers.iter().cycle();
        let written =
            turns.map_while(|reader| reader.recv().ok()).try_for_each(|(batch, _share)| {
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
    lists: Lists,
    emitter: &mut Emitter<'_>,
) -> Result<()> {
    let mut count = |items: Vec<Item>, _| {
        items.into_iter().try_for_each(|item| emitter.item(item, Read::Nothing))
    };
    without_keys(params, || Walk::new(objset, params, lists, &mut count).objects())
}
