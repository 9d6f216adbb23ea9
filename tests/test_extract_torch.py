"""PyTorch: the head is found by what it does, records keep their order, and the module is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from noshadow import InputError, audit, score
from noshadow.extract import extract
from noshadow.objective import Objective


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(53, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 4, (53,), generator=generator))


def network(out=4, **last):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, out, **last))


def layer_of(model, data, **options):
    choices = {name: options.pop(name) for name in ("layer", "output", "batch_size") if name in options}
    return extract(model, data, Objective(**options), **choices).layer


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


class Tangled(nn.Module):
    """The head is registered first, runs before an auxiliary layer, and other layers follow it in the source."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.body = nn.Linear(6, 8)
        self.unused = nn.Linear(8, 4)
        self.auxiliary = nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden)
        self.extra = self.auxiliary(hidden)
        return logits


def test_the_head_is_found_by_running_not_by_name(data):
    model = Tangled()
    layer = layer_of(model, data)
    torch.testing.assert_close(layer.outputs, model(data.tensors[0]).detach().double())


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Identity(), nn.Dropout(0.5)])
def test_a_final_activation_is_seen_through(last, data):
    plain = network()
    a, b = layer_of(plain, data), layer_of(nn.Sequential(plain, last), data)
    torch.testing.assert_close(a.outputs, b.outputs)
    sigmoid = nn.Sequential(network(1), nn.Sigmoid(), nn.Flatten(0))
    layer = layer_of(sigmoid, TensorDataset(data.tensors[0], (data.tensors[1] > 1).float()), loss="bce")
    assert layer.head == "logistic"
    torch.testing.assert_close(torch.sigmoid(layer.outputs[:, 0]).float(), sigmoid.eval()(data.tensors[0]).detach())


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


def test_modes_come_back_after_an_error(data):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, x):
            raise RuntimeError("broken")

    model = Fails()
    with pytest.raises(RuntimeError, match="broken"):
        layer_of(model, data)
    assert model.training


