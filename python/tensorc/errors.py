"""What goes wrong with models, as exceptions with the names that ONNX Runtime has for them."""

from __future__ import annotations


class Error(Exception):
    """A model cannot be loaded, compiled or run.

    ``message`` says why, and ``node`` is the name of the node of the model that it is about, or ``None``. The text of the exception
    has the form of ONNX Runtime's: ``[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : message``.
    """

    code = 1
    status = "FAIL"

    def __init__(self, message: str = "", node: str | None = None) -> None:
        self.message = message
        self.node = node
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")

    def __reduce__(self):
        return type(self), (self.message, self.node)


class Fail(Error):
    """Anything without a class of its own, such as a limit that a model exceeds."""


class InvalidArgument(Error):
    """An input is missing, unknown, or of the wrong type or shape; or holds a value that an operator does not take."""

    code = 2
    status = "INVALID_ARGUMENT"


class NoSuchFile(Error):
    """There is no file of this name."""

    code = 3
    status = "NO_SUCHFILE"


class NoModel(Error):
    """No model is loaded."""

    code = 4
    status = "NO_MODEL"


class EngineError(Error):
    """Never raised by tensorc."""

    code = 5
    status = "ENGINE_ERROR"


class RuntimeException(Error):
    """A run fails: memory is short, or tensorc has a fault."""

    code = 6
    status = "RUNTIME_EXCEPTION"


class InvalidProtobuf(Error):
    """The file is no ONNX model."""

    code = 7
    status = "INVALID_PROTOBUF"


class ModelLoaded(Error):
    """Never raised by tensorc."""

    code = 8
    status = "MODEL_LOADED"


class NotImplemented(Error):
    """The model asks for what tensorc does not support; the message lists all of it."""

    code = 9
    status = "NOT_IMPLEMENTED"


class InvalidGraph(Error):
    """The model contradicts itself or the rules of ONNX."""

    code = 10
    status = "INVALID_GRAPH"


class EPFail(Error):
    """An execution provider is asked for that tensorc does not have."""

    code = 11
    status = "EP_FAIL"


__all__ = [
    "EPFail",
    "EngineError",
    "Error",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
]
