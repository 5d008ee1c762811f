#!/usr/bin/env python3
"""Requests per second of one model that several threads call at once, against ONNX Runtime.

    python3 benches/compare_callers.py MODEL.onnx... [--callers 8] [--threads 2] [--rounds 3] [--repeat 30]

MODEL.in.npz beside a model holds its inputs. Needs onnxruntime and numpy, and a release build:
cargo build --release --bin tensorc. Both sides have the same number of threads for one run, and each caller makes
the same number of requests. Rounds alternate. Printed per model: the best round of either side in requests per second,
their ratio tensorc / ONNX Runtime (above 1, tensorc is faster), and the worst time of a request in that round.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = """
import sys, threading, time, json, numpy, onnxruntime as ort
model, inputs, callers, threads, repeat = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
options.inter_op_num_threads = 1
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
feeds = dict(numpy.load(inputs))
session.run(None, feeds)
barrier, times = threading.Barrier(callers + 1), []
def call():
    barrier.wait()
    for _ in range(repeat):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
all = [threading.Thread(target=call) for _ in range(callers)]
for thread in all: thread.start()
barrier.wait()
start = time.perf_counter()
for thread in all: thread.join()
took = time.perf_counter() - start
print(json.dumps({"served_per_s": callers * repeat / took, "served_worst_ms": max(times) * 1e3}))
"""


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--tensorc", default=os.path.join(HERE, "..", "target", "release", "tensorc"))
    a = parser.parse_args()
    numbers = [str(n) for n in (a.callers, a.threads, a.repeat)]
    print(f"{'model':24} {'tensorc':>9} {'ort':>9} {'ratio':>6}   worst request, ms")
    for model in a.models:
        inputs = os.path.splitext(model)[0] + ".in.npz"
        ours, theirs = [], []
        for _ in range(a.rounds):
            ours.append(output([a.tensorc, "bench", model, "--input", inputs, "--json", "--repeat", str(a.repeat),
                                "--threads", str(a.threads), "--callers", str(a.callers)]))
            theirs.append(output([sys.executable, "-c", PEER, model, inputs, *numbers]))
        best = [max(side, key=lambda found: found["served_per_s"]) for side in (ours, theirs)]
        rates, worst = ([found[key] for found in best] for key in ("served_per_s", "served_worst_ms"))
        name = os.path.basename(model)
        print(f"{name:24} {rates[0]:9.1f} {rates[1]:9.1f} {rates[0] / rates[1]:6.2f}   {worst[0]:.1f} / {worst[1]:.1f}")


if __name__ == "__main__":
    main()
