//! Properties: what `zfs get` shows (`dsl_prop_get_all`).
//!
//! | kind | examples | from |
//! |---|---|---|
//! | native, stored | `compression`, `quota` | property ZAPs (`inherit`), the [`table`]'s default |
//! | native, computed | `used`, `origin`, `version` | `computed` |
//! | user | `com.example:note` | property ZAPs |
//! | of a user, group or project | `userused@alice` | `userspace` |
//! | relative | `written@snap`, `written#mark` | [`space`](crate::space) |
//!
//! Every value has an exact form (`zfs get -p`) and a human one, and a [`Source`].
//!
//! Not offered: the properties of the development version after OpenZFS 2.4.

pub(crate) mod computed;
mod display;
mod inherit;
pub mod table;
mod userspace;
mod values;

use crate::{Dataset, DatasetKind, Dsl, Mountings};
use cenote_dmu::Result;
pub(crate) use inherit::LocalProps;
use inherit::Value;
use std::cell::OnceCell;
use table::{Property, Type};
pub use userspace::{Account, NotAQuota, QuotaOf, Who, families, is_userspace, owner_of, quota_of};

/// A value with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropValue {
    /// As `zfs get -p` prints it.
    pub exact: String,
    /// As `zfs get` prints it.
    pub human: String,
    /// Where it comes from.
    pub source: Source,
}

/// Where a value comes from (`zprop_source_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: it is computed.
    None,
    /// It is not set.
    Default,
    /// It is set on the dataset itself.
    Local,
    /// It is set, or was received, on the dataset of this name.
    Inherited(String),
    /// It came with a stream that was received into the dataset.
    Received,
    /// It holds while the dataset is mounted.
    Temporary,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::None => f.write_str("-"),
            Source::Default => f.write_str("default"),
            Source::Local => f.write_str("local"),
            Source::Inherited(from) => write!(f, "inherited from {from}"),
            Source::Received => f.write_str("received"),
            Source::Temporary => f.write_str("temporary"),
        }
    }
}

/// Whether `name` has the form of a user property: lower-case letters, digits and `-_.:`, with
/// a colon.
pub fn is_user(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.:".contains(c);
    name.contains(':') && name.chars().all(valid)
}

/// Whether `name` asks for what was written since a snapshot or bookmark.
pub fn is_written(name: &str) -> bool {
    name.starts_with("written@") || name.starts_with("written#")
}

/// Properties that say nothing of the source of a stored value but "local".
const LOCAL_UNLESS_DEFAULT: [&str; 10] = [
    "canmount",
    "volsize",
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "filesystem_limit",
    "snapshot_limit",
    "filesystem_count",
    "snapshot_count",
];
/// Properties that a mount option overrides, with the options for 1 and 0.
const MOUNT_OPTIONS: [(&str, &str, &str); 8] = [
    ("atime", "atime", "noatime"),
    ("relatime", "relatime", "norelatime"),
    ("devices", "dev", "nodev"),
    ("exec", "exec", "noexec"),
    ("readonly", "ro", "rw"),
    ("setuid", "suid", "nosuid"),
    ("xattr", "xattr", "noxattr"),
    ("nbmand", "mand", "nomand"),
];

impl Dsl {
    /// One property, native (`compression`), user (`com.x:y`) or parametrized (`userused@alice`,
    /// `written@snap`), as `zfs get` shows it (`dsl_prop_get`, `dsl_prop_get_ds`); `None` where it shows `-`: the
    /// property does not apply or has no value.
    ///
    /// # Errors
    /// Something that the value is computed from cannot be read.
    pub fn get(&self, d: &Dataset, prop: &str) -> Result<Option<PropValue>> {
        self.get_as_mounted(d, prop, &|name| self.mount_options(name))
    }

