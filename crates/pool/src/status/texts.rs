//! What `zpool status` and `zpool import` say about a pool's [`Reason`], in OpenZFS's words (`print_status_reason`,
//! `show_import`).
//!
//! Each reason has up to three texts: what is wrong (`status:`), what to do (`action:`), and the id of OpenZFS's
//! article (`see:`). `zpool status` and `zpool import` differ in words and in which reasons they know, so each has
//! a table of its own; the action of an import follows from the state of the root as well. Known faults of releases
//! (`zpool_errata_t`) have texts by their number.
//!
//! OpenZFS's texts are kept with their line breaks and mistakes, since scripts compare them. Reasons that OpenZFS
//! does not have have texts of their own.

use super::reason::Reason;
use crate::features::Unsupported;
use cenote_vdev::VdevState;

/// The texts about a reason. Lines after the first begin with a tab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    /// After `status:`.
    pub status: Option<String>,
    /// After `action:`.
    pub action: Option<String>,
    /// After `see:`, behind the address of OpenZFS's messages: `ZFS-8000-2Q`.
    pub msgid: Option<&'static str>,
}

/// What follows `status:` and `action:` in `zpool status`.
type Advice = (&'static str, &'static str);

const ACTION_RESTORE: &str = "Ensure all pool devices are present and accessible, then retry the \
    import.\n\tIf the problem persists, destroy and re-create the pool from a backup source.";
const MISSING_DEVICE: Advice = (
    "One or more devices could not be opened.  Sufficient replicas exist for\n\
     \tthe pool to continue functioning in a degraded state.",
    "Attach the missing device and online it using 'zpool online'.",
);
const MISSING_DEVICE_FATAL: Advice = (
    "One or more devices could not be opened.  There are insufficient\n\
     \treplicas for the pool to continue functioning.",
    "Attach the missing device and online it using 'zpool online'.",
);
const BAD_LABEL: Advice = (
    "One or more devices could not be used because the label is missing or\n\
     \tinvalid.  Sufficient replicas exist for the pool to continue\n\
     \tfunctioning in a degraded state.",
    "Replace the device using 'zpool replace'.",
);
const BAD_LABEL_FATAL: Advice = (
    "One or more devices could not be used because the label is missing \n\
     \tor invalid.  There are insufficient replicas for the pool to continue\n\
     \tfunctioning.",
    ACTION_RESTORE,
);
const UNPROVEN: Advice = (
    "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is recommended.",
    "Use 'zpool scrub' to verify all data checksums.",
);
const FAILING_DEVICE_ADVICE: &str = "Determine if the device needs to be replaced, and clear the \
    errors\n\tusing 'zpool clear' or replace the device with 'zpool replace'.";
const FAILING_DEVICE: Advice = (
    "One or more devices has experienced an unrecoverable error.\n\
     \tApplications are unaffected.",
    FAILING_DEVICE_ADVICE,
);
const MENDED_DEVICE: Advice = (
    "One or more devices has experienced an unrecoverable error.  An\n\
     \tattempt was made to correct the error.  Applications are unaffected.",
    FAILING_DEVICE_ADVICE,
);
const OFFLINE: Advice = (
    "One or more devices has been taken offline by the administrator.\n\
     \tSufficient replicas exist for the pool to continue functioning in a\n\
     \tdegraded state.",
    "Online the device using 'zpool online' or replace the device with\n\
     \t'zpool replace'.",
);
const REMOVED: Advice = (
    "One or more devices have been removed.\n\
     \tSufficient replicas exist for the pool to continue functioning in a\n\
     \tdegraded state.",
    "Online the device using zpool online' or replace the device with\n\
     \t'zpool replace'.",
);
const BEHIND: Advice = (
    "One or more devices lack data that was written while they were not in\n\
     \tuse.  It is read from the other devices of their vdevs.",
    "Resilver the devices using 'zpool resilver'; a pool that is imported\n\
     \tread-only has to be imported for writing first.",
);
const GONE: Advice = (
    "One or more devices was deleted, or something else was put in its place.\n\
     \tWhat is written to it is lost once the pool is exported.",
    "Put the device back and run 'zpool reopen'; or copy what is needed to\n\
     \tanother pool before this one is exported.",
);
const NO_SPACE: Advice = (
    "One or more devices are on a file system that has no space left.  What\n\
     \tcould not be written to them is missing there.",
    "Free space on that file system, then clear the errors using 'zpool\n\
     \tclear'.",
);
const CUT_OFF: Advice = (
    "One or more devices is an image that was cut off.  What lies behind its\n\
     \tend cannot be read from it.",
    "Copy what can be read.  If the device is there still, make a complete\n\
     \timage of it.",
);
const HOLES: Advice = (
    "One or more devices is an image that was not read from its disk as a\n\
     \twhole.  What its map does not call finished cannot be read from it.",
    "Copy what can be read.  If the device is there still, have ddrescue go\n\
     \ton, and export and import the pool.",
);
const RESILVERING: Advice = (
    "One or more devices is currently being resilvered.  The pool will\n\
     \tcontinue to function, possibly in a degraded state.",
    "Wait for the resilver to complete.",
);
const CORRUPT_DATA: Advice = (
    "One or more devices has experienced an error resulting in data\n\
     \tcorruption.  Applications may be affected.",
    "Restore the file in question if possible.  Otherwise restore the\n\
     \tentire pool from backup.",
);
const CORRUPT_POOL: Advice =
    ("The pool metadata is incomplete or corrupted and the pool cannot be opened.", ACTION_RESTORE);
