//! What `zinject` shows: the list of handlers, and a handler that was added.

use super::options::type_name;
use crate::context::Context;
use cenote_daemon::injections::{Listed, Moment, What};
use cenote_vdev::injection::{Handler, Trigger};
use std::io;

/// The tables of the list, in their order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Devices,
    Delays,
    Data,
    Pauses,
}

impl Table {
    const ALL: [Table; 4] = [Table::Devices, Table::Delays, Table::Data, Table::Pauses];

    fn of(one: &Listed) -> Table {
        match one.what {
            What::Device { .. } => Table::Devices,
            What::Delay { .. } => Table::Delays,
            What::Data { .. } => Table::Data,
            What::Pause(..) => Table::Pauses,
        }
    }

    /// Its two lines at the top.
    fn head(self) -> (String, &'static str) {
        match self {
            Table::Devices => (
                format!(
                    "{:>3}  {:<15}  {:<16}  {:<5}  {:<10}  {:<9}  {:<6}  {:<6}",
                    "ID", "POOL", "GUID", "TYPE", "ERROR", "FREQ", "MATCH", "INJECT"
                ),
                "---  ---------------  ----------------  -----  ----------  ---------  ------  ------",
            ),
            Table::Delays => (
                format!(
                    "{:>3}  {:<15}  {:<16}  {:<10}  {:<5}  {:<9}  {:<6}  {:<6}",
                    "ID", "POOL", "GUID", "DELAY (ms)", "LANES", "FREQ", "MATCH", "INJECT"
                ),
                "---  ---------------  ----------------  ----------  -----  ---------  ------  ------",
            ),
            Table::Data => (
                format!(
                    "{:>3}  {:<15}  {:<6}  {:<6}  {:<8}  {:>3}  {:<4}  {:<15}  {:<6}  {:<15}",
                    "ID",
                    "POOL",
                    "OBJSET",
                    "OBJECT",
                    "TYPE",
                    "LVL",
                    "DVAs",
                    "RANGE",
                    "MATCH",
                    "INJECT"
                ),
                "---  ---------------  ------  ------  --------  ---  ----  ---------------  ------  ------",
            ),
            Table::Pauses => (
                format!("{:>3}  {:<19}  {:<11}  {}", "ID", "POOL", "DELAY (sec)", "COMMAND"),
                "---  -------------------  -----------  -------",
            ),
        }
    }
}

/// How often a handler matched and did something.
fn counts(trigger: &Trigger) -> String {
    let (matched, injected) = trigger.counts();
    format!("{matched:>6}  {injected:>6}")
}

fn percent(trigger: &Trigger) -> f64 {
    f64::from(trigger.frequency()) / f64::from(u32::MAX) * 100.0
}

fn line(one: &Listed) -> String {
    let (id, pool) = (one.id, &one.pool);
    match &one.what {
        What::Device { vdev, kind, error, handler } => {
            let trigger = handler.trigger();
            let (often, counts) = (percent(trigger), counts(trigger));
            format!(
                "{id:>3}  {pool:<15}  {vdev:x}  {kind:<5}  {error:<10}  {often:>8.4}%  {counts}"
            )
        }
        What::Delay { vdev, milliseconds, lanes, handler, .. } => {
            let trigger = handler.trigger();
            let (often, counts) = (percent(trigger), counts(trigger));
            format!(
                "{id:>3}  {pool:<15}  {vdev:x}  {milliseconds:>10}  {lanes:>5}  {often:>8.4}%  {counts}"
            )
        }
        What::Data { objset, object, kind, level, blkids, copies, handler } => {
            let range = match (*blkids.start(), *blkids.end()) {
                (0, u64::MAX) => "all".to_string(),
                (start, end) => format!("[{start}, {end}]"),
            };
            let (kind, counts) = (type_name(*kind), counts(handler.trigger()));
            format!(
                "{id:>3}  {pool:<15}  {objset:<6}  {object:<6}  {kind:<8}  {level:<3}  0x{copies:02x}  {range:<15}  {counts}"
            )
        }
        What::Pause(moment, seconds) => {
            let command = match moment {
                Moment::Import => "import",
                Moment::Export => "export",
            };
            format!("{id:>3}  {pool:<19}  {seconds:<11}  {command}")
        }
    }
}

/// Shows all handlers.
pub fn show(all: &[Listed], ctx: &mut Context) -> io::Result<()> {
    if all.is_empty() {
        writeln!(ctx.out, "No handlers registered.")?;
        return writeln!(ctx.out, "Run 'zinject -h' for usage information.");
    }
    for table in Table::ALL {
        let mut rows = all.iter().filter(|one| Table::of(one) == table).peekable();
        if rows.peek().is_none() {
            continue;
        }
        let (names, rule) = table.head();
        writeln!(ctx.out, "{names}\n{rule}")?;
        for row in rows {
            writeln!(ctx.out, "{}", line(row))?;
        }
        writeln!(ctx.out)?;
    }
    Ok(())
}

/// Shows a handler that was added; quietly: its number.
pub fn added(one: &Listed, quiet: bool, ctx: &mut Context) -> io::Result<()> {
    if quiet {
        return writeln!(ctx.out, "{}", one.id);
    }
    writeln!(ctx.out, "Added handler {} with the following properties:", one.id)?;
    writeln!(ctx.out, "  pool: {}", one.pool)?;
    match &one.what {
        What::Device { vdev, kind, .. } | What::Delay { vdev, kind, .. } => {
            writeln!(ctx.out, "  vdev: {vdev:x}\niotype: {kind}")
        }
        What::Pause(_, seconds) => writeln!(ctx.out, " time: {seconds} seconds"),
        What::Data { objset, object, kind, level, blkids, copies, .. } => {
            writeln!(ctx.out, "objset: {objset}\nobject: {object}\n  type: {kind}")?;
            writeln!(ctx.out, " level: {level}")?;
            match (*blkids.start(), *blkids.end()) {
                (0, u64::MAX) => writeln!(ctx.out, " range: all")?,
                (start, end) => writeln!(ctx.out, " range: [{start}, {end})")?,
            }
            writeln!(ctx.out, "  dvas: 0x{copies:x}")
        }
    }
}
