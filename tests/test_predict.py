"""Predicted success rates against integrals, simulations and refits; exposure against its formula."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, optimize, stats
from sklearn.linear_model import LinearRegression, LogisticRegression

import noshadow
from noshadow import InputError, LastLayer, Trace, attacks, score
from noshadow.attacks.gaussians import best_accuracy, best_tpr
from noshadow.diagnostics import _of_rates, concerns
from noshadow.heads import make_head
from noshadow.predict import FPR, Calibration, HeldOut, Rates, calibrate, converged_rates, match_scale, spreads_of
from noshadow.rating import LAWS, Law, learned_features, part_by_chance
from noshadow.scoring import score_with_diagnostics
from noshadow.squared_law import calibrate_law

CASES = [(0.0, 1.0, 1.0), (1.3, 1.0, 1.0), (0.7, 0.4, 1.1), (2.0, 1.5, 0.6), (0.0, 0.3, 1.0), (9.0, 0.2, 3.0)]


@pytest.mark.parametrize(("shift", "inside", "outside"), CASES)
def test_accuracy_is_that_of_the_larger_density(shift, inside, outside):
    """½ ∫ max(p, q): the definition of the best guess."""
    p, q = stats.norm(shift, inside), stats.norm(0.0, outside)
    grid = np.linspace(-40.0, 40.0, 2_000_001)
    expected = 0.5 * integrate.trapezoid(np.maximum(p.pdf(grid), q.pdf(grid)), grid)
    assert best_accuracy(shift, inside, outside) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("shift", "inside", "outside"), CASES)
def test_tpr_is_that_of_the_likelihood_ratio(shift, inside, outside):
    """Take the points of largest ratio until they make up 1 % of the others."""
    p, q = stats.norm(shift, inside), stats.norm(0.0, outside)
    grid = np.linspace(-30.0, 30.0, 1_200_001)
    order = np.argsort(q.logpdf(grid) - p.logpdf(grid), kind="stable")
    step = grid[1] - grid[0]
    false, true = np.cumsum(q.pdf(grid[order])) * step, np.cumsum(p.pdf(grid[order])) * step
    expected = np.interp(0.01, false, true)
    assert float(best_tpr(shift, inside, outside, FPR)) == pytest.approx(expected, abs=2e-3)


def converged_softmax(x, y, ridge, classes=3):
    """θ (p, classes) of Σ cross-entropy + Λ/2‖θ‖², by Newton's method."""
    theta = np.zeros((x.shape[1], classes))
    for _ in range(30):
        z = x @ theta
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = x.T @ (p - np.eye(classes)[y]) + ridge * theta
        curvature = p[:, :, None] * np.eye(classes) - p[:, :, None] * p[:, None, :]
        hessian = np.einsum("ni,nj,nab->iajb", x, x, curvature, optimize=True).reshape(theta.size, theta.size)
        theta -= np.linalg.solve(hessian + ridge * np.eye(theta.size), gradient.ravel()).reshape(theta.shape)
        if np.abs(gradient).max() < 1e-9:
            break
    return theta


def converged_fit(head, x, y, ridge):
    """θ of Σ loss + Λ/2‖θ‖², by Newton's method."""
    if head == "softmax":
        return converged_softmax(x, y, ridge)
    theta = np.zeros(x.shape[1])
    for _ in range(60):
        if head == "squared":
            gradient, hessian = -2 * x.T @ (y - x @ theta), 2 * x.T @ x
        else:
            p = 1 / (1 + np.exp(-x @ theta))
            gradient, hessian = x.T @ (p - y), (x * (p * (1 - p))[:, None]).T @ x
        theta -= np.linalg.solve(hessian + ridge * np.eye(len(theta)), gradient + ridge * theta)
    return theta


