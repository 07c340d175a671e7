//! The first request, by which kernel and server agree.
//!
//! The kernel says what version it speaks and what it offers; the server chooses. Both then speak the
//! older version of the two. Structures have the size they have here since 7.23 (Linux 3.15); an older
//! kernel is refused. The flags that the kernel offers have 64 bits, the upper half of which it takes
//! from and reads in `flags2` if `FUSE_INIT_EXT` is among the lower ones.

use super::filesystem::Filesystem;
use super::reply::Reply;
use super::request::{Operation, split};
use super::{Buffer, MAX_WRITE, receive};
use fuse_abi::linux::{
    FUSE_ASYNC_READ, FUSE_BIG_WRITES, FUSE_INIT_EXT, FUSE_KERNEL_MINOR_VERSION,
    FUSE_KERNEL_VERSION, FUSE_MAX_PAGES, fuse_init_in, fuse_init_out,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Oldest minor version that is spoken.
const OLDEST_MINOR: u32 = 23;
/// Requests of read-ahead that the kernel may have under way.
const MAX_BACKGROUND: u16 = 64;
/// The same, from which on it holds back the programs that cause more.
const CONGESTED: u16 = MAX_BACKGROUND / 4 * 3;
/// Bytes that the kernel may read ahead.
const MAX_READAHEAD: u32 = 4 << 20;
/// What every server here wants.
const ALWAYS: u32 = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES;

/// Agrees with the kernel on how to speak.
///
/// # Errors
/// The kernel is too old, the mount was taken away, or the descriptor does not belong to a mount.
pub(super) fn agree<F: Filesystem>(
    fs: &F,
    device: &Arc<OwnedFd>,
    buffer: &mut Buffer,
) -> io::Result<()> {
    loop {
        let Some(bytes) = receive(device, buffer.room()).map_err(taken_away)? else { continue };
        let Some((header, body)) = split(bytes) else { continue };
        let reply = Reply::new(device, header.unique);
        match Operation::decode(&header, body) {
            // The kernel asks again, as the version here has it.
            Ok(Operation::Init(init)) if init.major > FUSE_KERNEL_VERSION => {
                reply.init(&version());
            }
            Ok(Operation::Init(init)) if is_known(&init) => {
                let out = answer(&init, fs.wanted());
                fs.agreed(init.minor, both(out.flags, out.flags2));
                reply.init(&out);
                return Ok(());
            }
            Ok(Operation::Init(fuse_init_in { major, minor, .. })) => {
                reply.error(Errno::PROTO);
                return Err(io::Error::other(format!(
                    "the kernel speaks version {major}.{minor}; 7.{OLDEST_MINOR} is needed (Linux 3.15)"
                )));
            }
            _ => reply.error(Errno::IO),
        }
    }
}

fn taken_away(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("the mount was taken away"),
        _ => e,
    }
}

fn is_known(init: &fuse_init_in) -> bool {
    init.major == FUSE_KERNEL_VERSION && init.minor >= OLDEST_MINOR
}

fn version() -> fuse_init_out {
    let (major, minor) = (FUSE_KERNEL_VERSION, FUSE_KERNEL_MINOR_VERSION);
    fuse_init_out { major, minor, ..fuse_init_out::default() }
}

/// Flags as one number.
fn both(flags: u32, flags2: u32) -> u64 {
    u64::from(flags) | u64::from(flags2) << 32
}

/// What is chosen of what the kernel offers.
fn answer(init: &fuse_init_in, wanted: u64) -> fuse_init_out {
    let extended = init.flags & FUSE_INIT_EXT;
    let offered = both(init.flags, if extended != 0 { init.flags2 } else { 0 });
    let wanted = wanted | u64::from(ALWAYS);
    // Each is an improvement that an older kernel may lack.
    if wanted & !offered != 0 {
        tracing::debug!("not supported by the kernel: flags {:#x}", wanted & !offered);
    }
    let chosen = wanted & offered | u64::from(extended);
    let pages = MAX_WRITE.div_ceil(rustix::param::page_size());
    fuse_init_out {
        max_readahead: init.max_readahead.min(MAX_READAHEAD),
        flags: chosen as u32,
        flags2: (chosen >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTED,
        max_write: MAX_WRITE as u32,
        // Nanoseconds count.
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        ..version()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_abi::linux::{FUSE_ATOMIC_O_TRUNC, FUSE_DONT_MASK, FUSE_HAS_RESEND, FUSE_PASSTHROUGH};

    fn init(minor: u32, flags: u32, flags2: u64) -> fuse_init_in {
        let flags2 = (flags2 >> 32) as u32;
        let max_readahead = 128 << 10;
        fuse_init_in { major: 7, minor, max_readahead, flags, flags2, ..fuse_init_in::default() }
    }

    #[test]
    fn of_what_is_wanted_what_is_offered_is_chosen() {
        let out = answer(&init(31, FUSE_DONT_MASK | FUSE_BIG_WRITES | 1 << 9, 0), 0x48);
        assert_eq!(0x48, FUSE_DONT_MASK | FUSE_ATOMIC_O_TRUNC);
        assert_eq!((out.flags, out.flags2), (FUSE_DONT_MASK | FUSE_BIG_WRITES, 0));
        assert_eq!((out.major, out.minor, out.max_readahead), (7, 40, 128 << 10));
        assert_eq!((out.max_background, out.congestion_threshold), (64, 48));
        let pages = u32::from(out.max_pages) * rustix::param::page_size() as u32;
        assert_eq!((out.max_write, pages), (1 << 20, 1 << 20));
    }

    #[test]
    fn the_upper_flags_count_if_the_kernel_says_so() {
        let wanted = FUSE_HAS_RESEND;
        let offered = FUSE_HAS_RESEND | FUSE_PASSTHROUGH;
        let out = answer(&init(40, FUSE_INIT_EXT, offered), wanted);
        assert_eq!((out.flags, out.flags2), (FUSE_INIT_EXT, (FUSE_HAS_RESEND >> 32) as u32));
        let out = answer(&init(40, 0, offered), wanted);
        assert_eq!((out.flags, out.flags2), (0, 0));
    }

    #[test]
    fn old_kernels_are_refused() {
        assert!(is_known(&init(23, 0, 0)) && is_known(&init(45, 0, 0)));
        assert!(!is_known(&init(22, 0, 0)));
        assert!(!is_known(&fuse_init_in { major: 6, ..init(40, 0, 0) }));
    }
}
