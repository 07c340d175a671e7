//! The vdev tree with states, by sections (`print_status_config`).
//!
//! A [`VdevLine`] is a vdev with its name, state, note and errors. It is made from an open vdev, or, before an
//! import, from a config of a label and whether its device was found. A [`ConfigTree`] sorts the top-level vdevs
//! into sections: data, dedup, special, logs; cache devices and spares come from lists of their own. Holes and
//! removed vdevs are left out.
//!
//! Leaves below a `replacing` vdev do not count when the tree is asked whether a leaf is in some state, since what
//! is wrong with them is being mended.

use crate::Pool;
use crate::config;
use crate::devices::DeviceSet;
use crate::names::{NameStyle, vdev_name};
use cenote_dsl::human::nicebytes;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::{Aux, Vdev, VdevState, VdevTree};
use std::io::ErrorKind;
use std::path::PathBuf;

/// The name of a vdev that is open.
pub fn name_of_vdev(vdev: &Vdev, style: &NameStyle) -> String {
    let mut config = vdev.config().clone();
    bring_up_to_date(&mut config, vdev.state(), vdev.is_faulted_by_hand());
    vdev_name(&config, style)
}

/// A line of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct VdevLine {
    /// The vdev's config, with the path where its device was found: [`vdev_name`] names it.
    pub config: NvList,
    /// `ONLINE`, `DEGRADED`, `OFFLINE`, `UNAVAIL`, `FAULTED`, `REMOVED`, `AVAIL`, …
    pub state: &'static str,
    /// The state as the vdev itself has it; `None` where there is no open vdev behind the line.
    pub vdev_state: Option<VdevState>,
    /// What is wrong (`cannot open`), or where the device was (`was /dev/sda`).
    pub note: Option<String>,
    /// Numbers of read, write and checksum errors.
    pub errors: (u64, u64, u64),
    /// Reads and writes of the leaf that were slow.
    pub slow_ios: u64,
    /// Requests of the leaf that failed where nothing is allocated: (initializing, trimming).
    pub vacant_errors: (u64, u64),
    /// The leaf lacks what was written while it was out of use.
    pub behind: bool,
    /// The resilver under way does not bring the leaf up to date: another one will.
    pub deferred: bool,
    /// The last write to the leaf that failed did so for want of space below it.
    pub no_space: bool,
    /// The leaf's device is open, and its path leads to it no longer.
    pub gone: bool,
    /// How many bytes the leaf's device, an image that is only read, is shorter than its vdev needs.
    pub cut_off: u64,
    /// How many bytes of the leaf's device are known as not read from the disk that it is an image of.
    pub unread: u64,
    /// The leaf's device is such that it can only be read.
    pub only_read: bool,
    /// The vdevs below.
    pub children: Vec<VdevLine>,
}

/// Takes off a config what it had when the vdev was opened and is not so any more.
fn bring_up_to_date(config: &mut NvList, state: VdevState, by_hand: bool) {
    // An order of before was taken back. What another system has degraded is so still.
    let is_noted = state != VdevState::Faulted && config::flag(config, "degraded");
    if by_hand {
        config::set(config, "aux_state", NvValue::String(config::BY_HAND.into()));
    } else if !is_noted {
        config.pairs.retain(|(name, _)| name != "aux_state");
    }
    // The device is there.
    if state.readable() {
        config.pairs.retain(|(name, _)| name != "not_present");
    }
}

impl VdevLine {
    /// The name to show.
    pub fn name(&self, style: &NameStyle) -> String {
        vdev_name(&self.config, style)
    }

    fn of_vdev(v: &Vdev, mark_absent: bool) -> VdevLine {
        let mut config = v.config().clone();
        bring_up_to_date(&mut config, v.state(), v.is_faulted_by_hand());
        let (state, mut note) = describe(v.state(), &config);
        let gone = v.seen().is_some_and(|seen| !seen.there);
        if gone {
            note = Some("was deleted or replaced".into());
        }
        if mark_absent && v.is_leaf() && matches!(v.state(), VdevState::CantOpen(_)) {
            config::set(&mut config, "not_present", NvValue::Uint64(1));
        }
        if config::flag(&config, "not_present") && v.is_leaf() {
            note = v.path().map(|p| format!("was {}", p.display()));
        }
        let behind = v.is_leaf() && v.state() == VdevState::Healthy && v.is_behind();
        let no_space = v.is_leaf() && v.has_no_space();
        if mark_absent && behind {
            note = Some("(awaiting resilver)".into());
        }
        if mark_absent && no_space {
            note = Some("no space left on the file system below".into());
        }
        let (cut_off, unread, only_read) = (v.cut_off(), v.unread(), v.only_read());
        if !gone {
            let lacks = lacks(cut_off, unread);
            note = lacks.or_else(|| only_read.then(|| "can only be read".into())).or(note);
        }
        VdevLine {
            config,
            state,
            vdev_state: Some(v.state()),
            note,
            errors: v.errors(),
            slow_ios: v.slow_ios(),
            vacant_errors: v.vacant_errors(),
            behind,
            deferred: false,
            no_space,
            gone,
            cut_off,
            unread,
            only_read,
            children: v.children().iter().map(|c| VdevLine::of_vdev(c, mark_absent)).collect(),
        }
    }

