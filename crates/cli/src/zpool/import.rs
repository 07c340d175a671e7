//! `zpool import` (`zpool_do_import`, `do_import`): what could be imported, and importing it.
//!
//! The command line becomes a `Request`. Candidates come from a search of devices or from a cache file; pools that
//! are imported already are left out. Without a name they are listed. With one, an import takes these steps:
//!
//! 1. check names and properties, before a device is written to;
//! 2. open the pool, read-only or as an engine, and say how far a rewind went;
//! 3. enter it in the table of pools;
//! 4. note the import in the history, update the cache file, set properties;
//! 5. mount the file systems whose `canmount` and `mountpoint` say so, with their intent logs replayed first.
//!
//! A pool that cannot be opened is not in the table. A property or mount that fails leaves the pool imported, and
//! the exit code says it. A cache file whose devices are not where it says is tried again with a search near them.

use crate::cachefile::{self, Setting};
use crate::commands::Where;
use crate::context::Context;
use crate::keys::{self, LoadKey};
use crate::mounts::{How, mount_each, mountable};
use crate::options::{Spec, bytes, parse_with_long};
use crate::pools::{Imported, Opened};
use crate::progress::{Bar, Seldom};
use crate::replay;
use crate::zpool::properties::{find, refuse_unsupported};
use cenote_command::clock::ctime;
use cenote_command::outcome::{Outcome, Stop, fail, given_twice, usage};
use cenote_daemon::each::{PATIENCE, each};
use cenote_daemon::injections::Moment;
use cenote_dsl::human::nicebytes;
use cenote_engine::{Engine, EngineOptions, LogProgress};
use cenote_pool::cachefile::CacheFile;
use cenote_pool::discover::Found;
use cenote_pool::history;
use cenote_pool::host::system_hostid;
use cenote_pool::props::{self, PropChange, PropContext, When};
use cenote_pool::{Candidate, ImportError, ImportOptions, Pool, Rewind, discover, events};
use cenote_vdev::object::{is_object, spelled};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SPEC: Spec = Spec { short: "ac:Dd:fFlmnNo:R:stT:X", refused: "CV", refused_long: &[] };
/// Reported as what no short option is.
const REWIND_TO_CHECKPOINT: char = '-';
/// The same.
const SCAN: char = '+';
/// The same.
const LOCAL: char = '=';
/// The long options.
const LONG: [(&str, char); 3] =
    [("rewind-to-checkpoint", REWIND_TO_CHECKPOINT), ("scan", SCAN), ("local", LOCAL)];

/// How long an import waits for other commands before it reads the labels again: another process may change what was found.
const FRESH: Duration = Duration::from_secs(1);

/// A command line taken apart.
#[derive(Debug, Default)]
struct Request {
    all: bool,
    destroyed: bool,
    dry_run: bool,
    mount: bool,
    /// `-l`: keys are loaded before file systems are mounted.
    load_keys: bool,
    paths: Vec<OsString>,
    /// `--scan`: devices are looked through for labels.
    inside: bool,
    /// `--local`: pools in object stores that are reached by network are left out.
    local: bool,
    /// `-c`: the cache file that names the pools.
    from_cachefile: Option<OsString>,
    /// `-o cachefile=`.
    cachefile: Option<String>,
    altroot: Option<PathBuf>,
    how: How,
    options: ImportOptions,
    /// Properties to be set.
    props: Vec<(String, String)>,
    /// Names of the properties that were given, by whatever option.
    given: Vec<String>,
    names: Vec<String>,
}

