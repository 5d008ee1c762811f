#!/usr/bin/env python3
"""Steps of a decoder with growing caches, beside ONNX Runtime.

    python3 benches/compare_decoder.py target/release/tensorc-bench [--steps 200] [--threads 2] [--rounds 3] \\
        [--layers 4] [--width 256] [--heads 4]

Builds a decoder of random weights: each layer has layer normalisation, attention over a cache of keys and values, and two products
with a GELU between them. The first run has a prompt of 8 tokens, further ones have one. tensorc keeps the caches as states;
ONNX Runtime gets each present output as the next past input, as a value that it holds (`OrtValue`), so that both copy nothing on the
way. Prints the first run, the second one, which compiles on our side, and of the other steps the median and the worst, in ms, of the
round with the least sum of steps. Needs onnx, onnxruntime and numpy.
"""
import argparse, json, os, subprocess, sys, tempfile
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

PEER = """
import json, sys, time
import numpy as np, onnxruntime as ort
model, layers, width, heads, steps, prompt, threads = sys.argv[1], *map(int, sys.argv[2:])
options = ort.SessionOptions(); options.intra_op_num_threads = threads; options.inter_op_num_threads = 1
begin = time.perf_counter()
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
load = time.perf_counter() - begin
names = [f"{kind}_{i}" for i in range(layers) for kind in "kv"]
empty = np.zeros((1, heads, 0, width // heads), np.float32)
past = {name: ort.OrtValue.ortvalue_from_numpy(empty) for name in names}
times = []
for step in range(steps + 1):
    x = np.ones((1, prompt if step == 0 else 1, width), np.float32)
    begin = time.perf_counter()
    feeds = {"x": ort.OrtValue.ortvalue_from_numpy(x)} | {f"past_{name}": value for name, value in past.items()}
    results = session.run_with_ort_values(["y"] + [f"present_{name}" for name in names], feeds)
    results[0].numpy()
    past = dict(zip(names, results[1:]))
    times.append((time.perf_counter() - begin) * 1e3)
print(json.dumps({"load_ms": load * 1e3, "run_ms": times}))
"""


def decoder(layers, width, heads, path):
    """Writes a decoder whose input and output are rows of `width` numbers for each token."""
    rng, nodes, weights, depth = np.random.default_rng(0), [], [], width // heads
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "tokens", width])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "tokens", width])]

    def weight(name, *dims, values=None):
        data = rng.standard_normal(dims) / np.sqrt(dims[0]) if values is None else values
        weights.append(numpy_helper.from_array(np.asarray(data, np.float32), name))
        return name

    def node(op, operands, result, **attributes):
        nodes.append(helper.make_node(op, operands, [result], **attributes))
        return result

    def constant(name, values):
        weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    split, joined = constant("split", [1, -1, heads, depth]), constant("joined", [1, -1, width])
    scale = weight("scale", values=np.float32(depth**-0.5))
    x = "x"
    for i in range(layers):
        norm = node("LayerNormalization", [x, weight(f"g{i}", values=np.ones(width)), weight(f"b{i}", values=np.zeros(width))], f"n{i}")
        parts = {}
        for kind in "qkv":
            product = node("MatMul", [norm, weight(f"w{kind}{i}", width, width)], f"p{kind}{i}")
            rows = node("Reshape", [product, split], f"r{kind}{i}")
            parts[kind] = node("Transpose", [rows], f"t{kind}{i}", perm=[0, 2, 1, 3])
        for kind in "kv":
            shape = [1, heads, "past", depth]
            inputs.append(helper.make_tensor_value_info(f"past_{kind}_{i}", TensorProto.FLOAT, shape))
            outputs.append(helper.make_tensor_value_info(f"present_{kind}_{i}", TensorProto.FLOAT, [1, heads, "all", depth]))
            parts[kind] = node("Concat", [f"past_{kind}_{i}", parts[kind]], f"present_{kind}_{i}", axis=2)
        turned = node("Transpose", [parts["k"]], f"kt{i}", perm=[0, 1, 3, 2])
        scores = node("Mul", [node("MatMul", [parts["q"], turned], f"s{i}"), scale], f"ss{i}")
        mixed = node("MatMul", [node("Softmax", [scores], f"a{i}", axis=-1), parts["v"]], f"c{i}")
        rows = node("Reshape", [node("Transpose", [mixed], f"ct{i}", perm=[0, 2, 1, 3]), joined], f"cr{i}")
        x = node("Add", [x, node("MatMul", [rows, weight(f"wo{i}", width, width)], f"o{i}")], f"h{i}")
        norm = node("LayerNormalization", [x, f"g{i}", f"b{i}"], f"m{i}")
        wide = node("Gelu", [node("MatMul", [norm, weight(f"wu{i}", width, 4 * width)], f"u{i}")], f"e{i}")
        x = node("Add", [x, node("MatMul", [wide, weight(f"wd{i}", 4 * width, width)], f"d{i}")], f"x{i}" if i + 1 < layers else "y")
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("bench")
    for name, value in [("steps", 200), ("threads", 2), ("rounds", 3), ("layers", 4), ("width", 256), ("heads", 4)]:
        options.add_argument(f"--{name}", type=int, default=value)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "decoder.onnx")
        decoder(given.layers, given.width, given.heads, path)
        caches = [f"{kind}_{i}" for i in range(given.layers) for kind in "kv"]
        ours = [given.bench, "decode", path, "--sequence", "tokens", "--steps", str(given.steps), "--threads", str(given.threads)]
        ours += [word for name in caches for word in ("--growing", f"past_{name}=present_{name}")]
        sizes = [given.layers, given.width, given.heads, given.steps, 8, given.threads]
        sides = {"tensorc": ours, "ONNX Runtime": [sys.executable, "-c", PEER, path] + [str(n) for n in sizes]}
        best = {}
        for _ in range(given.rounds):
            for side, command in sides.items():
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
                if side not in best or sum(found["run_ms"][2:]) < sum(best[side]["run_ms"][2:]):
                    best[side] = found
    for side, found in best.items():
        first, second, *steps = found["run_ms"]
        print(f"{side:13} load {found['load_ms']:7.1f}  prompt {first:7.2f}  second {second:7.2f}  "
              f"step {sorted(steps)[len(steps) // 2]:7.3f}  worst {max(steps):7.3f}  all steps {sum(steps):8.1f}")
    sums = [sum(found["run_ms"][2:]) for found in best.values()]
    print(f"ratio of the sums of steps {sums[0] / sums[1]:.2f}")


if __name__ == "__main__":
    main()
