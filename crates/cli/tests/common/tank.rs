//! A pool to change datasets in.

use super::{Session, mounts_below};
use std::fs;
use std::path::PathBuf;

/// A pool in a file, with a daemon.
pub struct Tank {
    pub session: Session,
    mounted: bool,
}

impl Tank {
    pub fn new(options: &str) -> Tank {
        let session = Session::new();
        let disk = session.path("disk");
        fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
        let mounted = !options.contains("canmount=off");
        let (root, disk) = (session.root(), disk.display().to_string());
        session.run(&format!("zpool create -R {root} {options} tank {disk}")).ok();
        Tank { session, mounted }
    }

    /// A pool of which nothing is mounted.
    pub fn unmounted() -> Tank {
        Tank::new("-O canmount=off -O mountpoint=none")
    }

    #[track_caller]
    pub fn zfs(&self, line: &str) -> String {
        self.session.run(&format!("zfs {line}")).ok()
    }

    #[track_caller]
    pub fn refused(&self, line: &str) -> String {
        self.session.run(&format!("zfs {line}")).fails(1)
    }

    #[track_caller]
    pub fn get(&self, property: &str, dataset: &str) -> String {
        self.zfs(&format!("get -Hpo value {property} {dataset}")).trim_end().to_string()
    }

    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        self.zfs("list -Ho name -t all").lines().map(String::from).collect()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.session.path("root").join(path)
    }

    /// Exports the pool; OpenZFS finds nothing wrong with it.
    #[track_caller]
    pub fn finish(self) {
        self.session.run("zpool export tank").ok();
        if self.mounted {
            assert_eq!(mounts_below(self.session.dir.path()), [""; 0]);
        }
        cenote_testpools::judge(self.session.dir.path(), "tank");
    }
}
