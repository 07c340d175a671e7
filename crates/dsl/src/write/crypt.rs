//! Keys of encrypted datasets, in syncing context (`dsl_crypt.c`).
//!
//! A new encrypted dataset gets random keys of its own, wrapped with the key of its encryption root, in a ZAP that its
//! directory names. A clone shares the ZAP of its origin, which counts its directories. Whoever changes the key of an
//! encryption root has the keys of all datasets below wrapped anew that have this root.
//!
//! Invariants:
//!
//! - Only wrapped keys are in the MOS. Each wrapping has an initialization vector of its own.
//! - What cannot be unwrapped is found before anything is changed.

use super::incoming::Incoming;
use super::mos::{MAX_DEPTH, ZAP_METADATA, corrupt};
use super::props::{self, NewValue, Target};
use super::{DslWriteError, Result, Tx, dir, features};
use crate::crypt::keydata::KeyData;
use crate::crypt::phys::{
    CRYPTO_KEY, FORMAT, GUID, HMAC_KEY, ITERATIONS, IV, MAC, MASTER_KEY, REFERENCES, ROOT, SALT,
    SUITE, VERSION,
};
use crate::crypt::{CryptoKey, KeyFormat, Keystore};
use cenote_format::crypt::{
    CryptError, DatasetKey, HMAC_KEY_LEN, IV_LEN, KEY_VERSION, Secret, Suite, WrappedKey,
    WrappingKey,
};
use cenote_format::encode::zap::Value;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use std::sync::Arc;

/// The feature of encrypted datasets, and one that it takes to write them right.
const ENCRYPTION: &str = "com.datto:encryption";
const BOOKMARKS: &str = "com.datto:bookmark_v2";
/// Field of a snapshot: which initialization vectors its blocks have (`DS_FIELD_IVSET_GUID`).
const IVSET_GUID: &str = "com.datto:ivset_guid";
/// The property of an encryption root that says where its key is.
const LOCATION: &str = "keylocation";

/// The key of an encryption root, and what it was made of (`dsl_wrapping_key_t`, `dsl_wrapping_key_create`).
#[derive(Clone, Debug)]
pub struct RootKey {
    /// What the user's key looks like.
    pub format: KeyFormat,
    /// Salt of a passphrase; 0 for other keys.
    pub salt: u64,
    /// Iterations of a passphrase; 0 for other keys.
    pub iterations: u64,
    /// The key.
    pub wrapping: Arc<WrappingKey>,
}

/// How a new dataset is encrypted.
#[derive(Clone, Debug)]
pub enum Encryption {
    /// It is an encryption root of its own.
    Root(RootKey, Suite, String),
    /// With the key of the parent's encryption root, and with the parent's suite if none is given.
    Inherited(Arc<WrappingKey>, Option<Suite>),
}

fn refused<T>(why: &str) -> Result<T> {
    Err(DslWriteError::Invalid(why.into()))
}

fn failed(e: CryptError) -> DslWriteError {
    DslWriteError::Invalid(e.to_string())
}

