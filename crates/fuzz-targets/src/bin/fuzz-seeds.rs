//! Writes the seeds of every fuzz target: `fuzz-seeds [DIRECTORY]`, by default `fuzz/corpus`.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let base = env::args_os().nth(1).map_or(default, Into::into);
    for (target, seeds) in cenote_fuzz_targets::seeds::collect()? {
        let dir = base.join(target);
        fs::create_dir_all(&dir)?;
        for (i, seed) in seeds.iter().enumerate() {
            fs::write(dir.join(format!("pool-{i:04}")), seed)?;
        }
        println!("{}: {} seeds", dir.display(), seeds.len());
    }
    Ok(())
}
