"""Iterators over files and over other iterators."""

import gzip
import struct

import numpy as np
import pytest

import tensorc as mx


def test_tables(tmp_path):
    rows = np.arange(12).reshape(6, 2)
    np.savetxt(tmp_path / "x.csv", rows, "%d", ",")
    np.savetxt(tmp_path / "y.csv", rows[:, 0] % 4, "%d")
    batches = mx.io.CSVIter(
        data_csv=str(tmp_path / "x.csv"), data_shape=(2,), label_csv=tmp_path / "y.csv", batch_size=4, round_batch=False
    )
    assert batches.provide_data[0][:2] == ("data", (4, 2)) and batches.provide_label[0][:2] == ("softmax_label", (4,))
    assert batches.batch_size == 4
    first, last = list(batches)
    assert first.data[0].asnumpy().tolist() == rows[:4].tolist() and first.label[0].asnumpy().tolist() == [0, 2, 0, 2]
    assert (first.pad, last.pad) == (0, 2) and last.data[0].asnumpy()[:2].tolist() == rows[4:].tolist()
    assert last.index.dtype == np.uint64 and last.index[:2].tolist() == [4, 5]
    assert list(batches) == []
    batches.reset()
    # As scripts do that do not take whole batches.
    assert batches.iter_next() and batches.getpad() == 0 and batches.getdata().shape == (4, 2)
    assert batches.getlabel().shape == (4,) and batches.getindex().tolist() == [0, 1, 2, 3]
    (tmp_path / "x.libsvm").write_text("1 0:2 2:3\n0 1:5\n")
    sparse = mx.io.LibSVMIter(data_libsvm=str(tmp_path / "x.libsvm"), data_shape=(3,), batch_size=2)
    batch = sparse.next()
    assert batch.data[0].asnumpy().tolist() == [[2, 0, 3], [0, 5, 0]] and batch.label[0].asnumpy().tolist() == [1, 0]


def test_options_of_files(tmp_path):
    with pytest.raises(mx.MXNetError, match="data_csv"):
        mx.io.CSVIter(data_cvs="x.csv", data_shape=(2,), batch_size=2)
    with pytest.raises(mx.MXNetError, match="nowhere.csv"):
        mx.io.CSVIter(data_csv=tmp_path / "nowhere.csv", data_shape=(2,), batch_size=2)


def write_digits(folder, count=8, size=6):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (count, size, size), np.uint8), np.arange(count, dtype=np.uint8) % 3
    (folder / "images").write_bytes(struct.pack(">IIII", 0x803, count, size, size) + pixels.tobytes())
    (folder / "labels.gz").write_bytes(gzip.compress(struct.pack(">II", 0x801, count) + labels.tobytes()))
    return pixels, labels


def test_mnist_and_training(tmp_path):
    pixels, labels = write_digits(tmp_path)
    files = {"image": tmp_path / "images", "label": tmp_path / "labels.gz", "batch_size": 4, "shuffle": False}
    batches = mx.io.MNISTIter(**files, silent=True)
    batch = batches.next()
    assert batches.provide_data[0].shape == (4, 1, 6, 6)
    np.testing.assert_allclose(batch.data[0].asnumpy()[:, 0], pixels[:4] / 256, rtol=1e-6)
    assert batch.label[0].asnumpy().tolist() == labels[:4].tolist()
    # What is read from files trains a module.
    net = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.var("data")), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    batches.reset()
    module.fit(batches, optimizer_params={"learning_rate": 1.0}, initializer=mx.init.Xavier(), num_epoch=60)
    assert module.score(batches, "acc")[0][1] == 1.0


def png(pixels):
    """An RGB image as a PNG file."""
    import zlib

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_records(path, images, labels):
    """A RecordIO file of images, as MXNet writes it."""
    with open(path, "wb") as file:
        for number, (image, label) in enumerate(zip(images, labels)):
            data = struct.pack("<IfQQ", 0, label, number, 0) + png(image)
            file.write(struct.pack("<II", 0xCED7230A, len(data)) + data + b"\0" * (-len(data) % 4))


def test_records_of_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    write_records(tmp_path / "x.rec", images, [3, 1, 4, 1, 5])
    options = {"path_imgrec": str(tmp_path / "x.rec"), "data_shape": (3, 8, 8), "batch_size": 2, "verbose": False}
    batches = mx.io.ImageRecordIter(**options, mean_r=10, mean_g=20, mean_b=30, preprocess_threads=1)
    first = batches.next()
    expected = images[:2].transpose(0, 3, 1, 2) - np.array([10, 20, 30], np.float32).reshape(3, 1, 1)
    assert (first.data[0].asnumpy() == expected).all() and first.label[0].asnumpy().tolist() == [3, 1]
    assert [batch.pad for batch in batches] == [0, 1]
    stored = mx.io.ImageRecordUInt8Iter(**options)
    assert stored.provide_data[0].dtype is np.uint8
    assert (stored.next().data[0].asnumpy() == images[:2].transpose(0, 3, 1, 2)).all()
    with pytest.raises(mx.MXNetError, match="rand_mirror"):
        mx.io.ImageRecordIter(**options, rand_miror=True)


def test_iterators_of_iterators():
    data = np.arange(6, dtype=np.float32).reshape(6, 1)
    firsts = lambda batches: [batch.data[0].asnumpy()[0, 0] for batch in batches]
    longer = mx.io.ResizeIter(mx.io.NDArrayIter(data, batch_size=2), 5)
    assert firsts(longer) == [0, 2, 4, 0, 2] and firsts(longer) == []
    longer.reset()
    assert firsts(longer) == [0, 2, 4, 0, 2]
    pair = mx.io.PrefetchingIter(
        [mx.io.NDArrayIter(data, data, 2), mx.io.NDArrayIter(-data, batch_size=2)],
        rename_data=[{"data": "a"}, {"data": "b"}],
    )
    assert [desc.name for desc in pair.provide_data] == ["a", "b"] and [d.name for d in pair.provide_label] == [
        "softmax_label"
    ]
    for _ in range(2):
        seen = [[array.asnumpy()[0, 0] for array in batch.data] for batch in pair]
        assert seen == [[0, 0], [2, -2], [4, -4]]
        pair.reset()


def test_iterators_of_scripts():
    class Counting(mx.io.DataIter):
        """Has `iter_next` and the others, as MXNet's own may have."""

        def __init__(self):
            super().__init__(2)
            self.at = 0

        def iter_next(self):
            self.at += 1
            return self.at < 3

        def getdata(self):
            return [mx.nd.ones((2, 1)) * self.at]

        def getlabel(self):
            return []

    assert [batch.data[0].asnumpy()[0, 0] for batch in Counting()] == [1, 2]
    with pytest.raises(NotImplementedError, match="DataIter.next"):
        mx.io.DataIter().next()
