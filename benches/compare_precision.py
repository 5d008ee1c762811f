"""Times models with products of bf16 against f32, in turns, and against OpenVINO's bf16 if it is there.

    python3 benches/compare_precision.py [--tensorc BIN] [--threads N] [--rounds N] MODEL.onnx …

Beside each model, MODEL.in.npz has its inputs, if that file exists; else they are random. Prints the least milliseconds over
all rounds, their ratios, and the largest difference between the results of bf16 and f32 over the largest result.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

import numpy as np


def measured(args, model, precision):
    given = model.removesuffix(".onnx") + ".in.npz"
    inputs = ["--input", given] if os.path.exists(given) else []
    command = [args.tensorc, "bench", model, *inputs, "--threads", str(args.threads), "--precision", precision, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["min_ms"]


def result(args, model, precision):
    given = model.removesuffix(".onnx") + ".in.npz"
    if not os.path.exists(given):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.npz")
        command = [args.tensorc, "run", model, "--input", given, "--output", out, "--precision", precision]
        subprocess.run(command, check=True, capture_output=True)
        return [array.astype(np.float64) for array in np.load(out).values()]


def openvino_session(args, model):
    """A function that runs the model once, or None."""
    given = model.removesuffix(".onnx") + ".in.npz"
    try:
        import openvino
    except ImportError:
        return None
    if not os.path.exists(given):
        return None
    options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", options)
    request, inputs = compiled.create_infer_request(), dict(np.load(given))
    return lambda: request.infer(inputs)


def least(run, seconds=2.0):
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorc", default="target/release/tensorc")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    print(f"{'model':28}{'f32 ms':>10}{'bf16 ms':>10}{'f32/bf16':>10}{'OpenVINO':>10}{'ratio':>8}{'error':>10}")
    for model in args.models:
        times = {"f32": [], "bf16": [], "openvino": []}
        openvino = openvino_session(args, model)
        for _ in range(args.rounds):
            for precision in ("f32", "bf16"):
                times[precision].append(measured(args, model, precision))
            if openvino:
                times["openvino"].append(least(openvino))
        best = {name: min(values, default=float("nan")) for name, values in times.items()}
        full, rounded = result(args, model, "f32"), result(args, model, "bf16")
        error = float("nan")
        if full is not None:
            error = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(full, rounded))
        name = os.path.basename(model).removesuffix(".onnx")
        print(
            f"{name:28}{best['f32']:10.2f}{best['bf16']:10.2f}{best['f32'] / best['bf16']:10.2f}"
            f"{best['openvino']:10.2f}{best['bf16'] / best['openvino']:8.2f}{error:10.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
