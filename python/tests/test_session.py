"""Models with ONNX Runtime's interface."""

import gc
import pathlib
import pickle
import threading

import numpy as np
import onnx_file as of
import pytest

import tensorc


def test_runs_by_name_and_returns_arrays():
    session = tensorc.InferenceSession(of.unary())
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert y.dtype == np.float32 and y.flags.writeable and y.flags.c_contiguous
    (same,) = session.run(["y"], {"x": x[:1]})
    assert same.shape == (1, 3)


def test_outputs_are_picked_in_the_order_asked_for():
    nodes = [of.node("Relu", ["x"], ["a"]), of.node("Neg", ["x"], ["b"])]
    inputs, outputs = [of.value("x", of.FLOAT, [2])], [of.value("a", of.FLOAT, [2]), of.value("b", of.FLOAT, [2])]
    session = tensorc.InferenceSession(of.model(nodes, inputs, outputs))
    x = np.array([1, -2], np.float32)
    b, a = session.run(["b", "a"], {"x": x})
    np.testing.assert_array_equal(b, -x)
    np.testing.assert_array_equal(a, [1, 0])
    assert [array.tolist() for array in session.run(["b"], {"x": x})] == [[-1, 2]]


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float32", of.FLOAT),
        ("float64", of.DOUBLE),
        ("float16", of.FLOAT16),
        ("int32", of.INT32),
        ("int64", of.INT64),
        ("int8", of.INT8),
    ],
)
def test_element_types(dtype, element):
    session = tensorc.InferenceSession(of.unary("Neg", element, [4]))
    x = np.array([1, -2, 3, 0], dtype)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, -x)


def test_truth_values():
    session = tensorc.InferenceSession(of.unary("Not", of.BOOL, [3]))
    assert session.run(None, {"x": np.array([True, False, True])})[0].tolist() == [False, True, False]


def test_bfloat16_is_ml_dtypes_or_its_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    session = tensorc.InferenceSession(of.unary("Neg", of.BFLOAT16, [2]))
    (y,) = session.run(None, {"x": np.array([1.5, -2], ml_dtypes.bfloat16)})
    assert y.dtype == ml_dtypes.bfloat16 and y.astype(np.float32).tolist() == [-1.5, 2]


@pytest.mark.parametrize(
    ("element", "codes"),
    [(17, np.array([0x38, 0xC0], np.uint8)), (22, np.array([-8, 7], np.int8)), (25, np.array([0, 3], np.uint8))],
)
def test_narrow_types_are_ml_dtypes_or_bytes(element, codes):
    session = tensorc.InferenceSession(of.unary("Identity", element, [2]))
    (y,) = session.run(None, {"x": codes})
    assert y.dtype.itemsize == 1 and y.astype(np.float32).shape == (2,)
    assert session.get_inputs()[0].type == {17: "tensor(float8e4m3fn)", 22: "tensor(int4)", 25: "tensor(uint2)"}[element]
    try:
        import ml_dtypes
    except ImportError:
        np.testing.assert_array_equal(y, codes)
        return
    name = {17: "float8_e4m3fn", 22: "int4", 25: "uint2"}[element]
    narrow = codes.view(getattr(ml_dtypes, name))
    assert y.dtype == narrow.dtype
    np.testing.assert_array_equal(y.astype(np.float32), narrow.astype(np.float32))
    (y,) = session.run(None, {"x": narrow})
    np.testing.assert_array_equal(y.astype(np.float32), narrow.astype(np.float32))


def test_bytes_outside_of_a_narrow_type_are_refused():
    session = tensorc.InferenceSession(of.unary("Identity", 22, [1]))
    with pytest.raises(Exception, match="no element of i4"):
        session.run(None, {"x": np.array([8], np.int8)})


@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[:, ::-1], lambda x: x[::2], lambda x: x.astype(">f4")])
def test_arrays_of_any_layout(make):
    session = tensorc.InferenceSession(of.unary("Neg", of.FLOAT, ["n", "m"]))
    x = make(np.arange(12, dtype=np.float32).reshape(4, 3))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x.astype(np.float32))


def test_an_odd_address_is_copied():
    memory = np.zeros(4 * 3 + 1, np.uint8)
    x = memory[1:].view(np.float32)
    x[:] = [1, 2, 3]
    session = tensorc.InferenceSession(of.unary("Neg", of.FLOAT, [3]))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)


