//! What `zpool import` lists about a pool that is not imported (`show_import`).
//!
//! A report opens the pool as far as it goes, read-only and with a small cache: it reads the labels' configuration,
//! asks whether another host uses the pool (`spa_activity_check`), loads the newest uberblock, and compares
//! features and guids. Where it stops, the failure gives the root its state and the [`Reason`]; where it gets
//! through, the tree of open vdevs does. A pool whose devices this system holds is not opened at all, but shown as
//! in use.
//!
//! [`ImportReport::text`] lays the result out as OpenZFS does: labels, tree, classes of vdevs apart. Nothing is
//! written to a device.

use super::reason::{Facts, Reason};
use super::tree::{ConfigTree, VdevLine, describe};
use crate::config::{self, STATE_ACTIVE, STATE_DESTROYED, STATE_EXPORTED};
use crate::devices::DeviceSet;
use crate::directory::Directory;
use crate::discover::Candidate;
use crate::features::PoolFeatures;
use crate::host;
use crate::import::{self, Cause, LoadOptions, uberblocks};
use crate::names::NameStyle;
use crate::scan::ScanStatus;
use cenote_format::nvlist::NvList;
use cenote_vdev::{Aux, VdevState, is_held};
use std::sync::Arc;

/// A pool as `zpool import` lists it.
#[derive(Debug, Clone)]
pub struct ImportReport {
    /// Name of the pool.
    pub name: String,
    /// Guid of the pool.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `UNAVAIL`, `FAULTED`.
    pub state: &'static str,
    /// The pool was destroyed: shown behind the state.
    pub destroyed: bool,
    /// The worst thing that is wrong.
    pub reason: Reason,
    /// After `status:`; lines after the first begin with a tab.
    pub status: Option<String>,
    /// After `action:`; the same.
    pub action: String,
    /// After `see:`, behind the address of OpenZFS's messages.
    pub msgid: Option<&'static str>,
    /// The pool's comment.
    pub comment: Option<String>,
    /// What else there is to say: before `see:` and after the tree.
    pub hint: Option<String>,
    /// The vdevs.
    pub tree: ConfigTree,
}

/// What opening the pool showed.
struct Opened {
    tree: ConfigTree,
    root: VdevState,
    features: Arc<PoolFeatures>,
    resilvering: bool,
    /// What is wrong that the tree does not show.
    cause: Option<Reason>,
}

impl ImportReport {
    pub(crate) fn of(c: &Candidate, hostid: u32) -> ImportReport {
        let devices = DeviceSet::new(c, false);
        let opened = open(c, &devices, hostid);
        let theirs = config::number(&c.config, "hostid");
        let facts = Facts {
            importing: true,
            root: opened.root,
            tree: &opened.tree,
            resilvering: opened.resilvering,
            unproven: false,
            other_host: theirs != 0 && theirs != u64::from(hostid) && c.state == STATE_ACTIVE,
            mended: false,
            error_count: 0,
            errata: super::errata(&c.config, &opened.features),
            version: config::number(&c.config, "version"),
            features: &opened.features,
            compatibility: c.config.str("compatibility"),
        };
        let reason = match opened.cause {
            Some(cause) => cause,
            None => facts.reason(),
        };
        let corrupt = matches!(opened.root, VdevState::CantOpen(Aux::CorruptData));
        let hint = match c.state {
            STATE_DESTROYED if corrupt => {
                "\tThe pool was destroyed, but can be imported using the '-Df' flags."
            }
            s if corrupt && s != STATE_EXPORTED => {
                "\tThe pool may be active on another system, but can be imported using\n\
                 \tthe '-f' flag."
            }
            _ => "",
        };
        ImportReport {
            name: c.name.clone(),
            guid: c.guid,
            state: opened.tree.root.state,
            destroyed: c.is_destroyed(),
            status: reason.import_status(),
            action: reason.import_action(opened.root),
            msgid: reason.msgid(),
            reason,
            comment: c.config.str("comment").map(String::from),
            hint: (!hint.is_empty()).then(|| hint.to_string()),
            tree: opened.tree,
        }
    }

