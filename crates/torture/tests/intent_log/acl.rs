//! Records with NFSv4 lists and with owners of domains, as other systems write them. Nothing here makes such records, so
//! they are put into logs by hand. OpenZFS's `zdb` reads them, and what their replay leaves.

use crate::records::{begun, images, new, said_twice, saved};
use crate::{recover, world};
use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
use cenote_engine::Engine;
use cenote_format::ByteOrder;
use cenote_format::acl::{Ace, flag, kind};
use cenote_format::zil::{self, Acl, Body, Create, Creates, NewObject, Xvattr};
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{disks, judge, lab};
use cenote_zpl::{FileSystem, NewNode, NodeKind, SetAttr, SetXattr, Settings, Visibility};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// Somebody: a domain, or none for the ids of POSIX, and an id.
type Who<'a> = (Option<&'a str>, u32);

const DOMAINS: [&str; 3] = ["S-1-5-21-30-20-10", "S-1-5-21-1-2-3", "S-1-22-7"];
const ALICE: Who<'static> = (Some(DOMAINS[0]), 1001);
const BOB: Who<'static> = (Some(DOMAINS[0]), 1002);
const STAFF: Who<'static> = (Some(DOMAINS[1]), 513);
const ROOT: Who<'static> = (None, 0);
/// Objects that records make have this number and those above it.
const FIRST: u64 = 300;
/// Ids with this bit last as long as the system that gave them out.
const EPHEMERAL: u32 = 1 << 31;
/// `zp_flags`: the list says no more than the mode, it has entries to hand down, it is protected.
const TRIVIAL: u64 = 0x4;
const INHERIT: u64 = 0x2;
const PROTECTED: u64 = 0x10;

/// An entry of a list, and whom it names.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry<'a> {
    ace: Ace,
    who: Option<Who<'a>>,
}

fn entry(kind: u16, flags: u16, mask: u32, who: Option<Who<'_>>) -> Entry<'_> {
    Entry { ace: Ace { kind, flags, mask, who: None, objects: None }, who }
}

/// A list as a record has it.
#[derive(Default)]
struct Listed<'a> {
    aces: Vec<u8>,
    count: u64,
    flags: u64,
    fuids: Vec<u64>,
    domains: Vec<&'a str>,
}

impl<'a> Listed<'a> {
    /// The id of somebody in this record.
    fn id(&mut self, who: Who<'a>) -> u64 {
        let (Some(domain), rid) = who else { return who.1.into() };
        let known = self.domains.iter().position(|d| *d == domain);
        let place = known.unwrap_or_else(|| {
            self.domains.push(domain);
            self.domains.len() - 1
        });
        (place as u64 + 1) << 32 | u64::from(rid)
    }

    fn of(entries: &[Entry<'a>], flags: u64) -> Listed<'a> {
        let mut list = Listed { flags, count: entries.len() as u64, ..Listed::default() };
        for Entry { ace, who } in entries {
            let who = match who {
                Some((None, id)) => Some(*id),
                Some(who) => {
                    let fuid = list.id(*who);
                    list.fuids.push(fuid);
                    Some(EPHEMERAL + list.fuids.len() as u32)
                }
                None => None,
            };
            Ace { who: who.map(u64::from), ..*ace }.append_logged(&mut list.aces);
        }
        list
    }

    fn acl(&self) -> Acl<'_> {
        Acl {
            order: ByteOrder::Little,
            count: self.count,
            flags: self.flags,
            aces: &self.aces,
            fuids: self.fuids.clone(),
            domains: self.domains.iter().map(|d| d.as_bytes()).collect(),
        }
    }
}

/// A log that records are put into.
struct Log {
    engine: Arc<Engine>,
    disks: Vec<Arc<Disk>>,
    fs: Arc<FileSystem>,
    /// The group that is on disk.
    txg: u64,
}

impl Log {
    fn begin() -> Log {
        let (disks, engine, fs) = begun(world::settings(true));
        engine.sync().unwrap();
        fs.create(fs.root(), b"begin", &new(NodeKind::File)).unwrap();
        engine.commit(fs.objset().id()).unwrap();
        let txg = engine.pool().uberblock().txg;
        Log { engine, disks, fs, txg }
    }

