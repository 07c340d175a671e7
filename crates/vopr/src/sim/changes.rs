//! Changes of datasets: which can be made, and how they are made.
//!
//! `any_change` draws a change: the model says which can be made, and what it becomes by it. `make` has the engine make it, and then the
//! model is the one after. As long as the change is `in_flight` a crash may leave the state before or the state after. Heads
//! that a change is about (`touched`) have all that was written to them on disk then, and new ones are opened.

use super::tables::VALUES;
use super::{Done, MOST, Sim, tell};
use crate::model::{Change, POOL};
use cenote_dsl::send::SendOptions;
use cenote_engine::change::receive::{NewReceive, Source};
use cenote_engine::change::{self, Changes, NewClone, NewDataset, NewSnapshot};
use cenote_torture::live::Stopped;
use cenote_torture::live::lab::Plain;
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

impl Sim {
    fn name(rng: &mut SmallRng) -> String {
        format!("{POOL}/{}", ["a", "b", "c", "d", "e", "f"][rng.random_range(0..6)])
    }

    /// Some change, if it can be made.
    pub(super) fn any_change(&self, rng: &mut SmallRng) -> Option<Change> {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let head = Sim::pick(rng, &names)?;
        let snapshots: Vec<(String, String)> = self
            .model
            .datasets
            .iter()
            .flat_map(|(h, e)| e.snapshots.iter().map(move |s| (h.clone(), s.name.clone())))
            .collect();
        let some = Sim::pick(rng, &snapshots);
        let (to, short) = (Sim::name(rng), format!("s{}", rng.random_range(0..9)));
        let crowded = self.model.datasets.len() >= MOST;
        let change = match rng.random_range(0..100) {
            0..8 if !crowded => {
                let volume = rng.random_ratio(1, 3).then(|| 128 << 10 << rng.random_range(0..2));
                Change::Create { name: to, volume }
            }
            0..14 => Change::Destroy { name: head },
            14..18 => Change::Rename { from: head, to },
            18..42 => {
                let all = rng.random_ratio(1, 4);
                let heads = if all { names } else { vec![head] };
                let full = |h: &String| self.model.datasets[h].snapshots.len() >= MOST;
                if heads.iter().any(full) {
                    return None;
                }
                Change::Snapshot { heads, name: short }
            }
            42..54 => {
                let (head, name) = some?;
                Change::DestroySnapshot { head, name }
            }
            54..57 => {
                let (head, from) = some?;
                Change::RenameSnapshot { head, from, to: short }
            }
            57..66 if !crowded => {
                let (head, snapshot) = some?;
                Change::Clone { head, snapshot, to }
            }
            57..72 => Change::Promote { name: head },
            72..78 => Change::Rollback { name: head },
            78..90 => self.receive(some?, (to, crowded), rng)?,
            _ => self.setting(head, rng),
        };
        self.model.after(&change).map(|_| change)
    }

    fn receive(
        &self,
        (head, snapshot): (String, String),
        (to, crowded): (String, bool),
        rng: &mut SmallRng,
    ) -> Option<Change> {
        // Where it can be received on what was received before.
        let entry = &self.model.datasets[&head];
        let mut all = Vec::new();
        for (to, copy) in &self.model.datasets {
            let last = copy.snapshots.last().map(|s| s.id);
            let base = entry.snapshots.iter().find(|s| Some(s.id) == last);
            let base = base.map(|s| s.name.clone()).filter(|_| *to != head);
            all.extend(base.map(|base| (base, to.clone())));
        }
        if let Some((base, to)) = Sim::pick(rng, &all).filter(|_| rng.random_bool(0.8)) {
            return Some(Change::Receive { head, base: Some(base), snapshot, to });
        }
        (!crowded).then_some(Change::Receive { head, base: None, snapshot, to })
    }

