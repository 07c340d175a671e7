//! What is shown of a metaslab: a percentage, or an owner, under each of the views.
//!
//! [`Scene`] is the report, the earlier one to compare it with if there is one, and the owners'
//! order, which both share so that an owner has one colour and letter in both.

use super::scale;
use cenote_command::output::printable;
use cenote_inspect::map::owners::{OwnerKind, Owners};
use cenote_inspect::map::{MetaslabMap, Share, SpaceMapReport, percent};
use std::cmp::Reverse;

/// What the colours say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// How full each metaslab is
    Fullness,
    /// How small its free segments are
    Fragmentation,
    /// Whose blocks it holds
    Owner,
}

/// What is drawn.
#[derive(Debug)]
pub struct Scene {
    /// The report.
    pub now: SpaceMapReport,
    /// An earlier one.
    pub before: Option<SpaceMapReport>,
    /// What the colours say, where there can be one view only.
    pub by: By,
    /// The owner to highlight.
    pub dataset: Option<u32>,
    /// Owners by size, largest first.
    pub order: Vec<u32>,
    /// Place of each owner in [`Scene::order`].
    rank: Vec<usize>,
}

/// What a cell shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing: it is not known, or what is looked for is absent.
    Nothing,
    /// A step of the scale for so many percent, and the percentage to print.
    Percent(u64, u64),
    /// An owner's rank, and its share in percent.
    Owner(usize, u64),
}

fn sum(cell: &[MetaslabMap], of: impl Fn(&MetaslabMap) -> u64) -> u64 {
    cell.iter().fold(0, |sum, m| sum.saturating_add(of(m)))
}

impl Scene {
    /// Puts the reports together: from now on their owners have the same numbers.
    pub fn new(now: SpaceMapReport, before: Option<SpaceMapReport>, by: By) -> Scene {
        let mut scene =
            Scene { now, before, by, dataset: None, order: Vec::new(), rank: Vec::new() };
        scene.unify();
        let count = scene.now.owners.as_ref().map_or(0, |o| o.list.len());
        let mut bytes = vec![0u64; count];
        for share in scene.reports().flat_map(|r| r.metaslabs()).flat_map(|m| &m.owners) {
            if let Some(slot) = bytes.get_mut(share.owner as usize) {
                *slot = slot.saturating_add(share.bytes);
            }
        }
        scene.order = (0..).take(count).collect();
        scene.order.sort_by_key(|i| (Reverse(bytes.get(*i as usize).copied()), *i));
        scene.rank = vec![0; count];
        for (place, owner) in scene.order.iter().enumerate() {
            if let Some(slot) = scene.rank.get_mut(*owner as usize) {
                *slot = place;
            }
        }
        scene
    }

    /// Both reports.
    pub fn reports(&self) -> impl Iterator<Item = &SpaceMapReport> {
        self.before.iter().chain([&self.now])
    }

    fn unify(&mut self) {
        let Some(before) = &mut self.before else { return };
        let Some(old) = &mut before.owners else { return };
        let list = &mut self.now.owners.get_or_insert_with(Owners::default).list;
        let mut number = Vec::with_capacity(old.list.len());
        for owner in &old.list {
            let known = list.iter().position(|o| o == owner);
            number.push(known.unwrap_or(list.len()) as u32);
            if known.is_none() {
                list.push(owner.clone());
            }
        }
        old.list.clone_from(list);
        let shares = before.vdevs.iter_mut().flat_map(|v| &mut v.metaslabs);
        for Share { owner, .. } in shares.flat_map(|m| &mut m.owners) {
            *owner = number.get(*owner as usize).copied().unwrap_or(0);
        }
    }

    /// An owner's place among all.
    pub fn rank(&self, owner: u32) -> usize {
        self.rank.get(owner as usize).copied().unwrap_or(usize::MAX)
    }

    /// An owner's name, fit to be shown.
    pub fn owner_name(&self, owner: u32) -> String {
        let owners = self.now.owners.as_ref().map_or(&[][..], |o| &o.list);
        match owners.get(owner as usize) {
            Some(o) if o.kind == OwnerKind::Dataset => printable(&o.name),
            Some(o) => format!("({})", printable(&o.name)),
            None => String::new(),
        }
    }

