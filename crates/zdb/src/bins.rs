//! `--bin` and `--class`: which blocks the histogram of block sizes counts, and in which bins (`block_bin_mode`,
//! `block_classes`).

use cenote_command::outcome::{Stop, usage};
use cenote_format::blkptr::BlockPointer;
use cenote_inspect::traverse::stats::{SizeHistogram, asize};
use cenote_pool::metaslab::{AllocClass, PoolSpace};

/// The classes of `--class`, in the order in which they are named.
const CLASSES: [&str; 4] = ["normal", "special", "dedup", "other"];

/// A size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// `lsize`
    Logical,
    /// `psize`
    Physical,
    /// `asize`
    Allocated,
}

impl Size {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Size::Logical => "lsize",
            Size::Physical => "psize",
            Size::Allocated => "asize",
        }
    }

    fn of(self, bp: &BlockPointer) -> u64 {
        match self {
            Size::Logical => bp.lsize(),
            Size::Physical => bp.psize(),
            Size::Allocated => asize(bp),
        }
    }
}

/// What is counted how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bins {
    /// The size by which all three columns are binned; without one each by its own.
    pub by: Option<Size>,
    /// The classes of which blocks are counted; empty: all.
    pub classes: Vec<&'static str>,
}

impl Bins {
    /// Takes a value of `--bin`.
    ///
    /// # Errors
    /// A usage error: it is none of the sizes.
    pub fn by(&mut self, value: &str) -> Result<(), Stop> {
        let all = [Size::Logical, Size::Physical, Size::Allocated];
        self.by = all.into_iter().find(|size| size.name() == value);
        if self.by.is_none() {
            let why = format!("--bin=\"{value}\" must be one of \"lsize\", \"psize\" or \"asize\"");
            return usage(why);
        }
        Ok(())
    }

    /// Takes a value of `--class`.
    ///
    /// # Errors
    /// A usage error: something in it is no class.
    pub fn class(&mut self, value: &str) -> Result<(), Stop> {
        let must = "must be a comma-separated list of either \"normal\", \"special\", \"dedup\" or \
                    \"other\"; got";
        let names: Vec<&str> = value.split(',').filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return usage(format!("--class= {must} empty"));
        }
        if let Some(wrong) = names.iter().find(|name| !CLASSES.contains(name)) {
            return usage(format!("--class=\"{value}\" {must} \"{wrong}\""));
        }
        let more = CLASSES.into_iter().filter(|class| names.contains(class));
        self.classes.extend(more);
        Ok(())
    }

    /// What is said of it above the histogram.
    pub fn notes(&self) -> String {
        let mut notes = match self.by {
            None => "(note: all categories are binned separately)\n".to_string(),
            Some(size) => format!("(note: all categories are binned by {})\n", size.name()),
        };
        let named = CLASSES.iter().filter(|class| self.classes.contains(class));
        let named: Vec<String> = named.map(|class| format!("\"{class}\"")).collect();
        if !named.is_empty() {
            let named = named.join(", ");
            notes += &format!("(note: only blocks in these classes are counted: {named})\n");
        }
        notes
    }
}

/// The histogram, of physical, logical and allocated sizes.
#[derive(Default)]
pub struct Binned {
    bins: Bins,
    /// Blocks by physical size.
    pub psizes: SizeHistogram,
    /// Blocks by logical size.
    pub lsizes: SizeHistogram,
    /// Blocks by allocated size.
    pub asizes: SizeHistogram,
}

impl Binned {
    /// An empty one.
    pub fn new(bins: &Bins) -> Binned {
        Binned { bins: bins.clone(), ..Binned::default() }
    }

    /// Counts a block that is not embedded.
    pub fn add(&mut self, bp: &BlockPointer, space: &PoolSpace) {
        if bp.is_embedded() || !self.counts(bp, space) {
            return;
        }
        let all = [
            (&mut self.psizes, Size::Physical),
            (&mut self.lsizes, Size::Logical),
            (&mut self.asizes, Size::Allocated),
        ];
        for (histogram, size) in all {
            let by = self.bins.by.unwrap_or(size);
            histogram.add(by.of(bp), size.of(bp));
        }
    }

    /// Whether the block is in one of the classes: that of its first copy.
    fn counts(&self, bp: &BlockPointer, space: &PoolSpace) -> bool {
        self.bins.classes.is_empty()
            || class_of(bp, space).is_some_and(|class| self.bins.classes.contains(&class))
    }
}

/// What `--class` calls the class of the first copy of a block; `None`: there is no such place.
fn class_of(bp: &BlockPointer, space: &PoolSpace) -> Option<&'static str> {
    let dva = bp.dva(0)?;
    let vdev = space.vdev_space(dva.vdev.into())?;
    let metaslab = dva.offset.checked_shr(vdev.metaslab_shift)?;
    let kept = usize::try_from(metaslab).ok().and_then(|at| vdev.metaslabs.get(at));
    Some(match vdev.class {
        _ if kept.is_some_and(|metaslab| metaslab.embedded_log) => "other",
        AllocClass::Normal => "normal",
        AllocClass::Special => "special",
        AllocClass::Dedup => "dedup",
        _ => "other",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let mut bins = Bins::default();
        assert_eq!(bins.notes(), "(note: all categories are binned separately)\n");
        bins.by("asize").unwrap();
        bins.class("other,normal").unwrap();
        assert_eq!(
            bins.notes(),
            "(note: all categories are binned by asize)\n\
             (note: only blocks in these classes are counted: \"normal\", \"other\")\n"
        );
        let wrong = |done: Result<(), Stop>, word: &str| {
            assert!(matches!(done, Err(Stop::Usage(why)) if why.contains(word)));
        };
        wrong(bins.by("size"), "\"size\"");
        wrong(bins.class("normal,log"), "got \"log\"");
        wrong(bins.class(""), "got empty");
    }
}
