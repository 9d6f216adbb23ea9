"""What is measured of a setting: how well each score, from one target model, finds the records an attack exposes.

The protocol: an attack's truth is its success rate over the shadow models, leaving out the one attacked, equal rates
in the order of the separation d̂′; rankings are over the members of each target model, none of which is a shadow
model; beside each number stands what the attack reaches on itself from disjoint halves of its models (``ceiling``) and
what a score without any error would reach (``oracle``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow import attacks, evaluate
from noshadow.artefact import Arrays
from noshadow.attacks.registry import ATTACKS, Options, run_attack
from noshadow.bench.cache import keep, kept
from noshadow.bench.result import (
    CURVE,
    HEADLINE,
    RECALLS,
    SPEARMAN,
    AttackFindings,
    BudgetFound,
    Ceiling,
    RatesFound,
    RecallCurve,
    ScoreResult,
    TargetFit,
)
from noshadow.bench.setting import Scale, Setting
from noshadow.bench.training import TrainedModels
from noshadow.bench.typed_json import from_json, to_json
from noshadow.evaluate import Metric, Prediction, Summary
from noshadow.heads import default_signal, get_head
from noshadow.layer import LastLayer
from noshadow.optimizers import read_optimizer
from noshadow.points import given
from noshadow.predict import spread
from noshadow.progress import progress_bar
from noshadow.scores import applicable
from noshadow.scoring import score_with_diagnostics
from noshadow.trace import Trace

__all__ = [
    "CURVE",
    "RECALLS",
    "Floats",
    "Scored",
    "Truth",
    "budget_found",
    "compare",
    "find_truths",
    "fit_of_targets",
    "metrics",
    "rank_correlation",
    "rates_found",
    "score_targets",
    "target_layer",
]


Floats = NDArray[np.float64]

_DEAR, _FEW_TARGETS = 5_000, 4  # with more parameters in the head, other traces are scored for the first targets only
_BUDGET = (0, 2, 4, 8, 16, 32, 64)
_DRAWS = 3
_LEAST_MEMBERS = 100  # of whom one in a hundred is one
_CERTAIN = 100.0


@dataclass(frozen=True, eq=False)
class Truth:
    """What an attack found out: success rates and tiebreaks of all N records, its summary and its ceilings.

    ceiling  what the attack reaches when it is run again, every metric and the curve
    oracle   the same of a perfect score; None for an attack that cannot be simulated
    """

    success_rate: Floats
    tiebreak: Floats
    summary: dict[str, float]
    ceiling: Ceiling
    oracle: Ceiling | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of each target's members: arrays (T, N) by name, NaN for non-members, and the core-seconds per target.

    source    what the predicted rates rest on; None where there are none
    exposure  core-seconds of the exposure alone; None where it was not computed alone
    """

    scores: dict[str, Floats]
    members: NDArray[np.bool_]
    seconds: float
    stationarity: float
    source: str | None = None
    exposure: float | None = None


def metrics() -> dict[str, tuple[Metric, dict[str, Any]]]:
    """The numbers of a row, by name."""
    recalls = {name: (evaluate.recall, {"top": top, "keep": keep}) for name, (top, keep) in RECALLS.items()}
    return {**recalls, SPEARMAN: (rank_correlation, {})}


def rank_correlation(score: Floats, truth: Floats) -> float:
    """Spearman's; 0 for a score that is the same for all records, such as the leverage of a head with n ≤ p."""
    return evaluate.spearman(score, truth) if np.ptp(score) > 0 and np.ptp(truth) > 0 else 0.0


def find_truths(setting: Setting, models: TrainedModels, store: Path, progress: bool | None = None) -> dict[str, Truth]:
    """LiRA, RMIA and Shokri on the shadow models; kept in the store, so that scoring again does not attack again."""
    truths = {}
    with progress_bar("attacks", len(ATTACKS), progress) as advance:
        for name in ATTACKS:
            path = store / f"{name}.safetensors"
            identity = _identity(models, name)
            found = kept(path, identity)
            if found is None:
                truth = _attack(setting, models, name)
                arrays = {"success_rate": truth.success_rate, "tiebreak": truth.tiebreak}
                keep(path, arrays, _facts(truth), identity)
            else:
                truth = _truth(*found)
            truths[name] = truth
            advance()
    return truths


