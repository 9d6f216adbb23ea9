"""The shadow-classifier attack (Shokri et al., 2017), leaving each target out in turn.

For each class an attack classifier learns to tell members from non-members by what the *other* models say
about the class's records: (output of model j on record i) → (was i in j's training set). It then reads the
target's outputs. No classifier ever sees an output of a model that it attacks. Those that decide have not seen
the target's counterparts either (see ``counterpart``): a classifier that recognises a record knows how often it has
seen it as a member, which tells on which side the target is missing.

Features of an output, all from logits (``Head.attack_features``):
    softmax    the loss, φ, the entropy and the five largest log-probabilities in descending order
    logistic   the loss, φ
    squared    the loss and its logarithm, the signed residuals, the predictions; no classes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from noshadow.attacks.arrays import (
    Bools,
    Floats,
    as_membership,
    attackable,
    column_chunks,
    one_thread,
    require_choice,
    to_numpy,
)
from noshadow.attacks.counterpart import counterparts
from noshadow.attacks.result import AttackResult, conclude, undecided_elsewhere
from noshadow.attacks.signal import check_outputs, outputs_and_targets, require_squarable
from noshadow.errors import InputError
from noshadow.heads import Head
from noshadow.progress import Advance, Progress, progress_bar

__all__ = ["FEW", "LARGEST", "shokri"]

LARGEST = 1e30  # features beyond it are no numbers for single precision
FEW = 40  # a class with fewer rows of either kind in the sample borrows the classifier of all classes


@one_thread()
def shokri(
    outputs: Any,
    membership: Any,
    targets: Any,
    head: str,
    classifier: Literal["boosting", "logistic"] = "boosting",
    *,
    rows: int = 5000,
    folds: int | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> AttackResult:
    """Shokri's attack: each of K models attacked with classifiers that are trained on the outputs of the rest.

    The attack is that of Shokri et al. (2017), https://arxiv.org/abs/1610.05820, with a classifier per class.

    Parameters
    ----------
    outputs : array (K, N, m), or (K, N) where there is one output
        Logits or predictions of K models for N records.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    targets : array (N,) or (N, q)
        Classes, or values for squared error.
    head : "softmax", "logistic" or "squared"
        The loss that the models were trained with.
    classifier : "boosting" or "logistic"
        Histogram gradient boosting, or logistic regression on standardised features.
    rows : int
        Shadow rows, (model, record) pairs, that a classifier is trained on, drawn at random.
    folds : int, optional
        None: leave one target out, a classifier per target and class. F: the models are dealt at random into F folds
        and a fold is attacked by classifiers trained on the models outside it, K/F times faster and with the same
        guarantee.
    seed : int
        Of the draw, the folds and the classifiers.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.

    Returns
    -------
    AttackResult
        Scores are log-odds, in nats, less those of the rows trained on, so that both sides weigh the same, and decide
        at 0.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, options out of range, too few models.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((16, 60)) < 0.5
    >>> outputs = rng.normal(size=(16, 60)) + 3 * membership
    >>> result = attacks.shokri(outputs, membership, np.ones(60), "logistic", "logistic", folds=4)
    >>> result.auc > 0.9
    True
    """
    require_choice("classifier", classifier, ("boosting", "logistic"))
    z, y, kind = check_outputs(outputs, targets, head)
    if z.ndim == 4:
        raise InputError(f"outputs: expected shape (K, N, m), one query per record, got {tuple(z.shape)}")
    n_models, n_records = z.shape[:2]
    inside = as_membership(membership, n_models, n_records).to(z.device)
    n_folds = n_models if folds is None else folds
    if not 2 <= n_folds <= n_models:
        raise InputError(f"folds: expected 2 … {n_models}, the number of models, or None, got {folds!r}")
    if rows < 2 * FEW:
        raise InputError(f"rows: a classifier needs at least {2 * FEW} shadow rows, got {rows!r}")
    known = attackable(inside)
    if not bool(known.all()):
        options: Any = {"rows": rows, "folds": folds, "seed": seed, "progress": progress}
        found = shokri(z[:, known], inside[:, known], y[known], head, classifier, **options)
        return undecided_elsewhere(found, known, inside)
    features, member, beside = _features(z, y, kind), to_numpy(inside), to_numpy(counterparts(inside))
    labels = to_numpy(y) if kind.classifies else np.zeros(n_records, dtype=np.int64)
    fit = partial(_fit, classifier, seed=seed)
    # fits this small are slowed down by threads
    with threadpool_limits(limits=1), progress_bar("Shokri", 2 * n_folds, progress) as advance:
        scores = [
            torch.from_numpy(_scores(features, member, labels, left_out, fit, rows, n_folds, seed, advance)).to(
                z.device
            )
            for left_out in (None, beside)
        ]
    cut = scores[0].new_zeros(n_models)
    return conclude(f"shokri {classifier}", inside, scores[0], scores[0], scores[1], thresholds=cut)


def _scores(
    features: Floats,
    member: Bools,
    labels: Any,
    beside: Any,
    fit: Callable[[Floats, Bools], Callable[[Floats], Floats]],
    rows: int,
    n_folds: int,
    seed: int,
    advance: Advance,
) -> Floats:
    """Log-odds (K, N), each fold's by classifiers of the models outside it and, if given, of none ``beside`` (K, N)."""
    n_models, n_records = member.shape
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rng = np.random.default_rng(seed)
    fold = rng.permutation(n_models) % n_folds
    scores = np.empty((n_models, n_records))
    for f in range(n_folds):
        attacked, seen = np.flatnonzero(fold == f), np.repeat(fold[:, None] != f, n_records, axis=1)
        if beside is not None:
            seen[beside[attacked], np.arange(n_records)] = False
        everyone = None
        for records in groups:
            x, t = _draw(features, member, seen, records, rows, rng)
            if min(t.sum(), (~t).sum()) >= FEW or len(groups) == 1:
                log_odds = fit(x, t)
            else:
                if everyone is None:
                    everyone = fit(*_draw(features, member, seen, np.arange(n_records), rows, rng))
                log_odds = everyone
            read = features[np.ix_(attacked, records)].reshape(-1, features.shape[2])
            scores[np.ix_(attacked, records)] = log_odds(read).reshape(len(attacked), -1)
        advance()
    return scores


