//! What is in a package of streams (`zfs send -R`, `-I`, `-p`, `-h`, `-b`), and in which order it is sent.
//!
//! First the datasets are gathered with their properties, snapshots and holds (`send_iterate_fs`), parents before
//! children; that becomes the list at the head of the package. Then each of them is planned (`dump_filesystems`): a
//! stream for each snapshot that is wanted, from the one before it. A clone is sent after its origin, a child after its
//! parent.
//!
//! Invariant: order is OpenZFS's everywhere, that of the ZAPs for properties and children included, so that the list
//! has the same bytes.

use super::{Result, SendError};
use crate::props::{is_user, table};
use crate::{Dataset, DatasetKind, Dsl};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::stream::package::{Package, Sent};
use std::collections::{HashMap, HashSet};

/// Limits of space, which snapshots do not have.
const LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];

/// What a package is to have.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Name behind the `@` of the snapshot that it starts from.
    pub from: Option<String>,
    /// Name behind the `@` of the snapshot that it leads to.
    pub to: String,
    /// All datasets below, with their properties (`-R`).
    pub replicate: bool,
    /// All snapshots between (`-I`; `-R` without a start).
    pub all_snapshots: bool,
    /// The first stream starts from the origin of the clone (`-I` ORIGIN).
    pub from_origin: bool,
    /// Properties (`-p`).
    pub props: bool,
    /// Received properties in place of those that count (`-b`).
    pub backup: bool,
    /// Holds (`-h`).
    pub holds: bool,
    /// Raw streams (`-w`).
    pub raw: bool,
    /// Datasets without the snapshot are left out (`-s`).
    pub skip_missing: bool,
    /// What is left out is said.
    pub verbose: bool,
    /// Datasets that are left out with all below them (`-X`).
    pub exclude: Vec<String>,
}

impl Wanted {
    fn excludes(&self, name: &str) -> bool {
        self.exclude.iter().any(|excluded| {
            let rest = name.strip_prefix(excluded.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        })
    }
}

/// A stream of a package.
#[derive(Debug, Clone)]
pub struct Step {
    /// The snapshot.
    pub to: Dataset,
    /// The snapshot that it starts from.
    pub from: Option<Dataset>,
    /// Whether that is the origin of a clone, which `zfs send -v` does not name.
    pub from_origin: bool,
}

/// The streams of a package.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order in which they are sent.
    pub steps: Vec<Step>,
    /// Something that was asked for is not there.
    pub incomplete: bool,
    /// The last dataset has the snapshot that was asked for.
    pub reached: bool,
}

/// What is known while the tree is walked (`send_data_t`).
struct Gather<'a> {
    dsl: &'a Dsl,
    root: &'a str,
    wanted: &'a Wanted,
    say: &'a mut dyn FnMut(String),
    /// Guid of the snapshot of the parent that its streams start from.
    parent_from: u64,
    to_txg: u64,
    seen_from: bool,
    seen_to: bool,
    all: Vec<Sent>,
}

fn short(snapshot: &Dataset) -> &str {
    snapshot.name.split_once('@').map_or("", |(_, short)| short)
}

impl Dsl {
    /// Gathers what the head of a package says of `head` and, with `-R`, all below it. `say` gets warnings.
    ///
    /// # Errors
    /// A dataset lacks the snapshot; a dataset is encrypted; the pool's metadata cannot be read.
    pub fn gather(
        &self,
        head: &Dataset,
        wanted: &Wanted,
        say: &mut dyn FnMut(String),
    ) -> Result<Package> {
        let mut gather = Gather {
            dsl: self,
            root: &head.name,
            wanted,
            say,
            parent_from: 0,
            to_txg: 0,
            seen_from: false,
            seen_to: false,
            all: Vec::new(),
        };
        gather.dataset(head)?;
        Ok(Package {
            from_snap: wanted.from.clone(),
            to_snap: wanted.to.clone(),
            recursive: wanted.replicate,
            raw: wanted.raw,
            datasets: gather.all,
        })
    }

    /// Properties that are set on a dataset or snapshot itself, or came to it (`send_iterate_prop`); with
    /// `received`, all that came to it, and no others.
    fn sent_props(&self, d: &Dataset, received: bool) -> Result<NvList> {
        let mut list = NvList::default();
        for (name, value) in self.own_props(d, received)? {
            let known = table::find(&name).is_some_and(|p| !p.is_readonly());
            let limit = d.kind == DatasetKind::Snapshot && LIMITS.contains(&name.as_str());
            if (is_user(&name) || known) && !limit {
                list.set(&name, value);
            }
        }
        Ok(list)
    }