def _attack(setting: Setting, models: TrainedModels, name: str) -> Truth:
    outputs, inside, targets = models.shadows.outputs, models.shadows.membership, models.pool.targets
    options = Options.for_models(name, len(inside))
    start = time.process_time()
    whole = run_attack(outputs, inside, targets, setting.head, options)
    seconds = time.process_time() - start

    def on_some(rows: NDArray[np.intp]) -> attacks.AttackResult:
        return run_attack(outputs[rows], inside[rows], targets, setting.head, options)

    again = evaluate.halves(on_some, len(inside), ATTACKS[name].ceiling_splits)
    perfect = _oracle(outputs, inside, targets, setting.head, options) if ATTACKS[name].simulated else None
    members = models.targets.membership
    return Truth(
        whole.success_rate,
        whole.tiebreak,
        whole.summary(),
        _measured(again, members),
        None if perfect is None else _measured(perfect, members),
        seconds,
    )


def _facts(truth: Truth) -> dict[str, Any]:
    """What is kept beside the arrays: a ceiling as its metrics and its curve, side by side."""
    ceilings = {"ceiling": truth.ceiling, "oracle": truth.oracle}
    flat = {k: None if v is None else to_json({**v.metrics, "curve": v.curve}) for k, v in ceilings.items()}
    return {"summary": truth.summary, **flat, "seconds": truth.seconds}


def _truth(arrays: Arrays, facts: Mapping[str, Any]) -> Truth:
    """The reverse."""

    def ceiling(flat: Mapping[str, Any] | None) -> Ceiling | None:
        metrics = {name: value for name, value in (flat or {}).items() if name != "curve"}
        return None if flat is None else from_json(Ceiling, {"metrics": metrics, "curve": flat["curve"]})

    again = ceiling(facts["ceiling"])
    assert again is not None  # every attack is run again
    found = (facts["summary"], again, ceiling(facts["oracle"]), facts["seconds"])
    return Truth(arrays["success_rate"], arrays["tiebreak"], *found)


def _oracle(
    outputs: Any, inside: NDArray[np.bool_], targets: Any, head: str, options: Options
) -> Sequence[Sequence[Prediction]]:
    """A perfect score against LiRA or RMIA; simulated are predictions for squared error, else the attack's signal.

    The signal of classes is a logit, for and against the true class: a logistic head on the class 1 has that signal.
    """
    draws = ATTACKS[options.name].oracle_draws
    if get_head(head).signal_scale != "logit":  # not normal over models, which predictions are
        values = np.asarray(outputs, dtype=np.float64)
        return evaluate.oracle(lambda z, member: run_attack(z, member, targets, head, options), values, inside, draws)
    phi = attacks.signal(outputs, targets, head)
    ones = np.ones(phi.shape[1], dtype=np.int64)
    return evaluate.oracle(lambda z, member: run_attack(z, member, ones, "logistic", options), phi, inside, draws)


def _measured(predictions: Sequence[Sequence[Prediction]], members: NDArray[np.bool_]) -> Ceiling:
    """Every metric of predictions, over the members of the targets, and the curve."""

    def over(metric: Metric, **how: Any) -> Summary:
        return evaluate.over_predictions(metric, predictions, members, **how)

    found = {name: over(metric, **how) for name, (metric, how) in metrics().items()}
    return Ceiling(found, tuple(over(evaluate.recall, top=share, keep=share).mean for share in CURVE))


def score_targets(setting: Setting, scale: Scale, models: TrainedModels, progress: bool | None = None) -> Scored:
    """Every score of the registry that applies, of the members of each target."""
    members = models.targets.membership
    columns: dict[str, Floats] = {}
    seconds, stationarity, alone = [], [], []
    source: str | None = None
    with progress_bar("scoring targets", len(members), progress) as advance:
        for number in range(len(members)):
            layer, trace = target_layer(setting, scale, models, number)
            calibrating = _calibrating(setting, models, number)
            rated = bool(calibrating) or trace is None  # a closed form has its own law
            names = applicable(layer.kind, given(trace, rated), every=True)
            start = time.process_time()
            frame, found = score_with_diagnostics(layer, names, trace, **calibrating, progress=False)
            seconds.append(time.process_time() - start)
            stationarity.append(found.stationarity)
            if found.calibration is not None:
                source = found.calibration.source
            dear = layer.n_features * layer.n_outputs > _DEAR
            held_out = {key: value for key, value in calibrating.items() if key == "held_out"}
            others = {} if dear and number >= _FEW_TARGETS else _other_traces(models, number)
            for other, remembered in others.items():
                start = time.process_time()
                of_run = score_with_diagnostics(layer, ["exposure"], remembered, **held_out, progress=False)[0]
                alone.append(time.process_time() - start)
                frame[f"exposure, {other}"] = of_run["exposure"]
            for name in frame.columns:
                column = columns.setdefault(name, np.full(members.shape, np.nan))
                column[number, members[number]] = frame[name].to_numpy()
            advance()
    known = [value for value in stationarity if value is not None]
    mean = float(np.mean(known)) if known else float("nan")
    own = float(np.median(alone)) if alone else None
    return Scored(columns, members, float(np.median(seconds)), mean, source, own)


