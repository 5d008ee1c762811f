#!/usr/bin/env python3
"""Attention in one kernel against its clusters one by one (`tensorc bench --exact`), over shapes.

python3 benches/compare_attention.py TENSORC [--rounds N] [--threads N]

Both forms are compiled and timed in turns; each row has the smallest time of either over all rounds. Where the
one-by-one form is exact, so is the rest of its graph: there is nothing else in these graphs to reassociate.
"""

import argparse
import json
import subprocess
import tempfile

# batch, heads, queries, depth, keys
SHAPES = [
    (1, 1, 64, 64, 64), (1, 12, 16, 64, 16), (8, 12, 16, 32, 16), (1, 12, 64, 64, 64), (1, 12, 128, 32, 128),
    (1, 12, 128, 64, 128), (8, 12, 128, 32, 128), (1, 3, 197, 64, 197), (1, 16, 256, 64, 256),
    (1, 12, 512, 64, 512), (2, 8, 512, 128, 512), (1, 8, 1024, 64, 1024), (1, 4, 2048, 128, 2048),
    (1, 1, 4096, 64, 4096), (1, 12, 1, 64, 128), (1, 16, 1, 64, 1024), (8, 8, 1, 64, 512), (1, 16, 1, 128, 4096),
]


def graph(batch, heads, queries, depth, keys):
    return f"""graph @main(%q: f32[{batch}, {heads}, {queries}, {depth}], %k: f32[{batch}, {heads}, {keys}, {depth}],
            %v: f32[{batch}, {heads}, {keys}, {depth}]) {{
  %kt = transpose(%k) {{perm = [0, 1, 3, 2]}}
  %s = matmul(%q, %kt)
  %f = const f32[] splat({depth ** -0.5:.7f})
  %c = mul(%s, %f)
  %p = softmax(%c) {{axis = -1}}
  %y = matmul(%p, %v)
  return %y
}}
"""


def seconds(tensorc, path, threads, *options):
    command = [tensorc, "bench", path, "--threads", str(threads), "--json", *options]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["min_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tensorc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print("| batch | heads | queries | keys | depth | one kernel, ms | clusters, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for batch, heads, queries, depth, keys in SHAPES:
        with tempfile.NamedTemporaryFile("w", suffix=".tc") as file:
            file.write(graph(batch, heads, queries, depth, keys))
            file.flush()
            best = [float("inf")] * 2
            for _ in range(args.rounds):
                for i, options in enumerate([[], ["--exact"]]):
                    best[i] = min(best[i], seconds(args.tensorc, file.name, args.threads, *options))
        one, many = best
        print(f"| {batch} | {heads} | {queries} | {keys} | {depth} | {one:.3g} | {many:.3g} | {many / one:.2f} |")


if __name__ == "__main__":
    main()
