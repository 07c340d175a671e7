//! Completions of bash, zsh and fish, asked as these shells ask, on a pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

/// A pool with datasets, the program under its names, and its completions.
fn session() -> Session {
    let s = Session::new();
    let disks = ["disk", "other", "hot", "fast"].map(|name| {
        fs::File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
        s.path(name).display().to_string()
    });
    let [disk, other, hot, fast] = disks;
    let tree = format!("mirror {disk} {other} spare {hot} cache {fast}");
    assert_eq!(s.run(&format!("zpool create -m none tank {tree}")).code, 0);
    s.run("zfs create tank/docs").ok();
    s.run("zfs create tank/docs/old").ok();
    s.run("zfs snapshot tank/docs@monday").ok();
    s.run("zfs snapshot tank/docs@tuesday").ok();
    s.run("zfs bookmark tank/docs@monday tank/docs#mark").ok();
    s.run(&format!("generate {}", s.path("made").display())).ok();
    fs::create_dir(s.path("bin")).unwrap();
    for name in ["zpool", "zfs", "cenote"] {
        symlink(env!("CARGO_BIN_EXE_cenote"), s.path("bin").join(name)).unwrap();
    }
    s
}

fn shell(s: &Session, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    let path = format!("{}:{}", s.path("bin").display(), std::env::var("PATH").unwrap());
    command.args(args).env("PATH", path).env("CENOTE_SOCKET", s.path("socket"));
    command.env("HOME", s.dir.path()).current_dir(s.dir.path());
    let output = cenote_testpools::output(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Lines, and what is offered for the last word. Of names with `@` or `=`, bash replaces what stands behind it.
const OFFERS: [(&str, &str, &str); 18] = [
    ("zfs list -", "-r", "-r"),
    ("zfs mount ", "tank/docs", "tank/docs"),
    ("zfs mount tank/docs/", "tank/docs/old", "tank/docs/old"),
    ("zfs destroy tank/docs@", "tank/docs@monday", "monday"),
    ("zfs destroy tank/docs@monday,", "tank/docs@monday,tuesday", "monday,tuesday"),
    ("zfs destroy tank/docs@monday%", "tank/docs@monday%tuesday", "monday%tuesday"),
    ("zfs bookmark tank/docs@monday tank/d", "tank/docs#", "tank/docs#"),
    ("zpool remove tank mir", "mirror-0", "mirror-0"),
    ("zpool get all tank mir", "mirror-0", "mirror-0"),
    ("zfs destroy tank/docs#", "tank/docs#mark", "tank/docs#mark"),
    ("zfs snapshot tank/d", "tank/docs@", "tank/docs@"),
    ("zfs set compr", "compression=", "compression="),
    ("zfs set compression=lz", "compression=lz4", "lz4"),
    ("zfs get comp", "compression", "compression"),
    ("zpool status ", "tank", "tank"),
    ("zpool set fail", "failmode=", "failmode="),
    ("zpool create x m", "mirror", "mirror"),
    ("cenote zpool exp", "export", "export"),
];

#[test]
fn bash_offers_options_names_properties_and_values() {
    let s = session();
    let ask = |line: &str| {
        let script = format!(
            "for name in zfs zpool cenote; do . made/bash/$name.bash; done\n\
             COMP_WORDBREAKS=$' \\t\\n\"\\'@><=;|&(:'\n\
             COMP_LINE='{line}' COMP_POINT={}\n_cenote\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
            line.len()
        );
        shell(&s, "bash", &["-c", &script])
    };
    for (line, _, word) in OFFERS {
        let offered = ask(line);
        assert!(offered.lines().any(|w| w == word), "{line}: {offered}");
    }
    let of = |line: &str| {
        let offered = ask(line);
        let own = offered.lines().filter_map(|word| word.rsplit('/').next());
        own.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(of("zpool offline tank "), ["disk", "other", "fast"]);
    assert_eq!(of("zpool detach tank "), ["disk", "other"]);
    assert_eq!(of("zpool remove tank "), ["mirror-0", "fast", "hot"]);
    assert_eq!(
        of("zpool set comment=x tank "),
        ["mirror-0", "disk", "other", "fast", "hot", "root"]
    );
    let disk = s.path("disk").display().to_string();
    assert!(of(&format!("zpool replace tank {disk} ")).contains(&"hot".to_string()));
    assert!(ask("zpool create x di").lines().any(|word| word == "disk"), "names of files");
    s.run("zpool export tank").ok();
    s.run("daemon stop").ok();
    assert_eq!(ask("zfs mount "), "\n");
    assert!(!s.path("socket").exists(), "no daemon is started");
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Whether this shell is installed. In CI it must be.
fn has(shell: &str) -> bool {
    let there = Command::new(shell).arg("--version").output();
    let able = there.is_ok_and(|output| output.status.success());
    if !able {
        common::skip(&format!("no {shell}"));
    }
    able
}

/// What zsh's completion has beside the function itself: what is added, a line each, instead of shown.
const ZSH: &str = "compadd() {
    local name=${@[-1]}
    print -rl -- ${(P)name}
}
_files() { print -r -- FILES $* }
compdef() { : }
";

#[test]
fn zsh_offers_the_same() {
    if !has("zsh") {
        return;
    }
    let s = session();
    let ask = |line: &str| {
        let name = line.split(' ').next().unwrap();
        let script =
            format!("{ZSH}words=(\"${{(@s: :)1}}\") CURRENT=$#words\n. made/zsh/_{name}\n");
        shell(&s, "zsh", &["-f", "-c", &script, "zsh", line])
    };
    for (line, word, _) in OFFERS {
        let offered = ask(line);
        assert!(offered.lines().any(|w| w == word), "{line}: {offered}");
    }
    assert!(ask("zpool create x di").lines().any(|line| line == "FILES"), "names of files");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn fish_offers_the_same() {
    if !has("fish") {
        return;
    }
    let s = session();
    for (line, word, _) in OFFERS {
        let name = line.split(' ').next().unwrap();
        let script = format!("source made/fish/{name}.fish; complete -C '{line}'");
        let offered = shell(&s, "fish", &["-c", &script]);
        let mut words = offered.lines().map(|line| line.split('\t').next().unwrap());
        assert!(words.any(|w| w == word), "{line}: {offered}");
    }
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// A daemon that does not answer, as one that waits for a device: options are offered all the same, and soon.
#[test]
fn nobody_waits_for_a_daemon_that_does_not_answer() {
    let s = Session::new();
    let _listener = std::os::unix::net::UnixListener::bind(s.path("socket")).unwrap();
    assert!(s.run("complete -- zfs list -").ok().contains("-r\t"));
    let begin = Instant::now();
    let done = s.run("complete -- zfs list tank");
    assert_eq!((done.code, done.out.as_str()), (0, ""));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}
