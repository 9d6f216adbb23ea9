"""PyTorch: one forward pass, in eval mode, in the data's order; the module is left as it was; never a raw traceback."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from noshadow import InputError, audit, score
from tests.extract.torch.toys import M, N, found_in, layer_of, network, records, same_layer


@pytest.fixture
def data():
    return records()


def test_features_and_outputs_are_the_layers_own(data):
    model = network()
    layer = layer_of(model, data)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer.features, model[:3](data.tensors[0]))
        torch.testing.assert_close(layer.outputs, model(data.tensors[0]).double())
    torch.testing.assert_close(layer.targets, data.tensors[1])
    assert layer.head == "softmax"
    assert layer.bias


def test_one_forward_pass_in_eval_mode_and_everything_restored(data):
    model = network()
    model[3].eval()
    model[0].weight.requires_grad_(False)
    seen = []
    model.register_forward_hook(
        lambda module, args, out: seen.append((len(args[0]), module.training, out.requires_grad))
    )
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    layer_of(model, data, batch_size=10)
    assert [size for size, *_ in seen] == [10, 10, 10, 10, 10, 3]
    assert not any(training or grad for _, training, grad in seen)
    assert model.training
    assert not model[3].training
    assert not model[0].weight.requires_grad
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks


class Fails(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.linear, self.after, self.calls = nn.Linear(6, 2), after, 0

    def forward(self, x):
        self.calls += 1
        if self.calls > self.after:
            raise KeyError("broken")
        return self.linear(x)


def test_an_error_of_the_model_is_one_sentence_and_modes_come_back(data):
    model = Fails(after=2)
    data = TensorDataset(data.tensors[0], data.tensors[1] % 2)
    with pytest.raises(
        InputError, match=r"model: its forward failed on batch 2 \(records 20 to 29, .*\): KeyError: 'broken'"
    ) as caught:
        layer_of(model, data, batch_size=10)
    assert isinstance(caught.value.__cause__, KeyError)
    assert model.training


def test_ridge_is_nλ_and_parameters_are_passed_on(data):
    x, _ = data.tensors
    values = torch.randn(N, 4)
    assert not layer_of(network(bias=False), data).bias
    assert layer_of(network(), data, weight_decay=0.01).ridge == pytest.approx(0.53)
    assert layer_of(network(), TensorDataset(x, values), weight_decay=0.01).ridge == pytest.approx(0.53 * 4)
    assert layer_of(network(), data, ridge=3.0).ridge == 3.0
    with pytest.raises(InputError, match="give one of them"):
        layer_of(network(), data, ridge=3.0, weight_decay=0.1)
    for model in (network(), network(bias=False)):
        layer = layer_of(model, data)
        design = layer.records(slice(None)).design
        torch.testing.assert_close(design @ layer.coefficients, layer.outputs, rtol=1e-5, atol=1e-6)


def test_weight_decay_is_that_of_torch_optimizers():
    """A last layer trained by SGD with weight decay to convergence is stationary under Λ = nλ (n q λ)."""
    from noshadow.scoring import score_with_diagnostics

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator, dtype=torch.float64)
    for target, loss in (
        (torch.randint(0, 3, (80,), generator=generator), nn.CrossEntropyLoss()),
        (torch.randn(80, 3, generator=generator, dtype=torch.float64), nn.MSELoss()),
    ):
        model = nn.Linear(5, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.05)
        for _ in range(1000):
            optimizer.zero_grad()
            loss(model(x), target).backward()
            optimizer.step()
        layer = layer_of(model, TensorDataset(x, target), weight_decay=0.05)
        assert score_with_diagnostics(layer)[1].stationarity < 1e-5
        assert score_with_diagnostics(layer_of(model, TensorDataset(x, target)))[1].stationarity > 0.5


def test_audit_of_a_network_is_the_score_of_its_layer_and_says_what_it_audited(data):
    model = network()
    model[3].requires_grad_(False)
    result = audit(model, data, ids=[f"r{i}" for i in range(N)], weight_decay=1e-2)
    frame = score(layer_of(model, data, weight_decay=1e-2))
    for name in frame:
        torch.testing.assert_close(torch.tensor(result.table[name].to_numpy()), torch.tensor(frame[name].to_numpy()))
    assert {"layer": "3", "layer_shape": [M, 8], "output": None}.items() <= result.metadata.items()
    assert any("layer '3' is frozen (requires_grad=False)" in note for note in result.notes)
    assert not found_in(network(), data).notes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_inputs_are_cast_to_the_models_precision(data, dtype):
    """float32 data met float64, bfloat16 and float16 models with 'mat1 and mat2 must have the same dtype'."""
    x, y = data.tensors
    layer = layer_of(network().to(dtype), data)
    assert layer.features.dtype == dtype
    want = network().to(dtype).eval()
    torch.testing.assert_close(layer.outputs, want(x.to(dtype)).detach().double(), rtol=0, atol=0)
    same_layer(layer, layer_of(network().to(dtype), (x.double().numpy(), y.numpy())))


def test_nan_is_called_nan_and_its_row_is_named(data):
    """It was 'outputs disagree with its last nn.Linear'."""
    x, y = data.tensors
    holed = x.clone()
    holed[[17, 40], 2] = torch.nan
    with pytest.raises(InputError, match=r"data: the inputs hold NaN or infinite values in row 17 \(counted from 0\)"):
        layer_of(network(), TensorDataset(holed, y), batch_size=20)
    with pytest.raises(InputError, match=r"data: the inputs hold NaN or infinite values in rows 17, 40 "):
        layer_of(network(), TensorDataset(holed, y))
    model = network()
    model[0].weight.data[3, 1] = torch.nan
    with pytest.raises(InputError, match=r"model: parameter '0.weight' holds NaN"):
        layer_of(model, data)

    class Overflows(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 4)

        def forward(self, x):
            return self.fc(torch.where(x.abs() > 2.5, x / 0 * 0, x))

    bad = int((x.abs() > 2.5).any(1).nonzero()[0])
    with pytest.raises(
        InputError, match=rf"model: its outputs are NaN in rows? {bad}\b.* although the inputs are finite"
    ):
        layer_of(Overflows(), data)


def test_modules_that_cannot_be_watched_are_refused_in_a_sentence(data):
    x, _ = data.tensors
    example = (x[:3],)
    for made in (torch.jit.script(network()), torch.jit.trace(network().eval(), example)):
        with pytest.raises(InputError, match=r"model: a TorchScript module .* pass the nn.Module"):
            layer_of(made, data)
    with pytest.raises(InputError, match=r"model: parameter '0.weight' is on the meta device"):
        layer_of(network().to("meta"), data)
    with pytest.raises(InputError, match=r"model: parameter '0.weight' is lazy"):
        layer_of(nn.Sequential(nn.LazyLinear(4)), data)
    exported = torch.export.export(network().eval(), example).module()
    with pytest.raises(InputError, match=r"model: an exported program"):
        layer_of(exported, data)


def test_a_scripted_body_does_not_hide_a_plain_head(data):
    plain = network()
    mixed = nn.Sequential(torch.jit.script(nn.Sequential(*list(plain)[:3])), plain[3])
    same_layer(layer_of(mixed, data), layer_of(plain, data))


def test_compiled_and_wrapped_modules_are_the_modules_inside(data):
    plain = network()
    want = layer_of(plain, data)
    whole = torch.compile(network(), backend="eager")
    part = network()
    part[3] = torch.compile(part[3], backend="eager")
    with torch.no_grad():
        whole(data.tensors[0])  # compiled before it is watched: such code calls no hooks
        part(data.tensors[0])
    for model in (whole, part, nn.DataParallel(network())):
        same_layer(layer_of(model, data), want)
    assert found_in(whole, data).facts["layer"] == "3"


class Endless(torch.utils.data.Dataset):
    """As many records as no machine holds, made as they are read."""

    def __len__(self):
        return 10**12

    def __getitem__(self, i):
        return torch.ones(6), i % 4


def test_memory_is_checked_after_the_first_batch():
    with pytest.raises(InputError, match=r"data: what the last layer sees .* takes [\d,.]+ GiB, [\d,.]+ GiB are free"):
        layer_of(network(), Endless())


def test_a_curvature_that_does_not_fit_is_refused_after_the_first_batch():
    torch.manual_seed(0)
    body = torch.nn.Linear(4, 40)
    model = torch.nn.Sequential(body, torch.nn.Linear(40, 30))
    data = TensorDataset(torch.randn(200, 4), torch.randint(0, 30, (200,)))
    seen = []
    body.register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(InputError, match=r"memory: the exact Hessian of this head has 1,189 × 1,189 entries"):
        audit(model, data, head="softmax", curvature="dense", memory=0.01, batch_size=20)
    assert len(seen) == 1
    found = audit(model, data, head="softmax", ridge=1.0, memory=0.01, batch_size=20)
    assert found.metadata["curvature"] in ("blocks", "kronecker")
    assert "dense needs" in found.metadata["curvature_chosen"]
