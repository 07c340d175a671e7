//! Flags and projects in records of the intent log (`lr_attr_t`, `zfs_log_xvattr`, `zfs_replay_xvattr`).
//!
//! A record has a bit for each attribute that it sets (`XAT_*`), and the values of those that are flags under
//! the same bits. The project stands in the place of the virus scanner's stamp.

use super::context::Cx;
use super::flags::{APPEND_ONLY, IMMUTABLE, NO_DUMP, NO_UNLINK, PROJECT_INHERIT};
use super::node::NodeMut;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_format::zil::Xvattr;

/// Bits of an [`Xvattr`] (`XAT_*`) with the flags of a node (`zp_flags`) that they are.
const FLAGS: [(u32, u64); 14] = [
    (0x2, 0x8_0000_0000),  // archive
    (0x4, 0x4_0000_0000),  // system
    (0x8, 0x1_0000_0000),  // readonly
    (0x10, 0x2_0000_0000), // hidden
    (0x20, NO_UNLINK),
    (0x40, IMMUTABLE),
    (0x80, APPEND_ONLY),
    (0x100, NO_DUMP),
    (0x200, 0x100_0000_0000),     // opaque
    (0x400, 0x200_0000_0000),     // av_quarantined
    (0x800, 0x400_0000_0000),     // av_modified
    (0x8000, 0x1000_0000_0000),   // offline
    (0x1_0000, 0x2000_0000_0000), // sparse
    (0x2_0000, PROJECT_INHERIT),
];
/// `XAT_CREATETIME`.
const CREATE_TIME: u32 = 0x1;
const PROJECT: u32 = Xvattr::PROJECT;
/// Words of the bitmap in records (`XVA_MAPSIZE`).
const WORDS: usize = 3;

/// What a record says of a change that sets the settable flags to `flags` and the project to `projid`; `None`
/// if it sets neither.
pub(super) fn logged(flags: Option<u64>, projid: Option<u32>) -> Option<Xvattr> {
    let mut requested = if projid.is_some() { PROJECT } else { 0 };
    let mut values = 0;
    if let Some(flags) = flags {
        let settable = FLAGS.iter().filter(|(_, flag)| super::flags::SETTABLE & flag != 0);
        for (bit, flag) in settable {
            requested |= bit;
            values |= if flags & flag != 0 { u64::from(*bit) } else { 0 };
        }
    }
    let mut words = vec![0; WORDS];
    words[0] = requested;
    let mut scanstamp = [0; 32];
    scanstamp[..8].copy_from_slice(&u64::from(projid.unwrap_or(0)).to_le_bytes());
    (requested != 0).then_some(Xvattr {
        requested: words,
        flags: values,
        crtime: [0; 2],
        scanstamp,
    })
}

/// Sets the flags and the time of creation that a record says, and returns the project that it says.
///
/// Errors: [`Error::Unsupported`] for other attributes.
pub(super) fn apply(cx: &mut Cx<'_>, node: &mut NodeMut, attrs: &Xvattr) -> Result<Option<u32>> {
    let requested = attrs.requested.first().copied().unwrap_or(0);
    let known = FLAGS.iter().fold(PROJECT | CREATE_TIME, |all, (bit, _)| all | bit);
    if requested & !known != 0 || attrs.requested.iter().skip(1).any(|word| *word != 0) {
        let what = format!("attributes {requested:#x} in an intent log");
        return Err(Error::Unsupported(what));
    }
    let mut flags = node.flags(cx)?;
    for (bit, flag) in FLAGS.into_iter().filter(|(bit, _)| requested & bit != 0) {
        flags = if attrs.flags & u64::from(bit) != 0 { flags | flag } else { flags & !flag };
    }
    node.set(cx, ZplAttr::Flags, &[flags])?;
    if requested & CREATE_TIME != 0 {
        let [seconds, nanoseconds] = attrs.crtime;
        node.set_time(cx, ZplAttr::Crtime, (seconds as i64, nanoseconds as u32))?;
    }
    let project = attrs.scanstamp.first_chunk::<8>().map_or(0, |p| u64::from_le_bytes(*p));
    Ok(Some(project as u32).filter(|_| requested & PROJECT != 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settable_flags_and_projects_are_logged() {
        assert_eq!(logged(None, None), None);
        let attrs = logged(Some(IMMUTABLE | PROJECT_INHERIT), None).unwrap();
        assert_eq!(attrs.requested, [0x2_01e0, 0, 0]);
        assert_eq!(attrs.flags, 0x2_0040);
        let attrs = logged(None, Some(77)).unwrap();
        assert_eq!((attrs.requested[0], attrs.flags, attrs.scanstamp[0]), (PROJECT, 0, 77));
    }
}