    fn note_refusal(&mut self, devices: &DeviceSet) {
        self.children.iter_mut().for_each(|child| child.note_refusal(devices));
        if self.vdev_state != Some(VdevState::CantOpen(Aux::OpenFailed)) {
            return;
        }
        let Some(kind) = devices.refusal(config::number(&self.config, "guid")) else { return };
        self.config.pairs.retain(|(name, _)| name != "not_present");
        self.note = Some(match kind {
            ErrorKind::ReadOnlyFilesystem => "read-only device".into(),
            _ => "permission denied".into(),
        });
    }

    /// A line for a vdev that is described but was not opened.
    pub(crate) fn of_config(config: &NvList, devices: &DeviceSet) -> VdevLine {
        let children: Vec<VdevLine> =
            config::children(config).iter().map(|c| VdevLine::of_config(c, devices)).collect();
        let leaf = config.lists("children").is_none();
        let found = devices.open(config::number(config, "guid")).is_some();
        let absent = (leaf && !found) || children.iter().any(|c| c.state != "ONLINE");
        let vdev_state = match (absent, leaf) {
            (false, _) => VdevState::Healthy,
            (true, true) => VdevState::CantOpen(Aux::OpenFailed),
            (true, false) => VdevState::Degraded,
        };
        let (state, note) = describe(vdev_state, config);
        VdevLine {
            config: config.clone(),
            state,
            vdev_state: Some(vdev_state),
            note,
            errors: (0, 0, 0),
            slow_ios: 0,
            vacant_errors: (0, 0),
            behind: false,
            deferred: false,
            no_space: false,
            gone: false,
            cut_off: 0,
            unread: 0,
            only_read: false,
            children,
        }
    }

    /// Whether `f` holds for the state of any leaf; leaves below a `replacing` vdev do not count,
    /// since their trouble is being mended.
    pub(crate) fn any_leaf(&self, f: &dyn Fn(&VdevLine) -> bool) -> bool {
        match self.config.str("type") {
            Some("replacing") => false,
            _ if self.children.is_empty() => f(self),
            _ => self.children.iter().any(|c| c.any_leaf(f)),
        }
    }

    fn is(&self, kind: &str) -> bool {
        self.config.str("type") == Some(kind)
    }
}

/// What an image lacks of the disk, by how many bytes behind its end and in its holes.
fn lacks(cut_off: u64, unread: u64) -> Option<String> {
    let texts = [
        (cut_off, format!("cut off, {} missing", nicebytes(cut_off))),
        (unread, format!("{} not read from the disk", nicebytes(unread))),
    ];
    let texts = texts.into_iter().filter_map(|(bytes, text)| (bytes > 0).then_some(text));
    texts.reduce(|all, text| format!("{all}, {text}"))
}

/// Name of a state: `ONLINE`, `DEGRADED`, `UNAVAIL`, … (`zpool_state_to_name`).
pub fn state_name(state: VdevState) -> &'static str {
    match state {
        VdevState::Closed | VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::CantOpen(Aux::CorruptData) | VdevState::Faulted => "FAULTED",
        VdevState::CantOpen(Aux::SplitPool) => "SPLIT",
        VdevState::CantOpen(_) => "UNAVAIL",
        VdevState::Degraded => "DEGRADED",
        VdevState::Healthy => "ONLINE",
    }
}

/// Why a device is out of use that a command faulted, and one that failed.
const BY_HAND: &str = "external device fault";
const BY_ERRORS: &str = "too many errors";

/// Name of a state and what to say about it.
pub(crate) fn describe(state: VdevState, config: &NvList) -> (&'static str, Option<String>) {
    let note = match state {
        VdevState::CantOpen(aux) => Some(aux_text(aux)),
        VdevState::Faulted => Some(fault_text(config)),
        // Of itself a leaf is degraded only if it has had too many errors.
        VdevState::Degraded if config.lists("children").is_none() => Some(fault_text(config)),
        _ => None,
    };
    (state_name(state), note.map(String::from))
}

