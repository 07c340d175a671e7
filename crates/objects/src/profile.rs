//! Credentials in the shared file of the tools for S3 (`~/.aws/credentials`).
//!
//! The file has sections, one for each profile: `[default]`, then lines `aws_access_key_id = ...`, `aws_secret_access_key = ...` and
//! maybe `aws_session_token = ...`. It is read again when it has changed: so credentials are renewed while a pool is in use.
//! `AWS_SHARED_CREDENTIALS_FILE` names another file, `AWS_PROFILE` another profile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use object_store::aws::AwsCredential;
use object_store::client::CredentialProvider;
use parking_lot::Mutex;

use crate::network::{Environment, visible};

/// Longest file that is read: 1 MiB.
const MOST: u64 = 1 << 20;

/// The profile of a file.
pub(crate) struct Profile {
    file: PathBuf,
    name: String,
    /// What was read last, and when the file was changed before that.
    known: Mutex<Option<(SystemTime, Arc<AwsCredential>)>>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "profile '{}' of {}", self.name, self.file.display())
    }
}

impl Profile {
    /// The one that an environment names; None if neither file nor profile was named, and there is no file, or no section `default` in it:
    /// others may have credentials for this host then.
    ///
    /// # Errors
    /// What was named does not exist; the file cannot be read; the profile has no credentials of its own.
    pub fn of(environment: &Environment) -> Result<Option<Self>, String> {
        let named = environment.get("AWS_PROFILE").map(String::from);
        let home = || Some(Path::new(environment.get("HOME")?).join(".aws/credentials"));
        let file = environment.get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let Some(file) = file.or_else(home) else { return Ok(None) };
        let is_named = named.is_some() || environment.get("AWS_SHARED_CREDENTIALS_FILE").is_some();
        let name = named.unwrap_or_else(|| "default".into());
        let profile = Self { file, name, known: Mutex::new(None) };
        match profile.read() {
            Ok(_) => Ok(Some(profile)),
            Err(why) if is_named || !why.is_absent => Err(why.text),
            Err(_) => Ok(None),
        }
    }

    fn read(&self) -> Result<Arc<AwsCredential>, Unread> {
        let cannot = |why: &dyn std::fmt::Display, is_absent| Unread {
            text: format!("profile '{}' of {}: {why}", self.name, self.file.display()),
            is_absent,
        };
        let gone = |e: std::io::Error| cannot(&e, e.kind() == std::io::ErrorKind::NotFound);
        let facts = self.file.metadata().map_err(gone)?;
        let changed = facts.modified().map_err(gone)?;
        let mut known = self.known.lock();
        if let Some((then, credential)) = &*known
            && *then == changed
        {
            return Ok(credential.clone());
        }
        if facts.len() > MOST {
            return Err(cannot(&"the file is too long", false));
        }
        let text = std::fs::read_to_string(&self.file).map_err(gone)?;
        let found = section(&text, &self.name).map_err(|why| cannot(&why, why == NO_PROFILE))?;
        let credential = Arc::new(found);
        *known = Some((changed, credential.clone()));
        Ok(credential)
    }
}

const NO_PROFILE: &str = "there is no such profile";

/// Why a profile has no credentials.
#[derive(Debug)]
struct Unread {
    text: String,
    /// There is no such file, or no such profile in it.
    is_absent: bool,
}

/// The credentials in a section.
fn section(text: &str, name: &str) -> Result<AwsCredential, &'static str> {
    let (mut within, mut is_there) = (false, false);
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            within = section.trim() == name;
            is_there |= within;
            continue;
        }
        let Some((setting, value)) = line.split_once('=').filter(|_| within) else { continue };
        let value = Some(value.trim().to_string()).filter(|value| !value.is_empty());
        match setting.trim() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    match (key_id, secret_key) {
        _ if !is_there => Err(NO_PROFILE),
        (Some(key_id), Some(secret_key)) => {
            for part in [Some(&key_id), Some(&secret_key), token.as_ref()].into_iter().flatten() {
                let wrong = |_| "its credentials have letters that no credentials have";
                visible("", part).map_err(wrong)?;
            }
            Ok(AwsCredential { key_id, secret_key, token })
        }
        _ => Err("it has no aws_access_key_id and aws_secret_access_key"),
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Profile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.read().map_err(|why| object_store::Error::Unauthenticated {
            path: String::new(),
            source: why.text.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = "# a comment\n[default]\naws_access_key_id = A\naws_secret_access_key=s=1\n\n[ other ]\n\
                        aws_access_key_id=B\naws_secret_access_key = t\naws_session_token = u\n[empty]\n";

    #[test]
    fn sections_are_told_apart() {
        let one = section(TEXT, "default").unwrap();
        assert_eq!((one.key_id.as_str(), one.secret_key.as_str(), one.token), ("A", "s=1", None));
        let one = section(TEXT, "other").unwrap();
        assert_eq!((one.key_id.as_str(), one.token.as_deref()), ("B", Some("u")));
        assert!(section(TEXT, "empty").unwrap_err().contains("it has no"));
        assert!(section(TEXT, "none").unwrap_err().contains("no such profile"));
    }

    #[test]
    fn a_file_that_changed_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        std::fs::write(&file, TEXT).unwrap();
        let profile =
            Profile { file: file.clone(), name: "default".into(), known: Mutex::new(None) };
        assert_eq!(profile.read().unwrap().key_id, "A");
        std::fs::write(&file, TEXT.replace("= A", "= C")).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        assert_eq!(profile.read().unwrap().key_id, "C");
        std::fs::remove_file(&file).unwrap();
        assert!(profile.read().is_err());
    }
}