impl Request {
    fn parse(args: &[OsString]) -> Result<Request, Stop> {
        let parsed = parse_with_long(args, SPEC, &LONG)?;
        let mut scan = false;
        let mut r = Request { mount: true, names: parsed.names(), ..Request::default() };
        for opt in parsed.options {
            match opt.letter {
                'a' => r.all = true,
                'c' => r.from_cachefile = Some(opt.value),
                'D' => r.destroyed = true,
                'd' => r.paths.push(opt.value),
                'f' => r.options.force = true,
                'F' => r.options.rewind = true,
                'l' => r.load_keys = true,
                'm' => r.options.allow_missing_log = true,
                'n' => r.dry_run = true,
                'N' => r.mount = false,
                'o' => r.property(&opt.text())?,
                's' => scan = true,
                't' => r.options.temporary_name = true,
                'R' => {
                    r.give("altroot")?;
                    r.altroot = Some(opt.value.into());
                }
                'T' => r.options.txg = Some(txg(&opt.text())?),
                'X' => r.options.extreme_rewind = true,
                REWIND_TO_CHECKPOINT => r.options.checkpoint = true,
                SCAN => r.inside = true,
                LOCAL => r.local = true,
                _ => {}
            }
        }
        for path in r.paths.iter_mut().filter(|path| is_object(Path::new(path))) {
            // A name that cannot be one may have credentials: it is not repeated.
            let cannot = |e| Stop::Fail(format!("cannot search for pools: {e}"));
            *path = spelled(Path::new(path)).map_err(cannot)?.into();
        }
        for (given, letter) in [(!r.paths.is_empty(), 'd'), (scan, 's')] {
            if given && r.from_cachefile.is_some() {
                return usage(format!("-c is incompatible with -{letter}"));
            }
        }
        if r.local && r.from_cachefile.is_none() {
            return usage("--local needs -c");
        }
        if r.inside && r.paths.is_empty() {
            // All disks would be read from their beginnings to their ends.
            return usage("--scan needs -d");
        }
        if (r.dry_run || r.options.extreme_rewind) && !r.options.rewind {
            return usage("-n or -X only meaningful with -F");
        }
        if r.load_keys && !r.mount {
            return usage("-l is incompatible with -N");
        }
        if r.options.checkpoint && (r.options.txg.is_some() || r.options.extreme_rewind) {
            return usage("--rewind-to-checkpoint is incompatible with -T and -X");
        }
        if r.options.checkpoint && r.all {
            // What came after the checkpoints of all pools that are found would be lost.
            return usage("--rewind-to-checkpoint is incompatible with -a");
        }
        if r.names.len() > if r.all { 0 } else { 2 } {
            return usage("too many arguments");
        }
        // A pool under a name that is not its own is in no cache file, unless that was asked for.
        if r.options.temporary_name && r.cachefile.is_none() {
            r.cachefile = Some("none".into());
        }
        Ok(r)
    }

    /// `-o property=value`, or mount options.
    fn property(&mut self, text: &str) -> Result<(), Stop> {
        let Some((name, value)) = text.split_once('=') else {
            self.how.options.extend(text.split(',').map(String::from));
            return Ok(());
        };
        self.give(name)?;
        match (name, value) {
            ("readonly", "on") => self.options.readonly = true,
            ("readonly", "off") => self.options.readonly = false,
            ("readonly", _) => {
                return usage("property 'readonly' must be one of 'on | off'");
            }
            ("altroot", dir) => self.altroot = Some(dir.into()),
            ("cachefile", file) => self.cachefile = Some(file.into()),
            ("tname", _) => return usage(format!("unsupported option: -o {text}")),
            _ if find(name).is_none() && !name.starts_with("feature@") => {
                return fail(format!("property '{name}' is not a valid pool or vdev property"));
            }
            _ => self.props.push((name.into(), value.into())),
        }
        Ok(())
    }

    /// A property is given a value, which counts: there cannot be another one.
    fn give(&mut self, name: &str) -> Result<(), Stop> {
        let own = find(name).map_or(name, |property| property.name);
        if own != "cachefile" && self.given.iter().any(|given| given == own) {
            return given_twice(name);
        }
        self.given.push(own.into());
        Ok(())
    }

    fn imports(&self) -> bool {
        self.all || !self.names.is_empty()
    }
}

fn txg(text: &str) -> Result<u64, Stop> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.or_else(|_| usage("invalid txg value"))
}

