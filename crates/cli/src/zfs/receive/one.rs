//! One stream (`zfs_receive_impl`, `zfs_receive_one`).

use super::super::create::ancestors;
use super::names::{destination, of_guid};
use super::told::while_told;
use super::{Job, Within, props, said};
use crate::context::Context;
use crate::mounts::moving::{Away, family, refresh};
use crate::mounts::table::Way;
use crate::mounts::{Directory, How, NotMounted, mount_one};
use cenote_command::outcome::{Stop, fail};
use cenote_dsl::human::nicebytes;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::receive::{NewReceive, Properties, ReceiveError, Receiving, Source};
use cenote_engine::change::{ChangeError, Changes};
use cenote_format::stream::{Begin, FLAG_CLONE, feature};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// `dmu_objset_type_t` of a volume.
const VOLUME: u32 = 3;

/// A stream whose head was read.
pub(super) struct Stream<'b> {
    begin: &'b Begin,
    /// Its snapshot at the sender.
    name: &'b str,
    /// What is tried.
    what: &'static str,
    /// The full name of the snapshot.
    to: String,
    origin: Option<String>,
    /// The stream makes a dataset.
    wants_new: bool,
    resuming: bool,
}

impl<'b> Stream<'b> {
    pub(super) fn new(
        job: &Job,
        begin: &'b Begin,
        name: &'b str,
        within: &Within<'_>,
    ) -> Result<Stream<'b>, Stop> {
        let single = within.list.is_none_or(|list| !list.recursive);
        let to = destination(&job.flags, &job.target, (within.sent, name), single)
            .map_err(|why| Stop::Fail(format!("cannot receive: {why}")))?;
        let resuming = begin.features & feature::RESUMING != 0;
        let clone = begin.flags & FLAG_CLONE != 0;
        let new = begin.from_guid == 0 || clone || job.origin.is_some();
        let wants_new = new && !resuming;
        let what = match (wants_new, resuming) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            _ => "cannot receive incremental stream",
        };
        let mut stream = Stream { begin, name, what, to, origin: None, wants_new, resuming };
        let pool = job.imported.pool();
        stream.origin = match &job.origin {
            _ if resuming => None,
            Some(given) => Some(given.clone()),
            None if clone => {
                let found = of_guid(pool.dsl(), &stream.to, begin.from_guid);
                match found.map_err(|e| stream.cannot(&e))? {
                    Some(found) => Some(found),
                    None => {
                        let to = &stream.to;
                        let why = format!("local origin for clone {to} does not exist");
                        return Err(Stop::Fail(format!("cannot receive: {why}")));
                    }
                }
            }
            None => None,
        };
        stream.look_elsewhere(job, within)?;
        Ok(stream)
    }

    fn cannot(&self, why: &dyn std::fmt::Display) -> Stop {
        Stop::Fail(format!("{}: {why}", self.what))
    }

    fn head(&self) -> &str {
        self.to.split('@').next().unwrap_or_default()
    }

    fn short(&self) -> &str {
        self.to.split('@').nth(1).unwrap_or_default()
    }

    /// Where the dataset, or the one above it, is not where the name says, it is looked for by the guid of a snapshot
    /// of it.
    fn look_elsewhere(&mut self, job: &Job, within: &Within<'_>) -> Result<(), Stop> {
        let pool = job.imported.pool();
        let failed = |this: &Self, e: cenote_dmu::Error| this.cannot(&e);
        let head = self.head().to_string();
        if self.wants_new {
            let Some((above, leaf)) = head.rsplit_once('/') else { return Ok(()) };
            let parent = within.list.and_then(|list| list.sent(self.begin.to_guid));
            let Some(parent) = parent.map(|(sent, _)| sent.parent_from_snap) else { return Ok(()) };
            if job.head(above).map_err(|e| failed(self, e))?.is_none()
                && let Some(found) =
                    of_guid(pool.dsl(), above, parent).map_err(|e| failed(self, e))?
            {
                let found = found.split('@').next().unwrap_or_default();
                self.to = format!("{found}/{leaf}@{}", self.short());
            }
            return Ok(());
        }
        let top = matches!(self.name.get(within.sent.len()..), Some(rest) if rest.starts_with('@'));
        if (job.flags.prefix || !top) && job.head(&head).map_err(|e| failed(self, e))?.is_none() {
            let guid = self.begin.from_guid;
            let found = of_guid(pool.dsl(), &head, guid).map_err(|e| failed(self, e))?;
            if let Some(found) = found {
                let found = found.split('@').next().unwrap_or_default();
                self.to = format!("{found}@{}", self.short());
            }
        }
        Ok(())
    }

    /// Whether a stream that makes a dataset can take the place of the one that is there.
    fn check_there(&self, job: &Job, there: &Dataset) -> Result<(), Stop> {
        let name = &there.name;
        let newly = self.begin.from_guid == 0 || self.begin.flags & FLAG_CLONE != 0;
        if self.resuming && newly && !there.is_inconsistent() && !job.flags.force {
            return Err(self.cannot(&format!(
                "Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it"
            )));
        }
        if !self.wants_new {
            return Ok(());
        }
        let (pool, is_volume) = (job.imported.pool(), self.begin.kind == VOLUME);
        let dsl = pool.dsl();
        if !job.flags.force {
            return Err(self
                .cannot(&format!("destination '{name}' exists\nmust specify -F to overwrite it")));
        }
        if let Some(snapshot) = dsl.snapshots(there).map_err(|e| self.cannot(&e))?.first() {
            return Err(self.cannot(&format!(
                "destination has snapshots (eg. {})\nmust destroy them to overwrite it",
                snapshot.name
            )));
        }
        if is_volume && !name.contains('/') {
            return Err(self.cannot(&format!(
                "destination {name} is the root dataset\ncannot overwrite with a ZVOL"
            )));
        }
        if is_volume && let Some(child) = dsl.children(there).map_err(|e| self.cannot(&e))?.first()
        {
            return Err(self.cannot(&format!(
                "destination has children (eg. {})\ncannot overwrite with a ZVOL",
                child.name
            )));
        }
        if dsl.origin(there).map_err(|e| self.cannot(&e))?.is_some() {
            return Err(self.cannot(&format!(
                "destination '{name}' is a clone\nmust destroy it to overwrite it"
            )));
        }
        Ok(())
    }

    /// Whether what has come could take the place of a file system that is mounted, rather than be refused once all of it
    /// was read.
    fn check_mounted(&self, job: &Job, there: &Dataset) -> Result<(), Stop> {
        let mounts = &job.imported.mounts;
        if job.flags.force_unmount || mounts.can_exchange(there.ds_obj) {
            return Ok(());
        }
        mounts.stays(there.ds_obj).map_or(Ok(()), |why| Err(Stop::Fail(why.to_string())))
    }

    /// Whether there is something that a new dataset can be in; with `-d`, it is made.
    fn check_parent(&self, job: &Job, changes: &Changes, ctx: &mut Context) -> Result<(), Stop> {
        let head = self.head();
        let Some((parent, _)) = head.rsplit_once('/').filter(|_| self.wants_new) else {
            return Err(self.cannot(&format!("destination '{head}' does not exist")));
        };
        if job.flags.prefix && !job.flags.tail && !job.flags.dry_run {
            ancestors(head, false, &job.imported, changes, ctx)?;
        }
        match job.head(parent).map_err(|e| self.cannot(&e))? {
            Some(above) if above.kind == DatasetKind::Filesystem => Ok(()),
            Some(_) => Err(self.cannot(&format!("parent '{parent}' is not a filesystem"))),
            None if job.flags.dry_run && job.flags.prefix => Ok(()),
            None => fail(format!("cannot open '{parent}': dataset does not exist")),
        }
    }

    /// Whether the caller may receive the stream, before more than its head is read. What else is wrong is found
    /// later.
    fn check_permission(&self, job: &Job) -> Result<(), Stop> {
        match job.changes.may_receive(&self.asked(job), self.begin) {
            Err(e @ ReceiveError::Change(ChangeError::Denied | ChangeError::NoDelegation)) => {
                fail(self.message(job, self.wants_new, &e))
            }
            _ => Ok(()),
        }
    }

    /// Receives the stream. Its input may stall for as long as it likes: nothing of it is read while others wait
    /// ([`PoolTable::change`](crate::pools::PoolTable::change)).
    pub(super) fn receive(
        &self,
        job: &mut Job,
        source: &mut Source<'_>,
        within: &Within<'_>,
        ctx: &mut Context,
    ) -> Result<(), Stop> {
        let started = Instant::now();
        let (pools, changes) = (Arc::clone(&ctx.pools), Arc::clone(&job.changes));
        self.check_permission(job)?;
        // What is wrong with it is said after what is wrong with the dataset.
        let list = source.list(self.begin);
        let change = pools.change();
        let there = job.head(self.head()).map_err(|e| self.cannot(&e))?;
        match &there {
            Some(there) => {
                self.check_there(job, there)?;
                self.check_mounted(job, there)?;
            }
            None => self.check_parent(job, &changes, ctx)?,
        }
        self.announce(job, ctx)?;
        let uppermost = job.top.as_ref().is_none_or(|top| top == self.head());
        if job.top.is_none() {
            job.top = Some(self.head().into());
        }
        let what = (self.begin, self.head());
        let props = props::of_dataset(job, within, what, uppermost, ctx);
        let props = props.map_err(|why| self.cannot(&why))?;
        if job.flags.dry_run {
            drop(change);
            return list.and_then(|_| source.skip()).map_err(|e| self.cannot(&e));
        }
        let list = list.map_err(|e| self.cannot(&e))?;
        let begun = changes.receive(&self.asked(job), self.begin, &list);
        drop(change);
        let is_new = there.is_none();
        match begun {
            Ok(receiving) => match self.stream(job, &changes, receiving, (source, &props), ctx) {
                Ok(()) => {
                    props::give_snapshot(job, within, (&changes, &self.to), self.begin, ctx);
                }
                Err(Failed::Stop(stop)) => return Err(stop),
                Err(Failed::Receive(e)) => return fail(self.message(job, is_new, &e)),
            },
            Err(e) => return self.not_begun(job, is_new, &e, source, ctx),
        }
        if there.is_none_or(|there| there.is_inconsistent()) || within.list.is_some() {
            job.mount |= self.begin.kind != VOLUME;
        }
        if job.flags.verbose {
            let seconds = started.elapsed().as_secs_f64().max(1e-9);
            let (bytes, rate) = (source.bytes(), (source.bytes() as f64 / seconds) as u64);
            let (bytes, rate) = (nicebytes(bytes), nicebytes(rate));
            writeln!(ctx.out, "received {bytes} stream in {seconds:.2} seconds ({rate}/sec)")?;
            ctx.out.flush()?;
        }
        Ok(())
    }

    fn asked(&self, job: &Job) -> NewReceive {
        NewReceive {
            to: self.to.clone(),
            origin: self.origin.clone(),
            force: job.flags.force,
            resumable: job.flags.resumable,
        }
    }

    fn announce(&self, job: &Job, ctx: &mut Context) -> Result<(), Stop> {
        if !job.flags.verbose {
            return Ok(());
        }
        if let Some(origin) = &self.origin {
            let how = if job.origin.is_some() { "using provided" } else { "found" };
            writeln!(ctx.out, "{how} clone origin {origin}")?;
        }
        let does = if job.flags.dry_run { "would receive" } else { "receiving" };
        let kind = if self.begin.from_guid == 0 { "full" } else { "incremental" };
        writeln!(ctx.out, "{does} {kind} stream of {} into {}", self.name, self.to)?;
        Ok(ctx.out.flush()?)
    }

    /// Takes the stream, and puts what has come in the place of what is there.
    fn stream(
        &self,
        job: &Job,
        changes: &Changes,
        receiving: Receiving,
        (source, props): (&mut Source<'_>, &Properties),
        ctx: &mut Context,
    ) -> Result<(), Failed> {
        // So that they hold for what is written. Those of a dataset that is there wait until all has come, and so does
        // what would keep it from coming (`extract_delay_props`).
        let is_new = receiving.is_new();
        let (early, delayed) = props.without_refquota();
        if is_new {
            props::give(changes, self.head(), &early, ctx);
        }
        let taken = while_told(&job.flags, ctx, |told| {
            receiving.stream(source, &mut |bytes| told.store(bytes, Relaxed))
        });
        if let Err(e) = taken.unwrap_or_else(|e| Err(ReceiveError::Input(e))) {
            changes.give_up_receive(receiving);
            return Err(e.into());
        }
        let pools = Arc::clone(&ctx.pools);
        let _change = pools.change();
        let (exchanged, away) = match self.make_way(job, is_new, ctx) {
            Ok(done) => done,
            Err(why) => {
                ctx.complain(why);
                changes.give_up_receive(receiving);
                return Err(Failed::Stop(Stop::Said(1)));
            }
        };
        let finish = || changes.finish_receive(receiving, job.flags.force);
        let give = |ctx: &mut Context| {
            if !is_new || delayed {
                props::give(changes, self.head(), props, ctx);
            }
        };
        let done = match exchanged {
            Some(id) => self.exchange(job, id, finish, give, ctx)?,
            None => {
                let done = finish();
                if done.is_ok() {
                    give(ctx);
                }
                away.back(&job.imported, ctx);
                done
            }
        };
        done?;
        job.imported.mounts.snapshots_changed([&self.to]);
        Ok(())
    }

    /// The object of what gets other contents below its mounts; where that cannot be, it is unmounted.
    fn make_way(
        &self,
        job: &Job,
        is_new: bool,
        ctx: &mut Context,
    ) -> Result<(Option<u64>, Away), String> {
        let there = if is_new { Ok(None) } else { job.head(self.head()) };
        let id = there.map_err(|e| e.to_string())?.map(|d| d.ds_obj);
        let exchanged = id.filter(|id| job.imported.mounts.can_exchange(*id));
        let away = self.take_away(job, id.filter(|_| exchanged.is_none()), ctx)?;
        Ok((exchanged, away))
    }

    /// Unmounts what is going to be replaced, with what is inside.
    fn take_away(&self, job: &Job, id: Option<u64>, ctx: &mut Context) -> Result<Away, String> {
        let ids: Vec<u64> = id.into_iter().collect();
        let by = ctx.agent();
        let way = Way { force: job.flags.force_unmount, directory: Directory::Kept, by: &*by };
        job.imported.mounts.take_away(&ids, way).map_err(|(away, e)| {
            away.back(&job.imported, ctx);
            e.to_string()
        })
    }

    /// Puts what has come in the place of a file system, below all its mounts, in use or not.
    fn exchange(
        &self,
        job: &Job,
        id: u64,
        finish: impl FnOnce() -> Result<(), ReceiveError>,
        give: impl FnOnce(&mut Context),
        ctx: &mut Context,
    ) -> Result<Result<(), ReceiveError>, Failed> {
        let imported = &job.imported;
        let inside = imported.mounts.inside(id);
        let done = imported.mounts.exchange(imported, id, finish);
        if matches!(done, Ok(Ok(()))) {
            give(ctx);
            refresh(imported, ctx);
        }
        imported.mounts.restore(imported, inside, ctx);
        done.map_err(|e| Failed::Stop(self.cannot(&e)))
    }

    fn message(&self, job: &Job, is_new: bool, e: &ReceiveError) -> String {
        said::message(job, self.what, &self.to, is_new, e)
    }

    /// A stream of a snapshot that is there already is passed over; of others it is said why they are not received.
    fn not_begun(
        &self,
        job: &Job,
        is_new: bool,
        e: &ReceiveError,
        source: &mut Source<'_>,
        ctx: &mut Context,
    ) -> Result<(), Stop> {
        if !matches!(e, ReceiveError::NoDataset | ReceiveError::Exists) || !self.is_there(job) {
            return fail(self.message(job, is_new, e));
        }
        if job.flags.verbose {
            writeln!(ctx.out, "snap {} already exists; ignoring", self.to)?;
        }
        source.skip().map_err(|e| self.cannot(&e))
    }

    /// Whether the dataset has a snapshot of the stream's guid.
    fn is_there(&self, job: &Job) -> bool {
        let pool = job.imported.pool();
        let snapshots = match job.head(self.head()) {
            Ok(Some(head)) => pool.dsl().snapshots(&head).unwrap_or_default(),
            _ => Vec::new(),
        };
        snapshots.iter().any(|s| s.ds.guid == self.begin.to_guid)
    }
}