    /// The same, where `mounts` knows what is mounted: for a caller that asks about many datasets or properties.
    ///
    /// # Errors
    /// As for [`Dsl::get`].
    pub fn get_as_mounted(
        &self,
        d: &Dataset,
        prop: &str,
        mounts: Mountings<'_>,
    ) -> Result<Option<PropValue>> {
        if let Some(property) = table::find(prop) {
            self.native(d, property, mounts)
        } else if is_userspace(prop) {
            if d.kind == DatasetKind::Bookmark { Ok(None) } else { self.userspace(d, prop) }
        } else if is_written(prop) {
            self.written_property(d, prop)
        } else if d.kind == DatasetKind::Bookmark || !is_user(prop) {
            Ok(None)
        } else {
            let stored = self.stored(d, prop, None)?;
            Ok(stored.and_then(|(value, source)| match value {
                Value::Text(text) => Some(plain(text, source)),
                Value::Number(_) => None,
            }))
        }
    }

    /// All properties that `zfs get all` shows, in its order (`dsl_prop_get_all`): native ones, then user ones. One
    /// that cannot be read is left out and logged.
    pub fn get_all(&self, d: &Dataset) -> Result<Vec<(String, PropValue)>> {
        let options = OnceCell::new();
        let look = |name: &str| options.get_or_init(|| self.mount_options(name)).clone();
        self.get_all_as_mounted(d, &look)
    }

    /// The same, where `mounts` knows what is mounted.
    ///
    /// # Errors
    /// As for [`Dsl::get_all`].
    pub fn get_all_as_mounted(
        &self,
        d: &Dataset,
        mounts: Mountings<'_>,
    ) -> Result<Vec<(String, PropValue)>> {
        let mut all = Vec::new();
        for property in table::PROPERTIES.iter().filter(|p| p.visible) {
            match self.native(d, property, mounts) {
                Ok(Some(value)) if shown_unasked(property, &value) => {
                    all.push((property.name.to_string(), value));
                }
                Ok(_) => {}
                Err(e) => tracing::warn!("{} of {}: {e}", property.name, d.name),
            }
        }
        if d.kind != DatasetKind::Bookmark {
            let user = self.user_props(d)?;
            all.extend(user.into_iter().map(|(name, text, source)| (name, plain(text, source))));
        }
        Ok(all)
    }

    /// The value that came with a received stream, hidden by a local one or not (the column
    /// `RECEIVED` of `zfs get`).
    ///
    /// # Errors
    /// The property lists cannot be read.
    pub fn received(&self, d: &Dataset, prop: &str) -> Result<Option<PropValue>> {
        if d.kind == DatasetKind::Bookmark {
            return Ok(None);
        }
        let Some(value) = self.stored_received(d, prop)? else { return Ok(None) };
        Ok(match (table::find(prop), value) {
            (Some(property), value) => self.display(d, property, value, Source::Received),
            (None, Value::Text(text)) => Some(plain(text, Source::Received)),
            (None, Value::Number(_)) => None,
        })
    }

    fn native(
        &self,
        d: &Dataset,
        property: &Property,
        mounts: Mountings<'_>,
    ) -> Result<Option<PropValue>> {
        if !property.applies_to.contains(d.kind) {
            return Ok(None);
        }
        let numeric = !matches!(property.kind, Type::Text(_));
        // What does not apply to the file system or volume does not apply to its snapshots.
        if numeric && d.kind == DatasetKind::Snapshot && property.applies_to != table::SNAPSHOT_ONLY
        {
            let head = self.kind_of_head(d)?;
            if property.name != "creation" && !property.applies_to.contains(head) {
                return Ok(None);
            }
        }
        if property.name == "mounted" {
            let mounted = if mounts(&d.name).is_some() { "yes" } else { "no" };
            return Ok(Some(plain(mounted.into(), Source::None)));
        }
        let Some((value, source)) = self.value(d, property)? else { return Ok(None) };
        let (value, source) = with_mount_options(d, property, (value, source), mounts);
        Ok(self.display(d, property, value, source))
    }