def _features(z: Tensor, y: Tensor, kind: Head) -> Floats:
    """What the classifiers read, (K, N, d) in float32: boosting bins it anyway, the regression scales it."""
    require_squarable(z, y, kind)
    parts = []
    for columns in column_chunks(z.shape[1], z[:, 0].numel()):
        part, truth = outputs_and_targets(z, y, kind, columns)
        parts.append(kind.attack_features(part, truth))
    features = torch.cat(parts, 1)
    if float(features.abs().max()) > LARGEST:
        raise InputError(
            f"outputs: what the classifiers read of them is as large as {float(features.abs().max()):g}; divide "
            "outputs (and targets, for squared error) by a number that brings it near 1"
        )
    single = features.to(torch.float32)
    if bool((single == single[0, 0]).all()):
        raise InputError("outputs: nothing that the classifiers read of them differs between models or records")
    return to_numpy(single)


def _draw(
    features: Floats, member: Bools, seen: Bools, records: Any, rows: int, rng: np.random.Generator
) -> tuple[Floats, Bools]:
    """Of at most ``rows`` of the (model, record) pairs, without repetition, those that may be seen."""
    models = np.flatnonzero(seen.any(1))
    n_pairs = len(models) * len(records)
    pairs = rng.choice(n_pairs, size=min(rows, n_pairs), replace=False, shuffle=False)
    k, i = models[pairs // len(records)], records[pairs % len(records)]
    may = seen[k, i]
    return features[k[may], i[may]], member[k[may], i[may]]


def _fit(classifier: str, x: Floats, t: Bools, seed: int) -> Callable[[Floats], Floats]:
    """A trained classifier as a function from features (r, d) to log-odds (r,) less the prior's."""
    if t.all() or not t.any():
        raise InputError("membership: the shadow rows drawn are all members or all non-members; pass more rows")
    if classifier == "logistic":
        from sklearn.linear_model import LogisticRegression  # here: the other attacks do without scikit-learn
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    else:
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(
            max_iter=30,
            learning_rate=0.2,
            max_leaf_nodes=8,
            max_bins=63,
            early_stopping=False,
            random_state=seed,
        )
    model.fit(x, t)
    prior = float(np.log(t.sum()) - np.log((~t).sum()))
    return lambda read: model.decision_function(read) - prior
