#!/bin/sh
# Runs the second implementation (interop/README.md) with the Python packages that it needs.
#   interop.sh install      installs the packages, if they are missing
#   interop.sh verify ...   runs interop/reference.py with these arguments
# The packages lie in a virtual environment in the user's cache directory, one for each requirements.txt.
set -eu
interop="$(cd "$(dirname "$0")/../interop" && pwd)"
environment="${XDG_CACHE_HOME:-$HOME/.cache}/bulla-interop/$(cksum <"$interop/requirements.txt" | tr -c '0-9\n' -)"

if [ "${1:-}" = install ]; then
    [ ! -e "$environment/complete" ] || exit 0
    echo "installing: Python packages of interop/requirements.txt" >&2
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --requirement "$interop/requirements.txt" >&2
    touch "$environment/complete"
    exit 0
fi

if [ ! -e "$environment/complete" ]; then
    echo "error: the Python packages of the second implementation are not installed" >&2
    echo "hint: make install-deps" >&2
    exit 1
fi
PYTHONDONTWRITEBYTECODE=1 exec "$environment/bin/python" "$interop/reference.py" "$@"
