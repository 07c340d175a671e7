//! `unpack-sample POOL.img.zst IMAGE`: unpacks a sample pool's device file, leaving holes.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, to] = &args[..] else {
        eprintln!("usage: unpack-sample POOL.img.zst IMAGE");
        return ExitCode::from(2);
    };
    match cenote_testpools::unpack_image(from, to) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("unpack-sample: {}: {e}", from.display());
            ExitCode::FAILURE
        }
    }
}
