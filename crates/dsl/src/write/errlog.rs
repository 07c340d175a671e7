//! The pool's error logs in the MOS, written (`spa_errlog_sync`): which blocks could not be read. `cenote-pool`'s
//! `errlog` draws their two forms and reads them.
//!
//! Without the feature `head_errlog` a block is known by its dataset; with it by the file system that the dataset
//! belongs to (its *head*), and by its birth, so that snapshots and clones that share it are found.
//!
//! Invariant: the entries of the object directory lead to the logs, 0 where a log is empty; with the feature each entry
//! of a log leads to a ZAP that nothing else leads to.

use super::{DslWriteError, Result, Tx, directory, features};
use cenote_dmu::{Error, ObjectSet};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::Value;
use cenote_store::{Bookmark, LoggedError, Rotation, TakenErrors};
use std::sync::Arc;

const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// The log of the last scrub, with what was found since (`DMU_POOL_ERRLOG_LAST`).
const LAST: &str = "errlog_last";
/// The log of the scrub under way (`DMU_POOL_ERRLOG_SCRUB`).
const SCRUB: &str = "errlog_scrub";
/// The level of the block that an object set begins with (`ZB_ROOT_LEVEL`).
const ROOT_LEVEL: i64 = -1;
/// A name of the damaged object, which is not known when it is logged.
const NO_NAME: Value<'static> = Value::U8(&[0]);

/// Whether blocks are known by the file system that they belong to.
///
/// # Errors
/// The MOS cannot be read.
pub fn is_by_head(tx: &mut Tx<'_>) -> Result<bool> {
    features::is_enabled(tx, HEAD_ERRLOG)
}

/// Writes what a group does to the logs (`spa_errlog_sync`).
///
/// # Errors
/// The logs cannot be read or changed.
pub fn sync(tx: &mut Tx<'_>, errors: &TakenErrors) -> Result<()> {
    let by_head = is_by_head(tx)?;
    let mut last = directory::entry(tx, LAST)?.unwrap_or(0);
    let mut scrub = directory::entry(tx, SCRUB)?.unwrap_or(0);
    for log in [last, scrub] {
        remove(tx, log, by_head, &errors.healed)?;
    }
    add(tx, &mut last, by_head, &errors.last)?;
    match errors.rotate {
        Some(Rotation::Joins) if last != 0 => {
            join(tx, last, scrub, by_head)?;
            delete(tx, std::mem::take(&mut scrub), by_head)?;
        }
        Some(_) => {
            delete(tx, last, by_head)?;
            last = std::mem::take(&mut scrub);
        }
        None => {}
    }
    let log = if errors.rotate.is_some() { &mut last } else { &mut scrub };
    add(tx, log, by_head, &errors.scrub)?;
    directory::set_entry(tx, LAST, last)?;
    directory::set_entry(tx, SCRUB, scrub)
}

/// Logs that cannot be read any more are given up: the next errors get new ones.
///
/// # Errors
/// The object directory cannot be changed.
pub fn begin_anew(tx: &mut Tx<'_>) -> Result<()> {
    for name in [LAST, SCRUB] {
        if let Some(log) = directory::entry(tx, name)?.filter(|log| *log != 0) {
            tx.unless_unreadable("an error log is leaked", |tx| Ok(tx.mos.free(log)?))?;
            directory::set_entry(tx, name, 0)?;
        }
    }
    Ok(())
}

/// Adds what is in a log to another one.
fn join(tx: &mut Tx<'_>, to: u64, from: u64, by_head: bool) -> Result<()> {
    for entry in tx.zap_entries(from)? {
        if !by_head {
            tx.zap_put(to, &crate::name_of(&entry), &NO_NAME)?;
        } else if let (Some(head), Some(errors)) = (crate::number_in_name(&entry), entry.u64()) {
            let zap = zap_of_head(tx, to, head)?;
            for error in tx.zap_entries(errors)? {
                tx.zap_put(zap, &crate::name_of(&error), &NO_NAME)?;
            }
        }
    }
    Ok(())
}

