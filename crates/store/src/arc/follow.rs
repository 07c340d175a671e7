//! How large the cache is.
//!
//! A cache of a program's own ([`ArcCache::new`]) has the size that it was given. The one of the process is between
//! `zfs_arc_min` and `zfs_arc_max`. Where no thread follows memory, in tools and programs that embed the engine, it is as
//! large as the latter, by default [`MODEST`].
//!
//! A daemon follows memory ([`start`], `arc_adapt`, `arc_reap`): a thread looks every [`TICK`] at what is available, to the
//! system and within the control groups of the process, and at what the kernel tells of pressure. The budget is what
//! the cache takes and what is available, less a reserve (`zfs_arc_sys_free`). Where that cannot be found out for once, the cache does not
//! grow. Where that is less than the cache takes, entries are
//! evicted and their memory is given back to the system at once. Under pressure, when programs waited for memory for a
//! tenth of the time, the cache gives up an eighth of what it takes, and does not grow for [`NO_GROWTH`]. While more than a
//! half of the memory is available, programs wait for the kernel to find it, and the cache need not give it.
//!
//! The kernel wakes the thread when there is pressure, if it lets the process ask for that (a trigger: root may, and since
//! Linux 6.5 all users with windows of two seconds); else the thread reads how long programs waited.
//!
//! Invariant: `min <= budget <= max` once it was followed, but while a cache that has become too large is being emptied.

use super::ArcCache;
use crate::memory::{self, Places, Pressure};
use crate::tunables::{ARC_MAX, ARC_MIN, ARC_SYS_FREE};
use cenote_format::invariant::caught;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// How often memory is looked at while the cache takes more than its least.
const TICK: Duration = Duration::from_millis(500);
/// The same while it does not.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// How long the cache does not grow after there was pressure (`arc_grow_retry`).
const NO_GROWTH: Duration = Duration::from_secs(5);
/// Share of the cache that is given up under pressure, as a divisor.
const GIVEN_UP: u64 = 8;

/// Bytes of the cache of the process where no thread follows memory.
pub const MODEST: u64 = 256 << 20;
/// Least that any bound is.
const LEAST: u64 = 1 << 20;
/// Least of what a daemon's cache shrinks to, where the tunable does not say.
const LEAST_MIN: u64 = 32 << 20;
/// Eviction of less than this gives nothing back to the system.
const WORTH_GIVING_BACK: u64 = 1 << 20;
/// How often memory that nothing uses is given back, where memory is short and nothing was evicted.
const BETWEEN_GIVING_BACK: Duration = Duration::from_secs(1);

/// How memory was followed, named as OpenZFS's `arcstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Whether the cache does not grow for now (`arc_no_grow`).
    pub no_grow: bool,
    /// Bytes that were missing to the reserve (`arc_need_free`).
    pub need_free: u64,
    /// Times that the kernel told of pressure (`memory_direct_count`).
    pub direct: u64,
    /// Times that less was available than the reserve (`memory_indirect_count`).
    pub indirect: u64,
    /// Memory that is to stay available, bytes (`arc_sys_free`).
    pub sys_free: u64,
}

/// Between what sizes a cache is, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub min: u64,
    pub max: u64,
}

impl Bounds {
    /// As the tunables say now (`arc_set_limits`); `follows`: where they do not, a half of the `usable` memory.
    fn now(usable: Option<u64>, follows: bool) -> Bounds {
        Bounds::of(ARC_MIN.get(), ARC_MAX.get(), usable, follows)
    }

    /// As the tunables say now, where no thread follows memory.
    pub fn modest() -> Bounds {
        Bounds::now(memory::usable_memory(), false)
    }

    fn of(min: u64, max: u64, usable: Option<u64>, follows: bool) -> Bounds {
        let usable = usable.unwrap_or(2 * MODEST);
        let max = match max {
            0 if follows => usable / 2,
            0 => MODEST.min(usable / 2),
            max => max,
        };
        let max = max.max(LEAST);
        let min = if min == 0 { (usable / 32).max(LEAST_MIN).min(usable / 2) } else { min };
        Bounds { min: min.clamp(LEAST, max), max }
    }
}