def test_scalars_lists_and_empty_arrays():
    session = tensorc.InferenceSession(of.unary("Neg", of.FLOAT, []))
    assert session.run(None, {"x": np.float32(3)})[0] == -3
    assert session.run(None, {"x": np.array(3, np.float32)})[0].shape == ()
    session = tensorc.InferenceSession(of.unary())
    assert session.run(None, {"x": [[-1, 2, 3]]})[0].tolist() == [[0, 2, 3]]
    assert session.run(None, {"x": np.zeros((0, 3), np.float32)})[0].shape == (0, 3)


def test_read_only_arrays_go_in():
    x = np.ones((2, 3), np.float32)
    x.flags.writeable = False
    tensorc.InferenceSession(of.unary()).run(None, {"x": x})


def test_results_outlive_session_and_each_other():
    session = tensorc.InferenceSession(of.unary())
    results = [session.run(None, {"x": np.full((2, 3), n, np.float32)})[0] for n in range(5)]
    del session
    gc.collect()
    assert [array[0, 0] for array in results] == [0, 1, 2, 3, 4]


def test_large_arrays_are_not_copied_in():
    # A copy of the input would be seen: it is read while another thread is not able to have written it.
    session = tensorc.InferenceSession(of.unary("Neg", of.FLOAT, ["n"]))
    x = np.ones(1 << 20, np.float32)
    (y,) = session.run(None, {"x": x})
    address = y.ctypes.data
    del y
    gc.collect()
    # Memory of results is used again.
    assert session.run(None, {"x": x})[0].ctypes.data == address


def test_signature_and_metadata():
    session = tensorc.InferenceSession(
        of.model(
            [of.node("Relu", ["x"], ["y"])],
            [of.value("x", of.FLOAT, ["batch", None, 3])],
            [of.value("y", of.FLOAT, ["batch", None, 3])],
            metadata=[("author", "us")],
        )
    )
    (x,) = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("x", ["batch", None, 3], "tensor(float)")
    assert [y.name for y in session.get_outputs()] == ["y"]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.version, meta.graph_name, meta.custom_metadata_map) == (
        "test",
        3,
        "g",
        {"author": "us"},
    )
    assert session.get_providers() == ["CPUExecutionProvider"] == tensorc.get_available_providers()
    assert tensorc.get_device() == "CPU"


def test_extents_that_follow_or_are_unknown():
    nodes = [of.node("Relu", ["x"], ["y"])]
    inputs, outputs = [of.value("x", of.FLOAT, [-1, 3])], [of.value("y", of.FLOAT, ["n", "m"])]
    session = tensorc.InferenceSession(of.model(nodes, inputs, outputs))
    assert session.get_inputs()[0].shape == [None, 3]
    assert session.get_outputs()[0].shape[1] == 3


def test_initializers_are_no_inputs():
    weight = of.tensor(np.array([2, 3], np.float32), "w")
    nodes = [of.node("Mul", ["x", "w"], ["y"])]
    inputs = [of.value("x", of.FLOAT, [2]), of.value("w", of.FLOAT, [2])]
    session = tensorc.InferenceSession(of.model(nodes, inputs, [of.value("y", of.FLOAT, [2])], [weight]))
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2, 3]


