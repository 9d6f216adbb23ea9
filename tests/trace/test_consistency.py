"""Mean outputs that cannot be those of the losses beside them, and that have too few digits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, score

N = 157


@pytest.fixture(params=["softmax", "logistic", "squared"])
def run(request):
    """A layer, and the losses (epochs, n) and mean outputs of a run that ends there."""
    generator = np.random.default_rng(0)
    m = 3 if request.param == "softmax" else 1
    x, noise = generator.normal(size=(N, 5)), generator.normal(size=(7, N, m))
    z = 2.0 * x @ generator.normal(size=(5, m))
    y = {
        "softmax": (z + generator.gumbel(size=z.shape)).argmax(1),
        "logistic": (z[:, 0] + generator.logistic(size=N) > 0).astype(int),
        "squared": z[:, 0] + generator.normal(size=N),
    }[request.param]
    outputs = z * np.linspace(0.2, 1.0, 7)[:, None, None] + 0.3 * noise
    outputs[-1] = z
    layer = LastLayer(x, z, y, request.param, ridge=1.0)
    losses = torch.stack([layer.kind.loss(torch.tensor(one), layer.targets) for one in outputs])
    return layer, losses.numpy(), outputs.mean(0)


def told(layer, losses, mean):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoshadowWarning)
        score(layer, ["exposure"], Trace.from_losses(losses, mean))
    return [str(one.message) for one in caught if "their mean output" in str(one.message)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_losses_and_mean_outputs_of_one_run_are_taken_in_any_precision(run, dtype):
    layer, losses, mean = run
    stood_still = np.repeat(losses[-1:], 3, 0), layer.outputs.numpy()  # the two are equal, but for rounding
    for parts in ((losses, mean), stood_still):
        given = [torch.tensor(one).to(dtype) for one in parts]
        assert told(layer, *given) == []


def test_mean_outputs_of_other_records_or_losses_in_another_unit_are_refused(run):
    layer, losses, mean = run
    order = np.random.default_rng(1).permutation(N)
    wrong = [(losses, mean[order]), (losses, mean[::-1].copy()), (losses / N, mean), (losses * 0.5, mean)]
    if layer.n_outputs == 3:
        wrong.append((losses, mean[:, [1, 2, 0]]))
    for one, other in wrong:
        expected = (layer.kind.loss(torch.tensor(other), layer.targets).numpy() > 1.2 * one.mean(0)).sum()
        with pytest.raises(InputError, match="below the loss at their mean output, which no run gives") as error:
            told(layer, one, other)
        count = int(str(error.value).split(" of 157 records")[0].split()[-1])
        assert 0.7 * expected <= count <= 1.3 * expected + 5


def test_one_record_in_a_hundred_is_told_of(run):
    layer, losses, mean = run
    losses[:, 7] = 1e-3
    (note,) = told(layer, losses, mean)
    assert note.startswith("trace: the mean loss of 1 of 157 records (row 7, counted from 0) is below the loss")


@pytest.mark.parametrize(("offset", "said"), [(0.0, False), (1e6, False), (1e7, True), (1.7e9, True)])
@pytest.mark.parametrize("targets", [False, True])
def test_values_of_which_float32_leaves_little_are_told_of(offset, said, targets):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4))
    y = x @ np.ones(4) + generator.normal(size=200)
    z = x @ np.linalg.lstsq(x, y, rcond=None)[0]

    def scored(offset):
        trace = Trace("squared")
        for epoch in range(7):
            noise = np.random.default_rng(epoch).normal(size=200)
            outputs = (z + 2.0 * np.exp(-epoch) * noise + offset)[:, None]
            trace.update(outputs=outputs, **({"targets": y + offset} if targets else {}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoshadowWarning)
            found = score(LastLayer(x, z + offset, y + offset, "squared"), ["signal_shift"], trace)["signal_shift"]
        return found, any("whose rounding is" in str(one.message) for one in caught)

    (found, noted), (right, _) = scored(offset), scored(0.0)
    assert noted == said
    assert (abs(found.mean() / right.mean() - 1.0) > 0.02) == said  # what the note is for


def test_values_far_from_0_in_single_precision_are_not_taken_for_another_run():
    """At 10⁵ an output is rounded by up to 0.004, beside which residuals of 0.001 are nothing."""
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(100, 2)), 1e5 + generator.normal(size=100)
    outputs = y + 1e-3 * generator.normal(size=(5, 100))
    layer = LastLayer(x, outputs[-1], y, "squared")
    mean = outputs.mean(0)[:, None].astype(np.float32)
    losses = (outputs - y) ** 2
    assert np.mean((mean[:, 0] - y) ** 2 > 1.2 * losses.mean(0)) > 0.3  # above what no run gives, by rounding alone
    assert told(layer, losses, mean) == []
    with pytest.raises(InputError, match="which no run gives"):
        told(layer, losses, mean + 0.1)
