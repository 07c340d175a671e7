//! Usage lines of the commands of `zpool`, as its users know them.

pub const ADD: &str = "\tadd [-fgLnP] [-o property=value] <pool> <vdev> ...\n";
pub const ATTACH: &str = "\tattach [-fsw] [-o property=value] <pool> <vdev> <new-device>\n";
pub const CLEAR: &str = "\tclear <pool> [device]\n";
pub const CREATE: &str = "\tcreate [-fnd] [-o property=value] ... \n\
    \t    [-O file-system-property=value] ... \n\
    \t    [-m mountpoint] [-R root] [-t tempname] <pool> <vdev> ...\n";
pub const CHECKPOINT: &str = "\tcheckpoint [-d [-w]] <pool> ...\n";
pub const DESTROY: &str = "\tdestroy [-f] <pool>\n";
pub const DETACH: &str = "\tdetach <pool> <device>\n";
pub const EXPORT: &str = "\texport [-aFf] <pool> ...\n";
pub const HISTORY: &str = "\thistory [-il] [<pool>] ...\n";
pub const IMPORT: &str = "\timport [-d dir [--scan] | -c cachefile] [-D]\n\
    \timport [-o mntopts] [-o property=value] ... \n\
    \t    [-d dir [--scan] | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root]\n\
    \t    [-F [-n] [-X] | -T txg] [--local] -a\n\
    \timport [-o mntopts] [-o property=value] ... \n\
    \t    [-d dir [--scan] | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root]\n\
    \t    [-F [-n] [-X] | -T txg] [--rewind-to-checkpoint] [-t] <pool | id> [newpool]\n";
pub const IOSTAT: &str = "\tiostat [[-c [script1,script2,...]] [-lq]|[-rw]] [-T d | u] [-ghHLpPvy]\n\
    \t    [[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]\n";
pub const LABELCLEAR: &str = "\tlabelclear [-f] <vdev>\n";
pub const LIST: &str = "\tlist [-gHjLpPv] [-o property[,...]] [-T d|u] [pool] ...\n\
    \t    [interval [count]]\n";
pub const PREFETCH: &str = "\tprefetch [-t <type>] <pool>\n";
pub const OFFLINE: &str = "\toffline [[-f][-t]] <pool> <device> ...\n";
pub const ONLINE: &str = "\tonline [-e] <pool> <device> ...\n";
pub const REPLACE: &str = "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n";
pub const REMOVE: &str = "\tremove [-npsw] <pool> <device> ...\n";
pub const REOPEN: &str = "\treopen [-n] [<pool>] ...\n";
pub const INITIALIZE: &str = "\tinitialize [-c | -s | -u] [-w] [-z] <-a | <pool> [<device> ...]>\n";
pub const SCRUB: &str = "\tscrub [-e | -s | -p | -t | -C [-t] | [-S date] [-E date] [-t]] [-w]\n\
    \t    <-a | <pool> [<pool> ...]>\n";
pub const RESILVER: &str = "\tresilver <pool> ...\n";
pub const TRIM: &str = "\ttrim [-dw] [-r <rate>] [-c | -s] <-a | <pool> [<device> ...]>\n";
pub const STATUS: &str = "\tstatus [-c [script1,script2,...]] [-DdegiLPpstvx]\n\t    [-j|--json [--json-flat-vdevs] [--json-int] [--json-pool-key-guid]]\n\t    [-T d|u] [pool] ... [interval [count]]\n";
pub const UPGRADE: &str = "\tupgrade\n\tupgrade -v\n\tupgrade [-V version] <-a | pool ...>\n";
pub const EVENTS: &str = "\tevents [-vHf [pool] | -c]\n";
pub const GET: &str = "\tget [-Hjp] [-o \"all\" | field[,...]]\n\
    \t    <\"all\" | property[,...]> <pool> ...\n\
    \tget [-Hjp] [-o \"all\" | field[,...]]\n\
    \t    <\"all\" | property[,...]> <pool> <\"root\" | \"all-vdevs\" | vdev> ...\n";
pub const SET: &str = "\tset <property=value> <pool>\n\tset <vdev_property=value> <pool> <vdev>\n";
pub const SPLIT: &str = "\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n\
    \t    [-o property=value] <pool> <newpool> [<device> ...]\n";
pub const FREEZE: &str = "\tfreeze <pool>\n";
pub const REGUID: &str = "\treguid [-g guid] <pool>\n";
pub const SYNC: &str = "\tsync [pool] ...\n";
pub const CONDENSE: &str =
    "\tcondense [-t <type>] [-c | -w] [-a | <pool> ...]\n\tcondense --types\n";
pub const VERSION: &str = "\tversion [-j]\n";
pub const WAIT: &str = "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n";
pub const DDTPRUNE: &str = "\tddtprune -d|-p <amount> <pool>\n";
