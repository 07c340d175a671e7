//! Blocks of encrypted datasets (`zio_decrypt`, `arc_hdr_decrypt`, `arc_hdr_authenticate`).
//!
//! Between the checksum and decompression a block is decrypted or authenticated with the key of its dataset. Indirect
//! blocks and object sets are authenticated by their logical bytes, and indirect blocks without a key as well.
//!
//! A pointer has half a checksum of such a block, which wrong bytes may satisfy ([`verify::is_weak`]). What they
//! do not satisfy is the MAC. So a copy that passes the former and not the latter is a wrong copy, if there is another one that passes
//! both: that is read, and written in the place of the wrong one. Where no copy passes both no device is blamed, as the pointer or
//! the key may be what is wrong.
//!
//! Invariants:
//!
//! - In a dataset whose key is loaded nothing is read that the key does not vouch for: neither a block that is
//!   not protected nor one whose contents lie in its pointer.
//! - What a scrub, a corrective receive or a read writes in the place of a copy has the right MAC, where that can be checked. What a resilver
//!   gives has it, where any copy does. Parts of gang blocks go by pointers.

use super::{Block, Reader, Store, is_packed, unpack};
use crate::arc::{Access, Key};
use crate::error::{BlockError, Bookmark, ZIL_LEVEL};
use crate::held;
use crate::injection;
use crate::keyless;
use crate::keys::{LoadedKey, PLAIN, View};
use crate::verify;
use cenote_format::DecodeError;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::{self, CryptError};
use cenote_format::dmu::DmuType;
use std::sync::Arc;

/// Which of the decrypted blocks in the caches are those of this reader.
pub(super) fn view_of(reader: &Reader) -> View {
    reader.as_ref().map_or(PLAIN, |loaded| loaded.id())
}

/// With what the bytes of a block can be told from wrong ones that satisfy its pointer; `None`: they cannot be, or there
/// are no such bytes. Indirect blocks take no `key` for that.
pub(crate) fn voucher(
    bp: &BlockPointer,
    at: Bookmark,
    key: impl FnOnce() -> Option<Arc<LoadedKey>>,
) -> Option<Reader> {
    match verify::is_weak(bp) && at.level != ZIL_LEVEL {
        true if bp.level() > 0 => Some(None),
        true => key().map(Some),
        false => None,
    }
}

/// Whether the MAC of a block is that of these physical bytes. No handler is asked ([`injection`]): what it answers decides what is
/// written in the place of copies.
pub(crate) fn is_vouched(bp: &BlockPointer, voucher: &Reader, physical: &Abd) -> bool {
    match voucher {
        _ if bp.level() > 0 => {
            unpack(bp, physical).is_ok_and(|data| crypt::check_indirect(bp, &data.bytes()).is_ok())
        }
        Some(loaded) => check_mac(bp, loaded, physical).is_ok(),
        None => true,
    }
}

/// Looks at the MAC of a block of level 0.
fn check_mac(bp: &BlockPointer, loaded: &LoadedKey, physical: &Abd) -> Result<(), CryptError> {
    match bp.is_encrypted() {
        true => loaded.key().decrypt(bp, physical).map(drop),
        false => loaded.key().authenticate(bp, physical),
    }
}

fn wrong(bp: &BlockPointer, at: Bookmark, source: impl Into<CryptError>) -> BlockError {
    BlockError::Authentication { at, bp: Box::new(*bp), source: source.into() }
}

impl Store {
    /// The key that a block is read with; `None` if it takes none.
    ///
    /// # Errors
    /// `Encrypted`: its key is not loaded; `Authentication`: it is not protected, and its dataset is encrypted.
    pub(crate) fn reader(&self, bp: &BlockPointer, at: Bookmark) -> Result<Reader, BlockError> {
        let refused = |why| Err(wrong(bp, at, DecodeError::invalid("block pointer", why)));
        let raw = bp.uses_crypt() && self.keys().is_raw(at.objset);
        let loaded = if keyless::uses_keys() && !raw { self.keys().of(at.objset) } else { None };
        // What lies in a pointer has no MAC, and only what the root is held to be tells how it is authenticated.
        if bp.is_embedded() && (loaded.is_some() || bp.uses_crypt()) {
            return refused("a block in its pointer, in an encrypted dataset");
        }
        let is_objset = bp.level() == 0 && bp.object_type() == DmuType::OBJSET.0;
        if loaded.is_some() && (at.object, at.level) == (0, -1) && !is_objset {
            return refused("the root of an encrypted dataset is no object set");
        }
        match (loaded, bp.uses_crypt()) {
            (Some(loaded), true) => Ok(Some(loaded)),
            (Some(_), false) => refused("a block that is not protected, in an encrypted dataset"),
            (None, true) if raw && keyless::leads_on(bp) => Ok(None),
            (None, true) if bp.is_encrypted() && !keyless::may_read(bp) => {
                Err(BlockError::Encrypted { at })
            }
            (None, _) => Ok(None),
        }
    }

