//! `zinject`: faults in the devices and blocks of imported pools, so that administrators can see their alarms go off.
//!
//! A handler is put in front of a leaf's device, or of reads of blocks, of a pool that this daemon has imported, and is listed in
//! the pool table ([`cenote_daemon::injections`]). It is in memory only: it goes when it is cleared, with the export of its pool,
//! and with the daemon. What OpenZFS's command does and this program cannot do truthfully is refused by name ([`options`]).
//!
//! A file is found by its path in the mount namespace of the caller, and then in the newest state of its file system. One that is
//! not mounted is named by its dataset and its number: `tank/home:128`.

mod list;
pub(crate) mod options;
pub mod usage;

use crate::commands::Where;
use crate::context::Context;
use crate::mounts::Directory;
use crate::mounts::table::Way;
use crate::pools::{Imported, reason};
use crate::zfs::select::{Kinds, Node, mounted, open as open_dataset};
use crate::zpool::select::{find_vdev, open};
use cenote_command::outcome::plain;
use cenote_daemon::injections::{Listed, Moment, What};
use cenote_store::injection::{DataError, DataHandler, Place};
use cenote_vdev::injection::{DeviceError, DeviceHandler, IoKind};
use cenote_zpl::FileSystem;
use options::{Error, Given, Type, Wrong, name_of, plainly, wrong};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use usage::USAGE;

/// Bytes of a slot of a dnode.
const SLOT: u64 = 512;
/// log2 of the bytes of a block pointer.
const POINTER_SHIFT: u32 = 7;

/// Where a command line runs: an import to come is held up by a daemon that may have no pools yet. Help and mistakes need none.
pub fn place(args: &[OsString]) -> Where {
    match options::parse(args) {
        Ok(given) if given.pause == Some(Moment::Import) => Where::Daemon,
        Ok(given) if !given.help => Where::DaemonIfRunning,
        Err(_) if args.is_empty() => Where::DaemonIfRunning,
        Ok(_) | Err(_) => Where::Here,
    }
}

/// Runs `zinject`; returns the exit code.
pub fn run(args: &[OsString], ctx: &mut Context) -> i32 {
    let done = match args.is_empty() {
        true => {
            let all = ctx.pools.injections.list();
            list::show(&all, ctx).map_or_else(|e| plainly(plain(&e)), |()| Ok(0))
        }
        false => options::parse(args).and_then(|given| act(&given, ctx)),
    };
    let code = done.unwrap_or_else(|Wrong { code, why, usage }| {
        ctx.complain(why);
        if usage {
            // The reader may be gone: the exit code says enough.
            let _ = write!(ctx.out, "{USAGE}");
        }
        code
    });
    match ctx.out.flush() {
        Ok(()) => code,
        Err(_) => code.max(1),
    }
}

fn act(given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    if given.help {
        return write!(ctx.out, "{USAGE}").map_or_else(|e| plainly(plain(&e)), |()| Ok(0));
    }
    if let Some(which) = &given.cancel {
        return cancel(which, given, ctx);
    }
    if let Some(device) = &given.device {
        return on_device(device, given, ctx);
    }
    if let Some(raw) = &given.raw {
        return on_raw(raw, given, ctx);
    }
    if let Some(moment) = given.pause {
        return on_moment(moment, given, ctx);
    }
    if given.seconds.is_some() {
        return wrong(2, "-s or -g meaningless without -I (ignore writes)");
    }
    match given.of {
        Some(of) => on_object(of, given, ctx),
        None if !given.flush => {
            wrong(2, "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified")
        }
        None if !given.operands.is_empty() => wrong(2, "extraneous argument for '-f'"),
        None => {
            flush(ctx);
            Ok(0)
        }
    }
}

/// Empties the caches of all pools, and what the kernel keeps of their files (`ZINJECT_FLUSH_ARC`).
fn flush(ctx: &Context) {
    for imported in ctx.pools.all() {
        imported.mounts.forget_pages();
        imported.pool().store().drop_caches();
    }
}

impl Given {
    /// Whether something is given that is about data.
    fn is_about_data(&self) -> bool {
        self.range.is_some() || self.of.is_some() || self.level != 0 || self.copies != 0
    }

