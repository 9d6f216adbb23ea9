"""Refinement against answers that are known beforehand; what is said of an approximation, against the dense Hessian."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

import noshadow
from noshadow import LastLayer, Trace, accuracy, audit, score
from noshadow.accuracy import Floats, _refine, _systems, records_to_check
from noshadow.curvature import Size, build_chosen, iterative
from noshadow.curvature.iterative import Effort
from noshadow.diagnostics import concerns
from noshadow.predict import converged_rates
from noshadow.scores import SCORES, Known, Score
from noshadow.scoring import score_with_diagnostics
from tests.curvature.test_large import make


class Answers:
    """Exact scores that are at hand, those of a sample that were asked for before, and which are asked for."""

    def __init__(self, truth: Floats, sample: tuple[int, ...] = ()) -> None:
        self._truth, self._sample, self.rows = truth, sample, np.empty(0, dtype=np.int64)

    def known(self, name: str) -> dict[int, float]:
        return {row: self._truth[row] for row in self._sample}

    def __call__(self, rows: Any, names: list[str]) -> dict[str, Floats]:
        return dict.fromkeys(names, self._truth[rows])


def refined(approximate: Floats, truth: Floats, size: int, sample: tuple[int, ...] = ()) -> tuple[bool, int, set[int]]:
    frame = pd.DataFrame({"newton": approximate.copy()})
    answers: Any = Answers(truth, sample)
    stable, count = _refine(answers, frame, "newton", ["newton"], approximate, size)
    found = np.argsort(-frame["newton"].to_numpy(), kind="stable")[:size]
    assert np.array_equal(frame["newton"][answers.rows], truth[answers.rows])
    assert len(np.unique(answers.rows)) == len(answers.rows) == count
    return stable, count, set(found.tolist())


@pytest.mark.parametrize("shuffled", [False, True])
def test_records_that_the_approximation_puts_too_low_are_found(shuffled: bool):
    """The first thirty are right, the next are half as high again as they are said to be, and so are the top."""
    approximate = 0.99 ** np.arange(1000.0)
    truth = np.where((np.arange(1000) >= 30) & (np.arange(1000) < 60), 1.5, 1.0) * approximate
    order = np.random.default_rng(0).permutation(1000) if shuffled else np.arange(1000)
    stable, count, found = refined(approximate[order], truth[order], 10)
    assert stable
    assert found == set(np.argsort(-truth[order])[:10].tolist())
    assert count < 100


def test_nothing_more_is_solved_than_may_belong_to_the_top():
    approximate = 0.9 ** np.arange(1000.0)
    stable, count, found = refined(approximate, approximate, 10)
    assert stable
    assert found == set(range(10))
    assert count <= 10 + 50


def test_a_search_that_ends_at_its_limit_says_so():
    """Approximations that tell nothing: any record may belong to the top, and ten times as many are looked at."""
    rng = np.random.default_rng(1)
    stable, count, _ = refined(1.0 + 1e-3 * rng.random(1000), rng.random(1000), 10)
    assert not stable
    assert count == 100


def test_the_random_sample_says_how_much_too_low_others_may_be():
    """One record far down is sampled: its ratio opens others, and where it belongs to the top itself, it is there."""
    approximate = 0.99 ** np.arange(1000.0)
    truth = approximate.copy()
    truth[555] *= 1.6
    truth[41] *= 1.6  # between two probes
    assert 41 not in refined(approximate, truth, 10)[2]
    stable, count, found = refined(approximate, truth, 10, sample=(555, 600))
    assert stable
    assert count < 100
    assert found == set(np.argsort(-truth)[:10].tolist())
    assert 41 in found
    assert refined(approximate, truth, 10, sample=(555, 45))[1] == count - 1  # what is known to be lower stays out
    truth[555] = 2.0
    assert 555 in refined(approximate, truth, 10, sample=(555,))[2]  # though the limit is reached before


def close(found: Any, wanted: Any, rows: Any) -> float:
    return float(np.max(np.abs(found[rows] / wanted[rows] - 1.0)))


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
def test_refined_rates_of_a_converged_head_are_those_of_the_exact_hessian_up_to_the_sums(method):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 10)) * np.exp(rng.normal(size=10))
    y = (x @ rng.normal(size=(10, 6)) + rng.gumbel(size=(500, 6))).argmax(1)
    layer = noshadow.last_layer(LogisticRegression(tol=1e-10, max_iter=5000).fit(x, y), (x, y))
    parts = ["leverage", "influence", "newton", "signal_shift", "signal_variance"]
    rates = ["attack_power", "attack_accuracy"]
    exact = score(layer, parts, curvature="dense")
    # without the sandwich, which an approximation does not have
    _, law = converged_rates(exact["influence"].sum(), {name: exact[name].to_numpy() for name in parts})
    plain, _ = score_with_diagnostics(layer, parts + rates, curvature=method)
    found, diagnostics = score_with_diagnostics(layer, parts + rates, curvature=method, refine=0.06)
    assert diagnostics.calibration is not None
    assert diagnostics.calibration.source == "converged"
    top = exact["newton"].nlargest(30).index
    for name in parts[1:]:
        assert close(found[name], exact[name], top) < 1e-5
        assert close(plain[name], exact[name], top) > 0.03
    # the sums over all records of influence and leverage stay approximate: one factor that is common to all
    factor = found["attack_power"][top] / law.power[top]
    assert np.ptp(factor) < 1e-5
    assert abs(factor.mean() - 1.0) < 0.03
    assert close(plain["attack_power"], law.power, top) > 2 * abs(factor.mean() - 1.0)
    assert np.abs(found["attack_accuracy"] - law.accuracy)[top].max() < 0.01


@pytest.fixture
def own_score(monkeypatch):
    """A registered score that uses the curvature, the losses of the run, and an array of all records by ``rows``."""
    by_row = torch.linspace(1.0, 2.0, 200, dtype=torch.float64)

    def own(known: Known) -> torch.Tensor:
        rows = known.records.rows
        return by_row[rows] * known.losses.mean(rows) * SCORES["influence"](known)

    monkeypatch.setitem(SCORES, "own", Score(own, frozenset({"curvature", "losses"}), default=False))
    return "own"


def test_a_registered_score_is_checked_and_refined_like_any_other(own_score):
    layer = make("softmax", n=200, p=6, ridge=0.3)
    trace = np.random.default_rng(3).uniform(0.5, 2.0, size=(4, 200))
    exact = score(layer, [own_score, "influence"], trace, curvature="dense")
    alone, diagnostics = score_with_diagnostics(layer, [own_score], trace, curvature="kronecker", refine=0.05)
    found = diagnostics.accuracy
    assert found is not None
    assert found.score == own_score
    assert found.refined >= 10
    top = exact[own_score].nlargest(10).index
    assert close(alone[own_score], exact[own_score], top) < 1e-5
    plain = score(layer, [own_score], trace, curvature="kronecker")
    assert close(plain[own_score], exact[own_score], top) > 0.01
    both, diagnostics = score_with_diagnostics(
        layer, [own_score, "influence"], trace, curvature="kronecker", refine=0.05
    )
    assert diagnostics.accuracy is not None
    assert diagnostics.accuracy.score == "influence"
    top = exact["influence"].nlargest(10).index
    assert close(both[own_score], exact[own_score], top) < 1e-5


def test_a_score_that_comes_first_is_ranked_by_and_checked(monkeypatch):
    def first(known: Known) -> torch.Tensor:
        return 2.0 * SCORES["influence"](known)

    monkeypatch.setitem(SCORES, "first", Score(first, frozenset({"curvature"}), of_run=True, precedence=9))
    layer = make("softmax", n=120, p=6, ridge=0.3)
    run = Trace.from_outputs(np.stack([0.5 * layer.outputs.numpy(), layer.outputs.numpy()]))
    found = audit(layer, trace=run, curvature="kronecker", scores=["leave_one_out", "exposure", "first"])
    assert found.metadata["ranked_by"] == found.metadata["accuracy"]["score"] == "first"


def test_which_score_is_compared_and_which_come_with_it(own_score):
    coupled, labels = make("softmax"), make("labels")
    assert list(_systems(coupled, list(SCORES))) == [
        *("exposure", "leave_one_out", "newton", "influence"),
        *("signal_shift", "signal_variance", "own", "leverage"),
    ]
    assert _systems(coupled, ["leverage", "signal_shift", "loss"]) == {"signal_shift": 1, "leverage": 3}
    assert _systems(labels, ["leverage"]) == {"leverage": 1}
    assert _systems(coupled, ["loss", "entropy"]) == {}


def test_leverages_that_take_one_system_are_refined_with_the_others():
    layer = make("labels", n=150, p=6, ridge=0.3)
    names = ["newton", "leverage"]
    exact, plain = (score(layer, names, curvature=method) for method in ("dense", "kronecker"))
    found, _ = score_with_diagnostics(layer, names, curvature="kronecker", refine=0.06)
    top = exact["newton"].nlargest(9).index
    assert close(found["leverage"], exact["leverage"], top) < 1e-5
    assert close(plain["leverage"], exact["leverage"], top) > 0.01


def wide_layer() -> LastLayer:
    return make("softmax", n=400, p=8, ridge=0.3, seed=5)


def test_what_is_said_of_the_top_is_of_the_top():
    layer = wide_layer()
    exact = score(layer, ["newton"], curvature="dense")["newton"].to_numpy()
    frame, diagnostics = score_with_diagnostics(layer, ["newton"], curvature="kronecker")
    approximate, found = frame["newton"].to_numpy(), diagnostics.accuracy
    assert found is not None
    highest = np.argsort(-approximate)
    error = np.abs(approximate - exact) / exact
    assert found.top == found.sampled == 100
    assert found.top_error == pytest.approx(np.median(error[highest[:100]]), rel=1e-4)
    assert abs(found.top_error - found.median_error) > 1e-3
    sampled = error[np.random.default_rng(0).choice(400, size=100, replace=False)]
    assert found.median_error == pytest.approx(np.median(sampled), rel=1e-4)
    assert found.error_95 == pytest.approx(np.quantile(sampled, 0.95), rel=1e-4)
    best = sorted(highest[:100], key=lambda row: -exact[row])[:50]
    assert found.top_kept == len(set(best) & set(highest[:50])) / 50
    assert found.top_share == 50 / 400


@pytest.mark.parametrize(("count", "with_top"), [(9, True), (10, False)])
def test_a_rank_correlation_of_few_records_takes_the_top_with_it(count, with_top, monkeypatch):
    monkeypatch.setattr(accuracy, "records_to_check", lambda *_: count)
    layer = wide_layer()
    exact = score(layer, ["newton"], curvature="dense")["newton"].to_numpy()
    frame, diagnostics = score_with_diagnostics(layer, ["newton"], curvature="kronecker")
    approximate = frame["newton"].to_numpy()
    sample = np.random.default_rng(0).choice(400, size=count, replace=False)
    top = np.argsort(-approximate)[: count + count % 2]
    by_both, by_sample = (
        stats.spearmanr(approximate[rows], exact[rows]).statistic for rows in (np.union1d(sample, top), sample)
    )
    assert by_both != by_sample
    assert diagnostics.accuracy is not None
    assert diagnostics.accuracy.spearman == pytest.approx(by_both if with_top else by_sample)


@pytest.mark.parametrize(("n", "share", "size"), [(75, 0.03, 3), (100, 0.07, 7), (60, 0.001, 1)])
def test_a_share_of_the_records_is_rounded_up_but_not_for_rounding(n, share, size):
    _, diagnostics = score_with_diagnostics(make("softmax", n=n), ["newton"], curvature="kronecker", refine=share)
    assert diagnostics.accuracy is not None
    assert diagnostics.accuracy.top_share == size / n


def test_how_many_records_are_checked():
    small, large = Size.of(make()), Size.of(wide_layer())
    assert records_to_check(small) == records_to_check(large) == 100
    huge = dataclasses.replace(small, n=10_000_000, columns=50_000, outputs=1000)
    assert records_to_check(huge) == 3  # one says nothing of a median, and three take a while
    some = dataclasses.replace(small, n=1_000_000, columns=100, outputs=10)
    assert records_to_check(some) == 25  # as many at the top, 20 steps each, of 4 n P m operations: 4·10¹² in all
    assert records_to_check(some, systems=3) == 8


def test_answers_that_did_not_converge_are_counted_and_told(monkeypatch):
    effort = Effort()
    singular = torch.tensor([False, False, False, True])
    effort.add(torch.tensor([3, 9, 9, 9]), torch.tensor([1e-9, 1e-2, 1e-3, 1.0]), singular, 1e-4)
    assert (effort.systems, effort.unconverged, effort.residual) == (4, 2, pytest.approx(1e-2))
    layer = wide_layer()
    _, converged = score_with_diagnostics(layer, ["influence"], curvature="kronecker")
    monkeypatch.setattr(iterative, "_CHECK_STEPS", 1)
    _, short = score_with_diagnostics(layer, ["influence"], curvature="kronecker")
    assert converged.accuracy is not None
    assert short.accuracy is not None
    assert converged.accuracy.unconverged == 0
    assert short.accuracy.unconverged > 50
    assert "exact answers did not converge" in " ".join(concerns(layer, short))


@pytest.mark.parametrize("size", [1.0, 40.0])
def test_systems_that_end_on_a_direction_without_curvature_are_told(size: float):
    """One record on the wrong side of saturated outputs and no ridge: its gradient lies where nothing is curved."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)), rng.integers(0, 4, 40)
    z = size * (2.0 * np.eye(4)[y] - 1.0)
    z[0] = -z[0]
    layer = LastLayer(x, z, y)
    _, itself = score_with_diagnostics(layer, ["influence"], curvature="iterative")
    _, beside = score_with_diagnostics(layer, ["influence"], curvature="kronecker")
    assert beside.accuracy is not None
    told = " ".join(concerns(layer, itself))
    if size == 1.0:
        assert (itself.unconverged, beside.accuracy.unconverged) == (0, 0)
        assert itself.residual < 1e-6
        assert "converge" not in told
    else:
        assert min(itself.unconverged, beside.accuracy.unconverged) > 0
        assert "systems of 'iterative' did not converge" in told
        assert "exact answers did not converge" in " ".join(concerns(layer, beside))


