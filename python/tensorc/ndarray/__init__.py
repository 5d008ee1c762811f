"""Arrays with MXNet's interface, computed in the background.

Every operator of the registry is a function of this module under its names in MXNet.
"""

from __future__ import annotations

from typing import Any

from .. import distributions, operators
from ..operators import NAMESPACES, Namespace
from .array import NDArray, invoke
from .create import (
    arange,
    array,
    empty,
    from_dlpack,
    from_numpy,
    full,
    load,
    ones,
    save,
    waitall,
    zeros,
)
from .elementwise import (
    add,
    divide,
    equal,
    greater,
    greater_equal,
    lesser,
    lesser_equal,
    maximum,
    minimum,
    modulo,
    multiply,
    not_equal,
    power,
    subtract,
)


def _made(name: str) -> Any:
    if operators.parameters(name) is None:
        return None

    def function(*args: Any, out: Any = None, name: str | None = None, ctx: Any = None, **kwargs: Any) -> Any:
        return invoke(operator, args, kwargs, out, ctx)

    operator = name
    return operators.documented(function, name)


def _random(operator: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    return invoke(operator, args, kwargs, kwargs.pop("out", None), kwargs.pop("ctx", None))


def _namespace(name: str) -> Namespace:
    extra = distributions.functions(_random, lambda value: isinstance(value, NDArray)) if name == "random" else None
    return Namespace(NAMESPACES[name], _made, extra)


def __getattr__(name: str) -> Any:
    return operators.attribute(globals(), name, _namespace, _made)


def __dir__() -> list[str]:
    return operators.attributes(globals())


__all__ = [
    "NDArray",
    "add",
    "arange",
    "array",
    "divide",
    "empty",
    "equal",
    "from_dlpack",
    "from_numpy",
    "full",
    "greater",
    "greater_equal",
    "lesser",
    "lesser_equal",
    "load",
    "maximum",
    "minimum",
    "modulo",
    "multiply",
    "not_equal",
    "ones",
    "power",
    "save",
    "subtract",
    "waitall",
    "zeros",
]
