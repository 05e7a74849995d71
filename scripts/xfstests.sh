#!/bin/bash
# Runs xfstests on ext4 twice: on loop devices over files, and on protected devices over such files. Prints the tests
# that fail only on protected devices. `xfstests.sh XFSTESTS [TEST...]`: XFSTESTS is a directory where xfstests is built,
# TEST what its `check` accepts (default: -g quick). Needs root and the users fsgqa, fsgqa2 and 123456-fsgqa
# (XFSTESTS/README). Both runs go on at the same time, each in namespaces of its own; tests that fail in only one of
# them run once more, alone. DIR=... names the directory for files and results (default: a new one, which is kept).
set -euo pipefail

fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}
[ $# -ge 1 ] || fail "no directory of xfstests" "usage: xfstests.sh XFSTESTS [TEST...]"
xfstests="$(cd "$1" && pwd)"
shift
[ $# -gt 0 ] || set -- -g quick
[ "$(id -u)" = 0 ] || fail "not root" "xfstests mounts file systems: run it as root"
[ -x "$xfstests/ltp/fsstress" ] || fail "$xfstests is not built" "run make there"
id fsgqa >/dev/null 2>&1 || fail "the user fsgqa is missing" "see XFSTESTS/README"

cd "$(dirname "$0")/.."
bulla="${BULLA_PROGRAM:-$PWD/target/release/bulla}"
[ -x "$bulla" ] || fail "$bulla is missing" "cargo build --release --package bulla"
bytes="${BYTES:-4G}"
dir="${DIR:-$(mktemp -d /var/tmp/bulla-xfstests.XXXXXX)}"
mkdir -p "$dir"
chmod 755 "$dir"
runuser -u fsgqa -- test -x "$dir" || fail "the user fsgqa cannot enter $dir" "name another directory with DIR=..."
export BULLA_STATE_DIR="$dir/state" BULLA_CACHE_DIR="$dir/cache" BULLA_CONFIG="$dir/config.toml"
: >"$BULLA_CONFIG"
head -c 32 /dev/urandom >"$dir/key"
chmod 600 "$dir/key"

loops=()
cleanup() {
    code=$?
    set +e
    trap - EXIT INT TERM
    for name in test scratch; do
        "$bulla" -q protect detach "$dir/protected-$name" --force 2>/dev/null
    done
    for device in "${loops[@]}"; do
        losetup --detach "$device"
    done
    for name in test scratch; do
        rm -f "$dir/plain-$name" "$dir/protected-$name" "$dir/log-$name"
    done
    echo "results: $dir"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The device of a file: plain NAME, protected NAME.
plain() {
    truncate -s "$bytes" "$dir/plain-$1"
    device="$(losetup --find --show --direct-io=on "$dir/plain-$1")"
    # As a loop device over FUSE: ext4 chooses other blocks on disks that rotate.
    echo 0 >"/sys/block/${device#/dev/}/queue/rotational"
    echo "$device"
}
protected() {
    truncate -s "$bytes" "$dir/protected-$1"
    {
        "$bulla" protect enrol "$dir/protected-$1" --log "$dir/log-$1" --ring 256MiB --key-file "$dir/key"
        "$bulla" protect attach "$dir/protected-$1" --log "$dir/log-$1" --key-file "$dir/key" >"$dir/place"
    } >>"$dir/bulla.out" 2>&1 || fail "bulla failed" "see $dir/bulla.out"
    cat "$dir/place"
}

# Runs `check` on the devices of a kind: run KIND RESULTS TEST... Its mounts, processes and temporary files end with it.
run() {
    kind="$1" results="$dir/$1-$2"
    shift 2
    mkdir -p "$results/tmp" "$dir/$kind-mounted/test" "$dir/$kind-mounted/scratch"
    TEST_DEV="${devices[$kind-test]}" SCRATCH_DEV="${devices[$kind-scratch]}" FSTYP=ext4 \
        TEST_DIR="$dir/$kind-mounted/test" SCRATCH_MNT="$dir/$kind-mounted/scratch" RESULT_BASE="$results" \
        HOST_OPTIONS="$dir/no-options" TMPDIR=/tmp unshare --mount --propagation slave --pid --fork --mount-proc --kill-child \
        bash -c 'mount --bind "$1" /tmp && cd "$2" && shift 2 && exec ./check "$@"' \
        check "$results/tmp" "$xfstests" "$@" >"$results.out" 2>&1 </dev/null || true
    rm -rf --one-file-system "$results/tmp"
    grep -q '^Ran:' "$results/check.log" || fail "check did not run on $kind devices" "see $results.out"
}

# The tests that a run names in its lines `Ran`, `Not run` or `Failures`: tests RESULTS WHAT.
tests() {
    sed -n "s/^$2://p" "$dir/$1/check.log" | tr -s ' ' '\n' | sed '/^$/d' | sort -u
}
only() {
    comm -13 <(tests "plain-$1" Failures) <(tests "protected-$1" Failures)
}

declare -A devices
for name in test scratch; do
    devices["plain-$name"]="$(plain "$name")"
    loops+=("${devices["plain-$name"]}")
    devices["protected-$name"]="$(protected "$name")"
done
for kind in plain protected; do
    mkfs.ext4 -q -F "${devices["$kind-test"]}"
done
run plain first "$@" &
run protected first "$@"
wait $!
mapfile -t differ < <(comm -3 <(tests plain-first Failures) <(tests protected-first Failures) | tr -d '\t')
if [ "${#differ[@]}" -gt 0 ]; then
    for kind in plain protected; do
        run "$kind" again "${differ[@]}"
    done
fi
for kind in plain protected; do
    count() { tests "$kind-first" "$1" | wc -l; }
    echo "$kind: $(($(count Ran) - $(count 'Not run'))) ran, $(count 'Not run') did not, $(count Failures) failed"
done
echo "both fail: $(comm -12 <(tests plain-first Failures) <(tests protected-first Failures) | xargs)"
[ "${#differ[@]}" -gt 0 ] || exit 0
echo "failed in one of two runs: ${differ[*]}"
found="$(only again)"
[ -z "$found" ] || fail "on protected devices alone fail: $(echo "$found" | xargs)" "see $dir/protected-again"
