"""How much of a run the exposure takes: against its definition in NumPy and SciPy, and at its ends."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, audit, score
from noshadow.run import run_of, share_of_run
from noshadow.scoring import score_with_diagnostics

EPOCHS, N, K, P = 6, 120, 90, 4


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Case:
    """Members whose outputs grow over the epochs to four times what they began with, and records held out."""

    def __init__(self, head, size=1.5, classes=3, smoothing=0.0):
        rng = np.random.default_rng(0)
        m = classes if head == "softmax" else 1
        self.x = rng.normal(size=(N, P))
        direction = rng.normal(size=(P, m))
        final = self.x @ direction
        self.run = final * np.linspace(0.25, 1.0, EPOCHS)[:, None, None] + rng.normal(size=(EPOCHS, N, m)) * 0.2
        self.run[-1] = final
        others = rng.normal(size=(K, P)) @ direction
        if head == "softmax":
            self.y = final.argmax(1)
            self.other_y = rng.integers(0, m, K)
            others = size * np.eye(m)[self.other_y] - 0.5
        elif head == "logistic":
            self.y, self.other_y = (final[:, 0] > 0).astype(int), rng.integers(0, 2, K)
            others = size * (2.0 * self.other_y[:, None] - 1.0)
        else:
            self.y = final[:, 0] + rng.normal(size=N) * 0.1
            self.other_y = others[:, 0] + np.sqrt(size)
        self.head, self.smoothing = head, smoothing
        self.layer = LastLayer(self.x, final, self.y, head=head, ridge=0.5, label_smoothing=smoothing)
        self.held_out = (others, self.other_y)
        self.trace = Trace.from_outputs(self.run)

    def losses(self, z, y):
        """(n,) by SciPy, or in one line."""
        if self.head == "squared":
            return (z[:, 0] - y) ** 2
        logits = z if self.head == "softmax" else np.concatenate([0.0 * z, z], axis=1)
        soft = (1 - self.smoothing) * np.eye(logits.shape[1])[y] + self.smoothing / logits.shape[1]
        return -(soft * log_softmax(logits, axis=1)).sum(1)

    def share(self):
        inside = self.losses(self.run[-1], self.y).mean()
        of_run = np.mean([self.losses(z, self.y) for z in self.run])
        return (self.losses(*self.held_out).mean() - inside) / (of_run - inside)

    def exposure(self, share):
        """NS at (1 − λ) z + λ z̄ of a plain layer there, in proportion to (1 − λ) ℓ + λ ℓ̄."""
        between = (1 - share) * self.run[-1] + share * self.run.mean(0)
        of_run = np.mean([self.losses(z, self.y) for z in self.run], axis=0)
        loss = (1 - share) * self.losses(self.run[-1], self.y) + share * of_run
        there = LastLayer(self.x, between, self.y, head=self.head, ridge=0.5, label_smoothing=self.smoothing)
        if self.head == "squared":
            h = score(there, ["leverage"])["leverage"]
            return 2 * loss * h / (1 - h)
        return score(there, ["newton"])["newton"] * loss / self.losses(between, self.y)


@pytest.mark.parametrize(
    ("head", "size", "smoothing"),
    [("softmax", 1.2, 0.0), ("softmax", 1.0, 0.1), ("logistic", 1.0, 0.0), ("squared", 0.1, 0.0)],
)
def test_exposure_is_taken_where_members_lose_what_held_out_records_do(head, size, smoothing):
    case = Case(head, size, smoothing=smoothing)
    share = case.share()
    assert 0.1 < share < 0.9
    frame, found = score_with_diagnostics(case.layer, ["exposure"], case.trace, held_out=case.held_out)
    assert found.run_share == pytest.approx(share, rel=1e-6)
    np.testing.assert_allclose(frame["exposure"], case.exposure(share), rtol=2e-5)
    assert not np.allclose(case.exposure(share), case.exposure(1.0), rtol=0.01)


@pytest.mark.parametrize("head", ["softmax", "logistic", "squared"])
def test_at_the_ends_it_is_the_final_model_or_the_whole_run(head):
    fits, loses = Case(head, {"squared": 1e-4}.get(head, 9.0)), Case(head, {"squared": 9.0}.get(head, -3.0))
    assert fits.share() < 0 < 1 < loses.share()
    frame, found = score_with_diagnostics(fits.layer, ["exposure", "newton"], fits.trace, held_out=fits.held_out)
    assert found.run_share == 0.0
    np.testing.assert_allclose(frame["exposure"], frame["newton"], rtol=1e-6, atol=1e-12)
    frame, found = score_with_diagnostics(loses.layer, ["exposure"], loses.trace, held_out=loses.held_out)
    assert found.run_share == 1.0
    np.testing.assert_array_equal(frame["exposure"], score(loses.layer, ["exposure"], loses.trace)["exposure"])


def test_a_run_that_went_on_after_the_kept_weights_is_left_out():
    """Towards it members lose less still. Where held-out records lose far more, one bad epoch ended the run."""
    assert share_of_run(0.25, 0.15, 0.28) == share_of_run(0.25, 0.15, 0.34) == 0.0
    assert share_of_run(0.25, 0.20, 2.0) == 1.0
    assert share_of_run(0.5, 0.5, 0.7) == share_of_run(0.5, 0.5, 0.4) == 1.0  # nothing to choose between


def test_losses_alone_say_it_for_squared_error():
    case = Case("squared", 0.1)
    losses = np.stack([case.losses(z, case.y) for z in case.run])
    frame, found = score_with_diagnostics(case.layer, ["exposure", "mean_trace"], losses, held_out=case.held_out)
    assert found.run_share == pytest.approx(case.share(), rel=1e-9)
    np.testing.assert_allclose(frame["exposure"], case.exposure(case.share()), rtol=1e-9)
    np.testing.assert_allclose(frame["mean_trace"], losses.mean(0), rtol=1e-12)  # not what exposure takes of it


def test_mean_outputs_alone_are_weighed_by_the_loss_at_them():
    case = Case("softmax", 1.2)
    trace = Trace()
    for z in case.run:
        trace.update(outputs=z)
    run = run_of(trace, case.layer, case.layer.kind.loss(*map(torch.as_tensor, case.held_out)))
    inside, mean = (case.losses(z, case.y).mean() for z in (case.run[-1], case.run.mean(0)))
    assert run.share == pytest.approx((case.losses(*case.held_out).mean() - inside) / (mean - inside), rel=1e-5)
    assert run.loss is None


def test_the_trace_columns_and_the_final_scores_are_as_without_held_out_records():
    case = Case("softmax", 1.2)
    names = ["loss", "newton", "leave_one_out", "mean_trace", "trace_iqr"]
    with_others = score(case.layer, [*names, "exposure"], case.trace, held_out=case.held_out)
    np.testing.assert_array_equal(with_others[names], score(case.layer, names, case.trace))


def test_a_store_of_other_held_out_records_is_refused(tmp_path):
    case, other = Case("softmax", 1.2), Case("softmax", 1.3)
    first = score(case.layer, ["exposure"], case.trace, held_out=case.held_out, store=tmp_path / "store")
    again = score(case.layer, ["exposure"], case.trace, held_out=case.held_out, store=tmp_path / "store")
    np.testing.assert_array_equal(first, again)
    with pytest.raises(InputError, match="store"):
        score(case.layer, ["exposure"], case.trace, held_out=other.held_out, store=tmp_path / "store")


def test_an_audit_says_how_much_of_the_run_it_took():
    case = Case("softmax", 1.2)
    others = LastLayer(np.random.default_rng(1).normal(size=(K, P)), *case.held_out)
    found = audit(case.layer, trace=case.trace, held_out=others)
    assert found.metadata["run_share"] == pytest.approx(case.share(), rel=1e-6)
    assert audit(case.layer, trace=case.trace).metadata["run_share"] is None


def test_a_trace_that_goes_on_after_the_kept_weights_is_told_of():
    case = Case("softmax", 1.2)
    kept = LastLayer(case.x, case.run[0], case.y)  # the weights of the first epoch, the run of all
    with pytest.warns(NoshadowWarning, match="members lost less over the run than the final model loses"):
        score(kept, ["exposure"], case.trace)
    for layer, held_out in ((kept, case.held_out), (case.layer, None)):  # held-out records say how much to take
        found = score_with_diagnostics(layer, ["exposure"], case.trace, held_out=held_out)[1]
        assert not found.run_lost_less


def test_a_run_that_lost_nearly_as_much_is_not_told_of():
    case = Case("squared", 0.1)
    final = case.losses(case.run[-1], case.y)
    for share, told in ((0.95, False), (0.85, True)):
        losses = np.stack([share * final, share * final])
        assert run_of(Trace.from_losses(losses), case.layer).lost_less == told


def test_the_scores_of_a_run_take_no_further_step():
    case = Case("softmax", 1.2)
    names = ["exposure", "signal_shift"]
    further = score(case.layer, [*names, "newton"], case.trace, full_step=True)
    np.testing.assert_array_equal(further[names], score(case.layer, names, case.trace))
    assert not np.allclose(further["newton"], score(case.layer, ["newton"])["newton"])