/// The key of a block with its dataset (`bookmark_to_name`). Levels below 0 are 64 bits there.
fn key(at: &Bookmark) -> String {
    format!("{:x}:{:x}:{:x}:{:x}", at.objset, at.object, at.level, at.blkid)
}

/// The key of a block in the ZAP of its head (`errphys_to_name`).
fn key_in_head((at, birth): &LoggedError) -> String {
    format!("{:x}:{:x}:{:x}:{birth:x}", at.object, at.level, at.blkid)
}

/// The head of the file system that a dataset belongs to; itself, where that cannot be told (`get_head_ds`).
fn head_of(tx: &mut Tx<'_>, objset: u64) -> u64 {
    let dir = |tx: &mut Tx<'_>| tx.dataset(objset).and_then(|ds| tx.dir(ds.dir));
    match objset {
        0 => 0,
        _ => dir(tx).map_or(objset, |dir| dir.head_dataset),
    }
}

/// The ZAP of a head in a log, which is made if it is not there.
fn zap_of_head(tx: &mut Tx<'_>, log: u64, head: u64) -> Result<u64> {
    let name = format!("{head:x}");
    if let Some(zap) = tx.zap_number(log, &name)? {
        return Ok(zap);
    }
    let zap = tx.plain_zap(DmuType::ERROR_LOG)?;
    tx.zap_set(log, &name, zap)?;
    Ok(zap)
}

/// Adds blocks to a log, which is made if it is not there (`sync_error_list`).
fn add(tx: &mut Tx<'_>, log: &mut u64, by_head: bool, errors: &[LoggedError]) -> Result<()> {
    if !errors.is_empty() && *log == 0 {
        *log = tx.plain_zap(DmuType::ERROR_LOG)?;
    }
    for error in errors {
        if by_head {
            let head = head_of(tx, error.0.objset);
            let zap = zap_of_head(tx, *log, head)?;
            tx.zap_put(zap, &key_in_head(error), &NO_NAME)?;
        } else {
            tx.zap_put(*log, &key(&error.0), &NO_NAME)?;
        }
    }
    Ok(())
}

/// Takes blocks out of a log (`spa_remove_healed_errors`).
fn remove(tx: &mut Tx<'_>, log: u64, by_head: bool, healed: &[LoggedError]) -> Result<()> {
    if log == 0 || healed.is_empty() {
        return Ok(());
    }
    for error in healed {
        if !by_head {
            tx.zap_remove(log, &key(&error.0))?;
            continue;
        }
        // Another head may have a block in the same place that was born in the same group.
        let head = format!("{:x}", head_of(tx, error.0.objset));
        let Some(zap) = tx.zap_number(log, &head)? else { continue };
        tx.zap_remove(zap, &key_in_head(error))?;
        if tx.zap_is_empty(zap)? {
            tx.zap_remove(log, &head)?;
            tx.mos.free(zap)?;
        }
    }
    Ok(())
}

/// The ZAPs of all heads in a log.
fn heads(tx: &mut Tx<'_>, log: u64) -> Result<Vec<u64>> {
    Ok(tx.zap_entries(log)?.iter().filter_map(|e| e.u64()).collect())
}

/// Frees a log (`delete_errlog`).
fn delete(tx: &mut Tx<'_>, log: u64, by_head: bool) -> Result<()> {
    if log == 0 {
        return Ok(());
    }
    if by_head {
        for zap in heads(tx, log)? {
            tx.mos.free(zap)?;
        }
    }
    Ok(tx.mos.free(log)?)
}

/// Forgets the errors of a head that is destroyed (`spa_delete_dataset_errlog`).
pub(super) fn forget(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    if !is_by_head(tx)? {
        return Ok(());
    }
    let name = format!("{ds_obj:x}");
    for log in [LAST, SCRUB] {
        let Some(log) = directory::entry(tx, log)?.filter(|log| *log != 0) else { continue };
        if let Some(errors) = tx.zap_number(log, &name)? {
            tx.zap_remove(log, &name)?;
            tx.mos.free(errors)?;
        }
    }
    Ok(())
}