    fn put(&self, body: &Body<'_>) {
        let live = self.engine.live(self.fs.objset().id()).unwrap();
        let put = live.transact::<_, WriteError>(Cost::default(), |os, _| os.log(body.clone()));
        put.unwrap();
    }

    /// The node of a file that is on disk.
    fn file(&self) -> u64 {
        self.fs.lookup(self.fs.root(), b"first").unwrap()
    }

    /// A record of a new object below the root directory, with a list or without one.
    fn create(&self, object: u64, make: &Make<'_>) {
        let name = format!("object {object}");
        let mut list = match make.list {
            Some((entries, flags)) => Listed::of(entries, flags),
            None => Listed::default(),
        };
        let (uid, gid) = (list.id(make.owners.0), list.id(make.owners.1));
        let new = NewObject {
            object,
            slots: 1,
            mode: make.mode.into(),
            uid,
            gid,
            generation: 7,
            crtime: [1_700_000_000, 5],
            rdev: 0,
        };
        let acl = make.list.map(|_| list.acl());
        let domains = match (&acl, make.what) {
            (Some(_), _) | (_, Creates::Symlink) => Vec::new(),
            _ => list.acl().domains,
        };
        let hidden = make.what == Creates::XattrDirectory;
        self.put(&Body::Create(Create {
            what: make.what,
            dir: if hidden { self.file() } else { self.fs.root() },
            new,
            attrs: make.attrs.clone(),
            acl,
            domains,
            name: if hidden { b"" } else { name.as_bytes() },
            target: if make.what == Creates::Symlink { b"target" } else { b"" },
        }));
    }

    /// What a crash leaves of the disks.
    fn crash(&self) -> Vec<Image> {
        self.engine.commit(self.fs.objset().id()).unwrap();
        assert_eq!(self.engine.pool().uberblock().txg, self.txg, "a commit waited for its group");
        images(&self.disks)
    }
}

/// What a record makes.
struct Make<'a> {
    what: Creates,
    mode: u32,
    owners: (Who<'a>, Who<'a>),
    list: Option<(&'a [Entry<'a>], u64)>,
    attrs: Option<Xvattr>,
}

const FILE: Make<'static> =
    Make { what: Creates::File, mode: 0o100_640, owners: (ALICE, STAFF), list: None, attrs: None };

/// Somebody who was found.
type FoundWho = (Option<String>, u32);

/// What there is of a node.
#[derive(Debug, PartialEq)]
struct Found {
    mode: u32,
    owners: [FoundWho; 2],
    /// Those of the list.
    flags: u64,
    entries: Vec<(Ace, Option<FoundWho>)>,
}

fn named(fs: &FileSystem, fuid: u64) -> FoundWho {
    let domain = fs.domain_of(fuid).unwrap();
    assert_eq!(domain.is_some(), fuid >> 32 != 0, "{fuid:#x} of no domain");
    (domain, fuid as u32)
}

fn owned((domain, id): Who<'_>) -> FoundWho {
    (domain.map(str::to_owned), id)
}

fn find(fs: &FileSystem, ino: u64) -> Found {
    let (attr, stored) = (fs.attr(ino).unwrap(), fs.stored_attrs(ino).unwrap());
    // Linux has no numbers for those of domains.
    for (shown, stored) in [(attr.uid, stored.uid), (attr.gid, stored.gid)] {
        assert_eq!(shown, u32::try_from(stored).unwrap_or(65534));
    }
    let entries = fs.nfs4_acl(ino).unwrap();
    let whom = |ace: Ace| (Ace { who: None, ..ace }, ace.who.map(|who| named(fs, who)));
    Found {
        mode: attr.mode,
        owners: [named(fs, stored.uid), named(fs, stored.gid)],
        flags: attr.flags & 0x7e,
        entries: entries.into_iter().map(whom).collect(),
    }
}

