"""Which front door a model goes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from sklearn.base import BaseEstimator

from noshadow.errors import InputError
from noshadow.extract.sklearn import extract_sklearn
from noshadow.extract.torch import extract_torch
from noshadow.layer import LastLayer


@dataclass(frozen=True)
class Extracted:
    """A layer, what the model is called in reports, and the records' own names where the data carry them."""

    layer: LastLayer
    source: str
    index: pd.Index[Any] | None = None


def extract(
    model: Any,
    data: Any = None,
    *,
    head: str | None = None,
    ridge: float | None = None,
    weight_decay: float | None = None,
    batch_size: int = 256,
    progress: bool | None = None,
) -> Extracted:
    """The last layer of a torch module, a scikit-learn estimator, or a LastLayer itself."""
    if isinstance(model, LastLayer):
        given = {"data": data, "head": head, "ridge": ridge, "weight_decay": weight_decay}
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name}: a LastLayer already holds it; pass {name} to LastLayer, or leave it out")
        return Extracted(model, "LastLayer")
    if data is None:
        raise InputError("data: pass the training data, as a Dataset, a DataLoader or (X, y)")
    if isinstance(model, torch.nn.Module):
        layer = extract_torch(
            model,
            data,
            head=head,
            ridge=ridge,
            weight_decay=weight_decay,
            batch_size=batch_size,
            progress=progress,
        )
    elif isinstance(model, BaseEstimator):
        if weight_decay is not None:
            raise InputError("weight_decay: it is a torch setting; scikit-learn estimators carry their own penalty")
        layer = extract_sklearn(model, data, head=head, ridge=ridge)
    else:
        raise InputError(
            f"model: expected a torch Module, a scikit-learn estimator or a LastLayer, got {type(model).__name__}"
        )
    return Extracted(layer, type(model).__name__, _index(data))


def _index(data: Any) -> pd.Index[Any] | None:
    """The index of X where it is a frame with one of its own."""
    first = data[0] if isinstance(data, (tuple, list)) and data else None
    if isinstance(first, (pd.DataFrame, pd.Series)) and not isinstance(first.index, pd.RangeIndex):
        return first.index
    return None
