//! The faults that administrators inject into imported pools (`inject_handlers`, `zfs_ioc_inject_fault`).
//!
//! What a handler does it does further below: in front of a device (`cenote_vdev::injection`) or where blocks are read
//! (`cenote_store::injection`). Here is the list of them, with the numbers by which they are named. It is in memory only: a handler
//! goes when it is cleared, when its pool is exported or destroyed, and with the daemon.

use cenote_store::injection::DataHandler;
use cenote_vdev::injection::{DeviceHandler, Handler as _};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is done to a pool once, when it is imported or exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is imported.
    Import,
    /// It is exported.
    Export,
}

/// What a handler does, as lists show it.
#[derive(Clone, Debug)]
pub enum What {
    /// Requests of a device fail.
    Device {
        /// The guid of the leaf.
        vdev: u64,
        /// Which requests: an I/O type's name.
        kind: &'static str,
        /// What they come to: an error's name.
        error: &'static str,
        /// What does it.
        handler: Arc<DeviceHandler>,
    },
    /// Requests of a device take longer.
    Delay {
        /// The guid of the leaf.
        vdev: u64,
        /// Which requests: an I/O type's name.
        kind: &'static str,
        /// How long they take at least, in milliseconds.
        milliseconds: u64,
        /// How many at once.
        lanes: u64,
        /// What does it.
        handler: Arc<DeviceHandler>,
    },
    /// Blocks cannot be read.
    Data {
        /// The object set.
        objset: u64,
        /// The object.
        object: u64,
        /// The type of objects, of the meta object set only.
        kind: u8,
        /// The level.
        level: i64,
        /// The numbers of the blocks.
        blkids: RangeInclusive<u64>,
        /// Which copies: a bit for each; 0 is all.
        copies: u8,
        /// What does it.
        handler: Arc<DataHandler>,
    },
    /// The next import or export of the pool takes so many seconds at least.
    Pause(Moment, u64),
}

/// A handler.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its number.
    pub id: u64,
    /// The name of its pool.
    pub pool: String,
    /// What it does.
    pub what: What,
}

impl Listed {
    fn clear(&self) {
        match &self.what {
            What::Device { handler, .. } | What::Delay { handler, .. } => handler.clear(),
            What::Data { handler, .. } => handler.trigger().clear(),
            What::Pause(..) => {}
        }
    }
}

/// All handlers.
#[derive(Default)]
pub struct Injections {
    all: Mutex<(u64, Vec<Listed>)>,
}

impl Injections {
    /// Lists a handler, and gives it a number.
    pub fn add(&self, pool: &str, what: What) -> u64 {
        let mut all = self.all.lock();
        all.0 += 1;
        let id = all.0;
        all.1.push(Listed { id, pool: pool.into(), what });
        id
    }

    /// Those there are, in the order of their numbers.
    pub fn list(&self) -> Vec<Listed> {
        self.all.lock().1.clone()
    }

    /// Clears the handler of this number (`zio_clear_fault`). Returns whether it was there.
    pub fn clear(&self, id: u64) -> bool {
        self.clear_those(|one| one.id == id)
    }

    /// Clears all handlers, and ends what waits for them: the daemon ends.
    pub fn clear_all(&self) {
        self.clear_those(|_| true);
    }

    /// The pool is about to be closed: what is written last shall reach its devices, and in time. What holds the export itself
    /// up stays.
    pub fn clear_faults(&self, pool: &str) {
        self.clear_those(|one| one.pool == pool && !matches!(one.what, What::Pause(..)));
    }

    /// The pool is no longer imported: its handlers go with it.
    pub fn clear_pool(&self, pool: &str) {
        // A pause of the next import is about a pool that is not imported.
        let stays = |one: &Listed| matches!(one.what, What::Pause(Moment::Import, _));
        self.clear_those(|one| one.pool == pool && !stays(one));
    }

    fn clear_those(&self, of: impl Fn(&Listed) -> bool) -> bool {
        let mut all = self.all.lock();
        let (gone, kept) = std::mem::take(&mut all.1).into_iter().partition(of);
        all.1 = kept;
        drop(all);
        let gone: Vec<Listed> = gone;
        gone.iter().for_each(Listed::clear);
        !gone.is_empty()
    }

    /// Whether an import or export of this pool will be held up already.
    pub fn has_pause(&self, pool: &str, moment: Moment) -> bool {
        let all = self.all.lock();
        let is_it = |one: &Listed| matches!(one.what, What::Pause(when, _) if when == moment);
        all.1.iter().any(|one| one.pool == pool && is_it(one))
    }

    /// Holds the caller up for as long as an import or export that began then is to take still (`zio_handle_pool_delay`). It is
    /// done once. It ends when the handler is cleared, and when `cancelled` says that the user has given up.
    pub fn pause(&self, pool: &str, moment: Moment, since: Instant, cancelled: &dyn Fn() -> bool) {
        const LOOK: Duration = Duration::from_millis(100);
        let taken = self.list().into_iter().find_map(|one| match one.what {
            What::Pause(when, seconds) if when == moment && one.pool == pool => {
                Some((one.id, seconds))
            }
            _ => None,
        });
        let Some((id, seconds)) = taken else { return };
        let least = Duration::from_secs(seconds);
        let is_listed = || self.all.lock().1.iter().any(|one| one.id == id);
        while !cancelled() && is_listed() {
            let left = least.saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
        self.clear(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_vdev::injection::{DeviceError, IoKind};

    fn fault() -> What {
        let handler = DeviceHandler::fails(DeviceError::Io, IoKind::All, u32::MAX);
        What::Device { vdev: 1, kind: "all", error: "io", handler }
    }

    fn ids(all: &Injections) -> Vec<u64> {
        all.list().iter().map(|one| one.id).collect()
    }

    #[test]
    fn handlers_go_with_their_pool_in_two_steps() {
        let all = Injections::default();
        let (device, other) = (all.add("tank", fault()), all.add("other", fault()));
        let export = all.add("tank", What::Pause(Moment::Export, 600));
        let import = all.add("tank", What::Pause(Moment::Import, 600));
        all.clear_faults("tank");
        assert_eq!(ids(&all), [other, export, import]);
        all.clear_pool("tank");
        assert_eq!(ids(&all), [other, import]);
        assert!(!all.clear(device));
        all.clear_all();
        assert!(ids(&all).is_empty());
    }

    #[test]
    fn a_pause_ends_when_it_is_cleared() {
        let all = Injections::default();
        let id = all.add("tank", What::Pause(Moment::Export, 600));
        let began = Instant::now();
        std::thread::scope(|scope| {
            let pauses = scope.spawn(|| all.pause("tank", Moment::Export, began, &|| false));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!pauses.is_finished() && all.clear(id));
        });
        assert!(began.elapsed() < Duration::from_secs(300));
    }
}
