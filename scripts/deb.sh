#!/bin/sh
# Makes a Debian package of a built bulla, with dpkg-deb only: deb.sh [DIRECTORY], by default target/.
# The last line of the output is the path of the package.
#   DEB_MAINTAINER="Name <mail>"  the maintainer
#   DEB_COMPRESSION=none          as dpkg-deb -Z
set -eu
cd "$(dirname "$0")/.."

out="${1:-target}"
program="${BULLA_PROGRAM:-target/release/bulla}"
maintainer="${DEB_MAINTAINER:-unknown <unknown@invalid>}"
if ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "error: dpkg-deb is missing" >&2
    echo "hint: a Debian package can only be made on Debian or a similar system; elsewhere use make install" >&2
    exit 1
fi

stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
PREFIX=/usr DESTDIR="$stage" BULLA_PROGRAM="$program" ./scripts/install.sh
if command -v strip >/dev/null 2>&1; then
    strip --strip-unneeded "$stage/usr/bin/bulla"
fi
find "$stage/usr/share/man" -type f -exec gzip -9n {} +

version="$("$program" --json version | sed 's/.*"version":"\([^"]*\)".*/\1/')"
architecture="$(dpkg --print-architecture)"
# Requires the C library of this machine or a newer one. Only libc and libgcc are linked.
libc="$(dpkg-query -W -f '${Version}' libc6 | sed 's/-.*//')"
mkdir "$stage/DEBIAN"
cat >"$stage/usr/share/doc/bulla/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: bulla

Files: *
Copyright: the authors of bulla
License: Apache-2.0 or MIT
 On Debian systems the Apache licence, version 2.0, is in /usr/share/common-licenses/Apache-2.0.
COPYRIGHT
cat >"$stage/DEBIAN/control" <<CONTROL
Package: bulla
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Section: utils
Priority: optional
Installed-Size: $(du -sk --exclude DEBIAN "$stage" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1
Recommends: fuse3, ca-certificates
Description: file systems on storage that nobody has to trust
 A publisher signs a directory tree. Any machine can serve it. Readers mount it
 and verify each byte before they use it.
CONTROL
# With DPKG_ROOT the files belong to another system, so no service of this one is changed.
cat >"$stage/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -z "${DPKG_ROOT:-}" ]; then
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers bulla.conf; fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
POSTINST
cat >"$stage/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    systemctl stop 'bulla-*.socket' 'bulla-*.timer' 'bulla-*.service' || true
fi
PRERM
cat >"$stage/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
POSTRM
chmod 755 "$stage"/DEBIAN/p*
(cd "$stage" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) \
    >"$stage/DEBIAN/md5sums"
mkdir -p "$out"
package="$out/bulla_${version}_$architecture.deb"
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$stage" "$package" >&2
echo "$package"
