//! One stream: full, or from a snapshot or bookmark; with properties or holds in a package (`zfs_send_one`).

use super::stream::Stream;
use super::{Send, failure, many};
use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Event;
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_dsl::send::{SendError, SendOptions};
use std::io::Write;

impl Session<'_> {
    /// Sends one snapshot or head.
    pub(super) fn send_one(
        &mut self,
        name: &str,
        from: Option<&str>,
        mut how: Send,
        out: &mut dyn Write,
    ) -> Result<()> {
        let of = name.split('@').next().unwrap_or_default();
        let to = self.dataset(name, Kinds::DATASET)?;
        // `@a` and `#a` are of the same dataset.
        let from = from.map(|from| match from.starts_with(['@', '#']) {
            true => format!("{of}{from}"),
            false => from.to_string(),
        });
        if let Some(from) = &from
            && from.split(['/', '@', '#']).next() != name.split(['/', '@']).next()
        {
            return Err(failure(name, SendError::NotEarlier));
        }
        let start = Kinds::SNAPSHOT.with(Kinds::BOOKMARK);
        let from = from.map(|from| self.dataset(&from, start)).transpose()?;
        let redact = how.redact.as_ref().map(|mark| self.list_for(name, mark)).transpose()?;
        if how.is_packed() {
            let Some((head, short)) = name.split_once('@') else {
                let why = Why(ErrorKind::Invalid, "backup failed");
                return Err(Error::doing(format_args!("warning: cannot send '{name}'"), why));
            };
            how.wanted.to = short.to_string();
            let (head, pool) = (self.dataset(head, Kinds::HEAD)?, self.pool());
            let list = self.warning(|say| pool.dsl().gather(&head, &how.wanted, say))?;
            let list = list.map_err(|e| failure(name, e))?;
            if !how.dry_run {
                out.write_all(&many::head(name, &how.wanted, Some(&list))?)?;
            }
        }
        let options = SendOptions { redact, ..how.options_in(self) };
        self.send_dataset(name, (&to, from.as_ref()), options, &how, out)?;
        if how.is_packed() && !how.dry_run {
            many::end(out)?;
        }
        Ok(())
    }

    /// Sends `to` under the name `name`, after it is told how long the stream will be.
    pub(super) fn send_dataset(
        &mut self,
        name: &str,
        (to, from): (&Dataset, Option<&Dataset>),
        options: SendOptions,
        how: &Send,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut size = 0;
        if how.estimate {
            let estimate = self.pool().dsl().send_estimate(to, from, options);
            size = estimate.map_err(|e| failure(name, e))?;
            let from = from.map(|f| f.name.as_str());
            self.tell(Event::Estimate { to: name, from, size, packed: false })?;
            self.tell(Event::EstimateTotal { size, packed: false })?;
        }
        if how.dry_run {
            return Ok(());
        }
        let failed = |why| Error::doing(format_args!("warning: cannot send '{name}'"), why);
        let to = self.held(to, options.raw).map_err(failed)?;
        let start = from.and_then(|from| from.bookmark).map(|bookmark| bookmark.redaction);
        let lists = options.redact.into_iter().chain(start.filter(|list| *list != 0));
        let _lists = self.lists_held(lists).map_err(failed)?;
        self.write(&Stream { to: &to, from, options, name, size, packed: false }, out)
    }
}
