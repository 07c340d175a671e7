//! `zdb`.

use super::{Page, flag, takes};

/// The page.
#[rustfmt::skip] // A table: one row per line.
pub const PAGE: Page = Page {
    command: "",
    about: "look at the structures of a pool on disk",
    text: "Shows what is on the devices of a pool that is imported here, or, with -e, of one that is not. It writes to no \
           device. Options that are letters show more when they are given again, or with -v.\n\n\
           Without an option that asks for a part everything is shown, each part briefly.",
    operands: "<pool>|<dataset>|<snapshot>|<file> <file>|<word> ...",
    options: &[
        flag("-A, --ignore-assertions", "Accepted: there are no assertions to ignore"),
        flag("--allocated-map", "With -m: what is allocated in each metaslab"),
        flag("-b, --block-stats", "Walk all blocks: check that space maps agree with what is used, and count blocks by kind. \
              Twice: by sizes and compression as well"),
        takes("--bin", "lsize|psize|asize", "With -bb: count each block by this size: lsize, psize or asize"),
        takes("--class", "normal|special|dedup|other,...", "With -bb: by size, count the blocks of these classes only: normal, special, dedup or other"),
        flag("-B, --backup", "Write a stream of the object set of this number, for zfs receive; a word of letters: L large \
              blocks, e embedded ones, c compressed ones, as they are; w is e and c, and encrypted datasets as they are"),
        flag("-c, --checksum", "Verify the checksums of metadata; twice: of all data"),
        flag("-C, --config", "The configuration"),
        flag("-d, --datasets", "Datasets; twice: their objects; more: what is in these, and their blocks"),
        flag("-D, --dedup-stats", "The tables of deduplication"),
        flag("-E, --embedded-block-pointer", "Show the block pointer that these 16 words are, embedded data unpacked"),
        flag("-f, --file-layout", "Where the blocks of objects lie on the disks of a RAID-Z vdev"),
        flag("-h, --history", "The history"),
        flag("-i, --intent-logs", "Intent logs"),
        flag("-k, --checkpointed-state", "The pool as its checkpoint has it"),
        flag("-l, --label", "The labels of a device; -u shows its uberblocks"),
        flag("-m, --metaslabs", "Metaslabs; twice: their space maps; more: the entries of these"),
        flag("-M, --metaslab-groups", "How fragmented the free space of each vdev is"),
        flag("-N, --numeric", "As -d; a name that is a number is that of an object set"),
        flag("-O, --object-lookups", "Look at the file of this path in a dataset"),
        flag("-r, --copy-object", "Copy the file of this path, or with -O of this number, out of a dataset"),
        flag("-R, --read-block", "Read a block: vdev, offset and size in hexadecimal, with colons between"),
        flag("-S, --simulate-dedup", "What deduplication would save"),
        flag("-s, --io-stats", "What zdb itself read"),
        flag("-T, --brt-stats", "The tables of cloned blocks"),
        flag("-u, --uberblock", "The uberblock"),
        flag("-Z, --zstd-headers", "With -d: the headers of blocks that zstd compressed"),
        flag("-y, --livelist", "Check livelists"),
        flag("-e, --exported", "The pool is not imported here: search its devices"),
        flag("-F, --automatic-rewind", "If the newest state cannot be opened, look at an earlier one"),
        flag("-G, --dump-debug-msg", "At the end, print what was noted on the way"),
        flag("-H, --scripting-mode", "With -f: print for scripts"),
        takes("-I, --inflight", "<number>", "With -c: so many bytes of data are read at once"),
        takes("-K, --key", "<word>", "The key of an encrypted dataset: its passphrase or hexadecimal digits. Other processes may see it"),
        flag("-L, --disable-leak-tracking", "With -b and -c: do not compare with space maps"),
        takes("-o, --option", "<tunable>=<value>", "Set a tunable of this process, or show it; show lists all, info what they mean"),
        takes("-p, --path", "<path>", "With -e: search here. It can be given again"),
        flag("-P, --parseable", "Show numbers exactly"),
        flag("-q, --skip-label", "With -l: leave out the label itself"),
        takes("-t, --txg", "<number>", "Look at the pool as of this transaction group"),
        takes("-U, --cachefile", "<file>", "The cache file that names the pool"),
        flag("-V, --verbatim", "Accepted: a pool is always opened by the configuration that was found"),
        takes("-x, --dump-blocks", "<path>", "Copy the blocks that are read into this directory"),
        flag("-X, --extreme-rewind", "With -F: look further back"),
        flag("-Y, --all-reconstruction", "Of blocks on removed vdevs, try every combination of copies"),
        flag("-v, --verbose", "More of everything"),
    ],
    examples: &[
        ("zdb -e -p . -bcc usb", "Check every block of a pool in an image in this directory."),
        ("zdb -l /dev/sda1", "The labels of a device."),
        ("zdb -dddd tank/home 128", "Object 128 of a file system."),
    ],
};