@pytest.mark.parametrize("head", ["logistic", "softmax", "squared"])
def test_rates_of_a_converged_head_are_those_of_an_attack_with_many_refits(head):
    """LiRA with 800 models on halves of the pool; predicted from single models, deciles within 0.02."""
    generator = np.random.default_rng(0)
    n, p, models = 300, 5, 800
    x = np.column_stack([generator.standard_t(5, size=(n, p)), np.ones(n)])
    y, m = records_of(head, x, generator)
    inside = np.zeros((models, n), bool)
    outputs = np.empty((models, n, m))
    for k in range(models):
        inside[k, generator.permutation(n)[: n // 2]] = True
        outputs[k] = (x @ converged_fit(head, x[inside[k]], y[inside[k]], 1.0)).reshape(n, m)
    phi = attacks.signal(outputs, y, head)
    truth = attacks.lira(phi, inside, members="lower" if head == "squared" else "higher").success_rate
    errors = []
    for k in range(4):
        m = inside[k]
        layer = LastLayer(x[m, :-1], outputs[k, m], y[m], head=head, ridge=1.0)
        found = score(layer)["attack_accuracy"].to_numpy()
        parts = np.array_split(np.argsort(found, kind="stable"), 10)
        errors.append(np.mean([abs(found[part].mean() - truth[m][part].mean()) for part in parts]))
        assert np.corrcoef(found, truth[m])[0, 1] > 0.7
    assert np.mean(errors) < 0.02


def records_of(head, x, generator):
    """Targets drawn from a linear model of that head, and its number of outputs."""
    m = 3 if head == "softmax" else 1
    z = x @ generator.normal(size=(x.shape[1], m))
    if head == "squared":
        return z[:, 0] + generator.standard_t(4, size=len(x)), m
    if head == "logistic":
        return (generator.random(len(x)) < 1 / (1 + np.exp(-z[:, 0]))).astype(int), m
    return (z + generator.gumbel(size=z.shape)).argmax(1), m


def test_spreads_that_are_stated_take_the_place_of_the_law_of_a_converged_head():
    generator = np.random.default_rng(20)
    x = generator.normal(size=(200, 4))
    y = (x[:, 0] + generator.normal(size=200) > 0).astype(int)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(x, y)
    layer = LastLayer(x, model.decision_function(x), y, "logistic", 1.0, penalize_bias=False)
    assert score_with_diagnostics(layer)[1].calibration.source == "converged"
    frame, found = score_with_diagnostics(layer, spread=(2.0, 2.0), gap=0.5)
    assert (found.calibration.source, found.calibration.spread_in, found.calibration.spread_out) == ("stated", 2.0, 2.0)
    shift = 0.5 * np.sqrt(frame["exposure"]) / np.sqrt(frame["exposure"]).mean()
    np.testing.assert_allclose(frame["attack_accuracy"], stats.norm.cdf(shift / 4.0), rtol=1e-6)


def test_signal_shift_of_squared_error_is_that_of_refits():
    generator = np.random.default_rng(1)
    x, y = np.column_stack([generator.normal(size=(30, 3)), np.ones(30)]), generator.normal(size=30)
    outputs = x @ converged_fit("squared", x, y, 0.5)
    found = score(LastLayer(x[:, :3], outputs, y, head="squared", ridge=0.5), ["signal_shift"])["signal_shift"]
    for i in range(30):
        rest = np.delete(np.arange(30), i)
        without = x[i] @ converged_fit("squared", x[rest], y[rest], 0.5)
        assert found[i] == pytest.approx((y[i] - without) ** 2 - (y[i] - outputs[i]) ** 2, rel=1e-8, abs=1e-12)


def test_signal_shift_of_classes_is_near_that_of_refits():
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(120, 4)), generator.integers(0, 3, 120)
    how = {"C": 1.0, "tol": 1e-12, "max_iter": 5000}
    whole = LogisticRegression(**how).fit(x, y)
    layer = LastLayer(x, whole.decision_function(x), y, ridge=1.0, penalize_bias=False)
    found = score(layer, ["signal_shift"])["signal_shift"].to_numpy()
    true = []
    for i in range(120):
        rest = np.delete(np.arange(120), i)
        without = LogisticRegression(**how).fit(x[rest], y[rest])
        pair = np.stack([whole.decision_function(x[i : i + 1]), without.decision_function(x[i : i + 1])])
        inside, outside = attacks.signal(pair, y[i : i + 1], "softmax")[:, 0]
        true.append(inside - outside)
    assert np.median(np.abs(found - true) / np.abs(true)) < 0.02
    assert stats.spearmanr(found, true).statistic > 0.999


@pytest.fixture(scope="module")
def run():
    """A layer, the outputs (epochs, n, m) of the run that led to it, and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (80,), generator=generator)
    theta = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    outputs = torch.stack([x @ theta * epoch / 10 for epoch in range(1, 21)])
    return LastLayer(x, outputs[-1], y, ridge=0.3), outputs


def test_exposure_is_the_newton_score_of_the_run_at_its_mean_loss(run):
    layer, outputs = run
    mean = outputs.mean(0)
    at_mean = score(LastLayer(layer.features, mean, layer.targets, ridge=0.3), ["newton", "loss", "signal_shift"])
    losses = torch.stack([torch.nn.functional.cross_entropy(z, layer.targets, reduction="none") for z in outputs])
    expected = at_mean["newton"] * losses.mean(0).numpy() / at_mean["loss"]
    found = score(layer, ["newton", "exposure", "signal_shift"], Trace.from_outputs(outputs))
    np.testing.assert_allclose(found["exposure"], expected, rtol=1e-5)  # a trace holds single precision
    np.testing.assert_allclose(found["signal_shift"], at_mean["signal_shift"], rtol=1e-5)
    final = score(layer, ["newton", "exposure"])
    np.testing.assert_array_equal(found["newton"], final["newton"])
    np.testing.assert_array_equal(final["exposure"], final["newton"])  # without a trace


def test_losses_alone_are_enough_for_the_exposure_of_squared_error():
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(40, 3)), generator.normal(size=40)
    layer = LastLayer(x, x @ generator.normal(size=3), y, head="squared")
    losses = generator.exponential(size=(6, 40))
    found = score(layer, ["leverage", "exposure"], losses)
    np.testing.assert_allclose(found["exposure"], 2 * losses.mean(0) * found["leverage"] / (1 - found["leverage"]))


def test_exposure_of_squared_error_takes_the_mean_square(run):
    layer, outputs = run
    generator = np.random.default_rng(3)
    y = generator.normal(size=80)
    runs = outputs[:, :, :1].numpy() + generator.normal(size=(20, 80, 1))
    squared = LastLayer(layer.features, runs[-1], y, head="squared", ridge=0.3)
    found = score(squared, ["exposure", "leverage"], Trace.from_outputs(runs))
    mean_square = ((y[None] - runs[:, :, 0]) ** 2).mean(0)
    h = found["leverage"]
    np.testing.assert_allclose(found["exposure"], 2 * mean_square * h / (1 - h), rtol=1e-4)


@pytest.mark.parametrize("unit", [1.0, 1e-40, 1e40])
def test_the_scale_of_the_shift_is_found_without_an_attack(unit):
    """Members are held-out records moved by c √E: c is recovered, in whatever unit E is, from the two sets."""
    generator = np.random.default_rng(4)
    population = generator.normal(1.0, 2.0, 80_000)
    exposure = generator.lognormal(-1.0, 1.5, 40_000)
    loss = np.log1p(np.exp(-population[40_000:]))
    for scale in (0.8, 2.5):
        moved = population[:40_000] + scale * np.sqrt(exposure)
        found = match_scale(unit * exposure, moved, loss)
        assert found * np.sqrt(unit) == pytest.approx(scale, rel=0.05)
    assert match_scale(unit * exposure, population[:40_000] - 1.0, loss) == 0.0  # members fit worse: nothing to find
    assert match_scale(np.zeros(40_000), moved, loss) == 0.0


@pytest.mark.parametrize("size", [1e20, 1e28, 1e100])
def test_statistics_of_any_size_have_a_scale(size):
    members, exposure = np.array([1.0, 2.0, 3.0]) * size, np.ones(3)
    assert match_scale(exposure, members, np.full(30, size)) == pytest.approx(3.0 * size)  # the mean of 2, 1 and 0


def test_records_that_nobody_mistakes_do_not_scale_the_shift():
    """How sure a model is of easy records varies widely, and says nothing of the others."""
    generator = np.random.default_rng(14)
    population = generator.normal(0.0, 2.0, 20_000)
    exposure = generator.lognormal(-1.0, 1.0, 10_000)
    easy = np.arange(10_000) < 8_000
    exposure[easy] = 1e-12
    members = population[:10_000] + np.sqrt(exposure)
    others = population[10_000:].copy()
    members[easy], others[easy] = 40.0, 60.0  # the mean of φ would say that members fit worse
    assert match_scale(exposure, members, np.logaddexp(0.0, -others)) == pytest.approx(1.0, rel=0.15)


def test_a_member_is_held_no_firmer_than_by_a_linear_model():
    """φ_in = φ_out + a (1 − p(φ_in)): solved for many φ_out, its spread is at least 1/(1 + s) of theirs."""
    head = make_head("logistic", 1)
    outside = np.linspace(-0.05, 0.05, 11)
    for leverage in (0.5, 3.0, 40.0):

        def unmoved(phi, without, leverage=leverage):
            return phi - without - leverage / (1 + np.exp(phi))

        inside = np.array([optimize.brentq(unmoved, -50, 50, (without,)) for without in outside])
        shift = float((inside - outside).mean())
        assert np.ptp(inside) / np.ptp(outside) == pytest.approx(1 / (1 + shift / (1 + np.exp(-inside[5]))), rel=1e-3)
        assert np.ptp(inside) / np.ptp(outside) > 1 / (1 + shift)
    exposure, members = np.full(400, 4.0), np.full(400, 2.0)
    others = HeldOut(np.full(40, -1.0), np.full(40, np.log1p(np.exp(1.0))), np.full(40, 0.5))
    found = calibrate(head, exposure, members, np.log1p(np.exp(-members)), others, (1e-6, 1.0))
    assert found.shift(exposure)[0] == pytest.approx(3.0)
    assert found.contraction == 1.0  # the spreads alone would have it hold any firmer


def test_no_gap_predicts_a_coin(run):
    """Members and held-out records of one distribution: nothing to tell them by."""
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(2000, 6)), generator.integers(0, 3, 2000)
    z = generator.normal(size=(2000, 3)) * 3
    layer = LastLayer(x[:1000], z[:1000], y[:1000])
    found = score(layer, ["attack_accuracy"], spread=(1.0, 1.0), held_out=(z[1000:], y[1000:]))["attack_accuracy"]
    assert float(found.mean()) < 0.52


@pytest.mark.parametrize("head", ["logistic", "squared"])
def test_what_chance_leaves_open_is_the_change_by_two_standard_errors(head):
    """Rates with the mean loss of held-out records two standard errors up or down, by hand; few leave more open."""
    generator = np.random.default_rng(15)
    x = generator.normal(size=(2400, 3))
    noise = generator.normal(size=2400)
    y = (x[:, 0] + noise > 0).astype(int) if head == "logistic" else x[:, 0] + noise
    z = 1.5 * x[:, 0] + 0.4 * noise
    layer = LastLayer(x[:200], z[:200], y[:200], head=head)
    margins = {}
    for count in (30, 2000):
        held = (z[200 : 200 + count] - 0.3 * noise[200 : 200 + count], y[200 : 200 + count])
        how = {"spread": (0.4, 0.6), "held_out": held}
        frame, found = score_with_diagnostics(layer, None, **how)
        margins[count] = found.calibration.margin
        losses = [plain_loss_of(head, *side) for side in ((z[:200], y[:200]), held)]
        more = 2 * np.sqrt(losses[0].var() / 200 + losses[1].var() / count)
        others = HeldOut.of(layer.kind, *held)
        apart = []
        for side in (more, -more):
            moved = HeldOut(others.statistic, losses[1] * (1 + side / losses[1].mean()), others.cost)
            if head == "logistic":
                phi = np.where(y[:200] == 1, 1, -1) * z[:200]
                other = calibrate(layer.kind, frame["exposure"].to_numpy(), phi, losses[0], moved, (0.4, 0.6))
                rates = other.rates(frame["exposure"].to_numpy())
            else:
                h = frame["leverage"].to_numpy()
                rates = calibrate_law(layer.kind, h, losses[0], losses[0], moved, (0.4, 0.6))[1]
            apart.append(abs(rates.accuracy.mean() - frame["attack_accuracy"].mean()))
        expected = max(apart)
        assert margins[count] == pytest.approx(expected, abs=1e-9)
    assert margins[30] > margins[2000] > 0
    few = slice(200, 220)
    held = (z[few] - 1.5 * noise[few], y[few])  # further off than chance explains
    with pytest.warns(noshadow.NoshadowWarning, match="it is chance how much better members fit; other records could"):
        score(layer, ["attack_accuracy"], spread=(0.1, 0.1), held_out=held)


@pytest.mark.parametrize(("errors", "said"), [(0.5, True), (1.9, True), (2.1, False), (8.0, False)])
def test_a_gap_that_chance_explains_is_told_of(errors, said):
    """Held-out records lose more by so many standard errors; a single record may be rated high all the same."""
    generator = np.random.default_rng(16)
    x, y = generator.normal(size=(800, 3)), generator.integers(0, 2, 800)
    lost = np.abs(generator.normal(1.0, 0.2, 800))
    inside = np.arange(800) < 400
    error = np.sqrt(lost[inside].var() / 400 + lost[~inside].var() / 400)
    lost[~inside] += lost[inside].mean() - lost[~inside].mean() + errors * error
    z = -np.log(np.expm1(lost)) * (2 * y - 1)  # whose loss is that
    layer = LastLayer(x[inside], z[inside], y[inside], head="logistic")
    _, found = score_with_diagnostics(layer, None, spread=(0.4, 0.5), held_out=(z[~inside], y[~inside]))
    assert found.calibration.gap_errors == pytest.approx(errors, rel=1e-6)
    note = f"members fit better than its records by {errors:.1f} standard errors, which chance explains; every "
    note += f"predicted rate {'is' if errors <= 1 else 'may be'} that of a coin"
    assert any(note in one for one in concerns(layer, found)) == said
    assert (found.calibration.scale == 0.0) == (errors <= 1)


@pytest.mark.parametrize(("errors", "said"), [(-1.0, True), (-1.9, True), (-2.1, False), (-8.0, False)])
def test_held_out_records_that_fit_better_by_more_than_chance_are_not_put_down_to_it(errors, said):
    found = Calibration(0.5, 0.5, scale=0.0, gap=-1.0, held_out=400, gap_errors=errors)
    (note,) = _of_rates(found)
    assert note.startswith("held_out: its records fit as well as the members do, so that no shift was found")
    assert ("It may be chance: pass more of them" in note) == said


def test_no_rate_is_beyond_certainty():
    shift = np.concatenate([np.linspace(0.0, 50.0, 400), np.geomspace(50.0, 1e12, 100)])
    for inside in (1e-9, 0.3, 1.0 - 1e-7, 1.0, 1.0 + 1e-7, 4.0):
        rates = best_accuracy(shift, inside, 1.0)
        assert rates.min() >= 0.5
        assert rates.max() <= 1.0


def test_what_is_left_of_a_gap_has_the_square_of_the_true_one_on_average():
    generator = np.random.default_rng(17)
    for true in (3.0, 6.0):
        seen = true + generator.normal(size=100_000)
        left = np.array([one * (1.0 - part_by_chance(one)) for one in seen])
        assert np.mean(left**2) == pytest.approx(true**2, abs=0.1)
    assert [part_by_chance(errors) for errors in (-3.0, 0.0, 1.0)] == [0.0, 1.0, 1.0]


def test_members_that_were_never_trained_on_are_coins():
    """Sixty halves of one distribution: what chance makes of a gap is hardly rated, and most often not at all."""
    generator = np.random.default_rng(18)
    means = []
    for _ in range(60):
        x, y = generator.normal(size=(400, 6)), generator.integers(0, 3, 400)
        z = 2.0 * generator.normal(size=(400, 3))
        layer = LastLayer(x[:200], z[:200], y[:200])
        found = score(layer, ["attack_accuracy"], spread=(1.0, 1.0), held_out=(z[200:], y[200:]))
        means.append(float(found["attack_accuracy"].mean()))
    assert np.mean(means) < 0.51
    assert np.mean(np.array(means) < 0.5001) > 0.75


@pytest.mark.parametrize(("inside", "beta"), [(0.9, None), (0.5, None), (0.01, 1.0), (1.3, 0.0)])
def test_spreads_of_members_are_to_those_of_others_as_two_runs_say(inside, beta):
    """σ_out is that of held-out records, the mean of σ_in² in proportion; each pair is (1 + s)^β apart."""
    generator = np.random.default_rng(19)
    head, exposure = make_head("logistic", 1), generator.lognormal(-0.5, 1.0, 4000)
    members = generator.normal(2.0, 1.0, 4000)
    others = HeldOut(np.zeros(40), np.full(40, 0.8), np.full(40, 0.2))
    found = calibrate(head, exposure, members, np.log1p(np.exp(-members)), others, (inside, 1.0))
    shift, rates = found.shift(exposure), found.rates(exposure)
    assert found.contraction == (pytest.approx(beta) if beta is not None else found.contraction)
    ratio = (1.0 + shift) ** -found.contraction
    outside = shift / rates.power / np.sqrt((ratio**2 + 1.0) / 2.0)
    total = found.spread_out * found.resampled
    np.testing.assert_allclose(outside, total, rtol=1e-9)
    if beta is None:
        assert np.mean((ratio * outside) ** 2) == pytest.approx(inside**2 * total**2, rel=1e-6)
    np.testing.assert_allclose(rates.accuracy, best_accuracy(shift, ratio * outside, outside), rtol=1e-9)


@pytest.mark.parametrize("head", ["softmax", "squared"])
def test_held_out_records_that_fit_as_well_give_coins_and_keep_the_ranking(head):
    """No rerun, no gap: there is no spread to derive, and none is needed."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(300, 4))
    z = x @ generator.normal(size=(4, 3 if head == "softmax" else 1))
    y = z.argmax(1) if head == "softmax" else z[:, 0] + generator.normal(size=300)
    layer = LastLayer(x[:200], z[:200], y[:200], head=head)
    held = (2.0 * z[200:], y[200:]) if head == "softmax" else (y[200:, None], y[200:])
    with pytest.warns(noshadow.NoshadowWarning, match="every predicted rate is that of a coin"):
        found = score(layer, None, held_out=held)
    np.testing.assert_allclose(found["attack_accuracy"], 0.5, atol=1e-6)
    np.testing.assert_array_equal(found["exposure"], score(layer, ["exposure"])["exposure"])


def test_a_gap_that_is_none_gives_coins_and_says_so(run):
    layer, outputs = run
    with pytest.warns(noshadow.NoshadowWarning, match="gap: members fit no better than others"):
        found = score(layer, None, Trace.from_outputs(outputs), spread=(0.5, 0.5), gap=-0.3)
    np.testing.assert_allclose(found["attack_accuracy"], 0.5, atol=1e-12)


@pytest.mark.parametrize(("records", "told"), [(40, True), (400, False)])
def test_a_head_with_as_many_weights_as_records_is_told_of(records, told):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(records + 200, 25))
    z = x @ generator.normal(size=(25, 3)) * 0.1
    y = generator.integers(0, 3, len(x))
    layer = LastLayer(x[:records], z[:records], y[:records])
    how = {"spread": (0.5, 0.6), "held_out": (z[records:], y[records:])}
    _, found = score_with_diagnostics(layer, ["attack_accuracy"], **how)
    assert found.leverage_share == pytest.approx(26 / records, rel=1e-6)
    assert any("weights per record and output" in note for note in concerns(layer, found)) == told


