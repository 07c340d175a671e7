#!/usr/bin/env bash
# Unpacks, below target/tools, the tools around ZFS that are tried on pools of cenote's: Debian's packages, which
# are not installed (some would begin to work on the machine's own pools), and those of PyPI in an environment of
# their own, and the tests of go-zfs, a library, from Go's module proxy. `scripts/setup.sh test` runs it. What cannot be had is said and left out, and tried again the next time.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
to=$here/target/tools
say() { printf 'tools: %s\n' "$*"; }

packages=(zfs-auto-snapshot sanoid zfsnap prometheus-node-exporter libconfig-inifiles-perl libcapture-tiny-perl)
python=(zfs-autobackup==3.3 pyznap==1.6.0 bzfs==1.25.0)
go_zfs=github.com/mistifyio/go-zfs/v3@v3.0.1

if ! [ -e "$to/done" ]; then
    all=yes
    lacks() { say "no $* here"; all=; }
    rm -rf "$to"
    mkdir -p "$to/packages"
    cd "$to/packages"
    for package in "${packages[@]}"; do
        apt-get download -qq "$package" >/dev/null 2>&1 || lacks "package $package"
    done
    for package in *.deb; do
        [ -e "$package" ] && dpkg-deb -x "$package" "$to/debian"
    done
    if python3 -m venv "$to/python" >/dev/null 2>&1; then
        "$to/python/bin/pip" install -q --disable-pip-version-check "${python[@]}" ||
            lacks "Python tools"
    else
        lacks "Python environments (Debian: python3-venv)"
    fi
    # A module is read-only; its tests are built from a copy.
    if command -v go >/dev/null; then
        export GOPATH=$to/go GOTOOLCHAIN=local GOFLAGS=-modcacherw
        if from=$(go mod download -json "$go_zfs" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') && [ -n "$from" ]; then
            cp -r "$from" "$to/go-zfs"
            chmod -R u+w "$to/go-zfs"
            (cd "$to/go-zfs" && go test -c -o go-zfs.test .) || lacks "build of $go_zfs"
        else
            lacks "module $go_zfs"
        fi
    else
        say "no Go here (Debian: golang-go): the tests of go-zfs are left out"
    fi
    [ -z "$all" ] || touch "$to/done"
fi
