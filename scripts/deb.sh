#!/bin/sh
# Makes Debian packages of a built bulla, with dpkg-deb and binutils only: deb.sh [DIRECTORY], by default target/.
# bulla has the program without symbols; bulla-dbgsym has the symbols, for debuggers.
# The last line of the output is the path of the package bulla, and the line before it that of bulla-dbgsym.
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

for tool in strip objcopy readelf; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "error: $tool is missing" >&2
        echo "hint: install the package binutils" >&2
        exit 1
    fi
done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
stage="$work/bulla"
symbols="$work/symbols"
mkdir -m 755 "$stage" "$symbols"
PREFIX=/usr DESTDIR="$stage" BULLA_PROGRAM="$program" ./scripts/install.sh
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

# Debuggers find the symbols of a program by its build id.
id="$(readelf -n "$program" | sed -n 's/.*Build ID: *//p' | head -n 1)"
if [ -z "$id" ]; then
    echo "error: $program has no build id" >&2
    echo "hint: build it with a linker that writes one (cargo build --release, with the linker of the system)" >&2
    exit 1
fi
debug="$symbols/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)"
mkdir -p "$debug" "$symbols/DEBIAN"
objcopy --only-keep-debug --compress-debug-sections "$program" "$debug/$(echo "$id" | cut -c 3-).debug"
chmod 644 "$debug"/*.debug
cat >"$symbols/DEBIAN/control" <<CONTROL
Package: bulla-dbgsym
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Auto-Built-Package: debug-symbols
Section: debug
Priority: optional
Installed-Size: $(du -sk --exclude DEBIAN "$symbols" | cut -f1)
Depends: bulla (= $version)
Build-Ids: $id
Description: debug symbols for bulla
CONTROL

# build DIRECTORY NAME
build() {
    (cd "$1" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) \
        >"$1/DEBIAN/md5sums"
    package="$out/${2}_${version}_$architecture.deb"
    dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$1" "$package" >&2
    echo "$package"
}
mkdir -p "$out"
build "$symbols" bulla-dbgsym
build "$stage" bulla