const VERSION_NEWER: Advice = (
    "The pool has been upgraded to a newer, incompatible on-disk version.\n\
     \tThe pool cannot be accessed on this system.",
    "Access the pool from a system running more recent software, or\n\
     \trestore the pool from backup.",
);
const VERSION_OLDER: Advice = (
    "The pool is formatted using a legacy on-disk format.  The pool can\n\
     \tstill be used, but some features are unavailable.",
    "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\
     \tpool will no longer be accessible on software that does not support\n\
     \tfeature flags.",
);
const FEATURES_DISABLED: Advice = (
    "Some supported and requested features are not enabled on the pool.\n\
     \tThe pool can still be used, but some features are unavailable.",
    "Enable all features using 'zpool upgrade'. Once this is done,\n\
     \tthe pool may no longer be accessible by software that does not support\n\
     \tthe features. See zpool-features(7) for details.",
);
const COMPATIBILITY_ERROR: Advice = (
    "This pool has a compatibility list specified, but it could not be\n\
     \tread/parsed at this time. The pool can still be used, but this\n\
     \tshould be investigated.",
    "Check the value of the 'compatibility' property against the\n\
     \tappropriate file in /etc/zfs/compatibility.d or \
     /usr/share/zfs/compatibility.d.",
);
const FEATURES_UNWANTED: Advice = (
    "One or more features are enabled on the pool despite not being\n\
     \trequested by the 'compatibility' property.",
    "Consider setting 'compatibility' to an appropriate value, or\n\
     \tadding needed features to the relevant file in\n\
     \t/etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
);
const FAULTED: Advice = (
    "One or more devices are faulted in response to persistent errors.\n\
     \tSufficient replicas exist for the pool to continue functioning in a\n\
     \tdegraded state.",
    "Replace the faulted device, or use 'zpool clear' to mark the device\n\
     \trepaired.",
);
const FAULTED_FATAL: Advice = (
    "One or more devices are faulted in response to persistent errors.  \
     There are insufficient replicas for the pool to\n\tcontinue functioning.",
    "Destroy and re-create the pool from a backup source.  Manually marking the \
     device\n\trepaired using 'zpool clear' may allow some data to be recovered.",
);

fn listed(head: &str, features: &[Unsupported]) -> String {
    let lines: String = features.iter().map(Unsupported::line).collect();
    format!("{head}\n{}", lines.trim_end_matches('\n'))
}
impl Reason {
    /// What `zpool status` says.
    pub fn status_texts(&self) -> Texts {
        let (status, action) = match self.status_pair() {
            Some((s, a)) => (Some(s), Some(a)),
            None => (None, None),
        };
        let action = action.filter(|a| !a.is_empty());
        Texts { status, action, msgid: self.msgid() }
    }

    fn status_pair(&self) -> Option<(String, String)> {
        let (status, action) = match self {
            Reason::MissingDevice => MISSING_DEVICE,
            Reason::MissingDeviceFatal | Reason::BadGuidSum => MISSING_DEVICE_FATAL,
            Reason::BadLabel => BAD_LABEL,
            Reason::BadLabelFatal => BAD_LABEL_FATAL,
            Reason::FailingDevice { mended: false } => FAILING_DEVICE,
            Reason::FailingDevice { mended: true } => MENDED_DEVICE,
            Reason::Offline => OFFLINE,
            Reason::Removed => REMOVED,
            Reason::Behind => BEHIND,
            Reason::Gone => GONE,
            Reason::NoSpace => NO_SPACE,
            Reason::CutOff => CUT_OFF,
            Reason::Holes => HOLES,
            Reason::Resilvering => RESILVERING,
            Reason::Unproven => UNPROVEN,
            Reason::CorruptData => CORRUPT_DATA,
            Reason::CorruptPool => CORRUPT_POOL,
            Reason::VersionNewer => VERSION_NEWER,
            Reason::VersionOlder => VERSION_OLDER,
            Reason::FeaturesDisabled => FEATURES_DISABLED,
            Reason::CompatibilityError => COMPATIBILITY_ERROR,
            Reason::FeaturesUnwanted => FEATURES_UNWANTED,
            Reason::Faulted => FAULTED,
            Reason::FaultedFatal => FAULTED_FATAL,
            Reason::Errata(n) => return Some(errata_texts(*n)),
            // These are seen only when importing.
            Reason::OtherHost
            | Reason::Active { .. }
            | Reason::InUse
            | Reason::NoHostid
            | Reason::FeaturesForRead(_)
            | Reason::FeaturesForWrite(_)
            | Reason::NotSupported(_)
            | Reason::OnlyRead
            | Reason::Ok => return None,
        };
        Some((status.into(), action.into()))
    }

