#!/usr/bin/env python3
"""Products with weights of a few bits (MatMulNBits) against ONNX Runtime and against the memory, in turns.

python3 benches/compare_weights.py TENSORC [--threads 1,2] [--rounds N] [--sizes 4096] [--rows 1,8,64] [--layers N]

A chain of square products whose weights do not fit into the caches. Each row has the smallest time of one product over all
rounds, and the rate at which packed weights (codes, scales and zero points of the file) are read. `memory` is the rate at which
as many threads read 256 MB by dot products of f64, measured in every round. `values` is the largest difference of the two
programs' results, relative to the largest result. Needs numpy, onnx and onnxruntime.
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# bits, block, whether blocks have zero points
FORMS = [(4, 32, False), (4, 32, True), (4, 128, False), (8, 32, False)]


def chain(rows, size, bits, block, zeros, layers):
    """The model, and bytes of one layer's weights."""
    rng = np.random.default_rng(7)
    nodes, constants, total, blocks = [], [], 0, size // block
    for i in range(layers):
        # Results stay about as large as operands.
        spread = (2.0 ** bits / 3.5) * size ** 0.5
        parts = [
            rng.integers(0, 256, (size, blocks, block * bits // 8), dtype=np.uint8),
            (rng.uniform(0.8, 1.2, (size, blocks)) / spread).astype(np.float32),
        ]
        if zeros:
            low, high = 2 ** (bits - 1) - 1, 2 ** (bits - 1) + 1
            points = rng.integers(low, high, (size, blocks), dtype=np.uint8)
            parts.append(points if bits == 8 else points[:, 0::2] | points[:, 1::2] << 4)
        names = [f"{kind}{i}" for kind, _ in zip(["b", "scales", "zeros"], parts)]
        constants += [numpy_helper.from_array(part, name) for part, name in zip(parts, names)]
        nodes.append(helper.make_node("MatMulNBits", [f"x{i}", *names], [f"x{i + 1}"], domain="com.microsoft", K=size, N=size,
                                      bits=bits, block_size=block))
        total = sum(part.nbytes for part in parts)
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, size])
    graph = helper.make_graph(nodes, "weights", [value("x0")], [value(f"x{layers}")], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), total


def own(tensorc, path, threads):
    command = [tensorc, "bench", path, "--threads", str(threads), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["min_ms"]


def results(tensorc, path, x, folder):
    inputs, outputs = (os.path.join(folder, name) for name in ["inputs.npz", "outputs.npz"])
    np.savez(inputs, x0=x)
    subprocess.run([tensorc, "run", path, "--input", inputs, "--output", outputs], check=True, capture_output=True)
    [found] = np.load(outputs).values()
    return found


def session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def peer(found, x):
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        found.run(None, {"x0": x})
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def memory(threads):
    """GB/s."""
    parts = [np.ones((32 << 20) // threads) for _ in range(threads)]
    best = float("inf")
    for _ in range(5):
        workers = [threading.Thread(target=np.dot, args=(part, part)) for part in parts]
        start = time.perf_counter()
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        best = min(best, time.perf_counter() - start)
    return sum(part.nbytes for part in parts) / best / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tensorc")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="4096")
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    numbers = lambda text: [int(n) for n in text.split(",")]
    print("| size | rows | bits | block | zero points | threads | tensorc, µs | GB/s | memory, GB/s | of it | ONNX Runtime, µs | ratio | values |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    cases = [(s, r, *f) for s in numbers(args.sizes) for r in numbers(args.rows) for f in FORMS if r == 1 or f == FORMS[0]]
    for size, rows, bits, block, zeros in cases:
        model, weights = chain(rows, size, bits, block, zeros, args.layers)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.onnx")
            onnx.save(model, path)
            x = np.random.default_rng(3).standard_normal((rows, size)).astype(np.float32)
            for threads in numbers(args.threads):
                other = session(path, threads)
                expected = other.run(None, {"x0": x})[0]
                apart = np.abs(results(args.tensorc, path, x, folder) - expected).max() / np.abs(expected).max()
                best, rate = [float("inf")] * 2, 0.0
                for _ in range(args.rounds):
                    best[0] = min(best[0], own(args.tensorc, path, threads))
                    best[1] = min(best[1], peer(other, x))
                    rate = max(rate, memory(threads))
                mine, its = (ms * 1e3 / args.layers for ms in best)
                reads = weights / mine / 1e3
                print(f"| {size} | {rows} | {bits} | {block} | {'yes' if zeros else 'no'} | {threads} | {mine:.0f} | {reads:.1f} |"
                      f" {rate:.1f} | {reads / rate:.0%} | {its:.0f} | {mine / its:.2f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
