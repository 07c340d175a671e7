//! `zpool create` (`zpool_do_create`).
//!
//! What is wrong with the arguments is found before anything is written: first what they say, then
//! the devices ([`prepare`] opens them and lets go of them), then properties and the mountpoint.
//! The pool is made by [`Engine::create`]; its root file system is mounted as any other.

use crate::cachefile;
use crate::commands::Where;
use crate::context::Context;
use crate::mounts::{How, NotMounted, mount_one};
use crate::new_key::Wanted;
use crate::options::{Spec, parse};
use crate::pools::{Imported, Opened, PoolTable};
use crate::vdevs::style;
use crate::zfs::change::tell_kept;
use crate::zfs::properties as fs_properties;
use crate::zpool::import::arc_bytes;
use crate::zpool::layout;
use crate::zpool::properties::{find, refuse_unsupported};
use crate::zpool::select::check_new;
use cenote_admin::contents::Files;
use cenote_command::outcome::{Outcome, Stop, fail, given_twice, plain, usage};
use cenote_dmu::outside::Chance;
use cenote_dmu::write::WriteError;
use cenote_dsl::DatasetKind;
use cenote_dsl::props::table::find as fs_find;
use cenote_dsl::props::{is_user, is_userspace};
use cenote_dsl::write::crypt::Encryption;
use cenote_dsl::write::props::NewValue;
use cenote_engine::change::props::{Setting, feature_for};
use cenote_engine::change::{
    Changes, Format, NewEncryption, is_accounted, is_quota, root_filesystem,
};
use cenote_engine::create::prepare;
use cenote_engine::create::{self, CreateSpec, FIRST_TXG, SystemDevices};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_pool::config;
use cenote_pool::features::FeatureChoice;
use cenote_pool::features::choose_features;
use cenote_pool::host::system_hostid;
use cenote_pool::props::{self, PropChange, PropContext, When};
use cenote_pool::version;
use cenote_zpl::{CaseSensitivity, CreateProps};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const SPEC: Spec = Spec { short: "fndR:m:o:O:t:", refused: "", refused_long: &[] };

/// A command line taken apart.
#[derive(Debug, Default)]
struct Request {
    force: bool,
    dry_run: bool,
    no_features: bool,
    altroot: Option<String>,
    /// `-t`: the name until the pool is exported.
    temporary_name: Option<String>,
    mountpoint: Option<String>,
    props: Vec<(String, String)>,
    root_props: Vec<(String, String)>,
    name: String,
    vdevs: Vec<String>,
}

impl Request {
    fn parse(args: &[OsString]) -> Result<Request, Stop> {
        let parsed = parse(args, SPEC)?;
        let mut r = Request::default();
        let mut operands = parsed.names().into_iter();
        for opt in &parsed.options {
            match opt.letter {
                'f' => r.force = true,
                'n' => r.dry_run = true,
                'd' => r.no_features = true,
                'R' => r.property("altroot", &opt.text())?,
                't' => r.temporary(&opt.text())?,
                'm' => r.mountpoint = Some(opt.text()),
                'o' => match opt.text().split_once('=') {
                    Some((name, value)) => r.property(name, value)?,
                    None => return fail("missing '=' for -o option"),
                },
                'O' => match opt.text().split_once('=') {
                    // It may be there more than once, for -m names it too.
                    Some(("mountpoint", value)) => r.mountpoint = Some(value.into()),
                    Some((name, value)) => r.root_property(name, value)?,
                    None => return fail("missing '=' for -O option"),
                },
                _ => {}
            }
        }
        r.name = match operands.next() {
            Some(name) => name,
            None => return usage("missing pool name argument"),
        };
        r.vdevs = operands.collect();
        if r.vdevs.is_empty() {
            return usage("missing vdev specification");
        }
        Ok(r)
    }

    /// `-t name`. The pool is in no cache file then, unless that is asked for.
    fn temporary(&mut self, name: &str) -> Result<(), Stop> {
        if self.temporary_name.replace(name.into()).is_some() {
            return given_twice("tname");
        }
        if self.value("cachefile").is_none() {
            add(&mut self.props, "cachefile", "cachefile", "none")?;
        }
        Ok(())
    }

    /// The name that the pool has until it is exported.
    fn name_now(&self) -> &str {
        self.temporary_name.as_deref().unwrap_or(&self.name)
    }

