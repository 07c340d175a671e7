//! Keys for new encryption roots: what users say of them, and where they come from (`zfs_crypto_create`,
//! `zfs_crypto_rewrap`).
//!
//! Nothing here may be called by a command that keeps others waiting (`PoolTable::change`): a user may take any time.

use crate::context::Context;
use crate::keys::{NoKey, check, leave_no_core_dump, material};
use crate::pools::Imported;
use cenote_dmu::outside::Chance;
use cenote_dsl::Dataset;
use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::change::props::is_key_location;
use cenote_engine::change::{NewEncryption, NewKey};
use cenote_format::crypt::{Suite, WrappingKey};
use std::sync::Arc;

/// Iterations of a new passphrase (`DEFAULT_PBKDF2_ITERATIONS`), and the fewest (`MIN_PBKDF2_ITERATIONS`).
const ITERATIONS: u64 = 350_000;
const LEAST_ITERATIONS: u64 = 100_000;
/// The values of the property `encryption`.
const SUITES: [(&str, Option<Suite>); 8] = [
    ("on", Some(Suite::Aes256Gcm)),
    ("off", None),
    ("aes-128-ccm", Some(Suite::Aes128Ccm)),
    ("aes-192-ccm", Some(Suite::Aes192Ccm)),
    ("aes-256-ccm", Some(Suite::Aes256Ccm)),
    ("aes-128-gcm", Some(Suite::Aes128Gcm)),
    ("aes-192-gcm", Some(Suite::Aes192Gcm)),
    ("aes-256-gcm", Some(Suite::Aes256Gcm)),
];
const FORMATS: [(&str, KeyFormat); 3] =
    [("raw", KeyFormat::Raw), ("hex", KeyFormat::Hex), ("passphrase", KeyFormat::Passphrase)];

/// What is asked of a key, in properties.
#[derive(Debug, Default, Clone)]
pub struct Wanted {
    /// `encryption`: a suite, or `off`.
    encryption: Option<Option<Suite>>,
    format: Option<KeyFormat>,
    location: Option<String>,
    iterations: Option<u64>,
}

impl Wanted {
    /// Takes the properties of keys out of `props`.
    ///
    /// # Errors
    /// A value is not right.
    pub fn take(props: &mut Vec<(String, String)>) -> Result<Wanted, String> {
        let mut wanted = Wanted::default();
        let mut wrong = None;
        props.retain(|(name, value)| match wanted.note(name, value) {
            Ok(noted) => !noted,
            Err(why) => {
                wrong.get_or_insert(why);
                true
            }
        });
        wrong.map_or(Ok(wanted), Err)
    }

