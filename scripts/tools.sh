#!/usr/bin/env bash
# Unpacks, below target/tools, the tools around ZFS that are tried on pools of cenote's: Debian's packages, which
# are not installed (some would begin to work on the machine's own pools), and those of PyPI in an environment of
# their own. `scripts/setup.sh test` runs it. What cannot be had is said and left out, and tried again the next time.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
to=$here/target/tools
say() { printf 'tools: %s\n' "$*"; }

packages=(zfs-auto-snapshot sanoid zfsnap prometheus-node-exporter libconfig-inifiles-perl libcapture-tiny-perl)
python=(zfs-autobackup==3.3 pyznap==1.6.0 bzfs==1.25.0)

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
    [ -z "$all" ] || touch "$to/done"
fi