def _calibrating(setting: Setting, models: TrainedModels, number: int) -> dict[str, Any]:
    """The spreads between a target and its rerun, and the records that the target was not trained on."""
    if models.reruns is None or setting.model is None:
        return {}
    first = models.targets.store.read(models.targets.keys[number])
    second = models.reruns.store.read(models.reruns.keys[number])
    targets = models.pool.targets
    inside = first["membership"]
    sides = [spread(first["outputs"][m], second["outputs"][m], targets[m], setting.head) for m in (inside, ~inside)]
    return {"spread": tuple(sides), "held_out": (first["outputs"][~inside], targets[~inside]), "source": "rerun"}


def _other_traces(models: TrainedModels, number: int) -> dict[str, Trace]:
    """What else could be remembered: the run of another seed, both runs as one, and the mean of the checkpoints."""
    arrays = models.targets.store.read(models.targets.keys[number])
    inside = arrays["membership"]
    found = {}
    if models.reruns is not None:
        again = models.reruns.store.read(models.reruns.keys[number])
        if "epoch_losses" in again:
            found["rerun"] = Trace.from_losses(again["epoch_losses"][:, inside], again["mean_outputs"][inside])
            losses = np.concatenate([run["epoch_losses"][:, inside] for run in (arrays, again)])  # as many of each
            means = [run["mean_outputs"][inside].astype(np.float64) for run in (arrays, again)]
            found["both runs"] = Trace.from_losses(losses, np.mean(means, axis=0))
    if "checkpoint_outputs" in arrays:
        found["checkpoints"] = Trace.from_outputs(arrays["checkpoint_outputs"][:, inside])
    return found


def rates_found(scored: Scored, truth: Truth) -> RatesFound | None:
    """How right the predicted success rates are."""
    predicted = scored.scores.get("attack_accuracy")
    if predicted is None or scored.source is None:
        return None
    pairs = [(predicted[t, m], truth.success_rate[m]) for t, m in enumerate(scored.members)]
    predictions, measured = (np.concatenate(side) for side in zip(*pairs, strict=True))
    whole = evaluate.reliability(predictions, measured)
    error = Summary(np.array([evaluate.reliability(*pair).error for pair in pairs]))
    power = np.concatenate([scored.scores["attack_power"][t, m] for t, m in enumerate(scored.members)])
    power = np.minimum(power, _CERTAIN)  # that of a flagged record is infinite
    distance = np.concatenate([truth.tiebreak[m] for m in scored.members])
    tenths = np.array_split(np.argsort(power, kind="stable"), len(whole.predicted))
    medians = [tuple(float(np.median(side[rows])) for rows in tenths) for side in (power, distance)]
    return RatesFound(whole.predicted, whole.measured, error, scored.source, *medians)


