"""Initial values of parameters."""

from __future__ import annotations

import json
from typing import Any


class Initializer:
    """Initial values by name and settings, as MXNet writes them: ``["xavier", {"magnitude": 2}]``."""

    _name = ""

    def __init__(self, **settings: Any) -> None:
        self._settings = {name: value for name, value in settings.items() if value is not None}

    def dumps(self) -> str:
        return json.dumps([self._name, self._settings])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"


class Zero(Initializer):
    """Zeros."""

    _name = "zero"


class One(Initializer):
    """Ones."""

    _name = "one"


class Constant(Initializer):
    """A number, or numbers for each element."""

    _name = "constant"

    def __init__(self, value: Any) -> None:
        super().__init__(value=value.tolist() if hasattr(value, "tolist") else value)


class Uniform(Initializer):
    """Uniform in ``[-scale, scale)``."""

    _name = "uniform"

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)


class Normal(Initializer):
    """Normal with standard deviation ``sigma``."""

    _name = "normal"

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)


class Orthogonal(Initializer):
    """Rows that are orthogonal to each other."""

    _name = "orthogonal"

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)


class Xavier(Initializer):
    """Scaled by the numbers of inputs and outputs (Glorot and Bengio 2010)."""

    _name = "xavier"

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)


class MSRAPrelu(Initializer):
    """For layers that are followed by a rectifier (He et al. 2015)."""

    _name = "msraprelu"

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__(factor_type=factor_type, slope=slope)


class Bilinear(Initializer):
    """Interpolation kernels for upsampling."""

    _name = "bilinear"


class LSTMBias(Initializer):
    """Zero, but ``forget_bias`` for the forget gate."""

    _name = "lstmbias"

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)


def text_of(initializer: Any) -> str:
    """The text of an initialiser, given as an object or by name."""
    if initializer is None:
        return Uniform(0.01).dumps()
    return initializer if isinstance(initializer, str) else initializer.dumps()
