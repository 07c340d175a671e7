//! What pools of older software lack, and every pool of today has whatever its version (`spa_sync_upgrades`,
//! `AVZ_ACTION_INITIALIZE`): ZAPs of the vdevs, and the salt of the checksums that have one. The first group of an import
//! makes them. Older software does not know the entries of the object directory that lead to them, and passes over them.
//! It also takes off the config that devices were away which are there.

use crate::SyncContext;
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::checksum::Salt;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::config_write::DIRECTORY;

/// Entry of the object directory (`DMU_POOL_CHECKSUM_SALT`).
const SALT: &[u8] = b"org.illumos:checksum_salt";

/// What a config says of a leaf whose device was not there.
const AWAY: [&str; 2] = ["removed", "not_present"];

impl SyncContext<'_> {
    /// Makes what the pool lacks of that.
    ///
    /// # Errors
    /// The MOS cannot be read or changed; there are no random numbers.
    pub(super) fn adopt(&mut self) -> Result<()> {
        let gets_zaps = self.maps.adopt_vdevs(self.tx.mos, &mut self.config.vdev_tree)?;
        self.config_changed |= gets_zaps;
        self.note_devices_back();
        if ZapMut::open(self.tx.mos, DIRECTORY).lookup(&Key::Name(SALT))?.is_some() {
            return Ok(());
        }
        let mut salt = [0; 32];
        for word in salt.chunks_exact_mut(8) {
            let number = self.tx.chance.number();
            let number = number.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
            word.copy_from_slice(&number.to_le_bytes());
        }
        ZapMut::open(self.tx.mos, DIRECTORY).add(&Key::Name(SALT), &Value::U8(&salt))?;
        let store = self.disk.store.clone();
        self.when_kept(move || store.set_salt(Salt::new(salt)));
        Ok(())
    }

    /// Takes off the config that devices were away which this import has found (`vdev_open`, `vdev_validate`). No log has begun
    /// yet: one on a device that the config has as removed would not be missed by an import that comes without it.
    fn note_devices_back(&mut self) {
        let tree = self.disk.tree();
        let is_back = |leaf: &NvList| {
            let found = tree.find(config::number(leaf, "guid"));
            found.is_some_and(|found| found.state().readable())
        };
        let mut changed = false;
        config::for_each_leaf_mut(&mut self.config.vdev_tree, &mut |leaf| {
            let is_noted = AWAY.iter().any(|name| config::flag(leaf, name));
            if is_noted && is_back(leaf) {
                leaf.pairs.retain(|(name, _)| !AWAY.contains(&name.as_str()));
                changed = true;
            }
        });
        self.config_changed |= changed;
    }
}
