//! Stored properties: where a value is set and how it is inherited (`dsl_prop_get_dd`).
//!
//! Each directory has a ZAP of its own properties, and a snapshot may have one too. Strings are
//! arrays of bytes with a NUL at the end, numbers single integers. A name may have a suffix:
//!
//! | entry | meaning |
//! |---|---|
//! | `name` | set here |
//! | `name$recvd` | came with a received stream; counts unless set here |
//! | `name$inherit` | set to inherit: the received value does not count |
//! | `name$iuv` | set here to a number that old software does not know, which `name` stands in for |
//! | `$hasrecvd`, other suffixes | notes of the implementation; not properties |
//!
//! A value is sought in the snapshot, in its directory and, if the property is inheritable, in
//! the directories above.

use super::table::{Property, Type};
use super::{Source, is_user};
use crate::dir::Dir;
use crate::{Dataset, DatasetKind, Dsl, name_of};
use cenote_dmu::Result;
use cenote_format::nvlist::NvValue;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const RECEIVED: &str = "$recvd";
const INHERIT: &str = "$inherit";
const UNKNOWN_BEFORE: &str = "$iuv";

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
}

/// The properties stored in one ZAP, in the ZAP's order.
#[derive(Default)]
pub(crate) struct LocalProps {
    names: Vec<String>,
    values: HashMap<String, Value>,
}

impl LocalProps {
    fn get(&self, name: &str, suffix: &str) -> Option<&Value> {
        self.values.get(&format!("{name}{suffix}"))
    }

    /// The value that this level has, and whether it was received (`dsl_prop_get_received`).
    fn lookup(&self, name: &str, native: Option<&Property>) -> Option<(&Value, bool)> {
        let newer = self.get(name, UNKNOWN_BEFORE).filter(|v| match v {
            Value::Number(n) => native.is_some_and(|p| p.value_name(*n).is_some()),
            Value::Text(_) => false,
        });
        if let Some(value) = newer.or_else(|| self.values.get(name)) {
            return Some((value, false));
        }
        if self.get(name, INHERIT).is_some() {
            return None;
        }
        self.get(name, RECEIVED).map(|v| (v, true))
    }
}

impl Dsl {
    /// The properties stored in ZAP `object` of the MOS; empty for 0.
    fn read_props(&self, object: u64) -> Result<LocalProps> {
        let mut props = LocalProps::default();
        if object == 0 {
            return Ok(props);
        }
        for entry in self.zap(object)?.entries()? {
            let value = match entry.int_size {
                1 => {
                    let bytes = entry.bytes();
                    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
                    Value::Text(String::from_utf8_lossy(text).into_owned())
                }
                8 => match entry.value.first() {
                    Some(number) => Value::Number(*number),
                    None => continue,
                },
                _ => continue,
            };
            let name = name_of(&entry);
            if props.values.insert(name.clone(), value).is_none() {
                props.names.push(name);
            }
        }
        Ok(props)
    }

    /// Properties that are set on a dataset or snapshot itself, or were received and count, in the ZAP's order
    /// (`dsl_prop_get_all`); with `received` all that were received, whether they count or not.
    pub(crate) fn own_props(&self, d: &Dataset, received: bool) -> Result<Vec<(String, NvValue)>> {
        let own = self.levels(d)?.into_iter().next().filter(|(.., inherited)| !inherited);
        let Some((props, ..)) = own else { return Ok(Vec::new()) };
        let mut found: Vec<(String, NvValue)> = Vec::new();
        for stored in &props.names {
            let name = match stored.split_once('$') {
                None if received => continue,
                None => stored,
                Some((name, suffix)) if suffix == RECEIVED.trim_start_matches('$') => name,
                Some((name, suffix))
                    if !received && suffix == UNKNOWN_BEFORE.trim_start_matches('$') =>
                {
                    name
                }
                Some(_) => continue,
            };
            let value = match received {
                true => props.get(name, RECEIVED),
                false => props.lookup(name, super::table::find(name)).map(|(value, _)| value),
            };
            if let Some(value) = value
                && found.iter().all(|(known, _)| known != name)
            {
                let value = match value {
                    Value::Number(number) => NvValue::Uint64(*number),
                    Value::Text(text) => NvValue::String(text.clone()),
                };
                found.push((name.to_string(), value));
            }
        }
        Ok(found)
    }

    fn props_of(&self, dir: &Dir) -> Result<Arc<LocalProps>> {
        if let Some(known) = dir.props.get() {
            return Ok(known.clone());
        }
        let props = Arc::new(self.read_props(dir.phys.props)?);
        Ok(dir.props.get_or_init(|| props).clone())
    }

