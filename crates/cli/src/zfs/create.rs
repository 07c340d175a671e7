//! `zfs create` (`zfs_do_create`).
//!
//! The command line becomes a `Request`, and that a `NewDataset`: the size and the block size of a volume are properties like
//! others. Keys of a new encryption root are asked for before the pool is locked against other commands, since they may be typed.
//!
//! With `-p` the file systems above are created first; a dataset that is there already is no error then. With `-n` nothing is created:
//! the names and properties are checked, and with `-v` what would be created is shown; other commands are not waited for.
//!
//! A dataset that was created and could not be mounted stays, and the command ends with 1.

use super::change::{add_property, changes, tell_kept};
use super::session::{quietly, stop};
use crate::context::Context;
use crate::mounts::administered::CommandMounts;
use crate::new_key::Wanted;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use cenote_admin::{Mounts, Session};
use cenote_command::outcome::{Outcome, Stop, fail, given_twice, usage};
use cenote_dsl::DatasetKind;
use cenote_engine::change::names::{Expected, check_new};
use cenote_engine::change::{
    ChangeError, Changes, Kind, NewDataset, NewEncryption, default_block_size, props, reserve,
};
use cenote_vdev::patience::impatiently;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "PV:b:nso:puv", refused: "", refused_long: &[] };

/// What is asked for.
#[derive(Default)]
struct Request {
    name: String,
    /// `-V`.
    size: Option<u64>,
    /// `-b`.
    block_size: Option<u64>,
    sparse: bool,
    /// `-p`: how often.
    parents: u32,
    props: Vec<(String, String)>,
    dry_run: bool,
    no_mount: bool,
    verbose: bool,
    parsable: bool,
}

impl Request {
    fn parse(args: &[OsString]) -> Result<Request, Stop> {
        let parsed = parse(args, SPEC).map_err(|stop| match stop {
            Stop::Usage(why) if why.starts_with("missing argument") => {
                Stop::Usage("missing size argument".into())
            }
            other => other,
        })?;
        let mut request = Request::default();
        for opt in &parsed.options {
            match opt.letter {
                'V' => request.size = Some(number("volume size", &opt.text())?),
                'b' => request.block_size = Some(number("volume block size", &opt.text())?),
                'o' => request.property(&opt.text())?,
                'p' => request.parents += 1,
                'P' => (request.verbose, request.parsable) = (true, true),
                'n' => request.dry_run = true,
                's' => request.sparse = true,
                'u' => request.no_mount = true,
                _ => request.verbose = true,
            }
        }
        if (request.block_size.is_some() || request.sparse) && request.size.is_none() {
            return usage("'-s' and '-b' can only be used when creating a volume");
        }
        if request.no_mount && request.size.is_some() {
            return usage("'-u' can only be used when creating a filesystem");
        }
        let mut names = parsed.names();
        request.name = match (names.pop(), names.is_empty()) {
            (Some(name), true) => name,
            (None, _) if request.size.is_some() => return usage("missing volume argument"),
            (None, _) => return usage("missing filesystem argument"),
            _ => return usage("too many arguments"),
        };
        Ok(request)
    }

    /// `-o name=value`. What `-V` or `-b` has said before is not said again; what they say later
    /// counts.
    fn property(&mut self, text: &str) -> Result<(), Stop> {
        let said = match text.split_once('=') {
            Some((name @ "volsize", _)) => self.size.map(|_| name),
            Some((name @ "volblocksize", _)) => self.block_size.map(|_| name),
            _ => None,
        };
        match said {
            Some(name) => given_twice(name),
            None => add_property(&mut self.props, text),
        }
    }

    fn cannot(&self, why: impl std::fmt::Display) -> Stop {
        let what = if self.dry_run { "verify" } else { "create" };
        Stop::Fail(format!("cannot {what} '{}': {why}", self.name))
    }

    /// The dataset to create. The size of a volume is a property like others, but comes first.
    fn dataset(&self) -> NewDataset {
        let kind = match self.size {
            None => Kind::Filesystem,
            Some(size) => Kind::Volume { size, sparse: self.sparse },
        };
        let mut props = self.props.clone();
        if self.size.is_some() {
            props.retain(|(name, _)| name != "volsize");
        }
        if let Some(bytes) = self.block_size {
            props.retain(|(name, _)| name != "volblocksize");
            props.insert(0, ("volblocksize".into(), bytes.to_string()));
        }
        NewDataset { name: self.name.clone(), kind, props }
    }
}

fn number(what: &str, text: &str) -> Result<u64, Stop> {
    props::size(text).map_err(|e| Stop::Fail(format!("bad {what} '{text}': {e}")))
}

/// Runs `zfs create`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let request = Request::parse(args)?;
    match request.dry_run {
        true => impatiently(|| create(&request, ctx)),
        false => create(&request, ctx),
    }
}

