//! Hostile blocks with right checksums, for tests.
//!
//! Flipping bytes of an image mostly ends at the first checksum. An attacker that makes an image
//! computes the checksums anew, so every decoder above this floor must stand any bytes at all.
//! With the feature `tamper` a test installs a function that sees each block after it was verified
//! and unpacked, and may change it. The feature is never on in a program that is shipped.

use cenote_format::abd::Abd;
use parking_lot::RwLock;

use crate::error::Bookmark;

/// Changes a block in place; says whether it did.
pub type Tamper = Box<dyn Fn(Bookmark, &mut [u8]) -> bool + Send + Sync>;

static INSTALLED: RwLock<Option<Tamper>> = RwLock::new(None);

/// Installs `tamper` for every store of the process; `None` takes it away.
pub fn install(tamper: Option<Tamper>) {
    *INSTALLED.write() = tamper;
}

pub(crate) fn apply(at: Bookmark, data: Abd) -> Abd {
    let installed = INSTALLED.read();
    let Some(tamper) = installed.as_ref() else { return data };
    let mut bytes = data.bytes().into_owned();
    if tamper(at, &mut bytes) { Abd::from_vec(bytes) } else { data }
}