    /// What `zpool import` says under `status:`.
    pub(crate) fn import_status(&self) -> Option<String> {
        let text = match self {
            Reason::MissingDevice | Reason::MissingDeviceFatal | Reason::BadGuidSum => {
                "One or more devices are missing from the system."
            }
            Reason::BadLabel | Reason::BadLabelFatal => {
                "One or more devices contains corrupted data."
            }
            Reason::CorruptData => "The pool data is corrupted.",
            Reason::Offline => "One or more devices are offlined.",
            Reason::CorruptPool => "The pool metadata is incomplete or corrupted.",
            Reason::VersionNewer => "The pool is formatted using an incompatible version.",
            Reason::VersionOlder => "The pool is formatted using a legacy on-disk version.",
            Reason::FeaturesDisabled => {
                "Some supported features are not enabled on the pool.\n\
                 \t(Note that they may be intentionally disabled if the\n\
                 \t'compatibility' property is set.)"
            }
            Reason::CompatibilityError => {
                "Error reading or parsing the file(s) indicated by the 'compatibility'\n\tproperty."
            }
            Reason::FeaturesUnwanted => {
                "One or more features are enabled on the pool despite not being\n\
                 \trequested by the 'compatibility' property."
            }
            Reason::FeaturesForRead(list) => {
                let head = "The pool uses the following feature(s) not supported on this system:";
                return Some(listed(head, list));
            }
            Reason::FeaturesForWrite(list) => {
                let head = "The pool can only be accessed in read-only mode on this system. It\n\
                    \tcannot be accessed in read-write mode because it uses the following\n\
                    \tfeature(s) not supported on this system:";
                return Some(listed(head, list));
            }
            Reason::NotSupported(what) => {
                return Some(format!("The pool uses something not supported yet: {what}."));
            }
            Reason::Active { .. } => "The pool is currently imported by another system.",
            Reason::InUse => "The pool is currently imported by another process of this system.",
            Reason::NoHostid => {
                "The pool has the multihost property on.  It cannot\n\
                 \tbe safely imported when the system hostid is not set."
            }
            Reason::OtherHost => "The pool was last accessed by another system.",
            Reason::Faulted | Reason::FaultedFatal => "One or more devices are faulted.",
            Reason::Resilvering => "One or more devices were being resilvered.",
            Reason::Errata(n) => return Some(format!("Errata #{n} detected.")),
            Reason::Behind => "One or more devices lack data.",
            Reason::CutOff => "One or more devices is an image that was cut off.",
            Reason::Holes => {
                "One or more devices is an image that was not read from its disk as a whole."
            }
            Reason::OnlyRead => "One or more devices is an image that can only be read.",
            // This is seen only when the pool is imported.
            Reason::Unproven => return None,
            Reason::FailingDevice { .. }
            | Reason::Gone
            | Reason::NoSpace
            | Reason::Removed
            | Reason::Ok => {
                return None;
            }
        };
        Some(text.into())
    }

