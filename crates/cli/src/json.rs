//! JSON in the shapes of OpenZFS 2.4: `-j`, `--json`, `--json-int`, `--json-pool-key-guid`.
//!
//! A document is one line: `output_version` first, then a map from the names of pools or datasets to what
//! is known of each. Values are the texts that the tables show. With `--json-int` they are exact, and those
//! that consist of digits only are numbers.

use crate::pools::Imported;
use crate::zfs::select::Node;
use cenote_command::outcome::{Stop, usage};
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_dsl::{DatasetKind, PropValue, Source};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io;

/// The long options, with the letters that stand for them inside.
pub const LONG: &[(&str, char)] = &[("json", 'j'), ("json-int", INT), ("json-pool-key-guid", GUID)];
/// The long options of commands that list no pools.
pub const LONG_DATASETS: &[(&str, char)] = &[("json", 'j'), ("json-int", INT)];
/// Letter of `--json-int`.
const INT: char = '\u{1}';
/// Letter of `--json-pool-key-guid`.
const GUID: char = '\u{2}';

/// How a number is shown where neither digits nor exact values were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `1.21K`.
    Number,
    /// `1.21K`, `12B`.
    Bytes,
    /// With all digits.
    Digits,
}

/// How JSON was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json {
    /// Digits are numbers, and values are exact.
    pub ints: bool,
    /// Pools are listed by guid in place of name.
    by_guid: bool,
}

/// The version of the shape (`zfs_json_schema`).
#[derive(Serialize)]
struct OutputVersion<'a> {
    command: &'a str,
    vers_major: u32,
    vers_minor: u32,
}

/// Where a value comes from.
#[derive(Serialize)]
struct JsonSource<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    data: &'a str,
}

/// A property (`zprop_nvlist_one_property`).
#[derive(Serialize)]
struct Property<'a> {
    value: Value,
    source: JsonSource<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<Value>,
}

impl Json {
    /// What the options ask for; `None`: a table.
    pub fn of(letters: &str) -> Result<Option<Json>, Stop> {
        if letters.contains('j') {
            return Ok(Some(Json { ints: letters.contains(INT), by_guid: letters.contains(GUID) }));
        }
        for (name, letter) in LONG.iter().filter(|(_, letter)| *letter != 'j') {
            if letters.contains(*letter) {
                return usage(format!("'--{name}' only works with '-j' option"));
            }
        }
        Ok(None)
    }

    /// A text as a value.
    pub fn value(self, text: &str) -> Value {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if self.ints && digits => number.into(),
            _ => text.into(),
        }
    }

    /// A number as a value, with all its digits.
    pub fn number(self, number: u64) -> Value {
        self.figure(number, Form::Digits, true)
    }

    /// A number as a value; `literal`: exact (`nice_num_str_nvlist`).
    pub fn figure(self, number: u64, form: Form, literal: bool) -> Value {
        match form {
            _ if self.ints => number.into(),
            Form::Number if !literal => nicenum(number).into(),
            Form::Bytes if !literal => nicebytes(number).into(),
            _ => number.to_string().into(),
        }
    }

    /// A property with the text that is shown and what was received.
    pub fn property(
        self,
        text: &str,
        source: &Source,
        received: Option<&str>,
    ) -> Result<Value, Stop> {
        let (kind, data) = match source {
            Source::None => ("NONE", "-"),
            Source::Default => ("DEFAULT", "-"),
            Source::Local => ("LOCAL", "-"),
            Source::Inherited(from) => ("INHERITED", from.as_str()),
            Source::Received => ("RECEIVED", "-"),
            Source::Temporary => ("TEMPORARY", "-"),
        };
        let received = received.map(|text| self.value(text));
        let source = JsonSource { kind, data };
        to_value(&Property { value: self.value(text), source, received })
    }

    /// A property that a table would show; a dash if it has no value.
    pub fn shown(self, value: Option<PropValue>, literal: bool) -> Result<Value, Stop> {
        match value {
            None => self.property("-", &Source::None, None),
            Some(v) => {
                let text = if literal || self.ints { &v.exact } else { &v.human };
                self.property(text, &v.source, None)
            }
        }
    }

    /// The head of a pool, and the key it is listed under (`fill_pool_info`).
    pub fn pool(self, imported: &Imported, with_type: bool) -> (String, Map<String, Value>) {
        let pool = imported.pool();
        let health = imported.property(&pool, "health").map(|v| v.exact);
        let mut head = Map::new();
        head.insert("name".into(), imported.name().into());
        if with_type {
            head.insert("type".into(), "POOL".into());
        }
        head.insert("state".into(), health.into());
        head.insert("pool_guid".into(), self.number(pool.guid()));
        head.insert("txg".into(), self.number(pool.config().u64("txg").unwrap_or(0)));
        head.insert("spa_version".into(), self.number(pool.config().u64("version").unwrap_or(0)));
        head.insert("zpl_version".into(), self.number(ZPL_VERSION));
        let key = if self.by_guid { pool.guid().to_string() } else { imported.name().to_string() };
        (key, head)
    }

    /// The head of a dataset (`fill_dataset_info`).
    pub fn dataset(self, node: &Node) -> Map<String, Value> {
        let dataset = &node.dataset;
        let kind = match dataset.kind {
            DatasetKind::Filesystem => "FILESYSTEM",
            DatasetKind::Volume => "VOLUME",
            DatasetKind::Snapshot => "SNAPSHOT",
            DatasetKind::Bookmark => "BOOKMARK",
        };
        let mut head = Map::new();
        head.insert("name".into(), dataset.name.as_str().into());
        head.insert("type".into(), kind.into());
        head.insert("pool".into(), node.imported.name().into());
        let born = dataset.bookmark.as_ref().map_or(dataset.ds.creation_txg, |b| b.creation_txg);
        head.insert("createtxg".into(), self.number(born));
        if let Some((of, snapshot)) = dataset.name.split_once('@') {
            head.insert("dataset".into(), of.into());
            head.insert("snapshot_name".into(), snapshot.into());
        }
        head
    }
}

