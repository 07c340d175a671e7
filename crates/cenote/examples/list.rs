//! Lists the pools in a directory (or image), their datasets and snapshots.
//!
//! `cargo run --example list -- /images`

fn main() -> cenote::Result<()> {
    for found in cenote::Pool::find(std::env::args_os().skip(1)) {
        let pool = match found.open() {
            Ok(pool) => pool,
            Err(e) => {
                println!("{}: {e}", found.name());
                continue;
            }
        };
        let size = pool.property("size").unwrap_or_default();
        println!("{}: {}, {size} bytes", pool.name(), pool.health());
        for dataset in pool.datasets() {
            let dataset = dataset?;
            let referenced = dataset.property("referenced")?.unwrap_or_default();
            println!("  {:<40} {referenced:>14}", dataset.name());
            for snapshot in dataset.snapshots()? {
                println!(
                    "  {:<40} {:>14}",
                    snapshot.name(),
                    snapshot.property("referenced")?.unwrap_or_default()
                );
            }
        }
    }
    Ok(())
}
