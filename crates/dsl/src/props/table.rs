//! The table of native dataset properties (`zfs_prop_init`).
//!
//! One row per property, in the order in which `zfs get all` lists them. Everything that depends
//! on a property's kind (what applies to which dataset, what is inherited, how a column of
//! `zfs list` looks) is decided by its row; how a value that is not simply stored comes about is
//! in `computed`.

use super::values::{self, Names};
use crate::DatasetKind;

/// A set of kinds of dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    /// Whether `kind` is in the set.
    pub fn contains(self, kind: DatasetKind) -> bool {
        let bit = match kind {
            DatasetKind::Filesystem => FS,
            DatasetKind::Volume => VOL,
            DatasetKind::Snapshot => SNAP,
            DatasetKind::Bookmark => BOOKMARK,
        };
        self.0 & bit.0 != 0
    }
}

const FS: Kinds = Kinds(1);
const VOL: Kinds = Kinds(2);
const SNAP: Kinds = Kinds(4);
const BOOKMARK: Kinds = Kinds(8);
/// Properties of snapshots that file systems and volumes do not have.
pub(super) const SNAPSHOT_ONLY: Kinds = SNAP;
const HEAD: Kinds = FS.or(VOL);
const FS_SNAP: Kinds = FS.or(SNAP);
const DATASET: Kinds = HEAD.or(SNAP);
const ANY: Kinds = DATASET.or(BOOKMARK);

/// What the value is, with its default.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A number.
    Number(u64),
    /// A string; `None`: there is no default.
    Text(Option<&'static str>),
    /// A number that is shown by name.
    Index(u64, Names),
}

/// How the property may be set (`zprop_attr_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attr {
    /// Never: the value is computed.
    ReadOnly,
    /// At any time; descendants do not inherit it.
    Default,
    /// At any time; descendants inherit it.
    Inherit,
    /// At creation; descendants that are created later inherit it.
    OneTime,
    /// At creation; descendants do not inherit it.
    OneTimeDefault,
}

/// A native property.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// Name.
    pub name: &'static str,
    /// Type and default value.
    pub kind: Type,
    /// How it may be set.
    pub attr: Attr,
    /// Kinds of dataset that have it.
    pub applies_to: Kinds,
    /// The values it takes, as usage messages show them; empty if hidden.
    pub values: &'static str,
    /// Column header in `zfs list -o`.
    pub column: &'static str,
    /// Whether the column is aligned to the right.
    pub right: bool,
    /// Whether `zfs get all` shows it.
    pub visible: bool,
    /// Whether values may be wider than [`Property::width`].
    pub flexible: bool,
}

impl Property {
    /// Whether it can never be set once the dataset exists (`zfs_prop_readonly`).
    pub fn is_readonly(&self) -> bool {
        matches!(self.attr, Attr::ReadOnly | Attr::OneTime | Attr::OneTimeDefault)
    }

    /// Whether it is set at creation and never again (`zfs_prop_setonce`).
    pub fn is_setonce(&self) -> bool {
        matches!(self.attr, Attr::OneTime | Attr::OneTimeDefault)
    }

    /// Whether descendants inherit it (`zfs_prop_inheritable`).
    pub fn is_inheritable(&self) -> bool {
        matches!(self.attr, Attr::Inherit | Attr::OneTime)
    }

    /// The name of `number`, for an index property.
    pub fn value_name(&self, number: u64) -> Option<&'static str> {
        let Type::Index(_, names) = self.kind else { return None };
        names.iter().find(|(_, n)| *n == number).map(|(name, _)| *name)
    }

    /// Width of the column in `zfs list -o` before any value is known, in characters.
    pub fn width(&self) -> usize {
        let widest = match self.kind {
            Type::Number(_) => 5,
            Type::Text(_) => 0,
            Type::Index(_, names) => names.iter().map(|(n, _)| n.len()).max().unwrap_or(0),
        };
        widest.max(self.column.len())
    }
}

