//! Properties of datasets with types.
//!
//! A [`Property`] can be set, a [`Figure`] is computed by OpenZFS; both are names with the type of their values. The constants of this
//! module are those that OpenZFS has. [`Dataset::get`](crate::Dataset::get) reads one with its source,
//! [`Dataset::assign`](crate::Dataset::assign) sets one.
//!
//! A value passes as the text that `zfs get -p` shows and `zfs set` takes ([`Value`]): numbers are exact, a limit that is not set is
//! `None`, times are points in time. A text that is no value of the type is [`Error::Value`], not a default.

use crate::{Dataset, Error, Result, Source};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

/// A property that can be set, with the type of its values.
///
/// Those that OpenZFS has are constants of this module. Properties of users have a colon in their names:
///
/// ```
/// use cenote::property::Property;
/// let backed_up: Property<String> = Property::user("com.example:backed-up");
/// ```
#[derive(Debug)]
pub struct Property<T> {
    name: Cow<'static, str>,
    value: PhantomData<fn() -> T>,
}

/// A property that OpenZFS computes, with the type of its values.
#[derive(Debug)]
pub struct Figure<T> {
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

/// A property that can be read.
pub trait Readable {
    /// What its values are.
    type Value: Value;

    /// Its name.
    fn name(&self) -> &str;
}

/// A value of a property.
pub trait Value: Sized {
    /// The value that `zfs get -p` shows as `text`; `None`: there is no such value.
    fn from_text(text: &str) -> Option<Self>;

    /// As `zfs set` takes it.
    fn to_text(&self) -> String;
}

/// What can be given for a value of type `T`: one, or a `&str` for a text.
pub trait IntoValue<T> {
    /// The value.
    fn into_value(self) -> T;
}

impl<T: Value> IntoValue<T> for T {
    fn into_value(self) -> T {
        self
    }
}

impl IntoValue<String> for &str {
    fn into_value(self) -> String {
        self.into()
    }
}

/// A value with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub source: Source,
}

impl<T> Property<T> {
    const fn native(name: &'static str) -> Property<T> {
        Property { name: Cow::Borrowed(name), value: PhantomData }
    }

    /// A property of a user, whose name has a colon (`com.example:note`). Its values are texts; they may be read as anything.
    pub fn user(name: impl Into<Cow<'static, str>>) -> Property<T> {
        Property { name: name.into(), value: PhantomData }
    }
}

impl<T: Value> Readable for Property<T> {
    type Value = T;

    fn name(&self) -> &str {
        &self.name
    }
}

impl<T: Value> Readable for Figure<T> {
    type Value = T;

    fn name(&self) -> &str {
        self.name
    }
}

impl<T> AsRef<str> for Property<T> {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl<R: Readable> Readable for &R {
    type Value = R::Value;

