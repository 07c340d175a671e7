//! What tests of encrypted datasets share: keys in files and on standard input, contents that can be told from others.

use super::tank::Tank;
use super::{Done, Session};
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// Runs `cenote` with `input` as its standard input.
pub fn fed(session: &Session, line: &str, input: &[u8]) -> Done {
    let mut command = session.command();
    command.args(line.split_whitespace()).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its input has ended.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Puts a key into a file; where that is.
pub fn key_file(tank: &Tank, name: &str, key: &str) -> String {
    fs::write(tank.session.path(name), key).unwrap();
    format!("file://{}", tank.session.path(name).display())
}

/// Contents that do not compress.
pub fn contents(seed: u64, len: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some((*state >> 56) as u8)
    };
    std::iter::repeat_n((), len).scan(seed, |state, ()| next(state)).collect()
}
