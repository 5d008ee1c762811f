#!/usr/bin/env python3
"""Requests of random shapes to one model, from cold, beside ONNX Runtime.

    python3 benches/compare_shapes.py target/release/tensorc-bench MODEL.onnx --extents 1..1,1..512 \\
        [--requests 300] [--threads 2] [--rounds 1] [--seed 1] [--repeat 1]

Extents are ranges of the model's open dimensions, in the order in which its inputs have them first; `32..640/32` are multiples
of 32; none, if nothing is open. Both sides get the same requests in the same order; inputs are ones, or with `--random` the same random
numbers, for models whose shapes depend on values. Prints loading, the sum of all requests, the median and
the worst of them in ms, of the round with the least sum. With `--repeat`, the requests follow so often, tensorc also runs with
kernels for each shape (`--specialize`), and the sum of the least times of each request in later repetitions of all rounds is
printed instead. Needs onnxruntime and numpy.
"""
import argparse, json, random, statistics, subprocess, sys

PEER = """
import json, sys, time
import numpy as np, onnxruntime as ort
o = ort.SessionOptions(); o.intra_op_num_threads = int(sys.argv[2]); o.inter_op_num_threads = 1
begin = time.perf_counter()
s = ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"])
load = time.perf_counter() - begin
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": bool}
times = []
def noise(dims, kind, state):
    # The elements of the generator that the other side has, SplitMix64.
    count, golden = int(np.prod(dims)), np.uint64(0x9e3779b97f4a7c15)
    with np.errstate(over="ignore"):
        z = np.uint64(state[0]) + np.arange(1, count + 1, dtype=np.uint64) * golden
        state[0] = int(np.uint64(state[0]) + np.uint64(count) * golden)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z ^= z >> np.uint64(31)
    if kind is bool: return (z >> np.uint64(63) == 1).reshape(dims)
    if kind is np.float32: return ((z >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0).astype(kind).reshape(dims)
    return ((z >> np.uint64(60)).astype(np.int64) - 8).astype(kind).reshape(dims)
for number, request in enumerate(sys.argv[4:]):
    extents, known, state = iter(map(int, filter(None, request.split(",")))), {}, [number]
    def extent(d):
        if isinstance(d, int): return d
        if d not in known: known[d] = next(extents)
        return known[d]
    shapes = {i.name: ([extent(d) for d in i.shape], kinds[i.type]) for i in s.get_inputs()}
    x = {n: noise(*t, state) if sys.argv[3] == "random" else np.ones(*t) for n, t in shapes.items()}
    begin = time.perf_counter(); s.run(None, x); times.append((time.perf_counter() - begin) * 1e3)
print(json.dumps({"load_ms": load * 1e3, "request_ms": times}))
"""


def extents(text):
    """The extents of `first..last` or, in steps, `first..last/step`."""
    bounds, _, step = text.partition("/")
    first, last = map(int, bounds.split(".."))
    return range(first, last + 1, int(step or 1))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("bench")
    options.add_argument("model")
    options.add_argument("--extents", default="")
    options.add_argument("--random", action="store_true")
    for name, value in [("requests", 300), ("threads", 2), ("rounds", 1), ("seed", 1), ("repeat", 1)]:
        options.add_argument(f"--{name}", type=int, default=value)
    given = options.parse_args()
    ranges = [extents(one) for one in given.extents.split(",") if one]
    rng = random.Random(given.seed)
    requests = [",".join(str(rng.choice(one)) for one in ranges) for _ in range(given.requests)]
    requests *= given.repeat
    ours = [given.bench, "shapes", given.model, "--threads", str(given.threads)]
    ours += ["--random"] * given.random
    ours += [word for request in requests for word in ("--request", request)]
    sides = {
        "tensorc": ours,
        "ONNX Runtime": [sys.executable, "-c", PEER, given.model, str(given.threads), "random" if given.random else "ones"] + requests,
    }
    if given.repeat > 1:
        sides["specialised"] = ours + ["--specialize"]
    best, again = {}, {}
    for _ in range(given.rounds):
        for side, command in sides.items():
            out = subprocess.run(command, capture_output=True, text=True)
            if out.returncode:
                sys.exit(f"{side}: {(out.stderr.strip().splitlines() or ['no message'])[-1]}")
            found = json.loads(out.stdout.strip().splitlines()[-1])
            if side not in best or sum(found["request_ms"]) < sum(best[side]["request_ms"]):
                best[side] = found
            later = found["request_ms"][given.requests :]
            least = [min(later[i :: given.requests]) for i in range(given.requests) if later]
            again[side] = [min(pair) for pair in zip(least, again.get(side, least))]
    if given.repeat > 1:
        for side, times in again.items():
            print(f"{side:13} again {sum(times):9.1f}  ratio {sum(again['tensorc']) / sum(times):.3f}")
        return
    for side, found in best.items():
        times = found["request_ms"]
        print(f"{side:13} load {found['load_ms']:8.1f}  requests {sum(times):9.1f}  "
              f"median {statistics.median(times):7.2f}  worst {max(times):8.1f}")


main()
