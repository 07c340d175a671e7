//! New file systems and volumes (`dmu_objset_create`, `dsl_dataset_create_sync`).
//!
//! A request becomes a `Plan` on the view of the last transaction group. The plan has the [`Format`] of the object
//! set and three lists of properties: those in the property list, quotas and reservations, and quotas of users,
//! groups and projects. What the user does not say is inherited where it goes into the contents (`casesensitivity`,
//! `normalization`, `utf8only`), and so is `copies`. A volume is rounded up to whole blocks, and gets a
//! refreservation unless it is sparse.
//!
//! The sync task makes the dataset, has its [`Contents`] fill the object set (`zfs_create_fs`, `zvol_create_cb`),
//! and stores the properties. A file system that ignores case marks its dataset, whose snapshots ignore it as well.
//!
//! Invariant: if a reservation cannot be had, the task is refused, and nothing of the dataset is there.

use super::policy::Operation;
use super::props::{self, On, Setting};
use super::{
    ChangeError, Changes, Contents, Request, Result, dirs, names, quotas, record, reserve, set,
};
use crate::{SpaceCheck, SyncContext};
use cenote_dsl::human::nicebytes;
use cenote_dsl::write::crypt::{self, Encryption, RootKey};
use cenote_dsl::write::props::{NewValue, in_contents};
use cenote_dsl::write::quotas::Quota;
use cenote_dsl::write::{DslWriteError, Tx, dataset};
use cenote_dsl::{Dataset, DatasetKind, Dsl};
use cenote_format::crypt::Suite;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::dsl::{DS_FLAG_CI_DATASET, DslDatasetPhys};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::Pool;
use cenote_pool::version::newest_of_files;
use cenote_store::keys::LoadedKey;
use std::sync::Arc;

/// `casesensitivity=insensitive`.
const INSENSITIVE: u64 = 1;

/// `dmu_objset_type_t` of a file system.
const FILESYSTEM: i32 = 2;

/// That of a volume.
const VOLUME: i32 = 3;

/// What kind of dataset to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system.
    Filesystem,
    /// A volume of so many bytes, which are rounded up to whole blocks.
    Volume {
        /// `volsize`.
        size: u64,
        /// Whether it gets no refreservation (`-s`). Else it gets one that lets it be filled, unless
        /// one is among the properties.
        sparse: bool,
    },
}

impl Kind {
    fn of_dataset(self) -> DatasetKind {
        match self {
            Kind::Filesystem => DatasetKind::Filesystem,
            Kind::Volume { .. } => DatasetKind::Volume,
        }
    }
}

/// A dataset to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDataset {
    /// Its full name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its properties, as users write them.
    pub props: Vec<(String, String)>,
}

/// How a new dataset will be encrypted.
#[derive(Clone, Debug)]
pub enum NewEncryption {
    /// As its parent is, with this suite if one is given.
    Inherit(Option<Suite>),
    /// Not at all.
    Off,
    /// With a key of its own, whose place the property `keylocation` says.
    Root(RootKey, Suite, String),
}

impl Default for NewEncryption {
    fn default() -> NewEncryption {
        NewEncryption::Inherit(None)
    }
}

/// What is in a new object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A file system.
    Filesystem {
        /// `casesensitivity`: 0 sensitive, 1 insensitive, 2 mixed.
        case: u64,
        /// `normalization`: flags of `cenote_format::zap::norm`.
        normalization: u64,
        /// `utf8only`.
        utf8_only: bool,
        /// Whether the feature `project_quota` is enabled.
        project_quota: bool,
        /// `version`.
        version: u64,
    },
    /// A volume.
    Volume {
        /// Its size in bytes.
        size: u64,
        /// Bytes of its blocks.
        block_size: u64,
    },
}

/// The default `volblocksize` in a pool.
pub fn default_block_size(pool: &Pool) -> u64 {
    reserve::default_block(pool.config())
}

