#!/usr/bin/env python3
"""Compares files of records with MXNet's, byte for byte and in both directions.

    cargo build --release -p tensorc-tests --example recordio_tool
    PYTHON tests/data/compare_recordio.py target/release/examples/recordio_tool [--huge] [IMAGES.rec IMAGES.idx]

PYTHON is an interpreter with mxnet 1.9.1 and numpy. With --huge, also the longest payload and one that is too long (takes
4 GiB of memory). With a file of images and its index, also its contents, and which records MXNet's iterator reads for
each part. Prints how much is identical and how much is different; fails if anything is different."""
import os
import random
import subprocess
import sys
import tempfile
import zlib

import numpy as np

for name, kind in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if name not in np.__dict__:
        setattr(np, name, kind)  # names that MXNet 1.9.1 still uses
import mxnet as mx

MAGIC = bytes.fromhex("0a23d7ce")
LONGEST = (1 << 29) - 1
counts = {}


def same(what, equal):
    """Counts a comparison."""
    identical, different = counts.get(what, (0, 0))
    counts[what] = (identical + bool(equal), different + (not equal))


def tool(*arguments, fails=False):
    """Lines that the program prints."""
    done = subprocess.run([TOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"{arguments}: {done.stderr}")
    return done.stdout.splitlines()


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def line(offset, payload):
    return f"{offset} {len(payload)} {zlib.crc32(payload):08x}"


def payload(rng):
    """Bytes with magic numbers at multiples of four and elsewhere."""
    kind = rng.randrange(4)
    if kind == 0:
        return b"".join(rng.choice([MAGIC, MAGIC[:2], b"abcd", b"x"]) for _ in range(rng.randrange(40)))
    data = bytearray(rng.randbytes(int(2 ** rng.uniform(0, 22 if rng.random() < 0.05 else 12)) - 1))
    for _ in range(rng.randrange(6) if kind > 1 else 0):
        at = rng.randrange(len(data) + 1)
        at -= at % 4 if kind == 2 else 0
        if at + 4 <= len(data):
            data[at:at + 4] = MAGIC
    return bytes(data)


def write_mxnet(payloads, rec, idx):
    writer = mx.recordio.MXIndexedRecordIO(idx, rec, "w")
    for key, data in enumerate(payloads):
        writer.write_idx(key, data)
    writer.close()


def write_ours(payloads, rec, idx, folder):
    with open(f"{folder}/payloads", "w") as out:
        for key, data in enumerate(payloads):
            if len(data) < 100:
                out.write(data.hex() + "\n")
            else:
                with open(f"{folder}/payload{key}", "wb") as file:
                    file.write(data)
                out.write(f"@{folder}/payload{key}\n")
    tool("write", f"{folder}/payloads", rec, idx)


def read_mxnet(rec):
    reader, found = mx.recordio.MXRecordIO(rec, "r"), []
    while (data := reader.read()) is not None:
        found.append(data)
    reader.close()
    return found


def offsets(idx):
    return [int(entry.split("\t")[1]) for entry in contents(idx).decode().splitlines()]


def compare_payloads(payloads, folder):
    theirs, ours = (f"{folder}/theirs", f"{folder}/ours")
    write_mxnet(payloads, theirs + ".rec", theirs + ".idx")
    write_ours(payloads, ours + ".rec", ours + ".idx", folder)
    rec = [contents(path + ".rec") for path in (theirs, ours)]
    same("files written", rec[0] == rec[1])
    same("indices written", contents(theirs + ".idx") == contents(ours + ".idx"))
    bounds = [offsets(path + ".idx") + [len(data)] for path, data in zip((theirs, ours), rec)]
    for i, _ in enumerate(payloads):
        same("records written", rec[0][bounds[0][i]:bounds[0][i + 1]] == rec[1][bounds[1][i]:bounds[1][i + 1]])
    for data, expected in zip(read_mxnet(ours + ".rec"), payloads):
        same("our records read by MXNet", data == expected)
    expected = [line(offset, data) for offset, data in zip(bounds[0], payloads)]
    for found, wanted in zip(tool("read", theirs + ".rec"), expected):
        same("MXNet's records read by us", found == wanted)
    same("numbers of records", len(read_mxnet(ours + ".rec")) == len(tool("read", theirs + ".rec")) == len(payloads))
    for count in (1, 2, 5):
        found = [entry for entry in tool("parts", count, theirs + ".rec") if not entry.startswith("part")]
        same("sets of parts", found == expected)


def compare_headers(rng, folder):
    """Image headers that MXNet packs, taken apart and packed again."""
    rec, idx = f"{folder}/headers.rec", f"{folder}/headers.idx"
    writer, labels = mx.recordio.MXIndexedRecordIO(idx, rec, "w"), []
    for key in range(2000):
        count = rng.randrange(9)
        label = np.array([rng.gauss(0, 100) for _ in range(count)], np.float32) if count else np.float32(rng.gauss(0, 9))
        header = mx.recordio.IRHeader(rng.randrange(5), label, rng.randrange(1 << 63), rng.randrange(1 << 63))
        writer.write_idx(key, mx.recordio.pack(header, rng.randbytes(rng.randrange(60))))
        labels.append((header.id, np.atleast_1d(label)))
    writer.close()
    lines = tool("repack", rec, f"{folder}/again.rec")
    for data, again in zip(read_mxnet(rec), read_mxnet(f"{folder}/again.rec")):
        same("image headers packed", data == again)
    for found, (number, label) in zip(lines, labels):
        name, _, values = found.split(" ", 2)
        values = np.array([float(value) for value in values.strip("[]").split(", ")], np.float32)
        same("image headers taken apart", int(name) == number and np.array_equal(values, label))


def iterated(rec, idx, parts, part):
    """Labels of the images that MXNet's iterator reads for a part, in order."""
    indexed = {"path_imgidx": idx} if idx else {}
    iterator = mx.io.ImageRecordIter(path_imgrec=rec, data_shape=(3, 8, 8), batch_size=1, num_parts=parts, part_index=part,
                                     preprocess_threads=1, round_batch=False, rand_crop=False, shuffle=False, **indexed)
    return [int(batch.label[0].asscalar()) for batch in iterator]


def compare_images(rec, idx, folder):
    copy = f"{folder}/copy"
    tool("copy", rec, idx, copy + ".rec", copy + ".idx")
    same("files of images copied", contents(rec) == contents(copy + ".rec"))
    same("their indices", contents(idx) == contents(copy + ".idx"))
    tool("repack", rec, f"{folder}/repacked.rec")
    same("files of images taken apart and packed", contents(rec) == contents(f"{folder}/repacked.rec"))
    payloads = read_mxnet(rec)
    lines = [line(offset, data) for offset, data in zip(sorted(offsets(idx)), payloads)]
    for found, wanted in zip(tool("read", rec), lines):
        same("images read", found == wanted)
    compare_parts(payloads, folder)


def compare_parts(payloads, folder):
    """Which images each part has, for one file and for three; MXNet's iterator tells them by their labels."""
    paths = [f"{folder}/part{i}" for i in range(3)]
    images = []
    for key, data in enumerate(payloads):
        header, image = mx.recordio.unpack(data)
        images.append(mx.recordio.pack(mx.recordio.IRHeader(0, float(key), key, 0), image))
    for i, path in enumerate(paths):
        write_mxnet(images[i * 200:(i + 1) * 200], path + ".rec", path + ".idx")
    number = {line(0, data).split(" ", 1)[1]: key for key, data in enumerate(images)}
    one, all_files = paths[1] + ".rec", ";".join(path + ".rec" for path in paths)
    # MXNet takes an index for one file only.
    for rec, idx in ((one, None), (all_files, None), (one, paths[1] + ".idx")):
        for count in (1, 2, 3, 4, 7, 16):
            found = []
            for entry in tool("parts", count, rec, *(["indexed"] if idx else [])):
                if entry.startswith("part"):
                    found.append([])
                else:
                    found[-1].append(number[entry.split(" ", 1)[1]])
            for part in range(count):
                same("parts of MXNet's iterator, " + ("indexed" if idx else "by bytes"),
                     iterated(rec, idx, count, part) == found[part])


def compare_huge(folder):
    data = bytearray(random.Random(2).randbytes(1 << 20) * (1 << 9))[:LONGEST]
    for at in (0, 4, 1 << 28, LONGEST - 7):
        data[at:at + 4] = MAGIC
    compare_payloads([bytes(data), b"behind"], folder)
    data = bytes(data) + b"x"
    try:
        write_mxnet([data], f"{folder}/long.rec", f"{folder}/long.idx")
        refused = False
    except mx.base.MXNetError:
        refused = True
    with open(f"{folder}/long", "wb") as file:
        file.write(data)
    with open(f"{folder}/payloads", "w") as file:
        file.write(f"@{folder}/long\n")
    tool("write", f"{folder}/payloads", f"{folder}/long.rec", f"{folder}/long.idx", fails=True)
    same("payloads that are too long are refused", refused)


arguments = [argument for argument in sys.argv[1:] if argument != "--huge"]
TOOL = os.path.abspath(arguments[0])
rng = random.Random(1)
with tempfile.TemporaryDirectory() as folder:
    for _ in range(20):
        compare_payloads([payload(rng) for _ in range(rng.randrange(200))], folder)
    compare_headers(rng, folder)
    if len(arguments) == 3:
        compare_images(*arguments[1:], folder)
    if "--huge" in sys.argv:
        compare_huge(folder)
for what, (identical, different) in counts.items():
    print(f"{what:42} {identical:7} identical {different:7} different")
sys.exit(any(different for _, different in counts.values()))