/// The number of bytes that `CENOTE_ARC_MAX` says.
fn size(text: &str) -> Result<u64, Stop> {
    bytes(text).map_or_else(
        || fail(format!("bad size '{text}' in CENOTE_ARC_MAX: a number of bytes, as in 512M")),
        Ok,
    )
}

/// Bytes for the cache of a pool, where the user says.
pub fn arc_bytes(ctx: &Context) -> Result<Option<u64>, Stop> {
    ctx.var("CENOTE_ARC_MAX").map(|text| size(&text.to_string_lossy())).transpose()
}

/// Where a command line runs: importing starts the daemon, looking does not.
pub fn place(args: &[OsString]) -> Where {
    match Request::parse(args) {
        Ok(r) if r.imports() && !r.dry_run => Where::Daemon,
        Ok(_) => Where::DaemonIfRunning,
        Err(_) => Where::Here,
    }
}

/// Runs `zpool import`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let mut request = Request::parse(args)?;
    request.options.arc_bytes = arc_bytes(ctx)?;
    if let Some(root) = &request.altroot {
        if !root.is_absolute() {
            let name = request.names.first().map(String::as_str).unwrap_or_default();
            return fail(format!(
                "cannot import pool '{name}': bad alternate root '{}'",
                root.display()
            ));
        }
        request.options.altroot = Some(root.clone());
    }
    if !request.load_keys {
        return import_asked(&request, ctx);
    }
    let pools = Arc::clone(&ctx.pools);
    let before: Vec<u64> = pools.all().iter().map(|pool| pool.guid()).collect();
    let done = import_asked(&request, ctx)?;
    let mut mounted = true;
    for imported in pools.all().iter().filter(|pool| !before.contains(&pool.guid())) {
        load_keys(imported, ctx)?;
        let _change = pools.change(imported.name());
        mounted &= mount_all(imported, &request, ctx);
    }
    Ok(done.max(i32::from(!mounted)))
}

/// Loads the keys of an imported pool that can be loaded (`zfs_crypto_attempt_load_keys`), while nothing waits for that.
pub(super) fn load_keys(imported: &Imported, ctx: &mut Context) -> Result<(), Stop> {
    let pool = imported.pool();
    let roots = pool.dsl().root().and_then(|root| keys::roots(imported, &root));
    let roots = roots.map_err(|e| Stop::Fail(format!("cannot open '{}': {e}", imported.name())))?;
    let mut loaded = 0;
    for root in &roots {
        loaded += usize::from(keys::load(imported, root, &LoadKey::default(), ctx));
        if ctx.cancelled() {
            break;
        }
    }
    writeln!(ctx.out, "{loaded} / {} keys successfully loaded", roots.len())?;
    Ok(())
}

/// Whether a command line has keys loaded, which may be typed.
pub fn reads_input(args: &[OsString]) -> bool {
    if args.first().is_some_and(|name| name == "create") {
        return crate::zfs::gives_key(args);
    }
    if args.first().is_some_and(|name| name == "split") {
        return super::split::loads_keys(args);
    }
    let import = args.split_first().filter(|(name, _)| *name == "import");
    import.is_some_and(|(_, rest)| Request::parse(rest).is_ok_and(|r| r.load_keys))
}

fn import_asked(request: &Request, ctx: &mut Context) -> Outcome {
    refuse_taken(request, ctx)?;
    let Some(file) = &request.from_cachefile else {
        return Ok(import_found(search, request, ctx)?.code());
    };
    let mut cached = match CacheFile::read(&ctx.path(file)) {
        Ok(cached) => cached,
        Err(e) => {
            ctx.complain(e);
            return match request.names.first() {
                Some(name) => fail(format!("cannot import '{name}': no such pool available")),
                None => Ok(1),
            };
        }
    };
    if request.local {
        cached.retain(|entry| !entry.is_by_network());
    }
    let first = import_found(|_, _| Seen::from(cached.candidates()), request, ctx);
    let first = match first {
        Err(Stop::Fail(why)) => {
            ctx.complain(why);
            Done::Nothing
        }
        first => first?,
    };
    if first != Done::Nothing || !request.imports() {
        return Ok(first.code());
    }
    writeln!(ctx.out, "cachefile import failed, retrying")?;
    let nearby = |_: &Request, _: &mut Context| Seen::from(cached.candidates_nearby());
    Ok(import_found(nearby, request, ctx)?.code())
}

