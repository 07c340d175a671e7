//! Devices that join the vdevs of a pool on files.

use super::Rig;
use cenote_dmu::outside::Chance;
use cenote_engine::create::{
    CreateError, CreateSpec, FIRST_TXG, Force, NewDevice, OpenDevices, Prepared, SystemDevices,
    parse, prepare,
};
use cenote_engine::{Attach, Engine, EngineError};

/// Vdevs in files, to join the pool.
pub fn prepared(
    rig: &Rig,
    engine: &Engine,
    line: &str,
    devices: &dyn OpenDevices,
) -> Result<Prepared, CreateError> {
    let args: Vec<String> = line.split_whitespace().map(|word| rig.word(word)).collect();
    let pool = engine.pool();
    prepare(&CreateSpec {
        name: "tank",
        layout: &parse(&args).unwrap(),
        ashift: 0,
        force: Force { in_use: true, replication: true },
        pool: Some(pool.config()),
        txg: FIRST_TXG,
        imported: &[],
        devices,
        chance: &Chance::default(),
    })
}

/// The device in the file with this name.
pub fn device(rig: &Rig, engine: &Engine, name: &str, devices: &dyn OpenDevices) -> NewDevice {
    prepared(rig, engine, name, devices).unwrap().into_single().unwrap()
}

/// The guid of the leaf in the file with this name.
pub fn leaf(rig: &Rig, engine: &Engine, name: &str) -> u64 {
    let path = rig.file(name);
    let leaves = engine.pool().store().vdevs().leaves();
    let found = leaves.iter().find(|leaf| leaf.path() == Some(&path));
    found.unwrap_or_else(|| panic!("no {name}")).guid()
}

pub fn put(
    rig: &Rig,
    engine: &Engine,
    beside: &str,
    new: &str,
    replaces: bool,
) -> Result<(), EngineError> {
    let (beside, new) = (leaf(rig, engine, beside), device(rig, engine, new, &SystemDevices));
    engine.attach(Attach { beside, new, replaces })
}

pub fn attach(rig: &Rig, engine: &Engine, beside: &str, new: &str) -> Result<(), EngineError> {
    put(rig, engine, beside, new, false)
}

pub fn replace(rig: &Rig, engine: &Engine, old: &str, new: &str) -> Result<(), EngineError> {
    put(rig, engine, old, new, true)
}
