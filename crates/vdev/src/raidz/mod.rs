//! RAID-Z and dRAID: reading a block from its columns, and reconstructing what is missing or wrong (`vdev_raidz_io_done`,
//! `vdev_raidz_combrec`).
//!
//! A healthy block is read from its data columns alone. Columns that cannot be read, or that the
//! child is known to have missed, are computed from parity; so are columns of devices that hang, while there is parity
//! enough. If the result does not verify,
//! some child returned bad data without an error: then everything there is to read is read,
//! and every combination of columns that the parity can make up for is taken to be the bad
//! one, until the result verifies. A column that was read and turns out different from what
//! verified is a fault of its child, and is healed; if nothing verifies, every column that was read is one.
//!
//! A block of dRAID may have two *stripes*, each with columns and parity of its own: they are read together, and a
//! combination has columns of both. Zeros that the format has behind columns are not read, as they are known.
//!
//! A block of RAID-Z that is narrower than its vdev is many stripes. A device that is wrong is wrong in all of them, so
//! combinations are of devices: of those that there are, and of those that held its sectors before the vdev was expanded.
//!
//! - [`map`]: where the columns of RAID-Z are, `crate::draid`: those of dRAID;
//! - [`reflow`]: where they are of a vdev that was given more devices;
//! - [`moving`], [`copying`], [`watch`]: how they get there;
//! - [`math`]: the arithmetic of parity.

pub(crate) mod copying;
pub(crate) mod map;
pub(crate) mod math;
pub(crate) mod moving;
#[cfg(test)]
mod moving_tests;
pub(crate) mod reflow;
#[cfg(test)]
mod reflow_tests;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::invariant::broken;

use crate::dtl::Trust;
use crate::patience::GaveUp;
use crate::submit::{LeafRead, Piece, Submit, read_leaves};
use crate::vdev::Vdev;
use crate::{Fault, VdevError, Verify, mirror};

use map::ColumnExtent;
use reflow::Widths;

/// Combinations of bad columns tried for one block, however small.
const MIN_ATTEMPTS: u64 = 600;
/// Combinations tried for one block at most.
const MAX_ATTEMPTS: u64 = 10_000;
/// Beyond [`MIN_ATTEMPTS`], combinations are tried only up to so many bytes of results.
const ATTEMPT_BYTES: u64 = 16 << 30;

/// One column of a block and what is known of it (`raidz_col_t`).
struct Column {
    extent: ColumnExtent,
    child: Arc<Vdev>,
    /// The leaves that hold it, the best first: more than one below a replacing or spare vdev.
    leaves: Vec<Arc<Vdev>>,
    /// How many of them were tried.
    tried: usize,
    trust: Option<Trust>,
    data: Option<Abd>,
    /// Physical birth of the block.
    txg: u64,
}

impl Column {
    fn good(&self) -> bool {
        self.trust == Some(Trust::Good)
    }

    /// The bytes of the block that it has.
    fn range(&self) -> Range<usize> {
        self.extent.at..self.extent.at + self.extent.len
    }

    /// The leaf that the column was read from last.
    fn last_tried(&self) -> Option<&Arc<Vdev>> {
        self.leaves.get(self.tried.checked_sub(1)?)
    }

    /// `leaf` gave wrong bytes: an error of the child.
    fn mismatch(&self, leaf: &Arc<Vdev>) -> Fault {
        Fault::of_bytes(leaf, self.extent.offset, self.txg).blaming(&self.child)
    }

    /// What is wrong if the column should read as `right`: nothing, if it was not read, reads so, or was
    /// not expected to.
    fn fault(&self, right: &[u8]) -> Option<Fault> {
        let leaf = self.last_tried().filter(|_| self.good())?;
        let fault = match &self.data {
            Some(data) if data.as_contiguous() == Some(right) => return None,
            Some(_) => self.mismatch(leaf),
            None => Fault::unreadable(leaf, self.extent.offset),
        };
        Some(fault.with_right(Abd::from_vec(right.to_vec())))
    }
}