/// Refuses to import a pool by a name that another one has.
fn refuse_taken(request: &Request, ctx: &Context) -> Result<(), Stop> {
    if let Some(name) = request.names.first()
        && request.names.get(1).is_none_or(|new| new == name)
        && taken(ctx, name)
    {
        return fail(format!(
            "cannot import '{name}': a pool with that name already exists\n\
             use the form 'zpool import <pool | id> <newpool>' to give it a new name"
        ));
    }
    Ok(())
}

/// What a search came upon, and what the user is told about it.
struct Seen {
    candidates: Vec<Candidate>,
    complaints: Vec<String>,
    /// There are images of other kinds, and the complaints say what to do.
    foreign: bool,
}

impl From<Found> for Seen {
    fn from(found: Found) -> Seen {
        let (complaints, foreign) = (found.complaints().collect(), !found.foreign.is_empty());
        Seen { complaints, foreign, candidates: found.candidates }
    }
}

/// Imports, or shows, what `search` finds.
///
/// Devices are looked at while other commands go on, since they may be slow to answer.
fn import_found(
    search: impl Fn(&Request, &mut Context) -> Seen,
    request: &Request,
    ctx: &mut Context,
) -> Result<Done, Stop> {
    let turns = ctx.pools.turns();
    let seen = search(request, ctx);
    if ctx.cancelled() {
        return Ok(Done::Nothing);
    }
    seen.complaints.iter().for_each(|line| ctx.complain(line));
    let candidates = wanted(seen.candidates, request, ctx);
    if candidates.is_empty() && seen.foreign && request.names.is_empty() && !request.all {
        return Ok(Done::Nothing);
    }
    import_from((&candidates, turns), request, ctx)
}

/// What became of an import, or of several: the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    /// All that was asked for.
    All,
    /// The pool is imported, but a file system that is meant to be mounted is not.
    NotMounted,
    /// It is not imported.
    Nothing,
}

impl Done {
    /// The exit code.
    fn code(self) -> i32 {
        i32::from(self != Done::All)
    }
}

/// Imports, or shows, what was found.
fn import_from(
    (candidates, turns): (&[Candidate], u64),
    request: &Request,
    ctx: &mut Context,
) -> Result<Done, Stop> {
    match request.names.first() {
        Some(name) => {
            let found = discover::find(candidates, name);
            let candidate = found.map_err(|e| Stop::Fail(e.to_string()))?;
            import_alone((candidate, turns), request, ctx)
        }
        None if candidates.is_empty() => {
            ctx.complain("no pools available to import");
            Ok(Done::All)
        }
        None if request.all => {
            let turns = AtomicU64::new(turns);
            let import_one = |candidate: &Candidate, own: &mut Context| {
                let one = import_alone((candidate, turns.load(SeqCst)), request, own)?;
                // What came to the table by this command itself makes nothing else old.
                turns.fetch_add(u64::from(one != Done::Nothing && !request.dry_run), SeqCst);
                Ok(one)
            };
            let all =
                each(ctx, ("importing", candidates, PATIENCE), |c| c.name.as_str(), import_one);
            let all = all.into_iter().collect::<Result<Vec<Done>, Stop>>()?;
            Ok(all.into_iter().fold(Done::All, Done::max))
        }
        None => show(candidates, ctx),
    }
}

