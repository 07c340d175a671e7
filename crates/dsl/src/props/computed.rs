//! Properties that are not simply stored (`dsl_dataset_stats`, `dsl_dir_stats`).
//!
//! | where from | properties |
//! |---|---|
//! | bonus buffers of the directory and the dataset | sizes, ratios, counts, guids, times |
//! | entries of the zapified directory or dataset | counts of file systems and snapshots, redaction, IV sets |
//! | other datasets | `available`, `written`, `clones`, `origin`, `prevsnap` |
//! | the file system's master node | `version`, `normalization`, `utf8only`, `casesensitivity`, default quotas |
//! | the volume's two objects (`zvol_get_stats`) | `volsize`, `volblocksize` |
//! | the wrapped key (`dsl_dataset_crypt_stats`) | encryption, and whether the key is loaded |
//! | the bookmark (`dsl_bookmark_fetch_props`) | the few that a bookmark has |
//!
//! A property that is not computed, or that this dataset does not have, is `None`; the caller then looks for a
//! stored one.

use super::inherit::Value;
use super::table::Property;
use crate::crypt::phys;
use crate::{Dataset, DatasetKind, Dsl};
use cenote_dmu::Result;
use cenote_dmu::zap::Zap;
use cenote_format::dmu::ObjsetType;
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDatasetPhys, ZBM_FLAG_HAS_FBN};
use cenote_format::redaction::REDACTED;

/// Fields of a zapified directory (`DD_FIELD_*`).
const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
/// Field of a zapified dataset: the guid of the set of IVs.
const IVSET_GUID: &str = "com.datto:ivset_guid";
/// Values of `keystatus`.
const KEY_UNAVAILABLE: u64 = 1;
const KEY_AVAILABLE: u64 = 2;
/// The master node of a file system, and the two objects of a volume.
pub(crate) const MASTER_NODE: u64 = 1;
const VOLUME_DATA: u64 = 1;
const VOLUME_PROPS: u64 = 2;
/// Version of a file system that does not say.
const ZPL_VERSION: u64 = 5;
/// `os_flags`: space per user and group is accounted.
pub(super) const USERACCOUNTING_COMPLETE: u64 = 1;

fn number(n: u64) -> Result<Option<Value>> {
    Ok(Some(Value::Number(n)))
}

fn ratio(ds: (u64, u64)) -> u64 {
    let (uncompressed, compressed) = ds;
    if compressed == 0 {
        return 100;
    }
    u64::try_from(u128::from(uncompressed) * 100 / u128::from(compressed)).unwrap_or(u64::MAX)
}

impl Dsl {
    /// The value of a property that is computed; `Ok(None)` if it is stored, or absent.
    pub(super) fn computed(&self, d: &Dataset, property: &Property) -> Result<Option<Value>> {
        let name = property.name;
        match d.kind {
            _ if name == "type" => Ok(Some(Value::Text(d.kind.name().into()))),
            _ if name == "name" => Ok(Some(Value::Text(d.name.clone()))),
            DatasetKind::Bookmark => self.of_bookmark(d, name),
            DatasetKind::Snapshot => match self.of_snapshot(d, name)? {
                None => self.of_dataset(d, name),
                value => Ok(value),
            },
            _ => match self.of_head(d, name)? {
                None => self.of_dataset(d, name),
                value => Ok(value),
            },
        }
    }

    fn of_bookmark(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let Some(b) = &d.bookmark else { return Ok(None) };
        let has_sizes = b.flags & ZBM_FLAG_HAS_FBN != 0;
        match name {
            "guid" => number(b.guid),
            "createtxg" => number(b.creation_txg),
            "creation" => number(b.creation_time),
            "ivsetguid" => number(b.ivset_guid),
            "referenced" if has_sizes => number(b.referenced),
            "logicalreferenced" if has_sizes => number(b.uncompressed),
            "redact_snaps" if b.redaction != 0 => {
                Ok(Some(guid_list(&self.redaction_list(b.redaction)?.snaps)))
            }
            _ => Ok(None),
        }
    }

    fn of_snapshot(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        match name {
            "used" => number(d.ds.unique),
            "compressratio" => number(ratio((d.ds.uncompressed, d.ds.compressed))),
            "defer_destroy" => number(d.is_defer_destroyed().into()),
            "numclones" => number(d.ds.num_children.saturating_sub(1)),
            "userrefs" => number(self.holds(d)?.len() as u64),
            "clones" => {
                let names: Vec<_> = self.clones(d)?.into_iter().map(|c| c.name).collect();
                Ok((!names.is_empty()).then(|| Value::Text(names.join(","))))
            }
            _ => Ok(None),
        }
    }

