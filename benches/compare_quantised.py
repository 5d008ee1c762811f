"""Times quantised models against ONNX Runtime and OpenVINO, and against the same models in f32, in turns.

    python3 benches/compare_quantised.py [--tensorc BIN] [--threads N] [--rounds N] MODEL.onnx[:F32.onnx] …

Beside each model, MODEL.in.npz has its inputs. Prints, of all rounds, the least milliseconds of a run and of making it ready
(a session, or a compilation without a code cache), and what each is of a peer's. The last column is the largest difference to
ONNX Runtime's results, of the largest result.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime
from compare_precision import least

try:
    import openvino
except ImportError:
    openvino = None


def tensorc(args, model, inputs):
    command = [args.tensorc, "bench", model, "--input", inputs, "--threads", str(args.threads), "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "TENSORC_CODE_CACHE"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    times = json.loads(out.stdout)
    return times["min_ms"], times["compile_ms"]


def onnxruntime_session(args, model, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def openvino_session(args, model, inputs):
    options = {"INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda: request.infer(inputs)


def peer(make):
    """Least milliseconds of a run, and those of making it ready; nothing if the peer refuses the model."""
    start = time.perf_counter()
    try:
        run = make()
    except RuntimeError:
        return float("nan"), float("nan")
    ready = (time.perf_counter() - start) * 1e3
    return least(run), ready


def difference(args, model, given, expected):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.npz")
        command = [args.tensorc, "run", model, "--input", given, "--output", out]
        subprocess.run(command, check=True, capture_output=True)
        results = list(np.load(out).values())
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(results, expected)]
    return max(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorc", default="target/release/tensorc")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    print(f"{'':20}{'tensorc':>9}{'ORT':>9}{'ratio':>7}{'OpenVINO':>10}{'ratio':>7}{'f32':>9}{'ratio':>7}"
          f"{'compile':>9}{'ORT':>8}{'ratio':>7}{'error':>9}")
    for pair in args.models:
        model, _, full = pair.partition(":")
        given = model.removesuffix(".onnx") + ".in.npz"
        inputs = dict(np.load(given))
        times = {"tensorc": [], "ort": [], "openvino": [], "f32": []}
        for _ in range(args.rounds):
            times["tensorc"].append(tensorc(args, model, given))
            times["ort"].append(peer(lambda: onnxruntime_session(args, model, inputs)))
            if openvino:
                times["openvino"].append(peer(lambda: openvino_session(args, model, inputs)))
            if full:
                times["f32"].append(tensorc(args, full, given))
        missing = (float("nan"),) * 2
        best = {name: [min(column) for column in zip(*rows)] or missing for name, rows in times.items()}
        (ours, compiled), (ort, session), (vino, _), (f32, _) = best.values()
        error = difference(args, model, given, onnxruntime_session(args, model, inputs)())
        print(f"{os.path.basename(model).removesuffix('.onnx'):20}{ours:9.2f}{ort:9.2f}{ours / ort:7.2f}{vino:10.2f}{ours / vino:7.2f}"
              f"{f32:9.2f}{ours / f32:7.2f}{compiled:9.0f}{session:8.0f}{compiled / session:7.2f}{error:9.1e}", flush=True)


if __name__ == "__main__":
    main()