    /// Children in the order in which they are stored.
    fn stored_children(&self, head: &Dataset) -> Result<Vec<Dataset>> {
        let mut children = self.children(head)?;
        if children.is_empty() {
            return Ok(children);
        }
        let entries = self.zap(head.dir.children)?.entries()?;
        let place: HashMap<Option<u64>, usize> =
            entries.iter().enumerate().map(|(i, e)| (e.u64(), i)).collect();
        children.sort_by_key(|child| place.get(&Some(child.dir_obj)).copied());
        Ok(children)
    }

    /// The streams of a package (`dump_filesystems`). `say` gets warnings. What cannot be sent makes the plan
    /// incomplete.
    ///
    /// # Errors
    /// The pool's metadata cannot be read.
    pub fn plan(
        &self,
        head: &Dataset,
        package: Option<&Package>,
        wanted: &Wanted,
        say: &mut dyn FnMut(String),
    ) -> Result<Plan> {
        let mut plan = Plan::default();
        let Some(package) = package.filter(|_| wanted.replicate) else {
            self.plan_one(head, &HashSet::new(), wanted, say, &mut plan)?;
            return Ok(plan);
        };
        let origins: HashSet<u64> = package.datasets.iter().filter_map(|s| s.origin).collect();
        let owner = |snapshot: u64| {
            package.datasets.iter().find(|s| s.snaps.iter().any(|(_, guid)| *guid == snapshot))
        };
        let mut sent: HashSet<u64> = HashSet::new();
        loop {
            let before = sent.len();
            for dataset in &package.datasets {
                let waits = |snapshot: u64| {
                    snapshot != 0 && owner(snapshot).is_some_and(|o| !sent.contains(&o.guid))
                };
                if sent.contains(&dataset.guid)
                    || waits(dataset.parent_from_snap)
                    || waits(dataset.origin.unwrap_or(0))
                {
                    continue;
                }
                if let Some(found) = self.find(&dataset.name)? {
                    self.plan_one(&found, &origins, wanted, say, &mut plan)?;
                }
                sent.insert(dataset.guid);
            }
            if sent.len() == package.datasets.len() {
                return Ok(plan);
            }
            if sent.len() == before {
                // A dataset waits for one that is inside it: OpenZFS does not get any further either.
                let left = package.datasets.iter().filter(|s| !sent.contains(&s.guid));
                left.for_each(|s| {
                    let (name, to) = (&s.name, &wanted.to);
                    let why = "it or a dataset above it is a clone of what is below it";
                    say(format!("WARNING: could not send {name}@{to}: {why}"));
                });
                plan.incomplete = true;
                return Ok(plan);
            }
        }
    }

    /// The streams of one dataset (`dump_filesystem`, `dump_snapshot`).
    fn plan_one(
        &self,
        head: &Dataset,
        origins: &HashSet<u64>,
        wanted: &Wanted,
        say: &mut dyn FnMut(String),
        plan: &mut Plan,
    ) -> Result<()> {
        let (name, to) = (&head.name, &wanted.to);
        let snapshots = self.snapshots(head)?;
        let at = |name: &str| snapshots.iter().find(|s| short(s) == name);
        let Some(last) = at(to) else {
            say(format!("WARNING: could not send {name}@{to}: does not exist"));
            plan.incomplete = true;
            return Ok(());
        };
        let first = wanted.from.as_deref().and_then(at);
        let no_start = wanted.from.is_none() || wanted.replicate && first.is_none();
        let (mut seen_from, mut seen_to) = (no_start, false);
        let mut previous: Option<&Dataset> = None;
        for snapshot in &snapshots {
            let (is_from, is_to) =
                (wanted.from.as_deref() == Some(short(snapshot)), short(snapshot) == to);
            if !seen_from && is_from {
                (seen_from, previous) = (true, Some(snapshot));
                continue;
            }
            if seen_to || !seen_from {
                continue;
            }
            seen_to |= is_to;
            let between = !wanted.all_snapshots && !is_from && !is_to;
            if between && !origins.contains(&snapshot.ds.guid) || wanted.excludes(&snapshot.name) {
                continue;
            }
            let clone = previous.is_none() && (wanted.from_origin || wanted.replicate);
            let origin = if clone { self.origin(head)? } else { None };
            let from_origin = origin.is_some();
            let from = previous.cloned().or(origin);
            plan.steps.push(Step { to: snapshot.clone(), from, from_origin });
            previous = Some(snapshot);
        }
        plan.reached = seen_to;
        if !seen_to {
            let from = wanted.from.as_deref().unwrap_or_default();
            let why = match first {
                None => "does not exist",
                Some(_) => "is not earlier than it",
            };
            say(format!("WARNING: could not send {}:", last.name));
            say(format!("incremental source ({name}@{from}) {why}"));
            plan.incomplete = true;
        }
        Ok(())
    }
}

