//! `zdb -h`: the log of commands and of what they did (`dump_history`).

use super::print;
use super::{Zdb, failed};
use cenote_command::clock;
use cenote_command::outcome::Stop;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::history::legacy_event;

impl Zdb<'_> {
    /// All records, the oldest first; with `-hh` whole as well.
    pub fn history(&mut self) -> Result<(), Stop> {
        let records = self.pool.history().map_err(failed)?;
        writeln!(self.out(), "\nHistory:")?;
        for record in &records {
            let known = self.history_record(record)?;
            if self.level('h') > 1 {
                if !known {
                    writeln!(self.out(), "unrecognized record:")?;
                }
                print::nvlist(self.out(), record, 2)?;
            }
        }
        Ok(())
    }

    /// Shows a record on its line; false if it is of no known kind.
    fn history_record(&mut self, record: &NvList) -> Result<bool, Stop> {
        let time = record.u64("history time").map(|t| {
            let seconds = i64::try_from(t).unwrap_or(i64::MAX);
            clock::format(self.ctx.caller, seconds, "%Y-%m-%d.%H:%M:%S")
        });
        let time = time.unwrap_or_default();
        let text = |name: &str| record.str(name).unwrap_or_default();
        let number = |name: &str| record.u64(name).unwrap_or_default();
        let (txg, what) = (number("history txg"), text("history internal str"));
        let out = &mut *self.ctx.out;
        if record.contains("history command") {
            writeln!(out, "{time} {}", text("history command"))?;
        } else if let Some(event) = record.u64("history internal event") {
            let Some(name) = legacy_event(event) else { return Ok(false) };
            writeln!(out, " {time} [internal {name} txg:{txg}] {what}")?;
        } else if record.contains("internal_name") {
            write!(out, "{time} [txg:{txg}] {}", text("internal_name"))?;
            if record.contains("dsname") {
                write!(out, " {} ({})", text("dsname"), number("dsid"))?;
            }
            writeln!(out, " {what}")?;
        } else if record.contains("ioctl") {
            writeln!(out, "{time} ioctl {}", text("ioctl"))?;
            for (name, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
                let Some(list) = record.list(name) else { continue };
                writeln!(out, "    {title}:")?;
                print::nvlist(out, list, 8)?;
            }
            if let Some(NvValue::Int64(errno)) = record.get("errno") {
                writeln!(out, "    errno: {errno}")?;
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}
