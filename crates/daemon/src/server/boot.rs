//! What a daemon does that a service manager starts: it imports the pools of the cache file, names those that it
//! could not, and says when it is done (`sd_notify`).

use super::{Daemon, run_guarded};
use crate::cachefile;
use crate::context::Context;
use cenote_command::Cancel;
use cenote_pool::cachefile::{CacheFile, Entry};
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;

/// What of the default cache file is imported when the daemon starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// Nothing.
    Nothing,
    /// Pools for which no network is needed.
    Local,
    /// All pools.
    All,
}

/// Imports and mounts, in a thread of its own, what the default cache file names. Clients are served
/// meanwhile.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(daemon: &Arc<Daemon>, import: Import) -> io::Result<()> {
    let daemon = Arc::clone(daemon);
    let run = move || {
        let mut missing = Vec::new();
        if let Some(path) = cachefile::default_path().filter(|path| path.exists()) {
            let cancel = Cancel::default();
            let local = import == Import::Local;
            let mut args: Vec<OsString> = vec!["import".into(), "-a".into()];
            args.extend(local.then(|| "--local".into()));
            args.extend(["-c".into(), OsString::from(&path)]);
            let shown = if local { " --local" } else { "" };
            let title = format!("zpool import -a{shown} -c {}", path.display());
            let user = rustix::process::geteuid().as_raw();
            let id = daemon.running().enter(title.clone(), &cancel, user, false);
            let mut ctx = Context::of_process(Arc::clone(&daemon.pools));
            ctx.cancel = cancel;
            match run_guarded(daemon.run, "zpool", &args, &mut ctx) {
                0 => tracing::info!("{title}"),
                code => tracing::warn!("{title}: exit code {code}"),
            }
            missing = not_imported(&daemon, &path, local);
            id.ok().and_then(|id| daemon.running().commands.remove(&id));
            daemon.wake();
        }
        ready();
        if !missing.is_empty() {
            tell_manager(&format!("STATUS=Not imported: {}", missing.join(", ")));
        }
    };
    std::thread::Builder::new().name("import".into()).spawn(run)?;
    Ok(())
}

/// Logs each pool of a cache file that is not imported, with its state and why. Returns them, as `tank (UNAVAIL)`.
fn not_imported(daemon: &Daemon, path: &Path, local: bool) -> Vec<String> {
    // That the file cannot be read was said by the import.
    let Ok(mut file) = CacheFile::read(path) else { return Vec::new() };
    if local {
        for entry in file.entries().filter(Entry::is_by_network) {
            let name = entry.name;
            tracing::info!("pool '{name}' is in an object store: it is imported with the network");
        }
        file.retain(|entry| !entry.is_by_network());
    }
    let guids: Vec<u64> = daemon.pools.all().iter().map(|pool| pool.guid()).collect();
    if file.entries().all(|entry| guids.contains(&entry.guid)) {
        return Vec::new();
    }
    let found = file.candidates();
    for complaint in found.complaints() {
        tracing::warn!("{complaint}");
    }
    let found = found.candidates.into_iter();
    let left = found.filter(|candidate| !guids.contains(&candidate.guid));
    let say = |candidate: cenote_pool::Candidate| {
        let report = candidate.report();
        let why = report.status.unwrap_or_default().replace("\n\t", " ");
        let (name, state) = (&candidate.name, report.state);
        tracing::warn!("pool '{name}' of {} is not imported: {state}. {why}", path.display());
        format!("{name} ({state})")
    };
    left.map(say).collect()
}

/// Tells the service manager, if one asked for it, that the daemon is ready.
pub(super) fn ready() {
    tell_manager("READY=1");
}

/// Tells the service manager, if one asked for it, what `message` says.
fn tell_manager(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent =
        address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &to));
    if let Err(e) = sent {
        tracing::warn!("service manager: {e}");
    }
}
