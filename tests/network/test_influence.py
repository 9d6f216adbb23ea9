"""Full-network influence against dense Hessians by autograd, the closed forms of linear models, and true residuals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call, grad
from torch.nn import functional as F

from noshadow import InputError, LastLayer, NoshadowWarning, score
from noshadow.network import network_influence
from noshadow.network.basis import grow_basis

LOSSES = {
    "squared": lambda z, y: (z - y).square().sum(-1).mean(),
    "softmax": F.cross_entropy,
    "logistic": lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], y.to(z.dtype)),
}


def problem(head, n=40, inputs=3, hidden=5, dtype=torch.float64):
    torch.manual_seed(0)
    width = {"squared": 2, "softmax": 4, "logistic": 1}[head]
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.ReLU())
    model.append(nn.Linear(hidden, width))
    targets = {
        "squared": torch.randn(n, 2, dtype=dtype),
        "softmax": torch.randint(0, 4, (n,)),
        "logistic": torch.randint(0, 2, (n,)),
    }
    return model.to(dtype), torch.randn(n, inputs, dtype=dtype), targets[head]


def dense(model, x, y, head, weight_decay, damping, records=None):
    """(H + δI, gradients (n, P)), from the objective as a function of one flat vector."""
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([p.flatten() for p in parameters.values()])

    def objective(theta, rows, decay):
        parts = torch.split(theta, [p.numel() for p in parameters.values()])
        state = {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        return LOSSES[head](functional_call(model, state, (x[rows],)), y[rows]) + decay / 2 * theta.square().sum()

    rows = torch.arange(len(x)) if records is None else records
    matrix = hessian(lambda theta: objective(theta, rows, weight_decay), flat)
    matrix += damping * torch.eye(len(flat), dtype=flat.dtype)
    gradients = torch.stack([grad(objective)(flat, slice(i, i + 1), 0.0) for i in range(len(x))])
    return matrix, gradients


def forms(matrix, gradients):
    return (gradients * torch.linalg.solve(matrix, gradients.T).T).sum(1).numpy()


@pytest.mark.parametrize("head", ["squared", "softmax", "logistic"])
@pytest.mark.parametrize("subspace", [0, 24])
def test_the_dense_hessian_gives_the_same(head, subspace):
    model, x, y = problem(head)
    result = network_influence(
        model, x, y, head=head, weight_decay=0.03, damping=2.0, tolerance=1e-11, subspace=subspace
    )
    truth = forms(*dense(model, x, y, head, 0.03, 2.0))
    np.testing.assert_allclose(result.scores, truth, rtol=1e-10)
    assert not result.unconverged
    assert result.subspace == subspace
    assert result.products == result.iterations.sum() + (64 + subspace if subspace else 0)
    assert (result.iterations > 0).all()


@pytest.mark.parametrize("head", ["squared", "softmax"])
def test_a_linear_model_has_the_last_layers_influence_times_n(head):
    """H_sum = n H_mean, so Λ = n(λ + δ) and the last layer's score is the network's divided by n."""
    _, x, y = problem(head)
    model = nn.Linear(3, 2 if head == "squared" else 4).double()
    result = network_influence(model, x, y, head=head, weight_decay=0.2, damping=0.5, tolerance=1e-12)
    layer = LastLayer(x, model(x).detach(), y, head=head, ridge=len(x) * 0.7)
    np.testing.assert_allclose(result.scores / len(x), score(layer, ["influence"])["influence"], rtol=1e-10)


def test_the_hessian_of_some_records_is_theirs():
    model, x, y = problem("softmax")
    result = network_influence(model, x, y, hessian_records=10, damping=1.0, tolerance=1e-11, seed=3)
    drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))[:10]
    np.testing.assert_allclose(result.scores, forms(*dense(model, x, y, "softmax", 0.0, 1.0, drawn)), rtol=1e-10)
    assert result.hessian_records == 10
    other = network_influence(model, x, y, hessian_records=10, damping=1.0, tolerance=1e-11, seed=4)
    assert not np.allclose(other.scores, result.scores, rtol=1e-6)


def test_neither_batches_nor_chunks_nor_the_choice_of_rows_matter(monkeypatch):
    model, x, y = problem("softmax")
    whole = network_influence(model, x, y, damping=1.0)
    alone = network_influence(model, x, y, damping=1.0, batch=1)
    np.testing.assert_allclose(alone.scores, whole.scores, rtol=1e-12)
    np.testing.assert_array_equal(alone.iterations, whole.iterations)
    monkeypatch.setattr("noshadow.network.hessian.CHUNK_RECORDS", 7)
    rows = [17, 3, 3, 39]
    some = network_influence(model, x, y, damping=1.0, rows=rows, batch=3)
    np.testing.assert_allclose(some.scores, whole.scores[rows], rtol=1e-12)
    np.testing.assert_array_equal(some.rows, rows)
    mask = network_influence(model, x, y, damping=1.0, rows=np.isin(np.arange(40), rows))
    np.testing.assert_array_equal(mask.rows, [3, 17, 39])


@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-4])
def test_the_tolerance_is_honoured(tolerance):
    """Conjugate gradients are optimal in the energy norm, so the score is off by rᵀA⁻¹r ≤ (tolerance ‖g‖)²/λ_min."""
    model, x, y = problem("squared")
    matrix, gradients = dense(model, x, y, "squared", 0.0, 2.0)
    result = network_influence(model, x, y, head="squared", damping=2.0, tolerance=tolerance)
    assert (result.residuals <= tolerance).all()
    truth = forms(matrix, gradients)
    least = torch.linalg.eigvalsh(matrix)[0].item()
    norms = gradients.norm(dim=1).numpy()
    assert (truth - result.scores >= -1e-12 * truth).all()
    assert (truth - result.scores <= (result.residuals * norms) ** 2 / least + 1e-12 * truth).all()
    assert result.iterations.max() > 1


def test_the_reported_residual_is_the_true_one():
    """One step from zero is x = αg with α = gᵀg / gᵀAg: its residual can be written down."""
    model, x, y = problem("softmax")
    matrix, g = dense(model, x, y, "softmax", 0.0, 1.0)
    with pytest.warns(NoshadowWarning, match=r"not within tolerance=1e-06\n?.* after 1 steps; raise max_iterations"):
        result = network_influence(model, x, y, damping=1.0, tolerance=1e-6, max_iterations=1)
    alpha = g.square().sum(1) / (g * (g @ matrix)).sum(1)
    residual = (g - alpha.unsqueeze(1) * (g @ matrix)).norm(dim=1) / g.norm(dim=1)
    np.testing.assert_allclose(result.residuals, residual, rtol=1e-10)
    np.testing.assert_allclose(result.scores, alpha * g.square().sum(1), rtol=1e-10)
    assert result.unconverged == tuple(range(len(x)))


def test_the_shared_basis_spares_products_and_stays_within_the_tolerance():
    """Many records, a damping that dwarfs most of the curvature: hardly any record needs a product of its own."""
    model, x, y = problem("squared", n=300, inputs=6, hidden=16, dtype=torch.float32)
    plain = network_influence(model, x, y, head="squared", subspace=0)
    quick = network_influence(model, x, y, head="squared")
    assert (quick.iterations == 0).mean() > 0.9
    assert 0 < quick.subspace < 86
    assert quick.products < plain.products / 3
    np.testing.assert_allclose(quick.scores, plain.scores, rtol=1e-2)
    matrix, g = dense(model.double(), x.double(), y.double(), "squared", 0.0, 10.0)
    np.testing.assert_allclose(plain.scores, forms(matrix, g), rtol=2e-4)
    assert np.median(quick.residuals) < 1e-2


def test_the_basis_holds_the_curvature_and_its_probes_tell_true_residuals():
    torch.manual_seed(0)
    factor = torch.randn(300, 40, dtype=torch.float64)
    matrix = factor @ torch.diag(torch.linspace(0.0, 3.0, 40, dtype=torch.float64) ** 2) @ factor.T / 300
    damped = matrix + 10.0 * torch.eye(300, dtype=torch.float64)
    gradients = F.normalize(torch.randn(64, 300, dtype=torch.float64))

    def grow(directions):
        generator = torch.Generator().manual_seed(0)
        return grow_basis(lambda v: v @ matrix, 10.0, gradients, directions, 1e-12, generator, lambda steps=1: None)

    basis = grow(16)
    solutions = basis.precondition(gradients)
    scores, residuals = basis.shortcut(gradients)
    torch.testing.assert_close(scores, (gradients * solutions).sum(1))
    ratio = residuals / (gradients - solutions @ damped).norm(dim=1)
    assert 0.9 < ratio.min() < 1.4 < ratio.mean() < 1.6 < ratio.max() < 2.2  # 1.5 for caution, give or take the probes
    basis = grow(72)  # a random block of 16 and the 40 directions that have curvature; more do no harm
    torch.testing.assert_close(basis.precondition(gradients), torch.linalg.solve(damped, gradients.T).T)
    torch.testing.assert_close(basis.directions @ basis.directions.T, torch.eye(len(basis.directions)).double())


def test_negative_curvature_is_flagged_and_finite():
    model, x, y = problem("squared")
    with torch.no_grad():
        model[-1].weight.mul_(-3.0)  # far from a minimum: errors are large and bend the loss down
    matrix, _ = dense(model, x, y, "squared", 0.0, 0.05)
    assert torch.linalg.eigvalsh(matrix)[0] < 0
    with pytest.warns(NoshadowWarning, match=r"of 40 records met negative curvature .* raise the damping"):
        result = network_influence(model, x, y, head="squared", damping=0.05, tolerance=1e-8)
    assert np.isfinite(result.scores).all()
    assert (result.scores > 0).all()
    assert set(result.negative_curvature) <= set(result.unconverged)
    safe = float(-torch.linalg.eigvalsh(matrix)[0]) + 0.1
    raised = network_influence(model, x, y, head="squared", damping=0.05 + safe, tolerance=1e-8)
    assert not raised.negative_curvature
    with pytest.warns(NoshadowWarning, match="negative curvature"):
        again = network_influence(model, x, y, head="squared", damping=0.05, tolerance=1e-8, subspace=48)
    np.testing.assert_array_equal(again.scores, result.scores)  # a basis of no use is not used
    assert again.subspace == 0


class Hill(nn.Module):
    """z = w²x, whose squared error against a large y bends down in w: ∂²(y − w²x)² = −4yx + 12w²x²."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        return self.w**2 * x


