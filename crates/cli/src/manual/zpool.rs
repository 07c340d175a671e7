//! The sub-commands of `zpool`.
//!
//! A page has the command's name, a line about it, its text, a pattern of its operands, its options, and examples.
//! Options that many commands share are constants above the table. Usage lines are the command's own and not
//! repeated here. Patterns are described in the parent module.
//!
//! Tests compare the options with what the commands accept: an option that a command takes must have its line here.

use super::{Opt, Page, flag, takes};

const SCRIPTED: Opt = flag("-H", "For scripts: no headers, and a single tab between columns");
const EXACT: Opt = flag("-p", "Show numbers exactly, not rounded to a unit");
const GUIDS: Opt = flag("-g", "Show vdevs by their guids");
const LINKS: Opt = flag("-L", "Show the real paths of devices, with symbolic links followed");
const PATHS: Opt = flag("-P", "Show whole paths of devices");
const TIME: Opt = takes(
    "-T",
    "d|u",
    "Put the time before each report: as a date (d) or in seconds since 1970 (u)",
);
const JSON: Opt = flag("-j, --json", "Print JSON");
const JSON_INT: Opt = flag("--json-int", "In JSON, print numbers as numbers and not as text");
const JSON_KEY: Opt =
    flag("--json-pool-key-guid", "In JSON, put pools under their guids instead of their names");