    /// How many of `u32::MAX` matches something comes of.
    fn share(&self) -> u32 {
        self.frequency.unwrap_or(u32::MAX)
    }
}

fn cancel(which: &str, given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    let others = given.raw.is_some() || given.pause.is_some() || given.seconds.is_some();
    if others || given.is_about_data() || given.frequency.is_some() {
        return wrong(2, "cancel (-c) incompatible with any other options");
    }
    if !given.operands.is_empty() {
        return wrong(2, "extraneous argument to '-c'");
    }
    let injections = &ctx.pools.injections;
    let said = match which.parse::<u64>() {
        _ if which == "all" => {
            for one in injections.list() {
                injections.clear(one.id);
            }
            "removed all registered handlers".to_string()
        }
        Ok(id) if injections.clear(id) => format!("removed handler {id}"),
        Ok(id) => {
            return plainly(format!("failed to remove handler {id}: No such file or directory"));
        }
        Err(_) => {
            let why = "must be an integer or 'all'";
            return wrong(1, format!("invalid handle id '{which}': {why}"));
        }
    };
    writeln!(ctx.out, "{said}").map_or_else(|e| plainly(plain(&e)), |()| Ok(0))
}

/// Lists a handler of a pool and shows it. Was the pool exported meanwhile, and its handlers cleared, this one goes too.
fn add_to(
    imported: &Arc<Imported>,
    what: What,
    given: &Given,
    ctx: &mut Context,
) -> Result<i32, Wrong> {
    let (pool, pools) = (imported.name(), ctx.pools.clone());
    let id = pools.injections.add(pool, what.clone());
    if !pools.has(imported) {
        pools.injections.clear(id);
        return not_added("No such file or directory");
    }
    added((id, pool, what), given, ctx)
}

/// Shows a handler that was listed.
fn added(
    (id, pool, what): (u64, &str, What),
    given: &Given,
    ctx: &mut Context,
) -> Result<i32, Wrong> {
    if given.flush {
        flush(ctx);
    }
    let one = Listed { id, pool: pool.into(), what };
    list::added(&one, given.quiet, ctx).map_or_else(|e| plainly(plain(&e)), |()| Ok(0))
}

fn not_added<T>(why: &str) -> Result<T, Wrong> {
    plainly(format!("failed to add handler: {why}"))
}

/// `-d`: a device.
fn on_device(device: &str, given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    let others = given.raw.is_some() || given.pause.is_some() || given.seconds.is_some();
    if others || given.is_about_data() {
        return wrong(2, "device (-d) incompatible with data error injection");
    }
    let [pool] = given.operands.as_slice() else {
        return wrong(2, "device (-d) injection requires a single pool name");
    };
    let kind = given.kind.unwrap_or(IoKind::All);
    let error = device_error(given, kind)?;
    if given.delay.is_some() && (given.label.is_some() || given.error.is_some()) {
        return wrong(2, "delay (-D) incompatible with an error (-e) and with labels (-L)");
    }
    if given.label.is_some() {
        if given.kind.is_some() || given.frequency.is_some() {
            return wrong(2, "labels (-L) incompatible with an I/O type (-T) and a frequency (-f)");
        }
        if !matches!(error, DeviceError::Io | DeviceError::Nxio) {
            return plainly("label error type must be 'io' or 'nxio'");
        }
    }
    let imported = open(ctx, pool).or_else(plainly)?;
    let leaf = find_vdev(&imported, device)
        .or_else(|| by_guid(&imported, device))
        .ok_or(())
        .or_else(|()| plainly(format!("cannot find device '{device}' in pool '{pool}'")))?;
    if !leaf.is_leaf() {
        return plainly(format!("cannot inject into '{device}': it is not a single device"));
    }
    if let Some(verdict) = given.action {
        let engine = imported.writable().or_else(|why| plainly(format!("cannot act: {why}")))?;
        let acted = engine.condemn(leaf.guid(), verdict);
        return acted.map(|()| 0).or_else(|e| plainly(reason(&e)));
    }
    let drops = error == DeviceError::Noop && matches!(kind, IoKind::Write | IoKind::All);
    if drops && given.delay.is_none() && imported.pool().store().vdevs().is_required(leaf.guid()) {
        return plainly(format!("cannot drop writes of '{device}': no valid replicas"));
    }
    let (handler, what) = device_handler(leaf.guid(), (error, kind), given)?;
    leaf.inject(handler);
    add_to(&imported, what, given, ctx)
}

