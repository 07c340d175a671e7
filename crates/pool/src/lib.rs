//! SKELETON of floor 5: the assembled pool.
pub mod logsm;
pub mod metaslab;
pub mod spacemap;
use cenote_dmu::ObjectSet;
use cenote_dsl::{Dsl, PropValue};
use cenote_format::{label::Uberblock, nvlist::NvList};
use cenote_store::Store;
use std::{path::PathBuf, sync::Arc};

/// How to import.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct ImportOptions { pub new_name: Option<String>, pub readonly: bool, pub force: bool, pub altroot: Option<PathBuf>, pub rewind: bool, pub txg: Option<u64>, pub arc_bytes: Option<u64>, pub allow_missing_log: bool, pub hostid: Option<u32> }

/// A pool that could be imported, assembled from the labels found.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Candidate { pub name: String, pub guid: u64, pub state: u64, pub txg: u64, pub config: NvList, pub devices: Vec<cenote_vdev::DeviceLabels> }

/// Searches directories and files for pools.
pub fn discover(_dirs: &[PathBuf]) -> Vec<Candidate> { todo!() }

/// An imported pool.
pub struct Pool;
impl Pool {
    /// Imports read-only.
    pub fn import(_c: &Candidate, _o: &ImportOptions) -> Result<Arc<Pool>, ImportError> { todo!() }
    /// name
    pub fn name(&self) -> &str { todo!() }
    /// guid
    pub fn guid(&self) -> u64 { todo!() }
    /// store
    pub fn store(&self) -> &Arc<Store> { todo!() }
    /// MOS
    pub fn mos(&self) -> &Arc<ObjectSet> { todo!() }
    /// datasets
    pub fn dsl(&self) -> &Arc<Dsl> { todo!() }
    /// MOS config
    pub fn config(&self) -> &NvList { todo!() }
    /// the uberblock the pool was opened at
    pub fn uberblock(&self) -> &Uberblock { todo!() }
    /// pool property, like `zpool get` (native, feature@x, unsupported@x, user)
    pub fn get(&self, _name: &str) -> Option<PropValue> { todo!() }
    /// all pool properties in `zpool get all` order
    pub fn get_all(&self) -> Vec<(String, PropValue)> { todo!() }
}
/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError { /// placeholder
 #[error("placeholder")] Placeholder }
