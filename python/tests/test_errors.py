"""What is wrong with models and inputs is an exception that says so."""

import numpy as np
import onnx_file as of
import pytest

import tensorc
from tensorc import errors


@pytest.fixture(scope="module")
def session():
    return tensorc.InferenceSession(of.unary())


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("feeds", "kind", "text"),
    [
        ({}, ValueError, r"Required inputs \(\['x'\]\) are missing from input feed \(\[\]\)\."),
        ({"z": X}, ValueError, r"Required inputs \(\['x'\]\) are missing from input feed \(\['z'\]\)\."),
        ({"x": None}, ValueError, "Required inputs"),
        ({"x": X, "z": X}, errors.InvalidArgument, "INVALID_ARGUMENT : Invalid input name: z"),
        (
            {"x": X.astype(np.float64)},
            errors.InvalidArgument,
            r"Unexpected input data type. Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)",
        ),
        (
            {"x": X[:, :2]},
            errors.InvalidArgument,
            "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 2 Expected: 3",
        ),
        ({"x": X[0]}, errors.InvalidArgument, "Invalid rank for input: x Got: 1 Expected: 2"),
        (
            {"x": np.array([["a", "b", "c"]])},
            errors.InvalidArgument,
            r"Unexpected input data type. Actual: \(tensor\(string\)\) , expected: \(tensor\(float\)\)",
        ),
        ({"x": np.array([["a", 1, None]], dtype=object)}, errors.InvalidArgument, r"Actual: \(tensor\(string\)\)"),
        ({"x": X.astype(np.complex64)}, errors.InvalidArgument, "`x`: an array of complex64"),
        ([X], AttributeError, "items"),
    ],
)
def test_inputs(session, feeds, kind, text):
    with pytest.raises(kind, match=text):
        session.run(None, feeds)


def test_outputs(session):
    with pytest.raises(errors.InvalidArgument, match="Invalid output name:q"):
        session.run(["q"], {"x": X})
    with pytest.raises(TypeError, match="list"):
        session.run("y", {"x": X})


def test_files(tmp_path):
    with pytest.raises(errors.NoSuchFile, match="NO_SUCHFILE.*/nonexistent.onnx"):
        tensorc.InferenceSession("/nonexistent.onnx")
    with pytest.raises(errors.Fail, match="not a regular file"):
        tensorc.InferenceSession(tmp_path)
    for damaged in (b"", b"abc", of.unary()[:-5]):
        with pytest.raises(errors.InvalidProtobuf):
            tensorc.InferenceSession(damaged)
    with pytest.raises(TypeError, match="Unable to load from type"):
        tensorc.InferenceSession(3)


def test_unknown_operators_are_named():
    with pytest.raises(errors.NotImplemented, match="Nope.*`broken`"):
        tensorc.InferenceSession(of.unary("Nope", name="broken"))


def test_arithmetic_on_texts_is_refused():
    nodes = [of.node("Neg", ["x"], ["y"])]
    ends = [of.value("x", of.STRING, ["n"])], [of.value("y", of.STRING, ["n"])]
    with pytest.raises(errors.NotImplemented, match="Neg"):
        tensorc.InferenceSession(of.model(nodes, *ends, opset=20))


def test_contradictions_name_the_node():
    nodes = [of.node("MatMul", ["x", "x"], ["y"], "product")]
    ends = [of.value("x", of.FLOAT, [2, 3])], [of.value("y", of.FLOAT, [2, 3])]
    with pytest.raises(errors.Error, match="product") as raised:
        tensorc.InferenceSession(of.model(nodes, *ends))
    assert raised.value.node == "product"


def test_values_out_of_range_name_the_node():
    nodes = [of.node("Gather", ["x", "i"], ["y"], "look_up")]
    inputs = [of.value("x", of.FLOAT, [3]), of.value("i", of.INT64, [1])]
    session = tensorc.InferenceSession(of.model(nodes, inputs, [of.value("y", of.FLOAT, [1])]))
    with pytest.raises(errors.InvalidArgument, match="look_up.*7") as raised:
        session.run(None, {"x": np.zeros(3, np.float32), "i": np.array([7])})
    assert raised.value.node == "look_up"
    assert session.run(None, {"x": np.zeros(3, np.float32), "i": np.array([-1])})[0] == 0


def test_what_is_not_there_is_named(session):
    with pytest.raises(NotImplementedError, match="end_profiling"):
        session.end_profiling()
    for name, value in (("enable_profiling", True), ("optimized_model_filepath", "out.onnx")):
        options = tensorc.SessionOptions()
        setattr(options, name, value)
        with pytest.raises(NotImplementedError, match=name):
            tensorc.InferenceSession(of.unary(), options)
    with pytest.raises(NotImplementedError, match="register_custom_ops_library"):
        tensorc.SessionOptions().register_custom_ops_library("lib.so")
    with pytest.raises(AttributeError, match="no attribute 'gluon'"):
        tensorc.gluon  # noqa: B018