fn aux_text(aux: Aux) -> &'static str {
    match aux {
        Aux::OpenFailed => "cannot open",
        Aux::BadGuidSum | Aux::Missing => "missing device",
        Aux::NoReplicas => "insufficient replicas",
        Aux::VersionNewer => "newer version",
        Aux::BadLabel => "invalid label",
        Aux::External => BY_HAND,
        Aux::SplitPool => "split into new pool",
        Aux::None | Aux::CorruptData | Aux::TooSmall => "corrupted data",
    }
}

/// Why a vdev was faulted, as its config has it.
fn fault_text(config: &NvList) -> &'static str {
    match config.str("aux_state") {
        Some(config::BY_HAND) => BY_HAND,
        _ => BY_ERRORS,
    }
}

/// The tree by sections.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigTree {
    /// The pool itself, with the top-level vdevs that hold data.
    pub root: VdevLine,
    /// Top-level vdevs for deduplication tables.
    pub dedup: Vec<VdevLine>,
    /// Top-level vdevs for metadata and small blocks.
    pub special: Vec<VdevLine>,
    /// Top-level vdevs for intent logs.
    pub logs: Vec<VdevLine>,
    /// Cache devices.
    pub cache: Vec<VdevLine>,
    /// Hot spares.
    pub spares: Vec<VdevLine>,
}

impl ConfigTree {
    /// Sorts the children of a root line into sections. Holes and removed vdevs are left out.
    pub(crate) fn new(mut root: VdevLine) -> ConfigTree {
        let (mut dedup, mut special, mut logs) = (vec![], vec![], vec![]);
        let mut data = Vec::new();
        for child in std::mem::take(&mut root.children) {
            if child.is("hole") || child.is("indirect") || config::flag(&child.config, "is_hole") {
                continue;
            }
            match child.config.str("alloc_bias") {
                _ if config::flag(&child.config, "is_log") => logs.push(child),
                Some("dedup") => dedup.push(child),
                Some("special") => special.push(child),
                Some("log") => logs.push(child),
                _ => data.push(child),
            }
        }
        root.children = data;
        ConfigTree { root, dedup, special, logs, cache: vec![], spares: vec![] }
    }

    /// The tree of open vdevs. `mark_absent`: name leaves that could not be opened by their guids,
    /// as OpenZFS does in an imported pool.
    pub(crate) fn of_root(root: &Vdev, mark_absent: bool) -> ConfigTree {
        ConfigTree::new(VdevLine::of_vdev(root, mark_absent))
    }

    pub(crate) fn of_pool(pool: &Pool) -> ConfigTree {
        let mut tree = ConfigTree::of_root(pool.store().vdevs().root(), true);
        let active = |guid| tree.root.any_leaf(&|l| l.config.u64("guid") == Some(guid));
        tree.spares = pool
            .spares()
            .iter()
            .map(|c| {
                let guid = config::number(c, "guid");
                let other = || pool.devices().other_user(guid, pool.guid());
                let used = match active(guid) {
                    true => Some("currently in use".to_string()),
                    false => other().map(|pool| format!("in use by pool '{pool}'")),
                };
                VdevLine::spare(c, pool.has_spare(c), used)
            })
            .collect();
        tree.cache = pool.caches().iter().map(|c| VdevLine::cache(pool, c)).collect();
        tree.note_refusals(pool.devices());
        tree
    }

    /// Says of leaves whose devices are there, but could not be opened as the pool's are, why.
    pub(crate) fn note_refusals(&mut self, devices: &DeviceSet) {
        let sections = [&mut self.dedup, &mut self.special, &mut self.logs, &mut self.cache];
        let data = self.root.children.iter_mut();
        data.chain(sections.into_iter().flatten()).for_each(|line| line.note_refusal(devices));
    }

    /// Says of leaves that a scan has written to what it does to them (`vs_scan_processed`).
    /// Those whose guids are in `deferred` wait for another one.
    pub(crate) fn note_scan(&mut self, vdevs: &VdevTree, what: &str, deferred: &[u64]) {
        let sections = [&mut self.dedup, &mut self.special, &mut self.logs];
        let data = self.root.children.iter_mut();
        data.chain(sections.into_iter().flatten())
            .for_each(|line| line.note_scan(vdevs, what, deferred));
    }