/// The file systems above `name` that are not there, outermost first.
///
/// # Errors
/// The name cannot be; the pool is another one; what is there is no file system.
pub fn missing_ancestors(pool: &Pool, name: &str) -> Result<Vec<String>> {
    names::check_new(name, names::Expected::HEAD)?;
    let mut missing = Vec::new();
    let mut at = names::split(name)?.0;
    loop {
        match pool.dsl().find(at)? {
            Some(found) if found.kind == DatasetKind::Filesystem => break,
            Some(_) => return Err(ChangeError::ParentKind),
            None => missing.push(at.to_string()),
        }
        at = match at.rsplit_once('/') {
            Some((parent, _)) => parent,
            None => return Err(ChangeError::NoPool(at.into())),
        };
    }
    missing.reverse();
    Ok(missing)
}

/// The root file system of a new pool: the properties that are stored, and what is in it. Quotas of users, groups and
/// projects ([`is_quota`](super::is_quota)) are to be set once it is there.
///
/// # Errors
/// A property is not right.
pub fn root_filesystem(
    list: &[(String, String)],
    project_quota: bool,
) -> Result<(Vec<(String, NewValue)>, Format)> {
    let settings = props::check(list, On::New(DatasetKind::Filesystem))?;
    let value = |name: &str| chosen(&settings, name).unwrap_or(0);
    let format = Format::Filesystem {
        case: value("casesensitivity"),
        normalization: value("normalization"),
        utf8_only: value("utf8only") != 0,
        project_quota,
        version: chosen(&settings, "version").unwrap_or(props::ZPL_VERSION),
    };
    let stored = settings.into_iter().filter(|s| !in_contents(&s.name));
    Ok((stored.map(|s| (s.name, s.value)).collect(), format))
}

/// What is known before the sync task.
struct Plan {
    parent: String,
    leaf: String,
    name: String,
    kind: ObjsetType,
    format: Format,
    /// Properties in the property list.
    stored: Vec<Setting>,
    /// Quotas and reservations.
    accounted: Vec<Setting>,
    /// Quotas of users, groups and projects.
    quotas: Vec<Quota>,
    /// What was asked for.
    request: Request,
    insensitive: bool,
    /// The property `copies` that it will have.
    copies: usize,
    /// Names of all properties that are given.
    properties: Vec<String>,
}

impl Plan {
    fn operation(&self) -> Operation<'_> {
        let properties = self.properties.iter().map(String::as_str).collect();
        Operation::Create { name: &self.name, properties }
    }
}

impl Changes {
    /// Whether a dataset could be created, as far as names and properties go; with what properties:
    /// for a volume those that it gets by itself are among them.
    ///
    /// # Errors
    /// As [`Changes::create`].
    pub fn check_create(&self, new: &NewDataset) -> Result<Vec<Setting>> {
        let plan = self.plan(new)?;
        self.permit(&plan.operation())?;
        let mut settings = plan.stored;
        if let Format::Volume { size, block_size } = plan.format {
            settings.push(Setting::number("volsize", size));
            settings.push(Setting::number("volblocksize", block_size));
        }
        settings.extend(plan.accounted);
        Ok(settings)
    }

    /// Creates a file system or volume (`zfs_ioc_create`, `lzc_create`).
    ///
    /// # Errors
    /// The name or a property is not right, there is no parent, there is no space for what it would
    /// reserve: then it is not there.
    pub fn create(&self, new: &NewDataset) -> Result<()> {
        self.create_encrypted(new, &NewEncryption::Inherit(None))
    }

