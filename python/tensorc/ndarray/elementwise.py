"""Functions of arrays or numbers, element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .array import NDArray, binary


def _function(name: str) -> Callable[[Any, Any], NDArray]:
    def function(lhs: Any, rhs: Any) -> NDArray:
        return binary(name, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of arrays or numbers, element by element, with broadcasting."
    return function


add = _function("add")
subtract = _function("subtract")
multiply = _function("multiply")
divide = _function("divide")
modulo = _function("modulo")
power = _function("power")
maximum = _function("maximum")
minimum = _function("minimum")
equal = _function("equal")
not_equal = _function("not_equal")
greater = _function("greater")
greater_equal = _function("greater_equal")
lesser = _function("lesser")
lesser_equal = _function("lesser_equal")