    fn setting(&self, name: String, rng: &mut SmallRng) -> Change {
        if self.blocks.dedup && rng.random_ratio(1, 3) {
            let value = VALUES[rng.random_range(0..VALUES.len())].to_string();
            return Change::Set { name, property: "dedup", value };
        }
        let all: [(&'static str, &[&str]); 5] = [
            ("sync", &["standard", "always", "disabled"]),
            ("logbias", &["latency", "throughput"]),
            ("compression", &["on", "off", "lz4", "gzip-1", "zle", "zstd-fast"]),
            ("checksum", &["on", "fletcher2", "sha256", "skein", "edonr"]),
            ("copies", &["1", "2"]),
        ];
        // What is set on the root dataset others inherit.
        let first = usize::from(name == POOL);
        let (property, values) = all[rng.random_range(first..all.len())];
        let value = values[rng.random_range(0..values.len())].to_string();
        Change::Set { name, property, value }
    }

    /// Makes a change.
    pub(super) fn make(&mut self, change: Change, rng: &mut SmallRng) -> Done {
        let Some(after) = self.model.after(&change) else { return Ok(()) };
        tell(format_args!("{change:?}"));
        self.in_flight = Some((change.clone(), after));
        self.apply(&change, rng).map_err(|Stopped(why)| Stopped(format!("{change:?}: {why}")))?;
        if let Some((_, after)) = self.in_flight.take() {
            self.model = after;
        }
        if let Change::Rename { from, to } = &change
            && let Some(live) = self.live.remove(from)
        {
            self.live.insert(to.clone(), live);
        }
        if let Change::Set { name, .. } = &change
            && let Some(live) = self.live.get_mut(name)
        {
            live.set_sync(self.model.datasets[name].sync);
        }
        for name in touched(&change) {
            match self.live.get_mut(&name) {
                Some(live) => live.is_stable(),
                None if self.model.datasets.contains_key(&name) => self.open(&name)?,
                None => {}
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: &Change, rng: &mut SmallRng) -> Done {
        let changes = Changes::new(self.engine()?, Arc::new(Plain), None);
        let with_name = |(name, e): (Option<String>, change::ChangeError)| {
            Stopped(format!("{}: {e}", name.unwrap_or_default()))
        };
        match change {
            Change::Create { name, volume } => {
                let kind = match volume {
                    Some(size) => change::Kind::Volume { size: *size, sparse: true },
                    None => change::Kind::Filesystem,
                };
                let name = name.clone();
                Ok(changes.create(&NewDataset { name, kind, props: Vec::new() })?)
            }
            Change::Destroy { name } => {
                self.close(name)?;
                Ok(changes.destroy(name)?)
            }
            Change::Rename { from, to } => Ok(changes.rename(from, to)?),
            Change::Snapshot { heads, name } => {
                let names = heads.iter().map(|h| format!("{h}@{name}")).collect();
                changes.snapshot(&NewSnapshot { names, props: Vec::new() }).map_err(with_name)
            }
            Change::DestroySnapshot { head, name } => {
                let done = changes.destroy_snapshots(&[format!("{head}@{name}")], false);
                done.map_err(|e| Stopped(format!("{e:?}")))
            }
            Change::RenameSnapshot { head, from, to } => {
                let done = changes.rename_snapshot(&format!("{head}@{from}"), to, false);
                done.map_err(|e| Stopped(format!("{e:?}")))
            }
            Change::Clone { head, snapshot, to } => {
                let origin = format!("{head}@{snapshot}");
                let new = NewClone { origin, name: to.clone(), props: Vec::new() };
                Ok(changes.clone_snapshot(&new)?)
            }
            Change::Promote { name } => changes.promote(name).map_err(with_name),
            Change::Rollback { name } => {
                self.close(name)?;
                let entry = &self.model.datasets[name];
                let last = entry.snapshots.last().map(|s| s.name.clone()).unwrap_or_default();
                Ok(changes.rollback(&format!("{name}@{last}"))?)
            }
            Change::Receive { head, base, snapshot, to } => {
                if base.is_some() {
                    self.close(to)?;
                }
                let stream = self.sent(head, base.as_deref(), snapshot, rng)?;
                let to = format!("{to}@{snapshot}");
                let new = NewReceive { to, force: base.is_some(), ..NewReceive::default() };
                receive(&changes, &new, &stream)
            }
            Change::Set { name, property, value } => {
                let failed = changes.set(name, &[(property.to_string(), value.clone())])?;
                match failed.is_empty() {
                    true => Ok(()),
                    false => Err(Stopped(format!("{failed:?}"))),
                }
            }
        }
    }

    fn sent(
        &self,
        head: &str,
        base: Option<&str>,
        snapshot: &str,
        rng: &mut SmallRng,
    ) -> Done<Vec<u8>> {
        let find = |name: &str| self.find(&format!("{head}@{name}"));
        let (of, base) = (find(snapshot)?, base.map(find).transpose()?);
        let options = SendOptions {
            large_blocks: true,
            embedded: rng.random(),
            compressed: rng.random(),
            pool_embeds: true,
            pool_has_lz4: true,
            raw: false,
            resume: None,
            saved: false,
            redact: None,
        };
        let mut stream = Vec::new();
        self.engine()?.pool().dsl().send(&of, base.as_ref(), options, &mut stream)?;
        Ok(stream)
    }
}

/// Datasets that a change is about.
pub(super) fn touched(change: &Change) -> Vec<String> {
    match change {
        Change::Create { name, .. }
        | Change::Destroy { name }
        | Change::Promote { name }
        | Change::Rollback { name }
        | Change::Set { name, .. } => vec![name.clone()],
        Change::Rename { from, to } => vec![from.clone(), to.clone()],
        Change::Snapshot { heads, .. } => heads.clone(),
        Change::DestroySnapshot { head, .. } | Change::RenameSnapshot { head, .. } => {
            vec![head.clone()]
        }
        Change::Clone { head, to, .. } | Change::Receive { head, to, .. } => {
            vec![head.clone(), to.clone()]
        }
    }
}

fn receive(changes: &Changes, new: &NewReceive, mut stream: &[u8]) -> Done {
    let mut source = Source::new(&mut stream);
    let begin = source.begin()?.ok_or_else(|| Stopped("an empty stream".into()))?;
    let list = source.list(&begin)?;
    let receiving = changes.receive(new, &begin, &list)?;
    match receiving.stream(&mut source, &mut |_| {}) {
        Ok(()) => Ok(changes.finish_receive(receiving, new.force)?),
        Err(e) => {
            changes.give_up_receive(receiving);
            Err(e.into())
        }
    }
}