    /// `-o name=value`.
    fn property(&mut self, name: &str, value: &str) -> Result<(), Stop> {
        if name == "tname" {
            return self.temporary(value);
        }
        let own = match find(name) {
            Some(property) => property.name,
            None if name.starts_with("feature@") => name,
            None => {
                return fail(format!("property '{name}' is not a valid pool or vdev property"));
            }
        };
        if own == "altroot" {
            self.altroot = Some(value.into());
        }
        add(&mut self.props, own, name, value)
    }

    /// `-O name=value`.
    fn root_property(&mut self, name: &str, value: &str) -> Result<(), Stop> {
        let own = match fs_properties::find(name) {
            Some(p) if p.applies_to.contains(DatasetKind::Filesystem) => p.name,
            None if is_user(name) || is_userspace(name) => name,
            _ => return fail(format!("property '{name}' is not a valid filesystem property")),
        };
        add(&mut self.root_props, own, name, value)
    }

    fn value(&self, property: &str) -> Option<&str> {
        self.props.iter().find(|(name, _)| name == property).map(|(_, value)| value.as_str())
    }

    fn cannot(&self, why: impl std::fmt::Display) -> Stop {
        Stop::Fail(format!("cannot create '{}': {why}", self.name))
    }
}

/// Adds a property that is called `own`, and that the user called `name`.
fn add(list: &mut Vec<(String, String)>, own: &str, name: &str, value: &str) -> Result<(), Stop> {
    if own != "cachefile" && list.iter().any(|(n, _)| n == own) {
        return given_twice(name);
    }
    list.retain(|(n, _)| n != own);
    list.push((own.into(), value.into()));
    Ok(())
}

/// Where a command line runs: a pool that is created is the daemon's.
pub fn place(args: &[OsString]) -> Where {
    match Request::parse(args) {
        Ok(r) if r.dry_run => Where::DaemonIfRunning,
        Ok(_) => Where::Daemon,
        Err(_) => Where::Here,
    }
}

/// The feature of encrypted datasets.
const ENCRYPTION: &str = "com.datto:encryption";

/// Runs `zpool create`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let mut request = Request::parse(args)?;
    if request.name.contains('/') {
        return fail(format!(
            "cannot create '{}': invalid character '/' in pool name\n\
             use 'zfs create' to create a dataset",
            request.name
        ));
    }
    let wanted = Wanted::take(&mut request.root_props).map_err(|why| request.cannot(why))?;
    let encryption = match request.dry_run {
        false => wanted.for_new(None, ctx).map_err(|why| request.cannot(why))?,
        true => NewEncryption::Off,
    };
    let layout = create::parse(&request.vdevs).map_err(|e| Stop::Fail(e.to_string()))?;
    let devices = create::check_answers(&layout).map_err(|e| Stop::Fail(e.to_string()))?;
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change_with([request.name.as_str(), request.name_now()], devices);
    let imported = in_use(&pools);
    let sectors = match request.value("ashift") {
        Some(text) => ashift(text)?,
        None => 0,
    };
    let spec = CreateSpec {
        name: &request.name,
        layout: &layout,
        ashift: sectors,
        force: request.force.into(),
        pool: None,
        txg: FIRST_TXG,
        imported: &imported,
        devices: &SystemDevices,
        chance: &Chance::default(),
    };
    let prepared = prepare(&spec).map_err(|e| Stop::Fail(e.to_string()))?;
    check_mountpoint(&request)?;
    if request.dry_run {
        let text = layout::of_new(&request.name, &prepared, &style("", ctx));
        write!(ctx.out, "would create '{}' with the following layout:\n\n{text}", request.name)?;
        return Ok(0);
    }
    drop(prepared);
    make(&request, spec, encryption, ctx)
}

/// The number that `ashift=` gives.
pub fn ashift(text: &str) -> Result<u64, Stop> {
    text.parse().or_else(|_| fail(format!("cannot parse 'ashift={text}': not a number")))
}

