//! Values in words (`zfs_prop_get`): exact and human forms of native properties.

use super::inherit::Value;
use super::table::{Property, Type};
use super::{PropValue, Source, plain};
use crate::human::{date, date_with_seconds, nicebytes, nicenum, ratio};
use crate::{Dataset, Dsl};

impl Dsl {
    /// Puts a value into words; `None` without words for it (an unknown number of an index property).
    pub(super) fn display(
        &self,
        d: &Dataset,
        property: &Property,
        value: Value,
        source: Source,
    ) -> Option<PropValue> {
        match (property.kind, value) {
            (Type::Text(_), Value::Text(text)) if property.name == "mountpoint" => {
                Some(plain(self.mountpoint(d, text, &source), source))
            }
            (Type::Text(_), Value::Text(text)) => Some(plain(text, source)),
            (Type::Index(..), Value::Number(n)) => {
                Some(plain(property.value_name(n)?.to_string(), source))
            }
            (Type::Number(_), Value::Number(n)) => {
                let (exact, human) = number(property.name, n)?;
                Some(PropValue { exact, human, source })
            }
            // Stored with the wrong type.
            (_, Value::Text(_) | Value::Number(_)) => None,
        }
    }

    /// An inherited mount point goes on with the rest of the dataset's name; all are below the
    /// alternate root, if there is one.
    fn mountpoint(&self, d: &Dataset, stored: String, source: &Source) -> String {
        if !stored.starts_with('/') {
            return stored;
        }
        let owner = match source {
            Source::Inherited(owner) => owner.as_str(),
            Source::Default => "",
            _ => d.name.as_str(),
        };
        let rest = d.name.strip_prefix(owner).unwrap_or_default().trim_start_matches('/');
        let root = self.around(|a| a.altroot.clone()).filter(|r| r != "/").unwrap_or_default();
        let below_root = !root.is_empty() || !rest.is_empty();
        let stored = if stored == "/" && below_root { "" } else { stored.as_str() };
        if rest.is_empty() { format!("{root}{stored}") } else { format!("{root}{stored}/{rest}") }
    }
}

/// Exact and human form of a number; `None` for one that stands for "never".
fn number(property: &str, n: u64) -> Option<(String, String)> {
    let human = match property {
        "creation" => date(n),
        "snapshots_changed" | "snapshots_changed_nsecs" if n == 0 => return None,
        "snapshots_changed" => date_with_seconds(n),
        "quota" | "refquota" | "reservation" | "refreservation" if n == 0 => "none".into(),
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count"
            if n == u64::MAX =>
        {
            return Some(("none".into(), "none".into()));
        }
        "compressratio" | "refcompressratio" => {
            let exact = ratio(n);
            let human = format!("{exact}x");
            return Some((exact, human));
        }
        "guid"
        | "keyguid"
        | "ivsetguid"
        | "createtxg"
        | "objsetid"
        | "pbkdf2iters"
        | "snapshots_changed_nsecs" => n.to_string(),
        "quota"
        | "refquota"
        | "reservation"
        | "refreservation"
        | "referenced"
        | "available"
        | "used"
        | "usedbysnapshots"
        | "usedbydataset"
        | "usedbychildren"
        | "usedbyrefreservation" => nicebytes(n),
        _ => nicenum(n),
    };
    Some((n.to_string(), human))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_form_that_their_property_has() {
        let both = |p: &str, n| number(p, n).map(|(e, h)| format!("{e} {h}"));
        assert_eq!(both("used", 30494720).unwrap(), "30494720 29.1M");
        assert_eq!(both("used", 0).unwrap(), "0 0B");
        assert_eq!(both("written", 0).unwrap(), "0 0");
        assert_eq!(both("quota", 0).unwrap(), "0 none");
        assert_eq!(both("snapshot_limit", u64::MAX).unwrap(), "none none");
        assert_eq!(both("compressratio", 691).unwrap(), "6.91 6.91x");
        assert_eq!(both("guid", 12345).unwrap(), "12345 12345");
        assert_eq!(both("snapshots_changed", 0), None);
    }
}
