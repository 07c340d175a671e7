//! Programs that tests run, each of them with an end.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a program may take that a test waits for: far more than any needs.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs a program to its end and collects what it says.
///
/// # Panics
/// It cannot be started, or does not end.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let limit = Instant::now() + LIMIT;
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = wait(&mut child);
    // What it started and left behind may still hold the other ends.
    let text = |from: mpsc::Receiver<Vec<u8>>| {
        let left = limit.saturating_duration_since(Instant::now());
        from.recv_timeout(left)
            .unwrap_or_else(|e| panic!("{command:?}: its output has no end: {e}"))
    };
    Output { status, stdout: text(out), stderr: text(err) }
}

fn collect(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (to, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut text);
        }
        let _ = to.send(text);
    });
    received
}

/// Waits for a program to end.
///
/// # Panics
/// It does not end; it is killed.
#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("process {} does not end: killed after {LIMIT:?}", child.id());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
