"""Arrays with MXNet's interface."""

import numpy as np
import pytest

import tensorc as mx
from tensorc import autograd, nd


def test_arithmetic():
    a, b = nd.array([[1, 2, 3], [4, 5, 6]]), nd.array([10, 20, 30])
    x, y = a.asnumpy(), b.asnumpy()
    for found, expected in [
        (a + b, x + y),
        (a - 1, x - 1),
        (1 - a, 1 - x),
        (a * b, x * y),
        (a / 2, x / 2),
        (2 / a, 2 / x),
        (a**2, x**2),
        (2**a, 2**x),
        (a % 2, x % 2),
        (-a, -x),
        (abs(-a), x),
        (a > 2, x > 2),
        (a == 3, x == 3),
        (nd.maximum(a, 3), np.maximum(x, 3)),
        (nd.minimum(3, a), np.minimum(x, 3)),
    ]:
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
        assert found.dtype == np.float32
    c = a.copy()
    c += 1
    c *= b
    np.testing.assert_array_equal(c.asnumpy(), (x + 1) * y)


def test_making_and_types():
    assert nd.zeros((2, 3)).shape == (2, 3) and nd.ones(4, dtype="int32").dtype == np.int32
    assert nd.full((2,), 3.5).asnumpy().tolist() == [3.5, 3.5] and nd.arange(2, 8, 2).asnumpy().tolist() == [2, 4, 6]
    assert nd.array(np.arange(3)).dtype == np.int64 and nd.array([1, 2]).dtype == np.float32
    assert nd.array([1.7]).astype("int32").asscalar() == 1 and nd.array([1]).astype("bfloat16").dtype == "bfloat16"
    assert float(nd.array([2])) == 2 and int(nd.array([2])) == 2 and bool(nd.array([0])) is False
    assert len(nd.zeros((3, 2))) == 3 and nd.zeros((3, 2)).size == 6 and nd.zeros((3, 2)).ndim == 2
    assert "<NDArray 1x2 @cpu(0)>" in repr(nd.zeros((1, 2)))
    assert "<pre>" in nd.zeros((1, 2))._repr_html_()


def test_indexing():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    a = nd.array(x)
    for key in (
        0,
        -1,
        slice(0, 1),
        (1, 2),
        (slice(None), 1),
        (0, slice(1, 3), 2),
        (Ellipsis, 1),
        (slice(None), slice(None, None, -1)),
    ):
        np.testing.assert_array_equal(a[key].asnumpy(), x[key])
    np.testing.assert_array_equal(a[nd.array([1, 0])].asnumpy(), x[[1, 0]])
    for key, value in ((0, 5.0), ((1, slice(0, 2)), 7.0), ((slice(None), 1, 2), np.array([8, 9]))):
        a[key] = value
        x[key] = value
        np.testing.assert_array_equal(a.asnumpy(), x)
    a[:] = nd.ones((3, 4))
    assert a.asnumpy().sum() == 24
    with pytest.raises(mx.MXNetError):
        a[5].asnumpy()
    with pytest.raises(mx.MXNetError, match="no position"):
        a["x"]


def test_operators_by_their_names():
    a = nd.array([[1, -2], [3, 4]])
    assert nd.relu(a).asnumpy().tolist() == [[1, 0], [3, 4]] and a.relu().shape == (2, 2)
    assert nd.concat(a, a, dim=1).shape == (2, 4) and nd.stack(a, a, axis=0).shape == (2, 2, 2)
    assert [part.shape for part in nd.split(a, num_outputs=2, axis=1)] == [(2, 1), (2, 1)]
    assert nd.dot(a, a.T).asnumpy().tolist() == (a.asnumpy() @ a.asnumpy().T).tolist()
    assert nd.sum(a, axis=0).asnumpy().tolist() == a.sum(0).asnumpy().tolist() == [4, 2]
    assert a.reshape((4,)).shape == a.reshape(-1).shape == (4,) and a.reshape((0, 1, -1)).shape == (2, 1, 2)
    assert nd.linalg.gemm2(a, a).shape == (2, 2) and nd.random.uniform(0, 1, shape=(2, 3)).shape == (2, 3)
    out = nd.zeros((2, 2))
    assert nd.exp(a, out=out) is out and np.allclose(out.asnumpy(), np.exp(a.asnumpy()))
    assert nd.Convolution(
        nd.ones((1, 1, 4, 4)), nd.ones((2, 1, 3, 3)), no_bias=True, kernel=(3, 3), num_filter=2
    ).shape == (1, 2, 2, 2)
    assert "num_filter" in nd.Convolution.__doc__
    assert len(mx.operators.names()) > 500 and {"Convolution", "softmax", "broadcast_add"} <= set(dir(nd)) & set(
        dir(mx.sym)
    )
    assert "uniform" in dir(nd.random)


def test_every_name_is_a_function_of_arrays_and_symbols():
    for name in mx.operators.names():
        assert callable(getattr(nd, name)), name
        assert callable(getattr(mx.sym, name)), name


