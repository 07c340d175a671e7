//! What new file systems and volumes have in them, and how the properties of a dataset show in its
//! file system: the floor of files, as changes of datasets need it.

use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::zil::Kept;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::{Contents, Format};
use cenote_engine::{Engine, EngineError, NotReplayed, Replayer};
use cenote_zpl::{
    AclInherit, AclMode, Atime, Caching, CaseSensitivity, Clock, CreateProps, DirectIo,
    PrimaryCache, Replayed, Settings, Supervisor, Visibility, Volume, format, format_volume,
    upgrade,
};
use std::cell::Cell;
use std::sync::Arc;

/// Bytes of a dnode with `dnodesize=auto`.
const AUTO_DNODE: usize = 1024;
/// Largest block without the feature `large_blocks`.
const OLD_MAX_BLOCK: u64 = 128 << 10;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
/// Bytes of an ordinary dnode.
const DNODE: usize = 512;

/// Files and volumes, for [`cenote_engine::change::Changes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

/// The same for another user than this process's, to whom the root directories of new file systems belong.
#[derive(Clone, Copy, Debug)]
pub struct FilesOf {
    /// Number of the user.
    pub user: u32,
    /// Number of the user's primary group.
    pub group: u32,
}

impl Contents for Files {
    fn fill(&self, os: &mut OpenObjectSet, what: &Format, txg: u64) -> Result<(), WriteError> {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        FilesOf { user, group }.fill(os, what, txg)
    }

    fn resize(&self, volume: Arc<LiveObjectSet>, size: u64) -> Result<(), WriteError> {
        Volume::open_live(volume).and_then(|v| v.resize(size)).map_err(failed)
    }

    fn upgrade(&self, os: &mut OpenObjectSet, version: u64, txg: u64) -> Result<(), WriteError> {
        upgrade(os, version, txg).map_err(failed)
    }
}

impl Contents for FilesOf {
    fn fill(&self, os: &mut OpenObjectSet, what: &Format, txg: u64) -> Result<(), WriteError> {
        let done = match *what {
            Format::Filesystem { case, normalization, utf8_only, project_quota, version } => {
                let props = CreateProps {
                    version,
                    case: match case {
                        1 => CaseSensitivity::Insensitive,
                        2 => CaseSensitivity::Mixed,
                        _ => CaseSensitivity::Sensitive,
                    },
                    normalization,
                    utf8_only,
                    project_quota,
                    uid: self.user,
                    gid: self.group,
                    time: Clock::default().now(),
                    ..CreateProps::default()
                };
                format(os, &props, txg)
            }
            Format::Volume { size, block_size } => format_volume(os, size, block_size),
        };
        done.map_err(failed)
    }

    fn resize(&self, volume: Arc<LiveObjectSet>, size: u64) -> Result<(), WriteError> {
        Files.resize(volume, size)
    }

    fn upgrade(&self, os: &mut OpenObjectSet, version: u64, txg: u64) -> Result<(), WriteError> {
        Files.upgrade(os, version, txg)
    }
}

fn failed(e: cenote_zpl::Error) -> WriteError {
    match e {
        cenote_zpl::Error::ReadOnly => WriteError::ReadOnly,
        e => match e.errno() {
            ENOSPC => WriteError::NoSpace,
            EDQUOT => WriteError::Quota,
            _ => WriteError::Sink(Box::new(e)),
        },
    }
}

/// How the properties of a file system show in its files.
///
/// # Errors
/// A property cannot be read.
pub fn settings(pool: &cenote_pool::Pool, dataset: &Dataset) -> cenote_dmu::Result<Settings> {
    let value = |name: &str| {
        let value = pool.dsl().get(dataset, name)?;
        Ok::<_, cenote_dmu::Error>(value.map(|v| v.exact).unwrap_or_default())
    };
    let (xattr, acltype) = (value("xattr")?, value("acltype")?);
    let large_blocks = pool.features().is_enabled("large_blocks");
    let most = if large_blocks { u64::MAX } else { OLD_MAX_BLOCK };
    let key = pool.dsl().crypto_key(dataset)?;
    let most = key.map_or(most, |key| most.min(key.wrapped.suite.max_block()));
    Ok(Settings {
        visibility: Visibility {
            xattr: xattr != "off",
            posix_acl: acltype == "posix",
            nfs4_acl: acltype == "nfsv4",
        },
        acl_inherit: match value("aclinherit")?.as_str() {
            "discard" => AclInherit::Discard,
            "noallow" => AclInherit::NoAllow,
            "passthrough" => AclInherit::Passthrough,
            "passthrough-x" => AclInherit::PassthroughX,
            _ => AclInherit::Restricted,
        },
        acl_mode: match value("aclmode")?.as_str() {
            "groupmask" => AclMode::GroupMask,
            "passthrough" => AclMode::Passthrough,
            "restricted" => AclMode::Restricted,
            _ => AclMode::Discard,
        },
        xattr_sa: xattr != "dir",
        atime: match (value("atime")?.as_str(), value("relatime")?.as_str()) {
            ("off", _) => Atime::Off,
            (_, "on") => Atime::Relative,
            _ => Atime::On,
        },
        dnode_size: match value("dnodesize")?.as_str() {
            "legacy" | "" => DNODE,
            _ if !pool.features().is_enabled("large_dnode") => DNODE,
            "auto" => AUTO_DNODE,
            // `1k` to `16k`.
            kib => {
                kib.trim_end_matches('k').parse().map_or(DNODE, |n: usize| n.saturating_mul(1024))
            }
        },
        record_size: value("recordsize")?.parse().unwrap_or(OLD_MAX_BLOCK).min(most),
        project_quota: pool.features().is_enabled("project_quota"),
        long_names: value("longname")? == "on" && pool.features().is_enabled("longname"),
        large_microzap: pool.features().is_enabled("large_microzap"),
        read_only: value("readonly")? == "on",
        cache: caching(pool, dataset)?,
        direct: direct_io(pool, dataset)?,
        ..Settings::default()
    })
}

