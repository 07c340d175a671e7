//! Keeping a pool whole: what its devices are like, scrubs, what is damaged, and devices that leave and join.
//!
//! All of it is methods of [`Pool`]. What is told ([`Vdev`], [`Scan`], the damaged files) is a copy as of the last transaction group,
//! with the errors that were counted since. What is ordered is on disk when the call returns: that a scrub has begun or is paused, that a
//! device has joined, left, or is out of use. Scrubs and resilvers go on in the background, and after the next import for writing.
//!
//! A device goes by its name in `zpool status`, its path, or its guid in decimal.

use crate::{Error, Pool, Result};
use cenote_admin::Exclusion;
use cenote_engine::create::{CreateError, Joining, NewDevice, check_answers, parse};
use cenote_engine::{Attach, Engine, TakeOut};
use cenote_pool::config;
use cenote_pool::reopen::Restore;
use cenote_pool::status::{NameStyle, VdevLine};
use cenote_vdev::Vdev as Open;
use cenote_zpl::FileSystem;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often [`Pool::wait_for_scan`] looks how far the scan is.
const LOOK: Duration = Duration::from_millis(100);

/// A vdev of a pool: a device, or a mirror, RAID-Z or other group of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Vdev {
    /// Its name as `zpool status` shows it: `sda`, `mirror-0`.
    pub name: String,
    /// Where its device is, if it is one.
    pub path: Option<PathBuf>,
    /// Its guid.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `OFFLINE`, `UNAVAIL`, `REMOVED`.
    pub state: &'static str,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks that were wrong there.
    pub checksum_errors: u64,
    /// It lacks what was written while it was out of use; a resilver gives it that.
    pub awaits_resilver: bool,
    /// The vdevs that it is made of.
    pub children: Vec<Vdev>,
}

impl Vdev {
    fn of(line: &VdevLine) -> Vdev {
        let (read_errors, write_errors, checksum_errors) = line.errors;
        Vdev {
            name: line.name(&NameStyle::default()),
            path: line.config.str("path").map(PathBuf::from),
            guid: config::number(&line.config, "guid"),
            state: line.state,
            read_errors,
            write_errors,
            checksum_errors,
            awaits_resilver: line.behind,
            children: line.children.iter().map(Vdev::of).collect(),
        }
    }

    /// Whether the user calls it that: by its name, the path of its device, or its guid in decimal.
    fn is_called(&self, name: &str) -> bool {
        self.name == name
            || self.path.as_ref().is_some_and(|path| path.as_os_str() == name)
            || self.guid.to_string() == name
    }

    fn find(&self, name: &str) -> Option<&Vdev> {
        match self.is_called(name) {
            true => Some(self),
            false => self.children.iter().find_map(|child| child.find(name)),
        }
    }
}

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScanKind {
    /// Every block is read, checked and, where it is wrong, written anew.
    Scrub,
    /// Devices are given what they missed.
    Resilver,
    /// The blocks that are known to be damaged are read once more.
    ErrorScrub,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScanState {
    /// It is under way.
    Running,
    /// It is paused, until [`Pool::scrub`].
    Paused,
    /// It is done.
    Finished,
    /// It was given up.
    Canceled,
}

/// The last scrub or resilver of a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scan {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanState,
    /// Bytes to look at, about; of an error scrub: blocks.
    pub total: u64,
    /// Bytes of blocks that were read and checked, or need not be; of an error scrub: blocks.
    pub done: u64,
    /// Bytes that were written anew.
    pub repaired: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
    /// Why it does not go on, while it does not. It does when that is over.
    pub waits: Option<String>,
}

