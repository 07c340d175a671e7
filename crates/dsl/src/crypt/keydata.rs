//! What the BEGIN of a raw stream says of keys and of the object set (`crypt_keydata`; `dsl_crypto_populate_key_nvlist`,
//! `dsl_crypto_recv_raw_key_check`, `dsl_crypto_recv_raw_objset_check`).
//!
//! The keys are wrapped, as they are on disk: the stream tells no more than the devices do. The meta dnode's structure
//! and the portable MAC are here because no record has them. The guids of the sets of initialization vectors say which
//! snapshot the stream starts from: the guid of a snapshot alone does not tell whether it was received raw.

use super::phys::{self, KeyFormat};
use cenote_dmu::write::RawRoot;
use cenote_format::checksum::Checksum;
use cenote_format::crypt::{KEY_VERSION, Suite, WrappedKey};
use cenote_format::dmu::DNODE_BLOCK;
use cenote_format::nvlist::{NvList, NvValue};

/// Name of the list within that of BEGIN.
pub const NAME: &str = "crypt_keydata";
const PORTABLE_MAC: &str = "portable_mac";
const CHECKSUM: &str = "mdn_checksum";
const COMPRESS: &str = "mdn_compress";
const LEVELS: &str = "mdn_nlevels";
const BLOCK_SIZE: &str = "mdn_blksz";
const INDIRECT_SHIFT: &str = "mdn_indblkshift";
const POINTERS: &str = "mdn_nblkptr";
const MAX_BLOCK: &str = "mdn_maxblkid";
const TO_IVSET: &str = "to_ivset_guid";
const FROM_IVSET: &str = "from_ivset_guid";
/// Pointers of the meta dnode (`DN_MAX_NBLKPTR`).
const META_POINTERS: u64 = 3;
/// Functions that a meta dnode may name are below (`ZIO_CHECKSUM_LEGACY_FUNCTIONS`, `ZIO_COMPRESS_LEGACY_FUNCTIONS`).
const LEGACY_CHECKSUMS: u64 = 10;
const LEGACY_COMPRESSIONS: u64 = 15;
/// `DN_MAX_LEVELS`.
const MAX_LEVELS: u64 = 13;

