"""last_layer(): from a model of any kind to a LastLayer that knows where it came from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from noshadow.errors import NoshadowWarning
from noshadow.extract import Extracted, extract
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.origin import Origin
from noshadow.progress import Progress
from noshadow.provenance import weights_sha256

__all__ = ["features_of", "last_layer"]


def last_layer(
    model: Any,
    data: Any = None,
    *,
    head: str | None = None,
    ridge: float | None = None,
    weight_decay: float | None = None,
    optimizer: Any = None,
    loss: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    label_smoothing: float | None = None,
    layer: str | None = None,
    output: str | int | None = None,
    batch_size: int = 256,
    progress: Progress = None,
    cache: str | Path | None = None,
    cache_dtype: str | None = None,
) -> LastLayer:
    """The last layer of a model, seen through its training records: what ``noshadow.audit`` starts from.

    Its ``save`` writes a file that somebody else can audit without the model, the data or any code.

    Parameters
    ----------
    model : torch.nn.Module or scikit-learn estimator
        A fitted model.
    data : Dataset, DataLoader or (X, y)
        Its n training records; or others, where the layer is to be the ``held_out`` of another.
    head, ridge, weight_decay, optimizer, loss, sample_weight, class_weight, label_smoothing
        The training objective, as far as the model does not say it; as of ``noshadow.audit``.
    layer, output, batch_size, progress, cache, cache_dtype
        How the model is read; as of ``noshadow.audit``.

    Returns
    -------
    LastLayer
        An audit of it is the audit of the model and its data.

    Raises
    ------
    InputError
        A model that no front door knows, data that do not fit it, an objective that contradicts it.

    Examples
    --------
    >>> import noshadow
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> x, y = load_diabetes(return_X_y=True)
    >>> noshadow.last_layer(Ridge(alpha=0.1).fit(x, y), (x, y))
    LastLayer(n=442, p=10, m=1, head='squared', ridge=0.2, bias=True, penalize_bias=False)
    """
    objective = Objective(
        head, loss, ridge, weight_decay, sample_weight, class_weight, label_smoothing, optimizer=optimizer
    )
    choices: dict[str, Any] = {"layer": layer, "output": output, "batch_size": batch_size, "progress": progress}
    found = extract(model, data, objective, **choices, cache=cache, cache_dtype=cache_dtype)
    if isinstance(model, LastLayer):
        return model
    for note in found.notes:
        warnings.warn(note, NoshadowWarning, stacklevel=2)
    return found.layer.of_origin(
        Origin(
            found.source,
            found.facts,
            found.notes,
            found.index,
            found.labels,
            found.classes,
            features_of(model, found),
            weights_sha256(model, found.layer),
        )
    )


def features_of(model: Any, found: Extracted) -> str:
    """Whether the last layer sees what the layers before it learned of these very records; see ``Origin``."""
    if isinstance(model, LastLayer):
        return "unknown" if model.origin is None else model.origin.features
    if isinstance(model, torch.nn.Module):
        parts = sum(any(True for _ in part.parameters(recurse=False)) for part in model.modules())
        return "trained" if parts > 1 else "unknown"
    return "trained" if str(found.facts.get("layer")).startswith("MLP") else "fixed"
