"""The stated objective: losses, heads that are never guessed wrongly, and the ridge of a weight decay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from noshadow import InputError, LastLayer, audit
from noshadow.extract import extract
from noshadow.extract.guess import guess_head
from noshadow.objective import Objective, ridge_of_weight_decay
from noshadow.scoring import score_with_diagnostics

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
CLASSES = RNG.integers(0, 3, 60)
ONE_HOT = np.eye(3)[CLASSES]
MULTI_HOT = RNG.integers(0, 2, (60, 3))
SOFT = 0.9 * ONE_HOT + 0.1 / 3
VALUES = RNG.normal(size=(60, 3))
BINARY = (CLASSES > 0).astype(int)


def tensors(outputs, targets):
    return torch.zeros(60, outputs), torch.as_tensor(targets)


@pytest.mark.parametrize(
    ("outputs", "targets", "head"),
    [
        (3, CLASSES, "softmax"),
        (3, CLASSES[:, None], "softmax"),
        (
            3,
            CLASSES.astype(np.float32),
            "softmax",
        ),  # classes by their shape: no other loss takes (n,) for three outputs
        (3, ONE_HOT, "softmax"),
        (3, ONE_HOT.astype(bool), "softmax"),
        (3, VALUES, "squared"),
        (3, 5 * MULTI_HOT, "squared"),
        (1, VALUES[:, 0], "squared"),
        (1, VALUES[:, :1], "squared"),
        (1, CLASSES, "squared"),  # 0, 1, 2 from one output
    ],
)
def test_the_head_where_there_is_no_choice(outputs, targets, head):
    assert guess_head(*tensors(outputs, targets)) == head


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (1, BINARY, "0/1 and the model has one output; pass head='logistic'"),
        (1, BINARY.astype(np.float32)[:, None], "0/1 and the model has one output; pass head='logistic'"),
        (1, BINARY.astype(bool), "0/1 and the model has one output; pass head='logistic'"),
        (1, 2 * BINARY - 1, "−1 and 1 and the model has one output; map −1 to 0 and pass head='logistic'"),
        (1, SOFT[:, 0], "numbers between 0 and 1"),
        (3, MULTI_HOT, "0/1 and the model has 3 outputs; pass head='logistic' for independent labels"),
        (3, MULTI_HOT.astype(np.float32), "0/1 and the model has 3 outputs; pass head='logistic'"),
        (3, 2 * MULTI_HOT - 1, "−1 and 1 and the model has 3 outputs"),
        (3, SOFT, "soft labels"),
        (3, SOFT * 0.5, "numbers between 0 and 1"),
    ],
)
def test_the_head_is_asked_for_where_there_is_a_choice(outputs, targets, words):
    with pytest.raises(InputError, match=rf"^head: .*{words}.*head='squared'"):
        guess_head(*tensors(outputs, targets))
    for head in ("squared", "logistic"):
        assert guess_head(*tensors(outputs, targets), Objective(head=head)) == head


def test_a_log_loss_is_logistic_or_softmax_by_its_outputs():
    log_loss = Objective(loss="log_loss").resolved()
    assert log_loss.head is None
    assert guess_head(*tensors(1, BINARY), log_loss) == "logistic"
    assert guess_head(*tensors(3, MULTI_HOT), log_loss) == "logistic"
    assert guess_head(*tensors(3, CLASSES), log_loss) == "softmax"
    assert guess_head(*tensors(3, ONE_HOT), log_loss) == "softmax"


def test_targets_in_the_wrong_form_are_refused_with_the_choices():
    z = X @ RNG.normal(size=(4, 3))
    layer = LastLayer(X, z, ONE_HOT, "softmax")
    assert (layer.targets.numpy() == CLASSES).all()
    rows = np.flatnonzero(MULTI_HOT.sum(1) != 1)
    with pytest.raises(InputError, match=rf"several in rows {rows[0]}, .*head='logistic'.*head='squared'"):
        LastLayer(X, z, MULTI_HOT, "softmax")
    with pytest.raises(InputError, match=r"soft labels in rows 0, 1, .*label_smoothing=.*head='squared'"):
        LastLayer(X, z, SOFT, "softmax")
    with pytest.raises(InputError, match=r"neither classes nor one-hot in rows 0, .*head='squared'"):
        LastLayer(X, z, 2 * ONE_HOT - 1, "softmax")
    with pytest.raises(InputError, match=r"expected classes of shape \(n,\), or one-hot \(n, 3\), got \(60, 2\)"):
        LastLayer(X, z, ONE_HOT[:, :2], "softmax")
    with pytest.raises(InputError, match=r"map −1 to 0\), got -1 in rows"):
        LastLayer(X, z[:, 0], 2 * BINARY - 1, "logistic")
    with pytest.raises(InputError, match=r"got -100 in row 3 .*leaves such records out of training"):
        LastLayer(X, z, np.where(np.arange(60) == 3, -100, CLASSES), "softmax")
    with pytest.raises(InputError, match=r"1 logistic output need 0/1 targets of shape \(n, 1\), got \(60, 3\)"):
        LastLayer(X, z[:, 0], ONE_HOT, "logistic")


@pytest.mark.parametrize(
    ("loss", "head"),
    [
        ("mse", "squared"),
        ("squared_error", "squared"),
        ("MSELoss", "squared"),
        ("mean squared error", "squared"),
        (nn.MSELoss(), "squared"),
        (nn.functional.mse_loss, "squared"),
        ("bce", "logistic"),
        ("bce_with_logits", "logistic"),
        ("binary_cross_entropy", "logistic"),
        (nn.BCELoss(), "logistic"),
        (nn.BCEWithLogitsLoss(), "logistic"),
        (nn.functional.binary_cross_entropy_with_logits, "logistic"),
        ("cross_entropy", "softmax"),
        ("sparse_categorical_crossentropy", "softmax"),
        (nn.CrossEntropyLoss(), "softmax"),
        (nn.NLLLoss(), "softmax"),
        ("log_loss", None),
    ],
)
def test_losses_say_their_head(loss, head):
    assert Objective(loss=loss).resolved().head == head
    assert Objective(loss=loss).resolved().resolved().head == head


class FocalLoss(nn.CrossEntropyLoss):
    """What a subclass computes cannot be known."""


def cross_entropy(outputs, targets):
    """Not torch's, whatever it is called."""


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("hinge", "hinge"),
        ("huber", "huber"),
        ("focal", "focal"),
        ("squared_hinge", "squared_hinge"),
        ("gaussian_nll", "gaussian_nll"),
        (nn.HuberLoss(), "HuberLoss"),
        (nn.L1Loss(), "L1Loss"),
        (nn.KLDivLoss(), "KLDivLoss"),
        (FocalLoss(), "FocalLoss"),
        (cross_entropy, "cross_entropy"),
        (nn.functional.l1_loss, "l1_loss"),
    ],
)
def test_losses_without_a_head_are_refused_by_name(loss, name):
    with pytest.raises(InputError, match=rf"loss: '{name}' has no head that is known here; audit models trained with"):
        Objective(loss=loss).resolved()
    with pytest.raises(InputError, match=rf"loss: '{name}'"):
        audit(nn.Linear(4, 3), (X, CLASSES), loss=loss)