impl Tx<'_> {
    /// Random bytes.
    fn fill(&self, bytes: &mut [u8]) -> Result<()> {
        for chunk in bytes.chunks_mut(8) {
            let word = self.random()?.to_le_bytes();
            chunk.iter_mut().zip(word).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }

    /// The key of a directory; `None` if it is not encrypted.
    pub(super) fn crypto_key(&mut self, dir_obj: u64) -> Result<Option<CryptoKey>> {
        let Some(object) = self.field_number(dir_obj, CRYPTO_KEY)? else { return Ok(None) };
        let get = |name: &[u8]| {
            let name = text(name);
            Ok(self.zap_get(object, name)?.map(|(_, value)| value))
        };
        CryptoKey::decode(object, get, |why| corrupt(object, why)).map(Some)
    }

    /// Wraps a key and writes it.
    fn put_key(&mut self, object: u64, root: u64, key: &DatasetKey, with: &RootKey) -> Result<()> {
        let mut iv = [0; IV_LEN];
        self.fill(&mut iv)?;
        let wrapped = with.wrapping.wrap(key, iv).map_err(failed)?;
        // Nothing else could open the dataset.
        match with.wrapping.unwrap(&wrapped) {
            Ok(_) => {}
            Err(CryptError::Mac) => {
                broken(format_args!("key {object} does not open with what it was wrapped with"))
            }
            Err(e) => return Err(failed(e)),
        }
        self.put_wrapped((object, root), &wrapped, (with.format, with.salt, with.iterations))
    }

    /// Writes a wrapped key (`dsl_crypto_key_sync_impl`).
    fn put_wrapped(
        &mut self,
        (object, root): (u64, u64),
        wrapped: &WrappedKey,
        (format, salt, iterations): (KeyFormat, u64, u64),
    ) -> Result<()> {
        let numbers = [
            (SUITE, wrapped.suite as u64),
            (ROOT, root),
            (GUID, wrapped.guid),
            (FORMAT, format.number()),
            (SALT, salt),
            (ITERATIONS, iterations),
        ];
        for (name, number) in numbers {
            self.zap_set(object, text(name), number)?;
        }
        let parts: [(&[u8], &[u8]); 4] = [
            (IV, &wrapped.iv),
            (MAC, &wrapped.mac),
            (MASTER_KEY, &wrapped.master),
            (HMAC_KEY, &wrapped.hmac),
        ];
        parts
            .into_iter()
            .try_for_each(|(name, bytes)| self.zap_put(object, text(name), &Value::U8(bytes)))
    }
}

fn text(name: &[u8]) -> &str {
    match std::str::from_utf8(name) {
        Ok(name) => name,
        Err(_) => broken(format_args!("a field of a key is called {name:?}")),
    }
}

/// Gives the new head `ds_obj` of the directory `dir_obj` its keys (`dsl_dataset_create_crypt_sync`). Returns its
/// encryption root and its keys.
///
/// # Errors
/// `Invalid`: the pool lacks a feature; the parent is not encrypted, or has another key by now.
pub fn create(
    tx: &mut Tx<'_>,
    (dir_obj, ds_obj): (u64, u64),
    how: &Encryption,
) -> Result<(u64, DatasetKey)> {
    for guid in [ENCRYPTION, BOOKMARKS] {
        if !features::is_enabled(tx, guid)? {
            return refused("Encryption feature not enabled.");
        }
    }
    let (root, suite, with) = match how {
        Encryption::Root(with, suite, _) => (dir_obj, *suite, with.clone()),
        Encryption::Inherited(wrapping, suite) => {
            let parent = tx.dir(dir_obj)?.parent;
            let Some(key) = tx.crypto_key(parent)? else {
                return refused("Keyformat required for new encryption root.");
            };
            if wrapping.unwrap(&key.wrapped).is_err() {
                return refused("encryption root's key is not loaded or provided");
            }
            let with = RootKey {
                format: key.format,
                salt: key.salt,
                iterations: key.iterations,
                wrapping: wrapping.clone(),
            };
            (key.root, suite.unwrap_or(key.wrapped.suite), with)
        }
    };
    let mut secret = Secret::zeros(suite.key_len() + HMAC_KEY_LEN).map_err(failed)?;
    tx.fill(secret.bytes_mut())?;
    let key = DatasetKey::of_random(suite, tx.random()?, secret).map_err(failed)?;
    let object = give_key(tx, (dir_obj, ds_obj))?;
    tx.put_key(object, root, &key, &with)?;
    if let Encryption::Root(_, _, location) = how {
        let location = NewValue::Text(location.clone());
        props::apply(tx, Target::Dir(dir_obj), LOCATION, &location)?;
    }
    Ok((root, key))
}

/// Gives a directory and its head a key that is still to be written. Returns its object.
fn give_key(tx: &mut Tx<'_>, (dir_obj, ds_obj): (u64, u64)) -> Result<u64> {
    let object = tx.plain_zap(ZAP_METADATA)?;
    tx.zap_set(object, text(VERSION), KEY_VERSION)?;
    tx.zap_set(object, text(REFERENCES), 1)?;
    tx.zapify(dir_obj)?;
    tx.zap_set(dir_obj, CRYPTO_KEY, object)?;
    features::activate_dataset_feature(tx, ds_obj, ENCRYPTION)?;
    Ok(object)
}

