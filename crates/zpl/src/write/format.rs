//! New file systems and volumes (`zfs_create_fs`).

use super::books::Books;
use super::context::{After, Cx, NameRules};
use super::new_node::{Fresh, create_node};
use super::{CreateProps, Settings};
use crate::fs::{CaseSensitivity, FUIDS, MASTER_NODE, SYSTEM_ATTRIBUTES, norm_flags};
use crate::quota::Quotas;
use crate::sa::{Registry, TABLE};
use crate::volume::{DATA, PROPERTIES, SIZE};
use crate::znode::S_IFDIR;
use crate::{Error, Result};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, OpenObjectSet, ZapMut};
use cenote_format::SECTOR;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::sa::AttrDef;
use cenote_format::zap::norm::{TO_UPPER, flags_valid};
use std::sync::Arc;

/// `DMU_OT_SA_MASTER_NODE`, `DMU_OT_SA_ATTR_REGISTRATION`, `DMU_OT_SA_ATTR_LAYOUTS`.
const SA_MASTER_NODE: DmuType = DmuType(45);
const SA_REGISTRY: DmuType = DmuType(46);
const SA_LAYOUTS: DmuType = DmuType(47);

fn put(os: &mut OpenObjectSet, zap: u64, name: &str, value: u64) -> Result<()> {
    Ok(ZapMut::open(os, zap).update(&Key::Name(name.as_bytes()), &Value::U64(&[value]))?)
}

fn new_zap(os: &mut OpenObjectSet, kind: DmuType, salt: u64) -> Result<u64> {
    let format = ZapFormat { salt, ..ZapFormat::default() };
    Ok(ZapMut::create(os, &NewObject::new(kind, SECTOR), format)?)
}

fn claim_zap(os: &mut OpenObjectSet, number: u64, kind: DmuType, salt: u64) -> Result<()> {
    os.claim(number, &NewObject::new(kind, SECTOR))?;
    Ok(ZapMut::format(os, number, ZapFormat { salt, ..ZapFormat::default() })?)
}

/// Makes an empty object set (of type [`Zfs`](cenote_format::dmu::ObjsetType::Zfs)) a file system:
/// master node, unlinked set, registry of system attributes, root directory.
///
/// Before version 5 there is no registry, and before version 3 names are compared as they are.
///
/// Errors: [`Error::Unsupported`] for a version that there is not, or that cannot compare names so; [`Error::Invalid`]
/// for a normalization that does not exist.
pub fn format(os: &mut OpenObjectSet, props: &CreateProps, txg: u64) -> Result<()> {
    if !(1..=SYSTEM_ATTRIBUTES).contains(&props.version) {
        return Err(Error::Unsupported(format!("file system version {}", props.version)));
    }
    if props.normalization & TO_UPPER != 0 || !flags_valid(props.normalization) {
        return Err(Error::Invalid(format!("normalization {:#x}", props.normalization)));
    }
    let utf8_only = props.utf8_only || props.normalization != 0;
    let compares = props.version >= FUIDS;
    if !compares && (utf8_only || props.case != CaseSensitivity::Sensitive) {
        let what = format!("how file systems of version {} compare names", props.version);
        return Err(Error::Unsupported(what));
    }
    let salt = |n: u64| (txg ^ (props.time.0 as u64).rotate_left(20)).wrapping_mul(2 * n + 1) | 1;
    claim_zap(os, MASTER_NODE, DmuType::MASTER_NODE, salt(1))?;
    let case = match props.case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    };
    if compares {
        put(os, MASTER_NODE, "normalization", props.normalization)?;
        put(os, MASTER_NODE, "utf8only", utf8_only.into())?;
        put(os, MASTER_NODE, "casesensitivity", case)?;
    }
    put(os, MASTER_NODE, "VERSION", props.version)?;
    let mut registry = Registry::of_old_nodes();
    if props.version >= SYSTEM_ATTRIBUTES {
        let sa = new_zap(os, SA_MASTER_NODE, salt(2))?;
        put(os, MASTER_NODE, "SA_ATTRS", sa)?;
        registry = new_registry(os, sa, [salt(4), salt(5)])?;
    }
    let unlinked_set = new_zap(os, DmuType::UNLINKED_SET, salt(3))?;
    put(os, MASTER_NODE, "DELETE_QUEUE", unlinked_set)?;
    let settings = Settings {
        dnode_size: props.dnode_size,
        project_quota: props.project_quota,
        ..Settings::default()
    };
    let settings = settings.within(props.version);
    let flags = norm_flags(props.normalization, props.case);
    let mut cx = Cx {
        os,
        txg,
        now: props.time,
        registry: Arc::new(registry),
        after: After::default(),
        books: Books::default(),
        settings: &settings,
        version: props.version,
        names: NameRules { flags, case: props.case, utf8_only },
        quotas: Quotas::default(),
        unlinked_set: Some(unlinked_set),
        keeps_unlinked: false,
    };
    let root = Fresh {
        list: None,
        mode: S_IFDIR | u64::from(props.mode) & 0o7777,
        uid: props.uid.into(),
        gid: props.gid.into(),
        parent: 0,
        links: 2,
        flags: 0,
        projid: 0,
        rdev: None,
        target: None,
    };
    let root = create_node(&mut cx, &root)?.ino;
    put(os, MASTER_NODE, "ROOT", root)
}

