//! Messages, exit codes and usage of `zpool` and `zfs`, word for word.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;

#[test]
fn without_pools() {
    let s = Session::new();
    assert_eq!(s.run("zpool list").ok(), "no pools available\n");
    assert_eq!(s.run("zpool list -H").ok(), "");
    assert_eq!(s.run("zpool status").fails(0), "no pools available");
    assert_eq!(s.run("zpool iostat").fails(1), "no pools available");
    assert_eq!(s.run("zpool history").fails(0), "no pools available");
    assert_eq!(s.run("zfs list").fails(0), "no datasets available");
    assert_eq!(s.run("zfs list -H").ok(), "");
    assert_eq!(s.run("zfs mount").ok(), "");
    assert_eq!(s.run("zpool list tank").fails(1), "cannot open 'tank': no such pool");
    assert_eq!(s.run("zpool status tank").fails(1), "cannot open 'tank': no such pool");
    assert_eq!(s.run("zpool export tank").fails(1), "cannot open 'tank': no such pool");
    assert_eq!(s.run("zfs list tank").fails(1), "cannot open 'tank': dataset does not exist");
    assert_eq!(s.run("zfs unmount tank").fails(1), "cannot open 'tank': dataset does not exist");
    let missing = "No such file or directory";
    assert_eq!(s.run("zfs list /no/such").fails(1), format!("cannot open '/no/such': {missing}"));
    assert_eq!(
        s.run("ls -d /no/such tank").fails(1),
        format!("cenote ls: cannot open '/no/such': {missing}")
    );
    assert_eq!(
        s.run("zpool get all tank").fails(1),
        "Cannot get properties of tank: no such pool available."
    );
    assert_eq!(s.daemon(), None, "nothing here needs a daemon");
}

#[test]
fn usage_errors() {
    let s = Session::new();
    for program in ["zpool", "zfs"] {
        let usage = s.run(&format!("{program} -?"));
        let text = format!("{}{}", usage.out, usage.err);
        assert!(text.lines().count() > 20, "{text}");
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "usage of {program}");
    }
    let first = |line: &str| s.run(line).fails(2).lines().next().unwrap().to_string();
    assert_eq!(first("zpool"), "missing command");
    assert_eq!(first("zpool frobnicate"), "unrecognized command 'frobnicate'");
    assert_eq!(first("zfs frobnicate"), "unrecognized command 'frobnicate'");
    assert_eq!(first("zpool list -q"), "invalid option 'q'");
    assert_eq!(first("zpool list -o"), "missing argument for 'o' option");
    assert_eq!(first("zpool list -o nosuch"), "bad property list: invalid property 'nosuch'");
    assert_eq!(first("zpool export"), "missing pool argument");
    assert_eq!(first("zpool export -a tank"), "too many arguments");
    assert_eq!(first("zpool get"), "missing property argument");
    assert_eq!(first("zpool status tank 0"), "interval cannot be zero");
    assert_eq!(first("zfs get"), "missing property argument");
    assert_eq!(first("zfs list -t nosuch"), "invalid type 'nosuch'");
    assert_eq!(first("zfs list -d x"), "x is not an integer");
    assert_eq!(first("zfs unmount"), "missing filesystem argument");
    assert!(s.run("zfs unmount").fails(2).contains("\tunmount [-fu] <-a | filesystem|mountpoint>"));
    assert_eq!(first("zfs holds"), "usage:");
    let text = s.run("zpool export").fails(2);
    assert!(text.contains("usage:\n\texport [-aFf] <pool> ..."), "{text}");
    let text = s.run("zfs list -q").fails(2);
    assert!(text.contains("The following properties are supported:"), "{text}");
    assert!(s.run("zpool --help").ok().starts_with("usage: zpool command args ..."));
    assert!(s.run("zfs -?").ok().contains("\tlist [-Hjp]"));
    assert!(s.run("zpool version").ok().starts_with("zfs-2.4.4-cenote-"));
    assert!(s.run("frobnicate").fails(2).contains("unrecognized subcommand"));
}

