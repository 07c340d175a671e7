//! Packages of streams (`zfs_receive_package`).

use super::follow::follow;
use super::names::destination;
use super::one::{Next, next};
use super::{Job, Within};
use crate::context::Context;
use cenote_command::outcome::Stop;
use cenote_engine::change::receive::{ReceiveError, Source};
use cenote_format::stream::package::{Package, Sent};
use cenote_format::stream::{Begin, Record};

/// The dataset of a package that has the snapshot with this guid, and the snapshot's name (`fsavl_find`).
pub(super) fn sent_of(package: &Package, guid: u64) -> Option<(&Sent, &str)> {
    let each = package.datasets.iter().flat_map(|sent| sent.snaps.iter().map(move |s| (sent, s)));
    let mut found = each.filter(|(_, (_, known))| *known == guid);
    found.next().map(|(sent, (name, _))| (sent, name.as_str()))
}

/// Receives all streams of a package whose head was read. `name` is the snapshot that was sent.
pub(super) fn receive(
    job: &mut Job,
    source: &mut Source<'_>,
    begin: &Begin,
    name: &str,
    ctx: &mut Context,
) -> Result<(), Stop> {
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot receive: {e}"));
    let list = source.package(begin).map_err(|e| cannot(&e))?;
    let recursive = list.as_ref().is_none_or(|list| list.recursive);
    if recursive && job.target.contains('@') {
        return Err(cannot(&"cannot specify snapshot name for multi-snapshot stream"));
    }
    match source.record() {
        Ok((Record::End { .. }, _)) => {}
        Ok(_) => return Err(cannot(&"invalid backup stream")),
        Err(ReceiveError::Checksum) => return Err(cannot(&"incorrect header checksum")),
        Err(e) => return Err(cannot(&e)),
    }
    let sent = name.split('@').next().unwrap_or_default();
    let within = Within { list: list.as_ref(), sent };
    let top = match job.flags.prefix {
        true => destination(&job.flags, &job.target, (sent, name), !recursive),
        false => Ok(job.target.clone()),
    };
    let top = top.map_err(|e| cannot(&e))?;
    let top = top.split('@').next().unwrap_or_default();
    let mut followed = true;
    if let Some(list) = &list {
        // What is not there yet is not followed.
        follow(job, list, top, ctx)?;
    }
    while next(job, source, Some(&within), ctx)? == Next::Received {}
    if let Some(list) = &list {
        followed = follow(job, list, top, ctx)?;
    }
    match followed {
        true => Ok(()),
        false => Err(Stop::Said(1)),
    }
}
