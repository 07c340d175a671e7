//! Runs programs of the administrator as events come (OpenZFS's `zed`, the ZFS Event Daemon).
//!
//! A *zedlet* is an executable file in the zedlet directory. Its name begins with what it is for: the class of an event
//! (`ereport.fs.zfs.checksum`), its subclass (`checksum`, `statechange`, `scrub_finish`), or `all`; a letter does not
//! follow (`scrub_finish-notify.sh`). Each event runs the zedlets that match it, in the order of their names, with the
//! variables of OpenZFS's ZED in the environment ([`variables`]), so that ZED's own zedlets run unchanged.
//!
//! The directory is `CENOTE_ZEDLET_DIR`, or `/etc/cenote/zed.d` for root and `$XDG_CONFIG_HOME/cenote/zed.d`
//! (`~/.config/…`) for other users. It is looked through at each event; a missing one has no zedlets. It is not OpenZFS's
//! `/etc/zfs/zed.d`: the ZED of OpenZFS would run these once more.
//!
//! One thread takes the events in their order and starts zedlets; each zedlet has a thread that waits for it. At most
//! [`MOST`] run at the same time; further ones wait. A zedlet that runs for longer than [`LIMIT`] is killed with
//! all that it started and that is still in its process group. No lock of a pool is held meanwhile, and nothing else
//! waits for a zedlet: zedlets run `zpool` and `zfs` themselves. At the end of the daemon the events that are
//! left (pools are exported then) run zedlets still, for [`GRACE`].
//!
//! Invariants: a zedlet is started only if the daemon's user or root owns the file and the directory, and no other user can
//! write to them. Every zedlet that was started is waited for.

mod variables;
mod zedlets;

use crate::socket::Place;
use cenote_pool::events::{self, Event};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zedlets::Zedlets;

/// Zedlets that may run at the same time (ZED's default).
const MOST: usize = 16;
/// A zedlet that runs for longer is killed.
const LIMIT: Duration = Duration::from_secs(60);
/// How long zedlets may run on when the daemon ends.
const GRACE: Duration = Duration::from_secs(5);
/// The longest pause between two looks at a zedlet that runs.
const LOOK: Duration = Duration::from_millis(50);
/// Time of an event, as `ZEVENT_TIME_STRING` has it.
const TIME: &str = "%Y-%m-%d %H:%M:%S%z";

/// The thread that runs zedlets.
pub(crate) struct Zed {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    zedlets: Zedlets,
    /// Where links to this program lie that zedlets call as `zpool`, `zfs` and `zdb`.
    commands: PathBuf,
    /// This program, as it was found when the daemon began: an upgrade replaces it.
    program: PathBuf,
    /// How many zedlets run.
    running: Mutex<usize>,
    /// Notified whenever a zedlet has ended.
    ended: Condvar,
    /// No further events are waited for.
    stops: AtomicBool,
    /// What runs is killed, and nothing is started.
    kills: AtomicBool,
    /// Told when the last zedlet has ended.
    idle: Box<dyn Fn() + Send + Sync>,
}

