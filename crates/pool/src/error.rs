//! Why a pool cannot be imported.
//!
//! [`ImportError`]'s `Display` is what `zpool import` prints to standard error, in OpenZFS's words;
//! [`ImportError::notes`] is what it prints to standard output besides: the features that are not
//! understood, the devices that are missing, what a rewind would bring back.

use crate::features::Unsupported;
use crate::rewind::Rewind;
use crate::version;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The pool as a message names it: `'tank'`, or `'tank' as 'new'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name in the labels.
    pub name: String,
    /// Name for the import, where that is another.
    pub new_name: Option<String>,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}'", self.name)?;
        match &self.new_name {
            Some(new) => write!(f, " as '{new}'"),
            None => Ok(()),
        }
    }
}

/// A top-level vdev that cannot be used, with the devices it lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingVdev {
    /// Id of the top-level vdev.
    pub id: u64,
    /// Its name as `zpool status` shows it: `mirror-1`, or a path.
    pub name: String,
    /// Its guid; 0 if the pool's own config could not be read and no label has it.
    pub guid: u64,
    /// Guid and last known path of each device below it that could not be used.
    pub devices: Vec<(u64, Option<PathBuf>)>,
}

/// Why an image is refused that is shorter than its vdev.
pub(crate) const CUT_OFF: ErrorKind = ErrorKind::UnexpectedEof;

/// Why a pool cannot be imported.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImportError {
    /// No pool of that name or guid was found.
    #[error("cannot import '{0}': no such pool available")]
    NotFound(String),
    /// Several pools have that name.
    #[error("cannot import '{0}': more than one matching pool\nimport by numeric ID instead")]
    Ambiguous(String),
    /// A pool cannot have the new name.
    #[error("cannot import '{name}': {why}")]
    InvalidName {
        /// The name asked for.
        name: String,
        /// The rule that it breaks.
        why: String,
    },
    /// The caller did not ask for a read-only import.
    #[error("cannot import {0}: read-write import is not supported yet; use -o readonly=on")]
    ReadWrite(Target),
    /// The pool uses something that this software cannot write.
    #[error("cannot import {target}: {what} is not supported for writing; use -o readonly=on")]
    NotWritable {
        /// The pool.
        target: Target,
        /// What it uses.
        what: String,
    },
    /// Rewinding to the checkpoint was asked for, and there is none.
    #[error("cannot import {0}: checkpoint does not exist")]
    NoCheckpoint(Target),
    /// The labels say that another system has the pool open.
    #[error("{}", of_other_host(.name, .hostname, *.hostid, &crate::time::ctime(*.timestamp)))]
    OtherHost {
        /// Name in the labels.
        name: String,
        /// Host that last wrote the labels.
        hostname: String,
        /// Its host id.
        hostid: u64,
        /// When the pool was last written: seconds since 1970.
        timestamp: u64,
    },
    /// Another host is writing to the pool right now.
    #[error(
        "cannot import '{name}': pool is imported on {hostname} (hostid: 0x{hostid:x})\n\
         Export the pool on the other system, then run 'zpool import'."
    )]
    Active {
        /// Name in the labels.
        name: String,
        /// Host that holds the pool.
        hostname: String,
        /// Its host id.
        hostid: u64,
    },
    /// The pool has `multihost=on` and this system has no host id.
    #[error(
        "Cannot import '{0}': pool has the multihost property on and the\n\
         system's hostid is not set. Set a unique hostid with the zgenhostid(8) command."
    )]
    NoHostid(String),
    /// A version that is neither understood by OpenZFS nor by this program.
    #[error("cannot import '{name}': pool is formatted using an unsupported ZFS version")]
    Version {
        /// Name in the labels.
        name: String,
        /// Version of the on-disk format.
        version: u64,
    },
    /// A format that OpenZFS understands and this program does not yet.
    #[error("cannot import {target}: {what} is not supported yet")]
    Unsupported {
        /// The pool.
        target: Target,
        /// What: `dRAID`.
        what: String,
    },
    /// Features that are needed for reading are not known.
    #[error("cannot import {target}: unsupported version or feature")]
    Features {
        /// The pool.
        target: Target,
        /// The features.
        features: Vec<Unsupported>,
    },
    /// Top-level vdevs without which the pool cannot be read are missing.
    #[error("cannot import {target}: one or more devices is currently unavailable")]
    MissingDevices {
        /// The pool.
        target: Target,
        /// The vdevs; empty if only the sum of all guids tells that something is missing.
        vdevs: Vec<MissingVdev>,
    },
    /// Another process, which has the pool imported most likely, has devices for itself.
    #[error("cannot import {target}: one or more devices are already in use")]
    InUse {
        /// The pool.
        target: Target,
        /// The devices.
        paths: Vec<PathBuf>,
    },
    /// The pool would do with the devices that were found, but some of them cannot be written to, or not be
    /// opened by this user.
    #[error("cannot import {target}: {}", refusal(.devices))]
    Refused {
        /// The pool.
        target: Target,
        /// The devices, and why.
        devices: Vec<(PathBuf, ErrorKind)>,
    },
    /// The pool would do without devices that do not answer, and they may have what is newer than all others have.
    #[error("cannot import {target}: one or more devices do not answer")]
    Silent {
        /// The pool.
        target: Target,
        /// What does not answer.
        paths: Vec<PathBuf>,
    },
    /// Log devices are missing; the pool can be imported without them.
    #[error("cannot import {target}: one or more devices is currently unavailable")]
    MissingLogs {
        /// The pool.
        target: Target,
        /// The vdevs.
        vdevs: Vec<MissingVdev>,
    },
    /// No uberblock of the transaction group asked for, nor an older one, is there.
    #[error("cannot import {target}: no uberblock of txg {txg} or before")]
    NoTxg {
        /// The pool.
        target: Target,
        /// Transaction group asked for.
        txg: u64,
    },
    /// An object store has another state than the one that was opened, or does not answer. Nothing is damaged.
    #[error("cannot import {target}: {why}")]
    NotTaken {
        /// The pool.
        target: Target,
        /// Which device, and why.
        why: String,
    },
    /// The pool's own metadata cannot be read.
    #[error("cannot import {target}: I/O error")]
    Damaged {
        /// The pool.
        target: Target,
        /// What could not be read: where and why.
        why: String,
        /// The newest earlier state that can be opened, if there is one.
        recovery: Option<Rewind>,
    },
}

/// What is said of a pool that another system had open `when`.
fn of_other_host(name: &str, hostname: &str, hostid: u64, when: &str) -> String {
    format!(
        "cannot import '{name}': pool was previously in use from another system.\n\
         Last accessed by {hostname} (hostid={hostid:x}) at {when}\n\
         The pool can be imported, use 'zpool import -f' to import the pool."
    )
}

impl ImportError {
    /// As it is shown, with times (seconds since 1970) as `time` has them: the user may be in another time zone than this process.
    pub fn text_in(&self, time: &dyn Fn(u64) -> String) -> String {
        match self {
            ImportError::OtherHost { name, hostname, hostid, timestamp } => {
                of_other_host(name, hostname, *hostid, &time(*timestamp))
            }
            e => e.to_string(),
        }
    }

    /// What to print on standard output besides; complete lines. Times are in the time zone of this process.
    pub fn notes(&self) -> Option<String> {
        self.notes_in(&crate::time::ctime)
    }

    /// As [`ImportError::notes`], with times as `time` has them.
    pub fn notes_in(&self, time: &dyn Fn(u64) -> String) -> Option<String> {
        let mut out = String::new();
        match self {
            ImportError::Features { features, .. } => {
                out.push_str(
                    "This pool uses the following feature(s) not supported by this system:\n",
                );
                features.iter().for_each(|f| out.push_str(&f.line()));
            }
            ImportError::Version { version, .. } => {
                let _ = writeln!(
                    out,
                    "The pool has version {version}; versions 1 to {} and {} (feature flags) are known.",
                    version::BEFORE_FEATURES,
                    version::FEATURES
                );
            }
            ImportError::MissingDevices { vdevs, .. } if vdevs.is_empty() => out.push_str(
                "The guids of the pool's vdevs do not add up to the sum in its uberblock: \
                 devices are missing\nof which nothing else is known.\n",
            ),
            ImportError::MissingDevices { vdevs, .. } => {
                out.push_str("The devices below are missing or corrupted:\n");
                vdevs.iter().for_each(|v| write_missing(&mut out, v));
            }
            ImportError::InUse { paths, .. } => {
                out.push_str("The devices below are in use:\n");
                paths.iter().for_each(|p| out.push_str(&format!("\t{}\n", p.display())));
            }
            ImportError::Silent { paths, .. } => {
                out.push_str(
                    "The devices below do not answer, and may have the newest state of the pool, use \
                     '-f' to import\nit without them:\n",
                );
                paths.iter().for_each(|p| out.push_str(&format!("\t{}\n", p.display())));
            }
            ImportError::Refused { devices, .. } => write_refused(&mut out, devices),
            ImportError::MissingLogs { vdevs, .. } => {
                out.push_str(
                    "The devices below are missing or corrupted, use '-m' to import the pool \
                     anyway:\n",
                );
                vdevs.iter().for_each(|v| write_missing(&mut out, v));
                out.push('\n');
            }
            ImportError::Damaged { target, why, recovery } => {
                match recovery {
                    Some(r) => out.push_str(&r.explain(&target.name, time)),
                    None => out.push_str(
                        "\tEnsure all pool devices are present and accessible, then retry the \
                         import.\n\tIf the problem persists, destroy and re-create the pool from \
                         a backup source.\n",
                    ),
                }
                let _ = writeln!(out, "\tCause: {why}");
            }
            _ => return None,
        }
        Some(out)
    }
}

/// Why devices were refused, in OpenZFS's words.
fn refusal(devices: &[(PathBuf, ErrorKind)]) -> &'static str {
    let any = |wanted| devices.iter().any(|(_, kind)| *kind == wanted);
    if any(CUT_OFF) {
        "one or more devices is cut off"
    } else if any(ErrorKind::ReadOnlyFilesystem) {
        "one or more devices is read only"
    } else {
        "permission denied"
    }
}

/// Which devices were refused, and what helps.
fn write_refused(out: &mut String, devices: &[(PathBuf, ErrorKind)]) {
    let mut list = |head: &str, which: &dyn Fn(ErrorKind) -> bool| {
        let mut paths = devices.iter().filter(|(_, kind)| which(*kind)).peekable();
        if paths.peek().is_some() {
            out.push_str(head);
        }
        paths.for_each(|(path, _)| out.push_str(&format!("\t{}\n", path.display())));
    };
    let readonly = ErrorKind::ReadOnlyFilesystem;
    list(
        "The images below are cut off, use '-o readonly=on' to import the pool for reading\n\
         what is there:\n",
        &|kind| kind == CUT_OFF,
    );
    list(
        "The devices below are read-only, use '-o readonly=on' to import the pool for reading:\n",
        &|kind| kind == readonly,
    );
    list("The devices below may not be opened by this user:\n", &|kind| {
        kind != CUT_OFF && kind != readonly
    });
}

fn write_missing(out: &mut String, v: &MissingVdev) {
    let _ = match v.guid {
        // The labels of other vdevs only tell that there is one.
        0 => writeln!(out, "\ttop-level vdev {}, of which no device was found", v.id),
        guid => writeln!(out, "\t{} (top-level vdev {}, guid {guid})", v.name, v.id),
    };
    for (guid, path) in v.devices.iter().filter(|(guid, _)| *guid != 0) {
        let path = path.as_ref().map_or_else(|| "unknown".into(), |p| p.display().to_string());
        let _ = writeln!(out, "\t  guid {guid}, last path {path}");
    }
}
