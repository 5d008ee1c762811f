"""What iterators give, and how they are derived."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class DataDesc(NamedTuple):
    """Name, shape and element type of an array of a batch."""

    name: str
    shape: tuple[int, ...]
    dtype: Any = np.float32
    layout: str = "NCHW"


class DataBatch:
    """Arrays of a batch. The last ``pad`` examples only fill it up."""

    def __init__(
        self,
        data: list[Any],
        label: list[Any] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ) -> None:
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label


class DataIter:
    """Batches, epoch after epoch.

    What is derived from it has ``provide_data``, ``provide_label`` and ``reset``; and ``next``, or ``iter_next`` with ``getdata`` and the
    others that say what the present batch is.
    """

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def next(self) -> DataBatch:
        """The next batch; ``StopIteration`` at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Goes back to the first batch."""

    def iter_next(self) -> bool:
        """Goes to the next batch; false at the end of the epoch."""
        raise NotImplementedError(f"{type(self).__name__}.next")

    def getdata(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.getdata")

    def getlabel(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.getlabel")

    def getindex(self) -> Any:
        return None

    def getpad(self) -> Any:
        return 0


class BatchIter(DataIter):
    """An iterator that has ``next``, from which the rest follows."""

    _batch: DataBatch | None = None

    def next(self) -> DataBatch:
        raise NotImplementedError(f"{type(self).__name__}.next")

    def iter_next(self) -> bool:
        try:
            self._batch = self.next()
        except StopIteration:
            return False
        return True

    def _present(self) -> DataBatch:
        if self._batch is None:
            raise ValueError("call iter_next before")
        return self._batch

    def getdata(self) -> Any:
        return self._present().data

    def getlabel(self) -> Any:
        return self._present().label

    def getindex(self) -> Any:
        return self._present().index

    def getpad(self) -> Any:
        return self._present().pad
