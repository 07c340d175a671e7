//! Work on all pools (`zpool import -a`, `zpool export -a`, the end of the daemon): what waits for the devices of one pool keeps no
//! other pool waiting.
//!
//! Each pool has a thread. The next one begins when that is done, or has taken long; then it is named, and what it still does
//! goes on beside the others. In the end all are waited for. (OpenZFS begins all of them at once, in a task queue.) What the
//! threads print passes through the thread of the command, and a pool that they have changed is what the command has changed.
//!
//! Invariant: as long as no pool takes long, pools come one after the other, in the order in which they are given.

use crate::context::{Context, Streams};
use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a command waits for a pool before the next one begins.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a thread tells the one of the command.
enum Told {
    Out(Vec<u8>),
    Err(Vec<u8>),
    /// The pool of this number is done with.
    Done(usize),
}

/// A stream of a thread's output.
struct Pipe(Sender<Told>, fn(Vec<u8>) -> Told);

impl Write for Pipe {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let told = self.0.send(self.1(data.to_vec()));
        told.map(|()| data.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells that a thread is done, also by a panic.
struct Tells(Sender<Told>, usize);

impl Drop for Tells {
    fn drop(&mut self) {
        // The thread of the command waits for it.
        let _ = self.0.send(Told::Done(self.1));
    }
}

/// A pool that a thread works on.
struct Busy {
    number: usize,
    since: Instant,
    named: bool,
}

/// Does `work` for each pool; `doing` says what that is, and `name` the pool's name. The next one begins when a pool is done, or has
/// taken as long as `patience`. Returns what came of each; once the command is cancelled no other one begins.
pub fn each<T: Sync, R: Send>(
    ctx: &mut Context,
    (doing, pools, patience): (&str, &[T], Duration),
    name: impl Fn(&T) -> &str,
    work: impl Fn(&T, &mut Context) -> R + Sync,
) -> Vec<R> {
    let ((tell, told), work) = (channel(), &work);
    thread::scope(|scope| {
        let (mut threads, mut busy) = (Vec::new(), Vec::<Busy>::new());
        let mut left = pools.iter().enumerate().peekable();
        loop {
            let holds_up = busy.iter().any(|one| !one.named);
            if !holds_up && let Some((number, pool)) = left.next_if(|_| !ctx.cancelled()) {
                let (out, err) = (Pipe(tell.clone(), Told::Out), Pipe(tell.clone(), Told::Err));
                let mut own = ctx.beside(Streams { out: Box::new(out), err: Box::new(err) });
                let tells = Tells(tell.clone(), number);
                threads.push(scope.spawn(move || {
                    let _tells = tells;
                    let done = work(pool, &mut own);
                    (done, own.take_changed())
                }));
                busy.push(Busy { number, since: Instant::now(), named: false });
            }
            if busy.is_empty() {
                break;
            }
            for one in busy.iter_mut().filter(|one| !one.named && one.since.elapsed() >= patience) {
                one.named = true;
                let name = pools.get(one.number).map_or("", &name);
                ctx.complain(format_args!("still {doing} '{name}': devices may not answer"));
            }
            match told.recv_timeout(patience / 100) {
                // A client that has gone reads nothing more; the work goes on.
                Ok(Told::Out(data)) => drop(ctx.out.raw().write_all(&data)),
                Ok(Told::Err(data)) => drop(ctx.err.raw().write_all(&data)),
                Ok(Told::Done(number)) => busy.retain(|one| one.number != number),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        let mut done = Vec::with_capacity(threads.len());
        for thread in threads {
            let (one, changed) = match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            changed.iter().for_each(|pool| ctx.changed(pool));
            done.push(one);
        }
        done
    })
}
