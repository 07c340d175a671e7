//! The sub-commands of `zfs`: users, streams, permissions, holds, files. Those for datasets, properties and mounts
//! are in the module `zfs`, which also has the options that many commands share.
//!
//! A page is as it is there: name, a line, text, a pattern of operands, options, examples.
//!
//! Tests compare the options with what the commands accept.

use super::zfs::{EXACT, SCRIPTED};
use super::{Opt, Page, flag, takes};

const USER_FIELDS: &str = "type|name|used|quota|objused|objquota,...";
const USER_OPTIONS: &[Opt] = &[
    flag("-n", "Show numbers of users and not their names"),
    SCRIPTED,
    EXACT,
    takes("-o", USER_FIELDS, "The columns to show"),
    takes("-s", "type|name|used|quota|objused|objquota", "Sort by a column, the smallest first"),
    takes("-S", "type|name|used|quota|objused|objquota", "Sort by a column, the greatest first"),
    takes("-t", "all|posixuser|smbuser|posixgroup|smbgroup,...", "The kinds to show"),
    flag("-i", "Turn identities of SMB into names of POSIX"),
];
const WHO: &[Opt] = &[
    flag("-l", "On the dataset itself"),
    flag("-d", "On the datasets below"),
    flag("-u", "The names are of users"),
    flag("-g", "The names are of groups"),
    flag("-e", "For everyone"),
    flag("-c", "For who makes a dataset, on that dataset"),
    flag("-s", "For a set of permissions, whose name begins with @"),
    flag("-h", "Show permissions that there are"),
];