/// The pages.
#[rustfmt::skip] // Tables: one row per line.
pub const PAGES: &[Page] = &[
    Page {
        command: "version",
        about: "tell the version",
        text: "Prints the version of OpenZFS whose commands these are, with cenote's own behind it.",
        operands: "",
        options: &[JSON],
        examples: &[("zpool version", "Print both versions.")],
    },
    Page {
        command: "create",
        about: "make a pool",
        text: "Makes a pool of the devices, with a file system of the same name, and mounts it. Devices are files or block \
               devices. Words between them say how they are put together: mirror, raidz (raidz1), raidz2 and raidz3 begin a \
               vdev of the devices that follow, and so does draid[PARITY][:DATAd][:CHILDRENc][:SPARESs] (draid2:4d:11c:1s: groups \
               of four data disks with two of parity, over eleven devices with room for one distributed spare); log, cache, spare, \
               special and dedup begin devices of another use. Cache devices have copies of blocks that memory has no room for.\n\n\
               The data of a pool can be in an object store instead: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
               file:///DIRECTORY is then its one vdev without another use. Options follow a question mark, with & between: \
               endpoint=URL, region=REGION and style=path or style=virtual for s3, endpoint=URL for gs, account=NAME and endpoint=URL for az. \
               Credentials are never in the name: they are those of the daemon (its environment, a profile, the role of the host). OpenZFS \
               cannot import such a pool.\n\n\
               A device that holds something already is refused without -f.",
        operands: "<new> <vdev> ...",
        options: &[
            flag("-f", "Use devices although something is on them, or although vdevs differ in redundancy"),
            flag("-n", "Make nothing; show the layout that the pool would have"),
            flag("-d", "Enable no feature but those that -o feature@NAME=enabled names"),
            takes("-o", "<pool-property>=<value>", "Set a property of the pool"),
            takes("-O", "<property>=<value>", "Set a property of its root file system"),
            takes("-m", "<directory>|legacy|none", "Mount the root file system here"),
            takes("-R", "<directory>", "Alternate root: all mountpoints are below it. The pool is in no cache file"),
            takes("-t", "<new>", "Import the pool under this name until it is exported; its own name is on the disks"),
        ],
        examples: &[
            ("zpool create tank mirror /dev/sda /dev/sdb", "A pool of one mirror."),
            ("zpool create -O compression=zstd -m none usb ./usb.img", "A pool in a file, compressed, whose root is not mounted."),
            ("zpool create tank 's3://backups/tank?region=eu-central-1'", "A pool in a bucket."),
        ],
    },
    Page {
        command: "destroy",
        about: "destroy a pool",
        text: "Unmounts the file systems of a pool and marks its devices as free. Until these are used again, zpool import -D \
               can bring the pool back. What it has in an object store is deleted, and does not come back.",
        operands: "<pool>",
        options: &[flag("-f", "Unmount file systems although they are in use")],
        examples: &[("zpool destroy tank", "Destroy the pool tank.")],
    },
    Page {
        command: "add",
        about: "add vdevs to a pool",
        text: "Adds vdevs, written as for zpool create, to a pool. What is added stays.",
        operands: "<pool> <vdev> ...",
        options: &[
            flag("-f", "Add devices although something is on them, or although their redundancy is another"),
            GUIDS, LINKS,
            flag("-n", "Add nothing; show the layout that the pool would have"),
            PATHS,
            takes("-o", "ashift=<number>", "Size of the sectors of what is added, as a power of two"),
            flag("--allow-in-use", "Add devices that other programs seem to use"),
            flag("--allow-replication-mismatch", "Add vdevs of another redundancy than the pool's"),
            flag("--allow-ashift-mismatch", "Add vdevs with sectors of another size than the pool's"),
        ],
        examples: &[("zpool add tank log /dev/nvme0n1", "Give the pool a log device.")],
    },
    Page {
        command: "labelclear",
        about: "remove the labels of a device",
        text: "Overwrites the labels on a device that is no longer part of a pool.",
        operands: "<file>",
        options: &[flag("-f", "Clear the labels of a pool that is exported or seems to be in use elsewhere as well")],
        examples: &[("zpool labelclear /dev/sdb1", "Forget that this partition was in a pool.")],
    },
    Page {
        command: "checkpoint",
        about: "keep the state of a pool, or discard what is kept",
        text: "Keeps the pool as it is now, all datasets and properties of it, until the checkpoint is discarded; zpool import \
               --rewind-to-checkpoint goes back to it. A pool has one checkpoint at most. What it has and the pool has no more \
               takes space, which zpool list shows as CKPOINT. While there is one, devices cannot be attached, detached or \
               replaced, vdevs cannot be removed, and the pool keeps its guid; a vdev that is added is lost by going back. A \
               scrub does not look at what only the checkpoint has.",
        operands: "<pool>",
        options: &[
            flag("-d", "Discard the checkpoint. Its space is given back in the background"),
            flag("--discard", "The same as -d"),
            flag("-w", "With -d: wait until it is discarded"),
            flag("--wait", "The same as -w"),
        ],
        examples: &[
            ("zpool checkpoint tank", "Keep the state of tank."),
            ("zpool checkpoint -d -w tank", "Discard it, and wait until its space is free."),
        ],
    },
    Page {
        command: "prefetch",
        about: "read tables of a pool into the cache",
        text: "Reads the tables of deduplicated and of cloned blocks, so that writes and frees after an import do not wait for \
               them one block at a time.",
        operands: "<pool>",
        options: &[takes("-t", "ddt|brt", "Only these: ddt, the tables of deduplication, or brt, those of cloned blocks")],
        examples: &[("zpool prefetch -t ddt tank", "Read the tables of deduplication.")],
    },
    Page {
        command: "list",
        about: "list pools with their sizes",
        text: "Prints a line for each pool, or for those that are named. With an interval in seconds it prints again and again, as \
               often as a count says.",
        operands: "<pool> ...",
        options: &[
            GUIDS, SCRIPTED, JSON, JSON_INT, JSON_KEY, LINKS,
            takes("-o", "<pool-column>,...", "The properties to show"),
            EXACT, PATHS, TIME,
            flag("-v", "Show vdevs as well"),
        ],
        examples: &[
            ("zpool list -v", "Show pools and vdevs."),
            ("zpool list -Hp -o name,free", "Names and free bytes, for a script."),
        ],
    },
    Page {
        command: "iostat",
        about: "show reads and writes of pools and vdevs",
        text: "Prints operations and bytes per second: since the import at first, then of each interval.",
        operands: "<pool> ...",
        options: &[
            takes("-c", "<word>,...", "Run these programs from ~/.zpool.d or /etc/zfs/zpool.d for each device, with the rights of the user; \
                   columns show what they print. Root's are run only with ZPOOL_SCRIPTS_AS_ROOT=1"),
            GUIDS, SCRIPTED,
            flag("-h", "Repeat no header"),
            flag("-l", "Show latencies: of the device, in queues, of scrubs and trims"),
            LINKS,
            flag("-n", "Print one header at the start only"),
            flag("--objects", "Show requests to object stores by kind, the bytes that they sent and received, and the bytes that are stored and live there"),
            EXACT, PATHS,
            flag("-q", "Show requests that wait in queues and that devices work on"),
            flag("-r", "Show histograms of the sizes of requests"),
            TIME,
            flag("-v", "Show vdevs as well"),
            flag("-w", "Show histograms of latencies"),
            flag("-y", "Leave out the first report, which is since the import"),
        ],
        examples: &[("zpool iostat -v tank 5", "Every five seconds, with vdevs.")],
    },
    Page {
        command: "status",
        about: "show how pools are",
        text: "Prints for each pool its state, what is wrong and what to do, the last scrub, the vdevs with their errors, and \
               the files in which data was lost.",
        operands: "<pool> ...",
        options: &[
            takes("-c", "<word>,...", "Run programs for each device, as zpool iostat -c"),
            flag("-D", "Show statistics of deduplication; given twice, with histograms"),
            flag("-d", "Show how many Direct I/O writes did not verify"),
            flag("-e", "Show only vdevs that are not well"),
            GUIDS,
            flag("-i", "Show how far initializing has come"),
            JSON, JSON_INT, JSON_KEY,
            flag("--json-flat-vdevs", "In JSON, list vdevs side by side and not as a tree"),
            LINKS, PATHS, EXACT,
            flag("-s", "Show how many requests were slow"),
            flag("-t", "Show what is known of TRIM"),
            TIME,
            flag("-v", "Name the files that are damaged"),
            flag("-x", "Show only pools that are not well"),
        ],
        examples: &[("zpool status -x", "Say whether all is well."), ("zpool status -v tank", "Name damaged files.")],
    },
    Page {
        command: "online",
        about: "bring devices back",
        text: "Takes devices into use again, and writes to them what they missed.",
        operands: "<pool> <leaf>|<cache> ...",
        options: &[flag("-e", "Use all of the device, if it has grown")],
        examples: &[("zpool online tank /dev/sdb", "Bring one device back.")],
    },
    Page {
        command: "offline",
        about: "take devices out of use",
        text: "Stops reading from devices and writing to them. What they miss is noted.",
        operands: "<pool> <leaf>|<cache> ...",
        options: &[
            flag("-f", "Mark the device as faulted"),
            flag("-t", "Until the next import only"),
        ],
        examples: &[("zpool offline -t tank /dev/sdb", "Take a device away until the next import.")],
    },
    Page {
        command: "clear",
        about: "clear errors",
        text: "Sets the counts of errors of a pool, or of one device, to nothing, and tries devices again that failed. A pool \
               that is suspended goes on. In place of a device it takes a dataset whose intent log cannot be replayed, and \
               gives that log up.",
        operands: "<pool> <leaf>|<cache>",
        options: &[],
        examples: &[("zpool clear tank", "Forget the errors of tank.")],
    },
    Page {
        command: "reopen",
        about: "open all devices anew",
        text: "Looks for the devices of pools again, as after cables were changed.",
        operands: "<pool> ...",
        options: &[flag("-n", "Leave a scrub that runs as it is")],
        examples: &[("zpool reopen tank", "Look for the devices of tank.")],
    },
    Page {
        command: "attach",
        about: "give a device a mirror, or RAID-Z another device",
        text: "Puts a new device beside one that the pool has: a single device becomes a mirror, a mirror gets another side. The new \
               device lacks what was written before, until a resilver has given it that.\n\nWith a RAID-Z vdev (raidz1-0) in its \
               place, the new device joins that one, which is expanded: in the background all its sectors move over all devices that \
               it has then, zpool status shows how far that is, and afterwards the vdev is larger and a scrub begins. The vdev can be \
               used meanwhile, and an expansion goes on after an export or a crash. It needs the feature raidz_expansion, which is \
               enabled on request only: zpool set feature@raidz_expansion=enabled <pool>. Only one vdev of a pool is expanded at a \
               time, by one device, and all its devices have to be there.",
        operands: "<pool> <leaf>|<raidz> <file>",
        options: &[
            flag("-f", "Use the device although something is on it"),
            takes("-o", "ashift=<number>", "Size of the sectors of the new device, as a power of two"),
            flag("-s", "Copy by place and scrub afterwards (sequential rebuild): mirrors and dRAID"),
            flag("-w", "Wait until the new device has all that the other one has, or the expansion has ended"),
        ],
        examples: &[
            ("zpool attach tank /dev/sda /dev/sdb", "Make a mirror of sda and sdb."),
            ("zpool attach tank raidz1-0 /dev/sde", "Expand the RAID-Z vdev raidz1-0 by sde."),
        ],
    },
    Page {
        command: "detach",
        about: "take a device out of a mirror",
        text: "Takes a device out of a mirror, or ends a replacement or the work of a spare by taking one of the two devices away. A \
               device that has something that no other one has stays.",
        operands: "<pool> <leaf>",
        options: &[],
        examples: &[("zpool detach tank /dev/sdb", "Let go of one side of a mirror.")],
    },
    Page {
        command: "split",
        about: "make another pool of one side of each mirror",
        text: "Takes one device out of each mirror of a pool, the last one unless another is named, and makes a new pool of them \
               that holds what the pool holds now. All vdevs but those for logs must be mirrors, no device may be behind or \
               needed, and nothing may be resilvered or removed. Log, cache and spare devices stay with the old pool. \
               The new pool is left exported, unless -R is given.",
        operands: "<pool> <new> <leaf> ...",
        options: &[
            flag("-g", "With -n, show guids in place of names"),
            flag("-L", "With -n, follow symbolic links"),
            flag("-l", "With -R, load the keys of encrypted datasets"),
            flag("-n", "Only show the layout of the new pool"),
            takes("-o", "<pool-property>=<value>", "Set a property of the new pool; with -R also options of its mounts"),
            flag("-P", "With -n, show full paths"),
            takes("-R", "<directory>", "Import the new pool, with its file systems below this directory"),
        ],
        examples: &[("zpool split tank half", "Make the pool half of the last side of each mirror of tank.")],
    },
    Page {
        command: "remove",
        about: "take devices out of a pool",
        text: "Takes spares, cache devices, log vdevs and vdevs that hold data out of a pool. What a vdev with data holds is copied \
               to the others first, in the background and after the next import as well; these must be single devices or \
               mirrors with sectors of the same size, and have room for it.",
        operands: "<pool> <removable> ...",
        options: &[
            flag("-n", "Only say how much memory the mapping of the removed vdev would take"),
            flag("-p", "With -n, exact numbers"),
            flag("-s", "Stop the removal that is under way, and keep the vdev"),
            flag("-w", "Wait until the vdev is removed"),
        ],
        examples: &[("zpool remove tank mirror-1", "Move what is on mirror-1 to the other vdevs, and let go of it.")],
    },
    Page {
        command: "replace",
        about: "replace a device",
        text: "Has a new device take the place of one that the pool has, at the same path if it is not named. Both are in the pool \
               until the new one has all that the old one has. A spare of the pool can be named as well; a distributed spare \
               (draid2-0-0) stands in for devices of its own dRAID vdev.",
        operands: "<pool> <leaf> <spare>|<file>",
        options: &[
            flag("-f", "Use the device although something is on it"),
            takes("-o", "ashift=<number>", "Size of the sectors of the new device, as a power of two"),
            flag("-s", "Copy by place and scrub afterwards (sequential rebuild): mirrors and dRAID"),
            flag("-w", "Wait until the replacement is complete"),
        ],
        examples: &[
            ("zpool replace tank /dev/sda /dev/sdc", "Replace sda by sdc."),
            ("zpool replace tank /dev/sda", "There is a new device where sda was."),
        ],
    },
    Page {
        command: "import",
        about: "list pools that can be imported, or import them",
        text: "Without a name, and without -a, lists the pools that are found and are not imported. With a name or a number it \
               imports that pool, and mounts its file systems; a second name becomes the pool's name.\n\n\
               Pools are searched for in /dev, or where -d says. A pool of a cache file whose devices are missing is listed \
               as UNAVAIL.",
        operands: "<importable> <new>",
        options: &[
            flag("-a", "Import all pools that are found"),
            takes("-c", "<file>", "Search where this cache file says"),
            flag("-D", "Destroyed pools only"),
            takes("-d", "<path>", "Search in this directory, or look at this device or place in an object store (s3://BUCKET/PREFIX). It can be given again"),
            flag("-f", "Import although the pool seems to be in use by another system"),
            flag("-F", "If the newest state cannot be opened, go back to an earlier one. The last seconds are lost"),
            flag("-l", "Load the keys of encrypted datasets before file systems are mounted"),
            flag("--local", "With -c: leave out pools in object stores that are reached by network"),
            flag("-m", "Import although log devices are missing. What is in them is lost"),
            flag("-n", "With -F: say how far it would go back, and import nothing"),
            flag("-N", "Mount nothing"),
            takes("-o", "<pool-property>=<value>", "Set a property; without = these are mount options for all file systems"),
            takes("-R", "<directory>", "Alternate root: all mountpoints are below it. The pool is in no cache file"),
            flag("--rewind-to-checkpoint", "Go back to the pool's checkpoint. What came later is lost, unless it is only looked at with -o readonly=on"),
            flag("-s", "Search devices, also where a cache file is the default"),
            flag("--scan", "With -d: look through what has no labels of its own, from its beginning to its end, for pools that begin somewhere in it. They can be imported with -o readonly=on only"),
            flag("-t", "The new name is for this import only"),
            takes("-T", "<number>", "Open the pool as it was at this transaction group or before"),
            flag("-X", "With -F: go back as far as need be"),
        ],
        examples: &[
            ("zpool import -d . usb", "Import the pool usb from an image in this directory."),
            ("zpool import -o readonly=on -R /mnt tank", "Look at a pool below /mnt, and write nothing to it."),
        ],
    },
    Page {
        command: "export",
        about: "give pools back",
        text: "Unmounts the file systems of pools, writes everything, and leaves the devices to others.",
        operands: "<pool> ...",
        options: &[
            flag("-a", "All pools"),
            flag("-F", "Leave the labels as those of a pool in use: an import elsewhere takes -f"),
            flag("-f", "Unmount file systems although they are in use"),
        ],
        examples: &[("zpool export usb", "Give the pool usb back.")],
    },
    Page {
        command: "upgrade",
        about: "enable features, upgrade pools of older versions",
        text: "Without operands, lists pools of versions from before feature flags, and those that lack features. With them, brings \
               pools to feature flags and enables all features that are supported: other systems may not be able to import the \
               pool afterwards. Pools of versions 1 and 2 can only be imported read-only; those before 11 are not upgraded to 11 and later.",
        operands: "<pool> ...",
        options: &[
            flag("-a", "All pools"),
            flag("-v", "List the features and the versions that are supported"),
            takes("-V", "<number>", "Upgrade to this version and no further: up to 28, or 5000 for feature flags"),
        ],
        examples: &[("zpool upgrade tank", "Enable all features in tank.")],
    },
    Page {
        command: "reguid",
        about: "give a pool a new guid",
        text: "Changes the number by which a pool is known, as is needed for a copy that is to be imported beside its original.",
        operands: "<pool>",
        options: &[takes("-g", "<number>", "The number; without it one is made up")],
        examples: &[("zpool reguid tank", "Give tank another guid.")],
    },
    Page {
        command: "scrub",
        about: "read all blocks and mend what is wrong",
        text: "Reads every copy of every block that the pool has when the scrub begins, and parity too, and writes anew what is \
               wrong as far as redundancy allows. Errors are counted on the devices that gave wrong bytes. It goes on in the \
               background, beside all other work, and after an import where it was; zpool status shows how far it is. A scrub \
               that is paused goes on with zpool scrub. First devices that have lost their labels go out of use, if the pool can do \
               without them.",
        operands: "<pool> ...",
        options: &[
            flag("-a", "Scrub all pools"),
            flag("-C", "Scrub only what was written since the last scrub that came to its end began"),
            takes("-E", "<word>", "Scrub only what was written until then, as in 2026-11-27 or \"2026-11-27 16:05\""),
            flag("-e", "Scrub only the blocks that the error log has"),
            flag("-p", "Pause the scrub"),
            takes("-S", "<word>", "Scrub only what was written since then"),
            flag("-s", "Give up the scrub"),
            flag("-w", "Wait until the scrub is over"),
        ],
        examples: &[
            ("zpool scrub -w tank", "Scrub tank, and wait for it."),
            ("zpool scrub -p tank", "Pause the scrub of tank."),
        ],
    },
    Page {
        command: "resilver",
        about: "begin anew to give devices what they missed",
        text: "A device that was away is given what it missed by itself once it is back. This begins that from the start, for all \
               devices that lack something.",
        operands: "<pool> ...",
        options: &[],
        examples: &[("zpool resilver tank", "Begin the resilver of tank anew.")],
    },
    Page {
        command: "history",
        about: "show the commands that changed pools",
        text: "Prints the commands that changed each pool since it was made, with their times.",
        operands: "<pool> ...",
        options: &[
            flag("-i", "Show what the pool did by itself as well"),
            flag("-l", "Show user, host and zone of each command"),
        ],
        examples: &[("zpool history -l tank", "What was done to tank, and by whom.")],
    },
    Page {
        command: "events",
        about: "show what happened to pools",
        text: "Prints events: imports, errors of devices, changes of the configuration.",
        operands: "<pool>",
        options: &[
            flag("-v", "Show all that is known of each event"),
            SCRIPTED,
            flag("-f", "Go on, and print events as they happen"),
            flag("-c", "Forget all events"),
        ],
        examples: &[("zpool events -vf", "Follow events, with everything in them.")],
    },
    Page {
        command: "get",
        about: "show properties of pools or vdevs",
        text: "Prints properties of pools, or, if vdevs are named behind a pool, of these: with all-vdevs of the root, spares, \
               cache devices and all others. The properties are described in cenote-zpoolprops(7).",
        operands: "<pool-property>|all,... <pool> <any-vdev>|root|all-vdevs ...",
        options: &[
            SCRIPTED, JSON, JSON_INT, JSON_KEY, EXACT,
            takes("-o", "name|property|value|source|all,...", "The columns to show"),
        ],
        examples: &[
            ("zpool get -Ho value health tank", "The state, for a script."),
            ("zpool get read_errors tank all-vdevs", "Errors of all vdevs."),
        ],
    },
    Page {
        command: "set",
        about: "set a property of a pool or vdev",
        text: "Sets a property of a pool, or of a vdev that is named behind it. See cenote-zpoolprops(7).",
        operands: "<pool-setting>=<value> <pool> <any-vdev>|root",
        options: &[],
        examples: &[("zpool set autoexpand=on tank", "Use devices in full that have grown, now and at each import and reopen.")],
    },
    Page {
        command: "sync",
        about: "write what is in memory",
        text: "Returns when everything that was written to the pools before is on their devices.",
        operands: "<pool> ...",
        options: &[flag("-f", "Write a transaction group even if nothing has changed")],
        examples: &[("zpool sync tank", "Write out tank.")],
    },
    Page {
        command: "initialize",
        about: "write to free space",
        text: "Writes a pattern to the free space of a pool, so that all of its devices is written to once: thin storage \
               below gives the space out, and errors show early. It goes on in the background, and after the next import; \
               a device that is suspended goes on when initialize is run again. Without devices all are.",
        operands: "<pool> <leaf> ...",
        options: &[
            flag("-a", "Initialize all pools"),
            flag("-c", "Give up"),
            flag("-s", "Suspend"),
            flag("-u", "Forget that it was done"),
            flag("-w", "Wait until it is done"),
            flag("-z", "Write zeros"),
        ],
        examples: &[("zpool initialize -w tank", "Write to all free space of tank, and wait for that.")],
    },
    Page {
        command: "trim",
        about: "tell devices what is free",
        text: "Gives back the free space of a pool: image files get holes, block devices give up what they keep of it. It \
               goes on in the background, and after the next import; a device that is suspended goes on when trim is \
               run again. Without devices all that can be told are. With autotrim=on what is freed is told by itself.",
        operands: "<pool> <leaf> ...",
        options: &[
            flag("-a", "Trim all pools"),
            flag("-c", "Give up"),
            flag("-d", "Erase securely, which no device here can do"),
            takes("-r", "<size>", "Most bytes a second, of each device"),
            flag("-s", "Suspend"),
            flag("-w", "Wait until it is done"),
        ],
        examples: &[("zpool trim -w tank", "Give back the free space of tank, and wait for that.")],
    },
    Page {
        command: "ddtprune",
        about: "take old entries out of the tables of deduplication",
        text: "Takes entries of blocks that are referenced once out of the tables of deduplication, which makes them smaller. The \
               blocks stay; what is written later and equals one of them is stored once more. Only tables of the feature \
               fast_dedup know how old an entry is.",
        operands: "<pool>",
        options: &[
            takes("-d", "<number>", "Entries that were not changed for so many days"),
            takes("-p", "<number>", "The oldest entries, about so many of a hundred"),
        ],
        examples: &[("zpool ddtprune -d 90 tank", "Take out what was not changed in 90 days.")],
    },
    Page {
        command: "wait",
        about: "wait until something in a pool is over",
        text: "Waits until none of the activities goes on: all of them unless -t names some.",
        operands: "<pool>",
        options: &[
            SCRIPTED, EXACT, TIME,
            takes("-t", "discard|free|initialize|replace|remove|resilver|scrub|trim|raidz_expand,...", "What to wait for"),
        ],
        examples: &[("zpool wait -t free tank", "Wait until destroyed datasets have given their space back.")],
    },
];