impl Zed {
    /// Starts the thread. `idle` is called whenever no zedlet runs any more.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(place: &Place, idle: impl Fn() + Send + Sync + 'static) -> io::Result<Zed> {
        let shared = Arc::new(Shared {
            zedlets: Zedlets::new(zedlets::directory()),
            commands: place.commands(),
            program: std::env::current_exe()?,
            running: Mutex::default(),
            ended: Condvar::new(),
            stops: AtomicBool::default(),
            kills: AtomicBool::default(),
            idle: Box::new(idle),
        });
        let runs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("zed".into()).spawn(move || runs.run())?;
        Ok(Zed { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How many zedlets run.
    pub fn running(&self) -> usize {
        *self.shared.running.lock()
    }

    /// Has zedlets run for the events that are left, for [`GRACE`] at most, and ends.
    pub fn stop(&self) {
        self.shared.stops.store(true, SeqCst);
        events::wake();
        let Some(thread) = self.thread.lock().take() else { return };
        let end = Instant::now() + GRACE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.shared.wait_until_idle(end);
        self.shared.kills.store(true, SeqCst);
        self.shared.ended.notify_all();
        if thread.join().is_err() {
            tracing::error!("internal error: the thread that runs zedlets panicked");
        }
        // What was killed ends at once, unless the kernel keeps it in a request.
        self.shared.wait_until_idle(Instant::now() + GRACE);
    }
}

impl Shared {
    /// Takes the events in their order, until the daemon ends and none is left.
    fn run(self: &Arc<Shared>) {
        let mut last = 0;
        loop {
            events::wait(last, || self.stops.load(SeqCst));
            let (events, missed) = events::since(last);
            if missed > 0 {
                tracing::warn!("zedlets: missed {missed} events");
            }
            if events.is_empty() && missed == 0 && self.stops.load(SeqCst) {
                return;
            }
            last = events.last().map_or(last + missed, |event| event.eid);
            events.iter().for_each(|event| self.serve(event));
        }
    }

    /// Starts the zedlets of an event (`zed_exec_process`).
    fn serve(self: &Arc<Shared>, event: &Event) {
        let class = event.payload.str("class").unwrap_or_default();
        let found = self.zedlets.matching(class);
        if found.is_empty() {
            return;
        }
        let environment = match self.environment(event) {
            Ok(environment) => environment,
            Err(e) => return tracing::warn!("zedlets: {}: {e}", self.commands.display()),
        };
        for path in found {
            if !self.admit() {
                return;
            }
            if let Err(e) = self.launch(&path, event.eid, &environment) {
                tracing::warn!("zedlet {}: {}", path.display(), cenote_command::outcome::plain(&e));
                self.leave();
            }
        }
    }

    /// The environment of the zedlets of an event.
    fn environment(&self, event: &Event) -> io::Result<Vec<(String, String)>> {
        zedlets::link_commands(&self.commands, &self.program)?;
        let mut environment = variables::of_event(&event.payload);
        environment.extend(variables::of_programs(&self.commands));
        let directory = self.zedlets.directory().map(Path::display).map(|dir| dir.to_string());
        environment.push(("ZED_PID".into(), std::process::id().to_string()));
        environment.push(("ZED_ZEDLET_DIR".into(), directory.unwrap_or_default()));
        Ok(environment)
    }

    /// Waits until one more zedlet may run, and counts it; `false`: the daemon ends.
    fn admit(&self) -> bool {
        let mut running = self.running.lock();
        while *running >= MOST && !self.kills.load(SeqCst) {
            self.ended.wait(&mut running);
        }
        let goes_on = !self.kills.load(SeqCst);
        *running += usize::from(goes_on);
        goes_on
    }

    fn leave(&self) {
        let mut running = self.running.lock();
        *running -= 1;
        let is_last = *running == 0;
        drop(running);
        self.ended.notify_all();
        if is_last {
            (self.idle)();
        }
    }

    /// Starts a zedlet, and a thread that waits for it (`zed_exec_fork_child`).
    fn launch(
        self: &Arc<Shared>,
        path: &Path,
        eid: u64,
        environment: &[(String, String)],
    ) -> io::Result<()> {
        let mut command = Command::new(path);
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.current_dir("/").process_group(0).spawn()?;
        tracing::debug!("zedlet {} runs, event {eid}, process {}", path.display(), child.id());
        let (shared, name) = (Arc::clone(self), path.display().to_string());
        let held = Arc::new(Mutex::new(Some(child)));
        let theirs = Arc::clone(&held);
        let waits = move || {
            if let Some(child) = theirs.lock().take() {
                shared.wait_for(child, &name);
            }
            shared.leave();
        };
        let spawned = std::thread::Builder::new().name("zedlet".into()).spawn(waits);
        let left = if spawned.is_err() { held.lock().take() } else { None };
        if let Some(child) = left {
            // Without a thread of its own it is waited for here.
            self.wait_for(child, &path.display().to_string());
            self.leave();
        }
        Ok(())
    }

    /// Waits until a zedlet has ended, or kills it.
    fn wait_for(&self, mut child: Child, name: &str) {
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        let mut killed = false;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return,
                Ok(Some(status)) => return tracing::info!("zedlet {name}: {status}"),
                Ok(None) => {}
                Err(e) => return tracing::warn!("zedlet {name}: {e}"),
            }
            if !killed && (began.elapsed() > LIMIT || self.kills.load(SeqCst)) {
                tracing::warn!("zedlet {name}: killed after {} s", began.elapsed().as_secs());
                killed = true;
                if let Err(e) = kill_process_group(Pid::from_child(&child), Signal::KILL) {
                    tracing::warn!("zedlet {name}: {e}");
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }

    fn wait_until_idle(&self, end: Instant) {
        let mut running = self.running.lock();
        while *running > 0 && Instant::now() < end {
            self.ended.wait_until(&mut running, end);
        }
    }
}