/// The native property `name`.
pub fn find(name: &str) -> Option<&'static Property> {
    PROPERTIES.iter().find(|p| p.name == name)
}

const fn text(
    name: &'static str,
    default: Option<&'static str>,
    attr: Attr,
    applies_to: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    let (right, visible, flexible) = (false, true, true);
    Property {
        name,
        kind: Type::Text(default),
        attr,
        applies_to,
        values,
        column,
        right,
        visible,
        flexible,
    }
}

const fn number(
    name: &'static str,
    default: u64,
    attr: Attr,
    applies_to: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    let (right, visible, flexible) = (true, true, false);
    Property {
        name,
        kind: Type::Number(default),
        attr,
        applies_to,
        values,
        column,
        right,
        visible,
        flexible,
    }
}

/// A number that is an identifier: shown in full.
const fn id(
    name: &'static str,
    attr: Attr,
    applies_to: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    Property { flexible: true, ..number(name, 0, attr, applies_to, values, column) }
}

/// A number that is a date.
const fn date(name: &'static str, applies_to: Kinds, column: &'static str) -> Property {
    Property { right: false, ..id(name, Attr::ReadOnly, applies_to, "<date>", column) }
}

const fn index(
    name: &'static str,
    (default, names): (u64, Names),
    attr: Attr,
    applies_to: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    let (right, visible, flexible) = (false, true, true);
    let kind = Type::Index(default, names);
    Property { name, kind, attr, applies_to, values, column, right, visible, flexible }
}

const fn on_off(
    name: &'static str,
    default: u64,
    applies_to: Kinds,
    column: &'static str,
) -> Property {
    index(name, (default, values::BOOLEAN), Attr::Inherit, applies_to, "on | off", column)
}

/// A property that only programs ask for.
const fn hidden(row: Property, flexible: bool) -> Property {
    Property { visible: false, flexible, values: "", ..row }
}

const COMPRESSION_VALUES: &str = "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]";
const CHECKSUM_VALUES: &str =
    "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3";
const DEDUP_VALUES: &str = "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]";
const ENCRYPTION_VALUES: &str =
    "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm";
const SIZE_OR_NONE: &str = "<size> | none";
const COUNT_OR_NONE: &str = "<count> | none";
const RATIO: &str = "<1.00x or higher if compressed>";

use Attr::{Default, Inherit, OneTime, OneTimeDefault, ReadOnly};

