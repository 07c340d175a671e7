//! What the input has: one stream, or a package of them (`zfs_receive_package`).

use super::follow::follow;
use super::names::destination;
use super::one::Stream;
use super::{Job, Within};
use crate::context::Context;
use cenote_command::outcome::Stop;
use cenote_engine::change::receive::{ReceiveError, Source};
use cenote_format::stream::package::HEADER_TYPE;
use cenote_format::stream::{Begin, Record, SUBSTREAM, feature};

/// Whether there was a stream, or the end of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Received,
    End,
}

/// Receives the next stream of the input, or all streams of the package that begins there.
pub(super) fn next(
    job: &mut Job,
    source: &mut Source<'_>,
    within: Option<&Within<'_>>,
    ctx: &mut Context,
) -> Result<Next, Stop> {
    let cannot = |why: String| Stop::Fail(format!("cannot receive: {why}"));
    if job.flags.prefix {
        let name = &job.target;
        let there = job.head(name).map_err(|e| cannot(e.to_string()))?;
        if there.is_none() && !name.contains('@') {
            return Err(cannot(format!("specified fs ({name}) does not exist")));
        }
    }
    let begin = match source.begin() {
        Ok(Some(begin)) => begin,
        Ok(None) => return Ok(Next::End),
        Err(ReceiveError::Truncated) => return Err(cannot("failed to read from stream".into())),
        Err(e) => return Err(cannot(e.to_string())),
    };
    let unknown = begin.features & !feature::KNOWN;
    if begin.features & feature::DEDUP != 0 {
        return Err(cannot(
            "stream has deprecated feature: dedup, try \
             'zstream redup [send in a file] | zfs recv [...]'"
                .into(),
        ));
    }
    if unknown != 0 || !matches!(begin.header_type, SUBSTREAM | HEADER_TYPE) {
        let features = begin.features;
        return Err(cannot(format!(
            "stream has unsupported feature, feature flags = {features:x} (unknown flags = \
             {unknown:x})"
        )));
    }
    job.holds |= begin.features & feature::HOLDS != 0;
    let name = String::from_utf8_lossy(&begin.to_name).into_owned();
    let Some((of, _)) = name.split_once('@') else {
        return Err(cannot("invalid stream (bad snapshot name)".into()));
    };
    if begin.header_type == HEADER_TYPE {
        return match within {
            None => receive(job, source, &begin, &name, ctx).map(|()| Next::Received),
            Some(_) => Err(cannot("invalid stream (a package in a package)".into())),
        };
    }
    let alone = Within { list: None, sent: of };
    let within = within.unwrap_or(&alone);
    if !name.starts_with(within.sent) {
        return Err(cannot("invalid stream (bad snapshot name)".into()));
    }
    let stream = Stream::new(job, &begin, &name, within)?;
    stream.receive(job, source, within, ctx).map(|()| Next::Received)
}

/// Receives all streams of a package whose head was read. `name` is the snapshot that was sent.
fn receive(
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
        Ok(Record::End { .. }) => {}
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
        follow(job, list, top, true, ctx)?;
    }
    while next(job, source, Some(&within), ctx)? == Next::Received {}
    if let Some(list) = &list {
        followed = follow(job, list, top, false, ctx)?;
    }
    match followed {
        true => Ok(()),
        false => Err(Stop::Said(1)),
    }
}
