//! What a snapshot is called at the receiver, and what its stream starts from.

use super::Receive;
use cenote_dmu::Error;
use cenote_dsl::{Dataset, Dsl};
use std::collections::HashSet;

/// Datasets that a search looks at.
const MAX_DATASETS: usize = 1 << 20;

/// The full name of the snapshot. `sent` is the dataset that was sent, `name` the snapshot that the stream is of, both
/// at the sender; `single`: the stream is no part of a package of many datasets.
///
/// The error is what comes after `cannot receive: `.
pub(super) fn destination(
    how: &Receive,
    target: &str,
    (sent, name): (&str, &str),
    single: bool,
) -> Result<String, String> {
    let with_snapshot = target.contains('@');
    if with_snapshot && how.prefix {
        let letter = if how.tail { 'e' } else { 'd' };
        return Err(format!("invalid argument - snapshot not allowed with -{letter}"));
    }
    if with_snapshot && !single {
        return Err("cannot specify snapshot name for multi-snapshot stream".into());
    }
    let below = |len: usize| name.get(len..).unwrap_or_default();
    let rest = match () {
        () if how.tail => match sent.rfind('/') {
            Some(slash) => below(slash).to_string(),
            None => format!("/{name}"),
        },
        () if how.prefix => {
            let at = name.find('/').or_else(|| name.find('@')).unwrap_or(name.len());
            below(at).to_string()
        }
        () if with_snapshot => String::new(),
        () => below(sent.len()).to_string(),
    };
    Ok(format!("{target}{rest}"))
}

/// The dataset or snapshot with this guid that is nearest to `near` (`guid_to_name`).
pub(super) fn of_guid(dsl: &Dsl, near: &str, guid: u64) -> Result<Option<String>, Error> {
    if guid == 0 {
        return Ok(None);
    }
    let (mut seen, mut at) = (HashSet::new(), near.split('@').next().unwrap_or_default());
    loop {
        if let Some(dataset) = dsl.find(at)?
            && let Some(found) = below(dsl, dataset, guid, &mut seen)?
        {
            return Ok(Some(found));
        }
        match at.rsplit_once('/') {
            Some((above, _)) => at = above,
            None => return Ok(None),
        }
    }
}

/// The dataset or snapshot with this guid at or below a dataset that was not searched yet.
fn below(
    dsl: &Dsl,
    dataset: Dataset,
    guid: u64,
    seen: &mut HashSet<u64>,
) -> Result<Option<String>, Error> {
    let mut waiting = vec![dataset];
    while let Some(dataset) = waiting.pop() {
        if seen.len() > MAX_DATASETS || !seen.insert(dataset.ds_obj) {
            continue;
        }
        if dataset.ds.guid == guid {
            return Ok(Some(dataset.name));
        }
        let snapshots = dsl.snapshots(&dataset)?;
        if let Some(found) = snapshots.into_iter().find(|s| s.ds.guid == guid) {
            return Ok(Some(found.name));
        }
        waiting.extend(dsl.children(&dataset)?);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_options() {
        let name = |target: &str, letters: &str, sent: &str, stream: &str| {
            let has = |letter| letters.contains(letter);
            let how =
                Receive { prefix: has('d') || has('e'), tail: has('e'), ..Receive::default() };
            destination(&how, target, (sent, stream), !has('R')).unwrap_or_else(|e| e)
        };
        assert_eq!(name("tank/x@y", "", "a/b", "a/b@s"), "tank/x@y");
        assert_eq!(name("tank/x", "", "a/b", "a/b@s"), "tank/x@s");
        assert_eq!(name("tank/x", "R", "a/b", "a/b/c@s"), "tank/x/c@s");
        assert_eq!(name("tank/x", "d", "a/b", "a/b/c@s"), "tank/x/b/c@s");
        assert_eq!(name("tank/x", "d", "a", "a@s"), "tank/x@s");
        assert_eq!(name("tank/x", "e", "a/b/c", "a/b/c/d@s"), "tank/x/c/d@s");
        assert_eq!(name("tank/x", "e", "a", "a@s"), "tank/x/a@s");
        assert!(name("tank/x@y", "d", "a", "a@s").contains("not allowed with -d"));
        assert!(name("tank/x@y", "R", "a", "a@s").contains("multi-snapshot"));
    }
}
