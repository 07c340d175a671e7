//! The registry of system attributes: their numbers, and the layouts in which nodes have them (`sa_setup`, `sa_attr_register_sync`,
//! `sa_find_layout`).
//!
//! A file system has one master node of system attributes with two ZAPs: `REGISTRY` says number, length and byte order of each
//! attribute by its name, `LAYOUTS` the list of attributes of each layout by its number. Neither is ever taken back. An attribute
//! or a layout that is missing is added when a node needs it.

use super::context::Cx;
use crate::sa::{Registry, TABLE, ZplAttr};
use crate::{Error, Result};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, OpenObjectSet, ZapMut};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::sa::AttrDef;
use cenote_format::{SECTOR, invariant};

/// `DMU_OT_SA_MASTER_NODE`, `DMU_OT_SA_ATTR_REGISTRATION`, `DMU_OT_SA_ATTR_LAYOUTS`.
pub(super) const SA_MASTER_NODE: DmuType = DmuType(45);
const SA_REGISTRY: DmuType = DmuType(46);
const SA_LAYOUTS: DmuType = DmuType(47);

/// Sets an entry of a ZAP.
pub(super) fn put(os: &mut OpenObjectSet, zap: u64, name: &str, value: u64) -> Result<()> {
    Ok(ZapMut::open(os, zap).update(&Key::Name(name.as_bytes()), &Value::U64(&[value]))?)
}

/// A new ZAP of its own object.
pub(super) fn new_zap(os: &mut OpenObjectSet, kind: DmuType, salt: u64) -> Result<u64> {
    let format = ZapFormat { salt, ..ZapFormat::default() };
    Ok(ZapMut::create(os, &NewObject::new(kind, SECTOR), format)?)
}

/// The registry of all attributes, without layouts.
pub(super) fn new_registry(os: &mut OpenObjectSet, sa: u64, salts: [u64; 2]) -> Result<Registry> {
    let registry_obj = new_zap(os, SA_REGISTRY, salts[0])?;
    put(os, sa, "REGISTRY", registry_obj)?;
    let layouts_obj = new_zap(os, SA_LAYOUTS, salts[1])?;
    put(os, sa, "LAYOUTS", layouts_obj)?;
    let mut registry = Registry::empty((registry_obj, layouts_obj));
    registry.master = sa;
    for ((name, length, swap, _), id) in TABLE.into_iter().zip(0..) {
        let def = AttrDef { id, length, swap };
        put(os, registry_obj, name, def.encode())?;
        registry.define(name.as_bytes(), def);
    }
    Ok(registry)
}

/// Makes the registry that a file system has no ZAPs for yet, whose nodes were of the kind from before version 5 until now.
fn make_registry(cx: &mut Cx<'_>) -> Result<()> {
    let master = cx.registry.master;
    let salts = [cx.salt(master), cx.salt(master.wrapping_add(1))];
    let registry = new_registry(cx.os, master, salts)?;
    cx.publish(registry);
    Ok(())
}

impl Cx<'_> {
    /// The definition of an attribute, which is registered if need be.
    pub(super) fn attribute(&mut self, attr: ZplAttr) -> Result<AttrDef> {
        if let Some(def) = self.registry.def(attr) {
            return Ok(def);
        }
        let Some((name, length, swap, _)) = TABLE.iter().find(|(.., a)| *a == Some(attr)) else {
            return Err(Error::Unsupported(format!("attribute {attr:?}")));
        };
        let mut registry = Registry::clone(&self.registry);
        let id = registry
            .free_attr()
            .ok_or_else(|| Error::Unsupported("more attributes than there are numbers".into()))?;
        let def = AttrDef { id, length: *length, swap: *swap };
        let key = Key::Name(name.as_bytes());
        ZapMut::open(self.os, registry.objects.0).add(&key, &Value::U64(&[def.encode()]))?;
        registry.define(name.as_bytes(), def);
        self.publish(registry);
        Ok(def)
    }

    /// The number of the layout of exactly these attributes, which is registered if need be (`sa_find_layout`).
    pub(super) fn layout(&mut self, attrs: impl Iterator<Item = AttrDef> + Clone) -> Result<u16> {
        if self.registry.objects.1 == 0 {
            make_registry(self)?;
        }
        if let Some(number) = self.registry.find_layout(attrs.clone()) {
            return Ok(number);
        }
        let attrs: Vec<AttrDef> = attrs.collect();
        let number = self
            .registry
            .free_layout()
            .ok_or_else(|| Error::Unsupported("more than 1022 layouts of attributes".into()))?;
        let taken = self.registry.layout(number);
        invariant!(taken.is_none(), "layout {number} of attributes is made, and is {taken:?}");
        let mut registry = Registry::clone(&self.registry);
        let ids: Vec<u16> = attrs.iter().map(|a| a.id).collect();
        let name = number.to_string();
        ZapMut::open(self.os, registry.objects.1)
            .add(&Key::Name(name.as_bytes()), &Value::U16(&ids))?;
        registry.note_layout(number, Some(attrs));
        self.publish(registry);
        Ok(number)
    }
}