def test_records_of_weight_0_are_no_members_of_rates(run):
    layer, _ = run
    weights = np.ones(layer.n)
    weights[[3, 8]] = 0.0
    light = LastLayer(layer.features, layer.outputs, layer.targets, head=layer.head, sample_weight=weights)
    with pytest.raises(InputError, match=r"^sample_weight: 0 in rows 3, 8 .*took no part in training"):
        score(light, None, spread=(0.5, 0.5), gap=1.0)
    assert "exposure" in score(light)


def test_records_of_weight_0_are_named_by_their_rows_in_all_of_the_data(run, monkeypatch):
    layer, _ = run
    monkeypatch.setattr("noshadow.rating._CHUNK", 16)
    weights = np.ones(layer.n)
    weights[[3, 40]] = 0.0
    light = LastLayer(layer.features, layer.outputs, layer.targets, head=layer.head, sample_weight=weights)
    with pytest.raises(InputError, match=r"^sample_weight: 0 in rows 3, 40 \(counted from 0\)"):
        score(light, None, spread=(0.5, 0.5), gap=1.0)


def test_held_out_records_lose_no_less_than_nothing():
    held = HeldOut(np.zeros(3), np.array([0.5, 1.0, 3.0]), np.ones(3))
    np.testing.assert_allclose(held.losing(1.5).loss, [1.0, 2.0, 6.0])
    np.testing.assert_allclose(held.losing(-0.75).loss, [0.25, 0.5, 1.5])
    np.testing.assert_array_equal(held.losing(-10.0).loss, 0.0)