    /// Bytes of each owner in some metaslabs, most first.
    pub fn shares(&self, cell: &[MetaslabMap]) -> Vec<Share> {
        let mut sums: Vec<Share> = Vec::new();
        for share in cell.iter().flat_map(|m| &m.owners) {
            match sums.iter_mut().find(|s| s.owner == share.owner) {
                Some(sum) => sum.bytes = sum.bytes.saturating_add(share.bytes),
                None => sums.push(*share),
            }
        }
        sums.sort_by_key(|s| (Reverse(s.bytes), s.owner));
        sums
    }

    /// What a cell of some metaslabs shows in a view.
    pub fn shown(&self, cell: &[MetaslabMap], by: By) -> Shown {
        let size = sum(cell, |m| m.size);
        let highlighted = self.dataset.map(|owner| sum(cell, |m| m.owned_by(owner)));
        if highlighted == Some(0) {
            return Shown::Nothing;
        }
        match by {
            By::Fullness => {
                let full = allocated_percent(cell);
                Shown::Percent(full, full)
            }
            By::Fragmentation => match fragmentation(cell) {
                Some(f) => Shown::Percent(f, f),
                None => Shown::Nothing,
            },
            By::Owner => match (highlighted, self.shares(cell).first()) {
                (Some(bytes), _) => {
                    let share = percent(bytes, size);
                    Shown::Percent(share.max(1), share)
                }
                (None, Some(most)) => {
                    Shown::Owner(self.rank(most.owner), percent(most.bytes, size))
                }
                (None, None) => Shown::Nothing,
            },
        }
    }

    /// By how many percentage points a metaslab has become fuller; `None` if it was not there.
    pub fn change(&self, vdev: u64, m: &MetaslabMap) -> Option<i64> {
        let old = self.before.as_ref()?.vdev(vdev)?;
        let at = old.metaslabs.binary_search_by_key(&m.id, |m| m.id).ok()?;
        let old = old.metaslabs.get(at)?;
        let points = |m: &MetaslabMap| i128::from(m.allocated) * 100;
        let change = points(m).checked_div(i128::from(m.size))?
            - points(old).checked_div(i128::from(old.size))?;
        // The slightest change shows.
        let sign = i128::from(m.allocated) - i128::from(old.allocated);
        Some(if change == 0 { sign.signum() as i64 } else { change as i64 })
    }
}

/// Percentage of some metaslabs that is allocated, rounded down.
pub fn allocated_percent(cell: &[MetaslabMap]) -> u64 {
    percent(sum(cell, |m| m.allocated), sum(cell, |m| m.size))
}

/// Fragmentation of some metaslabs: the mean over their free bytes.
pub fn fragmentation(cell: &[MetaslabMap]) -> Option<u64> {
    let known = || cell.iter().filter_map(|m| Some((m.free, m.fragmentation?)));
    let free: u128 = known().map(|(free, _)| u128::from(free)).sum();
    let weighted: u128 = known().map(|(free, f)| u128::from(free) * u128::from(f)).sum();
    match cell {
        [one] => one.fragmentation,
        _ => known().next().map(|_| weighted.checked_div(free).unwrap_or(0) as u64),
    }
}

impl Shown {
    /// The colour of the cell.
    pub fn colour(self) -> scale::Rgb {
        match self {
            Shown::Nothing => scale::NOTHING,
            Shown::Percent(level, _) => scale::colour(scale::step(level)),
            Shown::Owner(rank, _) => scale::owner_colour(rank),
        }
    }

    /// What is printed on a cell, three or four characters.
    pub fn text(self) -> String {
        match self {
            Shown::Nothing => "  · ".into(),
            Shown::Percent(_, number) => format!("{number:>3}%"),
            Shown::Owner(rank, 0) => format!("{} <1", scale::letter(rank)),
            Shown::Owner(rank, share) => format!("{}{share:>3}", scale::letter(rank)),
        }
    }
}
