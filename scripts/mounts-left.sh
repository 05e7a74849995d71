#!/bin/sh
# Lists bulla mounts and finds new ones: a test must not leave a mount.
#   mounts-left.sh list           prints the mounted directories, one per line
#   mounts-left.sh check FILE     fails and prints the mounts that FILE does not list
set -eu

mounts() { awk '$3 ~ /^fuse\.bulla/ { print $2 }' /proc/self/mounts | sort; }

case "${1:-}" in
list) mounts ;;
check)
    left="$(mounts | grep -Fxv -f "$2" || true)"
    if [ -n "$left" ]; then
        echo "error: a mount was left behind:" >&2
        echo "$left" >&2
        echo "hint: bulla umount DIR removes it" >&2
        exit 1
    fi
    ;;
*)
    echo "usage: mounts-left.sh list | check FILE" >&2
    exit 2
    ;;
esac