/// Has what devices that hang hold be made of other columns of a stripe, if these suffice.
fn doubt_hanging(columns: &mut [Column], nparity: usize) {
    let hangs = |c: &Column| c.leaves.first().is_some_and(|leaf| leaf.stats.activity.hangs());
    let doubtful = columns.iter().filter(|c| hangs(c) || !c.good()).count();
    if doubtful <= nparity {
        let hanging = columns.iter_mut().filter(|c| hangs(c) && c.good());
        hanging.for_each(|c| c.trust = Some(Trust::Stale));
    }
}

/// A block under way.
pub(crate) struct Read<'a> {
    vdev: &'a Arc<Vdev>,
    offset: u64,
    size: usize,
    nparity: usize,
    columns: Vec<Column>,
    /// Which of them are a stripe: parity first, then data.
    stripes: Vec<Range<usize>>,
    /// Columns that [`Read::first_reads`] asked for.
    asked: Vec<usize>,
    /// Why a column could not be read, for the message.
    error: Option<io::Error>,
    /// Some device was not waited for to the end.
    gave_up: bool,
    txg: u64,
    /// By which it is laid out.
    widths: Arc<Widths>,
}

impl<'a> Read<'a> {
    /// Plans the read of `size` bytes at `offset`, of other devices than those that hang as far as these suffice.
    /// `None` if there is no such place.
    pub(crate) fn plan(vdev: &'a Arc<Vdev>, offset: u64, size: usize, txg: u64) -> Option<Self> {
        let mut read = Self::plan_waiting(vdev, offset, size, txg)?;
        for stripe in read.stripes.clone() {
            let all = read.columns.len();
            match read.columns.get_mut(stripe.clone()) {
                Some(columns) => doubt_hanging(columns, read.nparity),
                None => {
                    broken(format_args!("{vdev:?}: a stripe of the columns {stripe:?} of {all}"))
                }
            }
        }
        read.asked = read.choose();
        Some(read)
    }

    /// As [`Read::plan`], of devices that hang as of others.
    pub(crate) fn plan_waiting(
        vdev: &'a Arc<Vdev>,
        offset: u64,
        size: usize,
        txg: u64,
    ) -> Option<Self> {
        let widths = vdev.widths();
        let rows = vdev.stripes(&widths, (offset, size as u64), txg)?;
        let extents: Vec<Vec<ColumnExtent>> = rows.into_iter().map(|row| row.columns).collect();
        let nparity = usize::try_from(vdev.nparity()).ok()?;
        let column = |extent: ColumnExtent| {
            let child = vdev.children().get(extent.child)?.clone();
            if extent.len == 0 {
                // There is nothing to be read.
                let (trust, data) = (Some(Trust::Good), Some(Abd::from_vec(Vec::new())));
                let leaves = Vec::new();
                return Some(Column { extent, child, leaves, tried: 0, trust, data, txg });
            }
            let leaves = mirror::leaves_by_trust(&child, extent.offset, txg);
            let trust = leaves.first().and_then(|l| l.trust_at(extent.offset, txg));
            Some(Column { extent, child, leaves, tried: 0, trust, data: None, txg })
        };
        let mut stripes = Vec::with_capacity(extents.len());
        for stripe in &extents {
            let start = stripes.last().map_or(0, |before: &Range<usize>| before.end);
            stripes.push(start..start + stripe.len());
        }
        let columns: Vec<Column> =
            extents.into_iter().flatten().map(column).collect::<Option<_>>()?;
        let mut read = Read {
            vdev,
            offset,
            size,
            nparity,
            columns,
            stripes,
            asked: Vec::new(),
            error: None,
            gave_up: false,
            txg,
            widths,
        };
        read.asked = read.choose();
        Some(read)
    }

    /// The columns to read first.
    fn choose(&self) -> Vec<usize> {
        self.stripes.iter().flat_map(|stripe| self.choose_of(stripe)).collect()
    }

    /// The columns of a stripe to read first: all data if it is good, otherwise all good
    /// columns, and if they do not suffice, everything.
    fn choose_of(&self, stripe: &Range<usize>) -> Vec<usize> {
        let all = stripe.clone();
        let data = stripe.start + self.nparity..stripe.end;
        if data.clone().all(|c| self.columns[c].good()) {
            return data.collect();
        }
        let good: Vec<usize> = all.clone().filter(|c| self.columns[*c].good()).collect();
        if good.len() >= data.len() { good } else { all.collect() }
    }

