#!/usr/bin/env bash
# Puts cenote in place; `make install` runs it after building.
#
#   PREFIX       below which it goes (/usr/local)
#   DESTDIR      root of the system that it is for, put before all paths
#   BINARY       the program (target/release/cenote)
#   LINKS        zpool, zfs, zdb, zstream, zinject, zfs_ids_to_path and mount.zfs as names of it: "auto" leaves out those that
#                OpenZFS has on the system, "yes" replaces them, "no" makes none
#   MOUNTDIR     where mount(8) looks for mount.zfs (/sbin)
#   SYSTEMDDIR   where systemd looks for units (PREFIX/lib/systemd)
#
# The program is stripped; its symbols go to PREFIX/lib/debug, where debuggers find them.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-/usr/local}
destdir=${DESTDIR:-}
binary=${BINARY:-$here/target/release/cenote}
links=${LINKS:-auto}
mountdir=${MOUNTDIR:-/sbin}
systemddir=${SYSTEMDDIR:-$prefix/lib/systemd}
bindir=$prefix/bin
say() { printf 'install: %s\n' "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }

case $prefix in /*) ;; *) die "PREFIX has to be an absolute path, not '$prefix'" ;; esac
case $links in auto | yes | no) ;; *) die "LINKS is auto, yes or no, not '$links'" ;; esac
[ -x "$binary" ] || die "no program at $binary: run 'make build' first"

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$binary" generate "$made"

# The program, and its symbols apart.
install -d "$destdir$bindir"
debug=$prefix/lib/debug$bindir/cenote.debug
if command -v objcopy >/dev/null; then
    objcopy --only-keep-debug "$binary" "$made/cenote.debug"
    objcopy --strip-all --add-gnu-debuglink="$made/cenote.debug" "$binary" "$made/cenote"
    install -D -m 644 "$made/cenote.debug" "$destdir$debug"
else
    say "no objcopy here (Debian: binutils): the program keeps its symbols"
    cp "$binary" "$made/cenote"
fi
# A program that runs is replaced, not written into.
install -m 755 "$made/cenote" "$destdir$bindir/cenote.new"
mv -f "$destdir$bindir/cenote.new" "$destdir$bindir/cenote"

# Whether a path leads to cenote, here or on the system that it is for.
is_ours() { [ -L "$1" ] && [ "$(basename "$(readlink "$1")")" = cenote ]; }

# OpenZFS's own program of this name on the system, wherever it is.
theirs() {
    local dir
    for dir in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin "$bindir" "$mountdir"; do
        if [ -e "$destdir$dir/$1" ] || [ -L "$destdir$dir/$1" ]; then
            is_ours "$destdir$dir/$1" || { printf '%s' "$dir/$1"; return; }
        fi
    done
}

linked=()
link() {
    local name=$1 dir=$2 there
    [ "$links" != no ] || return 0
    there=$(theirs "$name")
    if [ -n "$there" ] && [ "$links" != yes ]; then
        say "$there is not cenote's: no link $name ('LINKS=yes' makes it all the same)"
        return 0
    fi
    install -d "$destdir$dir"
    ln -sfn "$bindir/cenote" "$destdir$dir/$name"
    linked+=("$name")
}
for name in zpool zfs zdb zstream zinject zfs_ids_to_path; do
    link "$name" "$bindir"
done
link mount.zfs "$mountdir"

# Man pages, completions. Where a name is ours, its pages go by that name as well.
man=$destdir$prefix/share/man
for page in "$made"/man/*; do
    install -D -m 644 "$page" "$man/man${page##*.}/$(basename "$page")"
done
pages() {
    local page own
    for page in "$made/man/cenote-$1".* "$made/man/cenote-$1"-* "$made/man/cenote-$1"props.*; do
        [ -e "$page" ] || continue
        own=$(basename "$page")
        ln -sfn "$own" "$man/man${page##*.}/${own#cenote-}"
    done
}
completions() {
    local name=$1
    install -D -m 644 "$made/bash/$name.bash" "$destdir$prefix/share/bash-completion/completions/$name"
    install -D -m 644 "$made/zsh/_$name" "$destdir$prefix/share/zsh/site-functions/_$name"
    install -D -m 644 "$made/fish/$name.fish" "$destdir$prefix/share/fish/vendor_completions.d/$name.fish"
}
completions cenote
for name in ${linked[@]+"${linked[@]}"}; do
    pages "$name"
    case $name in zpool | zfs | zdb | zstream | zinject) completions "$name" ;; esac
done

unit() {
    sed "s|@BINDIR@|$bindir|" "$here/packaging/$1.in" >"$made/unit"
    install -D -m 644 "$made/unit" "$destdir$systemddir/$2"
}
unit cenote.service system/cenote.service
unit cenote-import.service system/cenote-import.service
unit cenote-network.service system/cenote-network.service
unit cenote-user.service user/cenote.service

cd "$here"
for text in README.md CHANGELOG.md ARCHITECTURE.md LICENSE-MIT LICENSE-APACHE docs/*.md; do
    install -D -m 644 "$text" "$destdir$prefix/share/doc/cenote/$text"
done
say "cenote is in $destdir$bindir${linked[*]:+, with the names ${linked[*]}}"
