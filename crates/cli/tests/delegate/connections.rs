//! Connections of other users to root's daemon: what a program sends that is no command of ours gets it no more than a command, and
//! one that reads, sends or ends oddly keeps no other one waiting.

use super::common::tank::Tank;
use super::{ALICE, BOB, DENIED, alice, by, command_of, unmounted};
use cenote_daemon::protocol::{Kind, Request, Run, Stdin, read_frame, write_frame, write_json};
use cenote_fuse::agent::Channel;
use rustix::process::{Gid, Uid};
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Speaks to the daemon as another user, in a thread that is that user.
pub fn as_alice<T: Send>(tank: &Tank, f: impl Fn(&dyn Fn() -> UnixStream) -> T + Send + Sync) -> T {
    let socket = tank.session.path("socket");
    std::thread::scope(|scope| {
        let run = || {
            let (user, group) = (Uid::from_raw(ALICE), Gid::from_raw(ALICE));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            f(&|| UnixStream::connect(&socket).unwrap())
        };
        scope.spawn(run).join().unwrap()
    })
}

pub fn request(tool: &str, args: &[&str]) -> Request {
    let bytes = |text: &str| text.as_bytes().to_vec();
    Request::Run(Run {
        tool: tool.into(),
        args: args.iter().map(|arg| bytes(arg)).collect(),
        cwd: bytes("/root"),
        env: [("ZPOOL_SCRIPTS_PATH", "/bin"), ("TZ", "/etc/shadow"), ("HOME", "/root")]
            .map(|(name, value)| (bytes(name), bytes(value)))
            .into(),
        terminal: Default::default(),
        umask: 0,
        namespace: 1,
        input: Stdin::Unread,
    })
}

/// A connection that the daemon has greeted. One that ended may still be counted: then it is tried again.
pub fn greeted(connect: &dyn Fn() -> UnixStream) -> UnixStream {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mut stream = connect();
        match read_frame(&mut stream).unwrap() {
            Some((Kind::Hello, _)) => return stream,
            Some((Kind::Full, why)) if Instant::now() > end => panic!("{}", why.escape_ascii()),
            Some((Kind::Full, _)) => std::thread::sleep(Duration::from_millis(20)),
            other => panic!("{other:?}"),
        }
    }
}

/// What a request is answered: exit code and messages.
pub fn answer(mut stream: UnixStream, request: &Request) -> (i32, String) {
    write_json(&mut stream, Kind::Request, request).unwrap();
    let mut said = Vec::new();
    loop {
        match read_frame(&mut stream).unwrap().expect("an exit code comes last") {
            (Kind::Exit, code) => {
                let code = serde_json::from_slice(&code).unwrap();
                return (code, String::from_utf8_lossy(&said).into_owned());
            }
            (Kind::Out | Kind::Err, data) => said.extend(data),
            // It is no answer that makes sense.
            (Kind::Ask, _) => write_frame(&mut stream, Kind::Answer, b"{}").unwrap(),
            _ => {}
        }
    }
}

