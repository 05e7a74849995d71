#!/bin/sh
# The tests (docs/testing.md):
#   test.sh check   format, lints, house rules, unit tests
#   test.sh short   all tests that are not slow, with few cases of each property
#   BULLA_ALL=1 test.sh short   what CI runs: all tests, lints, mutations, a short run of the fuzz targets, a check for
#                   leftover mounts, and a time budget for all of it
#   test.sh long    the same with long tests, all mutations, and without a budget
# The last line of the output is the sum of all test runs, in cargo's format.
#   BULLA_BUDGET_FACTOR=N   multiplies the budget, 2 by default
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH

began="$(date +%s)"
case "${1:-short}" in
check) set -- check --began "$began" ;;
short)
    if [ -n "${BULLA_ALL:-}" ]; then
        set -- ci --began "$began"
    else
        set -- test
    fi
    ;;
long)
    BULLA_LONG=1
    export BULLA_LONG
    set -- ci --began "$began"
    ;;
*)
    echo "usage: test.sh check | short | long" >&2
    exit 2
    ;;
esac

# Selected with these packages, xtask shares its dependencies with the tests (xtask/src/cargo.rs).
cargo build --quiet --package xtask --package bulla --package bulla-bench --bin xtask
exec "${CARGO_TARGET_DIR:-target}/debug/xtask" "$@"