    /// The value before it is put into words.
    fn value(&self, d: &Dataset, property: &Property) -> Result<Option<(Value, Source)>> {
        let computed = self.computed(d, property)?;
        let stored = match d.kind {
            DatasetKind::Bookmark => None,
            _ => self.stored(d, property.name, Some(property))?,
        };
        Ok(match (computed, stored) {
            (Some(value), Some((_, source))) => Some((value, source)),
            (Some(value), None) => {
                let source = source_of_computed(property, &value);
                Some((value, source))
            }
            (None, Some(stored)) => Some(stored),
            (None, None) => default_of(property).map(|value| (value, Source::Default)),
        })
    }

    fn mount_options(&self, name: &str) -> Option<String> {
        let mounts = self.around(|a| a.mounts.clone())?;
        mounts(name)
    }

    /// `written@snap` (of the same file system), `written@pool/fs@snap`, and the same with `#`.
    fn written_property(&self, d: &Dataset, prop: &str) -> Result<Option<PropValue>> {
        if d.kind == DatasetKind::Bookmark {
            return Ok(None);
        }
        // The mark goes with a short name; a full name has its own.
        let (_, marked) = prop.split_at("written".len());
        let name = match marked.get(1..) {
            Some(full) if full.contains(['@', '#']) => full.to_string(),
            _ => format!("{}{marked}", d.head_name()),
        };
        let Some(earlier) = self.find(&name)? else { return Ok(None) };
        Ok(self.written_since(d, &earlier)?.map(|bytes| PropValue {
            exact: bytes.to_string(),
            human: crate::human::nicebytes(bytes),
            source: Source::Local,
        }))
    }
}

/// A value, if no option of the dataset's mount overrides it.
fn with_mount_options(
    d: &Dataset,
    property: &Property,
    (value, source): (Value, Source),
    mounts: Mountings<'_>,
) -> (Value, Source) {
    let Some((_, on, off)) = MOUNT_OPTIONS.iter().find(|(name, ..)| *name == property.name) else {
        return (value, source);
    };
    let Some(options) = mounts(&d.name) else { return (value, source) };
    let has = |option: &str| options.split(',').any(|o| o == option);
    match value {
        Value::Number(0) if has(on) => (Value::Number(1), Source::Temporary),
        Value::Number(n) if n != 0 && has(off) => (Value::Number(0), Source::Temporary),
        value => (value, source),
    }
}

fn plain(text: String, source: Source) -> PropValue {
    PropValue { exact: text.clone(), human: text, source }
}

/// The default quotas of OpenZFS 2.4 are left out while they are not set, since OpenZFS 2.3, which
/// does not know them, is what scripts most often meet.
fn shown_unasked(property: &Property, value: &PropValue) -> bool {
    !(property.name.starts_with("default") && value.exact == "0")
}

fn source_of_computed(property: &Property, value: &Value) -> Source {
    let file_system_setting =
        matches!(property.name, "version" | "normalization" | "utf8only" | "casesensitivity")
            || property.name.starts_with("default");
    let settable = !property.is_readonly() || property.is_setonce();
    if file_system_setting {
        Source::None
    } else if settable && default_of(property).as_ref() == Some(value) {
        Source::Default
    } else if LOCAL_UNLESS_DEFAULT.contains(&property.name) {
        Source::Local
    } else {
        Source::None
    }
}

/// The default value, where the property has one. A read-only property that is absent has no default,
/// but for the counts that are only kept where there are limits.
fn default_of(property: &Property) -> Option<Value> {
    let counted = matches!(property.name, "filesystem_count" | "snapshot_count");
    let absent = property.is_readonly() && !property.is_setonce() && !counted;
    match property.kind {
        Type::Text(default) => default.map(|t| Value::Text(t.into())),
        Type::Number(_) | Type::Index(..) if absent => None,
        Type::Number(default) | Type::Index(default, _) => Some(Value::Number(default)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_user_properties_have_a_colon_and_no_suffix() {
        assert!(is_user("com.example:note"));
        for no in ["compression", "com.example:note$recvd", "$hasrecvd", "A:b", "a:b c"] {
            assert!(!is_user(no), "{no}");
        }
    }
}
