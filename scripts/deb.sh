#!/usr/bin/env bash
# A Debian package of cenote, made with Debian's own tools (dpkg-dev); `make deb` runs it after building.
#
#   BINARY        the program (target/release/cenote)
#   OUT           the directory that the package goes into (target/debian)
#   COMPRESSION   of the package, as dpkg-deb names it (xz)
#
# Only the name cenote is in it: zpool, zfs, zdb and mount.zfs are OpenZFS's packages' names.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
binary=${BINARY:-$here/target/release/cenote}
out=${OUT:-$here/target/debian}
die() { printf 'deb: %s\n' "$*" >&2; exit 1; }

for program in dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev objcopy:binutils; do
    command -v "${program%:*}" >/dev/null || die "no ${program%:*} here: install ${program#*:}"
done
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
root=$made/root
DESTDIR=$root PREFIX=/usr MOUNTDIR=/usr/sbin LINKS=no BINARY=$binary "$here/scripts/install.sh"
rm -r "$root/usr/lib/debug"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
cat "$here/LICENSE-MIT" "$here/LICENSE-APACHE" >"$root/usr/share/doc/cenote/copyright"

# The libraries that the program needs, as the packages that have them.
mkdir "$made/debian"
printf 'Source: cenote\n\nPackage: cenote\nArchitecture: any\n' >"$made/debian/control"
libraries=$(cd "$made" && dpkg-shlibdeps -O "$root/usr/bin/cenote" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[ -n "$libraries" ] || die "dpkg-shlibdeps does not know what $binary needs"

version=$("$binary" --version | awk '{print $2}')
architecture=$(dpkg --print-architecture)
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<EOF
Package: cenote
Version: $version-1
Architecture: $architecture
Maintainer: The cenote authors
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: $libraries, fuse3, init-system-helpers
Section: admin
Priority: optional
Description: OpenZFS pools in user space
 Makes, imports and mounts OpenZFS pools through FUSE, without a kernel module, and answers zpool, zfs and
 zdb. The program is cenote; its other names can be made as links.
EOF
for script in preinst postinst prerm postrm; do
    install -m 755 "$here/packaging/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
chmod -R go=u,go-w "$root"
mkdir -p "$out"
dpkg-deb --root-owner-group "-Z${COMPRESSION:-xz}" --build "$root" "$out/cenote_$version-1_$architecture.deb"
