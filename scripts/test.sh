#!/bin/sh
# The steps of `make check` and `make test`, with time budgets (docs/testing.md):
#   test.sh check   format, lints, house rules, unit tests
#   test.sh short   these, all tests, mutations, a short run of the fuzz targets, a check for leftover mounts
#   test.sh long    the same with long tests, without budgets
# The last line of the output is the sum of all test runs, in cargo's format.
#   BULLA_BUDGET_FACTOR=N   multiplies the budgets, 2 by default
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH

began="$(date +%s)"
verb=ci
case "${1:-short}" in
check) verb=check ;;
short) ;;
long)
    BULLA_LONG=1
    export BULLA_LONG
    ;;
*)
    echo "usage: test.sh check | short | long" >&2
    exit 2
    ;;
esac

# Selected with these packages, xtask shares its dependencies with the tests (xtask/src/cargo.rs).
cargo build --quiet --package xtask --package bulla --package bulla-bench --bin xtask
exec "${CARGO_TARGET_DIR:-target}/debug/xtask" "$verb" --began "$began"
