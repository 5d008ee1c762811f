"""Images per second from files of records: tensorc against MXNet's ImageRecordIter and torchvision, interleaved.

  python compare_data.py IMAGES --loader target/release/examples/bench_loader --tensorc target/release/tensorc
         [--mxnet PYTHON] [--torch PYTHON] [--rounds 3] [--work DIR]

IMAGES is a folder of JPEG files (500x375 pixels, quality 90, for the figures of README.md). PYTHON are interpreters with
mxnet==1.9.1 and numpy==1.23.5, and with torch and torchvision. Peers use one thread each. Two pipelines:
  crop    random resized crop to 224x224, mirrored at random, normalised, f32, channels first
  bytes   images stored at 256x256 and quality 95, random crop to 224x224, mirrored at random, u8 (torchvision: f32 is left out)
Prints images per second (the best round) and ratios.
"""
import argparse, os, re, subprocess, sys, tempfile

MXNET = r'''
import sys, time
import numpy as np
for n, t in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if n not in np.__dict__: setattr(np, n, t)
import mxnet as mx
rec, kind = sys.argv[1:3]
common = dict(path_imgrec=rec, path_imgidx=rec[:-3] + "idx", data_shape=(3, 224, 224), batch_size=53, preprocess_threads=1,
              shuffle=True, seed=1, rand_mirror=True, verbose=False)
crop = dict(random_resized_crop=True, min_random_area=0.08, max_random_area=1.0, min_aspect_ratio=0.75, max_aspect_ratio=1.3333,
            mean_r=123.68, mean_g=116.78, mean_b=103.94, std_r=58.4, std_g=57.1, std_b=57.4)
make = mx.io.ImageRecordIter if kind == "crop" else mx.io.ImageRecordUInt8Iter
it = make(**common, **(crop if kind == "crop" else dict(rand_crop=True)))
best, start = 0, time.time()
while time.time() - start < 4:
    it.reset()
    n, t = 0, time.time()
    for b in it:
        b.data[0].wait_to_read()
        n += b.data[0].shape[0] - b.pad
    best = max(best, n / (time.time() - t))
print(best)
'''
TORCH = r'''
import glob, sys, time
import torch, torchvision
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2
torch.set_num_threads(1)
folder, kind = sys.argv[1:3]
files = [torch.frombuffer(bytearray(open(f, "rb").read()), dtype=torch.uint8) for f in sorted(glob.glob(folder + "/*.jpg"))]
crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([.485, .456, .406], [.229, .224, .225])]
f = v2.Compose(crop if kind == "crop" else [v2.RandomCrop(224), v2.RandomHorizontalFlip()])
best, start = 0, time.time()
while time.time() - start < 4:
    t = time.time()
    for b in files: f(decode_jpeg(b, mode=ImageReadMode.RGB))
    best = max(best, len(files) / (time.time() - t))
print(best)
'''


def output(*command):
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("images")
    ap.add_argument("--loader", required=True)
    ap.add_argument("--tensorc", required=True)
    ap.add_argument("--mxnet")
    ap.add_argument("--torch")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--work", default=None)
    a = ap.parse_args()
    work = a.work or tempfile.mkdtemp()
    # The same images six times over, so that an epoch lasts.
    big = os.path.join(work, "big")
    os.makedirs(big, exist_ok=True)
    for copy in range(6):
        link = os.path.join(big, str(copy))
        if not os.path.exists(link):
            os.makedirs(link)
            for name in os.listdir(a.images):
                os.link(os.path.join(a.images, name), os.path.join(link, name))
    small = os.path.join(work, "small")
    for prefix, options in (("crop", ["--pass-through"]), ("bytes", ["--center-crop", "--resize", "256"])):
        path = os.path.join(work, prefix)
        output(a.tensorc, "im2rec", path, big, "--list", "--recursive")
        output(a.tensorc, "im2rec", path, big, *options)
    if a.torch and not os.path.exists(small):
        os.makedirs(small)
        for i in range(len(os.listdir(a.images))):
            output(a.tensorc, "records", os.path.join(work, "bytes.rec"), "--extract", i, "-o", os.path.join(small, f"{i:04}.jpg"))
    best = {}

    def take(name, kind, value):
        best[name, kind] = max(best.get((name, kind), 0), value)

    for _ in range(a.rounds):
        for kind in ("crop", "bytes"):
            rec = os.path.join(work, kind + ".rec")
            for threads in (1, 2):
                text = output(a.loader, rec, kind, threads)
                take(f"tensorc, {threads} thread(s)", kind, float(re.search(r"([\d.]+) images/s", text)[1]))
            if a.mxnet:
                take("MXNet 1.9.1", kind, float(output(a.mxnet, "-c", MXNET, rec, kind).split()[-1]))
            if a.torch:
                take("torchvision", kind, float(output(a.torch, "-c", TORCH, a.images if kind == "crop" else small, kind)))
    print("| | crop, images/s | bytes, images/s |\n|---|---|---|")
    for name in dict.fromkeys(n for n, _ in best):
        print(f"| {name} | {best[name, 'crop']:.0f} | {best[name, 'bytes']:.0f} |")
    one = "tensorc, 1 thread(s)"
    for name in ("tensorc, 2 thread(s)", "MXNet 1.9.1", "torchvision"):
        if (name, "crop") in best:
            ratios = [best[one, k] / best[name, k] if name != "tensorc, 2 thread(s)" else best[name, k] / best[one, k] for k in ("crop", "bytes")]
            print(f"| ratio with {name} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
