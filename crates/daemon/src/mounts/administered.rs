//! The mounts of a pool, as the library of administration asks for them ([`cenote_admin::Mounts`]), for a command that runs.
//! What fails is said to its user.

use super::exchange::NestedMounts;
use super::how::Away;
use super::moving::refresh;
use super::table::Way;
use super::{Directory, How, NotMounted, mount_one};
use crate::context::Context;
use crate::pools::Imported;
use cenote_admin::{InUse, Mounts, Unmount};
use cenote_dsl::{Dataset, DatasetKind};
use std::sync::Arc;

/// The mounts of a pool, and the command that changes its datasets.
pub struct CommandMounts<'a> {
    /// The pool.
    pub imported: Arc<Imported>,
    /// What the command runs in.
    pub ctx: &'a mut Context,
    /// What was taken away and has not come back.
    away: Away,
    /// What is mounted inside a dataset that was exchanged.
    inside: Option<NestedMounts>,
}

impl<'a> CommandMounts<'a> {
    /// Those of a pool.
    pub fn new(imported: &Arc<Imported>, ctx: &'a mut Context) -> CommandMounts<'a> {
        let imported = Arc::clone(imported);
        CommandMounts { imported, ctx, away: Away::default(), inside: None }
    }

    fn mount(&mut self, dataset: &Dataset) -> bool {
        match mount_one(&self.imported, dataset, false, &How::default(), self.ctx) {
            Ok(()) | Err(NotMounted::NotMeant(_)) => true,
            Err(NotMounted::Failed(message)) => {
                self.ctx.complain(message);
                false
            }
        }
    }
}

impl Mounts for CommandMounts<'_> {
    fn give_up(&mut self, name: &str, force: bool) -> Result<(), String> {
        let by = self.ctx.agent();
        let way = Way { force, directory: Directory::Removed, by: &*by };
        self.imported.mounts.give_up(name, way).map_err(|e| e.to_string())
    }

    fn close_snapshots(&mut self, names: &[String]) -> Result<(), Vec<InUse>> {
        self.imported.mounts.close_snapshots(names, &*self.ctx.agent())
    }

    fn snapshots_stay(&mut self, names: &[String]) {
        self.imported.mounts.snapshots_stay(names);
    }

    fn snapshots_changed(&mut self, names: &[String]) {
        self.imported.mounts.snapshots_changed(names);
    }

    fn snapshot_renamed(&mut self, head: &str, recursive: bool, old: &str, new: &str) {
        let mounts = &self.imported.mounts;
        let below = |d: &str| d.strip_prefix(head).is_some_and(|rest| rest.starts_with('/'));
        let mounted = mounts.list().into_iter().map(|m| m.dataset);
        let heads = mounted.filter(|d| d == head || (recursive && below(d)));
        let names: Vec<String> =
            heads.flat_map(|h| [format!("{h}@{old}"), format!("{h}@{new}")]).collect();
        mounts.renamed_snapshot(head, recursive, old, new);
        mounts.snapshots_changed(&names);
    }

    fn renamed(&mut self, from: &str, to: &str) {
        self.imported.mounts.renamed(from, to);
    }

    fn can_exchange(&mut self, id: u64) -> bool {
        self.imported.mounts.can_exchange(id)
    }

    fn stays(&mut self, id: u64) -> Option<String> {
        self.imported.mounts.stays(id).map(|why| why.to_string())
    }

    fn exchange(
        &mut self,
        id: u64,
        coming: Option<u64>,
        change: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        let mounts = &self.imported.mounts;
        self.inside = Some(mounts.inside(id));
        mounts.exchange(&self.imported, (id, coming), change).map_err(|e| e.to_string())
    }

    fn restore(&mut self) -> bool {
        let Some(inside) = self.inside.take() else { return true };
        self.imported.mounts.restore(&self.imported, inside, self.ctx)
    }

    fn is_mounted(&mut self, name: &str) -> bool {
        self.imported.mounts.has(name)
    }

    fn take_away(&mut self, ids: &[u64], how: Unmount) -> Result<Vec<u64>, String> {
        let by = self.ctx.agent();
        let directory = if how.for_good { Directory::Removed } else { Directory::Kept };
        let way = Way { force: how.force, directory, by: &*by };
        match self.imported.mounts.take_away(ids, way) {
            Ok(away) => {
                self.away = away;
                Ok(self.away.ids())
            }
            Err((away, e)) => {
                away.back(&self.imported, self.ctx);
                Err(e.to_string())
            }
        }
    }

    fn bring_back(&mut self, moved: bool) -> bool {
        let mut away = std::mem::take(&mut self.away);
        if moved {
            away.forget_places(&self.imported);
        }
        away.back(&self.imported, self.ctx)
    }

    fn mount_new(&mut self, name: &str) -> bool {
        let dataset = match self.imported.pool().dsl().find(name) {
            Ok(Some(dataset)) if dataset.kind == DatasetKind::Filesystem => dataset,
            Ok(_) => return true,
            Err(e) => {
                self.ctx.complain(format_args!("cannot open '{name}': {e}"));
                return false;
            }
        };
        if self.ctx.caller.is_delegated() {
            let canmount = self.imported.pool().dsl().get(&dataset, "canmount").ok().flatten();
            let is_meant = canmount.is_none_or(|value| value.exact == "on");
            if is_meant {
                let why = "filesystem successfully created, but it may only be mounted by root";
                self.ctx.complain(why);
            }
            return !is_meant;
        }
        let mounted = self.mount(&dataset);
        if !mounted {
            self.ctx.complain("filesystem successfully created, but not mounted");
        }
        mounted
    }

    fn mount_all(&mut self, datasets: &[Dataset]) -> bool {
        let mut good = true;
        for dataset in datasets {
            // What is mounted stays as it is.
            let mounted = self.imported.mounts.has(&dataset.name);
            good &= mounted || self.mount(dataset);
        }
        good
    }

    fn follow_properties(&mut self) -> bool {
        refresh(&self.imported, self.ctx)
    }
}
