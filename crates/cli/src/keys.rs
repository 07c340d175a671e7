//! Keys of encrypted datasets: from a user to a pool (`libzfs_crypto.c`).
//!
//! A key is prompted for, or read from standard input if that is no terminal, or from a file, or fetched from an address
//! (`keylocation`; [`key_fetch`]). What is
//! typed at a terminal is not shown, and a wrong one may be typed again. Key material is wiped after use; no message has
//! any of it.
//!
//! Nothing here may be called by a command that keeps others waiting (`PoolTable::change`): a user may take any time.

use crate::context::Context;
use crate::key_fetch;
use crate::pools::Imported;
use cenote_command::outcome::plain;
use cenote_dsl::crypt::{CryptoKey, KeyError, KeyFormat};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::Engine;
use cenote_engine::change::props::is_key_address;
use cenote_format::crypt::{HEX_LEN, PASSPHRASE_MAX, PASSPHRASE_MIN, WRAPPING_LEN, WrappingKey};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How often a key may be typed.
const ATTEMPTS: usize = 3;
/// Most bytes of a line with a key: more than any key has.
const MAX_LINE: usize = 4096;

/// How a key is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadKey {
    /// It is only checked (`-n`).
    pub verify: bool,
    /// Where it is, other than where `keylocation` says (`-L`).
    pub location: Option<String>,
}

/// Why there is no key: what to say, and whether another try may go better.
pub(crate) struct NoKey {
    pub(crate) why: String,
    pub(crate) again: bool,
}

impl NoKey {
    pub(crate) fn for_good(why: impl Into<String>) -> NoKey {
        NoKey { why: why.into(), again: false }
    }

    pub(crate) fn this_time(why: impl Into<String>) -> NoKey {
        NoKey { why: why.into(), again: true }
    }
}

/// Loads the key of an encryption root (`zfs_crypto_load_key`). Returns whether it is loaded; if not, why was said.
pub fn load(imported: &Imported, d: &Dataset, how: &LoadKey, ctx: &mut Context) -> bool {
    if ctx.caller.is_delegated() {
        ctx.complain("Key load error: Permission denied.");
        return false;
    }
    for attempt in 1..=ATTEMPTS {
        match try_to_load(imported, d, how, ctx) {
            Ok(()) => return true,
            Err(NoKey { why, again }) => {
                ctx.complain(format_args!("Key load error: {why}"));
                if !again || attempt == ATTEMPTS || ctx.cancelled() {
                    break;
                }
            }
        }
    }
    false
}

/// From now on the process leaves no core dump: in it would be keys of blocks, and what was decrypted. The limit of one byte
/// is heeded by programs that take dumps as well (core(5)), which one of nothing is not.
pub(crate) fn leave_no_core_dump() {
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(limit.maximum.map_or(1, |most| most.min(1)));
    if let Err(e) = setrlimit(Resource::Core, limit) {
        tracing::warn!("a core dump of this process would have keys in it: {e}");
    }
}

fn try_to_load(
    imported: &Imported,
    d: &Dataset,
    how: &LoadKey,
    ctx: &mut Context,
) -> Result<(), NoKey> {
    let pool = imported.pool();
    let dsl = pool.dsl();
    let read = |e: cenote_dmu::Error| NoKey::for_good(e.to_string());
    if !pool.features().is_enabled("encryption") {
        return Err(NoKey::for_good("Encryption feature not enabled."));
    }
    let Some(key) = dsl.crypto_key(d).map_err(read)? else {
        return Err(NoKey::for_good(format!("'{}' is not encrypted.", d.name)));
    };
    if key.root != d.dir_obj {
        let root = dsl.encryption_root(d).map_err(read)?.unwrap_or_default();
        let why = format!("Keys must be loaded for encryption root of '{}' ({root}).", d.name);
        return Err(NoKey::for_good(why));
    }
    let location = match &how.location {
        Some(location) => location.clone(),
        None => {
            let found = dsl.get(d, "keylocation").map_err(read)?;
            found.map(|value| value.exact).unwrap_or_default()
        }
    };
    if !how.verify && dsl.keystore().has(key.root) {
        return Err(NoKey::for_good(format!("Key already loaded for '{}'.", d.name)));
    }
    leave_no_core_dump();
    let ask = |what: &str| format!("Enter {what} for '{}':", d.name);
    let (material, typed) = material(&location, &ask, key.format, ctx)?;
    let again = |why: String| NoKey { why, again: typed };
    check(key.format, &material).map_err(again)?;
    let wrapping = wrapping(&key, &material).map_err(again)?;
    let loaded = match how.verify {
        true => dsl.verify_key(d, &wrapping),
        false => dsl.load_key(d, wrapping),
    };
    loaded.map_err(|e| NoKey {
        again: typed && matches!(e, KeyError::Incorrect(_)),
        why: e.to_string(),
    })
}

