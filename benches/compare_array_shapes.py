#!/usr/bin/env python3
"""Calls on arrays of ever new shapes, beside PyTorch.

    python3 benches/compare_array_shapes.py target/release/examples/array_shapes [--rounds 3]

Prints microseconds of a step on a new shape and on a known one, of the round with the least, for the forward computation alone
and with its gradient. Needs torch.
"""
import argparse, json, subprocess, sys

PEER = """
import json, statistics, sys, time, torch
torch.set_num_threads(2)
train, medians = sys.argv[1:] == ["train"], []
w = torch.full((64, 64), 0.01, requires_grad=train)
for _ in range(2):
    times = []
    for n in range(10, 210):
        x = torch.full((n, 64), 0.5)
        begin = time.perf_counter()
        h = torch.tanh(x @ w)
        loss = (torch.softmax(h, -1) * h).sum()
        if train:
            w.grad = None
            loss.backward()
        loss.item()
        times.append(1e6 * (time.perf_counter() - begin))
    medians.append(statistics.median(times[2:]))
print(json.dumps({"new": medians[0], "known": medians[1]}))
"""

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("program")
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()
for kind in ([], ["train"]):
    sides = {"tensorc": [args.program], "PyTorch": [sys.executable, "-c", PEER]}
    found = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, command in sides.items():
            found[name].append(json.loads(subprocess.run(command + kind, check=True, capture_output=True, text=True).stdout))
    for name, runs in found.items():
        least = {which: min(run[which] for run in runs) for which in ("new", "known")}
        print(f"{'with gradient' if kind else 'forward':14}{name:9}new shape {least['new']:8.1f} µs   known {least['known']:8.1f} µs")
