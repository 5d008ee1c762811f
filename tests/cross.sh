#!/usr/bin/env bash
# Kernels and generated code on other processors: aarch64 and riscv64, emulated by qemu, and every level of x86-64.
#
# Needs GNU's C compilers for those machines, qemu-user and Rust's libraries for them. What is missing is installed
# where that is possible (setup.sh); otherwise the machine is left out, which is said.
#
# With `--backend NAME`, only whole models are compiled, by it, and compared with Cranelift's. Other arguments are those that
# the tests and the program were built with.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
. tests/setup.sh
install_groups cross

backend=
if [ "${1:-}" = --backend ]; then
    backend="$2"
    shift 2
fi
target="${CARGO_TARGET_DIR:-$PWD/target}"
machines=
work="$(mktemp -d)"
trap 'rm -r "$work"' EXIT

# The run-time library that compiled kernels call.
library() {
    CARGO_TARGET_DIR="$target/cross" cargo build --release --locked --quiet --manifest-path rt/Cargo.toml --target "$1"
    echo "$target/cross/$1/release/libtensorc_rt.a"
}

# machine RUST_TARGET ARCHITECTURE ARGUMENT…: the tests of the kernels there, but for those that the arguments leave
# out; names what the tests of code need.
machine() {
    local rust="$1" arch="$2" name
    shift 2
    local emulator="qemu-$arch -L /usr/$arch-linux-gnu"
    for tool in "$arch-linux-gnu-gcc" "qemu-$arch"; do
        commands "$tool" || { echo "cross: $arch is left out, there is no $tool"; return; }
    done
    [ -d "/usr/$arch-linux-gnu" ] || { echo "cross: $arch is left out, there is no C library for it"; return; }
    has_target "$rust" || { echo "cross: $arch is left out, there are no libraries of Rust for it"; return; }
    name="${rust//-/_}"
    [ -n "$backend" ] || env "CARGO_TARGET_${name^^}_LINKER=$arch-linux-gnu-gcc" "CARGO_TARGET_${name^^}_RUNNER=$emulator" \
        CARGO_TARGET_DIR="$target/cross" TENSORC_EMULATED=1 \
        cargo test --profile cross -p tensorc-kernels --target "$rust" --lib --tests -- "$@"
    export "TENSORC_CROSS_${arch^^}=$(library "$rust") $arch-linux-gnu-gcc $emulator"
    machines="$machines $arch"
}

# model BACKEND TARGET [EMULATOR [RUNTIME_LIBRARY]]: a whole model compiled for a target must compute the bytes of the
# first.
model() {
    local out="$work/$1-$2"
    mkdir "$out"
    "$target/release/tensorc" compile tests/cross/model.tc -o "$out/model" --emit=exe --weights=embed \
        --backend="$1" --target="$2" ${4:+--runtime-library="$4"} >/dev/null
    # shellcheck disable=SC2086
    ${3:-} "$out/model" -o "$out" "$work/pixels.npy" >"$out/printed"
    local results=("$out"/*.npy)
    for result in "${results[@]}"; do
        cmp "$result" "$work/cranelift-x86_64/$(basename "$result")"
    done
    echo "cross: the model by $1 on $2 agrees in ${#results[@]} results"
}

machine aarch64-unknown-linux-gnu aarch64
# Its kernels are the portable ones, whose large shapes need no emulator.
machine riscv64gc-unknown-linux-gnu riscv64 \
    --skip several_blocks_and_tasks --skip bands_and_panels --skip copied_columns_serve_all_rows
if [ "$(uname -m)" = x86_64 ] && command -v cc >/dev/null; then
    TENSORC_CROSS_X86_64="$(library x86_64-unknown-linux-gnu) cc"
    export TENSORC_CROSS_X86_64
fi
[ -n "$backend" ] || cargo test --release --workspace "$@" --test integration -- --nocapture targets::

# Pixels are the bytes of some text.
printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 33, 30), }" \
    >"$work/pixels.npy"
head -c 5940 Cargo.lock >>"$work/pixels.npy"
if [ "$(uname -m)" = x86_64 ]; then
    model cranelift x86_64
    by="${backend:-cranelift}"
    [ "$by" = cranelift ] || model "$by" x86_64
    model "$by" native
    for arch in $machines; do
        words="TENSORC_CROSS_${arch^^}"
        model "$by" "$arch" "qemu-$arch -L /usr/$arch-linux-gnu" "${!words%% *}"
    done
fi
