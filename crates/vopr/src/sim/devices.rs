//! Devices that join the pool, leave it, go out of use and come back, while it is worked with.
//!
//! # What is known of a disk
//!
//! A disk is *whole* if the pool has said that it lacks nothing, and nothing happened to it since. Disks that are whole, well and in
//! use are *sound*. What is done to others is chosen so that the sound ones hold everything ([`Sim::suffices`]).
//!
//! What a dirty time log has to have, the disks tell (`sim::logs`).
//!
//! Once all disks are well and in use, each must become whole by itself, what is being replaced must leave, and what is being removed
//! must be gone ([`Sim::settle`]). Then the pool is looked at with as many disks missing as it bears: it holds what the model says, so
//! what the pool said of its disks is true ([`Sim::prove`]). At any time the sound ones hold it by themselves
//! ([`Sim::prove_sound`]).
//!
//! A disk that is rebuilt in the order of places has what it was given, and nothing has verified that. Its log is right all the same, as no other
//! disk lies while a rebuild begins. Where one lied before a scrub of all has ended, what was rebuilt may be wrong, and no log says so: such
//! disks are left out of what logs have to have, nothing is copied from them that is not verified, and all is scrubbed before they are
//! whole.
//!
//! A spare of the pool steps in by itself when a disk fails. Once all is well it is detached, and goes back. It may be among the
//! disks of the pool at any time, and need not be.
//!
//! After a loss of power the pool consists of the disks from before, but for one that was about to join and those that
//! were about to leave.

use super::{Done, Sim, tell};
use crate::disk::Mood;
use crate::model::same;
use crate::store::Store;
use cenote_engine::create::{Layout, Redundancy, VdevSpec};
use cenote_engine::tunables::{REMOVAL_SUSPEND_PROGRESS, SCAN_SUSPEND_PROGRESS};
use cenote_engine::{ActivityRequest, Attach, TakeOut};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::diagnosis;
use cenote_pool::reopen::Restore;
use cenote_pool::scan::ScanPhys;
use cenote_pool::vdev_props::Activity;
use cenote_torture::live::Stopped;
use cenote_torture::live::disk::Image;
use cenote_torture::live::lab;
use cenote_vdev::VdevState;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeSet;
use std::time::Duration;

/// Disks beside those that a pool begins with.
pub(super) const EXTRA: usize = 3;
/// Sides of a mirror, and top-level vdevs, at most.
const MOST: usize = 3;
/// How often it is looked whether all is well, and how long at most.
const LOOK: Duration = Duration::from_secs(1);
const LOOKS: usize = 3600;
/// The state of a scan that has ended (`DSS_FINISHED`).
const SCAN_FINISHED: u64 = 2;

/// What is known of the disks.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// The numbers of those that are whole.
    pub whole: BTreeSet<usize>,
    /// The one that is not well.
    pub bad: Option<usize>,
    /// Those that the pool has.
    pub members: BTreeSet<usize>,
    /// The one that is about to join.
    pub joining: Option<usize>,
    /// Those that leave, soon or later.
    pub leaving: BTreeSet<usize>,
    /// The one that is, or was, a spare.
    pub spare: Option<usize>,
    /// Those that were rebuilt in the order of places since all was scrubbed.
    pub rebuilt: BTreeSet<usize>,
    /// A disk has lied since there is one.
    pub lied: bool,
}

impl Devices {
    /// What is copied without being verified may be wrong.
    fn may_copy_wrong(&self, disks: &[std::sync::Arc<crate::disk::SimDisk>]) -> bool {
        let lies = |bad: usize| disks.get(bad).is_some_and(|disk| disk.mood() == Mood::Lies);
        self.lied || self.bad.is_some_and(lies)
    }
}

/// A change of the devices of a pool. Disks have numbers.
#[derive(Clone, Debug)]
pub(super) enum DeviceChange {
    /// A disk becomes another side of a mirror; by a rebuild in the order of places (`in_order`), or by a resilver.
    Attach { beside: usize, new: usize, in_order: bool },
    /// A disk takes the place of another.
    Replace { old: usize, new: usize, in_order: bool },
    /// A side of a mirror leaves.
    Detach(usize),
    /// A disk goes out of use.
    Offline(usize, TakeOut),
    /// All disks come back.
    Online,
    /// A disk becomes a vdev of its own.
    Add(usize),
    /// A vdev with these disks is to leave.
    Remove(u64, BTreeSet<usize>),
    /// A disk is trimmed or initialized, or no longer.
    Activity(usize, Activity, ActivityRequest),
    /// A resilver begins anew.
    Resilver,
    /// A scrub begins.
    Scrub,
    /// It is given up.
    StopScrub,
}

