//! `zpool status -c` and `zpool iostat -c`: columns that programs of the user make for each device
//! (`all_pools_for_each_vdev_run`). The programs run in the user's process ([`programs`]).
//!
//! Invariant: what columns take is bounded, whatever programs of another user say of however many devices.

use crate::context::{Context, Process};
use crate::options::Opt;
use crate::zpool::programs::{self, AT_ONCE, Answer, Leaf, MOST_SAID, Question, Said};
use cenote_command::outcome::{Stop, fail, plain};
use cenote_vdev::Vdev;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

/// Columns that are shown at most.
const MOST_COLUMNS: usize = 256;
/// Characters that they are wide at most, together.
const WIDEST: usize = 16 << 10;

/// The programs that are asked for.
#[derive(Clone)]
pub struct Scripts {
    programs: String,
    process: Option<Arc<dyn Process>>,
}

/// What they said of all leaves.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Names with widths, in the order in which they came up.
    names: Vec<(String, usize)>,
    said: HashMap<u64, Said>,
}

/// If the command line ends with `-c`, which lacks its value: the list of programs.
pub fn list(args: &[OsString], command: &str, ctx: &mut Context) -> Option<Result<i32, Stop>> {
    // The user's own process lists them.
    let asked = ctx.process.is_none() && programs::are_listed(command, args);
    asked.then(|| programs::list(command, ctx))
}

impl Scripts {
    /// The programs of `-c`; `None`: the option was not given.
    ///
    /// # Errors
    /// It was given twice, or may not be used.
    pub fn of(options: &[Opt], ctx: &Context) -> Result<Option<Scripts>, Stop> {
        let mut given = options.iter().filter(|opt| opt.letter == 'c');
        let Some(opt) = given.next() else { return Ok(None) };
        if given.next().is_some() {
            return fail("Can't set -c flag twice");
        }
        let scripts = Scripts { programs: opt.text(), process: ctx.process.clone() };
        scripts.ask(Vec::new())?;
        Ok(Some(scripts))
    }

    /// What the programs say of some leaves.
    fn ask(&self, leaves: Vec<Leaf>) -> Result<Vec<Said>, Stop> {
        let (asked, programs) = (leaves.len(), self.programs.clone());
        let question = Question { programs, leaves };
        let cannot = |why: String| Stop::Fail(format!("Can't run -c: {why}"));
        let answer = match &self.process {
            None => programs::answer_here(&question),
            Some(process) => {
                let bytes = serde_json::to_vec(&question).map_err(|e| cannot(e.to_string()))?;
                let bytes = process.ask(&bytes).map_err(|e| cannot(plain(&e)))?;
                serde_json::from_slice::<Answer>(&bytes).map_err(|e| cannot(e.to_string()))?
            }
        };
        match answer {
            Ok(said) if said.len() == asked => Ok(said),
            Ok(_) => Err(cannot("the answer is not what was asked for".into())),
            Err(why) => fail(why),
        }
    }

    /// Runs the programs for the leaves of the pools of these names, or of all. No pool is kept meanwhile: programs may take any time, and
    /// one that is exported lets go of its devices.
    ///
    /// # Errors
    /// The user's process does not answer.
    pub fn run(&self, names: &[String], ctx: &Context) -> Result<Columns, Stop> {
        let mut leaves = Vec::new();
        for imported in ctx.pools.all() {
            if names.is_empty() || names.iter().any(|name| name == imported.name()) {
                collect(imported.pool().store().vdevs().root(), &mut leaves);
            }
        }
        let mut columns = Columns::default();
        for some in leaves.chunks(AT_ONCE) {
            let said = self.ask(some.iter().map(|(_, leaf)| leaf.clone()).collect())?;
            some.iter().zip(said).for_each(|((guid, _), said)| columns.add(*guid, said));
        }
        Ok(columns)
    }
}

fn collect(vdev: &Arc<Vdev>, leaves: &mut Vec<(u64, Leaf)>) {
    let config = vdev.config();
    if let Some(path) = config.str("path").filter(|_| vdev.is_leaf()) {
        let enclosure = config.str("vdev_enc_sysfs_path").unwrap_or_default().into();
        leaves.push((vdev.guid(), Leaf { path: path.into(), enclosure }));
    }
    vdev.children().iter().for_each(|child| collect(child, leaves));
}

impl Columns {
    /// Enters what was said of a leaf, but for columns for which there is no room.
    fn add(&mut self, guid: u64, said: Said) {
        let mut wide: usize = self.names.iter().map(|(_, width)| *width).sum();
        let rest = said.rest.map(|rest| rest.chars().take(MOST_SAID).collect());
        let mut kept = Said { columns: Vec::new(), rest };
        for (name, value) in said.columns.into_iter().take(MOST_COLUMNS) {
            let width = value.chars().count().max(name.chars().count());
            let known = self.names.iter().position(|(known, _)| *known == name);
            let has = known.and_then(|at| self.names.get(at)).map_or(0, |(_, width)| *width);
            let more = width.saturating_sub(has);
            let is_twice = kept.columns.iter().any(|(other, _)| *other == name);
            let is_full = known.is_none() && self.names.len() >= MOST_COLUMNS;
            if is_twice || wide + more > WIDEST || is_full {
                continue;
            }
            wide += more;
            match known.and_then(|at| self.names.get_mut(at)) {
                Some((_, widest)) => *widest += more,
                None => self.names.push((name.clone(), width)),
            }
            kept.columns.push((name, value));
        }
        self.said.insert(guid, kept);
    }

    /// What stands behind the titles of the other columns.
    pub fn titles(&self) -> String {
        self.names.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// What stands behind their dashes.
    pub fn dashes(&self) -> String {
        self.names.iter().map(|(_, width)| format!("  {:-<width$}", "")).collect()
    }

    /// What stands behind the values of a vdev (`zpool_print_cmd`).
    pub fn of(&self, guid: u64) -> String {
        let Some(said) = self.said.get(&guid) else { return String::new() };
        let value = |name: &str| {
            let found = said.columns.iter().find(|(known, _)| known == name);
            found.map_or("-", |(_, value)| value.as_str())
        };
        let mut text: String =
            self.names.iter().map(|(name, width)| format!("  {:>width$}", value(name))).collect();
        if let Some(rest) = &said.rest {
            text += &format!("  {rest}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let said = |columns: &[(&str, &str)], rest: Option<&str>| Said {
            columns: columns.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
            rest: rest.map(String::from),
        };
        let mut columns = Columns::default();
        columns.add(1, said(&[("size", "4")], None));
        columns.add(2, said(&[("size", "123456"), ("id", "7")], Some("done")));
        assert_eq!(columns.titles(), "    size  id");
        assert_eq!(columns.dashes(), "  ------  --");
        assert_eq!(columns.of(1), "       4   -");
        assert_eq!(columns.of(2), "  123456   7  done");
        assert_eq!(columns.of(3), "");
    }

    #[test]
    fn columns_are_bounded() {
        let mut columns = Columns::default();
        for leaf in 0..40 {
            let name = |n: u64| (format!("{leaf}-{n}"), "x".repeat(if n == 0 { 7000 } else { 1 }));
            columns.add(leaf, Said { columns: (0..20).map(name).collect(), rest: None });
        }
        assert_eq!(columns.names.len(), MOST_COLUMNS);
        assert!(columns.names.iter().map(|(_, width)| width).sum::<usize>() <= WIDEST);
        assert!(columns.of(0).len() <= WIDEST + 2 * MOST_COLUMNS);
    }
}
