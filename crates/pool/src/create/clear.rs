//! Taking the labels off a device (`zpool labelclear`).

use super::check::{User, user};
use super::layout::words;
use super::{Imported, OpenDevices};
use cenote_vdev::{clear_labels, label_owner};
use std::path::Path;

/// Clears all labels of a device that no imported pool has; that of an exported or potentially
/// active pool only if `force` says so. Durable when it returns.
///
/// # Errors
/// What `zpool labelclear` prints to standard error, without the last newline.
pub fn clear_label(
    name: &Path,
    force: bool,
    imported: &[Imported],
    devices: &dyn OpenDevices,
) -> Result<(), String> {
    let failed = |path: &Path, e: &std::io::Error| {
        format!("failed to open {}: {}", path.display(), words(e))
    };
    let found = devices.find(name).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound if !name.is_absolute() => format!(
            "failed to find device {}, try specifying absolute path instead",
            name.display()
        ),
        _ => failed(name, &e),
    });
    let (path, _) = found?;
    let shown = path.display();
    let device = devices.open(&path).map_err(|e| failed(&path, &e))?;
    let owner = label_owner(device.as_ref());
    let owner = owner.map_err(|_| format!("failed to read label from {shown}"))?;
    drop(device);
    let overridable = |state: &str, pool: &str| match force {
        true => Ok(()),
        false => Err(format!(
            "use '-f' to override the following error:\n\
             {shown} is a member of {state} pool \"{pool}\""
        )),
    };
    let member = |state: &str, pool: &str| {
        let hint = if force { ". Offline the disk first to clear its label." } else { "" };
        Err(format!("{shown} is a member ({state}) of pool \"{pool}\"{hint}"))
    };
    match owner.as_ref().and_then(|owner| user(owner, imported)) {
        None => {}
        Some(User::Exported(pool)) => overridable("exported", pool)?,
        Some(User::Potential(pool)) => overridable("potentially active", pool)?,
        Some(User::Active(pool)) => member("ACTIVE", pool)?,
        Some(User::Spare(pool)) => member("SPARE", pool)?,
        Some(User::Cache(pool)) => member("L2CACHE", pool)?,
    }
    let device = devices.open_rw(&path).map_err(|e| failed(&path, &e))?;
    match clear_labels(device.as_ref()) {
        Ok(1..) => Ok(()),
        _ => Err(format!("failed to clear label for {shown}")),
    }
}
