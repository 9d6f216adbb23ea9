"""Estimators around estimators: pipelines, searches, transformed targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection._search import BaseSearchCV  # what all searches share, those of other packages too
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import column_fault, first_line, numbers

__all__ = ["Unwrapped", "require_fitted", "unwrap"]


@dataclass(frozen=True, eq=False)
class Unwrapped:
    """The estimator that was trained, and what happens to X and y before it.

    before   the fitted steps that X goes through, a pipeline per level
    targets  the fitted transformers that y goes through, with the number of dimensions that y had at fit
    """

    estimator: Any
    before: tuple[Pipeline, ...]
    targets: tuple[tuple[Any, int], ...]
    notes: tuple[str, ...]

    def features(self, x: Any) -> Any:
        """X as the estimator saw it."""
        for step in self.before:
            try:
                x = step.transform(x)
            except Exception as error:  # a step may be anybody's code
                fault = column_fault(step, x) if "feature names" in str(error) else None
                own = f"the steps before {type(self.estimator).__name__} cannot take this X: {first_line(error)}"
                raise InputError(f"data: {fault or own}") from error
        x = x if hasattr(x, "shape") else numbers(x, "X")
        fault = column_fault(self.estimator, x)
        if fault:
            raise InputError(f"data: {fault}")
        return x

    def values(self, y: Any) -> Any:
        """y as the estimator saw it."""
        for transformer, dimensions in self.targets:
            array = numbers(y, "y")
            try:
                y = np.asarray(transformer.transform(array.reshape(len(array), -1)))
            except Exception as error:
                raise InputError(
                    f"data: {type(transformer).__name__} cannot take this y: {first_line(error)}"
                ) from error
            y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and dimensions == 1 else y
        return y


def unwrap(model: Any) -> Unwrapped:
    """The trained estimator inside a pipeline, a search or a regressor on transformed targets, however nested."""
    before: list[Pipeline] = []
    targets: list[tuple[Any, int]] = []
    notes: list[str] = []
    estimator = model
    while True:
        if isinstance(estimator, Pipeline):
            notes += _concerns(estimator)
            if len(estimator.steps) > 1:
                before.append(estimator[:-1])
            estimator = estimator.steps[-1][1]
            if estimator is None or isinstance(estimator, str):
                raise InputError("model: this Pipeline ends in passthrough; it must end in the trained estimator")
        elif isinstance(estimator, TransformedTargetRegressor):
            require_fitted(estimator, model)
            targets.append((estimator.transformer_, estimator._training_dim))
            estimator = estimator.regressor_
        elif isinstance(estimator, BaseSearchCV):
            require_fitted(estimator, model)
            if not hasattr(estimator, "best_estimator_"):
                raise InputError(
                    f"model: {type(estimator).__name__} was run with refit=False and kept no model; fit its estimator "
                    "with the parameters that you chose, and audit that"
                )
            estimator = estimator.best_estimator_
        else:
            return Unwrapped(estimator, tuple(before), tuple(targets), tuple(notes))


def require_fitted(estimator: Any, model: Any) -> None:
    """Refuse an estimator that was never fitted, by the name of what the user passed."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise InputError(f"model: this {type(model).__name__} is not fitted; call fit(X, y) first") from None


def _concerns(pipeline: Pipeline) -> list[str]:
    """What a pipeline did at fit that it does not do again."""
    for name, step in pipeline.steps:
        if hasattr(step, "fit_resample"):
            raise InputError(
                f"model: the step {name!r} ({type(step).__name__}) drew other records to train on than X; audit the "
                "final estimator with the records that it drew"
            )
    parts = [pipeline, *pipeline.get_params(deep=True).values()]
    if any(type(part).__name__ == "TargetEncoder" for part in parts):
        return [
            "model: TargetEncoder encodes records by cross-fitting at fit and otherwise afterwards; the features here "
            "are those that the model gives now, and not quite those that it was trained on"
        ]
    return []
