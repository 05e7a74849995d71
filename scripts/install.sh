#!/bin/sh
# Installs a built bulla: program, man pages, completions, systemd units, mount.bulla, documents.
#   PREFIX=/usr/local DESTDIR= SBINDIR=/sbin BULLA_PROGRAM=target/release/bulla install.sh
# DESTDIR is put before every path, but is not written into files. This script builds nothing.
set -eu
cd "$(dirname "$0")/.."

prefix="${PREFIX:-/usr/local}"
destination="${DESTDIR:-}"
sbin="${SBINDIR:-/sbin}" # mount(8) looks for its programs nowhere else
program="${BULLA_PROGRAM:-target/release/bulla}"

if [ ! -x "$program" ]; then
    echo "error: $program does not exist" >&2
    echo "hint: run make build, then make install again (only the latter as root)" >&2
    exit 1
fi
case "$prefix" in
/*) ;;
*)
    echo "error: PREFIX=$prefix is not an absolute path" >&2
    echo "hint: make install PREFIX=/usr/local" >&2
    exit 2
    ;;
esac

root="$destination$prefix"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# put MODE DIRECTORY FILE...
put() {
    mode="$1"
    directory="$2"
    shift 2
    install -d -m 755 "$directory"
    install -m "$mode" "$@" "$directory/"
}

# Without symbols: they are half of the file, and only debuggers read them. scripts/deb.sh puts them into a package.
if ! command -v strip >/dev/null 2>&1 || ! strip --strip-unneeded -o "$work/bulla" "$program"; then
    echo "note: the program is installed with its symbols, because strip (package binutils) is missing or failed" >&2
    cp "$program" "$work/bulla"
fi
put 755 "$root/bin" "$work/bulla"
install -d -m 755 "$destination$sbin"
ln -sf "$prefix/bin/bulla" "$destination$sbin/mount.bulla"

"$program" -q man --out "$work/man"
put 644 "$root/share/man/man1" "$work"/man/*.1

echo '.so man1/bulla-mount.1' >"$work/mount.bulla.8"
put 644 "$root/share/man/man8" "$work/mount.bulla.8"

# Debian's zsh looks for the completions of packages in another directory.
zsh=site-functions
[ "$prefix" != /usr ] || zsh=vendor-completions
# complete SHELL DIRECTORY NAME
complete() {
    "$program" completions "$1" >"$work/$3"
    put 644 "$root/share/$2" "$work/$3"
}
complete bash bash-completion/completions bulla
complete zsh "zsh/$zsh" _bulla
complete fish fish/vendor_completions.d bulla.fish

mkdir "$work/units"
for unit in contrib/systemd/*.service contrib/systemd/*.socket contrib/systemd/*.timer; do
    sed "s|/usr/bin/bulla|$prefix/bin/bulla|" "$unit" >"$work/units/$(basename "$unit")"
done
put 644 "$root/lib/systemd/system" "$work"/units/*
mkdir "$work/user"
for unit in contrib/systemd/user/*.service; do
    sed "s|/usr/bin/bulla|$prefix/bin/bulla|" "$unit" >"$work/user/$(basename "$unit")"
done
put 644 "$root/lib/systemd/user" "$work"/user/*
install -d -m 755 "$root/lib/sysusers.d"
install -m 644 contrib/systemd/bulla.sysusers "$root/lib/sysusers.d/bulla.conf"

put 644 "$root/share/doc/bulla" README.md
(cd docs && find . -name '*.md') | while read -r page; do
    install -D -m 644 "docs/$page" "$root/share/doc/bulla/docs/$page"
done
put 644 "$root/share/doc/bulla/examples" contrib/systemd/examples/*
