//! The functions of the C library that threads block, sleep, start and end by, and those for time and chance: here they
//! lead to the [`Schedule`].
//!
//! # Why this is sound
//!
//! - Each function has the signature of the C library's, does what that promises, and is it, called by `dlsym`, for
//!   every thread that does not take part in a simulation. `syscall` is variadic there: on the
//!   architectures that this is built for, integers and pointers are passed to variadic functions as to others, in six registers
//!   at most, and the kernel takes no more.
//! - Arguments are pointers that the caller owes the C library's function: they are read and written as that does.
//! - The [`Schedule`] is reached by a pointer that lives as long as the process. Only the thread with the baton uses it. A
//!   thread gets the baton by its `go`, which another one sets with `Release` and the kernel's `futex` wakes; it reads
//!   it with `Acquire`. So uses of the schedule are ordered, and a reference to it never outlives the baton: none is held while
//!   the baton is handed over ([`give`]).
//! - A thread ends by the destructor of a key, which the C library calls after those of Rust's thread locals.

#![allow(unsafe_code)]

use super::{Ran, Schedule, State, Stuck};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// The schedule, while a history runs.
static SCHEDULE: AtomicPtr<Schedule> = AtomicPtr::new(null_mut());
/// The key whose destructor ends a thread, and one more; 0: there is none yet.
static KEY: AtomicU32 = AtomicU32::new(0);
/// The number of a thread that takes no part.
const OUTSIDE: usize = usize::MAX;

thread_local! {
    static ME: Cell<usize> = const { Cell::new(OUTSIDE) };
}

/// A function of the C library, by name; looked up once.
struct Real(AtomicUsize, &'static CStr);

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real(AtomicUsize::new(0), name)
    }

    fn address(&self) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) } as usize;
        if found == 0 {
            std::process::abort();
        }
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls a function of the C library.
macro_rules! real {
    ($name:literal, fn($($of:ty),*) -> $to:ty, $($arg:expr),*) => {{
        static REAL: Real = Real::new($name);
        // SAFETY: the C library's function of this name has this signature, and the caller's arguments are meant for it.
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn($($of),*) -> $to>(REAL.address())($($arg),*)
        }
    }};
}

type Six = [usize; 6];

fn kernel(number: c_long, a: Six) -> c_long {
    real!(
        c"syscall",
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        number,
        a[0],
        a[1],
        a[2],
        a[3],
        a[4],
        a[5]
    )
}

/// The number of this thread, if it takes part in a history that runs.
fn me() -> Option<usize> {
    let me = ME.get();
    (me != OUTSIDE && !SCHEDULE.load(Ordering::Acquire).is_null()).then_some(me)
}

/// Uses the schedule. Only for the thread that has the baton.
fn with<T>(f: impl FnOnce(&mut Schedule) -> T) -> T {
    // SAFETY: it lives as long as the process, and the thread with the baton is the only one here; `f` calls nothing that
    // comes back here.
    f(unsafe { &mut *SCHEDULE.load(Ordering::Acquire) })
}

/// Waits for the baton.
fn await_baton(go: *const AtomicU32) {
    loop {
        // SAFETY: the schedule keeps it in a box of its own, as long as the process lives.
        let has = unsafe { &*go }.swap(0, Ordering::Acquire);
        if has == 1 {
            return await_end();
        }
        let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
        kernel(libc::SYS_futex, [go as usize, wait, 0, 0, 0, 0]);
    }
}

/// Waits until a thread is gone that handed over the baton for good.
fn await_end() {
    let Some(thread) = with(|s| s.gone.take()) else { return };
    let process = kernel(libc::SYS_getpid, [0; 6]) as usize;
    while kernel(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0]) == 0 {
        std::hint::spin_loop();
    }
}

fn give(go: *const AtomicU32) {
    // SAFETY: as in `await_baton`.
    unsafe { &*go }.store(1, Ordering::Release);
    let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    kernel(libc::SYS_futex, [go as usize, wake, 1, 0, 0, 0]);
}

fn go_of(schedule: &Schedule, which: usize) -> *const AtomicU32 {
    match schedule.threads.get(which) {
        Some(thread) => &raw const *thread.go,
        None => std::process::abort(),
    }
}

/// The thread that is next: `None` if it is the present one.
fn next(me: usize) -> Option<*const AtomicU32> {
    let picked = with(|s| match s.pick() {
        Ok(next) => {
            s.current = next;
            Ok((next != me).then(|| go_of(s, next)))
        }
        Err(why) => Err(why),
    });
    picked.unwrap_or_else(|why| stuck(&why))
}

