//! What a daemon does that a service manager starts: it imports the pools of the cache file, and says when
//! it has (`sd_notify`).

use super::{Daemon, run_guarded};
use crate::cachefile;
use crate::context::Context;
use cenote_command::Cancel;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;

/// Imports and mounts, in a thread of its own, what the default cache file names. Clients are served
/// meanwhile.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(daemon: &Arc<Daemon>) -> io::Result<()> {
    let daemon = Arc::clone(daemon);
    let run = move || {
        if let Some(path) = cachefile::default_path().filter(|path| path.exists()) {
            let cancel = Cancel::default();
            let title = format!("zpool import -a -c {}", path.display());
            let user = rustix::process::geteuid().as_raw();
            let id = daemon.running().enter(title.clone(), &cancel, user, usize::MAX);
            let mut ctx = Context::of_process(Arc::clone(&daemon.pools));
            ctx.cancel = cancel;
            let args = ["import".into(), "-a".into(), "-c".into(), OsString::from(path)];
            match run_guarded(daemon.run, "zpool", &args, &mut ctx) {
                0 => tracing::info!("{title}"),
                code => tracing::warn!("{title}: exit code {code}"),
            }
            id.and_then(|id| daemon.running().commands.remove(&id));
            daemon.wake();
        }
        ready();
    };
    std::thread::Builder::new().name("import".into()).spawn(run)?;
    Ok(())
}

/// Tells the service manager, if one asked for it, that the daemon is ready.
pub(super) fn ready() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(e) = sent {
        tracing::warn!("service manager: {e}");
    }
}
