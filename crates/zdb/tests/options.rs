//! `zdb`: the parts that the samples' text does not have, damage, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use sha2::Digest;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use support::{zdb, zdb_with};

/// `zdb -e -p DIR options… pool rest…` of a sample pool.
fn of(pool: &str, options: &[&str], rest: &[&str]) -> (String, String, i32) {
    let files = cenote_testpools::pool(pool);
    let mut args = vec!["-e", "-p", files.dir.to_str().unwrap()];
    args.extend(options);
    args.extend(rest);
    zdb(&args)
}

#[test]
fn files_of_a_dataset() {
    let (out, err, code) = of("basic", &["-ddddd"], &["basic"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let manifest = cenote_testpools::pool("basic").manifest();
    let datasets = manifest["datasets"].as_array().unwrap();
    let root = datasets.iter().find(|d| d["name"] == "basic").unwrap();
    let files = root["files"].as_array().unwrap();
    let mut seen = 0;
    // Each object as it is printed, by number.
    let objects: BTreeMap<&str, &str> = out
        .split("    Object  lvl")
        .filter_map(|part| {
            let line = part.lines().nth(1)?;
            Some((line.split_whitespace().next()?, part))
        })
        .collect();
    let section = out.split("Dataset basic [ZPL]").nth(1).unwrap();
    for file in files.iter().take(200) {
        let Some(path) = file["path"].as_str() else { continue };
        let ino = file["ino"].as_u64().unwrap().to_string();
        if file["nlink"] != 1 || path.is_empty() || path == "." {
            continue;
        }
        let start = section.find(&format!("\tpath\t/{path}\n"));
        let Some(start) = start else { panic!("no path of {path} (object {ino})") };
        let text = &section[start..];
        assert!(text.contains(&format!("\tuid     {}\n", file["uid"])), "{path}");
        let size = format!("\tsize\t{}\n", file["size"]);
        assert!(text.split("Indirect blocks").next().unwrap().contains(&size), "{path}: {size}");
        assert!(objects.contains_key(ino.as_str()), "{path}: object {ino}");
        seen += 1;
    }
    assert!(seen > 50, "{seen} files");
}

#[test]
fn every_level_of_detail_of_every_pool() {
    for name in cenote_testpools::names() {
        if name == "crypt" {
            continue;
        }
        let (_, err, code) = of(&name, &["-ddddddm", "-DDDDD", "-TTTT", "-hh", "-Ms"], &[&name]);
        let damage: Vec<&str> = err.lines().filter(|l| l.starts_with("zdb:")).collect();
        assert_eq!(damage, [""; 0], "{name}");
        // One sample has objects that OpenZFS has leaked, and its own zdb says so.
        assert_eq!(code, if name == "clones" { 2 } else { 0 }, "{name}");
    }
}

/// A pool that is imported is looked at without a search.
#[test]
fn an_imported_pool() {
    let files = cenote_testpools::pool("basic");
    let found = cenote_pool::discover(std::slice::from_ref(&files.dir));
    let options = cenote_pool::ImportOptions {
        new_name: Some("other".into()),
        readonly: true,
        ..Default::default()
    };
    let pool = cenote_pool::Pool::import(&found[0], &options).unwrap();
    let (out, err, code) = zdb_with(&[pool], &["-d", "other"]);
    let out = String::from_utf8(out).unwrap();
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("Dataset other/xdir [ZPL], ID 150"), "{out}");
}

#[test]
fn an_imported_pool_opened_anew() {
    let files = cenote_testpools::pool("basic");
    let found = cenote_pool::discover(std::slice::from_ref(&files.dir));
    let options = cenote_pool::ImportOptions { readonly: true, ..Default::default() };
    let pool = cenote_pool::Pool::import(&found[0], &options).unwrap();
    let pools = std::slice::from_ref(&pool);
    // Its devices are found without a search; where one is asked for it counts.
    let (out, err, code) = zdb_with(pools, &["-e", "-d", "basic"]);
    let out = String::from_utf8(out).unwrap();
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("Dataset basic/xdir [ZPL], ID 150"), "{out}");
    let (_, err, code) = zdb_with(pools, &["-e", "-p", "/proc", "-d", "basic"]);
    assert_eq!((code, err.as_str()), (1, "zdb: can't open 'basic': No such file or directory\n"));
}

