"""Arrays of strings as inputs and outputs."""

import numpy as np
import onnx_file as of
import pytest

import tensorc
from tensorc import errors

ML = "ai.onnx.ml"


def encoder():
    """Codes and names of colours, and the colours themselves."""
    nodes = [
        of.node("LabelEncoder", ["x"], ["code"], domain=ML, keys_strings=["red", "blue"], values_int64s=[1, 2]),
        of.node("LabelEncoder", ["x"], ["name"], domain=ML, keys_strings=["red"], values_strings=["rouge"]),
        of.node("Identity", ["x"], ["same"]),
    ]
    outputs = [
        of.value("code", of.INT64, ["n", 2]),
        of.value("name", of.STRING, ["n", 2]),
        of.value("same", of.STRING, ["n", 2]),
    ]
    return of.model(nodes, [of.value("x", of.STRING, ["n", 2])], outputs, domains=[(ML, 2)])


def normaliser():
    """Texts without stop words in upper case, and which they are."""
    nodes = [
        of.node("StringNormalizer", ["x"], ["y"], name="upper", case_change_action="UPPER", stopwords=["the"]),
        of.node("LabelEncoder", ["y"], ["code"], domain=ML, keys_strings=["CAT"], values_int64s=[7]),
    ]
    outputs = [of.value("y", of.STRING, ["m"]), of.value("code", of.INT64, ["m"])]
    return of.model(nodes, [of.value("x", of.STRING, ["n"])], outputs, domains=[(ML, 2)])


@pytest.fixture(scope="module")
def session():
    return tensorc.InferenceSession(encoder())


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (np.array([["red", "grün"], ["blue", ""]], dtype=object), [["red", "grün"], ["blue", ""]]),
        (np.array([["red", "blue"]]), [["red", "blue"]]),
        (np.array([["red", "blue"]], dtype="S"), [["red", "blue"]]),
        (np.array([["blue", "red"], ["x", "red"]]).T, [["blue", "x"], ["red", "red"]]),
        (np.array([[1, None], [float("nan"), True]], dtype=object), [["1", "None"], ["nan", "True"]]),
        ([["red", "blue"]], [["red", "blue"]]),
        ([["red", 1]], [["red", "1"]]),
        (np.zeros((0, 2), dtype=object), []),
    ],
)
def test_arrays_of_strings(session, given, same):
    code, name, found = session.run(None, {"x": given})
    assert found.dtype == name.dtype == object
    assert found.tolist() == same and found.shape == (len(same), 2)
    assert all(type(text) is str for text in found.ravel())
    flat = [text for row in same for text in row]
    assert code.dtype == np.int64 and code.ravel().tolist() == [{"red": 1, "blue": 2}.get(text, -1) for text in flat]
    assert name.ravel().tolist() == ["rouge" if text == "red" else "_Unused" for text in flat]


def test_signature(session):
    assert [(arg.name, arg.shape, arg.type) for arg in session.get_inputs()] == [("x", ["n", 2], "tensor(string)")]
    assert [arg.type for arg in session.get_outputs()] == ["tensor(int64)", "tensor(string)", "tensor(string)"]
    (name,) = session.run(["name"], {"x": np.array([["red", "q"]])})
    assert name.tolist() == [["rouge", "_Unused"]]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.zeros((1, 2), np.float32), r"Actual: \(tensor\(float\)\) , expected: \(tensor\(string\)\)"),
        (np.array([[1, 2]]), r"Actual: \(tensor\(int64\)\) , expected: \(tensor\(string\)\)"),
        (np.array([["a"]]), "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 1 Expected: 2"),
        (np.array(["a"]), "Invalid rank for input: x Got: 1 Expected: 2"),
    ],
)
def test_other_arrays(session, given, text):
    with pytest.raises(errors.InvalidArgument, match=text):
        session.run(None, {"x": given})


def test_operators_on_texts():
    session = tensorc.InferenceSession(normaliser())
    for _ in range(2):
        y, code = session.run(None, {"x": np.array(["the", "cat", "dög", "The"])})
        assert y.tolist() == ["CAT", "DÖG"] and code.tolist() == [7, -1]
    with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing"):
        session.run(None, {})
    wrong = of.model(
        [of.node("StringNormalizer", ["x"], ["y"], name="upper")],
        [of.value("x", of.STRING, ["n", 2])],
        [of.value("y", of.STRING, ["m", 2])],
    )
    with pytest.raises(errors.InvalidArgument, match="StringNormalizer of node `upper`") as raised:
        tensorc.InferenceSession(wrong).run(None, {"x": np.zeros((3, 2), dtype=object)})
    assert raised.value.node == "upper"


def vectorizer(op, key, **attributes):
    """A map to a row."""
    node = of.node(op, ["x"], ["y"], domain=ML, **attributes)
    return of.model([node], [of.map_value("x", key, of.FLOAT)], [of.value("y", of.FLOAT, None)], domains=[(ML, 1)])