    /// The report as `zpool import` prints it.
    pub fn text(&self) -> String {
        let indent = if self.comment.is_some() { " " } else { "" };
        // Continuation lines move along with the labels.
        let lines = |text: &str| text.replace("\n\t", &format!("\n\t{indent}"));
        let destroyed = if self.destroyed { " (DESTROYED)" } else { "" };
        let mut out = format!("{indent}  pool: {}\n{indent}    id: {}\n", self.name, self.guid);
        out.push_str(&format!("{indent} state: {}{destroyed}\n", self.state));
        if let Some(status) = &self.status {
            out.push_str(&format!("{indent}status: {}\n", lines(status)));
        }
        out.push_str(&format!("{indent}action: {}\n", lines(&self.action)));
        if let Some(comment) = &self.comment {
            out.push_str(&format!("comment: {comment}\n"));
        }
        if let Some(hint) = &self.hint {
            out.push_str(&format!("{}\n", lines(hint)));
        }
        if let Some(id) = self.msgid {
            let see = format!("https://openzfs.github.io/openzfs-docs/msg/{id}");
            out.push_str(&format!("{indent}   see: {see}\n"));
        }
        out.push_str(&format!("{indent}config:\n\n"));
        self.write_tree(&mut out);
        if self.reason == Reason::BadGuidSum {
            out.push_str(&format!(
                "\n\t{indent}Additional devices are known to be part of this pool, though their\n\
                 \t{indent}exact configuration cannot be determined.\n"
            ));
        }
        out
    }

    fn write_tree(&self, out: &mut String) {
        let t = &self.tree;
        let style = NameStyle::default();
        let mut width = self.name.len().max(10);
        let groups = [&t.dedup, &t.special, &t.logs, &t.cache, &t.spares];
        for line in t.root.children.iter().chain(groups.into_iter().flatten()) {
            widen(line, 2, &style, &mut width);
        }
        write_line(out, &t.root, &self.name, 0, width);
        for (title, lines) in [("cache", &t.cache), ("spares", &t.spares)] {
            if !lines.is_empty() {
                out.push_str(&format!("\t{title}\n"));
            }
            for line in lines {
                out.push_str(&format!("\t  {}\n", line.name(&style)));
            }
        }
        for (title, lines) in [("dedup", &t.dedup), ("special", &t.special), ("logs", &t.logs)] {
            if !lines.is_empty() {
                out.push_str(&format!("\t{title}\t\n"));
            }
            for line in lines {
                write_line(out, line, &line.name(&style), 2, width);
            }
        }
    }
}

fn widen(line: &VdevLine, depth: usize, style: &NameStyle, width: &mut usize) {
    *width = (*width).max(line.name(style).len() + depth);
    line.children.iter().for_each(|c| widen(c, depth + 2, style, width));
}

fn write_line(out: &mut String, line: &VdevLine, name: &str, depth: usize, width: usize) {
    if line.config.str("type") == Some("missing") {
        return;
    }
    let note = line.note.as_ref().map(|n| format!("  {n}")).unwrap_or_default();
    let pad = width.saturating_sub(depth);
    out.push_str(&format!("\t{:depth$}{name:<pad$}  {}{note}\n", "", line.state));
    for c in &line.children {
        write_line(out, c, &c.name(&NameStyle::default()), depth + 2, width);
    }
}

/// Opens the pool as far as it goes.
fn open(c: &Candidate, devices: &DeviceSet, hostid: u32) -> Opened {
    let root_config = c.config.list("vdev_tree").cloned().unwrap_or_default();
    // The caller holds those that it handed in open.
    if c.opened.0.is_empty() && c.devices.iter().any(|d| is_held(&d.path)) {
        return in_use(&root_config, devices, Reason::InUse);
    }
    if c.devices.is_empty() {
        return explain(import::without_devices(c, devices), &root_config, devices);
    }
    let list = uberblocks(c);
    let Some(newest) = list.first() else {
        return unopened(&root_config, devices, Aux::CorruptData, Some(Reason::CorruptPool));
    };
    if import::activity_check_required(c, newest, hostid) {
        if hostid == 0 {
            return in_use(&root_config, devices, Reason::NoHostid);
        }
        let mut newest_now = || devices.newest_uberblock();
        if !host::stays_quiet(newest, &mut newest_now, &mut std::thread::sleep) {
            let hostname = c.config.str("hostname").unwrap_or("unknown").to_string();
            let hostid = config::number(&c.config, "hostid");
            return in_use(&root_config, devices, Reason::Active { hostname, hostid });
        }
    }
    let (name, arc_bytes) = (c.name.clone(), Some(16 << 20));
    let options = LoadOptions { name, arc_bytes, allow_missing_log: true, missing_tops: 0 };
    match import::load(c, devices, newest, &options) {
        Ok(loaded) => {
            let vdevs = loaded.store.vdevs();
            let root = vdevs.root();
            let mut tree = ConfigTree::of_root(root, false);
            add_aux(&mut tree, &loaded.directory, devices);
            tree.note_refusals(devices);
            let mut opened = Opened {
                tree,
                root: root.state(),
                resilvering: ScanStatus::load(&loaded.directory, None)
                    .is_ok_and(|s| s.is_some_and(|s| s.is_resilvering())),
                cause: None,
                features: loaded.features,
            };
            let unknown = opened.features.unsupported(false);
            if !unknown.is_empty() {
                set_root(&mut opened, Aux::None, "unsupported feature(s)");
                opened.cause = Some(Reason::FeaturesForWrite(unknown));
            }
            opened
        }
        Err(failure) => explain(failure, &root_config, devices),
    }
}

