//! The sub-commands of `zfs`: datasets, properties, mounts. Those for users, streams and files are in `zfs_more`.
//!
//! A page has the command's name, a line about it, its text, a pattern of its operands, its options, and examples.
//! Usage lines are the command's own and not repeated here. Patterns are described in the parent module.
//!
//! Tests compare the options with what the commands accept: an option that a command takes must have its line here.

use super::{Opt, Page, flag, takes};

pub(super) const SCRIPTED: Opt =
    flag("-H", "For scripts: no headers, and a single tab between columns");
pub(super) const EXACT: Opt = flag("-p", "Show numbers exactly, not rounded to a unit");
const JSON: Opt = flag("-j, --json", "Print JSON");
const JSON_INT: Opt = flag("--json-int", "In JSON, print numbers as numbers and not as text");
const TYPES: &str = "filesystem|volume|snapshot|bookmark|all,...";

/// The pages.
#[rustfmt::skip] // Tables: one row per line.
pub const PAGES: &[Page] = &[
    Page {
        command: "version",
        about: "tell the version",
        text: "Prints the version of OpenZFS whose commands these are, with cenote's own behind it.",
        operands: "",
        options: &[JSON],
        examples: &[("zfs version", "Print both versions.")],
    },
    Page {
        command: "create",
        about: "make a file system or a volume",
        text: "Makes a file system and mounts it, or with -V a volume of a size.",
        operands: "<new-dataset>",
        options: &[
            flag("-P", "With -n or -v: print what would be made for programs, in columns with tabs"),
            takes("-V", "<size>", "Make a volume of this size"),
            takes("-b", "<size>", "Size of the blocks of a volume (volblocksize)"),
            flag("-n", "Make nothing; check whether it could be made"),
            flag("-s", "Reserve no space for a volume"),
            takes("-o", "<property>=<value>", "Set a property"),
            flag("-p", "Make the file systems above as well; what exists already is no error"),
            flag("-u", "Do not mount the file system"),
            flag("-v", "Say what is made"),
        ],
        examples: &[
            ("zfs create -o compression=zstd tank/home", "A file system with a property."),
            ("zfs create -s -V 20G tank/disk", "A volume that takes space only as it is written."),
        ],
    },
    Page {
        command: "destroy",
        about: "destroy datasets, snapshots, bookmarks",
        text: "Destroys a file system or volume; snapshots of one dataset, as a list with commas, or as a range with a percent \
               sign between the first and the last; or a bookmark.",
        operands: "<dataset>|<snapshots>|<bookmark>",
        options: &[
            flag("-d", "A snapshot that is held or has clones is destroyed once it has none"),
            flag("-f", "Unmount file systems although they are in use"),
            flag("-n", "Destroy nothing; with -v, say what would be"),
            flag("-p", "With -v: print for programs"),
            flag("-R", "All that depend on it as well, clones elsewhere too"),
            flag("-r", "All descendants, or the snapshots of this name of all descendants"),
            flag("-v", "Say what is destroyed, and how much space that gives back"),
        ],
        examples: &[
            ("zfs destroy -nv tank/home@a%c", "What would be gained without the snapshots a to c?"),
            ("zfs destroy -r tank/old", "Destroy a file system and all below it."),
        ],
    },
    Page {
        command: "snapshot",
        about: "take snapshots",
        text: "Keeps datasets as they are now. All snapshots of one command are of the same moment.",
        operands: "<new-snapshot> ...",
        options: &[
            takes("-o", "<user-property>=<value>", "Set a property of the snapshots"),
            flag("-r", "Of all descendants as well"),
        ],
        examples: &[("zfs snapshot -r tank/home@monday", "Snapshots of home and everything below it.")],
    },
    Page {
        command: "rollback",
        about: "go back to a snapshot",
        text: "Makes a dataset what it was when its newest snapshot was taken. What was changed since is lost.",
        operands: "<snapshot>",
        options: &[
            flag("-r", "Go back further; newer snapshots and bookmarks are destroyed"),
            flag("-R", "The same, and clones of these are destroyed too"),
            flag("-f", "Unmount clones that are destroyed although they are in use"),
        ],
        examples: &[("zfs rollback tank/home@monday", "Undo what was done since Monday.")],
    },
    Page {
        command: "clone",
        about: "make a dataset from a snapshot",
        text: "Makes a file system or volume that begins with what is in a snapshot, and shares its space.",
        operands: "<snapshot> <new-dataset>",
        options: &[
            takes("-o", "<property>=<value>", "Set a property"),
            flag("-p", "Make the file systems above as well; what exists already is no error"),
            flag("-u", "Do not mount the file system"),
        ],
        examples: &[("zfs clone tank/home@monday tank/try", "A copy to try things in.")],
    },
    Page {
        command: "promote",
        about: "make a clone independent of its origin",
        text: "Turns clone and origin around: the snapshots up to the one that the clone was made from become the clone's, and \
               what it was made from becomes a clone of it.",
        operands: "<filesystem>|<volume>",
        options: &[],
        examples: &[("zfs promote tank/try", "Keep the copy; its origin can be destroyed.")],
    },
    Page {
        command: "rename",
        about: "rename datasets or snapshots",
        text: "Gives a dataset another name in the same pool, or a snapshot another name. File systems are mounted at their new \
               places.",
        operands: "<dataset>|<snapshot> <new-dataset>",
        options: &[
            flag("-f", "Unmount file systems although they are in use"),
            flag("-p", "Make the file systems above the new name as well"),
            flag("-r", "The snapshots of this name of all descendants too"),
            flag("-u", "Leave file systems mounted where they are"),
        ],
        examples: &[("zfs rename tank/try tank/home2", "Another name.")],
    },
    Page {
        command: "bookmark",
        about: "mark the moment of a snapshot",
        text: "Makes a bookmark from a snapshot or another bookmark. A later send can begin there, also when the snapshot is \
               gone.",
        operands: "<snapshot>|<bookmark> <new-bookmark>",
        options: &[],
        examples: &[("zfs bookmark tank/home@monday tank/home#monday", "Keep the moment, not the data.")],
    },
    Page {
        command: "list",
        about: "list datasets",
        text: "Prints a line for each dataset, or for those that are named: name, space that is used and available, and where \
               it is mounted, unless -o says otherwise. Snapshots are among them with -t, or if the pool's listsnapshots is on.",
        operands: "<dataset>|<snapshot>|<bookmark>|<mounted> ...",
        options: &[
            SCRIPTED,
            takes("-S", "<property>", "Sort by a property, the greatest first"),
            takes("-d", "<number>", "Go so many levels down from what is named"),
            JSON, JSON_INT,
            takes("-o", "name|<property>|space,...", "The properties to show; space stands for those that tell where space went"),
            EXACT,
            flag("-r", "All descendants of what is named as well"),
            takes("-s", "<property>", "Sort by a property, the smallest first"),
            takes("-t", TYPES, "The kinds to show"),
        ],
        examples: &[
            ("zfs list -r -t all tank/home", "Everything in home."),
            ("zfs list -o space", "Where space went."),
        ],
    },
    Page {
        command: "set",
        about: "set properties of datasets",
        text: "Sets properties, all of them or none. They are described in cenote-zfsprops(7). A name with a colon is a property of the \
               user's own.",
        operands: "<property>=<value> <dataset>|<snapshot> ...",
        options: &[flag("-u", "Store a mountpoint, and leave the file system mounted where it is")],
        examples: &[
            ("zfs set quota=50G tank/home", "A limit."),
            ("zfs set com.example:owner=anna tank/home", "A property of one's own."),
        ],
    },
    Page {
        command: "get",
        about: "show properties of datasets",
        text: "Prints properties with their values and where these come from. They are described in cenote-zfsprops(7).",
        operands: "<property>|all,... <dataset>|<snapshot>|<bookmark>|<mounted> ...",
        options: &[
            takes("-d", "<number>", "Go so many levels down from what is named"),
            takes("-o", "name|property|value|received|source|all,...", "The columns to show"),
            takes("-s", "local|default|inherited|temporary|received|none,...", "Only values that come from here"),
            flag("-r", "All descendants as well"),
            takes("-t", TYPES, "The kinds to show"),
            SCRIPTED, JSON, JSON_INT, EXACT,
        ],
        examples: &[
            ("zfs get -r -s local all tank", "Everything that was set in tank."),
            ("zfs get -Hpo value used tank/home", "A number for a script."),
        ],
    },
    Page {
        command: "inherit",
        about: "take properties back",
        text: "Forgets a value that was set: the dataset has that of the one above again, or the default.",
        operands: "<settable> <dataset>|<snapshot> ...",
        options: &[
            flag("-r", "Of all descendants as well"),
            flag("-S", "Go back to the value that was received, if there is one"),
        ],
        examples: &[("zfs inherit -r compression tank/home", "As the pool has it.")],
    },
    Page {
        command: "upgrade",
        about: "upgrade the format of file systems",
        text: "Without operands, lists file systems that are of an older version. With them, brings these to the newest, or to \
               the one that -V names, as far as the version of the pool allows.",
        operands: "<filesystem> ...",
        options: &[
            flag("-a", "All file systems"),
            flag("-r", "All descendants as well"),
            flag("-v", "List the versions"),
            takes("-V", "<number>", "The version"),
        ],
        examples: &[("zfs upgrade -r tank", "Bring all of tank to the newest version.")],
    },
    Page {
        command: "mount",
        about: "mount file systems",
        text: "Without operands, lists what is mounted. With one it mounts that file system at its mountpoint.",
        operands: "<filesystem>",
        options: &[
            flag("-a", "All file systems that are to be mounted"),
            flag("-f", "Mount a redacted file system, of which parts were left out"),
            JSON,
            flag("-l", "Load keys first, if need be"),
            takes("-o", "ro|rw|exec|noexec|suid|nosuid|dev|nodev|atime|noatime|relatime|norelatime|strictatime|xattr|noxattr,...", "Mount options until it is unmounted"),
            flag("-O", "Mount over a directory that is not empty"),
            flag("-R", "The file system and all below it"),
            flag("-v", "Show how far it is"),
        ],
        examples: &[("zfs mount -a", "Mount everything."), ("zfs mount -o ro tank/home", "Mount for reading.")],
    },
    Page {
        command: "unmount",
        about: "unmount file systems",
        text: "Unmounts a file system, by its name or its directory, and what is mounted below it.",
        operands: "<filesystem>|<mounted>",
        options: &[
            flag("-a", "All file systems"),
            flag("-f", "Although they are in use"),
            flag("-u", "Unload the keys of encryption roots that are unmounted; what a key is in use for, still, is mounted again"),
        ],
        examples: &[("zfs unmount tank/home", "Unmount home.")],
    },
    Page {
        command: "share",
        about: "share file systems",
        text: "cenote does not share file systems over the network by itself: see cenote-zfsprops(7), sharenfs.",
        operands: "<filesystem>",
        options: &[
            flag("-a", "All that are to be shared"),
            flag("-l", "Load keys first, if need be"),
        ],
        examples: &[("zfs share -a", "Share what is to be shared.")],
    },
    Page {
        command: "unshare",
        about: "end sharing",
        text: "Ends what zfs share began.",
        operands: "<filesystem>|<mounted>",
        options: &[flag("-a", "All file systems")],
        examples: &[("zfs unshare -a", "Share nothing any more.")],
    },
];