/// A leaf in use.
struct Leaf {
    guid: u64,
    disk: usize,
    in_use: bool,
    is_degraded: bool,
    is_behind: bool,
}

/// A top-level vdev.
struct Top {
    guid: u64,
    /// Disks, of which one is enough.
    slots: Vec<BTreeSet<usize>>,
    /// Slots that hold everything.
    needs: usize,
    is_raidz: bool,
    /// Something in it is to leave.
    changes: bool,
}

/// Scans or removals are held back, so that other things happen meanwhile, or all go on.
pub(super) fn hold_back(some: bool, rng: &mut SmallRng) -> Done {
    if !some {
        return go_on();
    }
    let (what, held) = match rng.random_bool(0.7) {
        true => ("scans", &SCAN_SUSPEND_PROGRESS),
        false => ("removals", &REMOVAL_SUSPEND_PROGRESS),
    };
    tell(format_args!("{what} are held back"));
    Ok(held.set(1)?)
}

/// Nothing is held back any more.
fn go_on() -> Done {
    SCAN_SUSPEND_PROGRESS.set(0)?;
    Ok(REMOVAL_SUSPEND_PROGRESS.set(0)?)
}

fn disk_of(path: &str) -> Option<usize> {
    path.strip_prefix("/vopr/d")?.parse().ok()
}

fn disks_below(vdev: &NvList) -> BTreeSet<usize> {
    let own = vdev.str("path").and_then(disk_of);
    own.into_iter().chain(config::children(vdev).iter().flat_map(disks_below)).collect()
}

impl Top {
    fn of(vdev: &NvList) -> Option<Top> {
        let kind = vdev.str("type")?;
        if matches!(kind, "hole" | "missing" | "indirect") {
            return None;
        }
        let is_raidz = matches!(kind, "raidz" | "draid");
        let children = config::children(vdev);
        let slots: Vec<BTreeSet<usize>> = match is_raidz {
            true => children.iter().map(disks_below).collect(),
            false => disks_below(vdev).into_iter().map(|disk| BTreeSet::from([disk])).collect(),
        };
        let parity = usize::try_from(config::number(vdev, "nparity")).ok()?;
        // The store has all that it was told to keep.
        let needs = if kind == "object" {
            0
        } else if is_raidz {
            slots.len().saturating_sub(parity)
        } else {
            1
        };
        let replaces = |kind: Option<&str>| matches!(kind, Some("replacing" | "spare"));
        let changes = replaces(Some(kind))
            || children.iter().any(|child| replaces(child.str("type")))
            || config::flag(vdev, "removing");
        Some(Top { guid: config::number(vdev, "guid"), slots, needs, is_raidz, changes })
    }

    fn disks(&self) -> BTreeSet<usize> {
        self.slots.iter().flatten().copied().collect()
    }
}

impl Sim {
    fn tops(&self) -> Done<Vec<Top>> {
        let engine = self.engine()?;
        let pool = engine.pool();
        let root = pool.config().list("vdev_tree");
        Ok(root
            .map(|root| config::children(root).iter().filter_map(Top::of).collect())
            .unwrap_or_default())
    }

    fn leaves(&self) -> Done<Vec<Leaf>> {
        let leaves = self.engine()?.pool().store().vdevs().leaves();
        let known = leaves.iter().filter_map(|leaf| {
            let disk = disk_of(leaf.path()?.to_str()?)?;
            let (state, is_behind) = (leaf.state(), leaf.is_behind());
            let (in_use, is_degraded) = (state == VdevState::Healthy, state == VdevState::Degraded);
            Some(Leaf { guid: leaf.guid(), disk, in_use, is_degraded, is_behind })
        });
        Ok(known.collect())
    }