/// What is to come of requests of this kind.
fn device_error(given: &Given, kind: IoKind) -> Result<DeviceError, Wrong> {
    match given.error.unwrap_or(Error::Nxio) {
        Error::Checksum | Error::Decompress | Error::Decrypt => {
            plainly("device error type must be 'io', 'nxio' or 'corrupt'")
        }
        Error::Corrupt if given.frequency.is_none() || kind != IoKind::Read => {
            plainly("device corrupt errors require io type read and a frequency value")
        }
        Error::Corrupt => Ok(DeviceError::Corrupt),
        Error::Io => Ok(DeviceError::Io),
        Error::Nxio => Ok(DeviceError::Nxio),
        Error::Dtl => Ok(DeviceError::Dtl),
        Error::Noop => Ok(DeviceError::Noop),
        Error::Prefail => Ok(DeviceError::Prefail),
    }
}

/// The handler of a leaf that is asked for.
fn device_handler(
    vdev: u64,
    (error, kind): (DeviceError, IoKind),
    given: &Given,
) -> Result<(Arc<DeviceHandler>, What), Wrong> {
    let name = name_of(kind);
    let Some((milliseconds, lanes)) = given.delay else {
        let handler = match given.label {
            Some(part) => DeviceHandler::label(part),
            None => DeviceHandler::fails(error, kind, given.share()),
        };
        let error = options::error_name(given.error.unwrap_or(Error::Nxio));
        let what = What::Device { vdev, kind: name, error, handler: handler.clone() };
        return Ok((handler, what));
    };
    if !matches!(kind, IoKind::Read | IoKind::Write | IoKind::All) {
        return wrong(1, "I/O type for a delay must be 'read' or 'write'");
    }
    let Some(count) = u16::try_from(lanes).ok().filter(|n| *n > 0 && *n < u16::MAX) else {
        return not_added("Invalid argument");
    };
    let latency = Duration::from_millis(milliseconds.min(u64::from(u32::MAX)));
    let handler = DeviceHandler::delays(latency, count, kind, given.share());
    let copy = handler.clone();
    Ok((handler, What::Delay { vdev, kind: name, milliseconds, lanes, handler: copy }))
}

/// The leaf of a guid, as `strtoull` reads it: decimal or, with `0x`, hexadecimal.
fn by_guid(imported: &Imported, text: &str) -> Option<Arc<cenote_vdev::Vdev>> {
    let guid = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    imported.pool().store().vdevs().find(guid)
}

/// `-P`: an import or export.
fn on_moment(moment: Moment, given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    if given.is_about_data() || given.frequency.is_some() {
        return wrong(2, "import|export delay (-P) incompatible with other options");
    }
    let (Some(seconds), [pool]) = (given.seconds, given.operands.as_slice()) else {
        return wrong(
            2,
            "import|export delay (-P) injection requires a duration (-s) and a single pool name",
        );
    };
    let imported = ctx.pools.get(pool);
    let exists = ctx.pools.injections.has_pause(pool, moment);
    let what = What::Pause(moment, seconds);
    match (moment, imported) {
        (Moment::Import, Some(_)) => not_added("pool already imported"),
        (Moment::Import, _) if exists => not_added("pool already imported"),
        (Moment::Export, _) if exists => not_added("a handler already exists"),
        (Moment::Export, None) => not_added("No such file or directory"),
        (Moment::Export, Some(imported)) => add_to(&imported, what, given, ctx),
        (Moment::Import, None) => {
            let id = ctx.pools.injections.add(pool, what.clone());
            added((id, pool, what), given, ctx)
        }
    }
}

