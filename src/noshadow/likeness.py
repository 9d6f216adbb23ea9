"""Whether held-out records are like the members: records that could as well have been trained on.

Predicted rates take what members and held-out records differ in for what training did. Of a test set that is of other
classes, of a split that nobody shuffled, of inputs that were not normalised or labels that are numbered otherwise, they
would be those of a preparation, not of a model. What is told here is gross: no random split of one pool comes near.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from noshadow.errors import NoshadowWarning
from noshadow.layer import LastLayer

__all__ = ["note_unlike"]

_CHUNK = 65_536  # records at a time
_DIRECTIONS = 32  # of the features that are looked at
_ENOUGH = 4_096  # records that are looked at
_CHANCE = 1e-3  # of random splits that would put all records of some class on one side
_OTHER_CLASSES = 0.15  # share of the records that would have to be of another class, beyond what chance moves
_WIDER = 2.5  # factor between the spreads of two halves of one pool that chance and training do not explain
_MOVED = 0.5  # of the spread, likewise
_CERTAIN = 5.0  # standard errors
_AHEAD = 0.08  # beyond a half: share of the pairs in which one side is ahead; overfitted networks reached 0.03
_AHEAD_CERTAIN = 4.0  # standard errors of it; random splits under trained networks reached 3.2
_FOLLOWS = 0.3  # correlation of the members' outputs with their targets of which something must be left
_FEWEST = 100  # held-out records for that


def note_unlike(others: LastLayer, members: LastLayer, features: bool = True) -> None:
    """Warn of held-out records that are not of the members' kind: by classes or values, features, and what fits.

    features  those of both are known
    """
    if not members.kind.signals or min(others.n, members.n) < 2:
        return
    found = _of_classes(others, members) if members.kind.classifies else _of_values(others, members)
    found = found or (_of_features(others, members) if features else None) or _of_fit(others, members)
    if found is not None:
        warnings.warn(
            f"held_out: {found}; predicted rates take the difference for what training did: split one shuffled pool, "
            "and prepare both parts alike",
            NoshadowWarning,
            stacklevel=4,
        )


def _of_classes(others: LastLayer, members: LastLayer) -> str | None:
    sides = [layer.targets.reshape(-1).to(device="cpu", dtype=torch.int64) for layer in (others, members)]
    count = max(int(side.max()) for side in sides) + 1
    theirs, own = (torch.bincount(side, minlength=count).to(torch.float64) for side in sides)
    absent = _absent(own, theirs)
    if bool(absent.any()):
        return (
            f"{int(theirs[absent].sum())} of its {others.n} records are of a class that no member has ({_few(absent)})"
        )
    pooled = (theirs + own) / (others.n + members.n)
    chance = (pooled * (1.0 - pooled) * (1.0 / others.n + 1.0 / members.n)).sqrt()  # of a share, one standard error
    distance = 0.5 * float((theirs / others.n - own / members.n).abs().sum())
    if distance > _OTHER_CLASSES + float(chance.sum()):
        return f"its classes are not in the members' proportions ({distance:.0%} of the records would have to differ)"
    absent = _absent(theirs, own)
    if bool(absent.any()):
        return f"none of its records is of a class that {int(own[absent].sum())} members are of ({_few(absent)})"
    return None


def _absent(one: Tensor, other: Tensor) -> Tensor:
    """Which classes, counted on two sides, the first has none of, and hardly a random split would."""
    whole = (other.sum() / (one.sum() + other.sum())) ** other  # how often all of a class fall to the other side
    return (one == 0) & (other > 0) & (whole * len(one) < _CHANCE)


def _few(which: Tensor) -> str:
    return ", ".join(str(label) for label in which.nonzero().flatten().tolist()[:3])


def _of_values(others: LastLayer, members: LastLayer) -> str | None:
    theirs, own = (layer.targets.reshape(layer.n, -1)[:, 0].cpu().to(torch.float64) for layer in (others, members))
    moved, wider = _against(theirs, own)
    if moved <= 0.0 and wider <= 1.0:
        return None
    numbers = f"median {float(theirs.median()):.3g}, of the members {float(own.median()):.3g}"
    return f"its targets are not distributed as the members' are ({numbers})"


def _of_features(others: LastLayer, members: LastLayer) -> str | None:
    """Along a few random directions; of features that were trained on the members held-out ones lie a little nearer."""
    if others.n_columns != members.n_columns:
        return None
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn((members.n_columns, _DIRECTIONS), generator=generator, dtype=torch.float64)
    theirs, own = (_along(layer, directions) for layer in (others, members))
    if (ahead := _ahead(theirs, own)) is not None:
        return (
            f"what the last layer sees of it is moved away from the members (along a random direction one side is "
            f"ahead in {ahead:.0%} of the pairs, of one pool in about 50%)"
        )
    factors = [_against(theirs[:, place], own[:, place])[1] for place in range(_DIRECTIONS)]
    if sorted(factors)[_DIRECTIONS // 4] <= 1.0:  # in nearly all: one direction may belong to a few records
        return None
    ratio = float((_width(theirs) / _width(own)).median())
    return f"what the last layer sees of it is spread {ratio:.2g} times as widely as of the members"


def _ahead(theirs: Tensor, own: Tensor) -> float | None:
    """Share of the pairs of a held-out record and a member in which one side is ahead, over the directions; None where
    it may be chance. It goes by ranks: neither heavy tails nor classes far apart, which a median falls between, matter.
    """
    below = torch.stack([_below(one, other) for one, other in zip(theirs.T, own.T, strict=True)])
    beyond = float((below - 0.5).square().mean().sqrt())
    error = math.sqrt((1.0 / len(theirs) + 1.0 / len(own)) / 12.0)  # of a share of pairs, whatever the distribution
    return 0.5 + beyond if beyond > max(_AHEAD, _AHEAD_CERTAIN * error) else None


def _below(theirs: Tensor, own: Tensor) -> Tensor:
    """Share of the pairs in which the second is below the first; ties count half."""
    ordered, values = own.sort().values, theirs.contiguous()
    ranks = [torch.searchsorted(ordered, values, right=right).to(torch.float64) for right in (False, True)]
    return (ranks[0] + ranks[1]).mean() / (2.0 * len(own))


def _along(layer: LastLayer, directions: Tensor) -> Tensor:
    """Some thousand records, evenly spread, along the directions: more would tell no more, and be held in memory."""
    every, parts = -(-layer.n // _ENOUGH), []
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        parts.append(records.times(directions.to(records.outputs))[-rows.start % every :: every].cpu())
    return torch.cat(parts).to(torch.float64)


def _width(values: Tensor) -> Tensor:
    """Half of the distance between the 16 % and the 84 % quantile of each column: σ of a normal one."""
    ordered = values.sort(dim=0).values
    last = len(values) - 1
    return (ordered[round(0.84 * last)] - ordered[round(0.16 * last)]) / 2.0


def _against(theirs: Tensor, own: Tensor) -> tuple[float, float]:
    """By how much the median is moved beyond what may be, and the factor of the spreads in the largest that may be."""
    wide, narrow = float(_width(own)), float(_width(theirs))
    if not (wide > 0.0 and narrow > 0.0):
        return 0.0, 1.0
    error = math.sqrt(1.0 / len(theirs) + 1.0 / len(own))  # of a median 1.25 σ times this, of log σ about as much
    moved = abs(float(theirs.median() - own.median())) / wide - _MOVED - 1.25 * _CERTAIN * error
    return moved, math.exp(abs(math.log(narrow / wide)) - math.log(_WIDER) - _CERTAIN * error)


def _of_fit(others: LastLayer, members: LastLayer) -> str | None:
    """Outputs that follow the members' targets follow those of held-out records too, if less."""
    theirs, own = (_follows(layer) for layer in (others, members))
    if others.n < _FEWEST or own < _FOLLOWS or theirs > 0.1 * own + 1.0 / math.sqrt(others.n):
        return None
    return (
        f"the model's outputs say nothing of its targets (correlation {theirs:.2f}, of the members {own:.2f}): rows in "
        "another order, classes numbered otherwise, or a model of mere noise"
    )


def _follows(layer: LastLayer) -> float:
    """Correlation of probabilities and one-hot targets, each about its mean; of values that of their ranks."""
    outputs = torch.cat([layer.records(rows).outputs for rows in layer.chunks(_CHUNK)]).cpu().to(torch.float64)
    targets = layer.targets.cpu()
    if not layer.kind.classifies:
        outputs, targets = (side.reshape(layer.n, -1).argsort(0).argsort(0) for side in (outputs, targets))
    elif layer.n_outputs > 1:
        targets = torch.nn.functional.one_hot(targets.reshape(-1).to(torch.int64), layer.n_outputs)
        outputs = torch.softmax(outputs, 1)
    else:
        outputs = torch.sigmoid(outputs)
    x, y = (side.reshape(layer.n, -1).to(torch.float64) for side in (outputs, targets))
    x, y = x - x.mean(0), y - y.mean(0)
    size = float(x.square().sum().sqrt() * y.square().sum().sqrt())
    return float((x * y).sum()) / size if size > 0 else 0.0