/// What a cache knows of its size.
pub(super) struct Following {
    /// The bounds of one of a program's own; else tunables say them.
    given: Option<Bounds>,
    /// A thread follows memory for it.
    by_memory: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Until when the cache does not grow.
    no_growth: Option<Instant>,
    followed: Followed,
    /// Bytes of memory that the process could have at the last tick.
    usable: Option<u64>,
    /// It could be found out before how much memory is available.
    was_available: bool,
    /// Memory is short, by what was found at the last tick.
    short: bool,
    /// When memory that nothing uses was given back.
    given_back: Option<Instant>,
}

/// What is known at a tick.
#[derive(Clone, Copy, Debug)]
struct Look {
    now: Instant,
    bounds: Bounds,
    /// Bytes that the cache takes.
    taken: u64,
    /// Bytes available to the process; `None`: that cannot be found out.
    available: Option<u64>,
    /// Bytes that are to stay available.
    reserve: u64,
    /// Bytes of which there is enough.
    plenty: u64,
    pressed: bool,
}

impl State {
    /// So many bytes of memory the process can have; where that could not be found out, as many as before.
    fn note_usable(&mut self, usable: Option<u64>) {
        self.usable = usable.or(self.usable);
    }

    /// The budget from now on.
    fn budget(&mut self, look: &Look) -> u64 {
        let Bounds { min, max } = look.bounds;
        let mut budget = max;
        (self.followed.need_free, self.followed.sys_free) = (0, look.reserve);
        self.short = false;
        if let Some(available) = look.available {
            let reserve = look.reserve;
            if available < reserve {
                let missing = reserve - available;
                self.followed.need_free = missing;
                self.followed.indirect += 1;
                self.short = true;
                budget = look.taken - missing.min(look.taken);
            } else {
                budget = budget.min(look.taken.saturating_add(available - reserve));
            }
            self.was_available = true;
        } else if self.was_available {
            // For this once it could not be found out.
            budget = budget.min(look.taken);
        }
        if look.pressed && look.available.is_none_or(|available| available <= look.plenty) {
            self.followed.direct += 1;
            self.short = true;
            self.no_growth = Some(look.now + NO_GROWTH);
            budget = budget.min(look.taken - look.taken / GIVEN_UP);
        }
        self.no_growth = self.no_growth.filter(|until| look.now < *until);
        self.followed.no_grow = self.no_growth.is_some();
        if self.followed.no_grow {
            budget = budget.min(look.taken);
        }
        budget.clamp(min, max)
    }

    /// Whether to give memory back now that eviction left so many bytes of it (`arc_kmem_reap_soon`): where that is worth it,
    /// and once a second where memory is short.
    fn gives_back(&mut self, bytes: u64, now: Instant) -> bool {
        let lately = self.given_back.is_some_and(|at| now < at + BETWEEN_GIVING_BACK);
        let gives = bytes >= WORTH_GIVING_BACK || self.short && !lately;
        if gives {
            self.given_back = Some(now);
        }
        gives
    }
}

impl Following {
    pub fn given(bounds: Bounds) -> Following {
        Following { given: Some(bounds), ..Following::tunables() }
    }

    pub fn tunables() -> Following {
        Following { given: None, by_memory: AtomicBool::new(false), state: Mutex::default() }
    }

    fn bounds(&self) -> Bounds {
        self.given.unwrap_or_else(|| Bounds::now(self.usable(), self.by_memory.load(Relaxed)))
    }

    /// Bytes of memory that the process can have, as far as that is known.
    fn usable(&self) -> Option<u64> {
        self.state.lock().usable.or_else(memory::usable_memory)
    }

    /// Least and most of the budget, and how memory was followed.
    pub fn figures(&self) -> (u64, u64, Followed) {
        let Bounds { min, max } = self.bounds();
        (min, max, self.state.lock().followed)
    }
}

/// Bytes that are to stay available of so many that the process can have (`arc_sys_free`).
fn reserve(usable: Option<u64>) -> u64 {
    match ARC_SYS_FREE.get() {
        0 => usable.unwrap_or(0) / 32,
        bytes => bytes,
    }
}

