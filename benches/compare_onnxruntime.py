#!/usr/bin/env python3
"""Latency of tensorc against ONNX Runtime on ONNX files, side by side in one run.

    python3 benches/compare_onnxruntime.py MODEL.onnx [MODEL.onnx ...] [--threads 1,2] [--rounds 3]

Each round starts a fresh process for each engine, in turns, so that a noisy machine disturbs both
alike. A model NAME.onnx takes its inputs from NAME.in.npz beside it, or random ones. Printed per
model and thread count: the smallest and the median time of either, their ratio, and the largest
difference of the outputs relative to the largest output.
Needs: numpy and onnxruntime (`python3 -m pip install onnxruntime`), and a release build of tensorc.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
NUMPY = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
         "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8}


def inputs_of(model, folder):
    beside = model[:-5] + ".in.npz"
    if os.path.exists(beside):
        return beside
    import onnxruntime
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    arrays = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) and d > 0 else 1 for d in i.shape]
        dtype = NUMPY[i.type]
        floating = np.issubdtype(dtype, np.floating)
        arrays[i.name] = (rng.uniform(-1, 1, shape) if floating else rng.integers(0, 2, shape)).astype(dtype)
    path = os.path.join(folder, "inputs.npz")
    np.savez(path, **arrays)
    return path


def onnxruntime_worker(model, inputs, output, threads, seconds):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(inputs) as archive:
        feed = {k: archive[k] for k in archive.files}
    results = session.run(None, feed)
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        session.run(None, feed)
        times.append((time.perf_counter() - t) * 1e3)
    np.savez(output, **dict(zip([o.name for o in session.get_outputs()], results)))
    print(json.dumps({"min_ms": min(times), "median_ms": statistics.median(times)}))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr))
    return json.loads(done.stdout)


def difference(a, b):
    with np.load(a) as x, np.load(b) as y:
        worst = 0.0
        for k in y.files:
            want = y[k].astype(np.float64)
            if want.size:
                scale = max(1e-4, np.abs(want).max())
                worst = max(worst, float(np.abs(x[k].astype(np.float64) - want).max() / scale))
        return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="time per process and round")
    parser.add_argument("--tensorc", default=os.path.join(HERE, "..", "target", "release", "tensorc"))
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        return onnxruntime_worker(a.models[0], *a.worker[:2], int(a.worker[2]), a.seconds)
    print("| model | threads | tensorc min / median, ms | ONNX Runtime min / median, ms | ratio of minima | difference |")
    print("|---|---|---|---|---|---|")
    for model in a.models:
        for threads in map(int, a.threads.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                inputs = inputs_of(model, folder)
                ours, theirs = os.path.join(folder, "ours.npz"), os.path.join(folder, "theirs.npz")
                mine, peer = [], []
                for _ in range(a.rounds):
                    peer.append(run([sys.executable, os.path.abspath(__file__), model, "--seconds", str(a.seconds),
                                     "--worker", inputs, theirs, str(threads)]))
                    repeat = max(5, min(2000, int(a.seconds * 1e3 / peer[-1]["median_ms"])))
                    mine.append(run([a.tensorc, "bench", model, "--input", inputs, "--threads", str(threads),
                                     "--repeat", str(repeat), "--output", ours, "--json"]))
                best = lambda rows: min(r["min_ms"] for r in rows)
                middle = lambda rows: statistics.median(r["median_ms"] for r in rows)
                print("| %s | %d | %.3f / %.3f | %.3f / %.3f | %.2f | %.0e |" % (
                    os.path.basename(model)[:-5], threads, best(mine), middle(mine), best(peer), middle(peer),
                    best(mine) / best(peer), difference(ours, theirs)), flush=True)


if __name__ == "__main__":
    main()