    /// As [`Changes::create`], of a dataset that is encrypted in some way. The key of a new encryption root is loaded then.
    ///
    /// # Errors
    /// As [`Changes::create`]; the key of the parent's encryption root is not loaded.
    pub fn create_encrypted(&self, new: &NewDataset, how: &NewEncryption) -> Result<()> {
        let (plan, contents) = (self.plan(new)?, self.contents.clone());
        let encryption = self.encryption(&plan.parent, how)?;
        let root = match &encryption {
            Some(Encryption::Root(key, ..)) => Some(key.wrapping.clone()),
            _ => None,
        };
        let permit = self.permit(&plan.operation())?;
        let request = plan.request.clone();
        let (keys, of_root) = (Arc::clone(self.engine.pool().dsl().keystore()), root.clone());
        let done = self.request(permit, (SpaceCheck::Normal, 5), request, move |context| {
            let made = create(context, &plan, encryption.as_ref(), &contents)?;
            if let (Ok(dir), Some(wrapping)) = (&made, of_root) {
                let dir = *dir;
                context.when_kept(move || keys.changed(dir, &wrapping, &[]));
            }
            Ok(Ok(made))
        });
        let dir = done.flatten()?;
        if root.is_some() {
            self.engine.pool().dsl().keystore().settled(dir);
        }
        Ok(())
    }

    /// How a dataset below `parent` will be encrypted; `None`: not at all (`dmu_objset_create_crypt_check`).
    pub(super) fn encryption(
        &self,
        parent: &str,
        how: &NewEncryption,
    ) -> Result<Option<Encryption>> {
        let suite = match how {
            NewEncryption::Off => return Ok(None),
            NewEncryption::Root(key, suite, location) => {
                return Ok(Some(Encryption::Root(key.clone(), *suite, location.clone())));
            }
            NewEncryption::Inherit(suite) => *suite,
        };
        let view = self.engine.pool();
        let above = view.dsl().find(parent)?.ok_or(ChangeError::NoParent)?;
        let Some(key) = view.dsl().crypto_key(&above)? else {
            return match suite {
                None => Ok(None),
                Some(_) => {
                    Err(ChangeError::Property("Keyformat required for new encryption root.".into()))
                }
            };
        };
        let wrapping = view.dsl().keystore().wrapping(key.root);
        let why =
            || ChangeError::Property("encryption root's key is not loaded or provided".into());
        Ok(Some(Encryption::Inherited(wrapping.ok_or_else(why)?, suite)))
    }

    fn plan(&self, new: &NewDataset) -> Result<Plan> {
        let kind = new.kind.of_dataset();
        names::check_new(&new.name, names::Expected::HEAD)?;
        let (parent, leaf) = names::split(&new.name)?;
        let view = self.engine.pool();
        if new.name.split('/').next() != Some(view.name()) {
            let pool = new.name.split('/').next().unwrap_or_default();
            return Err(ChangeError::NoPool(pool.into()));
        }
        let above = view.dsl().find(parent)?.ok_or(ChangeError::NoParent)?;
        if above.kind != DatasetKind::Filesystem {
            return Err(ChangeError::ParentKind);
        }
        if view.dsl().find(&new.name)?.is_some() {
            return Err(ChangeError::Exists);
        }
        if view.dsl().is_key_loaded(&above)? == Some(false) {
            // What is inherited lies in its contents.
            let why = "encryption root's key is not loaded or provided";
            return Err(ChangeError::Property(why.into()));
        }
        let mut settings = props::check(&new.props, On::New(kind))?;
        let format = match new.kind {
            Kind::Filesystem => filesystem(&view, &above, &settings)?,
            Kind::Volume { size, sparse } => {
                let format = volume(&view, size, &settings)?;
                reserve_volume(&view, format, sparse, &mut settings);
                format
            }
        };
        let copies = match chosen(&settings, "copies") {
            Some(copies) => copies,
            None => inherited_number(view.dsl(), &above, "copies")?,
        };
        let insensitive = matches!(format, Format::Filesystem { case: INSENSITIVE, .. });
        let request = request(&format, &settings);
        let quotas = quotas::asked(&settings);
        let properties = settings.iter().map(|s| s.name.clone()).collect();
        settings.retain(|s| !in_contents(&s.name));
        let (accounted, stored) =
            settings.into_iter().partition(|s: &Setting| set::is_accounted(&s.name));
        Ok(Plan {
            parent: parent.into(),
            leaf: leaf.into(),
            name: new.name.clone(),
            kind: match kind {
                DatasetKind::Volume => ObjsetType::Zvol,
                _ => ObjsetType::Zfs,
            },
            format,
            stored,
            accounted,
            quotas,
            request,
            insensitive,
            copies: usize::try_from(copies).unwrap_or(1),
            properties,
        })
    }
}

