"""Symbols, executors, modules and metrics with MXNet's interface."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tensorc as mx

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def perceptron():
    net = mx.sym.var("data")
    net = mx.sym.FullyConnected(net, num_hidden=8, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="act")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def blobs(count=120):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, count).astype(np.float32)
    centres = np.array([[0, 3], [3, 0], [-3, -3]], np.float32)
    return centres[labels.astype(int)] + rng.standard_normal((count, 2)).astype(np.float32) * 0.5, labels


def test_symbols():
    net = perceptron()
    assert net.list_arguments() == ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias", "softmax_label"]
    assert net.list_outputs() == ["softmax_output"] and net.name == "softmax"
    arguments, outputs, states = net.infer_shape(data=(4, 2))
    assert arguments[1] == (8, 2) and outputs == [(4, 3)] and states == []
    assert net.infer_shape() == (None, None, None)
    assert net.infer_type(data="float32")[1] == [np.float32]
    assert mx.sym.load_json(net.tojson()).list_arguments() == net.list_arguments()
    assert net.get_internals()["fc1_output"].list_outputs() == ["fc1_output"]
    a, b = mx.sym.var("a"), mx.sym.var("b", shape=(2,), lr_mult=0.5)
    c = (a + b) * 2 - a / b
    found = c.eval(a=mx.nd.array([1, 2]), b=mx.nd.array([3, 4]))[0].asnumpy()
    np.testing.assert_allclose(found, [8 - 1 / 3, 12 - 0.5], rtol=1e-6)
    assert mx.sym.Group([a, c]).list_outputs()[0] == "a" and len(mx.sym.Group([a, c])) == 2
    assert b.attr("lr_mult") == "0.5" and "arguments" in c._repr_html_()
    assert net(data=mx.sym.var("other")).list_arguments()[0] == "other"
    with pytest.raises(mx.MXNetError, match="num_hidden"):
        mx.sym.FullyConnected(a)


def test_executors():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    net = mx.sym.sum(x * w)
    bound = net.simple_bind(mx.cpu(), x=(3,), w=(3,))
    bound.arg_dict["w"][:] = mx.nd.array([1, 2, 3])
    (out,) = bound.forward(is_train=True, x=mx.nd.array([4, 5, 6]))
    assert out.asscalar() == 32
    bound.backward(mx.nd.ones(out.shape))
    assert bound.grad_dict["w"].asnumpy().tolist() == [4, 5, 6]
    grad = mx.nd.zeros(3)
    bound = net.bind(mx.cpu(), {"x": mx.nd.ones(3), "w": mx.nd.ones(3)}, args_grad={"x": grad})
    (out,) = bound.forward(is_train=True)
    bound.backward([mx.nd.ones(out.shape)])
    assert grad.asnumpy().tolist() == [1, 1, 1]
    with pytest.raises(mx.MXNetError, match="no argument"):
        bound.forward(y=mx.nd.ones(3))


def test_iterators():
    data, label = np.arange(10, dtype=np.float64).reshape(5, 2), np.arange(5)
    batches = mx.io.NDArrayIter(data, label, 2)
    assert batches.provide_data[0][:2] == ("data", (2, 2)) and batches.provide_label[0].name == "softmax_label"
    seen = [(batch.data[0].asnumpy()[:, 0].tolist(), batch.pad) for batch in batches]
    assert seen == [([0, 2], 0), ([4, 6], 0), ([8, 0], 1)]
    assert list(batches) == []
    batches.reset()
    assert len(list(batches)) == 3
    discard = mx.io.NDArrayIter({"a": data, "b": data}, label, 2, last_batch_handle="discard")
    assert len(list(discard)) == 2 and [desc.name for desc in discard.provide_data] == ["a", "b"]
    rolling = mx.io.NDArrayIter(data, label, 2, last_batch_handle="roll_over")
    assert len(list(rolling)) == 2
    rolling.reset()
    assert [batch.label[0].asnumpy().tolist() for batch in rolling] == [[4, 0], [1, 2], [3, 4]]
    shuffled = mx.io.NDArrayIter(data, label, 5, shuffle=True)
    assert sorted(next(shuffled).label[0].asnumpy().tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="examples"):
        mx.io.NDArrayIter(data, label[:3], 2)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}),
        ("adam", {"learning_rate": 0.02}),
        ("rmsprop", {"learning_rate": 0.02}),
        (mx.optimizer.AdaGrad(learning_rate=0.1, rescale_grad=1 / 32), {}),
        ("sgd", {"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.FactorScheduler(10, 0.9)}),
    ],
)
def test_modules_learn(optimizer, settings):
    mx.random.seed(0)
    data, labels = blobs()
    train = mx.io.NDArrayIter(data, labels, 32)
    module = mx.mod.Module(perceptron())
    module.fit(train, optimizer=optimizer, optimizer_params=settings, initializer=mx.init.Xavier(), num_epoch=12)
    ((name, accuracy),) = module.score(mx.io.NDArrayIter(data, labels, 20), "acc")
    assert name == "accuracy" and accuracy > 0.95


def test_a_module_step_by_step(tmp_path):
    mx.random.seed(0)
    data, labels = blobs(64)
    module = mx.mod.Module(perceptron())
    batch = mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(labels)])
    module.bind([("data", (64, 2))], [("softmax_label", (64,))])
    module.init_params(mx.init.Normal(0.5))
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.5})
    measured = mx.metric.create(["acc", "ce"])
    for _ in range(40):
        module.forward_backward(batch)
        module.update()
    module.update_metric(measured, batch.label)
    names, values = measured.get()
    assert names == ["accuracy", "cross-entropy"] and values[0] > 0.95

    arguments, states = module.get_params()
    assert arguments["fc1_weight"].shape == (8, 2) and states == {}
    module.save_checkpoint(str(tmp_path / "net"), 3, save_optimizer_states=True)
    loaded = mx.mod.Module.load(str(tmp_path / "net"), 3)
    loaded.bind([("data", (10, 2))], for_training=False)
    again = loaded.predict(mx.io.NDArrayIter(data, None, 10))
    module.forward(mx.io.DataBatch([mx.nd.array(data)]), is_train=False)
    np.testing.assert_allclose(again.asnumpy(), module.get_outputs()[0].asnumpy(), rtol=1e-5, atol=1e-6)
    symbol, saved, _ = mx.model.load_checkpoint(str(tmp_path / "net"), 3)
    assert symbol.list_outputs() == ["softmax_output"] and sorted(saved) == sorted(arguments)
    # Other programs read the same files, ONNX Runtime's interface among them.
    session = mx.InferenceSession(str(tmp_path / "net-symbol.json"))
    assert "fc1_weight" in [stated.name for stated in session.get_inputs()]


def test_modules_say_what_is_missing():
    module = mx.mod.Module(perceptron())
    with pytest.raises(mx.MXNetError, match="bind"):
        module.init_params()
    with pytest.raises(ValueError, match="`image`"):
        mx.mod.Module(perceptron(), data_names=["image"])
    with pytest.raises(mx.MXNetError, match="dist_sync"):
        module.bind([("data", (4, 2))])
        module.init_params()
        module.init_optimizer(kvstore="dist_sync")
    with pytest.raises(mx.MXNetError, match="nesterov"):
        mx.optimizer.create("sgd", nesterov=True)
    with pytest.raises(mx.MXNetError, match="no_such_metric"):
        mx.metric.create("no_such_metric")


@pytest.mark.parametrize(
    "initializer",
    [
        mx.init.Zero(),
        mx.init.One(),
        mx.init.Constant(0.5),
        mx.init.Uniform(0.1),
        mx.init.Normal(),
        mx.init.Orthogonal(),
        mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        mx.init.MSRAPrelu(),
        "zeros",
        None,
    ],
)
def test_initializers(initializer):
    module = mx.mod.Module(perceptron())
    module.bind([("data", (4, 2))])
    module.init_params(initializer)
    weights = module.get_params()[0]["fc1_weight"].asnumpy()
    assert np.isfinite(weights).all() and weights.std() < 2


def test_metrics():
    labels, scores = mx.nd.array([0, 1, 1]), mx.nd.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    for metric, expected in [
        (mx.metric.Accuracy(), 2 / 3),
        (mx.metric.TopKAccuracy(2), 1),
        (mx.metric.CrossEntropy(), -np.log([0.9, 0.8, 0.4]).mean()),
        (mx.metric.np(lambda label, pred: float((pred.argmax(1) == label).sum())), 2),
        (mx.metric.create(lambda label, pred: (1.0, 2)), 0.5),
    ]:
        metric.update([labels], [scores])
        assert metric.get()[1] == pytest.approx(expected, abs=1e-6)
        metric.reset()
        assert np.isnan(metric.get()[1])


def test_updaters():
    weight, gradient = mx.nd.ones(2), mx.nd.array([1, 2])
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5))
    updater(0, gradient, weight)
    assert weight.asnumpy().tolist() == [0.5, 0]
    for name in ("sgd", "nag", "adam", "adamw", "rmsprop", "adagrad", "ftrl", "ftml"):
        w = mx.nd.ones(2)
        mx.optimizer.get_updater(mx.optimizer.create(name))("w", gradient, w)
        assert (w.asnumpy() != 1).all(), name
    mx.nd.sgd_update(weight, gradient, out=weight, lr=0.1)
    np.testing.assert_allclose(weight.asnumpy(), [0.4, -0.2], atol=1e-6)


@pytest.mark.parametrize("script", ["lenet_module.py", "lenet_autograd.py"])
def test_scripts_for_mxnet(script):
    done = subprocess.run([sys.executable, script], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy" in done.stdout
