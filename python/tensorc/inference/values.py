"""Values and bindings of ONNX Runtime, for the processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import errors

if TYPE_CHECKING:
    from .options import RunOptions
    from .session import InferenceSession

#: What ONNX calls the types of numpy and ``ml_dtypes``, and their numbers in files.
_ELEMENTS = {
    "float32": ("float", 1),
    "uint8": ("uint8", 2),
    "int8": ("int8", 3),
    "uint16": ("uint16", 4),
    "int16": ("int16", 5),
    "int32": ("int32", 6),
    "int64": ("int64", 7),
    "bool": ("bool", 9),
    "float16": ("float16", 10),
    "float64": ("double", 11),
    "uint32": ("uint32", 12),
    "uint64": ("uint64", 13),
    "bfloat16": ("bfloat16", 16),
    "float8_e4m3fn": ("float8e4m3fn", 17),
    "float8_e4m3fnuz": ("float8e4m3fnuz", 18),
    "float8_e5m2": ("float8e5m2", 19),
    "float8_e5m2fnuz": ("float8e5m2fnuz", 20),
    "uint4": ("uint4", 21),
    "int4": ("int4", 22),
    "float4_e2m1fn": ("float4e2m1", 23),
    "float8_e8m0fnu": ("float8e8m0", 24),
    "uint2": ("uint2", 25),
    "int2": ("int2", 26),
    "float6_e2m3fn": ("float6e2m3", 27),
    "float6_e3m2fn": ("float6e3m2", 28),
}


def _element(dtype: np.dtype) -> tuple[str, int]:
    if dtype.kind in "OUST":
        return "string", 8
    if dtype.name not in _ELEMENTS:
        raise errors.InvalidArgument(f"tensors of {dtype} are not supported")
    return _ELEMENTS[dtype.name]


def _on_processor(device: str) -> None:
    if device.lower() != "cpu":
        raise errors.EPFail(f"device '{device}': values lie in the memory of the processor")


class OrtDevice:
    """Where values lie: ``cpu``."""

    def __init__(self, device_type: str = "cpu", device_id: int = 0) -> None:
        _on_processor(device_type)
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, *_: Any) -> OrtDevice:
        return OrtDevice(ort_device_name, device_id)

    @staticmethod
    def cpu() -> int:
        return 0

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return 0


class OrtValue:
    """A tensor that shares its elements with an array of numpy."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        _element(array.dtype)
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        _on_processor(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        if _element(data.dtype)[1] == onnx_element_type:
            return OrtValue(data)
        names = [name for name, (_, number) in _ELEMENTS.items() if number == onnx_element_type and number >= 16]
        if not names or data.dtype.kind not in "iu" or data.dtype.itemsize != (2 if names == ["bfloat16"] else 1):
            raise errors.InvalidArgument(f"elements of {data.dtype} are no elements of ONNX's type {onnx_element_type}")
        import ml_dtypes

        return OrtValue(data.view(getattr(ml_dtypes, names[0])))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        _on_processor(device_type)
        return OrtValue(np.zeros(tuple(shape), element_type))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(data)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy) if copy else np.asarray(self._array, dtype=dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def update_inplace(self, np_arr: np.ndarray) -> None:
        np.copyto(self._array, np_arr, casting="no")

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return f"tensor({_element(self._array.dtype)[0]})"

    def element_type(self) -> int:
        return _element(self._array.dtype)[1]

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False


class IOBinding:
    """Inputs and outputs of a session that are bound before it runs.

    Outputs that are bound to memory are written there; others are made by each run.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feeds: dict[str, np.ndarray] = {}
        self._targets: dict[str, np.ndarray | None] = {}
        self._results: list[np.ndarray] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        self._feeds[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._feeds[name] = ortvalue.numpy()

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        _on_processor(device_type)
        self._feeds[name] = _array_at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        _on_processor(device_type)
        if buffer_ptr is None:
            self._targets[name] = None
        elif element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        else:
            self._targets[name] = _array_at(buffer_ptr, element_type, shape)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._targets[name] = ortvalue.numpy()

    def _run(self, options: RunOptions | None) -> None:
        names = list(self._targets)
        results = self._session.run(names, self._feeds, options)
        for position, target in enumerate(self._targets.values()):
            if target is not None:
                if target.shape != results[position].shape or target.dtype != results[position].dtype:
                    found = f"{results[position].dtype}{list(results[position].shape)}"
                    bound = f"{target.dtype}{list(target.shape)}"
                    raise errors.InvalidArgument(
                        f"output `{names[position]}` is {found}, it is bound to memory of {bound}"
                    )
                np.copyto(target, results[position])
                results[position] = target
        self._results = results

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(array) for array in self._results]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return list(self._results)

    def clear_binding_inputs(self) -> None:
        self._feeds.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Needs nothing done: runs end before they return."""

    def synchronize_outputs(self) -> None:
        """Needs nothing done: runs end before they return."""


def _array_at(address: int, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    """An array of the memory at an address, which the caller keeps."""
    dtype = np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    import ctypes

    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(tuple(shape))