/// How reads of data fail. Errors of devices alone are refused.
fn data_error(given: &Given) -> Result<DataError, Wrong> {
    match given.error.unwrap_or(Error::Io) {
        Error::Io => Ok(DataError::Io),
        Error::Checksum => Ok(DataError::Checksum),
        Error::Decompress => Ok(DataError::Decompress),
        Error::Decrypt => Ok(DataError::Decrypt),
        Error::Nxio | Error::Corrupt | Error::Dtl | Error::Noop | Error::Prefail => {
            plainly("data error type must be 'checksum' or 'io'")
        }
    }
}

/// `-b`: a block by its numbers.
fn on_raw(raw: &str, given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    if given.pause.is_some() || given.is_about_data() || given.frequency.is_some() {
        return wrong(2, "raw (-b) format with any other options");
    }
    let [pool] = given.operands.as_slice() else {
        return wrong(2, "raw (-b) format expects a single pool name");
    };
    let error = data_error(given)?;
    let numbers: Option<Vec<u64>> =
        raw.split(':').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let bad = || {
        plainly(format!("bad raw spec '{raw}': must be of the form 'objset:object:level:blkid'"))
    };
    let (objset, object, level, blkids) = match numbers.as_deref() {
        Some([objset, object, level, start]) => (*objset, *object, *level, *start..=*start),
        Some([objset, object, level, start, end]) => (*objset, *object, *level, *start..=*end),
        _ => return bad(),
    };
    // Levels below 0 are those of roots and of intent logs: `ffffffff` as C reads it.
    let Ok(level) = u32::try_from(level) else { return bad() };
    let level = i64::from(level.cast_signed());
    let Some(imported) = ctx.pools.get(pool) else {
        return not_added("No such file or directory");
    };
    let target = Target { objset, object, level, blkids, kind: None };
    put(&imported, (error, target), given, ctx)
}

/// Blocks of data.
struct Target {
    objset: u64,
    object: u64,
    level: i64,
    blkids: RangeInclusive<u64>,
    /// Of the meta object set all objects of this type; 0: of all types.
    kind: Option<u8>,
}

/// Puts a handler in front of reads of a pool.
fn put(
    imported: &Arc<Imported>,
    (error, target): (DataError, Target),
    given: &Given,
    ctx: &mut Context,
) -> Result<i32, Wrong> {
    let Target { objset, object, level, blkids, kind } = target;
    let place = match kind {
        Some(kind) => Place::Mos((kind != 0).then_some(kind)),
        None => Place::Blocks { objset, object, level, blkids: blkids.clone() },
    };
    let copies = given.copies;
    let handler = DataHandler::new(error, place, copies, given.share());
    imported.pool().store().inject(handler.clone());
    let kind = kind.unwrap_or(0);
    let what = What::Data { objset, object, kind, level, blkids, copies, handler };
    add_to(imported, what, given, ctx)
}

/// `-t`: a file, its dnode, or objects of the meta object set.
fn on_object(of: Type, given: &Given, ctx: &mut Context) -> Result<i32, Wrong> {
    let [object] = given.operands.as_slice() else { return wrong(2, "missing object") };
    let error = data_error(given)?;
    if given.copies != 0 && matches!(error, DataError::Decrypt | DataError::Decompress) {
        return plainly(
            "the '-C' option may not be used with logical data errors 'decrypt' and 'decompress'",
        );
    }
    if error == DataError::Decrypt && of != Type::Data {
        return plainly("decryption errors may only be injected for 'data' types");
    }
    if let Type::Mos(kind) = of {
        let Some(imported) = ctx.pools.get(object) else {
            return not_added("No such file or directory");
        };
        let target =
            Target { objset: 0, object: 0, level: given.level, blkids: 0..=0, kind: Some(kind) };
        return put(&imported, (error, target), given, ctx);
    }
    let (node, number) = find(object, ctx)?;
    let target = target(&node, number, of, given)?;
    let pools = ctx.pools.clone();
    if !given.remount {
        return put(&node.imported, (error, target), given, ctx);
    }
    let _change = pools.change(node.imported.name());
    let by = ctx.agent();
    let way = Way { force: false, directory: Directory::Kept, by: &*by };
    let away = match node.imported.mounts.take_away(&[node.dataset.ds_obj], way) {
        Ok(away) => away,
        Err((away, why)) => {
            away.back(&node.imported, ctx);
            return plainly(why.to_string());
        }
    };
    let done = put(&node.imported, (error, target), given, ctx);
    let back = away.back(&node.imported, ctx);
    done.map(|code| if back { code } else { code.max(1) })
}

