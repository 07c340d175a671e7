//! Packages of several streams (`zfs_send`).
//!
//! What is sent is planned first, and all of it is held before the first byte is written, so that nothing of it is
//! destroyed meanwhile. The record that ends a package is written also behind a stream that failed: the receiver has to
//! know that no further one comes.

use super::stream::{Held, Stream};
use super::{Send, failure};
use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Event;
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_dsl::send::package::{Plan, Wanted};
use cenote_format::stream::feature;
use cenote_format::stream::package::{self, Package};
use std::io::{self, Write};

impl Session<'_> {
    /// Sends a package.
    pub(super) fn send_many(
        &mut self,
        name: &str,
        from: Option<&str>,
        mut how: Send,
        out: &mut dyn Write,
    ) -> Result<()> {
        let (of, to) = name.split_once('@').unwrap_or((name, ""));
        let head = self.dataset(of, Kinds::HEAD)?;
        how.wanted.to = to.to_string();
        self.start(&head, from, &mut how.wanted)?;
        let wanted = &mut how.wanted;
        if wanted.replicate && wanted.from.is_none() && !wanted.from_origin {
            wanted.all_snapshots = true;
        }
        let wanted = &how.wanted;
        for short in wanted.from.iter().chain([&wanted.to]) {
            self.dataset(&format!("{of}@{short}"), Kinds::SNAPSHOT)?;
        }
        let pool = self.pool();
        let mut list = None;
        if wanted.replicate || wanted.props || wanted.holds {
            let gathered = self.warning(|say| pool.dsl().gather(&head, wanted, say))?;
            list = Some(gathered.map_err(|e| failure(name, e))?);
        }
        let plan = self.warning(|say| pool.dsl().plan(&head, list.as_ref(), wanted, say))?;
        let plan = plan.map_err(|e| failure(name, e))?;
        let size = self.estimates(&plan, &how)?;
        if !plan.reached {
            return Err(Error::told());
        }
        if !how.dry_run {
            let mut held = Vec::new();
            for step in &plan.steps {
                let cannot =
                    |why| Error::doing(format_args!("cannot send '{}'", step.to.name), why);
                let raw = how.options.raw || wanted.raw;
                held.push(self.held(&step.to, raw).map_err(cannot)?);
            }
            out.write_all(&self::head(name, &how.wanted, list.as_ref())?)?;
            match self.send_steps(&plan, &held, size, &how, out).map_err(Error::into_io) {
                Ok(()) => end(out)?,
                // Nothing can be written any more.
                Err(Ok(e)) => return Err(e.into()),
                Err(Err(e)) => {
                    end(out)?;
                    return Err(e);
                }
            }
        }
        if plan.incomplete { Err(Error::told()) } else { Ok(()) }
    }

    /// Takes what a package starts from: a snapshot of the same dataset, or its origin.
    fn start(&self, head: &Dataset, from: Option<&str>, wanted: &mut Wanted) -> Result<()> {
        let Some(from) = from else { return Ok(()) };
        let Some((of, short)) = from.split_once('@') else {
            wanted.from = Some(from.into());
            return Ok(());
        };
        let cannot =
            |e: cenote_dmu::Error| Error::doing(format_args!("cannot open '{}'", head.name), e);
        let origin = self.pool().dsl().origin(head).map_err(cannot)?;
        if origin.is_some_and(|origin| origin.name == from) {
            wanted.from_origin = true;
            return Ok(());
        }
        if !of.is_empty() && of != head.name {
            let why = "incremental source must be in same filesystem";
            return Err(Error::new(ErrorKind::Arguments, why));
        }
        if short.contains(['@', '/']) {
            return Err(Error::new(ErrorKind::Arguments, "invalid incremental source"));
        }
        wanted.from = Some(short.to_string());
        Ok(())
    }

    /// Tells how long the streams will be. Returns the sum, without those of which that was told as a failure.
    fn estimates(&mut self, plan: &Plan, how: &Send) -> Result<u64> {
        let mut sum = 0u64;
        if !how.estimate {
            return Ok(sum);
        }
        let (options, pool) = (how.options_in(self), self.pool());
        for step in &plan.steps {
            // A first stream that starts from an origin counts as a full one, as in OpenZFS.
            let from = step.from.as_ref().filter(|_| !step.from_origin);
            let name = &step.to.name;
            match pool.dsl().send_estimate(&step.to, from, options) {
                Ok(size) => {
                    sum = sum.saturating_add(size);
                    let from = from.and_then(|f| f.name.split_once('@')).map(|(_, short)| short);
                    self.tell(Event::Estimate { to: name, from, size, packed: true })?;
                }
                Err(e) => {
                    let what = format_args!("warning: cannot estimate space for '{name}'");
                    self.failed(Error::doing(what, e))?;
                }
            }
        }
        self.tell(Event::EstimateTotal { size: sum, packed: true })?;
        Ok(sum)
    }

    fn send_steps(
        &mut self,
        plan: &Plan,
        held: &[Held],
        size: u64,
        how: &Send,
        out: &mut dyn Write,
    ) -> Result<()> {
        for (step, to) in plan.steps.iter().zip(held) {
            let (options, name) = (how.options_in(self), step.to.name.as_str());
            let from = step.from.as_ref();
            self.write(&Stream { to, from, options, name, size, packed: true }, out)?;
        }
        Ok(())
    }
}

/// Writes the record that ends a package. A writer that keeps it for later says now whether it can be written.
pub(super) fn end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&package::END)?;
    out.flush()
}

/// The records before the first stream.
pub(super) fn head(name: &str, wanted: &Wanted, list: Option<&Package>) -> Result<Vec<u8>> {
    // OpenZFS means to say that a file system has system attributes, but looks at the snapshot.
    let features = if wanted.holds { feature::HOLDS } else { 0 };
    package::head(name, features, list).map_err(|e| {
        let why = Why(ErrorKind::Unsupported, e);
        Error::doing(format_args!("warning: cannot send '{name}'"), why)
    })
}
