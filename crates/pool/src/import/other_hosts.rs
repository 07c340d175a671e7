//! Whether another host has the pool that is about to be imported (`spa_activity_check`).
//!
//! The label says which host had the pool last, and whether that one let go of it. That is heeded unless the import is by force.
//! With `multihost=on` the host that has it writes all the time: then the pool is watched for as long as the rules of [`host`] say, and
//! claimed, and force helps nothing. A claim is asked for once more before anything is written.

use super::uberblocks;
use crate::config;
use crate::devices::DeviceSet;
use crate::discover::Candidate;
use crate::error::{ImportError, Target};
use crate::host;
use cenote_format::label::Uberblock;

/// Refuses a pool that another host had last and did not export, unless by force.
pub(super) fn check_host(
    c: &Candidate,
    ub: &Uberblock,
    hostid: u32,
    force: bool,
) -> Result<(), ImportError> {
    let theirs = config::number(&c.config, "hostid");
    if force || c.state == config::STATE_EXPORTED || theirs == u64::from(hostid) {
        return Ok(());
    }
    Err(ImportError::OtherHost {
        name: c.name.clone(),
        hostname: c.config.str("hostname").unwrap_or("<unknown>").to_string(),
        hostid: theirs,
        timestamp: ub.timestamp,
    })
}

/// Whether OpenZFS would watch the pool for activity before it imports it.
pub fn activity_check_required(c: &Candidate, ub: &Uberblock, hostid: u32) -> bool {
    let same_host = hostid != 0 && config::number(&c.config, "hostid") == u64::from(hostid);
    host::multihost(ub)
        && !(same_host && c.state == config::STATE_EXPORTED)
        && c.state != config::STATE_DESTROYED
}

/// Watches whether another host uses the pool (`spa_activity_check`).
pub(super) fn check_activity(
    c: &Candidate,
    devices: &DeviceSet,
    ub: &Uberblock,
    hostid: u32,
) -> Result<(), ImportError> {
    if !activity_check_required(c, ub, hostid) {
        return Ok(());
    }
    if hostid == 0 {
        return Err(ImportError::NoHostid(c.name.clone()));
    }
    let mut newest = || devices.newest_uberblock();
    let sleep = &mut std::thread::sleep;
    let is_idle = host::stays_quiet(ub, &mut newest, sleep)
        && (!devices.writable()
            || devices.claim(ub, |claim| host::has_claim(claim, &mut newest, sleep)));
    if is_idle { Ok(()) } else { Err(in_use(c)) }
}

/// Whether no other host can have taken the pool since this one claimed it. To be asked before anything is written.
///
/// # Errors
/// One may have.
pub fn keeps_claim(c: &Candidate, devices: &DeviceSet) -> Result<(), ImportError> {
    if devices.keeps_claim() { Ok(()) } else { Err(in_use(c)) }
}

/// Whether no other host has begun to use the pool since it was read, however long ago; this host claims it anew.
///
/// # Errors
/// Another host uses it, or has used it.
pub fn still_ours(c: &Candidate, devices: &DeviceSet, hostid: u32) -> Result<(), ImportError> {
    // Its heartbeats are no activity of others.
    devices.take_claim().map_err(|_| in_use(c))?;
    let newest = |all: &[Uberblock]| all.iter().map(|ub| ub.txg).max();
    let unreadable = || ImportError::Damaged {
        target: Target { name: c.name.clone(), new_name: None },
        why: "no uberblock can be read any more".into(),
        recovery: None,
    };
    let now = devices.newest_uberblock().ok_or_else(unreadable)?;
    if newest(&uberblocks(c)) != Some(now.txg) {
        return Err(in_use(c));
    }
    check_activity(c, devices, &now, hostid)
}

/// The refusal of a pool that another host writes to.
pub(super) fn in_use(c: &Candidate) -> ImportError {
    ImportError::Active {
        name: c.name.clone(),
        hostname: c.config.str("hostname").unwrap_or("<unknown>").to_string(),
        hostid: config::number(&c.config, "hostid"),
    }
}
