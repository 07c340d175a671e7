//! `zpool split` (`zpool_do_split`, `zpool_vdev_split`).
//!
//! 1. The command line is taken apart. Devices that are named must be there; the name and the properties of the new pool must be
//!    right.
//! 2. Of each mirror one side is chosen: the one that is named, or else the last one. A pool with vdevs other than mirrors is refused;
//!    logs and removed vdevs are left out. With `-n` the layout is shown, and nothing is done.
//! 3. The engine splits the sides off: their labels are those of a new pool that is exported (`Engine::split`).
//! 4. The new pool is found by these labels. Without `-R` it is imported to get its properties, and exported again. With `-R` it stays
//!    imported below that root, and its file systems are mounted; with `-l` their keys are loaded first.
//!
//! From the moment that the labels are written the new pool exists: what fails after that is said, and does not undo it. The names of both
//! pools are locked against other commands until the end, but for the time in which keys may be typed.

use crate::access::{DENIED, may_change};
use crate::cachefile;
use crate::context::Context;
use crate::mounts::{How, mount_each, mountable};
use crate::options::{Spec, parse};
use crate::pools::{Imported, reason};
use crate::replay;
use crate::vdevs::style;
use crate::zpool::import::{self, changes};
use crate::zpool::layout;
use crate::zpool::properties::find;
use crate::zpool::select::{check_new, open};
use cenote_command::outcome::{Outcome, Stop, fail, given_twice, plain, usage};
use cenote_engine::{Engine, EngineError, EngineOptions, Split, SplitOff};
use cenote_format::nvlist::NvList;
use cenote_pool::config::{self, children, number};
use cenote_pool::{Candidate, ImportOptions, discover};
use cenote_vdev::deadline::{ask, is_silent};
use cenote_vdev::object::is_object;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "gLR:lno:P", refused: "", refused_long: &[] };

/// A command line taken apart.
#[derive(Debug, Default)]
struct Request {
    letters: String,
    altroot: Option<String>,
    how: Option<How>,
    props: Vec<(String, String)>,
    pool: String,
    new: String,
    devices: Vec<String>,
}

impl Request {
    fn parse(args: &[OsString]) -> Result<Request, Stop> {
        let parsed = parse(args, SPEC)?;
        let mut r = Request::default();
        for opt in &parsed.options {
            r.letters.push(opt.letter);
            match (opt.letter, opt.text().split_once('=')) {
                ('R', _) => r.root(&opt.text())?,
                ('o', Some((name, value))) => r.property(name, value)?,
                ('o', None) => {
                    let options = opt.text().split(',').map(String::from).collect();
                    r.how = Some(How { options, ..How::default() });
                }
                _ => {}
            }
        }
        let imports = r.altroot.is_some();
        if !imports && r.how.is_some() {
            return usage("setting mntopts is only valid when importing the pool");
        }
        if !imports && r.letters.contains('l') {
            return usage("loading keys is only valid when importing the pool");
        }
        let mut names = parsed.names().into_iter();
        let (pool, new) = (names.next(), names.next());
        let Some(pool) = pool else { return usage("Missing pool name") };
        let Some(new) = new else { return usage("Missing new pool name") };
        (r.pool, r.new, r.devices) = (pool, new, names.collect());
        Ok(r)
    }

    /// `-R root`, or `-o altroot=root`.
    fn root(&mut self, root: &str) -> Result<(), Stop> {
        match self.altroot.replace(root.into()) {
            Some(_) => given_twice("altroot"),
            None => Ok(()),
        }
    }

    /// `-o name=value`.
    fn property(&mut self, name: &str, value: &str) -> Result<(), Stop> {
        let Some(own) = find(name) else {
            return fail(format!("property '{name}' is not a valid pool or vdev property"));
        };
        if own.name == "altroot" {
            return self.root(value);
        }
        if own.name != "cachefile" && self.props.iter().any(|(given, _)| given == own.name) {
            return given_twice(name);
        }
        self.props.retain(|(given, _)| given != own.name);
        self.props.push((own.name.into(), value.into()));
        Ok(())
    }

    /// Whether it shows no more than what would be split off, and names no files.
    fn only_shows(&self) -> bool {
        self.letters.contains('n') && self.props.is_empty() && self.altroot.is_none()
    }

