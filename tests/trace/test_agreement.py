"""A trace that is not of the layer's records is told of, one that is of them is not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_wine

import noshadow
from noshadow import LastLayer, Trace
from noshadow.trace.binding import rank_agreement


@pytest.fixture(scope="module", params=["wine", "cancer"])
def trained(request):
    """A small network on real data: its layer, and its outputs after each epoch."""
    x, y = {"wine": load_wine, "cancer": load_breast_cancer}[request.param](return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor(y)
    torch.manual_seed(0)
    body, head = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU()), torch.nn.Linear(16, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-2)
    outputs = []
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
        with torch.no_grad():
            outputs.append(head(body(x)))
    with torch.no_grad():
        return LastLayer(body(x), outputs[-1], y), torch.stack(outputs), y


def said(layer, trace, words="not ahead in the final outputs"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        noshadow.score(layer, trace=trace, progress=False)
    return [str(one.message) for one in caught if words in str(one.message)]


def test_its_own_trace_is_not_remarked_on(trained):
    layer, outputs, y = trained
    losses = torch.stack([torch.nn.functional.cross_entropy(z, y, reduction="none") for z in outputs])
    assert not said(layer, Trace.from_outputs(outputs))
    assert not said(layer, losses)
    found = rank_agreement(Trace.from_losses(losses), layer)
    assert found == pytest.approx(stats.spearmanr(losses.mean(0), losses[-1]).statistic, abs=2e-3)  # ranks of float32


def test_a_trace_in_another_order_is_named(trained):
    layer, outputs, y = trained
    order = np.random.default_rng(1).permutation(len(y))
    losses = torch.stack([torch.nn.functional.cross_entropy(z, y, reduction="none") for z in outputs])
    for trace in (Trace.from_outputs(outputs[:, order]), losses[:, order]):
        (message,) = said(layer, trace)
        assert "in another order" in message


def test_a_trace_of_one_epoch_is_well_defined_and_said_to_be_hardly_a_run(trained):
    layer, outputs, y = trained
    final = noshadow.score(layer)
    for place, words in ((-1, "it is that of the final outputs: it adds nothing"), (5, "hardly a run")):
        recorded = Trace("softmax")
        recorded.update(outputs=outputs[place], targets=y)
        for trace in (recorded, Trace.from_outputs(outputs[place][None])):
            (note,) = said(layer, trace, "trace: it holds one epoch")
            assert words in note
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = noshadow.score(layer, trace=trace)
                at = noshadow.score(LastLayer(layer.features, outputs[place], y))
            np.testing.assert_allclose(found["exposure"], at["exposure"], rtol=1e-6)
            assert list(found) == list(final)  # no spread over epochs
    assert not said(layer, Trace.from_outputs(outputs[-2:]), "trace: it holds")


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_in_any_unit_one_epoch_is_that_of_the_final_outputs_or_another(unit):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)), generator.normal(size=60)
    layer = LastLayer(x, unit * x[:, 0], unit * y, "squared")
    for outputs, words in ((x[:, :1], "it is that of the final outputs"), (1.1 * x[:, :1], "hardly a run")):
        (note,) = said(layer, Trace.from_outputs(unit * outputs[None]), "trace: it holds one epoch")
        assert words in note


def test_a_regression_that_has_fitted_all_its_values_knows_its_trace():
    """The residuals that are left are of chance; mean outputs and losses of the run are of the values all the same."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(200, 4)), generator.normal(size=200)
    outputs = np.stack([y * (1.0 - 0.7**t) + 0.02 * generator.normal(size=200) for t in range(1, 30)])
    losses = (outputs - y) ** 2
    order = generator.permutation(200)
    layer = LastLayer(x, outputs[-1], y, head="squared")
    assert stats.spearmanr(losses.mean(0), losses[-1]).statistic < 4 / 200**0.5
    own = Trace.from_outputs(outputs[..., None]), losses
    for trace in own:
        assert not said(layer, trace)
    for trace in (Trace.from_outputs(outputs[:, order, None]), losses[:, order]):
        assert len(said(layer, trace)) == 1


@pytest.mark.parametrize(("n", "told"), [(49, False), (50, True)])
def test_a_rank_correlation_of_few_records_is_not_asked_for(n, told):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(n, 3)), np.arange(n) % 2
    z = 3.0 * generator.normal(size=(n, 1))
    losses = np.logaddexp(0.0, -z[:, 0] * (2 * y - 1))
    layer, reversed_order = LastLayer(x, z, y, "logistic"), np.argsort(np.argsort(-losses))
    assert (rank_agreement(Trace.from_losses(np.stack([reversed_order] * 3) + 1.0), layer) is not None) == told
