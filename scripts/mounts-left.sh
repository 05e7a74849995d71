#!/bin/sh
# Which bulla mounts there are, and which of them are new: a test that leaves one behind is a defect.
#   mounts-left.sh list           the mounted directories, one a line
#   mounts-left.sh check FILE     fails, naming them, when there are others than FILE lists
set -eu

mounts() { awk '$3 ~ /^fuse\.bulla/ { print $2 }' /proc/self/mounts | sort; }

case "${1:-}" in
list) mounts ;;
check)
    left="$(mounts | grep -Fxv -f "$2" || true)"
    if [ -n "$left" ]; then
        echo "error: a mount was left behind:" >&2
        echo "$left" >&2
        echo "hint: bulla umount DIR takes it away" >&2
        exit 1
    fi
    ;;
*)
    echo "usage: mounts-left.sh list | check FILE" >&2
    exit 2
    ;;
esac
