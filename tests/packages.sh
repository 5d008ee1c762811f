#!/usr/bin/env bash
# packages.sh [FOLDER]: packages the crates that can be published, and uses them as somebody does who has nothing else: a program of ten
# lines with `tensorc = "0.1"`, and the command line from `cargo install`, which compiles a model ahead of time.
#
# Outside of the repository, with an empty home of cargo in which a folder of packages stands for crates.io: those of the
# workspace as `cargo package` makes them, and those that they depend on as `cargo vendor` fetches them. Nothing is fetched
# after that. It needs a C compiler for linking. Not a part of run.sh: it builds everything once more.
#
# FOLDER keeps what is made; by default that is a temporary folder, which is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
repository="$PWD"

folder="${1:-}"
if [ -z "$folder" ]; then
    folder="$(mktemp -d)"
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
vendor="$folder/vendor" machine="$folder/machine"
rm -rf "$vendor" "$machine"
mkdir -p "$machine/home" "$machine/program/src"

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

step "packages"
# Names of members that may be published, and of those that may not.
members() {
    cargo metadata --no-deps --format-version 1 |
        python3 -c "import json, sys; print(*(p['name'] for p in json.load(sys.stdin)['packages'] if (p['publish'] == []) == $1))"
}
read -ra published <<<"$(members False)"
read -ra others <<<"$(members True)"
cargo package --workspace "${others[@]/#/--exclude=}" --allow-dirty --no-verify --quiet --target-dir "$folder/target"
packages="$folder/target/package"
for name in "${published[@]}"; do
    bytes="$(stat -c %s "$packages/$name"-[0-9]*.crate)"
    [ "$bytes" -le $((1 << 20)) ] || { echo "$name has $bytes bytes, more than 1 MiB"; exit 1; }
done
echo "${#published[@]} packages, $(cat "$packages"/*.crate | wc -c) bytes"

step "what they depend on"
cargo vendor --locked --quiet --versioned-dirs "$vendor" >/dev/null
for name in "${published[@]}"; do
    package="$(echo "$packages/$name"-[0-9]*.crate)"
    tar xzf "$package" -C "$vendor"
    echo "{\"files\": {}, \"package\": \"$(sha256sum "$package" | cut -d' ' -f1)\"}" >"$vendor/$(basename "$package" .crate)/.cargo-checksum.json"
done

cat >"$machine/home/config.toml" <<END
[source.crates-io]
replace-with = "packages"
[source.packages]
directory = "$vendor"
[net]
offline = true
END
export CARGO_HOME="$machine/home" CARGO_TARGET_DIR="$folder/build"
# What is tested is whether it works: without optimization it is built in a quarter of the time.
export CARGO_PROFILE_RELEASE_OPT_LEVEL="${CARGO_PROFILE_RELEASE_OPT_LEVEL:-0}"
cp "$repository"/examples/digits/{digits.onnx,samples.npz} "$machine/program"
cd "$machine/program"

step "a program"
cat >Cargo.toml <<'END'
[package]
name = "program"
edition = "2024"
[dependencies]
tensorc = "0.1"
END
cat >src/main.rs <<'END'
use tensorc::{Compiler, Options, Tensor};

fn main() -> Result<(), tensorc::Error> {
    let model = Compiler::new(Options::default())?.load("digits.onnx")?;
    let images = Tensor::from_f32(&[2, 1, 8, 8], &[0.5; 128])?;
    for (name, value) in model.run(&[("image", images)])? {
        println!("{name}: {} {:?}", value.dtype(), value.dims());
    }
    Ok(())
}
END
expected=$'digit: i64 [2]\nprobabilities: f32 [2, 10]'
found="$(cargo run --release --quiet)"
[ "$found" = "$expected" ] || { echo "the program says: $found"; exit 1; }
echo "$found"

step "the command line"
cargo install tensorc-cli --quiet --root "$machine/installed"
tensorc="$machine/installed/bin/tensorc"
"$tensorc" run digits.onnx --input samples.npz | tee run.txt
grep -q '^digit: i64\[8\] \[3, 1, 4, 1, 5, 9, 2, 6\]$' run.txt

step "a program, ahead of time"
"$tensorc" compile digits.onnx -o digits --shape batch=1..8 --emit=exe --weights=embed
python3 - <<'END'
import zipfile
with zipfile.ZipFile("samples.npz") as samples:
    open("image.npy", "wb").write(samples.read("image.npy"))
END
./digits image.npy
step "done"
