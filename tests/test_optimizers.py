"""The ridge that an optimiser's weight decay stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noshadow import InputError, audit
from noshadow.extract import extract
from noshadow.objective import Objective
from noshadow.optimizers import PENALISED, SCALED, read_optimizer


@pytest.fixture
def trained():
    """A linear softmax layer, 40 records, by full-batch SGD with weight decay to convergence."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(40, generator=generator) > 0).long()
    model = nn.Sequential(nn.Linear(3, 2, dtype=torch.float64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, x, y


def train(model, x, y, optimizer, steps=800):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def layer_of(model, x, y, **stated):
    return extract(model, (x, y), Objective(**stated)).layer


def test_sgd_is_stationary_under_the_ridge_that_is_read_off_it(trained):
    model, x, y = trained
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.05)
    train(model, x, y, optimizer)
    result = audit(model, (x, y), optimizer=optimizer)
    assert result.metadata["ridge"] == pytest.approx(40 * 0.05)
    assert result.metadata["stationarity"] < 1e-4
    assert result.metadata["optimizer"] == "sgd"
    assert audit(model, (x, y)).metadata["stationarity"] > 0.3  # without it
    assert audit(model, (x, y), optimizer="sgd", weight_decay=0.05).metadata["ridge"] == pytest.approx(2.0)


def test_a_bias_in_a_group_without_decay_is_free(trained):
    model, x, y = trained
    weight, bias = model.parameters()
    groups = [{"params": [weight], "weight_decay": 0.05}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
    train(model, x, y, optimizer)
    result = audit(model, (x, y), optimizer=optimizer)
    assert not result.metadata["penalize_bias"]
    assert result.metadata["stationarity"] < 1e-4
    groups[1]["weight_decay"] = 0.01
    with pytest.raises(InputError, match=r"optimizer: the bias of the last layer decays by 0.01, its weights by 0.05"):
        audit(model, (x, y), optimizer=torch.optim.SGD(groups, lr=0.5))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_scaled_gradients_have_no_ridge(trained, kind):
    model, x, y = trained
    optimizer = kind(model.parameters(), weight_decay=0.05)
    assert layer_of(model, x, y, optimizer=optimizer).ridge == 0.0
    assert layer_of(model, x, y, optimizer=kind.__name__, weight_decay=0.05).ridge == 0.0
    assert layer_of(model, x, y, optimizer=optimizer, ridge=3.0).ridge == 3.0  # Λ itself is what it is


def test_what_cannot_be_read_is_refused(trained):
    model, x, y = trained
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05)
    with pytest.raises(InputError, match=r"weight_decay: 0.1, but the optimizer has 0.05"):
        layer_of(model, x, y, optimizer=sgd, weight_decay=0.1)
    with pytest.raises(InputError, match=r"optimizer: it does not hold the weights of the last layer"):
        layer_of(model, x, y, optimizer=torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1))
    with pytest.raises(InputError, match=r"optimizer: it is not known what the weight decay of 'magic' minimises"):
        layer_of(model, x, y, optimizer="magic")
    with pytest.raises(InputError, match=r"optimizer: expected a name or a torch optimizer, got float"):
        layer_of(model, x, y, optimizer=0.1)


def test_the_rule_knows_each_name_once():
    assert not set(PENALISED) & set(SCALED)
    known = {name.lower() for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)} - {"optimizer"}
    assert known <= {*PENALISED, *SCALED}, "torch has an optimiser that the rule does not know"
    assert read_optimizer("SGD").penalises
    assert not read_optimizer("AdamW").penalises