def test_systems_that_did_not_converge_are_counted_over_all_points(monkeypatch):
    """With a trace there are two, the final outputs and those of the run, each with a Hessian of its own."""
    built = []

    def build(*arguments):
        hessian = build_chosen(*arguments)
        built.append(dataclasses.replace(hessian, solver=dataclasses.replace(hessian.solver, most_steps=3)))
        return built[-1]

    monkeypatch.setattr("noshadow.scoring.build_chosen", build)
    layer = wide_layer()
    trace = Trace.from_outputs(torch.stack([0.5 * layer.outputs, layer.outputs]))
    _, found = score_with_diagnostics(layer, ["newton", "exposure"], trace=trace, curvature="iterative")
    each = [hessian.solver.effort.unconverged for hessian in built]
    assert len(each) == 2
    assert min(each) > 0
    assert found.unconverged == sum(each)


@pytest.mark.parametrize("refine", [None, 0.1])
def test_records_of_leverage_1_are_flagged_though_only_the_exact_answers_see_it(refine, monkeypatch):
    """Fewer records than columns and no ridge: every record decides its own fit, whatever a part of the directions
    says of it."""
    monkeypatch.setattr("noshadow.curvature.kronecker.kronecker_memory", lambda *_, **__: 1e9)
    generator = np.random.default_rng(0)
    x, z, y = generator.normal(size=(20, 40)), generator.normal(size=(20, 4)), generator.integers(0, 4, 20)
    layer = LastLayer(x, z, y, "softmax")
    exact = score_with_diagnostics(layer, ["newton"], curvature="dense")[1]
    found = score_with_diagnostics(layer, ["newton"], curvature="kronecker", refine=refine)[1]
    assert found.flagged == exact.flagged == tuple(range(20))
    assert score_with_diagnostics(layer, ["influence"], curvature="kronecker", refine=refine)[1].flagged == ()
