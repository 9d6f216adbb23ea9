"""LastLayer: what every front door produces and everything else starts from."""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError, NoshadowWarning
from noshadow.heads import Head, get_head, make_head
from noshadow.layer_records import LayerRecords
from noshadow.progress import Progress, progress_bar
from noshadow.sources import Arrays, Source, Streamed, check_rows, find_table
from noshadow.sources.extremes import Extremes
from noshadow.sources.rows import require_finite
from noshadow.tensors import as_floats
from noshadow.weights import check_sample_weight, no_weight, weights_of_classes

__all__ = ["LastLayer", "read_class_weight"]


@dataclass(frozen=True, eq=False, repr=False)
class LastLayer(LayerRecords):
    r"""The last, linear layer of a trained model, seen through its n training records.

    .. math::

        \sum_i w_i\, \ell(z_i, y_i) + \tfrac{\Lambda}{2} \lVert \theta \rVert^2, \qquad z_i = \theta^\top \tilde x_i

    is the objective it was trained on, x̃ᵢ being the features of a record and, with a bias, the constant 1.

    Parameters
    ----------
    features : array (n, p)
        Inputs of the layer, without the constant column; any float dtype, kept as given; SciPy's or torch's sparse ones
        as torch CSR.
    outputs : array (n, m)
        Predictions (squared) or logits (softmax: one per class; logistic: one, or one per label).
    targets : array (n,) or (n, m)
        softmax: classes 0 … m−1 (n,), or one-hot (n, m); logistic: 0/1 (n,), or (n, m) for m labels; squared: values
        (n,) or (n, m).
    head : "squared", "logistic" or "softmax"
        Several logistic outputs are independent labels. Squared error is (y − z)², not halved.
    ridge : float
        Λ of the objective.
    bias : bool
        The layer has a bias: a constant column is appended to the features.
    penalize_bias : bool
        The ridge covers the bias too.
    coefficients : array (n_columns, m), optional
        The layer's own parameters, one column per output, the bias last, where they are at hand: outputs = design ·
        coefficients. None: worked out from the outputs where they are needed.
    sample_weight : array (n,), optional
        wᵢ ≥ 0 that the loss of each record was multiplied by; 0: it took no part. None: all 1.
    class_weight : array or mapping, optional
        A weight per class: (m,) for softmax, (2,) for one logistic output, (m, 2) for m labels (of 0 and of 1), or a
        mapping from class to weight, 1 where it names none.
    label_smoothing : float
        ε of a softmax trained on (1 − ε)·e_y + ε/m. With class weights, as in torch's CrossEntropyLoss
        (``noshadow.weights``).

    Attributes
    ----------
    notes : tuple of str
        What was noticed about the arrays: a sentence each, with the remedy.

    Raises
    ------
    InputError
        Names the argument, the row and the remedy: shapes that do not fit, values that are not finite, classes that are
        none.

    Notes
    -----
    Weights say how a record took part in training. What an attacker sees is its loss without them: ``kind``.

    Arrays may be NumPy, torch (any device, any strides), pandas or nested lists. They are checked here, once: whatever
    passes can be scored.

    Examples
    --------
    >>> import noshadow
    >>> noshadow.LastLayer([[1.0, 2.0], [3.0, 4.0]], [[0.5, -0.5], [-1.0, 1.0]], [0, 1], ridge=1.0)
    LastLayer(n=2, p=2, m=2, head='softmax', ridge=1, bias=True, penalize_bias=True)
    """

    def __init__(
        self,
        features: Any,
        outputs: Any,
        targets: Any,
        head: str = "softmax",
        ridge: float = 0.0,
        *,
        bias: bool = True,
        penalize_bias: bool = True,
        coefficients: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        label_smoothing: float = 0.0,
    ) -> None:
        get_head(head)
        source = Arrays(check_rows(features, outputs, targets, sample_weight, head))
        self._hold(
            source,
            head=head,
            ridge=ridge,
            bias=bias,
            penalize_bias=penalize_bias,
            coefficients=coefficients,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
        )
        self._look(self.n, False)

    @classmethod
    def open(
        cls,
        records: Any,
        head: str = "softmax",
        ridge: float = 0.0,
        *,
        bias: bool = True,
        penalize_bias: bool = True,
        coefficients: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        label_smoothing: float = 0.0,
        progress: Progress = None,
    ) -> LastLayer:
        """A layer whose records stay on disk: every pass reads them again, some rows at a time.

        The arrays are those of ``LastLayer``, under their names: ``features``, ``outputs``, ``targets`` and, if there
        are weights, ``sample_weight``. Memory does not depend on n. All records are read once here, and checked; each
        pass checks them again.

        Parameters
        ----------
        records : path, mapping, list of either, or chunks
            A .safetensors file with those tensors; a .parquet file with those columns (lists of numbers for features
            and outputs); a folder with features.npy, outputs.npy, …; a mapping from array to .npy file. Several of
            them are shards of one layer: a list in their order, or a folder of files that are numbered without a gap.
            Or anything that yields chunks (features, outputs, targets[, sample_weight]) and yields the same ones again
            when it is iterated again.
        head, ridge, bias, penalize_bias, coefficients, class_weight, label_smoothing
            As of ``LastLayer``.
        sample_weight : array (n,), optional
            As of ``LastLayer``, where the files hold none.
        progress : Progress, optional
            A bar or none, or a function that is told; None: a bar where stderr is a terminal.

        Returns
        -------
        LastLayer

        Raises
        ------
        InputError
            Names the file, the row (counted over all shards) and the remedy: a shard that is missing, truncated or of
            another width or type, values that are not finite.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> import noshadow
        >>> folder = tempfile.mkdtemp()
        >>> np.save(f"{folder}/features.npy", np.array([[0.0], [1.0], [2.0]]))
        >>> np.save(f"{folder}/outputs.npy", np.array([0.1, 1.0, 1.9]))
        >>> np.save(f"{folder}/targets.npy", np.array([0.0, 1.2, 1.8]))
        >>> noshadow.LastLayer.open(folder, head="squared")
        LastLayer(n=3, p=1, m=1, head='squared', ridge=0, bias=True, penalize_bias=True)
        """
        get_head(head)
        weight = None if sample_weight is None else as_floats(sample_weight, "sample_weight").cpu()
        table = find_table(records)
        source = Streamed(table, head, None if weight is None else check_sample_weight(weight, table.n))
        layer = cls.__new__(cls)
        layer._hold(
            source,
            head=head,
            ridge=ridge,
            bias=bias,
            penalize_bias=penalize_bias,
            coefficients=coefficients,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
        )
        layer._look(source.chunk, progress)
        return layer

    def save(
        self,
        path: str | os.PathLike[str],
        ids: Any = None,
        trace: Any = None,
        groups: Any = None,
        held_out: LastLayer | None = None,
        rerun: Any = None,
        class_names: Any = None,
    ) -> None:
        """Write the layer, records and all, to a .safetensors file: whole or not at all, for its owner alone.

        With what is passed here the file holds all that an audit takes, and ``noshadow audit FILE`` or
        ``noshadow.audit(noshadow.Bundle.load(path))`` gives the answer that the model itself would give: nothing of
        the model is in it, and nothing is run to read it. It says who was in the training data.

        Parameters
        ----------
        path : str or Path
            Ends in .safetensors. Any reader of that format reads it; a checksum covers every bit.
        ids : sequence (n,), optional
            A name for each record.
        trace : Trace or array (epochs, n), optional
            What training remembers of the records.
        groups : sequence (n,), mapping or DataFrame, optional
            What the records belong to, as ``noshadow.audit`` takes it.
        held_out : LastLayer, optional
            Of the same model for records that it was not trained on. Their features are not written.
        rerun : LastLayer or pair of them, optional
            Of a second model for the same records and, with held_out, for those. Their features are not written.
        class_names : sequence or mapping, optional
            What reports call the classes.

        Raises
        ------
        InputError
            What does not belong to this layer; a path that cannot be written.

        Examples
        --------
        >>> import noshadow, tempfile
        >>> layer = noshadow.LastLayer([[0.0], [1.0], [2.0]], [0.1, 1.0, 1.9], [0.0, 1.2, 1.8], head="squared")
        >>> path = f"{tempfile.mkdtemp()}/layer.safetensors"
        >>> layer.save(path, ids=["a", "b", "c"])
        >>> noshadow.audit(noshadow.Bundle.load(path)).table["id"].tolist()
        ['a', 'b', 'c']
        """
        beside = {"ids": ids, "trace": trace, "groups": groups, "held_out": held_out, "rerun": rerun}
        _bundles().save_layer(self, path, **beside, class_names=class_names)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: Progress = None) -> LastLayer:
        """A layer that was saved. Its records stay on disk, as with ``open``; a damaged file is refused.

        What was saved beside it (names, trace, …) is in ``noshadow.Bundle.load(path)``.

        Parameters
        ----------
        path : str or Path
            What ``save`` wrote.
        progress : Progress, optional
            As of ``open``.

        Returns
        -------
        LastLayer

        Examples
        --------
        >>> import noshadow, tempfile
        >>> path = f"{tempfile.mkdtemp()}/layer.safetensors"
        >>> layer = noshadow.LastLayer([[0.0], [1.0]], [0.1, 1.0], [0.0, 1.2], head="squared", ridge=0.5)
        >>> layer.save(path)
        >>> noshadow.LastLayer.load(path)
        LastLayer(n=2, p=1, m=1, head='squared', ridge=0.5, bias=True, penalize_bias=True)
        """
        found: LastLayer = _bundles().Bundle.load(path, progress=progress).layer
        return found

    def _hold(
        self, source: Source, *, ridge: Any, coefficients: Any, class_weight: Any, label_smoothing: Any, **facts: Any
    ) -> None:
        """Set the fields, once their values are known to be right for the source."""
        p, m = source.n_features, source.n_outputs
        if p == 0 and not facts["bias"]:
            raise InputError("features: there are no columns and no bias, so the layer has no parameters")
        plain = make_head(facts["head"], m)
        if not (isinstance(ridge, (int, float, np.floating, np.integer)) and 0 <= ridge < math.inf):
            raise InputError(f"ridge: expected a finite number ≥ 0, got {ridge!r}")
        like = torch.empty((0, m), dtype=torch.float64, device=source.device)
        fields = {
            "source": source,
            "head": facts["head"],
            "ridge": float(ridge),
            "bias": bool(facts["bias"]),
            "penalize_bias": bool(facts["penalize_bias"]),
            "coefficients": None if coefficients is None else _parameters(coefficients, p + int(facts["bias"]), like),
            "class_weight": None if class_weight is None else read_class_weight(class_weight, plain, like),
            "label_smoothing": _smoothing(label_smoothing),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        _ = self.kind  # refused here: a head without smoothed labels

    def _look(self, chunk: int, progress: Progress) -> None:
        """A pass over all records: what is wrong with one of them is refused, what looks odd about all is noted."""
        plain, seen, weighed = make_head(self.head, self.n_outputs), Extremes(), False
        with progress_bar("Checking", self.n, progress) as advance:
            for rows in self.chunks(chunk):
                found = self.source.read(rows)
                weights = self._weights(found.targets, found.sample_weight)
                weighed = weighed or weights is None or bool((weights > 0).any())
                seen.add(found.outputs, found.targets)
                advance(len(found.outputs))
        if not weighed:
            raise no_weight()
        concern = plain.concern(*seen.records)
        object.__setattr__(self, "notes", () if concern is None else (concern,))
        for note in self.notes:
            warnings.warn(note, NoshadowWarning, stacklevel=3)

    def __repr__(self) -> str:
        return (
            f"LastLayer(n={self.n}, p={self.n_features}, m={self.n_outputs}, head={self.head!r}, "
            f"ridge={self.ridge:g}, bias={self.bias}, penalize_bias={self.penalize_bias}"
            + (", sample_weight" if self.source.weighted else "")
            + (", class_weight" if self.class_weight is not None else "")
            + (f", label_smoothing={self.label_smoothing:g}" if self.label_smoothing else "")
            + ")"
        )


def _bundles() -> Any:
    """Files hold traces and names too, which are above this module; imported when a file is written or read."""
    return importlib.import_module("noshadow.bundle")


def _smoothing(value: Any) -> float:
    if not (isinstance(value, (int, float, np.floating, np.integer)) and 0 <= value <= 1):
        raise InputError(f"label_smoothing: expected a number from 0 to 1, got {value!r}")
    return float(value)


def read_class_weight(weights: Any, head: Head, z: Tensor) -> Tensor:
    """Class weights as arrays, nested lists or a mapping from class to weight, as the head of outputs z takes them."""
    m = z.shape[1]
    if isinstance(weights, Mapping) and head.classifies:
        weights = weights_of_classes(weights, range(head.n_classes(m)))
    return head.read_class_weight(as_floats(weights, "class_weight"), m).to(z.device)


def _parameters(coefficients: Any, columns: int, z: Tensor) -> Tensor:
    theta = as_floats(coefficients, "coefficients").to(device=z.device, dtype=torch.float64)
    theta = theta.unsqueeze(1) if theta.ndim == 1 else theta
    if tuple(theta.shape) != (columns, z.shape[1]):
        raise InputError(
            f"coefficients: expected shape ({columns}, {z.shape[1]}), a row per column of the design matrix (the bias "
            f"last) and a column per output, got {tuple(theta.shape)}"
        )
    require_finite(theta, "coefficients", "the model diverged")
    return theta