/// The newest version of file systems (`ZPL_VERSION`).
const ZPL_VERSION: u64 = 5;

/// A value of our own shape. It has text keys only, so this fails for want of memory at most.
fn to_value(shape: &impl Serialize) -> Result<Value, Stop> {
    serde_json::to_value(shape).map_err(|e| Stop::Fail(e.to_string()))
}

/// The document of `command`: `zpool list`, say. `entries` stand under the key `what`.
pub fn document(command: &str, what: &str, entries: Map<String, Value>) -> Result<String, Stop> {
    document_with(command, what, entries, None)
}

/// The same with more behind it.
pub fn document_with(
    command: &str,
    what: &str,
    entries: Map<String, Value>,
    more: impl IntoIterator<Item = (String, Value)>,
) -> Result<String, Stop> {
    let mut document = Map::new();
    let version = OutputVersion { command, vers_major: 0, vers_minor: 1 };
    document.insert("output_version".into(), to_value(&version)?);
    document.insert(what.into(), Value::Object(entries));
    document.extend(more);
    serde_json::to_string(&document).map_err(|e| io::Error::from(e).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: Json = Json { ints: false, by_guid: false };
    const INTS: Json = Json { ints: true, by_guid: false };

    #[test]
    fn digits_are_numbers_only_if_asked_for() {
        assert_eq!(TEXTS.value("12"), Value::from("12"));
        assert_eq!(INTS.value("18446744073709551615"), Value::from(u64::MAX));
        for text in ["", "-", "1.00", "12K", "+1", "18446744073709551616"] {
            assert_eq!(INTS.value(text), Value::from(text));
        }
    }

    #[test]
    fn figures_are_exact_if_asked_for() {
        assert_eq!(TEXTS.figure(1536, Form::Bytes, false), Value::from("1.50K"));
        assert_eq!(TEXTS.figure(12, Form::Bytes, false), Value::from("12B"));
        assert_eq!(TEXTS.figure(12, Form::Number, false), Value::from("12"));
        assert_eq!(TEXTS.figure(1536, Form::Bytes, true), Value::from("1536"));
        assert_eq!(INTS.figure(1536, Form::Bytes, false), Value::from(1536));
    }

    #[test]
    fn options_of_json_need_json() {
        assert_eq!(Json::of("Hp").unwrap(), None);
        assert_eq!(Json::of("j\u{1}").unwrap(), Some(INTS));
        assert!(
            matches!(Json::of("\u{1}"), Err(Stop::Usage(m)) if m == "'--json-int' only works with '-j' option")
        );
    }

    #[test]
    fn a_document_begins_with_its_version() {
        let mut entries = Map::new();
        entries.insert(
            "used".into(),
            TEXTS.property("24K", &Source::Inherited("t".into()), None).unwrap(),
        );
        assert_eq!(
            document("zfs get", "datasets", entries).unwrap(),
            r#"{"output_version":{"command":"zfs get","vers_major":0,"vers_minor":1},"datasets":{"used":{"value":"24K","source":{"type":"INHERITED","data":"t"}}}}"#
        );
    }
}
