"""The scores of a loss trace against their definitions, record by record."""

from __future__ import annotations

import statistics
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, audit, score
from noshadow.curvature.protocol import Removal
from noshadow.curvature.removal import LEVERAGE_FLOOR
from noshadow.scores import SCORES, Known, influence, newton
from noshadow.scoring import score_with_diagnostics

TRACED = ["mean_trace", "trace_iqr"]
DEFAULT = ["loss", "gradient_norm", "entropy", "leverage", "influence", "newton", "leave_one_out", "signal_shift"]
LAST = ["exposure"]


def make(n=30, epochs=7, seed=0, head="softmax"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    z = x @ rng.normal(size=(3, 3 if head == "softmax" else 1))
    y = z + rng.normal(size=z.shape) if head == "squared" else rng.integers(0, max(2, z.shape[1]), n)
    return LastLayer(x, z, y, head, ridge=0.1), rng.exponential(size=(epochs, n))


def by_definition(trace):
    """Mean and Q3 − Q1 of every record's losses, in Python's own arithmetic."""
    means, ranges = [], []
    for record in range(trace.shape[1]):
        losses = [float(trace[epoch, record]) for epoch in range(trace.shape[0])]
        low, _, high = statistics.quantiles(losses, n=4, method="inclusive")
        means.append(statistics.fmean(losses))
        ranges.append(high - low)
    return np.array([means, ranges]).T


@pytest.mark.parametrize("epochs", [2, 3, 4, 5, 6, 7, 8, 9, 100])
@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_mean_and_interquartile_range_by_definition(head, epochs):
    layer, trace = make(epochs=epochs, head=head)
    got = score(layer, TRACED, trace)
    np.testing.assert_allclose(got, by_definition(trace), rtol=1e-12)
    np.testing.assert_allclose(got["trace_iqr"], scipy.stats.iqr(trace, axis=0), rtol=1e-12)
    each = [np.subtract(*np.percentile(trace[:, i], [75, 25])) for i in range(layer.n)]
    np.testing.assert_allclose(got["trace_iqr"], each, rtol=1e-12)


def test_a_trace_by_hand():
    layer, _ = make(n=3)
    trace = [[5, 1, 9], [4, 1, 0], [3, 1, 0], [2, 1, 0], [1, 1, 0]]
    got = score(layer, TRACED, trace)
    np.testing.assert_allclose(got, [[3.0, 2.0], [1.0, 0.0], [1.8, 0.0]], rtol=1e-15)


values = st.floats(-1e100, 1e100, allow_subnormal=False)


@example(np.array([[0.1], [0.1], [0.1], [0.1]]))
@given(hnp.arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(1, 5)), elements=values))
def test_any_trace_agrees_with_numpy_and_no_range_is_negative(trace):
    layer, _ = make(n=trace.shape[1])
    got = score(layer, TRACED, trace)
    size = np.abs(trace).max(0)
    low, high = np.quantile(trace, [0.25, 0.75], axis=0)
    assert (np.abs(got["trace_iqr"] - (high - low)) <= 1e-14 * size).all()
    assert (np.abs(got["mean_trace"] - trace.mean(0)) <= 1e-14 * size).all()
    assert (got["trace_iqr"] >= 0).all()


def test_the_default_is_all_that_the_arguments_allow():
    layer, trace = make()
    without, with_trace = score(layer), score(layer, trace=trace)
    assert list(without) == DEFAULT + LAST
    assert list(with_trace) == DEFAULT + TRACED + LAST
    pd.testing.assert_frame_equal(with_trace[DEFAULT + LAST], without)
    assert list(score(layer, ["loss"], trace)) == ["loss"]
    assert list(score(layer, "trace_iqr", trace)) == ["trace_iqr"]
    frame, diagnostics = score_with_diagnostics(layer, None, trace)
    pd.testing.assert_frame_equal(frame, with_trace)
    assert diagnostics.rank is not None
    assert score_with_diagnostics(layer, TRACED, trace)[1].rank is None  # a trace alone needs no curvature
    assert {name for name, entry in SCORES.items() if "losses" in entry.needs} == set(TRACED)


