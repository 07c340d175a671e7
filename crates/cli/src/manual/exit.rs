//! What the manual says about exit codes.
//!
//! All commands end with 0, 1 or 2 in one meaning ([`COMMON`]). A row of [`OWN`] adds a code of one command, or says what a
//! common one means there. Its number is the constant that the command ends with.

use crate::zfs::{change_key, destroy, ids_to_path, mount_helper};
use crate::zpool::{labelclear, set};
use cenote_command::outcome::{INTERRUPTED, WRONG};
use cenote_zdb::{blocks, labels};
use cenote_zstream::blocks as streams;
use rustix::io::Errno;

const COMMON: [(i32, &str); 3] = [
    (0, "All was done."),
    (1, "Something was not; a message says what and why."),
    (WRONG, "The command line is wrong."),
];

/// A code of one command.
struct Code {
    /// The command: `zpool set`, or the name of a tool without sub-commands.
    of: &'static str,
    code: i32,
    about: &'static str,
}

const fn code(of: &'static str, code: i32, about: &'static str) -> Code {
    Code { of, code, about }
}

const LINE_OF_ZSTREAM: &str =
    "The command line is wrong, or something was not done; a message says what and why.";
const INTERRUPT: &str = "An interrupt (SIGINT) ended it in order.";

/// The codes of single commands, beside the codes of all. A test looks at the pages of these commands.
#[rustfmt::skip] // A table: one row per line.
const OWN: &[Code] = &[
    code("zpool set", set::NOT_A_POOL, "There is no such pool, or no such vdev in it."),
    code("zpool labelclear", labelclear::NOT_CLEARED, "No label could be cleared."),
    code("zfs change-key", change_key::NOT_CHANGED, "The key was not changed; a message says why."),
    code("zfs redact", Errno::NOENT.raw_os_error(), "The command line is wrong, or a snapshot is not there."),
    code("zfs redact", Errno::SRCH.raw_os_error(), "The bookmark was begun by other snapshots."),
    code("zfs redact", Errno::INTR.raw_os_error(), "It was interrupted; the same command goes on."),
    code("zfs redact", Errno::TOOBIG.raw_os_error(), "There are more redaction snapshots than a bookmark can name."),
    code("zfs redact", Errno::EXIST.raw_os_error(), "There is a bookmark of the name, and it is complete."),
    code("zfs redact", Errno::XDEV.raw_os_error(), "The redaction snapshots are in another pool."),
    code("zfs redact", Errno::INVAL.raw_os_error(), "A redaction snapshot does not come after the snapshot."),
    code("zfs redact", Errno::NAMETOOLONG.raw_os_error(), "The name of the bookmark would be too long."),
    code("zfs redact", Errno::NOTSUP.raw_os_error(), "The feature redaction_bookmarks is not enabled."),
    code("zfs redact", Errno::ALREADY.raw_os_error(), "One of the snapshots was received redacted."),
    code("zfs destroy", destroy::NOT_OF_BOOKMARKS, "An option was given that says nothing of bookmarks."),
    code("zdb", 1, "The pool, the dataset or the device could not be opened. With -l: some labels are missing or damaged."),
    code("zdb", WRONG, "The command line is wrong."),
    code("zdb", labels::NO_LABEL, "With -l: the device has no label."),
    code("zdb", blocks::LEAKED, "With -b or -c: space leaked, or the pool has no blocks."),
    code("zdb", blocks::DAMAGED, "With -b or -c: blocks could not be read, or could not be claimed."),
    code("zstream dump", 1, LINE_OF_ZSTREAM),
    code("zstream token", 1, LINE_OF_ZSTREAM),
    code("zstream redup", 1, LINE_OF_ZSTREAM),
    code("zstream decompress", 1, LINE_OF_ZSTREAM),
    code("zstream decompress", streams::NO_FUNCTION, "There is no such compression."),
    code("zstream recompress", 1, LINE_OF_ZSTREAM),
    code("zstream recompress", streams::NO_FUNCTION, "There is no such compression."),
    code("zstream recompress", streams::UNKNOWN, "The stream names a compression that is not known."),
    code("zstream recompress", streams::NOT_UNPACKED, "A block of the stream could not be unpacked."),
    code("mount.zfs", 0, "The file system is mounted."),
    code("mount.zfs", mount_helper::WRONG, "The command line is wrong, or there is no such file system."),
    code("mount.zfs", mount_helper::SYSTEM, "The system refuses."),
    code("mount.zfs", mount_helper::MOUNTED, "It is mounted already."),
    code("zfs_ids_to_path", ids_to_path::WRONG, "The command line is wrong, or what is in memory could not be written."),
    code("zfs_ids_to_path", ids_to_path::WRONG_OBJSET, "What stands for the object set is not a number."),
    code("zfs_ids_to_path", ids_to_path::WRONG_OBJECT, "What stands for the object is not a number."),
    code("zfs_ids_to_path", ids_to_path::NO_POOL, "There is no such pool."),
    code("cenote map", INTERRUPTED, INTERRUPT),
    code("cenote age", INTERRUPTED, INTERRUPT),
];

