"""Batches of files: tables, MNIST, and records of images. They are read ahead by threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._tensorc import FileBatches
from ..base import dtype_name
from ..ndarray import NDArray
from .base import BatchIter, DataBatch, DataDesc

#: Options of MXNet's that say where, or how loudly, it works.
_WITHOUT_EFFECT = ("ctx", "device_id", "verbose")


def _text(name: str, value: Any) -> str:
    if name == "dtype":
        return dtype_name(value)
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(str(entry) for entry in value) + ")"
    return str(value)


class FileIter(BatchIter):
    """Batches that are read from files. Options have MXNet's names and defaults; unknown ones are errors that name those there are."""

    _source = ""

    def __init__(self, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None and name not in _WITHOUT_EFFECT}
        self._handle = FileBatches(self._source, [(name, _text(name, value)) for name, value in given.items()])
        data = self._handle.descs(False)
        super().__init__(data[0][1][0] if data and data[0][1] else 0)

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._descs(False)

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._descs(True)

    def _descs(self, labels: bool) -> list[DataDesc]:
        of = lambda name, dims, dtype: DataDesc(name, tuple(dims), np.dtype(dtype).type)
        return [of(*desc) for desc in self._handle.descs(labels)]

    def next(self) -> DataBatch:
        found = self._handle.next()
        if found is None:
            raise StopIteration
        data, labels, pad, index = found
        arrays = lambda handles: [NDArray(handle) for handle in handles]
        numbers = np.asarray(index, np.uint64) if index else None
        return DataBatch(arrays(data), arrays(labels), pad, numbers, None, self.provide_data, self.provide_label)

    def reset(self) -> None:
        self._handle.reset()

    # One array each, as MXNet's iterators of files have it.

    def getdata(self) -> NDArray:
        return self._present().data[0]

    def getlabel(self) -> NDArray:
        return self._present().label[0]


class CSVIter(FileIter):
    """Rows of CSV files: ``data_csv``, ``data_shape``, ``label_csv``, ``label_shape``, ``batch_size``, ``round_batch``, …"""

    _source = "CSVIter"


class LibSVMIter(FileIter):
    """Rows of LibSVM files, as dense arrays: ``data_libsvm``, ``data_shape``, ``label_libsvm``, ``label_shape``, ``batch_size``, …"""

    _source = "LibSVMIter"


class MNISTIter(FileIter):
    """Images and labels of idx files: ``image``, ``label``, ``batch_size``, ``shuffle``, ``flat``, ``seed``, …"""

    _source = "MNISTIter"


class ImageRecordIter(FileIter):
    """Images of RecordIO files: ``path_imgrec``, ``data_shape``, ``batch_size``, ``shuffle``, and the options of augmentation."""

    _source = "ImageRecordIter"


class ImageRecordUInt8Iter(ImageRecordIter):
    """As :class:`ImageRecordIter`, with pixels as they are stored."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"dtype": "uint8", **options})