/// What there should be of a node that had the mode `old`, with this list.
fn expect(entries: &[Entry<'_>], old: u32, owners: (Who<'_>, Who<'_>), flags: u64) -> Found {
    let mut mode = old & !0o777;
    for (class, shift) in [(flag::OWNER, 6), (flag::OWNING_GROUP, 3), (flag::EVERYONE, 0)] {
        let is_about = |entry: &&Entry<'_>| match entry.ace.about() {
            0 => class == flag::OWNER && entry.who == Some(owners.0),
            flag::IDENTIFIER_GROUP => class == flag::OWNING_GROUP && entry.who == Some(owners.1),
            about => about == class || about == flag::EVERYONE,
        };
        let counts = entries.iter().filter(|e| e.ace.flags & flag::INHERIT_ONLY == 0);
        let about: Vec<_> = counts.filter(is_about).collect();
        for (permission, bit) in [(0x1, 4), (0x2, 2), (0x20, 1)] {
            let first = about.iter().find(|e| e.ace.mask & permission != 0);
            mode |= first.map_or(0, |e| (u32::from(e.ace.kind == kind::ALLOWED) * bit) << shift);
        }
    }
    let entries = entries.iter().map(|e| (e.ace, e.who.map(owned))).collect();
    Found { mode, owners: [owned(owners.0), owned(owners.1)], flags, entries }
}

/// A list that gives the owner all, a user of a domain and a group something, and everyone the rest.
const PLAIN: [Ace; 4] = {
    let ace = Ace { kind: kind::ALLOWED, flags: 0, mask: 0x1, who: None, objects: None };
    [
        Ace { flags: flag::OWNER, mask: 0x1f_01bf, ..ace },
        Ace { kind: kind::DENIED, mask: 0x20, ..ace },
        Ace { flags: flag::IDENTIFIER_GROUP, mask: 0x3, ..ace },
        Ace { flags: flag::EVERYONE, mask: 0x12_00a9, ..ace },
    ]
};

fn plain() -> [Entry<'static>; 4] {
    let who = [None, Some(BOB), Some(STAFF), None];
    std::array::from_fn(|i| Entry { ace: PLAIN[i], who: who[i] })
}

/// Lists and owners in records of all types that may have them.
fn one_of_each(log: &Log) -> Vec<(u64, Found)> {
    let list = plain();
    let down = Entry { ace: Ace { flags: flag::FILE_INHERIT, ..PLAIN[2] }, who: Some((None, 77)) };
    let directory = [list[0], down, list[3]];
    let words = |requested: u32| vec![requested, 0, 0];
    let hidden = Xvattr { requested: words(0x10), flags: 0x10, crtime: [0; 2], scanstamp: [0; 32] };
    let made = [
        Make { ..FILE },
        Make { what: Creates::Directory, mode: 0o042_775, ..FILE },
        Make { list: Some((&list, 0)), ..FILE },
        Make { list: Some((&list, 2)), attrs: Some(hidden.clone()), ..FILE },
        Make { what: Creates::Directory, mode: 0o40_000, list: Some((&directory, 0)), ..FILE },
        Make { list: Some((&directory, 0)), attrs: Some(hidden), owners: (ROOT, STAFF), ..FILE },
        // Without entries: the record has a list for the sake of its domains.
        Make { list: Some((&[], 0)), ..FILE },
        Make { what: Creates::XattrDirectory, mode: 0o041_777, ..FILE },
        Make { what: Creates::Symlink, mode: 0o120_777, ..FILE },
    ];
    let mut all = Vec::new();
    for (make, object) in made.iter().zip(FIRST..) {
        log.create(object, make);
        let expected = match make.list {
            Some((entries, _)) if !entries.is_empty() => {
                let flags = match (make.what, &make.attrs) {
                    (Creates::Directory, _) => INHERIT,
                    (_, Some(_)) if make.owners.0 == ALICE => PROTECTED,
                    _ => 0,
                };
                expect(entries, make.mode, make.owners, flags)
            }
            _ => {
                let owner = |who| match make.what {
                    Creates::Symlink => (None, 65534),
                    _ => owned(who),
                };
                let owners = [owner(make.owners.0), owner(make.owners.1)];
                let is_dir = make.mode & 0o170_000 == 0o40_000;
                let flags = if is_dir { TRIVIAL | 0x40 } else { TRIVIAL };
                Found { mode: make.mode, owners, flags, entries: Vec::new() }
            }
        };
        all.push((object, expected));
    }
    all
}

