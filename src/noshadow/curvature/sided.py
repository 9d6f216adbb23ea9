"""The n-sided form: with fewer records than columns, features of n columns that have the same inner products.

All that the curvature says of the records depends on their features through x̃ᵢᵀx̃ⱼ (under a ridge that treats columns
alike), so features F (n, p) with p > n may be replaced by F V (n, n) for an orthonormal basis V (p, n) of their rows:
lengths, leverages and shifts stay what they are, and nothing of the size p × p is needed.

Columns far larger than the others are kept as they are: rounding at their size would swallow the rest. Without a ridge
the units of the columns do not matter, and they are brought to length 1 first.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from noshadow.curvature.whiten import noise_floor
from noshadow.errors import NoshadowWarning
from noshadow.layer import LastLayer

__all__ = ["n_sided"]

_APART = 1e4  # times the median length: a column that is kept as it is
_DEPENDENT = 1e-14  # of the largest eigenvalue of FFᵀ: directions that are rounding
_CHUNK_BYTES = 32 * 2**20


def n_sided(layer: LastLayer) -> LastLayer:
    """The same layer with n columns, and those that are kept apart; the layer itself where that is not fewer."""
    p = layer.n_features
    chunk = max(1, _CHUNK_BYTES // (8 * layer.n_columns))
    squares = torch.zeros(layer.n_columns, dtype=torch.float64, device=layer.device)
    for rows in layer.chunks(chunk):
        squares += layer.records(rows).square_sums()
    norms = squares[:p].sqrt()
    alive = norms > 0
    if not bool(alive.any()) or not bool(torch.isfinite(norms).all()):
        return layer
    apart = alive & (norms > _APART * norms[alive].median()) if layer.ridge else torch.zeros_like(alive)
    kept = apart.nonzero().flatten()
    if layer.n + len(kept) + 1 >= layer.n_columns:
        return layer
    unit = alive.double() if layer.ridge else torch.where(alive, 1.0 / torch.where(alive, norms, 1.0), 0.0)
    unit[kept] = 0.0
    theta = None if layer.coefficients is None else layer.coefficients[:p]
    inner = None if theta is None else theta / torch.where(unit > 0, unit, 1.0).unsqueeze(1)
    features, inner = _by_products(layer, unit, inner, chunk) if layer.sparse else _by_rotation(layer, unit, inner)
    own = torch.cat([layer.records(rows).design[:, kept] for rows in layer.chunks(chunk)])
    coefficients = None
    if theta is not None and inner is not None and layer.coefficients is not None:
        coefficients = torch.cat([inner, theta[kept], layer.coefficients[p:]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)  # what there is to say was said of the layer
        found = LastLayer(
            torch.cat([features, own], dim=1),
            layer.outputs,
            layer.targets,
            layer.head,
            layer.ridge,
            bias=layer.bias,
            penalize_bias=layer.penalize_bias,
            coefficients=coefficients,
            sample_weight=layer.sample_weight,
            class_weight=layer.class_weight,
            label_smoothing=layer.label_smoothing,
        )
    return found if layer.blocks is None else found.in_blocks(layer.blocks.labelled("sided"))


def _by_rotation(layer: LastLayer, unit: Tensor, theta: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """F V = Rᵀ and Vᵀθ, from Fᵀ = VR; without the directions that are rounding, where no ridge keeps them in check.

    Records that depend on each other (one given twice, features of a lower rank) leave columns of Rᵀ that are nothing
    but rounding. Brought to length 1, as columns are, they would each stand for a record alone in a direction.
    """
    basis, factor = torch.linalg.qr((layer.features.double() * unit).T)
    floor = noise_floor(layer)
    if not layer.ridge and bool((factor.diagonal().abs() <= floor).any()):
        turn, sizes, records = torch.linalg.svd(factor)
        real = sizes > floor
        basis, factor = basis @ turn[:, real], sizes[real].unsqueeze(1) * records[real]
    return factor.T.contiguous(), None if theta is None else basis.T @ theta


def _by_products(layer: LastLayer, unit: Tensor, theta: Tensor | None, chunk: int) -> tuple[Tensor, Tensor | None]:
    """F V = L and Vᵀθ, from the inner products alone: F is never dense.

    With D the lengths of the records, D⁻¹FFᵀD⁻¹ = UλUᵀ and F V = DU√λ, Vᵀθ = λ^−½UᵀD⁻¹Fθ: rounding is in proportion
    to each record, so that a huge one does not swallow the others. Turned to be triangular, the longest record first,
    it does not lie in all columns either.
    """
    gram = unit.new_empty((layer.n, layer.n))
    shown = None if theta is None else unit.new_empty((layer.n, theta.shape[1]))
    scale = unit if not layer.bias else torch.cat([unit, unit.new_zeros(1)])
    lifted = None
    if theta is not None:
        lifted = theta.new_zeros((len(scale), theta.shape[1]))
        lifted[: len(theta)] = unit.unsqueeze(1) * theta
    for rows in layer.chunks(chunk):
        some = layer.records(rows)
        wide = (some.design * scale.square()).T
        for others in layer.chunks(max(chunk, 4096)):
            gram[others, rows] = layer.records(others).times(wide)
        if shown is not None and lifted is not None:
            shown[rows] = some.times(lifted)
    length = gram.diagonal().sqrt()
    inverse = torch.where(length > 0, 1.0 / torch.where(length > 0, length, 1.0), 0.0)
    gram.mul_(inverse).mul_(inverse.unsqueeze(1))  # of which eigh reads one half
    values, vectors = torch.linalg.eigh(gram)
    del gram  # a matrix of n × n less than there would be at the peak, in the products below
    real = values > _DEPENDENT * values[-1]
    root, vectors = values[real].sqrt(), vectors[:, real]
    inner = None if shown is None else (vectors.T @ (inverse.unsqueeze(1) * shown)) / root.unsqueeze(1)
    order = length.argsort(descending=True)
    vectors.mul_(root).mul_(length.unsqueeze(1))
    turn, factor = torch.linalg.qr(vectors[order].T)
    del vectors
    features = torch.empty_like(factor.T)
    features[order] = factor.T
    return features.contiguous(), None if inner is None else turn.T @ inner
