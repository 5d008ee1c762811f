"""What ONNX Runtime has in a module of this name."""

from .onnxruntime_pybind11_state import *
from .onnxruntime_pybind11_state import __all__  # noqa: F401
