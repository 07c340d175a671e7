//! What names of datasets may be (`dataset_namecheck`): the checks that are made before a name is looked up or given.

use super::ChangeError;
use cenote_dsl::dir::MAX_NAME;
use cenote_dsl::tunables::MAX_DATASET_NESTING;

/// Which names are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Names of file systems and volumes.
    pub head: bool,
    /// Names with `@`.
    pub snapshot: bool,
    /// Names with `#`.
    pub bookmark: bool,
}

impl Expected {
    /// A file system or volume.
    pub const HEAD: Expected = Expected { head: true, snapshot: false, bookmark: false };
    /// A snapshot.
    pub const SNAPSHOT: Expected = Expected { head: false, snapshot: true, bookmark: false };
    /// A bookmark.
    pub const BOOKMARK: Expected = Expected { head: false, snapshot: false, bookmark: true };
}

/// Why `name` cannot be the name of what is expected (`entity_namecheck`).
pub fn misnamed(name: &str, expected: Expected) -> Option<String> {
    let only_snapshot = expected.snapshot && !expected.head && !expected.bookmark;
    let only_bookmark = expected.bookmark && !expected.head && !expected.snapshot;
    let why = if !expected.snapshot && name.contains('@') {
        "snapshot delimiter '@' is not expected here"
    } else if only_snapshot && !name.contains('@') {
        "missing '@' delimiter in snapshot name"
    } else if !expected.bookmark && name.contains('#') {
        "bookmark delimiter '#' is not expected here"
    } else if only_bookmark && !name.contains('#') {
        "missing '#' delimiter in bookmark name"
    } else if name.len() > MAX_NAME {
        "name is too long"
    } else if name.starts_with('/') {
        "leading slash in name"
    } else if name.ends_with('/') {
        "trailing slash in name"
    } else if name.matches(['@', '#']).count() > 1 {
        "multiple '@' and/or '#' delimiters in name"
    } else if name.split(['/', '@', '#']).any(str::is_empty) {
        "empty component or misplaced '@' or '#' delimiter in name"
    } else if name.split('/').any(|c| c == ".") {
        "self reference, '.' is found in name"
    } else if name.split('/').any(|c| c == "..") {
        "parent reference, '..' is found in name"
    } else if name.split_once(['@', '#']).is_some_and(|(_, short)| short.contains('/')) {
        "trailing slash in name"
    } else {
        let allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.: %/@#".contains(*c);
        return name
            .chars()
            .find(|c| !allowed(c))
            .map(|c| format!("invalid character '{c}' in name"));
    };
    Some(why.into())
}

/// Checks a name that something is to get (`zfs_name_valid`).
///
/// # Errors
/// [`ChangeError::Name`].
pub fn check_new(name: &str, expected: Expected) -> Result<(), ChangeError> {
    check_form(name, expected)?;
    match depth(name) >= MAX_DATASET_NESTING.get() {
        true => Err(ChangeError::Name("maximum name nesting depth exceeded".into())),
        false => Ok(()),
    }
}

/// Checks the name that a file system or volume is to get in place of `from`. What lies too deep already, may stay
/// as deep.
///
/// # Errors
/// [`ChangeError::Name`].
pub fn check_renamed(from: &str, to: &str) -> Result<(), ChangeError> {
    match depth(to) <= depth(from) {
        true => check_form(to, Expected::HEAD),
        false => check_new(to, Expected::HEAD),
    }
}

fn check_form(name: &str, expected: Expected) -> Result<(), ChangeError> {
    if !name.contains(['@', '#']) || expected.snapshot {
        // What is between `%` is for receives and ranges.
        if name.contains('%') {
            return Err(ChangeError::Name("invalid character % in name".into()));
        }
    }
    if let Some(why) = misnamed(name, expected) {
        return Err(ChangeError::Name(why));
    }
    Ok(())
}

/// How many levels a dataset lies below its pool.
fn depth(name: &str) -> u64 {
    name.split(['@', '#']).next().unwrap_or_default().matches('/').count() as u64
}

/// The parent's name and the last component.
pub(super) fn split(name: &str) -> Result<(&str, &str), ChangeError> {
    name.rsplit_once('/').ok_or_else(|| ChangeError::Name("missing dataset name".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_bad_names() {
        let why = |name: &str| misnamed(name, Expected::HEAD).unwrap_or_default();
        assert_eq!(why("tank@s"), "snapshot delimiter '@' is not expected here");
        assert_eq!(why("tank#s"), "bookmark delimiter '#' is not expected here");
        assert_eq!(why("/tank"), "leading slash in name");
        assert_eq!(why("tank/"), "trailing slash in name");
        assert_eq!(why("tank//a"), "empty component or misplaced '@' or '#' delimiter in name");
        assert_eq!(why("tank/./a"), "self reference, '.' is found in name");
        assert_eq!(why("tank/../a"), "parent reference, '..' is found in name");
        assert_eq!(why("tank/a*"), "invalid character '*' in name");
        assert_eq!(why(&format!("tank/{}", "a".repeat(251))), "name is too long");
        assert_eq!(why("tank/a b:c-d_e.f"), "");
        let snap = |name: &str| misnamed(name, Expected::SNAPSHOT).unwrap_or_default();
        assert_eq!(snap("tank"), "missing '@' delimiter in snapshot name");
        assert_eq!(snap("tank@a@b"), "multiple '@' and/or '#' delimiters in name");
        assert_eq!(snap("tank@a"), "");
    }

    #[test]
    fn new_names_are_not_too_deep_and_without_percent() {
        let deep = format!("tank{}", "/a".repeat(50));
        let why = |name: &str| check_new(name, Expected::HEAD).unwrap_err().to_string();
        assert_eq!(why(&deep), "maximum name nesting depth exceeded");
        assert_eq!(why("tank/%recv"), "invalid character % in name");
        assert!(check_new(&deep[..deep.len() - 2], Expected::HEAD).is_ok());
        assert_eq!(split("tank/a/b").unwrap(), ("tank/a", "b"));
        assert!(split("tank").is_err());
    }
}
