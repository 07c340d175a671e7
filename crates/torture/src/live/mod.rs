//! Pools that are written to, against a model of what they should hold.
//!
//! | room | what |
//! |---|---|
//! | [`disk`] | disks in memory, and what a crash leaves of them |
//! | [`damage`] | blocks of such a disk that cannot be read |
//! | [`lab`] | making and importing pools of such disks; OpenZFS's judgement |
//! | [`files`] | a model of a file system |
//! | [`setup`] | a model of what a pool is made of |
//! | [`model`] | a model of a pool: that, and its datasets |
//! | [`driver`] | random changes to both, all from one seed |
//! | [`crash`] | crashes at any point, and what comes after |
//! | [`space`] | whether what is counted adds up |
//! | [`tree`] | trees of snapshots and clones: a model, and random changes |

pub mod crash;
pub mod damage;
pub mod disk;
pub mod driver;
pub mod files;
pub mod lab;
pub mod model;
pub mod setup;
pub mod space;
pub mod tree;

/// Why something is not as it should be.
pub type Verdict = Result<(), String>;

/// Refuses with a message unless something holds.
macro_rules! demand {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}
pub(crate) use demand;

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