/// The registry of all attributes, without layouts.
fn new_registry(os: &mut OpenObjectSet, sa: u64, salts: [u64; 2]) -> Result<Registry> {
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

/// Takes a file system to a later version (`zfs_set_version`). Its nodes stay as they are until they are changed, and the
/// registry of system attributes is made with the first node that has some.
///
/// Errors: [`Error::Unsupported`] for a version that there is not, or that is not later.
pub fn upgrade(os: &mut OpenObjectSet, version: u64, txg: u64) -> Result<()> {
    let name = |name: &'static str| Key::Name(name.as_bytes());
    let now = ZapMut::open(os, MASTER_NODE).word(&name("VERSION"))?.unwrap_or_default();
    if now == 0 || !(now..=SYSTEM_ATTRIBUTES).contains(&version) {
        return Err(Error::Unsupported(format!("file system version {version} after {now}")));
    }
    let has_registry = ZapMut::open(os, MASTER_NODE).word(&name("SA_ATTRS"))?.is_some();
    if version >= SYSTEM_ATTRIBUTES && !has_registry {
        let sa = new_zap(os, SA_MASTER_NODE, txg.rotate_left(32) | 1)?;
        put(os, MASTER_NODE, "SA_ATTRS", sa)?;
    }
    put(os, MASTER_NODE, "VERSION", version)
}

/// Makes the registry that a file system has no ZAPs for yet, whose nodes were of the kind from before version 5 until now.
pub(super) fn make_registry(cx: &mut Cx<'_>) -> Result<()> {
    let master = cx.registry.master;
    let salts = [cx.salt(master), cx.salt(master.wrapping_add(1))];
    let registry = new_registry(cx.os, master, salts)?;
    cx.publish(registry);
    Ok(())
}

/// Makes an empty object set (of type [`Zvol`](cenote_format::dmu::ObjsetType::Zvol)) a volume of
/// `size` bytes in blocks of `block_size` bytes.
///
/// Errors: [`Error::Invalid`] if `block_size` is no power of two from 512 bytes to 16 MiB, or `size`
/// is 0 or no multiple of it.
pub fn format_volume(os: &mut OpenObjectSet, size: u64, block_size: u64) -> Result<()> {
    if !block_size.is_power_of_two() || !(SECTOR..=cenote_format::MAX_BLOCK).contains(&block_size) {
        return Err(Error::Invalid(format!("volblocksize {block_size}")));
    }
    check_volume_size(size, block_size)?;
    os.claim(DATA, &NewObject::new(DmuType::ZVOL, block_size))?;
    claim_zap(os, PROPERTIES, DmuType::ZVOL_PROP, size.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)?;
    let key = Key::Name(SIZE);
    Ok(ZapMut::open(os, PROPERTIES).update(&key, &Value::U64(&[size]))?)
}

/// Whether a volume can have this size.
pub(super) fn check_volume_size(size: u64, block_size: u64) -> Result<()> {
    if size == 0 || !size.is_multiple_of(block_size.max(1)) || size > i64::MAX as u64 {
        return Err(Error::Invalid(format!("volsize {size}")));
    }
    Ok(())
}
