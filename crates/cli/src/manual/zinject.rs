//! `zinject`.

use super::{Page, flag, takes};

/// The page.
#[rustfmt::skip] // A table: one row per line.
pub const PAGE: Page = Page {
    command: "",
    about: "inject faults into imported pools",
    text: "Has devices and blocks of pools that are imported here fail, give wrong bytes or answer late, so that alarms can be \
           tried. What is on the devices stays as it is, but for what -e noop and io-prefail keep from being written: they lose it, \
           and redundancy has to make up for that. Handlers are in memory only: they go when they are removed, when their \
           pool is exported or destroyed, even if that fails, and with the daemon. The command is for root, and for the user of the daemon.\n\n\
           Without arguments the handlers are listed, with how often each matched a request and did something about it. A device is \
           named by its path, as zpool status shows it, or by its guid; a file by its path, or by its dataset and \
           its number with a colon between. What the kernel or the ARC has is not read from devices: -a empties both, -m what the \
           kernel has of one file system.\n\n\
           Errors of devices (-e with -d): io fails requests that were done; nxio does too, and the device counts as one that cannot be \
           opened; corrupt flips a bit of what is read; noop does nothing and succeeds, and of writes it is refused for a device that \
           its vdev cannot do without; io-prefail does nothing and fails; dtl has \
           the device count as one that its vdev cannot do without. Labels are hit by -L only, probes by -T probe. \
           Where data moves with no checksum to tell (removal of a vdev, sequential rebuild), reads fail in place of giving wrong \
           bytes. Errors of data: io, checksum, decompress and decrypt.\n\n\
           -E, -F, -g, -I, -p, -u and the I/O types free, claim and null of OpenZFS are refused by name.",
    operands: "<pool>|<file>",
    options: &[
        flag("-a", "Empty the caches of all pools, after the handler is there"),
        takes("-A", "degrade|fault", "With -d: degrade the device, or fault it"),
        takes("-b", "<word>", "This block, in hexadecimal: object set, object, level, number and last number"),
        takes("-c", "<word>", "Remove the handler with this number, or all"),
        takes("-C", "<number>,...", "Only these copies of each block, counted from 0"),
        takes("-d", "<leaf>", "This device of the pool"),
        takes("-D", "<word>", "With -d: requests take so many milliseconds at least, on so many lanes: 10:1"),
        takes("-e", "io|checksum|decompress|decrypt|nxio|dtl|corrupt|noop|io-prefail", "The error"),
        takes("-f", "<number>", "Only so many percent of the time"),
        flag("-h", "Show the usage"),
        takes("-l", "<number>", "The level of blocks; 0 without it"),
        takes("-L", "nvlist|uber|pad1|pad2", "With -d: requests to this part of the labels"),
        flag("-m", "Mount the file system anew"),
        takes("-P", "import|export", "With -s: the next import or export of the pool takes longer"),
        flag("-q", "Print only the number of the handler"),
        takes("-r", "<word>", "Only these bytes of the file: from, or from and to with a comma between"),
        takes("-s", "<number>", "With -P: seconds"),
        takes("-T", "read|write|flush|trim|probe|all", "Only requests of this type"),
        takes("-t", "data|dnode|mos|mosdir|config|bpobj|spacemap|metaslab|errlog", "What of the object, or of the pool's own objects"),
    ],
    examples: &[
        ("zinject -d /dev/sdb -e io -T read -f 10 tank", "One read in ten of a device fails."),
        ("zinject -a -t data -e checksum /tank/letter", "All blocks of a file are wrong on all devices."),
        ("zinject -d /dev/sdb -D 200:1 tank", "A device does one request at a time, in 200 milliseconds."),
        ("zinject -c all", "All is well again."),
    ],
};
