"""Operators of the registry as functions: names, signatures and namespaces, for arrays and symbols alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import _tensorc
from .base import text

#: Beginnings of MXNet's names that are modules there: ``nd.random.uniform`` is ``_random_uniform``.
NAMESPACES = {
    "contrib": ("_contrib_",),
    "image": ("_image_",),
    "linalg": ("_linalg_", "linalg_"),
    "random": ("_random_", "random_", "_sample_", "sample_"),
    "sparse": ("_sparse_",),
}


@functools.cache
def names() -> tuple[str, ...]:
    """Every name by which an operator is found."""
    return tuple(_tensorc.operator_names())


@functools.cache
def parameters(name: str) -> tuple[str, list[str], list[str]] | None:
    """What an operator computes, and its operands and parameters in order; ``None`` if there is none of the name."""
    return _tensorc.operator_parameters(name)


def attribute(module: dict[str, Any], name: str, namespace: Callable, made: Callable) -> Any:
    """An attribute of a module of operators, made when it is first used: a namespace, or the function of an operator."""
    found = namespace(name) if name in NAMESPACES else None
    if found is None and not name.startswith("__"):
        found = made(name)
    if found is None:
        raise AttributeError(f"there is no operator `{name}`")
    module[name] = found
    return found


def attributes(module: dict[str, Any]) -> list[str]:
    """The names of such a module."""
    return sorted({*module, *names(), *NAMESPACES})


class Arguments:
    """The arguments of a call, told apart: operands by position and by name, and parameters as text."""

    def __init__(self, name: str, args: tuple, kwargs: dict[str, Any], is_operand: Callable[[Any], bool]) -> None:
        known = parameters(name)
        order = known[2] if known else []
        self.operands: list[Any] = []
        self.named: dict[str, Any] = {}
        self.parameters: dict[str, str] = {}
        positional = []
        for argument in args:
            if is_operand(argument):
                self.operands.append(argument)
            elif isinstance(argument, (list, tuple)) and argument and all(is_operand(item) for item in argument):
                self.operands.extend(argument)
            else:
                positional.append(argument)
        for key, value in kwargs.items():
            if is_operand(value):
                self.named[key] = value
            elif value is not None:
                self.parameters[key] = text(value)
        free = [
            parameter
            for parameter in order
            if parameter not in self.parameters and kwargs.get(parameter, 0) is not None
        ]
        if len(positional) > len(free):
            raise TypeError(f"{name}() takes {len(free)} parameters by position, {len(positional)} were given")
        for parameter, value in zip(free, positional):
            if value is not None:
                self.parameters[parameter] = text(value)


class Namespace:
    """Operators whose names begin with a prefix, as attributes without it."""

    def __init__(
        self, prefixes: tuple[str, ...], make: Callable[[str], Callable | None], extra: dict | None = None
    ) -> None:
        self._prefixes = prefixes
        self._make = make
        self.__dict__.update(extra or {})

    def __getattr__(self, attribute: str) -> Callable:
        if not attribute.startswith("__"):
            for prefix in self._prefixes:
                function = self._make(prefix + attribute)
                if function is not None:
                    setattr(self, attribute, function)
                    return function
        raise AttributeError(f"there is no operator `{self._prefixes[0]}{attribute}`")

    def __dir__(self) -> list[str]:
        found = {name[len(prefix) :] for prefix in self._prefixes for name in names() if name.startswith(prefix)}
        return sorted(found | {name for name in self.__dict__ if not name.startswith("_")})


def documented(function: Callable, name: str) -> Callable:
    """The function with the operator's name and documentation."""
    doc, operands, order = parameters(name) or ("", [], [])
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\nOperands: {', '.join(operands) or 'none'}. Parameters: {', '.join(order) or 'none'}."
    return function
