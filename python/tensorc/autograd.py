"""Recording calls on arrays and taking gradients of them."""

from __future__ import annotations

from typing import Any

from . import _tensorc
from .ndarray import NDArray


def record(train_mode: bool = True) -> Any:
    """A scope in which calls are recorded, and run for training unless told otherwise."""
    return _tensorc.ModeScope("record" if train_mode else "record_prediction")


def pause(train_mode: bool = False) -> Any:
    """A scope in which calls are not recorded."""
    if train_mode:
        raise NotImplementedError("autograd.pause(train_mode=True): enter train_mode() inside of pause()")
    return _tensorc.ModeScope("pause")


def train_mode() -> Any:
    return _tensorc.ModeScope("train_mode")


def predict_mode() -> Any:
    return _tensorc.ModeScope("predict_mode")


def is_recording() -> bool:
    return _tensorc.autograd_mode()[0]


def is_training() -> bool:
    return _tensorc.autograd_mode()[1]


def mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
    """Makes arrays variables, whose gradients are written to the given arrays."""
    variables, gradients = _listed(variables), _listed(gradients)
    requests = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else grad_reqs
    for variable, gradient, request in zip(variables, gradients, requests, strict=True):
        variable._handle.attach_grad(request, gradient._handle)


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
    """Takes the gradients of heads by their variables."""
    heads, gradients = _handles(heads), _gradients(head_grads)
    _tensorc.backward(heads, gradients, None, retain_graph, False)


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> Any:
    """The gradients of heads by variables as new arrays: a list if ``variables`` is one."""
    results = _tensorc.backward(
        _handles(heads), _gradients(head_grads), _handles(variables), bool(retain_graph or create_graph), create_graph
    )
    arrays = [NDArray(handle) for handle in results]
    return arrays if isinstance(variables, (list, tuple)) else arrays[0]


def _listed(arrays: Any) -> list[NDArray]:
    return [arrays] if isinstance(arrays, NDArray) else list(arrays)


def _handles(arrays: Any) -> list[Any]:
    return [array._handle for array in _listed(arrays)]


def _gradients(gradients: Any) -> list[Any] | None:
    if gradients is None:
        return None
    return [None if array is None else array._handle for array in _listed(gradients)]
