"""tensorc under the name of ONNX Runtime, and beside it."""

import subprocess
import sys
import textwrap

import numpy as np
import onnx_file as of
import pytest

import tensorc


def run(script):
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_other_packages_import_it():
    script = """
        import tensorc
        tensorc.install_as_onnxruntime()
        tensorc.install_as_onnxruntime()
        import onnxruntime as ort
        from onnxruntime import InferenceSession, SessionOptions, GraphOptimizationLevel, get_available_providers
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, Fail, NoSuchFile
        from onnxruntime.capi._pybind_state import RunOptions
        from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
        import onnxruntime.capi.onnxruntime_pybind11_state as state
        assert ort.InferenceSession is tensorc.InferenceSession
        assert tuple(int(part) for part in ort.__version__.split(".")) >= (1, 20)
        try:
            InferenceSession("/nonexistent.onnx", SessionOptions(), providers=get_available_providers())
        except state.NoSuchFile:
            print("ok")
    """
    assert run(script) == ["ok"]


def test_not_after_the_other_package():
    script = """
        import sys, types
        sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
        import tensorc
        try:
            tensorc.install_as_onnxruntime()
        except RuntimeError as error:
            print("refused" if "already" in str(error) else error)
    """
    assert run(script) == ["refused"]


def test_the_same_results_and_names():
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    rng = np.random.default_rng(0)
    weights = [
        of.tensor(rng.standard_normal((6, 8)).astype(np.float32), "w"),
        of.tensor(rng.standard_normal(8).astype(np.float32), "b"),
    ]
    nodes = [
        of.node("MatMul", ["x", "w"], ["p"]),
        of.node("Add", ["p", "b"], ["s"]),
        of.node("Softmax", ["s"], ["y"], axis=-1),
        of.node("ArgMax", ["y"], ["k"], axis=1, keepdims=0),
    ]
    model = of.model(
        nodes,
        [of.value("x", of.FLOAT, ["n", 6])],
        [of.value("y", of.FLOAT, ["n", 8]), of.value("k", of.INT64, ["n"])],
        weights,
    )
    theirs, ours = (
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]),
        tensorc.InferenceSession(model),
    )
    x = rng.standard_normal((5, 6)).astype(np.float32)
    for expected, found in zip(theirs.run(None, {"x": x}), ours.run(None, {"x": x}), strict=True):
        assert expected.dtype == found.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    of_args = lambda args: [(arg.name, arg.shape, arg.type) for arg in args]
    assert of_args(theirs.get_inputs()) == of_args(ours.get_inputs())
    assert of_args(theirs.get_outputs()) == of_args(ours.get_outputs())
    for wrong in ({"x": x.astype(np.float64)}, {"x": x[0]}, {"x": x[:, :3]}):
        with pytest.raises(Exception) as expected:
            theirs.run(None, wrong)
        with pytest.raises(tensorc.Error) as found:
            ours.run(None, wrong)
        assert type(found.value).__name__ == type(expected.value).__name__
        assert str(found.value).startswith(str(expected.value)[:70])


def test_the_import_is_fast():
    script = (
        "import time; import numpy; begin = time.perf_counter(); import tensorc; print(time.perf_counter() - begin)"
    )
    assert min(float(run(script)[0]) for _ in range(3)) < 0.15