/// The wrapping key of key material that was checked (`derive_key`).
fn wrapping(key: &CryptoKey, material: &[u8]) -> Result<WrappingKey, String> {
    let made = match key.format {
        KeyFormat::Raw => WrappingKey::from_raw(material),
        KeyFormat::Hex => WrappingKey::from_hex(material),
        KeyFormat::Passphrase => WrappingKey::from_passphrase(material, key.salt, key.iterations),
    };
    made.map_err(|e| e.to_string())
}

/// Whether key material has the right form (`validate_key`).
pub(crate) fn check(format: KeyFormat, material: &[u8]) -> Result<(), String> {
    let sized = |what: &str, expected: usize| match material.len() {
        n if n < expected => Err(format!("{what} key too short (expected {expected}).")),
        n if n > expected => Err(format!("{what} key too long (expected {expected}).")),
        _ => Ok(()),
    };
    match format {
        KeyFormat::Raw => sized("Raw", WRAPPING_LEN),
        KeyFormat::Hex => {
            sized("Hex", HEX_LEN)?;
            match material.iter().all(u8::is_ascii_hexdigit) {
                true => Ok(()),
                false => Err("Invalid hex character detected.".into()),
            }
        }
        KeyFormat::Passphrase => match material.len() {
            n if n > PASSPHRASE_MAX => Err(format!("Passphrase too long (max {PASSPHRASE_MAX}).")),
            n if n < PASSPHRASE_MIN => Err(format!("Passphrase too short (min {PASSPHRASE_MIN}).")),
            _ => Ok(()),
        },
    }
}

/// The key material at a location, or what is typed when `ask` asks for it (a passphrase or a hex key), and whether it was typed (`get_key_material`).
pub(crate) fn material(
    location: &str,
    ask: &dyn Fn(&str) -> String,
    format: KeyFormat,
    ctx: &mut Context,
) -> Result<(Zeroizing<Vec<u8>>, bool), NoKey> {
    if location == "prompt" {
        return match ctx.caller.terminal.input {
            true => typed(ask, format, ctx).map(|material| (material, true)),
            false => {
                let Some(input) = &mut ctx.input else {
                    return Err(NoKey::for_good("there is no standard input to read it from"));
                };
                Ok((read_key(input, format)?, false))
            }
        };
    }
    let Some((scheme, _)) = location.split_once("://") else {
        return Err(NoKey::for_good("Invalid keylocation"));
    };
    if is_key_address(location) {
        return key_fetch::material(location, format, ctx).map(|material| (material, false));
    }
    if scheme != "file" {
        return Err(NoKey::for_good("URI scheme is not supported"));
    }
    let path = location.strip_prefix("file://").unwrap_or_default();
    let failed =
        |why: &str| NoKey::for_good(format!("Failed to open key material file: {why}: {path}"));
    // To open a pipe could take for ever.
    let regular = std::fs::metadata(path).map(|found| found.is_file());
    if !regular.map_err(|e| failed(&plain(&e)))? {
        return Err(failed("not a regular file"));
    }
    let mut file = File::open(path).map_err(|e| failed(&plain(&e)))?;
    Ok((read_key(&mut file, format)?, false))
}