impl Gather<'_> {
    fn dataset(&mut self, head: &Dataset) -> Result<()> {
        let saved = (self.parent_from, self.to_txg);
        let done = self.one(head);
        (self.parent_from, self.to_txg) = saved;
        done
    }

    fn one(&mut self, head: &Dataset) -> Result<()> {
        let snapshots = self.dsl.snapshots(head)?;
        let at = |name: &str| snapshots.iter().find(|s| short(s) == name);
        let Some(last) = at(&self.wanted.to) else { return self.missing(head) };
        self.to_txg = last.ds.creation_txg;
        let features = self.dsl.features(head)?;
        let is_encrypted = features.iter().any(|(guid, _)| guid == "com.datto:encryption");
        if is_encrypted && !self.wanted.raw {
            let (root, to, name) = (self.root, &self.wanted.to, &head.name);
            (self.say)(format!(
                "cannot send {root}@{to}: encrypted dataset {name} may not be sent with properties without the raw flag"
            ));
            return Err(SendError::Refused("backup failed".into()));
        }
        let mut sent = Sent {
            guid: head.ds.guid,
            name: head.name.clone(),
            parent_from_snap: self.parent_from,
            origin: self.dsl.origin(head)?.map(|origin| origin.ds.guid),
            encryption_root: self.dsl.crypto_key(head)?.is_some_and(|key| key.root == head.dir_obj),
            ..Sent::default()
        };
        let Wanted { props, backup, replicate, holds, all_snapshots, .. } = *self.wanted;
        if props || backup || replicate {
            sent.props = Some(self.dsl.sent_props(head, backup)?);
        }
        if holds {
            sent.snap_holds = Some(Vec::new());
        }
        self.parent_from = 0;
        let from_txg = self.wanted.from.as_deref().and_then(at).map_or(0, |s| s.ds.creation_txg);
        if all_snapshots || replicate {
            let bounds = from_txg..=last.ds.creation_txg;
            let listed = |s: &&Dataset| replicate || bounds.contains(&s.ds.creation_txg);
            for snapshot in snapshots.iter().filter(listed) {
                self.snapshot(snapshot, &mut sent)?;
            }
        } else {
            self.seen_from |= self.wanted.from.is_some();
            self.snapshot(last, &mut sent)?;
        }
        self.all.push(sent);
        if replicate {
            for child in self.dsl.stored_children(head)? {
                self.dataset(&child)?;
            }
        }
        Ok(())
    }

    /// A dataset without the snapshot.
    fn missing(&mut self, head: &Dataset) -> Result<()> {
        let (name, to) = (&head.name, &self.wanted.to);
        // One that is younger than the snapshot of its parent cannot have it.
        if self.to_txg != 0 && head.ds.creation_txg > self.to_txg {
            if self.wanted.verbose {
                (self.say)(format!("skipping dataset {name}: snapshot {to} does not exist"));
            }
        } else if self.wanted.skip_missing {
            (self.say)(format!(
                "WARNING: skipping dataset {name} and its children: snapshot {to} does not exist"
            ));
        } else {
            let root = self.root;
            let how = if self.wanted.replicate { " recursively" } else { "" };
            (self.say)(format!(
                "cannot send {root}@{to}{how}: snapshot {name}@{to} does not exist"
            ));
            return Err(SendError::Refused("backup failed".into()));
        }
        Ok(())
    }

    /// A snapshot (`send_iterate_snap`).
    fn snapshot(&mut self, snapshot: &Dataset, sent: &mut Sent) -> Result<()> {
        let (name, guid) = (short(snapshot), snapshot.ds.guid);
        let is_from = self.wanted.from.as_deref() == Some(name);
        let is_to = self.wanted.to == name;
        if self.to_txg != 0 && snapshot.ds.creation_txg > self.to_txg {
            if self.wanted.verbose {
                (self.say)(format!(
                    "skipping snapshot {} because it was created after the destination snapshot ({})",
                    snapshot.name, self.wanted.to
                ));
            }
            return Ok(());
        }
        sent.snaps.push((name.to_owned(), guid));
        if is_from || self.parent_from == 0 && is_to {
            self.parent_from = guid;
        }
        if !self.wanted.replicate {
            self.seen_from |= self.wanted.all_snapshots && self.wanted.from.is_none();
            if !self.seen_from && is_from {
                self.seen_from = true;
                return Ok(());
            }
            let alone = is_to && self.wanted.from.is_none();
            if (self.seen_to || !self.seen_from) && !alone {
                return Ok(());
            }
            self.seen_to |= is_to;
        }
        let props = self.dsl.sent_props(snapshot, self.wanted.backup)?;
        sent.snap_props.push((name.to_owned(), props));
        if let Some(holds) = &mut sent.snap_holds {
            let tags = self.dsl.holds(snapshot)?.into_iter();
            let tags = tags.map(|(tag, time)| (tag, NvValue::Uint64(time))).collect();
            holds.push((name.to_owned(), NvList { pairs: tags }));
        }
        Ok(())
    }
}
