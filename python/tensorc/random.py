"""Seeds, and random arrays by MXNet's names."""

from __future__ import annotations

from typing import Any

from . import _tensorc, ndarray


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Begins the sequence of random numbers of a seed, which initialisers draw from, too."""
    _tensorc.seed(seed_state)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(ndarray.random, name)
