//! Delegated permissions (`dsl_deleg_get`).
//!
//! A directory has a ZAP of grants. An entry is named by whom it is for, `KL$WHO`: kind `K`, in upper case
//! if what it grants are sets of permissions, place `L`, and an id or the name of a set. Its value is the
//! number of a ZAP whose names are the permissions.
//!
//! | kind | for |
//! |---|---|
//! | `u`, `U` | the user with number WHO |
//! | `g`, `G` | the group with number WHO |
//! | `e`, `E` | everyone |
//! | `c`, `C` | the creator of a dataset below |
//! | `s`, `S` | the set of permissions called WHO |
//!
//! Place: `l`, the dataset itself; `d`, those below; `-`, for kinds without one.

use crate::{Dataset, Dsl};
use cenote_dmu::Result;

/// An entry of a directory's permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Kind of whom it is for, in lower case: one of `s`, `c`, `u`, `g`, `e`.
    pub kind: char,
    /// Where it holds: `l`, `d` or `-`.
    pub place: char,
    /// Id of a user or group, name of a set; empty for others.
    pub who: String,
    /// Permissions, and sets of them, sorted.
    pub permissions: Vec<String>,
}

impl Dsl {
    /// The permissions that were granted on a dataset and on those above it, nearest first: names of
    /// datasets with what is granted there. Those without grants are left out.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn permissions(&self, d: &Dataset) -> Result<Vec<(String, Vec<Grant>)>> {
        let mut found = Vec::new();
        let end = d.name.find(['@', '#']).unwrap_or(d.name.len());
        let mut name = d.name.get(..end).unwrap_or_default();
        loop {
            if let Some(dataset) = self.find(name)? {
                let grants = self.grants(dataset.dir.deleg)?;
                if !grants.is_empty() {
                    found.push((name.to_string(), grants));
                }
            }
            match name.rsplit_once('/') {
                Some((above, _)) => name = above,
                None => return Ok(found),
            }
        }
    }

    fn grants(&self, object: u64) -> Result<Vec<Grant>> {
        if object == 0 {
            return Ok(Vec::new());
        }
        let mut grants = Vec::new();
        for entry in self.zap(object)?.entries()? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let mut letters = name.chars();
            let (Some(kind), Some(place), Some('$')) =
                (letters.next(), letters.next(), letters.next())
            else {
                continue;
            };
            let Some(list) = entry.u64().filter(|n| *n != 0) else { continue };
            let entries = self.zap(list)?.entries()?;
            let mut permissions: Vec<String> =
                entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect();
            permissions.sort();
            grants.push(Grant {
                kind: kind.to_ascii_lowercase(),
                place,
                who: letters.as_str().to_string(),
                permissions,
            });
        }
        grants.sort_by(|a, b| (&a.who, a.kind, a.place).cmp(&(&b.who, b.kind, b.place)));
        Ok(grants)
    }
}