/// Records of one object, which is there.
fn of_one_object(log: &Log, object: u64) -> Found {
    let set = |mask, uid, gid, domains| {
        let (mode, size, times) = (0o4710, 0, [0; 2]);
        Body::SetAttr(zil::SetAttr {
            object,
            mask,
            mode,
            uid,
            gid,
            size,
            atime: times,
            mtime: times,
            attrs: None,
            domains,
        })
    };
    let [alice, staff] = [ALICE, STAFF].map(|(domain, _)| domain.unwrap().as_bytes());
    // Of Linux, and of other systems: mode; owner and group.
    let uid = zil::SetAttr::UID | zil::SetAttr::CTIME;
    let (mode, both) = (0x2, 0x4 | 0x8);
    log.put(&set(uid, 1 << 32 | u64::from(BOB.1), 0, vec![alice]));
    log.put(&set(mode, 0, 0, vec![]));
    log.put(&set(both, 1 << 32 | 1001, 2 << 32 | 513, vec![alice, staff]));
    // An old list, and one in its place.
    let old = [entry(kind::ALLOWED, 0, 0x3, Some((None, 5))), plain()[3]];
    let mut aces = Listed::of(&old, 0).aces;
    aces.resize(aces.len().next_multiple_of(8), 0);
    log.put(&Body::AclV0 { object, order: ByteOrder::Little, count: 2, aces: &aces });
    log.put(&Body::Acl { object, acl: Listed::of(&plain(), 0x2).acl() });
    expect(&plain(), 0o104_710, (ALICE, STAFF), PROTECTED)
}

fn check(fs: &FileSystem, expected: &[(u64, Found)]) {
    for (ino, expected) in expected {
        let mut found = find(fs, *ino);
        if expected.flags & TRIVIAL != 0 {
            assert!((3..=6).contains(&found.entries.len()), "{ino}: {found:?}");
            found.entries.clear();
        }
        assert_eq!(found, *expected, "object {ino}");
    }
}

/// What OpenZFS's `zdb` says of these objects, and ours too.
fn alike(dir: &Path, objects: &[u64]) -> Vec<String> {
    // 2.1 does not show projects.
    let shown = |line: &String| !line.is_empty() && !line.starts_with("\tprojid");
    let said = said_twice(dir, "-dddd", objects);
    let [theirs, ours] = said.map(|lines| lines.into_iter().filter(shown).collect::<Vec<_>>());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
    theirs
}

/// Lists and owners are what the records say; OpenZFS's `zdb` prints the records, and afterwards owners with their
/// domains from the table.
#[test]
fn lists_and_owners_of_domains_are_replayed() {
    let log = Log::begin();
    let mut expected = one_of_each(&log);
    let file = log.file();
    expected.push((file, of_one_object(&log, file)));
    let crashed = disks(&log.crash(), None);
    let [theirs, ours] = said_twice(saved(&log.disks).path(), "-iiii", &[]);
    assert_eq!(ours, theirs);
    let kinds =
        ["CREATE", "CREATE_ACL", "CREATE_ACL_ATTR", "MKDIR", "MKDIR_ACL", "ACL_V0", "ACL_ACL"];
    for kind in kinds {
        let is = |line: &String| line.trim().starts_with(&format!("TX_{kind} "));
        assert!(theirs.iter().any(is), "{kind}: {theirs:?}");
    }
    let (again, records) = recover(&crashed, 1);
    assert_eq!(records, 1 + expected.len() - 1 + 5);
    let fs = world::root(&again, true);
    check(&fs, &expected);
    again.export(false).unwrap();
    judge(&images(&crashed)).unwrap();
    let dir = saved(&crashed);
    let objects: Vec<u64> = expected.iter().map(|(object, _)| *object).collect();
    let theirs = alike(dir.path(), &objects);
    for (line, count) in [
        ("uid     1000003e9 [S-1-5-21-30-20-10-1001]", 8),
        ("gid     200000201 [S-1-5-21-1-2-3-513]", 9),
        ("uid     65534", 1),
        ("uid     0", 1),
    ] {
        let found = theirs.iter().filter(|l| l.trim() == line).count();
        assert!(found == count, "{line}: {found}: {theirs:?}");
    }
    // The table itself: its place is above the objects of the log.
    let [master, _] = said_twice(dir.path(), "-dddd", &[1]);
    let table = master.iter().find_map(|l| l.trim().strip_prefix("FUID = ")).unwrap();
    assert_eq!(table.parse::<u64>().unwrap(), FIRST + 9);
    let theirs = alike(dir.path(), &[FIRST + 9]);
    for domain in &DOMAINS[..2] {
        let line = format!("fuid_domain: '{domain}'");
        assert!(theirs.iter().any(|l| l.trim() == line), "{line}: {theirs:?}");
    }
    log.engine.export(false).unwrap();
}