    /// The guids of disks that were rebuilt since all was scrubbed.
    pub(super) fn rebuilt(&self) -> Done<BTreeSet<u64>> {
        let is_rebuilt = |leaf: &Leaf| self.devices.rebuilt.contains(&leaf.disk);
        let leaves = self.leaves()?.into_iter().filter(is_rebuilt);
        Ok(leaves.map(|leaf| leaf.guid).collect())
    }

    fn guid_of(&self, disk: usize) -> Done<u64> {
        let found = self.leaves()?.into_iter().find(|leaf| leaf.disk == disk);
        found.map(|leaf| leaf.guid).ok_or_else(|| Stopped(format!("disk {disk} is not in use")))
    }

    /// The disks that are whole, well and in use.
    fn sound(&self) -> Done<BTreeSet<usize>> {
        let known = &self.devices;
        let sound = |leaf: &&Leaf| {
            leaf.in_use && known.whole.contains(&leaf.disk) && known.bad != Some(leaf.disk)
        };
        Ok(self.leaves()?.iter().filter(sound).map(|leaf| leaf.disk).collect())
    }

    /// Whether the sound disks but for this one, and those that may leave at any moment, have everything.
    fn suffices(&self, without: usize) -> Done<bool> {
        let mut sound = self.sound()?;
        sound.retain(|disk| *disk != without && !self.devices.leaving.contains(disk));
        self.suffice(&sound)
    }

    /// Whether the sound disks have everything.
    pub(super) fn has_everything(&self) -> Done<bool> {
        self.suffice(&self.sound()?)
    }

    /// Whether these disks have everything.
    fn suffice(&self, sound: &BTreeSet<usize>) -> Done<bool> {
        let has = |top: &Top| {
            top.slots.iter().filter(|slot| !slot.is_disjoint(sound)).count() >= top.needs
        };
        Ok(self.tops()?.iter().all(has))
    }

    /// The pool was just made.
    pub(super) fn begin_devices(&mut self) -> Done {
        self.devices.members = self.tops()?.iter().flat_map(Top::disks).collect();
        self.devices.whole = self.devices.members.clone();
        Ok(())
    }

    /// The power was gone: whether the pool has the disks that it may have.
    pub(super) fn check_devices(&mut self) -> Done {
        let is: BTreeSet<usize> = self.tops()?.iter().flat_map(Top::disks).collect();
        let known = &mut self.devices;
        let may = |disk: &usize| {
            known.members.contains(disk) || [known.joining, known.spare].contains(&Some(*disk))
        };
        let must = |disk: &&usize| !known.leaving.contains(disk) && known.spare != Some(**disk);
        if !is.iter().all(may) || !known.members.iter().filter(must).all(|disk| is.contains(disk)) {
            return Err(Stopped(format!("the pool has the disks {is:?}, but {known:?}")));
        }
        (known.members, known.joining) = (is, None);
        Ok(())
    }

    /// A disk fails, lies, or gets slow, if the pool can do without it.
    pub(super) fn break_disk(&mut self, rng: &mut SmallRng) -> Done {
        let members: Vec<usize> = self.leaves()?.iter().map(|leaf| leaf.disk).collect();
        let Some(disk) = self.devices.bad.or_else(|| Sim::pick(rng, &members)) else {
            return Ok(());
        };
        if !members.contains(&disk) || !self.suffices(disk)? {
            return Ok(());
        }
        let mood = crate::disk::BAD[rng.random_range(0..crate::disk::BAD.len())];
        tell(format_args!("disk {disk}: {mood:?}"));
        self.devices.bad = Some(disk);
        self.devices.whole.remove(&disk);
        self.devices.lied |= mood == Mood::Lies && !self.devices.rebuilt.is_empty();
        self.disks[disk].set_mood(mood);
        Ok(())
    }

    /// Disks of an outage, if the pool waits for them: those of a top-level vdev, or all.
    pub(super) fn any_outage(&self, rng: &mut SmallRng) -> Done<Option<Vec<usize>>> {
        if !self.waits || self.devices.bad.is_some() {
            return Ok(None);
        }
        let all: Vec<Vec<usize>> =
            self.tops()?.iter().map(|top| top.disks().into_iter().collect()).collect();
        if rng.random_bool(0.5) {
            return Ok(Some(all.concat()));
        }
        Ok(Sim::pick(rng, &all))
    }

