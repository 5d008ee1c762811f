"""Iterators of other iterators."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .base import BatchIter, DataBatch, DataDesc, DataIter


class ResizeIter(BatchIter):
    """Epochs of ``size`` batches of another iterator, which begins again at its end."""

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal = data_iter, size, reset_internal
        self._taken = 0

    @property
    def provide_data(self) -> Any:
        return self.data_iter.provide_data  # type: ignore[attr-defined]

    @property
    def provide_label(self) -> Any:
        return self.data_iter.provide_label  # type: ignore[attr-defined]

    def reset(self) -> None:
        self._taken = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        if self._taken == self.size:
            raise StopIteration
        try:
            batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            batch = self.data_iter.next()
        self._taken += 1
        return batch


class PrefetchingIter(BatchIter):
    """Batches of one or several iterators, side by side, each of which is read one batch ahead by a thread.

    ``rename_data`` and ``rename_label`` have a dictionary of names for each iterator.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[dict[str, str]] | None = None,
        rename_label: Sequence[dict[str, str]] | None = None,
    ) -> None:
        self.iters = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise ValueError("PrefetchingIter needs an iterator")
        super().__init__(self.iters[0].batch_size)
        self._names = rename_data, rename_label
        self._pool = ThreadPoolExecutor(len(self.iters), "tensorc-prefetch")
        self._ahead: list[Future[DataBatch | None]] = []
        self._read_ahead()

    def _read_ahead(self) -> None:
        def batch(of: DataIter) -> DataBatch | None:
            try:
                return of.next()
            except StopIteration:
                return None

        self._ahead = [self._pool.submit(batch, of) for of in self.iters]

    def _renamed(self, which: int, attribute: str) -> list[DataDesc]:
        names = self._names[which] or [{}] * len(self.iters)
        found = []
        for of, renamed in zip(self.iters, names):
            for given in getattr(of, attribute):
                desc = given if isinstance(given, DataDesc) else DataDesc(*given)
                found.append(desc._replace(name=renamed.get(desc.name, desc.name)))
        return found

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._renamed(0, "provide_data")

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._renamed(1, "provide_label")

    def reset(self) -> None:
        for pending in self._ahead:
            pending.result()
        for of in self.iters:
            of.reset()
        self._read_ahead()

    def next(self) -> DataBatch:
        batches = [pending.result() for pending in self._ahead]
        some = [batch for batch in batches if batch is not None]
        if not some:
            raise StopIteration
        if len(some) < len(batches) or len({batch.pad or 0 for batch in some}) > 1:
            raise ValueError("the iterators do not have the same number of examples")
        self._read_ahead()
        data = [array for batch in some for array in batch.data]
        labels = [array for batch in some for array in batch.label or []]
        first = some[0]
        return DataBatch(data, labels, first.pad, first.index, first.bucket_key, self.provide_data, self.provide_label)
