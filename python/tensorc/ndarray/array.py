"""The class ``NDArray``, and calls of operators."""

from __future__ import annotations

import html
import numbers
from typing import Any, Self

import numpy as np

from .. import _tensorc, context, operators
from ..arithmetic import OPERATORS, Arithmetic
from ..base import MXNetError, dtype_name, extents

_Handle = _tensorc.Array


def invoke(name: str, args: tuple, kwargs: dict[str, Any], out: Any = None, ctx: Any = None) -> Any:
    """Calls an operator. Arrays among the arguments are its operands, everything else its parameters."""
    context.checked(ctx)
    given = operators.Arguments(name, args, kwargs, lambda value: isinstance(value, NDArray))
    targets = None if out is None else [out] if isinstance(out, NDArray) else list(out)
    results = _tensorc.invoke(
        name,
        [operand._handle for operand in given.operands],
        [(key, operand._handle) for key, operand in given.named.items()],
        given.parameters,
        None if targets is None else [target._handle for target in targets],
    )
    if targets is not None:
        return out
    arrays = [NDArray(handle) for handle in results]
    return arrays[0] if len(arrays) == 1 else arrays


def _of(value: Any, like: NDArray) -> NDArray:
    """The value as an array."""
    return value if isinstance(value, NDArray) else NDArray(_Handle.from_numpy(np.asarray(value, dtype=like.dtype)))


def binary(name: str, left: Any, right: Any, out: NDArray | None = None) -> NDArray:
    """An entry of ``OPERATORS`` for arrays, numbers, and what numpy makes arrays of."""
    between, at_right, at_left = OPERATORS[name]
    if isinstance(right, (numbers.Number, np.bool_)):
        return invoke(at_right, (left,), {"scalar": float(right)}, out)  # type: ignore[arg-type]
    if isinstance(left, (numbers.Number, np.bool_)):
        return invoke(at_left, (right,), {"scalar": float(left)}, out)  # type: ignore[arg-type]
    like = left if isinstance(left, NDArray) else right
    return invoke(between, (_of(left, like), _of(right, like)), {}, out)


