#!/usr/bin/env python3
"""What PyTorch takes for the models and products that `tensorc-bench gpu` measures.

  python3 benches/compare_torch.py [--device cuda] [--modes eager,default,max-autotune] [--only TEXT ...] [--small] [--jsonl]

It needs torch and nothing else. ResNet-50 (v1, the stride in the first convolution of a block) and an encoder as large as
BERT-base without positions are written down here, with random weights, as in `benches/src/nets`. Figures have the names of
`tensorc-bench gpu`:

  latency               copy of the input from page-locked memory, a run, copy of the result, one after the other
  latency_on_device     a run on tensors of the device
  throughput            samples of runs with copies, enqueued without waiting
  throughput_on_device  samples of runs on tensors of the device, enqueued without waiting
  first_run             the first run, with everything that torch.compile does
  peak_memory           most bytes that torch's allocator had given away

A mode is `eager` or one of torch.compile's: `default`, `reduce-overhead`, `max-autotune`. f32 is without, tf32 with matrix units of
10 bits. Convolutions of tf32, f16 and bf16 are in the memory format channels_last, which cuDNN's matrix units prefer.
Medians of at least 3 measurements, after warming up for 0.3 s.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM_ROUNDS = 4
WARM_SECONDS = 0.3
LEAST_ROUNDS = 3
MOST_ROUNDS = 101
STREAK_SECONDS = 0.02
DTYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, with a projection where the shape changes."""

    def __init__(self, from_, to, stride, project):
        super().__init__()
        mid = to // 4
        self.body = nn.Sequential(
            nn.Conv2d(from_, mid, 1, stride),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, padding=1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, to, 1),
            nn.BatchNorm2d(to),
        )
        short = [nn.Conv2d(from_, to, 1, stride, bias=False), nn.BatchNorm2d(to)] if project else []
        self.short = nn.Sequential(*short)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, stages, classes):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        from_ = 64
        for stage, (blocks, channels) in enumerate(stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(from_, channels, stride, block == 0))
                from_ = channels
        self.features = nn.Sequential(*layers)
        self.scores = nn.Linear(from_, classes)

    def forward(self, x):
        return torch.softmax(self.scores(self.features(x).mean((2, 3))), -1)


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x):
        batch, steps, width = x.shape
        parts = self.qkv(x).view(batch, steps, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = self.norms[0](x + self.out(mixed.transpose(1, 2).reshape(batch, steps, width)))
        return self.norms[1](x + self.narrow(F.gelu(self.wide(x))))


class Encoder(nn.Module):
    def __init__(self, layers, words, width, heads, classes):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*[EncoderLayer(width, heads) for _ in range(layers)])
        self.scores = nn.Linear(width, classes)

    def forward(self, x):
        return torch.softmax(self.scores(self.layers(self.words(x)).mean(1)), -1)


def resnet(small):
    model = ResNet([(1, 64), (1, 128)], 10) if small else ResNet([(3, 256), (4, 512), (6, 1024), (3, 2048)], 1000)
    side = 32 if small else 224
    return model, lambda batch: torch.randn(batch, 3, side, side)


def encoder(small):
    words, steps = (100, 16) if small else (30522, 128)
    model = Encoder(2, words, 64, 4, 2) if small else Encoder(12, words, 768, 12, 2)
    return model, lambda batch: torch.randint(0, words, (batch, steps))


MODELS = {"resnet50": resnet, "bert-base": encoder}


class Clock:
    """Medians of contenders that are measured in turn."""

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, work):
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def medians(self, contenders):
        start, rounds = time.perf_counter(), 0
        while rounds < WARM_ROUNDS or time.perf_counter() - start < min(WARM_SECONDS, self.seconds):
            for work in contenders:
                self.time(work)
            rounds += 1
        times = [[] for _ in contenders]
        start = time.perf_counter()
        for round_ in range(MOST_ROUNDS):
            if round_ >= LEAST_ROUNDS and time.perf_counter() - start >= self.seconds:
                break
            for work, found in zip(contenders, times):
                found.append(self.time(work))
        return [statistics.median(found) for found in times]


def set_precision(precision):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def figure(name, value, unit):
    return {"name": name, "value": value, "unit": unit}


def measure_model(clock, name, precision, batch, mode, small):
    """Figures of a model, and a note."""
    device, dtype = clock.device, DTYPES[precision]
    set_precision(precision)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(1)
    model, sample = MODELS[name](small)
    model = model.eval().to(device, dtype)
    host = sample(batch)
    host = host.to(dtype) if host.is_floating_point() else host
    note = ""
    if name == "resnet50" and precision != "f32":
        model, host = model.to(memory_format=torch.channels_last), host.to(memory_format=torch.channels_last)
        note = "channels_last"
    host = host.pin_memory() if on_gpu else host
    if mode != "eager":
        torch._dynamo.reset()
        model = torch.compile(model, mode=mode)
    there = host.to(device)
    first = clock.time(lambda: model(there))
    result = model(there).cpu()
    result = result.pin_memory() if on_gpu else result
    once = clock.time(lambda: model(there))
    many = max(4, min(64, round(STREAK_SECONDS / once)))

    def served():
        result.copy_(model(host.to(device, non_blocking=True)), non_blocking=True)

    def repeat(work):
        for _ in range(many):
            work()

    latency, here, served_many, here_many = clock.medians(
        [served, lambda: model(there), lambda: repeat(served), lambda: repeat(lambda: model(there))]
    )
    if not torch.isfinite(result.float()).all():
        raise ValueError("results are not finite")
    figures = [
        figure("latency", latency * 1e3, "ms"),
        figure("latency_on_device", here * 1e3, "ms"),
        figure("throughput", batch * many / served_many, "samples/s"),
        figure("throughput_on_device", batch * many / here_many, "samples/s"),
        figure("first_run", first * 1e3, "ms"),
    ]
    if on_gpu:
        figures.append(figure("peak_memory", torch.cuda.max_memory_allocated(device) / 1e6, "MB"))
    return figures, note