@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_a_spread_that_nothing_tells_of_is_in_the_unit_of_the_targets(unit):
    """Held-out records that fit better than members, and no rerun: some part of what they are off by."""
    head = make_head("squared", 1)
    y = np.linspace(-1.0, 2.0, 30)
    usual, scaled = (
        spreads_of(head, np.full(40, 5.0 * u), HeldOut.of(head, np.zeros((30, 1)), u * y), None, "rerun")
        for u in (1.0, unit)
    )
    assert usual.source == scaled.source == "gap"
    assert 0.0 < usual.spread_out < 0.01
    assert scaled.spread_out == pytest.approx(unit * usual.spread_out)


def test_classes_of_weight_0_are_no_members_of_rates():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)), np.arange(60) % 3
    layer = LastLayer(x, x, y, class_weight=[1.0, 0.0, 2.0])
    held_out = (generator.normal(size=(40, 3)), np.arange(40) % 3)
    with pytest.raises(InputError, match=r"^class_weight: 0 in rows 1, 4, 7, .*took no part in training"):
        score(layer, ["attack_accuracy"], spread=(1.0, 1.0), held_out=held_out)
    assert len(score(layer, ["exposure"])) == 60


def test_copies_but_for_rounding_have_no_spread():
    z = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(InputError, match="rerun: it gives the same outputs as the model, but for rounding"):
        noshadow.spread(z, z * (1 + 1e-15), np.arange(50) % 3, "softmax")