/// Reads key material: a line without its end, or for a raw key all there is, up to one byte more than a key has
/// (`get_key_material_raw`).
pub(crate) fn read_key(
    from: &mut dyn Read,
    format: KeyFormat,
) -> Result<Zeroizing<Vec<u8>>, NoKey> {
    let most = if format == KeyFormat::Raw { WRAPPING_LEN + 1 } else { MAX_LINE };
    // No allocation is left behind that was too small.
    let mut material = Zeroizing::new(Vec::with_capacity(most));
    let mut byte = Zeroizing::new([0u8; 1]);
    while material.len() < most {
        match from.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if format != KeyFormat::Raw && byte[0] == b'\n' => break,
            Ok(_) => material.push(byte[0]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(NoKey::for_good(plain(&e))),
        }
    }
    Ok(material)
}

/// Has the user type a key (`libzfs_getpassphrase`).
fn typed(
    ask: &dyn Fn(&str) -> String,
    format: KeyFormat,
    ctx: &mut Context,
) -> Result<Zeroizing<Vec<u8>>, NoKey> {
    let what = match format {
        KeyFormat::Raw => return Err(NoKey::for_good("Cannot enter raw keys on the terminal")),
        KeyFormat::Hex => "hex key",
        KeyFormat::Passphrase => "passphrase",
    };
    let Some(input) = &mut ctx.input else {
        return Err(NoKey::for_good("there is no standard input to read it from"));
    };
    let hidden = input.hidden().map_err(|e| {
        NoKey::for_good(format!("what is typed would be shown ({}): pipe it in", plain(&e)))
    })?;
    let prompted = write!(ctx.out, "{}", ask(what));
    let prompted = prompted.and_then(|()| ctx.out.flush());
    let typed = match prompted {
        Ok(()) => read_key(input, format),
        Err(e) => Err(NoKey::for_good(plain(&e))),
    };
    drop(hidden);
    // The end of the line was not shown either.
    let _ = writeln!(ctx.out);
    let typed = typed?;
    if ctx.cancelled() {
        return Err(NoKey::for_good("interrupted"));
    }
    match typed.is_empty() {
        true => Err(NoKey::this_time(format!("no {what} was entered"))),
        false => Ok(typed),
    }
}

/// Unloads the key of an encryption root (`zfs_crypto_unload_key`), while no other command mounts anything. Returns
/// whether it is unloaded; if not, why was said.
pub fn unload(imported: &Imported, d: &Dataset, ctx: &mut Context) -> bool {
    match try_to_unload(imported, d, ctx) {
        Ok(()) => true,
        Err(why) => {
            ctx.complain(format_args!("Key unload error: {why}"));
            false
        }
    }
}

fn try_to_unload(imported: &Imported, d: &Dataset, ctx: &Context) -> Result<(), String> {
    if ctx.caller.is_delegated() {
        return Err("Permission denied.".into());
    }
    let pool = imported.pool();
    let dsl = pool.dsl();
    let read = |e: cenote_dmu::Error| e.to_string();
    if !pool.features().is_enabled("encryption") {
        return Err("Encryption feature not enabled.".into());
    }
    let Some(key) = dsl.crypto_key(d).map_err(read)? else {
        return Err(format!("'{}' is not encrypted.", d.name));
    };
    if key.root != d.dir_obj {
        let root = dsl.encryption_root(d).map_err(read)?.unwrap_or_default();
        return Err(format!("Keys must be unloaded for encryption root of '{}' ({root}).", d.name));
    }
    let uses = |name: &str| {
        // What cannot be read may use it.
        let Ok(Some(mounted)) = dsl.find(name) else { return true };
        dsl.crypto_key(&mounted).map_or(true, |of| of.is_some_and(|of| of.root == key.root))
    };
    // Refused first: connections that end do not come back.
    if dsl.is_key_loaded(d).map_err(read)? == Some(false) {
        return Err(KeyError::Unloaded(d.name.clone()).to_string());
    }
    let lingering = imported.mounts.lingering();
    let used = |engine: &Arc<Engine>| engine.uses_key(d, &|name| lingering.contains(name));
    let used = imported.engine().map_or(Ok(false), used).map_err(|e| e.to_string())?;
    let mut in_use = imported.mounts.mounted(&uses);
    if !used && in_use.is_empty() {
        in_use = imported.mounts.uses(&uses, &*ctx.agent());
    }
    if used || !in_use.is_empty() {
        let named = in_use.into_iter().find_map(|used| Some((used.name, used.by?)));
        let by = named.map(|(name, by)| format!(": {by} uses '{name}'")).unwrap_or_default();
        return Err(format!("'{}' is busy{by}.", d.name));
    }
    match imported.engine() {
        Some(engine) => engine.unload_key(d).map_err(|e| e.to_string()),
        None => dsl.unload_key(d).map_err(|e| e.to_string()),
    }
}