#[test]
fn what_a_program_of_another_user_sends_gets_it_no_more() {
    let Some(tank) = unmounted() else { return };
    let asked = [
        request("cenote", &["zpool", "destroy", "tank"]),
        request("cenote", &["zfs", "list"]),
        request("cenote", &["generate", "/tmp"]),
        request("zdb", &["-l", "/etc/shadow"]),
        request("zstream", &["dump"]),
        request("mount.zfs", &["tank", "/mnt"]),
        request("zpool", &["labelclear", "-f", "/etc/shadow"]),
        request("zpool", &["import", "-d", "/root"]),
        request("zpool", &["status", "-c", "id"]),
        request("zpool", &["iostat", "-c", "id"]),
        request("zfs_ids_to_path", &["tank", "54", "1"]),
        request("", &[]),
        Request::Stop,
        Request::Status,
    ];
    let answers = as_alice(&tank, |connect| {
        asked.iter().map(|request| answer(greeted(connect), request)).collect::<Vec<_>>()
    });
    for (request, (code, said)) in asked.iter().zip(answers) {
        assert_eq!(code, 1, "{request:?}: {said}");
        assert!(said.contains(DENIED) || said.starts_with("Can't run -c"), "{request:?}: {said}");
    }
    // No path of theirs is looked up: what is there and what is not look the same.
    let looked = as_alice(&tank, |connect| {
        ["/root", "/root/none", "/etc/shadow/none"].map(|path| {
            let (_, said) = answer(greeted(connect), &request("zfs", &["list", path]));
            said.replace(&format!("'{path}'"), "it")
        })
    });
    assert!(looked.iter().all(|said| said.starts_with("it: not a ZFS filesystem")), "{looked:?}");
    assert!(looked.iter().all(|said| *said == looked[0]), "{looked:?}");
    // One user's connections leave room for others.
    let held = as_alice(&tank, |connect| {
        let held: Vec<UnixStream> = (0..16).map(|_| greeted(connect)).collect();
        assert!(matches!(read_frame(&mut connect()), Ok(Some((Kind::Full, _)))));
        held
    });
    tank.session.run("zpool list tank").ok();
    assert_eq!(by(&tank, BOB, &[], "zpool list -Ho name").ok(), "tank\n");
    // Those that are too many wait for their turn.
    let mut waiting = command_of(&tank, ALICE, &[]);
    waiting.args(["zpool", "list", "-Ho", "name"]).stdout(Stdio::piped());
    let mut waiting = waiting.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none());
    drop(held);
    assert_eq!(waiting.wait_with_output().unwrap().stdout, b"tank\n");
    tank.finish();
}

#[test]
fn nobody_waits_for_another_user_to_read() {
    let Some(tank) = unmounted() else { return };
    let names: Vec<String> = (0..8_000).map(|n| format!("tank/none{n}")).collect();
    let mut args = vec!["set", "compression=off"];
    args.extend(names.iter().map(String::as_str));
    let request = request("zfs", &args);
    let held = as_alice(&tank, |connect| {
        let mut stream = greeted(connect);
        write_json(&mut stream, Kind::Request, &request).unwrap();
        stream
    });
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    tank.zfs("create tank/a");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    // What the command has said goes on waiting, and root sees whose it is.
    let status = tank.session.run("daemon status").ok();
    assert!(status.ends_with(&format!(" (user {ALICE})\n")), "{}", status.len());
    drop(held);
    tank.finish();
}

/// A receive whose stream stalls, by its command and how much of the stream comes. Meanwhile root creates a dataset.
#[track_caller]
fn stalls(tank: &Tank, mut command: Command, line: &str, part: &[u8]) {
    command.args(line.split(' ')).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that is refused does not read it.
    let _ = stdin.write_all(part);
    std::thread::sleep(Duration::from_millis(500));
    let in_time = std::thread::scope(|scope| {
        let creating = scope.spawn(|| tank.zfs("create tank/new"));
        let end = Instant::now() + Duration::from_secs(20);
        while !creating.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        // If it waits for the stream, this is what it waits for.
        let in_time = creating.is_finished();
        drop(stdin);
        in_time
    });
    assert!(in_time, "{line}: others wait for {} bytes to go on", part.len());
    child.wait().unwrap();
    tank.zfs("destroy tank/new");
}

