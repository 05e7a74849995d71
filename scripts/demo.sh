#!/bin/bash
# The main job on a real tree, with the embedded store: keys, publish, serve, mount, compare, read,
# a change that arrives, and servers that lie. `demo.sh [DIR]`. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; }
fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}
now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{ printf "%.2f", $1 - $2 }'; }
rate() { awk -v n="$1" -v t="$2" 'BEGIN { printf "%.0f", n / (t > 0.01 ? t : 0.01) }'; }

work="$(mktemp -d "${TMPDIR:-/tmp}/bulla-demo.XXXXXX")"
servers=()
cleanup() {
    code=$?
    set +e
    trap - EXIT INT TERM
    if [ -d "$work/mnt" ]; then
        "$bulla" -q umount "$work/mnt" 2>/dev/null
    fi
    for pid in "${servers[@]}"; do
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    chmod -R u+rwX "$work" 2>/dev/null
    rm -rf --one-file-system "$work"
    exit "$code"
}
# A test can set BULLA_PROGRAM to a program that is already built.
bulla="${BULLA_PROGRAM:-${CARGO_TARGET_DIR:-$PWD/target}/debug/bulla}"
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -z "${BULLA_PROGRAM:-}" ]; then
    # As the tests are built, with their features, so that `make test` builds none of it again.
    say "Build, without optimization"
    cargo build --quiet --package bulla --package bulla-bench --package xtask --bin bulla
fi
export BULLA_STATE_DIR="$work/state" BULLA_CACHE_DIR="$work/cache"
export BULLA_CONFIG="$work/config.toml"
: >"$BULLA_CONFIG"
began="$(now)"

# A tree that every machine has, with some thousand files and at most a gigabyte.
choose() {
    for candidate in /usr/share/doc /usr/include /usr/share/perl /usr/lib/python3 /usr/share/zoneinfo /usr/share /etc; do
        [ -d "$candidate" ] || continue
        files="$(find "$candidate" -xdev -type f 2>/dev/null | head -100000 | wc -l)"
        mib="$(du -xsm "$candidate" 2>/dev/null | cut -f1)"
        if [ "$files" -ge 1000 ] && [ "${mib:-9999}" -le 1024 ]; then
            echo "$candidate"
            return
        fi
    done
    fail "no tree of a fitting size was found" "name one: make demo DIR=/some/directory"
}
source_dir="${1:-$(choose)}"
[ -d "$source_dir" ] || fail "$source_dir is not a directory" "name one: make demo DIR=/some/directory"
needed="$(du -xsm "$source_dir" | cut -f1)"
free="$(df -m --output=avail "$work" | tail -1)"
if [ "$((needed * 3 + 64))" -gt "$free" ]; then
    fail "not enough room in ${TMPDIR:-/tmp}: $((needed * 3 + 64)) MiB are needed" \
        "set TMPDIR to a larger place, or name a smaller tree with DIR="
fi

say "The tree: a copy of $source_dir, because the demo will change it"
cp -a --reflink=auto "$source_dir/." "$work/tree" 2>/dev/null || cp -r "$source_dir/." "$work/tree"
tree="$work/tree"
files="$(find "$tree" ! -type d | wc -l)"
bytes="$(find "$tree" -type f -printf '%s\n' | awk '{ s += $1 } END { print s + 0 }')"
echo "$files files, $((bytes / 1048576)) MiB"

say "A key, and the first version"
show "bulla key new --out key --no-passphrase"
"$bulla" -q key new --out "$work/key" --no-passphrase
show "bulla publish tree repo --key key --valid 7d"
t="$(now)"
"$bulla" publish "$tree" "$work/repo" --key "$work/key" --valid 7d 2>/dev/null | tee "$work/published"
publish_s="$(since "$t")"
volume="$(awk '$1 == "volume" { print $2 }' "$work/published")"

# serve REPO NAME: starts a server, leaves its address in $address.
serve() {
    "$bulla" serve "$1" --listen 127.0.0.1:0 >"$work/$2.out" 2>"$work/$2.log" &
    servers+=("$!")
    for _ in $(seq 100); do
        address="$(grep -o 'bulla://.*' "$work/$2.out" || true)"
        [ -n "$address" ] && return
        sleep 0.05
    done
    fail "the server did not start" "see $work/$2.log"
}

say "An untrusted server on this machine; it has no key"
show "bulla serve repo --listen 127.0.0.1:0"
serve "$work/repo" honest
honest="$address"
echo "$volume@$honest"

say "Mount it"
mkdir "$work/mnt"
mnt="$work/mnt"
show "bulla mount VOLUMEID@$honest mnt --refresh 1s"
code=0
"$bulla" mount "$volume@$honest" "$mnt" --refresh 1s || code=$?
if [ "$code" -eq 31 ]; then
    fail "this machine does not let us mount" \
        "the demo needs /dev/fuse (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
fi
[ "$code" -eq 0 ] || exit "$code"

# Kind, mode, size, time to the nanosecond, link count and target of each file. Sizes and link counts of
# directories are left out, because they depend on the file system.
listing() {
    (cd "$1" && find . \( -type d -printf '%P|%y|%m|%T@\n' \) -o -printf '%P|%y|%m|%s|%T@|%n|%l\n' | sort)
}

