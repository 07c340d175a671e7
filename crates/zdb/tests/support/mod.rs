//! Runs `zdb` in the test's own process and keeps what it writes.

#![allow(clippy::unwrap_used, dead_code)]

use cenote_command::{Caller, Cancel, Rights, Terminal};
use cenote_pool::Pool;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

/// Standard output, standard error and exit code of `zdb args` where `pools` are imported.
pub fn zdb_with(pools: &[Arc<Pool>], args: &[&str]) -> (Vec<u8>, String, i32) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let caller = Caller {
        cwd: std::env::temp_dir(),
        env: BTreeMap::from([(OsString::from("TZ"), OsString::from("UTC"))]),
        terminal: Terminal::default(),
        umask: 0o022,
        user: 0,
        pid: None,
        rights: Rights::All,
    };
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let surroundings = cenote_zdb::Surroundings {
        out: &mut out,
        err: &mut err,
        caller: &caller,
        cancel: Cancel::default(),
        imported: &|name| pools.iter().find(|pool| pool.name() == name).cloned(),
        cachefile: None,
    };
    let code = cenote_zdb::run(&args, surroundings);
    (out, String::from_utf8_lossy(&err).into_owned(), code)
}

/// The same where no pool is imported, with the output as text.
pub fn zdb(args: &[&str]) -> (String, String, i32) {
    let (out, err, code) = zdb_with(&[], args);
    (String::from_utf8_lossy(&out).into_owned(), err, code)
}