    fn cannot(&self, why: impl std::fmt::Display) -> Stop {
        Stop::Fail(format!("Unable to split {}: {why}", self.pool))
    }
}

/// Whether a command line has keys loaded, which may be typed.
pub fn loads_keys(args: &[OsString]) -> bool {
    let rest = args.split_first().map(|(_, rest)| rest).unwrap_or_default();
    Request::parse(rest).is_ok_and(|r| r.letters.contains('l') && !r.letters.contains('n'))
}

/// Runs `zpool split`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let request = Request::parse(args)?;
    let pools = Arc::clone(&ctx.pools);
    let imported = open(ctx, &request.pool).map_err(Stop::Fail)?;
    if may_change(ctx).is_err() && !request.only_shows() {
        return Err(request.cannot(DENIED));
    }
    // What only shows something waits for no other command.
    let shows = request.letters.contains('n');
    let change = (!shows).then(|| pools.change_all([&request.pool, &request.new], None));
    if !pools.has(&imported) {
        return fail(format!("cannot open '{}': no such pool", request.pool));
    }
    devices_exist(&request, ctx)?;
    check_new(&request.new).map_err(|why| request.cannot(why))?;
    let asked = changes(&request.new, &request.props);
    let asked = asked.map_err(|why| request.cannot(why))?;
    if request.props.iter().any(|(name, value)| name == "readonly" && value == "on") {
        return Err(request.cannot("property readonly can only be set at import time"));
    }
    if let Some(root) = request.altroot.as_deref().filter(|root| !root.starts_with('/')) {
        return Err(request.cannot(format!("bad alternate root '{root}'")));
    }
    let sides = sides(&imported, &request, ctx)?;
    if shows {
        let text = layout::of_split(&request.new, &sides, &style(&request.letters, ctx));
        write!(ctx.out, "would create '{}' with the following layout:\n\n{text}", request.new)?;
        return Ok(0);
    }
    let engine = imported.writable().map_err(|why| request.cannot(why))?;
    if ctx.pools.get(&request.new).is_some() {
        return Err(request.cannot("pool already exists"));
    }
    let sides = sides.iter().map(|side| number(side, "guid")).collect();
    let split = Split { name: request.new.clone(), sides };
    let off = engine.split(&split).map_err(|e| match &e {
        // The group may be on disk, or its labels.
        EngineError::Suspended(_) => request.cannot(format!(
            "{}; 'zpool import' tells whether '{}' is there",
            reason(&e),
            request.new
        )),
        _ => request.cannot(reason(&e)),
    })?;
    ctx.changed(&imported);
    cachefile::update(&ctx.pools);
    // It is there by now, whatever becomes of its import.
    let candidate = found(&off).ok_or_else(|| {
        Stop::Fail(format!("cannot import '{}': no such pool available", request.new))
    })?;
    let Some(altroot) = &request.altroot else {
        leave_exported(&candidate, asked).map_err(Stop::Fail)?;
        return Ok(0);
    };
    let Some(new) = import::split_off(&candidate, altroot, &request.props, ctx)? else {
        return Ok(1);
    };
    if request.letters.contains('l') {
        drop(change);
        import::load_keys(&new, ctx)?;
        let _change = pools.change(&request.new);
        mount(&new, &request, ctx);
        return Ok(0);
    }
    mount(&new, &request, ctx);
    Ok(0)
}

/// Devices that are named must be there (`construct_spec`).
fn devices_exist(request: &Request, ctx: &Context) -> Result<(), Stop> {
    let builds = |why: String| {
        Err(Stop::Fail(format!("{why}\nUnable to build a pool from the specified devices")))
    };
    for name in &request.devices {
        if matches!(name.as_str(), "mirror" | "spare" | "log" | "cache" | "special" | "dedup")
            || name.starts_with("raidz")
            || name.starts_with("draid")
        {
            return Err(Stop::Fail(format!("Cannot use '{name}' as a device for splitting")));
        }
        // The daemon looks up no paths for other users.
        if may_change(ctx).is_err() {
            continue;
        }
        let path = Path::new(name);
        if is_object(path) {
            return builds(format!(
                "cannot open '{name}': a new pool cannot be split off into an object store"
            ));
        }
        let place = match path.is_absolute() {
            true => ctx.path(name),
            false => Path::new("/dev").join(path),
        };
        let is_there = match ask(&place, |place| Ok(place.exists())) {
            Ok(is_there) => is_there,
            Err(e) if is_silent(&e) => {
                return builds(format!("cannot open '{name}': the device does not answer"));
            }
            Err(e) => return builds(format!("cannot open '{name}': {}", plain(&e))),
        };
        if path.is_absolute() && !is_there {
            return builds(format!("cannot open '{name}': No such file or directory"));
        }
        if !is_there {
            return builds(format!(
                "cannot open '{name}': no such device in /dev\n\
                 must be a full path or shorthand device name"
            ));
        }
    }
    Ok(())
}

