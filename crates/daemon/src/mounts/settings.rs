//! What properties and mount options say about a mount (`zfs_parse_mount_options`, `zpl_parse_param`).
//!
//! [`Settings`] begins with the properties of the dataset. The options of a mount are applied in order, and the
//! last one counts. Three kinds come out of it: settings of the file system (`readonly`, `atime`, `xattr`),
//! settings of this side of the mount (`sync`, `snapdir`), and [`Kernels`], which the kernel goes by itself
//! (`setuid`, `devices`, `exec`, flags).
//!
//! A changed property takes effect in a mount that stands if the kernel can be told, or if what it was told is
//! enough (`Kernels::suffice_for`).
//!
//! Invariants: a snapshot, an encrypted file system, and any one of a pool that is imported read-only, is mounted
//! read-only. Options
//! that are not understood are refused by name; some that the kernel never asks about are accepted without effect.

use super::How;
use cenote_admin::Opened;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_fuse::{SnapDir, SyncPolicy};
use cenote_zpl::Atime;
use rustix::mount::MountFlags;

/// Mount options that are understood, each by [`Settings::apply`]: the options of OpenZFS's mount helper
/// (`option_map`) and the temporary properties of `zfs mount -o`.
const OPTIONS: [&str; 41] = [
    "acl",
    "async",
    "caseinsensitive",
    "casemixed",
    "casesensitive",
    "defaults",
    "diratime",
    "dirsync",
    "iversion",
    "lazytime",
    "mand",
    "nbmand",
    "noacl",
    "nodiratime",
    "noiversion",
    "nolazytime",
    "nomand",
    "nonbmand",
    "nostrictatime",
    "posixacl",
    "quiet",
    "strictatime",
    "sync",
    "ro",
    "rw",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "exec",
    "noexec",
    "suid",
    "setuid",
    "nosuid",
    "nosetuid",
    "dev",
    "devices",
    "nodev",
    "nodevices",
    "xattr",
    "noxattr",
];

/// Whether a mount option is understood.
pub fn is_option(option: &str) -> bool {
    OPTIONS.contains(&option)
}

/// Properties and options that matter for a mount.
#[derive(Clone)]
pub(super) struct Settings {
    /// What the file system itself goes by.
    pub(super) files: cenote_zpl::Settings,
    pub(super) snapdir: SnapDir,
    pub(super) sync: SyncPolicy,
    pub(super) record_size: u64,
    pub(super) setuid: bool,
    pub(super) devices: bool,
    pub(super) exec: bool,
    pub(super) overlay: bool,
    /// Flags of mount(2) that the kernel goes by itself.
    pub(super) flags: MountFlags,
    /// As `mount` lists them.
    pub(super) options: String,
}

impl Settings {
    /// As they are for a file system that is not mounted, or whose mount is said to have no options:
    /// those that it has would be taken for values of properties.
    pub(super) fn new(opened: &Opened, d: &Dataset, how: &How) -> Result<Settings, String> {
        let pool = opened.pool();
        let value = |property: &str| match pool.dsl().get(d, property) {
            Ok(v) => Ok(v.map(|v| v.exact).unwrap_or_default()),
            Err(e) => Err(e.to_string()),
        };
        let files = cenote_admin::contents::settings(&pool, d).map_err(|e| e.to_string())?;
        let mut settings = Settings {
            snapdir: match value("snapdir")?.as_str() {
                "visible" => SnapDir::Visible,
                "disabled" => SnapDir::Disabled,
                _ => SnapDir::Hidden,
            },
            sync: match value("sync")?.as_str() {
                "always" => SyncPolicy::Always,
                "disabled" => SyncPolicy::Disabled,
                _ => SyncPolicy::Standard,
            },
            record_size: files.record_size,
            setuid: value("setuid")? != "off",
            devices: value("devices")? != "off",
            exec: value("exec")? != "off",
            overlay: value("overlay")? != "off",
            flags: MountFlags::empty(),
            options: String::new(),
            files,
        };
        let mut listed = String::new();
        for option in &how.options {
            settings.apply(option, opened, &mut listed)?;
        }
        if opened.engine().is_none() || d.kind == DatasetKind::Snapshot {
            settings.files.read_only = true;
        }
        let first = if settings.files.read_only { "ro" } else { "rw" };
        settings.options = format!("{first}{listed}");
        Ok(settings)
    }

