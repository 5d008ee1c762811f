#!/usr/bin/env python3
"""A recurrent layer as a loop and as copies of its body, side by side.

    python3 benches/recurrent.py target/release/tensorc [--steps 200] [--threads 1] [--rounds 5]

`h = tanh(0.05 (h · w + x[t] · u))` over the rows of x, which are stacked. Prints compile time, median time of a run and
planned bytes of both, and the ratio of the times (loop / copies), of the best of some interleaved rounds.
"""
import argparse, pathlib, re, subprocess, tempfile

SIZES = [(1, 64), (1, 256), (8, 128), (32, 256)]


def head(steps, batch, hidden):
    return (f"graph @main(%h0: f32[{batch}, {hidden}], %xs: f32[{steps}, {batch}, {hidden}]) {{\n"
            f"  %w = const f32[{hidden}, {hidden}] random(1)\n  %u = const f32[{hidden}, {hidden}] random(2)\n"
            f"  %k = const f32[] splat(0.05)\n")


def cell(h, x, i=""):
    return (f"  %p{i} = matmul({h}, %w)\n  %q{i} = matmul({x}, %u)\n  %s{i} = add(%p{i}, %q{i})\n"
            f"  %m{i} = mul(%s{i}, %k)\n  %t{i} = tanh(%m{i})\n")


def loop(steps, batch, hidden):
    row, weight = f"f32[{batch}, {hidden}]", f"f32[{hidden}, {hidden}]"
    return (head(steps, batch, hidden)
            + f"  %r = prim.loop(%h0, %xs, %w, %u, %k) trips {steps} carried 1 scanned [forward] stacked [forward] {{\n"
            + f"  body(%i: i64[], %h: {row}, %x: {row}, %w: {weight}, %u: {weight}, %k: f32[]) {{\n"
            + cell("%h", "%x") + "  return row = %t\n  update %h = %t\n  }\n"
            + f"  }} : ({row}, f32[{steps}, {batch}, {hidden}])\n  return final = %r, rows = %r:1\n}}\n")


def copies(steps, batch, hidden):
    text, h = head(steps, batch, hidden), "%h0"
    for t in range(steps):
        text += f"  %x{t} = prim.view(%xs) [{t}, d0, d1] : f32[{batch}, {hidden}]\n" + cell(h, f"%x{t}", t)
        text += f"  %r{t} = prim.view(%t{t}) [d1, d2] : f32[1, {batch}, {hidden}]\n"
        h = f"%t{t}"
    rows = ", ".join(f"%r{t}" for t in range(steps))
    return text + f"  %rows = concat({rows}) {{axis = 0}}\n  return final = {h}, rows = %rows\n}}\n"


def figures(tensorc, path, threads):
    out = subprocess.run([tensorc, "bench", path, "--threads", str(threads)], capture_output=True, text=True, check=True)
    number = lambda pattern: float(re.search(pattern, out.stdout + out.stderr).group(1))
    return number(r"compile\s+([\d.]+) ms"), number(r"median\s+([\d.]+) ms"), number(r"planned\s+([\d.]+) MB")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("tensorc")
    for name, value in [("steps", 200), ("threads", 1), ("rounds", 5)]:
        options.add_argument(f"--{name}", type=int, default=value)
    given = options.parse_args()
    print("batch hidden | compile ms: loop copies | run ms: loop copies ratio | planned MB: loop copies")
    with tempfile.TemporaryDirectory() as folder:
        for batch, hidden in SIZES:
            best = {}
            for _ in range(given.rounds):
                for form in (loop, copies):
                    path = pathlib.Path(folder, f"{form.__name__}.tc")
                    path.write_text(form(given.steps, batch, hidden))
                    found = figures(given.tensorc, path, given.threads)
                    best[form] = [min(pair) for pair in zip(best.get(form, found), found)]
            a, b = best[loop], best[copies]
            print(f"{batch:5} {hidden:6} | {a[0]:8.1f} {b[0]:8.1f} | {a[1]:8.3f} {b[1]:8.3f} {a[1] / b[1]:5.2f} |"
                  f" {a[2]:5.2f} {b[2]:5.2f}", flush=True)


if __name__ == "__main__":
    main()