/// A number of the POSIX world where the log has no FUIDs, however large; entries with types of objects; a list
/// that has no room in the dnode.
#[test]
fn lists_of_all_sizes_are_replayed() {
    let log = Log::begin();
    let large = entry(kind::ALLOWED, 0, 0x1, Some((None, u32::MAX - 1)));
    let mut objects = entry(kind::ALLOWED_OBJECT, flag::IDENTIFIER_GROUP, 0x3, Some((None, 9)));
    objects.ace.objects = Some(std::array::from_fn(|i| i as u8));
    let everyone = entry(kind::ALLOWED, flag::EVERYONE, 0x21, None);
    let mut expected = Vec::new();
    for (count, object) in [0, 1, 7, 100, 1022].into_iter().zip(FIRST..) {
        let mut list = vec![objects; count];
        list.extend([large, everyone]);
        log.create(object, &Make { list: Some((&list, 0)), owners: (ROOT, ROOT), ..FILE });
        let flags = if count > 0 { 0x8 } else { 0 };
        expected.push((object, expect(&list, FILE.mode, (ROOT, ROOT), flags)));
    }
    // From a spill block and back.
    log.put(&Body::Acl { object: FIRST + 4, acl: Listed::of(&[everyone], 0).acl() });
    expected[4].1 = expect(&[everyone], FILE.mode, (ROOT, ROOT), TRIVIAL);
    expected[4].1.entries.clear();
    let crashed = disks(&log.crash(), None);
    let (again, records) = recover(&crashed, 1);
    assert_eq!(records, 7);
    let fs = world::root(&again, true);
    assert_eq!(fs.nfs4_acl(FIRST + 4).unwrap(), [everyone.ace]);
    check(&fs, &expected[..4]);
    assert_eq!(find(&fs, FIRST + 4).mode, expected[4].1.mode);
    again.export(false).unwrap();
    judge(&images(&crashed)).unwrap();
    log.engine.export(false).unwrap();
}

/// A list that a program set, files that took over entries of it, and changes of modes are what they were after a crash.
#[test]
fn lists_that_programs_set_are_replayed() {
    const NAME: &[u8] = b"system.nfs4_acl_xdr";
    let settings = || {
        let usual = world::settings(true);
        let visibility = Visibility { posix_acl: false, nfs4_acl: true, ..usual.visibility };
        Settings { visibility, ..usual }
    };
    let (original, engine, fs) = begun(settings());
    engine.sync().unwrap();
    fs.create(fs.root(), b"begin", &new(NodeKind::File)).unwrap();
    engine.commit(fs.objset().id()).unwrap();
    let owner: [u32; 5] = [0, 3, 1, 0x1e_01ff, 1];
    let named: [u32; 5] = [0, 0x43, 0, 0x12_0089, 77];
    let words = [&[2, 2][..], &owner, &named].concat();
    let value: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    let set = |ino| fs.set_xattr(ino, NAME, &value, SetXattr::default()).unwrap();
    let dir = fs.create(fs.root(), b"dir", &new(NodeKind::Dir)).unwrap().ino;
    set(dir);
    let taken = fs.create(dir, b"taken", &new(NodeKind::File)).unwrap().ino;
    let below = fs.create(dir, b"below", &new(NodeKind::Dir)).unwrap().ino;
    let changed = fs.create(dir, b"changed", &new(NodeKind::File)).unwrap().ino;
    let mode = SetAttr { mode: Some(0o751), ..SetAttr::default() };
    fs.setattr(changed, &mode).unwrap();
    let plain = fs.create(fs.root(), b"plain", &new(NodeKind::File)).unwrap().ino;
    set(plain);
    fs.remove_xattr(plain, NAME).unwrap();
    engine.commit(fs.objset().id()).unwrap();
    let all = [dir, taken, below, changed, plain];
    // A record says what mode became of a list that was taken over, not which was asked for: of the entries that stand for
    // the mode those about permissions which others decide are that mode's.
    let look = |fs: &FileSystem, ino| {
        let attr = fs.attr(ino).unwrap();
        let mut list = fs.nfs4_acl(ino).unwrap();
        if ino == taken || ino == below || ino == changed {
            list.retain(|ace| ace.flags & 0x80 != 0);
        }
        (list, attr.mode, attr.flags & 0xffff)
    };
    let before: Vec<_> = all.iter().map(|ino| look(&fs, *ino)).collect();
    assert_eq!(before[1].0.len(), 2);
    assert!(before[1].0.iter().any(|ace| ace.who == Some(77)));
    let crashed = disks(&images(&original), None);
    let said = cenote_testpools::zdb(saved(&crashed).path(), "tank", &["-iiii"]);
    assert!(said.contains("TX_ACL_ACL "), "{said}");
    let lab = lab(&crashed);
    let again = lab.import(&lab.find().unwrap()).unwrap();
    assert_eq!(cenote::contents::replay_logs(&again, &|_, _| true).unwrap(), []);
    let replayed = world::root(&again, true);
    for (ino, before) in all.iter().zip(&before) {
        assert_eq!(&look(&replayed, *ino), before, "object {ino}");
    }
    again.export(false).unwrap();
    judge(&images(&crashed)).unwrap();
    engine.export(false).unwrap();
}