/// Imports a pool with no other command for it meanwhile. What a search found counts if no pool came or went since it began, when the
/// number of `turns` was another one, and if there was no long wait. Otherwise the labels are read again, while only commands
/// for this pool wait. If they have another name by then, that name is to be had as well; a pool that was asked for by its name is gone.
fn import_alone(
    (candidate, turns): (&Candidate, u64),
    request: &Request,
    ctx: &mut Context,
) -> Result<Done, Stop> {
    let (pools, begun) = (Arc::clone(&ctx.pools), Instant::now());
    let name = request.names.get(1).unwrap_or(&candidate.name);
    let change = pools.change_all([name], Some(candidate.guid));
    if pools.turns() == turns && begun.elapsed() < FRESH {
        return import(candidate, request, ctx);
    }
    refuse_taken(request, ctx)?;
    let gone = || ImportError::NotFound(candidate.name.clone());
    let again = match pools.by_guid(candidate.guid) {
        // Another command has imported it: it cannot be imported any more.
        Some(_) if request.all => return Ok(Done::All),
        Some(_) => Err(gone()),
        None => candidate.read_now(),
    };
    let by_name = request.names.first().is_some_and(|asked| *asked == candidate.name);
    match again {
        Ok(again) if again.name != candidate.name && by_name => fail(gone().to_string()),
        Ok(again) if again.name != candidate.name && request.names.len() < 2 => {
            drop(change);
            import_alone((&again, turns), request, ctx)
        }
        Ok(again) => import(&again, request, ctx),
        Err(e @ ImportError::NotFound(_)) if !request.all => fail(e.to_string()),
        Err(e) => tell_failed(candidate, &e, ctx),
    }
}

/// Imports a pool that was split off another one, and mounts nothing. `None`: it failed, and why was said.
pub(super) fn split_off(
    candidate: &Candidate,
    altroot: &str,
    properties: &[(String, String)],
    ctx: &mut Context,
) -> Result<Option<Arc<Imported>>, Stop> {
    let altroot = Some(PathBuf::from(altroot));
    let mut request = Request { altroot: altroot.clone(), ..Request::default() };
    request.names = vec![candidate.name.clone()];
    request.options = ImportOptions { altroot, arc_bytes: arc_bytes(ctx)?, ..Default::default() };
    for (name, value) in properties {
        request.property(&format!("{name}={value}"))?;
    }
    let done = import(candidate, &request, ctx)?;
    Ok(if done == Done::Nothing { None } else { ctx.pools.get(&candidate.name) })
}

/// Whether a pool of this name or guid is imported.
fn taken(ctx: &Context, name: &str) -> bool {
    ctx.pools.get(name).is_some()
        || name.parse().is_ok_and(|guid| ctx.pools.by_guid(guid).is_some())
}

/// The pools that are found.
fn search(request: &Request, ctx: &mut Context) -> Seen {
    let paths: Vec<PathBuf> = if request.paths.is_empty() {
        let list = ctx.var("ZPOOL_IMPORT_PATH").unwrap_or_default().as_bytes();
        let dirs = list.split(|b| *b == b':').filter(|d| !d.is_empty());
        dirs.map(|d| ctx.path(OsString::from_vec(d.to_vec()))).collect()
    } else {
        request.paths.iter().map(|p| ctx.path(p)).collect()
    };
    Seen::from(match request.inside {
        true => search_inside(&paths, ctx),
        false => discover::search(&paths),
    })
}

/// What is found inside of devices, too. How far that is is told meanwhile.
fn search_inside(paths: &[PathBuf], ctx: &mut Context) -> Found {
    let (bar, mut seldom) = (Bar::on_terminal(ctx), Seldom::begin());
    let found = discover::search_inside(paths, &mut |path, done, total| {
        match &bar {
            Some(bar) => bar.set(done, total, ctx),
            None if seldom.is_due() => {
                let (done, total) = (nicebytes(done), nicebytes(total));
                let path = path.display();
                ctx.complain(format_args!("{done} of {total} of '{path}' looked through"));
            }
            None => {}
        }
        !ctx.cancelled()
    });
    if let Some(bar) = &bar {
        bar.finish(ctx);
    }
    found
}