    /// What `zpool import` says under `action:`, by the state of the pool.
    pub(crate) fn import_action(&self, root: VdevState) -> String {
        let text = match (root, self) {
            (VdevState::Healthy, Reason::FeaturesDisabled | Reason::VersionOlder) => {
                "The pool can be imported using its name or numeric identifier, though\n\
                 \tsome features will not be available without an explicit 'zpool upgrade'."
            }
            (VdevState::Healthy, Reason::CompatibilityError) => {
                "The pool can be imported using its name or numeric\n\
                 \tidentifier, though the file(s) indicated by its 'compatibility'\n\
                 \tproperty cannot be parsed at this time."
            }
            (VdevState::Healthy, Reason::OtherHost) => {
                "The pool can be imported using its name or numeric identifier and\n\
                 \tthe '-f' flag."
            }
            (VdevState::Healthy, Reason::Errata(n)) => return errata_import_action(*n),
            (
                VdevState::Healthy | VdevState::Degraded,
                Reason::CutOff | Reason::Holes | Reason::OnlyRead,
            ) => {
                "The pool can be imported with '-o readonly=on', for what is there.\n\
                 \tOtherwise it can be imported only without these images."
            }
            (VdevState::Healthy, _) => {
                "The pool can be imported using its name or numeric identifier."
            }
            (VdevState::Degraded, _) => {
                "The pool can be imported despite missing or damaged devices.  The\n\
                 \tfault tolerance of the pool may be compromised if imported."
            }
            (_, Reason::VersionNewer) => {
                "The pool cannot be imported.  Access the pool on a system running newer\n\
                 \tsoftware, or recreate the pool from backup."
            }
            (_, Reason::FeaturesForRead(_) | Reason::NotSupported(_)) => {
                "The pool cannot be imported. Access the pool on a system that supports\n\
                 \tthe required feature(s), or recreate the pool from backup."
            }
            (_, Reason::FeaturesForWrite(_)) => {
                "The pool cannot be imported in read-write mode. Import the pool with\n\
                 \t'-o readonly=on', access the pool on a system that supports the\n\
                 \trequired feature(s), or recreate the pool from backup."
            }
            (_, Reason::MissingDevice | Reason::MissingDeviceFatal | Reason::BadGuidSum) => {
                "The pool cannot be imported. Attach the missing\n\tdevices and try again."
            }
            (_, Reason::Active { hostname, hostid }) => {
                return format!(
                    "The pool must be exported from {hostname} (hostid={hostid:x})\n\
                     \tbefore it can be safely imported."
                );
            }
            (_, Reason::InUse) => {
                "The pool must be exported by that process before it can be imported."
            }
            (_, Reason::NoHostid) => "Set a unique system hostid with the zgenhostid(8) command.",
            (_, Reason::CorruptPool) => {
                "The pool cannot be imported due to missing or damaged devices.  Ensure\n\
                 \tall devices are present and not in use by another subsystem."
            }
            _ => "The pool cannot be imported due to damaged devices or data.",
        };
        text.into()
    }
}

/// Status and advice on a known fault (`zpool_errata_t`).
fn errata_texts(n: u64) -> (String, String) {
    let head = format!("Errata #{n} detected.");
    match n {
        1 => (head, "To correct the issue run 'zpool scrub'.".into()),
        3 => (
            format!(
                "{head}\n\tExisting encrypted datasets contain an on-disk incompatibility\n\
                 \t which needs to be corrected."
            ),
            "To correct the issue backup existing encrypted datasets to new\n\
             \tencrypted datasets and destroy the old ones. 'zfs mount -o ro' can\n\
             \tbe used to temporarily mount existing encrypted datasets readonly."
                .into(),
        ),
        4 => (
            format!(
                "{head}\n\tExisting encrypted snapshots and bookmarks contain an on-disk\n\
                 \tincompatibility. This may cause on-disk corruption if they are used\n\
                 \twith 'zfs recv'."
            ),
            "To correct the issue, enable the bookmark_v2 feature. No additional\n\
             \taction is needed if there are no encrypted snapshots or bookmarks.\n\
             \tIf preserving the encrypted snapshots and bookmarks is required, use\n\
             \ta non-raw send to backup and restore them. Alternately, they may be\n\
             \tremoved to resolve the incompatibility."
                .into(),
        ),
        _ => (head, String::new()),
    }
}

fn errata_import_action(n: u64) -> String {
    match n {
        1 => "The pool can be imported using its name or numeric identifier,\n\
              \thowever there is a compatibility issue which should be corrected\n\
              \tby running 'zpool scrub'"
            .into(),
        2 => "The pool cannot be imported with this version of ZFS due to\n\
              \tan active asynchronous destroy. Revert to an earlier version\n\
              \tand allow the destroy to complete before updating."
            .into(),
        3 => "Existing encrypted datasets contain an on-disk incompatibility, which\n\
              \tneeds to be corrected. Backup these datasets to new encrypted datasets\n\
              \tand destroy the old ones."
            .into(),
        4 => "Existing encrypted snapshots and bookmarks contain an on-disk\n\
              \tincompatibility. This may cause on-disk corruption if they are used\n\
              \twith 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\n\
              \tNo additional action is needed if there are no encrypted snapshots or\n\
              \tbookmarks. If preserving the encrypted snapshots and bookmarks is\n\
              \trequired, use a non-raw send to backup and restore them. Alternately,\n\
              \tthey may be removed to resolve the incompatibility."
            .into(),
        _ => "The pool can be imported using its name or numeric identifier.".into(),
    }
}