/// Writes the wrapped keys that came in a raw stream (`dsl_crypto_recv_raw_key_sync`). A directory without keys becomes an
/// encryption root whose key is asked for; another one keeps its root, and the key that it has unless it [`Taken::Theirs`].
///
/// # Errors
/// `Invalid`: it is not known which key opens with that of the encryption root.
pub(super) fn receive_keys(
    tx: &mut Tx<'_>,
    (dir_obj, ds_obj): (u64, u64),
    keys: &KeyData,
    what: &Incoming,
) -> Result<()> {
    let (object, root) = match tx.crypto_key(dir_obj)? {
        Some(here) => match taken(tx, dir_obj, &here, (keys, what))? {
            Taken::Theirs => (here.object, here.root),
            Taken::Ours => return Ok(()),
            Taken::Unknown => return refused("the key of its encryption root is not loaded"),
        },
        None => {
            let location = NewValue::Text("prompt".into());
            props::apply(tx, Target::Dir(dir_obj), LOCATION, &location)?;
            (give_key(tx, (dir_obj, ds_obj))?, dir_obj)
        }
    };
    tx.put_wrapped((object, root), &keys.wrapped, (keys.format, keys.salt, keys.iterations))
}

/// Which of two wrapped keys a dataset has after a raw increment. The master key in both is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// That of the stream.
    Theirs,
    /// That which is there.
    Ours,
    /// It cannot be known which of them the key of the encryption root opens.
    Unknown,
}

/// Which key a dataset has after a raw increment. It must open with the key of the dataset's encryption root here, which need
/// not be the sender's: what has another key at the sender by now may have its parent's key here. In a package all
/// datasets have the sender's.
fn taken(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    here: &CryptoKey,
    (keys, what): (&KeyData, &Incoming),
) -> Result<Taken> {
    if here.wrapped == keys.wrapped {
        return Ok(Taken::Ours);
    }
    if what.packaged {
        return Ok(Taken::Theirs);
    }
    if here.root == dir_obj {
        // The keys of others that have this root stay wrapped as they are.
        let alone = members(tx, dir_obj, dir_obj)?.len() == 1;
        return Ok(if alone { Taken::Theirs } else { Taken::Ours });
    }
    if is_clone(tx, dir_obj)? {
        // It is that of its origin.
        return Ok(Taken::Ours);
    }
    let root = tx.crypto_key(here.root)?;
    let root = root.ok_or_else(|| corrupt(here.root, "an encryption root without a key"))?;
    let opens = |with: &WrappingKey, wrapped| with.unwrap(wrapped).is_ok();
    let loaded = what.keystore.wrapping(here.root);
    if let Some(with) = loaded.filter(|with| opens(with, &root.wrapped)) {
        return Ok(if opens(&with, &keys.wrapped) { Taken::Theirs } else { Taken::Ours });
    }
    // A passphrase that is chosen gets a salt.
    let phrase = (root.format, root.salt, root.iterations);
    Ok(match root.format {
        KeyFormat::Passphrase if phrase == (keys.format, keys.salt, keys.iterations) => {
            Taken::Theirs
        }
        KeyFormat::Passphrase if phrase == (here.format, here.salt, here.iterations) => Taken::Ours,
        _ => Taken::Unknown,
    })
}

/// The encryption root `dir_obj`, if the key that is loaded for it does not open it any more.
///
/// # Errors
/// The MOS cannot be read.
pub fn outdated_root(tx: &mut Tx<'_>, dir_obj: u64, keystore: &Keystore) -> Result<Option<u64>> {
    let Some(key) = tx.crypto_key(dir_obj)?.filter(|key| key.root == dir_obj) else {
        return Ok(None);
    };
    let loaded = keystore.wrapping(dir_obj);
    Ok(loaded.filter(|with| with.unwrap(&key.wrapped).is_err()).map(|_| dir_obj))
}

/// Whether a raw stream goes on from a snapshot here (`dsl_crypto_recv_raw_objset_check`,
/// `dsl_crypto_recv_raw_key_check`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawStart {
    /// It does.
    Right,
    /// The dataset has another key.
    OtherKey,
    /// The snapshot, or the stream, does not tell the set of its initialization vectors.
    NoVectors,
    /// The snapshot has other initialization vectors.
    OtherVectors,
    /// The sender has wrapped the key anew, and it is not known whether the key of the encryption root here opens that.
    OtherWrapping,
}