say "Compare every file and attribute with the original"
t="$(now)"
listing "$tree" >"$work/tree.list"
listing "$mnt" >"$work/mnt.list"
cmp "$work/tree.list" "$work/mnt.list" || fail "attributes differ" "diff $work/tree.list $work/mnt.list"
diff -r --no-dereference "$tree" "$mnt" || fail "contents differ" "this is a defect of bulla"
echo "equal: $(wc -l <"$work/mnt.list") entries, in $(since "$t") s"

say "Read everything again with tar"
t="$(now)"
(cd "$mnt" && tar cf - .) | wc -c >/dev/null
read_s="$(since "$t")"
echo "$files files in $read_s s: $(rate "$files" "$read_s") files/s, $(rate "$((bytes / 1048576))" "$read_s") MiB/s"

say "Publish a change, and wait until the mount shows it"
cp -a "$work/repo" "$work/old-repo" # for the liar below
echo "hello from version 2" >"$tree/NEWS.demo"
show "bulla publish tree repo --key key"
t="$(now)"
"$bulla" publish "$tree" "$work/repo" --key "$work/key" 2>/dev/null | grep -E 'version|new '
republish_s="$(since "$t")"
t="$(now)"
for _ in $(seq 200); do
    [ -e "$mnt/NEWS.demo" ] && break
    sleep 0.05
done
[ "$(cat "$mnt/NEWS.demo")" = "hello from version 2" ] || fail "the change did not arrive" "this is a defect of bulla"
arrive_s="$(since "$t")"
echo "the mount shows it after $arrive_s s: $(cat "$mnt/NEWS.demo")"
"$bulla" -q umount "$mnt"

# expect CODE WHAT COMMAND...: runs a command that must fail with exactly this exit code.
expect() {
    wanted="$1"
    shift
    show "bulla $*"
    code=0
    "$bulla" "$@" >"$work/out" 2>"$work/err" || code=$?
    cut -c1-160 "$work/err" | head -6
    [ "$code" -eq "$wanted" ] || fail "exit code $code instead of $wanted" "this is a defect of bulla"
    echo "(exit code $code)"
}

say "A server that goes back to the old version"
serve "$work/old-repo" old
expect 21 ls "$volume@$address"

say "A server that altered one byte"
cp -a "$work/repo" "$work/bad-repo"
segment="$(find "$work/bad-repo/segments" -type f -printf '%s %p\n' | sort -n | tail -1 | cut -d' ' -f2)"
middle="$(($(stat -c %s "$segment") / 2))"
byte="$(dd if="$segment" bs=1 skip="$middle" count=1 status=none | od -An -tu1 | tr -d ' ')"
# shellcheck disable=SC2059 # the format is the byte
printf "\\$(printf %03o "$((byte ^ 1))")" |
    dd of="$segment" bs=1 seek="$middle" conv=notrunc status=none
serve "$work/bad-repo" bad
bad="$address"
expect 20 verify "$volume@$bad"

say "The same server with an honest mirror: the lie causes only a line in the log"
show "bulla verify VOLUMEID@$bad --mirror $honest"
# Which server is asked for the altered block depends on which answers faster.
for _ in 1 2 3 4 5; do
    "$bulla" verify "$volume@$bad" --mirror "$honest" 2>"$work/err"
    lines="$(wc -l <"$work/err")"
    [ "$lines" -eq 0 ] || break
done
echo "lines of evidence in the log: $lines"

say "A server that has stopped: an outage, not an attack"
kill "${servers[-1]}"
wait "${servers[-1]}" 2>/dev/null || true
expect 30 ls "$volume@$bad" --deadline 2s

say "Summary ($(since "$began") s after the build)"
cat <<SUMMARY
published     $files files, $((bytes / 1048576)) MiB in $publish_s s; again after a change in $republish_s s
compared      every file and attribute through the mount: equal
read          $(rate "$files" "$read_s") files/s, $(rate "$((bytes / 1048576))" "$read_s") MiB/s, every byte proved
change        arrived in the mount $arrive_s s after it was published
liars         an old version: exit 21; an altered byte: exit 20, masked by an honest mirror; gone: exit 30

Go on with your own (\`make build\` makes the fast program, target/release/bulla):
  target/debug/bulla key new --out ~/bulla.key
  target/debug/bulla publish DIR REPO --key ~/bulla.key
  target/debug/bulla serve REPO --listen 0.0.0.0:28552
  target/debug/bulla mount VOLUMEID@bulla://HOST DIR

Or protect a file system on a disk that may lie (docs/operations/protect.md):
  target/debug/bulla protect enrol  disk.img --log disk.log --anchor disk.anchor
  target/debug/bulla protect attach disk.img --log disk.log --anchor disk.anchor
  mount LOOP /mnt                    LOOP is what attach printed
  target/debug/bulla protect status; kill -9 PID; umount /mnt; attach and mount again: all is there
  target/debug/bulla protect detach disk.img; change a byte of disk.img: reading it fails, the rest is right
That page has it step by step, with a compiler and with old copies put back. A test runs it.
SUMMARY