fn explain(failure: import::Failure, root_config: &NvList, devices: &DeviceSet) -> Opened {
    let features = failure.features.unwrap_or_default();
    let mut opened = match &failure.tree {
        Some((_, vdevs)) => Opened {
            tree: {
                let mut tree = ConfigTree::of_root(vdevs.root(), false);
                tree.note_refusals(devices);
                tree
            },
            root: vdevs.root().state(),
            features,
            resilvering: false,
            cause: None,
        },
        None => Opened { features, ..unopened(root_config, devices, Aux::CorruptData, None) },
    };
    match failure.cause {
        Cause::Version(_) => {
            set_root(&mut opened, Aux::VersionNewer, "newer version");
            opened.cause = Some(Reason::VersionNewer);
        }
        Cause::Unsupported(what) => {
            set_root(&mut opened, Aux::None, "unsupported feature(s)");
            opened.cause = Some(Reason::NotSupported(what));
        }
        Cause::NotWritable(what) => {
            set_root(&mut opened, Aux::None, "unsupported feature(s)");
            opened.cause = Some(Reason::NotSupported(what.into()));
        }
        Cause::Features(list) => {
            set_root(&mut opened, Aux::None, "unsupported feature(s)");
            opened.cause = Some(Reason::FeaturesForRead(list));
        }
        Cause::GuidSum => set_root(&mut opened, Aux::BadGuidSum, "missing device"),
        // The labels do not tell what a vdev is of which no device was found.
        Cause::Missing(list) if list.iter().any(|v| v.guid == 0) => {
            set_root(&mut opened, Aux::CorruptData, "corrupted data");
            opened.cause = Some(Reason::CorruptPool);
        }
        Cause::Missing(_) | Cause::MissingLogs(_) => {
            if !matches!(opened.root, VdevState::CantOpen(_)) {
                set_root(&mut opened, Aux::NoReplicas, "insufficient replicas");
            }
        }
        Cause::Damaged(_) => {
            set_root(&mut opened, Aux::CorruptData, "corrupted data");
            opened.cause = Some(Reason::CorruptPool);
        }
    }
    opened
}

/// Makes the root one that cannot be opened.
fn set_root(opened: &mut Opened, aux: Aux, note: &str) {
    opened.root = VdevState::CantOpen(aux);
    let (state, _) = describe(opened.root, &opened.tree.root.config);
    opened.tree.root.state = state;
    opened.tree.root.note = Some(note.into());
}

/// The tree that the labels describe, below a root that cannot be opened.
fn unopened(config: &NvList, devices: &DeviceSet, aux: Aux, cause: Option<Reason>) -> Opened {
    let mut opened = Opened {
        tree: ConfigTree::new(VdevLine::of_config(config, devices)),
        root: VdevState::CantOpen(aux),
        features: Arc::default(),
        resilvering: false,
        cause,
    };
    set_root(&mut opened, aux, "corrupted data");
    opened
}

fn in_use(config: &NvList, devices: &DeviceSet, cause: Reason) -> Opened {
    let mut opened = unopened(config, devices, Aux::None, Some(cause));
    opened.tree.root.note = Some("currently in use".into());
    opened
}

fn add_aux(tree: &mut ConfigTree, directory: &Directory, devices: &DeviceSet) {
    let state = |c: &NvList| match devices.open(config::number(c, "guid")) {
        Some(_) => VdevState::Healthy,
        None => VdevState::CantOpen(Aux::OpenFailed),
    };
    let line = |c: &NvList| VdevLine::aux(c, state(c));
    tree.spares = devices.looked_for(directory, "spares").iter().map(line).collect();
    tree.cache = devices.looked_for(directory, "l2cache").iter().map(line).collect();
}
