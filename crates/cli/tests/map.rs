//! `cenote map`: what it prints and writes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_cli::map::terminal::{Drawing, Paint};
use cenote_cli::map::view::{By, Scene};
use cenote_cli::map::{html, svg};
use cenote_command::output::Output;
use cenote_daemon::context::Context;
use cenote_inspect::map::owners::{Owner, OwnerKind, Owners};
use cenote_inspect::map::{MetaslabMap, Share, SpaceMapReport, VERSION, VdevMap};
use cenote_pool::metaslab::AllocClass;
use cenote_store::histogram::Histogram;
use common::Session;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn dir(pool: &str) -> String {
    cenote_testpools::pool(pool).dir.display().to_string()
}

fn report(text: &str) -> SpaceMapReport {
    let report: SpaceMapReport = serde_json::from_str(text).unwrap();
    report.check().unwrap();
    report
}

#[test]
fn a_map_without_colours() {
    let session = Session::new();
    let shown = session.run(&format!("map -d {} fragnolog -w 80", dir("fragnolog"))).ok();
    assert_eq!(shown, include_str!("map/fragnolog.txt"));
    let by = format!("map -e -p {} special --by fragmentation --vdev 1 -w 60", dir("special"));
    let shown = session.run(&by).ok();
    assert!(shown.starts_with("vdev 1 ("), "{shown}");
    assert!(shown.contains("3 on 1 vdev: "), "{shown}");
}

