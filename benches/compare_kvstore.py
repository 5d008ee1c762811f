"""Time of pushes and pulls through the key-value store against MXNet's, interleaved.

  python3 benches/compare_kvstore.py PYTHON [--tensorc target/release/tensorc-bench] [--rounds 5]

PYTHON is an interpreter with mxnet==1.9.1 and numpy==1.23.5. Four processor devices push 1,000 keys of 1 KB, then 100 keys of
4 MB, and pull the sums to other arrays: milliseconds from the first push until everything has arrived. Each round starts a
process for each side and way in turn, in which the median of several repetitions counts. Ways: all keys in one call, or a call
for each; MXNet also with one and with two workers of each device, tensorc as it comes. Prints medians over the rounds of
each side's best way, of all ways, and the ratio MXNet / tensorc, above 1 tensorc is faster.
"""
import argparse, json, os, statistics, subprocess

MXNET = r'''
import statistics, sys, time
import numpy as np
for n, t in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if n not in np.__dict__: setattr(np, n, t)
import mxnet as mx
kind, keys, elements, rounds, single = sys.argv[1], *map(int, sys.argv[2:6])
places = [mx.cpu(i) for i in range(4)]
names = list(range(keys))
pushed = [[mx.nd.full((elements,), k + i, place) for i, place in enumerate(places)] for k in names]
pulled = [[mx.nd.zeros((elements,), place) for place in places] for _ in names]
store = mx.kv.create(kind)
store.init(names, [arrays[0] for arrays in pulled])
mx.nd.waitall()
def once():
    start = time.perf_counter()
    if single:
        for k in names: store.push(k, pushed[k])
        for k in names: store.pull(k, pulled[k])
    else:
        store.push(names, pushed)
        store.pull(names, pulled)
    mx.nd.waitall()
    return 1e3 * (time.perf_counter() - start)
once()
for k in names:
    for array in pulled[k]: assert (array.asnumpy() == 4 * k + 6).all()
print(statistics.median(once() for _ in range(rounds)))
'''
SIZES = {"1,000 keys of 1 KB": (1000, 256, 15), "100 keys of 4 MB": (100, 1 << 20, 5)}


def output(command, **environment):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=dict(os.environ, **environment), timeout=600)
    if done.returncode:
        raise SystemExit(f"{command[0]}:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def tensorc(program, kind, keys, elements, rounds, single):
    command = [program, "kvstore", "--json", "--kind", kind, "--keys", keys, "--elements", elements, "--rounds", rounds]
    return json.loads(output(command + ["--single"] * single))["median_ms"]


def mxnet(python, kind, keys, elements, rounds, single, workers):
    command = [python, "-W", "ignore", "-c", MXNET, kind, keys, elements, rounds, int(single)]
    return float(output(command, MXNET_CPU_WORKER_NTHREADS=str(workers)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("python")
    ap.add_argument("--tensorc", default="target/release/tensorc-bench")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--only", default="", help="only rows whose store and values contain this text")
    a = ap.parse_args()
    print("| store | values | tensorc, ms | MXNet 1.9.1, ms | MXNet / tensorc |\n|---|---|---|---|---|")
    ways = []
    for size, numbers in SIZES.items():
        for kind in ("local", "device"):
            if a.only not in f"{kind}, {size}":
                continue
            ours, theirs = {}, {}
            for _ in range(a.rounds):
                for single in (False, True):
                    call = "a call each" if single else "one call"
                    ours.setdefault(call, []).append(tensorc(a.tensorc, kind, *numbers, single))
                    for workers in (1, 2):
                        way = f"{call}, {workers} worker(s)"
                        theirs.setdefault(way, []).append(mxnet(a.python, kind, *numbers, single, workers))
            ours, theirs = ({way: statistics.median(times) for way, times in side.items()} for side in (ours, theirs))
            own, other = min(ours.values()), min(theirs.values())
            print(f"| {kind} | {size} | {own:.3g} | {other:.3g} | {other / own:.2f} |", flush=True)
            for name, side in (("tensorc", ours), ("MXNet", theirs)):
                ways.append(f"{kind}, {size}, {name}: " + "; ".join(f"{way} {ms:.3g}" for way, ms in side.items()))
    print("\n" + "\n".join(ways))


if __name__ == "__main__":
    main()
