//! Descriptors that are left: those that a process may have open are shared by mounts, the threads that serve them, devices and
//! commands. What could take all of them leaves some for the others: without any no command can be answered, not
//! even one that would give some back.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::AsRawFd;

/// Descriptors that mounts leave for commands, at most.
const FOR_COMMANDS: u64 = 32;

/// Whether a process that may have `limit` descriptors (`None`: any number) has `reserve` left, or a quarter of all, if
/// `newest` is the number of the last one: numbers are given out from the lowest.
pub(crate) fn has_room_after(newest: u64, limit: Option<u64>, reserve: u64) -> bool {
    limit.is_none_or(|limit| newest < limit.saturating_sub(reserve.min(limit / 4)))
}

/// Whether this process has `reserve` descriptors left, or a quarter of all, if `newest` is the last one.
///
/// # Errors
/// `EMFILE`: it has not.
pub(crate) fn leave(newest: &impl AsRawFd, reserve: u64) -> Result<(), Errno> {
    let newest = u64::try_from(newest.as_raw_fd()).map_err(|_| Errno::BADF)?;
    match has_room_after(newest, getrlimit(Resource::Nofile).current, reserve) {
        true => Ok(()),
        false => Err(Errno::MFILE),
    }
}

/// Whether there are descriptors for a further mount and for commands.
///
/// # Errors
/// `EMFILE`: there are not.
pub(crate) fn for_mount() -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    leave(&rustix::fs::open("/dev/null", flags, Mode::empty())?, FOR_COMMANDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_left_for_others() {
        assert!(has_room_after(47, Some(64), 64) && !has_room_after(48, Some(64), 64));
        assert!(has_room_after(959, Some(1024), 64) && !has_room_after(960, Some(1024), 64));
        assert!(has_room_after(991, Some(1024), 32) && !has_room_after(992, Some(1024), 32));
        assert!(has_room_after(1 << 20, None, 64));
        assert!(for_mount().is_ok());
    }
}
