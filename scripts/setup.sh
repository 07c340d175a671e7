#!/usr/bin/env bash
# Installs what building, running or testing cenote needs and the machine lacks.
#
#   scripts/setup.sh run    a Rust toolchain, a C compiler, fuse3
#   scripts/setup.sh test   the same, OpenZFS's own zdb, which judges our pools, its engine as a
#                           library, which takes turns with ours, as zfs-fuse does with old pools
#                           (unpacked below target/, not installed), and the programs that are
#                           tried on them
#   scripts/setup.sh s3     the same without those programs, and a distributed object store (SeaweedFS),
#                           built below target/ from its Go module, not installed. It wants a Go of this
#                           year, newer than Debian 12 has
#   scripts/setup.sh azure  the same, with Azurite, which speaks as Azure's Blob Storage does, in its place,
#                           of its npm package
#   scripts/setup.sh bench  the same as run, and the benchmarks' peers: OpenZFS's engine as a library,
#                           btrfs-progs, and zfs-fuse
#
# For Debian 12, Ubuntu 24.04 and later, as root or as a user who can use sudo. Says what it does;
# does nothing where nothing is missing.
set -euo pipefail

purpose=${1:-run}
here=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root: become root, or install sudo"
    fi
}

updated=
apt_update() {
    [ -n "$updated" ] && return
    say "updating the package lists"
    as_root apt-get update -qq
    updated=yes
}

