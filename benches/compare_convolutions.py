#!/usr/bin/env python3
"""Random convolutions, tensorc against ONNX Runtime: smallest times of some rounds in turns.

    python compare_convolutions.py TENSORC [--seed 1] [--cases 100] [--threads 1] [--rounds 2] [--worst 20]

Needs what compare_operators.py needs. One to three spatial axes; dense, depthwise, grouped, pointwise and transposed; 3 to 256
channels, windows of 1 to 7, strides and dilations of 1 and 2, extents of 7 to 1000; 2 to 600 million products. Prints the cases
with the largest ratios (below 1 tensorc is faster), then a row for each kind, as Markdown.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np

from compare_operators import compared

KINDS = ("dense", "depthwise", "grouped", "pointwise", "transposed")
EXTENTS = {1: (100, 400, 1000), 2: (7, 14, 28, 56, 112), 3: (8, 16, 24)}


def drawn(draw):
    """Kind, axes, images, channels in and out, window, stride, dilation, groups and extent of a convolution."""
    while True:
        kind, axes = draw.choice(("dense",) + KINDS), draw.choice((1, 2, 2, 2, 2, 2, 3))
        groups = {"depthwise": draw.choice((8, 16, 24, 32, 48, 64, 96, 128, 256)), "grouped": draw.choice((2, 4, 8, 16, 32))}.get(kind, 1)
        channels = [groups * max(1, draw.choice((3, 8, 16, 24, 32, 48, 64, 96, 128, 256)) // groups) for _ in range(2)]
        channels = [groups] * 2 if kind == "depthwise" else channels
        window = 1 if kind == "pointwise" else draw.choice((1, 2, 3, 3, 3, 5, 7))
        stride, dilation = draw.choice((1, 1, 1, 2)), draw.choice((1, 1, 1, 2))
        extent, images = draw.choice(EXTENTS[axes]), draw.choice((1, 1, 1, 4))
        positions = extent**axes if kind == "transposed" else (extent // stride) ** axes
        products = images * channels[0] // groups * channels[1] * window**axes * positions
        if 2e6 < products < 6e8 and (window - 1) * dilation < extent:
            return kind, axes, images, channels, window, stride, dilation, groups, extent


def case_of(shape, numbers):
    kind, axes, images, (inner, outer), window, stride, dilation, groups, extent = shape
    transposed = kind == "transposed"
    leading = (inner, outer // groups) if transposed else (outer, inner // groups)
    values = lambda *dims: numbers.standard_normal(dims, dtype=np.float32)
    attributes = {
        "strides": [stride] * axes, "dilations": [dilation] * axes, "group": groups,
        "pads": [(window - 1) * dilation // 2] * (2 * axes), "kernel_shape": [window] * axes,
    }
    name = (f"{images} of {extent}^{axes}, {inner} to {outer} channels in {groups} groups, window {window}, stride {stride}, "
            f"dilation {dilation}")
    constants = [values(*leading, *[window] * axes) * 0.1, values(outer)]
    return name, "ConvTranspose" if transposed else "Conv", [values(images, inner, *[extent] * axes)], constants, 1, attributes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tensorc")
    for name, default in [("seed", 1), ("cases", 100), ("threads", 1), ("rounds", 2), ("worst", 20)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    draw, numbers = random.Random(arguments.seed), np.random.default_rng(arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.cases):
            shape = drawn(draw)
            case = case_of(shape, numbers)
            ours, theirs, difference = compared(case, arguments.tensorc, arguments.threads, arguments.rounds, Path(folder))
            rows.append((ours / theirs, f"{shape[0]} {shape[1]}-D", case[0], ours, theirs, difference))
    print("| kind | | tensorc | ONNX Runtime | ratio | difference |\n|---|---|---|---|---|---|")
    for ratio, kind, name, ours, theirs, difference in sorted(rows, reverse=True)[: arguments.worst]:
        print(f"| {kind} | {name} | {ours:.3f} | {theirs:.3f} | {ratio:.2f} | {difference:.0e} |")
    print("\n| kind | cases | geometric mean | worst | above 1 |\n|---|---|---|---|---|")
    for kind in sorted({row[1] for row in rows}) + [""]:
        ratios = np.array([row[0] for row in rows if kind in row[1]])
        mean = np.exp(np.log(ratios).mean())
        print(f"| {kind or 'all'} | {len(ratios)} | {mean:.2f} | {ratios.max():.2f} | {(ratios > 1).sum()} |")


if __name__ == "__main__":
    main()
