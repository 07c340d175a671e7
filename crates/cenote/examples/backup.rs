//! Copies a directory into a pool in an image file, and takes a snapshot of it: each run adds what
//! changed, and every snapshot shows the directory as it was. The pool is created by the first run.
//!
//! `cargo run --release --example backup -- /images/backup.img ~/documents`

use cenote::{CreatePool, FileSystem, Pool};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const POOL: &str = "backup";
const IMAGE_SIZE: u64 = 4 << 30;

fn main() -> cenote::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, directory] = args.as_slice() else {
        eprintln!("usage: backup IMAGE DIRECTORY");
        std::process::exit(2);
    };
    let pool = open_or_create(Path::new(image))?;
    let name = format!("{POOL}/files");
    let dataset = match pool.dataset(&name) {
        Ok(dataset) => dataset,
        Err(_) => pool.create_filesystem(&name, &[("compression", "zstd"), ("atime", "off")])?,
    };
    let copied = copy_tree(&dataset.filesystem()?, Path::new(directory), Path::new("/"))?;
    let number = dataset.snapshots()?.len() + 1;
    let snapshot = dataset.snapshot(&format!("run-{number}"))?;
    println!("{copied} files copied, {} taken", snapshot.name());
    drop((dataset, snapshot));
    pool.export()
}

fn open_or_create(image: &Path) -> cenote::Result<Pool> {
    if image.exists() {
        return Pool::open_writable([image], POOL);
    }
    fs::File::create(image)?.set_len(IMAGE_SIZE)?;
    let path = fs::canonicalize(image)?;
    CreatePool::new(POOL, [path.display().to_string()]).create()
}

/// Copies what is newer or of another size; returns how many files that were.
fn copy_tree(to: &FileSystem, from: &Path, at: &Path) -> cenote::Result<u64> {
    let mut copied = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), at.join(entry.file_name()));
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            to.create_dir_all(&target)?;
            copied += copy_tree(to, &source, &target)?;
        } else if metadata.is_file() {
            let known = to.metadata(&target).ok();
            let same =
                |k: &cenote::Metadata| k.size == metadata.len() && k.mtime.0 >= metadata.mtime();
            if !known.as_ref().is_some_and(same) {
                io::copy(&mut fs::File::open(&source)?, &mut to.create(&target)?)?;
                copied += 1;
            }
        }
    }
    Ok(copied)
}
