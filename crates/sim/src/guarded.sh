# Removes what a test leaves behind, when its process ends or lets go: processes that know the directory, file systems
# below it, loop devices over its files, the directory. Run by `sim::guarded`, with the directory as a line of its input.

# A test that is killed before it has told the directory has mounted nothing.
IFS= read -r dir || exit 0
# Of no other form: what follows kills processes and removes files.
case $dir in
*[!A-Za-z0-9/._-]* | */../*) exit 1 ;;
/*/guarded-?????*) ;;
*) exit 1 ;;
esac
echo ready
cat >/dev/null

name=${dir##*/}

# Processes that have the directory in their arguments or environment. This script has it in neither.
processes() {
    printf '%s\n' "$dir" | grep -lsaF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ | cut -d/ -f3 | sort -u
}

# Mounts below the directory, the last first: source and place. Places with spaces are written as in the table.
mounts() {
    while read -r from on rest; do
        case $on in "$dir" | "$dir"/*) echo "$from $on" ;; esac
    done </proc/self/mounts | sed '1!G;h;$!d'
}

# Loop devices over its files. A file whose mount has left the tree has lost its path, so each has the directory's name.
loops() {
    for file in /sys/block/loop*/loop/backing_file; do
        [ -e "$file" ] || continue
        case $(cat "$file" 2>/dev/null) in
        *"$name"*) file=${file#/sys/block/} && echo "/dev/${file%%/*}" ;;
        esac
    done
}

unmount() {
    place=$(printf '%b' "$1")
    timeout 10 umount "$2" "$place" 2>/dev/null || timeout 10 fusermount3 -u -z "$place" 2>/dev/null
}

for try in 1 2 3 4 5 6 7 8 9 10 11 12; do
    lazily=--
    [ "$try" -lt 8 ] || lazily=-l
    for process in $(processes); do kill -9 "$process" 2>/dev/null; done
    # What lies on loop devices first, because a loop device with a file system on it stays.
    mounts | while read -r from on; do
        case $from in /dev/loop*) unmount "$on" "$lazily" ;; esac
    done
    for device in $(loops); do timeout 10 losetup --detach "$device" 2>/dev/null; done
    mounts | while read -r from on; do
        case $from in /dev/loop*) ;; *) unmount "$on" "$lazily" ;; esac
    done
    if [ -z "$(mounts)$(loops)" ]; then
        rm -rf --one-file-system "$dir" && exit 0
    fi
    sleep 0.3
done
echo "left behind below $dir: $(mounts) $(loops)" >&2
exit 1