/// The clone `head` was promoted: the errors of snapshots that it took over from `old`, born before `origin_txg`, are
/// its own now (`spa_swap_errlog`).
pub(super) fn promoted(tx: &mut Tx<'_>, head: u64, old: u64, origin_txg: u64) -> Result<()> {
    if !is_by_head(tx)? {
        return Ok(());
    }
    for log in [LAST, SCRUB] {
        let Some(log) = directory::entry(tx, log)?.filter(|log| *log != 0) else { continue };
        let Some(from) = tx.zap_number(log, &format!("{old:x}"))? else { continue };
        for entry in tx.zap_entries(from)? {
            let name = crate::name_of(&entry);
            let birth = name.rsplit(':').next().and_then(|b| u64::from_str_radix(b, 16).ok());
            if birth.is_some_and(|birth| birth < origin_txg) {
                let to = zap_of_head(tx, log, head)?;
                tx.zap_put(to, &name, &NO_NAME)?;
                tx.zap_remove(from, &name)?;
            }
        }
    }
    Ok(())
}

/// The feature `head_errlog` was enabled: logs get its form (`spa_upgrade_errlog`). What is not there any more is left
/// out. What cannot be looked up now has the birth 0: it stays until a scrub of all has ended.
///
/// # Errors
/// The logs cannot be changed.
pub fn upgrade(tx: &mut Tx<'_>) -> Result<()> {
    for name in [LAST, SCRUB] {
        let Some(log) = directory::entry(tx, name)?.filter(|log| *log != 0) else { continue };
        let entries = tx.zap_entries(log)?;
        tx.mos.free(log)?;
        let mut errors = Vec::new();
        for at in entries.iter().filter_map(|e| parse(&e.name)) {
            errors.extend(birth_of(tx, &at)?.map(|birth| (at, birth)));
        }
        let mut log = tx.plain_zap(DmuType::ERROR_LOG)?;
        add(tx, &mut log, true, &errors)?;
        directory::set_entry(tx, name, log)?;
    }
    Ok(())
}

/// The block that a key without a birth names (`name_to_bookmark`).
fn parse(name: &[u8]) -> Option<Bookmark> {
    let text = std::str::from_utf8(name).ok()?;
    let mut fields = text.split(':').map(|f| u64::from_str_radix(f, 16).ok());
    let (objset, object) = (fields.next()??, fields.next()??);
    let (level, blkid) = (fields.next()??, fields.next()??);
    let level = i64::from(level as u32 as i32);
    fields.next().is_none().then_some(Bookmark { objset, object, level, blkid })
}

/// When the block at that place was born (`find_birth_txg`): 0 if that cannot be told, `None` if nothing is there any more.
fn birth_of(tx: &mut Tx<'_>, at: &Bookmark) -> Result<Option<u64>> {
    let mos = tx.mos.synced().clone();
    let root = match at.objset {
        0 => None,
        objset => match tx.dataset(objset) {
            Ok(ds) => Some(ds.bp),
            Err(e @ DslWriteError::Fatal(_)) => return Err(e),
            Err(_) if matches!(mos.object(objset), Err(Error::NoObject { .. })) => return Ok(None),
            Err(_) => return Ok(Some(0)),
        },
    };
    let found = match (root, u8::try_from(at.level)) {
        (Some(root), Err(_)) if at.level == ROOT_LEVEL => Ok(root),
        (_, Err(_)) => return Ok(Some(0)),
        (None, Ok(level)) => block(&mos, at, level),
        (Some(root), Ok(level)) => ObjectSet::open(mos.store().clone(), at.objset, root)
            .and_then(|contents| block(&contents, at, level)),
    };
    Ok(match found {
        Ok(bp) => (!bp.is_hole()).then(|| bp.physical_birth()),
        Err(Error::NoObject { .. }) => None,
        Err(why) => {
            tracing::warn!(
                ?at,
                "when a block that is in the error log was born is not known: {why}"
            );
            Some(0)
        }
    })
}

fn block(contents: &Arc<ObjectSet>, at: &Bookmark, level: u8) -> cenote_dmu::Result<BlockPointer> {
    contents.object(at.object)?.block_pointer(level, at.blkid)
}
