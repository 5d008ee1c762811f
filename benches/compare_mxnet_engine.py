#!/usr/bin/env python3
"""Throughput of the dependency engine against MXNet's, on the same streams of tiny operations.

    python3 benches/compare_mxnet_engine.py --python VENV/bin/python [--rounds 5] [--ops 200000]

VENV is a virtual environment with MXNet 1.9.1 (`pip install mxnet==1.9.1 "numpy<1.24"`). MXNet is
driven through the C interface of its library by mxnet_engine.c, compiled here with `cc`. Each round
starts a fresh process for each side, in turns, so that a noisy machine disturbs both alike. Printed
per pattern and number of workers: millions of operations in a second of either side, best and median, and the
ratio tensorc / MXNet, above 1 tensorc is faster. Then the same for small calls on imperative arrays,
from MXNet's Python and from Rust.
Needs a release build: cargo build --release -p tensorc-bench
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERNS = ("chain", "indep", "fan", "mix", "mix1k", "rdwr")
ENGINES = {"per_device": "ThreadedEnginePerDevice", "naive": "NaiveEngine"}
CALLS = """
import time, mxnet as mx
x = mx.nd.zeros((64,))
def calls(n):
    start = time.perf_counter()
    for _ in range(n): x.__iadd__(1)
    x.wait_to_read()
    return (time.perf_counter() - start) / n * 1e9
calls(1000)
print(calls(20000))
"""


def output(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **environment), timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def rate(line, ops):
    result = json.loads(line)
    if result["done"] != ops:
        raise SystemExit(f"{result['done']} of {ops} operations ran")
    return ops / result["total_s"]


def compare_engines(a, driver, library):
    streams = [(kind, threads, pattern, a.ops, 0) for pattern in PATTERNS
               for kind, threads in (("per_device", 1), ("per_device", 2), ("naive", 1))]
    streams += [("per_device", threads, pattern, a.ops // 10, work) for work in (2000, 20000)
                for pattern in ("indep", "mix") for threads in (1, 2)]
    rates = {stream: ([], []) for stream in streams}
    for _ in range(a.rounds):
        for stream in streams:
            kind, threads, pattern, ops, work = stream
            ours = output([a.tensorc_bench, "bench-engine", pattern, "--ops", str(ops), "--work-ns", str(work),
                           "--threads", str(threads), "--kind", kind, "--json"])
            theirs = output([driver, library, pattern, str(ops), str(work)], MXNET_ENGINE_TYPE=ENGINES[kind],
                            MXNET_CPU_WORKER_NTHREADS=str(threads), OMP_NUM_THREADS="1",
                            LD_LIBRARY_PATH=os.path.dirname(library))
            for found, line in zip(rates[stream], (ours, theirs)):
                found.append(rate(line, ops))
    print("| engine | workers | pattern | work, ns | tensorc, best | median | MXNet, best | median | ratio of best "
          "| of medians |\n|---|---|---|---|---|---|---|---|---|---|")
    for (kind, threads, pattern, _, work), (ours, theirs) in rates.items():
        best, median = [max(x) for x in (ours, theirs)], [statistics.median(x) for x in (ours, theirs)]
        print(f"| {kind} | {threads} | {pattern} | {work} | {best[0] / 1e6:.3g} | {median[0] / 1e6:.3g} "
              f"| {best[1] / 1e6:.3g} | {median[1] / 1e6:.3g} | {best[0] / best[1]:.2f} "
              f"| {median[0] / median[1]:.2f} |")


def compare_calls(a):
    ours = {"each call by itself": [], "deferred": []}
    theirs = []
    for _ in range(a.rounds):
        told = subprocess.run([a.tensorc_bench, "ndarray-chain", "--rounds", "1"], capture_output=True, text=True)
        for what, found in ours.items():
            found.append(float(re.search(what + r": ns per call best (\d+)", told.stdout).group(1)))
        theirs.append(float(output([a.python, "-W", "ignore", "-c", CALLS], MXNET_CPU_WORKER_NTHREADS="1",
                                   OMP_NUM_THREADS="1")))
    print("\n| `x += 1`, 64 elements | ns per call, best | median |\n|---|---|---|")
    for what, found in [*ours.items(), ("MXNet, from Python", theirs)]:
        print(f"| {what} | {min(found):.0f} | {statistics.median(found):.0f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", required=True, help="a Python with MXNet")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ops", type=int, default=200000)
    p.add_argument("--tensorc-bench", default=os.path.join(HERE, "..", "target", "release", "tensorc-bench"))
    a = p.parse_args()
    package = output([a.python, "-W", "ignore", "-c", "import mxnet, os; print(os.path.dirname(mxnet.__file__))"])
    with tempfile.TemporaryDirectory() as folder:
        driver = os.path.join(folder, "mxnet_engine")
        subprocess.run(["cc", "-O2", "-o", driver, os.path.join(HERE, "mxnet_engine.c"), "-ldl"], check=True)
        compare_engines(a, driver, os.path.join(package, "libmxnet.so"))
    compare_calls(a)


if __name__ == "__main__":
    main()