/// The pages.
#[rustfmt::skip] // Tables: one row per line.
pub const PAGES: &[Page] = &[
    Page {
        command: "userspace",
        about: "show what users take",
        text: "Prints the space and the number of files of each user in a file system or snapshot, with their quotas.",
        operands: "<filesystem>|<snapshot>|<mounted>",
        options: USER_OPTIONS,
        examples: &[("zfs userspace -S used tank/home", "Who takes most.")],
    },
    Page {
        command: "groupspace",
        about: "show what groups take",
        text: "The same as zfs userspace for groups.",
        operands: "<filesystem>|<snapshot>|<mounted>",
        options: USER_OPTIONS,
        examples: &[("zfs groupspace tank/home", "What groups take.")],
    },
    Page {
        command: "projectspace",
        about: "show what projects take",
        text: "The same as zfs userspace for projects: see zfs project.",
        operands: "<filesystem>|<snapshot>|<mounted>",
        options: USER_OPTIONS,
        examples: &[("zfs projectspace tank/home", "What projects take.")],
    },
    Page {
        command: "project",
        about: "put files into projects",
        text: "Without -p, -s, -C or -c it lists the project of files and directories. New files in a directory with the flag to \
               inherit are of its project.",
        operands: "<path> ...",
        options: &[
            flag("-0", "With -c: end names with a zero byte and not with a line"),
            flag("-C", "Take the project away: set it to 0 and take away the flag"),
            flag("-c", "Check: print the files whose project or flag differs"),
            flag("-d", "The directory itself, not what is in it"),
            flag("-k", "With -C: keep the project, take away the flag only"),
            takes("-p", "<number>", "The project; without it, with -s or -c, that of the first directory"),
            flag("-r", "What is below as well"),
            flag("-s", "Set the flag to inherit"),
        ],
        examples: &[("zfs project -s -r -p 7 /tank/home/site", "Put a tree into project 7.")],
    },
    Page {
        command: "send",
        about: "write a stream of a snapshot",
        text: "Writes to standard output what makes the snapshot elsewhere, by zfs receive: all of it, or with -i or -I what has \
               changed since another one. A bookmark can be the one to begin at.",
        operands: "<snapshot>|<dataset>",
        options: &[
            flag("-D, --dedup", "Accepted; streams are not deduplicated any more"),
            takes("-I", "<snapshot>", "All snapshots since this one"),
            flag("-L, --large-block", "Blocks above 128 KiB as they are"),
            flag("-P, --parsable", "Say what is sent, for programs"),
            flag("-S, --saved", "Send what an interrupted receive -s into the dataset has kept"),
            flag("-R, --replicate", "The dataset with all descendants, snapshots, clones and properties"),
            flag("-V, --proctitle", "Show in the title of the process how far it is"),
            takes("-X, --exclude", "<dataset>,...", "With -R: leave out these and what is below"),
            flag("-b, --backup", "The properties that were received, not those that are set"),
            flag("-c, --compressed", "Blocks compressed as they are"),
            takes("-d, --redact", "<bookmark>", "Without the data that this bookmark of zfs redact names"),
            flag("-e, --embed", "Small blocks that lie in their pointers as they are"),
            flag("-h, --holds", "With holds"),
            takes("-i", "<snapshot>|<bookmark>", "What has changed since this one"),
            flag("-n, --dryrun", "Send nothing; with -v or -P, estimate how much it would be"),
            flag("-p, --props", "With properties"),
            flag("-s, --skip-missing", "With -R: leave out datasets without the snapshot"),
            takes("-t, --resume", "<word>", "Go on where a receive was interrupted: its receive_resume_token"),
            flag("-v, --verbose", "Say what is sent, how much, and each second how far it is"),
            flag("-w, --raw", "Blocks as they are on disk; encrypted ones stay encrypted"),
        ],
        examples: &[
            ("zfs send -R tank/home@monday | zfs receive backup/home", "Copy everything up to Monday."),
            ("zfs send -i @monday tank/home@tuesday >changes", "What has changed in a day."),
        ],
    },
    Page {
        command: "redact",
        about: "make a bookmark of data to be left out",
        text: "Makes a bookmark of a snapshot that names the blocks which each of the redaction snapshots has changed. These are \
               later snapshots of the same dataset, or snapshots of its clones. What zfs send --redact sends by the bookmark has \
               no data in those blocks: so make a clone, remove or overwrite in it what is secret, take a snapshot of the \
               clone, and redact by that. What is received is redacted: it has holes there, and is mounted with zfs mount -f \
               only. It takes incremental streams that begin at the bookmark, those of the redaction snapshots, and those that are \
               redacted by no others. The same command goes on where it was interrupted. It ends with the number of the error. \
               The command is for root and the daemon's user.",
        operands: "<snapshot> <word> <snapshot> ...",
        options: &[],
        examples: &[
            ("zfs redact tank/data@full public tank/clean@x", "Name what the clone tank/clean has changed."),
            ("zfs send --redact public tank/data@full >public.zsend", "Send the rest."),
        ],
    },
    Page {
        command: "receive",
        about: "make snapshots from a stream",
        text: "Reads a stream of zfs send from standard input. A full stream makes a dataset; one of changes goes to a dataset \
               that has the snapshot where it begins. Below an encrypted dataset what is received is encrypted with its key; \
               a stream with properties only with -x encryption. With -o encryption=, keyformat= and keylocation= it gets a \
               key of its own. A raw stream (zfs send -w) keeps the key that it has: zfs load-key loads it. With -c nothing \
               is made: blocks of data that cannot be read, of a snapshot that is there, are written anew from a full or \
               incremental stream of that very snapshot (of -c or -w, best: they have blocks as they are on disk), and so are \
               those that other snapshots, clones and the file system share with it. Metadata is not healed so. What stays \
               damaged is an error, and zpool status -v lists it; run zpool scrub afterwards.",
        operands: "<dataset>|<snapshot>",
        options: &[
            takes("-o", "<property>=<value>", "Set a property, whatever the stream says"),
            takes("-x", "<property>", "Take no value of this property from the stream"),
            flag("-d", "Name it below the operand as it was named, without the pool"),
            flag("-e", "Name it below the operand by the last part of its name"),
            flag("-h", "Without the holds in the stream"),
            flag("-M", "Unmount file systems that are received into although they are in use"),
            flag("-n", "Receive nothing; with -v, say what would be received"),
            flag("-u", "Mount nothing"),
            flag("-v", "Say what is received"),
            flag("-F", "Go back to the newest snapshot first; of a stream of -R, destroy what the sender does not have"),
            flag("-s", "Keep what arrived if it is interrupted: zfs send -t goes on"),
            flag("-A", "Throw away what an interrupted receive has kept"),
            flag("-c", "Heal damaged data of a snapshot that is there; besides, only -n and -v are taken"),
        ],
        examples: &[
            ("zfs send -c backup/home@monday | zfs receive -c tank/home@monday", "Heal what the pool has lost of a snapshot."),
            ("zfs receive -su backup/home <stream", "Receive without mounting, so that it can be resumed."),
            ("zfs send -w tank/home@monday | zfs receive backup/home", "Copy an encrypted dataset without its key."),
        ],
    },
    Page {
        command: "allow",
        about: "show or grant permissions",
        text: "With a dataset only, shows which users and groups may do what there. Else grants permissions: names of commands, \
               of properties, or of sets of permissions that begin with @.",
        operands: "<dataset>|<word>,... <permission>,... <dataset>",
        options: WHO,
        examples: &[("zfs allow -u anna snapshot,mount tank/home", "Anna may take snapshots.")],
    },
    Page {
        command: "unallow",
        about: "take permissions away",
        text: "Takes away what zfs allow granted: the permissions that are named, or all.",
        operands: "<word>,... <permission>,... <dataset>",
        options: &[
            flag("-l", "On the dataset itself"),
            flag("-d", "On the datasets below"),
            flag("-u", "The names are of users"),
            flag("-g", "The names are of groups"),
            flag("-e", "For everyone"),
            flag("-c", "For who makes a dataset, on that dataset"),
            flag("-s", "For a set of permissions, whose name begins with @"),
            flag("-r", "From all descendants as well"),
            flag("-h", "Show permissions that there are"),
        ],
        examples: &[("zfs unallow -u anna tank/home", "Anna may do nothing of her own any more.")],
    },
    Page {
        command: "hold",
        about: "keep snapshots from being destroyed",
        text: "Puts a mark on snapshots. As long as a snapshot has one it cannot be destroyed.",
        operands: "<word> <snapshot> ...",
        options: &[flag("-r", "The snapshots of this name of all descendants as well")],
        examples: &[("zfs hold backup tank/home@monday", "Keep Monday.")],
    },
    Page {
        command: "holds",
        about: "list the marks on snapshots",
        text: "Prints the marks that zfs hold put on snapshots, with their times.",
        operands: "<snapshot> ...",
        options: &[
            flag("-r", "The snapshots of this name of all descendants as well"),
            SCRIPTED,
            flag("-p", "Show times in seconds since 1970"),
        ],
        examples: &[("zfs holds tank/home@monday", "Who keeps Monday?")],
    },
    Page {
        command: "release",
        about: "take marks from snapshots",
        text: "Takes a mark away that zfs hold put on snapshots.",
        operands: "<word> <snapshot> ...",
        options: &[flag("-r", "The snapshots of this name of all descendants as well")],
        examples: &[("zfs release backup tank/home@monday", "Monday is not needed any more.")],
    },
    Page {
        command: "diff",
        about: "show what has changed",
        text: "Prints the files that differ between a snapshot and a later one, or the file system now. The first letter says \
               how: + new, - gone, M changed, R renamed.",
        operands: "<snapshot> <snapshot>|<filesystem>",
        options: &[
            flag("-F", "Show the kind of each file"),
            flag("-H", "For scripts: a single tab between columns"),
            flag("-t", "Show when each was changed"),
            flag("-h", "Show names as they are, without escapes"),
        ],
        examples: &[("zfs diff -F tank/home@monday tank/home", "What has changed since Monday?")],
    },
    Page {
        command: "rewrite",
        about: "write files anew",
        text: "Writes files of a mounted file system again as they are, so that properties that were set later, or devices \
               that were added, hold for them.",
        operands: "<path> ...",
        options: &[
            flag("-C", "Leave out blocks that are shared with clones of blocks"),
            flag("-P", "Keep the times of birth of blocks: a send of changes leaves them out"),
            flag("-S", "Leave out blocks that are in a snapshot"),
            takes("-l", "<size>", "So many bytes"),
            takes("-o", "<size>", "From this offset on"),
            flag("-r", "What is below directories as well"),
            flag("-v", "Name the files"),
            flag("-x", "Stay in one file system"),
        ],
        examples: &[("zfs rewrite -r /tank/home/old", "Compress old files as new ones.")],
    },
    Page {
        command: "load-key",
        about: "load keys of encrypted datasets",
        text: "Loads the key of an encryption root, so that it and what has its key below it can be mounted. The key is \
               where the property keylocation says: prompt asks for it on the terminal, without showing what is typed, or \
               reads it from standard input; file:///PATH reads a file, and https://ADDRESS and http://ADDRESS fetch it, in half a minute at most. A raw key cannot be \
               typed.",
        operands: "<filesystem>|<volume>",
        options: &[
            flag("-a", "All encryption roots of all pools"),
            takes("-L", "prompt|file:///...|https://...|http://...", "Where the key is, in place of keylocation"),
            flag("-n", "Say whether the key is right, and load nothing"),
            flag("-r", "All encryption roots at and below the dataset"),
        ],
        examples: &[("zfs load-key -r tank/home", "Load the keys of tank/home and of what is below.")],
    },
    Page {
        command: "change-key",
        about: "change the key of an encrypted dataset",
        text: "Gives an encryption root another key, or makes an encrypted dataset an encryption root with a key of its own. \
               The key of all that is below and has the same key changes with it; what is written stays as it is. With -i \
               the dataset has the key of its parent from now on. Both keys have to be loaded.",
        operands: "<filesystem>|<volume>",
        options: &[
            flag("-i", "Take the key of the parent"),
            flag("-l", "Load the present key first"),
            takes("-o", "keyformat|keylocation|pbkdf2iters=<value>", "What the new key is"),
        ],
        examples: &[("zfs change-key tank/home", "Give tank/home another passphrase.")],
    },
    Page {
        command: "unload-key",
        about: "unload keys of encrypted datasets",
        text: "Unloads the key of an encryption root and wipes it. What it opens must not be mounted.",
        operands: "<filesystem>|<volume>",
        options: &[
            flag("-a", "All encryption roots of all pools"),
            flag("-r", "All encryption roots at and below the dataset"),
        ],
        examples: &[("zfs unload-key tank/home", "Close tank/home.")],
    },
    Page {
        command: "wait",
        about: "wait until something in a file system is over",
        text: "Waits until what was deleted while it was open is gone from a file system.",
        operands: "<filesystem>",
        options: &[takes("-t", "deleteq,...", "What to wait for")],
        examples: &[("zfs wait tank/home", "Wait for the queue of deletions.")],
    },
];
