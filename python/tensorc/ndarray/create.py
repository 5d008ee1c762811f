"""Making arrays, and reading and writing files of them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .. import _tensorc, context
from ..base import dtype_name, extents
from .array import NDArray

_Handle = _tensorc.Array


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """A copy of what numpy makes an array of: of its type if that is an array, else of ``float32``."""
    context.checked(ctx)
    if isinstance(source_array, NDArray):
        return source_array.copy() if dtype is None else source_array.astype(dtype)
    if dtype is None and not isinstance(source_array, np.ndarray):
        dtype = np.float32
    if dtype == "bfloat16":
        return array(source_array, ctx, np.float32).astype("bfloat16")
    return NDArray(_Handle.from_numpy(np.asarray(source_array, dtype=dtype)))


def full(shape: Any, val: float, ctx: Any = None, dtype: Any = None, out: NDArray | None = None) -> NDArray:
    context.checked(ctx)
    if out is not None:
        out[:] = val
        return out
    return NDArray(_Handle.full(extents(shape), float(val), dtype_name(dtype)))


def zeros(shape: Any, ctx: Any = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    return full(shape, 0.0, ctx, dtype, **kwargs)


def ones(shape: Any, ctx: Any = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    return full(shape, 1.0, ctx, dtype, **kwargs)


def empty(shape: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """Zeros."""
    return zeros(shape, ctx, dtype)


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, ctx: Any = None, dtype: Any = None
) -> NDArray:
    begin, end = (0.0, start) if stop is None else (start, stop)
    values = np.repeat(np.arange(begin, end, step), repeat)
    return array(values.astype(dtype_name(dtype)), ctx)


def from_numpy(ndarray: np.ndarray, zero_copy: bool = True) -> NDArray:
    """An array in the memory of one of numpy, or a copy."""
    return from_dlpack(ndarray) if zero_copy else array(ndarray)


def from_dlpack(source: Any) -> NDArray:
    """An array in the memory of another library, which is written by neither side while the other uses it."""
    return NDArray(_tensorc.borrow_array(source))


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Writes arrays to a file that MXNet reads: one, a list, or a dictionary of them."""
    arrays = [data] if isinstance(data, NDArray) else list(data.values()) if isinstance(data, dict) else list(data)
    names = list(data) if isinstance(data, dict) else None
    _tensorc.save_arrays(fname, names, [array._handle for array in arrays])


def load(fname: str | os.PathLike[str]) -> list[NDArray] | dict[str, NDArray]:
    """Reads a file of arrays: a dictionary if they have names, else a list."""
    loaded = [(name, NDArray(handle)) for name, handle in _tensorc.load_arrays(fname)]
    named = bool(loaded) and all(name is not None for name, _ in loaded)
    return {name: array for name, array in loaded if name is not None} if named else [array for _, array in loaded]


def waitall() -> None:
    """Waits until everything is computed."""
    _tensorc.wait_all()


__all__ = ["arange", "array", "empty", "from_dlpack", "from_numpy", "full", "load", "ones", "save", "waitall", "zeros"]