    /// The property lists that count for a dataset, nearest first, each with the name of its
    /// owner and whether its values are inherited.
    fn levels(&self, d: &Dataset) -> Result<Vec<(Arc<LocalProps>, String, bool)>> {
        let snapshot = d.kind == DatasetKind::Snapshot;
        let mut levels = Vec::new();
        if snapshot && d.ds.props != 0 {
            levels.push((Arc::new(self.read_props(d.ds.props)?), d.name.clone(), false));
        }
        for dir in self.ancestry(d.dir_obj)? {
            let inherited = snapshot || dir.object != d.dir_obj;
            levels.push((self.props_of(&dir)?, dir.name.clone(), inherited));
        }
        Ok(levels)
    }

    /// The stored value of a property, set, received or inherited (`dsl_prop_get_dd`); `None`: the default counts.
    pub(crate) fn stored(
        &self,
        d: &Dataset,
        name: &str,
        native: Option<&Property>,
    ) -> Result<Option<(Value, Source)>> {
        let inheritable = native.is_none_or(Property::is_inheritable);
        for (props, owner, inherited) in self.levels(d)? {
            if inherited && !inheritable {
                break;
            }
            if let Some((value, received)) = props.lookup(name, native) {
                return Ok(Some((value.clone(), source(owner, inherited, received))));
            }
        }
        Ok(None)
    }

    /// The value of a property that came to the dataset itself with a received stream, whether it
    /// counts or not.
    pub(super) fn stored_received(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let own = self.levels(d)?.into_iter().next().filter(|(_, _, inherited)| !inherited);
        Ok(own.and_then(|(props, ..)| props.get(name, RECEIVED).cloned()))
    }

    /// The stored value of a native number, or its default.
    pub(crate) fn stored_number(&self, d: &Dataset, name: &str) -> Result<u64> {
        let native = super::table::find(name);
        Ok(match (self.stored(d, name, native)?, native.map(|p| p.kind)) {
            (Some((Value::Number(n), _)), _) => n,
            (_, Some(Type::Number(default) | Type::Index(default, _))) => default,
            _ => 0,
        })
    }

    /// User properties in the order in which OpenZFS lists them: nearest owner first.
    pub(crate) fn user_props(&self, d: &Dataset) -> Result<Vec<(String, String, Source)>> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for (props, owner, inherited) in self.levels(d)? {
            for stored in &props.names {
                let name = stored.strip_suffix(RECEIVED).unwrap_or(stored);
                if !is_user(name) || seen.contains(name) {
                    continue;
                }
                if let Some((Value::Text(text), received)) = props.lookup(name, None) {
                    seen.insert(name.to_string());
                    let source = source(owner.clone(), inherited, received);
                    found.push((name.to_string(), text.clone(), source));
                }
            }
        }
        Ok(found)
    }
}

fn source(owner: String, inherited: bool, received: bool) -> Source {
    match (inherited, received) {
        (true, _) => Source::Inherited(owner),
        (false, true) => Source::Received,
        (false, false) => Source::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::props::table;

    fn level(entries: &[(&str, u64)]) -> LocalProps {
        let mut props = LocalProps::default();
        for (name, n) in entries {
            props.names.push(name.to_string());
            props.values.insert(name.to_string(), Value::Number(*n));
        }
        props
    }

    fn lookup(name: &str, entries: &[(&str, u64)]) -> Option<(u64, bool)> {
        match level(entries).lookup(name, table::find(name))? {
            (Value::Number(n), received) => Some((*n, received)),
            _ => None,
        }
    }

    #[test]
    fn a_local_value_counts_before_a_received_one() {
        assert_eq!(lookup("atime", &[("atime$recvd", 1)]), Some((1, true)));
        assert_eq!(lookup("atime", &[("atime", 0), ("atime$recvd", 1)]), Some((0, false)));
        assert_eq!(lookup("atime", &[("atime$inherit", 0), ("atime$recvd", 1)]), None);
        assert_eq!(lookup("atime", &[("mtime", 0)]), None);
    }

    #[test]
    fn a_newer_number_counts_if_it_is_known() {
        let name = "redundant_metadata";
        let entries = |newer| [(name, 1), ("redundant_metadata$iuv", newer)];
        assert_eq!(lookup(name, &entries(3)), Some((3, false)));
        assert_eq!(lookup(name, &entries(77)), Some((1, false)));
    }
}
