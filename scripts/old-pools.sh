#!/usr/bin/env bash
# Makes pools of versions from before feature flags with zfs-fuse (scripts/setup.sh bench unpacks it), for tests/pools/old:
# for each version an image and a list of all that is in it. As root; in a mount namespace of its own.
#
#   scripts/old-pools.sh TO VERSION...
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
if [ "${OLD_POOLS_INSIDE:-}" != yes ]; then
    exec env OLD_POOLS_INSIDE=yes unshare -m --propagation private "$0" "$@"
fi
to=$(realpath "$1")
shift
root=${ZFS_FUSE:-$here/target/zfs-fuse}
work=$(mktemp -d)
mkdir -p /run/zfs /run/lock "$work/mnt"
mount -t tmpfs none /run/zfs
export LD_LIBRARY_PATH=$(echo "$root"/lib/*-linux-gnu) PATH=$root/sbin:$PATH
zfs-fuse --no-daemon --no-kstat-mount -m 64 -a 0 -e 0 -x -o default_permissions >"$work/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true; rm -rf "$work"' EXIT
while ! [ -e /run/zfs/zfs_socket ]; do sleep 0.1; done

# Files of all kinds below a directory.
fill() {
    python3 - "$1" <<'PYTHON'
import os, sys
top = sys.argv[1]
def write(name, data):
    with open(os.path.join(top, name), "wb") as f:
        f.write(data)
def pattern(n, seed):
    return bytes((i * seed + (i >> 10)) & 0xff for i in range(n))
os.makedirs(top + "/dir/deep/er")
for i in range(25):
    write("dir/file-%02d" % i, b"%d\n" % i * (i + 1))
write("empty", b"")
write("small", b"hello\n")
write("blocks", pattern(150000, 7))
with open(top + "/sparse", "wb") as f:
    f.seek(200000)
    f.write(b"after a hole")
os.link(top + "/small", top + "/dir/hard")
os.symlink("small", top + "/link")
os.symlink("t" * 56, top + "/link-56")
os.symlink("t" * 57, top + "/link-57")
os.symlink("/".join(["far"] * 60), top + "/link-far")
os.mkfifo(top + "/fifo")
os.mknod(top + "/null", 0o20666, os.makedev(1, 3))
os.mknod(top + "/loop", 0o60660, os.makedev(7, 300))
os.chmod(top + "/small", 0o4751)
os.chmod(top + "/dir/deep", 0o1707)
os.chown(top + "/blocks", 1000, 1001)
os.chown(top + "/dir/deep", 70000, 80000)
PYTHON
}

# Whole seconds: zfs-fuse shows no more of times.
settle() {
    python3 - "$1" <<'PYTHON'
import os, sys
for at, dirs, names in os.walk(sys.argv[1], topdown=False):
    dirs[:] = [d for d in dirs if not os.path.ismount(os.path.join(at, d))]
    for n in sorted(names) + ["."]:
        path = os.path.join(at, n)
        if not os.path.islink(path):
            os.utime(path, (1000000000 + len(path), 1000000000 + 7 * len(path)))
PYTHON
}

# What is there, as manifests have it.
list() {
    python3 - "$1" "$2" "$3" <<'PYTHON'
import hashlib, json, os, stat, sys
top, name, kind = sys.argv[1:]
files, kinds = [], {0o01: "p", 0o02: "c", 0o04: "d", 0o06: "b", 0o10: "f", 0o12: "l", 0o14: "s"}
def add(path):
    full = os.path.join(top, path)
    s = os.lstat(full)
    f = {"path": path, "type": kinds[s.st_mode >> 12], "mode": "%04o" % (s.st_mode & 0o7777),
         "uid": s.st_uid, "gid": s.st_gid, "size": s.st_size, "mtime_ns": s.st_mtime_ns,
         "ctime_ns": s.st_ctime_ns, "nlink": s.st_nlink, "ino": s.st_ino}
    if f["type"] in "bc":
        f["rdev"] = [os.major(s.st_rdev), os.minor(s.st_rdev)]
    if f["type"] == "l":
        f["target"] = os.readlink(full)
    if f["type"] == "f":
        f["sha256"] = hashlib.sha256(open(full, "rb").read()).hexdigest()
    # Times that cannot be set have nanoseconds which are not shown; the number of the root is made up; numbers of devices are
    # stored as Linux has them.
    f["time_varies"] = ["ctime_ns"] + (["mtime_ns"] if f["type"] == "l" else []) + (["ino"] if path == "." else []) + (["rdev"] if "rdev" in f else [])
    files.append(f)
add(".")
for at, dirs, names in os.walk(top):
    dirs[:] = sorted(d for d in dirs if not os.path.ismount(os.path.join(at, d)))
    for n in sorted(os.listdir(at)):
        add(os.path.relpath(os.path.join(at, n), top))
print(json.dumps({"name": name, "type": kind, "files": files}))
PYTHON
}

for version in "$@"; do
    pool=v$version image=$work/v$version.img mnt=$work/mnt/v$version lists=$work/lists
    : >"$lists"
    truncate -s 64M "$image"
    mkdir -p "$mnt"
    zpool create -f -o version="$version" -m "$mnt" "$pool" "$image"
    # Some versions of file systems of those that the pool can have.
    zpls="1 2" && [ "$version" -lt 9 ] || zpls="1 3" && [ "$version" -lt 15 ] || zpls="2 3 4"
    for zpl in $zpls; do
        zfs create -o version=$zpl "$pool/z$zpl"
    done
    # The directories at which others are mounted are part of the one above.
    for fs in "$mnt"/z?; do
        fill "$fs"
    done
    if [ "$version" -ge 5 ]; then
        zfs create -o compression=gzip "$pool/gzip"
        seq 60000 >"$mnt/gzip/numbers"
    fi
    if [ "$version" -ge 21 ]; then
        zfs create -o dedup=on "$pool/dedup"
        seq 30000 >"$mnt/dedup/once"
        cp "$mnt/dedup/once" "$mnt/dedup/again"
    fi
    for fs in "$mnt"/z?; do
        settle "$fs"
        sync
        zfs snapshot "$pool/${fs##*/}@one"
        list "$fs" "$pool/${fs##*/}@one" snapshot >>"$lists"
    done
    newest=$(cd "$mnt" && ls -d z? | tail -n 1)
    zfs clone "$pool/$newest@one" "$pool/clone"
    for fs in "$mnt"/z? "$mnt/clone"; do
        rm "$fs"/dir/file-1? "$fs/link-far"
        echo changed >"$fs/small"
        echo more >>"$fs/blocks"
        echo new >"$fs/dir/new"
    done
    sync
    zfs snapshot "$pool/$newest@two"
    zfs snapshot "$pool/clone@three"
    rm "$mnt/$newest/blocks" "$mnt/clone/dir/file-20"
    [ "$version" -lt 15 ] || zfs set userquota@1000=50M "$pool/z4"
    [ "$version" -lt 18 ] || zfs hold kept "$pool/$newest@two"
    for fs in "$mnt" "$mnt"/*/; do
        settle "${fs%/}"
    done
    sync
    zpool export "$pool"
    zpool import -d "$work" "$pool"
    # The outermost one has nothing but what others are mounted at.
    for fs in "$mnt"/*/; do
        fs=${fs%/}
        list "$fs" "$pool${fs#"$mnt"}" filesystem >>"$lists"
    done
    zpool export "$pool"
    python3 -c 'import json, sys
print(json.dumps({"version": int(sys.argv[1]), "datasets": [json.loads(l) for l in open(sys.argv[2])]}))' \
        "$version" "$lists" | zstd -q -19 -f -o "$to/v$version.manifest.json.zst"
    zstd -q --ultra -22 --long=27 -f "$image" -o "$to/v$version.img.zst"
done
