"""The heads against autograd and against 60-digit arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from noshadow.errors import InputError
from noshadow.heads import HEADS, complement_basis, get_head, make_head
from noshadow.triangles import packed_outer, packed_outer_tiles, unpack

mpmath.mp.dps = 60
LOGITS = [
    [1.0, 2.0, -3.0],
    [1e4, -1e4, 0.0],
    [-1e4, 1e4, 9999.0],
    [40.0, 0.0, -40.0],
    [700.0, 0.0, 1.0],
    [0.0, 0.0, 0.0],
    [1e4, 1e4, -1e4],
]


def exact(z, y):
    """loss, probabilities, φ of one row, in 60 digits."""
    z = [mpmath.mpf(v) for v in z]
    total = mpmath.fsum(mpmath.exp(v) for v in z)
    p = [mpmath.exp(v) / total for v in z]
    others = mpmath.log(mpmath.fsum(mpmath.exp(v) for k, v in enumerate(z) if k != y))
    return -mpmath.log(p[y]), p, z[y] - others


def close(value, truth, tolerance=1e-13):
    truth = mpmath.mpf(truth)
    if abs(truth) < mpmath.mpf("1e-300"):
        return abs(value) < 1e-290
    return abs(mpmath.mpf(float(value)) - truth) <= tolerance * abs(truth)


@pytest.mark.parametrize("row", LOGITS)
@pytest.mark.parametrize("y", [0, 1, 2])
def test_softmax_is_right_to_the_last_digits_even_when_saturated(row, y):
    head = HEADS["softmax"]
    z, target = torch.tensor([row], dtype=torch.float64), torch.tensor([y])
    loss, p, phi = exact(row, y)
    assert close(head.loss(z, target), loss)
    assert close(head.signal(z, target), phi)
    g = head.gradient(z, target)[0]
    w = head.curvature(z)[0]
    for k in range(3):
        assert close(g[k], p[k] - (k == y), 1e-12)
        for j in range(3):
            assert close(w[k, j], p[k] * ((k == j) - p[j]), 1e-12)
    assert close(head.entropy(z)[0], -mpmath.fsum(v * mpmath.log(v) for v in p), 1e-12)


@pytest.mark.parametrize("z", [-1e4, -800.0, -30.0, -1.5, 0.0, 2.0, 35.0, 1e4])
@pytest.mark.parametrize("y", [0, 1])
def test_logistic_is_right_to_the_last_digits_even_when_saturated(z, y):
    head = HEADS["logistic"]
    logit, target = torch.tensor([[z]], dtype=torch.float64), torch.tensor([y])
    s = 2 * y - 1
    miss = 1 / (1 + mpmath.exp(s * mpmath.mpf(z)))
    p = 1 / (1 + mpmath.exp(-mpmath.mpf(z)))
    q = 1 / (1 + mpmath.exp(mpmath.mpf(z)))
    assert close(head.loss(logit, target)[0], mpmath.log1p(mpmath.exp(-s * mpmath.mpf(z))))
    assert close(head.gradient(logit, target)[0, 0], -s * miss)
    assert close(head.curvature(logit)[0, 0, 0], p * q)
    assert head.signal(logit, target).item() == s * z
    assert close(head.entropy(logit)[0], -p * mpmath.log(p) - q * mpmath.log(q), 1e-12)


@pytest.mark.parametrize("name", ["squared", "logistic", "softmax"])
def test_gradients_and_curvature_are_those_of_autograd(name):
    head, generator = HEADS[name], torch.Generator().manual_seed(1)
    m = {"squared": 3, "logistic": 1, "softmax": 5}[name]
    z = torch.randn(7, m, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randn(7, m, dtype=torch.float64, generator=generator)
    y = y if name == "squared" else torch.randint(0, 2 if name == "logistic" else m, (7,), generator=generator)
    (g,) = torch.autograd.grad(head.loss(z, y).sum(), z)
    torch.testing.assert_close(head.gradient(z, y).detach(), g, rtol=1e-12, atol=1e-14)
    (g,) = torch.autograd.grad(head.signal(z, y).sum(), z)
    torch.testing.assert_close(head.signal_gradient(z, y).detach(), g, rtol=1e-12, atol=1e-14)
    for i in range(7):
        target = y[i : i + 1]
        hessian = torch.autograd.functional.hessian(lambda v, t=target: head.loss(v[None], t).sum(), z[i].detach())
        torch.testing.assert_close(head.curvature(z[i : i + 1].detach())[0], hessian, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("name", list(HEADS))
def test_curved_is_the_product_with_the_curvature(name, outputs):
    outputs = max(outputs, 2) if name == "softmax" else outputs
    head = make_head(name, outputs)
    generator = torch.Generator().manual_seed(0)
    z, v = (torch.randn(3, 5, outputs, generator=generator, dtype=torch.float64) for _ in range(2))
    z[0, 0] *= 40.0
    wanted = (head.curvature(z) @ v.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(head.curved(z, v), wanted, rtol=1e-12, atol=1e-25)


def test_packed_curvature_is_the_reduced_curvature():
    head = HEADS["softmax"]
    z = torch.randn(11, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20
    q = complement_basis(6)
    direct = q.T @ head.curvature(z) @ q
    torch.testing.assert_close(unpack(head.packed_curvature(z), 5), direct, rtol=1e-12, atol=1e-16)


def test_saturated_reduced_curvature_keeps_its_relative_accuracy():
    z = torch.tensor([[0.0, 60.0, 3.0]], dtype=torch.float64)
    q = complement_basis(3)
    _, p, _ = exact([0.0, 60.0, 3.0], 0)
    w = unpack(HEADS["softmax"].packed_curvature(z), 2)[0]
    for a in range(2):
        for b in range(2):
            truth = mpmath.fsum(
                mpmath.mpf(float(q[k, a])) * p[k] * ((k == j) - p[j]) * mpmath.mpf(float(q[j, b]))
                for k in range(3)
                for j in range(3)
            )
            assert abs(float(w[a, b]) - truth) <= 1e-13 * abs(p[0] + p[2])


def test_complement_basis_is_orthonormal_and_orthogonal_to_ones():
    for m in (2, 3, 10, 101):
        q = complement_basis(m)
        torch.testing.assert_close(q.T @ q, torch.eye(m - 1, dtype=torch.float64), rtol=0, atol=1e-13)
        assert q.sum(0).abs().max() < 1e-13


@pytest.mark.parametrize("size", [1e-12, 1e-5, 0.3, 5.0, 100.0, 1e6])
def test_loss_change_does_not_cancel(size):
    z, d = [1.0, -2.0, 0.5], [size, -0.7 * size, 0.1 * size]
    value = HEADS["softmax"].loss_change(
        torch.tensor([z], dtype=torch.float64), torch.tensor([1]), torch.tensor([d], dtype=torch.float64)
    )
    after, _, _ = exact([mpmath.mpf(a) + mpmath.mpf(b) for a, b in zip(z, d, strict=True)], 1)
    assert close(value[0], after - exact(z, 1)[0], 1e-13)
    value = HEADS["logistic"].loss_change(
        torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1]), torch.tensor([[-size]], dtype=torch.float64)
    )
    truth = mpmath.log1p(mpmath.exp(-(mpmath.mpf(2) - mpmath.mpf(size)))) - mpmath.log1p(mpmath.exp(-2))
    assert close(value[0], truth, 1e-13)
    value = HEADS["squared"].loss_change(*(torch.tensor([[v]], dtype=torch.float64) for v in (3.0, 1.0, size)))
    assert close(value[0], (mpmath.mpf(2) + mpmath.mpf(size)) ** 2 - 4, 1e-13)


GAPS = [0.0, 1e-9, 0.3, 1.0, 5.0, 20.0, 36.7, 40.0, 52.0, 60.0, 104.0, 700.0, 745.0, 1e4]
SHIFTS = [1e-30, 1e-17, 1e-9, 0.5, 1.5, 5.0, 29.9, 30.1, 52.0, 104.0, 700.0, 710.0, 1e4, 1e6]


@pytest.mark.parametrize("gap", [sign * gap for gap in GAPS for sign in (1, -1)])
def test_loss_change_at_any_gap_and_shift(gap):
    """A record on the wrong side by 52 and one on the right side by as much, moved a little or far, either way."""
    for shift in [sign * shift for shift in SHIFTS for sign in (1, -1)]:
        z, d = mpmath.mpf(gap), mpmath.mpf(shift)
        truth = mpmath.log1p(mpmath.exp(-z - d)) - mpmath.log1p(mpmath.exp(-z))
        one = HEADS["logistic"].loss_change(*_columns([gap], 1, [shift]))
        assert close(one[0], truth), (gap, shift)
        # the same record of a softmax, among classes that are out of the question
        many = HEADS["softmax"].loss_change(*_columns([-2e4, gap, 0.0], 1, [0.0, shift, 0.0]))
        assert close(many[0], truth), (gap, shift)


def test_loss_change_of_many_classes_at_any_size():
    rng = np.random.default_rng(0)

    def loss(z):
        return mpmath.log1p(mpmath.fsum(mpmath.exp(v - z[0]) for v in z[1:]))

    for _ in range(400):
        m = int(rng.integers(2, 6))
        z, d = rng.normal(size=m) * 10.0 ** rng.uniform(-2, 3), rng.normal(size=m) * 10.0 ** rng.uniform(-14, 4)
        before, shift = ([mpmath.mpf(float(v)) for v in values] for values in (z, d))
        truth = loss([a + b for a, b in zip(before, shift, strict=True)]) - loss(before)
        assert close(HEADS["softmax"].loss_change(*_columns(z, 0, d))[0], truth, 1e-12), (z, d)


def signal(z, y):
    """φ of a softmax in 60 digits."""
    return z[y] - mpmath.log(mpmath.fsum(mpmath.exp(v) for k, v in enumerate(z) if k != y))


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-12, 1e-5, 0.3, 5.0, 29.9, 30.1, 100.0, 1e6])
def test_signal_change_does_not_cancel(size):
    z, d = [1.0, -2.0, 0.5, 0.25], [size, -0.7 * size, 0.1 * size, 2.0 * size]
    before, shift = ([mpmath.mpf(v) for v in values] for values in (z, d))
    for y in range(4):
        truth = signal([a + b for a, b in zip(before, shift, strict=True)], y) - signal(before, y)
        if size < 1e-20:  # 60 digits do not tell 1 + 1e-300 from 1: the gradient is the change
            q = [mpmath.exp(v) if k != y else mpmath.mpf(0) for k, v in enumerate(before)]
            truth = shift[y] - mpmath.fsum(a * b for a, b in zip(q, shift, strict=True)) / mpmath.fsum(q)
        found = mpmath.mpf(HEADS["softmax"].signal_change(*_columns(z, y, d)).item())
        assert abs(found - truth) <= 2e-15 * size, (size, y)  # beside the steps: for y = 0 they nearly cancel for good
    for y, sign in ((0, -1), (1, 1)):
        assert HEADS["logistic"].signal_change(*_columns([2.0], y, [size])).item() == sign * size
    values = [torch.tensor([[v]], dtype=torch.float64) for v in (3.0, 1.0, size)]
    assert close(HEADS["squared"].signal_change(*values)[0], mpmath.mpf(size) * (4 + mpmath.mpf(size)), 1e-14)


def test_signal_change_of_many_classes_at_any_size():
    rng = np.random.default_rng(1)
    for _ in range(400):
        m = int(rng.integers(2, 6))
        z, d = rng.normal(size=m) * 10.0 ** rng.uniform(-2, 3), rng.normal(size=m) * 10.0 ** rng.uniform(-14, 4)
        before, shift = ([mpmath.mpf(float(v)) for v in values] for values in (z, d))
        truth = signal([a + b for a, b in zip(before, shift, strict=True)], 0) - signal(before, 0)
        found = mpmath.mpf(HEADS["softmax"].signal_change(*_columns(z, 0, d)).item())
        # steps of classes may cancel each other for good: relative to the largest step, not to what is left of it
        assert abs(found - truth) <= 1e-14 * max(abs(v - shift[0]) for v in shift[1:]), (z, d)


@pytest.mark.parametrize("rarity", [40.0, 60.0, 700.0])
@pytest.mark.parametrize("step", [29.9, 30.1, 35.0, 600.0, 720.0])
def test_changes_by_a_rare_class_that_steps_far(rarity, step):
    """q eᵃ decides, not eᵃ: log(1 + e⁻²⁵) is lost beside 1, and e⁷²⁰ overflows where e⁻⁷⁰⁰e⁷²⁰ does not."""
    z, d = [0.0, 0.5, -rarity], [0.0, 0.0, step]
    before, after = ([mpmath.mpf(v) for v in values] for values in (z, [0.0, 0.5, step - rarity]))
    truth = -mpmath.log1p(mpmath.exp(-rarity - 0.5) * mpmath.expm1(step) / (1 + mpmath.exp(-rarity - 0.5)))
    assert close(HEADS["softmax"].signal_change(*_columns(z, 0, d))[0], truth, 1e-15 * (rarity + step))
    with mpmath.workdps(400):  # a change of e⁻⁶⁷⁰ is the last of 290 digits of the loss
        truth = exact(after, 0)[0] - exact(before, 0)[0]
    assert close(HEADS["softmax"].loss_change(*_columns(z, 0, d))[0], truth, 1e-15 * (rarity + step))


def test_labels_have_no_signal_in_common():
    head = make_head("logistic", 3)
    assert not head.signals
    for method in (head.signal, head.signal_gradient, lambda z, y: head.signal_change(z, y, z), head.attack_features):
        with pytest.raises(InputError, match="a multi-label head has no single attack statistic"):
            method(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("form", ["loss", "log_loss", "signed_residual"])
def test_members_lie_where_the_signals_say(form):
    """Overfitted outputs are nearer to their targets: down the loss and its logarithm, either way for residuals."""
    rng = np.random.default_rng(0)
    y = torch.as_tensor(rng.normal(size=(200, 1)))
    near, far = (y + size * torch.as_tensor(rng.normal(size=(200, 1))) for size in (0.1, 1.0))
    head = HEADS["squared"]
    lower = float((head.signal(near, y, form) < head.signal(far, y, form)).double().mean())
    assert {"lower": lower > 0.8, "either": 0.4 < lower < 0.6}[head.signals[form].members]


@pytest.mark.parametrize(("name", "outputs"), [("squared", 3), ("logistic", 1), ("logistic", 4), ("softmax", 5)])
def test_the_training_loss_is_the_mean_of_the_losses(name, outputs):
    head, (z, y) = make_head(name, outputs), _records(name, outputs)
    torch.testing.assert_close(head.training_loss(z, y), head.loss(z, y).mean(), rtol=1e-13, atol=0)


def test_the_training_loss_of_smoothed_labels_is_torchs():
    z, y = _records("softmax", 5)
    expected = torch.nn.functional.cross_entropy(z, y, label_smoothing=0.2)
    torch.testing.assert_close(make_head("softmax", 5, 0.2).training_loss(z, y), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("name", "outputs"), [("logistic", 1), ("logistic", 4), ("softmax", 5)])
def test_predicted_classes_have_no_larger_loss_than_others(name, outputs):
    head, (z, y) = make_head(name, outputs), _records(name, outputs)
    assert bool((head.loss(z, head.predicted(z)) <= head.loss(z, y)).all())
    assert head.predicted(z).shape == y.shape


def test_attacking_classifiers_read_losses_signals_and_log_probabilities():
    z, y = _records("softmax", 7)
    p = np.exp(z.numpy()) / np.exp(z.numpy()).sum(1, keepdims=True)
    own = p[np.arange(len(p)), y.numpy()]
    sums = [-np.log(own), np.log(own / (1.0 - own)), -(p * np.log(p)).sum(1)]
    expected = np.column_stack([*sums, -np.sort(-np.log(p), axis=1)[:, :5]])
    np.testing.assert_allclose(HEADS["softmax"].attack_features(z, y).numpy(), expected, rtol=1e-10)
    z, y = _records("logistic", 1)
    own = 1.0 / (1.0 + np.exp(-(2 * y.numpy() - 1) * z.numpy()[:, 0]))
    expected = np.column_stack([-np.log(own), np.log(own / (1.0 - own))])
    np.testing.assert_allclose(HEADS["logistic"].attack_features(z, y).numpy(), expected, rtol=1e-10)
    z, y = _records("squared", 2)
    loss = ((z - y) ** 2).sum(1, keepdim=True).numpy()
    expected = np.column_stack([loss, np.log(loss), z - y, z])
    np.testing.assert_allclose(HEADS["squared"].attack_features(z, y).numpy(), expected, rtol=1e-12)


def _records(name, outputs):
    """Outputs and targets of nine records."""
    generator = torch.Generator().manual_seed(3)
    z = 2.0 * torch.randn(9, outputs, dtype=torch.float64, generator=generator)
    if name == "squared":
        return z, torch.randn(9, outputs, dtype=torch.float64, generator=generator)
    shape = (9, outputs) if name == "logistic" and outputs > 1 else (9,)
    return z, torch.randint(0, 2 if name == "logistic" else outputs, shape, generator=generator)


def _columns(z, y, d):
    """One record's outputs, target and shift as tensors."""
    return (
        torch.as_tensor(np.array([z]), dtype=torch.float64),
        torch.tensor([y]),
        torch.as_tensor(np.array([d]), dtype=torch.float64),
    )


def test_leading_dimensions_are_free():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 5, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (5,), generator=generator).expand(4, 5)
    head = get_head("softmax")
    for k in range(4):
        torch.testing.assert_close(head.signal(z, y)[k], head.signal(z[k], y[k]))
        torch.testing.assert_close(head.loss(z, y)[k], head.loss(z[k], y[k]))


def test_tiles_are_the_packed_outer_products_in_order():
    columns = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    whole = packed_outer(columns)
    for rows in (1, 7, 1000):
        parts = [(place, tile.clone()) for place, tile in packed_outer_tiles(columns, rows)]
        assert [place.start for place, _ in parts] == [0, *(place.stop for place, _ in parts[:-1])]
        torch.testing.assert_close(torch.cat([tile for _, tile in parts]), whole)
    torch.testing.assert_close(unpack(whole.T, 9), torch.einsum("ac,bc->cab", columns, columns))