    /// Whether a property is one of keys.
    fn note(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let one_of = |names: &str| Err(format!("'{name}' must be one of '{names}'"));
        match name {
            // As it is where nothing is encrypted.
            "keyformat" | "keylocation" | "pbkdf2iters" if value == "none" => {}
            "encryption" => match SUITES.iter().find(|(known, _)| *known == value) {
                Some((_, suite)) => self.encryption = Some(*suite),
                None => return one_of(&SUITES.map(|(name, _)| name).join(" | ")),
            },
            "keyformat" => match FORMATS.iter().find(|(known, _)| *known == value) {
                Some((_, format)) => self.format = Some(*format),
                None => return one_of("none | raw | hex | passphrase"),
            },
            "keylocation" => {
                check_location(value)?;
                self.location = Some(value.into());
            }
            "pbkdf2iters" => match value.parse::<u64>() {
                Ok(n) if n < LEAST_ITERATIONS => {
                    return Err(format!("minimum pbkdf2 iterations is {LEAST_ITERATIONS}"));
                }
                Ok(n) if n <= u64::from(u32::MAX) => self.iterations = Some(n),
                _ => return Err(format!("bad numeric value '{value}'")),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn says_more(&self) -> bool {
        self.format.is_some() || self.location.is_some() || self.iterations.is_some()
    }

    /// How a new dataset below `parent` (`None`: a new pool's root) will be encrypted. Asks for the key, if it gets one of its own.
    ///
    /// # Errors
    /// What is missing, or wrong with the key.
    pub fn for_new(
        &self,
        parent: Option<(&Imported, &str)>,
        ctx: &mut Context,
    ) -> Result<NewEncryption, String> {
        let is_below = match parent {
            Some((imported, parent)) => is_encrypted(imported, parent)?,
            None => false,
        };
        let suite = match self.encryption {
            Some(None) | None if self.encryption.is_some() || !is_below => {
                return match self.says_more() {
                    true => {
                        Err("Encryption must be turned on to set encryption properties.".into())
                    }
                    false => Ok(match self.encryption {
                        None => NewEncryption::Inherit(None),
                        Some(_) => NewEncryption::Off,
                    }),
                };
            }
            chosen => chosen.flatten(),
        };
        if !self.says_more() && is_below {
            return Ok(NewEncryption::Inherit(suite));
        }
        let format = self.format.ok_or("Keyformat required for new encryption root.")?;
        if format != KeyFormat::Passphrase && self.iterations.is_some() {
            return Err("'pbkdf2iters' is only for passphrases".into());
        }
        let suite = match (suite, parent) {
            (Some(suite), _) => suite,
            (None, Some((imported, parent))) => suite_of(imported, parent)?,
            (None, None) => Suite::Aes256Gcm,
        };
        let location = self.location.clone().unwrap_or_else(|| "prompt".into());
        let key = root_key(format, &location, self.iterations, None, ctx).map_err(|e| e.why)?;
        Ok(NewEncryption::Root(key, suite, location))
    }

    /// The key that takes the place of the one that `d` has (`zfs_crypto_rewrap`).
    ///
    /// # Errors
    /// What is missing, or wrong with the key.
    pub fn in_place_of(
        &self,
        imported: &Imported,
        d: &Dataset,
        ctx: &mut Context,
    ) -> Result<NewKey, String> {
        let pool = imported.pool();
        let dsl = pool.dsl();
        let read = |e: cenote_dmu::Error| e.to_string();
        let Some(key) = dsl.crypto_key(d).map_err(read)? else {
            return Err("Dataset not encrypted.".into());
        };
        if dsl.origin(d).map_err(read)?.is_some() {
            return Err("Keys cannot be changed on clones.".into());
        }
        let is_root = key.root == d.dir_obj;
        let format = match self.format {
            None if is_root => key.format,
            None => return Err("Keyformat required for new encryption root.".into()),
            Some(format) => format,
        };
        if !dsl.keystore().has(key.root) {
            return Err("Key must be loaded.".into());
        }
        let location = match (&self.location, is_root) {
            (Some(location), _) => location.clone(),
            (None, true) => {
                let found = dsl.get(d, "keylocation").map_err(read)?;
                found.map(|value| value.exact).unwrap_or_default()
            }
            (None, false) => "prompt".into(),
        };
        if format != KeyFormat::Passphrase && self.iterations.is_some() {
            return Err("'pbkdf2iters' is only for passphrases".into());
        }
        let new = root_key(format, &location, self.iterations, Some(&d.name), ctx);
        let new = new.map_err(|e| e.why)?;
        let said = (self.location.is_some() || !is_root).then_some(location);
        Ok(NewKey::Root(new, said))
    }

    /// Whether `encryption` is among what was asked for: it cannot be changed.
    pub fn says_suite(&self) -> bool {
        self.encryption.is_some()
    }
}

/// Whether a place of a key can be (`zfs_prop_valid_keylocation`).
fn check_location(location: &str) -> Result<(), String> {
    match is_key_location(location) {
        true => Ok(()),
        false => Err("invalid keylocation".into()),
    }
}

/// The dataset of this name, or the nearest one above that is there.
fn nearest(imported: &Imported, name: &str) -> Result<Dataset, String> {
    let pool = imported.pool();
    let mut at = name;
    loop {
        match (pool.dsl().find(at).map_err(|e| e.to_string())?, at.rsplit_once('/')) {
            (Some(found), _) => return Ok(found),
            (None, Some((above, _))) => at = above,
            (None, None) => return Err(format!("'{name}': no such pool")),
        }
    }
}

fn is_encrypted(imported: &Imported, parent: &str) -> Result<bool, String> {
    let above = nearest(imported, parent)?;
    imported.pool().dsl().crypto_key(&above).map(|key| key.is_some()).map_err(|e| e.to_string())
}

fn suite_of(imported: &Imported, parent: &str) -> Result<Suite, String> {
    let above = nearest(imported, parent)?;
    let key = imported.pool().dsl().crypto_key(&above).map_err(|e| e.to_string())?;
    Ok(key.map_or(Suite::Aes256Gcm, |key| key.wrapped.suite))
}

/// Reads a new key, and has it typed twice at a terminal.
fn root_key(
    format: KeyFormat,
    location: &str,
    iterations: Option<u64>,
    name: Option<&str>,
    ctx: &mut Context,
) -> Result<RootKey, NoKey> {
    leave_no_core_dump();
    let of = name.map_or_else(String::new, |name| format!(" for '{name}'"));
    let first = |what: &str| format!("Enter new {what}{of}:");
    let second = |what: &str| format!("Re-enter new {what}{of}:");
    let (given, typed) = material(location, &first, format, ctx)?;
    check(format, &given).map_err(NoKey::this_time)?;
    if typed {
        let (again, _) = material(location, &second, format, ctx)?;
        if again.as_slice() != given.as_slice() {
            return Err(NoKey::this_time("Provided keys do not match."));
        }
    }
    let failed = |e: cenote_format::crypt::CryptError| NoKey::for_good(e.to_string());
    let (salt, iterations, wrapping) = match format {
        KeyFormat::Raw => (0, 0, WrappingKey::from_raw(&given).map_err(failed)?),
        KeyFormat::Hex => (0, 0, WrappingKey::from_hex(&given).map_err(failed)?),
        KeyFormat::Passphrase => {
            let salt = Chance::default().number().map_err(|e| NoKey::for_good(e.to_string()))?;
            let iterations = iterations.unwrap_or(ITERATIONS);
            let key = WrappingKey::from_passphrase(&given, salt, iterations).map_err(failed)?;
            (salt, iterations, key)
        }
    };
    Ok(RootKey { format, salt, iterations, wrapping: Arc::new(wrapping) })
}
