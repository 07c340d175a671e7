#!/usr/bin/env bash
# What `make run` does after building: makes a pool in a file, mounts it for reading and writing, shows
# it, and leaves you in front of a working zpool and zfs. No root, no spare disk. Run again, it goes on
# with the pool that is there.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
play=${CENOTE_PLAY:-$here/target/play}
pool=tank
size=4G

mkdir -p "$play/bin"
for tool in cenote zpool zfs zdb; do
    ln -sf "$here/target/release/cenote" "$play/bin/$tool"
done
export PATH=$play/bin:$PATH

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

if ! zpool list -H -o name "$pool" >/dev/null 2>&1; then
    if [ -e "$play/disk.img" ]; then
        show zpool import -d "$play" -R "$play/mnt" "$pool"
    else
        show truncate -s "$size" "$play/disk.img"
        show zpool create -R "$play/mnt" "$pool" "$play/disk.img"
        show zfs create -o compression=zstd "$pool/docs"
        show cp "$here/README.md" "$here/ARCHITECTURE.md" "$play/mnt/$pool/docs"
        show zfs snapshot "$pool/docs@first"
    fi
fi
show zpool status "$pool"
show zpool list "$pool"
show zfs list -t all -r "$pool"
show ls -l "$play/mnt/$pool/docs"

cat <<EOT

The pool '$pool' is in the file $play/disk.img
and mounted, to be read and written, at $play/mnt/$pool
To leave it: zpool export $pool       To throw it away: zpool destroy $pool && rm $play/disk.img
EOT

if [ -t 0 ] && [ -t 1 ] && [ -z "${CI:-}" ]; then
    printf '\nzpool, zfs and zdb are cenote in this shell. Leave it with exit; the pool stays.\n\n'
    cd "$play/mnt/$pool"
    exec "${SHELL:-/bin/sh}"
fi
printf '\nFor zpool, zfs and zdb: export PATH=%s:$PATH\n' "$play/bin"