    /// The reads to submit first; their results go to [`Read::finish`] in the same order.
    pub(crate) fn first_reads(&mut self) -> Vec<LeafRead> {
        let asked = std::mem::take(&mut self.asked);
        let (asked, reads) = self.next_reads(asked);
        self.asked = asked;
        reads
    }

    /// A read of the next leaf of each of `columns` that has one left.
    fn next_reads(&mut self, columns: Vec<usize>) -> (Vec<usize>, Vec<LeafRead>) {
        let (mut asked, mut reads) = (Vec::new(), Vec::new());
        for c in columns {
            let column = &mut self.columns[c];
            let Some(leaf) = column.leaves.get(column.tried).cloned() else { continue };
            column.tried += 1;
            asked.push(c);
            reads.push(LeafRead { leaf, offset: column.extent.offset, len: column.extent.len });
        }
        (asked, reads)
    }

    fn store(&mut self, asked: &[usize], results: Vec<io::Result<Piece>>) {
        for (c, result) in asked.iter().zip(results) {
            match result {
                Ok(piece) => self.columns[*c].data = Some(piece.bytes),
                Err(e) => {
                    if GaveUp::is(&e) {
                        // It is not expected to be there, and not to blame.
                        self.columns[*c].trust = Some(Trust::Stale);
                        self.gave_up = true;
                    }
                    self.error = Some(e);
                }
            }
        }
    }

    /// The block, given the results of [`Read::first_reads`] (`vdev_raidz_io_done`).
    pub(crate) fn finish(
        mut self,
        submit: Submit<'_>,
        results: Vec<io::Result<Piece>>,
        verify: Verify<'_>,
        faults: &mut Vec<Fault>,
    ) -> Result<Abd, VdevError> {
        let asked = std::mem::take(&mut self.asked);
        self.store(&asked, results);
        let doubtful = |c: &Column| c.data.is_none() || !c.good();
        // What was read of untrusted columns is used only where nothing else is left.
        let attempts = [self.which(&doubtful), self.which(&|c| c.data.is_none())];
        if let Some(block) = self.attempt_each(&attempts, &[], verify) {
            return Ok(self.verified(block, faults));
        }
        self.read_everything(submit);
        let tried = attempts;
        if let Some(block) = self.attempt_each(&[self.which(&doubtful)], &tried, verify) {
            return Ok(self.verified(block, faults));
        }
        loop {
            if let Some(block) = self.try_combinations(verify) {
                return Ok(self.verified(block, faults));
            }
            if self.read_other_copies(submit) {
                continue;
            }
            let patient = submit.patient();
            return match self.planned_again() {
                Some(mut again) => {
                    let results = read_leaves(patient, &again.first_reads());
                    again.finish(patient, results, verify, faults)
                }
                None => Err(self.failed(faults)),
            };
        }
    }

