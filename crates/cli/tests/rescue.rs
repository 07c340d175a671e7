//! Images as rescuers have them: cut off, with holes, some sectors off, in parts, of other kinds; by the real binary. What
//! can be read is right, what cannot be is named. Nothing is written to these images.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use cenote_testpools::TempPool;
use common::loops::Loop;
use common::{Session, scratch};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Copies all files out of what is at `source`. Those that were copied are right, and those that were not are named. How many
/// were copied, and what was said.
fn copied(s: &Session, source: &Path, name: &str) -> (usize, String) {
    let root = rustix::process::geteuid().is_root();
    let (mut count, mut said) = (0, String::new());
    let manifest = cenote_testpools::pool(name).manifest();
    for dataset in datasets_with_files(&manifest) {
        let from = dataset["name"].as_str().unwrap();
        let (to, xattrs) = scratch();
        let xattrs = xattrs && root;
        let checks = Checks { owner: root, devices: root, xattrs, nlink: false, ..Checks::COPY };
        let target = to.path().join("copy");
        let (source, out) = (source.to_str().unwrap(), target.to_str().unwrap());
        let done = s.run_args(&["cp", "-rq", "-d", source, &format!("{from}:/"), out]);
        let (mut there, mut files) = (dataset.clone(), Vec::new());
        for file in dataset["files"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap_or(".");
            if target.join(path).symlink_metadata().is_ok() || file["path"].is_null() {
                files.push(file.clone());
                continue;
            }
            let mut above = Path::new(path).ancestors().filter(|p| !p.as_os_str().is_empty());
            let named = |p: &Path| done.err.contains(&format!("/{}", p.display()));
            let all = done.err.contains(&format!("'{from}:/'"));
            assert!(above.any(named) || all, "{from}: {path} is not named:\n{}", done.err);
            assert_eq!(done.code, 1);
        }
        count += files.len();
        said += &done.err;
        there["files"] = files.into();
        if target.exists() {
            check_tree(&there, &FsTree::new(&target), &checks).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    (count, said)
}

fn all_files(name: &str) -> usize {
    let manifest = cenote_testpools::pool(name).manifest();
    datasets_with_files(&manifest).iter().map(|d| d["files"].as_array().unwrap().len()).sum()
}

fn cut(path: &Path, size: u64) {
    File::options().write(true).open(path).unwrap().set_len(size).unwrap();
}

fn import(s: &Session, place: &Path, options: &str, name: &str) -> common::Done {
    s.run(&format!("zpool import -f -N {options} -d {} {name}", place.display()))
}

#[test]
fn an_image_that_is_cut_off_is_read_as_far_as_it_goes() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    let image = &copy.pool.files[0];
    cut(image, (110 << 20) + 12345);
    let listed = s.run(&format!("zpool import -d {}", copy.pool.dir.display())).ok();
    assert!(listed.contains("DEGRADED  cut off, 1") && listed.contains("M missing"), "{listed}");
    assert!(listed.contains("can be imported with '-o readonly=on'"), "{listed}");
    // Not for writing.
    let before = fs::read(image).unwrap();
    let refused = import(&s, &copy.pool.dir, "", "basic");
    assert!(fs::read(image).unwrap() == before);
    assert!(refused.out.contains("The images below are cut off, use '-o readonly=on'"));
    assert!(refused.out.contains(image.to_str().unwrap()), "{}", refused.out);
    let why = "cannot import 'basic': one or more devices is cut off";
    assert_eq!(refused.fails(1), why);
    import(&s, &copy.pool.dir, "-o readonly=on", "basic").ok_but_for_logs();
    let status = s.run("zpool status basic").ok();
    assert!(
        status.contains("an image that was cut off") && status.contains("DEGRADED"),
        "{status}"
    );
    s.run("zpool export basic").ok();
    let (good, said) = copied(&s, &copy.pool.dir, "basic");
    assert!(good < all_files("basic") && good > 100, "{good}: {said}");
    assert!(said.contains("cannot read"), "{said}");
    assert!(fs::read(image).unwrap() == before);
    drop(before);
    // Also below the size that any vdev has.
    cut(image, 40 << 20);
    let listed = s.run(&format!("zpool import -d {}", copy.pool.dir.display()));
    assert!(listed.out.contains("cut off, 2"), "{listed:?}");
}

#[test]
fn mirrors_and_raidz_make_good_what_was_cut_off() {
    let s = Session::new();
    let mirror = cenote_testpools::copy("mir3");
    cut(&mirror.pool.files[0], 30 << 20);
    cut(&mirror.pool.files[1], 60 << 20);
    let raidz = cenote_testpools::copy("rz2");
    cut(&raidz.pool.files[1], 20 << 20);
    cut(&raidz.pool.files[4], 40 << 20);
    for (copy, name) in [(mirror, "mir3"), (raidz, "rz2")] {
        let (good, said) = copied(&s, &copy.pool.dir, name);
        assert_eq!((good, said.as_str()), (all_files(name), ""));
        import(&s, &copy.pool.dir, "-o readonly=on", name).ok_but_for_logs();
        let status = s.run(&format!("zpool status {name}")).ok();
        assert_eq!(status.matches("cut off, ").count(), 2, "{status}");
        s.run(&format!("zpool export {name}")).ok();
    }
}

#[test]
fn for_writing_an_image_that_is_cut_off_is_left_out() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let dir = s.path("d");
    let (a, b) = (dir.join("a"), dir.join("b"));
    for file in [&a, &b] {
        File::create(file).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, shown) = (a.display(), b.display());
    s.run(&format!("zpool create -m none tank mirror {a} {shown}")).ok();
    s.run("zpool export tank").ok();
    cut(&b, 64 << 20);
    import(&s, &dir, "", "tank").ok();
    s.run("zfs create tank/one").ok();
    let status = s.run("zpool status tank").ok();
    assert!(status.contains("DEGRADED") && !status.contains("cut off"), "{status}");
    s.run("zpool export tank").ok();
    assert_eq!(fs::metadata(&b).unwrap().len(), 64 << 20);
    cenote_testpools::judge(&dir, "tank");
}