/// Creates the pool and mounts its root file system.
fn make(
    request: &Request,
    spec: CreateSpec<'_>,
    encryption: NewEncryption,
    ctx: &mut Context,
) -> Outcome {
    let named = features_named(request);
    let choice = |named| FeatureChoice {
        none: request.no_features,
        compatibility: request.value("compatibility"),
        named,
    };
    choose_features(&choice(&[])).map_err(|e| Stop::Fail(format!("Error: {e}")))?;
    if let Err(why) = check_new(&request.name) {
        let why = format!("{why}\npool name may have been omitted");
        return Err(request.cannot(why));
    }
    if let Some(name) = &request.temporary_name {
        check_new(name).map_err(|why| request.cannot(why))?;
    }
    let changes = pool_properties(request)?;
    let cachefile = request.value("cachefile").map(cachefile::Setting::of).transpose();
    let cachefile = cachefile.map_err(|why| request.cannot(why))?;
    if ctx.pools.get(request.name_now()).is_some() {
        return Err(request.cannot("pool already exists"));
    }
    let (features, warnings) = choose_features(&choice(&named)).map_err(|e| request.cannot(e))?;
    warnings.iter().for_each(|warning| ctx.complain(warning));
    let enabled = |guid: &str| features.iter().any(|f| f.guid == guid);
    let (root_props, contents) = root(request, &enabled)?;
    let encryption = match encryption {
        NewEncryption::Root(key, suite, location) => Some(Encryption::Root(key, suite, location)),
        NewEncryption::Inherit(_) | NewEncryption::Off => None,
    };
    if encryption.is_some() && !enabled(ENCRYPTION) {
        return Err(request.cannot("Encryption feature not enabled."));
    }
    let altroot = request.altroot.as_ref().map(PathBuf::from);
    let create = CreateRequest {
        temporary_name: request.temporary_name.as_deref(),
        spec,
        features: &features,
        props: &changes,
        root_props: &root_props,
        encryption: encryption.as_ref(),
        altroot: altroot.clone(),
        arc_bytes: arc_bytes(ctx)?,
    };
    let engine = Engine::create(&create, EngineOptions::default(), |os| {
        cenote_zpl::format(os, &contents, FIRST_TXG).map_err(write_error)
    })
    .map_err(|e| Stop::Fail(e.to_string()))?;
    account(&engine, request)?;
    let imported = Arc::new(Imported::new(Opened::Writable(engine), altroot));
    cachefile.into_iter().for_each(|setting| imported.set_cachefile(setting));
    imported.record(ctx);
    if !ctx.pools.insert(Arc::clone(&imported)) {
        return Err(request.cannot("pool already exists"));
    }
    cachefile::update(&ctx.pools);
    tell_kept(&request.root_props, ctx);
    let pool = imported.pool();
    let root = match pool.dsl().root() {
        Ok(root) => root,
        Err(e) => return fail(format!("cannot open '{}': {e}", request.name_now())),
    };
    match mount_one(&imported, &root, false, &How::default(), ctx) {
        Ok(()) | Err(NotMounted::NotMeant(_)) => Ok(0),
        // The pool is made, and is used without mounts.
        Err(NotMounted::Failed(message)) if cenote_fuse::is_missing() => {
            ctx.complain(message);
            ctx.complain(WITHOUT_FUSE);
            Ok(0)
        }
        Err(NotMounted::Failed(message)) => fail(message),
    }
}

/// What is said where nothing can be mounted.
const WITHOUT_FUSE: &str = "pool successfully created, but not mounted: nothing can be mounted here.\n\
    In a container it takes '--device /dev/fuse --cap-add SYS_ADMIN', on a host 'modprobe fuse'.\n\
    Without it 'zpool create -m none' and 'zfs create -o canmount=off' mount nothing, and 'cenote ls',\n\
    'cenote cat', 'cenote cp', 'zfs send' and 'zfs receive' work on what is not mounted.";

/// Sets quotas and reservations of the root file system. If the new pool is too small for them it is
/// destroyed again.
fn account(engine: &Arc<Engine>, request: &Request) -> Result<(), Stop> {
    let later = |(name, _): &&(String, String)| {
        is_quota(name) || fs_find(name).is_some_and(|p| is_accounted(p.name))
    };
    let list: Vec<_> = request.root_props.iter().filter(later).cloned().collect();
    if list.is_empty() {
        return Ok(());
    }
    let changes = Changes::new(Arc::clone(engine), Arc::new(Files), None);
    let why = match changes.set(request.name_now(), &list) {
        Ok(failed) if failed.is_empty() => return Ok(()),
        Ok(_) => "one or more devices is out of space".to_string(),
        Err(e) => e.to_string(),
    };
    engine.export(true).map_err(|e| request.cannot(e))?;
    Err(request.cannot(why))
}