    /// Takes a mount option, which goes to `listed` if `mount` shows it (`zpl_parse_param`).
    fn apply(&mut self, option: &str, opened: &Opened, listed: &mut String) -> Result<(), String> {
        match option {
            // The kernel gives the last ones up, or never asks a FUSE server about them.
            "defaults" | "quiet" | "acl" | "posixacl" | "noacl" | "iversion" | "noiversion"
            | "mand" | "nomand" | "nbmand" | "nonbmand" | "async" | "nostrictatime"
            // The property says it, from the file system's creation on.
            | "caseinsensitive" | "casemixed" | "casesensitive" => {
                return Ok(());
            }
            "sync" if self.sync == SyncPolicy::Standard => {
                self.sync = SyncPolicy::Always;
                self.flags |= MountFlags::SYNCHRONOUS;
            }
            "sync" => self.flags |= MountFlags::SYNCHRONOUS,
            "dirsync" => self.flags |= MountFlags::DIRSYNC,
            "lazytime" => self.flags |= MountFlags::LAZYTIME,
            "nolazytime" => self.flags -= MountFlags::LAZYTIME,
            "nodiratime" => {
                self.files.directory_atime = false;
                self.flags |= MountFlags::NODIRATIME;
            }
            "diratime" => {
                self.files.directory_atime = true;
                self.flags -= MountFlags::NODIRATIME;
            }
            "ro" => {
                self.files.read_only = true;
                return Ok(());
            }
            "rw" if opened.engine().is_none() => return Err("pool is read-only".into()),
            "rw" => {
                self.files.read_only = false;
                return Ok(());
            }
            "atime" if self.files.atime == Atime::Off => self.files.atime = Atime::On,
            "atime" => {}
            "strictatime" => self.files.atime = Atime::On,
            "noatime" => self.files.atime = Atime::Off,
            "relatime" => self.files.atime = Atime::Relative,
            "norelatime" if self.files.atime == Atime::Relative => self.files.atime = Atime::On,
            "norelatime" => {}
            "exec" | "noexec" => self.exec = option == "exec",
            "suid" | "setuid" => self.setuid = true,
            "nosuid" | "nosetuid" => self.setuid = false,
            "dev" | "devices" => self.devices = true,
            "nodev" | "nodevices" => self.devices = false,
            "xattr" | "noxattr" => self.files.visibility.xattr = option == "xattr",
            _ => return Err(format!("unsupported option: {option}")),
        }
        listed.push(',');
        listed.push_str(match option {
            "setuid" => "suid",
            "nosetuid" => "nosuid",
            "devices" => "dev",
            "nodevices" => "nodev",
            other => other,
        });
        Ok(())
    }

    /// What the kernel keeps to itself.
    pub(super) fn kernels(&self) -> Kernels {
        let (read_only, atime) = (self.files.read_only, self.files.atime);
        let (setuid, devices, exec) = (self.setuid, self.devices, self.exec);
        let acls = self.files.visibility.posix_acl || !cenote_fuse::can_nest();
        Kernels { setuid, devices, exec, read_only, atime, acls, flags: self.flags }
    }
}

/// What the kernel of a mount goes by itself, or shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kernels {
    pub(super) setuid: bool,
    pub(super) devices: bool,
    pub(super) exec: bool,
    pub(super) read_only: bool,
    pub(super) atime: Atime,
    pub(super) flags: MountFlags,
    /// Whether the kernel checks permissions by ACLs too. That it does it is told when the file system
    /// is mounted, and for good; where they are merely not stored it does no harm.
    pub(super) acls: bool,
}

impl Kernels {
    /// Whether a mount that was told this does for `new` as well, though the kernel shows something
    /// else.
    pub(super) fn suffice_for(&self, new: &Kernels) -> bool {
        (self.setuid, self.devices, self.exec) == (new.setuid, new.devices, new.exec)
            && (new.read_only || !self.read_only)
            && (self.acls || !new.acls)
    }
}
