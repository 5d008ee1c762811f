from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

__version__: str

class HostMemory:
    """Memory of a result; it has the buffer protocol."""

class ModelSignature:
    """Inputs and outputs as triples of name, shape and type."""

    @property
    def inputs(self) -> list[tuple[str, list[int | str | None] | None, str]]: ...
    @property
    def outputs(self) -> list[tuple[str, list[int | str | None] | None, str]]: ...
    @property
    def overridable(self) -> list[tuple[str, list[int | str | None] | None, str]]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...

class Session:
    def __init__(self, model: str | PathLike[str] | bytes, threads: int = 0) -> None: ...
    @property
    def signature(self) -> ModelSignature: ...
    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray | list[np.ndarray]]: ...