/// Scrubs, resilvers and devices.
impl Pool {
    /// The top-level vdevs, with all that they are made of: those for data first, then those for deduplication tables, for
    /// metadata, and for intent logs.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn vdevs(&self) -> Result<Vec<Vdev>> {
        let tree = self.view().status()?.tree;
        let data = tree.root.children.iter();
        let all = data.chain(&tree.dedup).chain(&tree.special).chain(&tree.logs);
        Ok(all.map(Vdev::of).collect())
    }

    /// The last scrub or resilver; `None` if there was none.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn scan(&self) -> Result<Option<Scan>> {
        use cenote_pool::scan;
        let Some(status) = self.view().status()?.scan else { return Ok(None) };
        let kind = match status.kind {
            scan::ScanKind::Scrub => ScanKind::Scrub,
            scan::ScanKind::Resilver => ScanKind::Resilver,
            scan::ScanKind::ErrorScrub => ScanKind::ErrorScrub,
        };
        let state = match status.state {
            scan::ScanState::Scanning if status.pass.paused != 0 => ScanState::Paused,
            scan::ScanState::Scanning => ScanState::Running,
            scan::ScanState::Finished => ScanState::Finished,
            scan::ScanState::Canceled => ScanState::Canceled,
        };
        let done = match kind {
            ScanKind::ErrorScrub => status.examined,
            _ => status.issued.saturating_add(status.skipped),
        };
        Ok(Some(Scan {
            kind,
            state,
            total: status.to_examine,
            done,
            repaired: status.processed,
            errors: status.errors,
            waits: self.engine().ok().and_then(|engine| engine.scan_waits()),
        }))
    }

    /// Begins to read and check every block of the pool, or goes on with a scrub that is paused. What is wrong is written anew from
    /// what is right. It goes on in the background, and after the pool was exported once it is opened for writing again.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::ScanState;
    ///
    /// pool.scrub()?;
    /// let scan = pool.wait_for_scan(|scan| println!("{} of {} bytes", scan.done, scan.total))?.unwrap();
    /// assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
    /// assert!(pool.damaged()?.is_empty());
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Scan`]: a scrub or resilver is under way; [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn scrub(&self) -> Result<()> {
        Ok(self.engine()?.scrub()?)
    }

    /// Pauses a scrub.
    ///
    /// # Errors
    /// [`Error::Scan`]: no scrub is under way, or it is paused; [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn pause_scrub(&self) -> Result<()> {
        Ok(self.engine()?.pause_scrub()?)
    }

    /// Gives up a scrub.
    ///
    /// # Errors
    /// [`Error::Scan`]: no scrub is under way; [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn stop_scrub(&self) -> Result<()> {
        Ok(self.engine()?.stop_scrub()?)
    }

    /// Waits until no scrub or resilver is under way, or it is paused, and returns the last one. `progress` gets to know how far
    /// it is, ten times a second. One that waits for a device (see [`Scan::waits`]) is waited for as well: `progress` can tell.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Metadata`]; the pool cannot be written any more, which ends no scan.
    pub fn wait_for_scan(&self, mut progress: impl FnMut(&Scan)) -> Result<Option<Scan>> {
        let engine = self.engine()?;
        loop {
            let busy = engine.is_scanning() || engine.awaits_resilver();
            let scan = self.scan()?;
            if !busy {
                return Ok(scan);
            }
            if let Some(scan) = &scan {
                progress(scan);
            }
            self.sync()?;
            thread::sleep(LOOK);
        }
    }

    /// What is known to be damaged, as `zpool status -v` names it where nothing is mounted: `tank/home:/alice/notes.txt`.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn damaged(&self) -> Result<Vec<String>> {
        let view = self.view();
        let open: RefCell<HashMap<u64, Option<Arc<FileSystem>>>> = RefCell::default();
        let path = |dataset: &cenote_dsl::Dataset, object: u64| {
            let mut open = open.borrow_mut();
            let files = open.entry(dataset.ds_obj).or_insert_with(|| {
                let objects = view.dsl().open_objset(dataset).ok()?;
                FileSystem::open(objects).ok()
            });
            let path = files.as_ref()?.path_of(object).ok()?;
            Some(String::from_utf8_lossy(&path).into_owned())
        };
        Ok(view.error_names(&path, &|_| None)?)
    }

    /// Puts the device at the path `new` in the place of `old` (its name, path or guid), which leaves once a resilver has given the
    /// new one all that it had. A device that is part of another pool is refused.
    ///
    /// # Errors
    /// [`Error::Device`]: there is no such device, or the new one does not fit; [`Error::Create`]: it is in use or cannot be
    /// opened; [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn replace(&self, old: &str, new: &str) -> Result<()> {
        self.join(old, new, true)
    }

    /// Makes the device at the path `new` a side of the mirror that `beside` is in. A device that is not in a mirror becomes one
    /// side of a new one.
    ///
    /// # Errors
    /// As [`Pool::replace`].
    pub fn attach(&self, beside: &str, new: &str) -> Result<()> {
        self.join(beside, new, false)
    }

    fn join(&self, beside: &str, new: &str, replaces: bool) -> Result<()> {
        let _entered = self.turn().enter();
        let engine = self.engine()?;
        let beside = self.guid_of(beside)?;
        let device = self.prepared(new)?;
        engine
            .attach(Attach { beside, new: device, replaces })
            .map_err(|e| Error::Device { name: new.into(), why: e.to_string() })
    }

    /// The device at this path, opened, if nothing speaks against using it.
    fn prepared(&self, path: &str) -> Result<NewDevice> {
        let view = self.view();
        let layout = parse(&[path.to_string()])?;
        check_answers(&layout)?;
        let single = Joining::to(&view).prepare(&layout, None, false, &[])?;
        single.ok_or_else(|| {
            let why = "new device must be a single disk".into();
            CreateError::Refused { what: path.into(), why }.into()
        })
    }

    /// Takes a device out of its mirror, or out of a replacement that is under way.
    ///
    /// # Errors
    /// [`Error::Device`]: there is no such device, or it alone has something; [`Error::ReadOnly`]; the pool cannot be written
    /// any more.
    pub fn detach(&self, device: &str) -> Result<()> {
        let _entered = self.turn().enter();
        let guid = self.guid_of(device)?;
        let parent = self.view().store().vdevs().parent_of(guid).map(|parent| parent.guid());
        let refused = |e: cenote_engine::EngineError| Error::Device {
            name: device.into(),
            why: e.to_string(),
        };
        self.engine()?.detach(guid, parent).map_err(refused)
    }

    /// Takes a device out of use until [`Pool::online`].
    ///
    /// # Errors
    /// [`Error::Device`]: there is no such device, or the pool cannot do without it; [`Error::ReadOnly`]; the pool cannot be
    /// written any more.
    pub fn offline(&self, device: &str) -> Result<()> {
        let _entered = self.turn().enter();
        let leaf = self.leaf(device)?;
        let refused = |e: cenote_engine::OfflineError| Error::Device {
            name: device.into(),
            why: e.to_string(),
        };
        self.engine()?.take_out(leaf.guid(), TakeOut::Offline).map_err(refused)
    }

    /// Takes a device into use again that was taken out of it; a resilver gives it what it missed. Whether the device answers is in its
    /// state then ([`Pool::vdevs`]).
    ///
    /// # Errors
    /// [`Error::Device`]: there is no such device; [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn online(&self, device: &str) -> Result<()> {
        let _entered = self.turn().enter();
        let leaf = self.leaf(device)?;
        Ok(self.engine()?.restore(&[leaf.guid()], Restore::Offline)?)
    }

    /// Sets the numbers of errors of all vdevs back, takes devices into use again that failed, and has a pool go on that waits
    /// for its devices.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; devices still fail, or the pool cannot be written any more.
    pub fn clear(&self) -> Result<()> {
        let _entered = self.turn().enter();
        let engine: &Arc<Engine> = self.engine()?;
        if engine.waits_for_devices() {
            self.view().store().vdevs().root().clear_errors();
            engine.resume()?;
        }
        let root = Arc::clone(self.view().store().vdevs().root());
        root.clear_errors();
        Ok(engine.restore(&leaves(&root), Restore::Failure)?)
    }

    /// The guid of the vdev that the user calls `name`.
    fn guid_of(&self, name: &str) -> Result<u64> {
        let vdevs = self.vdevs()?;
        let found = vdevs.iter().find_map(|vdev| vdev.find(name));
        found.map(|vdev| vdev.guid).ok_or_else(|| Error::Device {
            name: name.into(),
            why: "no such device in pool".into(),
        })
    }

    /// The device that the user calls `name`.
    fn leaf(&self, name: &str) -> Result<Arc<Open>> {
        let guid = self.guid_of(name)?;
        let vdev = self.view().store().vdevs().find(guid);
        vdev.filter(|vdev| vdev.is_leaf()).ok_or_else(|| Error::Device {
            name: name.into(),
            why: "operation not supported on this type of vdev".into(),
        })
    }
}

/// The guids of the devices below a vdev.
fn leaves(vdev: &Open) -> Vec<u64> {
    match vdev.is_leaf() {
        true => vec![vdev.guid()],
        false => vdev.children().iter().flat_map(|child| leaves(child)).collect(),
    }
}
