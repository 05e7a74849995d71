#!/bin/sh
# source.sh PACKAGE DIRECTORY: fetches a Debian source package, verified by apt, into a directory. The
# system's own lists of packages are neither used nor changed.
set -eu

package=$1
directory=$2

lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
mkdir -p "$lists/lists/partial"
cat >"$lists/debian.sources" <<END
Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END

apt() {
    apt-get -q -o Dir::Etc::SourceList="$lists/debian.sources" -o Dir::Etc::SourceParts=/nonexistent \
        -o Dir::State::Lists="$lists/lists" -o APT::Sandbox::User=root "$@"
}

apt update
cd "$directory"
apt source --download-only "$package"