/// See [`RawStart`]. `from` is the snapshot that the stream starts from, `None` for a full one.
///
/// # Errors
/// The MOS cannot be read.
pub fn check_raw_start(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    from: Option<u64>,
    (keys, what): (&KeyData, &Incoming),
) -> Result<RawStart> {
    match tx.crypto_key(dir_obj)? {
        Some(here) if here.wrapped.guid == keys.wrapped.guid => {
            if taken(tx, dir_obj, &here, (keys, what))? == Taken::Unknown {
                return Ok(RawStart::OtherWrapping);
            }
        }
        _ => return Ok(RawStart::OtherKey),
    }
    let Some(from) = from else { return Ok(RawStart::Right) };
    let vectors = tx.field_number(from, IVSET_GUID)?.unwrap_or(0);
    Ok(match (vectors, keys.from_ivset) {
        (0, _) | (_, 0) => RawStart::NoVectors,
        (here, theirs) if here != theirs => RawStart::OtherVectors,
        _ => RawStart::Right,
    })
}

/// Whether a directory is encrypted.
///
/// # Errors
/// The MOS cannot be read.
pub fn is_encrypted(tx: &mut Tx<'_>, dir_obj: u64) -> Result<bool> {
    Ok(tx.field_number(dir_obj, CRYPTO_KEY)?.is_some())
}

/// The set of initialization vectors of a snapshot; 0: it is not said.
pub(super) fn vectors_of(tx: &mut Tx<'_>, snap_obj: u64) -> Result<u64> {
    Ok(tx.field_number(snap_obj, IVSET_GUID)?.unwrap_or(0))
}

/// A snapshot was received raw: it has the initialization vectors of the sender's.
pub(super) fn received_vectors(tx: &mut Tx<'_>, snap_obj: u64, guid: u64) -> Result<()> {
    tx.zapify(snap_obj)?;
    tx.zap_set(snap_obj, IVSET_GUID, guid)
}

/// A clone has the keys of its origin (`dsl_crypto_key_clone_sync`).
pub(super) fn share(tx: &mut Tx<'_>, dir_obj: u64, origin_dir: u64) -> Result<()> {
    let Some(object) = tx.field_number(origin_dir, CRYPTO_KEY)? else { return Ok(()) };
    let references = tx.zap_number(object, text(REFERENCES))?.unwrap_or(0);
    let more = references.checked_add(1);
    let more = more.ok_or_else(|| corrupt(object, "more references to a key than can be"))?;
    tx.zap_set(object, text(REFERENCES), more)?;
    tx.zapify(dir_obj)?;
    tx.zap_set(dir_obj, CRYPTO_KEY, object)
}

/// A directory goes, and its keys with the last one that has them (`dsl_crypto_key_destroy_sync`).
pub(super) fn release(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    let Some(object) = tx.field_number(dir_obj, CRYPTO_KEY)? else { return Ok(()) };
    match tx.zap_number(object, text(REFERENCES))?.unwrap_or(0) {
        0 => Err(corrupt(object, "a key without references")),
        1 => Ok(tx.mos.free(object)?),
        references => tx.zap_set(object, text(REFERENCES), references - 1),
    }
}

/// A new snapshot of an encrypted dataset has a number for the set of its initialization vectors.
pub(super) fn name_vectors(tx: &mut Tx<'_>, dir_obj: u64, snap_obj: u64) -> Result<()> {
    if tx.field_number(dir_obj, CRYPTO_KEY)?.is_some() && features::is_enabled(tx, BOOKMARKS)? {
        tx.zapify(snap_obj)?;
        let guid = tx.random()?;
        tx.zap_set(snap_obj, IVSET_GUID, guid)?;
    }
    Ok(())
}

/// The encryption root of a directory; `None` if it is not encrypted.
fn root_of(tx: &mut Tx<'_>, dir_obj: u64) -> Result<Option<u64>> {
    Ok(tx.crypto_key(dir_obj)?.map(|key| key.root))
}

