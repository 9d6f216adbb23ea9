"""Which loss a PyTorch model was trained with: read where it is written, asked for where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from noshadow import InputError
from tests.extract.torch.toys import M, N, found_in, layer_of, network, records, text_model, tokens


@pytest.fixture
def data():
    return records()


def test_stated_heads_and_unclear_ones_through_the_door(data):
    x, y = data.tensors
    with pytest.raises(InputError, match=r"head: .* the targets are 0/1 and the model has one output; pass head="):
        layer_of(network(1), TensorDataset(x, y % 2))
    for head in ("logistic", "squared"):
        found = found_in(network(1), TensorDataset(x, y % 2), head=head)
        assert found.layer.head == head
        assert found.facts["head_from"] == "stated"
    assert layer_of(network(), TensorDataset(x, torch.randn(N, M))).head == "squared"
    with pytest.raises(InputError, match=r"2 logistic outputs need 0/1 targets of shape \(n, 2\)"):
        layer_of(network(2), TensorDataset(x, y % 2), head="logistic")


def test_one_hot_targets_are_classes(data):
    """They were taken for a regression."""
    x, y = data.tensors
    for hot in (nn.functional.one_hot(y, M), nn.functional.one_hot(y, M).float()):
        layer = layer_of(network(), TensorDataset(x, hot))
        assert layer.head == "softmax"
        torch.testing.assert_close(layer.targets, y)


def test_a_final_activation_decides_and_a_head_against_it_is_refused(data):
    x, y = data.tensors
    binary = TensorDataset(x, y % 2)
    found = found_in(nn.Sequential(network(1), nn.Sigmoid()), binary)
    assert (found.layer.head, found.facts["head_from"]) == ("logistic", "a final sigmoid")
    assert found_in(nn.Sequential(network(), nn.LogSoftmax(1)), data).facts["head_from"] == "a final log_softmax"
    for model, pairs, head in (
        (nn.Sequential(network(1), nn.Sigmoid()), binary, "squared"),
        (nn.Sequential(network(), nn.Softmax(1)), data, "squared"),
    ):
        with pytest.raises(InputError, match=r"head: 'squared' does not fit a model that ends in (sigmoid|softmax)"):
            layer_of(model, pairs, head=head)


def test_classes_that_cross_entropy_ignores_or_that_are_out_of_range_are_named(data):
    x, y = data.tensors
    ignored = y.clone()
    ignored[[5, 9]] = -100
    with pytest.raises(InputError, match=r"got -100 in rows 5, 9 \(counted from 0\); .*leave them out of data"):
        layer_of(network(), TensorDataset(x, ignored))
    ignored[[5, 9]] = 7
    with pytest.raises(InputError, match=r"targets: expected classes 0 … 3, got 7 in rows 5, 9"):
        layer_of(network(), TensorDataset(x, ignored))


@pytest.mark.parametrize(
    ("problem", "labels", "targets", "head", "where"),
    [
        ("regression", 1, torch.arange(24) % 2, "squared", "config.problem_type"),
        ("regression", 2, torch.linspace(-2, 2, 48).reshape(24, 2).sin(), "squared", "config.problem_type"),
        ("single_label_classification", 3, torch.arange(24) % 3, "softmax", "config.problem_type"),
        (None, 1, torch.arange(24) % 2, "squared", "config.num_labels of 1"),  # was a logistic head
        (None, 1, (torch.arange(24) % 2).float(), "squared", "config.num_labels of 1"),
        (None, 3, torch.arange(24) % 3, "softmax", "config.num_labels and the targets' type"),
    ],
)
def test_hugging_face_models_are_read_by_hugging_faces_rule(problem, labels, targets, head, where):
    """The head is the one by which the model computes its own loss, to which ours is compared."""
    ids, mask = tokens()
    model = text_model("Bert", labels, problem_type=problem)
    found = found_in(model, TensorDataset(ids, mask, targets))
    assert (found.layer.head, found.facts["head_from"]) == (head, where)
    given = targets if head == "softmax" else targets.float()
    theirs = model(ids, attention_mask=mask, labels=given).loss.item()
    ours = found.layer.kind.loss(found.layer.outputs, found.layer.targets).sum() / (
        24 * (labels if head != "softmax" else 1)
    )
    assert float(ours) == pytest.approx(theirs, rel=1e-5)


def test_multi_label_models_have_a_logistic_head_for_each_label():
    """Hugging Face: by problem_type, or by float targets for several labels, one-hot ones too; or a final sigmoid."""
    ids, mask = tokens()
    many = (torch.arange(72).reshape(24, 3) % 5 < 2).float()
    one = nn.functional.one_hot(torch.arange(24) % 3, 3).float()
    stated = text_model("Bert", 3, problem_type="multi_label_classification")
    for model, targets in ((stated, many), (text_model("Bert"), many), (text_model("Bert"), one)):
        layer = layer_of(model, TensorDataset(ids, mask, targets), weight_decay=0.1)
        assert layer.head == "logistic"
        theirs = model(ids, attention_mask=mask, labels=targets).loss.item()
        assert float(layer.kind.loss(layer.outputs, layer.targets).sum()) / 72 == pytest.approx(theirs, rel=1e-5)
        assert layer.ridge == pytest.approx(7.2)  # BCEWithLogitsLoss averages over records and labels
    x, y = records().tensors
    hot = nn.functional.one_hot(y, M)
    assert layer_of(nn.Sequential(network(), nn.Sigmoid()), TensorDataset(x, hot)).head == "logistic"


def test_a_head_against_the_configuration_is_refused_unless_the_loss_is_the_users_own():
    ids, mask = tokens()
    binary = TensorDataset(ids, mask, torch.arange(24) % 2)
    with pytest.raises(InputError, match=r"head: 'logistic', but the model's config.problem_type says 'squared'"):
        layer_of(text_model("Bert", 1, problem_type="regression"), binary, head="logistic")
    assert layer_of(text_model("Bert", 1), binary, head="logistic").head == "logistic"

    class Own(nn.Module):
        """A head of the user's own on a pretrained body: its config says nothing about it."""

        def __init__(self):
            super().__init__()
            self.body = text_model("Bert").bert
            self.config, self.fc = self.body.config, nn.Linear(16, 1)

        def forward(self, input_ids, attention_mask=None):
            return self.fc(self.body(input_ids, attention_mask).pooler_output)

    with pytest.raises(InputError, match=r"head: .* the targets are 0/1 and the model has one output; pass head="):
        layer_of(Own(), binary)