@pytest.mark.parametrize("name", TRACED)
def test_without_a_trace_the_error_says_what_to_pass(name):
    with pytest.raises(InputError, match=rf"scores: '{name}' needs the loss .* pass it as trace=, \(epochs, n\)"):
        score(make()[0], ["loss", name])


@pytest.mark.parametrize("names", [None, TRACED])
def test_chunks_change_nothing(monkeypatch, names):
    layer, trace = make(n=101, epochs=13)
    whole = score(layer, names, trace)
    for part in (1, 13, 30, 200):  # less than a record, one record, two, fifteen
        monkeypatch.setattr("noshadow.trace.losses._PART", part)
        pd.testing.assert_frame_equal(score(layer, names, trace), whole, check_exact=True)
    monkeypatch.setattr("noshadow.points._PLAIN_CHUNK", 17)
    monkeypatch.setattr("noshadow.curvature.dense._BLOCK_BYTES", 1000)
    got = score(layer, names, trace)
    pd.testing.assert_frame_equal(got[TRACED], whole[TRACED], check_exact=True)
    pd.testing.assert_frame_equal(got, whole, rtol=1e-12)


def test_the_order_of_records_and_of_epochs_does_not_matter():
    layer, trace = make(n=50, epochs=11)
    whole = score(layer, trace=trace)
    rng = np.random.default_rng(1)
    order = rng.permutation(50)
    moved = LastLayer(layer.features[order], layer.outputs[order], layer.targets[order], "softmax", 0.1)
    got = score(moved, trace=trace[:, order])
    pd.testing.assert_frame_equal(got[TRACED], whole[TRACED].iloc[order].reset_index(drop=True), check_exact=True)
    np.testing.assert_allclose(got, whole.iloc[order], rtol=1e-9)
    np.testing.assert_allclose(score(layer, TRACED, trace[rng.permutation(11)]), whole[TRACED], rtol=1e-14)


def test_scale_and_shift():
    layer, trace = make()
    before, after = score(layer, TRACED, trace), score(layer, TRACED, 3.0 * trace - 7.0)
    np.testing.assert_allclose(after["trace_iqr"], 3.0 * before["trace_iqr"], rtol=1e-12)
    np.testing.assert_allclose(after["mean_trace"], 3.0 * before["mean_trace"] - 7.0, rtol=1e-12)


def test_any_kind_of_array():
    layer, trace = make()
    want = score(layer, TRACED, trace)
    tensor = torch.from_numpy(trace)
    for same in (
        tensor,
        tensor.clone().requires_grad_(),
        tensor.T.contiguous().T,
        pd.DataFrame(trace),
        trace.tolist(),
        list(tensor),  # as a training loop collects them
        np.asfortranarray(trace),
        trace[::-1][::-1],
        trace.astype(">f8"),
    ):
        pd.testing.assert_frame_equal(score(layer, TRACED, same), want, rtol=1e-14)
    assert score(layer, TRACED, np.arange(60).reshape(2, 30))["trace_iqr"].eq(15.0).all()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):  # rounded once, on the way in
        rounded = tensor.to(dtype)
        np.testing.assert_allclose(score(layer, TRACED, rounded), by_definition(rounded.double()), rtol=1e-12)


def test_as_many_epochs_as_records_are_taken_as_documented():
    layer, trace = make(n=7, epochs=7)
    np.testing.assert_allclose(score(layer, TRACED, trace)["mean_trace"], trace.mean(0), rtol=1e-14)


def test_the_trace_is_left_as_it_was():
    layer, trace = make()
    before = trace.copy()
    score(layer, trace=trace)
    np.testing.assert_array_equal(trace, before)


def test_an_audit_takes_a_trace():
    layer, trace = make()
    both = audit(layer, trace=trace)
    assert list(both.table.columns) == ["id", "target", "nearest_class", *DEFAULT, *TRACED, *LAST, "flagged"]
    assert both.ranking == "exposure"
    alone = audit(layer, scores=["trace_iqr"], trace=trace)
    assert alone.ranking == "trace_iqr"
    assert alone.top(1).index[0] == scipy.stats.iqr(trace, axis=0).argmax()
    with pytest.raises(InputError, match="pass it as trace="):
        audit(layer, scores=["trace_iqr"])