#[test]
fn commands_of_the_future_are_refused_by_name() {
    let s = Session::new();
    assert_eq!(s.run("zpool condense tank").fails(1), "zpool condense: not supported yet");
    assert_eq!(s.run("zfs program tank x").fails(1), "zfs program: not supported yet");
    assert_eq!(s.run("zpool comment=x tank").fails(22), "cannot open 'tank': is not a pool");
}

#[test]
fn names_that_cannot_be() {
    let s = Session::new();
    s.import("degr");
    for (line, why) in [
        (
            "zfs list degr//x",
            "'degr//x': empty component or misplaced '@' or '#' delimiter in name",
        ),
        ("zfs list /degr", ""),
        ("zfs list degr@none", "'degr@none': dataset does not exist"),
        ("zfs list degr/x!", "'degr/x!': invalid character '!' in name"),
        ("zfs mount degr@one", "'degr@one': snapshot delimiter '@' is not expected here"),
        ("zfs list degr#x", "'degr#x': bookmark delimiter '#' is not expected here"),
        ("zfs get used degr#x", "'degr#x': no such pool or dataset"),
        ("zfs list -t volume degr", "'degr': operation not applicable to datasets of this type"),
        ("zpool list degr/x", "'degr/x': invalid character '/' in pool name"),
        ("zpool list 1x", "'1x': name must begin with a letter"),
    ] {
        let said = s.run(line).fails(1);
        let expected = format!("cannot open {why}");
        assert!(why.is_empty() || said == expected, "{line}: {said}");
    }
}

#[test]
fn imports_that_are_refused() {
    let s = Session::new();
    let dir = cenote_testpools::pool("degr").dir;
    let dir = dir.display();
    let said = s.run(&format!("zpool import -o readonly=maybe -d {dir} degr")).fails(2);
    assert!(said.starts_with("property 'readonly' must be one of 'on | off'\n"), "{said}");
    let said = s.run(&format!("zpool import -o readonly=on -d {dir} tank")).fails(1);
    assert_eq!(said, "cannot import 'tank': no such pool available");
    let said = s.run(&format!("zpool import -o readonly=on -R rel -d {dir} degr")).fails(1);
    assert_eq!(said, "cannot import pool 'degr': bad alternate root 'rel'");
    let said = s.run("zpool import -d /nonexistent").fails(0);
    assert_eq!(
        said,
        "cannot open '/nonexistent': No such file or directory\nno pools available to import"
    );
    s.import("degr");
    let said = s.run(&format!("zpool import -o readonly=on -d {dir} degr")).fails(1);
    assert!(
        said.starts_with("cannot import 'degr': a pool with that name already exists"),
        "{said}"
    );
    let said = s.run(&format!("zpool import -d {dir}")).fails(0);
    assert_eq!(said, "no pools available to import");
}

#[test]
fn formats_of_the_future_are_refused_by_name() {
    let s = Session::new();
    let disk = s.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let line =
        format!("zpool create -o feature@draid_failure_domains=enabled tank {}", disk.display());
    let said = s.run(&line).fails(1);
    assert!(said.contains("'draid_failure_domains' unsupported"), "{said}");
    assert_eq!(s.run("zpool list").ok(), "no pools available\n");
}

#[test]
fn usage_lists_what_works() {
    let s = Session::new();
    for (tool, there, absent) in
        [("zpool", "\tcreate ", "\tcondense "), ("zfs", "\treceive ", "\tprogram ")]
    {
        let text = s.run(&format!("{tool} --help")).ok();
        assert!(text.contains(there) && !text.contains(absent), "{text}");
        assert!(text.contains(&format!("The other commands of {tool} are refused by name.\n")));
    }
}

