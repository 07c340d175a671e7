//! What a command prints in the README is what it prints.
//!
//! Every `console` block of README.md is run, in order, in one place: a directory that holds the
//! device files of the sample pool `rz1` but the second. Its name is as long as `/media/usb`, which
//! stands for it in the README, so that columns agree. `CENOTE_UPDATE_README=1` writes what the
//! commands print into the README instead of comparing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHOWN: &str = "/media/usb";

struct Place {
    dir: tempfile::TempDir,
    bin: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("c").rand_bytes(4).tempdir_in("/tmp").unwrap();
        assert_eq!(dir.path().to_str().unwrap().len(), SHOWN.len());
        for file in [0, 2].map(|i| cenote_testpools::pool("rz1").files[i].clone()) {
            copy_device(&file, &dir.path().join(file.file_name().unwrap()));
        }
        let bin = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_cenote"), bin.path().join("cenote")).unwrap();
        Place { dir, bin }
    }

    /// What `line` prints on standard output, with the place's name as the README shows it.
    fn run(&self, line: &str) -> String {
        let here = self.dir.path().to_str().unwrap();
        let path = format!("{}:{}", self.bin.path().display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh")
            .args(["-c", &line.replace(SHOWN, here)])
            .env("PATH", path)
            .env("CENOTE_SOCKET", self.bin.path().join("socket"))
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {complaint}");
        String::from_utf8_lossy(&output.stdout).replace(here, SHOWN)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new(self.bin.path().join("cenote"))
            .args(["daemon", "stop"])
            .env("CENOTE_SOCKET", self.bin.path().join("socket"))
            .output();
    }
}

fn copy_device(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--sparse=always").args([from, to]).status().unwrap();
    assert!(status.success());
}

#[test]
fn readme_shows_what_commands_print() {
    let place = Place::new();
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let before = fs::read_to_string(&file).unwrap();
    let (mut after, mut in_console, mut commands) = (String::new(), false, 0);
    for line in before.lines() {
        match line {
            "```console" => in_console = true,
            "```" => in_console = false,
            _ => {}
        }
        // Output is written anew after its command.
        if in_console && line != "```console" && !line.starts_with("$ ") {
            continue;
        }
        after.push_str(line);
        after.push('\n');
        if let Some(command) = line.strip_prefix("$ ").filter(|_| in_console) {
            commands += 1;
            after.push_str(&place.run(command));
        }
    }
    assert!(commands > 5, "only {commands} commands in the README");
    cenote_testpools::judge(&place.dir.path().join("new"), "tank");
    if std::env::var_os("CENOTE_UPDATE_README").is_some() {
        fs::write(&file, &after).unwrap();
    } else {
        assert_eq!(before, after, "CENOTE_UPDATE_README=1 writes what the commands print");
    }
}
