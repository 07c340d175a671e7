//! Runs `zdb` in the test's own process and keeps what it writes.

#![allow(clippy::unwrap_used, dead_code)]

use cenote_cli::client::Caller;
use cenote_cli::context::{Cancel, Context, Streams, Terminal};
use cenote_cli::pools::PoolTable;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Standard output, standard error and exit code of `zdb args` where `pools` are imported.
pub fn zdb_with(pools: PoolTable, args: &[&str]) -> (Vec<u8>, String, i32) {
    let (out, err) = (Buffer::default(), Buffer::default());
    let streams = Streams { out: Box::new(out.clone()), err: Box::new(err.clone()) };
    let caller = Caller {
        cwd: std::env::temp_dir(),
        env: BTreeMap::from([(OsString::from("TZ"), OsString::from("UTC"))]),
        terminal: Terminal::default(),
        umask: 0o022,
        user: 0,
    };
    let mut ctx = Context::new(streams, caller, Arc::new(pools), Cancel::default());
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let code = cenote_cli::zdb::run(&args, &mut ctx);
    drop(ctx);
    let (out, err) = (out.0.lock().unwrap().clone(), err.0.lock().unwrap().clone());
    (out, String::from_utf8_lossy(&err).into_owned(), code)
}

/// The same where no pool is imported, with the output as text.
pub fn zdb(args: &[&str]) -> (String, String, i32) {
    let (out, err, code) = zdb_with(PoolTable::default(), args);
    (String::from_utf8_lossy(&out).into_owned(), err, code)
}