/// Those that are not imported, and are destroyed or are not, as asked.
fn wanted(mut candidates: Vec<Candidate>, request: &Request, ctx: &Context) -> Vec<Candidate> {
    candidates
        .retain(|c| c.is_destroyed() == request.destroyed && ctx.pools.by_guid(c.guid).is_none());
    candidates
}

/// Lists what could be imported.
fn show(candidates: &[Candidate], ctx: &mut Context) -> Result<Done, Stop> {
    for (i, candidate) in candidates.iter().enumerate() {
        if ctx.cancelled() {
            return Ok(Done::Nothing);
        }
        let gap = if i > 0 { "\n" } else { "" };
        write!(ctx.out, "{gap}{}", candidate.report().text())?;
    }
    Ok(Done::All)
}

/// Imports one pool and mounts its file systems. What failed was said.
fn import(candidate: &Candidate, request: &Request, ctx: &mut Context) -> Result<Done, Stop> {
    let mut options = request.options.clone();
    options.new_name = request.names.get(1).cloned();
    let name = options.new_name.as_deref().unwrap_or(&candidate.name);
    if ctx.pools.get(name).is_some() {
        let target = match &options.new_name {
            Some(new) => format!("'{}' as '{new}'", candidate.name),
            None => format!("'{name}'"),
        };
        ctx.complain(format_args!("cannot import {target}: pool already exists"));
        return Ok(Done::Nothing);
    }
    let asked = changes(name, &request.props).and_then(|all| Ok((all, cachefile(name, request)?)));
    let (changes, cachefile) = match asked {
        Ok(asked) => asked,
        Err(why) => {
            ctx.complain(format_args!("cannot import '{name}': {why}"));
            return Ok(Done::Nothing);
        }
    };
    // Looking how far a rewind would have to go changes nothing.
    options.readonly |= request.dry_run;
    let (logs, since) = (Arc::<LogProgress>::default(), Instant::now());
    let Some(opened) = open_pool(candidate, &options, &logs, ctx)? else {
        return Ok(Done::Nothing);
    };
    if let Some(rewind) = opened.pool().rewind() {
        let text = match request.dry_run {
            true => would_return(rewind, &candidate.name, ctx),
            false => rewind.done(&candidate.name, &|time| ctime(&ctx.caller, time)),
        };
        write!(ctx.out, "{text}")?;
    }
    if request.dry_run {
        return Ok(Done::All);
    }
    let imported = Arc::new(Imported::new(opened, request.altroot.clone()));
    let injections = &ctx.pools.injections;
    injections.pause(imported.name(), Moment::Import, since, &|| ctx.cancelled());
    cachefile.into_iter().for_each(|setting| imported.set_cachefile(setting));
    if !ctx.pools.insert(Arc::clone(&imported)) {
        ctx.complain(format_args!("cannot import '{}': pool already exists", candidate.name));
        return Ok(Done::Nothing);
    }
    if imported.engine().is_none() {
        replay::not_done(&imported.pool(), ctx);
    }
    let mounted = settle(&imported, changes, request, ctx);
    if let Some(engine) = imported.engine() {
        // The other datasets will not be opened soon.
        engine.let_logs_go();
    }
    Ok(if mounted { Done::All } else { Done::NotMounted })
}

/// Opens a pool. `None`: it failed, and why was said.
fn open_pool(
    candidate: &Candidate,
    options: &ImportOptions,
    logs: &Arc<LogProgress>,
    ctx: &mut Context,
) -> Result<Option<Opened>, Stop> {
    let replay = cenote_admin::contents::replayer();
    let engine = EngineOptions { logs: Arc::clone(logs), replay, ..EngineOptions::default() };
    let opened = match options.readonly {
        true => Pool::import(candidate, options).map(Opened::ReadOnly),
        false => replay::watched(logs, ctx, || {
            Engine::import(candidate, options, engine).map(Opened::Writable)
        }),
    };
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(e) => tell_failed(candidate, &e, ctx).map(|_| None),
    }
}

