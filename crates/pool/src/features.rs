//! The features of a pool: which it uses, and whether this program knows them.
//!
//! Read from three ZAPs that the MOS's object directory names: `features_for_read` and
//! `features_for_write` (guid → number of uses) and `feature_descriptions` (guid → text).

mod choice;

pub(crate) use choice::unsupported;
pub use choice::{
    FeatureChoice, check_compatibility, choose_features, expected_features, writable,
};

use crate::directory::Directory;
use cenote_dmu::zap::Zap;
use cenote_dmu::{Object, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::features::{self, Feature};
use std::sync::Arc;

/// The entries of the object directory that name the ZAPs: the texts, then the numbers of uses.
const ZAPS: [&str; 3] = ["feature_descriptions", "features_for_read", "features_for_write"];

/// A feature that is in use and not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Its guid: `domain:name`.
    pub guid: String,
    /// What the pool says about it; may be empty.
    pub description: String,
}

impl Unsupported {
    /// The line in which OpenZFS's messages list the feature.
    pub fn line(&self) -> String {
        if self.description.is_empty() {
            format!("\t{}\n", self.guid)
        } else {
            format!("\t{} ({})\n", self.guid, self.description)
        }
    }
}

/// A feature that is enabled in a pool.
#[derive(Debug, Clone)]
pub struct PoolFeature {
    /// Its guid.
    pub guid: String,
    /// Number of uses; 0: enabled, else active.
    pub uses: u64,
    /// It must be understood to read the pool.
    pub for_read: bool,
    /// The feature, where it is known.
    pub known: Option<&'static Feature>,
    /// What the pool says about it; empty if nothing.
    pub description: String,
}

/// All features enabled in a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolFeatures {
    /// In the order of the ZAPs, those for reading first.
    pub list: Vec<PoolFeature>,
    /// What leads to the blocks of the ZAPs: as long as it stays the same, so do they.
    roots: Vec<BlockPointer>,
}

/// The ZAPs' objects.
fn objects(dir: &Directory) -> Result<[Option<Object>; ZAPS.len()]> {
    let [descriptions, reading, writing] = ZAPS.map(|name| dir.object_of(name));
    Ok([descriptions?, reading?, writing?])
}

fn roots(objects: &[Option<Object>]) -> impl Iterator<Item = &BlockPointer> {
    objects.iter().flatten().flat_map(|object| &object.dnode().pointers)
}

impl PoolFeatures {
    /// Reads the three ZAPs.
    pub fn load(dir: &Directory) -> Result<PoolFeatures> {
        PoolFeatures::read(&objects(dir)?)
    }

    /// The same as they are in a later transaction group.
    pub fn after(self: &Arc<Self>, dir: &Directory) -> Result<Arc<PoolFeatures>> {
        let objects = objects(dir)?;
        match roots(&objects).eq(&self.roots) {
            true => Ok(self.clone()),
            false => Ok(Arc::new(PoolFeatures::read(&objects)?)),
        }
    }

    fn read(objects: &[Option<Object>; ZAPS.len()]) -> Result<PoolFeatures> {
        let [descriptions, reading, writing] = objects;
        let descriptions = descriptions.as_ref().map(Zap::open).transpose()?;
        let mut list = Vec::new();
        for (object, for_read) in [(reading, true), (writing, false)] {
            let Some(object) = object else { continue };
            for entry in Zap::open(object)?.entries()? {
                let guid = String::from_utf8_lossy(&entry.name).into_owned();
                let known = features::by_guid(&guid);
                // Only unknown features are ever described to the user.
                let description = match (&descriptions, known) {
                    (Some(d), None) => d.lookup(&entry.name)?.map(|e| text(&e.bytes())),
                    _ => None,
                };
                list.push(PoolFeature {
                    guid,
                    uses: entry.u64().unwrap_or(0),
                    for_read,
                    known,
                    description: description.unwrap_or_default(),
                });
            }
        }
        Ok(PoolFeatures { list, roots: roots(objects).copied().collect() })
    }

    /// The enabled feature with this guid.
    pub fn get(&self, guid: &str) -> Option<&PoolFeature> {
        self.list.iter().find(|f| f.guid == guid)
    }

    /// Whether the feature with this short name is enabled (or active).
    pub fn is_enabled(&self, name: &str) -> bool {
        self.list.iter().any(|f| f.known.is_some_and(|k| k.name == name))
    }

    /// Whether the feature with this short name is active.
    pub fn is_active(&self, name: &str) -> bool {
        self.list.iter().any(|f| f.uses > 0 && f.known.is_some_and(|k| k.name == name))
    }

    /// Active features that are not known, of those needed for reading or of those needed for
    /// writing (`spa_features_check`).
    pub fn unsupported(&self, for_read: bool) -> Vec<Unsupported> {
        let unknown =
            self.list.iter().filter(|f| f.known.is_none() && f.uses > 0 && f.for_read == for_read);
        unknown
            .map(|f| Unsupported { guid: f.guid.clone(), description: f.description.clone() })
            .collect()
    }
}

/// A string as ZAPs hold it: bytes up to a NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(guid: &str, uses: u64, for_read: bool) -> PoolFeature {
        PoolFeature {
            guid: guid.into(),
            uses,
            for_read,
            known: features::by_guid(guid),
            description: "Made up.".into(),
        }
    }

    #[test]
    fn unknown_features_matter_only_when_active() {
        let f = PoolFeatures {
            list: vec![
                feature("org.illumos:lz4_compress", 1, true),
                feature("com.example:idle", 0, true),
                feature("com.example:reading", 2, true),
                feature("com.example:writing", 1, false),
            ],
            ..PoolFeatures::default()
        };
        let guids = |r| f.unsupported(r).into_iter().map(|u| u.guid).collect::<Vec<_>>();
        assert_eq!(guids(true), ["com.example:reading"]);
        assert_eq!(guids(false), ["com.example:writing"]);
        assert_eq!(f.unsupported(true)[0].line(), "\tcom.example:reading (Made up.)\n");
        assert!(f.is_active("lz4_compress") && !f.is_enabled("skein"));
    }
}
