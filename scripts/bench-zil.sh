#!/bin/sh
# Synchronous writes: mounts cenote, ext4 and btrfs on files in DIR, all of the same storage, and has
# `cenote-bench zil` write there and through the library. Then PostgreSQL's `pgbench` runs on each of the mounts
# (scripts/bench-pgbench.sh). Needs root, and the programs that it mounts with.
#
#   scripts/bench-zil.sh DIR CENOTE BENCH [ARGUMENT...]
set -eu
dir=$1 cenote=$2 bench=$3
shift 3
here=$(dirname "$0")
mkdir -p "$dir"
work=$(mktemp -d "$dir/zil.XXXXXX")
# PostgreSQL's user reaches its directory through it.
chmod 755 "$work"
export CENOTE_SOCKET="$work/socket"
at= mounts=

clean() {
    "$cenote" zpool export benchzil >/dev/null 2>&1 || true
    "$cenote" daemon stop >/dev/null 2>&1 || true
    for name in ext4 btrfs; do
        umount "$work/$name.mnt" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean EXIT

# A file whose blocks are there already: no one is to measure how the host allocates.
image() {
    dd if=/dev/zero of="$1" bs=1M count=1280 conv=fsync status=none
}

for name in ext4 btrfs; do
    command -v "mkfs.$name" >/dev/null || { echo "no mkfs.$name: no row" >&2; continue; }
    image "$work/$name"
    "mkfs.$name" -q "$work/$name"
    mkdir "$work/$name.mnt"
    if mount -o loop "$work/$name" "$work/$name.mnt" 2>"$work/why"; then
        at="$at --at $name=$work/$name.mnt"
        mounts="$mounts $name=$work/$name.mnt"
    else
        echo "$name cannot be mounted: $(cat "$work/why")" >&2
    fi
done
image "$work/disk0"
mkdir "$work/root"
"$cenote" zpool create -O compression=off -R "$work/root" benchzil "$work/disk0"
at="$at --at cenote=$work/root/benchzil"
mounts="$mounts cenote=$work/root/benchzil"
# shellcheck disable=SC2086
"$bench" zil --dir "$work" $at "$@"
# shellcheck disable=SC2086
"$here/bench-pgbench.sh" "$work/pg" $mounts