def test_a_first_step_of_negative_curvature_leaves_the_score_without_curvature():
    x, y = torch.ones(3, 1, dtype=torch.float64), torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
    gradient = -4.0 * 0.5 * (y.numpy() - 0.25)
    with pytest.warns(NoshadowWarning, match="3 of 3 records met negative curvature"):
        result = network_influence(Hill(), x, y, head="squared", damping=2.0)
    np.testing.assert_allclose(result.scores, gradient**2 / 2.0)
    assert result.negative_curvature == result.unconverged == (0, 1, 2)
    raised = network_influence(Hill(), x, y, head="squared", damping=20.0)
    np.testing.assert_allclose(raised.scores, gradient**2 / (20.0 - 4.0 * 3.0 + 12.0 * 0.25))
    assert not raised.unconverged


class Images(nn.Module):
    """BatchNorm, dropout, pooling, a frozen layer, and a parameter that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.frozen = nn.Linear(12, 6).requires_grad_(False)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(6, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.last(self.drop(self.frozen(self.body(x))))


def test_a_network_with_batchnorm_is_used_in_eval_mode_and_left_as_it_was():
    torch.manual_seed(0)
    model = Images()
    x, y = torch.randn(30, 2, 6, 6), torch.randint(0, 3, (30,))
    model(x)  # running statistics of their own
    model = model.double().train()
    model.drop.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        result = network_influence(model, x.double(), y, damping=1.0, tolerance=1e-11)
    assert model.training
    assert not model.drop.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    np.testing.assert_allclose(result.scores, forms(*dense(model, x.double(), y, "softmax", 0.0, 1.0)), rtol=1e-9)


def test_saturated_records_score_next_to_nothing_not_nan():
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        model.bias.zero_()
    x = torch.tensor([[30.0, 0.0], [60.0, 0.0], [1e4, 0.0], [0.1, 0.2]])
    result = network_influence(model, x, torch.tensor([0, 0, 0, 1]))
    assert not result.unconverged
    # p of the second class is e⁻³⁰ and e⁻⁶⁰, that of the third its square: ‖∇ℓ‖² ≈ 2p²(‖x‖² + 1), the curvature has
    # nothing to add to δ = 10 but what the fourth record and p itself give
    length = np.array([30.0, 60.0]) ** 2 + 1.0
    np.testing.assert_allclose(result.scores[:2], 0.2 * np.exp([-60.0, -120.0]) * length, rtol=0.01)
    assert result.scores[2] == 0.0
    assert result.residuals[2] == 0.0
    assert result.iterations[2] == 0


def test_saturated_records_do_not_hide_the_curvature_of_the_others():
    """One of the records is at ±1e4, where derivatives of a loss by autograd are 0 · ∞."""
    for head, width, y in (("softmax", 3, [0, 1, 2, 1]), ("logistic", 1, [0, 1, 0, 1])):
        torch.manual_seed(0)
        model = nn.Linear(2, width).double()
        x = torch.tensor([[1e4, -1e4], [0.5, 0.0], [0.0, 1.0], [0.1, 0.2]], dtype=torch.float64)
        result = network_influence(model, x, y, head=head, damping=0.5, tolerance=1e-12)
        layer = LastLayer(x, model(x).detach(), y, head=head, ridge=4 * 0.5)
        np.testing.assert_allclose(result.scores / 4, score(layer, ["influence"])["influence"], rtol=1e-9)
        assert not result.unconverged


def test_overflow_is_an_error_not_a_score():
    model, x, y = problem("squared", dtype=torch.float32)
    with pytest.raises(InputError, match="model: its gradients overflow on these records; rescale"):
        network_influence(model, x * 1e30, y * 1e38, head="squared")


def test_arrays_and_flat_outputs_will_do():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.linspace(-1, 1, 20)
    flat = network_influence(model, x, y, head="squared")
    column = network_influence(model[:3], torch.tensor(x), y[:, None], head="squared")
    np.testing.assert_array_equal(flat.scores, column.scores)
    assert flat.scores.dtype == np.float64
    assert flat.seconds > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": "hinge"}, "head: 'hinge' is not a head"),
        ({"damping": -1.0}, "damping: expected a finite number ≥ 0, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay: expected a finite number"),
        ({"tolerance": 0.0}, "tolerance: expected a number between 0 and 1, got 0.0"),
        ({"tolerance": 1.0}, "tolerance: expected a number between 0 and 1"),
        ({"tolerance": 1e-15}, r"tolerance: 1e-15 is beyond torch.float64; loosen it"),
        ({"rows": []}, "rows: there are none; pass None for all"),
        ({"rows": [0, 40, -1]}, "rows: rows 40, -1 not in 0 … 39"),
        ({"rows": [0.5]}, "rows: expected indices or a mask of 40 booleans"),
        ({"hessian_records": 41}, "hessian_records: expected 1 … 40 records or None for all, got 41"),
        ({"hessian_records": 0}, "hessian_records: expected 1"),
        ({"subspace": -1}, "subspace: expected 0"),
        ({"batch": 0}, "batch: expected at least 1"),
        ({"max_iterations": 0}, "max_iterations: expected at least 1"),
        ({"targets": torch.zeros(39)}, "targets: 39 rows, but inputs has 40"),
        ({"targets": torch.full((40,), 4)}, "targets: expected classes 0 … 3, got 4"),
        ({"inputs": torch.zeros(0, 3)}, "inputs: there are no records"),
        ({"inputs": torch.full((40, 3), torch.nan)}, "outputs: NaN or infinite in rows 0, 1"),
    ],
)
def test_bad_input_is_named(change, message):
    model, x, y = problem("softmax")
    with pytest.raises(InputError, match=message):
        network_influence(model, **{"inputs": x, "targets": y, **change})


def test_a_model_without_trainable_parameters_is_refused():
    model, x, y = problem("softmax")
    with pytest.raises(InputError, match="model: it has no trainable parameters; set requires_grad"):
        network_influence(model.requires_grad_(False), x, y)
    assert model.training
