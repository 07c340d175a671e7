//! Records with NFSv4 lists, and with owners of domains (`zfs_replay_acl`, `zfs_replay_acl_v0`,
//! `zfs_replay_fuids`).
//!
//! The entries of a list name users and groups by numbers of 32 bits. Those above `i32::MAX` were given out by
//! the system for as long as it ran (ephemeral ids): the record has a FUID for each of them, in the order of the
//! entries. A record without FUIDs is of a system that has no such ids, and its numbers are what they are.

use super::{Replay, Target};
use crate::fs::FileSystem;
use crate::write::context::Cx;
use crate::write::cost::ATTRIBUTES;
use crate::write::fuid::{self, Domains};
use crate::write::nfs4::List;
use crate::write::node::NodeMut;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dsl::zil::{End, Item, Locked, walk_kept};
use cenote_format::acl::Ace;
use cenote_format::zil::{Acl, Body, Create, NewObject, Record, Rename, Renames};
use cenote_format::{ByteOrder, Bytes};

/// Largest id that is no ephemeral one (`MAXUID`).
const MAX_ID: u64 = i32::MAX as u64;

/// The entries of a record's list, with FUIDs for those whom they name.
pub(super) fn entries(cx: &mut Cx<'_>, acl: &Acl<'_>, domains: &Domains<'_>) -> Result<Vec<Ace>> {
    let mut entries = decode(acl.aces, acl.order, acl.count, false)?;
    let mut fuids = acl.fuids.iter();
    for ace in entries.iter_mut().filter(|ace| ace.who.is_some_and(|who| who > MAX_ID)) {
        if acl.fuids.is_empty() {
            break;
        }
        let missing = || Error::Invalid("an NFSv4 ACL with too few FUIDs".into());
        ace.who = Some(cx.fuid(*fuids.next().ok_or_else(missing)?, domains)?);
    }
    match fuids.next() {
        None => Ok(entries),
        Some(_) => Err(Error::Invalid("an NFSv4 ACL with more FUIDs than it names".into())),
    }
}

fn decode(aces: &[u8], order: ByteOrder, count: u64, old: bool) -> Result<Vec<Ace>> {
    let b = Bytes::new(aces, order, "NFSv4 ACL in an intent log");
    Ace::decode_logged(&b, count, old).map_err(|e| Error::Invalid(e.to_string()))
}

/// What a record may cost beyond `cost` for its list and its domains.
pub(super) fn cost_with(cost: Cost, acl: Option<&Acl<'_>>, domains: &[&[u8]]) -> Cost {
    // Stored entries are not twice as long as those in records; a spill block is rounded up.
    let list = acl.map_or(0, |acl| 2 * acl.aces.len() as u64);
    let (table, objects) = if domains.is_empty() { (0, 0) } else { (fuid::TABLE, 1) };
    Cost { write: cost.write + list + table, objects: cost.objects + objects, ..cost }
}

impl FileSystem {
    /// `TX_ACL`: the object gets the list.
    pub(super) fn replay_acl(
        &self,
        seq: u64,
        ino: u64,
        acl: &Acl<'_>,
        table_at: u64,
    ) -> Result<()> {
        let domains = Domains { names: &acl.domains, table_at };
        self.replay_change(seq, cost_with(ATTRIBUTES, Some(acl), &acl.domains), |cx| {
            let list = List { entries: entries(cx, acl, &domains)?, flags: Some(acl.flags) };
            give(cx, ino, &list)
        })
    }

    /// `TX_ACL_V0`: as [`FileSystem::replay_acl`], where there are neither domains nor flags of the whole list.
    pub(super) fn replay_acl_v0(
        &self,
        seq: u64,
        ino: u64,
        (aces, order, count): (&[u8], ByteOrder, u64),
    ) -> Result<()> {
        let list = List { entries: decode(aces, order, count, true)?, flags: None };
        self.replay_change(seq, ATTRIBUTES, |cx| give(cx, ino, &list))
    }
}

fn give(cx: &mut Cx<'_>, ino: u64, list: &List) -> Result<()> {
    let mut node = NodeMut::load(cx, ino)?;
    list.give(cx, &mut node)?;
    node.touched(cx)?;
    node.store(cx)
}

/// The domains of a record.
fn domains<'r>(body: &'r Body<'_>) -> &'r [&'r [u8]] {
    match body {
        Body::Create(Create { acl: Some(acl), .. }) | Body::Acl { acl, .. } => &acl.domains,
        Body::Create(Create { domains, .. }) => domains,
        Body::SetAttr(set) => &set.domains,
        _ => &[],
    }
}

impl Replay<'_> {
    /// Where a table of domains goes if this record needs one and the file system has no table: above the objects
    /// that the log makes, which have their numbers.
    ///
    /// Errors: the log cannot be read.
    pub(super) fn table_at(&self, body: &Body<'_>) -> Result<u64> {
        let Target::Files(fs) = &self.target else { return Ok(0) };
        if domains(body).is_empty() || fs.fuid_object()?.is_some() {
            return Ok(0);
        }
        let (header, mut above) = (self.live.base().phys().zil, 1);
        let end = walk_kept(&self.store, &header, (self.kept, Locked::Follow), &mut |item| {
            if let Item::Record(raw) = item
                && let Ok(Record { body, .. }) = Record::decode(&raw)
                && let Some(new) = made(&body)
            {
                above = above.max(new.object.saturating_add(new.slots));
            }
            true
        });
        match end {
            End::Complete | End::Cut => Ok(above),
            End::Failed(e) => Err(cenote_dmu::Error::from(e).into()),
            End::Stopped | End::Unreadable => {
                Err(Error::Invalid("what was claimed of the intent log cannot be read".into()))
            }
        }
    }
}

/// The object that a record makes.
fn made<'r>(body: &'r Body<'_>) -> Option<&'r NewObject> {
    match body {
        Body::Create(create) => Some(&create.new),
        Body::Rename(Rename { how: Renames::Whiteout(new), .. }) => Some(new),
        _ => None,
    }
}
