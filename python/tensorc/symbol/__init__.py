"""Networks with MXNet's interface, written down before they are run.

Every operator of the registry is a function of this module under its names in MXNet.
"""

from __future__ import annotations

from typing import Any

from .. import distributions, operators
from ..operators import NAMESPACES, Namespace
from .symbol import Group, Symbol, Variable, apply, fromjson, load, load_json, ones, var, zeros


def _made(name: str) -> Any:
    if operators.parameters(name) is None:
        return None

    def function(*args: Any, name: str | None = None, attr: dict[str, str] | None = None, **kwargs: Any) -> Symbol:
        return apply(operator, args, kwargs, name, attr)

    operator = name
    return operators.documented(function, name)


def _random(operator: str, args: tuple, kwargs: dict[str, Any]) -> Symbol:
    return apply(operator, args, kwargs, kwargs.pop("name", None))


def _namespace(name: str) -> Namespace:
    extra = distributions.functions(_random, lambda value: isinstance(value, Symbol)) if name == "random" else None
    return Namespace(NAMESPACES[name], _made, extra)


def __getattr__(name: str) -> Any:
    return operators.attribute(globals(), name, _namespace, _made)


def __dir__() -> list[str]:
    return operators.attributes(globals())


__all__ = ["Group", "Symbol", "Variable", "apply", "fromjson", "load", "load_json", "ones", "var", "zeros"]