/// Zeros where the image was not read, and a map that says so.
fn hole(image: &Path, holes: &[(u64, u64)]) {
    let file = File::options().write(true).open(image).unwrap();
    let mut map = String::from(
        "# Mapfile. Created by GNU ddrescue version 1.27\n\
         # current_pos  current_status  current_pass\n0x0     +               1\n",
    );
    let (mut at, size) = (0, file.metadata().unwrap().len());
    for (from, to) in holes {
        file.write_all_at(&vec![0; (to - from) as usize], *from).unwrap();
        map += &format!("{at:#x} {:#x} +\n{from:#x} {:#x} -\n", from - at, to - from);
        at = *to;
    }
    map += &format!("{at:#x} {:#x} +\n", size - at);
    fs::write(format!("{}.map", image.display()), map).unwrap();
}

const MIB: u64 = 1 << 20;

fn holed_mirror() -> TempPool {
    let copy = cenote_testpools::copy("mir3");
    // It has a dataset without checksums.
    hole(&copy.pool.files[0], &[(5 * MIB, 30 * MIB), (50 * MIB, 128 * MIB)]);
    hole(&copy.pool.files[2], &[(5 * MIB, 128 * MIB)]);
    copy
}

#[test]
fn what_a_map_calls_bad_is_not_taken_for_data() {
    let s = Session::new();
    let copy = holed_mirror();
    let (good, said) = copied(&s, &copy.pool.dir, "mir3");
    assert_eq!((good, said.as_str()), (all_files("mir3"), ""));
    import(&s, &copy.pool.dir, "-o readonly=on", "mir3").ok_but_for_logs();
    for dataset in ["mir3/cs_off", "mir3/cs_sha256"] {
        let to = s.path(dataset.rsplit('/').next().unwrap());
        s.run(&format!("cp -rq {dataset}:/ {}", to.display())).ok();
    }
    let status = s.run("zpool status mir3").ok();
    let errors = |name: &str| {
        let line = status.lines().find(|l| l.contains(name)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[2] != "0", words[4] != "0")
    };
    // Errors of reading, none of checksums.
    assert!(errors("mir3.0.img").0 || errors("mir3.2.img").0, "{status}");
    assert!(!errors("mir3.0.img").1 && !errors("mir3.2.img").1, "{status}");
    s.run("zpool export mir3").ok();
}