#[test]
fn root_file_system_and_objset_numbers() {
    let first = |options: &[&str], rest: &[&str]| {
        let (out, err, code) = of("basic", options, rest);
        let lines: Vec<&str> = out.lines().filter(|l| l.starts_with("Dataset ")).collect();
        (lines.join("\n"), err, code)
    };
    let (shown, _, code) = first(&["-d"], &["basic/"]);
    assert_eq!(code, 0);
    let root = "Dataset basic [ZPL], ID 54, cr_txg 1, 16.0M, 5377 objects";
    assert_eq!(shown, root);
    // Its objects, not the MOS's.
    let (out, _, _) = of("basic", &["-ddddd"], &["basic/", "34"]);
    assert!(out.contains("ZFS directory") && out.contains("\tpath\t/\n"), "{out}");
    assert_eq!(first(&["-d"], &["basic/54"]).0, root);
    assert_eq!(first(&["-N"], &["basic/54"]).0, root);
    assert_eq!(
        first(&["-Nv"], &["basic/0x36"]).0.lines().next().unwrap().get(..14),
        root.get(..14)
    );
    let (shown, err, code) = first(&["-N"], &["basic/xdir"]);
    assert_eq!(
        (shown.as_str(), err.as_str(), code),
        ("", "Supply a numeric objset ID with -N\n", 1)
    );
    assert_eq!(first(&["-N"], &["basic"]).0, first(&["-d"], &["basic"]).0);
}

#[test]
fn pointers_in_full() {
    let tree = |options: &[&str]| {
        let (out, err, code) = of("basic", options, &["basic/", "34"]);
        assert_eq!((code, err.as_str()), (0, ""));
        let (_, tree) = out.split_once("Indirect blocks:\n").unwrap();
        tree.lines().next().unwrap().to_string()
    };
    let compact = tree(&["-ddddd", "-bbbbb"]);
    assert!(compact.contains(" L0 0:7365000:1000 600L/600P F=1 B=62/62 cksum="), "{compact}");
    let full = "               0 L0 DVA[0]=<0:7365000:1000> DVA[1]=<0:15d5000:1000> [L0 ZFS directory] \
                fletcher4 uncompressed unencrypted LE contiguous unique double size=600L/600P \
                birth=62L/62P fill=1 cksum=";
    let shown = tree(&["-ddddd", "-bbbbbb"]);
    assert!(shown.starts_with(full), "{shown}");
}

