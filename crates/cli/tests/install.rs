//! `make install` into an empty root, and the README's first example with what was installed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHOWN: &str = "/media/usb";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Installs the program that is tested below `root`. Returns what was said.
fn install(root: &Path, settings: &[(&str, &str)]) -> String {
    let mut command = Command::new(repository().join("scripts/install.sh"));
    for name in ["PREFIX", "LINKS", "MOUNTDIR", "SYSTEMDDIR"] {
        command.env_remove(name);
    }
    command
        .env("DESTDIR", root)
        .env("BINARY", env!("CARGO_BIN_EXE_cenote"))
        .envs(settings.iter().copied());
    let output = cenote_testpools::output(&mut command);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.into_owned()
}

/// The first example of the README: commands with what they print.
fn first_example() -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join("README.md")).unwrap();
    let block = text.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    let mut example: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), example.last_mut()) {
            (Some(command), _) => example.push((command.into(), String::new())),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => panic!("{line}"),
        }
    }
    example
}

#[test]
fn what_is_installed_runs_the_first_example() {
    let root = tempfile::tempdir().unwrap();
    let said = install(root.path(), &[("PREFIX", "/usr")]);
    assert!(
        said.contains("with the names zpool zfs zdb zstream zinject zfs_ids_to_path mount.zfs"),
        "{said}"
    );
    let usr = root.path().join("usr");
    for page in [
        "man1/cenote.1",
        "man1/cenote-daemon.1",
        "man8/cenote-zpool.8",
        "man8/cenote-zfs-send.8",
        "man8/cenote-zdb.8",
        "man8/cenote-mount.zfs.8",
        "man7/cenote-zfsprops.7",
        // By the names that are ours here.
        "man8/zpool.8",
        "man8/zfs-send.8",
        "man8/mount.zfs.8",
        "man7/zfsprops.7",
    ] {
        assert!(usr.join("share/man").join(page).is_file(), "{page}");
    }
    for text in ["README.md", "docs/tools.md", "docs/features.md"] {
        assert!(usr.join("share/doc/cenote").join(text).is_file(), "{text}");
    }
    for completion in [
        "bash-completion/completions/zpool",
        "zsh/site-functions/_cenote",
        "fish/vendor_completions.d/zfs.fish",
    ] {
        let text = fs::read_to_string(usr.join("share").join(completion)).unwrap();
        assert!(text.contains("cenote complete"), "{completion}");
    }
    for (unit, local) in [("system", " --local"), ("user", "")] {
        let path = usr.join("lib/systemd").join(unit).join("cenote.service");
        let text = fs::read_to_string(path).unwrap();
        let start = format!("ExecStart=/usr/bin/cenote daemon --foreground --import{local}\n");
        assert!(text.contains(&start), "{text}");
    }
    for (link, dir) in [("zpool", "usr/bin"), ("zstream", "usr/bin"), ("mount.zfs", "sbin")] {
        let to = fs::read_link(root.path().join(dir).join(link)).unwrap();
        assert_eq!(to, Path::new("/usr/bin/cenote"));
    }
    let installed = usr.join("bin/cenote");
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let debug = usr.join("lib/debug/usr/bin/cenote.debug");
    assert!(size(&installed) < size(Path::new(env!("CARGO_BIN_EXE_cenote"))));
    assert!(debug.is_file());

    let place = tempfile::Builder::new().prefix("c").rand_bytes(4).tempdir_in("/tmp").unwrap();
    let here = place.path().to_str().unwrap();
    assert_eq!(here.len(), SHOWN.len());
    let socket = root.path().join("socket");
    let run = |line: &str| {
        let path = format!("{}:/usr/bin:/bin", usr.join("bin").display());
        let mut sh = Command::new("sh");
        sh.args(["-c", &line.replace(SHOWN, here)]).env("PATH", path);
        sh.env("CENOTE_SOCKET", &socket).env("TZ", "UTC").env("LC_ALL", "C");
        let output = cenote_testpools::output(&mut sh);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {complaint}");
        String::from_utf8_lossy(&output.stdout).replace(here, SHOWN)
    };
    if Path::new("/dev/fuse").exists() {
        for (command, printed) in first_example() {
            assert_eq!(run(&command), printed, "{command}");
        }
        cenote_testpools::judge(&place.path().join("new"), "tank");
    } else {
        assert!(std::env::var_os("CI").is_none(), "no FUSE");
    }
    // By its other names the program is those commands.
    fs::remove_file(usr.join("bin/zpool")).unwrap();
    symlink(&installed, usr.join("bin/zpool")).unwrap();
    assert!(run("zpool version").starts_with("zfs-2."));
    run("cenote daemon stop");
}