#[test]
fn files_in_holes_are_named() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    hole(&copy.pool.files[0], &[(90 * MIB, 130 * MIB)]);
    let refused = import(&s, &copy.pool.dir, "", "basic");
    assert_eq!(refused.fails(1), "cannot import 'basic': one or more devices is read only");
    let (good, said) = copied(&s, &copy.pool.dir, "basic");
    assert!(good < all_files("basic") && good > 100 && said.contains("cannot read"), "{said}");
}

#[test]
fn a_map_that_is_not_understood_is_named() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    let image = copy.pool.files[0].display().to_string();
    fs::write(
        format!("{image}.map"),
        "# Mapfile. Created by GNU ddrescue version 1.27\n0 + 1\n0 10 +\n20 10 +\n",
    )
    .unwrap();
    let dir = copy.pool.dir.display();
    let why = format!(
        "cannot open '{image}': its map {image}.map, line 4: blocks that are not contiguous"
    );
    assert_eq!(s.run(&format!("zpool import -d {dir}")).fails(1), why);
    assert_eq!(s.run(&format!("ls -d {dir} basic:/")).fails(1), format!("cenote ls: {why}"));
}

/// Whether a listing has a device whose name ends so as online.
fn is_online(listed: &str, name: &str) -> bool {
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    let is_it = |words: Vec<String>| matches!(&words[..], [own, state, ..] if own.ends_with(name) && state == "ONLINE");
    listed.lines().map(words).any(is_it)
}

#[test]
fn a_pool_that_begins_somewhere_is_found() {
    let s = Session::new();
    let copy = cenote_testpools::copy("mir3");
    fs::create_dir(s.path("d")).unwrap();
    // Two of its devices are in one image.
    let (image, rest) = (s.path("d/disk.img"), s.path("d/rest.img"));
    let file = File::create(&image).unwrap();
    let first = 63 * 512;
    let second = first + (128 << 20) + 4096;
    for (at, from) in [(first, 0), (second, 1)] {
        file.write_all_at(&fs::read(&copy.pool.files[from]).unwrap(), at).unwrap();
    }
    fs::copy(&copy.pool.files[2], &rest).unwrap();
    let dir = s.path("d");
    let shown = dir.display();
    assert_eq!(s.run("zpool import --scan").code, 2);
    let listed = s.run(&format!("zpool import --scan -d {shown}")).ok();
    for at in [first, second] {
        assert!(is_online(&listed, &format!("disk.img-at{at}")), "{listed}");
    }
    assert!(listed.contains("can only be read"), "{listed}");
    assert!(listed.contains("can be imported with '-o readonly=on'"), "{listed}");
    assert!(!s.run(&format!("zpool import -d {shown}")).ok().contains("-at"));
    // One of them alone, and of those only that one.
    fs::remove_file(&rest).unwrap();
    let refused = import(&s, &dir, "--scan", "mir3");
    assert_eq!(refused.fails(1), "cannot import 'mir3': one or more devices is read only");
    import(&s, &dir, "--scan -o readonly=on", "mir3").ok_but_for_logs();
    let status = s.run("zpool status mir3").ok();
    assert!(is_online(&status, "-at32256") && status.contains("DEGRADED"), "{status}");
    s.run("zpool export mir3").ok();
    let (good, said) = copied(&s, &s.path(&format!("d/disk.img-at{second}")), "mir3");
    assert_eq!((good, said.as_str()), (all_files("mir3"), ""));
}