/// All native properties, in the order of `zfs get all`.
#[rustfmt::skip] // A table: one row per line.
pub const PROPERTIES: &[Property] = &[
    text("type", None, ReadOnly, ANY, "filesystem | volume | snapshot | bookmark", "TYPE"),
    date("creation", ANY, "CREATION"),
    number("used", 0, ReadOnly, DATASET, "<size>", "USED"),
    number("available", 0, ReadOnly, HEAD, "<size>", "AVAIL"),
    number("referenced", 0, ReadOnly, ANY, "<size>", "REFER"),
    number("compressratio", 0, ReadOnly, ANY, RATIO, "RATIO"),
    index("mounted", (0, values::BOOLEAN), ReadOnly, FS, "yes | no", "MOUNTED"),
    text("origin", None, ReadOnly, HEAD, "<snapshot>", "ORIGIN"),
    number("quota", 0, Default, FS, SIZE_OR_NONE, "QUOTA"),
    number("reservation", 0, Default, HEAD, SIZE_OR_NONE, "RESERV"),
    number("volsize", 0, Default, SNAP.or(VOL), "<size>", "VOLSIZE"),
    number("volblocksize", 16384, OneTime, VOL, "512 to 16M, power of 2", "VOLBLOCK"),
    number("recordsize", 131072, Inherit, FS, "512 to 16M, power of 2", "RECSIZE"),
    text("mountpoint", Some("/"), Inherit, FS, "<path> | legacy | none", "MOUNTPOINT"),
    text("sharenfs", Some("off"), Inherit, FS, "on | off | NFS share options", "SHARENFS"),
    index("checksum", (1, values::CHECKSUM), Inherit, HEAD, CHECKSUM_VALUES, "CHECKSUM"),
    index("compression", (1, values::COMPRESSION), Inherit, HEAD, COMPRESSION_VALUES, "COMPRESS"),
    on_off("atime", 1, FS, "ATIME"),
    on_off("devices", 1, FS_SNAP, "DEVICES"),
    on_off("exec", 1, FS_SNAP, "EXEC"),
    on_off("setuid", 1, FS_SNAP, "SETUID"),
    on_off("readonly", 0, HEAD, "RDONLY"),
    on_off("zoned", 0, FS, "ZONED"),
    index("snapdir", (0, values::SNAPDIR), Inherit, FS, "disabled | hidden | visible", "SNAPDIR"),
    index("aclmode", (0, values::ACLMODE), Inherit, FS, "discard | groupmask | passthrough | restricted", "ACLMODE"),
    index("aclinherit", (4, values::ACLINHERIT), Inherit, FS, "discard | noallow | restricted | passthrough | passthrough-x", "ACLINHERIT"),
    id("createtxg", ReadOnly, ANY, "<uint64>", "CREATETXG"),
    hidden(text("name", None, ReadOnly, ANY, "", "NAME"), true),
    index("canmount", (1, values::CANMOUNT), Default, FS, "on | off | noauto", "CANMOUNT"),
    hidden(text("iscsioptions", None, Inherit, VOL, "", "ISCSIOPTIONS"), true),
    index("xattr", (2, values::XATTR), Inherit, FS_SNAP, "on | off | dir | sa", "XATTR"),
    hidden(number("numclones", 0, ReadOnly, SNAP, "", "NUMCLONES"), false),
    index("copies", (1, values::COPIES), Inherit, HEAD, "1 | 2 | 3", "COPIES"),
    index("version", (0, values::VERSION), Default, FS_SNAP, "1 | 2 | 3 | 4 | 5 | current", "VERSION"),
    index("utf8only", (0, values::BOOLEAN), OneTime, FS_SNAP, "on | off", "UTF8ONLY"),
    index("normalization", (0, values::NORMALIZATION), OneTime, FS_SNAP, "none | formC | formD | formKC | formKD", "NORMALIZATION"),
    index("casesensitivity", (0, values::CASE), OneTime, FS_SNAP, "sensitive | insensitive | mixed", "CASE"),
    on_off("vscan", 0, FS, "VSCAN"),
    on_off("nbmand", 0, FS_SNAP, "NBMAND"),
    text("sharesmb", Some("off"), Inherit, FS, "on | off | SMB share options", "SHARESMB"),
    number("refquota", 0, Default, FS, SIZE_OR_NONE, "REFQUOTA"),
    number("refreservation", 0, Default, HEAD, SIZE_OR_NONE, "REFRESERV"),
    id("guid", ReadOnly, ANY, "<uint64>", "GUID"),
    index("primarycache", (2, values::CACHE), Inherit, DATASET, "all | none | metadata", "PRIMARYCACHE"),
    index("secondarycache", (2, values::CACHE), Inherit, DATASET, "all | none | metadata", "SECONDARYCACHE"),
    number("usedbysnapshots", 0, ReadOnly, HEAD, "<size>", "USEDSNAP"),
    number("usedbydataset", 0, ReadOnly, HEAD, "<size>", "USEDDS"),
    number("usedbychildren", 0, ReadOnly, HEAD, "<size>", "USEDCHILD"),
    number("usedbyrefreservation", 0, ReadOnly, HEAD, "<size>", "USEDREFRESERV"),
    hidden(number("useraccounting", 0, ReadOnly, DATASET, "", "USERACCOUNTING"), false),
    hidden(text("stmf_sbd_lu", None, Inherit, VOL, "", "STMF_SBD_LU"), true),
    index("defer_destroy", (0, values::BOOLEAN), ReadOnly, SNAP, "yes | no", "DEFER_DESTROY"),
    number("userrefs", 0, ReadOnly, SNAP, "<count>", "USERREFS"),
    index("logbias", (0, values::LOGBIAS), Inherit, HEAD, "latency | throughput", "LOGBIAS"),
    hidden(number("unique", 0, ReadOnly, DATASET, "", "UNIQUE"), false),
    id("objsetid", ReadOnly, DATASET, "<uint64>", "OBJSETID"),
    index("dedup", (2, values::DEDUP), Inherit, HEAD, DEDUP_VALUES, "DEDUP"),
    text("mlslabel", Some("none"), Inherit, DATASET, "<sensitivity label>", "MLSLABEL"),
    index("sync", (0, values::SYNC), Inherit, HEAD, "standard | always | disabled", "SYNC"),
    index("dnodesize", (0, values::DNODESIZE), Inherit, FS, "legacy | auto | 1k | 2k | 4k | 8k | 16k", "DNSIZE"),
    number("refcompressratio", 0, ReadOnly, DATASET, RATIO, "REFRATIO"),
    number("written", 0, ReadOnly, DATASET, "<size>", "WRITTEN"),
    text("clones", None, ReadOnly, SNAP, "<dataset>[,...]", "CLONES"),
    number("logicalused", 0, ReadOnly, HEAD, "<size>", "LUSED"),
    number("logicalreferenced", 0, ReadOnly, ANY, "<size>", "LREFER"),
    hidden(number("inconsistent", 0, ReadOnly, DATASET, "", "INCONSISTENT"), false),
    index("volmode", (0, values::VOLMODE), Inherit, HEAD, "default | full | geom | dev | none", "VOLMODE"),
    number("filesystem_limit", u64::MAX, Default, FS, COUNT_OR_NONE, "FSLIMIT"),
    number("snapshot_limit", u64::MAX, Default, HEAD, COUNT_OR_NONE, "SSLIMIT"),
    number("filesystem_count", u64::MAX, ReadOnly, FS, "<count>", "FSCOUNT"),
    number("snapshot_count", u64::MAX, ReadOnly, HEAD, "<count>", "SSCOUNT"),
    index("snapdev", (0, values::SNAPDEV), Inherit, HEAD, "hidden | visible", "SNAPDEV"),
    index("acltype", (0, values::ACLTYPE), Inherit, FS_SNAP, "off | nfsv4 | posix", "ACLTYPE"),
    text("context", Some("none"), Default, DATASET, "<selinux context>", "CONTEXT"),
    text("fscontext", Some("none"), Default, DATASET, "<selinux fscontext>", "FSCONTEXT"),
    text("defcontext", Some("none"), Default, DATASET, "<selinux defcontext>", "DEFCONTEXT"),
    text("rootcontext", Some("none"), Default, DATASET, "<selinux rootcontext>", "ROOTCONTEXT"),
    on_off("relatime", 1, FS, "RELATIME"),
    index("redundant_metadata", (0, values::REDUNDANT_METADATA), Inherit, HEAD, "all | most | some | none", "REDUND_MD"),
    on_off("overlay", 1, FS, "OVERLAY"),
    hidden(text("prevsnap", None, ReadOnly, HEAD, "", "PREVSNAP"), true),
    text("receive_resume_token", None, ReadOnly, HEAD, "<string token>", "RESUMETOK"),
    index("encryption", (2, values::ENCRYPTION), OneTime, DATASET, ENCRYPTION_VALUES, "ENCRYPTION"),
    text("keylocation", Some("none"), Default, HEAD, "prompt | <file URI> | <https URL> | <http URL>", "KEYLOCATION"),
    index("keyformat", (0, values::KEYFORMAT), OneTimeDefault, HEAD, "none | raw | hex | passphrase", "KEYFORMAT"),
    hidden(number("pbkdf2salt", 0, OneTimeDefault, HEAD, "", "PBKDF2SALT"), false),
    id("pbkdf2iters", OneTimeDefault, HEAD, "<iters>", "PBKDF2ITERS"),
    text("encryptionroot", None, ReadOnly, DATASET, "<filesystem | volume>", "ENCROOT"),
    hidden(number("keyguid", 0, ReadOnly, DATASET, "", "KEYGUID"), true),
    index("keystatus", (0, values::KEYSTATUS), ReadOnly, DATASET, "none | unavailable | available", "KEYSTATUS"),
    hidden(number("remaptxg", 0, ReadOnly, DATASET, "", "REMAPTXG"), false),
    number("special_small_blocks", 0, Inherit, HEAD, "zero to 16M", "SPECIAL_SMALL_BLOCKS"),
    hidden(number("ivsetguid", 0, ReadOnly, ANY, "", "IVSETGUID"), true),
    hidden(number("redacted", 0, ReadOnly, DATASET, "", "REDACTED"), false),
    text("redact_snaps", None, ReadOnly, ANY, "<snapshot>[,...]", "RSNAPS"),
    date("snapshots_changed", HEAD, "SNAPSHOTS_CHANGED"),
    // Later than the release whose list "zfs get all" shows.
    hidden(id("snapshots_changed_nsecs", ReadOnly, HEAD, "<nsec>", "SNAPSHOTS_CHANGED_NSECS"), true),
    index("prefetch", (2, values::CACHE), Inherit, DATASET, "none | metadata | all", "PREFETCH"),
    index("volthreading", (1, values::BOOLEAN), Default, VOL, "on | off", "VOLTHREAD"),
    index("direct", (1, values::DIRECT), Inherit, FS, "disabled | standard | always", "DIRECT"),
    on_off("longname", 0, FS, "LONGNAME"),
    number("defaultuserquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTUSERQUOTA"),
    number("defaultgroupquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTGROUPQUOTA"),
    number("defaultprojectquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTPROJECTQUOTA"),
    number("defaultuserobjquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTUSEROBJQUOTA"),
    number("defaultgroupobjquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTGROUPOBJQUOTA"),
    number("defaultprojectobjquota", 0, Default, FS_SNAP, SIZE_OR_NONE, "DEFAULTPROJECTOBJQUOTA"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_columns_are_unique() {
        let names: HashSet<_> = PROPERTIES.iter().map(|p| p.name).collect();
        let columns: HashSet<_> = PROPERTIES.iter().map(|p| p.column).collect();
        assert_eq!(names.len(), PROPERTIES.len());
        assert_eq!(columns.len(), PROPERTIES.len());
    }

    #[test]
    fn every_default_of_an_index_has_a_name_but_the_version() {
        for p in PROPERTIES {
            if let Type::Index(default, _) = p.kind
                && p.name != "version"
            {
                assert!(p.value_name(default).is_some(), "{}", p.name);
            }
        }
    }

    #[test]
    fn the_first_name_of_a_number_is_shown() {
        let name = |p: &str, n| find(p).unwrap().value_name(n);
        assert_eq!(name("compression", 10), Some("gzip"));
        assert_eq!(name("compression", 16 | 7 << 7), Some("zstd-7"));
        assert_eq!(name("compression", 16 | 122 << 7), Some("zstd-fast-500"));
        assert_eq!(name("xattr", 2), Some("sa"));
        assert_eq!(name("checksum", 99), None);
        assert_eq!(name("used", 0), None);
    }

    #[test]
    fn widths_hold_the_header_and_every_named_value() {
        assert_eq!(find("used").unwrap().width(), 5);
        assert_eq!(find("available").unwrap().width(), 5);
        assert_eq!(find("volblocksize").unwrap().width(), 8);
        assert_eq!(find("mounted").unwrap().width(), 7);
        assert_eq!(find("compression").unwrap().width(), 14);
    }
}