    fn of_head(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let dir = &d.dir;
        let [head, snapshots, children, children_reserved, refreservation] = dir.used_breakdown;
        let broken_down = dir.flags & DD_FLAG_USED_BREAKDOWN != 0;
        match name {
            "used" => number(dir.used),
            "compressratio" => number(ratio((dir.uncompressed, dir.compressed))),
            "logicalused" => number(dir.uncompressed),
            "quota" => number(dir.quota),
            "reservation" => number(dir.reserved),
            "usedbydataset" if broken_down => number(head),
            "usedbysnapshots" if broken_down => number(snapshots),
            "usedbychildren" if broken_down => number(children.wrapping_add(children_reserved)),
            "usedbyrefreservation" if broken_down => number(refreservation),
            "available" => Ok(self.available(d)?.map(Value::Number)),
            "receive_resume_token" => match self.resume_token(d)? {
                Some(token) => {
                    let text = token.encode().map_err(|e| self.undecodable(d.ds_obj, e))?;
                    Ok(Some(Value::Text(text)))
                }
                None => Ok(None),
            },
            "origin" => Ok(self.origin(d)?.map(|o| Value::Text(o.name))),
            "prevsnap" => self.previous_snapshot(d),
            "filesystem_count" => self.dir_field(d, FILESYSTEM_COUNT),
            "snapshot_count" => self.dir_field(d, SNAPSHOT_COUNT),
            "snapshots_changed_nsecs" => {
                let field = self.field(d.dir_obj, SNAPSHOTS_CHANGED)?;
                let nanoseconds = field.and_then(|e| match *e.value.as_slice() {
                    [seconds, nanoseconds, ..] => {
                        seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
                    }
                    _ => None,
                });
                Ok(nanoseconds.map(Value::Number))
            }
            "snapshots_changed" => {
                // The entry holds seconds and nanoseconds.
                let field = self.field(d.dir_obj, SNAPSHOTS_CHANGED)?;
                Ok(field.and_then(|e| e.value.first().copied()).map(Value::Number))
            }
            _ => Ok(None),
        }
    }

    fn of_dataset(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let DslDatasetPhys { compressed, uncompressed, .. } = *d.ds;
        match name {
            "creation" => number(d.ds.creation_time),
            "createtxg" => number(d.ds.creation_txg),
            "guid" => number(d.ds.guid),
            "objsetid" => number(d.ds_obj),
            "unique" => number(d.ds.unique),
            "referenced" => number(d.ds.referenced),
            "logicalreferenced" => number(uncompressed),
            "refcompressratio" => number(ratio((uncompressed, compressed))),
            "written" => Ok(self.written(d)?.map(Value::Number)),
            "inconsistent" => number(d.is_inconsistent().into()),
            "redacted" => number(self.field(d.ds_obj, REDACTED)?.is_some().into()),
            "redact_snaps" => Ok(self.field(d.ds_obj, REDACTED)?.map(|e| guid_list(&e.value))),
            "useraccounting" => {
                let flags = self.open_objset(d)?.phys().flags;
                number((flags & USERACCOUNTING_COMPLETE != 0).into())
            }
            "version" | "normalization" | "utf8only" | "casesensitivity" => {
                self.of_file_system(d, name)
            }
            "volsize" | "volblocksize" => self.of_volume(d, name),
            "encryption" | "keystatus" | "keyguid" | "keyformat" | "pbkdf2salt" | "pbkdf2iters"
            | "encryptionroot" | "ivsetguid" => self.of_key(d, name),
            _ if name.starts_with("default") && name.ends_with("quota") => {
                self.of_file_system(d, name)
            }
            _ => Ok(None),
        }
    }

    fn dir_field(&self, d: &Dataset, field: &str) -> Result<Option<Value>> {
        Ok(self.field_u64(d.dir_obj, field)?.map(Value::Number))
    }

    fn previous_snapshot(&self, d: &Dataset) -> Result<Option<Value>> {
        if d.ds.prev_snap == 0 || Some(d.ds.prev_snap) == self.origin_snap {
            return Ok(None);
        }
        Ok(self.by_object(d.ds.prev_snap)?.map(|s| Value::Text(s.name)))
    }

    /// Settings that a file system keeps in its own master node (`zfs_get_zplprop`).
    fn of_file_system(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let objset = self.open_objset(d)?;
        if objset.phys().kind != ObjsetType::Zfs {
            return Ok(None);
        }
        let master = Zap::open(&objset.object(MASTER_NODE)?)?;
        let (entry, default) = match name {
            "version" => ("VERSION", ZPL_VERSION),
            name => (name, 0),
        };
        number(master.u64(entry.as_bytes())?.unwrap_or(default))
    }

    fn of_volume(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let objset = self.open_objset(d)?;
        if objset.phys().kind != ObjsetType::Zvol {
            return Ok(None);
        }
        if name == "volblocksize" {
            return number(objset.object(VOLUME_DATA)?.dnode().block_size);
        }
        let props = Zap::open(&objset.object(VOLUME_PROPS)?)?;
        Ok(props.u64(b"size")?.map(Value::Number))
    }

    /// Properties of the key of an encrypted dataset.
    fn of_key(&self, d: &Dataset, name: &str) -> Result<Option<Value>> {
        let Some(key) = self.field_u64(d.dir_obj, phys::CRYPTO_KEY)? else { return Ok(None) };
        let key = self.zap(key)?;
        let entry = match name {
            "keystatus" => {
                let loaded = key.u64(phys::ROOT)?.is_some_and(|root| self.keys.has(root));
                return number(if loaded { KEY_AVAILABLE } else { KEY_UNAVAILABLE });
            }
            "ivsetguid" => {
                return Ok(self.field_u64(d.ds_obj, IVSET_GUID)?.map(Value::Number));
            }
            "encryptionroot" => {
                let Some(root) = key.u64(phys::ROOT)? else { return Ok(None) };
                return Ok(Some(Value::Text(self.dir(root)?.name.clone())));
            }
            "encryption" => phys::SUITE,
            "keyguid" => phys::GUID,
            name => name.as_bytes(),
        };
        Ok(key.u64(entry)?.map(Value::Number))
    }
}

/// `none` where the list is there but empty.
fn guid_list(guids: &[u64]) -> Value {
    if guids.is_empty() {
        return Value::Text("none".into());
    }
    let guids: Vec<_> = guids.iter().map(u64::to_string).collect();
    Value::Text(guids.join(","))
}