    fn name(&self) -> &str {
        (**self).name()
    }
}

impl Value for u64 {
    fn from_text(text: &str) -> Option<u64> {
        text.parse().ok()
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// `on` or `off`.
impl Value for bool {
    fn from_text(text: &str) -> Option<bool> {
        match text {
            "on" | "yes" => Some(true),
            "off" | "no" => Some(false),
            _ => None,
        }
    }

    fn to_text(&self) -> String {
        if *self { "on".into() } else { "off".into() }
    }
}

/// A limit; `None`: no limit.
impl Value for Option<u64> {
    fn from_text(text: &str) -> Option<Option<u64>> {
        match text {
            "0" | "none" | "-" => Some(None),
            text => text.parse().ok().map(Some).map(|limit| limit.filter(|l| *l != u64::MAX)),
        }
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".into(), |limit| limit.to_string())
    }
}

impl Value for String {
    fn from_text(text: &str) -> Option<String> {
        Some(text.into())
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

/// In seconds since 1970.
impl Value for SystemTime {
    fn from_text(text: &str) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(text.parse().ok()?))
    }

    fn to_text(&self) -> String {
        let since = self.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_secs().to_string()
    }
}

macro_rules! properties {
    ($kind:ident: $($(#[$doc:meta])* $name:ident: $type:ty = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: $kind<$type> = $kind::native($text);)*
    };
}

impl<T> Figure<T> {
    const fn native(name: &'static str) -> Figure<T> {
        Figure { name, value: PhantomData }
    }
}

properties! { Property:
    /// Whether reading a file changes its time of access.
    ATIME: bool = "atime";
    /// Whether the file system is mounted by itself: `on`, `off`, `noauto`.
    CANMOUNT: String = "canmount";
    /// How blocks are checksummed: `on`, `sha256`, `blake3`.
    CHECKSUM: String = "checksum";
    /// How blocks are compressed: `lz4`, `zstd-3`, `off`.
    COMPRESSION: String = "compression";
    /// Copies that are kept of each block.
    COPIES: u64 = "copies";
    /// Sizes of dnodes: `legacy`, `auto`, `1k`.
    DNODESIZE: String = "dnodesize";
    /// Whether programs may be run.
    EXEC: bool = "exec";
    /// Most file systems and volumes at and below it.
    FILESYSTEM_LIMIT: Option<u64> = "filesystem_limit";
    /// How synchronous writes are logged: `latency`, `throughput`.
    LOGBIAS: String = "logbias";
    /// Where it is mounted: a path, `none`, `legacy`.
    MOUNTPOINT: String = "mountpoint";
    /// What the ARC keeps: `all`, `metadata`, `none`.
    PRIMARYCACHE: String = "primarycache";
    /// Most bytes that it uses with all that is below.
    QUOTA: Option<u64> = "quota";
    /// Whether nothing can be changed in it.
    READONLY: bool = "readonly";
    /// Largest block of files, in bytes.
    RECORDSIZE: u64 = "recordsize";
    /// Most bytes that it references itself.
    REFQUOTA: Option<u64> = "refquota";
    /// Bytes that are kept for it itself.
    REFRESERVATION: Option<u64> = "refreservation";
    /// Whether times of access change at most once a day.
    RELATIME: bool = "relatime";
    /// Bytes that are kept for it and what is below.
    RESERVATION: Option<u64> = "reservation";
    /// What the L2ARC keeps: `all`, `metadata`, `none`.
    SECONDARYCACHE: String = "secondarycache";
    /// Whether the set-user-ID bit counts.
    SETUID: bool = "setuid";
    /// Whether `.zfs` is seen: `hidden`, `visible`, `disabled`.
    SNAPDIR: String = "snapdir";
    /// Most snapshots at and below it.
    SNAPSHOT_LIMIT: Option<u64> = "snapshot_limit";
    /// Largest block that goes to special vdevs, in bytes.
    SPECIAL_SMALL_BLOCKS: u64 = "special_small_blocks";
    /// What synchronous writes wait for: `standard`, `always`, `disabled`.
    SYNC: String = "sync";
    /// Size of a volume in bytes.
    VOLSIZE: u64 = "volsize";
    /// How extended attributes are kept: `sa`, `dir`, `off`.
    XATTR: String = "xattr";
}

properties! { Figure:
    /// Bytes that may still be written.
    AVAILABLE: u64 = "available";
    /// When it was created.
    CREATION: SystemTime = "creation";
    /// Transaction group in which it was created.
    CREATETXG: u64 = "createtxg";
    /// The number that it has in every pool that received it.
    GUID: u64 = "guid";
    /// Bytes that it references, before compression.
    LOGICALREFERENCED: u64 = "logicalreferenced";
    /// Bytes that it uses with all that is below, before compression.
    LOGICALUSED: u64 = "logicalused";
    /// The snapshot that a clone is of.
    ORIGIN: String = "origin";
    /// What goes on with an interrupted receive ([`Pool::resume_send`](crate::Pool::resume_send)).
    RECEIVE_RESUME_TOKEN: String = "receive_resume_token";
    /// Bytes that it references.
    REFERENCED: u64 = "referenced";
    /// Bytes that it uses with all that is below.
    USED: u64 = "used";
    /// Bytes that what is below it uses.
    USEDBYCHILDREN: u64 = "usedbychildren";
    /// Bytes that it uses itself.
    USEDBYDATASET: u64 = "usedbydataset";
    /// Bytes that `refreservation` keeps.
    USEDBYREFRESERVATION: u64 = "usedbyrefreservation";
    /// Bytes that would be free without its snapshots.
    USEDBYSNAPSHOTS: u64 = "usedbysnapshots";
    /// Holds of a snapshot.
    USERREFS: u64 = "userrefs";
    /// Size of a volume's blocks in bytes.
    VOLBLOCKSIZE: u64 = "volblocksize";
    /// Bytes that were written since the last snapshot.
    WRITTEN: u64 = "written";
}

impl Dataset {
    /// A property with its source; `None` if the dataset does not have it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::{Source, property};
    ///
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.assign(property::QUOTA, Some(50 << 20))?;
    /// let quota = home.get(property::QUOTA)?.unwrap();
    /// assert_eq!((quota.value, quota.source), (Some(50 << 20), Source::Local));
    ///
    /// pool.root()?.assign(property::COMPRESSION, "zstd")?;
    /// let compression = home.get(property::COMPRESSION)?.unwrap();
    /// assert_eq!(compression.value, "zstd");
    /// assert_eq!(compression.source, Source::Inherited("tank".into()));
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Metadata`]: it cannot be read; [`Error::Value`]: its value is not of this type.
    pub fn get<R: Readable>(&self, property: R) -> Result<Option<Setting<R::Value>>> {
        let Some((text, source)) = self.text_of(property.name())? else { return Ok(None) };
        // As `zfs get` shows what is not set.
        if text.is_empty() && !property.name().contains(':') {
            return Ok(None);
        }
        match R::Value::from_text(&text) {
            Some(value) => Ok(Some(Setting { value, source })),
            None if text == "-" => Ok(None),
            None => Err(Error::Value { property: property.name().into(), text }),
        }
    }

    /// Sets a property. File systems that are open follow.
    ///
    /// # Errors
    /// As [`Dataset::set`].
    pub fn assign<T: Value>(&self, property: Property<T>, value: impl IntoValue<T>) -> Result<()> {
        self.set(&[(&property.name, &value.into_value().to_text())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_were() {
        fn same<T: Value + PartialEq + std::fmt::Debug + Clone>(value: T) {
            assert_eq!(T::from_text(&value.to_text()), Some(value));
        }
        same(true);
        same(false);
        same(7u64);
        same(Some(7u64));
        same(None::<u64>);
        same(String::from("lz4"));
        same(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
        assert_eq!(bool::from_text("noauto"), None);
        assert_eq!(u64::from_text("-"), None);
    }
}