def test_criteria_say_their_weights_and_smoothing():
    weight = torch.tensor([1.0, 2.0, 3.0])
    found = Objective(loss=nn.CrossEntropyLoss(weight, label_smoothing=0.1)).resolved()
    assert (found.head, found.label_smoothing) == ("softmax", 0.1)
    assert torch.equal(found.class_weight, weight)
    assert torch.equal(Objective(loss=nn.NLLLoss(weight)).resolved().class_weight, weight)
    positive = Objective(loss=nn.BCEWithLogitsLoss(pos_weight=weight)).resolved()
    assert positive.class_weight.tolist() == [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]
    both = Objective(loss=nn.BCEWithLogitsLoss(weight, pos_weight=torch.tensor(4.0))).resolved()
    assert both.class_weight.tolist() == [[1.0, 4.0], [2.0, 8.0], [3.0, 12.0]]
    with pytest.raises(InputError, match=r"BCELoss\(weight=\) has shape \(60, 1\).*sample_weight="):
        Objective(loss=nn.BCELoss(torch.ones(60, 1))).resolved()
    with pytest.raises(InputError, match=r"ignore_index=2\) left the records of class 2 out"):
        Objective(loss=nn.CrossEntropyLoss(ignore_index=2)).resolved()
    with pytest.raises(InputError, match=r"loss: MSELoss is a class; pass the criterion itself"):
        Objective(loss=nn.MSELoss).resolved()