    /// Disks take nothing for a while, then the pool is resumed: nothing that was changed meanwhile is missing.
    pub(super) fn outage(&mut self, disks: &[usize], rng: &mut SmallRng) -> Done {
        tell(format_args!("disks {disks:?} take nothing"));
        for disk in disks {
            self.devices.whole.remove(disk);
            self.disks[*disk].set_mood(Mood::TakesNothing);
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..20_000)));
        for disk in disks {
            self.disks[*disk].set_mood(Mood::Well);
        }
        let engine = self.engine()?;
        tell(format_args!("suspended: {}", engine.waits_for_devices()));
        // What fails at this moment may suspend it once more.
        for _ in 0..LOOKS {
            engine.resume()?;
            self.rest()?;
            if !engine.waits_for_devices() {
                let leaves: Vec<u64> = self.leaves()?.iter().map(|leaf| leaf.guid).collect();
                return Ok(engine.restore(&leaves, Restore::Failure)?);
            }
        }
        Err(Stopped("the pool stays suspended".into()))
    }

    /// The store answers nothing for a while, then the pool is resumed.
    pub(super) fn store_away(&mut self, rng: &mut SmallRng) -> Done {
        let (engine, Some(store)) = (self.engine()?, &self.store) else { return Ok(()) };
        tell(format_args!("the store is away"));
        store.leave();
        let theirs = engine.clone();
        // A thread that asks for a group is told that it is not written.
        let asking = std::thread::Builder::new().name("grouper".into());
        let asking = asking.spawn(move || drop(theirs.sync()))?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..120_000)));
        tell(format_args!("suspended: {}", engine.waits_for_devices()));
        store.mend();
        for _ in 0..LOOKS {
            // It may not have answered yet.
            let resumed = engine.resume();
            self.rest()?;
            if resumed.is_ok() && !engine.waits_for_devices() {
                asking.join().map_err(|_| Stopped("it panicked".into()))?;
                return Ok(());
            }
        }
        Err(Stopped("the pool stays suspended".into()))
    }

    /// A lab with copies of disks, and one of the store as it is now.
    pub(super) fn look_at(
        &self,
        disks: &[std::sync::Arc<cenote_torture::live::disk::Disk>],
    ) -> lab::Lab {
        let lab = lab::lab(disks);
        match &self.store {
            Some(store) => lab.with_object(&store.copy()),
            None => lab,
        }
    }

    /// The bad disk is well again, and is used again, as `zpool clear` has it.
    pub(super) fn mend(&mut self) -> Done {
        self.store.iter().for_each(Store::mend);
        if let Some(disk) = self.devices.bad.take() {
            self.disks[disk].set_mood(Mood::Well);
        }
        self.engine()?.pool().store().vdevs().root().clear_errors();
        let leaves: Vec<u64> = self.leaves()?.iter().map(|leaf| leaf.guid).collect();
        leaves.iter().for_each(|leaf| diagnosis::reset(*leaf));
        Ok(self.engine()?.restore(&leaves, Restore::Failure)?)
    }

    /// Some change of the devices, if the pool bears it.
    pub(super) fn any_device_change(&self, rng: &mut SmallRng) -> Done<Option<DeviceChange>> {
        let (tops, leaves) = (self.tops()?, self.leaves()?);
        let free: Vec<usize> =
            (0..self.disks.len()).filter(|n| leaves.iter().all(|leaf| leaf.disk != *n)).collect();
        let free: Vec<usize> = free.into_iter().filter(|n| !self.is_idle_spare(*n)).collect();
        let used: Vec<usize> = leaves.iter().map(|leaf| leaf.disk).collect();
        let (Some(top), Some(disk)) =
            (tops.get(rng.random_range(0..tops.len().max(1))), Sim::pick(rng, &used))
        else {
            return Ok(None);
        };
        let new = Sim::pick(rng, &free);
        let beside = Sim::pick(rng, &top.disks().into_iter().collect::<Vec<_>>());
        let bears = self.suffices(disk)?;
        let without = |top: &&Top| top.guid != 0 && top.disks().contains(&disk);
        let in_raidz = tops.iter().find(without).is_some_and(|top| top.is_raidz);
        let all_mirrors = tops.iter().all(|top| !top.is_raidz);
        let how = [TakeOut::Offline, TakeOut::OfflineForNow][rng.random_range(0..2)];
        let activity = Activity::ALL[rng.random_range(0..Activity::ALL.len())];
        let request = match rng.random_range(0..10) {
            0..6 => ActivityRequest::START,
            6 => ActivityRequest::Start { rate: 1 << 20, value: None },
            7 => ActivityRequest::Suspend,
            8 => ActivityRequest::Forget,
            _ => ActivityRequest::Cancel,
        };
        let verified = !self.devices.may_copy_wrong(&self.disks);
        let in_order = rng.random_ratio(1, 3) && verified;
        let change = match (rng.random_range(0..116), new, beside) {
            (0..22, Some(new), Some(beside)) if !top.is_raidz && top.slots.len() < MOST => {
                DeviceChange::Attach { beside, new, in_order }
            }
            (0..42, Some(new), _) => DeviceChange::Replace { old: disk, new, in_order },
            (42..54, ..) if bears && !in_raidz => DeviceChange::Detach(disk),
            (54..66, ..) if bears => DeviceChange::Offline(disk, how),
            (66..76, ..) => DeviceChange::Online,
            // What is on it alone is lost where it fails, and a group that it does not take waits for an order.
            (76..82, Some(new), _)
                if all_mirrors && tops.len() < MOST && self.devices.bad != Some(new) =>
            {
                DeviceChange::Add(new)
            }
            (82..90, ..) if all_mirrors && tops.len() > 1 && !self.devices.lied => {
                DeviceChange::Remove(top.guid, top.disks())
            }
            (90..96, ..) => DeviceChange::Scrub,
            (96..98, ..) => DeviceChange::StopScrub,
            (98..102, ..) => DeviceChange::Resilver,
            (102.., ..) => DeviceChange::Activity(disk, activity, request),
            _ => return Ok(None),
        };
        Ok(Some(change))
    }

    /// Makes a change of the devices. That one is refused is no fault: a scan, a removal or a disk that lacks something may be in
    /// the way.
    pub(super) fn change_devices(&mut self, change: &DeviceChange) -> Done {
        tell(format_args!("{change:?}"));
        // All but the newest of what replaces one another leave.
        let replaced = match change {
            DeviceChange::Replace { old, .. } => self.beside_in_replacement(*old)?,
            _ => BTreeSet::new(),
        };
        let known = &mut self.devices;
        match change {
            DeviceChange::Attach { new, in_order, .. } => {
                known.whole.remove(new);
                known.joining = Some(*new);
                known.rebuilt.extend(in_order.then_some(*new));
            }
            DeviceChange::Replace { old, new, in_order } => {
                known.whole.remove(new);
                known.joining = Some(*new);
                known.leaving.extend(replaced.iter().chain([old]));
                known.rebuilt.extend(in_order.then_some(*new));
            }
            DeviceChange::Detach(disk) => {
                known.leaving.insert(*disk);
            }
            DeviceChange::Offline(disk, _) => {
                known.whole.remove(disk);
            }
            DeviceChange::Add(new) => {
                known.whole.insert(*new);
                known.joining = Some(*new);
            }
            DeviceChange::Remove(_, disks) => known.leaving.extend(disks),
            DeviceChange::Online
            | DeviceChange::Activity(..)
            | DeviceChange::Resilver
            | DeviceChange::Scrub
            | DeviceChange::StopScrub => {}
        }
        let done = self.try_device_change(change);
        if self.power.is_off() {
            return done;
        }
        if let Err(Stopped(why)) = done {
            tell(format_args!("refused: {why}"));
        }
        let is: BTreeSet<usize> = self.tops()?.iter().flat_map(Top::disks).collect();
        (self.devices.members, self.devices.joining) = (is, None);
        Ok(())
    }

    fn try_device_change(&self, change: &DeviceChange) -> Done {
        let engine = self.engine()?;
        let join = |beside: &usize, new: &usize, (replaces, in_order): (bool, &bool)| -> Done {
            let (beside, new) = (self.guid_of(*beside)?, self.prepared(*new)?);
            let new = new.into_single().ok_or_else(|| Stopped("not one device".into()))?;
            let attach = Attach { beside, new, replaces };
            Ok(if *in_order { engine.attach_sequentially(attach) } else { engine.attach(attach) }?)
        };
        match change {
            DeviceChange::Attach { beside, new, in_order } => join(beside, new, (false, in_order)),
            DeviceChange::Replace { old, new, in_order } => join(old, new, (true, in_order)),
            DeviceChange::Detach(disk) => Ok(engine.detach(self.guid_of(*disk)?, None)?),
            DeviceChange::Offline(disk, how) => Ok(engine.take_out(self.guid_of(*disk)?, *how)?),
            DeviceChange::Online => self.bring_back(),
            DeviceChange::Add(new) => Ok(engine.add(self.prepared(*new)?)?),
            DeviceChange::Remove(top, _) => Ok(engine.remove(*top)?),
            DeviceChange::Activity(disk, activity, request) => {
                Ok(engine.activity(*activity, self.guid_of(*disk)?, *request)?)
            }
            DeviceChange::Resilver => Ok(engine.start_resilver().map(drop)?),
            DeviceChange::Scrub => Ok(engine.scrub()?),
            DeviceChange::StopScrub => Ok(engine.stop_scrub()?),
        }
    }

    /// Disks that replace one another, of which this is one.
    fn beside_in_replacement(&self, disk: usize) -> Done<BTreeSet<usize>> {
        fn find(vdev: &NvList, disk: usize) -> Option<BTreeSet<usize>> {
            let own = disks_below(vdev);
            let replaces = vdev.str("type") == Some("replacing") && own.contains(&disk);
            let deeper = || config::children(vdev).iter().find_map(|child| find(child, disk));
            if replaces { Some(own) } else { deeper() }
        }
        let engine = self.engine()?;
        let pool = engine.pool();
        let found = pool.config().list("vdev_tree").and_then(|root| find(root, disk));
        Ok(found.unwrap_or_default())
    }

    fn prepared(&self, new: usize) -> Done<cenote_engine::create::Prepared> {
        let path = self.lab.paths().nth(new).ok_or_else(|| Stopped("no such disk".into()))?;
        let layout = Layout {
            tops: vec![VdevSpec::new(Redundancy::Single, vec![path])],
            ..Layout::default()
        };
        Ok(self.lab.prepare_to_add(&self.engine()?.pool(), &layout)?)
    }

    /// Whether this disk is a spare of the pool that does not stand in.
    fn is_idle_spare(&self, disk: usize) -> bool {
        let Some(engine) = &self.engine else { return false };
        let pool = engine.pool();
        let mut spares = pool.spares().iter().filter_map(|spare| spare.str("path"));
        let stands_in = self.guid_of(disk).is_ok();
        !stands_in && spares.any(|path| disk_of(path) == Some(disk))
    }

    /// The spare stands in for a disk that works again: it goes back.
    fn let_spare_go(&self) -> Done {
        fn stands_in(vdev: &NvList, disk: usize) -> bool {
            let own = |child: &NvList| child.str("path").and_then(disk_of) == Some(disk);
            let children = config::children(vdev);
            vdev.str("type") == Some("spare") && children.iter().any(own)
                || children.iter().any(|child| stands_in(child, disk))
        }
        let (engine, Some(spare)) = (self.engine()?, self.devices.spare) else { return Ok(()) };
        let pool = engine.pool();
        if !pool.config().list("vdev_tree").is_some_and(|root| stands_in(root, spare)) {
            return Ok(());
        }
        tell(format_args!("the spare goes back"));
        Ok(engine.detach(self.guid_of(spare)?, None)?)
    }

    fn bring_back(&self) -> Done {
        let leaves: Vec<u64> = self.leaves()?.iter().map(|leaf| leaf.guid).collect();
        Ok(self.engine()?.restore(&leaves, Restore::Offline)?)
    }

    /// Whether a scrub of all has ended since disks were rebuilt. Else one begins, where none has begun (`proving`); none is under way.
    fn is_proven(&mut self, proving: &mut bool) -> Done<bool> {
        if self.devices.rebuilt.is_empty() {
            return Ok(true);
        }
        let engine = self.engine()?;
        let scan = ScanPhys::load(engine.pool().directory())?;
        let is_over = scan.is_some_and(|s| !s.is_resilver() && s.state == SCAN_FINISHED);
        if !*proving || !is_over {
            *proving = true;
            tell(format_args!("a scrub looks at what was rebuilt"));
            if let Err(why) = engine.scrub() {
                // Another scan has begun.
                tell(format_args!("refused: {why}"));
            }
            return Ok(false);
        }
        if let Some(lost) = scan.filter(|scan| scan.errors > 0) {
            return Err(Stopped(format!("a scrub finds what nothing mends: {lost:?}")));
        }
        (self.devices.rebuilt, self.devices.lied) = (BTreeSet::new(), false);
        Ok(true)
    }

    /// All disks are well and in use, and become whole.
    pub(super) fn settle(&mut self) -> Done {
        self.mend()?;
        self.bring_back()?;
        go_on()?;
        // Beside a checkpoint no disk leaves a vdev.
        self.discard()?;
        let engine = self.engine()?;
        let mut proving = false;
        for _ in 0..LOOKS {
            let (tops, leaves) = (self.tops()?, self.leaves()?);
            let whole = leaves.iter().all(|leaf| leaf.in_use && !leaf.is_behind);
            // What was found of a disk before it was well may be acted on later.
            if leaves.iter().any(|leaf| leaf.is_degraded || !leaf.in_use) {
                self.mend()?;
            }
            let busy = tops.iter().any(|top| top.changes);
            let scans = engine.is_scanning() || engine.awaits_resilver() || engine.is_rebuilding();
            if whole && busy && !scans {
                self.let_spare_go()?;
            }
            if whole && !busy && !scans && self.is_proven(&mut proving)? {
                let members: BTreeSet<usize> = tops.iter().flat_map(Top::disks).collect();
                self.devices.leaving.clear();
                self.devices.whole = members.clone();
                self.devices.members = members;
                return self.check_logs(true);
            }
            drop(leaves);
            self.rest()?;
        }
        let leaves = engine.pool().store().vdevs().leaves();
        let behind =
            leaves.iter().filter(|leaf| leaf.is_behind() || leaf.state() != VdevState::Healthy);
        let behind: Vec<_> = behind
            .map(|leaf| {
                (leaf.path().map(std::path::Path::to_path_buf), leaf.state(), leaf.missing())
            })
            .collect();
        let left = self.tops()?.iter().filter(|top| top.changes).count();
        let scan = ScanPhys::load(engine.pool().directory())?;
        Err(Stopped(format!(
            "{behind:?} stay behind, {left} vdevs change, the last scan is {scan:?}"
        )))
    }

    /// Waits for the next look. Without power nothing comes of it.
    pub(super) fn rest(&self) -> Done {
        std::thread::sleep(LOOK);
        match self.power.is_off() {
            true => Err(Stopped("the power is gone".into())),
            false => Ok(()),
        }
    }

    /// What the disks hold with as many of them missing as the pool bears, once all are whole.
    pub(super) fn prove(&mut self, rng: &mut SmallRng) -> Done {
        let mut missing = BTreeSet::new();
        for top in self.tops()? {
            let mut slots = top.slots;
            while slots.len() > top.needs {
                missing.extend(slots.swap_remove(rng.random_range(0..slots.len())));
            }
        }
        self.prove_without(&missing)
    }

    /// What the sound disks hold by themselves, if they suffice: a disk that has replaced one may not be known to be whole.
    pub(super) fn prove_sound(&mut self) -> Done {
        let sound = self.sound()?;
        if !self.suffice(&sound)? {
            return Ok(());
        }
        let others = self.devices.members.iter().filter(|disk| !sound.contains(disk));
        self.prove_without(&others.copied().collect())
    }

    fn prove_without(&mut self, missing: &BTreeSet<usize>) -> Done {
        self.engine()?.sync()?;
        self.live.values_mut().for_each(super::Live::is_stable);
        let kept = self.disks.iter().enumerate().filter(|(n, _)| !missing.contains(n));
        let images: Vec<Image> = kept.map(|(_, disk)| disk.image()).collect();
        tell(format_args!("without the disks {missing:?}"));
        let disks = lab::disks(&images, None);
        let lab = self.look_at(&disks);
        let pool = lab.look().map_err(Stopped)?;
        let known = self.kept.as_ref().filter(|kept| kept.is_there);
        let kept = known.map_or(Ok(()), |kept| kept.prove(&lab));
        same(&pool, &self.model).and(kept).map_err(|Stopped(why)| {
            Stopped(format!("without the disks {missing:?}, which others make up for: {why}"))
        })
    }
}