#[test]
fn messages_and_tunables_of_the_process() {
    let (out, err, code) = of("basic", &["-G", "-d"], &["basic/"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let (before, log) = out.split_once("\nZFS_DBGMSG(zdb) START:\n").unwrap();
    assert!(before.starts_with("Dataset basic "), "{out}");
    let log = log.strip_suffix("ZFS_DBGMSG(zdb) END\n").unwrap();
    assert!(log.contains("process: begin") && log.contains("process: end"), "{log}");
    // They are shown, too, if the command fails.
    let (out, _, code) = of("basic", &["-G", "-d"], &["none"]);
    assert!(code == 1 && out.ends_with("ZFS_DBGMSG(zdb) END\n"), "{out}");

    let name = "zfs_vdev_min_ms_count";
    let (out, err, code) = of("basic", &["-o", name, "-d"], &["basic/"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("{name}: 16\nDataset ")), "{out}");
    let (out, ..) = of("basic", &["-o", "show", "-d"], &["basic/"]);
    assert!(out.contains(&format!("{name}: 16\n")) && out.contains("zfs_txg_timeout: "), "{out}");
    let (out, ..) = of("basic", &["-o", &format!("info={name}"), "-d"], &["basic/"]);
    assert!(out.starts_with(&format!("{name} [u64 rw]: Metaslabs of a new")), "{out}");
    let (_, err, code) = of("basic", &["-o", "nosuch=1", "-d"], &["basic/"]);
    assert_eq!((code, err.as_str()), (1, "no such tunable: nosuch\n"));
    let (_, err, code) = of("basic", &["-o", &format!("{name}=x"), "-d"], &["basic/"]);
    assert_eq!(code, 1);
    assert!(err.starts_with(&format!("couldn't set tunable '{name}': ")), "{err}");
}

#[test]
fn object_ranges() {
    let lines = |rest: &[&str]| {
        let (out, _, code) = of("basic", &["-dd"], rest);
        assert_eq!(code, 0);
        let rows = out.lines().filter(|l| l.contains("100.00") || l.contains("0.00"));
        rows.map(|l| l.split_whitespace().next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(lines(&["basic/ci", "34"]), ["34"]);
    assert_eq!(lines(&["basic/ci", "32:36"]), ["32", "33", "34", "35", "36"]);
    let some = |flags: &str| lines(&["basic/ci", &format!("1:-1:{flags}")]);
    let (files, directories) = (some("f"), some("d"));
    assert!(!files.is_empty() && directories.contains(&"34".to_string()));
    assert!(files.iter().all(|f| !directories.contains(f)));
    let rest = some("A-f-d");
    assert!(rest.contains(&"32".to_string()) && !rest.contains(&"34".to_string()));
    assert_eq!(rest.len() + files.len() + directories.len(), some("A").len());
    assert_eq!(lines(&["basic", "32"]), ["32"], "the MOS has an object 32 of its own");
    let (_, err, code) = of("basic", &["-dd"], &["basic/ci", "5:1"]);
    assert_eq!(code, 1);
    assert!(err.contains("Bad object or range"), "{err}");
    for (range, why) in [
        ("0:1:", "Invalid trailing colon"),
        ("0::", "Invalid trailing colon"),
        ("0:1:A:", "Invalid trailing colon"),
        (":1", "Invalid leading colon"),
        ("0:1:Q", "Invalid flag"),
        ("5:5:-", "Invalid trailing negation operator"),
        ("x", "Invalid characters in object ID"),
        ("1:x", "Invalid characters in end object ID"),
        ("1:0", "Start object ID may not exceed end object ID"),
    ] {
        let (_, err, code) = of("basic", &["-d"], &["basic/ci", range]);
        assert_eq!(code, 1, "{range}");
        assert!(err.contains(&format!("'{range}': {why}\n")), "{range}: {err}");
    }
}

#[test]
fn raw_blocks() {
    // The uberblock's root block, by its first copy: an object set of 4 KiB.
    let (out, _, _) = of("basic", &["-u"], &["basic"]);
    let dva = out.split("DVA[0]=<").nth(1).unwrap().split('>').next().unwrap();
    let (address, size) = dva.rsplit_once(':').unwrap();
    let sum = out.split("cksum=").nth(1).unwrap().lines().next().unwrap();
    let (out, err, code) = of("basic", &["-R"], &["basic", &format!("{address}:{size}:c")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.starts_with("Found vdev: "), "{err}");
    assert!(out.contains(&format!("fletcher4\tcksum={sum}")), "{out}");
    let files = cenote_testpools::pool("basic");
    let dir = files.dir.to_str().unwrap();
    let (raw, _, _) =
        zdb_with(&[], &["-e", "-p", dir, "-R", "basic", &format!("{address}:{size}:r")]);
    let offset = u64::from_str_radix(address.split(':').nth(1).unwrap(), 16).unwrap();
    let mut expected = vec![0; raw.len()];
    let image = std::fs::File::open(&files.files[0]).unwrap();
    image.read_exact_at(&mut expected, offset + cenote_format::LABEL_START).unwrap();
    assert!(raw == expected && raw.len() == 4096);
    // Compressed blocks unpack to the size that their pointer has.
    let (out, _, _) = of("hole", &["-u"], &["hole"]);
    let dva = out.split("DVA[0]=<").nth(1).unwrap().split('>').next().unwrap().to_string();
    let (address, size) = dva.rsplit_once(':').unwrap();
    let (out, _, code) = of("hole", &["-R"], &["hole", &format!("{address}:1000/{size}:d")]);
    assert_eq!((code, out.lines().count()), (0, 3 + 256));
    for wrong in ["9:0:200", "0:0:1", "0:1:200", "0:0:200:q"] {
        let (_, _, code) = of("basic", &["-R"], &["basic", wrong]);
        assert_eq!(code, 1, "{wrong}");
    }
}

#[test]
fn labels_in_detail() {
    let files = cenote_testpools::copy("basic");
    let path = files.pool.files[0].to_str().unwrap().to_string();
    let (out, _, code) = zdb(&["-lll", "-u", &path]);
    assert_eq!(code, 0);
    assert_eq!(
        out.matches("    labels = 0 1 2 3 ").count(),
        4 + out.matches("        labels = 0 1 2 3 ").count()
    );
    assert!(out.contains("ZFS Label NVList Config Stats:"));
    // A damaged label is told apart from the others.
    let image = std::fs::File::options().write(true).open(&path).unwrap();
    image.write_all_at(b"XXXX", (16 << 10) + 90_000).unwrap();
    let (out, _, code) = zdb(&["-l", &path]);
    assert_eq!(code, 0);
    assert!(out.contains("LABEL 0 (Bad label cksum)"), "{out}");
    image.write_all_at(&[0; 112 << 10], 16 << 10).unwrap();
    let (out, _, code) = zdb(&["-l", &path]);
    assert_eq!(code, 1);
    assert!(out.contains("failed to unpack label 0") && out.contains("labels = 1 2 3 "), "{out}");
    let (out, _, code) = zdb(&["-l", "/does/not/exist"]);
    assert_eq!(
        (code, out.as_str()),
        (1, "cannot open '/does/not/exist': No such file or directory\n")
    );
}

#[test]
fn copies_an_object() {
    let manifest = cenote_testpools::pool("rz1").manifest();
    let datasets = manifest["datasets"].as_array().unwrap();
    let (dataset, file) = datasets
        .iter()
        .filter_map(|d| {
            let files = d["files"].as_array()?;
            let file =
                files.iter().find(|f| f["type"] == "f" && f["size"].as_u64() > Some(5000))?;
            Some((d["name"].as_str()?.to_string(), file.clone()))
        })
        .next()
        .unwrap();
    let to = tempfile::NamedTempFile::new().unwrap();
    let path = file["path"].as_str().unwrap();
    let (out, err, code) = of("rz1", &["-r"], &[&dataset, path, to.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(&format!("Object {} is {} bytes", file["ino"], file["size"])), "{out}");
    assert_eq!(Some(to.as_file().metadata().unwrap().len()), file["size"].as_u64());
    let (out, _, code) = of("rz1", &["-Ov"], &[&dataset, path]);
    assert_eq!(code, 0);
    assert!(out.contains("ZFS plain file"));
}

#[test]
fn refusals() {
    let (_, err, code) = of("basic", &["-k"], &["basic"]);
    assert_eq!(code, 1);
    assert!(err.contains("checkpoint does not exist"), "{err}");
    let (_, err, code) = zdb(&["-b"]);
    assert_eq!(code, 2);
    assert!(err.contains("Usage:"), "{err}");
    let (_, err, code) = of("basic", &["-d"], &["nosuchpool"]);
    assert_eq!(code, 1);
    assert!(err.contains("can't open 'nosuchpool': No such file or directory"), "{err}");
    let (_, err, code) = of("basic", &["-d"], &["basic/nosuchdataset"]);
    assert_eq!(code, 1);
    assert!(err.contains("can't open 'basic/nosuchdataset'"), "{err}");
}

/// A generator of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Overwrites blocks at random, with noise or with other blocks, and looks at everything: no panic,
/// an end, and damage is not passed over in silence.
#[test]
fn damaged_images() {
    let copy = cenote_testpools::copy("clones");
    let path = &copy.pool.files[0];
    let image = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let dir = copy.pool.dir.to_str().unwrap().to_string();
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let used = 20 << 20;
    for round in 0..25 {
        let mut saved = Vec::new();
        for _ in 0..60 {
            let at = cenote_format::LABEL_START + numbers.below(used / 4096) * 4096;
            let mut block = vec![0; 4096];
            image.read_exact_at(&mut block, at).unwrap();
            saved.push((at, block.clone()));
            match numbers.below(3) {
                0 => {
                    let i = numbers.below(4096) as usize;
                    block[i] ^= 1 << numbers.below(8);
                }
                1 => block.iter_mut().for_each(|b| *b = numbers.below(256) as u8),
                _ => {
                    let from = cenote_format::LABEL_START + numbers.below(used / 4096) * 4096;
                    image.read_exact_at(&mut block, from).unwrap();
                }
            }
            image.write_all_at(&block, at).unwrap();
        }
        for options in [&["-bcc"][..], &["-ddddddmmmmi"], &["-DDDDDTTTThh"]] {
            let mut args = vec!["-e", "-p", &dir];
            args.extend(options);
            args.push("clones");
            let (_, _, code) = zdb(&args);
            assert!((0..=3).contains(&code), "round {round}: {code}");
        }
        for (at, block) in saved.iter().rev() {
            image.write_all_at(block, *at).unwrap();
        }
    }
    let (out, _, code) = zdb(&["-e", "-p", &dir, "-bcc", "clones"]);
    assert_eq!(code, 0, "the image is whole again: {out}");
}

/// What `-fHvv` lists, put together from the disks, is each file, as it was not compressed.
#[test]
fn layouts_lead_to_the_bytes_of_files() {
    for name in ["rz1", "rz2", "rz3"] {
        let files = cenote_testpools::pool(name);
        let manifest = files.manifest();
        let datasets = manifest["datasets"].as_array().unwrap();
        let dataset = format!("{name}/bs32k-off");
        let listed = datasets.iter().find(|d| d["name"] == dataset.as_str()).unwrap();
        let (mut seen, mut longest) = (0, 0);
        for file in listed["files"].as_array().unwrap().iter().filter(|f| f["type"] == "f") {
            let (ino, size) = (file["ino"].as_u64().unwrap(), file["size"].as_u64().unwrap());
            let (out, err, code) = of(name, &["-fHvv"], &[&dataset, &ino.to_string()]);
            assert_eq!((code, err.as_str()), (0, ""));
            let mut content = vec![0; size as usize];
            for line in out.lines().filter(|l| l.contains("\tD")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let number = |i: usize| words[i].parse::<u64>().unwrap() * 512;
                let image = std::fs::File::open(files.dir.join(words[0])).unwrap();
                let mut data = vec![0; number(2) as usize];
                image.read_exact_at(&mut data, number(1)).unwrap();
                let at = number(4).min(size) as usize;
                let end = (number(4) + number(2)).min(size) as usize;
                content[at..end].copy_from_slice(&data[..end - at]);
                longest = longest.max(data.len());
            }
            let sum: String =
                sha2::Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(file["sha256"], sum.as_str(), "{dataset} {}", file["path"]);
            seen += 1;
        }
        assert!(seen > 5 && longest > 4096, "{name}: {seen} files");
    }
}

/// A table shows parity and data, on from the first disk where a block goes past the last one.
#[test]
fn layouts_are_drawn() {
    let (out, err, code) = of("rz2", &["-f"], &["rz2/bs128k-off", "2"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let rows: Vec<&str> = out.lines().skip_while(|l| !l.contains('┌')).collect();
    assert!(rows[1].ends_with("` ` ` ` `    P0      1 │"), "{out}");
    assert!(rows[3].contains("│  P1      1   D0      1  ` ` ` ` `"), "{out}");
    assert!(rows[5].contains('└'), "{out}");
    let (_, err, code) = of("basic", &["-f"], &["basic/", "1"]);
    assert_eq!((code, err.trim_end()), (1, "zdb: file layout only supports raidz"));
    assert_eq!(zdb(&["-H", "-e", "-p", "/", "tank"]).2, 2);
}
