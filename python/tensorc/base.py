"""What the front ends with MXNet's names have in common."""

from __future__ import annotations

from typing import Any

import numpy as np


class MXNetError(RuntimeError):
    """A call on arrays, a symbol or a training step is wrong; the text names the operator or variable."""


def text(value: Any) -> str:
    """A parameter as MXNet writes it: ``(3, 3)``, ``True``, ``float16``."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (tuple, list)):
        items = [text(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, (np.dtype, type)):
        return dtype_name(value)
    return str(value)


def dtype_name(dtype: Any) -> str:
    """The name of an element type; ``float32`` if there is none."""
    if dtype is None:
        return "float32"
    if isinstance(dtype, str) and dtype == "bfloat16":
        return dtype
    return np.dtype(dtype).name


def extents(shape: Any) -> list[int]:
    """The extents of a shape, which may be one number."""
    return [int(shape)] if isinstance(shape, (int, np.integer)) else [int(extent) for extent in shape]