    /// The same read once more, if devices were given up on that may answer yet.
    fn planned_again(&self) -> Option<Read<'a>> {
        self.gave_up.then(|| Read::plan(self.vdev, self.offset, self.size, self.txg))?
    }

    /// The first of `sets` of unusable columns without which the block verifies, leaving out
    /// those `tried` before.
    fn attempt_each(
        &self,
        sets: &[Vec<usize>],
        tried: &[Vec<usize>],
        verify: Verify<'_>,
    ) -> Option<Abd> {
        let new = |i: &usize| !tried.contains(&sets[*i]) && !sets[..*i].contains(&sets[*i]);
        (0..sets.len()).filter(new).find_map(|i| self.attempt(&sets[i], verify))
    }

    fn which(&self, unusable: &dyn Fn(&Column) -> bool) -> Vec<usize> {
        (0..self.columns.len()).filter(|c| unusable(&self.columns[*c])).collect()
    }

    /// Reads every column that has no data from whatever leaf is left.
    fn read_everything(&mut self, submit: Submit<'_>) {
        loop {
            let (asked, reads) = self.next_reads(self.which(&|c| c.data.is_none()));
            if asked.is_empty() {
                return;
            }
            let results = read_leaves(submit, &reads);
            self.store(&asked, results);
        }
    }

    /// Reads again from another leaf each column that has several. `false` if no leaf is left.
    fn read_other_copies(&mut self, submit: Submit<'_>) -> bool {
        let (asked, reads) = self.next_reads((0..self.columns.len()).collect());
        let results = read_leaves(submit, &reads);
        self.store(&asked, results);
        !asked.is_empty()
    }

    /// The block computed without the columns `unusable` (ascending), if that is possible and it
    /// verifies.
    fn attempt(&self, unusable: &[usize], verify: Verify<'_>) -> Option<Abd> {
        let block = self.decode(unusable)?;
        let abd = self.trimmed(Abd::from_vec(block))?;
        verify(&abd).then_some(abd)
    }

    /// Without the padding of the last sector.
    fn trimmed(&self, block: Abd) -> Option<Abd> {
        if block.len() == self.size { Some(block) } else { block.slice(0, self.size) }
    }

    /// The parity columns of a stripe, and its data columns.
    fn columns_of(&self, stripe: &Range<usize>) -> Option<(&[Column], &[Column])> {
        self.columns.get(stripe.clone())?.split_at_checked(self.nparity)
    }

    /// Bytes of data in all stripes.
    fn data_len(&self) -> usize {
        let data = self.stripes.iter().filter_map(|stripe| Some(self.columns_of(stripe)?.1));
        data.flatten().map(|c| c.extent.len).sum()
    }

    /// The data of all columns in order, those in `unusable` computed from parity.
    fn decode(&self, unusable: &[usize]) -> Option<Vec<u8>> {
        let mut block = vec![0; self.data_len()];
        let mut parts = self.cut(&mut block)?;
        for stripe in &self.stripes {
            let data = parts.get_mut(stripe.start.checked_add(self.nparity)?..stripe.end)?;
            self.decode_stripe(stripe, unusable, data)?;
        }
        Some(block)
    }

    /// The bytes of `block` that each column has.
    fn cut<'b>(&self, block: &'b mut [u8]) -> Option<Vec<&'b mut [u8]>> {
        let data = self.stripes.iter().flat_map(|s| s.start + self.nparity..s.end);
        let mut order: Vec<usize> = data.filter(|c| self.columns[*c].extent.len > 0).collect();
        order.sort_unstable_by_key(|c| self.columns[*c].extent.at);
        let mut parts: Vec<&mut [u8]> = self.columns.iter().map(|_| &mut [][..]).collect();
        let (mut rest, mut at) = (block, 0usize);
        for c in order {
            let Range { start, end } = self.columns[c].range();
            let (mine, after) = rest.split_at_mut_checked(end.checked_sub(start)?)?;
            if start != at {
                return None;
            }
            (parts[c], rest, at) = (mine, after, end);
        }
        Some(parts)
    }

    /// Puts the data of a stripe into `into`, column by column (`vdev_raidz_reconstruct_row`).
    fn decode_stripe(
        &self,
        stripe: &Range<usize>,
        unusable: &[usize],
        into: &mut [&mut [u8]],
    ) -> Option<()> {
        let (parity, data) = self.columns_of(stripe)?;
        let in_stripe = unusable.iter().filter(|c| stripe.contains(c)).map(|c| c - stripe.start);
        let unusable: Vec<usize> = in_stripe.collect();
        let lost: Vec<usize> =
            unusable.iter().filter_map(|c| c.checked_sub(self.nparity)).collect();
        let usable = parity.iter().enumerate().filter(|(k, _)| !unusable.contains(k));
        let parities: Vec<(usize, &[u8])> =
            usable.filter_map(|(k, c)| Some((k, c.data.as_ref()?.as_contiguous()?))).collect();
        if lost.len() > parities.len() {
            return None;
        }
        for (i, (column, mine)) in data.iter().zip(into.iter_mut()).enumerate() {
            if !lost.contains(&i) {
                column.data.as_ref()?.copy_to(0, mine)?;
            }
        }
        math::reconstruct(into, &lost, &parities)
    }

    /// Takes every combination of columns to be bad that parity can make up for, fewest first.
    fn try_combinations(&self, verify: Verify<'_>) -> Option<Abd> {
        let spare = |stripe: &Range<usize>| self.nparity.checked_sub(self.absent_of(stripe).len());
        let most = self.stripes.iter().map(spare).sum::<Option<usize>>()?;
        let budget = ATTEMPT_BYTES / self.size.max(1) as u64;
        let mut budget = budget.clamp(MIN_ATTEMPTS, MAX_ATTEMPTS);
        let found = self.try_devices(&mut budget, verify);
        found.or_else(|| {
            (0..=most).find_map(|count| {
                self.try_stripes(&self.stripes, count, &mut Vec::new(), &mut budget, verify)
            })
        })
    }

    /// Of a block that is many stripes: takes every combination of devices to be bad, with what could not be read
    /// (`raidz_simulate_failure`). Each attempt takes one off the budget.
    fn try_devices(&self, budget: &mut u64, verify: Verify<'_>) -> Option<Abd> {
        if self.widths.is_plain() || self.stripes.len() < 2 {
            return None;
        }
        let absent = self.which(&|c| c.data.is_none());
        let on = |width: u64, device: u64| {
            self.which(&|c| {
                let now = width == self.widths.physical;
                let own = if now { c.extent.child as u64 } else { c.extent.sector % width };
                own == device && c.extent.len > 0
            })
        };
        let devices = self.widths.all().flat_map(|width| (0..width).map(move |d| (width, d)));
        let mut suspects: Vec<Vec<usize>> = Vec::new();
        for (width, child) in devices {
            let columns = on(width, child);
            if !columns.is_empty() && !suspects.contains(&columns) {
                suspects.push(columns);
            }
        }
        for count in 1..=self.nparity.min(suspects.len()) {
            let mut combination = Combination::first(count, suspects.len());
            while let Some(chosen) = combination {
                let picked = chosen.picks.iter().filter_map(|i| suspects.get(*i)).flatten();
                let mut bad: Vec<usize> = picked.chain(&absent).copied().collect();
                bad.sort_unstable();
                bad.dedup();
                let lost = |s: &Range<usize>| bad.iter().filter(|c| s.contains(c)).count();
                if self.stripes.iter().all(|stripe| lost(stripe) <= self.nparity) {
                    *budget = budget.checked_sub(1)?;
                    if let Some(block) = self.attempt(&bad, verify) {
                        return Some(block);
                    }
                }
                combination = chosen.next();
            }
        }
        None
    }

    /// The columns of a stripe that could not be read.
    fn absent_of(&self, stripe: &Range<usize>) -> Vec<usize> {
        stripe.clone().filter(|c| self.columns[*c].data.is_none()).collect()
    }

    /// Takes those in `bad` to be bad, and every combination of `count` columns of `stripes` that were read, with those that
    /// were not. Each attempt takes one off the budget.
    fn try_stripes(
        &self,
        stripes: &[Range<usize>],
        count: usize,
        bad: &mut Vec<usize>,
        budget: &mut u64,
        verify: Verify<'_>,
    ) -> Option<Abd> {
        let Some((stripe, others)) = stripes.split_first() else {
            *budget = budget.checked_sub(1)?;
            return self.attempt(bad, verify);
        };
        let absent = self.absent_of(stripe);
        let read = |c: &usize| self.columns[*c].data.is_some() && self.columns[*c].extent.len > 0;
        let present: Vec<usize> = stripe.clone().filter(read).collect();
        let most = self.nparity.checked_sub(absent.len())?.min(count);
        let (before, first_data) = (bad.len(), stripe.start + self.nparity);
        // What is left for no other stripe is all in this one.
        let least = if others.is_empty() { count } else { 0 };
        for here in least..=most {
            let mut combination = Combination::first(here, present.len());
            while let Some(chosen) = combination {
                bad.extend(chosen.picks.iter().map(|i| present[*i]).chain(absent.iter().copied()));
                bad[before..].sort_unstable();
                // Without a bad data column the data are as they were read.
                let changes = here == 0 || bad[before..].iter().any(|c| *c >= first_data);
                let found = match changes {
                    true => self.try_stripes(others, count - here, bad, budget, verify),
                    false => None,
                };
                bad.truncate(before);
                if found.is_some() || *budget == 0 {
                    return found;
                }
                combination = chosen.next();
            }
        }
        None
    }

    /// Reports the columns that differ from what verified, or could not be read (`raidz_parity_verify`).
    fn verified(&self, block: Abd, faults: &mut Vec<Fault>) -> Abd {
        let is_parity =
            |c: usize| self.stripes.iter().any(|s| s.contains(&c) && c - s.start < self.nparity);
        let all_data = |(c, column): (usize, &Column)| match is_parity(c) {
            true => column.tried == 0,
            false => column.data.is_some(),
        };
        if self.columns.iter().enumerate().all(all_data) {
            // Everything that was read verified.
            return block;
        }
        // Padding beyond the block is zeros.
        let mut bytes = block.bytes().into_owned();
        bytes.resize(self.data_len(), 0);
        for stripe in &self.stripes {
            let Some((parity, data)) = self.columns_of(stripe) else {
                let all = self.columns.len();
                broken(format_args!("{:?}: a stripe of columns {stripe:?} of {all}", self.vdev))
            };
            let mut slices = Vec::with_capacity(data.len());
            for column in data {
                let Some(mine) = bytes.get(column.range()) else {
                    let (range, len) = (column.range(), bytes.len());
                    broken(format_args!(
                        "{:?}: a column of the bytes {range:?} of {len}",
                        self.vdev
                    ))
                };
                faults.extend(column.fault(mine).map(|fault| self.laid_out(column, fault)));
                slices.push(mine);
            }
            for (k, column) in parity.iter().enumerate().filter(|(_, column)| column.tried > 0) {
                let mut right = vec![0; column.extent.len];
                math::parity_of(k, slices.iter().copied(), &mut right);
                faults.extend(column.fault(&right).map(|fault| self.laid_out(column, fault)));
            }
        }
        block
    }

    /// The fault, with how its block was laid out.
    fn laid_out(&self, column: &Column, fault: Fault) -> Fault {
        fault.laid_out_by(self.vdev, &self.widths, column.extent.in_row())
    }

    /// Nothing helped: the error. Every column that was read may be the wrong one.
    fn failed(&self, faults: &mut Vec<Fault>) -> VdevError {
        let lacks = |stripe: &Range<usize>| (self.absent_of(stripe).len(), stripe.len());
        let (absent, of) = self.stripes.iter().map(lacks).max().unwrap_or_default();
        let (vdev, offset) = (self.vdev.id(), self.offset);
        if absent > self.nparity {
            self.vdev.stats.reads.error();
            let cause = self.error.as_ref().map_or("not there".into(), |e| e.to_string());
            let why = format!("{absent} of {of} columns cannot be read: {cause}");
            return VdevError::Io { vdev, offset, why };
        }
        let expected = self.columns.iter().filter(|c| c.data.is_some() && c.good());
        let faulty = expected.filter_map(|c| Some(self.laid_out(c, c.mismatch(c.last_tried()?))));
        faults.extend(faulty);
        VdevError::Checksum { vdev, offset }
    }
}

/// `picks.len()` of `n` things, in lexicographic order.
struct Combination {
    picks: Vec<usize>,
    n: usize,
}

impl Combination {
    fn first(count: usize, n: usize) -> Option<Combination> {
        (count <= n).then(|| Combination { picks: (0..count).collect(), n })
    }

    fn next(mut self) -> Option<Combination> {
        let count = self.picks.len();
        // The last pick that can still move up, and those after it right behind.
        let moving = (0..count).rev().find(|i| self.picks[*i] < self.n - (count - i))?;
        let base = self.picks[moving] + 1;
        for (i, pick) in self.picks[moving..].iter_mut().enumerate() {
            *pick = base + i;
        }
        Some(self)
    }
}
