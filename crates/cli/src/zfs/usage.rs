//! Usage lines of the commands of `zfs`, as its users know them.

pub const CLONE: &str = "\tclone [-p[p]u] [-o property=value] ... <snapshot> <filesystem|volume>\n";
pub const CREATE: &str = "\tcreate [-Pnp[p]uv] [-o property=value] ... <filesystem>\n\
    \tcreate [-Pnp[p]sv] [-b blocksize] [-o property=value] ... -V <size> <volume>\n";
pub const DESTROY: &str = "\tdestroy [-fnpRrv] <filesystem|volume>\n\
    \tdestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]\n\
    \tdestroy <filesystem|volume>#<bookmark>\n";
pub const GET: &str = "\tget [-rHjp] [-d max] [-o \"all\" | field[,...]]\n\
    \t    [-t type[,...]] [-s source[,...]]\n\
    \t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...\n";
pub const INHERIT: &str = "\tinherit [-rS] <property> <filesystem|volume|snapshot> ...\n";
pub const UPGRADE: &str = "\tupgrade [-v]\n\tupgrade [-r] [-V version] <-a | filesystem ...>\n";
pub const LIST: &str = "\tlist [-Hjp] [-r|-d max] [-o property[,...]] \
    [-s property]...\n\
    \t    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...\n";
pub const MOUNT: &str = "\tmount [-j]\n\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>\n";
pub const PROMOTE: &str = "\tpromote <clone-filesystem>\n";
pub const RECEIVE: &str = "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n\
    \t    <filesystem|volume|snapshot>\n\
    \treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n\
    \t    [-d | -e] <filesystem>\n\
    \treceive -A <filesystem|volume>\n\
    \treceive -c [-vn] <filesystem|snapshot>\n";
pub const RENAME: &str = "\trename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n\
    \trename -p[p] [-f] <filesystem|volume> <filesystem|volume>\n\
    \trename -u [-f] <filesystem> <filesystem>\n\
    \trename -r <snapshot> <snapshot>\n";
pub const ROLLBACK: &str = "\trollback [-rRf] <snapshot>\n";
pub const SEND: &str = "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n\
    \t     [-R [-X dataset[,dataset]...]]     <snapshot>\n\
    \tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\
    \tsend [-nVvPe] -t <receive_resume_token>\n\
    \tsend [-PnVv] --saved filesystem\n";
pub const SET: &str = "\tset [-u] <property=value> ... <filesystem|volume|snapshot> ...\n";
pub const SHARE: &str = "\tshare [-l] <-a [nfs|smb] | filesystem>\n";
pub const SNAPSHOT: &str =
    "\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...\n";
pub const UNMOUNT: &str = "\tunmount [-fu] <-a | filesystem|mountpoint>\n";
pub const UNSHARE: &str = "\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n";
pub const ALLOW: &str = "\tallow <filesystem|volume>\n\
    \tallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n\
    \t    <filesystem|volume>\n\
    \tallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\n\
    \tallow -c <perm|@setname>[,...] <filesystem|volume>\n\
    \tallow -s @setname <perm|@setname>[,...] <filesystem|volume>\n";
pub const UNALLOW: &str = "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n\
    \t    [<perm|@setname>[,...]] <filesystem|volume>\n\
    \tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n\
    \tunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n\
    \tunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>\n";
pub const USERSPACE: &str = "\tuserspace [-Hinp] [-o field[,...]] [-s field] ...\n\
    \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n";
pub const GROUPSPACE: &str = "\tgroupspace [-Hinp] [-o field[,...]] [-s field] ...\n\
    \t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n";
pub const PROJECTSPACE: &str = "\tprojectspace [-Hp] [-o field[,...]] [-s field] ... \n\
    \t    [-S field] ... <filesystem|snapshot|path>\n";
pub const PROJECT: &str = "\tproject [-d|-r] <directory|file ...>\n\
    \tproject -c [-0] [-d|-r] [-p id] <directory|file ...>\n\
    \tproject -C [-k] [-r] <directory ...>\n\
    \tproject [-p id] [-r] [-s] <directory ...>\n";
pub const HOLD: &str = "\thold [-r] <tag> <snapshot> ...\n";
pub const HOLDS: &str = "\tholds [-rHp] <snapshot> ...\n";
pub const RELEASE: &str = "\trelease [-r] <tag> <snapshot> ...\n";
pub const DIFF: &str = "\tdiff [-FHth] <snapshot> [snapshot|filesystem]\n";
pub const BOOKMARK: &str = "\tbookmark <snapshot|bookmark> <newbookmark>\n";
pub const PROGRAM: &str = "\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\
    \t    <pool> <program file> [lua args...]\n";
pub const LOAD_KEY: &str = "\tload-key [-rn] [-L <keylocation>] <-a | filesystem|volume>\n";
pub const UNLOAD_KEY: &str = "\tunload-key [-r] <-a | filesystem|volume>\n";
pub const CHANGE_KEY: &str = "\tchange-key [-l] [-o keyformat=<value>]\n\
    \t    [-o keylocation=<value>] [-o pbkdf2iters=<value>]\n\
    \t    <filesystem|volume>\n\
    \tchange-key -i [-l] <filesystem|volume>\n";
pub const VERSION: &str = "\tversion [-j]\n";
pub const REDACT: &str = "\tredact <snapshot> <bookmark> <redaction_snapshot> ...\n";
pub const REWRITE: &str = "\trewrite [-CPSrvx] [-o <offset>] [-l <length>] <directory|file ...>\n";
pub const WAIT: &str = "\twait [-t <activity>] <filesystem>\n";
pub const ZONE: &str = "\tzone <nsfile> <filesystem>\n";
pub const UNZONE: &str = "\tunzone <nsfile> <filesystem>\n";