/// A list at random, of what may be.
fn random(rng: &mut SmallRng) -> Vec<Entry<'static>> {
    let mut pick = |from: &[u16]| from[rng.random_range(0..from.len())];
    let about = [flag::OWNER, flag::OWNING_GROUP, flag::EVERYONE, flag::IDENTIFIER_GROUP, 0];
    let kinds = [0, 0, 0, 1, 1, kind::AUDIT, kind::ALARM, kind::ALLOWED_OBJECT, 6, 0x9];
    let inherit = [0, 0, 0, 1, 2, 3, 7, 9, 0x80];
    let parts: Vec<_> = (0..pick(&[1, 2, 3, 5, 9, 30]))
        .map(|_| (pick(&kinds), pick(&about), pick(&inherit)))
        .collect();
    let people = [ALICE, BOB, STAFF, ROOT, (None, 7), (Some(DOMAINS[2]), 0)];
    let one = |(kind, about, more): (u16, u16, u16)| {
        let names = matches!(about, 0 | flag::IDENTIFIER_GROUP);
        let objects = matches!(kind, 5..=8).then(|| rng.random());
        let ace = Ace { kind, flags: about | more, mask: rng.random(), who: None, objects };
        let who = names.then(|| people[rng.random_range(0..people.len())]);
        Entry { ace, who }
    };
    parts.into_iter().map(one).collect()
}

