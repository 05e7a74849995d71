#!/bin/sh
# The whole gate: format, lints, house rules, every test, the mutation rule, a smoke of the fuzz
# targets, and that no mount was left behind. `test.sh long` adds what takes long. The last line
# printed is the sum of all test runs, in cargo's own words.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH

kind="${1:-short}"
fuzz_s=3
mutations=--ci
if [ "$kind" = long ]; then
    fuzz_s=60
    mutations=
    export BULLA_LONG=1
fi

step() { printf '\n== %s\n' "$*" >&2; }
mkdir -p target
./scripts/mounts-left.sh list >target/mounts-before.txt

step format
cargo fmt --all --check

step lints
cargo clippy --workspace --all-targets --quiet -- -D warnings

step house rules
cargo xtask tidy

step tests
log="target/test-log.txt"
status=0
# A pipe would swallow cargo's exit status: it goes through a file of its own.
{
    if cargo test --workspace --no-fail-fast 2>&1; then
        echo 0 >target/test-status.txt
    else
        echo 1 >target/test-status.txt
    fi
} | tee "$log"
status="$(cat target/test-status.txt)"
if [ "$status" -eq 0 ] && grep -q 'SKIPPED' "$log"; then
    step "skipped on this machine (loudly, as it must be)"
    grep 'SKIPPED' "$log" | sort -u >&2
fi

if [ "$status" -eq 0 ]; then
    step mutations
    # shellcheck disable=SC2086 # empty means none
    cargo xtask mutate $mutations || status=1
fi

# Also after a failed test: targets that no longer build should be known at once.
step fuzz
cargo xtask fuzz --seconds "$fuzz_s" || status=1

step mounts
./scripts/mounts-left.sh check target/mounts-before.txt || status=1

awk -v status="$status" '
    /^test result: / { passed += $4; failed += $6; ignored += $8 }
    END {
        word = (status == 0 && failed == 0 && passed > 0) ? "ok" : "FAILED"
        printf "\ntest result: %s. %d passed; %d failed; %d ignored\n", word, passed, failed, ignored
        exit word != "ok"
    }' "$log"
