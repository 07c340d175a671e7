//! Names of files inside datasets: `pool/fs[@snapshot][:/path]`, and opening them.
//!
//! The pool is one that the daemon has imported, or, with `-d DIR`, one that is found in DIR and
//! opened for this command alone.

use crate::context::Context;
use crate::keys::{self, LoadKey};
use crate::pools::{Imported, Opened, reason};
use crate::zfs::select::{Kinds, Node, open};
use cenote_daemon::input::Input;
use cenote_dsl::DatasetKind;
use cenote_engine::EngineError;
use cenote_inspect::map::InUse;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::{FileSystem, Volume};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Most symbolic links followed to reach a file.
const MAX_LINKS: usize = 40;

/// A name taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The dataset: `pool/fs@snapshot`.
    pub dataset: String,
    /// The path in it, starting with `/`.
    pub path: Vec<u8>,
}

impl Name {
    /// Takes `dataset:/path` apart; without `:/` the root directory is meant.
    pub fn parse(text: &OsStr) -> Name {
        let bytes = text.as_bytes();
        let at = bytes.windows(2).position(|w| w == b":/");
        let (dataset, path) = match at.and_then(|at| bytes.split_at_checked(at)) {
            Some((dataset, rest)) => (dataset, rest.get(1..).unwrap_or_default()),
            None => (bytes, &b"/"[..]),
        };
        Name { dataset: String::from_utf8_lossy(dataset).into_owned(), path: path.to_vec() }
    }

    /// The last component of the path; empty for the root directory.
    pub fn file_name(&self) -> &[u8] {
        self.path.rsplit(|b| *b == b'/').find(|c| !c.is_empty()).unwrap_or_default()
    }

    /// The name as the user wrote it.
    pub fn show(&self) -> String {
        format!("{}:{}", self.dataset, String::from_utf8_lossy(&self.path))
    }
}

/// Where a command that looks at one pool finds it.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// Open a pool that is not imported, from devices in /dev or where -p says
    #[arg(short)]
    exported: bool,
    /// With -e, open the pool from the devices in DIR (or the image file DIR)
    #[arg(short = 'p', value_name = "DIR", requires = "exported")]
    paths: Vec<OsString>,
    /// Open the pool from the devices in DIR (or the image file DIR) instead of an imported one
    #[arg(short = 'd', value_name = "DIR")]
    dirs: Vec<OsString>,
}

/// A pool that a command looks at.
#[derive(Clone, Copy)]
pub enum Seen<'a> {
    /// Nothing writes it.
    AtRest(&'a Pool),
    /// It is imported for writing.
    InUse(&'a InUse),
}

impl<'a> Seen<'a> {
    /// The pool.
    pub fn pool(self) -> &'a Pool {
        match self {
            Seen::AtRest(pool) => pool,
            Seen::InUse(in_use) => in_use.pool(),
        }
    }
}

/// Transaction groups that are tried where a pool is so full that it cannot keep what they lead to.
const TRIES: usize = 5;

impl Source {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        !self.exported && self.dirs.is_empty()
    }

    /// Whether it is said where the pool is.
    pub fn is_given(&self) -> bool {
        self.exported || !self.dirs.is_empty()
    }

    /// What `look` sees in the pool called `wanted`. The error is for the user.
    pub fn read<T, E: std::fmt::Display>(
        &self,
        wanted: &str,
        ctx: &mut Context,
        look: &mut dyn FnMut(Seen<'_>, &mut Context) -> Result<T, E>,
    ) -> Result<T, String> {
        let told = |e: E| e.to_string();
        if !self.needs_imported_pool() {
            let named = self.dirs.iter().chain(&self.paths);
            let mut dirs: Vec<PathBuf> = named.map(|d| ctx.path(d)).collect();
            if dirs.is_empty() {
                dirs.push(PathBuf::from("/dev"));
            }
            let pool = open_pool(&dirs, wanted)?;
            return look(Seen::AtRest(&pool), ctx).map_err(told);
        }
        let by_guid = || wanted.parse().ok().and_then(|guid| ctx.pools.by_guid(guid));
        let Some(imported) = ctx.pools.get(wanted).or_else(by_guid) else {
            return Err(format!("cannot open '{wanted}': no such pool"));
        };
        let Some(engine) = imported.engine().cloned() else {
            return look(Seen::AtRest(&imported.pool()), ctx).map_err(told);
        };
        for _ in 1..TRIES {
            let in_use = InUse::of(&engine).map_err(|e| told_why(wanted, &e))?;
            let seen = look(Seen::InUse(&in_use), ctx);
            if !in_use.is_gone() || ctx.cancelled() {
                return seen.map_err(told);
            }
            tracing::debug!("{wanted}: group {} is gone", in_use.pool().uberblock().txg);
        }
        let in_use = InUse::of(&engine).map_err(|e| told_why(wanted, &e))?;
        look(Seen::InUse(&in_use), ctx).map_err(told)
    }
}