#[test]
fn colours_are_there_where_they_are_wanted() {
    let session = Session::new();
    let line = format!("map -d {} fragnolog --color always", dir("fragnolog"));
    let shown = |colorterm: &str| {
        let mut command = session.command();
        command.args(line.split(' ')).env("COLORTERM", colorterm);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(shown("truecolor").contains("\x1b[48;2;"));
    assert!(shown("").contains("\x1b[48;5;"));
    let plain = session.run(&line.replace("always", "auto")).ok();
    assert!(!plain.contains('\x1b'));
}

#[test]
fn where_a_file_system_lives() {
    let session = Session::new();
    let dir = dir("fragnolog");
    let owners = session.run(&format!("map -d {dir} fragnolog --json --owners")).ok();
    let all = report(&owners);
    let list = &all.owners.as_ref().unwrap().list;
    let dataset = list.iter().find(|o| o.kind == OwnerKind::Dataset).unwrap().name.clone();
    let number = all.owner(&dataset).unwrap();
    let there = all.metaslabs().filter(|m| m.owned_by(number) > 0).count();
    let of = all.metaslabs().count();
    let shown = session.run(&format!("map -d {dir} fragnolog --dataset {dataset}")).ok();
    assert!(shown.contains(&format!("in {there} of {of} metaslabs")), "{shown}");
    let by_owner = session.run(&format!("map -d {dir} fragnolog --by owner")).ok();
    assert!(by_owner.contains("(pool metadata)") && by_owner.contains(&dataset), "{by_owner}");
    for name in ["own.svg", "own.html"] {
        let how = if name.ends_with("svg") { "--by owner --svg" } else { "--html" };
        session.run(&format!("map -d {dir} fragnolog {how} {name}")).ok();
        let picture = std::fs::read_to_string(session.path(name)).unwrap();
        assert!(picture.contains("nothing allocated"), "{name}");
    }
    let wrong = session.run(&format!("map -d {dir} fragnolog --dataset fragnolog/none"));
    let why = wrong.fails(1);
    assert_eq!(why, "cenote map: 'fragnolog/none' has no blocks in this pool");
}

#[test]
fn what_is_wrong_is_said() {
    let session = Session::new();
    let why = session.run("map nosuchpool").fails(1);
    assert_eq!(why, "cenote map: cannot open 'nosuchpool': no such pool");
    let dir = dir("special");
    let why = session.run(&format!("map -d {dir} special --vdev 9")).fails(1);
    assert_eq!(why, "cenote map: no top-level vdev 9 with metaslabs");
    std::fs::write(session.path("bad"), "{}").unwrap();
    let why = session.run(&format!("map -d {dir} special --before bad")).fails(1);
    assert!(why.contains("/bad: missing field"), "{why}");
    session.run("map special --by colour").fails(2);
}

/// Elements called `name` in a document, which must be well-formed.
fn elements(text: &str, name: &str) -> usize {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(text, options).unwrap();
    document.descendants().filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", name))).count()
}

#[test]
fn saved_figures_are_compared_with_later_ones() {
    let session = Session::new();
    // Two pools of the same kind stand for one pool at two times.
    let (old, new) = (dir("fragnolog"), dir("fraglogsm"));
    let quiet = session.run(&format!("map -d {old} fragnolog --save then.json -w 80")).ok();
    assert_eq!(quiet, include_str!("map/fragnolog.txt"));
    let saved = report(&std::fs::read_to_string(session.path("then.json")).unwrap());
    assert_eq!(saved, report(&session.run(&format!("map -d {old} fragnolog --json")).ok()));

    let wide = format!("map -d {new} fraglogsm --before then.json -w 160");
    let beside = session.run(&wide).ok();
    let first = beside.lines().next().unwrap();
    assert!(first.contains("before: txg") && first.contains("after: txg"), "{beside}");
    assert!(beside.contains("before is another pool: fragnolog"), "{beside}");
    let above = session.run(&wide.replace("160", "70")).ok();
    assert!(above.starts_with("before: txg") && above.contains("\nafter: txg"), "{above}");

    let page = format!("map -d {new} fraglogsm --before then.json --html page.html");
    session.run(&page).ok();
    let text = std::fs::read_to_string(session.path("page.html")).unwrap();
    let cells = saved.metaslabs().count();
    assert!(elements(&text, "path") >= 2 * cells);
    assert!(text.contains("id=\"vd\"") && !text.contains("href=") && !text.contains("src="));

    let same = session.run(&format!("map -d {old} fragnolog --before then.json")).ok();
    assert!(same.contains(&format!("0 fuller, 0 emptier, {cells} unchanged")), "{same}");
}

/// A pool as large as they come.
fn large(owners: usize, metaslabs: u64, name: &str) -> SpaceMapReport {
    let size = 16u64 << 30;
    let list = (0..owners).map(|i| Owner {
        name: format!("{name}/{}{i}", "a-rather-long-name/".repeat(5)),
        kind: OwnerKind::Dataset,
    });
    let of = |id: u64| {
        let mut free = Histogram::default();
        (0..id % 50).for_each(|i| free.add(4096 << (i % 10)));
        let mut m = MetaslabMap::new(id, id * size, size, size / 100 * (id % 101));
        m = m.with_free_segments(&free);
        let count = owners as u64;
        m.owners = (0..count.min(id % 4))
            .map(|i| Share { owner: ((id + i) % count) as u32, bytes: m.allocated / (i + 2) })
            .collect();
        m
    };
    let vdev = VdevMap {
        id: 0,
        name: "raidz2-0".into(),
        class: AllocClass::Normal,
        ashift: 12,
        metaslab_shift: 34,
        fragmentation: Some(12),
        metaslabs: (0..metaslabs).map(of).collect(),
    };
    let second = VdevMap { id: 1, metaslabs: vdev.metaslabs.clone(), ..vdev.clone() };
    let report = SpaceMapReport {
        version: VERSION,
        pool: name.into(),
        fragmentation: Some(12),
        vdevs: vec![vdev, second],
        owners: Some(Owners { list: list.collect(), missed: 0 }),
        ..SpaceMapReport::default()
    };
    report.check().unwrap();
    report
}

#[test]
fn ten_thousand_metaslabs_are_a_small_file() {
    let ctx = Context::of_process(Arc::default());
    let now = large(40, 5000, "tank");
    let before = large(30, 5000, "tank");
    let scene = Scene::new(now.clone(), Some(before), By::Fullness);
    let page = html::page(&scene, &ctx);
    assert!(page.len() < 3 << 20, "{} bytes", page.len());
    assert!(elements(&page, "path") >= 20_000);
    // Each cell says what it is.
    assert!(elements(&page, "title") >= 20_000);
    for by in [By::Fullness, By::Fragmentation, By::Owner] {
        let picture = svg::picture(&Scene::new(now.clone(), None, by), &ctx);
        assert!(picture.len() < 3 << 20, "{} bytes", picture.len());
        assert!(elements(&picture, "path") >= 10_000);
    }
}

#[test]
fn names_cannot_break_a_picture() {
    let ctx = Context::of_process(Arc::default());
    let mut report = large(2, 10, "</title><script>\"&'\u{1b}[31m\u{ffff}");
    report.vdevs[0].name = "/dev/<i>&amp;".into();
    for by in [By::Fullness, By::Owner] {
        let scene = Scene::new(report.clone(), None, by);
        let picture = svg::picture(&scene, &ctx);
        let page = html::page(&scene, &ctx);
        assert!(elements(&picture, "path") >= 20 && elements(&page, "path") >= 20);
        assert!(!page.contains("<script") && !page.contains('\u{1b}'));
    }
    let mut ctx = Context::of_process(Arc::default());
    let shown = Shared::default();
    ctx.out = Output::new(Box::new(shown.clone()), false);
    let scene = Scene::new(report, None, By::Owner);
    Drawing::new(&scene, Paint::Plain, 100).write(&mut ctx).unwrap();
    assert!(!shown.text().contains('\u{1b}'));
}

#[test]
fn more_metaslabs_than_fit_share_cells() {
    let mut ctx = Context::of_process(Arc::default());
    for by in [By::Fullness, By::Fragmentation, By::Owner] {
        let shown = Shared::default();
        ctx.out = Output::new(Box::new(shown.clone()), false);
        let scene = Scene::new(large(3, 5000, "tank"), None, by);
        Drawing::new(&scene, Paint::Plain, 80).write(&mut ctx).unwrap();
        let text = shown.text();
        assert!(text.contains("each cell: 4 metaslabs"), "{text}");
        assert!(text.lines().count() < 70, "{text}");
        assert!(text.lines().take(38).all(|l| l.chars().count() <= 80), "{text}");
    }
}

/// What was written.
#[derive(Clone, Default)]
struct Shared(Arc<parking_lot::Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl std::io::Write for Shared {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_pool_that_is_being_written() {
    let session = Session::new();
    let image = session.path("a.img");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let image = image.display();
    session.run(&format!("zpool create -m none live {image}")).ok();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                session.run(&format!("zfs create -u live/fs{i}")).ok();
                session.run(&format!("zfs snapshot live/fs{i}@s")).ok();
                if i % 3 == 2 {
                    session.run(&format!("zfs destroy -r live/fs{i}")).ok();
                }
            }
        });
        let mut last = 0;
        for _ in 0..4 {
            let now = report(&session.run("map live --json --owners").ok());
            assert!(now.txg >= last, "{} after {last}", now.txg);
            last = now.txg;
            assert!(now.metaslabs().any(|m| m.loaded));
            for m in now.metaslabs() {
                let sum: u64 = m.owners.iter().map(|s| s.bytes).sum();
                assert_eq!(sum, m.allocated, "{m:?}");
            }
            assert_eq!(now.owners.as_ref().unwrap().missed, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // At rest every byte has an owner.
    session.run("zpool sync live").ok();
    let rest = report(&session.run("map live --json --owners").ok());
    assert_eq!(rest.owners.as_ref().unwrap().missed, 0);
    assert_eq!(rest.metaslabs().map(MetaslabMap::unaccounted).sum::<u64>(), 0);
    assert!(rest.owner("live/fs0").is_some());
    session.run("zpool export live").ok();
    let exported = session.run(&format!("map -e -p {image} live --json")).ok();
    assert!(report(&exported).metaslabs().all(|m| !m.loaded));
    cenote_testpools::judge(session.dir.path(), "live");
}

/// Ctrl-C on a terminal: nothing is printed or written, the bar is gone, and the terminal is as it was.
/// The command is held up by the figures that it is to compare with, which come out of a pipe.
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let session = Session::new();
    let dir = dir("fragnolog");
    let then = session.run(&format!("map -d {dir} fragnolog --json")).ok();
    let status = Command::new("mkfifo").arg(session.path("then.json")).status().unwrap();
    assert!(status.success());
    std::fs::create_dir(session.path("out")).unwrap();
    let map = format!(
        "{} map -d {dir} fragnolog --by owner --before then.json --save out/save --svg out/svg",
        env!("CARGO_BIN_EXE_cenote")
    );
    let script = format!("stty -g; sh -c 'echo $$ > pid; exec {map}'; echo code $?; stty -g");
    let mut command = Command::new("script");
    command.args(["-qec", &script, "/dev/null"]).current_dir(session.dir.path());
    for (name, value) in session.command().get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    // Where standard input has ended, `script` ends its session.
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Opening one end of a pipe waits for the other end: now the command is at work.
    let mut pipe = std::fs::OpenOptions::new().write(true).open(session.path("then.json")).unwrap();
    let pid = std::fs::read_to_string(session.path("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    pipe.write_all(then.as_bytes()).unwrap();
    drop(pipe);
    let mut shown = String::new();
    child.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    let [before, said @ .., code, after] = &lines[..] else { panic!("{shown}") };
    assert_eq!((before, *code), (after, "code 130"), "{shown}");
    // What was drawn has been cleared.
    let said = said.join("\n");
    let left = said.rsplit_once("\x1b[2K").map_or(&said[..], |(_, left)| left);
    assert_eq!(left, "cenote map: interrupted", "{said:?}");
    assert_eq!(std::fs::read_dir(session.path("out")).unwrap().count(), 0);
}