/// What makes a directory a root in which nothing but the package is installed, for the shell in a mount
/// namespace of its own. The machine's own programs and libraries are seen through links, below `/host`.
const CLEAN_ROOT: &str = r#"
set -eu
root=$1
cd "$root"
mkdir -p host dev proc tmp run etc media/usb
arch=$(basename "$(dirname "$(ldd /bin/sh | awk '/libc\.so/ {print $3}')")")
ln -s host/bin bin
ln -s "../../host/usr/lib/$arch" "usr/lib/$arch"
ln -s usr/lib lib
ln -s host/lib64 lib64
cp /etc/ld.so.cache /etc/passwd /etc/group etc/
for dir in dev proc; do mount --rbind "/$dir" "$dir"; done
mount --rbind / host
chroot . /bin/sh -c "$2"
"#;

/// The Debian package of the program that is tested.
fn package(out: &Path) -> PathBuf {
    let mut command = Command::new(repository().join("scripts/deb.sh"));
    command.env("BINARY", env!("CARGO_BIN_EXE_cenote")).env("OUT", out).env("COMPRESSION", "gzip");
    let output = cenote_testpools::output(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut made = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    made.find(|path| path.extension().is_some_and(|e| e == "deb")).unwrap()
}

#[test]
fn the_package_is_installed_in_a_clean_root_and_runs_the_first_example() {
    let has = |program: &str| {
        let mut sh = Command::new("sh");
        cenote_testpools::output(sh.args(["-c", &format!("command -v {program}")])).status.success()
    };
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !root || !has("dpkg-shlibdeps") || !has("unshare") {
        assert!(std::env::var_os("CI").is_none(), "no root, no FUSE, or no dpkg-dev");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let package = package(&place.path().join("out"));
    let root = place.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |args: &[&str]| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.display())).arg("--log=/dev/null");
        // There is no shell in the root for the package's scripts.
        command.arg("--force-script-chrootless").args(args);
        let output = cenote_testpools::output(&mut command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // What it depends on is the machine's own.
    dpkg(&["--force-depends", "--install", package.to_str().unwrap()]);
    assert_eq!(dpkg(&["--verify", "cenote"]), "");
    let files = dpkg(&["--listfiles", "cenote"]);
    assert!(files.lines().any(|f| f == "/usr/bin/cenote"), "{files}");
    assert!(files.lines().all(|f| !f.ends_with("/zpool") && !f.ends_with("/zdb")), "{files}");

    let example = first_example();
    let lines: Vec<&str> = example.iter().map(|(command, _)| command.as_str()).collect();
    let script = format!(
        "set -e; export CENOTE_SOCKET=/run/cenote TZ=UTC LC_ALL=C PATH=/usr/bin:/bin\n{}\n\
         cenote daemon stop",
        lines.join("\n")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", CLEAN_ROOT, "sh", root.to_str().unwrap(), &script]);
    let output = cenote_testpools::output(&mut command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let printed: String = example.iter().map(|(_, printed)| printed.as_str()).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{complaint}");
    cenote_testpools::judge(&root.join("media/usb/new"), "tank");
}

#[test]
fn systemd_understands_the_units() {
    let root = tempfile::tempdir().unwrap();
    install(root.path(), &[("PREFIX", "/usr")]);
    let mut version = Command::new("sh");
    let version = version.args(["-c", "command -v systemd-analyze"]);
    if !cenote_testpools::output(version).status.success() {
        return common::skip("no systemd-analyze");
    }
    let of_system = ["cenote", "cenote-import", "cenote-network"].map(|name| ("system", name));
    for (kind, name) in of_system.into_iter().chain([("user", "cenote")]) {
        let units = root.path().join("usr/lib/systemd").join(kind);
        let unit = units.join(name).with_extension("service");
        let text = fs::read_to_string(&unit).unwrap();
        let program = root.path().join("usr/bin/cenote");
        fs::write(&unit, text.replace("/usr/bin/cenote", program.to_str().unwrap())).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.env("XDG_RUNTIME_DIR", root.path()).args(["--man=no", "verify"]).arg(&unit);
        // A unit that needs another one finds it beside itself.
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
        if kind == "user" {
            command.arg("--user");
        }
        let output = cenote_testpools::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr);
        // What it does not understand it passes over with a line that names the unit.
        assert!(output.status.success() && !said.contains(&format!("{name}.service")), "{said}");
    }
}

/// The daemon reaches object stores, with credentials that its unit can be given; pools there wait for the network, and hold up no others.
#[test]
fn pools_in_object_stores_are_imported_with_the_network() {
    let unit = |name: &str| {
        let file = repository().join("packaging").join(name);
        let text = fs::read_to_string(file).unwrap();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once('='));
        pairs.map(|(key, value)| (key.to_string(), value.to_string())).collect::<Vec<_>>()
    };
    let all = |unit: &[(String, String)], key: &str| {
        let values = unit
            .iter()
            .filter(|(name, _)| name == key)
            .flat_map(|(_, value)| value.split_whitespace().map(String::from).collect::<Vec<_>>());
        values.collect::<Vec<_>>()
    };
    let daemon = unit("cenote.service.in");
    assert_eq!(all(&daemon, "RestrictAddressFamilies"), ["AF_UNIX", "AF_INET", "AF_INET6"]);
    assert_eq!(all(&daemon, "IPAddressDeny"), [""; 0]);
    assert_eq!(all(&daemon, "EnvironmentFile"), ["-/etc/cenote/environment"]);
    assert_eq!(all(&daemon, "Environment"), ["HOME=/root"]);
    let early = unit("cenote-import.service.in");
    for own in [&daemon, &early] {
        assert!(all(own, "ExecStart").contains(&"--local".to_string()), "{own:?}");
        assert!(!format!("{own:?}").contains("network-online"), "{own:?}");
    }
    let late = unit("cenote-network.service.in");
    assert!(!all(&late, "ExecStart").contains(&"--local".to_string()), "{late:?}");
    for key in ["Wants", "After"] {
        assert!(all(&late, key).contains(&"network-online.target".to_string()), "{late:?}");
    }
    assert!(all(&late, "Requires").contains(&"cenote.service".to_string()));
    assert!(all(&late, "Before").contains(&"remote-fs.target".to_string()));
    // A network that is waited for keeps no system without such pools.
    assert!(!all(&daemon, "Also").contains(&"cenote-network.service".to_string()));
}

/// What the unit leaves open of 10, as systemd counts; in tenths. Five of them are the network, for object stores.
const MOST_EXPOSED: u32 = 53;

#[test]
fn the_daemon_of_the_system_may_do_what_it_needs_and_little_more() {
    let root = tempfile::tempdir().unwrap();
    install(root.path(), &[("PREFIX", "/usr")]);
    let unit = root.path().join("usr/lib/systemd/system/cenote.service");
    let text = fs::read_to_string(&unit).unwrap();
    // Each of these gives a service a mount namespace of its own, in which no other process sees its mounts.
    for private in [
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "ProtectSystem",
        "ProtectHome",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectProc",
        "ProcSubset",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "TemporaryFileSystem",
        "BindPaths",
        "RootDirectory",
        "MountFlags",
        "DynamicUser",
    ] {
        assert!(text.lines().all(|line| !line.starts_with(&format!("{private}="))), "{private}");
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]);
    command.arg(format!("--threshold={MOST_EXPOSED}")).arg(&unit);
    let Ok(output) = command.output() else { return common::skip("no systemd-analyze") };
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    // Versions before 250 look at running units only.
    if !complaint.contains("unrecognized option") {
        assert!(output.status.success(), "{said}{complaint}");
    }
}

