"""Models as functions, their needs, and models ahead of time."""

import pathlib
import shutil
import subprocess

import numpy as np
import onnx_file as of
import pytest

import tensorc

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"


def test_a_model_is_a_function():
    nodes = [of.node("Sub", ["a", "b"], ["y"])]
    model = of.model(
        nodes, [of.value("a", of.FLOAT, ["n"]), of.value("b", of.FLOAT, ["n"])], [of.value("y", of.FLOAT, ["n"])]
    )
    subtract = tensorc.compile(model)
    a, b = np.array([3, 4], np.float32), np.array([1, 1], np.float32)
    assert subtract(a, b).tolist() == subtract(a, b=b).tolist() == subtract(b=b, a=a).tolist() == [2, 3]
    with pytest.raises(TypeError, match="a, b"):
        subtract(a, b, a)
    with pytest.raises(TypeError, match="`a`"):
        subtract(a, a=b)
    with pytest.raises(ValueError, match="'b'"):
        subtract(a)
    assert "a: tensor(float)" in repr(subtract)


def test_products_of_bf16():
    with pytest.raises(ValueError, match="f32"):
        tensorc.compile(DIGITS, precision="f16")
    options = tensorc.SessionOptions()
    options.add_session_config_entry("tensorc.precision", "bf16")
    image = np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    _, exact = tensorc.compile(DIGITS)(image)
    try:
        _, rounded = tensorc.compile(DIGITS, precision="bf16")(image)
    except Exception as error:
        assert "AVX-512 BF16" in str(error)
        return
    assert np.abs(rounded - exact).max() < 0.05 and not np.array_equal(rounded, exact)
    _, again = tensorc.InferenceSession(DIGITS, options).run(None, {"image": image})
    assert np.array_equal(again, rounded)


def test_several_outputs_are_a_tuple():
    digit, probabilities = tensorc.compile(DIGITS)(np.zeros((2, 1, 8, 8), np.float32))
    assert digit.shape == (2,) and probabilities.shape == (2, 10)


def test_objects_of_the_package_onnx():
    class Proto:
        def SerializeToString(self):
            return of.unary("Neg", shape=[2])

    assert tensorc.compile(Proto())(np.ones(2, np.float32)).tolist() == [-1, -1]


def test_text_and_symbols(tmp_path):
    path = tmp_path / "model.tc"
    path.write_text("graph @m(%x: f32[?n]) {\n  %y = neg(%x)\n  return %y\n}\n")
    net = tensorc.compile(path, threads=1)
    assert [(stated.name, stated.shape, stated.type) for stated in net.inputs] == [("x", [None], "tensor(float)")]
    assert net(np.array([1, -2], np.float32)).tolist() == [-1, 2]
    symbol = tmp_path / "net-symbol.json"
    tensorc.sym.relu(tensorc.sym.var("data") * 2).save(symbol)
    assert tensorc.compile(symbol)(np.array([1, -2], np.float32)).tolist() == [2, 0]


def test_inspection():
    found = tensorc.inspect(DIGITS, {"batch": 4})
    assert found.parameters == 47531 and found.operators["conv"] == 3 and found.flops > 1e6
    assert "47531 in 11 constants" in str(found)
    assert found.svg.startswith("<svg") and found.svg in found._repr_html_()
    assert tensorc.compile(DIGITS)._repr_html_().count("<svg") == 1
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing  # noqa: B018
    with pytest.raises(tensorc.Error):
        tensorc.inspect(DIGITS, {"no_such_dimension": 4})


def test_report(tmp_path):
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for page in pages:
        tensorc.report(DIGITS, page, {"batch": 2}, measure=False)
    assert pages[0].read_bytes() == pages[1].read_bytes()
    tensorc.compile(DIGITS).report(pages[0])
    assert '<svg id="canvas"' in pages[0].read_text()
    with pytest.raises(tensorc.Error):
        tensorc.report(DIGITS, tmp_path / "no" / "such.html", measure=False)


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")
def test_ahead_of_time(tmp_path):
    out = tmp_path / "digits"
    written = tensorc.aot(DIGITS, out, emit=["obj", "exe"], shapes={"batch": range(1, 5)})
    names = {pathlib.Path(path).name for path in written}
    assert names == {"digits.h", "digits.json", "digits.weights", "digits.o", "digits"}
    np.save(tmp_path / "image.npy", np.zeros((1, 1, 8, 8), np.float32))
    command = [str(out), "--weights", str(tmp_path / "digits.weights"), str(tmp_path / "image.npy")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "probabilities" in run.stdout


def test_ahead_of_time_for_other_processors(tmp_path):
    written = tensorc.aot(
        DIGITS, tmp_path / "m.o", emit="obj", shapes={"batch": 1}, target="x86_64", embed_weights=True, name="net"
    )
    header = pathlib.Path(written[0]).read_text()
    assert "net_run" in header and not any(path.endswith(".weights") for path in written)
    with pytest.raises(ValueError, match="`wasm`.*obj"):
        tensorc.aot(DIGITS, tmp_path / "m", emit="wasm")
    with pytest.raises(ValueError, match="target"):
        tensorc.aot(DIGITS, tmp_path / "m", target="pdp11")


def test_arrays_of_other_libraries():
    class Lent:
        """An array that is reached by DLPack alone."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    negate = tensorc.compile(of.unary("Neg", shape=["n"]))
    assert negate(Lent(np.arange(3, dtype=np.float32))).tolist() == [0, -1, -2]
    assert negate(tensorc.nd.array([1, 2])).tolist() == [-1, -2]
