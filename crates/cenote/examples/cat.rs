//! Writes a file of a dataset to standard output.
//!
//! `cargo run --example cat -- /images tank/home@yesterday /alice/notes.txt`

use std::io;

fn main() -> cenote::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [paths, dataset, file] = args.as_slice() else {
        eprintln!("usage: cat DIRECTORY DATASET FILE");
        std::process::exit(2);
    };
    let name = dataset.split(['/', '@']).next().unwrap_or(dataset);
    let pool = cenote::Pool::open([paths], name)?;
    let mut file = pool.dataset(dataset)?.filesystem()?.open(file)?;
    io::copy(&mut file, &mut io::stdout().lock())?;
    Ok(())
}
