//! Sample pools that are written to.

use cenote::Pool;
use cenote_testpools::TempPool;
use std::thread::sleep;
use std::time::Duration;

/// Exports a pool, of which nothing else is left.
pub fn export(pool: Pool) {
    pool.export().unwrap();
}

/// Programs that other tests start have its devices open for a moment.
pub fn writable(temp: &TempPool) -> Pool {
    for _ in 0..100 {
        match Pool::open_writable([&temp.pool.dir], &temp.pool.name) {
            Err(e) if e.to_string().contains("already in use") => sleep(Duration::from_millis(100)),
            opened => return opened.unwrap_or_else(|e| panic!("{e}")),
        }
    }
    panic!("the devices stay in use");
}
