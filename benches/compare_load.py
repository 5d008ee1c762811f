#!/usr/bin/env python3
"""From files to the first result: a library that tensorc compiled, against a session of ONNX Runtime.

python3 benches/compare_load.py TENSORC TENSORC_BENCH MODEL.onnx ... [--threads N] [--rounds N]

Both read what the system holds in memory already; rounds are interleaved, medians count. Load: for tensorc opening library
and weights with their hashes checked, for ONNX Runtime making the session. Beside it what the first run takes more
than the fastest one. Needs onnxruntime and numpy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

PEER = """
import json, sys, time
import numpy as np, onnxruntime as ort
o = ort.SessionOptions(); o.intra_op_num_threads = int(sys.argv[2]); o.inter_op_num_threads = 1
begin = time.perf_counter()
s = ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"])
load = time.perf_counter() - begin
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": bool}
x = {i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], kinds[i.type]) for i in s.get_inputs()}
times = []
for _ in range(11):
    begin = time.perf_counter(); s.run(None, x); times.append(time.perf_counter() - begin)
print(json.dumps({"load_ms": load * 1e3, "first_run_ms": times[0] * 1e3, "min_ms": min(times[1:]) * 1e3}))
"""


def measured(command):
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError((found.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(found.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tensorc")
    parser.add_argument("bench")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| model | tensorc: load, ms | first run over later ones, ms | ONNX Runtime: load, ms | first run over later ones, ms |")
    print("|---|---|---|---|---|", flush=True)
    for model in args.models:
        name = os.path.basename(model).removesuffix(".onnx")
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "m")
            made = [args.tensorc, "compile", model, "-o", out, "--name", "m", "--emit=shared-lib"]
            subprocess.run(made, check=True, capture_output=True)
            sides = {
                "tensorc": [args.bench, "load", out + ".so", "--threads", str(args.threads)],
                "peer": [sys.executable, "-c", PEER, model, str(args.threads)],
            }
            rows = {side: [] for side in sides}
            for _ in range(args.rounds):
                for side, command in sides.items():
                    rows[side].append(measured(command))
        cells = [name]
        for found in rows.values():
            cells.append(f"{statistics.median(row['load_ms'] for row in found):.1f}")
            cells.append(f"{statistics.median(row['first_run_ms'] - row['min_ms'] for row in found):.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
