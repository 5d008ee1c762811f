#!/usr/bin/env python3
"""Forests, tensorc against ONNX Runtime: smallest times of some rounds in turns.

    python compare_trees.py TENSORC [--models FOLDER] [--trees 500] [--rows 10000,100,1] [--threads 1,2] [--rounds 3]

Needs numpy, onnx, onnxruntime, scikit-learn, skl2onnx, lightgbm, xgboost and onnxmltools. Models of 30 features are trained on 20,000
rows and kept in the folder: LightGBM with 255 leaves, random forests and XGBoost of depth 8. Prints a row for each model, number of
rows and number of threads, as Markdown: times in ms, their ratio (below 1 tensorc is faster), and the largest difference of scores.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

FEATURES = 30


def trained(trees):
    """Names and functions that train: the imports take longer than most measurements."""
    from lightgbm import LGBMClassifier
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx import to_onnx
    from sklearn.base import is_classifier
    from sklearn.datasets import make_classification, make_regression
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from xgboost import XGBClassifier

    def classes(count):
        x, y = make_classification(20000, FEATURES, n_informative=15, n_classes=count, random_state=1)
        return x.astype(np.float32), y

    inputs = [("X", FloatTensorType([None, FEATURES]))]
    forest = dict(n_estimators=trees, max_depth=8, random_state=0)
    leaves = dict(num_leaves=255, verbose=-1)
    x, y = make_regression(20000, FEATURES, random_state=2)
    first = classes(2)[0][:1]
    skl = lambda model, data: to_onnx(model.fit(*data), first, options={"zipmap": False} if is_classifier(model) else None)
    lightgbm = lambda count, classes_: convert_lightgbm(
        LGBMClassifier(n_estimators=count, **leaves).fit(*classes(classes_)), initial_types=inputs, zipmap=False)
    return {
        "LightGBM, 2 classes": lambda: lightgbm(trees, 2),
        "LightGBM, 4 classes": lambda: lightgbm(trees // 4, 4),
        "random forest, 2 classes": lambda: skl(RandomForestClassifier(**forest), classes(2)),
        "random forest, 4 classes": lambda: skl(RandomForestClassifier(**forest), classes(4)),
        "random forest, regression": lambda: skl(RandomForestRegressor(**forest), (x.astype(np.float32), y)),
        "XGBoost, 2 classes": lambda: convert_xgboost(
            XGBClassifier(n_estimators=trees, max_depth=8).fit(*classes(2)), initial_types=inputs),
    }


def model(folder, name, train):
    path = folder / f"{name.replace(', ', ' ')}.onnx"
    if not path.exists():
        onnx.save(train(), path)
    return path


def compared(tensorc, path, rows, threads, rounds, folder):
    """Smallest times of both in ms, and the largest difference of the last results."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).standard_normal((rows, FEATURES), dtype=np.float32)
    inputs, ours, theirs = {session.get_inputs()[0].name: x}, [], []
    np.savez(folder / "in.npz", **inputs)
    last = session.get_outputs()[-1].name
    session.run(None, inputs)
    for _ in range(rounds):
        for _ in range(5 if rows > 1000 else 100):
            start = time.perf_counter()
            expected = session.run([last], inputs)[0]
            theirs.append(time.perf_counter() - start)
        # The threads of a session wait in loops for a while.
        time.sleep(0.5)
        command = [tensorc, "bench", path, "--input", folder / "in.npz", "--threads", threads, "--json", "--repeat",
                   10 if rows > 1000 else 200, "--output", folder / "out.npz"]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        ours.append(json.loads(run.stdout.strip().splitlines()[-1])["min_ms"])
    got = np.load(folder / "out.npz")[last]
    return min(ours), min(theirs) * 1e3, np.abs(got - expected).max()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tensorc")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--rows", default="10000,100,1")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print("| model | rows | threads | tensorc | ONNX Runtime | ratio | difference |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.models or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, train in trained(arguments.trees).items():
            if arguments.only not in name:
                continue
            path = model(folder, name, train)
            for rows in map(int, arguments.rows.split(",")):
                for threads in map(int, arguments.threads.split(",")):
                    ours, theirs, difference = compared(arguments.tensorc, path, rows, threads, arguments.rounds, Path(scratch))
                    figures = f"{ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} | {difference:.0e}"
                    print(f"| {name} | {rows} | {threads} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
