//! Keys at `https://` and `http://` addresses (`get_key_material_https`).
//!
//! The daemon owns the pools; the address is the user's. So the daemon asks the process of the command
//! ([`Process::ask`](cenote_daemon::context::Process)), which fetches the key in the user's network, with the user's certificates
//! and proxies, and ends soon: what the HTTP client and TLS leave in memory goes with it. Where no daemon is in between the
//! command fetches the key itself.
//!
//! Redirects are followed, but not from `https://` to `http://`. An `http://` address may lead to an `https://` one, so TLS is set up
//! for both. All of it takes [`PATIENCE`] at most. Certificates are those that the
//! system trusts, and what `SSL_CA_CERT_FILE` and `SSL_CA_CERT_PATH` name; `SSL_CLIENT_CERT_FILE` and
//! `SSL_CLIENT_KEY_FILE` are shown to a server that asks for one.
//!
//! Invariants: a process fetches only what a command line that loads or sets keys may be about; no message has
//! anything of what was fetched.

use crate::context::Context;
use crate::keys::{NoKey, leave_no_core_dump, read_key};
use cenote_command::Caller;
use cenote_command::outcome::plain;
use cenote_dsl::crypt::KeyFormat;
use cenote_engine::change::props::is_key_address;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ureq::config::Config;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use zeroize::Zeroizing;

/// How long all of it may take (`CURLOPT_TIMEOUT_MS`).
const PATIENCE: Duration = Duration::from_secs(30);
/// Redirects that are followed.
const MOST_REDIRECTS: u32 = 30;
/// The first byte of an answer: what follows is the key, or why there is none.
const KEY: u8 = 0;
const NO_KEY: u8 = 1;

/// What the command's process is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    /// The address of a key.
    key_at: String,
    /// It is 32 bytes, no line.
    raw: bool,
}

impl Question {
    fn format(&self) -> KeyFormat {
        // A line is a line, whatever is in it.
        if self.raw { KeyFormat::Raw } else { KeyFormat::Passphrase }
    }
}

/// The key material at an address.
pub(crate) fn material(
    location: &str,
    format: KeyFormat,
    ctx: &mut Context,
) -> Result<Zeroizing<Vec<u8>>, NoKey> {
    let Some(process) = &ctx.process else {
        return fetch(location, format, &ctx.caller).map_err(NoKey::for_good);
    };
    let question = Question { key_at: location.into(), raw: format == KeyFormat::Raw };
    let question = serde_json::to_vec(&question).map_err(|e| NoKey::for_good(e.to_string()))?;
    let answer = process.ask(&question).map_err(|e| {
        NoKey::for_good(format!("the key at {location} cannot be fetched: {}", plain(&e)))
    })?;
    let answer = Zeroizing::new(answer);
    match answer.split_first() {
        Some((&KEY, key)) => Ok(Zeroizing::new(key.to_vec())),
        Some((_, why)) => Err(NoKey::for_good(String::from_utf8_lossy(why))),
        None => Err(NoKey::for_good("the command's process does not say")),
    }
}

/// Answers a question of the process that runs the command line `args` of `tool` for this one; `None`: it is about something
/// else.
pub fn answer(question: &[u8], (tool, args): (&str, &[OsString])) -> Option<Vec<u8>> {
    let question: Question = serde_json::from_slice(question).ok()?;
    leave_no_core_dump();
    let fetched = match may_need_keys(tool, args) && is_key_address(&question.key_at) {
        true => fetch(&question.key_at, question.format(), &Caller::of_process()),
        false => Err("the command line asks for no such key".into()),
    };
    let (first, rest) = match &fetched {
        Ok(key) => (KEY, key.as_slice()),
        Err(why) => (NO_KEY, why.as_bytes()),
    };
    let mut answer = Vec::with_capacity(rest.len() + 1);
    answer.push(first);
    answer.extend_from_slice(rest);
    Some(answer)
}

