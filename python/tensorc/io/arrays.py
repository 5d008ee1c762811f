"""Batches of examples in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from ..base import dtype_name
from ..ndarray import NDArray, array
from .base import BatchIter, DataBatch, DataDesc


def _named(arrays: Any, default: str) -> OrderedDict[str, np.ndarray]:
    """Arrays of numpy by name."""
    if arrays is None:
        return OrderedDict()
    if isinstance(arrays, (np.ndarray, NDArray)):
        arrays = [arrays]
    if not isinstance(arrays, dict):
        names = [default] if len(arrays) == 1 else [f"_{position}_{default}" for position in range(len(arrays))]
        arrays = dict(zip(names, arrays))
    of = lambda value: value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)
    return OrderedDict((name, of(value)) for name, value in arrays.items())


class NDArrayIter(BatchIter):
    """Batches of arrays whose first axis counts examples.

    ``last_batch_handle`` says what becomes of examples that do not fill a batch: ``pad`` fills it up with the first ones, ``discard``
    leaves them out, ``roll_over`` lets the next epoch begin with them. ``shuffle`` puts the examples into another order once, by the
    generator of numpy.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        super().__init__(batch_size)
        self._data, self._label = _named(data, data_name), _named(label, label_name)
        self.num_data = len(next(iter(self._data.values())))
        for name, value in [*self._data.items(), *self._label.items()]:
            if len(value) != self.num_data:
                raise ValueError(f"`{name}` has {len(value)} examples, not {self.num_data}")
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise ValueError(f"last_batch_handle `{last_batch_handle}`: there are pad, discard and roll_over")
        if batch_size > self.num_data:
            raise ValueError(f"batches of {batch_size} examples, of which there are {self.num_data}")
        self._order = np.arange(self.num_data)
        if shuffle:
            np.random.shuffle(self._order)
        self._handle = last_batch_handle
        self._cursor = 0
        self._first = 0

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._descs(self._data)

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._descs(self._label)

    def _descs(self, arrays: OrderedDict[str, np.ndarray]) -> list[DataDesc]:
        shape = lambda value: (self.batch_size, *value.shape[1:])
        return [
            DataDesc(name, shape(value), np.dtype(dtype_name(_stored(value.dtype))).type)
            for name, value in arrays.items()
        ]

    def reset(self) -> None:
        left = self.num_data - self._cursor
        # The examples that were left over come before the first.
        self._first = -left if self._handle == "roll_over" and 0 < left < self.batch_size else 0
        self._cursor = self._first

    def next(self) -> DataBatch:
        begin, end = self._cursor, self._cursor + self.batch_size
        if begin >= self.num_data or (end > self.num_data and self._handle != "pad"):
            raise StopIteration
        self._cursor = end
        at = self._order[np.arange(begin, end) % self.num_data]
        take = lambda arrays: [array(value[at], dtype=_stored(value.dtype)) for value in arrays.values()]
        pad = max(end - self.num_data, 0)
        return DataBatch(take(self._data), take(self._label), pad, at, None, self.provide_data, self.provide_label)


def _stored(dtype: np.dtype) -> Any:
    """The element type in which examples are given: MXNet's arrays have no 64-bit floats unless asked for."""
    return np.float32 if dtype == np.float64 else dtype
