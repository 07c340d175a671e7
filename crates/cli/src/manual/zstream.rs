//! The sub-commands of `zstream`, and `mount.zfs`.

use super::{Page, flag, takes};

/// The pages of `zstream`.
#[rustfmt::skip] // Tables: one row per line.
pub const PAGES: &[Page] = &[
    Page {
        command: "dump",
        about: "show what is in a stream",
        text: "Prints the headers of the records of a stream, from a file or from standard input, and how many there are of \
               each kind.",
        operands: "<file>",
        options: &[
            flag("-v", "Print every record"),
            flag("-C", "Do not verify checksums"),
            flag("-d", "Print the contents of blocks as well"),
        ],
        examples: &[("zfs send tank/home@monday | zstream dump", "What would be sent.")],
    },
    Page {
        command: "decompress",
        about: "decompress blocks of a stream",
        text: "Copies a stream from standard input to standard output. The blocks that are named by object and offset are \
               written without compression; a third word says with which they are compressed, whatever the stream says.",
        operands: "<word> ...",
        options: &[flag("-v", "Say which blocks were decompressed")],
        examples: &[("zstream decompress 2,0,lz4 <stream >repaired", "One block of object 2.")],
    },
    Page {
        command: "recompress",
        about: "compress the blocks of a stream anew",
        text: "Copies a stream from standard input to standard output, with all blocks compressed as the operand says.",
        operands: "off|lz4|lzjb|zle|gzip-1|gzip-2|gzip-3|gzip-4|gzip-5|gzip-6|gzip-7|gzip-8|gzip-9|zstd",
        options: &[takes("-l", "<number>", "Level of gzip or zstd")],
        examples: &[("zfs send -c tank/home@monday | zstream recompress -l 19 zstd >archive", "Compress well what is kept.")],
    },
    Page {
        command: "token",
        about: "show what a token of a receive says",
        text: "Prints what is in a receive_resume_token.",
        operands: "<word>",
        options: &[],
        examples: &[("zstream token 1-e604ea4bf-e0-789c63...", "Where would the send go on?")],
    },
    Page {
        command: "redup",
        about: "write a deduplicated stream without references",
        text: "Turns a stream in which blocks refer to earlier ones, as older versions of zfs send -D wrote, into one without. \
               The stream is a file; the result goes to standard output.",
        operands: "<file>",
        options: &[flag("-v", "Say how much was written")],
        examples: &[("zstream redup old-stream | zfs receive tank/home", "Receive an old stream.")],
    },
];

/// The page of `zfs_ids_to_path`.
#[rustfmt::skip] // A table: one row per line.
pub const IDS_TO_PATH: Page = Page {
    command: "",
    about: "find the path of a file by its numbers",
    text: "Prints where the file of this object number is in the file system or snapshot with this number of an object set: \
           below its mountpoint, or, where it is not mounted, behind the name of the dataset. Events have both numbers, and zdb \
           shows them.",
    operands: "<pool> <number> <number>",
    options: &[flag("-v", "Name the dataset although it is mounted")],
    examples: &[("zfs_ids_to_path tank 54 128", "Which file is object 128 of object set 54?")],
};

/// The page of `mount.zfs`.
#[rustfmt::skip] // A table: one row per line.
pub const MOUNT: Page = Page {
    command: "",
    about: "mount a file system for mount(8)",
    text: "Mounts a file system whose mountpoint is legacy, or a snapshot, at a directory. mount(8) runs it for the type zfs, \
           as for lines of /etc/fstab. File systems with a mountpoint of their own are left to zfs mount.\n\n\
           Taken as mount(8) gives them, and without effect: mand, nomand, nbmand, nonbmand, acl, posixacl, noacl, iversion, noiversion, async \
           and quiet. An option that is not known is refused without -s.",
    operands: "<filesystem>|<snapshot> <directory>",
    options: &[
        flag("-s", "Pass over options that are not known"),
        flag("-f", "Check everything, and do not mount"),
        flag("-n", "Accepted: there is no list of mounts to leave out"),
        flag("-v", "Accepted: nothing more is said"),
        takes("-o", "ro|rw|exec|noexec|suid|nosuid|dev|nodev|atime|noatime|remount|zfsutil,...", "Mount options; zfsutil: although the file system has a mountpoint"),
        flag("-h", "Show the usage"),
    ],
    examples: &[
        ("mount -t zfs tank/home /home", "Mount a file system."),
        ("tank/home /home zfs x-systemd.requires=cenote.service 0 0", "A line of /etc/fstab: mount it at boot, once pools are imported."),
    ],
};
