"""Random arrays and symbols by MXNet's functions, whose parameters are numbers, or arrays of parameters for as many distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Parameters by position and their defaults, before shape, element type and device.
PARAMETERS: dict[str, dict[str, float | None]] = {
    "exponential": {"scale": 1.0},
    "gamma": {"alpha": 1.0, "beta": 1.0},
    "generalized_negative_binomial": {"mu": 1.0, "alpha": 1.0},
    "negative_binomial": {"k": 1, "p": 1.0},
    "normal": {"loc": 0.0, "scale": 1.0},
    "poisson": {"lam": 1.0},
    "randint": {"low": None, "high": None},
    "uniform": {"low": 0.0, "high": 1.0},
}


def functions(call: Callable[..., Any], is_operand: Callable[[Any], bool]) -> dict[str, Callable[..., Any]]:
    """The functions for arrays or symbols, which ``call(operator, args, kwargs)`` makes."""
    found = {name: _function(name, call, is_operand) for name in PARAMETERS}

    def randn(*shape: int, loc: Any = 0.0, scale: Any = 1.0, **kwargs: Any) -> Any:
        """Normal, in a shape that is given by position."""
        return found["normal"](loc, scale, shape=shape, **kwargs)

    def shuffle(data: Any, **kwargs: Any) -> Any:
        """The elements of the first axis in another order."""
        return call("_shuffle", (data,), kwargs)

    return {**found, "randn": randn, "shuffle": shuffle}


def _function(name: str, call: Callable[..., Any], is_operand: Callable[[Any], bool]) -> Callable[..., Any]:
    defaults = PARAMETERS[name]
    order = [*defaults, "shape", "dtype", "ctx", "out"]

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(order):
            raise TypeError(f"{name}() takes {len(order)} arguments by position, {len(args)} were given")
        given = {**defaults, **dict(zip(order, args)), **kwargs}
        values = {parameter: given.pop(parameter) for parameter in defaults}
        missing = [parameter for parameter, value in values.items() if value is None]
        if missing:
            raise TypeError(f"{name}() needs {', '.join(missing)}")
        if name == "exponential":
            values = {"lam": 1.0 / values["scale"]}
        if any(is_operand(value) for value in values.values()):
            return call(f"_sample_{name}", tuple(values.values()), given)
        return call(f"_random_{name}", (), {**values, **given})

    function.__name__ = function.__qualname__ = name
    parameters = ", ".join(f"{parameter}={value}" for parameter, value in defaults.items())
    function.__doc__ = f"Random elements: {name}({parameters}, shape, dtype), of numbers or arrays of parameters."
    return function
