//! Man pages and shell completions, made from the definitions of the commands and from the manual: `cenote generate
//! DIR`, which `make install` runs.
//!
//! ```text
//! DIR/man/cenote.1, cenote-ls.1, …              cenote's own commands
//! DIR/man/cenote-zpool.8, cenote-zfs-list.8, …  zpool, zfs, zdb, zstream, zinject, mount.zfs and their sub-commands
//! DIR/man/cenote-zfsprops.7, …                  properties
//! DIR/bash, DIR/zsh, DIR/fish                   completions of cenote, zpool, zfs, zdb, zstream and zinject
//! ```

use crate::complete::shells;
use crate::dispatch::CLASSIC;
use crate::manual::roff;
use clap::Command;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Arguments of `cenote generate`.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// Directory that they are written to; it is made
    dir: PathBuf,
}

/// Examples of cenote's own commands.
#[rustfmt::skip] // A table: one row per line.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("ls", "cenote ls -l tank/home:/anna", "The files of a directory."),
    ("cat", "cenote cat tank/home@monday:/anna/letter", "A file as it was on Monday."),
    ("cp", "cenote cp -r tank/home@monday:/anna .", "A tree out of a snapshot."),
    ("rewrite", "cenote rewrite -r /tank/home/old", "Lay files out afresh."),
    ("tunables", "cenote tunables", "All numbers that may be changed."),
    ("txgs", "cenote txgs tank", "What the last transaction groups did."),
    ("map", "cenote map --svg map.svg tank", "The map of free space as a picture."),
    ("age", "cenote age --html age.html --size 64G", "How a workload spoils a pool of 64 GiB."),
    ("tunables-set", "cenote tunables set zfs_arc_max=2G", "The cache may take 2 GiB."),
    ("tunables-reset", "cenote tunables reset zfs_arc_max", "As at the start."),
    ("tunables-mount", "cenote tunables mount /run/cenote/kernel", "Tunables and figures as files, for programs that read them in /sys and /proc."),
    ("tunables-unmount", "cenote tunables unmount /run/cenote/kernel", "Take the directory away."),
    ("daemon-status", "cenote daemon status", "Whether the daemon runs, and what it has."),
    ("daemon-stop", "cenote daemon stop", "Export all pools and end the daemon."),
    ("daemon", "cenote daemon status", "Whether the daemon runs, and what it has."),
];

/// Runs `cenote generate` for the program that `cenote` defines; returns the exit code.
pub fn run(args: &GenerateArgs, cenote: Command) -> i32 {
    match generate(&args.dir, cenote) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("cenote generate: {}: {e}", args.dir.display());
            1
        }
    }
}

fn generate(dir: &Path, cenote: Command) -> io::Result<()> {
    let man = dir.join("man");
    fs::create_dir_all(&man)?;
    for (name, text) in roff::all() {
        fs::write(man.join(name), text)?;
    }
    clap_mangen::generate_to(without_tools(cenote), &man)?;
    for entry in fs::read_dir(&man)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|section| section == "1") {
            let mut page = OpenOptions::new().append(true).open(&path)?;
            let command = name.strip_prefix("cenote-").unwrap_or_default();
            page.write_all(roff::surroundings("cenote", command).as_bytes())?;
            let examples = EXAMPLES.iter().filter(|(of, ..)| *of == command);
            let examples: Vec<_> = examples.map(|(_, line, about)| (*line, *about)).collect();
            if !examples.is_empty() {
                page.write_all(roff::examples(&examples).as_bytes())?;
            }
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let to = dir.join(shell);
        fs::create_dir_all(&to)?;
        for name in shells::NAMES {
            let (file, text) = shells::script(shell, name);
            fs::write(to.join(file), text)?;
        }
    }
    Ok(())
}

/// Without the classic tools, whose arguments are their own affair.
fn without_tools(cenote: Command) -> Command {
    let about = cenote.get_about().cloned().unwrap_or_default();
    let mut own = Command::new("cenote").about(about).version(env!("CARGO_PKG_VERSION"));
    own = own.after_help("cenote zpool, cenote zfs, …: see cenote-zpool(8), cenote-zfs(8), cenote-zdb(8), cenote-zstream(8), cenote-zinject(8).");
    for command in cenote.get_subcommands() {
        if !CLASSIC.contains(&command.get_name()) && !command.is_hide_set() {
            own = own.subcommand(command.clone());
        }
    }
    own
}
