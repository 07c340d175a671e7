//! `zdb`: what is on disk, as it is on disk.
//!
//! Floor 11 of cenote, beside the daemon, of which it knows nothing: the caller of [`run`] says which pools
//! are imported.
//!
//! One room per part of the output:
//!
//! | room | options |
//! |---|---|
//! | [`args`] | the command line; what is refused |
//! | [`labels`], [`cache`] | `-l` |
//! | [`metaslabs`] | `-m`, `-M` |
//! | [`objsets`], [`objects`], [`viewers`] | `-d`: datasets, objects, what is in them |
//! | [`history`] | `-h` |
//! | [`outages`] | dirty time logs in `-d` |
//! | `checkpoint` | `-k`; the checkpoint at the end of what is said of a pool |
//! | [`mos`] | `-d`: which objects of the MOS are leaked; feature counts |
//! | [`intent_log`] | `-i` |
//! | [`livelists`] | `-y`; livelists in `-d` |
//! | [`blocks`] | `-b`, `-c` |
//! | [`dedup`] | `-D`, `-S`, `-T` |
//! | [`raw`] | `-R`, `-E` |
//! | [`backup`] | `-B` |
//! | [`files`] | `-O`, `-r` |
//! | [`mod@print`] | block pointers, lists, histograms |
//! | `copied` | `-x` |
//! | [`process`] | `-o`, `-G`, `-Y`: tunables and messages of the process |
//!
//! A pool that is imported is looked at where it is; any other is opened read-only for as
//! long as the command runs. The text is that of OpenZFS 2.3, line by line.

pub mod args;
pub mod backup;
pub mod bins;
pub mod blocks;
pub mod cache;
mod checkpoint;
mod copied;
pub mod dedup;
pub mod files;
pub mod history;
pub mod intent_log;
pub mod labels;
mod layout;
pub mod livelists;
pub mod metaslabs;
pub mod mos;
pub mod objects;
pub mod objsets;
pub mod outages;
pub mod print;
pub mod process;
pub mod raw;
pub mod viewers;

use args::Args;
use cenote_command::outcome::{Outcome, Stop, conclude, fail};
use cenote_command::{Caller, Cancel, clock};
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::Zap;
use cenote_dsl::crypt::KeyFormat;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::WrappingKey;
use cenote_format::nvlist::NvList;
use cenote_inspect::traverse::Subject;
use cenote_pool::cachefile::CacheFile;
use cenote_pool::{Candidate, ImportOptions, Pool, discover};
use cenote_store::Store;
use cenote_zpl::FileSystem;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `zdb` runs in.
pub struct Surroundings<'a> {
    /// Standard output.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error.
    pub err: &'a mut (dyn Write + Send),
    /// The process that the user started.
    pub caller: &'a Caller,
    /// Stops the command.
    pub cancel: Cancel,
    /// The pool that is imported under a name, in the process that runs the command.
    pub imported: &'a dyn Fn(&str) -> Option<Arc<Pool>>,
    /// The cache file that is shown where none is named.
    pub cachefile: Option<PathBuf>,
}

impl Surroundings<'_> {
    /// Writes one line to standard error. A reader that has gone away is no error here: the
    /// command's exit code still says what happened.
    fn complain(&mut self, message: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{message}");
    }
}

/// A command that looks at one pool.
pub struct Zdb<'a> {
    ctx: Surroundings<'a>,
    args: &'a Args,
    pool: Arc<Pool>,
    /// What it was opened by; `None`: it is the daemon's.
    candidate: Option<Candidate>,
    /// Something on disk is not as it should be.
    damaged: bool,
    /// The file system whose files were looked at last, by dataset.
    file_system: Option<(u64, Arc<FileSystem>)>,
}

/// An error of the floors below as the end of the command.
fn failed(e: impl std::fmt::Display) -> Stop {
    Stop::Fail(format!("zdb: {e}"))
}

/// `zdb`; returns the exit code.
pub fn run(args: &[OsString], ctx: Surroundings<'_>) -> i32 {
    let Surroundings { out, err, caller, cancel, imported, cachefile } = ctx;
    // The output is many short lines.
    let mut out = BufWriter::with_capacity(64 << 10, out);
    let outcome = Args::parse(args).and_then(|args| {
        process::tunables(&args, &mut out)?;
        let ctx = Surroundings {
            out: &mut out,
            err: &mut *err,
            caller,
            cancel,
            imported,
            cachefile: cachefile.clone(),
        };
        // Of encrypted datasets whose key is not there, what is plain is shown.
        let dispatch = || Store::with_keys_or_without(|| dispatch(&args, ctx));
        if !args.has('G') {
            return dispatch();
        }
        let (outcome, messages) = process::with_messages(dispatch);
        process::show(&messages, &mut out)?;
        outcome
    });
    conclude(outcome, args::USAGE, &mut out, err)
}

