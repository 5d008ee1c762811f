"""Initializers of a model with other values: by options of the session, and given in a run."""

import numpy as np
import onnx_file as of
import pytest

import tensorc

errors = tensorc.errors


def affine(weight_is_input=False):
    """y = x * w + b, where w may be given."""
    weights = [of.tensor(np.array([2, 3], np.float32), "w"), of.tensor(np.array([1, 1], np.float32), "b")]
    nodes = [of.node("Mul", ["x", "w"], ["p"], "mul"), of.node("Add", ["p", "b"], ["y"], "add")]
    inputs = [of.value("x", of.FLOAT, ["n", 2])]
    if weight_is_input:
        inputs.append(of.value("w", of.FLOAT, [2]))
    return of.model(nodes, inputs, [of.value("y", of.FLOAT, ["n", 2])], weights)


def options(**arrays):
    made = tensorc.SessionOptions()
    for name, array in arrays.items():
        made.add_initializer(name, tensorc.OrtValue.ortvalue_from_numpy(array))
    return made


X = np.ones((1, 2), np.float32)


def test_options_replace_initializers(tmp_path):
    path = tmp_path / "affine.onnx"
    path.write_bytes(affine())
    other = options(w=np.array([10, 20], np.float32), of_another_model=np.zeros(3, np.float32))
    for model in (affine(), path):
        session = tensorc.InferenceSession(model, other)
        assert session.run(None, {"x": X})[0].tolist() == [[11, 21]]
        assert tensorc.InferenceSession(model).run(None, {"x": X})[0].tolist() == [[3, 4]]
    several = tensorc.SessionOptions()
    values = [tensorc.OrtValue.ortvalue_from_numpy(np.array(v, np.float32)) for v in ([0, 0], [7, 8])]
    several.add_external_initializers(["w", "b"], values)
    assert tensorc.InferenceSession(affine(), several).run(None, {"x": X})[0].tolist() == [[7, 8]]


def test_initializers_that_do_not_fit():
    for array in (np.zeros(3, np.float32), np.zeros(2, np.float64)):
        with pytest.raises(errors.Error, match="initializer `w`: it is f32\\[2\\], f.*cannot take its place"):
            tensorc.InferenceSession(affine(), options(w=array))
    twice = options(w=X[0])
    with pytest.raises(RuntimeError, match="`w` was added already"):
        twice.add_initializer("w", tensorc.OrtValue.ortvalue_from_numpy(X[0]))
    with pytest.raises(RuntimeError, match="2 names and 0 values"):
        twice.add_external_initializers(["a", "b"], [])


def test_runs_give_other_values():
    session = tensorc.InferenceSession(affine(weight_is_input=True))
    assert [given.name for given in session.get_inputs()] == ["x"]
    assert session.run(None, {"x": X})[0].tolist() == [[3, 4]]
    for w in ([5, 6], [7, 8]):
        assert session.run(None, {"x": X, "w": np.array(w, np.float32)})[0].tolist() == [[w[0] + 1, w[1] + 1]]
    assert session.run(None, {"x": X})[0].tolist() == [[3, 4]]
    with pytest.raises(errors.InvalidArgument, match="Got invalid dimensions for input: w"):
        session.run(None, {"x": X, "w": np.zeros(3, np.float32)})
    with pytest.raises(errors.InvalidArgument, match="Actual: \\(tensor\\(double\\)\\)"):
        session.run(None, {"x": X, "w": np.zeros(2)})
    # An initializer that is no input cannot be given.
    with pytest.raises(errors.InvalidArgument, match="Invalid input name: b"):
        session.run(None, {"x": X, "b": X[0]})


def test_the_same_as_onnx_runtime():
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    found = []
    for package in (tensorc, onnxruntime):
        given = package.SessionOptions()
        # ONNX Runtime does not keep it.
        value = package.OrtValue.ortvalue_from_numpy(np.array([4, 5], np.float32))
        given.add_initializer("b", value)
        session = package.InferenceSession(affine(weight_is_input=True), given, providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": X, "w": np.array([1, 2], np.float32)})[0].tolist())
    assert found[0] == found[1] == [[5, 7]]
