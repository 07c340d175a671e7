//! The registry of a file system's system attributes, and their layouts (`sa_attr_table_setup`, `sa_find_layout`).
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

use crate::error::show;
use crate::source::Source;
use crate::{Error, Result};
use ahash::HashMap;
use cenote_dmu::zap::Zap;
use cenote_format::invariant;
use cenote_format::sa::{AttrDef, Layout, SaHeader, SaValue};
use parking_lot::RwLock;
use std::sync::Arc;

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
    DaclCount,
    Symlink,
    DaclAces,
    Dxattr,
    ProjId,
}

/// `SA_UINT64_ARRAY`, `SA_UINT8_ARRAY`, `SA_ACL`: how the values turn between byte orders.
const WORDS: u8 = 0;
const BYTES: u8 = 3;
const ACL: u8 = 4;

/// The attributes of OpenZFS with the lengths of their values (0: each has its own) and how they
/// turn. A new registry gives them numbers in this order.
pub(crate) const TABLE: [(&str, u16, u8, Option<ZplAttr>); 22] = [
    ("ZPL_ATIME", 16, WORDS, Some(ZplAttr::Atime)),
    ("ZPL_MTIME", 16, WORDS, Some(ZplAttr::Mtime)),
    ("ZPL_CTIME", 16, WORDS, Some(ZplAttr::Ctime)),
    ("ZPL_CRTIME", 16, WORDS, Some(ZplAttr::Crtime)),
    ("ZPL_GEN", 8, WORDS, Some(ZplAttr::Gen)),
    ("ZPL_MODE", 8, WORDS, Some(ZplAttr::Mode)),
    ("ZPL_SIZE", 8, WORDS, Some(ZplAttr::Size)),
    ("ZPL_PARENT", 8, WORDS, Some(ZplAttr::Parent)),
    ("ZPL_LINKS", 8, WORDS, Some(ZplAttr::Links)),
    ("ZPL_XATTR", 8, WORDS, Some(ZplAttr::Xattr)),
    ("ZPL_RDEV", 8, WORDS, Some(ZplAttr::Rdev)),
    ("ZPL_FLAGS", 8, WORDS, Some(ZplAttr::Flags)),
    ("ZPL_UID", 8, WORDS, Some(ZplAttr::Uid)),
    ("ZPL_GID", 8, WORDS, Some(ZplAttr::Gid)),
    ("ZPL_PAD", 32, WORDS, None),
    ("ZPL_ZNODE_ACL", 88, BYTES, None),
    ("ZPL_DACL_COUNT", 8, WORDS, Some(ZplAttr::DaclCount)),
    ("ZPL_SYMLINK", 0, BYTES, Some(ZplAttr::Symlink)),
    ("ZPL_SCANSTAMP", 32, BYTES, None),
    ("ZPL_DACL_ACES", 0, ACL, Some(ZplAttr::DaclAces)),
    ("ZPL_DXATTR", 0, BYTES, Some(ZplAttr::Dxattr)),
    ("ZPL_PROJID", 8, WORDS, Some(ZplAttr::ProjId)),
];

/// Attributes that this program knows the meaning of.
pub(crate) const KNOWN: usize = ZplAttr::ProjId as usize + 1;

/// Largest number of a layout (10 bits).
const MAX_LAYOUT: u16 = 0x3ff;
/// Numbers below are not for new layouts.
const FIRST_LAYOUT: usize = 2;
/// More attributes than any header could give lengths for.
const MAX_ATTRS: usize = 1024;

/// The registry and the layouts of a file system.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    known: [Option<AttrDef>; KNOWN],
    /// What the attributes mean, by number.
    meanings: Vec<Option<ZplAttr>>,
    defs: HashMap<u16, AttrDef>,
    /// The layouts by number; `None` for a number that is not used, or whose layout makes no sense.
    layouts: Vec<Option<Layout>>,
    /// The ZAPs of attributes and of layouts; 0: there are none yet.
    pub(crate) objects: (u64, u64),
    /// The ZAP that leads to them; 0 in a file system from before there were such.
    pub(crate) master: u64,
}

impl Registry {
    /// Reads the registry that the SA master node `object` leads to (`sa_setup`).
    pub(crate) fn load(os: &Source, object: u64) -> Result<Registry> {
        let master = Zap::open(&os.object(object)?)?;
        if master.u64(b"REGISTRY")?.is_none() && master.u64(b"LAYOUTS")?.is_none() {
            // An upgrade leaves it to the first change to make them.
            return Ok(Registry { master: object, ..Registry::of_old_nodes() });
        }
        let child = |name: &str| -> Result<(u64, Zap)> {
            let number = master
                .u64(name.as_bytes())?
                .ok_or_else(|| Error::Corrupt(object, format!("SA master node without {name}")))?;
            Ok((number, Zap::open(&os.object(number)?)?))
        };
        let (registry_obj, registry) = child("REGISTRY")?;
        let (layouts_obj, layouts_zap) = child("LAYOUTS")?;
        let mut this = Registry::empty((registry_obj, layouts_obj));
        this.master = object;
        for entry in registry.entries_from(0, MAX_ATTRS)? {
            let Some(word) = entry.u64() else {
                let why = format!("attribute {} without a definition", show(&entry.name));
                return Err(Error::Corrupt(registry_obj, why));
            };
            this.define(&entry.name, AttrDef::decode(word));
        }
        if this.known[ZplAttr::Mode as usize].is_none() {
            return Err(Error::Corrupt(registry_obj, "SA registry without ZPL_MODE".into()));
        }
        for entry in layouts_zap.entries_from(0, usize::from(MAX_LAYOUT) + 1)? {
            let number = std::str::from_utf8(&entry.name).ok().and_then(|n| n.parse::<u16>().ok());
            let attrs: Option<Vec<AttrDef>> = entry
                .value
                .iter()
                .map(|w| u16::try_from(*w).ok().and_then(|id| this.defs.get(&id)).copied())
                .collect();
            if let Some(number) = number {
                this.note_layout(number, attrs);
            }
        }
        Ok(this)
    }

