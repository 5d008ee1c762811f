"""Measures of outputs against labels, summed over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _tensorc
from .ndarray import NDArray


def _listed(arrays: Any) -> list[Any]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


class EvalMetric:
    """A measure of the library by its name."""

    def __init__(self, name: str) -> None:
        self._handle = _tensorc.Metric(name)
        self.name: str = self._handle.values()[0][0]

    def update(self, labels: Any, preds: Any) -> None:
        of = lambda arrays: [array._handle if isinstance(array, NDArray) else array for array in _listed(arrays)]
        self._handle.update(of(labels), of(preds))

    def reset(self) -> None:
        self._handle.reset()

    def get_name_value(self) -> list[tuple[str, float]]:
        return self._handle.values()

    def get(self) -> tuple[Any, Any]:
        """Name and value, or lists of them."""
        values = self.get_name_value()
        return values[0] if len(values) == 1 else ([name for name, _ in values], [value for _, value in values])


class Accuracy(EvalMetric):
    def __init__(self) -> None:
        super().__init__("acc")


class TopKAccuracy(EvalMetric):
    def __init__(self, top_k: int = 1) -> None:
        super().__init__(f"top_k_accuracy_{top_k}")


class F1(EvalMetric):
    def __init__(self) -> None:
        super().__init__("f1")


class MCC(EvalMetric):
    def __init__(self) -> None:
        super().__init__("mcc")


class Perplexity(EvalMetric):
    def __init__(self, ignore_label: float | None = None) -> None:
        if ignore_label is not None:
            raise NotImplementedError("metric.Perplexity(ignore_label): all labels count")
        super().__init__("perplexity")


class CrossEntropy(EvalMetric):
    def __init__(self) -> None:
        super().__init__("ce")


class NegativeLogLikelihood(EvalMetric):
    def __init__(self) -> None:
        super().__init__("nll_loss")


class MAE(EvalMetric):
    def __init__(self) -> None:
        super().__init__("mae")


class MSE(EvalMetric):
    def __init__(self) -> None:
        super().__init__("mse")


class RMSE(EvalMetric):
    def __init__(self) -> None:
        super().__init__("rmse")


class PearsonCorrelation(EvalMetric):
    def __init__(self) -> None:
        super().__init__("pearsonr")


class Loss(EvalMetric):
    def __init__(self) -> None:
        super().__init__("loss")


class CustomMetric(EvalMetric):
    """The mean of what ``feval(label, prediction)`` gives for arrays of numpy: a value, or a sum and a count."""

    def __init__(self, feval: Callable[[Any, Any], Any], name: str | None = None) -> None:
        self.name: str = name or getattr(feval, "__name__", "custom")
        self._evaluate = feval
        self.reset()

    def update(self, labels: Any, preds: Any) -> None:
        of = lambda array: array.asnumpy() if isinstance(array, NDArray) else array
        for label, pred in zip(_listed(labels), _listed(preds)):
            found = self._evaluate(of(label), of(pred))
            total, count = found if isinstance(found, tuple) else (found, 1)
            self._total += float(total)
            self._count += count

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def get_name_value(self) -> list[tuple[str, float]]:
        return [(self.name, self._total / self._count if self._count else float("nan"))]


class CompositeEvalMetric(EvalMetric):
    """Several metrics at once."""

    def __init__(self, metrics: list[Any] | None = None) -> None:
        self.name = "composite"
        self.metrics = [create(metric) for metric in metrics or []]

    def add(self, metric: Any) -> None:
        self.metrics.append(create(metric))

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def get_name_value(self) -> list[tuple[str, float]]:
        return [pair for metric in self.metrics for pair in metric.get_name_value()]


def create(metric: Any, **settings: Any) -> EvalMetric:
    """A metric by its name, of a function, or of a list of these."""
    if isinstance(metric, EvalMetric):
        return metric
    if callable(metric):
        return CustomMetric(metric)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric(list(metric))
    if metric in ("top_k_accuracy", "top_k_acc"):
        return TopKAccuracy(**settings)
    if settings:
        raise TypeError(f"metric `{metric}` takes no settings by name")
    return EvalMetric(metric)


def np(numpy_feval: Callable[[Any, Any], Any], name: str | None = None) -> CustomMetric:
    """A metric of a function of arrays of numpy."""
    return CustomMetric(numpy_feval, name)