/// Why the list of a raw stream is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyDataError {
    /// Something is missing, or makes no sense.
    #[error("what it says of its keys makes no sense: {0}")]
    Invalid(&'static str),
    /// The stream is of a structure or key that cannot be received (`ENOTSUP`).
    #[error("stream uses crypto parameters not compatible with this pool")]
    Unsupported,
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyData {
    /// The keys, wrapped.
    pub wrapped: WrappedKey,
    /// What the user's key looks like.
    pub format: KeyFormat,
    /// Salt of a passphrase.
    pub salt: u64,
    /// Iterations of a passphrase.
    pub iterations: u64,
    /// The object set.
    pub root: RawRoot,
    /// The set of initialization vectors of the snapshot.
    pub to_ivset: u64,
    /// That of the snapshot that the stream starts from; 0 for a full stream.
    pub from_ivset: u64,
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or_default()
}

impl KeyData {
    /// The list, in the order in which OpenZFS has it.
    pub fn to_list(&self) -> NvList {
        let (mut list, wrapped, root) = (NvList::default(), &self.wrapped, &self.root);
        let number = NvValue::Uint64;
        let bytes = |bytes: &[u8]| NvValue::Uint8Array(bytes.to_vec());
        let pairs = [
            (text(phys::SUITE), number(wrapped.suite as u64)),
            (text(phys::GUID), number(wrapped.guid)),
            (text(phys::VERSION), number(wrapped.version)),
            (text(phys::MASTER_KEY), bytes(&wrapped.master)),
            (text(phys::HMAC_KEY), bytes(&wrapped.hmac)),
            (text(phys::IV), bytes(&wrapped.iv)),
            (text(phys::MAC), bytes(&wrapped.mac)),
            (PORTABLE_MAC, bytes(&root.portable_mac)),
            (text(phys::FORMAT), number(self.format.number())),
            (text(phys::ITERATIONS), number(self.iterations)),
            (text(phys::SALT), number(self.salt)),
            (CHECKSUM, number(root.checksum.into())),
            (COMPRESS, number(root.compress.into())),
            (LEVELS, number(root.levels.into())),
            (BLOCK_SIZE, number(DNODE_BLOCK)),
            (INDIRECT_SHIFT, number(root.indirect_shift.into())),
            (POINTERS, number(META_POINTERS)),
            (MAX_BLOCK, number(root.max_block)),
            (TO_IVSET, number(self.to_ivset)),
            (FROM_IVSET, number(self.from_ivset)),
        ];
        pairs.into_iter().for_each(|(name, value)| list.set(name, value));
        list
    }

    /// What the list behind BEGIN says.
    ///
    /// # Errors
    /// See [`KeyDataError`].
    pub fn of_begin(list: &NvList) -> Result<KeyData, KeyDataError> {
        match list.get(NAME) {
            Some(NvValue::NvList(list)) => KeyData::from_list(list),
            _ => Err(KeyDataError::Invalid("there are no keys")),
        }
    }

    fn from_list(list: &NvList) -> Result<KeyData, KeyDataError> {
        use KeyDataError::{Invalid, Unsupported};
        let number = |name: &'static str| list.u64(name).ok_or(Invalid(name));
        let suite = number(text(phys::SUITE))?;
        let suite = Suite::from_u64(suite).map_err(|_| Invalid("the encryption suite"))?;
        if number(text(phys::VERSION))? != KEY_VERSION {
            return Err(Unsupported);
        }
        let format = match number(text(phys::FORMAT))? {
            1 => KeyFormat::Raw,
            2 => KeyFormat::Hex,
            3 => KeyFormat::Passphrase,
            _ => return Err(Invalid("the format of the key")),
        };
        let is_phrase = format == KeyFormat::Passphrase;
        let phrase = |name| if is_phrase { number(name) } else { Ok(0) };
        let (salt, iterations) = (phrase(text(phys::SALT))?, phrase(text(phys::ITERATIONS))?);
        if is_phrase && (salt == 0 || iterations == 0) {
            return Err(Invalid("the salt of the passphrase"));
        }
        let wrapped = WrappedKey {
            suite,
            guid: number(text(phys::GUID))?,
            version: KEY_VERSION,
            iv: bytes(list, text(phys::IV))?,
            mac: bytes(list, text(phys::MAC))?,
            master: bytes(list, text(phys::MASTER_KEY))?,
            hmac: bytes(list, text(phys::HMAC_KEY))?,
        };
        // Streams of snapshots that were taken before there were such sets have no guid.
        let to_ivset = number(TO_IVSET)?;
        let from_ivset = number(FROM_IVSET)?;
        Ok(KeyData { wrapped, format, salt, iterations, root: root(list)?, to_ivset, from_ivset })
    }
}

/// What is said of the object set.
fn root(list: &NvList) -> Result<RawRoot, KeyDataError> {
    let number = |name: &'static str| list.u64(name).ok_or(KeyDataError::Invalid(name));
    let below = |name: &'static str, end: u64| match number(name)? {
        n if n < end => Ok(n as u8),
        _ => Err(KeyDataError::Invalid(name)),
    };
    let (checksum, compress) =
        (below(CHECKSUM, LEGACY_CHECKSUMS)?, below(COMPRESS, LEGACY_COMPRESSIONS)?);
    if !Checksum::from_u8(checksum).is_ok_and(Checksum::is_of_dnodes) {
        return Err(KeyDataError::Invalid(CHECKSUM));
    }
    let levels = below(LEVELS, MAX_LEVELS + 1)?;
    let indirect_shift = below(INDIRECT_SHIFT, 18)?;
    let max_block = number(MAX_BLOCK)?;
    if number(BLOCK_SIZE)? != DNODE_BLOCK || number(POINTERS)? != META_POINTERS {
        return Err(KeyDataError::Unsupported);
    }
    // Numbers of objects have 48 bits.
    if levels == 0 || indirect_shift < 12 || max_block >= 1 << 43 {
        return Err(KeyDataError::Invalid("the structure of the object set"));
    }
    let portable_mac = bytes(list, PORTABLE_MAC)?;
    Ok(RawRoot { portable_mac, checksum, compress, levels, indirect_shift, max_block })
}

fn bytes<const N: usize>(list: &NvList, name: &'static str) -> Result<[u8; N], KeyDataError> {
    let found = match list.get(name) {
        Some(NvValue::Uint8Array(bytes)) => bytes.as_slice().try_into().ok(),
        _ => None,
    };
    found.ok_or(KeyDataError::Invalid(name))
}