/// What happened to the object set of the root file system.
fn write_error(e: cenote_zpl::Error) -> WriteError {
    WriteError::Invalid { object: 0, why: e.to_string() }
}

/// `-o feature@NAME=…`, with whether it will be enabled.
fn features_named(request: &Request) -> Vec<(String, bool)> {
    let named = request.props.iter().filter_map(|(name, value)| {
        Some((name.strip_prefix("feature@")?.to_string(), value == "enabled"))
    });
    named.collect()
}

/// The properties of the pool, checked.
fn pool_properties(request: &Request) -> Result<Vec<PropChange>, Stop> {
    let context = PropContext {
        when: When::Create,
        pool: &request.name,
        version: version::FEATURES,
        hostid: system_hostid(),
        dataset: &|_| None,
    };
    let mut changes = Vec::new();
    for (name, value) in &request.props {
        let change = props::parse(name, value, &context).map_err(|e| request.cannot(e))?;
        refuse_unsupported(&change).map_err(|why| request.cannot(why))?;
        changes.push(change);
    }
    Ok(changes)
}

/// The root file system: the properties that are stored as it is made, and what is in it. `enabled` are
/// the features of the pool.
fn root(
    request: &Request,
    enabled: &dyn Fn(&str) -> bool,
) -> Result<(Vec<(String, NewValue)>, CreateProps), Stop> {
    let mut list = request.root_props.clone();
    if let Some(mountpoint) = &request.mountpoint {
        list.push(("mountpoint".into(), mountpoint.clone()));
    }
    let (props, format) = root_filesystem(&list, enabled("org.zfsonlinux:project_quota"))
        .map_err(|e| request.cannot(e))?;
    let needed = |(name, value): &(String, NewValue)| {
        feature_for(&Setting { name: name.clone(), value: value.clone() })
    };
    if props.iter().filter_map(needed).any(|guid| !enabled(guid)) {
        return Err(request.cannot("operation not supported on this type of pool"));
    }
    let contents = contents(&format).map_err(|e| request.cannot(e))?;
    let props = props.into_iter().filter(|(name, _)| !is_accounted(name)).collect();
    Ok((props, contents))
}

/// What is in the root file system; its root directory belongs to the user.
fn contents(format: &Format) -> Result<CreateProps, String> {
    let Format::Filesystem { case, normalization, utf8_only, project_quota, version } = *format
    else {
        return Err("a volume".into());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(CreateProps {
        version,
        case: match case {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            other => return Err(format!("casesensitivity {other}")),
        },
        normalization,
        utf8_only,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        time: (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos()),
        project_quota,
        ..CreateProps::default()
    })
}

/// Refuses a mountpoint that cannot be one.
fn check_mountpoint(request: &Request) -> Result<(), Stop> {
    if let Some(root) = request.altroot.as_deref().filter(|r| !r.starts_with('/')) {
        return fail(format!("invalid alternate root '{root}': must be an absolute path"));
    }
    let altroot = request.altroot.as_deref().unwrap_or_default();
    let place = match request.mountpoint.as_deref() {
        Some("legacy" | "none") => return Ok(()),
        Some(path) if !path.starts_with('/') => {
            return fail(format!(
                "invalid mountpoint '{path}': must be an absolute path, 'legacy', or 'none'"
            ));
        }
        Some(path) => format!("{altroot}{path}"),
        None => format!("{altroot}/{}", request.name_now()),
    };
    let why = match Path::new(&place).read_dir() {
        Ok(mut entries) => match entries.next() {
            None => return Ok(()),
            Some(_) => format!("mountpoint '{place}' exists and is not empty"),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => format!("mountpoint '{place}' : {}", plain(&e)),
    };
    fail(format!("{why}\nuse '-m' option to provide a different default"))
}

/// What the imported pools use.
pub fn in_use(pools: &PoolTable) -> Vec<create::Imported> {
    let guids = |configs: &[cenote_format::nvlist::NvList]| {
        configs.iter().map(|c| config::number(c, "guid")).collect()
    };
    let of = |imported: &Arc<Imported>| {
        let pool = imported.pool();
        create::Imported {
            name: imported.name().into(),
            guid: imported.guid(),
            devices: pool.store().vdevs().leaves().iter().map(|v| v.guid()).collect(),
            spares: guids(pool.spares()),
            caches: guids(pool.caches()),
        }
    };
    pools.all().iter().map(of).collect()
}