/// Whether a directory may move into another one (`dsl_dir_rename_crypt_check`).
pub(super) fn check_move(tx: &mut Tx<'_>, dir_obj: u64, new_parent: u64) -> Result<()> {
    match root_of(tx, dir_obj)? {
        Some(root) if root != dir_obj && root_of(tx, new_parent)? != Some(root) => {
            refused("cannot move encrypted child outside of its encryption root")
        }
        _ => Ok(()),
    }
}

/// Whether a clone may change places with its origin (`dsl_dataset_promote_crypt_check`).
pub(super) fn check_promotion(tx: &mut Tx<'_>, target: u64, origin: u64) -> Result<()> {
    let Some(root) = root_of(tx, origin)? else { return Ok(()) };
    if is_clone(tx, origin)? || root == origin {
        return Ok(());
    }
    let (of_origin, of_target) = (tx.dir(origin)?.parent, tx.dir(target)?.parent);
    let of_origin = root_of(tx, of_origin)?;
    match of_origin.is_some() && of_origin == root_of(tx, of_target)? {
        true => Ok(()),
        false => refused("cannot promote dataset outside its encryption root"),
    }
}

/// A clone that changes places with an encryption root becomes that (`dsl_dataset_promote_crypt_sync`).
pub(super) fn promoted(tx: &mut Tx<'_>, target: u64, origin: u64) -> Result<Option<MovedRoot>> {
    if is_clone(tx, origin)? || root_of(tx, origin)? != Some(origin) {
        return Ok(None);
    }
    if let Some(location) = props::local_text(tx, origin, LOCATION)? {
        props::apply(tx, Target::Dir(target), LOCATION, &NewValue::Text(location))?;
    }
    props::inherit(tx, Target::Dir(origin), LOCATION)?;
    let below = members(tx, origin, origin)?;
    let objects: Vec<u64> = below.into_iter().map(|(_, key)| key.object).collect();
    for object in &objects {
        tx.zap_set(*object, text(ROOT), target)?;
    }
    let now = root_of(tx, origin)?;
    invariant!(now == Some(target), "encryption root {origin} moves to {target}, and has {now:?}");
    Ok(Some(MovedRoot { from: origin, to: target, objects }))
}

/// An encryption root whose place another directory took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedRoot {
    /// What was it.
    pub from: u64,
    /// What is it.
    pub to: u64,
    /// The objects of the keys that have it.
    pub objects: Vec<u64>,
}

fn is_clone(tx: &mut Tx<'_>, dir_obj: u64) -> Result<bool> {
    let origin = tx.dir(dir_obj)?.origin;
    Ok(origin != 0 && Some(origin) != dir::origin_snap(tx)?)
}

/// The directories at and below `from` that have the encryption root `root`, with their keys, each key once.
fn members(tx: &mut Tx<'_>, root: u64, from: u64) -> Result<Vec<(u64, CryptoKey)>> {
    let (mut found, mut todo) = (Vec::new(), vec![(from, false, 0)]);
    while let Some((dir_obj, is_shared, depth)) = todo.pop() {
        if depth > MAX_DEPTH {
            return Err(corrupt(dir_obj, "directories within each other"));
        }
        let Some(key) = tx.crypto_key(dir_obj)? else { continue };
        if !is_shared {
            if key.root != root || is_clone(tx, dir_obj)? && dir_obj != from {
                continue;
            }
            found.push((dir_obj, key));
        }
        let dir = tx.dir(dir_obj)?;
        for child in tx.zap_entries(dir.children)? {
            let is_special = child.name.first().is_some_and(|first| b"$%".contains(first));
            if let Some(child) = child.u64().filter(|_| !is_special) {
                todo.push((child, false, depth + 1));
            }
        }
        // Clones have the keys of their origins, but what is below them has others.
        if dir.clones != 0 {
            for clone in tx.zap_entries(dir.clones)?.iter().filter_map(|entry| entry.u64()) {
                todo.push((tx.dataset(clone)?.dir, true, depth + 1));
            }
        }
    }
    Ok(found)
}

/// What becomes of a dataset's key (`dcp_cmd_t`).
#[derive(Clone, Debug)]
pub enum Change {
    /// It becomes an encryption root, or stays one, with this key. Where that is, if that is said.
    New(RootKey, Option<String>),
    /// It has the key of its parent's encryption root from now on, which is this one.
    Inherit(Arc<WrappingKey>),
}