def maps_of_rows(**labels):
    nodes = [of.node("ZipMap", ["x"], ["y"], domain=ML, **labels)]
    key = of.STRING if "classlabels_strings" in labels else of.INT64
    outputs = [of.maps_value("y", key, of.FLOAT)]
    return of.model(nodes, [of.value("x", of.FLOAT, ["n", 2])], outputs, domains=[(ML, 1)])


def test_maps():
    session = tensorc.InferenceSession(vectorizer("DictVectorizer", of.STRING, string_vocabulary=["c", "b", "a"]))
    assert session.get_inputs()[0].type == "map(string,tensor(float))"
    for _ in range(2):
        (y,) = session.run(None, {"x": {"a": 1.5, "z": 2.0, "c": 3}})
        assert y.dtype == np.float32 and y.tolist() == [[3.0, 0.0, 1.5]]
    for wrong in ({1: 1.0}, np.zeros(3, np.float32), {"a": "b"}):
        with pytest.raises(errors.InvalidArgument, match=r"Unexpected input data type. Input `x`: .*\(map\("):
            session.run(None, {"x": wrong})
    session = tensorc.InferenceSession(vectorizer("CastMap", of.INT64, map_form="SPARSE", max_map=4))
    assert session.run(None, {"x": {3: 1.5, 1: 2.5, 9: 4.0}})[0].tolist() == [[0.0, 2.5, 0.0, 1.5]]
    with pytest.raises(errors.InvalidArgument, match="CastMap .*the key -1 is negative"):
        session.run(None, {"x": {-1: 1.0}})


def test_maps_of_rows():
    x = np.array([[1, 2], [3, 4.5]], np.float32)
    (texts,) = tensorc.InferenceSession(maps_of_rows(classlabels_strings=["v", "u"])).run(None, {"x": x})
    assert texts == [{"v": 1.0, "u": 2.0}, {"v": 3.0, "u": 4.5}] and list(texts[0]) == ["u", "v"]
    session = tensorc.InferenceSession(maps_of_rows(classlabels_int64s=[5, 3]))
    assert session.run(None, {"x": x}) == [[{5: 1.0, 3: 2.0}, {5: 3.0, 3: 4.5}]]
    assert session.get_outputs()[0].type == "seq(map(int64,tensor(float)))"


def test_ort_values(session):
    given = tensorc.OrtValue.ortvalue_from_numpy(np.array([["red", "q"]], dtype=object))
    assert given.data_type() == "tensor(string)" and given.element_type() == 8
    results = session.run_with_ort_values(["same"], {"x": given})
    assert results[0].numpy().tolist() == [["red", "q"]]
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.array([["red", "q"]]))
    binding.bind_output("name")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [["rouge", "_Unused"]]


def test_the_same_as_onnx_runtime():
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    theirs = onnxruntime.InferenceSession(encoder(), providers=["CPUExecutionProvider"])
    ours = tensorc.InferenceSession(encoder())
    of_args = lambda args: [(arg.name, arg.shape, arg.type) for arg in args]
    assert of_args(theirs.get_inputs()) == of_args(ours.get_inputs())
    assert of_args(theirs.get_outputs()) == of_args(ours.get_outputs())
    for given in (
        np.array([["red", "grün"], [1.5, None]], dtype=object),
        np.array([["red", "blue"]]),
        np.array([["red", "blue"]], dtype="S"),
        [["blue", 2]],
    ):
        for expected, found in zip(theirs.run(None, {"x": given}), ours.run(None, {"x": given}), strict=True):
            assert expected.dtype == found.dtype and expected.tolist() == found.tolist()
    for model, given in (
        (vectorizer("DictVectorizer", of.STRING, string_vocabulary=["b", "a"]), {"a": 1.5, "z": 2.0}),
        (vectorizer("CastMap", of.INT64, cast_to="TO_FLOAT"), {3: 1.5, 1: 2.5}),
        (maps_of_rows(classlabels_strings=["v", "u"]), np.array([[1, 2], [3, 4.5]], np.float32)),
    ):
        theirs_, ours_ = onnxruntime.InferenceSession(model), tensorc.InferenceSession(model)
        assert [arg.type for arg in theirs_.get_inputs()] == [arg.type for arg in ours_.get_inputs()]
        (expected,), (found,) = theirs_.run(None, {"x": given}), ours_.run(None, {"x": given})
        assert expected == found if isinstance(expected, list) else expected.tolist() == found.tolist()
    for wrong in ({"x": np.zeros((1, 2), np.float32)}, {"x": np.array([["a"]])}, {"x": np.array(["a"])}):
        with pytest.raises(Exception) as expected:
            theirs.run(None, wrong)
        with pytest.raises(tensorc.Error) as found:
            ours.run(None, wrong)
        assert type(found.value).__name__ == type(expected.value).__name__
        assert str(found.value).startswith(str(expected.value)[:70])