/// Whether a command line is for a process of the user's own: it sets or shows tunables, has a key, or writes files.
pub fn needs_own_process(args: &[OsString]) -> bool {
    // What is wrong about a command line is said here: there may be a key in it.
    Args::parse(args).map_or(true, |args| args.needs_own_process())
}

fn dispatch<'a>(args: &'a Args, mut ctx: Surroundings<'a>) -> Outcome {
    if args.has('l') {
        return labels::run(args, &mut ctx);
    }
    if args.has('E') {
        return raw::embedded_block(args, &mut ctx);
    }
    if args.operands.is_empty() && !args.tunables.is_empty() {
        // They have been shown.
        return Ok(1);
    }
    let target = args.operands.first().cloned().unwrap_or_default();
    if target.is_empty() {
        let path = args.cachefile.as_ref().or(ctx.cachefile.as_ref());
        let Some(path) = path else { return fail("zdb: no cache file is kept".to_string()) };
        print::nvlist(ctx.out, &cached(path)?.list, 0)?;
        return Ok(0);
    }
    // `POOL/` is the root file system, `POOL` the pool.
    let (target, root) = match target.strip_suffix('/') {
        Some(rest) => (rest, !rest.contains('/')),
        None => (target.as_str(), false),
    };
    let end = target.find(['/', '@', '#']).unwrap_or(target.len());
    let (name, dataset) = target.split_at(end);
    let (pool, candidate) = open(args, &ctx, name, args.has('k'))?;
    let name = pool.name().to_string();
    if let Some(key) = &args.key {
        load_key(&pool, &format!("{name}{dataset}"), &key.0)?;
    }
    let mut zdb = Zdb { ctx, args, pool, candidate, damaged: false, file_system: None };
    let code = match dataset {
        _ if args.has('R') => zdb.read_blocks()?,
        _ if args.has('B') => zdb.backup(dataset)?,
        _ if args.has('r') || args.has('O') => zdb.files(&format!("{name}{dataset}"))?,
        "" if root => zdb.one_dataset(&name)?,
        "" | "/0" if args.has('f') => zdb.mos_objects()?,
        "" | "/0" => match args.level('d') > 0 && args.operands.len() > 1 && args.level('m') == 0 {
            true => zdb.mos_objects()?,
            false => zdb.whole_pool()?,
        },
        _ => zdb.one_dataset(&format!("{name}{dataset}"))?,
    };
    Ok(if zdb.damaged && code == 0 { 3 } else { code })
}

/// Loads the key of the encryption root of a dataset (`zdb_load_key`).
fn load_key(pool: &Pool, dataset: &str, key: &str) -> Result<(), Stop> {
    let cannot = |why: &dyn std::fmt::Display| {
        Stop::Fail(format!("zdb: failed to load key for {dataset}: {why}"))
    };
    let dsl = pool.dsl();
    let find = |name: &str| dsl.find(name).map_err(|e| cannot(&e));
    let found = find(dataset)?.ok_or_else(|| cannot(&"No such file or directory"))?;
    let root = dsl.encryption_root(&found).map_err(|e| cannot(&e))?;
    let root = find(&root.ok_or_else(|| cannot(&"it is not encrypted"))?)?;
    let root = root.ok_or_else(|| cannot(&"it has no encryption root"))?;
    let wrapped = dsl.crypto_key(&root).map_err(|e| cannot(&e))?;
    let wrapped = wrapped.ok_or_else(|| cannot(&"its encryption root is not encrypted"))?;
    let wrapping = match wrapped.format {
        KeyFormat::Raw | KeyFormat::Hex => WrappingKey::from_hex(key.as_bytes()),
        KeyFormat::Passphrase => {
            WrappingKey::from_passphrase(key.as_bytes(), wrapped.salt, wrapped.iterations)
        }
    };
    let wrapping = wrapping.map_err(|e| cannot(&e))?;
    dsl.load_key(&root, wrapping).map_err(|e| cannot(&e))
}