def test_statements_that_contradict_each_other_are_refused():
    weighted = nn.CrossEntropyLoss(torch.ones(3), label_smoothing=0.1)
    for objective, words in (
        (Objective(head="hinge"), "head: 'hinge' is not a head"),
        (Objective(head="squared", loss="bce"), "'bce' is the loss of a logistic head, not of a squared one"),
        (Objective(head="squared", loss="log_loss"), "the loss of a logistic or softmax head"),
        (Objective(loss=weighted, class_weight=[1, 2, 3]), "class_weight: CrossEntropyLoss carries its own weights"),
        (Objective(loss=weighted, label_smoothing=0.2), "has label_smoothing=0.1, not 0.2"),
        (Objective(ridge=1.0, weight_decay=1.0), "ridge, weight_decay: give one of them"),
    ):
        with pytest.raises(InputError, match=words):
            objective.resolved()
    assert Objective(head="logistic", loss="log_loss").resolved().head == "logistic"
    assert Objective(loss=weighted, label_smoothing=0.1).resolved().label_smoothing == 0.1
    ridge, logistic = Ridge().fit(X, VALUES), LogisticRegression().fit(X, CLASSES)
    with pytest.raises(InputError, match=r"loss: 'log_loss' is not the loss of a squared head, which the model has"):
        extract(ridge, (X, VALUES), Objective(loss="log_loss"))
    with pytest.raises(InputError, match=r"head: LogisticRegression trains a softmax head, not 'squared'"):
        extract(logistic, (X, CLASSES), Objective(loss="mse"))
    for name, value in {"loss": "mse", "sample_weight": np.ones(60), "class_weight": {0: 1.0}}.items():
        with pytest.raises(InputError, match=f"{name}: a LastLayer already holds it"):
            audit(LastLayer(X, VALUES, VALUES, "squared"), **{name: value})


def trained_by_sgd(outputs, loss, decay):
    """A linear layer at the stationary point of full-batch SGD with weight decay on a mean loss."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, outputs).double(), torch.from_numpy(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=decay)
    for _ in range(500):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return model


WEIGHT = torch.tensor([0.5, 1.0, 6.0], dtype=torch.float64)
SAMPLE = torch.from_numpy(RNG.exponential(size=60))


@pytest.mark.parametrize(
    ("criterion", "targets", "sample", "divisor"),
    [
        (nn.MSELoss(), VALUES, None, 180.0),
        (nn.CrossEntropyLoss(), CLASSES, None, 60.0),
        (nn.CrossEntropyLoss(WEIGHT), CLASSES, None, float(WEIGHT[CLASSES].sum())),
        (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.2), CLASSES, None, float(WEIGHT[CLASSES].sum())),
        (nn.CrossEntropyLoss(WEIGHT, reduction="none"), CLASSES, SAMPLE, 60.0),
        (nn.MSELoss(reduction="none"), VALUES[:, :1], SAMPLE, 60.0),
        (nn.BCEWithLogitsLoss(), MULTI_HOT, None, 180.0),
        (nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHT.flip(0)), MULTI_HOT, None, 180.0),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0])), BINARY[:, None], None, 60.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_head_trained_with_weight_decay_is_stationary_under_its_ridge(criterion, targets, sample, divisor):
    """The audit of (model, data, criterion, weight_decay) finds the objective that SGD was run on, weights and all."""
    y = torch.from_numpy(targets)
    y = y.double() if not isinstance(criterion, nn.CrossEntropyLoss) else y
    outputs = 3 if y.ndim == 1 else y.shape[1]

    def loss(z):
        losses = criterion(z, y)
        return losses if sample is None else (sample * losses.reshape(60)).mean()

    model = trained_by_sgd(outputs, loss, 0.05)
    objective = Objective(loss=criterion, weight_decay=0.05, sample_weight=sample)
    layer = extract(model, (X, y), objective).layer
    assert layer.ridge == pytest.approx(0.05 * divisor)
    assert score_with_diagnostics(layer)[1].stationarity < 1e-5
    for wrong in (0.5, 2.0):
        off = extract(model, (X, y), Objective(loss=criterion, sample_weight=sample, ridge=wrong * layer.ridge)).layer
        assert score_with_diagnostics(off)[1].stationarity > 0.05
    metadata = audit(model, (X, y), loss=criterion, weight_decay=0.05, sample_weight=sample).metadata
    assert metadata["sample_weight"] == (sample is not None)
    assert metadata["label_smoothing"] == getattr(criterion, "label_smoothing", 0.0)
    weighted = getattr(criterion, "weight", None) is not None or getattr(criterion, "pos_weight", None) is not None
    assert (metadata["class_weight"] is not None) == weighted


def test_weight_decay_with_a_summed_loss_or_none():
    z, y = torch.zeros(60, 3), torch.from_numpy(CLASSES)
    assert ridge_of_weight_decay(Objective(), "softmax", z, y) == 0.0
    summed = Objective(loss=nn.CrossEntropyLoss(reduction="sum"), weight_decay=0.1).resolved()
    with pytest.raises(InputError, match=r"weight_decay: CrossEntropyLoss has reduction='sum'.*ridge="):
        ridge_of_weight_decay(summed, "softmax", z, y)
    by_name = Objective(class_weight={2: 3.0}, weight_decay=0.1)
    total = float(np.array([1.0, 1.0, 3.0])[CLASSES].sum())
    assert ridge_of_weight_decay(by_name, "softmax", z, torch.from_numpy(ONE_HOT)) == pytest.approx(0.1 * total)