def plain_loss_of(head, z, y):
    return np.abs(z - y) if head == "squared" else np.log1p(np.exp(np.where(y == 1, -z, z)))


def test_a_gap_scales_the_mean_shift(run):
    layer, outputs = run
    trace = Trace.from_outputs(outputs)
    found = score(layer, ["exposure", "attack_power"], trace, spread=(0.5, 0.5), gap=1.5)
    root = np.sqrt(found["exposure"])
    mean = np.minimum(root, 10 * root.quantile(0.99)).mean()
    np.testing.assert_allclose(found["attack_power"] * 0.5, 1.5 * root / mean)


def test_a_record_that_moves_more_is_never_rated_lower():
    exposure = np.sort(np.random.default_rng(6).lognormal(0, 3, 500))
    rates = Calibration(0.4, 1.2, 1.3, 0.7, 0.8).rates(exposure)
    for column in (rates.accuracy, rates.tpr):
        assert (np.diff(column) > -1e-9).all()
    assert rates.accuracy[0] >= 0.5
    assert rates.accuracy[-1] <= 1.0


def test_spread_is_the_root_mean_square_over_two():
    generator = np.random.default_rng(7)
    z, rerun, y = generator.normal(size=(50, 4)), generator.normal(size=(50, 4)), generator.integers(0, 4, 50)
    phi = attacks.signal(np.stack([z, rerun]), y, "softmax")
    expected = np.sqrt(np.mean((phi[0] - phi[1]) ** 2) / 2)
    assert noshadow.spread(z, rerun, y, "softmax") == pytest.approx(expected, rel=1e-12)
    values = noshadow.spread(z[:, 0], rerun[:, 0], generator.normal(size=50), "squared")
    assert values == pytest.approx(np.sqrt(np.mean((z[:, 0] - rerun[:, 0]) ** 2) / 2), rel=1e-12)
    with pytest.raises(InputError, match="the same outputs as the model"):
        noshadow.spread(z, z, y, "softmax")
    with pytest.raises(InputError, match=r"rerun_outputs: expected shape \(50, 4\)"):
        noshadow.spread(z, rerun[:40], y, "softmax")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spread": (0.0, 1.0), "gap": 1.0}, "spread: expected two positive numbers"),
        ({"spread": (1.0, 1.0)}, "spread: how far records move is scaled by gap= or held_out="),
        ({"held_out": (np.zeros((5, 3)), np.zeros(5, int))}, "held_out: 5 records say too little; pass 20 or more"),
        ({"spread": 1.0, "gap": 1.0}, "spread: expected two numbers"),
        ({"spread": (True, True), "gap": 1.0}, "spread: expected two numbers"),
        ({"spread": (1.0, 1.0), "gap": True}, "gap: expected a number"),
        ({"gap": 1.0}, "gap: it scales the predicted rates"),
        ({"spread": (1.0, 1.0), "gap": float("nan")}, "gap: expected a number"),
        ({"held_out": [1, 2, 3]}, r"held_out: expected \(outputs, targets\)"),
        ({"scores": ["attack_accuracy"]}, "'attack_accuracy' needs records that the model was not trained on"),
    ],
)
def test_what_cannot_be_rated_is_refused(run, arguments, message):
    layer, outputs = run
    with pytest.raises(InputError, match=message):
        score(layer, trace=Trace.from_outputs(outputs), **arguments)