/// The parts are read as the image, by the name of the first one; a part that is lacking cuts it off.
#[test]
fn an_image_in_parts_is_read_as_the_image() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let pool = cenote_testpools::pool("basic");
    let bytes = fs::read(&pool.files[0]).unwrap();
    for (n, part) in bytes.chunks(50 << 20).enumerate() {
        fs::write(s.path(&format!("d/disk.img.{:03}", n + 1)), part).unwrap();
    }
    drop(bytes);
    let dir = s.path("d");
    let listed = s.run(&format!("zpool import -d {}", dir.display())).ok();
    assert!(is_online(&listed, "disk.img.001") && !listed.contains("disk.img.002"), "{listed}");
    assert!(listed.contains("can be imported with '-o readonly=on'"), "{listed}");
    let (good, said) = copied(&s, &dir, "basic");
    assert_eq!((good, said.as_str()), (all_files("basic"), ""));
    let refused = import(&s, &dir, "", "basic");
    assert_eq!(refused.fails(1), "cannot import 'basic': one or more devices is read only");
    import(&s, &dir, "-o readonly=on", "basic").ok_but_for_logs();
    assert!(is_online(&s.run("zpool status basic").ok(), "disk.img.001"));
    s.run("zpool export basic").ok();
    // It is seen whose it is, before something else is made of it.
    let first = s.path("d/disk.img.001");
    let before = fs::read(&first).unwrap();
    let refused = s.run(&format!("zpool create -m none other {}", first.display()));
    let is_told = |what| refused.err.contains(what);
    assert!(is_told("disk.img.001 is part of") && is_told("pool 'basic'"), "{refused:?}");
    assert!(refused.code == 1 && fs::read(&first).unwrap() == before);
    drop(before);
    // Without one of its parts it is one that was cut off.
    fs::remove_file(s.path("d/disk.img.003")).unwrap();
    let listed = s.run(&format!("zpool import -d {}", dir.display())).ok();
    assert!(listed.contains("cut off"), "{listed}");
}

/// The image of a whole disk, with `file` in its only partition, of which `size` bytes are there.
fn whole_disk(image: &Path, file: &Path, size: u64) {
    let bytes = fs::read(file).unwrap();
    let mut table = [0; 512];
    table[446 + 4] = 0xbf;
    table[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&((bytes.len() / 512) as u32).to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let image = File::create(image).unwrap();
    image.write_all_at(&table, 0).unwrap();
    image.write_all_at(&bytes, MIB).unwrap();
    image.set_len(size).unwrap();
}

#[test]
fn an_image_of_a_whole_disk_that_is_cut_off_is_read_by_its_table() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let pool = cenote_testpools::pool("basic");
    whole_disk(&s.path("d/disk.img"), &pool.files[0], 110 << 20);
    let listed = import(&s, &s.path("d"), "", "").ok();
    assert!(listed.contains("disk.img-part1"), "{listed}");
    assert!(listed.contains("DEGRADED  cut off, 1"), "{listed}");
    assert!(listed.contains("can be imported with '-o readonly=on'"), "{listed}");
    let refused = import(&s, &s.path("d"), "", "basic");
    assert!(!refused.out.contains("read-only"), "{}", refused.out);
    assert_eq!(refused.fails(1), "cannot import 'basic': one or more devices is cut off");
    let (good, said) = copied(&s, &s.path("d"), "basic");
    assert!(good < all_files("basic") && good > 100 && said.contains("cannot read"), "{said}");
}