def test_a_batch_that_had_begun_is_dropped_when_a_trace_is_resumed(tmp_path):
    trace = Trace("squared")
    trace.update(outputs=[[0.0], [1.0]], targets=[1.0, 1.0])
    path = trace.save(tmp_path / "trace.safetensors")
    trace.update(outputs=[[9.0]], targets=[1.0], rows=[1])
    trace.resume(path)
    trace.update(outputs=[[2.0], [3.0]], targets=[1.0, 1.0])
    assert trace.epochs == 2
    assert trace.mean_outputs.tolist() == [[1.0], [2.0]]


def test_scores_of_the_run_take_two_epochs_for_a_spread_and_no_further_step():
    generator = np.random.default_rng(0)
    x, z = generator.normal(size=(60, 4)), generator.normal(size=(3, 60, 3))
    y = generator.integers(0, 3, 60)
    layer = LastLayer(x, z[-1], y, "softmax", ridge=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        one, three = Trace(head="softmax"), Trace(head="softmax")
        one.update(outputs=z[0], targets=y)
        for outputs in z:
            three.update(outputs=outputs, targets=y)
        single = score(layer, trace=one)
        plain, stepped = score(layer, trace=three), score(layer, trace=three, full_step=True)
    assert "exposure" in single
    assert not {"mean_trace", "trace_iqr"} & set(single)
    assert {"mean_trace", "trace_iqr"} <= set(plain)
    assert (stepped["newton"] != plain["newton"]).any()
    np.testing.assert_array_equal(stepped["exposure"], plain["exposure"])
    np.testing.assert_array_equal(stepped["signal_shift"], plain["signal_shift"])


def test_a_mean_loss_that_rounding_left_below_the_loss_at_the_mean_lowers_no_exposure():
    """ℓ̄ ≥ ℓ(z̄) but for rounding: below, exposure is the Newton score at z̄."""
    generator = np.random.default_rng(0)
    x, z, y = generator.normal(size=(80, 3)), generator.normal(size=(80, 1)), generator.integers(0, 2, 80)
    layer = LastLayer(x, z, y, "logistic", ridge=1.0)
    at_mean = layer.kind.loss(layer.outputs, layer.targets).numpy()
    newton = score(layer, ["newton"])["newton"]
    for factor, times in ((0.95, 1.0), (1.0, 1.0), (1.2, 1.2)):
        trace = Trace.from_losses(np.stack([factor * at_mean] * 3), z)
        np.testing.assert_allclose(score(layer, ["exposure"], trace)["exposure"], times * newton, rtol=1e-6)


def test_exposure_of_a_value_that_nothing_else_determines_is_a_finite_floor():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 3)), generator.normal(size=40)
    x[1:, 2] = 0.0  # a direction that record 0 has alone: leverage 1
    z = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    losses = generator.exponential(size=(4, 40))
    found = score(LastLayer(x, z, y, "squared", bias=False), ["leverage", "exposure"], losses)
    assert found["leverage"][0] == pytest.approx(1.0)
    assert found["exposure"][0] == pytest.approx(2.0 * losses.mean(0)[0] / LEVERAGE_FLOOR, rel=1e-6)


def test_rounding_does_not_bring_the_newton_score_below_the_influence():
    """Of a leverage next to nothing (I − W'A)⁻¹ is the identity but for rounding, which may go either way."""
    records = LastLayer(np.ones((3, 1)), np.zeros((3, 1)), [1.0, 2.0, 3.0], "squared").records(slice(None))

    class Rounded:
        def first_order_shift(self, pull):
            return 1e-9 * pull

        def removal(self, pull):
            off = torch.tensor([[1 - 1e-12], [1 + 1e-12], [-1e-12]], dtype=torch.float64)
            return Removal(1e-9 * off * pull, torch.zeros(3))

    known = Known(records, Rounded())
    first, second = influence(known), newton(known)
    assert torch.equal(second[[0, 2]], first[[0, 2]])
    assert second[1] > first[1]