/// Whether the user calls a leaf by this name (`find_vdev_entry`).
fn is_called(leaf: &NvList, name: &str) -> bool {
    let Some(path) = config::path(leaf) else { return false };
    let same = |one: &Path| path == one || one.canonicalize().is_ok_and(|one| one == path);
    path.as_os_str().as_bytes() == name.as_bytes()
        || same(Path::new(name))
        || !Path::new(name).is_absolute() && same(&Path::new("/dev").join(name))
}

/// The leaves that the new pool has: of each mirror the one that is named, or else the last one (`zpool_vdev_split`).
fn sides(imported: &Imported, request: &Request, ctx: &Context) -> Result<Vec<NvList>, Stop> {
    let pool = imported.pool();
    let nothing = NvList::default();
    let root = pool.config().list("vdev_tree").unwrap_or(&nothing);
    let (mut sides, mut named) = (Vec::new(), 0usize);
    for top in children(root) {
        let kind = top.str("type").unwrap_or_default();
        if config::flag(top, "is_log") || matches!(kind, "hole" | "indirect") {
            continue;
        }
        if kind != "mirror" {
            return Err(request.cannot("Source pool must be composed only of mirrors"));
        }
        let is_named = |leaf: &&NvList| {
            let path = |name: &String| ctx.path(name).display().to_string();
            let called = |name: &String| match may_change(ctx) {
                Ok(()) => is_called(leaf, name) || is_called(leaf, &path(name)),
                Err(_) => config::path(leaf).is_some_and(|path| path == Path::new(name)),
            };
            request.devices.iter().any(called)
        };
        let own = children(top).iter().find(is_named);
        named = named.saturating_add(usize::from(own.is_some()));
        let mut side = own.or(children(top).last()).cloned().unwrap_or_default();
        if let Some(class) = top.get("alloc_bias") {
            side.set("alloc_bias", class.clone());
        }
        sides.push(side);
    }
    match named == request.devices.len() {
        true => Ok(sides),
        false => Err(request.cannot("Device list must include at most one disk from each mirror")),
    }
}

/// The new pool, by the labels of its devices.
fn found(off: &SplitOff) -> Option<Candidate> {
    let found = discover::search(&off.paths).candidates;
    found.into_iter().find(|candidate| candidate.guid == off.guid)
}

/// Makes the new pool one of its own, and lets go of it.
fn leave_exported(
    candidate: &Candidate,
    changes: Vec<cenote_pool::props::PropChange>,
) -> Result<(), String> {
    let options = ImportOptions::default();
    let engine = Engine::import(candidate, &options, EngineOptions::default());
    let name = &candidate.name;
    let engine = engine.map_err(|e| format!("cannot import '{name}': {e}"))?;
    let set = if changes.is_empty() { Ok(()) } else { engine.set_properties(changes) };
    let set = set.map_err(|e| format!("cannot set properties of '{name}': {}", reason(&e)));
    // Whatever became of that, no other program finds it in use.
    let let_go = engine.export(false);
    set.and(let_go.map_err(|e| format!("cannot export '{name}': {}", reason(&e))))
}

/// Mounts the file systems of the new pool.
fn mount(new: &Imported, request: &Request, ctx: &mut Context) {
    let how = request.how.clone().unwrap_or_default();
    let mounted = match new.pool().dsl().root() {
        Ok(root) => {
            let all = mountable(new, &root, ctx);
            replay::before_mounting(new, &all, false, &how, ctx);
            mount_each(new, &all, &how, ctx)
        }
        Err(e) => {
            ctx.complain(format_args!("cannot open '{}': {e}", new.name()));
            false
        }
    };
    if !mounted {
        ctx.complain("Split was successful, but some datasets could not be mounted");
        ctx.complain("Try doing 'zpool import' with a different altroot");
    }
}