/// The pool `name`: the daemon's, or one found and opened here. `then`: as its checkpoint has it.
fn open(
    args: &Args,
    ctx: &Surroundings<'_>,
    name: &str,
    then: bool,
) -> Result<(Arc<Pool>, Option<Candidate>), Stop> {
    let cannot = || fail(format!("zdb: can't open '{name}': No such file or directory"));
    if let Some(path) = args.cachefile.as_ref().filter(|_| !args.has('e')) {
        let cached = cached(path)?;
        if !cached.entries().any(|entry| entry.name == name) {
            return cannot();
        }
        let found = cached.candidates().candidates.into_iter().find(|c| c.name == name);
        let Some(candidate) = found else { return cannot() };
        return Ok((import(args, name, &candidate, then)?, Some(candidate)));
    }
    if !args.has('e')
        && args.txg.is_none()
        && !then
        && let Some(pool) = (ctx.imported)(name)
    {
        return Ok((pool, None));
    }
    let dirs: Vec<PathBuf> = match args.search.is_empty() {
        false => args.search.iter().map(|p| ctx.caller.path(p)).collect(),
        true => match (ctx.imported)(name) {
            Some(pool) => device_paths(&pool),
            None => vec![PathBuf::from("/dev")],
        },
    };
    let found = discover::search(&dirs);
    let mut candidates = found.candidates.iter().filter(|c| !c.is_destroyed());
    let Some(candidate) = candidates.find(|c| c.name == name || c.guid.to_string() == name) else {
        // Of the places where OpenZFS looks, most are for others.
        let complaint = found.complaints().next().filter(|_| !args.search.is_empty());
        let why = complaint.unwrap_or(match !args.needs_own_process() {
            true => "No such file or directory".into(),
            // In a daemon these would be the daemon's tunables and files.
            false => "with -o, -x, -K and -Y, pools are those found by -e and -p only".into(),
        });
        return fail(format!("zdb: can't open '{name}': {why}"));
    };
    Ok((import(args, name, candidate, then)?, Some(candidate.clone())))
}

/// What a cache file says.
fn cached(path: &Path) -> Result<CacheFile, Stop> {
    CacheFile::read(path).map_err(|e| Stop::Fail(format!("zdb: '{}': {e}", path.display())))
}

/// Opens a pool that was found.
fn import(args: &Args, name: &str, candidate: &Candidate, then: bool) -> Result<Arc<Pool>, Stop> {
    let options = ImportOptions {
        readonly: true,
        force: true,
        rewind: args.has('F') || args.has('X'),
        extreme_rewind: args.has('X'),
        txg: args.txg,
        allow_missing_log: true,
        checkpoint: then,
        new_name: then.then(|| format!("{}{}", candidate.name, checkpoint::SUFFIX)),
        no_caches: true,
        ..ImportOptions::default()
    };
    let copied = match &args.copies {
        Some(dir) => Some(copied::candidate(candidate, dir)?),
        None => None,
    };
    Pool::import(copied.as_ref().unwrap_or(candidate), &options)
        .map_err(|e| Stop::Fail(format!("zdb: can't open '{name}': {e}")))
}

/// Where the devices of a pool are that is imported.
fn device_paths(pool: &Pool) -> Vec<PathBuf> {
    let leaves = pool.store().vdevs().leaves();
    leaves.iter().filter_map(|leaf| leaf.path().map(PathBuf::from)).collect()
}

