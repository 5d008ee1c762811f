"""Where models run: on the processor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

CPU = "CPUExecutionProvider"

#: The version of ONNX Runtime whose interface this is.
INTERFACE_VERSION = "1.31.0"


def get_available_providers() -> list[str]:
    return [CPU]


def get_all_providers() -> list[str]:
    return [CPU]


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return INTERFACE_VERSION


def get_build_info() -> str:
    from .. import __version__

    return f"tensorc {__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Needs nothing done: tensorc writes no log."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Needs nothing done: tensorc writes no log."""


def disable_telemetry_events() -> None:
    """Needs nothing done: tensorc sends nothing to anybody."""


def enable_telemetry_events() -> None:
    """Does nothing: tensorc sends nothing to anybody."""


def set_seed(seed: int) -> None:
    """Needs nothing done: random operators draw the same numbers in each process."""


def chosen(providers: Sequence[Any] | None, options: Sequence[dict] | None) -> dict[str, dict[str, str]]:
    """The providers that are asked for and exist, with their options; those that do not exist are warned of."""
    if options and (providers is None or len(options) != len(providers)):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    found: dict[str, dict[str, str]] = {}
    for position, provider in enumerate(providers or [CPU]):
        name, given = provider if isinstance(provider, (tuple, list)) else (provider, None)
        if not isinstance(name, str):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        given = given if given is not None else (options[position] if options else {})
        if name == CPU:
            found[name] = {str(key): str(value) for key, value in given.items()}
        else:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: '{CPU}'",
                stacklevel=3,
            )
    return found or {CPU: {}}
