"""What a trace holds: means and quartiles in bounded memory against all epochs in float64; its binding to a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, audit, score
from noshadow.scores import SCORES, Known, Score
from noshadow.trace.losses import RunningLosses
from noshadow.trace.means import RunningMean
from noshadow.trace.memory import marks_of


def layer_and_epochs(head="softmax", n=40, m=3, epochs=9, seed=0, **options):
    rng = np.random.default_rng(seed)
    m = m if head == "softmax" else 1
    x = rng.normal(size=(n, 4))
    z = 3.0 * rng.normal(size=(epochs, n, m))
    y = rng.normal(size=n) if head == "squared" else rng.integers(0, max(2, m), n)
    return LastLayer(x, z[-1], y, head, 0.1, **options), z.astype(np.float32)


def losses_by_hand(z, y, head):
    """(epochs, n), one record at a time, from the textbook formulas in NumPy."""
    z, found = z.astype(np.float64), np.empty(z.shape[:2])
    for t in range(z.shape[0]):
        for i in range(z.shape[1]):
            out, target = z[t, i], y[i]
            if head == "squared":
                found[t, i] = (out[0] - float(target)) ** 2
            elif head == "logistic":
                p = 1.0 / (1.0 + np.exp(-out[0]))
                found[t, i] = -np.log(p if target else 1.0 - p)
            else:
                found[t, i] = -np.log(np.exp(out[target]) / np.exp(out).sum())
    return found


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4, -3e7])
def test_a_thousand_epochs_keep_their_mean(offset):
    rng = np.random.default_rng(3)
    drift = np.linspace(1.0, -1.0, 1000)[:, None, None]
    z = (offset + drift + rng.normal(size=(1000, 20, 5))).astype(np.float32)
    running = RunningMean.of(torch.from_numpy(z[0]))
    for one in z[1:]:
        running = running.with_term(torch.from_numpy(one))
    true = z.astype(np.float64).mean(0)
    unit = np.spacing(np.abs(z).max(0)).astype(np.float64)
    assert (np.abs(running.mean.double().numpy() - true) <= unit).all()
    both = running.mean.double() + running.rest.double()
    assert (np.abs(both.numpy() - true) <= 0.5 * unit).all()


def test_steps_below_half_a_unit_are_not_lost():
    """A mean in float32 alone stands still at 2^24 while every epoch adds less than half a unit."""
    values = [torch.full((1, 1), 2.0**24)] * 500 + [torch.full((1, 1), 2.0**24 + 400.0)] * 500
    running, alone = RunningMean.of(values[0]), values[0]
    for t, one in enumerate(values[1:], 2):
        running = running.with_term(one)
        alone = (alone.double() + (one.double() - alone.double()) / t).float()
    assert float(running.mean) == 2.0**24 + 200.0
    assert abs(float(alone) - (2.0**24 + 200.0)) > 50


def test_memory_does_not_grow_with_the_epochs():
    for m in (1, 10, 16, 40, 100):
        losses = None
        for t in range(300):
            new = torch.full((7,), float(t))
            losses = RunningLosses.of(new, m) if losses is None else losses.with_epoch(new)
            floats = 2 + len(losses.kept)  # the mean is in float64
            assert floats <= max(m, 16)
        assert len(losses.kept) > losses.capacity // 2
        mean = RunningMean.of(torch.zeros(7, m))
        assert mean.mean.nbytes + mean.rest.nbytes == 7 * m * 6


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 5))
def test_kept_losses_are_evenly_spaced_from_the_first(epochs, m, seed):
    values = torch.from_numpy(np.random.default_rng(seed).exponential(size=(epochs, 3)))
    losses = RunningLosses.of(values[0], m)
    for one in values[1:]:
        losses = losses.with_epoch(one)
    kept = values[:: losses.stride].float()
    assert torch.equal(torch.stack(losses.kept), kept)
    assert len(kept) == epochs if epochs <= losses.capacity else losses.capacity // 2 < len(kept) <= losses.capacity
    torch.testing.assert_close(losses.mean(slice(None)), values.mean(0), rtol=1e-13, atol=0)
    if epochs <= losses.capacity:
        low, high = np.quantile(values.numpy(), [0.25, 0.75], axis=0)
        np.testing.assert_allclose(losses.quartiles(slice(None))[0], low, rtol=1e-6)
        np.testing.assert_allclose(losses.quartiles(slice(None))[1], high, rtol=1e-6)


@pytest.mark.parametrize("epochs", [15, 16, 29, 57, 100, 333, 1000])
@pytest.mark.parametrize("rising", [False, True])
def test_quartiles_of_a_falling_loss_are_a_stride_off_at_most(epochs, rising):
    curve = np.sort(np.random.default_rng(epochs).exponential(size=epochs))
    curve = curve if rising else curve[::-1].copy()
    losses = RunningLosses.of(torch.tensor(curve[:1]), 3)
    for value in curve[1:]:
        losses = losses.with_epoch(torch.tensor([value]))
    assert losses.stride < epochs / (losses.capacity / 2)
    for found, share in zip(losses.quartiles(slice(None)), (0.25, 0.75), strict=True):
        place = (share if rising else 1 - share) * (epochs - 1)
        around = curve[max(0, int(np.floor(place - losses.stride))) : int(np.ceil(place + losses.stride)) + 1]
        assert around.min() * (1 - 1e-6) <= float(found) <= around.max() * (1 + 1e-6)


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_from_outputs_means_and_losses_by_definition(head):
    layer, z = layer_and_epochs(head)
    losses = losses_by_hand(z, layer.targets.flatten().numpy(), head)
    bound_later = Trace.of(Trace.from_outputs(z), layer)
    at_once = Trace.from_outputs(z, layer.targets, head)
    for trace in (bound_later, at_once):
        assert trace.epochs == 9
        np.testing.assert_allclose(trace.mean_outputs, z.astype(float).mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(trace.mean_loss, losses.mean(0), rtol=1e-12)
        np.testing.assert_allclose(trace.lower_quartile, np.quantile(losses, 0.25, axis=0), rtol=1e-12)
        np.testing.assert_allclose(trace.upper_quartile, np.quantile(losses, 0.75, axis=0), rtol=1e-12)
    frame = score(layer, ["mean_trace", "trace_iqr"], Trace.from_outputs(z))
    np.testing.assert_allclose(frame, score(layer, ["mean_trace", "trace_iqr"], losses), rtol=1e-11)


def test_records_at_the_mean_outputs():
    layer, z = layer_and_epochs()
    trace = Trace.of(Trace.from_outputs(z), layer)
    there = trace.records(layer.records(slice(7, 19)))
    assert there.outputs.dtype == torch.float64
    np.testing.assert_allclose(there.outputs, z.astype(float).mean(0)[7:19], rtol=1e-6, atol=1e-7)
    own = layer.records(slice(7, 19))
    assert torch.equal(there.design, own.design)
    assert torch.equal(there.targets, own.targets)
    wanted = torch.softmax(there.outputs, 1) - torch.nn.functional.one_hot(own.targets, 3)
    torch.testing.assert_close(there.head.expand(there.gradient), wanted)


def test_a_score_of_the_mean_outputs_says_what_it_needs(monkeypatch):
    layer, z = layer_and_epochs()

    def loss_at_mean(known: Known):
        return known.records.head.loss(known.records.outputs, known.records.targets)

    monkeypatch.setitem(SCORES, "loss_at_mean", Score(loss_at_mean, frozenset({"mean_outputs"}), of_run=True))
    got = score(layer, ["loss_at_mean"], Trace.from_outputs(z))["loss_at_mean"]
    mean = torch.from_numpy(z).double().mean(0)
    np.testing.assert_allclose(got, torch.nn.functional.cross_entropy(mean, layer.targets, reduction="none"), rtol=1e-5)
    with pytest.raises(InputError, match=r"'loss_at_mean' needs the mean outputs .* pass a noshadow.Trace as trace="):
        score(layer, ["loss_at_mean"], np.ones((4, layer.n)))
    once = score(layer, None, Trace.from_outputs(z[:1]))  # of one epoch there is no spread
    assert "loss_at_mean" in once
    assert "mean_trace" not in once
    with pytest.raises(InputError, match=r"'trace_iqr' needs the loss .* of two epochs or more"):
        score(layer, ["trace_iqr"], Trace.from_outputs(z[:1]))


def test_traces_of_other_records_outputs_or_heads_are_refused():
    layer, z = layer_and_epochs()
    y = layer.targets.numpy()
    order = np.random.default_rng(0).permutation(40)
    logistic, _ = layer_and_epochs("logistic")
    cases = {
        r"trace: it holds no epoch; call trace.update": Trace(),
        r"trace: it is of 39 records with 3 outputs, the layer has 40 with 3": Trace.from_outputs(z[:, 1:]),
        r"trace: it is of 40 records with 2 outputs, .* another model or output": Trace.from_outputs(z[:, :, 1:]),
        r"outputs of shape \(epochs, 40, 3\), got \(40, 9, 3\).* pass outputs.transpose\(1, 0, 2\)": Trace.from_outputs(
            z.transpose(1, 0, 2)
        ),
        r"got \(9, 3, 40\); they look transposed: pass outputs.transpose\(0, 2, 1\)": Trace.from_outputs(
            z.transpose(0, 2, 1)
        ),
        r"trace: the targets of rows .* are not the layer's; they look like the same records in another order": (
            Trace.from_outputs(z[:, order], y[order], "softmax")
        ),
        r"trace: the targets of row 3 \(counted from 0\) .* look like other records": Trace.from_outputs(
            z, np.where(np.arange(40) == 3, (y + 1) % 3, y), "softmax"
        ),
        r"trace: its outputs look like probabilities": Trace.from_outputs(torch.softmax(torch.tensor(z), -1)),
        r"trace: its losses are those of a squared head, the layer has a softmax": Trace.from_outputs(
            z, np.eye(3)[y], "squared"
        ),
        r"expected shape \(epochs, n\), .* outputs \(epochs, n, m\) are passed as noshadow.Trace.from_outputs": z,
    }
    for message, trace in cases.items():
        with pytest.raises(InputError, match=message):
            score(layer, trace=trace)
    with pytest.raises(InputError, match="look like probabilities"):
        score(logistic, trace=Trace.from_outputs(torch.rand(4, 40, 1)))
    other = LastLayer(layer.features, layer.outputs, layer.targets, label_smoothing=0.1)
    with pytest.warns(
        NoshadowWarning,
        match=r"taken with label_smoothing=0, the layer has 0.1; exposure, mean_trace and trace_iqr take",
    ):
        score(other, ["mean_trace"], Trace.from_outputs(z, y, "softmax"))
    with pytest.warns(NoshadowWarning) as caught:
        found = audit(other, scores=["mean_trace"], trace=Trace.from_outputs(z, y, "softmax"))
    said = [str(one.message) for one in caught if "label_smoothing=0, the layer has 0.1" in str(one.message)]
    assert len(said) == 1  # once, and in the notes that are saved
    assert said[0] in found.notes


def test_arrays_that_are_no_outputs_are_refused():
    _, z = layer_and_epochs()
    bad = z.copy()
    bad[4, 7, 1] = np.nan
    cases = {
        r"outputs: expected shape \(epochs, n, m\), got \(9, 40\); for one output per record": z[:, :, 0],
        r"outputs: expected shape \(epochs, n, m\), got \(0, 40, 3\)": z[:0],
        r"outputs\[4\]: NaN, infinite or beyond float32 in row 7 \(counted from 0\); leave out the epochs": bad,
        r"outputs\[0\]: NaN, infinite or beyond float32 in row 0 ": np.full((2, 1, 1), 1e39),
    }
    for message, outputs in cases.items():
        with pytest.raises(InputError, match=message):
            Trace.from_outputs(outputs)
    with pytest.raises(InputError, match="targets, head: give both or neither"):
        Trace.from_outputs(z, np.zeros(40))


def test_targets_are_the_same_in_any_precision_and_form():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    z = rng.normal(size=(4, 30, 1))
    layer = LastLayer(x, z[-1], y, "squared")
    trace = Trace.from_outputs(z, y.astype(np.float32), "squared")
    assert "mean_trace" in score(layer, trace=trace)
    classes, outputs = rng.integers(0, 3, 30), rng.normal(size=(4, 30, 3))
    one_hot = Trace.from_outputs(outputs, np.eye(3)[classes], "softmax")
    assert "mean_trace" in score(LastLayer(x, outputs[-1], classes), trace=one_hot)


def test_losses_with_mean_outputs():
    layer, z = layer_and_epochs()
    losses = losses_by_hand(z, layer.targets.numpy(), "softmax")
    both = Trace.from_losses(losses, z.astype(float).mean(0))
    assert both.epochs == 9
    np.testing.assert_allclose(both.mean_outputs, z.astype(float).mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(score(layer, ["trace_iqr"], both), score(layer, ["trace_iqr"], losses))
    with pytest.raises(InputError, match=r"mean_outputs: expected shape \(40, m\), a row per record, got \(39, 3\)"):
        Trace.from_losses(losses, z[0, 1:])
    with pytest.raises(InputError, match="trace: it was made from whole arrays and takes no more epochs"):
        both.update(outputs=z[0], targets=layer.targets)


def test_marks_tell_columns_apart_and_take_zero_for_zero():
    """Targets of several outputs whose columns were swapped are others; −0, which rounding leaves, is 0."""
    targets = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    assert (marks_of(targets) != marks_of(targets.flip(1))).all()
    assert torch.equal(marks_of(targets), marks_of(torch.tensor([[1.0, 2.0], [-0.0, 3.0]])))
    assert torch.equal(marks_of(targets), marks_of(targets.double()))
