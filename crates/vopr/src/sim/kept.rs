//! Checkpoints of the pool: one is taken, kept whatever is changed, discarded, and gone back to.
//!
//! A checkpoint is taken while nothing is worked with, so that it has what the model says ([`Kept`]). When the power went, the
//! pool says whether it has one; and after a way back that the power cut off, whether it is the pool from before: only that has a
//! checkpoint.

use super::{Done, Live, Sim, tell};
use crate::model::{Model, same};
use cenote_pool::ImportOptions;
use cenote_torture::live::Stopped;
use cenote_torture::live::lab::Lab;
use std::collections::BTreeSet;

/// How often it is looked at most whether a checkpoint is discarded.
const LOOKS: usize = 3600;

/// What a checkpoint has.
pub(super) struct Kept {
    model: Model,
    /// See the fields of [`super::devices::Devices`].
    members: BTreeSet<usize>,
    whole: BTreeSet<usize>,
    leaving: BTreeSet<usize>,
    /// The pool has it. If not, it is being taken, discarded or gone back to.
    pub is_there: bool,
    /// It is gone back to.
    rewinds: bool,
}

impl Kept {
    /// What is seen of it is what it was.
    pub fn prove(&self, lab: &Lab) -> Done {
        let options = ImportOptions { checkpoint: true, ..ImportOptions::default() };
        let pool = lab.look_with(options).map_err(|why| Stopped(format!("checkpoint: {why}")))?;
        same(&pool, &self.model).map_err(|Stopped(why)| Stopped(format!("checkpoint: {why}")))
    }
}

impl Sim {
    /// Takes a checkpoint, or discards the one that there is. That one is refused is no fault: a removal may be in the way.
    pub(super) fn checkpoint(&mut self) -> Done {
        if self.kept.is_some() {
            return self.discard();
        }
        let engine = self.engine()?;
        engine.sync()?;
        self.live.values_mut().for_each(Live::is_stable);
        let known = &self.devices;
        let (members, whole) = (known.members.clone(), known.whole.clone());
        let (model, leaving) = (self.model.clone(), known.leaving.clone());
        self.kept = Some(Kept { model, members, whole, leaving, is_there: false, rewinds: false });
        tell(format_args!("a checkpoint"));
        let taken = engine.checkpoint();
        if self.power.is_off() {
            return Ok(taken?);
        }
        if let Err(why) = &taken {
            tell(format_args!("refused: {why}"));
        }
        self.check_kept()?;
        match (taken.is_ok(), &self.kept) {
            (true, None) => Err(Stopped("a checkpoint was taken, and is not there".into())),
            (false, Some(_)) => Err(Stopped("a checkpoint was refused, and is there".into())),
            _ => Ok(()),
        }
    }

    /// Discards the checkpoint, if there is one.
    pub(super) fn discard(&mut self) -> Done {
        let engine = self.engine()?;
        if let Some(kept) = &mut self.kept {
            tell(format_args!("the checkpoint is discarded"));
            kept.is_there = false;
            engine.discard_checkpoint()?;
            self.kept = None;
        }
        for _ in 0..LOOKS {
            if !engine.discards() {
                return Ok(());
            }
            self.rest()?;
        }
        Err(Stopped("the checkpoint is not discarded".into()))
    }

    /// Whether the pool, which was imported, has the checkpoint that it is to have.
    pub(super) fn check_kept(&mut self) -> Done {
        let has = self.engine()?.pool().checkpoint()?.is_some();
        let Some(kept) = &mut self.kept else {
            let unknown = || Stopped("the pool has a checkpoint that was never taken".into());
            return if has { Err(unknown()) } else { Ok(()) };
        };
        if kept.is_there && !has {
            return Err(Stopped("the checkpoint is gone".into()));
        }
        (kept.is_there, kept.rewinds) = (has, kept.rewinds && !has);
        if kept.rewinds {
            self.has_gone_back();
        } else if !has {
            self.kept = None;
        }
        Ok(())
    }

    /// The pool is as the checkpoint has it.
    fn has_gone_back(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        let known = &mut self.devices;
        self.model = kept.model;
        // What was whole then, and is not now, may have been overwritten.
        known.whole.retain(|disk| kept.whole.contains(disk));
        (known.members, known.leaving, known.joining) = (kept.members, kept.leaving, None);
    }

    /// Imports the pool, which was exported, as its checkpoint has it.
    pub(super) fn rewind(&mut self) -> Done {
        tell(format_args!("back to the checkpoint"));
        if let Some(kept) = &mut self.kept {
            (kept.is_there, kept.rewinds) = (false, true);
        }
        self.import(ImportOptions { checkpoint: true, ..ImportOptions::default() })?;
        if self.engine()?.pool().checkpoint()?.is_some() {
            return Err(Stopped("the pool has not gone back to its checkpoint".into()));
        }
        self.check_kept()
    }
}
