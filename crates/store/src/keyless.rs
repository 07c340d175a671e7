//! Encrypted blocks without their keys (`ZIO_FLAG_RAW_ENCRYPT`).
//!
//! Two kinds of encrypted blocks keep in plain bytes what leads to other blocks. Of a block of dnodes only the bonus
//! buffers are encrypted, and it is not compressed. Of an intent log block only the contents of records are: the chain,
//! the heads of records and the pointers in them are plain. So a walk that follows pointers, and nothing else, needs no
//! key. Such a walk says so with [`Store::without_keys`]. For all other code an encrypted block stays an error
//! ([`BlockError::Encrypted`](crate::BlockError::Encrypted)), as the encrypted bytes in it mean nothing.
//!
//! Invariant: this goes for the thread that said so, while its work lasts.

use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use std::cell::Cell;

use crate::pipeline::Store;

thread_local! {
    static KEYLESS: Cell<bool> = const { Cell::new(false) };
}

impl Store {
    /// Does something that follows pointers only: meanwhile this thread reads encrypted blocks of dnodes and of intent
    /// logs as they are on disk.
    pub fn without_keys<T>(work: impl FnOnce() -> T) -> T {
        struct Restore(bool);
        impl Drop for Restore {
            fn drop(&mut self) {
                KEYLESS.set(self.0);
            }
        }
        let _restore = Restore(KEYLESS.replace(true));
        work()
    }
}

/// Whether this thread may read an encrypted block.
pub(crate) fn may_read(bp: &BlockPointer) -> bool {
    let leads_on = [DmuType::DNODE, DmuType::INTENT_LOG].contains(&DmuType(bp.object_type()));
    leads_on && KEYLESS.get()
}
