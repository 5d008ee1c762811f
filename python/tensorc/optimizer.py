"""Optimizers by MXNet's names and settings."""

from __future__ import annotations

import json
from typing import Any

from . import _tensorc
from .lr_scheduler import LRScheduler
from .ndarray import NDArray


class Optimizer:
    """How gradients move parameters: a name of MXNet's, and its settings."""

    _name = ""

    def __init__(self, lr_scheduler: LRScheduler | None = None, **settings: Any) -> None:
        for without_effect in ("param_idx2name", "sym", "param_dict", "aggregate_num", "use_fused_step"):
            settings.pop(without_effect, None)
        self._settings = {name: value for name, value in settings.items() if value is not None}
        self.lr_scheduler = lr_scheduler
        # A setting that there is not is an error here, not at the first update.
        _tensorc.Updater(*self.texts())

    def texts(self) -> tuple[str, str, str | None]:
        """Name, settings and schedule, as the native module takes them."""
        schedule = self.lr_scheduler
        rate = self._settings.get("learning_rate")
        return self._name, json.dumps(self._settings), None if schedule is None else schedule.dumps(rate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"


def _class(class_name: str, name: str, doc: str) -> type[Optimizer]:
    return type(class_name, (Optimizer,), {"_name": name, "__doc__": doc, "__module__": __name__})


SGD = _class("SGD", "sgd", "Stochastic gradient descent, with momentum.")
NAG = _class("NAG", "nag", "Nesterov's accelerated gradient.")
Adam = _class("Adam", "adam", "Adam, with bias correction.")
AdamW = _class("AdamW", "adamw", "Adam whose weight decay does not pass through the averages.")
RMSProp = _class("RMSProp", "rmsprop", "Gradients divided by the root of their mean square.")
AdaGrad = _class("AdaGrad", "adagrad", "Gradients divided by the root of the sum of their squares.")
Ftrl = _class("Ftrl", "ftrl", "Follow the regularised leader.")
FTML = _class("FTML", "ftml", "Follow the moving leader.")

_CLASSES = {made._name: made for made in (SGD, NAG, Adam, AdamW, RMSProp, AdaGrad, Ftrl, FTML)}


def create(name: Any, **settings: Any) -> Optimizer:
    """The optimizer of a name; one that is an object already stays as it is."""
    if isinstance(name, Optimizer):
        return name
    lowered = name.lower()
    known = _CLASSES.get(lowered) or _class(name, lowered, "An optimizer by its name.")
    return known(**settings)


class Updater:
    """An optimizer with the states of parameters: ``updater(index, gradient, weight)``."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._handle = _tensorc.Updater(*optimizer.texts())

    def __call__(self, index: Any, grad: NDArray, weight: NDArray) -> None:
        self._handle.update(str(index), weight._handle, grad._handle)


def get_updater(optimizer: Optimizer) -> Updater:
    return Updater(optimizer)
