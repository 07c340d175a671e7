//! The command line of `zdb`.
//!
//! Every option is a letter that may be repeated to see more; `-v` adds one to all that were given.
//! Without any option that asks for something, everything is shown once.

use super::bins::Bins;
use cenote_command::outcome::{Stop, fail, usage};
use cenote_command::posix::is_posix;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// Options that ask for a part of the output.
const PARTS: &str = "bBcCdDEfhiklmMNORrsSTuyZ";
/// Options that change how.
const MODES: &str = "AeFGHLPqvVXY";
/// What "everything" leaves out.
const NOT_IN_ALL: &str = "BEfklNORrsSy";
/// Letters and long names of `zdb`; a colon marks those with a value.
const LONG: [(&str, &str); 46] = [
    ("ignore-assertions", "A"),
    ("block-stats", "b"),
    ("backup", "B"),
    ("checksum", "c"),
    ("config", "C"),
    ("datasets", "d"),
    ("dedup-stats", "D"),
    ("exported", "e"),
    ("embedded-block-pointer", "E"),
    ("file-layout", "f"),
    ("automatic-rewind", "F"),
    ("dump-debug-msg", "G"),
    ("history", "h"),
    ("scripting-mode", "H"),
    ("intent-logs", "i"),
    ("inflight", "I:"),
    ("checkpointed-state", "k"),
    ("key", "K:"),
    ("label", "l"),
    ("disable-leak-tracking", "L"),
    ("metaslabs", "m"),
    ("metaslab-groups", "M"),
    ("numeric", "N"),
    ("option", "o:"),
    ("object-lookups", "O"),
    ("path", "p:"),
    ("parseable", "P"),
    ("skip-label", "q"),
    ("copy-object", "r"),
    ("read-block", "R"),
    ("io-stats", "s"),
    ("simulate-dedup", "S"),
    ("txg", "t:"),
    ("brt-stats", "T"),
    ("uberblock", "u"),
    ("cachefile", "U:"),
    ("verbose", "v"),
    ("verbatim", "V"),
    ("dump-blocks", "x:"),
    ("extreme-rewind", "X"),
    ("all-reconstruction", "Y"),
    ("livelist", "y"),
    ("zstd-headers", "Z"),
    ("allocated-map", "allocated-map"),
    ("bin", "bin:"),
    ("class", "class:"),
];

/// A key as it was given. Its `Debug` does not show it.
#[derive(Clone)]
pub struct GivenKey(pub Zeroizing<String>);

impl std::fmt::Debug for GivenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GivenKey")
    }
}

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub struct Args {
    counts: std::collections::BTreeMap<char, u32>,
    verbose: u32,
    all: bool,
    /// `-p`: where to search.
    pub search: Vec<PathBuf>,
    /// `-t`: open the pool at this transaction group or the last one before it.
    pub txg: Option<u64>,
    /// `-U`: the cache file that names the pool.
    pub cachefile: Option<PathBuf>,
    /// `-o`: tunables to set or to show, in order.
    pub tunables: Vec<String>,
    /// `-x`: the directory that what is read is copied to.
    pub copies: Option<PathBuf>,
    /// `-K`: the key of an encrypted dataset: a passphrase, or hexadecimal digits.
    pub key: Option<GivenKey>,
    /// `-I`: bytes that are read at once to be checked.
    pub inflight: Option<u64>,
    /// `--allocated-map`: what each metaslab has allocated.
    pub allocated_map: bool,
    /// `--bin` and `--class`.
    pub bins: Bins,
    /// The rest.
    pub operands: Vec<String>,
}

impl Args {
    /// How much of part `letter` is wanted; 0 for nothing.
    pub fn level(&self, letter: char) -> u32 {
        // -N is -d with numbers for names.
        let letter = if letter == 'd' && !self.has('d') && self.has('N') { 'N' } else { letter };
        match self.counts.get(&letter) {
            // What -O looks up is shown in more detail than by -d.
            n if letter == 'd' && self.has('O') => n.map_or(3, |n| 3.max(*n)) + self.verbose,
            Some(n) => n + self.verbose,
            None if self.all && PARTS.contains(letter) && !NOT_IN_ALL.contains(letter) => {
                1 + self.verbose.max(1)
            }
            None => 0,
        }
    }