/// The codes of a command, in ascending order. `command` is empty for the page of a whole tool, which has those of its
/// commands too, with their names.
pub fn of_command(tool: &str, command: &str) -> Vec<(i32, String)> {
    let whole = format!("{tool} {command}");
    let own = || OWN.iter().filter(|row| row.of == whole.trim_end());
    // A wrong command line of zstream ends with 1.
    let common = COMMON.iter().filter(|(code, _)| tool != "zstream" || *code != WRONG);
    let replaced = |code: i32| own().any(|row| row.code == code);
    let mut rows: Vec<(i32, String)> = common
        .filter(|(code, _)| !replaced(*code))
        .map(|(code, about)| (*code, (*about).to_string()))
        .collect();
    rows.extend(own().map(|row| (row.code, row.about.to_string())));
    if command.is_empty() {
        let prefix = format!("{tool} ");
        let of_others = OWN.iter().filter(|row| row.of.starts_with(&prefix) && row.code > 1);
        rows.extend(of_others.map(|row| (row.code, format!("{}: {}", row.of, row.about))));
    }
    rows.sort_by_key(|(code, _)| *code);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manual::{page, roff};

    #[test]
    fn each_code_stands_in_the_page_of_its_command() {
        let pages = roff::all();
        for row in OWN.iter().filter(|row| !row.of.starts_with("cenote ")) {
            let name = format!("cenote-{}.8", row.of.replace(' ', "-"));
            let (_, text) = pages.iter().find(|(file, _)| *file == name).expect(row.of);
            let (_, codes) = text.split_once(".SH EXIT STATUS\n").expect(row.of);
            let codes = codes.split(".SH ").next().expect("the rest of the page");
            let shown = row.about.replace('-', "\\-");
            assert!(codes.contains(&format!(".B {}\n{shown}\n", row.code)), "{name}: {codes}");
            let (tool, command) = row.of.split_once(' ').unwrap_or((row.of, ""));
            assert!(page(tool, command).is_some(), "{}", row.of);
        }
    }

    #[test]
    fn what_scripts_ask_for_is_told() {
        let codes = |tool: &str, command: &str| {
            of_command(tool, command).into_iter().map(|(code, _)| code).collect::<Vec<_>>()
        };
        assert_eq!(codes("zdb", ""), [0, 1, 2, 2, 2, 3]);
        assert_eq!(codes("zpool", "set"), [0, 1, 2, 22]);
        assert_eq!(codes("zpool", "labelclear"), [0, 1, 2, 255]);
        assert_eq!(codes("zfs", "change-key"), [0, 1, 2, 255]);
        assert_eq!(codes("zpool", "list"), [0, 1, 2]);
        assert_eq!(codes("zstream", "recompress"), [0, 1, 2, 3, 4]);
        assert_eq!(codes("zstream", "dump"), [0, 1]);
        assert_eq!(codes("mount.zfs", ""), [0, 1, 2, 128]);
        assert_eq!(codes("cenote", "map"), [0, 1, 2, 130]);
    }
}
