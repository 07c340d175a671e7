//! Memory for key material.
//!
//! Each [`Secret`] has pages of its own, so that locking and unlocking it touches no other memory. Where the process may
//! lock no more memory (`RLIMIT_MEMLOCK`), the secret is kept all the same and could be swapped out: it is still in no
//! core dump and is wiped.

use super::{CryptError, Result};
use crate::invariant::broken;
use memmap2::MmapMut;
use zeroize::Zeroize;

/// Bytes in memory that is locked, in no core dump, and wiped when this is dropped.
pub struct Secret {
    pages: MmapMut,
    len: usize,
    locked: bool,
}

impl Secret {
    /// `len` zeros (at least one byte of memory).
    ///
    /// # Errors
    /// There is no memory.
    pub fn zeros(len: usize) -> Result<Secret> {
        let memory = |e: std::io::Error| CryptError::Memory(e.to_string());
        let pages = MmapMut::map_anon(len.max(1)).map_err(memory)?;
        #[cfg(target_os = "linux")]
        pages.advise(memmap2::Advice::DontDump).map_err(memory)?;
        let locked = pages.lock().is_ok();
        Ok(Secret { pages, len, locked })
    }

    /// A copy of `bytes`, which the caller wipes.
    ///
    /// # Errors
    /// There is no memory.
    pub fn copy_of(bytes: &[u8]) -> Result<Secret> {
        let mut secret = Secret::zeros(bytes.len())?;
        secret.bytes_mut().copy_from_slice(bytes);
        Ok(secret)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let (len, room) = (self.len, self.pages.len());
        match self.pages.get(..len) {
            Some(bytes) => bytes,
            None => broken(format_args!("a secret of {len} bytes in {room}")),
        }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (len, room) = (self.len, self.pages.len());
        match self.pages.get_mut(..len) {
            Some(bytes) => bytes,
            None => broken(format_args!("a secret of {len} bytes in {room}")),
        }
    }

    /// Whether the memory is locked: it is never swapped out.
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.pages.as_mut().zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}
