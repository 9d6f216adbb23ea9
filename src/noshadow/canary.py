"""Canaries: records to insert into a training set so that an audit by attack sees as much as there is to see.

An audit trains with and without canaries, attacks them, and turns the attack's success into a lower bound on ε. What a
bound can show is limited by how exposed the canaries are, and by how little they hide each other: two that are alike
are learned once, and neither is missed when it is left out.

Both are in the add-one formulas (``noshadow.candidates``). Let x̃ be a candidate's features, z its outputs, A its block
of H⁻¹. Added to the training set its outputs become z + d, d = −Ag'(z + d), and the attack's statistic moves by
φ(z + d) − φ(z): how exposed it would be. Candidates are taken greedily by it. Each one taken, j, is then part of H and
of the model for those that are not, i: with the cross-blocks C = (x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ⱼ ⊗ I),

    Aᵢ  ←  Aᵢ − C (Wⱼ⁻¹ + Aⱼ)⁻¹ Cᵀ        the leverage x̃ᵀ(H + Σ taken)⁻¹x̃ given those taken (Woodbury)
    zᵢ  ←  zᵢ − C g'ⱼ(zⱼ + dⱼ)             what the model would say once it has learned j

and C itself goes on as Aᵢ does. So the shift that is left for a candidate falls with every one like it that is taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noshadow.candidates import added, candidate_chunks, require_alike
from noshadow.curvature import Size, choose
from noshadow.curvature.dense import DenseCurvature, DenseLeverages, dense_curvature
from noshadow.errors import InputError, NoshadowWarning
from noshadow.heads import default_signal
from noshadow.layer import LastLayer
from noshadow.memory import GIB, working_memory
from noshadow.records import Records
from noshadow.sparse import SparseRows

__all__ = ["POOL", "Canaries", "canaries"]

POOL = 1000
"""Candidates that the greedy choice is made from, the most exposed; ten times as many as canaries if that is more."""

_BLOCKS = 12  # beside those that are kept: what a step of the choice works with


@dataclass(frozen=True, eq=False)
class Canaries:
    """What to insert, in the order in which it was chosen.

    Attributes
    ----------
    rows : ndarray (k,)
        Which of the candidates, or of the layer's own records.
    targets : ndarray (k,) or (k, q)
        The targets to insert them with.
    shift : ndarray (k,)
        How far the attack's statistic is predicted to move, in its units, when the canary is added beside those before
        it: positive the way members move.

    Examples
    --------
    >>> import numpy as np
    >>> import noshadow
    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> layer = noshadow.LastLayer(x, 2 * x[:, 0], (x[:, 0] > 0).astype(int), head="logistic", ridge=1.0)
    >>> found = noshadow.canaries(layer, 3)
    >>> found.rows.tolist(), found.targets.tolist(), found.shift.round(2).tolist()
    ([6, 54, 37], [1, 1, 0], [1.21, 1.05, 0.82])
    """

    rows: npt.NDArray[np.intp]
    targets: npt.NDArray[np.generic]
    shift: npt.NDArray[np.float64]


def canaries(
    layer: LastLayer,
    k: int,
    *,
    candidates: LastLayer | None = None,
    labels: Literal["least_likely", "given"] = "least_likely",
    diverse: bool = True,
    seed: int = 0,
    memory: float | None = None,
) -> Canaries:
    """Choose records to insert as canaries: exposed, and not hiding each other.

    Parameters
    ----------
    layer : LastLayer
        The last layer of a model trained without canaries, with its training records.
    k : int
        How many.
    candidates : LastLayer, optional
        What to choose from: records that the model was not trained on. None: copies of the training records, under
        other labels.
    labels : "least_likely" or "given"
        The class that the model finds least likely for each candidate, as audits use, or the candidates' own targets.
    diverse : bool
        Whether canaries taken count against those like them; False: the k largest shifts, each on its own.
    seed : int
        Orders candidates of equal shift.
    memory : float
        Working memory in GiB.

    Returns
    -------
    Canaries
        Rows of the candidates and the targets to insert them with.

    Raises
    ------
    InputError
        More canaries than candidates, labels that the head does not have, candidates unlike the layer's records.

    Examples
    --------
    >>> import numpy as np
    >>> import noshadow
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 2))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> layer = noshadow.LastLayer(x, 2 * x[:, 0], y, head="logistic", ridge=1.0)
    >>> found = noshadow.canaries(layer, 3)
    >>> bool((found.targets != y[found.rows]).all())
    True
    """
    if labels not in ("least_likely", "given"):
        raise InputError(f"labels: {labels!r} is not one of 'least_likely', 'given'")
    if not layer.kind.signals:
        raise InputError("layer: no single statistic tells of membership for several labels; choose canaries for one")
    if labels == "given" and candidates is None:
        raise InputError("candidates: needed for labels='given'; a copy of a training record under its own label hides")
    source = layer if candidates is None else candidates
    require_alike(layer, source)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= source.n:
        raise InputError(f"k: expected 1 … {source.n}, the number of candidates, got {k!r}")
    if labels == "least_likely" and not layer.kind.classifies:
        raise InputError("labels: 'least_likely' needs classes, a squared-error head has none; pass labels='given'")
    targets = source.targets if labels == "given" else _least_likely(source)
    choose("dense", Size.of(layer), memory)
    hessian = dense_curvature(layer, working_memory(memory))
    every = _with_targets(source, targets, np.arange(source.n), own=candidates is not None)
    shifts = torch.cat([_shifts(_blocks(hessian, part), part) for part in candidate_chunks(every)])
    order = np.random.default_rng(seed).permutation(source.n)
    rows = order[np.argsort(-shifts.cpu().numpy()[order], kind="stable")]
    if diverse:
        rows = rows[: _pool_size(k, hessian.width, working_memory(memory))]
        pool = _with_targets(source, targets, rows, own=candidates is not None).records(slice(None))
        places, shifts = _greedy(hessian, pool, k)
        rows = rows[places]
    else:
        rows, shifts = rows[:k], shifts[rows[:k]]
    return Canaries(rows, targets[rows].cpu().numpy(), shifts.cpu().numpy())


def _pool_size(k: int, width: int, memory: float) -> int:
    """How many candidates the choice is made from: each keeps a block for every canary taken."""
    affordable = int(memory * GIB // (8 * width**2 * (k + _BLOCKS)))
    if affordable < k:
        raise InputError(
            f"memory: {k} canaries keep blocks of {width} × {width} numbers for each other, more than {memory:g} GiB; "
            "pass a larger memory=, a smaller k, or diverse=False"
        )
    return min(affordable, max(POOL, 10 * k))


def _greedy(hessian: DenseCurvature, records: Records, k: int) -> tuple[npt.NDArray[np.intp], Tensor]:
    """The places of k records in the order taken, and the shifts that were left for them."""
    blocks = _blocks(hessian, records)
    taken: list[int] = []
    left: list[Tensor] = []
    past: list[tuple[Tensor, Tensor]] = []  # cross-blocks and inner matrices of those taken
    for _ in range(k):
        shifts = _shifts(blocks, records)
        shifts[taken] = -torch.inf
        j = int(shifts.argmax())
        taken.append(j)
        left.append(shifts[j])
        one = records.part(slice(j, j + 1))
        member = added(_Given(blocks[j : j + 1]), one).records
        own = _square(_leverages(member, blocks[j : j + 1]).curvature)[0]
        identity = torch.eye(len(own), dtype=own.dtype, device=own.device)
        inner = own @ torch.linalg.inv(identity + blocks[j] @ own)  # (W⁻¹ + A)⁻¹, for W that may be singular
        cross = _cross_blocks(hessian, records, one)
        for before, middle in past:
            cross = cross - before @ middle @ before[j].T
        past.append((cross, inner))
        blocks = blocks - cross @ inner @ cross.transpose(1, 2)
        pull = member.pull[0]  # r numbers, or q that share one block
        move = cross.squeeze(2) * pull if cross.shape[1] == 1 else cross @ pull
        records = replace(records, outputs=records.outputs - records.head.expand(move))
    return np.array(taken, dtype=np.intp), torch.stack(left)


def _cross_blocks(hessian: DenseCurvature, records: Records, one: Records) -> Tensor:
    """(x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ⱼ ⊗ I) for one j and all i, (c, r, r)."""
    width = hessian.width
    columns = []
    for a in range(width):
        unit = torch.zeros_like(one.pull[0])
        unit[a] = 1.0
        solved = hessian.solve(torch.outer(one.design[0], one.head.expand(unit)))
        columns.append(one.head.reduce(records.design @ solved)[:, :width])
    return torch.stack(columns, dim=2)


@dataclass(frozen=True, eq=False)
class _Given:
    """Blocks A (c, r, r) that are known, in the place of a curvature."""

    blocks: Tensor

    def leverages(self, records: Records) -> DenseLeverages:
        return _leverages(records, self.blocks)


def _leverages(records: Records, blocks: Tensor) -> DenseLeverages:
    block = blocks.flatten(1) if blocks.shape[-1] == 1 else blocks
    return DenseLeverages(records, block, torch.zeros_like(records.pull))


def _square(block: Tensor) -> Tensor:
    """Blocks or curvatures as (c, r, r), a number being r = 1."""
    return block if block.ndim == 3 else block.unsqueeze(2)


def _blocks(hessian: DenseCurvature, records: Records) -> Tensor:
    """A of each record, (c, r, r)."""
    return _square(hessian.leverages(records).block)


def _shifts(blocks: Tensor, records: Records) -> Tensor:
    """φ(z + d) − φ(z), positive the way members move, (c,); blocks A (c, r, r)."""
    head = records.head
    move = head.expand(added(_Given(blocks), records).shift)
    change = head.signal_change(records.outputs, records.targets, move)
    return default_signal(head).toward_members(change)


def _least_likely(source: LastLayer) -> Tensor:
    """The class with the smallest probability, (n,)."""
    return source.kind.predicted(-source.outputs).to(source.targets.dtype).reshape(source.targets.shape)


def _with_targets(source: LastLayer, targets: Tensor, rows: npt.NDArray[np.intp], own: bool) -> LastLayer:
    """Some of the records under these targets, with their ``own`` sample weights or, as new records, with none."""
    weights = source.sample_weight if own else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)  # said when the source was made
        return LastLayer(
            # of torch's sparse tables no rows can be picked
            SparseRows.of(source.features, slice(0, source.n), False).table[rows]
            if source.sparse
            else source.features[rows],
            source.outputs[rows],
            targets[rows],
            source.head,
            source.ridge,
            bias=source.bias,
            penalize_bias=source.penalize_bias,
            sample_weight=None if weights is None else weights[rows],
            class_weight=source.class_weight,
            label_smoothing=source.label_smoothing,
        )
