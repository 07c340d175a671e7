//! The `cenote` command, which is also `zpool`, `zfs`, `zdb`, `zstream`, `zinject`, `mount.zfs` and `zfs_ids_to_path`
//! when it is called by those names.

/// Blocks come and go by the megabyte with every transaction group; this allocator keeps their pages
/// for the next one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    std::process::exit(cenote_cli::main(std::env::args_os().collect()));
}