class NDArray(Arithmetic):
    """A dense row-major array. Calls return before their results are computed; reading waits."""

    __slots__ = ("_handle",)
    # Operators of numpy leave operations with its arrays to this class.
    __array_priority__ = 1000.0

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        return self._handle.shape

    @property
    def dtype(self) -> Any:
        name = self._handle.dtype_name
        return name if name == "bfloat16" else np.dtype(name).type

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def context(self) -> context.Context:
        return context.cpu()

    ctx = context
    stype = "default"

    @property
    def T(self) -> NDArray:
        return invoke("transpose", (self,), {})

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        extent = "x".join(str(n) for n in self.shape)
        return f"\n{self.asnumpy()}\n<NDArray {extent} @{self.context}>"

    def _repr_html_(self) -> str:
        shown = html.escape(np.array2string(self.asnumpy(), threshold=100))
        return f"<pre>{shown}</pre><small>{html.escape(self._handle.dtype_name)}{list(self.shape)}</small>"

    # Reading

    def asnumpy(self) -> np.ndarray:
        """Waits for the elements and copies them."""
        return self._handle.asnumpy()

    def asscalar(self) -> Any:
        if self.size != 1:
            raise ValueError("The current array is not a scalar")
        return self.asnumpy().reshape(())[()]

    item = asscalar

    def wait_to_read(self) -> None:
        self._handle.wait_to_read()

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        if not np.issubdtype(self.dtype, np.integer):
            raise TypeError("only an array of an integer is an index")
        return int(self.asscalar())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("The truth value of an NDArray with multiple elements is ambiguous.")
        return bool(self.asscalar())

    def __iter__(self) -> Any:
        return (self[position] for position in range(len(self)))

    # Memory that is shared with other libraries

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """Waits for everything that uses the array and lends its memory. What either side writes, the other sees."""
        if dl_device is not None and tuple(dl_device) != (1, 0):
            raise BufferError("the array is in the memory of the processor")
        source = self.copy() if copy else self
        return _tensorc.lend_array(source._handle, max_version is not None and max_version[0] >= 1)

    def _view(self) -> np.ndarray:
        """The same memory as an array of numpy."""
        return np.from_dlpack(self) if self.size else self.asnumpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        view = self.asnumpy() if self.dtype == "bfloat16" else self._view()
        return np.array(view, dtype=dtype) if copy else np.asarray(view, dtype=dtype)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._view().__array_interface__

    # Copies and other shapes

    def copy(self) -> NDArray:
        return NDArray(self._handle.copy())

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: dict) -> NDArray:
        return self.copy()

    def copyto(self, other: Any) -> NDArray:
        if not isinstance(other, NDArray):
            context.checked(other)
            return self.copy()
        self._handle.copy_into(other._handle)
        return other

    def as_in_context(self, ctx: Any) -> NDArray:
        context.checked(ctx)
        return self

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        name = dtype_name(dtype)
        return self if not copy and name == self._handle.dtype_name else NDArray(self._handle.cast(name))

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """The same memory in another shape, with MXNet's codes -1, 0, -2, -3 and -4."""
        given = kwargs.pop("shape", shape)
        if kwargs:
            return invoke("Reshape", (self,), {"shape": given, **kwargs})
        given = given[0] if len(given) == 1 and not isinstance(given[0], (int, np.integer)) else given
        if any(extent < -1 for extent in given):
            return invoke("Reshape", (self,), {"shape": tuple(given)})
        dims = [
            self.shape[axis] if extent == 0 and axis < self.ndim else extent
            for axis, extent in enumerate(extents(given))
        ]
        return NDArray(self._handle.reshaped(dims))

    def __getitem__(self, key: Any) -> NDArray:
        if isinstance(key, (NDArray, list, np.ndarray)):
            indices = key if isinstance(key, NDArray) else NDArray(_Handle.from_numpy(np.asarray(key)))
            if indices.dtype == np.bool_:
                raise MXNetError("arrays of truth values are no positions; use `contrib.boolean_mask`")
            return invoke("take", (self, indices), {})
        return NDArray(self._handle.slice(_positions(key, self.ndim)))

    def __setitem__(self, key: Any, value: Any) -> None:
        positions = _positions(key, self.ndim)
        if isinstance(value, (bool, int, float, np.number)):
            self._handle.assign(positions, float(value))
            return
        given = _of(value, self)
        if given.dtype != self.dtype:
            given = given.astype(self.dtype)
        target = self._handle.slice(positions).shape if positions else self.shape
        if given.shape != target:
            given = invoke(
                "broadcast_to", (given.reshape((1,) * (len(target) - given.ndim) + given.shape),), {"shape": target}
            )
        if positions:
            self._handle.assign(positions, given._handle)
        else:
            given._handle.copy_into(self._handle)

    # Arithmetic, in place

    _binary = staticmethod(binary)

    @staticmethod
    def _unary(name: str, operand: NDArray) -> NDArray:
        return invoke(name, (operand,), {})

    def __iadd__(self, other: Any) -> Self:
        binary("add", self, other, self)
        return self

    def __isub__(self, other: Any) -> Self:
        binary("subtract", self, other, self)
        return self

    def __imul__(self, other: Any) -> Self:
        binary("multiply", self, other, self)
        return self

    def __itruediv__(self, other: Any) -> Self:
        binary("divide", self, other, self)
        return self

    def __imod__(self, other: Any) -> Self:
        binary("modulo", self, other, self)
        return self

    def __ipow__(self, other: Any) -> Self:
        binary("power", self, other, self)
        return self

    # Gradients

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        self._handle.attach_grad(grad_req)

    @property
    def grad(self) -> NDArray | None:
        handle = self._handle.grad
        return None if handle is None else NDArray(handle)

    def detach(self) -> NDArray:
        return NDArray(self._handle.detached())

    def backward(self, out_grad: NDArray | None = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        gradients: list[Any] | None = None if out_grad is None else [out_grad._handle]
        _tensorc.backward([self._handle], gradients, None, retain_graph, False)

    # Every other operator as a method

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or operators.parameters(name) is None:
            raise AttributeError(f"'NDArray' object has no attribute '{name}'")
        return lambda *args, out=None, **kwargs: invoke(name, (self, *args), kwargs, out)


def _positions(key: Any, rank: int) -> list[Any]:
    """Positions of the leading axes, as the native module takes them; none for everything."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [item for item in keys if item is Ellipsis]:
        at = next(i for i, item in enumerate(keys) if item is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (rank - len(keys) + 1)
    if all(isinstance(item, slice) and item == slice(None) for item in keys):
        return []
    positions: list[Any] = []
    for item in keys:
        if isinstance(item, slice):
            positions.append((item.start, item.stop, 1 if item.step is None else item.step))
        elif hasattr(item, "__index__"):
            positions.append(item.__index__())
        else:
            raise MXNetError(f"`{item!r}` is no position of an axis: there are numbers, slices and `...`")
    return positions
