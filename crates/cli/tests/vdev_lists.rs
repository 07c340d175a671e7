//! What `zpool` shows of the devices of pools: in lists, when they have grown, when they are shared,
//! when they are not what they were. OpenZFS's `zdb` has the last word on every pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Done, Session};
use std::fs;
use std::path::PathBuf;

const SIZE: u64 = 128 << 20;

/// A place with sparse files to make pools of; words of one letter in a command are these files.
struct Place {
    s: Session,
}

impl Place {
    fn new() -> Place {
        let s = Session::new();
        fs::create_dir(s.path("dev")).unwrap();
        Place { s }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.s.path("dev").join(name)
    }

    /// Makes a file this large, which may be there already.
    fn resize(&self, name: &str, size: u64) {
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(false);
        options.open(self.file(name)).unwrap().set_len(size).unwrap();
    }

    fn run(&self, line: &str) -> Done {
        let word = |word: &str| match word.len() {
            1 => {
                if !self.file(word).exists() {
                    self.resize(word, SIZE);
                }
                self.file(word).to_str().unwrap().to_string()
            }
            _ => word.replace("DIR", self.s.path("dev").to_str().unwrap()),
        };
        self.s.run(&line.split_whitespace().map(word).collect::<Vec<_>>().join(" "))
    }

    /// The columns of the line about a file, or about another vdev.
    fn columns(&self, text: &str, name: &str) -> Vec<String> {
        let name = match name.len() {
            1 => self.file(name).to_str().unwrap().to_string(),
            _ => name.to_string(),
        };
        let mut lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|l| l.first() == Some(&name.as_str()));
        line.unwrap_or_else(|| panic!("{name}: {text}"))[1..]
            .iter()
            .map(|w| w.to_string())
            .collect()
    }

    /// Exports a pool, which OpenZFS finds nothing wrong with.
    #[track_caller]
    fn judge(&self, pool: &str) {
        self.run(&format!("zpool export {pool}")).ok();
        cenote_testpools::judge(&self.s.path("dev"), pool);
    }
}

#[test]
fn cache_devices_and_spares_are_listed_with_their_states() {
    let p = Place::new();
    p.run("zpool create -m none tank a cache h i spare s").ok();
    p.run("zpool export tank").ok();
    fs::remove_file(p.file("i")).unwrap();
    p.run("zpool import -d DIR tank").ok();
    let list = p.run("zpool list -v tank").ok();
    // Some blocks may have come there by now.
    let cache = ["-", "-", "0%", "0.00%", "-", "ONLINE", "-"];
    assert_eq!(p.columns(&list, "h")[0], "128M");
    assert_eq!(p.columns(&list, "h")[3..], cache);
    let gone = ["-", "-", "-", "-", "-", "-", "-", "-", "UNAVAIL", "-"];
    let path = p.s.path("dev").join("i");
    assert_eq!(p.columns(&list, path.to_str().unwrap()), gone);
    let spare = ["128M", "-", "-", "-", "-", "-", "-", "-", "AVAIL", "-"];
    assert_eq!(p.columns(&list, "s"), spare);
    let list = p.run("zpool list -vHp -o name,size,free,health tank").ok();
    let of_cache = p.columns(&list, "h");
    let free: u64 = of_cache[1].parse().unwrap();
    assert!((128_000_000..=129_499_136).contains(&free), "{list}");
    assert_eq!([&of_cache[0], &of_cache[2]], ["134217728", "ONLINE"]);
    assert_eq!(p.columns(&list, "s"), ["134217728", "-", "AVAIL"]);
    let rates = p.run("zpool iostat -v tank").ok();
    assert!(["123M", "124M"].contains(&p.columns(&rates, "h")[1].as_str()), "{rates}");
    assert_eq!(p.columns(&rates, path.to_str().unwrap()), ["-", "-", "0", "0", "0", "0"]);
    p.judge("tank");
}