def measure_product(clock, precision, n):
    """A square product, as torch.matmul computes it."""
    device, dtype = clock.device, DTYPES[precision]
    set_precision(precision)
    x, w = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    count = 10 if device.type == "cuda" else 1

    def run():
        for _ in range(count):
            torch.matmul(x, w, out=out)

    seconds = clock.medians([run])[0] / count
    return [figure("time", seconds * 1e6, "µs"), figure("rate", 2 * n**3 / seconds / 1e12, "TFLOP/s")], ""


def measure_attention(clock, precision, heads, queries, keys, depth):
    device, dtype = clock.device, DTYPES[precision]
    set_precision(precision)
    q = torch.randn(1, heads, queries, depth, device=device, dtype=dtype)
    k, v = (torch.randn(1, heads, keys, depth, device=device, dtype=dtype) for _ in range(2))
    count = 10 if device.type == "cuda" else 1

    def run():
        for _ in range(count):
            F.scaled_dot_product_attention(q, k, v)

    seconds = clock.medians([run])[0] / count
    moved = (k.nbytes + v.nbytes + 2 * q.nbytes) / seconds / 1e9
    rate = 4 * heads * queries * keys * depth / seconds / 1e12
    figures = [figure("time", seconds * 1e6, "µs"), figure("rate", rate, "TFLOP/s"), figure("bandwidth", moved, "GB/s")]
    return figures, ""


def cases(arguments):
    """Names and what measures them."""
    small, found = arguments.small, []
    sizes = [64] if small else [8192, 4096]
    for precision in arguments.precisions:
        for n in sizes:
            found.append((f"products: {precision} {n}³ x·w", lambda c, p=precision, n=n: measure_product(c, p, n)))
    shapes = [(2, 32, 32, 16)] if small else [(64, 2048, 2048, 128), (16, 8192, 8192, 64), (256, 1, 8192, 128)]
    for precision in arguments.precisions:
        for shape in shapes:
            heads, queries, keys, depth = shape
            name = f"attention: {precision} {heads} heads of {depth}, {queries} × {keys}"
            found.append((name, lambda c, p=precision, s=shape: measure_attention(c, p, *s)))
    for model in MODELS:
        for precision in arguments.precisions:
            for batch in arguments.batches:
                for mode in arguments.modes:
                    name = f"models: {model} {precision}, batch {batch}, {mode}"
                    work = lambda c, m=model, p=precision, b=batch, o=mode: measure_model(c, m, p, b, o, small)  # noqa: E731
                    found.append((name, work))
    wanted = arguments.only or [""]
    return [(name, work) for name, work in found if any(text in name for text in wanted)]


def run_case(clock, name, work):
    start = time.perf_counter()
    try:
        with torch.inference_mode():
            figures, note = work(clock)
        outcome = "passed"
    except Exception as error:  # A case that fails leaves the others alone.
        figures, outcome = [], "failed"
        note = " / ".join(f"{type(error).__name__}: {error}".splitlines()[:4])
    seconds = time.perf_counter() - start
    return {"event": "end", "case": name, "outcome": outcome, "note": note, "figures": figures, "seconds": seconds}


def show(end):
    mark = "" if end["outcome"] == "passed" else end["outcome"].upper() + " "
    print(f"{end['case']:48} {mark}{end['note']} ({end['seconds']:.1f} s)")
    for f in end["figures"]:
        print(f"    {f['name']:22} {f['value']:12.4g} {f['unit']}")
    sys.stdout.flush()


def main():
    listed = lambda text: text.split(",")  # noqa: E731
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--modes", type=listed, default=["eager", "default"])
    ap.add_argument("--precisions", type=listed, default=["bf16", "tf32", "f32"])
    ap.add_argument("--batches", type=lambda text: [int(n) for n in listed(text)], default=[1, 32])
    ap.add_argument("--only", nargs="*", metavar="TEXT", help="cases whose name contains one of these")
    ap.add_argument("--seconds", type=float, default=0.8, help="how long contenders are measured")
    ap.add_argument("--small", action="store_true", help="small sizes, to try the program")
    ap.add_argument("--jsonl", action="store_true", help="a line of JSON for each case")
    arguments = ap.parse_args()
    unknown = [p for p in arguments.precisions if p not in DTYPES]
    if unknown:
        ap.error(f"unknown precision {unknown[0]}; known: {', '.join(DTYPES)}")
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU; try --device cpu --small")
    if not arguments.jsonl:
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        print(f"torch {torch.__version__} on {where}")
    clock, failed = Clock(device, arguments.seconds), False
    for name, work in cases(arguments):
        end = run_case(clock, name, work)
        failed |= end["outcome"] == "failed"
        if arguments.jsonl:
            print(json.dumps(end, ensure_ascii=False), flush=True)
        else:
            show(end)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