def test_loaders_keep_the_datasets_order(data):
    model = network()
    want = layer_of(model, data)
    for loader in (
        DataLoader(data, batch_size=7),
        DataLoader(data, batch_size=7, shuffle=True),
        DataLoader(data, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(data, batch_size=None),
    ):
        got = layer_of(model, loader)
        torch.testing.assert_close(got.targets, want.targets)
        torch.testing.assert_close(got.outputs, want.outputs)
    half = layer_of(model, Subset(data, range(0, 53, 2)))
    torch.testing.assert_close(half.outputs, want.outputs[::2])


def test_loaders_whose_order_is_not_the_datasets_are_refused(data):
    for sampler in (SubsetRandomSampler(range(10)), WeightedRandomSampler([1.0] * 53, 53)):
        with pytest.raises(InputError, match=rf"data: the loader draws records with a {type(sampler).__name__}"):
            layer_of(network(), DataLoader(data, sampler=sampler))


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def test_streams_are_taken_as_they_come(data):
    model = network()
    want = layer_of(model, data)
    torch.testing.assert_close(layer_of(model, Stream(data)).outputs, want.outputs)
    torch.testing.assert_close(layer_of(model, DataLoader(Stream(data), batch_size=9)).outputs, want.outputs)
    with pytest.raises(InputError, match="drops the last batch"):
        layer_of(model, DataLoader(Stream(data), batch_size=9, drop_last=True))


class Records(Dataset):
    """Records as mappings, as tokenised text comes."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return {"x": x, "labels": y}


class Wrapped(nn.Module):
    def __init__(self, inner, kind):
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x):
        z = self.inner(x)
        return {"dict": {"logits": z, "loss": None}, "tuple": (z, x)}[self.kind]


def test_mappings_and_tuples_in_and_out(data):
    model = network()
    want = layer_of(model, data).outputs
    torch.testing.assert_close(layer_of(Wrapped(model, "dict"), Records(data)).outputs, want)
    torch.testing.assert_close(layer_of(Wrapped(model, "tuple"), data).outputs, want)


def test_arrays_go_in_as_x_and_y_in_the_models_precision(data):
    x, y = (tensor.numpy() for tensor in data.tensors)
    want = layer_of(network(), data).outputs
    torch.testing.assert_close(layer_of(network(), (x.astype("float64"), y)).outputs, want)
    assert layer_of(network().double(), (x, y)).features.dtype == torch.float64


def test_head_and_ridge(data):
    x, y = data.tensors
    values = torch.randn(53, 4)
    assert layer_of(network(), TensorDataset(x, values)).head == "squared"
    assert layer_of(network(1), TensorDataset(x, values[:, :1])).head == "squared"
    with pytest.raises(InputError, match=r"head: .* 0/1 and the model has one output; pass head='logistic'"):
        layer_of(network(1), TensorDataset(x, y % 2))
    assert layer_of(network(1), TensorDataset(x, y % 2), loss=nn.BCEWithLogitsLoss()).head == "logistic"
    assert layer_of(network(1), TensorDataset(x, y % 2), head="squared").head == "squared"
    assert not layer_of(network(bias=False), data).bias
    assert layer_of(network(), data, weight_decay=0.01).ridge == pytest.approx(0.53)
    assert layer_of(network(), TensorDataset(x, values), weight_decay=0.01).ridge == pytest.approx(0.53 * 4)
    assert layer_of(network(), data, ridge=3.0).ridge == 3.0
    with pytest.raises(InputError, match="give one of them"):
        layer_of(network(), data, ridge=3.0, weight_decay=0.1)


def test_weight_decay_is_that_of_torch_optimizers():
    """A last layer trained by SGD with weight decay to convergence is stationary under Λ = nλ (n q λ)."""
    from noshadow.scores import score_with_diagnostics

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=generator, dtype=torch.float64)
    for target, loss in (
        (torch.randint(0, 3, (80,), generator=generator), nn.CrossEntropyLoss()),
        (torch.randn(80, 3, generator=generator, dtype=torch.float64), nn.MSELoss()),
    ):
        model = nn.Linear(5, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.05)
        for _ in range(3000):
            optimizer.zero_grad()
            loss(model(x), target).backward()
            optimizer.step()
        layer = layer_of(model, TensorDataset(x, target), weight_decay=0.05)
        assert score_with_diagnostics(layer)[1].stationarity < 1e-5
        assert score_with_diagnostics(layer_of(model, TensorDataset(x, target)))[1].stationarity > 0.5


def test_models_without_a_final_linear_layer_are_named(data):
    x, y = data.tensors
    images = TensorDataset(x.reshape(53, 1, 2, 3), y)
    with pytest.raises(InputError, match=r"the last layer with parameters .* is a Conv2d, not an nn.Linear"):
        layer_of(nn.Sequential(nn.Conv2d(1, 4, (2, 3)), nn.Flatten()), images)
    with pytest.raises(InputError, match=r"is a LayerNorm, not an nn.Linear"):
        layer_of(nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), data)
    with pytest.raises(InputError, match=r"outputs disagree with its last nn.Linear"):
        layer_of(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), data)
    with pytest.raises(InputError, match=r"no layer with parameters ran"):
        layer_of(nn.Flatten(), data)
    with pytest.raises(InputError, match=r"inputs of shape \(53, 2, 3\)"):
        layer_of(nn.Linear(3, 4), TensorDataset(x.reshape(53, 2, 3), y))
    with pytest.raises(InputError, match=r"data: it has no records"):
        layer_of(network(), TensorDataset(x[:0], y[:0]))
    with pytest.raises(InputError, match=r"each record must be \(x, y\)"):
        layer_of(network(), TensorDataset(x))
    with pytest.raises(InputError, match=r"data: expected a Dataset"):
        layer_of(network(), 7)


def test_audit_of_a_network_is_the_score_of_its_layer(data):
    model = network()
    table = audit(model, data, ids=[f"r{i}" for i in range(53)], weight_decay=1e-2).table
    frame = score(layer_of(model, data, weight_decay=1e-2))
    for name in frame:
        torch.testing.assert_close(torch.tensor(table[name].to_numpy()), torch.tensor(frame[name].to_numpy()))
