#!/usr/bin/env bash
# What `make run` does after building: imports a sample pool read-only, mounts it, and shows it.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
bin=$here/target/release/cenote
play=${CENOTE_PLAY:-$here/target/sample}
sample=basic

mkdir -p "$play"
if ! [ -e "$play/$sample.0.img" ]; then
    "$here/target/release/unpack-sample" "$here/tests/pools/$sample.0.img.zst" "$play/$sample.0.img"
fi

show() {
    printf '\n$ cenote %s\n' "$*"
    "$bin" "$@"
}

if ! "$bin" zpool list -H -o name "$sample" >/dev/null 2>&1; then
    show zpool import -d "$play" -o readonly=on -R "$play/mnt" "$sample"
fi
show zpool status "$sample"
show zpool list "$sample"
show zfs list -r "$sample"
printf '\n$ ls %s\n' "$play/mnt/$sample"
ls -la "$play/mnt/$sample"

cat <<EOT

The pool '$sample' is imported read-only and mounted at $play/mnt/$sample.
Look around: cenote is $bin
To leave: $bin zpool export $sample
EOT