def test_files(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(of.unary())
    for given in (path, str(path)):
        assert tensorc.InferenceSession(given).run(None, {"x": np.ones((1, 3), np.float32)})[0].sum() == 3


def test_sequences():
    nodes = [of.node("SequenceAt", ["s", "i"], ["y"])]
    inputs = [of.sequence("s", of.FLOAT, ["n"]), of.value("i", of.INT64, [])]
    session = tensorc.InferenceSession(of.model(nodes, inputs, [of.value("y", of.FLOAT, ["n"])]))
    assert session.get_inputs()[0].type == "seq(tensor(float))"
    feeds = {"s": [np.ones(2, np.float32), np.full(3, 7, np.float32)], "i": np.array(1)}
    assert session.run(None, feeds)[0].tolist() == [7, 7, 7]
    split = of.model(
        [of.node("SplitToSequence", ["x"], ["s"], axis=0)],
        [of.value("x", of.FLOAT, [2, 3])],
        [of.sequence("s", of.FLOAT, [1, 3])],
    )
    (parts,) = tensorc.InferenceSession(split).run(None, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert [part.tolist() for part in parts] == [[[0, 1, 2]], [[3, 4, 5]]]


def test_branches():
    name = lambda text: of.value(text, of.FLOAT, ["n"])
    branch = lambda op: of.graph([of.node(op, ["x"], ["z"])], [], [name("z")])
    body = of.node("If", ["c"], ["y"])
    for position, key in ((0, "then_branch"), (1, "else_branch")):
        graph = branch(["Neg", "Abs"][position])
        body += of._field(5, of._message((1, key), (6, graph), (20, 5)))
    session = tensorc.InferenceSession(of.model([body], [of.value("c", of.BOOL, []), name("x")], [name("y")]))
    x = np.array([1, -2], np.float32)
    assert session.run(None, {"c": np.array(True), "x": x})[0].tolist() == [-1, 2]
    assert session.run(None, {"c": np.array(False), "x": x})[0].tolist() == [1, 2]


def test_shapes_that_depend_on_values():
    nodes = [of.node("NonZero", ["x"], ["y"])]
    session = tensorc.InferenceSession(
        of.model(nodes, [of.value("x", of.FLOAT, ["n"])], [of.value("y", of.INT64, [1, "k"])])
    )
    assert session.run(None, {"x": np.array([0, 1, 0, 2], np.float32)})[0].tolist() == [[1, 3]]


def test_threads_run_side_by_side():
    session = tensorc.InferenceSession(of.unary("Neg", of.FLOAT, ["n"]))
    wrong = []

    def work(number):
        for length in range(1, 60):
            (y,) = session.run(None, {"x": np.full(length, number, np.float32)})
            if y.shape != (length,) or (y != -number).any():
                wrong.append((number, length))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_run_async_calls_back():
    session, done = tensorc.InferenceSession(of.unary()), threading.Event()
    seen = []

    def callback(results, data, error):
        seen.append((results, data, error))
        done.set()

    session.run_async(None, {"x": np.ones((1, 3), np.float32)}, callback, "data")
    assert done.wait(10)
    ((results, data, error),) = seen
    assert (results[0].tolist(), data, error) == ([[1, 1, 1]], "data", "")


def test_values_and_bindings():
    session = tensorc.InferenceSession(of.unary("Neg"))
    x = np.ones((2, 3), np.float32)
    value = tensorc.OrtValue.ortvalue_from_numpy(x)
    assert (value.shape(), value.data_type(), value.device_name()) == ([2, 3], "tensor(float)", "cpu")
    assert value.numpy() is x and value.data_ptr() == x.ctypes.data
    (y,) = session.run_with_ort_values(None, {"x": value})
    np.testing.assert_array_equal(y.numpy(), -x)

    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], -x)

    target = np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, target.shape, target.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target, -x)
    binding.bind_ortvalue_output("y", tensorc.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32))
    with pytest.raises(tensorc.errors.InvalidArgument, match="output `y`"):
        session.run_with_iobinding(binding)
    with pytest.raises(tensorc.errors.EPFail, match="cuda"):
        tensorc.OrtValue.ortvalue_from_numpy(x, "cuda")


def test_options():
    options = tensorc.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = tensorc.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode = tensorc.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.dynamic_block_base", "4")
    assert options.get_session_config_entry("session.dynamic_block_base") == "4"
    session = tensorc.InferenceSession(of.unary(), sess_options=options, providers=["CPUExecutionProvider"])
    assert session.get_session_options() is options
    for name, wrong in (("intra_op_num_threads", "2"), ("enable_profiling", 1), ("logid", 3), ("execution_mode", 0)):
        with pytest.raises(TypeError, match=name):
            setattr(options, name, wrong)
    with pytest.raises(AttributeError):
        options.threads = 2
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        tensorc.InferenceSession(of.unary(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    stop = tensorc.RunOptions()
    stop.terminate = True
    with pytest.raises(tensorc.errors.Fail, match="terminate"):
        session.run(None, {"x": np.ones((1, 3), np.float32)}, stop)


def test_exceptions_survive_pickling():
    error = pickle.loads(pickle.dumps(tensorc.errors.InvalidArgument("why", "node")))
    assert (error.message, error.node, error.code) == ("why", "node", 2)
    assert str(error) == "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : why"


def test_the_digits_of_the_repository():
    folder = pathlib.Path(__file__).resolve().parents[2] / "examples" / "digits"
    held_out = np.load(folder / "held_out.npz")
    labels = np.load(folder / "labels.npz")
    session = tensorc.InferenceSession(folder / "digits.onnx")
    digit, probabilities = session.run(None, {"image": held_out[held_out.files[0]]})
    right = (digit.reshape(-1) == labels[labels.files[0]].reshape(-1)).mean()
    assert right > 0.95 and np.allclose(probabilities.sum(1), 1, atol=1e-5)
