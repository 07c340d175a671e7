//! What the input has: one stream, or a package of them (`zfs_receive_package`).

use super::follow::follow;
use super::names::destination;
use super::one::Stream;
use super::{Job, Within, cannot};
use crate::error::{Error, ErrorKind, Reason, Result};
use crate::kinds::family;
use cenote_engine::change::ChangeError;
use cenote_engine::change::policy::Operation;
use cenote_engine::change::props::is_key_location;
use cenote_engine::change::receive::{ReceiveError, Source};
use cenote_format::stream::package::{HEADER_TYPE, Package};
use cenote_format::stream::{Begin, Record, SUBSTREAM, feature};
use std::sync::Arc;

/// The longest list that a stream may have, in bytes, whose caller was not found to be permitted to receive it.
pub(super) const LONGEST_LIST: u64 = 1 << 20;

/// Whether there was a stream, or the end of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Received,
    End,
}

/// Receives the next stream of the input, or all streams of the package that begins there.
pub(super) fn next(
    job: &mut Job<'_, '_>,
    source: &mut Source<'_>,
    within: Option<&Within<'_>>,
) -> Result<Next> {
    let invalid = |why: &str| Err(cannot(ErrorKind::Stream, why));
    if job.how.prefix {
        let name = &job.target;
        let there = job.session.head(name).map_err(|e| cannot(e.kind(), e))?;
        if there.is_none() && !name.contains('@') {
            let why = format_args!("specified fs ({name}) does not exist");
            return Err(cannot(ErrorKind::NotFound, why));
        }
    }
    let begin = match source.begin() {
        Ok(Some(begin)) => begin,
        Ok(None) => return Ok(Next::End),
        Err(ReceiveError::Truncated) => return invalid("failed to read from stream"),
        Err(e) => return Err(cannot(e.kind(), e)),
    };
    let unknown = begin.features & !feature::KNOWN;
    if begin.features & feature::DEDUP != 0 {
        return Err(cannot(
            ErrorKind::Unsupported,
            "stream has deprecated feature: dedup, try \
             'zstream redup [send in a file] | zfs recv [...]'",
        ));
    }
    if unknown != 0 || !matches!(begin.header_type, SUBSTREAM | HEADER_TYPE) {
        let features = begin.features;
        let why = format_args!(
            "stream has unsupported feature, feature flags = {features:x} (unknown flags = \
             {unknown:x})"
        );
        return Err(cannot(ErrorKind::Unsupported, why));
    }
    job.holds |= begin.features & feature::HOLDS != 0;
    let name = String::from_utf8_lossy(&begin.to_name).into_owned();
    let Some((of, _)) = name.split_once('@') else {
        return invalid("invalid stream (bad snapshot name)");
    };
    if begin.header_type == HEADER_TYPE {
        return match within {
            None => receive(job, source, &begin, &name).map(|()| Next::Received),
            Some(_) => invalid("invalid stream (a package in a package)"),
        };
    }
    let alone = Within { list: None, sent: of, alone: true };
    let within = within.unwrap_or(&alone);
    if !name.starts_with(within.sent) {
        return invalid("invalid stream (bad snapshot name)");
    }
    let stream = Stream::new(job, &begin, &name, within)?;
    stream.receive(job, source, within).map(|()| Next::Received)
}

/// The longest list that a package may have, in bytes; `None`: as long as the format lets it be. It counts whether the
/// caller may receive anything where the package is to go: at the target, or at what is there above it.
fn longest_list(job: &Job<'_, '_>) -> Option<u64> {
    let mut name = job.target.split('@').next().unwrap_or_default();
    loop {
        let operation = Operation::Receive { name, force: false, origin: None };
        match (job.session.permit(&operation), name.rsplit_once('/')) {
            (Ok(()), _) => return None,
            (Err(ChangeError::NotFound), Some((above, _))) => name = above,
            _ => return Some(LONGEST_LIST),
        }
    }
}

