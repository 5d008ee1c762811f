"""What ``Module.fit`` may call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class BatchEndParam(NamedTuple):
    """What callbacks of batches are told."""

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: dict[str, Any]


class Speedometer:
    """Logs examples per second and metrics after every ``frequent`` batches."""

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self._begun: tuple[int, float] | None = None

    def __call__(self, param: BatchEndParam) -> None:
        now = time.perf_counter()
        if self._begun is None or self._begun[0] > param.nbatch:
            self._begun = param.nbatch, now
        elif param.nbatch % self.frequent == 0:
            batches, seconds = param.nbatch - self._begun[0], now - self._begun[1]
            values = param.eval_metric.get_name_value() if param.eval_metric else []
            shown = "\t".join(f"{name}={value:f}" for name, value in values)
            speed = self.batch_size * batches / seconds
            logging.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec\t%s", param.epoch, param.nbatch, speed, shown)
            self._begun = param.nbatch, now
            if self.auto_reset and param.eval_metric:
                param.eval_metric.reset()


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Saves network and parameters after every ``period`` epochs."""
    from .model import save_checkpoint

    def save(epoch: int, symbol: Any, arg_params: dict, aux_params: dict) -> None:
        if (epoch + 1) % max(period, 1) == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[BatchEndParam], None]:
    """Logs metrics after every ``period`` batches."""

    def log(param: BatchEndParam) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
            if auto_reset:
                param.eval_metric.reset()

    return log
