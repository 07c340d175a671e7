//! The registry of a file system's system attributes, and their layouts.
//!
//! The master node's `SA_ATTRS` entry leads to a ZAP of two more: `REGISTRY`, which maps the name of
//! each attribute to its number, length and byte-swap function, and `LAYOUTS`, which maps the number
//! of each layout (in decimal) to the numbers of its attributes, 16 bits each. Numbers are given out
//! per file system, so only names are fixed. Attributes that this program has no name for are
//! stepped over.
//!
//! A layout that makes no sense is left out: files that use it cannot be read, others can.
//!
//! Invariant: every attribute of a known layout has a definition; there are at most 1024 layouts.

use crate::source::Source;
use crate::{Error, Result};
use cenote_dmu::zap::Zap;
use cenote_format::sa::{AttrDef, SaHeader, SaValue, locate};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The attributes that files have (`zpl_attr_t`), by what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZplAttr {
    Atime,
    Mtime,
    Ctime,
    Crtime,
    Gen,
    Mode,
    Size,
    Parent,
    Links,
    Xattr,
    Rdev,
    Flags,
    Uid,
    Gid,
    Symlink,
    Dxattr,
    ProjId,
}

/// Names in the registry, in the order of [`ZplAttr`].
const NAMES: [&str; 17] = [
    "ZPL_ATIME",
    "ZPL_MTIME",
    "ZPL_CTIME",
    "ZPL_CRTIME",
    "ZPL_GEN",
    "ZPL_MODE",
    "ZPL_SIZE",
    "ZPL_PARENT",
    "ZPL_LINKS",
    "ZPL_XATTR",
    "ZPL_RDEV",
    "ZPL_FLAGS",
    "ZPL_UID",
    "ZPL_GID",
    "ZPL_SYMLINK",
    "ZPL_DXATTR",
    "ZPL_PROJID",
];

/// Layout numbers have 10 bits.
const MAX_LAYOUTS: usize = 1024;
/// More attributes than any header could give lengths for.
const MAX_ATTRS: usize = 1024;

/// The registry and the layouts of a file system.
#[derive(Debug)]
pub(crate) struct Registry {
    numbers: [Option<u16>; NAMES.len()],
    layouts: HashMap<u16, Vec<AttrDef>>,
}

impl Registry {
    /// Reads the registry that the SA master node `object` leads to.
    pub(crate) fn load(os: &Source, object: u64) -> Result<Registry> {
        let master = Zap::open(&os.object(object)?)?;
        let child = |name: &str| -> Result<(u64, Zap)> {
            let number = master
                .u64(name.as_bytes())?
                .ok_or_else(|| Error::Corrupt(object, format!("SA master node without {name}")))?;
            Ok((number, Zap::open(&os.object(number)?)?))
        };
        let (registry_obj, registry) = child("REGISTRY")?;
        let mut numbers = [None; NAMES.len()];
        let mut defs = HashMap::new();
        for entry in registry.entries_from(0, MAX_ATTRS)? {
            let word = entry.value.first().copied().unwrap_or_default();
            let def = AttrDef::decode(word);
            defs.insert(def.id, def);
            if let Some(i) = NAMES.iter().position(|n| n.as_bytes() == entry.name) {
                numbers[i] = Some(def.id);
            }
        }
        if numbers[ZplAttr::Mode as usize].is_none() {
            return Err(Error::Corrupt(registry_obj, "SA registry without ZPL_MODE".into()));
        }
        let (_, layouts_zap) = child("LAYOUTS")?;
        let mut layouts = HashMap::new();
        for entry in layouts_zap.entries_from(0, MAX_LAYOUTS)? {
            let number = std::str::from_utf8(&entry.name).ok().and_then(|n| n.parse::<u16>().ok());
            let attrs: Option<Vec<AttrDef>> = entry
                .value
                .iter()
                .map(|w| u16::try_from(*w).ok().and_then(|id| defs.get(&id)).copied())
                .collect();
            if let (Some(number), Some(attrs)) = (number, attrs) {
                layouts.insert(number, attrs);
            }
        }
        Ok(Registry { numbers, layouts })
    }

    /// Finds the values in a bonus buffer or spill block of `object`.
    pub(crate) fn locate(&self, object: u64, data: &[u8]) -> Result<(SaHeader, Vec<SaValue>)> {
        let header = SaHeader::decode(data).map_err(Error::decode(object))?;
        let layout = self.layouts.get(&header.layout).ok_or_else(|| {
            Error::Corrupt(object, format!("SA layout {} is not defined", header.layout))
        })?;
        let values = locate(data, &header, layout).map_err(Error::decode(object))?;
        Ok((header, values))
    }

    /// The number of an attribute in this file system, if it has ever been used.
    pub(crate) fn number(&self, attr: ZplAttr) -> Option<u16> {
        self.numbers[attr as usize]
    }
}

/// The registry of a file system in use: layouts are added, none goes.
#[derive(Debug)]
pub(crate) struct SharedRegistry(RwLock<Arc<Registry>>);

impl SharedRegistry {
    pub(crate) fn new(registry: Registry) -> SharedRegistry {
        SharedRegistry(RwLock::new(Arc::new(registry)))
    }

    /// The registry as it is now.
    pub(crate) fn current(&self) -> Arc<Registry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
