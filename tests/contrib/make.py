#!/usr/bin/env python3
"""Cases of the operators that ONNX Runtime adds to ONNX, with what it computes.

    python3 tests/contrib/make.py store                     makes cases.zip, which tests/tests/contrib.rs runs
    python3 tests/contrib/make.py fresh TENSORC COUNT SEED  draws COUNT cases of each operator, and compares the program's results

It needs the packages numpy, onnx and onnxruntime (1.31). A case is drawn from the operator's name and a number, its seed.
`--only=NAME` takes one operator. The drawn operators are the functions of `drawn_*.py`.
"""
import hashlib, io, pathlib, subprocess, sys, tempfile, zipfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import drawn_attention, drawn_float, drawn_quantised

# Cases of each operator that are stored.
STORED = 20
OPERATORS = {**drawn_float.DRAWN, **drawn_attention.DRAWN, **drawn_quantised.DRAWN}


def rng_of(name, seed):
    """The generator of a case."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:8], "little"))


def model_of(name, case):
    """The model of one node, and the values of its inputs."""
    operands, inputs, stored, values = [], [], [], []
    for i, array in enumerate(case["inputs"]):
        if array is None:
            operands.append("")
            continue
        operands.append(f"x{i}")
        if i in case.get("stored", ()):
            stored.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"x{i}", dtype, array.shape))
            values.append(array)
    results = case.get("results", [True])
    outputs = [f"y{i}" if wanted else "" for i, wanted in enumerate(results)]
    domain = case.get("domain", "com.microsoft")
    node = helper.make_node(case.get("op", name), operands, outputs, name="node", domain=domain, **case.get("attrs", {}))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(*case.get("opset", ("com.microsoft", 1)))]
    infos = [helper.make_empty_tensor_value_info(o) for o in outputs if o]
    graph = helper.make_graph([node], "case", inputs, infos, stored)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), values


def session(model):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computed(draw, name, seed):
    """A drawn case with ONNX Runtime's results: the model with types of its outputs, inputs, outputs."""
    case = draw(rng_of(name, seed))
    model, values = model_of(name, case)
    names = [i.name for i in model.graph.input]
    results = session(model).run(None, dict(zip(names, values)))
    del model.graph.output[:]
    for output, array in zip([o for o in model.graph.node[0].output if o], results):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.output.append(helper.make_tensor_value_info(output, dtype, array.shape))
    return model, values, results


def store(operators, path, only):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(n for n in operators if only in (None, n)):
            for seed in range(STORED):
                model, values, results = computed(operators[name], name, seed)
                files = {"model.onnx": model.SerializeToString()}
                for kind, arrays in (("input", values), ("output", results)):
                    for i, array in enumerate(arrays):
                        files[f"{kind}_{i}.pb"] = numpy_helper.from_array(array).SerializeToString()
                for file, data in files.items():
                    entry = zipfile.ZipInfo(f"{name}/{seed}/{file}", (1980, 1, 1, 0, 0, 0))
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, data)
    print(path, path.stat().st_size, "bytes")


# Bounds of differences; the states of this one are rounded to integers at every step.
BOUNDS = {"DynamicQuantizeLSTM": 2e-2}


def difference(got, want, name):
    """What is wrong with a result."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    if want.size == 0:
        return None
    if want.dtype.kind != "f":
        wrong = got != want
    else:
        half = want.dtype == np.float16
        got, want = got.astype(np.float64), want.astype(np.float64)
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=0.1)
        bound = BOUNDS.get(name, 2e-3 if half else 1e-5) * (np.abs(want) + scale)
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(got - want) <= bound) | (got == want) | (np.isnan(got) & np.isnan(want)))
    if not wrong.any():
        return None
    at = tuple(np.argwhere(wrong)[0]) if want.ndim else ()
    return f"{wrong.sum()} of {want.size} elements differ; {at}: {got[at]} for {want[at]}"


def fresh(operators, program, count, seed, only):
    equal = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in sorted(n for n in operators if only in (None, n)):
            good = 0
            for s in range(seed, seed + count):
                try:
                    model, values, results = computed(operators[name], name, s)
                except Exception as error:
                    print(f"{name} {s}: ONNX Runtime: {str(error)[:200]}")
                    continue
                (folder / "m.onnx").write_bytes(model.SerializeToString())
                np.savez(folder / "in.npz", **{i.name: v for i, v in zip(model.graph.input, values)})
                run = [program, "run", folder / "m.onnx", "--input", folder / "in.npz", "--output", folder / "out.npz"]
                if not values:
                    del run[3:5]
                done = subprocess.run(run, capture_output=True, text=True)
                why = None
                if done.returncode:
                    why = done.stderr.strip()[:600]
                else:
                    with np.load(folder / "out.npz") as out:
                        for info, want in zip(model.graph.output, results):
                            why = why or (lambda d: d and f"{info.name}: {d}")(difference(out[info.name], want, name))
                if why:
                    failed += 1
                    shapes = [f"{v.dtype}{list(v.shape)}" for v in values]
                    attrs = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
                    print(f"{name} {s}: {why}\n    {shapes} {attrs}")
                else:
                    good += 1
            equal += good
            print(f"{name}: {good} equal")
    print(f"{equal} equal, {failed} not")
    return failed


def main(operators, folder, doc):
    """What the words of the command line ask for."""
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    only = next((w.split("=")[1] for w in sys.argv[1:] if w.startswith("--only=")), None)
    if words[:1] == ["store"]:
        return store(operators, folder / "cases.zip", only)
    if words[:1] == ["fresh"] and len(words) == 4:
        return fresh(operators, words[1], int(words[2]), int(words[3]), only)
    sys.exit(doc)


if __name__ == "__main__":
    sys.exit(main(OPERATORS, HERE, __doc__))