/// Hands the baton over, and waits until it comes back.
fn switch(me: usize) {
    if let Some(next) = next(me) {
        let own = with(|s| go_of(s, me));
        give(next);
        await_baton(own);
    }
}

/// Sets what the present thread does, and lets others run until that is over. Whether its time was over before.
fn block(me: usize, state: State) -> bool {
    with(|s| {
        if s.traces {
            eprintln!("{me}: {state:x?}");
        }
    });
    with(|s| {
        if let Some(thread) = s.threads.get_mut(me) {
            (thread.state, thread.timed_out) = (state, false);
        }
    });
    switch(me);
    with(|s| s.threads.get(me).is_some_and(|t| t.timed_out))
}

/// The history cannot go on.
fn stuck(why: &Stuck) -> ! {
    let (all, last) = with(|s| {
        let all: Vec<_> = s.threads.iter().map(|t| (t.state, t.handle)).collect();
        (all, s.last.clone())
    });
    SCHEDULE.store(null_mut(), Ordering::Release);
    let mut told = format!("{why:?}: all threads wait, or none gets any further\n");
    for (number, (state, handle)) in all.iter().enumerate().filter(|(_, t)| t.0 != State::Done) {
        told.push_str(&format!("  thread {number} {:?}: {state:?}\n", text(&name_of(*handle))));
    }
    told.push_str(&format!("  the last that ran: {last:?}\n"));
    let _ = std::io::stderr().write_all(told.as_bytes());
    // SAFETY: it ends the process.
    unsafe { libc::_exit(super::super::STUCK) }
}

fn name_of(handle: u64) -> [u8; 16] {
    let mut name = [0_u8; 16];
    // SAFETY: the buffer has the length that is said, and the thread is there.
    unsafe { libc::pthread_getname_np(handle, name.as_mut_ptr().cast::<c_char>(), name.len()) };
    name
}

fn text(name: &[u8]) -> String {
    CStr::from_bytes_until_nul(name).unwrap_or(c"").to_string_lossy().into_owned()
}

/// Lets another thread run, or not. For devices, where something takes time.
pub fn point() {
    if let Some(me) = me()
        && with(Schedule::gives_way)
    {
        switch(me);
    }
}

fn fail(error: c_int) -> c_int {
    // SAFETY: it is the present thread's.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Nanoseconds of a time.
fn nanoseconds(time: *const libc::timespec) -> u64 {
    // SAFETY: the caller's, as the C library's function asks for it.
    let time = unsafe { &*time };
    (time.tv_sec as u64).saturating_mul(super::SECOND).saturating_add(time.tv_nsec as u64)
}

/// When a wait ends that was asked for with `timeout`.
fn deadline(operation: c_int, timeout: usize) -> Option<u64> {
    let timeout = timeout as *const libc::timespec;
    if timeout.is_null() {
        return None;
    }
    let time = nanoseconds(timeout);
    let absolute = operation & libc::FUTEX_CMD_MASK == libc::FUTEX_WAIT_BITSET;
    Some(match absolute {
        false => with(|s| s.now).saturating_add(time),
        true => {
            let real = operation & libc::FUTEX_CLOCK_REALTIME != 0;
            let began = if real { super::EPOCH } else { 1000 };
            time.saturating_sub(began * super::SECOND)
        }
    })
}

fn futex(me: usize, a: Six) -> c_long {
    let [at, operation, value, timeout, _, bits] = a;
    let (operation, value) = (operation as c_int, value as u32);
    let command = operation & libc::FUTEX_CMD_MASK;
    let has_bits = [libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAKE_BITSET].contains(&command);
    let bits = if has_bits { bits as u32 } else { u32::MAX };
    match command {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            // SAFETY: the caller's, as the kernel's call asks for it.
            let now = unsafe { &*(at as *const AtomicU32) }.load(Ordering::SeqCst);
            if now != value {
                return fail(libc::EAGAIN).into();
            }
            let until = deadline(operation, timeout);
            match block(me, State::Waits { at, bits, until }) {
                true => fail(libc::ETIMEDOUT).into(),
                false => 0,
            }
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let most = usize::try_from(value as i32).unwrap_or(0);
            let woken = with(|s| s.wake(at, bits, most));
            if woken > 0 {
                point();
            }
            woken as c_long
        }
        _ => {
            let _ = std::io::stderr().write_all(b"a futex that the simulator does not know\n");
            std::process::abort();
        }
    }
}

/// Threads wait here for descriptors.
static DESCRIPTORS: AtomicU32 = AtomicU32::new(0);

fn descriptors() -> usize {
    (&raw const DESCRIPTORS) as usize
}

