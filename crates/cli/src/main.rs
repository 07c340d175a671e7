//! The `cenote` command, which is also `zpool`, `zfs`, `zdb`, `zstream`, `zinject`, `mount.zfs` and `zfs_ids_to_path`
//! when it is called by those names.

mod allocator;

fn main() {
    allocator::tell_the_cache();
    std::process::exit(cenote_cli::main(std::env::args_os().collect()));
}
