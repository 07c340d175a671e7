//! A hot spare, as the device that joins a vdev.

use crate::Engine;
use crate::create::{NewDevice, OpenDevices, SystemDevices};
use cenote_format::nvlist::NvList;
use cenote_pool::config;

impl Engine {
    /// The device of a spare of the pool that is not in use, given its guid, to join a vdev ([`Engine::attach`]).
    ///
    /// # Errors
    /// In the words of messages: there is no such spare; the pool has it in use; it cannot be opened.
    pub fn spare(&self, guid: u64) -> Result<NewDevice, String> {
        let pool = self.pool();
        let is_it = |spare: &&NvList| config::number(spare, "guid") == guid;
        let spare = pool.spares().iter().find(is_it).ok_or("no such device in pool")?;
        let path = config::path(spare).ok_or("no such device in pool")?;
        if pool.store().vdevs().find(guid).is_some() {
            return Err(format!("{} is busy", path.display()));
        }
        // It is open for reading, as one that pools share.
        pool.devices().forget(guid);
        let device = SystemDevices.open_rw(&path);
        pool.devices().share(guid, path.clone());
        let device = device.map_err(|e| match e.kind() {
            std::io::ErrorKind::ResourceBusy => format!("{} is busy", path.display()),
            _ => format!("{}: {e}", path.display()),
        })?;
        Ok(NewDevice { leaf: spare.clone(), device, ashift: config::number(spare, "ashift") })
    }
}
