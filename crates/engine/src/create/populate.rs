//! What is in the MOS of a new pool besides its directories, datasets, vdevs and space maps.

use super::CreateError;
use cenote_dmu::outside::Chance;
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::{Result, Tx, bpobj};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::features::Feature;
use cenote_format::nvlist::NvList;
use cenote_pool::config_write::{self, DIRECTORY, PoolConfig, set_entry};
use cenote_pool::history;
use cenote_pool::props::{PropChange, apply};
use cenote_pool::version;
use cenote_vdev::VdevTree;

/// Bytes of the blocks of the list of frees that are put off.
const BPOBJ_BLOCK: u64 = 16 << 10;

/// What a new pool will be.
pub struct NewPool<'a> {
    /// Its vdevs.
    pub tree: &'a VdevTree,
    /// Features to enable, in order: see [`choose_features`](cenote_pool::features::choose_features).
    pub features: &'a [&'static Feature],
    /// Properties, see [`cenote_pool::props::parse`]; features among them count for nothing.
    pub props: &'a [PropChange],
    /// Configs of the spares.
    pub spares: &'a [NvList],
    /// Configs of the cache devices.
    pub caches: &'a [NvList],
    /// For checksums that are salted: see [`new_salt`](super::new_salt).
    pub salt: [u8; 32],
}

/// Makes everything of a new pool's MOS that is not a directory, dataset, vdev or space map. The
/// object directory and the ZAPs of features are there
/// ([`create_pool_dirs`](cenote_dsl::write::pool::create_pool_dirs)). The caller writes the config
/// ([`config_write::sync_config`]) when the vdevs have their objects.
///
/// # Errors
/// Errors of changing the MOS; a feature that is not known.
pub fn populate(tx: &mut Tx<'_>, new: &NewPool<'_>, config: &mut PoolConfig) -> Result<()> {
    history::create(tx.mos, data_space(new.tree))?;
    let record = history::version("create", config.version, tx.txg, tx.now);
    history::append(tx.mos, &record)?;
    set_entry(tx.mos, "creation_version", version::FEATURES)?;
    set_entry(tx.mos, "deflate", 1)?;
    let deferred = bpobj::create(tx, BPOBJ_BLOCK)?;
    set_entry(tx.mos, "sync_bplist", deferred)?;
    let name = Key::Name(b"org.illumos:checksum_salt");
    ZapMut::open(tx.mos, DIRECTORY).update(&name, &Value::U8(&new.salt))?;
    let wanted = |c: &&PropChange| !matches!(c, PropChange::Feature(_));
    let features = new.features.iter().map(|f| PropChange::Feature(f));
    for change in new.props.iter().filter(wanted).cloned().chain(features) {
        apply(tx, config, &change)?;
    }
    config_write::sync_aux(tx.mos, "spares", new.spares)?;
    config_write::sync_aux(tx.mos, "l2cache", new.caches)?;
    config.refresh_features(tx.mos)?;
    Ok(())
}

/// Bytes for data: of the vdevs that hold any, in whole metaslabs.
fn data_space(tree: &VdevTree) -> u64 {
    let tops = tree.root().children().iter().filter(|t| t.alloc_bias().is_none() && !t.is_log());
    tops.map(|t| t.deflate(t.asize())).fold(0, u64::saturating_add)
}

/// A new salt.
///
/// # Errors
/// There are no random numbers.
pub fn new_salt(chance: &Chance) -> std::result::Result<[u8; 32], CreateError> {
    let mut salt = [0; 32];
    for word in salt.chunks_exact_mut(8) {
        word.copy_from_slice(&random(chance)?.to_le_bytes());
    }
    Ok(salt)
}

/// A random number that is not 0.
pub(super) fn random(chance: &Chance) -> std::result::Result<u64, CreateError> {
    chance.number().map_err(|e| CreateError::Spec(format!("no random numbers: {e}")))
}