impl Zdb<'_> {
    /// A block pointer on part of a line: all of it where blocks are shown in most detail.
    fn pointer(&self, bp: &BlockPointer, freed: bool) -> String {
        match self.level('b') >= 6 {
            true => print::blkptr(bp) + if freed { " FREE" } else { "" },
            false => print::blkptr_compact(bp, self.level('d') > 5, freed),
        }
    }

    /// Whether a dataset is encrypted, and its key is not there.
    fn is_closed(&self, os: &ObjectSet) -> bool {
        os.root_bp().uses_crypt() && os.store().keys().of(os.id()).is_none()
    }

    fn out(&mut self) -> &mut dyn Write {
        &mut *self.ctx.out
    }

    fn level(&self, letter: char) -> u32 {
        self.args.level(letter)
    }

    /// A damaged structure: says so, goes on, and lets the command end with exit code 3.
    fn complain(&mut self, what: impl std::fmt::Display) {
        self.damaged = true;
        let what = what.to_string();
        self.ctx.complain(format_args!("zdb: {}", what.trim_start_matches("zdb: ")));
    }

    fn ctime(&self, seconds: u64) -> String {
        clock::ctime(self.ctx.caller, seconds)
    }

    /// What a traversal needs to know of the pool.
    fn subject<'a>(pool: &'a Pool) -> Subject<'a> {
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() }
    }

    /// The object directory of the MOS.
    fn directory(&self) -> Result<Zap, Stop> {
        let object = self.pool.mos().object(1).map_err(failed)?;
        Zap::open(&object).map_err(failed)
    }

    /// Everything that is asked about the whole pool, in `zdb`'s order (`dump_zpool`).
    fn whole_pool(&mut self) -> Outcome {
        if self.level('y') > 0 {
            self.validate_livelists()?;
        }
        if self.level('S') > 0 {
            self.simulated_dedup()?;
            return Ok(0);
        }
        if self.level('C') > 0 {
            self.config()?;
        }
        if self.level('u') > 0 {
            self.uberblock()?;
        }
        if self.level('D') > 0 {
            self.dedup_tables()?;
        }
        if self.level('T') > 0 {
            self.reference_tables()?;
        }
        let metaslabs = self.level('d') > 2 || self.level('m') > 0 || self.args.allocated_map;
        if metaslabs {
            self.metaslabs()?;
        }
        if self.level('M') > 0 {
            self.metaslab_groups()?;
        }
        if metaslabs {
            self.log_space_maps()?;
        }
        let mut code = 0;
        if self.level('d') > 0 || self.level('i') > 0 {
            code = self.all_datasets()?;
        }
        if code == 0 && (self.level('b') > 0 || self.level('c') > 0) {
            code = self.block_stats()?;
        }
        if self.level('s') > 0 {
            self.io_stats()?;
        }
        if self.level('h') > 0 {
            self.history()?;
        }
        if code == 0 {
            self.checkpoint()?;
        }
        Ok(code)
    }

    /// `-C` (`dump_config`): the config in the MOS, as it is stored.
    fn config(&mut self) -> Result<(), Stop> {
        let number = self.directory()?.u64(b"config").map_err(failed)?.unwrap_or(0);
        let object = self.pool.mos().object(number).map_err(failed)?;
        let list = viewers::packed_nvlist(&object).map_err(failed)?;
        writeln!(self.out(), "\nMOS Configuration:")?;
        print::nvlist(self.out(), &list, 8)?;
        Ok(())
    }

    /// `-u` (`dump_uberblock`): the uberblock that the pool was opened at.
    fn uberblock(&mut self) -> Result<(), Stop> {
        let ub = self.pool.uberblock().clone();
        let time = self.ctime(ub.timestamp);
        let rootbp = self.level('u') >= 4;
        writeln!(self.out(), "\nUberblock:")?;
        print::uberblock(self.out(), &ub, &time, rootbp)?;
        writeln!(self.out())?;
        Ok(())
    }

    /// `-s`: what the command itself has read.
    fn io_stats(&mut self) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let line = |name: &str, v: &cenote_vdev::Vdev| {
            let (ops, writes, bytes, written) = v.io_stats();
            let (re, we, ce) = v.errors();
            let n = |n: u64| self.args.number(n);
            format!(
                "{name:<24} {:>7} {:>7} {:>7} {:>7} {:>5} {:>5} {:>5}",
                n(ops),
                n(writes),
                n(bytes),
                n(written),
                n(re),
                n(we),
                n(ce)
            )
        };
        let mut lines = vec![
            format!("{:24} {:>15} {:>15} {:>17}", "", "operations", "bandwidth", "errors"),
            format!(
                "{:<24} {:>7} {:>7} {:>7} {:>7} {:>5} {:>5} {:>5}",
                "description", "read", "write", "read", "write", "read", "write", "cksum"
            ),
            line(pool.name(), pool.store().vdevs().root()),
        ];
        let mut todo: Vec<_> =
            pool.store().vdevs().root().children().iter().rev().map(|v| (1, v.clone())).collect();
        while let Some((depth, v)) = todo.pop() {
            let name = v.path().map_or_else(|| v.kind().to_string(), |p| p.display().to_string());
            lines.push(line(&format!("{:1$}{name}", "", depth * 2), &v));
            todo.extend(v.children().iter().rev().map(|c| (depth + 1, c.clone())));
        }
        writeln!(self.out())?;
        for line in lines {
            writeln!(self.out(), "{line}")?;
        }
        Ok(())
    }
}

/// A list by name, or an empty one.
pub(crate) fn lists<'a>(list: &'a NvList, name: &str) -> &'a [NvList] {
    list.lists(name).unwrap_or_default()
}