/// A system on which the package is upgraded, for the shell: systemctl and the like note what they are asked.
const UPGRADE: &str = r#"
set -eu
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/bin
for name in systemctl deb-systemd-invoke; do
    printf '#!/bin/sh\necho "%s $*" >>/run/log\n' "$name" >/run/bin/$name
done
printf '#!/bin/sh\n%s\n' "$2" >/run/bin/cenote
chmod +x /run/bin/*
export PATH=/run/bin:$PATH
"$1/preinst" upgrade 0.0-1
"$1/postinst" configure 0.0-1
cat /run/log
[ ! -e /run/cenote-upgrade.keep ]
"#;

#[test]
fn an_upgrade_restarts_the_daemon_once_and_only_if_no_pool_is_lost() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scripts = repository().join("packaging/debian");
    let upgrade = |pools: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", UPGRADE, "sh"]);
        command.arg(&scripts).arg(pools);
        let output = cenote_testpools::output(&mut command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{complaint}");
        said
    };
    // A daemon's answers to what is asked of pools, of keys, of properties and of mounts.
    let daemon = |pools: &str, keys: &str, places: &str, mounts: &str| {
        format!(
            r#"case "$*" in
            *cachefile*) printf '{pools}' ;;
            *keystatus*) printf '{keys}' ;;
            *mountpoint*) printf '{places}' ;;
            *temporary*) ;;
            'zfs mount') printf '{mounts}' ;;
            *) exit 2 ;;
            esac"#
        )
    };
    let usual = r"tank\tcachefile\t-\ntank\treadonly\toff\n";
    let places = concat!(
        r"tank\tmountpoint\t/tank\ntank\tcanmount\ton\n",
        r"tank/a b\tmountpoint\t/srv/a b\ntank/a b\tcanmount\ton\n",
        r"tank/old\tmountpoint\tlegacy\ntank/old\tcanmount\ton\n",
        r"tank/by hand\tmountpoint\t/h\ntank/by hand\tcanmount\tnoauto\n",
    );
    let said = upgrade(&daemon(
        usual,
        concat!(
            r"tank/a\tkeystatus\tunavailable\ntank/a\tencryptionroot\ttank/a\n",
            r"tank/a/b\tkeystatus\tavailable\ntank/a/b\tencryptionroot\ttank/a\n",
        ),
        places,
        r"tank                            /tank\ntank/a b                        /srv/a b\n",
    ));
    assert!(said.ends_with("deb-systemd-invoke try-restart cenote.service\n"), "{said}");
    assert_eq!(said.matches("restart").count(), 1, "{said}");
    assert!(!said.contains("stop"), "{said}");
    let mounted = |line: &str| daemon(usual, "", places, line);
    for (answers, why) in [
        (
            daemon(r"tank\tcachefile\t-\nusb\tcachefile\tnone\n", "", "", ""),
            "pool usb is not in the default cache file",
        ),
        (
            daemon(r"tank\tcachefile\t-\ntank\treadonly\ton\n", "", "", ""),
            "pool tank was imported to be read only",
        ),
        (
            daemon(
                usual,
                r"tank/a\tkeystatus\tavailable\ntank/a\tencryptionroot\ttank/a\n",
                "",
                "",
            ),
            "the key of tank/a is loaded",
        ),
        (
            mounted("tank/old  /var/old"),
            "tank/old is mounted at /var/old, where an import does not",
        ),
        (mounted("tank/by hand  /h"), "tank/by hand is mounted at /h, where an import does not"),
        (mounted("tank/a b  /mnt"), "tank/a b is mounted at /mnt, where an import does not"),
        (mounted("tank@s  /mnt"), "tank@s is mounted at /mnt, where an import does not"),
        (
            r#"case "$*" in *temporary*) printf 'tank/a\tatime\ttemporary\n' ;; esac"#.into(),
            "tank/a is mounted with another value of atime",
        ),
        ("echo it is busy >&2; exit 1".into(), "the daemon does not answer: it is busy"),
        (
            r#"case "$*" in 'zfs mount') echo it is late >&2; exit 1 ;; esac"#.into(),
            "the daemon does not answer: it is late",
        ),
    ] {
        let said = upgrade(&answers);
        assert!(said.contains(why) && said.contains("was not restarted"), "{said}");
        assert!(!said.contains("deb-systemd-invoke"), "{said}");
    }
}

#[test]
fn programs_of_openzfs_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let theirs = root.path().join("usr/sbin/zpool");
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "theirs").unwrap();
    let said = install(root.path(), &[]);
    assert!(said.contains("/usr/sbin/zpool is not cenote's: no link zpool"), "{said}");
    assert!(
        said.contains("with the names zfs zdb zstream zinject zfs_ids_to_path mount.zfs"),
        "{said}"
    );
    let bin = root.path().join("usr/local/bin");
    assert!(!bin.join("zpool").exists() && bin.join("zfs").is_symlink());
    let completions = root.path().join("usr/local/share/bash-completion/completions");
    assert!(!completions.join("zpool").exists() && completions.join("zfs").exists());
    // A second time nothing is in the way of what is ours.
    let said = install(root.path(), &[]);
    assert!(
        said.contains("with the names zfs zdb zstream zinject zfs_ids_to_path mount.zfs"),
        "{said}"
    );
    install(root.path(), &[("LINKS", "yes")]);
    assert!(bin.join("zpool").is_symlink());
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    let other = tempfile::tempdir().unwrap();
    install(other.path(), &[("LINKS", "no")]);
    assert!(!other.path().join("usr/local/bin/zfs").exists());
}
