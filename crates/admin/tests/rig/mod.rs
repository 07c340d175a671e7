//! A pool in a file, and a host that notes what it is told and asked.

#![allow(dead_code)] // Each test has a part of it.

use cenote::Pool;
use cenote_admin::{Event, Host, InUse, Mounts, Opened, Rights, Session, Unmount};
use cenote_dsl::Dataset;
use cenote_testpools::judge;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

/// A pool that is judged in the end.
pub struct Rig {
    dir: tempfile::TempDir,
    name: String,
    pool: Option<Pool>,
}

impl Rig {
    pub fn new(name: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::create_in_file(dir.path().join("disk"), name, 256 << 20).unwrap();
        Rig { dir, name: name.into(), pool: Some(pool) }
    }

    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    pub fn opened(&self) -> Opened {
        Opened::Writable(self.pool().engine().unwrap().clone())
    }

    pub fn session<'h>(&self, host: &'h mut Noting) -> Session<'h> {
        Session::new(self.opened(), Rights::default(), host)
    }

    /// Writes a file of this text into a file system.
    pub fn write(&self, name: &str, path: &str, text: &str) {
        let files = self.pool().dataset(name).unwrap().filesystem().unwrap();
        files.write(path, text).unwrap();
        files.sync().unwrap();
    }

    pub fn read(&self, name: &str, path: &str) -> String {
        let files = self.pool().dataset(name).unwrap().filesystem().unwrap();
        String::from_utf8(files.read(path).unwrap()).unwrap()
    }

    /// Names of all datasets and their snapshots.
    pub fn all(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dataset in self.pool().datasets() {
            let dataset = dataset.unwrap();
            names.push(dataset.name().to_string());
            names.extend(dataset.snapshots().unwrap().iter().map(|s| s.name().to_string()));
        }
        names
    }

    /// Exports the pool. OpenZFS's `zdb` finds nothing wrong with it.
    #[track_caller]
    pub fn end(mut self) {
        self.pool.take().unwrap().export().unwrap();
        let dir: PathBuf = self.dir.path().into();
        judge(&dir, &self.name);
    }
}

/// Notes what it is told and asked.
#[derive(Default)]
pub struct Noting {
    pub told: Vec<String>,
    pub asked: Asked,
}

/// Notes what it is asked of mounts.
#[derive(Default)]
pub struct Asked {
    pub calls: Vec<String>,
    /// File systems that cannot be unmounted.
    pub busy: HashSet<String>,
    /// Snapshots that are in use.
    pub used: HashSet<String>,
    /// Nothing can be exchanged.
    pub has_submounts: bool,
    /// Asked to exchange something, it does not.
    pub forgets: bool,
    /// Nothing of what is to be unmounted is mounted.
    pub nothing_mounted: bool,
    /// The next request to unmount by number is refused.
    pub stays: bool,
}

impl Noting {
    pub fn take(&mut self) -> (Vec<String>, Vec<String>) {
        (std::mem::take(&mut self.told), std::mem::take(&mut self.asked.calls))
    }
}

impl Host for Noting {
    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        self.told.push(match event {
            Event::Failed(e) => format!("failed: {e}"),
            Event::Warning(text) => format!("warning: {text}"),
            Event::Received { .. } => "received".into(),
            Event::Estimate { to, from, .. } => format!("estimate {to} {from:?}"),
            Event::EstimateTotal { .. } | Event::Resuming(_) => return Ok(()),
            Event::Differs(d) => {
                format!("{:?} {}", d.change, String::from_utf8_lossy(&d.path))
            }
            event => format!("{event:?}"),
        });
        Ok(())
    }

    fn mounts(&mut self) -> &mut dyn Mounts {
        &mut self.asked
    }
}

impl Mounts for Asked {
    fn give_up(&mut self, name: &str, force: bool) -> Result<(), String> {
        self.calls.push(format!("give up {name}{}", if force { " by force" } else { "" }));
        match self.busy.contains(name) {
            true => Err(format!("cannot unmount '{name}': pool or dataset is busy")),
            false => Ok(()),
        }
    }

    fn close_snapshots(&mut self, names: &[String]) -> Result<(), Vec<InUse>> {
        self.calls.push(format!("close {}", names.join(" ")));
        let used = names.iter().filter(|n| self.used.contains(*n)).cloned();
        let used: Vec<InUse> = used.map(|name| InUse { name, by: None }).collect();
        if used.is_empty() { Ok(()) } else { Err(used) }
    }

    fn snapshots_stay(&mut self, names: &[String]) {
        self.calls.push(format!("stay {}", names.join(" ")));
    }

    fn snapshots_changed(&mut self, names: &[String]) {
        self.calls.push(format!("changed {}", names.join(" ")));
    }

    fn renamed(&mut self, from: &str, to: &str) {
        self.calls.push(format!("renamed {from} {to}"));
    }

    fn can_exchange(&mut self, _: u64) -> bool {
        !self.has_submounts
    }

    fn exchange(
        &mut self,
        _: u64,
        coming: Option<u64>,
        change: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        assert!(coming.is_some(), "what is not raw can be read before");
        self.calls.push("exchange".into());
        if !self.forgets {
            assert!(change());
        }
        self.calls.push("exchanged".into());
        Ok(())
    }

    fn restore(&mut self) -> bool {
        self.calls.push("restore".into());
        true
    }

    fn take_away(&mut self, ids: &[u64], how: Unmount) -> Result<Vec<u64>, String> {
        let good = if how.for_good { " for good" } else { "" };
        self.calls.push(format!("take away {}{good}", ids.len()));
        match self.stays {
            true => Err("cannot unmount: pool or dataset is busy".into()),
            false => Ok(ids.iter().copied().filter(|_| !self.nothing_mounted).collect()),
        }
    }

    fn is_mounted(&mut self, _: &str) -> bool {
        !self.nothing_mounted
    }

    fn mount_all(&mut self, datasets: &[Dataset]) -> bool {
        let names: Vec<&str> = datasets.iter().map(|d| d.name.as_str()).collect();
        self.calls.push(format!("mount {}", names.join(" ")));
        true
    }

    fn follow_properties(&mut self) -> bool {
        self.calls.push("follow".into());
        true
    }

    fn bring_back(&mut self, moved: bool) -> bool {
        self.calls.push(format!("bring back{}", if moved { " moved" } else { "" }));
        true
    }
}
