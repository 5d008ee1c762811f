"""tensorc: a tensor compiler and runtime.

Models with ONNX Runtime's interface::

    import tensorc

    session = tensorc.InferenceSession("model.onnx")
    (scores,) = session.run(None, {"image": image})

``tensorc.install_as_onnxruntime()`` lets packages that import ``onnxruntime`` use it.

Models as functions, and ahead of time: :func:`compile`, :func:`inspect`, :func:`report`, :func:`aot`.

Arrays and training with MXNet's interface: ``import tensorc as mx``, then ``mx.nd``, ``mx.sym``, ``mx.autograd``, ``mx.mod``, ``mx.io``,
``mx.metric``, ``mx.init``, ``mx.optimizer``.
"""

from __future__ import annotations

import importlib as _importlib

from . import capi, errors
from ._onnxruntime import install_as_onnxruntime
from ._tensorc import __version__
from .errors import Error
from .inference import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    InferenceSession,
    IOBinding,
    ModelMetadata,
    NodeArg,
    OrtDevice,
    OrtValue,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from .compiled import CompiledModel, Inspection, aot, compile, inspect, report

#: Parts with MXNet's names, which are loaded when they are first used.
_PARTS = {
    "autograd": "autograd",
    "base": "base",
    "callback": "callback",
    "context": "context",
    "executor": "executor",
    "init": "initializer",
    "initializer": "initializer",
    "io": "io",
    "lr_scheduler": "lr_scheduler",
    "metric": "metric",
    "mod": "module",
    "model": "model",
    "module": "module",
    "nd": "ndarray",
    "ndarray": "ndarray",
    "operators": "operators",
    "optimizer": "optimizer",
    "random": "random",
    "sym": "symbol",
    "symbol": "symbol",
}

#: Functions of these parts that are MXNet's at the top.
_NAMES = {
    "Context": "context",
    "MXNetError": "base",
    "cpu": "context",
    "current_context": "context",
    "from_dlpack": "ndarray",
    "gpu": "context",
    "num_gpus": "context",
}


def __getattr__(name: str):
    if name in _PARTS:
        found = _importlib.import_module(f".{_PARTS[name]}", __name__)
    elif name in _NAMES:
        found = getattr(_importlib.import_module(f".{_NAMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module 'tensorc' has no attribute '{name}'")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, *_NAMES})


__all__ = [
    "CompiledModel",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Inspection",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "aot",
    "capi",
    "compile",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "errors",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "inspect",
    "install_as_onnxruntime",
    "report",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]