/// Images of several disks that are cut off at the same length are not the parts of one.
#[test]
fn images_of_several_disks_that_are_cut_off_are_read_each() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let pool = cenote_testpools::pool("rz2");
    for (n, file) in pool.files.iter().enumerate() {
        // Of two the end is missing: parity answers for it.
        let size = if n < 2 { 30 << 20 } else { 200 << 20 };
        let len = fs::metadata(file).unwrap().len() + MIB;
        whole_disk(&s.path(&format!("d/disk{n:02}")), file, size.min(len));
    }
    let listed = import(&s, &s.path("d"), "", "").ok();
    assert_eq!(listed.matches("cut off, ").count(), 2, "{listed}");
    let (good, said) = copied(&s, &s.path("d"), "rz2");
    assert_eq!((good, said.as_str()), (all_files("rz2"), ""));
    // Their partitions' images, too.
    fs::create_dir(s.path("e")).unwrap();
    for (n, file) in pool.files.iter().enumerate() {
        let to = s.path(&format!("e/disk{n:02}"));
        fs::copy(file, &to).unwrap();
        if n < 2 {
            cut(&to, 30 << 20);
        }
    }
    let listed = import(&s, &s.path("e"), "", "").ok();
    assert_eq!(listed.matches("cut off, ").count(), 2, "{listed}");
}

/// The map counts by whatever name the image is found, for reading and for writing.
#[test]
fn a_map_counts_through_links_and_loop_devices() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    let image = &copy.pool.files[0];
    hole(image, &[(90 * MIB, 130 * MIB)]);
    fs::create_dir(s.path("links")).unwrap();
    std::os::unix::fs::symlink(image, s.path("links/disk")).unwrap();
    // The link is the first one that the search comes upon.
    std::os::unix::fs::symlink(image, copy.pool.dir.join("a")).unwrap();
    let looped = Loop::over(image);
    let mut places = vec![s.path("links"), copy.pool.dir.clone()];
    places.extend(looped.iter().map(|looped| looped.path.clone()));
    for place in places {
        let listed = import(&s, &place, "", "").ok();
        let note = "40M not read from the disk";
        assert!(listed.contains(note), "{listed}");
        assert!(
            listed.contains("status: One or more devices is an image that was not"),
            "{listed}"
        );
        assert!(listed.contains("can be imported with '-o readonly=on'"), "{listed}");
        let refused = import(&s, &place, "", "basic");
        assert_eq!(refused.fails(1), "cannot import 'basic': one or more devices is read only");
        let (good, said) = copied(&s, &place, "basic");
        assert!(good < all_files("basic") && good > 100 && said.contains("cannot read"), "{said}");
        import(&s, &place, "-o readonly=on", "basic").ok_but_for_logs();
        let status = s.run("zpool status basic").ok();
        assert!(status.contains(note) && status.contains("have ddrescue go"), "{status}");
        s.run("zpool export basic").ok();
    }
    // Where in the file the device begins counts.
    let Some(part) = Loop::over_part(image, 100 * MIB, 0) else { return };
    let device = cenote_vdev::open_device(&part.path).unwrap();
    assert_eq!(device.unread(0, device.size()), 30 * MIB);
    assert!(cenote_vdev::open_device_rw(&part.path).is_err());
}