/// Waits for descriptors. They are those of this process, by which a runtime wakes its threads ([`write()`]): none of them becomes ready by
/// itself.
#[unsafe(no_mangle)]
extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let wait = |timeout: c_int| {
        real!(
            c"epoll_wait",
            fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
            epoll,
            events,
            most,
            timeout
        )
    };
    let Some(me) = me() else { return wait(timeout) };
    let time = u64::try_from(timeout).ok().map(|ms| ms.saturating_mul(1_000_000));
    let until = time.map(|time| with(|s| s.now).saturating_add(time));
    loop {
        let ready = wait(0);
        if ready != 0 || timeout == 0 {
            return ready;
        }
        let (at, bits) = (descriptors(), u32::MAX);
        if block(me, State::Waits { at, bits, until }) {
            return 0;
        }
    }
}

/// Threads that wait for descriptors look at them again. What wakes them writes eight bytes.
#[unsafe(no_mangle)]
extern "C" fn write(file: c_int, bytes: *const c_void, len: usize) -> isize {
    let written = real!(c"write", fn(c_int, *const c_void, usize) -> isize, file, bytes, len);
    if len == 8 && me().is_some() && with(|s| s.wake(descriptors(), u32::MAX, usize::MAX)) > 0 {
        point();
    }
    written
}

fn fill(buffer: *mut u8, len: usize) {
    for i in 0..len {
        let byte = with(|s| s.numbers.next()) as u8;
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe { buffer.add(i).write(byte) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let all = [a, b, c, d, e, f];
    match (me(), number) {
        (Some(me), libc::SYS_futex) => futex(me, all),
        (Some(_), libc::SYS_getrandom) => {
            fill(a as *mut u8, b);
            b as c_long
        }
        _ => kernel(number, all),
    }
}

#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize {
    if me().is_none() {
        return real!(c"getrandom", fn(*mut c_void, usize, c_uint) -> isize, buffer, len, flags);
    }
    fill(buffer.cast(), len);
    len as isize
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: c_int, time: *mut libc::timespec) -> c_int {
    if me().is_none() {
        return real!(c"clock_gettime", fn(c_int, *mut libc::timespec) -> c_int, clock, time);
    }
    let since_1970 = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_COARSE].contains(&clock);
    let (seconds, nanoseconds) = with(|s| s.time(since_1970));
    let now = libc::timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 };
    // SAFETY: the caller's.
    unsafe { time.write(now) };
    0
}

/// A process with the same number each time: what is written has it.
#[unsafe(no_mangle)]
extern "C" fn getpid() -> libc::pid_t {
    match me() {
        Some(_) => 1,
        None => real!(c"getpid", fn() -> libc::pid_t,),
    }
}

fn sleep(me: usize, time: u64) -> c_int {
    let until = with(|s| s.now).saturating_add(time);
    block(me, State::Sleeps { until });
    0
}

#[unsafe(no_mangle)]
extern "C" fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int {
    match me() {
        Some(me) => sleep(me, nanoseconds(time)),
        None => {
            real!(c"nanosleep", fn(*const libc::timespec, *mut libc::timespec) -> c_int, time, left)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    let Some(me) = me() else {
        return real!(
            c"clock_nanosleep",
            fn(c_int, c_int, *const libc::timespec, *mut libc::timespec) -> c_int,
            clock,
            flags,
            time,
            left
        );
    };
    if flags & libc::TIMER_ABSTIME == 0 {
        return sleep(me, nanoseconds(time));
    }
    let began = if clock == libc::CLOCK_REALTIME { super::EPOCH } else { 1000 };
    let until = nanoseconds(time).saturating_sub(began * super::SECOND);
    block(me, State::Sleeps { until });
    0
}

#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    match me() {
        Some(me) => switch(me),
        None => return real!(c"sched_yield", fn() -> c_int,),
    }
    0
}

/// Three processors, whatever there are.
#[unsafe(no_mangle)]
extern "C" fn sched_getaffinity(pid: libc::pid_t, len: usize, set: *mut libc::cpu_set_t) -> c_int {
    if me().is_none() {
        return real!(
            c"sched_getaffinity",
            fn(libc::pid_t, usize, *mut libc::cpu_set_t) -> c_int,
            pid,
            len,
            set
        );
    }
    // SAFETY: the caller's set has `len` bytes.
    unsafe {
        set.cast::<u8>().write_bytes(0, len);
        set.cast::<u8>().write(0b111);
    }
    0
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a new thread begins with.
struct Beginning {
    start: Start,
    argument: *mut c_void,
    number: usize,
    go: *const AtomicU32,
}

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    let beginning = beginning.cast::<Beginning>();
    // SAFETY: `pthread_create` below made it, for this thread alone.
    let (number, go) = unsafe { ((*beginning).number, (*beginning).go) };
    ME.set(number);
    // Nothing is allocated or given back before: others run.
    await_baton(go);
    // SAFETY: as above.
    let Beginning { start, argument, .. } = *unsafe { Box::from_raw(beginning) };
    // SAFETY: the key is there; the destructor is called for what is not null.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed) - 1, go.cast()) };
    start(argument)
}

