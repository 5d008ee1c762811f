#!/usr/bin/env bash
# check.sh [ARCHIVE]: unpacks the archive of bundle.sh in a tree that has a shell, tar and a C library of this system and nothing else
# (no Rust, no LLVM, no network), runs everything without a GPU, kills it once, and goes on.
#
# Needs Debian or one of its children, and root or user namespaces.
set -euo pipefail
cd "$(dirname "$0")/../.."
archive="$(realpath "${1:-${CARGO_TARGET_DIR:-target}/tensorc-gpu.tar.gz}")"

fail() { echo "check.sh: $*" >&2 && exit 1; }

tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT

# Files of packages that every Debian has, with the libraries that their programs need.
for package in base-files dash coreutils tar gzip libc6 libc-bin; do
    dpkg-query -L "$package" | while read -r path; do
        case "$path" in /usr/share/*) continue ;; esac
        if [ ! -d "$path" ] && [ -e "$path" ]; then echo "$path"; fi
    done
done >"$tree/files"
for program in /bin/dash /usr/bin/tar /usr/bin/gzip /usr/bin/ls /usr/bin/cp /usr/bin/timeout; do
    if [ -e "$program" ]; then ldd "$program" | grep -o '/[^ ]*'; fi
done | sort -u >>"$tree/files"
tar -C / -chf - -T <(sort -u "$tree/files" | sed 's|^/||') 2>/dev/null | tar -C "$tree" -xf - || true
for folder in bin lib lib64; do
    # One tree of programs, as Debian has it.
    if [ -d "$tree/$folder" ] && [ ! -L "$tree/$folder" ]; then
        mkdir -p "$tree/usr/$folder"
        cp -a "$tree/$folder/." "$tree/usr/$folder/"
        rm -r "${tree:?}/$folder"
    fi
    ln -sfn "usr/$folder" "$tree/$folder"
done
ln -sf dash "$tree/usr/bin/sh"
mkdir -p "$tree/tmp" "$tree/proc" "$tree/dev" "$tree/root"
touch "$tree/dev/null"
cp "$archive" "$tree/root/"
name="$(basename "$archive")"

# In the tree, without network, with /proc and /dev/null.
inside() {
    unshare --user --map-root-user --net --mount --pid --fork sh -c '
        mount --bind /dev/null "$1/dev/null" && mount -t proc proc "$1/proc" 2>/dev/null
        tree="$1" && shift
        exec env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root chroot "$tree" /bin/sh -c "cd /root; $*"' inside "$tree" "$@"
}
inside true || fail "no user namespaces here"
! inside 'command -v cargo rustc llvm-config-22 python3 cc' || fail "the tree is not bare"

start="$(date +%s%N)"
inside "tar xf $name && tensorc-gpu/bin/tensorc-gpu list && tensorc-gpu/bin/tensorc --version" >"$tree/list"
took=$((($(date +%s%N) - start) / 1000000))
steps="$(($(wc -l <"$tree/list") - 1))"
echo "unpacked and started in $took ms: $steps steps, $(tail -n 1 "$tree/list")"
[ "$took" -le 5000 ] || fail "that is more than 5 s"

inside 'tensorc-gpu/run.sh 1 --device=0 --only=device,kernels-sm_80 --out=absent' && fail "a device that is not there passes"

status=0
inside 'timeout -s KILL 25 tensorc-gpu/run.sh 15 --device=interpreted' || status=$?
[ "$status" = 137 ] || fail "a run that is killed after 25 s ends with status $status"
before="$(wc -l <"$tree/root/results/results.jsonl")"
start="$(date +%s)"
inside 'tensorc-gpu/run.sh 15 --device=interpreted'
echo "$before records before, $(wc -l <"$tree/root/results/results.jsonl") after; the rest took $(($(date +%s) - start)) s"
sed -n '1,/^## /p' "$tree/root/results/table.md"
! grep -q 'not run' "$tree/root/results/table.md" || fail "the table is not complete"
