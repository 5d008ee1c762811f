"""``Module``: a symbol with parameters that learns from batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _tensorc, context, optimizer
from ..base import MXNetError, dtype_name
from ..initializer import text_of
from ..io import DataBatch, DataDesc
from ..model import load_checkpoint
from ..ndarray import NDArray
from ..symbol import Symbol
from .base import BaseModule


def _descs(shapes: Any) -> list[tuple[str, list[int], str]]:
    """Names, shapes and element types, given as descriptions or as pairs of name and shape."""
    found = []
    for given in shapes or []:
        name, shape = given[0], given[1]
        dtype = given[2] if len(given) > 2 else np.float32
        found.append((name, [int(extent) for extent in shape], dtype_name(dtype)))
    return found


class Module(BaseModule):
    """A network that is bound to arrays of the shapes of batches, with its parameters and an optimizer."""

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        fixed_param_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(logger)
        _check_context(context)
        arguments = symbol.list_arguments()
        self.symbol = symbol
        self.data_names = list(data_names or [])
        self.label_names = [name for name in label_names or [] if name in arguments]
        self._fixed = list(fixed_param_names or [])
        for name in [*self.data_names, *self._fixed]:
            if name not in arguments:
                raise ValueError(f"`{name}` is no argument of the symbol; it has {', '.join(arguments)}")
        self._saved: tuple[dict, dict] | None = None
        self._handle: Any = None
        self._current: Any = None
        self._others: dict[Any, Any] = {}

    # Binding

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Module | None = None,
        grad_req: str = "write",
    ) -> None:
        """Makes the arrays of the network in the shapes that follow from those of batches."""
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        kept = self.get_params() if self.binded and self.params_initialized else None
        self.for_training = for_training
        self._inputs = _descs(data_shapes), self._labels(_descs(data_shapes), _descs(label_shapes))
        request = grad_req if for_training else "null"
        shared = None if shared_module is None else shared_module._handle
        self._handle = _tensorc.Module(
            self.symbol._handle, *self._inputs, self._fixed, request, inputs_need_grad, shared
        )
        self._current, self._others = self._handle, {self._key(self._inputs): self._handle}
        self.binded = True
        self.params_initialized = shared_module is not None and shared_module.params_initialized
        if kept is not None:
            self.set_params(*kept)
        elif self._saved is not None:
            self.set_params(*self._saved)

    def _labels(self, data: list, labels: list) -> list[tuple[str, list[int], str]]:
        """The labels that the symbol has, in the shapes that follow where none are given."""
        given = {name: (name, shape, dtype) for name, shape, dtype in labels}
        missing = [name for name in self.label_names if name not in given]
        if missing:
            shapes, _, _ = self.symbol.infer_shape(**{name: shape for name, shape, _ in data})
            if shapes is None:
                raise MXNetError(
                    f"the shapes of {', '.join(missing)} do not follow from those of the data; give label_shapes"
                )
            inferred = dict(zip(self.symbol.list_arguments(), shapes))
            given |= {name: (name, list(inferred[name]), "float32") for name in missing}
        return [given[name] for name in self.label_names]

    @staticmethod
    def _key(inputs: tuple[list, list]) -> Any:
        return tuple((name, tuple(shape)) for side in inputs for name, shape, _ in side)

    @property
    def data_shapes(self) -> list[DataDesc]:
        return [DataDesc(name, tuple(shape)) for name, shape, _ in self._inputs[0]]

    @property
    def label_shapes(self) -> list[DataDesc]:
        return [DataDesc(name, tuple(shape)) for name, shape, _ in self._inputs[1]]

    @property
    def output_names(self) -> list[str]:
        return self.symbol.list_outputs()

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, output.shape) for name, output in zip(self.output_names, self.get_outputs())]

    # Parameters

    def init_params(
        self,
        initializer: Any = None,
        arg_params: dict | None = None,
        aux_params: dict | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Gives parameters their initial values: the given ones, and those of the initialiser for the rest."""
        if self.params_initialized and not force_init:
            return
        self._require(self.binded, "bind")
        if arg_params is None or allow_missing or initializer is not None:
            self._handle.init_params(text_of(initializer))
        self.params_initialized = True
        if arg_params is not None:
            self._set(arg_params, aux_params or {}, partial=allow_missing or initializer is not None)

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Copies of parameters and of auxiliary states, by name."""
        self._require(self.params_initialized, "init_params")
        arguments, states = self._handle.params()
        return {name: NDArray(array) for name, array in arguments}, {name: NDArray(array) for name, array in states}

    def set_params(
        self,
        arg_params: dict,
        aux_params: dict,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        if force_init or not self.params_initialized:
            self.params_initialized = True
            self._set(arg_params, aux_params, allow_missing)

    def _set(self, arguments: dict, states: dict, partial: bool) -> None:
        of = lambda arrays: [
            (name, array._handle if isinstance(array, NDArray) else array) for name, array in arrays.items()
        ]
        self._handle.set_params(of(arguments), of(states or {}), partial)

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        self._handle.save_checkpoint(prefix, epoch, save_optimizer_states)

    @staticmethod
    def load(prefix: str, epoch: int, **kwargs: Any) -> Module:
        """A module of a checkpoint, which takes the saved parameters when it is bound."""
        symbol, arguments, states = load_checkpoint(prefix, epoch)
        module = Module(symbol, **kwargs)
        module._saved = arguments, states
        return module

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Sets the optimizer. Gradients are divided by the batch size unless ``rescale_grad`` says otherwise."""
        if self.optimizer_initialized and not force_init:
            return
        self._require(self.binded and self.params_initialized, "init_params")
        if kvstore not in (None, "local", "device", "local_allreduce_cpu"):
            raise MXNetError(f"kvstore `{kvstore}`: a module of the package learns in one process")
        self._handle.init_optimizer(*_optimizer(optimizer, dict(optimizer_params)).texts())
        self.optimizer_initialized = True

    # Steps

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs for a batch, of any batch size."""
        training = self.for_training if is_train is None else is_train
        self._current = self._bound_to(data_batch)
        self._current.forward(*self._arrays(data_batch), training)

    def backward(self, out_grads: Any = None) -> None:
        heads = [] if out_grads is None else [out_grads] if isinstance(out_grads, NDArray) else list(out_grads)
        self._current.backward([head._handle for head in heads])

    def update(self) -> None:
        """Moves the parameters by their gradients."""
        self._require(self.optimizer_initialized, "init_optimizer")
        self._current.update()

    def _step(self, batch: DataBatch) -> None:
        """Outputs, gradients and updates, as one plan."""
        self._current = self._bound_to(batch)
        self._current.step(*self._arrays(batch))

    def _bound_to(self, batch: DataBatch) -> Any:
        """The module for the shapes of a batch; all share the parameters."""
        self._require(self.binded, "bind")
        data = [(desc[0], list(array.shape), desc[2]) for desc, array in zip(self._inputs[0], batch.data)]
        if [shape for _, shape, _ in data] == [shape for _, shape, _ in self._inputs[0]]:
            return self._handle
        given = [(desc[0], list(array.shape), desc[2]) for desc, array in zip(self._inputs[1], batch.label or [])]
        inputs = data, self._labels(data, given)
        key = self._key(inputs)
        if key not in self._others:
            self._others[key] = _tensorc.Module(self.symbol._handle, *inputs, self._fixed, "write", False, self._handle)
        return self._others[key]

    def _arrays(self, batch: DataBatch) -> tuple[list[Any], list[Any]]:
        data, labels = list(batch.data), list(batch.label or [])[: len(self._inputs[1])]
        if len(labels) < len(self._inputs[1]):
            shapes, _, _ = self.symbol.infer_shape(
                **{desc[0]: array.shape for desc, array in zip(self._inputs[0], data)}
            )
            known = dict(zip(self.symbol.list_arguments(), shapes or []))
            labels = [np.zeros(known.get(name, shape), dtype) for name, shape, dtype in self._inputs[1]]
        return _converted(data, self._inputs[0]), _converted(labels, self._inputs[1])

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        return [NDArray(array) for array in self._current.outputs()]

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        return [NDArray(self._current.gradient(name)) for name in self.data_names]


def _check_context(ctx: Any) -> None:
    context.checked(ctx)


def _optimizer(given: Any, settings: dict) -> optimizer.Optimizer:
    return given if isinstance(given, optimizer.Optimizer) else optimizer.create(given, **settings)


def _converted(arrays: list[Any], inputs: list[tuple[str, list[int], str]]) -> list[Any]:
    """The arrays in the element types of the inputs."""
    found: list[Any] = []
    for array, (_, _, dtype) in zip(arrays, inputs):
        if isinstance(array, NDArray):
            found.append((array if dtype_name(array.dtype) == dtype else array.astype(dtype))._handle)
        else:
            found.append(np.asarray(array, dtype=dtype))
    return found