#[test]
fn rates_of_single_vdevs() {
    let p = Place::new();
    p.run("zpool create -m none tank mirror a b mirror c d cache h").ok();
    p.run("zpool create -m none pond mirror e f").ok();
    p.run("zfs create tank/one").ok();
    p.run("zpool sync tank").ok();
    let path = |name: &str| p.file(name).to_str().unwrap().to_string();
    // Only they, with nothing around them.
    let rates = p.run("zpool iostat tank mirror-1").ok();
    let lines: Vec<&str> = rates.lines().collect();
    assert_eq!(lines.len(), 5, "{rates}");
    assert!(lines[1].starts_with("vdev  ") && lines[3].starts_with("mirror-1  "), "{rates}");
    assert!(lines[2].chars().all(|c| "- ".contains(c)) && lines[2] == lines[4], "{rates}");
    assert!(lines[3].len() == lines[2].len(), "{rates}");
    let writes: u64 =
        p.columns(&p.run("zpool iostat -p mirror-1").ok(), "mirror-1")[3].parse().unwrap();
    assert!(writes > 0);
    let first = |line: &str| {
        let text = p.run(line).ok();
        let names = text.lines().map(|l| l.split('\t').next().unwrap().to_string());
        names.collect::<Vec<_>>()
    };
    // By any name, in the order of the pools, of one pool or of all.
    assert_eq!(first("zpool iostat -H tank mirror-0"), ["mirror-0"]);
    assert_eq!(first("zpool iostat -H mirror-0"), ["mirror-0", "mirror-0"]);
    assert_eq!(first("zpool iostat -Hv tank d mirror-0"), ["mirror-0".into(), path("d")]);
    assert_eq!(first("zpool iostat -H e a"), [path("e"), path("a")]);
    assert_eq!(first("zpool iostat -Hlq tank h"), [path("h")]);
    let guids = p.run("zpool status -g tank").ok();
    let guids = guids.lines().skip_while(|l| !l.contains("NAME")).skip(2);
    let guid = guids.map(|l| l.split_whitespace().next().unwrap()).next().unwrap();
    assert_eq!(first(&format!("zpool iostat -H tank {guid}")), ["mirror-0"]);
    assert_eq!(first(&format!("zpool iostat -gH {guid}")), [guid]);
    assert_eq!(first(&format!("zpool iostat -gH tank {guid} 0.05 02")), [guid, guid]);
    assert_eq!(first("zpool iostat -Hy tank mirror-0 0.05 01"), ["mirror-0"]);
    let wide = p.run("zpool iostat -Hw tank mirror-0").ok();
    assert!(wide.starts_with("\nmirror-0\n"), "{wide}");
    // Anything else is no list of vdevs.
    let refused = p.run("zpool iostat tank e mirror-0 pond nope").fails(2);
    let expected = format!(
        "Expected either a list of pools, or list of vdevs in \"tank\", but got:\n\
         \t{} (vdev in another pool)\n\tmirror-0 (vdev in this pool)\n\tpond (pool)\n\
         \tnope (unknown)\n\nusage:",
        path("e")
    );
    assert!(refused.starts_with(&expected), "{refused}");
    p.judge("tank");
    p.judge("pond");
}

#[test]
fn grown_vdevs_say_by_how_much() {
    let p = Place::new();
    p.run("zpool create -f -m none tank raidz a b c mirror d e").ok();
    p.run("zpool export tank").ok();
    for name in ["a", "b", "c"] {
        p.resize(name, 400 << 20);
    }
    p.run("zpool import -d DIR tank").ok();
    let of = |name| p.columns(&p.run("zpool list -v -o name,expandsize tank").ok(), name);
    assert_eq!(of("raidz1-0"), ["800M"]);
    assert_eq!(of("mirror-1"), ["-"]);
    assert_eq!(of("a"), ["-"]);
    assert_eq!(of("tank"), ["800M"]);
    p.judge("tank");
}

#[test]
fn properties_are_passed_over_when_a_pool_is_imported_read_only() {
    let p = Place::new();
    p.run("zpool create -m none -o comment=old tank a").ok();
    p.run("zpool export tank").ok();
    p.run("zpool import -d DIR -o readonly=on -o comment=new tank").ok();
    assert_eq!(p.run("zpool get -Ho value comment tank").ok(), "old\n");
    p.run("zpool export tank").ok();
    p.run("zpool import -d DIR -o comment=new tank").ok();
    assert_eq!(p.run("zpool get -Ho value comment tank").ok(), "new\n");
    p.judge("tank");
}

#[test]
fn imports_are_in_the_internal_history() {
    let p = Place::new();
    p.run("zpool create -m none tank a").ok();
    p.run("zpool export tank").ok();
    p.run("zpool import -d DIR tank").ok();
    let history = p.run("zpool history -i tank").ok();
    let versions = history.lines().filter(|l| l.contains(" pool version 5000; "));
    let what: Vec<&str> = versions.map(|l| l.split(' ').nth(2).unwrap()).collect();
    assert_eq!(what, ["create", "open", "import"]);
    p.judge("tank");
}