/// Why a stream that was begun was not received.
enum Failed {
    Receive(ReceiveError),
    Stop(Stop),
}

impl From<ReceiveError> for Failed {
    fn from(e: ReceiveError) -> Failed {
        Failed::Receive(e)
    }
}

/// Mounts what was received and is meant to be mounted. Says what fails; returns whether all went well.
pub(super) fn mount_all(job: &Job, ctx: &mut Context) -> bool {
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let Some(top) = &job.top else { return true };
    let all = match job.head(top) {
        Ok(Some(top)) => family(&job.imported, &top),
        Ok(None) => return true,
        Err(e) => Err(e),
    };
    let all = match all {
        Ok(all) => all,
        Err(e) => {
            ctx.complain(format_args!("cannot mount '{top}': {e}"));
            return false;
        }
    };
    let mut good = true;
    let meant = |d: &&Dataset| d.kind == DatasetKind::Filesystem && !d.is_inconsistent();
    for dataset in all.iter().filter(meant) {
        if job.imported.mounts.options_of(&dataset.name).is_some() {
            continue;
        }
        match mount_one(&job.imported, dataset, false, &How::default(), ctx) {
            Ok(()) | Err(NotMounted::NotMeant(_)) => {}
            Err(NotMounted::Failed(message)) => {
                ctx.complain(message);
                good = false;
            }
        }
    }
    good
}