#[test]
fn nobody_waits_for_a_stream_that_stalls() {
    let Some(tank) = unmounted() else { return };
    for name in ["tank/a", "tank/b"] {
        tank.zfs(&format!("create {name}"));
    }
    tank.zfs("snapshot tank/a@1");
    tank.zfs(&format!("allow -u {ALICE} receive,create,mount tank/b"));
    let sent = cenote_testpools::output(tank.session.command().args(["zfs", "send", "tank/a@1"]));
    let stream = sent.stdout;
    // The head alone, and all but the end.
    for part in [&stream[..312], &stream[..stream.len() - 312]] {
        for line in ["zfs receive -nu tank/b/c", "zfs receive -u tank/b/c", "zfs receive -n tank/x"]
        {
            stalls(&tank, command_of(&tank, ALICE, &[]), line, part);
            stalls(&tank, tank.session.command(), line, part);
        }
    }
    // It is refused before more of it is read.
    let mut refused = command_of(&tank, ALICE, &[]);
    refused.args(["zfs", "receive", "-n", "tank/x"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut refused = refused.spawn().unwrap();
    let mut stdin = refused.stdin.take().unwrap();
    stdin.write_all(&stream[..312]).unwrap();
    let said = refused.wait_with_output().unwrap().stderr;
    assert!(String::from_utf8_lossy(&said).contains(DENIED));
    drop(stdin);
    tank.finish();
}

/// The threads of a process that serve connections.
fn serving(pid: i32) -> Vec<String> {
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        // It may have ended.
        let name = fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
        if name.starts_with("watch") || name.starts_with("command-") {
            names.push(name.trim_end().to_string());
        }
    }
    names
}

#[track_caller]
fn until_none_serves(pid: i32) {
    let end = Instant::now() + Duration::from_secs(20);
    while !serving(pid).is_empty() {
        assert!(Instant::now() < end, "{:?}", serving(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_that_end_oddly_leave_no_threads() {
    let Some(tank) = unmounted() else { return };
    let daemon = tank.session.daemon().unwrap();
    let mut receive = request("zfs", &["receive", "tank/a"]);
    if let Request::Run(run) = &mut receive {
        run.input = Stdin::Frames;
    }
    let wait = request("zpool", &["wait", "tank"]);
    let kept = as_alice(&tank, |connect| {
        let greeted = || greeted(connect);
        drop(connect());
        drop(greeted());
        let mut kept = Vec::new();
        for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
            kept.push(greeted());
            kept.last().unwrap().shutdown(how).unwrap();
            for asked in [&wait, &receive] {
                let mut stream = greeted();
                write_json(&mut stream, Kind::Request, asked).unwrap();
                stream.shutdown(how).unwrap();
                // Where nothing is read, input may come still.
                let _ = write_frame(&mut stream, Kind::In, b"no stream");
                let _ = write_frame(&mut stream, Kind::In, b"");
                kept.push(stream);
            }
        }
        // A request that comes a byte at a time does not come.
        let mut slow = greeted();
        slow.write_all(&[Kind::Request as u8, 0, 0, 1, 0]).unwrap();
        let end = Instant::now() + Duration::from_secs(25);
        while slow.write_all(b" ").is_ok() {
            assert!(Instant::now() < end, "it is waited for");
            std::thread::sleep(Duration::from_millis(300));
        }
        kept
    });
    until_none_serves(daemon);
    drop(kept);
    tank.finish();
}

#[test]
fn descriptors_of_others_are_not_taken() {
    let Some(tank) = unmounted() else { return };
    let mut receive = request("zfs", &["receive", "tank/a"]);
    let mut ask = |input| {
        if let Request::Run(run) = &mut receive {
            run.input = input;
        }
        let mut wire = Vec::new();
        write_json(&mut wire, Kind::Request, &receive).unwrap();
        as_alice(&tank, |connect| {
            let (mut end, theirs) = UnixStream::pair().unwrap();
            let mut channel = Channel::new(greeted(connect));
            let sent = channel.send_with(&wire, &[theirs.as_fd()]).unwrap();
            let mut stream = channel.into_stream();
            stream.write_all(&wire[sent..]).unwrap();
            drop(theirs);
            // It has no other end any more, while the command runs.
            end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(end.read(&mut [0]).unwrap(), 0);
            write_frame(&mut stream, Kind::In, b"no stream")
                .and_then(|()| write_frame(&mut stream, Kind::In, b""))
                .ok();
            let mut said = String::new();
            while let Ok(Some((kind, data))) = read_frame(&mut stream) {
                if kind == Kind::Err {
                    said += &String::from_utf8_lossy(&data);
                }
            }
            said
        })
    };
    assert_eq!(ask(Stdin::Frames), "cannot receive: failed to read from stream\n");
    assert!(ask(Stdin::Descriptor).contains("cannot run a further command"));
    tank.finish();
}

#[test]
fn what_a_listing_holds_for_others_is_bounded() {
    let Some(tank) = unmounted() else { return };
    for name in 0..5 {
        tank.zfs(&format!("create tank/{name}"));
    }
    let properties = vec!["0:"; 50_000].join(",");
    for args in [["get", "-r", &properties, "tank"], ["list", "-ro", &properties, "tank"]] {
        let asked = request("zfs", &args);
        let (code, said) = as_alice(&tank, |connect| answer(greeted(connect), &asked));
        assert!(code == 1 && said.starts_with("too many values"), "{said}");
    }
    alice(&tank, "zfs get -r all tank").ok();
    tank.finish();
}