    /// A registry of nothing, kept in two ZAPs.
    pub(crate) fn empty(objects: (u64, u64)) -> Registry {
        let (meanings, defs, layouts) = Default::default();
        Registry { known: [None; KNOWN], meanings, defs, layouts, objects, master: 0 }
    }

    /// All attributes by their usual numbers, kept in no ZAP: what names the fields of a `znode_phys_t` while they are
    /// in memory.
    pub(crate) fn of_old_nodes() -> Registry {
        let mut registry = Registry::empty((0, 0));
        for ((name, length, swap, _), id) in TABLE.into_iter().zip(0..) {
            registry.define(name.as_bytes(), AttrDef { id, length, swap });
        }
        registry
    }

    /// Takes note of an attribute.
    pub(crate) fn define(&mut self, name: &[u8], def: AttrDef) {
        self.defs.insert(def.id, def);
        let known = TABLE.iter().find(|(n, ..)| n.as_bytes() == name);
        if let Some((_, _, _, Some(attr))) = known {
            self.known[*attr as usize] = Some(def);
            let place = usize::from(def.id);
            self.meanings.resize(self.meanings.len().max(place + 1), None);
            if let Some(meaning) = self.meanings.get_mut(place) {
                *meaning = Some(*attr);
            }
        }
    }

    /// The definition of an attribute, if it has been registered.
    pub(crate) fn def(&self, attr: ZplAttr) -> Option<AttrDef> {
        self.known[attr as usize]
    }

    /// A number above the numbers of all attributes; `None` if none is left.
    pub(crate) fn free_attr(&self) -> Option<u16> {
        self.defs.keys().max().map_or(Some(0), |id| id.checked_add(1))
    }

    /// The number of the layout of exactly these attributes.
    pub(crate) fn find_layout(&self, attrs: impl Iterator<Item = AttrDef> + Clone) -> Option<u16> {
        let same = |layout: &Option<Layout>| {
            layout.as_ref().is_some_and(|layout| attrs.clone().eq(layout.attrs().iter().copied()))
        };
        let (_, others) = self.layouts.split_at_checked(FIRST_LAYOUT)?;
        let found = others.iter().position(same)?;
        u16::try_from(found + FIRST_LAYOUT).ok()
    }

    /// A number above the numbers of all layouts, also of layouts that make no sense; `None` if none is left.
    pub(crate) fn free_layout(&self) -> Option<u16> {
        let free = u16::try_from(self.layouts.len().max(FIRST_LAYOUT)).ok();
        free.filter(|number| *number <= MAX_LAYOUT)
    }

    /// Takes note of a layout; `None` for one that makes no sense.
    pub(crate) fn note_layout(&mut self, number: u16, attrs: Option<Vec<AttrDef>>) {
        let place = usize::from(number);
        if self.layouts.len() <= place && number <= MAX_LAYOUT {
            self.layouts.resize(place + 1, None);
        }
        if let Some(layout) = self.layouts.get_mut(place) {
            *layout = attrs.map(Layout::new);
        }
    }

    /// A layout.
    pub(crate) fn layout(&self, number: u16) -> Option<&Layout> {
        self.layouts.get(usize::from(number))?.as_ref()
    }

    /// Finds the values in a bonus buffer or spill block of `object` (`sa_build_index`).
    pub(crate) fn locate(&self, object: u64, data: &[u8]) -> Result<(SaHeader, Vec<SaValue>)> {
        let header = SaHeader::decode(data).map_err(Error::decode(object))?;
        let layout = self.layout(header.layout).ok_or_else(|| {
            Error::Corrupt(object, format!("SA layout {} is not defined", header.layout))
        })?;
        let values = layout.locate(data, &header).map_err(Error::decode(object))?;
        Ok((header, values))
    }

    /// What an attribute means, if that is known here.
    pub(crate) fn meaning(&self, id: u16) -> Option<ZplAttr> {
        self.meanings.get(usize::from(id)).copied().flatten()
    }

    /// The number of an attribute in this file system, if it has ever been used.
    pub(crate) fn number(&self, attr: ZplAttr) -> Option<u16> {
        self.known[attr as usize].map(|def| def.id)
    }
}

/// The registry of a file system in use: layouts are added and never taken away.
#[derive(Debug)]
pub(crate) struct SharedRegistry(RwLock<Arc<Registry>>);

impl SharedRegistry {
    pub(crate) fn new(registry: Registry) -> SharedRegistry {
        SharedRegistry(RwLock::new(Arc::new(registry)))
    }

    /// The registry as it is now.
    pub(crate) fn current(&self) -> Arc<Registry> {
        self.0.read().clone()
    }

    /// Shows what was added to it.
    pub(crate) fn publish(&self, registry: Arc<Registry>) {
        let mut current = self.0.write();
        let (then, now) = (current.layouts.len(), registry.layouts.len());
        invariant!(then <= now, "a registry of {then} layouts of attributes is left with {now}");
        *current = registry;
    }
}