    /// All lines but the spares'.
    pub(crate) fn any_leaf(&self, f: &dyn Fn(&VdevLine) -> bool) -> bool {
        let sections = [&self.dedup, &self.special, &self.logs, &self.cache];
        let data = self.root.children.iter();
        data.chain(sections.into_iter().flatten()).any(|l| l.any_leaf(f))
    }
}

impl VdevLine {
    fn note_scan(&mut self, vdevs: &VdevTree, what: &str, deferred: &[u64]) {
        self.children.iter_mut().for_each(|child| child.note_scan(vdevs, what, deferred));
        let Some(vdev) = vdevs.find(config::number(&self.config, "guid")) else { return };
        self.deferred = vdev.is_leaf() && deferred.contains(&vdev.guid());
        if !vdev.is_leaf() || vdev.state() != VdevState::Healthy {
            return;
        }
        if vdev.scan_processed() > 0 {
            self.note = Some(what.into());
        } else if self.deferred {
            self.note = Some("(awaiting resilver)".into());
        }
    }

    pub(crate) fn aux(config: &NvList, state: VdevState) -> VdevLine {
        let (name, note) = describe(state, config);
        VdevLine {
            config: config.clone(),
            state: name,
            vdev_state: Some(state),
            note,
            errors: (0, 0, 0),
            slow_ios: 0,
            vacant_errors: (0, 0),
            behind: false,
            deferred: false,
            no_space: false,
            gone: false,
            cut_off: 0,
            unread: 0,
            only_read: false,
            children: vec![],
        }
    }

    /// A cache device, with what it has counted if it is used.
    fn cache(pool: &Pool, config: &NvList) -> VdevLine {
        let mut line = VdevLine::aux(config, pool.cache_state(config));
        if let Some(leaf) = pool.cache_leaf(config::number(config, "guid")) {
            (line.errors, line.slow_ios) = (leaf.errors(), leaf.slow_ios());
        }
        line
    }

    /// `used`: what is said of one that is in use.
    fn spare(config: &NvList, found: bool, used: Option<String>) -> VdevLine {
        let state = if found { VdevState::Healthy } else { VdevState::CantOpen(Aux::OpenFailed) };
        let mut line = VdevLine::aux(config, state);
        if used.is_some() {
            (line.state, line.note) = ("INUSE", used);
        } else if found {
            line.state = "AVAIL";
        }
        line
    }

    /// The path that the vdev has or had.
    pub fn path(&self) -> Option<PathBuf> {
        config::path(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::nvlist::NvValue;

    fn vdev(pairs: &[(&str, NvValue)]) -> NvList {
        NvList { pairs: pairs.iter().map(|(n, v)| (n.to_string(), v.clone())).collect() }
    }

    fn s(v: &str) -> NvValue {
        NvValue::String(v.into())
    }

    #[test]
    fn notes_of_before_are_not_shown() {
        let config = |more: &[(&str, NvValue)]| {
            let leaf = [("type", s("file")), ("path", s("/x")), ("guid", NvValue::Uint64(5))];
            vdev(&[&leaf, more].concat())
        };
        let shown = |config: &NvList, state, by_hand| {
            let mut now = config.clone();
            bring_up_to_date(&mut now, state, by_hand);
            (vdev_name(&now, &NameStyle::default()), describe(state, &now).1.unwrap_or_default())
        };
        let text = |name: &str, note: &str| (name.to_string(), note.to_string());
        // The device was away, and is there.
        let away = config(&[("not_present", NvValue::Uint64(1))]);
        assert_eq!(shown(&away, VdevState::Healthy, false), text("/x", ""));
        let gone = VdevState::CantOpen(Aux::OpenFailed);
        assert_eq!(shown(&away, gone, false), text("5", "cannot open"));
        // It was out by order, which was taken back.
        let by_order = ("aux_state", s(config::BY_HAND));
        let faulted = config(&[("faulted", NvValue::Uint64(1)), by_order.clone()]);
        for state in [VdevState::Faulted, VdevState::Degraded] {
            assert_eq!(shown(&faulted, state, false), text("/x", BY_ERRORS));
            assert_eq!(shown(&faulted, state, true), text("/x", BY_HAND));
        }
        // Another system has degraded it by order.
        let degraded = config(&[("degraded", NvValue::Uint64(1)), by_order]);
        assert_eq!(shown(&degraded, VdevState::Degraded, false), text("/x", BY_HAND));
        assert_eq!(shown(&degraded, VdevState::Faulted, false), text("/x", BY_ERRORS));
    }
}