#[test]
fn devices_whose_label_is_gone_are_described_alike_before_and_after_the_import() {
    let p = Place::new();
    p.run("zpool create -m none tank mirror a b").ok();
    p.run("zpool export tank").ok();
    p.resize("b", 0);
    p.resize("b", SIZE);
    let listed = p.run("zpool import -d DIR").ok();
    assert!(listed.contains("invalid label") && listed.contains("ZFS-8000-4J"), "{listed}");
    for options in ["-o readonly=on", ""] {
        p.run(&format!("zpool import -d DIR {options} tank")).ok();
        let status = p.run("zpool status tank").ok();
        assert!(status.contains("because the label is missing or\n\tinvalid."), "{status}");
        assert!(status.contains("ZFS-8000-4J"), "{status}");
        p.run("zpool export tank").ok();
    }
    // The pool has not kept the device.
    p.run("zpool import -d DIR tank").ok();
    p.run("zpool create -m none other b").ok();
    p.judge("other");
    p.judge("tank");
}

#[test]
fn devices_that_the_search_does_not_come_upon_are_found_where_they_were() {
    let p = Place::new();
    let aside = p.s.path("aside").display().to_string();
    fs::File::create(&aside).unwrap().set_len(SIZE).unwrap();
    let [log, cache, spare] = ["log", "cache", "spare"].map(|name| {
        let path = p.s.path(name).display().to_string();
        fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        path
    });
    let others = format!("log {log} cache {cache} spare {spare}");
    p.run(&format!("zpool create -m none tank mirror a {aside} {others}")).ok();
    p.run("zpool export tank").ok();
    let all_there = |text: &str, spare_is: &str| {
        for name in [&aside, &log, &cache] {
            assert_eq!(p.columns(text, name)[0], "ONLINE", "{text}");
        }
        assert_eq!(p.columns(text, &spare)[0], spare_is, "{text}");
    };
    let listed = p.run("zpool import -d DIR").ok();
    assert!(!listed.contains("UNAVAIL"), "{listed}");
    p.run("zpool import -d DIR tank").ok();
    all_there(&p.run("zpool status tank").ok(), "AVAIL");
    // A device that is there but is another one by now is not taken for it.
    p.run("zpool export tank").ok();
    p.run(&format!("zpool labelclear -f {spare}")).ok();
    p.run("zpool import -d DIR tank").ok();
    all_there(&p.run("zpool status tank").ok(), "UNAVAIL");
    p.judge("tank");
}

/// Spares and cache devices that have moved are recorded where they are, as data and log devices are.
#[test]
fn devices_that_have_moved_are_found_again() {
    let p = Place::new();
    let [there, here] = ["there", "here"].map(|name| p.s.path(name));
    fs::create_dir(&there).unwrap();
    for name in ["cache", "spare"] {
        fs::File::create(there.join(name)).unwrap().set_len(SIZE).unwrap();
    }
    let at = |name: &str| there.join(name).display().to_string();
    let others = format!("cache {} spare {}", at("cache"), at("spare"));
    p.run(&format!("zpool create -m none tank a {others}")).ok();
    p.run("zpool export tank").ok();
    fs::rename(&there, &here).unwrap();
    p.run(&format!("zpool import -d DIR -d {} tank", here.display())).ok();
    p.run("zpool export tank").ok();
    // This search does not come upon them.
    p.run("zpool import -d DIR tank").ok();
    let status = p.run("zpool status tank").ok();
    for (name, state) in [("cache", "ONLINE"), ("spare", "AVAIL")] {
        let name = here.join(name).display().to_string();
        assert_eq!(p.columns(&status, &name)[0], state, "{status}");
    }
    p.judge("tank");
}

#[test]
fn spares_are_shared() {
    let p = Place::new();
    let both = |wanted: &[&str]| {
        for pool in ["tank", "pond"] {
            let status = p.run(&format!("zpool status {pool}")).ok();
            assert_eq!(p.columns(&status, "s"), wanted, "{status}");
        }
    };
    p.run("zpool create -m none tank a spare s").ok();
    p.run("zpool create -m none pond b").ok();
    p.run("zpool add pond spare s").ok();
    both(&["AVAIL"]);
    let refused = p.run("zpool create -f -m none other s").fails(1);
    assert!(refused.contains("is reserved as a hot spare for pool"), "{refused}");
    for pool in ["tank", "pond"] {
        p.judge(pool);
        p.run(&format!("zpool import -d DIR {pool}")).ok();
    }
    both(&["AVAIL"]);
    p.run("zpool destroy tank").ok();
    let status = p.run("zpool status pond").ok();
    assert_eq!(p.columns(&status, "s"), ["AVAIL"]);
    p.judge("pond");
}