#[test]
fn output_that_cannot_be_written() {
    let s = Session::new();
    s.import("degr");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = s.command().args(["zfs", "list"]).stdout(full()).output().unwrap();
    assert_eq!(
        (done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()),
        (Some(1), "zfs: cannot write output: No space left on device\n")
    );
    for line in [&["zpool", "list", "nope"][..], &["zfs", "list", "nope"]] {
        let done = s.command().args(line).stderr(full()).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{line:?}");
    }
    let done = s.command().arg("--help").stdout(full()).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn a_socket_path_that_is_something_else_is_left_alone() {
    let s = Session::new();
    std::fs::write(s.path("socket"), "precious").unwrap();
    let dir = cenote_testpools::pool("degr").dir;
    let said = s.run(&format!("zpool import -N -o readonly=on -d {} degr", dir.display())).fails(1);
    assert!(said.contains("socket: is not a socket"), "{said}");
    assert_eq!(std::fs::read_to_string(s.path("socket")).unwrap(), "precious");
}

#[test]
fn vdevs_are_told_from_what_does_not_exist() {
    let s = Session::new();
    s.import("degr");
    let said = s.run("zpool get all degr nope").fails(2);
    let expected = "Expected a list of vdevs in \"degr\", but got:\n\tnope (unknown)\n";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(s.run("zpool get -Ho value state degr mirror-0").ok(), "DEGRADED\n");
    assert_eq!(s.run("zpool iostat nope").fails(1), "Unable to parse pools/vdevs list.");
    let said = s.run("zpool iostat degr nope").fails(2);
    assert!(said.contains("\tnope (unknown)\n"), "{said}");
    assert!(s.run("zpool iostat -H mirror-0").ok().starts_with("mirror-0\t"));
    assert_eq!(s.run("zpool iostat mirror-0 nope").fails(1), "Unable to parse pools/vdevs list.");
}

#[test]
fn repeated_reports() {
    let s = Session::new();
    s.import("degr");
    let text = s.run("zpool status degr 0.01 2").ok();
    assert!(text.contains("data errors\n\n  pool: degr\n"), "{text}");
    // The report since the import is left out and not counted.
    for line in ["zpool iostat -y degr 0.01 1", "zpool iostat -y degr"] {
        let text = s.run(line).ok();
        assert_eq!(text.lines().filter(|l| l.starts_with("degr ")).count(), 1, "{line}: {text}");
    }
}

/// Whatever names a pool brings, a terminal gets no escape sequence from them; a pipe gets all.
#[test]
fn names_are_escaped_on_a_terminal() {
    const NASTY: &str = "a\u{1b}]0;title\u{7}\u{9b}2J";
    const ESCAPED: &str = "a\\033]0;title\\007\\302\\2332J";
    let s = Session::new();
    let device = s.path(NASTY);
    std::fs::File::create(&device).unwrap().set_len(128 << 20).unwrap();
    let device = device.to_str().unwrap();
    s.run_args(&["zpool", "create", "-m", "none", "-o", "ashift=12", "tank", device]).ok();
    s.run_args(&["zfs", "set", &format!("a:b={NASTY}"), "tank"]).ok();
    s.run_args(&["zpool", "set", &format!("a:b={NASTY}"), "tank"]).ok();
    for line in [
        "zpool status",
        "zpool list -v",
        "zpool iostat -v",
        "zpool history",
        "zpool get a:b tank",
        "zfs get a:b tank",
        "zfs list -o name,a:b tank",
        "zdb -C tank",
        "map tank",
    ] {
        let piped = s.run(line).ok();
        assert!(
            piped.contains(if line == "map tank" { ESCAPED } else { NASTY }),
            "{line}: {piped}"
        );
        let shown = s.on_terminal(&format!("TERM=dumb cenote {line}"));
        assert!(shown.contains(ESCAPED), "{line}: {shown:?}");
        assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{7}']), "{line}: {shown:?}");
    }
    // Standard error, too.
    let shown = s.on_terminal(&format!("cenote zpool status '{NASTY}'"));
    assert!(shown.contains(ESCAPED) && !shown.contains('\u{1b}'), "{shown:?}");
    s.run("zpool export tank").ok();
    // What searches the devices.
    let dir = s.dir.path().to_str().unwrap().to_string();
    let shown = s.on_terminal(&format!("cenote zpool import -d '{dir}'"));
    assert!(shown.contains(ESCAPED) && !shown.contains('\u{1b}'), "{shown:?}");
    let shown = s.on_terminal(&format!("cenote zdb -l '{device}'"));
    assert!(shown.contains(ESCAPED) && !shown.contains('\u{1b}'), "{shown:?}");
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// A pool that is read-only: what needs to write says so; destroying it lets go of it.
#[test]
fn a_pool_that_is_read_only() {
    let s = Session::new();
    let device = s.path("disk");
    std::fs::File::create(&device).unwrap().set_len(128 << 20).unwrap();
    let dir = s.dir.path().display().to_string();
    s.run(&format!("zpool create -m none tank {}", device.display())).ok();
    s.run("zpool export tank").ok();
    let import = format!("zpool import -o readonly=on -d {dir} tank");
    for how in ["destroy", "destroy -f"] {
        s.run(&import).ok();
        let cannot = |what: &str| format!("cannot clear errors for {what}: pool is read-only");
        assert_eq!(s.run("zpool clear tank").fails(1), cannot("tank"));
        assert_eq!(s.run("zpool clear tank disk").fails(1), cannot("disk"));
        let before = std::fs::read(&device).unwrap();
        s.run(&format!("zpool {how} tank")).ok();
        assert_eq!(s.run("zpool list").ok(), "no pools available\n");
        assert!(std::fs::read(&device).unwrap() == before, "{how} wrote to the device");
    }
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn user_properties_that_are_not_set() {
    let s = Session::new();
    s.import("degr");
    assert_eq!(s.run("zpool get -Ho value,source a:b degr").ok(), "-\tdefault\n");
    let text = s.run("zpool get a:b,ashift degr").ok();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["degr", "a:b", "-", "default"]);
    assert!(!s.run("zpool get all degr").ok().contains("a:b"));
}

/// With `POSIXLY_CORRECT` the first operand ends the options, by the environment of the command's caller.
#[test]
fn options_after_operands() {
    let s = Session::new();
    s.import("degr");
    let posix = |line: &str| {
        let mut command = s.command();
        command.env("POSIXLY_CORRECT", "1").args(line.split_whitespace());
        let output = cenote_testpools::output(&mut command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(s.run("zpool list degr -Ho name").ok(), "degr\n");
    let (code, _, err) = posix("zpool list degr -Ho name");
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot open '-Ho'"), "{err}");
    assert_eq!(posix("zpool list -Ho name degr"), (Some(0), "degr\n".into(), String::new()));
    assert_eq!(s.run("zfs get all -Ho value -d 0 degr").code, 0);
    assert_eq!(posix("zfs get name -H degr").0, Some(1));
    // The daemon remembers nothing of it.
    assert_eq!(s.run("zpool list degr -Ho name").ok(), "degr\n");
}

/// The header of `zpool iostat INTERVAL` comes with the first pool, however late.
#[test]
fn a_pool_that_comes_later_has_a_header() {
    use std::io::{BufRead, BufReader};
    let s = Session::new();
    assert_eq!(s.run("daemon").code, 0);
    let mut child = s
        .command()
        .args(["zpool", "iostat", "0.2"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "no pools available\n");
    s.import("degr");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.take(4).map(Result::unwrap).collect();
    child.kill().unwrap();
    cenote_testpools::wait(&mut child);
    assert!(lines[0].contains("capacity") && lines[1].starts_with("pool "), "{lines:?}");
    assert!(lines[2].starts_with("-----") && lines[3].starts_with("degr "), "{lines:?}");
}

/// Tunables that `zdb` sets are its own process's, not the daemon's.
#[test]
fn zdb_sets_tunables_for_itself() {
    let s = Session::new();
    s.import("degr");
    let name = "zfs_vdev_min_ms_count";
    let files = cenote_testpools::pool("basic");
    let line = format!("zdb -o {name}=20 -o {name} -e -p {} -d basic/", files.dir.display());
    let out = s.run(&line).ok();
    assert!(out.starts_with(&format!("{name}: 16 -> 20\n{name}: 20\nDataset basic ")), "{out}");
    let listed = s.run(&format!("zdb -o {name} -e -p {} -d basic/", files.dir.display())).ok();
    assert!(listed.starts_with(&format!("{name}: 16\n")), "{listed}");
    // It has no pools that are imported.
    let refused = s.run(&format!("zdb -o {name}=20 -d degr")).fails(1);
    assert!(
        refused.contains("with -o, -x, -K and -Y, pools are those found by -e and -p only"),
        "{refused}"
    );
    let daemons = s.run("tunables").ok();
    let line = daemons.lines().find(|l| l.contains(name)).unwrap();
    assert!(line.split_whitespace().any(|word| word == "16"), "{line}");
}