apt_install() {
    command -v apt-get >/dev/null || die "no apt-get here: install $* by hand"
    apt_update
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# OpenZFS's tools are in Debian's component "contrib". Where no source has it, add one that is a
# copy of the machine's own Debian source with that component.
add_contrib() {
    [ -r /etc/os-release ] && . /etc/os-release
    [ "${ID:-}" = debian ] || return 0
    apt-cache policy zfsutils-linux 2>/dev/null | grep -q 'Candidate: [0-9]' && return 0
    apt_update
    apt-cache policy zfsutils-linux 2>/dev/null | grep -q 'Candidate: [0-9]' && return 0
    local to=/etc/apt/sources.list.d/cenote-contrib
    say "adding Debian's component contrib ($to)"
    if [ -r /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Components:.*/Components: contrib/' /etc/apt/sources.list.d/debian.sources |
            as_root tee "$to.sources" >/dev/null
    else
        sed -nE 's/^(deb (\[[^]]*\] )?[^ ]+ [^ ]+) .*\bmain\b.*/\1 contrib/p' /etc/apt/sources.list |
            as_root tee "$to.list" >/dev/null
    fi
    updated=
    apt_update
}

rust_is_new_enough() {
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml")
    have=$(cargo --version 2>/dev/null | awk '{print $2}') || return 1
    [ -n "$have" ] && [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ]
}

PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin"
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v fusermount3 >/dev/null || missing+=(fuse3)
if ! command -v rustup >/dev/null && ! rust_is_new_enough; then
    command -v curl >/dev/null || missing+=(curl ca-certificates)
fi
[ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"

# Where udev does not run (containers, rescue systems), nobody gave the device its usual mode.
[ -e /dev/fuse ] || as_root modprobe fuse || say "no /dev/fuse: mounting will not work here"
if [ -e /dev/fuse ] && [ "$(stat -c %a /dev/fuse)" != 666 ]; then
    say "opening /dev/fuse to all users, as udev does"
    as_root chmod 666 /dev/fuse
fi

if ! rust_is_new_enough; then
    if ! command -v rustup >/dev/null; then
        say "installing a Rust toolchain with rustup, for $(id -un) only"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --profile default --no-modify-path
    else
        say "updating the Rust toolchain"
        rustup toolchain install stable --profile default
    fi
    rust_is_new_enough || die "$(cargo --version) is too old, and the newest stable one could not be installed"
fi

if [ "$purpose" != run ] && ! [ -x /sbin/zdb ] && ! command -v zdb >/dev/null; then
    add_contrib
    apt_install zfsutils-linux
fi

if [ "$purpose" != run ] && ! [ -e /usr/include/libzfs/sys/dmu.h ]; then
    apt_install libzfslinux-dev libzpool5linux
fi
if [ "$purpose" = bench ] && ! ldconfig -p | grep -q libjemalloc.so; then
    apt_install libjemalloc-dev
fi

if [ "$purpose" = bench ] && ! command -v mkfs.btrfs >/dev/null; then
    apt_install btrfs-progs
fi

# Unpacks packages that are not to be installed (zfs-fuse would remove zfsutils-linux) below a directory: those of them
# that the system has. "$file" must be among what they bring.
unpack() {
    local to=$1 file=$2 package
    shift 2
    apt_update
    say "unpacking $1 below $to"
    rm -rf "$to.new"
    mkdir -p "$to.new/packages" && cd "$to.new/packages"
    for package in "$@"; do
        apt-get download -qq "$package" 2>/dev/null || true
    done
    for package in *.deb; do
        [ -e "$package" ] && dpkg-deb -x "$package" "$to.new"
    done
    [ -e "$to.new/$file" ] && mv "$to.new" "$to"
}

# It reads and writes pools of versions from before feature flags, and is a peer in benchmarks.
if [ "$purpose" != run ] && ! [ -x "$here/target/zfs-fuse/sbin/zfs-fuse" ]; then
    (unpack "$here/target/zfs-fuse" sbin/zfs-fuse zfs-fuse libfuse2 libfuse2t64) || say "no zfs-fuse here: what is compared with it will be missing"
fi

# The zedlets of OpenZFS's ZED: the service itself is not installed.
zedlets=usr/lib/zfs-linux/zed.d/scrub_finish-notify.sh
if [ "$purpose" = test ] && ! [ -e "$here/target/zfs-zed/$zedlets" ]; then
    add_contrib
    (unpack "$here/target/zfs-zed" "$zedlets" zfs-zed) || die "the package zfs-zed cannot be unpacked"
fi

# What the tests of real programs, of completions and of units run. Of PostgreSQL only the programs are wanted, no server.
if [ "$purpose" = test ]; then
    missing=()
    for program in git make ar:binutils objcopy:binutils dpkg-shlibdeps:dpkg-dev diff:diffutils ps:procps go:golang-go fio python3 rsync sqlite3 systemd-analyze:systemd zsh fish; do
        command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
    done
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
    if ! ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1; then
        apt_install postgresql-common
        as_root sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' \
            /etc/postgresql-common/createcluster.conf
        apt_install postgresql
    fi
    if ! python3 -m venv --help >/dev/null 2>&1 || ! python3 -c 'import ensurepip' 2>/dev/null; then
        apt_install python3-venv
    fi
    "$here/scripts/tools.sh"
    if ! command -v fsx >/dev/null; then
        say "building fsx, the file system exerciser, for $(id -un) only"
        cargo install --quiet --locked --debug fsx
    fi
    if ! command -v pjdfstest >/dev/null; then
        say "building pjdfstest, which tries what POSIX says, for $(id -un) only"
        cargo install --quiet --locked --debug pjdfstest@0.2.2
    fi
fi

# Whether a program for tests is in a directory below target, in this version.
is_there() {
    [ -e "$here/target/$1/$2" ] && [ "$(cat "$here/target/$1/version" 2>/dev/null)" = "$3" ]
}

# The distributed object store of `make test-s3`, built as the module says: its own versions of all others.
seaweedfs=github.com/seaweedfs/seaweedfs@v0.0.0-20261109003541-7506e5f91cd6
if [ "$purpose" = s3 ] && ! is_there seaweedfs weed "$seaweedfs"; then
    command -v go >/dev/null || apt_install golang-go
    command -v setpriv >/dev/null || apt_install util-linux
    export CGO_ENABLED=0
    to=$here/target/seaweedfs
    # What goes wrong is told in what it writes.
    found=$(go mod download -json "$seaweedfs" 2>&1) || true
    from=$(printf '%s' "$found" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$from" ] || die "the module $seaweedfs cannot be had by $(go version): $found"
    say "building SeaweedFS below $to: minutes"
    rm -rf "$to"
    mkdir -p "$to"
    # A module is read-only, and what it replaces counts only where it is the main one.
    cp -r "$from" "$to/source"
    chmod -R u+w "$to/source"
    (cd "$to/source" && go build -ldflags='-s -w' -o "$to/weed.new" ./weed) || die "SeaweedFS cannot be built with $(go version)"
    rm -rf "$to/source"
    mv "$to/weed.new" "$to/weed"
    printf '%s\n' "$seaweedfs" >"$to/version"
fi

# The store of `make test-azure`.
azurite=3.35.0
if [ "$purpose" = azure ] && ! is_there azurite node_modules/azurite/dist/src/blob/main.js "$azurite"; then
    command -v node >/dev/null || apt_install nodejs
    command -v npm >/dev/null || apt_install npm
    command -v setpriv >/dev/null || apt_install util-linux
    say "installing Azurite below $here/target/azurite"
    mkdir -p "$here/target/azurite"
    npm install --loglevel=error --no-audit --no-fund --ignore-scripts --prefix "$here/target/azurite" "azurite@$azurite" ||
        die "Azurite $azurite cannot be installed"
    printf '%s\n' "$azurite" >"$here/target/azurite/version"
fi
