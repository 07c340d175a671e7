//! The worst thing that is wrong with a pool (`zpool_get_status`, `check_status`). What is said about it is in
//! `texts`.
//!
//! A pool has one [`Reason`], found from `Facts` in OpenZFS's order of gravity: a resilver and a foreign host
//! first, then a root that cannot be opened, lost data, leaves by their state (faulted, missing, with a bad label,
//! with errors, offline, removed), and last what an upgrade would change. Some reasons count only for an imported
//! pool, since their facts are not known before an import.
//!
//! Reasons that OpenZFS does not have: a device that was deleted while in use, a full file system below a device, a
//! leaf that lacks writes, an image that was cut off, has holes or can only be read, and a pool that another process of this system has.

use super::{ConfigTree, VdevLine};
use crate::features::{PoolFeatures, Unsupported};
use cenote_vdev::{Aux, VdevState};

/// The worst thing that is wrong (`zpool_status_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A device is missing; there are replicas.
    MissingDevice,
    /// A device is missing without which the pool does not work.
    MissingDeviceFatal,
    /// A device's label is bad; there are replicas.
    BadLabel,
    /// A device's label is bad and the pool does not work without it.
    BadLabelFatal,
    /// The vdevs found are not all that the pool has.
    BadGuidSum,
    /// The pool's metadata cannot be read.
    CorruptPool,
    /// Files are damaged.
    CorruptData,
    /// A device has had errors.
    FailingDevice {
        /// Right bytes were written in the place of wrong ones, or that was tried.
        mended: bool,
    },
    /// The version of the pool is newer than this software.
    VersionNewer,
    /// The version of the pool is one from before feature flags.
    VersionOlder,
    /// The pool was last used by another system.
    OtherHost,
    /// The pool is in use by another system.
    Active {
        /// Its name.
        hostname: String,
        /// Its host id.
        hostid: u64,
    },
    /// The pool is imported by another process of this system.
    InUse,
    /// The pool has `multihost=on`, this system has no host id.
    NoHostid,
    /// Features needed for reading are not known.
    FeaturesForRead(Vec<Unsupported>),
    /// Features needed for writing are not known.
    FeaturesForWrite(Vec<Unsupported>),
    /// Something that this program does not support yet.
    NotSupported(String),
    /// A device was faulted; there are replicas.
    Faulted,
    /// A device was faulted and the pool does not work without it.
    FaultedFatal,
    /// Some features are not enabled.
    FeaturesDisabled,
    /// Features are enabled that the property `compatibility` does not ask for.
    FeaturesUnwanted,
    /// The property `compatibility` names a file that is not there.
    CompatibilityError,
    /// A resilver is under way, or a sequential rebuild.
    Resilvering,
    /// No scrub has looked at what a sequential rebuild copied.
    Unproven,
    /// A device is offline.
    Offline,
    /// A device was pulled out.
    Removed,
    /// A device lacks what was written while it was out of use.
    Behind,
    /// What a device is on has no space left for what is written to it.
    NoSpace,
    /// A device in use was deleted, or something else put in its place.
    Gone,
    /// A device that is only read is an image without its end.
    CutOff,
    /// A device is an image of which some was not read from the disk.
    Holes,
    /// A device is an image that can only be read.
    OnlyRead,
    /// A known fault of some OpenZFS release has left its mark.
    Errata(u64),
    /// Nothing.
    Ok,
}

/// What the reason is found from.
pub(crate) struct Facts<'a> {
    pub importing: bool,
    pub root: VdevState,
    pub tree: &'a ConfigTree,
    pub resilvering: bool,
    /// No scrub has looked at what a sequential rebuild copied.
    pub unproven: bool,
    pub other_host: bool,
    /// Something was written in the place of wrong bytes.
    pub mended: bool,
    pub error_count: u64,
    pub errata: u64,
    pub version: u64,
    pub features: &'a PoolFeatures,
    pub compatibility: Option<&'a str>,
}