/// The dataset and the number of an object that is named by a path, or by both.
fn find(object: &str, ctx: &Context) -> Result<(Node, u64), Wrong> {
    if !object.starts_with('/') {
        let named = object.rsplit_once(':').and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let Some((name, number)) = named else {
            return wrong(1, format!("invalid object '{object}': must be full path"));
        };
        return open_dataset(ctx, name, Kinds::DATASET).or_else(plainly).map(|node| (node, number));
    }
    let path = ctx
        .agent()
        .canonicalize(Path::new(object))
        .or_else(|e| plainly(format!("cannot find mountpoint for '{object}': {}", plain(&e))))?;
    let places = mounted(ctx).or_else(plainly)?;
    let around = places.into_iter().filter(|m| path.starts_with(&m.mountpoint));
    let Some(place) = around.max_by_key(|m| m.mountpoint.as_os_str().len()) else {
        return plainly(format!("invalid path '{object}': not a ZFS filesystem"));
    };
    let cannot = |e: &dyn std::fmt::Display| Wrong::plain(format!("cannot find '{object}': {e}"));
    let rest = path.strip_prefix(&place.mountpoint).map_err(|e| cannot(&e))?.to_path_buf();
    let imported = open_dataset(ctx, &place.dataset, Kinds::DATASET).or_else(plainly)?.imported;
    // The file may be newer than the last transaction group.
    if let Some(engine) = imported.engine().filter(|_| !imported.suspended()) {
        engine.sync().map_err(|e| cannot(&reason(&e)))?;
    }
    let node = open_dataset(ctx, &place.dataset, Kinds::DATASET).or_else(plainly)?;
    let os = imported.pool().dsl().open_objset(&node.dataset).map_err(|e| cannot(&e))?;
    let fs = FileSystem::open(os).map_err(|e| cannot(&e))?;
    let number = fs.resolve(rest.as_os_str().as_bytes()).map_err(|e| cannot(&e))?;
    Ok((node, number))
}

/// The blocks of an object that are meant (`zio_calculate_range`).
fn target(node: &Node, number: u64, of: Type, given: &Given) -> Result<Target, Wrong> {
    let pool = node.imported.pool();
    let cannot = |e: &dyn std::fmt::Display| Wrong::plain(format!("failed to add handler: {e}"));
    let os = pool.dsl().open_objset(&node.dataset).map_err(|e| cannot(&e))?;
    let objset = os.id();
    let dnode = match of {
        Type::Data => os.object(number).map_err(|e| cannot(&e))?.dnode().clone(),
        _ => os.phys().meta_dnode.clone(),
    };
    let levels = i64::from(dnode.levels);
    if given.level < 0 || given.level >= levels {
        return not_added("block level exceeds max level of object");
    }
    let bytes = match (of, &given.range) {
        (Type::Data, None) => None,
        (Type::Data, Some(range)) => Some(options::range(range)?),
        (_, Some(_)) => return plainly("range cannot be specified when type is 'dnode'"),
        (_, None) => {
            let at = number.checked_mul(SLOT).ok_or_else(|| cannot(&"no such object"))?;
            Some((at, at))
        }
    };
    // A block of a level holds so many pointers to those of the level below.
    let fan = u32::from(dnode.indirect_shift).saturating_sub(POINTER_SHIFT);
    let shift = fan.saturating_mul(u32::try_from(given.level).unwrap_or(u32::MAX));
    let block = |byte: u64| (byte / dnode.block_size.max(1)).checked_shr(shift).unwrap_or(0);
    let blkids = bytes.map_or(0..=u64::MAX, |(start, end)| block(start)..=block(end));
    let object = if of == Type::Data { number } else { 0 };
    Ok(Target { objset, object, level: given.level, blkids, kind: None })
}