/// Which requests to a file system pass by the ARC.
fn direct_io(pool: &cenote_pool::Pool, dataset: &Dataset) -> cenote_dmu::Result<DirectIo> {
    let value = pool.dsl().get(dataset, "direct")?;
    Ok(match value.as_ref().map(|v| v.exact.as_str()) {
        Some("disabled") => DirectIo::Disabled,
        Some("always") => DirectIo::Always,
        _ => DirectIo::Standard,
    })
}

/// What the ARC and cache devices are to keep of a file system.
fn caching(pool: &cenote_pool::Pool, dataset: &Dataset) -> cenote_dmu::Result<Caching> {
    let of = |name: &str| -> cenote_dmu::Result<PrimaryCache> {
        let value = pool.dsl().get(dataset, name)?;
        Ok(match value.as_ref().map(|v| v.exact.as_str()) {
            Some("none") => PrimaryCache::None,
            Some("metadata") => PrimaryCache::Metadata,
            _ => PrimaryCache::All,
        })
    };
    Ok(Caching { primary: of("primarycache")?, secondary: of("secondarycache")? })
}

/// As [`settings`] for one that is only looked at: all that is in its files is shown. It asks for no property that a mount
/// option overrides, so answers to requests may ask for it.
///
/// # Errors
/// A property cannot be read.
pub fn whole(pool: &cenote_pool::Pool, dataset: &Dataset) -> cenote_dmu::Result<Settings> {
    let (cache, direct) = (caching(pool, dataset)?, direct_io(pool, dataset)?);
    Ok(Settings { cache, direct, ..Settings::default() })
}

/// Has the ARC and cache devices keep of the snapshots of a dataset what it is to keep of the dataset itself.
///
/// # Errors
/// The snapshots cannot be listed.
pub fn cache_snapshots(
    pool: &cenote_pool::Pool,
    dataset: &Dataset,
    cache: Caching,
) -> cenote_dmu::Result<()> {
    for snapshot in pool.dsl().snapshots(dataset)? {
        pool.store().set_caching(snapshot.ds_obj, cache);
    }
    Ok(())
}

/// Replays the intent log of a dataset that is opened, for [`cenote_engine::EngineOptions`].
pub fn replayer() -> Replayer {
    Replayer::new(|engine, live, kept| replay_log(engine, live, kept, &|_, _| true))
}

/// Replays all intent logs that wait in a pool, several at once. After each change, which applies
/// one record or several, `go_on` is told the name of the dataset and what was done of its log so far; false
/// ends the replay of this log for now. Returns the
/// datasets whose logs could not be replayed: they keep them, and cannot be written to.
///
/// # Errors
/// The pool is suspended.
pub fn replay_logs(
    engine: &Engine,
    go_on: &(dyn Fn(&str, &Replayed) -> bool + Sync),
) -> Result<Vec<NotReplayed>, EngineError> {
    engine.replay_logs(&|live, kept| replay_log(engine, live, kept, go_on))
}

/// As [`replay_logs`], the logs of these datasets, which are about to be opened.
///
/// # Errors
/// The pool is suspended.
pub fn replay_these_logs(
    engine: &Engine,
    datasets: &[u64],
) -> Result<Vec<NotReplayed>, EngineError> {
    engine.replay_these_logs(datasets, &|live, kept| replay_log(engine, live, kept, &|_, _| true))
}

fn replay_log(
    engine: &Engine,
    live: &Arc<LiveObjectSet>,
    kept: &Kept,
    go_on: &dyn Fn(&str, &Replayed) -> bool,
) -> Result<(), String> {
    let pool = engine.pool();
    let words = |e: cenote_dmu::Error| e.to_string();
    let dataset = pool.dsl().by_object(live.id()).map_err(words)?;
    let dataset = dataset.ok_or_else(|| "the dataset is gone".to_string())?;
    let settings = match dataset.kind {
        DatasetKind::Volume => Settings::default(),
        _ => settings(&pool, &dataset).map_err(words)?,
    };
    let (name, told) = (dataset.name.as_str(), Cell::default());
    let supervisor = Watch { engine, name, ds_obj: live.id(), go_on, told };
    let done = cenote_zpl::replay(live, settings, &supervisor, kept);
    let done = done.map_err(|e| e.to_string())?;
    let (records, bytes) = (done.records, done.bytes);
    tracing::info!("'{name}': replayed {records} records, {bytes} bytes");
    Ok(())
}

/// Watches the replay of a dataset's log.
struct Watch<'a> {
    engine: &'a Engine,
    name: &'a str,
    ds_obj: u64,
    go_on: &'a dyn Fn(&str, &Replayed) -> bool,
    /// What the engine was told of.
    told: Cell<Replayed>,
}

impl Supervisor for Watch<'_> {
    fn sync(&self) -> bool {
        self.engine.sync().is_ok()
    }

    fn go_on(&self, so_far: &Replayed) -> bool {
        let told = self.told.replace(*so_far);
        let (records, bytes) = (so_far.records - told.records, so_far.logged - told.logged);
        self.engine.note_replayed(self.ds_obj, records, bytes);
        (self.go_on)(self.name, so_far)
    }
}