def budget_found(
    setting: Setting, models: TrainedModels, scored: Scored, progress: bool | None = None
) -> BudgetFound | None:
    """What a few shadow models find, alone and with the exposure as their prior; of the first targets.

    At most half of the shadow models are the few: the others are the truth.
    """
    outputs, inside, targets = models.shadows.outputs, models.shadows.membership, models.pool.targets
    counts = [count for count in _BUDGET if count <= len(inside) // 2]
    if len(counts) < 3 or scored.members.sum(1).min() < _LEAST_MEMBERS or "exposure" not in scored.scores:
        return None
    head = get_head(setting.head)
    direction = default_signal(head).members
    if direction == "either":  # which no head has for its first signal
        return None
    signal = attacks.signal(outputs, targets, setting.head)
    members = scored.members[:_FEW_TARGETS]
    top, kept_share = RECALLS[HEADLINE]
    how: dict[str, Any] = {"draws": _DRAWS, "top": top, "keep": kept_share, "progress": progress}

    def attack(phi: Floats, member: NDArray[np.bool_]) -> attacks.AttackResult:
        return attacks.lira(phi, member, members=direction, constant="tie", progress=False)

    def together(phi: Floats, member: NDArray[np.bool_], predicted: Floats) -> attacks.Posterior:
        return attacks.with_prior(phi, member, predicted, members=direction)

    def found(score: str, numbers: Sequence[int]) -> evaluate.Budget:
        predicted = scored.scores[score][: len(members)]
        return evaluate.budget(attack, together, signal, inside, predicted, members, models=numbers, **how)

    curve = found("exposure", counts)
    of_draws = curve.together.mean(2)
    alone = [None if np.isnan(value) else float(value) for value in curve.attack.mean((1, 2))]
    rerun = None
    if "exposure, rerun" in scored.scores:
        rerun = float(found("exposure, rerun", (0, counts[-1])).together[0].mean())
    return BudgetFound(
        curve.models,
        tuple(of_draws.mean(1).tolist()),
        tuple(alone),
        tuple((of_draws.std(1, ddof=1) / np.sqrt(_DRAWS)).tolist()),
        len(inside) - counts[-1],
        rerun,
    )


def target_layer(setting: Setting, scale: Scale, models: TrainedModels, number: int) -> tuple[LastLayer, Trace | None]:
    """The last layer of a target model on its members, and what its training remembers of them if it has epochs.

    The ridge is Λ = nλ where weight decay λ is part of the objective (``noshadow.optimizers``).
    """
    arrays = models.targets.store.read(models.targets.keys[number])
    inside = arrays["membership"]
    features = arrays.get("features", models.pool.inputs)
    recipe = setting.recipe_at(scale)
    decays = setting.model is None or read_optimizer(recipe.optimizer).penalises
    layer = LastLayer(
        features[inside],
        arrays["outputs"][inside],
        models.pool.targets[inside],
        head=setting.head,
        ridge=float(inside.sum()) * recipe.weight_decay if decays else 0.0,
    )
    if "epoch_losses" not in arrays:
        return layer, None
    return layer, Trace.from_losses(arrays["epoch_losses"][:, inside], arrays["mean_outputs"][inside])


def compare(scored: Scored, truth: Truth) -> AttackFindings:
    """Every metric of every score against an attack, over the targets, with the curve and the ceilings."""
    rows: dict[str, ScoreResult] = {}
    order = evaluate.ordering(truth.success_rate, truth.tiebreak)  # once, not for each of hundreds of numbers
    for name, values in scored.scores.items():
        points = [_over_targets(evaluate.recall, values, scored, order, top=k, keep=k) for k in CURVE]
        curve = RecallCurve(
            tuple(point.mean for point in points),
            tuple(None if np.isnan(point.std) else point.std for point in points),
            tuple(float(point.values[0]) for point in points),
        )
        found = {key: _over_targets(metric, values, scored, order, **how) for key, (metric, how) in metrics().items()}
        rows[name] = ScoreResult(found, curve)
    return AttackFindings(rows, truth.ceiling, truth.summary, truth.seconds, truth.oracle)


def _over_targets(metric: Metric, values: Floats, scored: Scored, order: Floats, **options: Any) -> Summary:
    done = (~np.isnan(values)).any(axis=1)  # an expensive score may cover some of the targets only
    members = scored.members[done]
    ranked = np.where(members, values[done], 0.0)
    return evaluate.over_targets(metric, ranked, order, members, **options)


def fit_of_targets(setting: Setting, models: TrainedModels) -> TargetFit:
    """Mean loss, and accuracy for classes, of the target models on members and on the others."""
    from noshadow.tensors import as_tensor

    facts: dict[str, list[float]] = {}
    head = get_head(setting.head)
    targets = as_tensor(models.pool.targets, "targets")
    targets = targets if head.classifies else targets.double().reshape(len(targets), -1)
    for outputs, inside in zip(models.targets.outputs, models.targets.membership, strict=True):
        z = as_tensor(outputs, "outputs").double()
        loss = head.loss(z, targets).numpy()
        right = (head.predicted(z) == targets).numpy() if head.classifies else None
        for side, mask in (("members", inside), ("others", ~inside)):
            facts.setdefault(f"loss_of_{side}", []).append(float(loss[mask].mean()))
            if right is not None:
                facts.setdefault(f"accuracy_on_{side}", []).append(float(right[mask].mean()))
    return TargetFit(**{name: float(np.mean(values)) for name, values in facts.items()})


def _identity(models: TrainedModels, name: str) -> dict[str, Any]:
    return {
        "attack": name,
        "options": asdict(Options.for_models(name, len(models.shadows.keys))),
        "study": models.shadows.store.fingerprint,
        "models": len(models.shadows.keys),
        "targets": len(models.targets.keys),
        "splits": ATTACKS[name].ceiling_splits,
        "draws": ATTACKS[name].oracle_draws,
        "curve": list(CURVE),
    }
