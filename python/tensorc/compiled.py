"""Models as functions, what they need, and models compiled ahead of time."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _tensorc
from .inference.signature import NodeArg


def source_of(model: Any) -> Any:
    """What the native module loads: a path, or the bytes of an ONNX model; also of an object of the package ``onnx``."""
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    return bytes(model) if isinstance(model, (bytearray, memoryview)) else model


def rounds(precision: str) -> bool:
    """Whether products round their operands to bf16."""
    if precision not in ("f32", "bf16"):
        raise ValueError(f"precision is `f32` or `bf16`, not `{precision}`")
    return precision == "bf16"


class CompiledModel:
    """A model as a function of arrays.

    Called with arrays in the order of :attr:`inputs` or by name, it returns an array, or a tuple of them if there are several outputs.
    """

    def __init__(self, model: Any, threads: int = 0, precision: str = "f32") -> None:
        self._source = source_of(model)
        self._threads = threads
        self._session = _tensorc.Session(self._source, threads, rounds(precision))
        signature = self._session.signature
        self.inputs = [NodeArg(*stated) for stated in signature.inputs]
        self.outputs = [NodeArg(*stated) for stated in signature.outputs]
        self._names = [stated.name for stated in self.inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(self._names):
            raise TypeError(
                f"the model takes the arrays {', '.join(self._names)}; {len(args)} were given"
            )
        feeds = dict(zip(self._names, args))
        for name, value in kwargs.items():
            if name in feeds:
                raise TypeError(f"`{name}` is given by position and by name")
            feeds[name] = value
        results = self._session.run(None, feeds)
        return results[0] if len(results) == 1 else tuple(results)

    def inspect(self, shapes: Mapping[str, Any] | None = None) -> Inspection:
        """What the model needs for some extents; see :func:`tensorc.inspect`."""
        return inspect(self._source, shapes, self._threads)

    def report(self, path: str | os.PathLike[str], shapes: Mapping[str, Any] | None = None, *, measure: bool = True) -> None:
        """Writes a page about the model; see :func:`tensorc.report`."""
        report(self._source, path, shapes, self._threads, measure=measure)

    def __repr__(self) -> str:
        signature = [f"{stated.name}: {stated.type}{stated.shape}" for stated in self.inputs]
        return f"CompiledModel({', '.join(signature)}) -> {', '.join(stated.name for stated in self.outputs)}"

    def _repr_html_(self) -> str:
        return self.inspect()._repr_html_()


class Inspection:
    """What a model takes, holds, computes and needs.

    ``values`` has the numbers of ``tensorc inspect --json``, which are attributes, too; ``svg`` is a drawing of the memory plan: steps
    from left to right, addresses from bottom to top.
    """

    def __init__(self, values: dict[str, Any], table: str, svg: str) -> None:
        self.values = values
        self.svg = svg
        self._table = table

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(f"'Inspection' object has no attribute '{name}'") from None

    def __str__(self) -> str:
        return self._table

    def __repr__(self) -> str:
        return f"Inspection({self.values['flops']} flops, {self.values['planned_peak_bytes']} bytes)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._table)}</pre>{self.svg}"


def compile(model: Any, *, threads: int = 0, precision: str = "f32") -> CompiledModel:
    """Compiles a model for this machine and returns it as a function.

    ``model`` is a path (ONNX, an MXNet symbol in ``.json``, or text IR in ``.tc``), an ONNX model as bytes, or an object of the package
    ``onnx``. ``threads`` is the number of threads of a run; 0 stands for all that the process may use. With
    ``precision="bf16"`` products with constants and attention round their operands to bf16, on processors with AVX-512 BF16.
    """
    return CompiledModel(model, threads, precision)


def _extents(shapes: Mapping[str, Any] | None) -> dict[str, list[int]]:
    return {name: [given] if isinstance(given, int) else list(given) for name, given in (shapes or {}).items()}


def inspect(model: Any, shapes: Mapping[str, Any] | None = None, threads: int = 0) -> Inspection:
    """What a model takes, holds, computes and needs, for extents by the names of inputs or dimensions; others are 1.

    ``tensorc.inspect("model.onnx", {"batch": 4})``, ``tensorc.inspect("model.onnx", {"image": [1, 3, 224, 224]})``
    """
    values, table, svg = _tensorc.inspect(source_of(model), _extents(shapes), threads)
    return Inspection(json.loads(values), table, svg)


def report(
    model: Any,
    path: str | os.PathLike[str],
    shapes: Mapping[str, Any] | None = None,
    threads: int = 0,
    *,
    measure: bool = True,
) -> None:
    """Writes a page about a model: its graph, its kernels and their times, memory, and what passes did.

    The model runs on made-up inputs, for extents as in :func:`inspect`. Without ``measure`` the same model gives the same bytes.
    """
    _tensorc.report(source_of(model), path, _extents(shapes), threads, 10 if measure else None)


def aot(
    model: Any,
    out: str | os.PathLike[str],
    *,
    emit: str | Sequence[str] = "shared-lib",
    shapes: Mapping[str, Any] | None = None,
    target: str = "native",
    name: str | None = None,
    embed_weights: bool = False,
    linker: str | os.PathLike[str] | None = None,
    runtime_library: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Compiles a model ahead of time and returns the paths of the files that are written: ``out`` with extensions.

    ``emit`` is one or several of ``obj``, ``static-lib``, ``shared-lib``, ``exe``, ``header`` and ``rust``; a header, a manifest and,
    unless ``embed_weights``, a file of weights are written with each. ``shapes`` gives extents by the names of inputs or dimensions; a
    ``range`` leaves a dimension open: ``{"batch": range(1, 65)}``. Libraries and programs need a C compiler, which links them.
    """
    kinds = [emit] if isinstance(emit, str) else list(emit)
    given = shapes or {}
    ranges = {key: (value[0], value[-1], value.step) for key, value in given.items() if isinstance(value, range)}
    fixed = _extents({key: value for key, value in given.items() if not isinstance(value, range)})
    written = _tensorc.compile_ahead(
        source_of(model), os.fspath(out), kinds, fixed, ranges, target, name, embed_weights, linker, runtime_library
    )
    return [os.fspath(path) for path in written]
