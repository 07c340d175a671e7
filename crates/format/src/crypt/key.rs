//! The key of a dataset (`zio_crypt_key_t`): what decrypts its blocks and makes their MACs.
//!
//! # Structures
//!
//! A [`DatasetKey`] has two secrets: the master key, from which a key for each salt is derived (HKDF with SHA-512), and the key of HMACs.
//! They lie in memory for secrets (`secret`), and are wiped with it. The keys that were derived last are kept, since a salt serves
//! many blocks.
//!
//! # Algorithm
//!
//! - Most blocks are encrypted as a whole. Of blocks of dnodes and of intent logs some bytes are only authenticated
//!   (`layout`): the secret parts are gathered, encrypted as one text, and scattered back.
//! - The MAC of an intent log block lies in the block, all others in the block pointer.
//! - Blocks that are authenticated only have an HMAC with the dataset's key. With deduplication an HMAC of a block's bytes also gives its salt
//!   and initialization vector, so that equal blocks are encrypted alike.
//!
//! # Invariants
//!
//! - Codes and keys are compared in a time that does not depend on where they differ.
//! - Two keys are the same only if their secrets are: a guid in a stream may be forged.

use super::cipher::{Cipher, Suite};
use super::layout::{self, Layout};
use super::params::{BlockParams, IV_LEN, MAC_LEN, Mac, SALT_LEN, Salt, bp_mac, zil_mac};
use super::secret::Secret;
use super::wrap::{HMAC_KEY_LEN, KEY_VERSION};
use super::{CryptError, Result};
use crate::abd::Abd;
use crate::blkptr::BlockPointer;
use crate::dmu::DmuType;
use crate::invariant::broken;
use crate::{ByteOrder, DecodeError};
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac as _};
use parking_lot::Mutex;
use sha2::Sha512;
use std::collections::VecDeque;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// HMAC-SHA512.
pub(super) type HmacSha512 = Hmac<Sha512>;

/// Derived keys that are kept: a salt serves a great many blocks that were written together.
const KEPT: usize = 16;

/// Salts with what was derived from them, the latest one first.
type Derived = VecDeque<(Salt, Arc<Cipher>)>;

/// The key of a dataset: its suite, the master key, the key of HMACs.
pub struct DatasetKey {
    suite: Suite,
    version: u64,
    guid: u64,
    /// The master key, then the key of HMACs.
    keys: Secret,
    derived: Mutex<Derived>,
}

impl std::fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatasetKey({:?}, guid {})", self.suite, self.guid)
    }
}

impl DatasetKey {
    /// A key of `keys`: the master key of the suite's length, then the key of HMACs.
    pub(super) fn new(suite: Suite, version: u64, guid: u64, keys: Secret) -> DatasetKey {
        DatasetKey { suite, version, guid, keys, derived: Mutex::default() }
    }

