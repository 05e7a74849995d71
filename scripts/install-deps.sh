#!/bin/sh
# Installs the Debian packages that are missing: install-deps.sh build | demo | test (the default).
#   build   what the build needs
#   demo    the same, and what the demo needs
#   test    the same, and what the tests need
# Changes nothing if all are installed. Needs root or sudo only if something is missing.
set -eu

# gcc: linking, and zstd's C code.
packages="gcc libc6-dev make git ca-certificates"
programs="cc make git"
case "${1:-test}" in
build) ;;
demo | test)
    # fuse3: fusermount3, for mounts by ordinary users.
    packages="$packages fuse3 diffutils findutils"
    programs="$programs fusermount3 cmp find"
    ;;
*)
    echo "usage: install-deps.sh build | demo | test" >&2
    exit 2
    ;;
esac
if [ "${1:-test}" = test ]; then
    # g++: libFuzzer. attr: extended attributes. faketime: wrong clocks. util-linux: setpriv.
    # nginx-light: repositories behind a web server. iproute2: simulated networks.
    # fio, sqlite3: programs that write to mounts. e2fsprogs, xfsprogs, btrfs-progs: file systems on protected
    # devices. python3-zstandard: the second implementation (interop/).
    # libnbd-bin, qemu-utils: clients of the NBD server.
    packages="$packages g++ attr faketime nginx-light iproute2 rsync procps util-linux fio sqlite3 e2fsprogs xfsprogs btrfs-progs python3 python3-zstandard libnbd-bin qemu-utils"
    programs="$programs c++ setfattr faketime rsync nginx ip fio sqlite3 nbdcopy qemu-img"
fi

missing=""
if command -v dpkg-query >/dev/null 2>&1; then
    for package in $packages; do
        if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
            missing="$missing $package"
        fi
    done
else
    for program in $programs; do
        command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
    done
    if [ "${1:-test}" = test ]; then
        python3 -c 'import zstandard' 2>/dev/null || missing="$missing python3-zstandard"
    fi
    if [ -n "$missing" ]; then
        echo "error: missing:$missing" >&2
        echo "cause: this is not a Debian system, so this script cannot install them" >&2
        echo "hint: install the packages of your system that have these, then try again" >&2
        exit 1
    fi
fi

if [ -n "$missing" ]; then
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            echo "error: these packages are missing:$missing" >&2
            echo "cause: the installation needs root, and sudo is not installed" >&2
            echo "hint: as root: apt-get install$missing" >&2
            exit 1
        fi
        as_root=sudo
    fi
    echo "installing:$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -q >&2
    # shellcheck disable=SC2086 # a list of words
    $as_root apt-get install -q -y --no-install-recommends $missing >&2
fi

if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        exit 0 # the scripts put it on the path
    fi
    echo "error: cargo is missing" >&2
    echo "cause: the Rust toolchain comes from rustup, not from Debian" >&2
    echo "hint: see https://rustup.rs, then try again; rust-toolchain.toml names the version" >&2
    exit 1
fi
