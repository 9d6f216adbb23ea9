"""Which front door a model goes through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from sklearn.base import BaseEstimator

from noshadow.errors import InputError
from noshadow.extract.found import Extracted, Fits
from noshadow.extract.sklearn import extract_sklearn
from noshadow.extract.torch import extract_torch
from noshadow.layer import LastLayer
from noshadow.objective import Objective


def extract(
    model: Any,
    data: Any = None,
    objective: Objective | None = None,
    *,
    layer: str | None = None,
    output: str | int | None = None,
    batch_size: int = 256,
    fits: Fits = lambda _: None,
    progress: bool | None = None,
) -> Extracted:
    """The last layer of a torch module, a scikit-learn estimator, or a LastLayer itself.

    The doors get the objective with its loss read (``Objective.resolved``): a stated loss is in head, class_weight and
    label_smoothing. A layer that contradicts it is refused here, whatever the door. ``fits`` is told the size of the
    head as soon as it is known, before the forward pass where that can be, and may refuse it.
    """
    objective = objective or Objective()
    choices: dict[str, Any] = {"layer": layer, "output": output}
    if isinstance(model, LastLayer):
        for name, value in {"data": data, **objective.stated(), **choices}.items():
            if value is not None:
                raise InputError(f"{name}: a LastLayer already holds it; pass {name} to LastLayer, or leave it out")
        return Extracted(model, "LastLayer")
    objective = objective.resolved()
    if data is None:
        raise InputError("data: pass the training data, as a Dataset, a DataLoader or (X, y)")
    if isinstance(model, torch.nn.Module):
        found = extract_torch(model, data, objective, **choices, batch_size=batch_size, fits=fits, progress=progress)
    elif isinstance(model, BaseEstimator):
        for name, value in {
            "weight_decay": objective.weight_decay,
            "optimizer": objective.optimizer,
            **choices,
        }.items():
            if value is not None:
                raise InputError(f"{name}: it is for torch modules; scikit-learn estimators carry their own")
        found = extract_sklearn(model, data, objective, fits)
    else:
        raise InputError(
            f"model: expected a torch Module, a scikit-learn estimator or a LastLayer, got {type(model).__name__}"
        )
    objective.require(found.layer.head)
    return found if found.index is not None else replace(found, index=_index(data))


def _index(data: Any) -> pd.Index[Any] | None:
    """The index of X where it is a frame with one of its own."""
    first = data[0] if isinstance(data, (tuple, list)) and data else None
    if isinstance(first, (pd.DataFrame, pd.Series)) and not isinstance(first.index, pd.RangeIndex):
        return first.index
    return None
