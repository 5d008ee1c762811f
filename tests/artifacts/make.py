#!/usr/bin/env python3
"""Makes MAJOR.MINOR.zip: what a version of the artifact format looks like, and what it computes.

    python3 tests/artifacts/make.py target/release/tensorc

Run it when the format gets a new version, before the next one is begun, and commit the file; those that are there
stay as they are: tests/tests/aot/stored.rs reads all of them. For every network beside this script the archive has its
object or library for x86_64, its weights, and for batches of one and two the input and the outputs. Batches of two are
computed by the plan for many.
"""
import json, pathlib, struct, subprocess, sys, tempfile, zipfile

HERE = pathlib.Path(__file__).parent
# Name, extents of the input behind the batch, and what is kept: the library has the run-time library of its time.
NETWORKS = [("planes", [3, 12, 12], "o"), ("blocks", [3, 16, 16], "o"), ("last", [17, 15, 3], "o"), ("scaled", [4], "so"),
            ("picked", [5], "o"), ("found", [6], "o"), ("hosted", [6], "o"), ("narrow", [4], "o"),
            ("weights", [256], "o"), ("bytes", [4, 9, 7], "o"), ("depthwise", [20, 9, 8], "o"),
            ("divided", [128, 12, 12], "o")]


def npy(dims):
    """An array of f32, different from element to element, in [-1, 1]."""
    count = 1
    for dim in dims:
        count *= dim
    shape = ", ".join(map(str, dims))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}"
    values = [((i * 37) % 101) / 50 - 1 for i in range(count)]
    return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n" + struct.pack(f"<{count}f", *values)


def main():
    tensorc = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, extents, kept in NETWORKS:
            out = folder / name
            out.mkdir()
            made = [tensorc, "compile", HERE / f"{name}.tc", "-o", out / name, "--target=x86_64", "--shape", "batch=1..4"]
            subprocess.run([*made, "--emit=obj,shared-lib,exe"], check=True, capture_output=True)
            for batch in (1, 2):
                place = out / f"batch{batch}"
                place.mkdir()
                (place / "input.npy").write_bytes(npy([batch, *extents]))
                run = [out / name, "--weights", out / f"{name}.weights", "-o", place, place / "input.npy"]
                subprocess.run(run, check=True, capture_output=True)
            manifest = json.loads((out / f"{name}.json").read_text())
            for left in {"o", "so", "h", "json", ""} - {kept}:
                out.joinpath(name).with_suffix("." + left if left else "").unlink()
        version = ".".join(map(str, manifest["format"]))
        with zipfile.ZipFile(HERE / f"{version}.zip", "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                entry = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    print(HERE / f"{version}.zip")


if __name__ == "__main__":
    main()