@pytest.fixture(scope="module")
def networks():
    """Two small networks of one recipe, the trace of the first, members and held-out records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(400, generator=generator) > 0).long()

    def train(seed, trace=None):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(30):
            for batch in torch.randperm(200).split(50):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            if trace is not None:
                trace.update(model, (x[:200], y[:200]))
        return model

    trace = Trace()
    return train(0, trace), train(1), trace, (x[:200], y[:200]), (x[200:], y[200:])


def test_an_audit_rates_every_record(networks):
    model, rerun, trace, members, others = networks
    audit = noshadow.audit(model, members, optimizer="adam", trace=trace, rerun=rerun, held_out=others)
    assert audit.ranking == "exposure"
    rate = audit.table["attack_accuracy"]
    assert rate.between(0.5, 1.0).all()
    assert rate[audit.table["exposure"].idxmax()] == rate.max()
    facts = audit.metadata["calibration"]
    assert facts["source"] == "rerun"
    with torch.no_grad():
        first, second = (torch.diff(m(members[0]), dim=1)[:, 0] for m in (model, rerun))
    assert facts["spread_in"] == pytest.approx(float((first - second).square().mean() / 2) ** 0.5, rel=1e-5)
    assert audit.metadata["advice"] == []


def test_an_audit_says_what_would_sharpen_it(networks):
    model, _, trace, members, others = networks
    bare = noshadow.audit(model, members, optimizer="adam")
    assert "attack_accuracy" not in bare.table
    assert [hint.partition(";")[0].partition(",")[0] for hint in bare.metadata["advice"]] == [
        "ranked from the final model alone",
        "for a predicted success rate per record pass held_out=",
    ]
    guessed = noshadow.audit(model, members, optimizer="adam", trace=trace, held_out=others)
    assert guessed.metadata["calibration"]["source"] == "gap"
    assert "not calibrated" in guessed.metadata["advice"][0]


def test_a_rerun_that_is_none_is_refused(networks):
    model, _, _, members, others = networks
    with pytest.raises(InputError, match="rerun: it gives the same outputs"):
        noshadow.audit(model, members, optimizer="adam", rerun=model, held_out=others)
    wide = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    with pytest.raises(
        InputError, match=r"rerun: a softmax head with 3 outputs, but the model has a softmax head with 2"
    ):
        noshadow.audit(model, members, optimizer="adam", rerun=wide)


def test_layers_are_compared_as_models_are(networks):
    model, rerun, _, members, others = networks
    x, y = members
    with torch.no_grad():
        hidden = model[1](model[0](x))
        layer = LastLayer(hidden, model(x), y)
        again, held = (
            LastLayer(hidden, rerun(x), y),
            LastLayer(model[1](model[0](others[0])), model(others[0]), others[1]),
        )
        held_again = LastLayer(held.features, rerun(others[0]), others[1])
    whole = noshadow.audit(model, members, optimizer="adam", rerun=rerun, held_out=others).table
    parts = noshadow.audit(layer, rerun=(again, held_again), held_out=held).table
    np.testing.assert_allclose(parts["attack_accuracy"], whole["attack_accuracy"], rtol=1e-6)
    with pytest.raises(InputError, match="pass a pair of LastLayers"):
        noshadow.audit(layer, rerun=again, held_out=held)
    shuffled = LastLayer(hidden.flip(0), rerun(x.flip(0)).detach(), y.flip(0))
    with pytest.raises(InputError, match="rerun: its records are not those of the model in the same order"):
        noshadow.audit(layer, rerun=shuffled)


def test_weights_of_all_alike_change_nothing():
    """The same model, its objective times a number: the same rates."""
    generator = np.random.default_rng(8)
    x = generator.normal(size=(150, 4))
    y = (x[:, 0] + generator.normal(size=150) > 0).astype(int)
    found = []
    for weight in (1.0, 20.0, 0.05):
        how = {"C": 1 / weight, "tol": 1e-12, "max_iter": 10_000}
        weights = np.full(150, weight)
        model = LogisticRegression(**how).fit(x, y, sample_weight=weights)
        found.append(noshadow.audit(model, (x, y), sample_weight=weights).table["attack_accuracy"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4)


def test_held_out_records_that_are_members_are_refused(networks):
    model, rerun, _, members, others = networks
    with pytest.raises(InputError, match="held_out: 200 of its 200 records are training records, first rows 0, 1, 2 "):
        noshadow.audit(model, members, optimizer="adam", rerun=rerun, held_out=members)
    with pytest.raises(InputError, match="rerun: unlike the model, it fits the training records no better"):
        noshadow.audit(others_model(others), others, optimizer="adam", rerun=model, held_out=members)


def others_model(data):
    """A network that knows its records by heart."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model


