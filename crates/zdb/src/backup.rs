//! `zdb -B`: a stream of a dataset, by the number of its object (`dump_backup`).

use super::args::number;
use super::{Zdb, failed};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::send::SendOptions;

impl Zdb<'_> {
    /// `-B POOL/OBJSET [FLAGS]`: the stream that `zfs send` would make of a snapshot, or of a file system as it is.
    pub fn backup(&mut self, dataset: &str) -> Outcome {
        let Some(id) = dataset.strip_prefix('/').and_then(number) else {
            return usage("-B takes a pool and the numeric ID of an objset: POOL/OBJSET");
        };
        let pool = self.pool.clone();
        let flags = self.args.operands.get(1).map(String::as_str).unwrap_or_default();
        let mut options = SendOptions {
            pool_embeds: pool.features().is_active("embedded_data"),
            pool_has_lz4: pool.features().is_active("lz4_compress"),
            ..SendOptions::default()
        };
        for flag in flags.chars() {
            match flag {
                'e' => options.embedded = true,
                'L' => options.large_blocks = true,
                'c' => options.compressed = true,
                // As they are: of datasets that are not encrypted that is all (`rawok`).
                'w' => {
                    (options.embedded, options.compressed, options.raw) = (true, true, true);
                }
                other => return fail(format!("dump_backup: invalid flag '{other}'")),
            }
        }
        if self.ctx.caller.terminal.out {
            return fail("dump_backup: stream cannot be written to a terminal");
        }
        let found = pool.dsl().by_object(id).map_err(failed)?;
        let Some(dataset) = found else {
            return fail("dump_backup: dmu_send_obj: No such file or directory");
        };
        let sent = pool.dsl().send(&dataset, None, options, &mut *self.ctx.out);
        sent.map_err(|e| Stop::Fail(format!("dump_backup: dmu_send_obj: {e}")))?;
        Ok(0)
    }
}