    /// Whether option `letter` was given.
    pub fn has(&self, letter: char) -> bool {
        self.counts.contains_key(&letter)
    }

    /// Whether it is for a process of the user's own: it sets or shows tunables, has a key, or writes files.
    pub fn needs_own_process(&self) -> bool {
        !self.tunables.is_empty() || self.has('Y') || self.copies.is_some() || self.key.is_some()
    }

    /// A number for people, or exact with `-P`.
    pub fn number(&self, n: u64) -> String {
        if self.has('P') { n.to_string() } else { cenote_dsl::human::nicenum(n) }
    }

    /// A number of bytes for people, or exact with `-P`.
    pub fn bytes(&self, n: u64) -> String {
        if self.has('P') { n.to_string() } else { cenote_dsl::human::nicebytes(n) }
    }

    /// Takes the arguments apart.
    pub fn parse(args: &[OsString]) -> Result<Args, Stop> {
        let mut parsed = Args::default();
        let mut parser = lexopt::Parser::from_args(args.iter().map(OsString::as_os_str));
        while let Some(arg) = parser.next().map_err(|e| Stop::Usage(e.to_string()))? {
            let spec = match arg {
                lexopt::Arg::Value(first) => {
                    let mut add =
                        |v: OsString| parsed.operands.push(v.to_string_lossy().into_owned());
                    add(first);
                    if is_posix()
                        && let Ok(rest) = parser.raw_args()
                    {
                        rest.for_each(add);
                    }
                    continue;
                }
                lexopt::Arg::Short(letter) => find(|s| s.starts_with(letter) && s.len() <= 2),
                lexopt::Arg::Long(name) => LONG.iter().find(|l| l.0 == name).map(|l| l.1),
            };
            let Some(spec) = spec else { return usage(arg.unexpected().to_string()) };
            let value = match spec.ends_with(':') {
                true => parser.value().map_err(|e| Stop::Usage(e.to_string()))?,
                false => OsString::new(),
            };
            parsed.option(spec.trim_end_matches(':'), &value)?;
        }
        parsed.check()?;
        Ok(parsed)
    }

