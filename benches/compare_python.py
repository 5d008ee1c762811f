"""compare_python.py [--rounds N]: how long `import tensorc` takes besides numpy, and what a call of a tiny model costs from Python,
beside ONNX Runtime if that is installed. Both sides are in one process and take turns; the smallest times count.

Needs the package tensorc and numpy, and the tests of the package beside the sources for a model."""

import argparse
import pathlib
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python" / "tests"))
import onnx_file  # noqa: E402

CALLS = 20_000


def import_seconds(package):
    code = f"import time, numpy; begin = time.perf_counter(); import {package}; print(time.perf_counter() - begin)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def call_seconds(session, feeds):
    begin = time.perf_counter()
    for _ in range(CALLS):
        session.run(None, feeds)
    return (time.perf_counter() - begin) / CALLS


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = range(arguments.parse_args().rounds)
    import tensorc

    packages = {"tensorc": tensorc}
    try:
        import onnxruntime

        packages["onnxruntime"] = onnxruntime
    except ImportError:
        print("onnxruntime is not installed")
    for name in packages:
        print(f"import {name}: {min(import_seconds(name) for _ in rounds):.3f} s besides numpy")
    model, feeds = onnx_file.unary(), {"x": np.ones((1, 3), np.float32)}
    sessions = {
        name: package.InferenceSession(model, providers=["CPUExecutionProvider"]) for name, package in packages.items()
    }
    smallest = dict.fromkeys(sessions, float("inf"))
    for _ in rounds:
        for name, session in sessions.items():
            smallest[name] = min(smallest[name], call_seconds(session, feeds))
    for name, seconds in smallest.items():
        print(f"a call of Relu on 3 elements, {name} {packages[name].__version__}: {seconds * 1e6:.2f} µs")


if __name__ == "__main__":
    main()
