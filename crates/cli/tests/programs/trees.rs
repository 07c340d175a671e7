//! Trees of files: version control, compilers, archives, copies.

use crate::rig::{Rig, can_run, run, times};
use rustix::fs::XattrFlags;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// This project.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Clones this project into the pool, and checks the clone.
pub fn clone(rig: &Rig, name: &str) {
    let to = rig.path(name);
    run(rig.program("git").args(["clone", "-q", "--no-local"]).arg(project()).arg(&to));
    check_clone(rig, name);
}

pub fn check_clone(rig: &Rig, name: &str) {
    let git = |args: &[&str]| run(rig.program("git").arg("-C").arg(rig.path(name)).args(args));
    git(&["fsck", "--full"]);
    assert_eq!(git(&["status", "--porcelain"]), "");
}

#[test]
fn git_clones_and_commits() {
    if !can_run(&["git"]) {
        return;
    }
    let rig = Rig::new("");
    clone(&rig, "clone");
    rig.shell("cd clone; git checkout -q -b other; git mv crates other; git commit -qam moved");
    rig.shell("cd clone; git checkout -q -; git repack -qad; git reset -q --hard");
    rig.reimport();
    check_clone(&rig, "clone");
    rig.finish();
}

#[test]
fn a_program_is_built_and_runs() {
    if !can_run(&["cc", "make", "ar"]) {
        return;
    }
    let rig = Rig::new("");
    let dir = rig.dir("src");
    let (mut calls, mut declared, count) = (String::new(), String::new(), 40);
    for i in 0..count {
        let text =
            format!("#include <math.h>\ndouble f{i}(double x) {{ return sqrt(x) + {i}; }}\n");
        fs::write(dir.join(format!("f{i}.c")), text).unwrap();
        writeln!(declared, "double f{i}(double);").unwrap();
        write!(calls, " + f{i}(4)").unwrap();
    }
    let main = format!(
        "#include <stdio.h>\n{declared}int main(void) {{ printf(\"%g\\n\", 0.0{calls}); }}\n"
    );
    fs::write(dir.join("main.c"), main).unwrap();
    let make = "OBJS := $(patsubst %.c,%.o,$(filter-out main.c,$(wildcard *.c)))\n\
                main: main.o all.a\n\tcc -o $@ $^ -lm\n\
                all.a: $(OBJS)\n\tar rcs $@ $^\n";
    fs::write(dir.join("Makefile"), make).unwrap();
    let sum = (0..count).map(|i| i + 2).sum::<i32>().to_string();
    assert_eq!(rig.shell("cd src; make -s -j4; ./main").trim(), sum);
    rig.reimport();
    // Times are what they were: there is nothing to be made again.
    assert_eq!(rig.shell("cd src; make -q; touch f7.c; make -s; ./main").trim(), sum);
    rig.finish();
}

/// Files of every kind, with all that can be kept with them.
fn zoo(dir: &Path) {
    fs::create_dir_all(dir.join("deep/er/and/deeper")).unwrap();
    for i in 0..300_u32 {
        let path = dir.join(format!("deep/er/file {i} \u{00fc}"));
        fs::write(&path, vec![i as u8; (i * i) as usize]).unwrap();
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400 + i % 0o400)).unwrap();
        std::os::unix::fs::chown(&path, Some(1000 + i), Some(i)).unwrap();
        if i % 7 == 0 {
            fs::hard_link(&path, dir.join(format!("deep/link {i}"))).unwrap();
        }
        if i % 11 == 0 {
            let value = vec![i as u8; (i * 10) as usize];
            rustix::fs::setxattr(&path, "user.some", &value, XattrFlags::empty()).unwrap();
        }
    }
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 900_000_000).unwrap();
    sparse.write_all_at(b"near", 70_000).unwrap();
    symlink("deep/nowhere", dir.join("symlink")).unwrap();
    symlink("x".repeat(3000), dir.join("deep/long symlink")).unwrap();
    fs::write(dir.join("n".repeat(255)), "a long name").unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), fifo, mode, 0).unwrap();
    // A list: the owner, user 12, the group, all others, and the mask between them.
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 7, 12),
        entry(4, 4, none),
        entry(0x10, 7, none),
        entry(0x20, 0, none),
    ];
    let path = dir.join("sparse");
    let name = "system.posix_acl_access";
    rustix::fs::setxattr(&path, name, &list.concat(), XattrFlags::empty()).unwrap();
}

/// What `rsync` finds to be done to make `to` the same as `from`.
fn differences(rig: &Rig, from: &Path, to: &Path) -> String {
    let mut rsync = rig.program("rsync");
    rsync.args(["-aHAXnci", "--delete"]).arg(from.join("")).arg(to.join(""));
    run(&mut rsync)
}

#[test]
fn rsync_finds_copies_equal() {
    if !can_run(&["rsync"]) {
        return;
    }
    let rig = Rig::new("-O acltype=posix -O xattr=sa");
    let from = rig.outside("zoo");
    zoo(&from);
    let to = rig.dir("zoo");
    run(rig.program("rsync").args(["-aHAXS"]).arg(from.join("")).arg(to.join("")));
    assert_eq!(differences(&rig, &from, &to), "");
    rig.reimport();
    assert_eq!(differences(&rig, &from, &to), "");
    assert_eq!(differences(&rig, &to, &from), "");
    // In place, over what is there, and back.
    rig.shell(
        "cd zoo; rm -r 'deep/er/and' symlink; for f in deep/er/*[37]*; do echo >>\"$f\"; done",
    );
    let mut again = rig.program("rsync");
    run(again.args(["-aHAX", "--inplace", "--no-whole-file"]).arg(from.join("")).arg(to.join("")));
    assert_eq!(differences(&rig, &from, &to), "");
    let back = rig.outside("back");
    run(rig.program("rsync").args(["-aHAXS"]).arg(to.join("")).arg(&back));
    assert_eq!(differences(&rig, &from, &back), "");
    rig.finish();
}

#[test]
fn archives_are_unpacked_and_removed_in_parallel() {
    if !can_run(&["tar", "diff"]) {
        return;
    }
    let rig = Rig::new("");
    let (tar, crates) = (rig.outside("crates.tar"), project().join("crates"));
    run(rig.program("tar").arg("cf").arg(&tar).arg("-C").arg(project()).arg("crates"));
    let tar = tar.display();
    for _ in 0..times(1, 20) {
        rig.shell(&format!(
            "for i in 1 2 3 4; do mkdir x$i; tar xf {tar} -C x$i & done; wait
             for i in 1 2 3; do diff -r x$i/crates x4/crates; done
             rm -r x1 & rm -r x2 & mv x3 gone && rm -r gone/crates & \
             {{ tar xf {tar} -C x4; cp -a x4 y; }} & wait"
        ));
        rig.reimport();
        let left = rig.shell("ls");
        assert_eq!(left, "gone\nx4\ny\n");
        rig.shell("diff -r x4 y; rmdir gone");
        let (x, y) = (rig.path("x4/crates"), rig.path("y/crates"));
        run(rig.program("diff").arg("-r").args([&x, &y]));
        run(rig
            .program("tar")
            .arg("df")
            .arg(rig.outside("crates.tar"))
            .arg("-C")
            .arg(rig.path("y")));
        rig.shell("rm -r x4 & rm -r y & wait");
        assert_eq!(rig.shell("ls -A"), "", "{}", crates.display());
    }
    rig.finish();
}
