//! What a container lacks: FUSE, or the right to mount. Pools are made and used all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::{Session, skip};
use std::fs::File;
use std::process::Command;

/// Runs `script` with `cenote` and the session's directory as `$1` and `$2`, in a mount namespace of its own, as what
/// is begun with `prefix`; returns exit code, output and complaints.
fn in_container(s: &Session, prefix: &[&str], script: &str) -> (Option<i32>, String, String) {
    File::create(s.path("disk")).unwrap().set_len(256 << 20).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private"]).args(prefix);
    command.args(["sh", "-euc", script, "sh", env!("CARGO_BIN_EXE_cenote")]).arg(s.dir.path());
    command.env("CENOTE_SOCKET", s.path("socket"));
    let output = cenote_testpools::output(&mut command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A `/dev` without FUSE.
const WITHOUT_DEVICE: &str = "
    mkdir $2/dev; mount -t tmpfs none $2/dev
    cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom $2/dev/
    mount --move $2/dev /dev
    trap '$1 daemon stop' EXIT
";

#[test]
fn a_pool_is_made_and_used_without_fuse() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root");
    }
    let s = Session::new();
    let made =
        format!("{WITHOUT_DEVICE} $1 zpool create -R $2/m tank $2/disk; $1 zpool export tank");
    let (code, _, said) = in_container(&s, &[], &made);
    assert_eq!(code, Some(0), "{said}");
    let mut lines = said.lines();
    let why =
        "cannot mount 'tank': /dev/fuse: No such file or directory: FUSE is needed for mounts";
    assert_eq!(lines.next(), Some(why));
    let next = lines.next().unwrap();
    assert!(next.starts_with("pool successfully created, but not mounted: "), "{said}");
    assert!(said.contains("--device /dev/fuse --cap-add SYS_ADMIN"), "{said}");
    cenote_testpools::judge(s.dir.path(), "tank");

    // Where no mounts are wanted no message is printed, and all else works.
    let s = Session::new();
    let used = format!(
        "{WITHOUT_DEVICE} $1 zpool create -m none tank $2/disk; $1 zfs create tank/a
         $1 zfs snapshot tank/a@1; $1 zfs send tank/a@1 >$2/stream
         $1 zfs receive tank/b <$2/stream; $1 ls tank/b:/; $1 zpool export tank
         $1 zpool import -d $2/disk tank; $1 zfs list -Ho name; $1 zpool export tank"
    );
    let (code, out, said) = in_container(&s, &[], &used);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(out.ends_with("tank\ntank/a\ntank/b\n"), "{out}");
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn a_pool_is_made_without_the_right_to_mount() {
    if !rustix::process::geteuid().is_root() {
        return skip("not root");
    }
    let s = Session::new();
    let weak = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    let script = "trap '$1 daemon stop' EXIT; PATH=/none $1 zpool create -R $2/m tank $2/disk
                  $1 zpool export tank";
    let (code, _, said) = in_container(&s, &weak, script);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("cannot mount 'tank': Insufficient privileges\n"), "{said}");
    assert!(said.contains("--cap-add SYS_ADMIN"), "{said}");
    cenote_testpools::judge(s.dir.path(), "tank");
}
