//! Man pages and shell completions, made from the definitions of the commands: `cenote generate DIR`, which
//! `make install` runs.
//!
//! ```text
//! DIR/man/cenote.1, cenote-ls.1, …        cenote's own commands
//! DIR/man/cenote-zpool.8, cenote-zfs.8    usage and properties of zpool and zfs
//! DIR/bash, DIR/zsh, DIR/fish             completions of cenote, zpool and zfs
//! ```
//!
//! The pages of `zpool` and `zfs` go by names of their own, so that they may stand beside OpenZFS's.

use crate::commands::Tool;
use crate::{zfs, zpool};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of `cenote generate`.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// Directory that they are written to; it is made
    dir: PathBuf,
}

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
    let tools = [zpool::tool(), zfs::tool()];
    for tool in tools {
        let name = format!("cenote-{}", tool.name);
        fs::write(man.join(format!("{name}.8")), page(tool))?;
    }
    let own = cenote.clone();
    clap_mangen::generate_to(without_tools(own), &man)?;
    let mut all = cenote;
    for tool in tools {
        all = all.mut_subcommand(tool.name, |command| with_commands(command, tool));
    }
    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let to = dir.join(name);
        fs::create_dir_all(&to)?;
        clap_complete::generate_to(shell, &mut all.clone(), "cenote", &to)?;
        for tool in tools {
            let mut command = with_commands(Command::new(tool.name), tool);
            clap_complete::generate_to(shell, &mut command, tool.name, &to)?;
        }
    }
    Ok(())
}

/// Without `zpool`, `zfs` and `zdb`, whose arguments are their own affair.
fn without_tools(cenote: Command) -> Command {
    let about = cenote.get_about().cloned().unwrap_or_default();
    let classic = ["zpool", "zfs", "zdb"];
    let mut own = Command::new("cenote").about(about).version(env!("CARGO_PKG_VERSION"));
    own = own.after_help("cenote zpool, cenote zfs: see cenote-zpool(8) and cenote-zfs(8).");
    for command in cenote.get_subcommands() {
        if !classic.contains(&command.get_name()) && !command.is_hide_set() {
            own = own.subcommand(command.clone());
        }
    }
    own
}

/// The commands of a tool as those of `command`.
fn with_commands(command: Command, tool: &'static Tool) -> Command {
    let own = tool.working().map(|c| Command::new(c.name).about(first_line(c.usage)));
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(tool.name).about(about).subcommands(own)
}

fn first_line(usage: &'static str) -> &'static str {
    usage.trim_start().lines().next().unwrap_or_default()
}

/// The man page of a tool.
fn page(tool: &Tool) -> String {
    let name = tool.name;
    let what = match name {
        "zpool" => "pools",
        _ => "datasets",
    };
    let mut text = format!(
        ".TH CENOTE-{} 8 \"\" \"cenote {}\"\n.SH NAME\ncenote-{name} \\- {what} of OpenZFS in user space\n\
         .SH SYNOPSIS\n.nf\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    for command in tool.working() {
        for line in command.usage.lines() {
            let again = line.strip_prefix("\t    ").is_some();
            let line = line.trim();
            match again {
                true => text += &format!("    {}\n", escaped(line)),
                false => text += &format!("\\fBcenote {name}\\fR {}\n", escaped(line)),
            }
        }
    }
    text += &format!(
        ".fi\n.SH DESCRIPTION\nThe commands of OpenZFS's {name}(8), with its options, output and exit codes, for \
         pools that cenote has imported.\nUnder the name {name} the program is this command.\n"
    );
    let properties = match name {
        "zpool" => zpool::properties::help(),
        _ => zfs::properties::help(),
    };
    text += &format!(".SH PROPERTIES\n.nf\n{}\n.fi\n", escaped(properties.trim_matches('\n')));
    text += ".SH SEE ALSO\n.BR cenote (1)\n";
    text
}

/// Text as roff takes it literally.
fn escaped(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('-', "\\-");
    let guarded = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_string(),
    };
    escaped.lines().map(guarded).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_every_command_that_works() {
        for tool in [zpool::tool(), zfs::tool()] {
            let text = page(tool);
            for command in tool.working() {
                let start = format!("\\fBcenote {}\\fR {}", tool.name, command.name);
                assert!(text.contains(&start), "{start}");
            }
            assert!(text.lines().all(|l| !l.starts_with('\'')));
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("a -b\\\n.c"), "a \\-b\\\\\n\\&.c");
    }
}
