#!/usr/bin/env python3
"""What rewriting and fusion save: kernels and bytes against the greedy fuser alone, and time against neither.

python3 benches/compare_optimizer.py TENSORC MODEL.onnx ... [--threads N] [--rounds N] [--repeat N] [--counts]

The greedy baseline is `--fusion=greedy --no-rewriting`; bytes are those that kernels read and write without weights.
"Off" is `--no-rewriting --no-fusion`, one kernel for every primitive; on and off are timed in turns and the smallest
times count. `--counts` skips timing. A model that does better without is marked `worse`, and the exit status is 1.
Inputs come from MODEL.in.npz beside the model, or are random.
"""

import argparse
import json
import os
import subprocess
import sys

GREEDY = ["--fusion=greedy", "--no-rewriting"]
OFF = ["--no-rewriting", "--no-fusion"]


def tensorc(args, verb, model, *options):
    found = subprocess.run([args.tensorc, verb, model, "--json", *options], capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(found.stderr.strip().splitlines()[-1])
    return json.loads(found.stdout)


def times(args, model):
    inputs = model.removesuffix(".onnx") + ".in.npz"
    options = ["--threads", str(args.threads), "--repeat", str(args.repeat)]
    options += ["--input", inputs] if os.path.exists(inputs) else []
    best = [float("inf")] * 2
    for _ in range(args.rounds):
        for i, how in enumerate([[], OFF]):
            best[i] = min(best[i], tensorc(args, "bench", model, *options, *how)["min_ms"])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tensorc")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--counts", action="store_true")
    args = parser.parse_args()
    print("| model | kernels, greedy | kernels | MB, greedy | MB | bytes saved | on, ms | off, ms | off / on |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    worse = False
    for model in args.models:
        folder, file = os.path.split(model)
        name = os.path.basename(folder) if file == "model.onnx" else file.removesuffix(".onnx")
        try:
            before, after = tensorc(args, "inspect", model, *GREEDY), tensorc(args, "inspect", model)
            on, off = (0, 0) if args.counts else times(args, model)
        except RuntimeError as why:
            print(f"| {name} | {why} |")
            continue
        moved = [found["activation_traffic_bytes"] for found in (before, after)]
        mark = " worse" if after["steps"] > before["steps"] or moved[1] > moved[0] else ""
        worse |= bool(mark)
        saved = 100 * (1 - moved[1] / max(1, moved[0]))
        timed = f"{on:.3g} | {off:.3g} | {off / on:.2f}" if on else " | | "
        row = f"{before['steps']} | {after['steps']} | {moved[0] / 1e6:.2f} | {moved[1] / 1e6:.2f} | {saved:.1f} %{mark}"
        print(f"| {name} | {row} | {timed} |", flush=True)
    return worse


if __name__ == "__main__":
    sys.exit(main())
