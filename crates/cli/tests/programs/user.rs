//! An ordinary user with a pool of their own.

use crate::common::skip;
use crate::contents::exercise;
use crate::rig::{Rig, can_run, run, times};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// An ordinary user that every system has: `fusermount3` asks for the name.
const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_works_in_a_pool() {
    if !can_run(&["fsx", "git", "fusermount3"]) {
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o6 != 0o6 {
        return skip("/dev/fuse is not open to everyone");
    }
    let rig = Rig::of(Some(NOBODY), "", "disk0");
    rig.cenote("zfs create tank/inner");
    for (i, name) in ["fsx", "inner/fsx"].iter().enumerate() {
        exercise(&rig, &rig.path(name), 77 + i as u64, 1 << 20, times(500, 5000));
    }
    rig.shell(
        "git init -q inner/repo; cd inner/repo; for i in 1 2 3 4 5 6 7 8; do seq $i 999 >f$i; done
         git add .; git commit -qm one; git gc -q; git clone -q . ../../clone",
    );
    rig.shell("mkdir d; echo 1 >d/f; ln d/f d/g; mv d inner/d 2>/dev/null; chmod 600 inner/d/f");
    rig.reimport();
    rig.shell("git -C clone fsck --full; git -C inner/repo fsck --full; git -C clone status");
    assert_eq!(rig.shell("cat inner/d/f; stat -c %a inner/d/f inner/d/g"), "1\n600\n600\n");
    let owner = run(rig.program("stat").arg("-c").arg("%u").arg(rig.path("clone")));
    assert_eq!(owner.trim(), NOBODY.to_string());
    rig.shell("cp -a clone synced; sync synced; cp -a clone lost");
    rig.kill();
    rig.import();
    rig.shell("diff -r clone synced; git -C synced fsck --full");
    rig.finish();
}