    /// The physical bytes of a block that was read, decrypted or authenticated. Those of indirect blocks and object sets
    /// are as they were.
    pub(super) fn plain(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        reader: &Reader,
        physical: Abd,
    ) -> Result<Abd, BlockError> {
        let Some(loaded) = reader.as_ref().filter(|_| bp.level() == 0) else { return Ok(physical) };
        let failed = |e| wrong(bp, at, e);
        if self.counts_as_forged(bp, at) {
            return Err(injection::forged(bp, at));
        }
        if bp.is_encrypted() {
            return loaded.key().decrypt(bp, &physical).map_err(failed);
        }
        if bp.object_type() != DmuType::OBJSET.0 {
            loaded.key().authenticate(bp, &physical).map_err(failed)?;
        }
        Ok(physical)
    }

    /// The logical bytes of a block that was read (`spa_do_crypt_abd`): decrypted, decompressed, authenticated.
    pub(crate) fn opened(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        reader: &Reader,
        physical: &Abd,
    ) -> Result<Abd, BlockError> {
        let unpacked = |physical: &Abd| {
            let decode = |source| BlockError::Decode { at, bp: Box::new(*bp), source };
            match is_packed(bp).then(|| self.injected_decode_error(bp, at)).flatten() {
                Some(e) => Err(decode(e)),
                None => unpack(bp, physical).map_err(|e| match bp.uses_crypt() && bp.level() > 0 {
                    // Its MAC is of other bytes, which another copy may have.
                    true => wrong(bp, at, e),
                    false => decode(e),
                }),
            }
        };
        if !bp.uses_crypt() {
            return unpacked(physical);
        }
        let data = unpacked(&self.plain(bp, at, reader, physical.clone())?)?;
        let checked = match reader {
            _ if bp.level() > 0 => crypt::check_indirect(bp, &data.bytes()),
            Some(loaded) if bp.object_type() == DmuType::OBJSET.0 => {
                crypt::check_objset(loaded.key(), &data.bytes(), bp.byte_order())
            }
            _ => Ok(()),
        };
        checked.map(|()| data).map_err(|e| wrong(bp, at, e))
    }

    /// As [`voucher`], with the key that blocks of its object set are read with; with that of a walk by pointers, if this is one.
    pub(crate) fn voucher(&self, bp: &BlockPointer, at: Bookmark) -> Option<Reader> {
        let keys = self.keys();
        let own = || keys.of(at.objset).filter(|_| !keys.is_raw(at.objset));
        voucher(bp, at, || keyless::lent_key(at.objset).unwrap_or_else(own))
    }

    /// A block that was read as it is on disk; an error, if a walk by pointers has the key that its MAC is not for.
    pub(super) fn told(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        read: Result<Block, BlockError>,
    ) -> Result<Block, BlockError> {
        let block = read?;
        // What is packed is not the bytes that the MAC is of. Blocks of dnodes are not.
        let Some(loaded) = keyless::tells(bp, at).filter(|_| !is_packed(bp)) else {
            return Ok(block);
        };
        check_mac(bp, &loaded, &block.data).map(|()| block).map_err(|e| wrong(bp, at, e))
    }

    /// The physical bytes of a block of which others were read that its MAC is not for (`why`): by any copy.
    ///
    /// # Errors
    /// `why`, where there is no such copy; that of a device, where one was not read.
    pub(super) fn vouched(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        key: Key,
        why: BlockError,
    ) -> Result<Abd, BlockError> {
        let Some(voucher) = self.voucher(bp, at) else { return Err(why) };
        self.forget_physical(&key);
        if held::is_active() {
            return Err(held::miss(bp, at));
        }
        let (found, notes) = Store::attempt(|| self.fetch_vouched(bp, at, voucher));
        let physical = match found {
            Ok(physical) => physical,
            // A device that is silent may have it.
            Err(silent @ BlockError::Vdev { .. }) => return Err(silent),
            Err(_) => return Err(why),
        };
        self.note(notes);
        if self.keeps(bp, at) {
            self.keep((&key, at), bp, physical.clone(), Access::Demand);
        }
        Ok(physical)
    }
}