/// Gives a dataset that came in a raw package the place that it has at the sender: it is an encryption root of its `own`,
/// whose key is at `location`, or has that of its parent (`DCP_CMD_FORCE_NEW_KEY`, `DCP_CMD_FORCE_INHERIT`). Keys stay
/// wrapped as they are, for they came so. Returns the encryption root, if it is another one now, and the objects of the keys
/// that have it.
///
/// # Errors
/// `Invalid`: it is not encrypted, a clone, or its parent is not encrypted.
pub fn force_root(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    own: bool,
    location: Option<&str>,
) -> Result<Option<(u64, Vec<u64>)>> {
    let Some(key) = tx.crypto_key(dir_obj)? else { return refused("Dataset not encrypted.") };
    let parent = tx.dir(dir_obj)?.parent;
    let root = match own {
        true => Some(dir_obj),
        false if parent == 0 => None,
        false => root_of(tx, parent)?,
    };
    let Some(root) = root else { return refused("Parent must be encrypted.") };
    let mut moved = None;
    if root != key.root {
        if is_clone(tx, dir_obj)? {
            return refused("Keys cannot be changed on clones.");
        }
        let members = members(tx, key.root, dir_obj)?;
        let objects: Vec<u64> = members.into_iter().map(|(_, member)| member.object).collect();
        for object in &objects {
            tx.zap_set(*object, text(ROOT), root)?;
        }
        moved = Some((root, objects));
    }
    match own {
        true => {
            let location = NewValue::Text(location.unwrap_or("prompt").into());
            props::apply(tx, Target::Dir(dir_obj), LOCATION, &location)?;
        }
        false => props::inherit(tx, Target::Dir(dir_obj), LOCATION)?,
    }
    Ok(moved)
}

/// Changes the key of a dataset and of all below it that have the same (`spa_keystore_change_key_sync`). `old` is the key
/// that it has. Returns the encryption root from now on, and the objects of the keys that were wrapped anew.
///
/// # Errors
/// `Invalid`: it is not encrypted, a clone, or not what the change takes.
pub fn change(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    old: &WrappingKey,
    change: &Change,
) -> Result<(u64, Vec<u64>)> {
    let Some(key) = tx.crypto_key(dir_obj)? else { return refused("Dataset not encrypted.") };
    if is_clone(tx, dir_obj)? {
        return refused("Keys cannot be changed on clones.");
    }
    let (root, with) = match change {
        Change::New(with, location) => {
            if key.root != dir_obj && location.is_none() {
                return refused("Keyformat required for new encryption root.");
            }
            (dir_obj, with.clone())
        }
        Change::Inherit(wrapping) => {
            let parent = tx.dir(dir_obj)?.parent;
            let above = if parent == 0 { None } else { tx.crypto_key(parent)? };
            let Some(above) = above else { return refused("Parent must be encrypted.") };
            if key.root != dir_obj {
                return refused("Key inheritting can only be performed on encryption roots.");
            }
            if wrapping.unwrap(&above.wrapped).is_err() {
                return refused("Parent key must be loaded.");
            }
            let (format, salt, iterations) = (above.format, above.salt, above.iterations);
            (above.root, RootKey { format, salt, iterations, wrapping: wrapping.clone() })
        }
    };
    let members = members(tx, key.root, dir_obj)?;
    let mut opened = Vec::with_capacity(members.len());
    for (_, member) in &members {
        match old.unwrap(&member.wrapped) {
            Ok(key) => opened.push((member.object, key)),
            Err(_) => return refused("Key must be loaded."),
        }
    }
    for (object, key) in &opened {
        tx.put_key(*object, root, key, &with)?;
    }
    match change {
        Change::New(_, Some(location)) => {
            let location = NewValue::Text(location.clone());
            props::apply(tx, Target::Dir(dir_obj), LOCATION, &location)?;
        }
        Change::New(_, None) => {}
        Change::Inherit(_) => props::inherit(tx, Target::Dir(dir_obj), LOCATION)?,
    }
    Ok((root, opened.into_iter().map(|(object, _)| object).collect()))
}