    fn option(&mut self, name: &str, value: &OsStr) -> Result<(), Stop> {
        match name {
            "allocated-map" => {
                self.allocated_map = true;
                return Ok(());
            }
            "bin" => return self.bins.by(&value.to_string_lossy()),
            "class" => return self.bins.class(&value.to_string_lossy()),
            _ => {}
        }
        let mut chars = name.chars();
        let (Some(letter), None) = (chars.next(), chars.next()) else {
            return fail(format!("zdb: --{name} is not supported"));
        };
        match letter {
            'p' => self.search.push(PathBuf::from(value)),
            'x' => self.copies = Some(PathBuf::from(value)),
            'U' => self.cachefile = Some(PathBuf::from(value)),
            'o' => self.tunables.push(value.to_string_lossy().into_owned()),
            'I' => {
                self.inflight = number(&value.to_string_lossy()).filter(|bytes| *bytes > 0);
                if self.inflight.is_none() {
                    return usage("maximum number of inflight bytes must be greater than 0");
                }
            }
            'K' => self.key = Some(GivenKey(Zeroizing::new(value.to_string_lossy().into_owned()))),
            't' => {
                let text = value.to_string_lossy();
                let txg = number(&text).filter(|t| *t >= 4);
                let Some(txg) = txg else {
                    return usage(format!("incorrect txg specified: {text}"));
                };
                self.txg = Some(txg);
            }
            _ if PARTS.contains(letter) || MODES.contains(letter) => {
                *self.counts.entry(letter).or_default() += 1;
            }
            _ => return fail(format!("zdb: option -{letter} is not supported")),
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Stop> {
        self.verbose = self.counts.get(&'v').copied().unwrap_or(0);
        self.all = !self.allocated_map && !self.counts.keys().any(|k| PARTS.contains(*k));
        if !self.has('e') && !self.search.is_empty() {
            return usage("-p option requires use of -e");
        }
        if self.has('H') && !self.has('f') {
            return usage("-H option requires use of -f");
        }
        if self.cachefile.as_ref().is_some_and(|path| !path.is_absolute()) {
            return usage("cachefile must be an absolute path (i.e. start with a slash)");
        }
        let needed = match () {
            () if self.has('f') => 2,
            () if self.has('r') => 3,
            () if self.has('R') || self.has('O') => 2,
            () if !self.tunables.is_empty() => 0,
            // The configs of a cache file.
            () if !self.has('e') && (self.all || self.has('C')) => 0,
            () => 1,
        };
        if self.operands.len() < needed {
            return usage("");
        }
        Ok(())
    }
}

fn find(matches: impl Fn(&str) -> bool) -> Option<&'static str> {
    LONG.iter().map(|l| l.1).find(|s| matches(s) && (s.len() == 1 || s.ends_with(':')))
}

/// A number as `strtoull` with base 0 reads it: decimal, `0x` hexadecimal, `0` octal.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

/// The usage message.
pub const USAGE: &str = "\
Usage:\tzdb [-AbcCdDFGhikLmMNPSsTuvVXYyZ] [-e [-p <path> ...]] [-I <inflight I/Os>]
\t\t[-o <var>=<value>]... [-t <txg>] [-x <dumpdir>]
\t\t[<poolname>[/<dataset | objset id>] [<object | range> ...]]
\tzdb -B [-e [-p <path> ...]] <poolname>/<objset id> [<backup-flags>]
\tzdb -E [-A] word0:word1:...:word15
\tzdb -S [-AP] [-e [-p <path> ...]] <poolname>
\tzdb -l [-Aqu] <device>
\tzdb -m [-AFLP] [--allocated-map] [-e [-p <path> ...]] [-t <txg>]
\t\t<poolname> [<vdev> [<metaslab> ...]]
\tzdb -f [-Hv] [-e [-p <path> ...]] <dataset> <object | range> ...
\tzdb -O <dataset> <path>
\tzdb -r <dataset> <path> <destination>
\tzdb -r -O <dataset> <object-id> <destination>
\tzdb -R [-A] [-e [-p <path> ...]]
\t\t<poolname> <vdev>:<offset>:<size>[:<flags>]

    Dataset name must include at least one separator character '/' or '@'
    If dataset name is specified, only that dataset is dumped
    If object numbers or object number ranges are specified, only those
    objects or ranges are dumped.

    Object ranges take the form <start>:<end>[:<flags>]
        start    Starting object number
        end      Ending object number, or -1 for no upper bound
        flags    Optional flags to select object types:
            A     All objects (this is the default)
            d     ZFS directories
            f     ZFS files 
            m     SPA space maps
            z     ZAPs
            -     Negate effect of next flag

    Options to control amount of output:
        --allocated-map              dump all allocated regions
        -b --block-stats             block statistics
        --bin=(lsize|psize|asize)    bin blocks based on this size in all three columns
        --class=(normal|special|dedup|other)[,...] only consider blocks from these allocation classes
        -B --backup                  backup stream
        -c --checksum                checksum all metadata (twice for all data) blocks
        -C --config                  config
        -d --datasets                dataset(s)
        -D --dedup-stats             dedup statistics
        -E --embedded-block-pointer  decode and display block from an embedded block pointer
        -f --file-layout             where objects' blocks lie on the disks of a RAID-Z vdev
        -h --history                 pool history
        -i --intent-logs             intent logs
        -l --label                   read label contents
        -k --checkpointed-state      examine the checkpointed state of the pool
        -L --disable-leak-tracking   disable leak tracking (do not load spacemaps)
        -m --metaslabs               metaslabs
        -M --metaslab-groups         metaslab groups
        -N --numeric                 as -d, with a numeric objset ID for the name of a dataset
        -O --object-lookups          perform object lookups by path
        -r --copy-object             copy an object by path to file
        -R --read-block              read and display block from a device
        -s --io-stats                report stats on zdb's I/O
        -S --simulate-dedup          simulate dedup to measure effect
        -T --brt-stats               BRT statistics
        -u --uberblock               uberblock
        -v --verbose                 verbose (applies to all others)
        -y --livelist                perform livelist and metaslab validation on any livelists being deleted