def test_wrong_calls():
    a = nd.ones((2, 2))
    for call, text in [
        (lambda: nd.Convolution(a, kernel=(3, 3)), "num_filter"),
        (lambda: nd.sum(a, axes=1), "`axes`.*axis"),
        (lambda: nd.dot(a, nd.ones((3, 3))).asnumpy(), "dot"),
        (lambda: nd.relu(a, a, a), "operands"),
        (lambda: nd.zeros((2,), ctx=mx.gpu()), "gpu"),
    ]:
        with pytest.raises(mx.MXNetError, match=text):
            call()
    with pytest.raises(AttributeError, match="nope"):
        nd.nope  # noqa: B018
    with pytest.raises(ValueError, match="not a scalar"):
        a.asscalar()
    with pytest.raises(TypeError, match="strings"):
        nd.array(np.array(["a"]))


def test_seeds():
    mx.random.seed(3)
    first = nd.random.normal(shape=(4,)).asnumpy()
    mx.random.seed(3)
    np.testing.assert_array_equal(mx.random.normal(shape=(4,)).asnumpy(), first)


def test_distributions():
    mx.random.seed(0)
    for call, mean in [
        (lambda shape: nd.random.normal(5, 2, shape), 5),
        (lambda shape: nd.random.uniform(2, 4, shape=shape), 3),
        (lambda shape: nd.random.exponential(3, shape), 3),
        (lambda shape: nd.random.poisson(4, shape), 4),
        (lambda shape: nd.random.gamma(2, 3, shape), 6),
        (lambda shape: nd.random.randint(0, 3, shape).astype("float32"), 1),
        (lambda shape: nd.random.randn(*shape, loc=1), 1),
        (lambda shape: nd.random.normal(nd.array([7]), nd.array([1]), shape=shape), 7),
    ]:
        drawn = call((40, 50)).asnumpy()
        assert drawn.size == 2000 and drawn.mean() == pytest.approx(mean, abs=0.4)
    assert nd.random.multinomial(nd.array([0, 1]), shape=3).asnumpy().tolist() == [1, 1, 1]
    assert sorted(nd.random.shuffle(nd.arange(5)).asnumpy().tolist()) == [0, 1, 2, 3, 4]
    assert mx.sym.random.normal(1, 2, shape=(3,)).eval()[0].shape == (3,)
    with pytest.raises(TypeError, match="high"):
        nd.random.randint(0)


def test_files(tmp_path):
    a, b = nd.array([1, 2]), nd.ones((2, 2), dtype="int32")
    nd.save(tmp_path / "named", {"a": a, "b": b})
    loaded = nd.load(tmp_path / "named")
    assert list(loaded) == ["a", "b"] and loaded["b"].dtype == np.int32
    nd.save(tmp_path / "list", [a, b])
    assert [array.shape for array in nd.load(tmp_path / "list")] == [(2,), (2, 2)]


def test_memory_is_shared_with_numpy():
    a = nd.array([[1, 2], [3, 4]])
    view = np.from_dlpack(a)
    if view.flags.writeable:
        # Before version 2.1, numpy writes to no memory that is lent.
        view[0, 0] = 9
        assert a[0, 0].asscalar() == 9
    a[1, 1] = 8
    a.wait_to_read()
    assert view[1, 1] == 8
    np.testing.assert_array_equal(np.asarray(a), view)
    assert np.asarray(a).ctypes.data == view.ctypes.data == a.__array_interface__["data"][0]
    assert a.__dlpack_device__() == (1, 0)
    source = np.arange(4, dtype=np.float32)
    for made in (nd.from_dlpack(source), nd.from_numpy(source), mx.from_dlpack(source)):
        source[1] += 1
        assert made[1].asscalar() == source[1]
    del source
    assert made.asnumpy()[3] == 3
    with pytest.raises(TypeError, match="__dlpack__"):
        nd.from_dlpack([1, 2])
    for version in (None, (0, 8), (1, 0)):
        capsule = a.__dlpack__(max_version=version)
        del capsule

        class Lent:
            def __dlpack__(self, version=version, **options):
                return a.__dlpack__(max_version=version)

        again = nd.from_dlpack(Lent())
        a[0, 1] += 1
        a.wait_to_read()
        assert again[0, 1].asscalar() == a[0, 1].asscalar()
        del again


def test_gradients():
    x = nd.array([1, 2, 3])
    x.attach_grad()
    with autograd.record():
        assert autograd.is_recording() and autograd.is_training()
        with autograd.pause():
            assert not autograd.is_recording()
        with autograd.predict_mode():
            assert autograd.is_recording() and not autograd.is_training()
        y = x * x * 2
    assert not autograd.is_recording()
    y.backward(nd.array([1, 10, 100]))
    assert x.grad.asnumpy().tolist() == [4, 80, 1200]
    with autograd.record():
        z = (x**3).sum()
    (g,) = autograd.grad(z, [x])
    assert g.asnumpy().tolist() == [3, 12, 27]
    w, into = nd.ones(2), nd.zeros(2)
    autograd.mark_variables(w, into)
    with autograd.record():
        loss = (w * 3).sum()
    autograd.backward([loss])
    assert into.asnumpy().tolist() == [3, 3]
    with pytest.raises(mx.MXNetError, match="not made by a recorded call"):
        nd.ones(2).backward()
