"""Where arrays are: in the memory of the processor."""

from __future__ import annotations

from typing import Any

from .base import MXNetError


class Context:
    """A device by its type and number."""

    __slots__ = ("device_id", "device_type")

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        if isinstance(device_type, Context):
            device_id, device_type = device_type.device_id, str(device_type.device_type)
        if device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise MXNetError(f"device `{device_type}`: the package computes on processors")
        self.device_type: str = device_type
        self.device_id: int = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


def cpu(device_id: int = 0) -> Context:
    return Context("cpu", device_id)


def gpu(device_id: int = 0) -> Context:
    return Context("gpu", device_id)


def num_gpus() -> int:
    return 0


def current_context() -> Context:
    return cpu()


def checked(ctx: Any) -> Context:
    """The context that arrays are made in, if it is one that there is."""
    if isinstance(ctx, (list, tuple)):
        if len(ctx) != 1:
            raise MXNetError(f"{len(ctx)} devices: the package computes on one")
        ctx = ctx[0]
    return cpu() if ctx is None else Context(ctx)
