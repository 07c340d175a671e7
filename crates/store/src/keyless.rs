//! Encrypted blocks without their keys (`ZIO_FLAG_RAW_ENCRYPT`).
//!
//! Two kinds of encrypted blocks keep in plain bytes what leads to other blocks. Of a block of dnodes only the bonus
//! buffers are encrypted, and it is not compressed. Of an intent log block only the contents of records are: the chain,
//! the heads of records and the pointers in them are plain. So a walk that follows pointers, and nothing else, needs no
//! key. Such a walk says so with [`Store::without_keys`]. For all other code an encrypted block stays an error
//! ([`BlockError::Encrypted`](crate::BlockError::Encrypted)) until its key is loaded ([`keys`](crate::keys)), as the encrypted bytes in it mean nothing.
//!
//! A walk that has to find all that is there looks at the MACs of what leads on, as far as it is lent keys, and follows it also where no copy
//! has the right one, by what satisfies its pointer: it says so with [`Store::by_pointers`]. For all other code such blocks stay errors.
//!
//! Invariant: this goes for the thread that said so, while its work lasts.

use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::error::Bookmark;
use crate::keys::LoadedKey;
use crate::pipeline::Store;
use crate::scan_keys::ScanKeys;
use crate::verify;

/// What a thread does with encrypted blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It reads them with their keys.
    Keys,
    /// It reads them as they are on disk.
    Without,
    /// With their keys where these are loaded, else as they are on disk.
    Either,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Keys) };
    /// The keys of a walk by pointers.
    static BY_POINTERS: RefCell<Option<Arc<ScanKeys>>> = const { RefCell::new(None) };
}

fn during<T>(mode: Mode, work: impl FnOnce() -> T) -> T {
    struct Restore(Mode);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODE.set(self.0);
        }
    }
    let _restore = Restore(MODE.replace(mode));
    work()
}

impl Store {
    /// Does something that follows pointers only: meanwhile this thread reads encrypted blocks of dnodes and of intent
    /// logs as they are on disk, whether their keys are loaded or not.
    pub fn without_keys<T>(work: impl FnOnce() -> T) -> T {
        during(Mode::Without, work)
    }

    /// The same, but what has a key that is loaded is decrypted.
    pub fn with_keys_or_without<T>(work: impl FnOnce() -> T) -> T {
        during(Mode::Either, work)
    }

    /// Does something that follows all pointers without keys ([`Store::without_keys`]): meanwhile this thread is given an indirect block, or a
    /// block of dnodes, that satisfies its pointer also where no copy of it has the right MAC. It is noted as a block that cannot be read all the
    /// same, and among those that were followed ([`Notes::doubted`](crate::notes::Notes::doubted)): a device that was not read may have another
    /// one. MACs of blocks of dnodes take a key: they are looked at where `keys` has it.
    pub fn by_pointers<T>(keys: &Arc<ScanKeys>, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Arc<ScanKeys>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                BY_POINTERS.set(self.0.take());
            }
        }
        let _restore = Restore(BY_POINTERS.replace(Some(keys.clone())));
        Store::without_keys(work)
    }
}

/// Whether this thread follows pointers whose block has no right MAC.
pub(crate) fn goes_by_pointers() -> bool {
    BY_POINTERS.with_borrow(Option::is_some) && !uses_keys()
}

/// The key that is lent to this thread's walk by pointers for blocks of an object set, if it is on such a walk; `Some(None)`: there is none.
pub(crate) fn lent_key(objset: u64) -> Option<Option<Arc<LoadedKey>>> {
    BY_POINTERS.with_borrow(|keys| keys.as_ref().map(|keys| keys.of(objset)))
}

/// The key by which a walk by pointers looks at the MAC of a block that it reads as it is on disk.
pub(crate) fn tells(bp: &BlockPointer, at: Bookmark) -> Option<Arc<LoadedKey>> {
    let is_told = goes_by_pointers() && bp.level() == 0 && leads_on(bp) && verify::is_weak(bp);
    if is_told { lent_key(at.objset).flatten() } else { None }
}

/// Whether this thread uses keys.
pub(crate) fn uses_keys() -> bool {
    MODE.get() != Mode::Without
}

/// Whether an encrypted block has in plain bytes what leads to others.
pub(crate) fn leads_on(bp: &BlockPointer) -> bool {
    [DmuType::DNODE, DmuType::INTENT_LOG].contains(&DmuType(bp.object_type()))
}

/// Whether this thread may read an encrypted block without a key.
pub(crate) fn may_read(bp: &BlockPointer) -> bool {
    leads_on(bp) && MODE.get() != Mode::Keys
}
