"""tensorc: a tensor compiler and runtime.

Models with ONNX Runtime's interface::

    import tensorc

    session = tensorc.InferenceSession("model.onnx")
    (scores,) = session.run(None, {"image": image})

``tensorc.install_as_onnxruntime()`` lets packages that import ``onnxruntime`` use it.
"""

from __future__ import annotations

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

__all__ = [
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "errors",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "install_as_onnxruntime",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]
