"""Python's operators for arrays and symbols: which operators of the registry they are."""

from __future__ import annotations

from typing import Any, Self

#: Operator between two operands, with a number at the right, and with a number at the left.
OPERATORS = {
    "add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "subtract": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "multiply": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "modulo": ("broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    "power": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "maximum": ("broadcast_maximum", "_maximum_scalar", "_maximum_scalar"),
    "minimum": ("broadcast_minimum", "_minimum_scalar", "_minimum_scalar"),
    "equal": ("broadcast_equal", "_equal_scalar", "_equal_scalar"),
    "not_equal": ("broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar"),
    "greater": ("broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    "greater_equal": ("broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "lesser": ("broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    "lesser_equal": ("broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
}


class Arithmetic:
    """The operators of Python, by what a class does for an entry of :data:`OPERATORS`."""

    __slots__ = ()

    @staticmethod
    def _binary(name: str, left: Any, right: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def _unary(name: str, operand: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        return self._binary("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._binary("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary("subtract", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary("divide", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._binary("modulo", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary("modulo", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._binary("power", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary("power", other, self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("equal", self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("not_equal", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._binary("greater", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._binary("greater_equal", self, other)

    def __lt__(self, other: Any) -> Self:
        return self._binary("lesser", self, other)

    def __le__(self, other: Any) -> Self:
        return self._binary("lesser_equal", self, other)

    # Comparisons give arrays or symbols, so that these are told apart by what they are.
    def __hash__(self) -> int:
        return id(self)

    def __neg__(self) -> Self:
        return self._unary("negative", self)

    def __abs__(self) -> Self:
        return self._unary("abs", self)