fn told_why(pool: &str, e: &EngineError) -> String {
    format!("cannot open '{pool}': {}", reason(e))
}

/// What a name leads to.
#[derive(Clone)]
pub enum Place {
    /// A file or directory of a file system: its object.
    File(Arc<FileSystem>, u64),
    /// A volume.
    Volume(Arc<Volume>),
}

/// Opens names for one command; pools found in directories stay open in between.
pub struct Locator {
    dirs: Vec<PathBuf>,
    opened: HashMap<String, Arc<Imported>>,
    filesystems: HashMap<String, Arc<FileSystem>>,
    /// Datasets that are shown without a part of their intent logs.
    incomplete: HashSet<String>,
    /// The message about such a dataset, if it was not printed yet.
    left_out: Option<String>,
    /// How keys of pools found in directories are loaded, if they are.
    load_keys: Option<LoadKey>,
}

/// Keys of encrypted datasets in a pool that is not imported.
#[derive(Debug, Default, clap::Args)]
pub struct KeyArgs {
    /// With -d, load the key of an encrypted dataset first, from its keylocation
    #[arg(long, requires = "dirs")]
    load_key: bool,
    /// As --load-key, with the key at LOCATION: prompt or file:///PATH
    #[arg(short = 'L', long, value_name = "LOCATION", requires = "dirs")]
    keylocation: Option<String>,
}

impl KeyArgs {
    /// How keys are loaded, if they are.
    fn how(&self) -> Option<LoadKey> {
        let location = self.keylocation.clone();
        (self.load_key || location.is_some()).then_some(LoadKey { verify: false, location })
    }
}

impl Locator {
    /// `dirs` are the directories of `-d`, as the user wrote them; `keys` says how keys are loaded there.
    pub fn new(dirs: &[OsString], keys: &KeyArgs, ctx: &mut Context) -> Locator {
        let dirs: Vec<_> = dirs.iter().map(|d| ctx.path(d)).collect();
        let (opened, filesystems, incomplete, left_out) = Default::default();
        let load_keys = keys.how();
        if load_keys.is_some() && ctx.input.is_none() {
            ctx.input = Input::of_process(ctx.cancel.clone()).ok();
        }
        Locator { dirs, opened, filesystems, incomplete, left_out, load_keys }
    }

    /// What is missing in what was opened last, once for each dataset: the command has not done all that it
    /// was asked for.
    pub fn left_out(&mut self) -> Option<String> {
        self.left_out.take()
    }

    /// Opens what `name` leads to. A dataset whose intent log cannot be replayed is shown as it is without the rest of
    /// that, which is [left out](Locator::left_out). The error is for the user.
    pub fn open(&mut self, name: &Name, follow: bool, ctx: &mut Context) -> Result<Place, String> {
        let mut node = self.dataset(&name.dataset, ctx)?;
        let cannot = |e: &dyn std::fmt::Display| format!("cannot open '{}': {e}", name.show());
        if let Some(engine) = node.imported.engine().filter(|_| node.dataset.is_head()) {
            match engine.replay_log(node.dataset.ds_obj) {
                Ok(()) => {}
                Err(e @ EngineError::Unsupported(_)) => {
                    if self.incomplete.insert(name.dataset.clone()) {
                        let (name, why) = (&name.dataset, reason(&e));
                        let said =
                            format!("'{name}' is shown without the rest of its intent log: {why}");
                        self.left_out = Some(said);
                    }
                }
                Err(e) => return Err(cannot(&reason(&e))),
            }
            // It is as it was found before.
            node = self.dataset(&name.dataset, ctx)?;
        }
        let pool = node.imported.pool();
        let dsl = pool.dsl();
        let volume = dsl.get(&node.dataset, "volsize").map_err(|e| cannot(&e))?.is_some();
        if node.dataset.kind == DatasetKind::Volume || volume {
            if name.path != b"/" {
                return Err(cannot(&"a volume has no files"));
            }
            let os = dsl.open_objset(&node.dataset).map_err(|e| cannot(&e))?;
            return Ok(Place::Volume(Arc::new(Volume::open(os).map_err(|e| cannot(&e))?)));
        }
        let fs = match self.filesystems.get(&name.dataset) {
            Some(fs) => Arc::clone(fs),
            None => {
                let os = dsl.open_objset(&node.dataset).map_err(|e| cannot(&e))?;
                let fs = FileSystem::open(os).map_err(|e| cannot(&e))?;
                self.filesystems.insert(name.dataset.clone(), Arc::clone(&fs));
                fs
            }
        };
        let ino = resolve(&fs, &name.path, follow).map_err(|e| cannot(&e))?;
        Ok(Place::File(fs, ino))
    }

