"""Options of sessions and runs. tensorc heeds the number of threads and accepts the others, which decide nothing about results."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, ClassVar

from .._tensorc import StopFlag


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

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._defaults = {name: getattr(cls, name) for name in cls.__annotations__}

    def __init__(self) -> None:
        object.__setattr__(self, "_settings", {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, _converted(name, self._defaults[name], value))

    def _setting(self, key: str) -> str:
        settings: dict[str, str] = self.__dict__["_settings"]
        if key not in settings:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return settings[key]

    def _note(self, key: str, value: str) -> None:
        self.__dict__["_settings"][key] = value


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

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_given", {})

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Notes a setting; `tensorc.precision`, `f32` or `bf16`, is that of products, and others decide nothing."""
        self._note(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._setting(key)

    def _precision(self) -> str:
        settings: dict[str, str] = self.__dict__["_settings"]
        return settings.get("tensorc.precision", "f32")

    def _refuse_files(self) -> None:
        """Refuses what would write files that tensorc does not write."""
        for name in ("enable_profiling", "optimized_model_filepath"):
            if getattr(self, name):
                raise NotImplementedError(f"SessionOptions.{name}: sessions write no files")

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Needs nothing done: models are compiled for all extents at once."""

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Needs nothing done: models are compiled for all extents at once."""

    def add_provider(self, name: str, options: dict[str, str] | None = None) -> None:
        raise NotImplementedError(f"SessionOptions.add_provider: pass providers to InferenceSession ({name} was given)")

    def add_initializer(self, name: str, value: Any) -> None:
        """Replaces an initializer of the model by an ``OrtValue`` of its type and shape. Models without it are not changed."""
        given: dict[str, Any] = self.__dict__["_given"]
        if name in given:
            raise RuntimeError(f"an OrtValue for `{name}` was added already")
        given[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """As :meth:`add_initializer`, for several initializers."""
        if len(names) != len(values):
            raise RuntimeError(f"{len(names)} names and {len(values)} values of initializers")
        for name, value in zip(names, values):
            self.add_initializer(name, value)

    def _initializers(self) -> list[tuple[str, Any]]:
        given: dict[str, Any] = self.__dict__["_given"]
        return [(name, value.numpy()) for name, value in given.items()]

    def register_custom_ops_library(self, path: str) -> None:
        raise NotImplementedError(
            "SessionOptions.register_custom_ops_library: libraries of ONNX Runtime cannot be used"
        )


class RunOptions(_Checked):
    """Options of a run. Once ``terminate`` is true, runs with these options end with ``Fail``."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_flag", StopFlag())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate":
            self._stop.set(value)

    @property
    def _stop(self) -> StopFlag:
        return self.__dict__["_flag"]

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Notes a setting, which decides nothing."""
        self._note(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._setting(key)