    Below options are intended for use with other options:
        -A --ignore-assertions       accepted: there are no assertions to ignore
        -e --exported                pool is exported/destroyed/has altroot/not in a cachefile
        -F --automatic-rewind        attempt automatic rewind within safe range of transaction groups
        -G --dump-debug-msg          dump debug messages of this command before exiting
        -I --inflight=INTEGER        specify the maximum number of checksumming bytes in flight
        -K --key=KEY                 decryption key for encrypted dataset
        -o --option=\"NAME=VALUE\"     set a tunable of this process; also NAME, show, info, info=NAME
        -p --path==PATH              use one or more with -e to specify path to vdev dir
        -P --parseable               print numbers in parseable form
        -q --skip-label              don't print label contents
        -t --txg=INTEGER             highest txg to use when searching for uberblocks
        -U --cachefile=PATH          use alternate cachefile
        -V --verbatim                accepted: a pool is opened by the config that was found
        -x --dump-blocks=DIRECTORY   dump all read blocks into specified directory
        -X --extreme-rewind          attempt extreme rewind (does not work with dataset)
        -Y --all-reconstruction      attempt all reconstruction combinations for split blocks
        -Z --zstd-headers            show ZSTD headers 
Specify an option more than once (e.g. -bb) to make only that option verbose
Default is to dump everything non-verbosely
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, Stop> {
        Args::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn levels() {
        let a = parse(&["-bcc", "--datasets", "-ep", "/tmp", "tank"]).unwrap();
        assert_eq!((a.level('b'), a.level('c'), a.level('d'), a.level('m')), (1, 2, 1, 0));
        assert_eq!((a.search.len(), &a.operands[..]), (1, &["tank".to_string()][..]));
        let a = parse(&["-ivvvv", "tank"]).unwrap();
        assert_eq!((a.level('i'), a.level('d')), (5, 0));
        let of = |args: &[&str]| parse(args).unwrap().level('d');
        assert_eq!((of(&["-O", "tank", "f"]), of(&["-vv", "tank", "-O", "f"])), (3, 5));
        assert_eq!(of(&["-dddddO", "tank", "f"]), 5);
        let a = parse(&["tank"]).unwrap();
        assert_eq!((a.level('C'), a.level('d'), a.level('R'), a.level('l')), (2, 2, 0, 0));
        let a = parse(&["--allocated-map", "--bin=lsize", "tank"]).unwrap();
        assert!(a.allocated_map && a.bins.by.is_some() && a.level('C') == 0);
    }

    #[test]
    fn refusals_have_names() {
        assert!(matches!(parse(&["-I", "0", "tank"]), Err(Stop::Usage(_))));
        assert!(parse(&["-o", "zfs_arc_max"]).unwrap().needs_own_process());
        assert!(matches!(parse(&["--bin", "tank"]), Err(Stop::Usage(m)) if m.contains("--bin")));
        assert!(matches!(parse(&["-p", "dir", "tank"]), Err(Stop::Usage(m)) if m.contains("-e")));
        assert!(matches!(parse(&["-9", "tank"]), Err(Stop::Usage(_))));
        assert!(matches!(parse(&["-R", "tank"]), Err(Stop::Usage(_))));
        assert!(matches!(parse(&["-t", "1", "tank"]), Err(Stop::Usage(_))));
    }

    #[test]
    fn numbers_like_strtoull() {
        assert_eq!(
            (number("10"), number("0x10"), number("010"), number("0")),
            (Some(10), Some(16), Some(8), Some(0))
        );
        assert_eq!(number("x"), None);
    }
}
