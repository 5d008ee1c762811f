"""Symbols bound to arrays."""

from __future__ import annotations

from typing import Any

from . import _tensorc
from .base import MXNetError, dtype_name, extents
from .ndarray import NDArray
from .symbol import Symbol


def _by_name(names: list[str], arrays: Any) -> dict[str, NDArray]:
    """Arrays by the names of variables, given so or in their order."""
    if arrays is None:
        return {}
    pairs = arrays.items() if isinstance(arrays, dict) else zip(names, arrays, strict=True)
    return {name: array for name, array in pairs if array is not None}


def _requests(names: list[str], grad_req: Any) -> tuple[dict[str, str], str | None]:
    if isinstance(grad_req, str):
        return {}, grad_req
    if isinstance(grad_req, dict):
        return dict(grad_req), "null"
    return dict(zip(names, grad_req, strict=True)), None


class Executor:
    """A symbol with its arrays; it runs forward and backward."""

    def __init__(self, symbol: Symbol, handle: Any) -> None:
        self._symbol = symbol
        self._handle = handle
        self.arg_dict = {name: NDArray(array) for name, array in handle.arguments()}
        self.grad_dict = {name: NDArray(array) for name, array in handle.gradients()}
        self.aux_dict = {name: NDArray(array) for name, array in handle.auxiliaries()}

    @staticmethod
    def _simple(symbol: Symbol, grad_req: Any, types: dict, shapes: dict) -> Executor:
        requests, default = _requests(symbol.list_arguments(), grad_req)
        dims = {name: extents(shape) for name, shape in shapes.items()}
        dtypes = {name: dtype_name(dtype) for name, dtype in types.items()}
        return Executor(symbol, _tensorc.Executor(symbol._handle, True, dims, dtypes, {}, {}, requests, default))

    @staticmethod
    def _bound(symbol: Symbol, args: Any, gradients: Any, grad_req: Any, states: Any) -> Executor:
        names = symbol.list_arguments()
        arrays = _by_name(names, args) | _by_name(symbol.list_auxiliary_states(), states)
        wanted = _by_name(names, gradients)
        requests, default = _requests(names, grad_req)
        if default is not None:
            # Gradients are computed where there are arrays for them.
            requests, default = {name: requests.get(name, default) for name in wanted}, None
        handle = _tensorc.Executor(
            symbol._handle,
            False,
            {},
            {},
            {name: array._handle for name, array in arrays.items()},
            {name: array._handle for name, array in wanted.items()},
            requests,
            default,
        )
        return Executor(symbol, handle)

    @property
    def arg_arrays(self) -> list[NDArray]:
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[NDArray | None]:
        return [self.grad_dict.get(name) for name in self.arg_dict]

    @property
    def aux_arrays(self) -> list[NDArray]:
        return list(self.aux_dict.values())

    @property
    def outputs(self) -> list[NDArray]:
        return [NDArray(array) for array in self._handle.outputs()]

    @property
    def output_dict(self) -> dict[str, NDArray]:
        return dict(zip(self._symbol.list_outputs(), self.outputs))

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Computes the outputs; arrays by name are copied to arguments before."""
        for name, value in kwargs.items():
            if name not in self.arg_dict:
                raise MXNetError(f"`{name}` is no argument of the symbol; it has {', '.join(self.arg_dict)}")
            self.arg_dict[name][:] = value
        self._handle.forward(is_train)
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Computes the gradients, after ``forward(is_train=True)``."""
        heads = [] if out_grads is None else [out_grads] if isinstance(out_grads, NDArray) else list(out_grads)
        self._handle.backward([head._handle for head in heads])

    def copy_params_from(
        self, arg_params: dict, aux_params: dict | None = None, allow_extra_params: bool = False
    ) -> None:
        for known, given in ((self.arg_dict, arg_params), (self.aux_dict, aux_params or {})):
            for name, array in given.items():
                if name in known:
                    known[name][:] = array
                elif not allow_extra_params:
                    raise MXNetError(f"`{name}` is no array of the executor")
