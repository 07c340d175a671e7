//! What `sharenfs` and `sharesmb` may say (`sa_validate_shareopts`). Nothing is shared here: the values are kept for
//! systems that share by them.

use super::{ChangeError, Result};

/// Options of exports(5) that need no value that is looked at.
const OPTIONS: [&str; 32] = [
    "all_squash",
    "anon",
    "anongid",
    "anonuid",
    "async",
    "auth_nlm",
    "crossmnt",
    "fsid",
    "fsuid",
    "hide",
    "insecure",
    "insecure_locks",
    "mountpoint",
    "mp",
    "no_acl",
    "no_all_squash",
    "no_auth_nlm",
    "no_root_squash",
    "no_subtree_check",
    "no_wdelay",
    "nohide",
    "nosub",
    "refer",
    "replicas",
    "root_mapping",
    "root_squash",
    "sec",
    "secure",
    "secure_locks",
    "subtree_check",
    "sync",
    "wdelay",
];

/// Checks a value of `sharenfs` or `sharesmb`.
///
/// # Errors
/// It has options that there are not.
pub(super) fn check(name: &str, text: &str) -> Result<()> {
    let good = match (name, text) {
        (_, "on" | "off") => true,
        ("sharenfs", "") => false,
        ("sharenfs", options) => options.split(',').all(is_option),
        _ => false,
    };
    match good {
        true => Ok(()),
        false => Err(ChangeError::Property(format!("'{name}' cannot be set to invalid options"))),
    }
}

fn is_option(option: &str) -> bool {
    let (key, value) = option.split_once('=').unwrap_or((option, ""));
    match key {
        "" => option.is_empty(),
        "ro" | "rw" => are_hosts(value),
        key => OPTIONS.contains(&key),
    }
}

/// Hosts between colons; an address that has colons itself is in brackets.
fn are_hosts(mut hosts: &str) -> bool {
    loop {
        let rest = match hosts.strip_prefix('[') {
            None => hosts.split_once(':').map(|(_, rest)| rest),
            Some(literal) => {
                let Some((_, rest)) = literal.split_once(']') else { return false };
                match rest.split_at_checked(1) {
                    None => None,
                    Some(("/", prefix)) => prefix.split_once(':').map(|(_, rest)| rest),
                    Some((":", rest)) => Some(rest),
                    Some(_) => return false,
                }
            }
        };
        match rest {
            None => return true,
            Some(rest) => hosts = rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_shares() {
        for good in [
            "on",
            "off",
            "rw=@10.0.0.0/8",
            "ro,no_root_squash",
            "rw=[::1]/64:host,sec=sys",
            "ro=a:b:[::2]",
        ] {
            assert!(check("sharenfs", good).is_ok(), "{good}");
        }
        for bad in ["", "ON", "yes", "rw=[::1", "rw=[::1]x", "rw,bogus=1", "=3", "="] {
            let why = check("sharenfs", bad).unwrap_err().to_string();
            assert_eq!(why, "'sharenfs' cannot be set to invalid options", "{bad}");
        }
        assert!(check("sharenfs", &format!("rw={}", ":".repeat(200_000))).is_ok());
        assert!(check("sharesmb", "on").is_ok());
        assert!(check("sharesmb", "rw").is_err());
    }
}