/// Of several images of one disk that which lacks nothing counts.
#[test]
fn the_image_that_is_whole_is_taken() {
    let s = Session::new();
    let dir = s.path("d");
    fs::create_dir(&dir).unwrap();
    let disk = dir.join("disk");
    File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    s.run(&format!("zpool create -m none tank {}", disk.display())).ok();
    s.run("zpool export tank").ok();
    for name in ["a.img", "b.img", "z.img"] {
        fs::copy(&disk, dir.join(name)).unwrap();
    }
    hole(&dir.join("a.img"), &[(60 * MIB, 100 * MIB)]);
    // Where its label says that it is, it is cut off.
    cut(&disk, 64 << 20);
    cut(&dir.join("z.img"), 64 << 20);
    import(&s, &dir, "", "tank").ok();
    let status = s.run("zpool status -P tank").ok();
    assert!(is_online(&status, "/b.img"), "{status}");
    s.run("zpool export tank").ok();
    for name in ["a.img", "a.img.map", "disk", "z.img"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    cenote_testpools::judge(&dir, "tank");
}

/// What the user names and cannot be opened is told.
#[test]
fn a_part_of_an_image_that_is_not_there_is_named() {
    let s = Session::new();
    let copy = cenote_testpools::copy("basic");
    let image = copy.pool.files[0].display().to_string();
    for part in ["part7", "at99999999999"] {
        let done = s.run(&format!("zpool import -d {image}-{part}"));
        assert!(done.err.contains(&format!("cannot open '{image}-{part}': ")), "{done:?}");
    }
}

/// What cannot be looked at is no hindrance for a pool that is found, nor for `import -a` without one.
#[test]
fn what_lies_beside_a_pool_does_not_hinder() {
    let s = Session::new();
    let copy = cenote_testpools::copy("mir3");
    let (dir, image) = (copy.pool.dir.display(), copy.pool.files[0].display());
    s.run(&format!("ls -d {image}-part7 -d {dir} mir3:/")).ok();
    let empty = s.path("d");
    fs::create_dir(&empty).unwrap();
    let file = File::create(empty.join("x.qcow2")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"QFI\xfb\0\0\0\x03", 0).unwrap();
    let all = s.run(&format!("zpool import -a -d {}", empty.display()));
    assert!(all.code == 0 && all.err.contains("a qcow2 image"), "{all:?}");
}

/// A fixed VHD is a copy of the disk, with something behind it.
#[test]
fn a_fixed_vhd_is_read() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let pool = cenote_testpools::pool("basic");
    let image = s.path("d/disk.vhd");
    let size = fs::metadata(&pool.files[0]).unwrap().len() + 2 * MIB;
    whole_disk(&image, &pool.files[0], size + 512);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"conectix", size).unwrap();
    assert!(is_online(&import(&s, &s.path("d"), "", "").ok(), "disk.vhd-part1"));
    // One in which nothing is found is named.
    file.write_all_at(&[0; 512], 0).unwrap();
    let refused = import(&s, &s.path("d"), "", "").fails(1);
    assert!(refused.contains("a VHD image; 'qemu-img convert -f vpc -O raw"), "{refused}");
}

#[test]
fn images_of_other_programs_are_named_with_what_converts_them() {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let dir = s.path("d").display().to_string();
    let image = format!("{dir}/x");
    let kinds: [(&[u8], &str, &str); 6] = [
        (b"QFI\xfb\0\0\0\x03", "a qcow2 image", "qemu-img convert -f qcow2 -O raw"),
        (b"KDMV", "a VMDK image", "qemu-img convert -f vmdk -O raw"),
        (b"# Disk DescriptorFile", "a VMDK image", "qemu-img convert -f vmdk -O raw"),
        (b"conectix", "a VHD image", "qemu-img convert -f vpc -O raw"),
        (b"vhdxfile", "a VHDX image", "qemu-img convert -f vhdx -O raw"),
        (b"EVF\x09\x0d\x0a\xff\0\x01\x01\0\0\0", "an EWF image", "ewfexport -u -f raw -t"),
    ];
    for (magic, name, command) in kinds {
        // A descriptor is small.
        let size = if magic.starts_with(b"#") { 700 } else { 1 << 20 };
        let file = File::create(&image).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(magic, 0).unwrap();
        let why = |said: &str| {
            let begins = format!("cannot open '{image}': {name}; '{command} {image}");
            assert!(said.contains(&begins), "{said}");
            assert!(!said.contains("no pools available"), "{said}");
        };
        let places = if size < 1000 { vec![&image] } else { vec![&dir, &image] };
        for place in places {
            why(&s.run(&format!("zpool import -d {place}")).fails(1));
            why(&s.run(&format!("zpool import -d {place} tank")).fails(1));
            why(&s.run(&format!("zpool import --scan -d {place}")).fails(1));
            why(&s.run(&format!("ls -d {place} tank:/")).fails(1));
            why(&s.run(&format!("zdb -e -p {place} tank")).fails(1));
        }
    }
    // A pool beside it is found all the same.
    fs::copy(&cenote_testpools::pool("mir3").files[0], s.path("d/a.img")).unwrap();
    s.run(&format!("ls -d {dir} mir3:/")).ok();
}
