"""Checkpoints in MXNet's files."""

from __future__ import annotations

import os
from typing import Any

from . import _tensorc, ndarray
from .callback import BatchEndParam
from .ndarray import NDArray
from .symbol import Symbol


def save_checkpoint(
    prefix: str, epoch: int, symbol: Symbol | None, arg_params: dict, aux_params: dict, **_: Any
) -> None:
    """Writes ``PREFIX-symbol.json`` and ``PREFIX-EPOCH.params``."""
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    named = {f"arg:{name}": array for name, array in arg_params.items()}
    named |= {f"aux:{name}": array for name, array in aux_params.items()}
    ndarray.save(f"{prefix}-{epoch:04d}.params", named)


def load_checkpoint(
    prefix: str | os.PathLike[str], epoch: int
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """The network, its arguments and its auxiliary states as they were saved after an epoch."""
    symbol, arguments, states = _tensorc.load_checkpoint(prefix, epoch)
    of = lambda pairs: {name: NDArray(handle) for name, handle in pairs}
    return Symbol(symbol), of(arguments), of(states)


__all__ = ["BatchEndParam", "load_checkpoint", "save_checkpoint"]
