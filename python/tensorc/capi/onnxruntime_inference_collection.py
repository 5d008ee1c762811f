"""What ONNX Runtime has in a module of this name."""

from ..inference import InferenceSession, IOBinding, OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue"]