def test_negative_losses_are_refused_where_exposure_goes_by_them():
    """Log-likelihoods in place of losses would make it negative; the scores of a spread take any numbers."""
    layer, trace = make(head="squared")
    assert (score(layer, ["exposure"], trace)["exposure"] >= 0).all()
    with pytest.raises(InputError, match=r"^trace: the mean loss is below 0 in rows 0, 1, .* and not their negatives"):
        score(layer, ["exposure"], -trace)
    assert (score(layer, TRACED, -trace)["mean_trace"] < 0).all()
    trace[:, 3] = [-1e-12, *[0.0] * (len(trace) - 1)]  # rounding
    score(layer, ["exposure"], trace)
    trace[:, 3] = -0.01  # of one record, smaller than the losses of others
    with pytest.raises(InputError, match=r"^trace: the mean loss is below 0 in row 3 "):
        score(layer, ["exposure"], trace)


def test_a_loss_below_the_smallest_number_is_no_overflow():
    """A record that was missed once and then learned beyond float64: exp(−φ) is denormal at the mean output."""
    margins = np.array([690.0, 700.0, 710.0, 720.0, 735.0, 744.0, 760.0])
    n, y = len(margins), np.arange(7) % 2
    outputs = np.stack([np.full(n, -60.0), 2 * margins + 60.0])[..., None] * np.where(y == 1, 1, -1)[:, None]
    x = np.random.default_rng(0).normal(size=(n, 2))
    layer = LastLayer(x, 0.1 * outputs[-1] / np.abs(outputs[-1]), y, "logistic", ridge=1.0)
    found = score(layer, ["exposure"], Trace.from_outputs(outputs))["exposure"]
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (np.diff(found) <= 0).all()


def test_a_trace_that_is_resumed_has_nothing_left_of_the_arrays_it_was_made_of(tmp_path):
    layer, _ = make(head="squared")
    recorded, outputs = Trace(), np.random.default_rng(3).normal(size=(3, layer.n, 1))
    for one in outputs:
        recorded.update(outputs=one)
    path = recorded.save(tmp_path / "trace.safetensors")
    trace = Trace.from_outputs(100.0 * outputs)
    trace.resume(path)
    assert Trace.of(trace, layer).losses is None  # not those of the other outputs
    torch.testing.assert_close(trace.mean_outputs, recorded.mean_outputs)
    trace.update(outputs=outputs[0] + 1.0)
    assert trace.epochs == 4


def test_outputs_that_were_written_over_since_are_refused():
    """The means would be of the values before, the losses of those after."""
    layer, _ = make()
    outputs = np.random.default_rng(1).normal(size=(4, layer.n, layer.n_outputs))
    trace = Trace.from_outputs(outputs)
    score(layer, ["exposure"], trace)
    outputs[2] += 1.0
    with pytest.raises(InputError, match="trace: the outputs that it was made from have changed since; pass a copy"):
        score(layer, ["exposure"], trace)


def test_losses_that_are_written_over_are_those_from_before():
    """A loop over seeds fills one array: the trace of the first run became that of the second."""
    layer, _ = make()
    losses = np.random.default_rng(1).exponential(size=(4, layer.n))
    for kind in (np.float64, np.float32, torch.Tensor):
        given = torch.tensor(losses) if kind is torch.Tensor else losses.astype(kind)
        trace = Trace.from_losses(given)
        given[:] = 7.0
        np.testing.assert_allclose(score(layer, ["mean_trace"], trace)["mean_trace"], losses.mean(0), rtol=1e-6)


def test_smoothing_without_targets_is_refused():
    """The losses would be taken with the layer's, in silence."""
    with pytest.raises(InputError, match=r"^label_smoothing: without targets and head .* leave it out"):
        Trace.from_outputs(np.zeros((2, 4, 3)), label_smoothing=0.1)


def test_a_trace_says_in_words_what_it_holds():
    assert repr(Trace()) == "Trace(0 epochs)"
    assert repr(Trace.from_outputs(np.zeros((1, 3, 2)))) == "Trace(1 epoch, 3 records, mean_outputs)"
    assert repr(Trace.from_losses(np.ones((2, 3)))) == "Trace(2 epochs, 3 records, losses)"