fn in_state(state: VdevState) -> impl Fn(&VdevLine) -> bool {
    move |l| l.vdev_state == Some(state)
}

fn unopened(l: &VdevLine) -> bool {
    matches!(l.vdev_state, Some(VdevState::CantOpen(_)))
}

fn has_errors(l: &VdevLine) -> bool {
    l.vdev_state == Some(VdevState::Degraded) || l.errors != (0, 0, 0)
}

impl Facts<'_> {
    /// The worst thing that is wrong, in OpenZFS's order of gravity.
    pub fn reason(&self) -> Reason {
        let any = |f: &dyn Fn(&VdevLine) -> bool| self.tree.any_leaf(f);
        let missing = in_state(VdevState::CantOpen(Aux::OpenFailed));
        let faulted = in_state(VdevState::Faulted);
        if self.resilvering {
            return Reason::Resilvering;
        }
        if self.unproven {
            return Reason::Unproven;
        }
        if self.other_host {
            return Reason::OtherHost;
        }
        if let VdevState::CantOpen(aux) = self.root {
            match aux {
                Aux::VersionNewer => return Reason::VersionNewer,
                Aux::BadGuidSum => return Reason::BadGuidSum,
                _ if any(&faulted) => return Reason::FaultedFatal,
                _ if any(&missing) => return Reason::MissingDeviceFatal,
                _ if any(&unopened) => return Reason::BadLabelFatal,
                _ => return Reason::CorruptPool,
            }
        }
        if !self.importing && self.error_count > 0 {
            return Reason::CorruptData;
        }
        if any(&faulted) {
            Reason::Faulted
        } else if any(&missing) {
            Reason::MissingDevice
        } else if any(&unopened) {
            Reason::BadLabel
        } else if !self.importing && any(&|l| l.gone) {
            Reason::Gone
        } else if any(&|l| l.cut_off > 0) {
            Reason::CutOff
        } else if any(&|l| l.unread > 0) {
            Reason::Holes
        } else if self.importing && any(&|l| l.only_read) {
            Reason::OnlyRead
        } else if !self.importing && any(&|l| l.no_space) {
            Reason::NoSpace
        } else if !self.importing && any(&has_errors) {
            Reason::FailingDevice { mended: self.mended }
        } else if any(&in_state(VdevState::Offline)) {
            Reason::Offline
        } else if any(&in_state(VdevState::Removed)) {
            Reason::Removed
        } else if !self.importing && any(&|l| l.behind) {
            Reason::Behind
        } else if self.errata != 0 {
            Reason::Errata(self.errata)
        } else {
            super::outdated(self.version, self.features, self.compatibility)
        }
    }
}

impl Reason {
    /// The id of OpenZFS's article about it.
    pub fn msgid(&self) -> Option<&'static str> {
        Some(match self {
            Reason::MissingDevice => "ZFS-8000-2Q",
            Reason::MissingDeviceFatal => "ZFS-8000-3C",
            Reason::BadLabel => "ZFS-8000-4J",
            Reason::BadLabelFatal => "ZFS-8000-5E",
            Reason::BadGuidSum => "ZFS-8000-6X",
            Reason::CorruptPool => "ZFS-8000-72",
            Reason::CorruptData => "ZFS-8000-8A",
            Reason::FailingDevice { .. } => "ZFS-8000-9P",
            Reason::VersionNewer => "ZFS-8000-A5",
            Reason::OtherHost | Reason::Active { .. } | Reason::NoHostid => "ZFS-8000-EY",
            Reason::Errata(_) => "ZFS-8000-ER",
            _ => return None,
        })
    }

    /// Whether `zpool status -x` passes over the pool.
    pub fn is_healthy(&self) -> bool {
        matches!(
            self,
            Reason::Ok
                | Reason::VersionOlder
                | Reason::FeaturesDisabled
                | Reason::FeaturesUnwanted
                | Reason::CompatibilityError
        )
    }
}