/// Loads the keys that are needed to open `all` and are not loaded. Returns whether all of them are; what failed was said.
pub fn load_for(imported: &Imported, all: &[Dataset], how: &LoadKey, ctx: &mut Context) -> bool {
    let (mut good, mut tried) = (true, Vec::new());
    for d in all {
        let pool = imported.pool();
        if d.kind == DatasetKind::Bookmark
            || !matches!(pool.dsl().is_key_loaded(d), Ok(Some(false)))
        {
            continue;
        }
        let root = pool.dsl().encryption_root(d).ok().flatten();
        let root = root.and_then(|root| pool.dsl().find(&root).ok().flatten());
        if let Some(root) = root.filter(|root| !tried.contains(&root.dir_obj)) {
            tried.push(root.dir_obj);
            good &= load(imported, &root, how, ctx);
        }
        if ctx.cancelled() {
            return false;
        }
    }
    good
}

/// The encryption roots at and below a dataset, parents first.
pub fn roots(imported: &Imported, below: &Dataset) -> cenote_dmu::Result<Vec<Dataset>> {
    /// Datasets below one another.
    const MAX_DEPTH: usize = 128;
    let pool = imported.pool();
    let (mut found, mut todo) = (Vec::new(), vec![(below.clone(), 0)]);
    while let Some((d, depth)) = todo.pop() {
        if depth < MAX_DEPTH {
            let children = pool.dsl().children(&d)?;
            todo.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
        if pool.dsl().crypto_key(&d)?.is_some_and(|key| key.root == d.dir_obj) {
            found.push(d);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_material_is_a_line_or_32_bytes() {
        let line = |mut bytes: &[u8], format| read_key(&mut bytes, format).ok().unwrap().to_vec();
        assert_eq!(line(b"phrase\nmore", KeyFormat::Passphrase), b"phrase");
        assert_eq!(line(b"phrase", KeyFormat::Passphrase), b"phrase");
        assert_eq!(line(&[b'\n'; 40], KeyFormat::Raw), [b'\n'; 33]);
        assert_eq!(line(&[b'x'; 9000], KeyFormat::Hex).len(), MAX_LINE);
    }

    #[test]
    fn key_material_is_checked_in_openzfs_words() {
        let why = |format, bytes: &[u8]| check(format, bytes).unwrap_err();
        assert_eq!(why(KeyFormat::Raw, &[0; 31]), "Raw key too short (expected 32).");
        assert_eq!(why(KeyFormat::Raw, &[0; 33]), "Raw key too long (expected 32).");
        assert_eq!(why(KeyFormat::Hex, &[b'a'; 63]), "Hex key too short (expected 64).");
        assert_eq!(why(KeyFormat::Hex, &[b'x'; 64]), "Invalid hex character detected.");
        assert_eq!(why(KeyFormat::Passphrase, b"short"), "Passphrase too short (min 8).");
        assert_eq!(why(KeyFormat::Passphrase, &[b'x'; 513]), "Passphrase too long (max 512).");
        assert!(check(KeyFormat::Passphrase, b"eight by").is_ok());
    }
}
