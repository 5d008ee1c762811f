"""``BucketingModule``: networks for examples of several lengths, which share parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .. import optimizer as optimizers
from ..base import MXNetError
from ..io import DataBatch, DataDesc
from ..model import load_checkpoint
from ..ndarray import NDArray
from ..symbol import Symbol
from .base import BaseModule
from .module import Module


class BucketingModule(BaseModule):
    """A module for each key of batches, made when the first batch of the key comes.

    ``sym_gen(key)`` returns the symbol for a key and the names of its data and labels. All modules share the parameters, the optimizer
    and memory of the one for ``default_bucket_key``, which has every parameter, and should be the largest.
    """

    def __init__(
        self,
        sym_gen: Callable[[Any], tuple[Symbol, Sequence[str] | None, Sequence[str] | None]],
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Any = None,
        fixed_param_names: Sequence[str] | None = None,
    ) -> None:
        if default_bucket_key is None:
            raise ValueError("BucketingModule needs a default_bucket_key")
        super().__init__(logger)
        self._sym_gen = sym_gen
        self._default_key = default_bucket_key
        self._context = context
        self._fixed = fixed_param_names
        self._buckets: dict[Any, Module] = {}
        self._first = self._current = self._made(default_bucket_key)
        self._bound: dict[str, Any] = {}

    def _made(self, key: Any) -> Module:
        symbol, data_names, label_names = self._sym_gen(key)
        return Module(symbol, data_names, label_names, self.logger, self._context, self._fixed)

    # What the present bucket has

    @property
    def symbol(self) -> Symbol:  # type: ignore[override]
        return self._current.symbol

    @property
    def data_names(self) -> list[str]:
        return self._current.data_names

    @property
    def label_names(self) -> list[str]:
        return self._current.label_names

    @property
    def output_names(self) -> list[str]:
        return self._current.output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._current.data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        return self._current.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._current.output_shapes

    # Binding

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str = "write",
    ) -> None:
        """Binds the network of the default key."""
        if shared_module is not None:
            raise NotImplementedError(
                "BucketingModule.bind(shared_module): its modules share parameters with each other"
            )
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self.for_training = for_training
        self._bound = {"for_training": for_training, "inputs_need_grad": inputs_need_grad, "grad_req": grad_req}
        self._first.bind(data_shapes, label_shapes, force_rebind=force_rebind, **self._bound)
        self._current, self._buckets = self._first, {self._default_key: self._first}
        self.binded, self.params_initialized = True, self._first.params_initialized

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Goes to the network of a key, which is made for these shapes if there is none yet."""
        self._require(self.binded, "bind")
        if bucket_key not in self._buckets:
            made = self._made(bucket_key)
            parameters = lambda of: {*of.symbol.list_arguments(), *of.symbol.list_auxiliary_states()}
            own = parameters(made) - {*made.data_names, *made.label_names}
            more = sorted(own - parameters(self._first))
            if more:
                raise MXNetError(
                    f"the network of bucket `{bucket_key}` has parameters that the default one lacks: {', '.join(more)}"
                )
            made.bind(data_shapes, label_shapes, shared_module=self._first, **self._bound)
            made.optimizer_initialized = self.optimizer_initialized
            self._buckets[bucket_key] = made
        self._current = self._buckets[bucket_key]

    def prepare(self, data_batch: DataBatch, sparse_row_id_fn: Any = None) -> None:
        """Makes the network of a batch before the batch comes."""
        present = self._current
        self._switch(data_batch)
        self._current = present

    def _switch(self, batch: DataBatch) -> None:
        key = self._default_key if batch.bucket_key is None else batch.bucket_key
        if batch.bucket_key is not None and key not in self._buckets and batch.provide_data is None:
            raise MXNetError(f"the batch of bucket `{key}` does not say what its arrays are (provide_data)")
        self.switch_bucket(key, batch.provide_data, batch.provide_label)

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
        self._first.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self._initialized()

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        return self._first.get_params()

    def set_params(
        self,
        arg_params: dict,
        aux_params: dict,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        self._first.set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        self._initialized()

    def _initialized(self) -> None:
        self.params_initialized = True
        for module in self._buckets.values():
            module.params_initialized = True

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        """Writes the parameters, and the network of the default key."""
        self._first.save_checkpoint(prefix, epoch, save_optimizer_states)

    @staticmethod
    def load(
        prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **kwargs: Any
    ) -> BucketingModule:
        """A module with the parameters of a checkpoint, which it takes when it is bound."""
        if sym_gen is None:
            raise ValueError("BucketingModule.load needs sym_gen, as BucketingModule does")
        module = BucketingModule(sym_gen, default_bucket_key, **kwargs)
        _, arguments, states = load_checkpoint(prefix, epoch)
        module._first._saved = arguments, states
        return module

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: str | optimizers.Optimizer = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        if self.optimizer_initialized and not force_init:
            return
        self._first.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True
        for module in self._buckets.values():
            module.optimizer_initialized = True

    # Steps

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        self._switch(data_batch)
        self._current.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        self._current.backward(out_grads)

    def update(self) -> None:
        self._current.update()

    def _step(self, batch: DataBatch) -> None:
        self._switch(batch)
        self._current._step(batch)

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray]:
        return self._current.get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray]:
        return self._current.get_input_grads(merge_multi_context)
