#!/usr/bin/env python3
"""Operators one by one, tensorc against ONNX Runtime: smallest times of some rounds in turns.

    python compare_operators.py TENSORC [--threads 1,2] [--rounds 3] [--only NAME]

Needs numpy, onnx and onnxruntime. Prints a row for each operator and number of threads, as Markdown: times in ms, their ratio
(below 1 tensorc is faster), and the largest difference of first results relative to the largest element.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

random = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def positions(below, *shape):
    return random.integers(0, below, shape).astype(np.int64)


def ints(*values):
    return np.array(values, dtype=np.int64)


def corners(count):
    """Boxes by opposite corners, the lower one first."""
    return np.sort(random.random((1, count, 2, 2), dtype=np.float32), axis=2).reshape(1, count, 4)


def cases():
    """Name, operator, inputs, constants behind them, number of results, attributes."""
    number = lambda n: np.array(n, dtype=np.int64)
    image = floats(1, 32, 56, 56)
    regions = random.random((50, 4), dtype=np.float32) * 25 + np.array([0, 0, 28, 28], np.float32)
    return [
        ("sums along rows", "CumSum", [floats(256, 1024)], [number(1)], 1, {}),
        ("sums along columns", "CumSum", [floats(1024, 256)], [number(0)], 1, {}),
        ("sums along a middle axis, from its end", "CumSum", [floats(16, 128, 96)], [number(1)], 1, {"reverse": 1}),
        ("sums of f64 along columns", "CumSum", [floats(1024, 256, dtype=np.float64)], [number(0)], 1, {}),
        ("10 greatest of 1000", "TopK", [floats(256, 1000)], [ints(10)], 2, {}),
        ("100 greatest of 1000", "TopK", [floats(256, 1000)], [ints(100)], 2, {}),
        ("2000 greatest of 20000", "TopK", [floats(4, 20000)], [ints(2000)], 2, {}),
        ("rows in order", "TopK", [floats(64, 2000)], [ints(2000)], 2, {}),
        ("5 greatest i64 along columns", "TopK", [positions(9999, 1000, 64)], [ints(5)], 2, {"axis": 0}),
        ("elements by position", "GatherElements", [floats(512, 512), positions(512, 512, 256)], [], 1, {"axis": 1}),
        ("slices by tuples", "GatherND", [floats(64, 64, 64), positions(64, 2000, 2)], [], 1, {}),
        ("elements by tuples", "GatherND", [floats(64, 64, 64), positions(64, 20000, 3)], [], 1, {}),
        ("added at positions", "ScatterElements", [floats(512, 512), positions(512, 512, 128), floats(512, 128)], [], 1,
         {"axis": 1, "reduction": "add"}),
        ("added at positions of columns", "ScatterElements", [floats(512, 512), positions(512, 128, 512), floats(128, 512)], [],
         1, {"axis": 0, "reduction": "add"}),
        ("elements added by tuples", "ScatterND", [floats(512, 512), positions(512, 2000, 2), floats(2000)], [], 1,
         {"reduction": "add"}),
        ("rows replaced", "ScatterND", [floats(2048, 256), positions(2048, 500, 1), floats(500, 256)], [], 1, {}),
        ("elements that are not zero", "NonZero", [(floats(256, 512) > 1).astype(np.float32)], [], 1, {}),
        ("rows that are chosen", "Compress", [floats(2000, 64), floats(2000) > 0], [], 1, {"axis": 0}),
        ("distinct elements", "Unique", [positions(500, 20000).astype(np.float32)], [], 4, {}),
        ("boxes", "NonMaxSuppression", [corners(1000), random.random((1, 1, 1000), dtype=np.float32)],
         [ints(50), np.array([0.5], np.float32)], 1, {}),
        ("positions of a grid", "GridSample", [image, np.clip(floats(1, 56, 56, 2) * 0.5, -1, 1)], [], 1, {}),
        ("positions of a grid, cubic", "GridSample", [image, np.clip(floats(1, 56, 56, 2) * 0.5, -1, 1)], [], 1,
         {"mode": "bicubic"}),
        ("regions of an image", "RoiAlign", [image, regions, np.zeros(50, np.int64)], [], 1,
         {"output_height": 7, "output_width": 7, "sampling_ratio": 2}),
        ("product of f64", "MatMul", [floats(256, 256, dtype=np.float64), floats(256, 256, dtype=np.float64)], [], 1, {}),
    ]


def generated():
    """Operators whose code is generated: element by element, along rows and along columns."""
    matrix = np.abs(floats(512, 1024)) + np.float32(0.1)
    element = lambda op: ("each element", op, [matrix], [], 1, {})
    cast = lambda to: ("f32 to " + to.__name__, "Cast", [matrix], [], 1, {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})
    softmax = lambda axis: (f"axis {axis} of 8×256×256", "Softmax", [floats(8, 256, 256)], [], 1, {"axis": axis})
    reduced = lambda op, axes: (f"axes {axes} of 16×128×256", op, [floats(16, 128, 256)], [], 1, {"axes": axes})
    return [
        *map(element, ["Exp", "Tanh", "Sigmoid", "Sin", "Erf", "Log", "Softplus", "HardSwish"]),
        ("half precision", "Exp", [floats(512, 1024, dtype=np.float16)], [], 1, {}),
        cast(np.float16), cast(np.int32), softmax(-1), softmax(1), softmax(0),
        reduced("ReduceMax", [-1]), reduced("ReduceMax", [0, 2]), reduced("ReduceL2", [-1]), reduced("ReduceL2", [1]),
        ("rows of 1024", "LayerNormalization", [floats(512, 1024)], [floats(1024), floats(1024)], 1, {}),
        ("rows of 1024", "ArgMax", [floats(512, 1024)], [], 1, {"axis": -1}),
        ("rows of 1024", "Hardmax", [floats(512, 1024)], [], 1, {"axis": -1}),
        ("3×3, stride 2, of 64×112×112", "MaxPool", [floats(1, 64, 112, 112)], [], 1,
         {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("5×5 of 64×28×28", "MaxPool", [floats(1, 64, 28, 28)], [], 1, {"kernel_shape": [5, 5], "pads": [2] * 4}),
        ("3×3 of 64×56×56", "AveragePool", [floats(1, 64, 56, 56)], [], 1, {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("edges of 32×112×112", "Pad", [floats(1, 32, 112, 112)], [ints(0, 0, 3, 3, 0, 0, 3, 3)], 1, {"mode": "edge"}),
        ("reflected 32×112×112", "Pad", [floats(1, 32, 112, 112)], [ints(0, 0, 3, 3, 0, 0, 3, 3)], 1,
         {"mode": "reflect"}),
        ("zeros around 32×112×112", "Pad", [floats(1, 32, 112, 112)], [ints(0, 0, 3, 3, 0, 0, 3, 3)], 1, {}),
        ("int64", "Div", [positions(1 << 40, 512, 512), 1 + positions(1 << 20, 512, 512)], [], 1, {}),
    ]


def others():
    """Functions of f64, transpositions, products of few columns, determinants and Fourier transforms."""
    matrix = np.abs(floats(256, 1024, dtype=np.float64)) + 0.1
    double = lambda op, *more: ("each element of f64", op, [matrix, *more], [], 1, {})
    transposed = lambda order, *shape: (f"{order} of {'×'.join(map(str, shape))}", "Transpose", [floats(*shape)], [], 1,
                                        {"perm": order})
    columns = lambda n: (f"{n} columns", "MatMul", [floats(2048, 512)], [floats(512, n)], 1, {})
    return [
        *map(double, ["Exp", "Log", "Tanh", "Sigmoid"]), double("Pow", matrix),
        ("axis -1 of 256×1024, f64", "Softmax", [matrix], [], 1, {"axis": -1}),
        transposed([0, 2, 3, 1], 2, 64, 56, 56), transposed([0, 2, 1], 64, 96, 128), transposed([2, 0, 1], 64, 96, 128),
        transposed([2, 1, 0], 64, 96, 128), transposed([1, 0], 1024, 1024),
        *map(columns, [1, 3, 6, 8]),
        ("64 of 16×16", "Det", [floats(64, 16, 16)], [], 1, {}),
        ("64 of 256 real numbers", "DFT", [floats(64, 256, 1)], [], 1, {"axis": 1}),
    ]


def large():
    """Tensors of 8 MB and more, which are read from memory."""
    reduced = lambda op, axes, inputs: (f"axes {axes} of 128×128×256", op, [floats(128, 128, 256)], *inputs)
    images = floats(32, 64, 56, 56)
    return [
        reduced("ReduceMax", [1], ([], 1, {"axes": [1]})), reduced("ReduceMax", [0], ([], 1, {"axes": [0]})),
        reduced("ReduceSum", [0], ([ints(0)], 1, {})), reduced("ReduceSum", [1], ([ints(1)], 1, {})),
        reduced("ReduceSum", [0, 2], ([ints(0, 2)], 1, {})), reduced("ReduceL2", [0, 1], ([], 1, {"axes": [0, 1]})),
        ("sums along 8192 rows of 256", "CumSum", [floats(8192, 256)], [np.array(0, dtype=np.int64)], 1, {}),
        ("[0, 2, 3, 1] of 16×64×56×56", "Transpose", [images[:16]], [], 1, {"perm": [0, 2, 3, 1]}),
        ("[0, 2, 1] of 512×96×128", "Transpose", [floats(512, 96, 128)], [], 1, {"perm": [0, 2, 1]}),
        ("zeros around 32×64×56×56", "Pad", [images], [ints(0, 0, 2, 2, 0, 0, 2, 2)], 1, {}),
        ("edges of 32×64×56×56", "Pad", [images], [ints(0, 0, 2, 2, 0, 0, 2, 2)], 1, {"mode": "edge"}),
        ("triangles of 64×256×256", "Trilu", [floats(64, 256, 256)], [], 1, {}),
    ]


def model_of(case, path):
    _, op, inputs, constants, results, attributes = case
    names = [f"x{i}" for i in range(len(inputs) + len(constants))]
    kind = lambda x: helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, names, [f"y{i}" for i in range(results)], **attributes)],
        "graph",
        [helper.make_tensor_value_info(name, kind(x), x.shape) for name, x in zip(names, inputs)],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(results)],
        [numpy_helper.from_array(x, name) for name, x in zip(names[len(inputs):], constants)],
    )
    opset = 18 if op.startswith("Scatter") else 17
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return dict(zip(names, inputs))


def compared(case, tensorc, threads, rounds, folder):
    path = folder / "model.onnx"
    inputs = model_of(case, path)
    np.savez(folder / "in.npz", **inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(str(path), options)
    theirs, ours = [], []
    for _ in range(rounds):
        session.run(None, inputs)
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end or len(theirs) < 5:
            start = time.perf_counter()
            expected = session.run(None, inputs)
            theirs.append(time.perf_counter() - start)
        command = [tensorc, "bench", path, "--input", folder / "in.npz", "--threads", str(threads), "--json",
                   "--repeat", str(max(5, min(600, int(0.1 / min(theirs))))), "--output", folder / "out.npz"]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        ours.append(json.loads(run.stdout.strip().splitlines()[-1])["min_ms"])
    got, want = np.load(folder / "out.npz")["y0"].astype(np.float64), np.asarray(expected[0], np.float64)
    difference = np.abs(got - want).max() / max(1e-9, np.abs(want).max()) if got.shape == want.shape else np.nan
    return min(ours), min(theirs) * 1e3, difference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tensorc")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print("| operator | | threads | tensorc | ONNX Runtime | ratio | difference |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases() + generated() + others() + large():
            for threads in map(int, arguments.threads.split(",")):
                if arguments.only in f"{case[1]} {case[0]}":
                    ours, theirs, difference = compared(case, arguments.tensorc, threads, arguments.rounds, Path(folder))
                    row = f"{ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} | {difference:.0e}"
                    print(f"| {case[1]} | {case[0]} | {threads} | {row} |", flush=True)


if __name__ == "__main__":
    main()
