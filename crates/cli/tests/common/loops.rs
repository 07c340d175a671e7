//! Loop devices.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, which is detached at the end.
pub struct Loop {
    pub path: PathBuf,
}

impl Loop {
    /// One over `file`; `None`: this system, or this user, has none, which fails in CI.
    pub fn over(file: &Path) -> Option<Loop> {
        Loop::over_part(file, 0, 0)
    }

    /// One over `len` bytes (0: all that there are) at byte `offset` of `file`.
    pub fn over_part(file: &Path, offset: u64, len: u64) -> Option<Loop> {
        let (offset, len) = (offset.to_string(), len.to_string());
        Loop::set_up(&["-o", &offset, "--sizelimit", &len], file)
    }

    /// One over `file` that cannot be written to.
    pub fn read_only(file: &Path) -> Option<Loop> {
        Loop::set_up(&["-r"], file)
    }

    fn set_up(how: &[&str], file: &Path) -> Option<Loop> {
        let mut command = Command::new("losetup");
        command.args(how).args(["-f", "--show"]).arg(file);
        let Ok(output) = command.output() else {
            super::skip("no losetup");
            return None;
        };
        let path = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if !output.status.success() || path.is_empty() {
            super::skip("no loop devices");
            return None;
        }
        Some(Loop { path: path.into() })
    }

    /// Has the device see that its file has another size.
    pub fn resize(&self) {
        let done = Command::new("losetup").arg("-c").arg(&self.path).status().unwrap();
        assert!(done.success());
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}