    fn dataset(&mut self, name: &str, ctx: &mut Context) -> Result<Node, String> {
        if self.dirs.is_empty() {
            return open(ctx, name, Kinds::DATASET);
        }
        let end = name.find(['/', '@', '#']).unwrap_or(name.len());
        let (wanted, rest) = name.split_at(end);
        let imported = match self.opened.get(wanted) {
            Some(imported) => Arc::clone(imported),
            None => {
                let imported =
                    Arc::new(Imported::new(Opened::ReadOnly(open_pool(&self.dirs, wanted)?), None));
                self.opened.insert(wanted.into(), Arc::clone(&imported));
                imported
            }
        };
        // A pool may be named by its guid; its datasets know its name only.
        let full = format!("{}{rest}", imported.name());
        match imported.pool().dsl().find(&full) {
            Ok(Some(dataset)) if Kinds::DATASET.meets(Kinds::of(&dataset)) => {
                if let Some(how) = &self.load_keys {
                    let all = std::slice::from_ref(&dataset);
                    if !keys::load_for(&imported, all, how, ctx) {
                        return Err(format!("cannot open '{name}': encryption key not loaded"));
                    }
                }
                Ok(Node { imported, dataset, seen: None })
            }
            Ok(Some(_)) => Err(format!(
                "cannot open '{name}': operation not applicable to datasets of this type"
            )),
            Ok(None) => Err(format!("cannot open '{name}': dataset does not exist")),
            Err(e) => Err(format!("cannot open '{name}': {e}")),
        }
    }
}

/// Opens a pool out of `dirs` (or image files) for reading, by whichever system it was used last: nothing is written
/// to it. `wanted` is its name or guid. What else cannot be looked at does not matter if it is found. The error is for the user.
pub fn open_pool(dirs: &[PathBuf], wanted: &str) -> Result<Arc<Pool>, String> {
    let found = discover::search(dirs);
    let candidate = discover::find(&found.candidates, wanted)
        .map_err(|e| found.complaints().next().unwrap_or(e.to_string()))?;
    let options = ImportOptions {
        readonly: true,
        force: true,
        allow_missing_log: true,
        skip_activity_check: true,
        no_caches: true,
        ..ImportOptions::default()
    };
    Pool::import(candidate, &options).map_err(|e| e.to_string())
}

/// The object that a path leads to; a symbolic link at its end is followed if asked for.
fn resolve(fs: &FileSystem, path: &[u8], follow: bool) -> Result<u64, cenote_zpl::Error> {
    let mut path = path.to_vec();
    for _ in 0..MAX_LINKS {
        let ino = fs.resolve(&path)?;
        if !follow || !fs.attr(ino)?.is_symlink() {
            return Ok(ino);
        }
        let target = fs.readlink(ino)?;
        if target.first() != Some(&b'/') {
            while path.last().is_some_and(|b| *b != b'/') {
                path.pop();
            }
        } else {
            path.clear();
        }
        path.extend_from_slice(&target);
    }
    Err(cenote_zpl::Error::Loop(String::from_utf8_lossy(&path).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_at_the_first_colon_slash() {
        let name = |text: &str| {
            let name = Name::parse(OsStr::new(text));
            (name.dataset, String::from_utf8(name.path).unwrap())
        };
        assert_eq!(name("tank/a@s:/x/y:/z"), ("tank/a@s".into(), "/x/y:/z".into()));
        assert_eq!(name("tank"), ("tank".into(), "/".into()));
        assert_eq!(name("tank:b"), ("tank:b".into(), "/".into()));
        assert_eq!(Name::parse(OsStr::new("t:/a/b//")).file_name(), b"b");
        assert_eq!(Name::parse(OsStr::new("t:/")).file_name(), b"");
    }
}