/// A thread has ended; its thread locals are gone.
extern "C" fn end(_: *mut c_void) {
    let Some(me) = me() else { return };
    // SAFETY: always allowed.
    let (number, own) = unsafe { (libc::gettid(), libc::pthread_self()) };
    let name = name_of(own);
    with(|s| {
        s.end(me, name);
        s.gone = Some(number);
    });
    ME.set(OUTSIDE);
    if let Some(next) = next(me) {
        give(next);
    }
}

#[unsafe(no_mangle)]
extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let create = |start: Start, argument: *mut c_void| {
        real!(
            c"pthread_create",
            fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int,
            thread,
            attributes,
            start,
            argument
        )
    };
    let Some(me) = me() else { return create(start, argument) };
    let (number, go) = with(|s| {
        let number = s.add(0);
        (number, go_of(s, number))
    });
    let beginning = Box::into_raw(Box::new(Beginning { start, argument, number, go }));
    let done = create(begin, beginning.cast());
    if done != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(beginning) });
        with(|s| s.end(number, [0; 16]));
        return done;
    }
    // SAFETY: the caller's; it was written.
    let handle = unsafe { *thread };
    with(|s| {
        if let Some(thread) = s.threads.get_mut(number) {
            thread.handle = handle;
        }
    });
    if with(Schedule::gives_way) {
        switch(me);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn pthread_join(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int {
    if let Some(me) = me() {
        // Numbers of threads that ended may have been given out again: the last one is meant.
        let which = with(|s| s.threads.iter().rposition(|t| t.handle == thread));
        if let Some(which) = which
            && with(|s| s.threads.get(which).is_some_and(|t| t.state != State::Done))
        {
            block(me, State::Joins(which));
        }
    }
    real!(c"pthread_join", fn(libc::pthread_t, *mut *mut c_void) -> c_int, thread, value)
}

/// Begins this process anew, so that the kernel puts everything at the same addresses in each run: without chance, and
/// with nothing in the environment and no arguments but `asked`, in a variable of this name. Returns only if that is
/// not possible.
pub fn settle(name: &str, asked: &str) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: always allowed. What is asked for here counts from the next `exec` on; where it is not allowed two runs
    // of a seed may differ.
    unsafe {
        let now = libc::personality(ASK);
        libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
    }
    match std::env::current_exe() {
        Ok(exe) => std::process::Command::new(exe).env_clear().env(name, asked).exec(),
        Err(e) => e,
    }
}

/// Runs a history: `f` in a thread of its own, and all that it starts. Threads that are left are never heard of
/// again. Once in a process. Also returns the names of all threads. Every decision is told if `traces`.
pub fn run<T: Send>(
    (seed, traces): (u64, bool),
    f: impl FnOnce() -> T + Send,
) -> (std::thread::Result<T>, Ran, Vec<String>) {
    let mut key = 0;
    // SAFETY: the key is written, and the destructor is a function of that kind.
    unsafe { libc::pthread_key_create(&raw mut key, Some(end)) };
    KEY.store(key + 1, Ordering::Relaxed);
    let mut schedule = Box::new(Schedule::new(seed, traces));
    // SAFETY: always allowed.
    let own = schedule.add(unsafe { libc::pthread_self() });
    SCHEDULE.store(Box::into_raw(schedule), Ordering::Release);
    ME.set(own);
    let done = std::thread::scope(|scope| {
        let world = std::thread::Builder::new().name("world".into()).stack_size(16 << 20);
        match world.spawn_scoped(scope, f) {
            Ok(world) => world.join(),
            Err(e) => Err(Box::new(e) as Box<dyn std::any::Any + Send>),
        }
    });
    let (ran, all) = with(|s| {
        let all: Vec<_> = s.threads.iter().map(|t| (t.state, t.handle, t.name)).collect();
        (s.ran(), all)
    });
    ME.set(OUTSIDE);
    let named = |(state, handle, name): &(State, u64, [u8; 16])| match state {
        State::Done => text(name),
        _ => text(&name_of(*handle)),
    };
    (done, ran, all.iter().map(named).collect())
}
