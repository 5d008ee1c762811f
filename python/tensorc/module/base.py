"""What all modules have in common: epochs of training, measures and predictions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from .. import metric, ndarray
from ..base import MXNetError
from ..callback import BatchEndParam
from ..io import DataBatch
from ..ndarray import NDArray
from ..symbol import Symbol


def _callbacks(callbacks: Any) -> list[Any]:
    return [] if callbacks is None else list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]


class BaseModule:
    """A network that learns from batches. What fills up the last batch of an epoch does not count in metrics."""

    symbol: Symbol

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = self.params_initialized = self.optimizer_initialized = False
        self.for_training = False

    # What a module does by itself

    def bind(
        self, data_shapes: Any, label_shapes: Any = None, for_training: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__}.bind")

    def init_params(
        self,
        initializer: Any = None,
        arg_params: dict | None = None,
        aux_params: dict | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__}.init_params")

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        raise NotImplementedError(f"{type(self).__name__}.get_params")

    def set_params(
        self,
        arg_params: dict,
        aux_params: dict,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__}.set_params")

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__}.init_optimizer")

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def backward(self, out_grads: Any = None) -> None:
        raise NotImplementedError(f"{type(self).__name__}.backward")

    def update(self) -> None:
        raise NotImplementedError(f"{type(self).__name__}.update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        raise NotImplementedError(f"{type(self).__name__}.get_outputs")

    def _step(self, batch: DataBatch) -> None:
        """Outputs, gradients and updates."""
        self.forward_backward(batch)
        self.update()

    # What follows

    def forward_backward(self, data_batch: DataBatch) -> None:
        self.forward(data_batch, is_train=True)
        self.backward()

    def save_params(self, fname: str) -> None:
        arguments, states = self.get_params()
        named = {f"arg:{name}": array for name, array in arguments.items()}
        ndarray.save(fname, named | {f"aux:{name}": array for name, array in states.items()})

    def load_params(self, fname: str) -> None:
        loaded: Any = ndarray.load(fname)
        side = lambda kind: {name[4:]: array for name, array in loaded.items() if name.startswith(kind)}
        self.set_params(side("arg:"), side("aux:"))

    def update_metric(
        self, eval_metric: metric.EvalMetric, labels: Any, pre_sliced: bool = False, pad: int = 0
    ) -> None:
        kept = lambda array: array[: array.shape[0] - pad] if pad else array
        eval_metric.update([kept(label) for label in labels], [kept(output) for output in self.get_outputs()])

    # Epochs

    def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
        initializer: Any = None,
        arg_params: dict | None = None,
        aux_params: dict | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
    ) -> None:
        """Trains over epochs, and measures after each of them."""
        if num_epoch is None:
            raise ValueError("please specify number of epochs")
        if monitor is not None:
            raise NotImplementedError("Module.fit(monitor): the values inside of a step are not shown")
        if not self.binded or force_rebind:
            self.bind(train_data.provide_data, train_data.provide_label, True, force_rebind=force_rebind)
        self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        train_metric = metric.create(eval_metric)
        held_out = train_metric if validation_metric is None else metric.create(validation_metric)
        for epoch in range(begin_epoch, num_epoch):
            begin = time.perf_counter()
            train_metric.reset()
            for position, batch in enumerate(train_data):
                self._step(batch)
                self.update_metric(train_metric, batch.label, pad=batch.pad or 0)
                for callback in _callbacks(batch_end_callback):
                    callback(BatchEndParam(epoch, position, train_metric, locals()))
            for name, value in train_metric.get_name_value():
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - begin)
            for callback in _callbacks(epoch_end_callback):
                callback(epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                for name, value in self.score(
                    eval_data, held_out, batch_end_callback=eval_batch_end_callback, epoch=epoch
                ):
                    self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
            train_data.reset()

    def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Any = None,
        score_end_callback: Any = None,
        reset: bool = True,
        epoch: int = 0,
    ) -> list[tuple[str, float]]:
        """Measures the outputs for batches."""
        measured = metric.create(eval_metric)
        measured.reset()
        for position, batch in self._each(eval_data, num_batch, reset):
            self.update_metric(measured, batch.label, pad=batch.pad or 0)
            for callback in _callbacks(batch_end_callback):
                callback(BatchEndParam(epoch, position, measured, locals()))
        return measured.get_name_value()

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
    ) -> Any:
        """The outputs for all examples, joined along their first axis."""
        parts = []
        for _, batch in self._each(eval_data, num_batch, reset):
            pad = batch.pad or 0
            parts.append([output[: output.shape[0] - pad].copy() for output in self.get_outputs()])
        if not merge_batches:
            return parts
        joined = [ndarray.concat(*outputs, dim=0) for outputs in zip(*parts)]
        return joined[0] if len(joined) == 1 and not always_output_list else joined

    def _each(self, batches: Any, count: int | None, reset: bool) -> Any:
        if reset:
            batches.reset()
        for position, batch in enumerate(batches):
            if count is not None and position == count:
                return
            self.forward(batch, is_train=False)
            yield position, batch

    def _require(self, done: bool, what: str) -> None:
        if not done:
            raise MXNetError(f"call `{what}` of the module before")
