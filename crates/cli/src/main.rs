//! The `cenote` command, which is also `zpool`, `zfs` and `zdb` when it is called by those names.

fn main() {
    std::process::exit(cenote_cli::main(std::env::args_os().collect()));
}
