"""Ctrl-C ends a run, and the lock of the interpreter is free meanwhile."""

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import onnx_file as of
import pytest

import tensorc


def products(count):
    """A chain of matrix products."""
    names = ["x"] + [f"v{i}" for i in range(count - 1)] + ["y"]
    nodes = [of.node("MatMul", [names[i], "x"], [names[i + 1]], f"product{i}") for i in range(count)]
    return of.model(nodes, [of.value("x", of.FLOAT, ["n", "n"])], [of.value("y", of.FLOAT, ["n", "n"])])


def test_other_threads_run_meanwhile():
    session = tensorc.InferenceSession(products(12))
    x = np.zeros((1024, 1024), np.float32)
    session.run(None, {"x": x})
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.perf_counter()
    session.run(None, {"x": x})
    seconds, during = time.perf_counter() - begin, counted[0]
    done.set()
    thread.join()
    assert during > 20 * min(seconds, 1)


def test_keyboard_interrupt_ends_a_run():
    script = """
        import os, signal, sys, threading, time
        import numpy as np
        sys.path.insert(0, TESTS)
        import tensorc
        from test_signals import products
        # Whoever starts the tests may ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session = tensorc.InferenceSession(products(100))
        small = np.eye(4, dtype=np.float32)
        session.run(None, {"x": small})
        large = np.zeros((3000, 3000), np.float32)
        begin = time.perf_counter()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            session.run(None, {"x": large})
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", time.perf_counter() - begin)
        print((session.run(None, {"x": small})[0] == small).all())
    """
    code = textwrap.dedent(script).replace("TESTS", repr(str(__file__).rpartition("/")[0]))
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith("interrupted") and float(first.split()[1]) < 5, run.stdout
    assert second == "True"


def test_terminate_ends_a_run():
    session = tensorc.InferenceSession(products(100))
    small = np.eye(4, dtype=np.float32)
    session.run(None, {"x": small})
    options, large = tensorc.RunOptions(), np.zeros((3000, 3000), np.float32)
    begin = time.perf_counter()

    def terminate():
        options.terminate = True

    threading.Timer(0.5, terminate).start()
    with pytest.raises(tensorc.errors.Fail, match="Exiting due to terminate flag being set to true"):
        session.run(None, {"x": large}, options)
    assert time.perf_counter() - begin < 5
    # Other runs go on, and the options serve again once the flag is taken back.
    assert (session.run(None, {"x": small})[0] == small).all()
    with pytest.raises(tensorc.errors.Fail):
        session.run(None, {"x": small}, options)
    options.terminate = False
    assert (session.run(None, {"x": small}, options)[0] == small).all()