/// Whether a command line may be about keys.
fn may_need_keys(tool: &str, args: &[OsString]) -> bool {
    let command = args.first().and_then(|command| command.to_str()).unwrap_or_default();
    let all: &[&str] = match tool {
        "zfs" => &["load-key", "change-key", "mount", "create", "receive", "recv"],
        "zpool" => &["create", "import"],
        "cenote" => &["ls", "cat", "cp"],
        "mount.zfs" => return true,
        _ => &[],
    };
    all.contains(&command)
}

/// Fetches key material in this process.
fn fetch(location: &str, format: KeyFormat, caller: &Caller) -> Result<Zeroizing<Vec<u8>>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("Failed to connect to {location}: {why}");
    let secure = location.starts_with("https://");
    let config = Config::builder()
        .timeout_global(Some(PATIENCE))
        .max_redirects(MOST_REDIRECTS)
        .max_redirects_will_error(true)
        .https_only(secure)
        .http_status_as_error(false)
        .user_agent("cenote")
        .tls_config(tls(caller)?);
    let agent = config.build().new_agent();
    let mut response = agent.get(location).call().map_err(|e| failed(&e))?;
    let status = response.status().as_u16();
    if !(200..300).contains(&status) {
        return Err(format!("Couldn't GET {location}: {status}"));
    }
    read_key(&mut response.body_mut().as_reader(), format).map_err(|e| failed(&e.why))
}

/// How servers are known, and how this process is known to them.
fn tls(caller: &Caller) -> Result<TlsConfig, String> {
    let var = |name: &str| caller.var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let (file, dir) = (var("SSL_CA_CERT_FILE"), var("SSL_CA_CERT_PATH"));
    let mut roots = Vec::new();
    if let Some(file) = &file {
        roots.extend(certificates(file)?);
    } else {
        let system = rustls_native_certs::load_native_certs().certs;
        roots.extend(system.iter().map(|cert| Certificate::from_der(cert).to_owned()));
    }
    if let Some(dir) = &dir {
        let unread = |e: std::io::Error| format!("{}: {}", dir.display(), plain(&e));
        for entry in fs::read_dir(dir).map_err(unread)? {
            let path = entry.map_err(unread)?.path();
            // Beside certificates there may be lists of revoked ones, and links that lead nowhere.
            roots.extend(
                path.is_file()
                    .then(|| certificates(&path))
                    .and_then(Result::ok)
                    .into_iter()
                    .flatten(),
            );
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = match var("SSL_CLIENT_CERT_FILE") {
        None => None,
        Some(file) => {
            // As for curl the key may be in the same file.
            let key_file = var("SSL_CLIENT_KEY_FILE").unwrap_or_else(|| file.clone());
            let (key, chain) = (private_key(&key_file)?, certificates(&file)?);
            // The HTTP client takes for granted that they belong together, and are what they say.
            let all = chain.iter().map(|one| CertificateDer::from(one.der().to_vec())).collect();
            CertifiedKey::from_der(all, key.to_check, &provider).map_err(|e| {
                let of_chain = matches!(e, rustls::Error::InvalidCertificate(_));
                format!("{}: {e}", if of_chain { &file } else { &key_file }.display())
            })?;
            Some(ClientCert::new_with_certs(&chain, key.to_use))
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn pem(path: &PathBuf) -> Result<Zeroizing<Vec<u8>>, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {}", path.display(), plain(&e)))?;
    Ok(Zeroizing::new(bytes))
}

/// The certificates in a file.
fn certificates(path: &PathBuf) -> Result<Vec<Certificate<'static>>, String> {
    let bytes = pem(path)?;
    let found = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    match found.collect::<Vec<_>>() {
        none if none.is_empty() => Err(format!("{}: no certificate in PEM form", path.display())),
        found => Ok(found),
    }
}

/// A private key, as the HTTP client and as TLS have it.
struct Key {
    to_use: PrivateKey<'static>,
    to_check: PrivateKeyDer<'static>,
}

fn private_key(path: &PathBuf) -> Result<Key, String> {
    let bytes = pem(path)?;
    match (PrivateKey::from_pem(&bytes), PrivateKeyDer::from_pem_slice(&bytes)) {
        (Ok(to_use), Ok(to_check)) => Ok(Key { to_use, to_check }),
        _ => Err(format!("{}: no private key in PEM form", path.display())),
    }
}