/// What is stored of lists at random is what the records had, whether an object got them with or after its
/// creation, one list or several; also after crashes during the replay.
#[test]
fn random_lists_are_replayed() {
    for seed in crate::seeds(0..3) {
        let _seed = Seed(format!("seed {seed}"));
        let mut rng = SmallRng::seed_from_u64(seed);
        let log = Log::begin();
        let mut expected = Vec::new();
        for object in FIRST..FIRST + 25 {
            let is_dir = rng.random_ratio(1, 3);
            let (what, mode) = match is_dir {
                true => (Creates::Directory, 0o040_000),
                false => (Creates::File, 0o106_000),
            };
            let mut list = random(&mut rng);
            let owners = [(ALICE, STAFF), (ROOT, STAFF), (BOB, ROOT)][rng.random_range(0..3)];
            log.create(object, &Make { what, mode, owners, list: Some((&list, 0)), attrs: None });
            for _ in 0..rng.random_range(0..3) {
                list = random(&mut rng);
                log.put(&Body::Acl { object, acl: Listed::of(&list, 0).acl() });
            }
            let has = |is: &dyn Fn(&Entry<'_>) -> bool| list.iter().any(is);
            let inherits = is_dir && has(&|e| e.ace.flags & 3 != 0);
            let objects = has(&|e| e.ace.objects.is_some());
            let flags = if inherits { INHERIT } else { 0 } | if objects { 0x8 } else { 0 };
            expected.push((object, expect(&list, mode, owners, flags)));
        }
        let image = log.crash();
        // Those that say no more than a mode are told apart by other tests.
        let check = |fs: &FileSystem| {
            for (ino, expected) in &expected {
                let mut found = find(fs, *ino);
                found.flags &= !TRIVIAL;
                assert_eq!(found, *expected, "object {ino}");
            }
        };
        let journal = Arc::new(Journal::default());
        let crashed = disks(&image, Some(&journal));
        let (again, _) = recover(&crashed, 1);
        check(&world::root(&again, true));
        let end = journal.len();
        again.export(false).unwrap();
        judge(&images(&crashed)).unwrap();
        for round in 0..6 {
            let mut replay = Replay::new(image.clone(), &journal);
            replay.advance(rng.random_range(0..=end));
            let crashed = disks(&replay.crash(rng.random()), None);
            let (again, _) = recover(&crashed, round);
            check(&world::root(&again, true));
            again.export(false).unwrap();
            if round == 0 {
                judge(&images(&crashed)).unwrap();
            }
        }
        log.engine.export(false).unwrap();
    }
}

/// A replay that ends after each few records, and goes on with the next import, gives the same.
#[test]
fn a_replay_of_lists_goes_on_where_it_was() {
    let log = Log::begin();
    let mut expected = one_of_each(&log);
    let file = log.file();
    expected.push((file, of_one_object(&log, file)));
    let crashed = disks(&log.crash(), None);
    let mut imports = 0;
    loop {
        let lab = lab(&crashed);
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        let left = cenote::contents::replay_logs(&engine, &|_, done| done.records < 2).unwrap();
        imports += 1;
        if left.is_empty() {
            check(&world::root(&engine, true), &expected);
            engine.export(false).unwrap();
            break;
        }
        assert!(left[0].why.contains("interrupted"), "{left:?}");
        drop(engine);
    }
    assert!(imports > 5, "{imports}");
    judge(&images(&crashed)).unwrap();
    log.engine.export(false).unwrap();
}

/// What is made of files whose owners are of domains is in the log, as it was before.
#[test]
fn owners_of_domains_are_logged() {
    let log = Log::begin();
    log.create(FIRST, &Make { what: Creates::Directory, mode: 0o042_775, ..FILE });
    log.create(FIRST + 1, &FILE);
    let crashed = disks(&log.crash(), None);
    let (engine, _) = recover(&crashed, 1);
    engine.sync().unwrap();
    let fs = world::root(&engine, false);
    let id = fs.objset().id();
    fs.create(fs.root(), b"begin again", &new(NodeKind::File)).unwrap();
    engine.commit(id).unwrap();
    let made = |name: &[u8], kind| {
        let node = NewNode { kind, mode: 0o640, umask: 0, uid: 5, gid: 6, keep_setgid: true };
        fs.create(FIRST, name, &node).unwrap().ino
    };
    let (file, dir) = (made(b"file", NodeKind::File), made(b"dir", NodeKind::Dir));
    fs.set_xattr(FIRST + 1, b"user.x", b"value", SetXattr::default()).unwrap();
    let txg = engine.pool().uberblock().txg;
    engine.commit(id).unwrap();
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let crashed = disks(&images(&crashed), None);
    let (again, records) = recover(&crashed, 1);
    assert!(records >= 3, "{records}");
    let found = world::root(&again, false);
    for ino in [file, dir] {
        assert_eq!(find(&found, ino).owners, [(None, 5), owned(STAFF)]);
    }
    assert_eq!(found.getxattr(FIRST + 1, b"user.x").unwrap().unwrap(), b"value");
    let hidden = found.stored_attrs(FIRST + 1).unwrap().xattr.unwrap();
    assert_eq!(find(&found, hidden).owners, [owned(ALICE), owned(STAFF)]);
    again.export(false).unwrap();
    judge(&images(&crashed)).unwrap();
    // The record of a link has no domains: it waits for its group.
    made(b"link", NodeKind::Symlink(b"target".to_vec()));
    engine.commit(id).unwrap();
    assert!(engine.pool().uberblock().txg > txg);
    engine.export(false).unwrap();
    log.engine.export(false).unwrap();
}

impl Log {
    /// A log of a pool that was imported, whose logs are replayed.
    fn begin_again(engine: Arc<Engine>, disks: Vec<Arc<Disk>>) -> Log {
        engine.sync().unwrap();
        let fs = world::root(&engine, true);
        let name = format!("begin {}", engine.pool().uberblock().txg);
        fs.create(fs.root(), name.as_bytes(), &new(NodeKind::File)).unwrap();
        engine.commit(fs.objset().id()).unwrap();
        let txg = engine.pool().uberblock().txg;
        Log { engine, disks, fs, txg }
    }

    /// Crashes; the replay is refused and says why.
    fn refused(&self, why: &str) -> Vec<Arc<Disk>> {
        let crashed = disks(&self.crash(), None);
        let lab = lab(&crashed);
        let again = lab.import(&lab.find().unwrap()).unwrap();
        let left = cenote::contents::replay_logs(&again, &|_, _| true).unwrap();
        assert!(left.len() == 1 && left[0].why.contains(why), "{why}: {left:?}");
        again.export(false).unwrap();
        crashed
    }
}

/// A table of domains that makes no sense is not changed, and not shown.
#[test]
fn a_damaged_table_of_domains_is_refused_by_name() {
    let log = Log::begin();
    log.create(FIRST, &FILE);
    let crashed = disks(&log.crash(), None);
    let (engine, _) = recover(&crashed, 1);
    let again = Log::begin_again(engine, crashed);
    let live = again.engine.live(again.fs.objset().id()).unwrap();
    let spoil = live.transact::<_, WriteError>(Cost::default(), |os, _| {
        os.log_nothing();
        os.write(FIRST + 1, 20, &[0xff; 40])
    });
    spoil.unwrap();
    let again = Log::begin_again(again.engine, again.disks);
    again.create(FIRST + 2, &Make { owners: (BOB, ROOT), ..FILE });
    again.refused("table of domains");
    let owner = again.fs.stored_attrs(FIRST).unwrap().uid;
    let said = again.fs.domain_of(owner).unwrap_err().to_string();
    assert!(said.contains("table of domains"), "{said}");
    again.engine.export(false).unwrap();
    log.engine.export(false).unwrap();
}

/// A record that makes no sense ends the replay with an error that says so; what was there before stays.
#[test]
fn damaged_records_are_refused_by_name() {
    let list = Listed::of(&plain(), 0);
    let acl = list.acl();
    let unknown = Listed::of(&[entry(0x11, flag::EVERYONE, 1, None)], 0);
    let whom = Listed::of(&[entry(0, flag::OWNER | flag::EVERYONE, 1, None)], 0);
    let inherit = Listed::of(&[entry(0, flag::EVERYONE | flag::INHERIT_ONLY, 1, None)], 0);
    let cut = &acl.aces[..acl.aces.len() - 4];
    let fuids = |fuids: &[u64]| Acl { fuids: fuids.to_vec(), ..acl.clone() };
    let cases = [
        (Acl { count: 5, ..acl.clone() }, "NFSv4 ACL"),
        (Acl { count: 3, ..acl.clone() }, "3 entries in 48 bytes"),
        (Acl { count: u64::MAX, ..acl.clone() }, "entries"),
        (Acl { count: 0, aces: &[], fuids: vec![], ..acl.clone() }, "without entries"),
        (Acl { aces: cut, ..acl.clone() }, "NFSv4 ACL"),
        (unknown.acl(), "type 17"),
        (whom.acl(), "flags 0x5000"),
        (inherit.acl(), "flags 0x4008"),
        (fuids(&acl.fuids[..1]), "too few FUIDs"),
        (fuids(&[acl.fuids[0], acl.fuids[1], 7]), "more FUIDs"),
        (fuids(&[acl.fuids[0], 3 << 32 | 7]), "domain 3 where there are 2"),
        (Acl { domains: vec![b"S-1", b"\xff\xfe"], ..acl.clone() }, "a domain"),
    ];
    let log = Log::begin();
    let begun = log.crash();
    for (acl, why) in cases {
        let disks = disks(&begun, None);
        let (engine, _) = recover(&disks, 1);
        let log = Log::begin_again(engine, disks);
        let before = find(&log.fs, log.file());
        log.put(&Body::Acl { object: log.file(), acl });
        let pool = lab(&log.refused(why)).look().unwrap();
        let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
        assert_eq!(find(&FileSystem::open(set).unwrap(), log.file()), before);
        log.engine.export(false).unwrap();
    }
    log.engine.export(false).unwrap();
}