impl ArcCache {
    /// Takes the size that tunables say now, unless a thread follows memory (`arc_tuning_update`): that does it.
    pub(super) fn follow_tunables(&self) {
        if !self.following.by_memory.load(Relaxed) {
            self.take_size(None, false);
        }
    }

    /// Takes the size that tunables and memory say now (`arc_reclaim_needed`, `arc_reduce_target_size`). How long the next
    /// look may take.
    fn follow_memory(&self, places: &Places, pressed: bool) -> Duration {
        self.following.by_memory.store(true, Relaxed);
        let memory = places.memory();
        // Other limits go by what is left to the process as well.
        if places.are_own() {
            memory::set_usable(memory.usable);
        }
        self.following.state.lock().note_usable(memory.usable);
        let (before, after) = self.take_size(memory.available, pressed);
        // What other pools or readers have left goes as well.
        self.tidy();
        let compacted = self.compact();
        let (evicted, now) = (before.saturating_sub(after), Instant::now());
        if self.following.state.lock().gives_back(evicted, now) || compacted {
            memory::give_back();
        } else {
            memory::decay();
        }
        if after > self.following.bounds().min { TICK } else { IDLE_TICK }
    }

    /// Takes a new size. What the cache took before, and takes at most then.
    fn take_size(&self, available: Option<u64>, pressed: bool) -> (u64, u64) {
        let (taken, budget) = self.taken_of();
        let (bounds, usable, now) =
            (self.following.bounds(), self.following.usable(), Instant::now());
        let (reserve, plenty) = (reserve(usable), usable.map_or(u64::MAX, |all| all / 2));
        let look = Look { now, bounds, taken, available, reserve, plenty, pressed };
        let want = self.following.state.lock().budget(&look);
        if want != budget {
            self.resize(want);
        }
        (taken, taken.min(want))
    }
}

/// Has the cache of this process follow memory from now on.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let places = Places::default();
        ArcCache::of_process().follow_memory(&places, false);
        let run = move || keep_following(ArcCache::of_process, &places, || true);
        let thread = std::thread::Builder::new().name("arc-memory".into());
        if let Err(e) = thread.spawn(run) {
            tracing::warn!("the cache does not follow memory: {e}");
        }
    });
}

