"""Options of sessions and runs. tensorc heeds the number of threads and accepts the others, which decide nothing about results."""

from __future__ import annotations

import enum
from typing import Any


class GraphOptimizationLevel(enum.IntEnum):
    """How much ONNX Runtime changes a graph. tensorc compiles every model in the same way."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether nodes run side by side. tensorc decides that by itself."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The order of nodes. tensorc chooses one that saves memory."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Checked:
    """Attributes with the type of their default; there are no others."""

    _defaults: dict[str, Any] = {}

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, _converted(name, self._defaults[name], value))


def _converted(name: str, default: Any, value: Any) -> Any:
    kind = type(default)
    if issubclass(kind, enum.IntEnum):
        suits = isinstance(value, kind)
    elif kind is int:
        suits = hasattr(value, "__index__")
        value = value.__index__() if suits else value
    else:
        suits = isinstance(value, kind)
    if not suits:
        raise TypeError(f"`{name}` is of type {kind.__name__}, {value!r} was given")
    return value


class SessionOptions(_Checked):
    """Options of a session.

    ``intra_op_num_threads`` is the number of threads of a run; 0 stands for all that the process may use.
    """

    _defaults = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_entries", {})

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Notes a setting, which decides nothing."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Needs nothing done: models are compiled for all extents at once."""

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Needs nothing done: models are compiled for all extents at once."""

    def add_provider(self, name: str, options: dict[str, str] | None = None) -> None:
        raise NotImplementedError(f"SessionOptions.add_provider: pass providers to InferenceSession ({name} was given)")

    def add_initializer(self, name: str, value: Any) -> None:
        raise NotImplementedError("SessionOptions.add_initializer: tensors of a model cannot be replaced")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        raise NotImplementedError("SessionOptions.add_external_initializers: tensors of a model cannot be replaced")

    def register_custom_ops_library(self, path: str) -> None:
        raise NotImplementedError("SessionOptions.register_custom_ops_library: libraries of ONNX Runtime cannot be used")


class RunOptions(_Checked):
    """Options of a run. ``terminate`` is looked at when the run begins."""

    _defaults = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_entries", {})

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Notes a setting, which decides nothing."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._entries[key]