def test_features_that_were_trained_are_noticed_by_held_out_records(networks):
    """A last layer at its optimum on features that know the members: not the law of fixed features."""
    generator = np.random.default_rng(9)
    x, y = generator.normal(size=(300, 40)), generator.integers(0, 2, 300)
    hidden = x.copy()
    hidden[:150, 0] += 2.0 * (2 * y[:150] - 1)  # as if the features had been trained on the first half
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(hidden[:150], y[:150])
    layer = LastLayer(
        hidden[:150], model.decision_function(hidden[:150]), y[:150], "logistic", 1.0, penalize_bias=False
    )
    held = (model.decision_function(hidden[150:]), y[150:])
    alone = score(layer)["attack_accuracy"]
    assert float(score(layer, held_out=held)["attack_accuracy"].mean()) > float(alone.mean()) + 0.05


def test_exposure_where_the_mean_error_is_nothing():
    """Predictions one above and one below in turn: their mean is right, none of them was."""
    generator = np.random.default_rng(10)
    x, y = generator.normal(size=(40, 3)), generator.integers(0, 9, 40).astype(float)
    runs = np.stack([y + 1.0, y - 1.0])[:, :, None]
    found = score(LastLayer(x, y, y, head="squared"), ["exposure", "leverage"], Trace.from_outputs(runs))
    h = found["leverage"]
    np.testing.assert_allclose(found["exposure"], 2 * h / (1 - h), rtol=1e-6)


def test_several_outputs_have_no_rates():
    generator = np.random.default_rng(11)
    x, y = generator.normal(size=(50, 3)), generator.normal(size=(50, 2))
    layer = LastLayer(
        x, np.column_stack([x, np.ones(50)]) @ np.linalg.lstsq(np.column_stack([x, np.ones(50)]), y)[0], y, "squared"
    )
    assert "attack_accuracy" not in score(layer)
    with pytest.raises(InputError, match="spread: rates are predicted for one output, this layer has 2"):
        score(layer, spread=(1.0, 1.0))


def test_a_network_has_not_the_law_of_fixed_features(networks):
    """Its last layer may be at an optimum, its features know the members: no rates without held-out records."""
    x, y = networks[3]
    torch.manual_seed(0)
    hidden = torch.nn.Linear(6, 8)
    with torch.no_grad():
        features = torch.tanh(hidden(x)).numpy()
    fit = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000, fit_intercept=False).fit(features, y.numpy())
    last = torch.nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        last.weight.copy_(torch.as_tensor(fit.coef_))
    network = torch.nn.Sequential(hidden, torch.nn.Tanh(), last)
    found = noshadow.audit(network, (x, y.float()), head="logistic", ridge=1.0)
    assert "attack_accuracy" not in found.table
    alone = noshadow.audit(last, (torch.as_tensor(features), y.float()), head="logistic", ridge=1.0)
    assert "attack_accuracy" in alone.table


def test_what_other_data_adds_is_in_units_of_the_held_out_spread():
    """σ_out² = σ_seed² + V/2 with V = gap of the losses / mean squared slope, term by term from the definition."""
    inside, outside = np.array([0.5, 2.0, 4.0]), np.linspace(-2.0, 3.0, 30)
    losses = [np.array([np.log1p(np.exp(-one)) for one in side]) for side in (inside, outside)]
    slope = np.mean([(1.0 / (1.0 + np.exp(one))) ** 2 for one in outside])
    variance = (losses[1].mean() - losses[0].mean()) / slope
    held = HeldOut.of(make_head("logistic", 1), outside[:, None], np.ones(30, dtype=int))
    found = spreads_of(make_head("logistic", 1), losses[0], held, (0.3, 0.9), "rerun")
    assert (found.spread_in, found.spread_out, found.held_out) == (0.3, 0.9, 30)
    assert (found.spread_out * found.resampled) ** 2 == pytest.approx(0.9**2 + variance / 2.0)
    derived = spreads_of(make_head("logistic", 1), losses[0], held, None, "rerun")
    assert derived.source == "gap"
    assert derived.spread_out**2 == pytest.approx(variance / 2.0)


@pytest.mark.parametrize(("errors", "learned"), [(0.0, False), (2.5, False), (-2.5, False), (4.0, True), (-4.0, True)])
@pytest.mark.parametrize(("count", "held"), [(400, 100), (60, 3000)])
def test_trained_features_are_those_whose_gap_is_more_than_three_standard_errors_from_the_shift(
    errors, learned, count, held
):
    generator = np.random.default_rng(5)
    margin, y = generator.normal(2.0, 1.0, count), generator.integers(0, 2, count)
    layer = LastLayer(generator.normal(size=(count, 2)), margin * (2 * y - 1), y, "logistic")
    others = generator.normal(1.5, 2.0, held)
    labels = generator.integers(0, 2, held)
    error = np.sqrt(margin.var() / count + others.var() / held)
    shift = margin.mean() - others.mean() - errors * error
    values = {"signal_shift": np.full(count, shift)}
    assert learned_features(layer, values, (others * (2 * labels - 1), labels)) == learned


