#!/usr/bin/env bash
# bundle.sh [ARCHIVE [ARGUMENT…]]: builds the archive with which tensorc is tested and measured on a machine that has a GPU and its driver, and
# perhaps nothing else: the compiler with LLVM inside, the tests as one program, small models, and results of the interpreter.
#
# Needs Rust, the static libraries of LLVM 22 (llvm-22-dev, libpolly-22-dev, zlib1g-dev, libzstd-dev, libxml2-dev), and, for models and
# cases of ONNX, pip with a package index. On the machine with the GPU:
#
#   tar xf tensorc-gpu.tar.gz && tensorc-gpu/run.sh 10
#
# Arguments are cargo's: those that the rest of the workspace was built with, if nothing but the program is to be built again.
set -euo pipefail
cd "$(dirname "$0")/../.."

target="${CARGO_TARGET_DIR:-target}"
archive="${1:-$target/tensorc-gpu.tar.gz}"
arguments=("${@:2}")
[ ${#arguments[@]} != 0 ] || arguments=(--features nccl)
# The archive at most, in bytes; the newest C library that may be needed.
most=$((60 << 20)) newest=2.36

fail() { echo "bundle.sh: $*" >&2 && exit 1; }

command -v llvm-config-22 >/dev/null || fail "LLVM 22 is not installed (Debian: llvm-22-dev libpolly-22-dev)"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
root="$scratch/tensorc-gpu"
mkdir -p "$root/bin" "$root/data" "$scratch/link"

# Linker scripts stand in for shared libraries: LLVM and what it needs is linked statically. The selection is that of the test
# command, so that dependencies have the same features.
static() { cc -print-file-name="lib$1.a"; }
archives() {
    llvm-config-22 --link-static --libfiles all
    for library in stdc++ ffi z zstd xml2; do static "$library"; done
}
echo "GROUP($(archives | tr '\n' ' '))" >"$scratch/link/libLLVM-22.so"
echo "INPUT($(static ffi))" >"$scratch/link/libffi.so"
echo "GROUP($(static gcc_eh) $(static gcc))" >"$scratch/link/libgcc_s.so"
TENSORC_GPU_LINK="$scratch/link" cargo build --release --workspace --bins --examples "${arguments[@]}"
cp "$target/release/tensorc-gpu" "$root/bin/tensorc-gpu"
strip "$root/bin/tensorc-gpu"
ln -s tensorc-gpu "$root/bin/tensorc"
cp tests/gpu/run.sh "$root/run.sh"
cp benches/compare_torch.py "$root/data/"

# What is on every Debian, and nothing newer.
needed="$(objdump -p "$root/bin/tensorc-gpu" | awk '$1 == "NEEDED" { print $2 }')"
for library in $needed; do
    case "$library" in
        libc.so.6 | libm.so.6 | ld-linux-x86-64.so.2) ;;
        *) fail "the program needs $library" ;;
    esac
done
version="$(objdump -T "$root/bin/tensorc-gpu" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)"
[ "$(printf '%s\n' "$version" "$newest" | sort -V | tail -n 1)" = "$newest" ] || fail "the program needs glibc $version"

"$root/bin/tensorc-gpu" collect "$root/data"
cargo pkgid -p tensorc | sed 's/.*[#@]/tensorc /' | tr -d '\n' >"$root/data/identity"
echo ", $(find "$root" -type f -exec sha256sum {} + | sed "s|$root||" | sort -k2 | sha256sum | cut -c1-16)" >>"$root/data/identity"

# The same files give the same archive.
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$scratch" -cf - tensorc-gpu | gzip -n9 >"$scratch/archive"
bytes="$(stat -c %s "$scratch/archive")"
[ "$bytes" -le "$most" ] || fail "the archive has $bytes bytes, more than $most"
mkdir -p "$(dirname "$archive")"
mv "$scratch/archive" "$archive"
echo "$archive: $((bytes >> 20)) MiB, needs" $needed "(glibc $version), $(cat "$root/data/identity")"
