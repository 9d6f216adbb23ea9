"""A chunk of records, checked: the same checks whether a chunk is all there is or one of many."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.heads import make_head
from noshadow.heads.targets import check_targets
from noshadow.pairing import is_pandas, require_same_order
from noshadow.sparse import as_csr
from noshadow.tensors import as_floats, as_tensor
from noshadow.weights import check_sample_weight

__all__ = ["NAMES", "OPTIONAL", "Rows", "Source", "check_rows", "require_finite"]

NAMES = ("features", "outputs", "targets")
OPTIONAL = ("sample_weight",)


class Rows(NamedTuple):
    """Consecutive records, c of them.

    features       (c, p) in the precision that they are stored in; sparse ones in torch's CSR layout
    outputs        (c, m) in float64
    targets        (c,) classes, or (c, m) labels or values, as the head works with them
    sample_weight  (c,) in float64; None: all 1
    """

    features: Tensor
    outputs: Tensor
    targets: Tensor
    sample_weight: Tensor | None


class Source(Protocol):
    """What a layer asks of the place where its records lie."""

    @property
    def n(self) -> int: ...

    @property
    def n_features(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...

    @property
    def precision(self) -> torch.dtype:
        """What the features are stored in."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the records are read to."""
        ...

    @property
    def sparse(self) -> bool:
        """Whether the features are sparse."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether the records have weights of their own."""
        ...

    def read(self, rows: slice) -> Rows:
        """Consecutive records, rows.start … rows.stop − 1."""
        ...

    def whole(self, name: str) -> Tensor | None:
        """All rows of one of the arrays of ``Rows`` in memory."""
        ...


def check_rows(features: Any, outputs: Any, targets: Any, sample_weight: Any, head: str) -> Rows:
    """Records as a head works with them; an error names the argument, the row and the remedy."""
    given = {"features": features, "outputs": outputs, "targets": targets, "sample_weight": sample_weight}
    framed = [name for name, values in given.items() if is_pandas(values)]
    for name in framed[1:]:
        require_same_order(given[framed[0]], given[name], framed[0], name)
    x = as_csr(features)
    x = as_floats(features, "features") if x is None else x
    if x.is_complex():
        raise InputError(f"features: expected real numbers, got {x.dtype}")
    if x.ndim != 2:
        raise InputError(f"features: expected shape (n, p), got {tuple(x.shape)}")
    if x.shape[0] == 0:
        raise InputError("features: there are no rows")
    require_finite(x, "features", "drop or impute those records before training and auditing")
    z = as_floats(outputs, "outputs").to(device=x.device, dtype=torch.float64)
    z = z.unsqueeze(1) if z.ndim == 1 else z
    if z.ndim != 2:
        raise InputError(f"outputs: expected shape (n,) or (n, m), got {tuple(z.shape)}")
    if len(z) != x.shape[0]:
        raise InputError(f"outputs: {len(z)} rows, but features has {x.shape[0]}; they must be the same records")
    require_finite(z, "outputs", "the model diverged on them, or the outputs are not raw logits")
    if z.shape[1] == 0:
        raise InputError("outputs: there are no columns")
    plain = make_head(head, z.shape[1])
    plain.check_width(z.shape[1])
    y = check_targets(plain, as_tensor(targets, "targets"), *z.shape).to(z.device)
    weight = None
    if sample_weight is not None:
        weight = check_sample_weight(as_floats(sample_weight, "sample_weight"), len(z)).to(x.device)
    return Rows(x, z, y, weight)


def require_finite(values: Tensor, name: str, remedy: str) -> None:
    """Refuse NaN and infinities, by row."""
    if values.layout == torch.sparse_csr:
        entries = (~torch.isfinite(values.values())).nonzero().flatten()
        bad = torch.unique(torch.searchsorted(values.crow_indices(), entries, right=True) - 1)
    else:
        bad = (~torch.isfinite(values)).any(dim=1).nonzero().flatten()
    if len(bad):
        raise InputError(f"{name}: NaN or infinite in {name_rows(bad.tolist())} (counted from 0); {remedy}")