/// Has a cache follow memory as long as that `goes_on`.
fn keep_following(cache: impl Fn() -> Arc<ArcCache>, places: &Places, goes_on: impl Fn() -> bool) {
    let mut pressure = Pressure::open(places);
    let mut tick = TICK;
    while goes_on() {
        let pressed = pressure.wait(tick);
        // What is found wrong was told to the pools.
        match caught(|| cache().follow_memory(places, pressed)) {
            Ok(next) => tick = next,
            Err(why) => tracing::error!("the cache did not follow memory: {why}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::arc::{Access, Key, Name};
    use cenote_format::abd::Abd;
    use std::fs;
    use std::sync::atomic::AtomicU64;

    const MIB: u64 = 1 << 20;

    fn look(taken: u64, available: u64) -> Look {
        let bounds = Bounds { min: 32 * MIB, max: 1024 * MIB };
        let available = Some(available * MIB);
        let (taken, reserve) = (taken * MIB, 100 * MIB);
        let (now, plenty, pressed) = (Instant::now(), 8 * 1024 * MIB, false);
        Look { now, bounds, taken, available, reserve, plenty, pressed }
    }

    #[test]
    fn tunables_say_between_what_it_is() {
        let of = |min, max, usable, follows| {
            let Bounds { min, max } = Bounds::of(min * MIB, max * MIB, usable, follows);
            (min / MIB, max / MIB)
        };
        let all = Some(16 * 1024 * MIB);
        assert_eq!(of(0, 0, all, true), (512, 8192));
        assert_eq!(of(0, 0, all, false), (256, 256));
        assert_eq!(of(64, 2048, all, true), (64, 2048));
        // More at least than at most: the most counts.
        assert_eq!(of(4096, 2048, all, true), (2048, 2048));
        assert_eq!(of(0, 0, Some(128 * MIB), true), (32, 64));
        assert_eq!(of(0, 0, Some(40 * MIB), true), (20, 20));
        assert_eq!(of(0, 0, Some(128 * MIB), false), (32, 64));
        assert_eq!(Bounds::of(1, 1, None, true), Bounds { min: LEAST, max: LEAST });
    }

    #[test]
    fn it_takes_what_is_available_and_gives_back_what_is_missing() {
        let mut state = State::default();
        let mut budget = |taken, available| state.budget(&look(taken, available)) / MIB;
        assert_eq!(budget(10, 5000), 1024);
        assert_eq!(budget(10, 300), 210);
        assert_eq!(budget(500, 100), 500);
        assert_eq!(budget(500, 60), 460);
        assert_eq!(budget(500, 0), 400);
        assert_eq!(budget(100, 0), 32);
        assert_eq!(state.followed.indirect, 3);
        assert_eq!(state.followed.need_free, 100 * MIB);
        // Where it cannot be found out this once, it does not grow; where it never can, tunables count alone.
        let unknown = Look { available: None, ..look(300, 0) };
        assert_eq!(state.budget(&unknown), 300 * MIB);
        assert_eq!(State::default().budget(&unknown), 1024 * MIB);
        state.note_usable(Some(7));
        state.note_usable(None);
        assert_eq!(state.usable, Some(7));
    }

    #[test]
    fn pressure_takes_an_eighth_and_stops_growth_for_a_while() {
        let mut state = State::default();
        let first = Look { pressed: true, ..look(800, 5000) };
        assert_eq!(state.budget(&first) / MIB, 700);
        let at = |after, taken| Look { now: first.now + after, ..look(taken, 5000) };
        assert_eq!(state.budget(&at(NO_GROWTH / 2, 690)) / MIB, 690);
        assert!(state.followed.no_grow);
        assert_eq!(state.budget(&at(NO_GROWTH, 690)) / MIB, 1024);
        assert!(!state.followed.no_grow);
        assert_eq!(state.followed.direct, 1);
        // Where there is plenty of memory it is nothing that the cache could end.
        let plenty = Look { pressed: true, ..look(800, 8193) };
        assert_eq!((state.budget(&plenty) / MIB, state.followed.direct), (1024, 1));
        let unknown = Look { available: None, ..first };
        assert_eq!((state.budget(&unknown) / MIB, state.followed.direct), (700, 2));
        // It never goes below the least.
        let least = Look { pressed: true, ..look(33, 5000) };
        assert_eq!(state.budget(&least) / MIB, 32);
        let mut taken = 800;
        for _ in 0..10 {
            taken = state.budget(&look(taken, 0)) / MIB;
        }
        assert_eq!(taken, 32);
    }

    #[test]
    fn memory_is_given_back_once_a_second_where_it_is_short() {
        let (mut state, now) = (State::default(), Instant::now());
        assert!(!state.gives_back(0, now));
        state.budget(&look(32, 50));
        assert!(state.gives_back(0, now) && !state.gives_back(0, now + TICK));
        assert!(state.gives_back(WORTH_GIVING_BACK, now + TICK));
        assert!(!state.gives_back(0, now + BETWEEN_GIVING_BACK));
        assert!(state.gives_back(0, now + TICK + BETWEEN_GIVING_BACK));
        state.budget(&look(32, 150));
        assert!(!state.gives_back(0, now + Duration::from_secs(60)));
        // Pressure that the cache could not end is nothing that is short.
        state.budget(&Look { pressed: true, ..look(32, 8193) });
        assert!(!state.gives_back(0, now + Duration::from_secs(60)));
    }

    /// A limit that is lowered at run time counts from then on.
    #[test]
    fn bounds_go_by_the_limits_of_now() {
        let system = System::new();
        let cache = ArcCache::of_tunables();
        cache.follow_memory(&system.places(), false);
        let (min, max, followed) = cache.following.figures();
        assert_eq!((min / MIB, max / MIB, followed.sys_free / MIB), (128, 2048, 128));
        system.says("groups/g/memory.max", &format!("{}\n", 256 * MIB));
        system.says("groups/g/memory.current", &format!("{}\n", 100 * MIB));
        cache.follow_memory(&system.places(), false);
        let (min, max, followed) = cache.following.figures();
        assert_eq!((min / MIB, max / MIB, followed.sys_free / MIB), (32, 128, 8));
        assert!(cache.stats().c <= 128 * MIB);
    }

    const LIMIT: u64 = 4096 * MIB;
    const RESERVE: u64 = LIMIT / 32;

    /// A system of files, with the process in a group that may take [`LIMIT`].
    struct System(tempfile::TempDir);

    impl System {
        fn new() -> System {
            let system = System(tempfile::tempdir().unwrap());
            system.says("proc/self/cgroup", "0::/g\n");
            system.says("groups/g/memory.max", &format!("{LIMIT}\n"));
            system.leaves(1 << 30);
            system.has_left(1 << 30);
            system.waited(0);
            system
        }

        fn says(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // At once, as the reader does not wait for the rest.
            let new = self.0.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, path).unwrap();
        }

        /// So much more than the reserve is available to the system, in bytes.
        fn leaves(&self, more: i64) {
            let kib = RESERVE.strict_add_signed(more).div_ceil(1024);
            self.says("proc/meminfo", &format!("MemTotal: 99999999 kB\nMemAvailable: {kib} kB\n"));
        }

        /// So much more than the reserve is left of what the group may take.
        fn has_left(&self, more: i64) {
            let taken = (LIMIT - RESERVE).strict_add_signed(-more);
            self.says("groups/g/memory.current", &format!("{taken}\n"));
        }

        /// Programs of the group have waited so long.
        fn waited(&self, micros: u64) {
            let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={micros}\n");
            self.says("groups/g/memory.pressure", &line);
        }

        fn places(&self) -> Places {
            Places { proc: self.0.path().join("proc"), groups: self.0.path().join("groups") }
        }
    }

    fn fill(arc: &ArcCache) {
        for n in 0..1000 {
            let name = Name::block(1, &Key { dva0: 1, dva1: n, birth: 7 });
            arc.insert(name, Abd::from_vec(vec![1; 64 << 10]), false, Access::Demand);
        }
        assert!(arc.stats().taken() >= FILLED);
    }

    /// Waits: for a second at most, and for another one where the machine has other work.
    fn soon(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(2), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Has the follower stop, also where the test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    const FILLED: u64 = 60 * MIB;

    /// What is missing to the system or the group, and what pressure asks for; it is given back to the system, too.
    #[test]
    fn memory_is_given_back_within_a_second() {
        static PURGED: AtomicU64 = AtomicU64::new(0);
        let purge = || {
            PURGED.fetch_add(1, Relaxed);
        };
        memory::use_allocator(memory::Allocator { decay: || {}, purge });
        let purged = || PURGED.load(Relaxed);
        let (system, done) = (System::new(), AtomicBool::new(false));
        let places = system.places();
        let arc = ArcCache::within(Bounds { min: 8 * MIB, max: 100 * MIB });
        let taken = || arc.stats().taken();
        std::thread::scope(|scope| {
            let _stop = Stop(&done);
            scope.spawn(|| keep_following(|| arc.clone(), &places, || !done.load(Relaxed)));
            for set in [System::leaves as fn(&System, i64), System::has_left] {
                fill(&arc);
                let before = (purged(), arc.stats().memory.indirect);
                set(&system, 0);
                soon("no growth", || arc.stats().c < 100 * MIB);
                assert!(taken() >= FILLED && (purged(), arc.stats().memory.indirect) == before);
                set(&system, -(20 << 20));
                soon("what is missing", || taken() <= FILLED - 15 * MIB && purged() > before.0);
                assert!(arc.stats().memory.indirect > before.1);
                set(&system, 1 << 30);
                soon("growth", || arc.stats().c == 100 * MIB);
            }
            fill(&arc);
            let (before, direct) = (purged(), arc.stats().memory.direct);
            system.leaves(1 << 20);
            system.waited(10_000_000);
            soon("pressure", || taken() <= FILLED && purged() > before);
            let stats = arc.stats();
            assert!(stats.memory.no_grow && stats.c <= FILLED, "{stats:?}");
            assert_eq!(stats.memory.direct, direct + 1);
        });
    }
}