/// Receives all streams of a package whose head was read. `name` is the snapshot that was sent.
fn receive(
    job: &mut Job<'_, '_>,
    source: &mut Source<'_>,
    begin: &Begin,
    name: &str,
) -> Result<()> {
    source.limit_lists(longest_list(job));
    let list = source.package(begin).map_err(|e| cannot(e.kind(), e))?;
    source.limit_lists(Some(LONGEST_LIST).filter(|_| job.session.is_delegated()));
    let recursive = list.as_ref().is_none_or(|list| list.recursive);
    if recursive && job.target.contains('@') {
        let why = "cannot specify snapshot name for multi-snapshot stream";
        return Err(cannot(ErrorKind::Invalid, why));
    }
    match source.record() {
        Ok(Record::End { .. }) => {}
        Ok(_) => return Err(cannot(ErrorKind::Stream, "invalid backup stream")),
        Err(ReceiveError::Checksum) => {
            return Err(cannot(ErrorKind::Stream, "incorrect header checksum"));
        }
        Err(e) => return Err(cannot(e.kind(), e)),
    }
    let sent = name.split('@').next().unwrap_or_default();
    let within = Within { list: list.as_ref(), sent, alone: false };
    let top = match job.how.prefix {
        true => destination(job.how, &job.target, (sent, name), !recursive),
        false => Ok(job.target.clone()),
    };
    let top = top.map_err(|why| cannot(ErrorKind::Invalid, why))?;
    let top = top.split('@').next().unwrap_or_default();
    let mut followed = true;
    // What heals changes nothing else.
    let changes = list.as_ref().filter(|_| !job.how.heal);
    if let Some(list) = changes {
        // What is not there yet is not followed.
        follow(job, list, top, true)?;
    }
    while next(job, source, Some(&within))? == Next::Received {}
    followed &= !job.not_healed;
    if let Some(list) = changes {
        followed &= follow(job, list, top, false)?;
    }
    if let Some(list) = changes.filter(|list| list.raw && !job.how.dry_run) {
        followed &= place_keys(job, list, top)?;
    }
    match followed {
        true => Ok(()),
        false => Err(Error::told()),
    }
}

/// Encrypted datasets of a raw package are encryption roots here as they are at the sender (`recv_fix_encryption_hierarchy`).
/// Each came as one. Returns whether all could be done.
fn place_keys(job: &mut Job<'_, '_>, list: &Package, top: &str) -> Result<bool> {
    let exclusion = job.session.exclusion();
    let _entered = exclusion.enter();
    let failed = |e| cannot(ErrorKind::Pool, e);
    let pool = job.session.pool();
    let dsl = pool.dsl();
    let Some(head) = job.session.head(top).map_err(failed)? else { return Ok(true) };
    let mut all = true;
    for dataset in family(dsl, &head).map_err(failed)? {
        let snapshots = dsl.snapshots(&dataset).map_err(failed)?;
        let sent = snapshots.iter().find_map(|s| list.sent(s.ds.guid));
        let key = dsl.crypto_key(&dataset).map_err(failed)?;
        let (Some((sent, _)), Some(key)) = (sent, key) else { continue };
        let (name, own) = (&dataset.name, sent.encryption_root);
        let is_clone = dsl.origin(&dataset).map_err(failed)?.is_some();
        let is_root = key.root == dataset.dir_obj;
        let location = sent.props.as_ref().and_then(|props| props.str("keylocation"));
        // Where a key cannot be, it is asked for.
        let location = location.filter(|l| is_key_location(l));
        let wrong = match own {
            true => {
                let here = dsl.get(&dataset, "keylocation").map_err(failed)?;
                let other = location.is_some_and(|l| here.is_none_or(|here| here.exact != l));
                !is_clone && (!is_root || other)
            }
            false => is_root && name != top,
        };
        if !wrong {
            continue;
        }
        let changes = Arc::clone(&job.changes);
        if let Err(e) = changes.place_key(name, own, location) {
            let what = format_args!("cannot receive: keys of '{name}'");
            job.session.failed(Error::doing(what, e))?;
            all = false;
        }
    }
    Ok(all)
}
