//! Whether programs wait for memory (pressure stall information).

use super::{Group, Places};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Triggers: programs wait for a tenth of a second or of two (in microseconds). Root may ask for any window.
const TRIGGERS: [&str; 2] = ["some 100000 1000000\0", "some 200000 2000000\0"];

/// Pressure is where programs wait for so much of the time, as a divisor.
const SHARE: u32 = 10;

/// The pressure of the control group of this process, or of the system.
pub(crate) struct Pressure {
    path: Option<PathBuf>,
    /// A file that the kernel tells of pressure by.
    trigger: Option<File>,
    /// Until when programs had waited for how long.
    before: Option<(Instant, Duration)>,
}

impl Pressure {
    /// That of the innermost group that tells, or of the system.
    pub fn open(places: &Places) -> Pressure {
        let file = |group: Group| group.unified.then(|| group.dir.join("memory.pressure"));
        let groups: Vec<PathBuf> =
            places.groups().unwrap_or_default().into_iter().filter_map(file).collect();
        let of_system = places.proc.join("pressure/memory");
        let mut files = groups.into_iter().chain([of_system]);
        let path = files.find(|path| waited(path).is_some());
        let trigger = path.as_ref().and_then(|path| {
            let ask = |what: &&str| {
                let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
                file.write_all(what.as_bytes()).ok()?;
                Some(file)
            };
            TRIGGERS.iter().find_map(ask)
        });
        let mut pressure = Pressure { path, trigger, before: None };
        pressure.look();
        pressure
    }

    /// Waits for `most` at most, or until there is pressure. Whether there is.
    pub fn wait(&mut self, most: Duration) -> bool {
        let told = self.trigger.as_ref().map(|file| {
            let mut fds = [PollFd::new(file, PollFlags::PRI)];
            let timeout = Timespec::try_from(most).ok();
            let begun = Instant::now();
            let ready = poll(&mut fds, timeout.as_ref());
            let [fd] = fds;
            let (told, lost) =
                (fd.revents().contains(PollFlags::PRI), fd.revents().contains(PollFlags::ERR));
            if !told && (lost || ready.is_err()) {
                // The group is gone, or a signal came.
                std::thread::sleep(most.saturating_sub(begun.elapsed()));
            }
            told && !lost
        });
        if told.is_none() {
            std::thread::sleep(most);
        }
        let seen = self.look();
        told == Some(true) || seen
    }

    /// Whether programs waited for much of the time since the last look.
    fn look(&mut self) -> bool {
        let now = Instant::now();
        let Some(waited) = self.path.as_deref().and_then(waited) else { return false };
        let before = self.before.replace((now, waited));
        let Some((then, already)) = before else { return false };
        waited.saturating_sub(already) >= (now - then) / SHARE && waited > already
    }
}

/// How long some program has waited, altogether.
fn waited(file: &Path) -> Option<Duration> {
    let text = read_to_string(file).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    fn says(path: &Path, micros: u64) {
        let line = |which| format!("{which} avg10=0.00 avg60=0.00 avg300=0.00 total={micros}\n");
        fs::write(path, line("some") + &line("full")).unwrap();
    }

    /// A place where the process is in the group `g`.
    fn places(dir: &Path) -> Places {
        let places = Places { proc: dir.join("proc"), groups: dir.join("groups") };
        for dir in ["self", "pressure"] {
            fs::create_dir_all(places.proc.join(dir)).unwrap();
        }
        fs::create_dir_all(places.groups.join("g")).unwrap();
        fs::write(places.proc.join("self/cgroup"), "0::/g\n").unwrap();
        places
    }

    #[test]
    fn what_programs_waited_counts_by_the_time_that_passed() {
        let dir = tempfile::tempdir().unwrap();
        let places = places(dir.path());
        let group = places.groups.join("g/memory.pressure");
        let system = places.proc.join("pressure/memory");
        says(&system, 5);
        let mut of_system = Pressure::open(&places);
        says(&group, 1000);
        let mut pressure = Pressure::open(&places);
        // A file is no trigger, and has what was written to it.
        (pressure.trigger, of_system.trigger) = (None, None);
        says(&group, 1000);
        says(&system, 5);
        let tick = Duration::from_millis(20);
        assert!(!pressure.wait(tick) && !of_system.wait(tick));
        says(&group, 1_000_000);
        assert!(pressure.wait(tick));
        assert!(!pressure.wait(tick) && !of_system.wait(tick));
        says(&system, 2_000_000);
        assert!(of_system.wait(tick) && !pressure.wait(tick));
        fs::remove_file(&group).unwrap();
        assert!(!pressure.wait(tick));
    }

    #[test]
    fn a_system_that_tells_nothing_has_no_pressure() {
        let dir = tempfile::tempdir().unwrap();
        let mut none = Pressure::open(&places(dir.path()));
        assert!(!none.wait(Duration::from_millis(1)));
        // What this system tells, whatever that is.
        Pressure::open(&Places::default()).wait(Duration::from_millis(1));
    }
}
