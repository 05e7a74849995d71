#!/bin/sh
# Runs the second implementation (interop/README.md): interop.sh verify ... runs interop/reference.py with these
# arguments. It needs Python 3.9 or newer and the package zstandard, which Debian has as python3-zstandard: so
# Debian's Python is used if the first one on the path lacks it.
set -eu
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import zstandard' 2>/dev/null; then
        PYTHONDONTWRITEBYTECODE=1 exec "$python" "$(dirname "$0")/../interop/reference.py" "$@"
    fi
done
echo "error: no Python has the package zstandard" >&2
echo "hint: make install-deps" >&2
exit 1