/// The request for a dataset. Among its properties are the size of a volume, and that of its blocks
/// if it is not the usual one.
fn request(format: &Format, settings: &[Setting]) -> Request {
    let mut asked = Vec::new();
    let kind = match *format {
        Format::Filesystem { .. } => FILESYSTEM,
        Format::Volume { size, block_size } => {
            asked.push(Setting::number("volsize", size));
            if chosen(settings, "volblocksize").is_none() && block_size != reserve::DEFAULT_BLOCK {
                asked.push(Setting::number("volblocksize", block_size));
            }
            VOLUME
        }
    };
    asked.extend(settings.iter().filter(|s| s.name != "volsize").cloned());
    let mut input = NvList::default();
    input.set("type", NvValue::Int32(kind));
    input.set("props", NvValue::NvList(Setting::list(&asked)));
    Request { name: "create", input }
}

fn chosen(settings: &[Setting], name: &str) -> Option<u64> {
    settings.iter().find(|s| s.name == name).and_then(Setting::as_number)
}

/// A file system compares names as it is told, or as the one above does (`zfs_fill_zplprops`).
fn filesystem(pool: &Pool, above: &Dataset, settings: &[Setting]) -> Result<Format> {
    let inherited = |name: &str| inherited_number(pool.dsl(), above, name);
    let value = |name: &str| match chosen(settings, name) {
        Some(value) => Ok(value),
        None => inherited(name),
    };
    let normalization = value("normalization")?;
    let newest = newest_of_files(pool.version());
    let version = chosen(settings, "version").unwrap_or(newest);
    if version > newest {
        return Err(ChangeError::NeedsUpgrade);
    }
    Ok(Format::Filesystem {
        case: value("casesensitivity")?,
        normalization,
        utf8_only: normalization != 0 || value("utf8only")? != 0,
        project_quota: pool.features().is_enabled("project_quota"),
        version,
    })
}

fn inherited_number(dsl: &Dsl, above: &Dataset, name: &str) -> Result<u64> {
    let Some(value) = dsl.get(above, name)? else { return Ok(0) };
    let number = props::find(name).and_then(|p| match p.kind {
        cenote_dsl::props::table::Type::Index(_, names) => {
            names.iter().find(|(n, _)| *n == value.exact).map(|(_, number)| *number)
        }
        _ => value.exact.parse().ok(),
    });
    Ok(number.unwrap_or(0))
}

fn volume(pool: &Pool, size: u64, settings: &[Setting]) -> Result<Format> {
    let wrong = |why: &str| Err(ChangeError::Property(why.into()));
    let size = chosen(settings, "volsize").unwrap_or(size);
    let block_size = chosen(settings, "volblocksize").unwrap_or_else(|| default_block_size(pool));
    props::check_block_size("volblocksize", block_size)?;
    if size == 0 {
        return wrong("volume size cannot be zero");
    }
    match size.checked_next_multiple_of(block_size).filter(|s| *s <= i64::MAX as u64) {
        Some(size) => Ok(Format::Volume { size, block_size }),
        None => wrong("volume size exceeds limit for this system"),
    }
}

/// Whether the blocks of a volume can be encrypted with a suite.
fn check_suite(format: Format, suite: Suite) -> Result<()> {
    match format {
        Format::Volume { block_size, .. } if block_size > suite.max_block() => {
            let (size, most) = (nicebytes(block_size), nicebytes(suite.max_block()));
            Err(ChangeError::Property(format!(
                "volblocksize={size} is too large for encryption={suite}, which takes blocks of {most} at most"
            )))
        }
        _ => Ok(()),
    }
}