fn create(request: &Request, ctx: &mut Context) -> Outcome {
    check_new(&request.name, Expected::HEAD).map_err(|e| request.cannot(e))?;
    let pools = Arc::clone(&ctx.pools);
    let Some((pool, _)) = request.name.split_once('/') else {
        // With -p what is there already is no error, and the file system of a pool is there.
        return match request.parents > 0
            && request.size.is_none()
            && pools.get(&request.name).is_some()
        {
            true => Ok(0),
            false => Err(request.cannot("missing dataset name")),
        };
    };
    let mut new = request.dataset();
    let wanted = Wanted::take(&mut new.props).map_err(|why| request.cannot(why))?;
    let parent = request.name.rsplit_once('/').map_or("", |(parent, _)| parent);
    let encryption = match pools.get(pool) {
        Some(imported) if !request.dry_run => wanted.for_new(Some((&imported, parent)), ctx),
        _ => Ok(NewEncryption::Inherit(None)),
    };
    let encryption = encryption.map_err(|why| request.cannot(why))?;
    // What only shows something waits for no other command.
    let _change = (!request.dry_run).then(|| pools.change(pool));
    let Some(imported) = pools.get(pool) else {
        return match request.dry_run || request.size.is_some() {
            true => fail(format!("cannot open '{pool}': no such pool")),
            false => Err(request.cannot(ChangeError::NoPool(pool.into()))),
        };
    };
    let mut changes = Arc::new(changes(&imported, ctx).map_err(|e| request.cannot(e))?);
    if request.size.is_some() {
        warn_of_small_blocks(request, &imported, ctx);
    }
    if request.parents > 0 {
        match create_ancestors(request, &imported, changes, ctx)? {
            Some(same) => changes = same,
            None => return Ok(0),
        }
    }
    if request.verbose {
        show(request, &imported, ctx)?;
    }
    if request.dry_run {
        let ancestors = request.parents > 0;
        match changes.check_create(&new) {
            Err(ChangeError::NoParent) if ancestors => {}
            checked => drop(checked.map_err(|e| request.cannot(e))?),
        }
        return Ok(0);
    }
    changes.create_encrypted(&new, &encryption).map_err(|e| match e {
        ChangeError::NeedsUpgrade => {
            request.cannot("pool must be upgraded to set this property or value")
        }
        e => request.cannot(e),
    })?;
    tell_kept(&request.props, ctx);
    // It is created, whether it can be mounted or not.
    let good = request.no_mount || CommandMounts::new(&imported, ctx).mount_new(&request.name);
    Ok(i32::from(!good))
}

/// `-p`: creates what is missing above. Returns the changes that go on, which record the command once; `None`: the dataset
/// is there already.
fn create_ancestors(
    request: &Request,
    imported: &Arc<Imported>,
    mut changes: Arc<Changes>,
    ctx: &mut Context,
) -> Result<Option<Arc<Changes>>, Stop> {
    let there = imported.pool().dsl().find(&request.name).map_err(|e| request.cannot(e))?;
    if there.is_some_and(|d| (d.kind == DatasetKind::Volume) == request.size.is_some()) {
        return Ok(None);
    }
    if request.verbose {
        let name = &request.name;
        match (request.parsable, request.dry_run) {
            (true, _) => writeln!(ctx.out, "create_ancestors\t{name}")?,
            (_, true) => writeln!(ctx.out, "would create ancestors of {name}")?,
            _ => writeln!(ctx.out, "create ancestors of {name}")?,
        }
    }
    if !request.dry_run {
        let hidden = request.parents > 1;
        let created = |session: &mut Session<'_>| {
            session.create_ancestors(&request.name, hidden)?;
            session.writable(|| format!("cannot create '{}'", request.name))
        };
        changes = quietly(imported, ctx, created).map_err(stop)?;
    }
    Ok(Some(changes))
}

/// Says what is, or would be, created.
fn show(request: &Request, imported: &Imported, ctx: &mut Context) -> Result<(), Stop> {
    let name = &request.name;
    match (request.parsable, request.dry_run) {
        (true, _) => writeln!(ctx.out, "create\t{name}")?,
        (_, true) => writeln!(ctx.out, "would create {name}")?,
        _ => writeln!(ctx.out, "create {name}")?,
    }
    let mut shown = Vec::new();
    if let Some(size) = request.size {
        let pool = imported.pool();
        let default = default_block_size(&pool);
        let block = request.block_size.unwrap_or(default).max(1);
        let size = size.checked_next_multiple_of(block).unwrap_or(size);
        shown.push(("volsize".to_string(), size.to_string()));
        if request.block_size.is_some() || default != reserve::DEFAULT_BLOCK {
            shown.push(("volblocksize".into(), block.to_string()));
        }
        shown.extend(request.props.iter().cloned());
        if !request.sparse && !request.props.iter().any(|(name, _)| name == "refreservation") {
            let reserved = reserve::of_volume(pool.config(), size, block, 1);
            shown.push(("refreservation".into(), reserved.to_string()));
        }
    } else {
        shown.extend(request.props.iter().cloned());
    }
    for (name, value) in shown {
        match request.parsable {
            true => writeln!(ctx.out, "property\t{name}\t{value}")?,
            false => writeln!(ctx.out, "\t{name}={value}")?,
        }
    }
    Ok(())
}

/// Blocks that are smaller than what the pool allocates waste space.
fn warn_of_small_blocks(request: &Request, imported: &Imported, ctx: &mut Context) {
    let Some(block) = request.block_size else { return };
    let (least, better) = (reserve::DEFAULT_BLOCK, default_block_size(&imported.pool()));
    if block < least {
        ctx.complain(format_args!(
            "Warning: volblocksize ({block}) is less than the default minimum block size \
             ({least}).\nTo reduce wasted space a volblocksize of {better} is recommended."
        ));
    }
}
