"""``InferenceSession`` with the signatures of ONNX Runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._tensorc import Session as _Session
from ..compiled import rounds, source_of
from . import providers as _providers
from .options import RunOptions, SessionOptions
from .signature import ModelMetadata, NodeArg
from .values import IOBinding, OrtValue


class InferenceSession:
    """A model, compiled for the machine that it runs on.

    ``path_or_bytes`` names a file, or is an ONNX model as ``bytes``. Shapes may differ from run to run. Threads may call
    :meth:`run` at the same time.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict] | None = None,
        **kwargs: Any,
    ) -> None:
        if "disabled_optimizers" in kwargs:
            kwargs.pop("disabled_optimizers")
        if kwargs:
            raise TypeError(f"InferenceSession() got an unexpected keyword argument '{next(iter(kwargs))}'")
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._options._refuse_files()
        self._providers = _providers.chosen(providers, provider_options)
        self._start = time.time_ns()
        threads = max(self._options.intra_op_num_threads, 0)
        self._session = _Session(
            source_of(path_or_bytes), threads, rounds(self._options._precision()), self._options._initializers()
        )
        # Bound once: a run of a small model takes a microsecond.
        self._run = self._session.run
        signature = self._session.signature
        self._inputs = [NodeArg(*stated) for stated in signature.inputs]
        self._outputs = [NodeArg(*stated) for stated in signature.outputs]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model on arrays by name and returns the outputs of the given names; all if there are none.

        Arrays without gaps are not copied, and the results are not either. Nothing may write to ``input_feed``'s arrays meanwhile.
        """
        if run_options is None:
            return self._run(output_names, input_feed)
        return self._run(output_names, input_feed, run_options._stop)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs the model in another thread, which calls ``callback(results, user_data, error)`` in the end."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:  # noqa: BLE001 - the callback is told
                results, error = [], str(raised)
            callback(results, user_data, error)

        threading.Thread(target=work, name="tensorc-run", daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue.ortvalue_from_numpy(array) for array in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding._run(run_options)

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs with a value in the model. A run may give another one."""
        return [NodeArg(*stated) for stated in self._session.signature.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(self._session.signature.metadata)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return self._providers

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[dict] | None = None
    ) -> None:
        self._providers = _providers.chosen(providers, provider_options)

    def enable_fallback(self) -> None:
        """Needs nothing done: there is one provider."""

    def disable_fallback(self) -> None:
        """Needs nothing done: there is one provider."""

    def get_profiling_start_time_ns(self) -> int:
        return self._start

    def end_profiling(self) -> str:
        raise NotImplementedError("InferenceSession.end_profiling: sessions write no files")