/// Gives a volume that is not sparse its reservation.
fn reserve_volume(pool: &Pool, format: Format, sparse: bool, settings: &mut Vec<Setting>) {
    let Format::Volume { size, block_size } = format else { return };
    let copies = chosen(settings, "copies").unwrap_or(1);
    let auto = || reserve::of_volume(pool.config(), size, block_size, copies);
    match settings.iter_mut().find(|s| s.name == "refreservation") {
        Some(given) if given.as_number() == Some(props::AUTO) => {
            given.value = NewValue::Number(auto());
        }
        None if !sparse => settings.push(Setting::number(reserve::usual(pool), auto())),
        _ => {}
    }
}

fn create(
    context: &mut SyncContext<'_>,
    plan: &Plan,
    encryption: Option<&Encryption>,
    contents: &Arc<dyn Contents>,
) -> super::Outcome<u64> {
    let tx = &mut context.tx;
    let Some(parent) = dirs::find_dir(tx, &plan.parent)? else {
        return Ok(Err(ChangeError::NoParent));
    };
    let block_size = match plan.format {
        Format::Volume { block_size, .. } => Some(Setting::number("volblocksize", block_size)),
        Format::Filesystem { .. } => None,
    };
    let version = context.config.version;
    let asked = plan.stored.iter().chain(&plan.accounted).chain(&block_size);
    if props::needs_upgrade(tx, version, asked)? {
        return Ok(Err(ChangeError::NeedsUpgrade));
    }
    let stored: Vec<(&str, NewValue)> =
        plan.stored.iter().map(|s| (s.name.as_str(), s.value.clone())).collect();
    let made = dataset::create(tx, parent, &plan.leaf, &stored, None)?;
    if plan.insensitive {
        set_insensitive(tx, made.ds_obj)?;
    }
    let (txg, format) = (tx.txg, plan.format);
    let fill = |os: &mut _| {
        contents.fill(os, &format, txg)?;
        quotas::set(os, &plan.quotas, txg)
    };
    let key = match encryption {
        Some(how) => {
            let (root, key) = crypt::create(&mut context.tx, (made.dir_obj, made.ds_obj), how)?;
            if let Err(why) = check_suite(plan.format, key.suite()) {
                return Ok(Err(why));
            }
            Some(LoadedKey::new(root, key))
        }
        None => None,
    };
    context.create_objset(made.ds_obj, plan.kind, plan.copies, key, fill)?;
    let tx = &mut context.tx;
    record(tx, "create", " ", (&plan.name, made.ds_obj))?;
    for setting in &plan.stored {
        set::activate(tx, made.ds_obj, setting)?;
        record(tx, "set", &setting.recorded(), (&plan.name, made.ds_obj))?;
    }
    let refused = set::account(tx, made.dir_obj, &plan.accounted)?;
    if let Some(failed) = refused.into_iter().next() {
        // What it is to have reserved is not there: then it is not to be there, either.
        return Ok(Err(match failed.error {
            ChangeError::QuotaTooSmall | ChangeError::ReservationTooLarge => ChangeError::NoSpace,
            other => other,
        }));
    }
    for setting in &plan.accounted {
        record(tx, "set", &setting.recorded(), (&plan.name, made.ds_obj))?;
    }
    Ok(Ok(made.dir_obj))
}

/// Names of snapshots are compared as names of files are.
fn set_insensitive(tx: &mut Tx<'_>, ds_obj: u64) -> std::result::Result<(), DslWriteError> {
    let bonus = tx.mos.dnode(ds_obj)?.bonus.clone();
    let mut ds = DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?;
    ds.flags |= DS_FLAG_CI_DATASET;
    Ok(tx.mos.set_bonus(ds_obj, DmuType::DSL_DATASET, &ds.encode())?)
}
