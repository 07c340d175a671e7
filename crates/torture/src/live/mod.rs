//! Pools that are written to, against a model of what they should hold.
//!
//! | room | what |
//! |---|---|
//! | [`disk`] | disks in memory, and what a crash leaves of them |
//! | [`damage`] | blocks of such a disk that cannot be read, and bits that are wrong |
//! | [`lab`] | making and importing pools of such disks; OpenZFS's judgement |
//! | [`setup`] | a model of what a pool is made of |
//! | [`model`] | a model of a pool: that, and its datasets |
//! | [`driver`] | random changes to both, all from one seed |
//! | [`crash`] | crashes at any point, and what comes after |
//! | [`space`] | whether what is counted adds up |
//! | [`lacks`] | what disks lack, which dirty time logs have to know |
//! | [`world`], [`block`] | a file system, a volume: changed at random, made stable in all ways, with their models |
//! | [`history`] | what a crash may leave of these |
//! | [`dedup`] | contents that come again, and what deduplication tables count |
//! | [`tree`] | trees of snapshots and clones: a model, and random changes |

pub mod block;
pub mod crash;
pub mod damage;
pub mod dedup;
pub mod disk;
pub mod driver;
pub mod history;
pub mod lab;
pub mod lacks;
pub mod model;
pub mod setup;
pub mod space;
pub mod tree;
pub mod world;

pub use cenote_testfiles::Verdict;
pub(crate) use cenote_testfiles::demand;

/// How many operations the disks of a pool have done.
pub type Moment = std::sync::Arc<dyn Fn() -> usize + Send + Sync>;

/// Why work stopped: something failed that may fail only where the power went.
#[derive(Clone, Debug)]
pub struct Stopped(pub String);

impl<E: std::error::Error> From<E> for Stopped {
    fn from(e: E) -> Stopped {
        Stopped(e.to_string())
    }
}

/// Runs `test` for each item, on two threads: the tests of a workspace share the machine. A failure
/// ends it.
pub fn side_by_side<T: Send>(items: impl Iterator<Item = T> + Send, test: impl Fn(T) + Sync) {
    let items = parking_lot::Mutex::new(items);
    let work = || {
        loop {
            let next = items.lock().next();
            match next {
                Some(item) => test(item),
                None => break,
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        if let Err(e) = other.join() {
            std::panic::resume_unwind(e);
        }
    });
}