/// Says why a pool is not imported.
fn tell_failed(candidate: &Candidate, e: &ImportError, ctx: &mut Context) -> Result<Done, Stop> {
    events::import_failed(candidate, e);
    let (notes, why) = told(e, ctx);
    if let Some(notes) = notes {
        write!(ctx.out, "{notes}")?;
        ctx.out.flush()?;
    }
    ctx.complain(why);
    Ok(Done::Nothing)
}

/// What is said on standard output and on standard error, with times in the caller's time zone.
fn told(e: &ImportError, ctx: &Context) -> (Option<String>, String) {
    let time = |seconds| ctime(&ctx.caller, seconds);
    (e.notes_in(&time), e.text_in(&time))
}

/// What is done with a pool once it is imported: history, cache file, properties, mounts. False: not all is mounted
/// that is meant to be.
fn settle(
    imported: &Arc<Imported>,
    changes: Vec<PropChange>,
    request: &Request,
    ctx: &mut Context,
) -> bool {
    if let Some(engine) = imported.engine() {
        let noted = engine.sync_task(|context| {
            for what in ["open", "import"] {
                let record =
                    history::version(what, context.config.version, context.tx.txg, context.tx.now);
                history::append(context.tx.mos, &record)?;
            }
            Ok(())
        });
        if let Err(e) = noted {
            tracing::warn!("history of {}: {e}", imported.name());
        }
        ctx.changed(imported);
    }
    cachefile::update(&ctx.pools);
    // A pool that is read-only is imported as if it had not been asked for.
    if imported.engine().is_some()
        && let Err(why) = imported.set(changes)
    {
        ctx.complain(format_args!("cannot set property for '{}': {why}", imported.name()));
    }
    !request.mount || request.load_keys || mount_all(imported, request, ctx)
}

/// Mounts what is meant to be mounted of a pool. False: not all of it is.
fn mount_all(imported: &Imported, request: &Request, ctx: &mut Context) -> bool {
    let mounted = match imported.pool().dsl().root() {
        Ok(root) => {
            let all = mountable(imported, &root, ctx);
            replay::before_mounting(imported, &all, false, &request.how, ctx);
            mount_each(imported, &all, &request.how, ctx)
        }
        Err(e) => {
            ctx.complain(format_args!("cannot open '{}': {e}", imported.name()));
            false
        }
    };
    if !mounted {
        ctx.complain("Import was successful, but unable to mount some datasets");
    }
    mounted
}

/// What `-o cachefile=` asks for.
fn cachefile(name: &str, request: &Request) -> Result<Option<Setting>, String> {
    let Some(value) = &request.cachefile else { return Ok(None) };
    changes(name, &[("cachefile".into(), value.clone())])?;
    Setting::of(value).map(Some)
}

/// The changes that `-o property=value` asks for.
pub(super) fn changes(
    name: &str,
    properties: &[(String, String)],
) -> Result<Vec<PropChange>, String> {
    let context = PropContext {
        when: When::Import,
        version: cenote_pool::version::FEATURES,
        pool: name,
        hostid: system_hostid(),
        dataset: &|_| None,
    };
    let change = |(property, value): &(String, String)| {
        let change = props::parse(property, value, &context).map_err(|e| e.to_string())?;
        refuse_unsupported(&change).map(|()| change)
    };
    properties.iter().map(change).collect()
}