    /// A new key (`zio_crypt_key_init`): `keys` are the master key, then the key of HMACs, all of them random.
    ///
    /// # Errors
    /// They are more or fewer than the suite takes ([`Suite::key_len`] and [`HMAC_KEY_LEN`] bytes).
    pub fn of_random(suite: Suite, guid: u64, keys: Secret) -> Result<DatasetKey> {
        match keys.bytes().len() {
            n if n == suite.key_len() + HMAC_KEY_LEN => {
                Ok(DatasetKey::new(suite, KEY_VERSION, guid, keys))
            }
            n => Err(DecodeError::invalid("encryption key", format!("{n} bytes")).into()),
        }
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The version of the format (`DSL_CRYPTO_VERSION`).
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The guid (`DSL_CRYPTO_GUID`).
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Whether what one of them encrypts the other one decrypts (`dmu_objset_crypto_key_equal`). A guid alone could be that of another
    /// key, in a stream that was made to have it.
    pub fn is_same(&self, other: &DatasetKey) -> bool {
        let named =
            (self.suite, self.version, self.guid) == (other.suite, other.version, other.guid);
        named && bool::from(self.keys.bytes().ct_eq(other.keys.bytes()))
    }

    pub(super) fn master(&self) -> &[u8] {
        self.parts().0
    }

    pub(super) fn hmac_key(&self) -> &[u8] {
        self.parts().1
    }

    /// The master key, and the key of HMACs.
    fn parts(&self) -> (&[u8], &[u8]) {
        let (bytes, master) = (self.keys.bytes(), self.suite.key_len());
        match bytes.split_at_checked(master) {
            Some((master, hmac)) if hmac.len() == HMAC_KEY_LEN => (master, hmac),
            _ => broken(format_args!("{} bytes of keys for {:?}", bytes.len(), self.suite)),
        }
    }

    /// HMAC-SHA512 with the dataset's key, to be fed.
    pub(super) fn hmac(&self) -> Result<HmacSha512> {
        HmacSha512::new_from_slice(self.hmac_key()).map_err(|_| CryptError::Mac)
    }

    /// The cipher of blocks with this salt (`hkdf_sha512`).
    ///
    /// # Errors
    /// The key makes no sense.
    pub fn cipher(&self, salt: &Salt) -> Result<Arc<Cipher>> {
        let mut derived = self.derived.lock();
        if let Some(at) = derived.iter().position(|(of, _)| of == salt) {
            if at > 0 {
                derived.swap(0, at);
            }
            return derived.front().map(|(_, cipher)| cipher.clone()).ok_or(CryptError::Mac);
        }
        let mut key = Zeroizing::new([0u8; 32]);
        let key = &mut key[..self.suite.key_len()];
        let expanded = Hkdf::<Sha512>::new(None, self.master()).expand(salt, key);
        expanded.map_err(|_| CryptError::Mac)?;
        let cipher = Arc::new(Cipher::new(self.suite, key)?);
        derived.truncate(KEPT - 1);
        derived.push_front((*salt, cipher.clone()));
        Ok(cipher)
    }

    /// The parts of a block whose physical bytes are `data`; `None` if all of it is encrypted.
    fn layout(&self, kind: DmuType, order: ByteOrder, data: &[u8]) -> Result<Option<Layout>> {
        Ok(match kind {
            DmuType::DNODE => Some(layout::of_dnodes(data, order, self.version)?),
            DmuType::INTENT_LOG => Some(layout::of_log(data, order)?),
            _ => None,
        })
    }

    /// Decrypts the physical bytes of an encrypted block (`zio_do_crypt_data`); they stay compressed.
    ///
    /// # Errors
    /// [`CryptError::Mac`]: they are not what was written; [`CryptError::Decode`]: what parts they have makes no sense.
    pub fn decrypt(&self, bp: &BlockPointer, physical: &Abd) -> Result<Abd> {
        let BlockParams { salt, iv } = BlockParams::of(bp);
        let cipher = self.cipher(&salt)?;
        let mut data = physical.to_vec();
        let kind = DmuType(bp.object_type());
        let mac = match kind {
            DmuType::INTENT_LOG => zil_mac(&data)?,
            _ => bp_mac(bp),
        };
        match self.layout(kind, bp.byte_order(), &data)? {
            None => cipher.open(&iv, &[], &mut data, &mac)?,
            Some(Layout { aad, secret }) => {
                let mut hidden = gather(&data, &secret);
                cipher.open(&iv, &aad, &mut hidden, &mac)?;
                scatter(&mut data, &secret, &hidden);
            }
        }
        Ok(Abd::from_vec(data))
    }

    /// The parameters that a block with these physical bytes has if equal ones are to be encrypted alike
    /// (`zio_crypt_generate_iv_salt_dedup`): no others get them, as they are a MAC of the bytes.
    ///
    /// # Errors
    /// The key makes no sense.
    pub fn params_of(&self, physical: &Abd) -> Result<BlockParams> {
        let mut hmac = self.hmac()?;
        physical.chunks().for_each(|chunk| hmac.update(chunk));
        let code = hmac.finalize().into_bytes();
        let (mut salt, mut iv) = ([0; SALT_LEN], [0; IV_LEN]);
        salt.iter_mut().chain(&mut iv).zip(code).for_each(|(to, from)| *to = from);
        Ok(BlockParams { salt, iv })
    }

    /// Encrypts, in place, a block of objects of type `kind`, little-endian and compressed as it is to be
    /// (`zio_do_crypt_data`).
    ///
    /// # Errors
    /// [`CryptError::Decode`]: what parts it has makes no sense.
    pub fn encrypt(&self, kind: DmuType, params: &BlockParams, data: &mut [u8]) -> Result<Mac> {
        let cipher = self.cipher(&params.salt)?;
        let Some(Layout { aad, secret }) = self.layout(kind, ByteOrder::Little, data)? else {
            return cipher.seal(&params.iv, &[], data);
        };
        let mut hidden = gather(data, &secret);
        let mac = cipher.seal(&params.iv, &aad, &mut hidden)?;
        scatter(data, &secret, &hidden);
        Ok(mac)
    }

    /// Checks the physical bytes of a block that is authenticated and not encrypted, no object set (`spa_do_crypt_mac_abd`).
    ///
    /// # Errors
    /// [`CryptError::Mac`]: they are not what was written.
    pub fn authenticate(&self, bp: &BlockPointer, physical: &Abd) -> Result<()> {
        same(&self.mac_of(physical)?, &bp_mac(bp))
    }

    /// The MAC of the physical bytes of a block that is authenticated only (`zio_crypt_do_hmac`).
    ///
    /// # Errors
    /// The key makes no sense.
    pub fn mac_of(&self, physical: &Abd) -> Result<Mac> {
        let mut hmac = self.hmac()?;
        physical.chunks().for_each(|chunk| hmac.update(chunk));
        let whole = hmac.finalize().into_bytes();
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(whole.get(..MAC_LEN).unwrap_or(&[0; MAC_LEN]));
        Ok(mac)
    }
}

/// Whether two codes are the same, in a time that does not tell where they differ.
pub(super) fn same(a: &[u8], b: &[u8]) -> Result<()> {
    if bool::from(a.ct_eq(b)) { Ok(()) } else { Err(CryptError::Mac) }
}

fn gather(data: &[u8], parts: &[std::ops::Range<usize>]) -> Vec<u8> {
    let parts = parts.iter().filter_map(|part| data.get(part.clone()));
    parts.flatten().copied().collect()
}

fn scatter(data: &mut [u8], parts: &[std::ops::Range<usize>], from: &[u8]) {
    let mut rest = from;
    for part in parts {
        if let Some(to) = data.get_mut(part.clone())
            && let Some((now, later)) = rest.split_at_checked(to.len())
        {
            to.copy_from_slice(now);
            rest = later;
        }
    }
}