@pytest.mark.parametrize(("errors", "learned"), [(0.0, False), (2.5, False), (-2.5, False), (4.0, True), (-4.0, True)])
@pytest.mark.parametrize(("count", "held"), [(400, 100), (60, 3000)])
def test_features_of_a_regression_are_trained_where_residuals_without_the_record_are_not_those_of_others(
    errors, learned, count, held
):
    """Those without the record by refitting n times."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(count, 4))
    y = x @ generator.normal(size=4) + generator.normal(size=count)
    without = np.array(
        [abs(y[i] - x[i] @ np.linalg.lstsq(np.delete(x, i, 0), np.delete(y, i), rcond=None)[0]) for i in range(count)]
    )
    layer = LastLayer(x, x @ np.linalg.lstsq(x, y, rcond=None)[0], y, "squared", bias=False)
    values = {name: noshadow.score(layer, scores=[name])[name].to_numpy() for name in ("loss", "signal_shift")}
    others = 0.2 * np.abs(generator.normal(size=held))
    others += without.mean() - others.mean()
    error = np.sqrt(without.var() / count + others.var() / held)
    signs = generator.choice([-1.0, 1.0], size=held)
    assert learned_features(layer, values, (signs * (others + errors * error), np.zeros(held))) == learned


def test_held_out_records_leave_a_linear_regression_its_own_law():
    """They were taken for those of a network, whose law made coins of all members where the gap is within chance."""
    generator = np.random.default_rng(8)
    x = generator.normal(size=(400, 10))
    y = x @ generator.normal(size=10) + generator.normal(size=400)
    model = LinearRegression().fit(x[:300], y[:300])
    alone, beside = (
        noshadow.audit(model, (x[:300], y[:300]), held_out=held).table["attack_accuracy"]
        for held in (None, (x[300:], y[300:]))
    )
    assert alone.mean() > 0.52
    np.testing.assert_array_equal(beside, alone)


def test_records_of_no_exposure_do_not_make_coins_of_the_others():
    """More than 99 % of the members are saturated: the quantile of all exposures is 0."""
    generator = np.random.default_rng(6)
    exposure, members = np.zeros(1000), np.full(1000, 50.0)
    exposure[:9], members[:9] = generator.uniform(0.1, 0.3, 9), 0.5
    held_out = np.logaddexp(0.0, -generator.normal(2.0, 3.0, 200)) * 0.1
    few = match_scale(exposure, members, held_out)
    assert few > 0.0
    lost = np.logaddexp(0.0, -(members - few * np.sqrt(exposure))).mean()
    assert lost == pytest.approx(held_out.mean(), rel=1e-6)
    exploded = exposure.copy()
    exploded[9:400], members[9:400] = 0.2, 3.0
    usual = match_scale(exploded, members, held_out)
    exploded[0] = 1e12  # one that explodes does not decide the scale of all
    assert match_scale(exploded, members, held_out) == pytest.approx(usual, rel=0.2)


def test_power_is_of_either_side():
    """Of smoothed labels φ may be lower with the record: it tells as much as if it were higher."""
    ones = np.ones(2)
    known = {"influence": 0.1 * ones, "newton": 0.1 * ones, "leverage": 0.1 * ones, "signal_variance": ones}
    _, rates = converged_rates(0.2, known | {"signal_shift": np.array([0.7, -0.7])})
    assert rates.power[0] == rates.power[1] > 0
    assert rates.accuracy[0] == pytest.approx(rates.accuracy[1])


@pytest.mark.parametrize("spread", ["12", b"ab", {0.5, 0.1}, {0.1: 1.0, 0.5: 2.0}])
def test_spreads_without_an_order_are_refused(run, spread):
    """A set gives its numbers in any order, a text its digits."""
    with pytest.raises(InputError, match=r"^spread: expected two numbers, of members and of held-out records"):
        score(run[0], spread=spread, gap=1.0)


@pytest.mark.parametrize("spread", [(1e-300, 1e-300), (1.0, 1e300)])
def test_spreads_whose_squares_are_no_numbers_are_refused(run, spread):
    with pytest.raises(InputError, match=r"^spread: expected two positive numbers, whose squares are numbers too"):
        score(run[0], spread=spread, gap=1.0)


def test_a_spread_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"^outputs: there are no rows"):
        noshadow.spread(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, int), "softmax")


def test_frames_in_another_order_have_no_spread_and_are_not_held_out(run):
    generator = np.random.default_rng(5)
    z = pd.DataFrame(generator.normal(size=(40, 3)))
    y = pd.Series(generator.integers(0, 3, 40))
    again, moved = z + generator.normal(size=(40, 3)), np.roll(np.arange(40), 1)
    with pytest.raises(InputError, match=r"^rerun_outputs: its index has the labels of outputs in another order"):
        noshadow.spread(z, again.iloc[moved], y, "softmax")
    with pytest.raises(InputError, match=r"^targets: its index has the labels of outputs in another order"):
        noshadow.spread(z, again, y.iloc[moved], "softmax")
    with pytest.raises(InputError, match=r"^held_out\[1\]: its index has the labels of held_out\[0\] in another order"):
        score(run[0], held_out=(z, y.iloc[moved]))


def test_a_law_of_ones_own_gives_the_rates_of_its_heads(monkeypatch):
    rng = np.random.default_rng(0)
    x, others = rng.normal(size=(60, 3)), rng.normal(size=(40, 1))
    y = x.sum(1) + rng.normal(size=60)
    fit = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    layer = LastLayer(x, fit, y, "squared", bias=False)

    def rates(values):
        return Rates(values, 0.5 + 0.0 * values, lambda: 0.01 + 0.0 * values)

    def converged(influence_sum, values, spreads):
        return Calibration(1.0, 1.0, source="converged"), rates(values["leverage"])

    def calibrated(basis):
        error = basis.values["loss"]
        return error, lambda held: (Calibration(*basis.spreads, held_out=len(held.loss)), rates(error))

    monkeypatch.setitem(LAWS, "loss", Law(converged, calibrated))
    names = ["leverage", "loss", "attack_power"]
    alone = score(layer, names)
    np.testing.assert_array_equal(alone["attack_power"], alone["leverage"])
    beside = score(layer, names, spread=(1.0, 1.0), held_out=(others, others + 1.0))
    np.testing.assert_array_equal(beside["attack_power"], beside["loss"])

    monkeypatch.delitem(LAWS, "loss")
    assert "attack_power" not in score(layer)
    with pytest.raises(InputError, match="spread: no law of predicted rates is known of a squared head"):
        score(layer, spread=(1.0, 1.0))
