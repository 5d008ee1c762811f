"""tensorc under the name of ONNX Runtime."""

from __future__ import annotations

import sys
import types

from . import capi, inference
from .inference.providers import INTERFACE_VERSION


def install_as_onnxruntime() -> None:
    """Lets ``import onnxruntime`` give tensorc, in this process and for whatever is imported from then on.

    To be called before anything imports ONNX Runtime.

    Raises ``RuntimeError`` if the other package is imported already.
    """
    present = sys.modules.get("onnxruntime")
    if present is not None:
        if getattr(present, "__tensorc__", False):
            return
        raise RuntimeError("onnxruntime is imported already; call tensorc.install_as_onnxruntime() before")
    module = types.ModuleType("onnxruntime", inference.__doc__)
    module.__dict__.update({name: getattr(inference, name) for name in inference.__all__})
    module.__dict__.update(__version__=INTERFACE_VERSION, __tensorc__=True, __path__=[], capi=capi)
    sys.modules["onnxruntime"] = module
    sys.modules["onnxruntime.capi"] = capi
    for name in capi.__all__:
        sys.modules[f"onnxruntime.capi.{name}"] = getattr(capi, name)
