"""Learning rates that follow the number of updates."""

from __future__ import annotations

import json
from typing import Any


class LRScheduler:
    """A learning rate by number of updates: warm-up, then decay."""

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0.0, warmup_mode: str = "linear"
    ) -> None:
        self.base_lr = base_lr
        self._warm_up = None
        if warmup_steps:
            self._warm_up = {"steps": warmup_steps, "begin_rate": warmup_begin_lr, "mode": warmup_mode}
        self._decay: dict[str, Any] = {"kind": "none"}

    def dumps(self, rate: float | None = None) -> str:
        """The schedule as text, with a base rate if one is given."""
        base = self.base_lr if rate is None else rate
        return json.dumps({"base_rate": base, "decay": self._decay, "warm_up": self._warm_up})


class FactorScheduler(LRScheduler):
    """Times ``factor`` after every ``step`` updates, until ``stop_factor_lr`` is reached."""

    def __init__(
        self, step: int, factor: float = 1, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warm_up: Any
    ) -> None:
        super().__init__(base_lr, **warm_up)
        self._decay = {"kind": "factor", "step": step, "factor": factor, "stop": stop_factor_lr}


class MultiFactorScheduler(LRScheduler):
    """Times ``factor`` after each of some numbers of updates."""

    def __init__(self, step: list[int], factor: float = 1, base_lr: float = 0.01, **warm_up: Any) -> None:
        super().__init__(base_lr, **warm_up)
        self._decay = {"kind": "multi_factor", "steps": list(step), "factor": factor}


class PolyScheduler(LRScheduler):
    """A power of the share of updates that is left."""

    def __init__(
        self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, **warm_up: Any
    ) -> None:
        super().__init__(base_lr, **warm_up)
        self._decay = {"kind": "poly", "max_update": max_update, "power": pwr, "final_rate": final_lr}


class CosineScheduler(LRScheduler):
    """Half a cosine from the base rate to the final rate."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, **warm_up: Any) -> None:
        super().__init__(base_lr, **warm_up)
        self._decay = {"kind": "cosine", "max_update": max_update, "final_rate": final_lr}