/// What `-F -n` says about stepping back.
fn would_return(rewind: &Rewind, name: &str, ctx: &Context) -> String {
    let when = ctime(&ctx.caller, rewind.to_time);
    let mut text = format!("Would be able to return {name} to its state as of {when}.\n");
    match rewind.lost_seconds {
        0 => {}
        s if s > 120 => {
            let minutes = s.saturating_add(30) / 60;
            text += &format!("Would discard approximately {minutes} minutes of transactions.\n");
        }
        s => text += &format!("Would discard approximately {s} seconds of transactions.\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::error::Target;

    #[test]
    fn times_are_in_the_callers_time_zone() {
        let mut ctx = Context::of_process(Arc::default());
        ctx.caller.env.insert("TZ".into(), "IST-5:30".into());
        let name = "tank".to_string();
        let host = "there".to_string();
        let used = ImportError::OtherHost { name, hostname: host, hostid: 0xab, timestamp: 0 };
        let (notes, why) = told(&used, &ctx);
        assert_eq!(notes, None);
        let line = why.lines().nth(1).unwrap();
        assert_eq!(line, "Last accessed by there (hostid=ab) at Thu Jan  1 05:30:00 1970");
        let recovery = Some(Rewind { from_txg: 9, to_txg: 7, to_time: 0, lost_seconds: 5 });
        let target = Target { name: "tank".into(), new_name: None };
        let damaged = ImportError::Damaged { target, why: "it is".into(), recovery };
        let notes = told(&damaged, &ctx).0.unwrap();
        assert!(notes.contains("as of Thu Jan  1 05:30:00 1970\n"), "{notes}");
    }

    fn request(list: &[&str]) -> Result<Request, Stop> {
        Request::parse(&list.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn command_lines() {
        let r = request(&["-d", "a", "-d", "b", "-o", "readonly=on", "-R", "/mnt", "tank", "new"])
            .unwrap();
        assert_eq!((r.paths.len(), r.options.readonly, r.names.len(), r.mount), (2, true, 2, true));
        assert_eq!(request(&["-T", "0x10", "t"]).unwrap().options.txg, Some(16));
        assert_eq!(
            request(&["-o", "noexec,nosuid", "t"]).unwrap().how.options,
            ["noexec", "nosuid"]
        );
        let why = |list: &[&str]| match request(list) {
            Err(Stop::Usage(m)) => m,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&["-n", "t"]), "-n or -X only meaningful with -F");
        assert_eq!(why(&["-a", "t"]), "too many arguments");
        assert_eq!(why(&["a", "b", "c"]), "too many arguments");
        assert_eq!(why(&["-T", "x", "t"]), "invalid txg value");
        let r = request(&["-t", "tank", "other"]).unwrap();
        assert!(r.options.temporary_name && r.cachefile.as_deref() == Some("none"));
        assert!(request(&["-l", "t"]).unwrap().load_keys);
        assert_eq!(why(&["-l", "-N", "t"]), "-l is incompatible with -N");
        assert_eq!(why(&["-V", "t"]), "unsupported option: -V");
        assert_eq!(why(&["-o", "tname=x", "t"]), "unsupported option: -o tname=x");
        assert!(request(&["--rewind-to-checkpoint", "t"]).unwrap().options.checkpoint);
        assert!(request(&["--scan", "-d", "a"]).unwrap().inside);
        assert_eq!(why(&["--scan", "t"]), "--scan needs -d");
        assert!(request(&["-a", "--local", "-c", "f"]).unwrap().local);
        assert_eq!(why(&["-a", "--local"]), "--local needs -c");
        let incompatible = "--rewind-to-checkpoint is incompatible with -T and -X";
        assert_eq!(why(&["--rewind-to-checkpoint", "-T", "9", "t"]), incompatible);
        assert_eq!(why(&["--rewind-to-checkpoint", "-FX", "t"]), incompatible);
        let incompatible = "--rewind-to-checkpoint is incompatible with -a";
        assert_eq!(why(&["--rewind-to-checkpoint", "-a"]), incompatible);
    }

    #[test]
    fn only_importing_starts_the_daemon() {
        let place = |list: &[&str]| place(&list.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(place(&["-d", "x"]), Where::DaemonIfRunning);
        assert_eq!(place(&["-o", "readonly=on", "tank"]), Where::Daemon);
        assert_eq!(place(&["tank"]), Where::Daemon);
        assert_eq!(place(&["-F", "-n", "tank"]), Where::DaemonIfRunning);
        assert_eq!(place(&["-q"]), Where::Here);
    }
}
