"""PyTorch: the head is found by what it does, in every batch, and each record's row in it exactly."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from noshadow import InputError
from tests.extract.torch.toys import M, N, P, found_in, layer_of, network, records, same_layer, text_model, tokens


@pytest.fixture
def data():
    return records()


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
        logits = self.head(input=hidden)
        self.extra = self.auxiliary(hidden)
        return logits


def test_the_head_is_found_by_running_not_by_name(data):
    model = Tangled()
    found = found_in(model, data)
    torch.testing.assert_close(found.layer.outputs, model(data.tensors[0]).detach().double())
    assert found.facts["layer"] == "head"


def test_what_is_too_large_to_keep_does_not_hide_the_head(data, monkeypatch):
    """A transformer's layers give gigabytes for a batch: the largest are let go, a head's results are small."""
    monkeypatch.setattr("noshadow.extract.torch.watching._KEPT_BYTES", N * (8 + M) * 4)
    wide = nn.Sequential(nn.Linear(P, 200), nn.ReLU(), nn.Linear(200, 8), nn.Tanh(), nn.Linear(8, M))
    assert found_in(wide, data).facts["layer"] == "4"
    with pytest.raises(InputError, match=r"pass a smaller batch_size=, or name the last layer with layer="):
        layer_of(Tangled(), data)
    assert found_in(Tangled(), data, layer="head").facts["layer"] == "head"
    assert found_in(Tangled(), data, batch_size=10).facts["layer"] == "head"


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Identity(), nn.Dropout(0.5)])
def test_a_final_activation_is_seen_through(last, data):
    plain = network()
    a, b = layer_of(plain, data), layer_of(nn.Sequential(plain, last), data)
    torch.testing.assert_close(a.outputs, b.outputs)
    sigmoid = nn.Sequential(network(1), nn.Sigmoid(), nn.Flatten(0))
    layer = layer_of(sigmoid, TensorDataset(data.tensors[0], (data.tensors[1] > 1).float()))
    assert layer.head == "logistic"
    torch.testing.assert_close(torch.sigmoid(layer.outputs[:, 0]).float(), sigmoid.eval()(data.tensors[0]).detach())


class Calls(nn.Module):
    """The head runs on clean and on shifted features; ``first`` says which of the two is returned."""

    def __init__(self, first, copy):
        super().__init__()
        self.body, self.fc = nn.Linear(P, 8), nn.Linear(8, M)
        self.first, self.copy = first, copy

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        clean = self.fc(hidden)
        self.consistency = self.fc(hidden + 1.0)
        result = clean if self.first else self.consistency
        return result.clone() if self.copy else result


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("copy", [True, False])
def test_of_several_calls_the_one_that_made_the_output_is_taken(data, first, copy):
    """The last call was taken: features of one pass beside the outputs of another."""
    torch.manual_seed(0)
    model = Calls(first, copy)
    layer = layer_of(model, data, batch_size=20)
    hidden = torch.tanh(model.body(data.tensors[0])).detach() + (0.0 if first else 1.0)
    torch.testing.assert_close(layer.features, hidden)
    torch.testing.assert_close(layer.outputs, model(data.tensors[0]).detach().double())


class Routed(nn.Module):
    """Which head made the outputs, or what happens to them, changes with the batch."""

    def __init__(self, after):
        super().__init__()
        self.a, self.b, self.after = nn.Linear(P, M), nn.Linear(P, M), after

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        return a if len(x) == 20 else self.after(a, b)


@pytest.mark.parametrize("after", [lambda a, b: b, lambda a, b: 2 * a, lambda a, b: torch.softmax(a, 1)])
def test_the_head_is_checked_in_every_batch(data, after):
    """Only the first batch was looked at."""
    with pytest.raises(InputError, match=r"outputs for batch 2 \(records 40 to 52, .*\) are not those of layer 'a'"):
        layer_of(Routed(after), data, batch_size=20)


def test_layers_changed_in_place_or_that_do_more_are_refused(data):
    """An in-place ReLU overwrote what the layer gave, and the overwritten values were taken."""
    with pytest.raises(InputError, match=r"what layer '0' gave for batch 0 .* a tensor was changed in place"):
        layer_of(nn.Sequential(nn.Linear(P, M), nn.ReLU(inplace=True)), data)
    wide = TensorDataset(torch.randn(N, 800, generator=torch.Generator().manual_seed(0)), data.tensors[1])
    with pytest.raises(InputError, match=r"a tensor was changed in place"):
        layer_of(nn.Sequential(nn.Linear(800, M), nn.ReLU(inplace=True)).bfloat16(), wide)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert layer_of(nn.Linear(800, M).to(dtype), wide).n == N

    class Cosine(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(nn.functional.normalize(x), self.weight, self.bias)

    with pytest.raises(InputError, match=r"it is a Cosine that does more"):
        layer_of(Cosine(P, M), data)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(P, M)).eval()
    torch.testing.assert_close(layer_of(normed, data).outputs, normed(data.tensors[0]).detach().double())


def test_models_without_a_final_linear_layer_are_named(data):
    x, y = data.tensors
    images = TensorDataset(x.reshape(N, 1, 2, 3), y)
    with pytest.raises(InputError, match=r"the last layer with parameters .* is a Conv2d, not an nn.Linear"):
        layer_of(nn.Sequential(nn.Conv2d(1, 4, (2, 3)), nn.Flatten()), images)
    with pytest.raises(InputError, match=r"is a LayerNorm, not an nn.Linear"):
        layer_of(nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), data)
    with pytest.raises(InputError, match=r"outputs disagree with its last nn.Linear"):
        layer_of(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), data)
    with pytest.raises(InputError, match=r"no layer with parameters ran"):
        layer_of(nn.Flatten(), data)
    with pytest.raises(InputError, match=r"inputs of shape \(53, 2, 3\)"):
        layer_of(nn.Linear(3, 4), TensorDataset(x.reshape(N, 2, 3), y))
    with pytest.raises(InputError, match=r"inputs of shape \(53, 1, 2, 3\)"):
        layer_of(nn.Conv2d(1, 4, 1), images)
    with pytest.raises(InputError, match=r"gives outputs of shape \(4,\) for 53 records, not a row per record"):
        layer_of(Reduced(), data)


class Reduced(nn.Linear):
    def __init__(self):
        super().__init__(P, M)

    def forward(self, x):
        return super().forward(x).mean(0)


class Linear4bit(nn.Linear):
    """As bitsandbytes keeps a layer: two weights to a byte, in one column."""

    def __init__(self, p, m):
        super().__init__(p, m)
        self.full = self.weight.detach().clone()
        self.weight = nn.Parameter(torch.zeros(p * m // 2, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return x @ self.full.T + self.bias


@pytest.mark.filterwarnings("ignore")  # torch.ao announces its end
def test_a_quantised_head_is_named(data):
    model = torch.ao.quantization.quantize_dynamic(network().eval(), {nn.Linear})
    with pytest.raises(
        InputError, match=r"last layer '3' is quantised \(torch\.ao\.nn\.quantized\.dynamic\.\S+Linear\)"
    ):
        layer_of(model, data)
    with pytest.raises(InputError, match=r"last layer '1' is quantised \(\S*Linear4bit\)"):
        layer_of(nn.Sequential(nn.Linear(P, 8), Linear4bit(8, M)), data)


class Heads(nn.Module):
    """A body and three heads; ``kind`` says how their outputs are returned."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind = nn.Linear(P, 8), kind
        self.coarse, self.fine, self.tiny = nn.Linear(8, 2), nn.Linear(8, M), nn.Linear(8, 1)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        coarse, fine, tiny = self.coarse(hidden), self.fine(hidden), self.tiny(hidden)
        return {
            "tuple": (coarse, fine, hidden),
            "dict": {"coarse_logits": coarse, "fine_logits": fine, "hidden": hidden},
            "one": {"logits": fine, "size": tiny},
            "mean": {"fine": fine, "mean": (fine + coarse.sum(1, keepdim=True)) / 2},
        }[self.kind]


def test_several_heads_are_chosen_by_output_or_layer_never_guessed(data):
    """The first tensor was taken."""
    x, _ = data.tensors
    for kind, names in (
        ("tuple", "0 .layer 'coarse'., 1 .layer 'fine'."),
        ("dict", "'coarse_logits' .* 'fine_logits'"),
    ):
        with pytest.raises(InputError, match=rf"output: the model returns the outputs of several layers; .*{names}"):
            layer_of(Heads(kind), data)
    model = Heads("tuple")
    want = model(x)[1].detach().double()
    for kind, choice in (
        ("tuple", {"output": 1}),
        ("tuple", {"output": -2}),
        ("tuple", {"layer": "fine"}),
        ("dict", {"output": "fine_logits"}),
        ("dict", {"output": "fine_logits", "layer": "fine"}),
        ("one", {}),
    ):
        found = found_in(Heads(kind), data, **choice)
        torch.testing.assert_close(found.layer.outputs, want)
        assert found.facts["layer"] == "fine"
        assert found.facts["layer_shape"] == [M, 8]
        assert found.facts["output"] == choice.get("output", 1 if kind == "tuple" else "logits")


def test_wrong_choices_are_refused_with_the_right_ones(data):
    model = Heads("dict")
    with pytest.raises(
        InputError, match=r"output: the model returns no tensor 'x'; choose .* 'coarse_logits', 'fine_logits'"
    ):
        layer_of(model, data, output="x")
    with pytest.raises(InputError, match=r"output: the model returns a single tensor"):
        layer_of(network(), data, output=0)
    with pytest.raises(InputError, match=r"layer: 'head' is not there; the model's linear layers are 'body', 'coarse'"):
        layer_of(model, data, layer="head")
    with pytest.raises(InputError, match=r"layer: '1' is not linear; the model's linear layers are '0', '3'"):
        layer_of(network(), data, layer="1")
    for choice in ({"layer": "body"}, {"layer": "coarse", "output": "fine_logits"}):
        with pytest.raises(InputError, match=rf"layer: what '{choice['layer']}' gives is no output of the model"):
            layer_of(model, data, **choice)
    with pytest.raises(InputError, match=r"outputs disagree|is a Linear"):
        layer_of(Heads("mean"), data, output="mean")


def test_heads_that_cannot_be_told_apart_are_asked_for(data):
    class Same(nn.Module):
        def __init__(self, copy=True):
            super().__init__()
            self.a, self.b, self.copy = nn.Linear(P, M), nn.Linear(P, M), copy
            for layer in (self.a, self.b):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

        def forward(self, x):
            z = self.a(x)
            self.other = self.b(x + 1)
            return z.clone() if self.copy else z

    with pytest.raises(InputError, match=r"layer: 'a' and 'b' both give the model's outputs; choose one .*layer="):
        layer_of(Same(), data)
    for found in (found_in(Same(), data, layer="a"), found_in(Same(copy=False), data)):
        assert found.facts["layer"] == "a"
        torch.testing.assert_close(found.layer.features, data.tensors[0])


class Wrapped(nn.Module):
    def __init__(self, inner, kind):
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x):
        z = self.inner(x)
        return {
            "dict": {"logits": z, "loss": None},
            "tuple": (z, x),
            "both": (torch.softmax(z, 1), z),
            "object": SimpleNamespace(logits=z, hidden=x),
        }[self.kind]


def test_mappings_and_tuples_out(data):
    want = layer_of(network(), data).outputs
    for kind in ("dict", "tuple", "both", "object"):
        torch.testing.assert_close(layer_of(Wrapped(network(), kind), data).outputs, want)


@pytest.mark.parametrize("flatten", [True, False])
def test_a_convolution_after_global_pooling_is_a_linear_layer(flatten):
    torch.manual_seed(0)
    images, y = torch.randn(30, 3, 8, 8), torch.arange(30) % 5
    body = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    convolution = nn.Conv2d(7, 5, 1)
    model = nn.Sequential(body, convolution, *([nn.Flatten()] if flatten else []))
    found = found_in(model, TensorDataset(images, y), batch_size=8)
    linear = nn.Linear(7, 5)
    linear.load_state_dict({"weight": convolution.weight.flatten(1), "bias": convolution.bias})
    same_layer(found.layer, layer_of(nn.Sequential(body, nn.Flatten(), linear), TensorDataset(images, y)))
    assert found.facts["layer_shape"] == [5, 7]
    torch.testing.assert_close(found.layer.coefficients[:-1].T.float(), linear.weight.detach())
    one_position = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Conv1d(3, 5, 1, padding="same"), nn.Flatten())
    assert layer_of(one_position, TensorDataset(images.flatten(2), y)).features.shape == (30, 3)


@pytest.mark.parametrize("squeeze", [True, False])
def test_a_dimension_of_one_beside_the_features_is_dropped(data, squeeze):
    class Query(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.fc = nn.Linear(P, 8), nn.Linear(8, M)

        def forward(self, x):
            z = self.fc(torch.tanh(self.body(x.unsqueeze(1))))
            return z.squeeze(1) if squeeze else z

    model = Query()
    layer = layer_of(model, data)
    torch.testing.assert_close(layer.features, torch.tanh(model.body(data.tensors[0])).detach())
    torch.testing.assert_close(layer.outputs, model(data.tensors[0]).detach().reshape(N, M).double())


class Recurrent(nn.Module):
    """The head on every step of a recurrent network, time first or records first; the last step is returned."""

    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        self.batch_first = batch_first
        self.body, self.fc = nn.GRU(3, 8, batch_first=batch_first), nn.Linear(8, 3)

    def forward(self, x):
        steps, _ = self.body(x if self.batch_first else x.transpose(0, 1))
        return self.fc(steps)[:, -1] if self.batch_first else self.fc(steps)[-1]


def test_the_step_that_is_returned_is_the_one_audited():
    x, y = torch.randn(12, 12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    a, b = (layer_of(Recurrent(first), TensorDataset(x, y)) for first in (True, False))
    same_layer(a, b)
    torch.testing.assert_close(a.features, Recurrent(True).body(x)[0][:, -1].detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "labels"), [("GPT2", 3), ("Llama", 3), ("GPT2", 1), ("Llama", 1)])
def test_decoder_classifiers_are_audited_at_the_selected_token(family, labels, dtype):
    """The score of every token: it was 'inputs of shape (24, 9, 16)'. One label in bfloat16: several tokens agree."""
    ids, mask = tokens(n=64, longest=40)
    model = text_model(family, labels).to(dtype)
    y = torch.arange(64) % 3 if labels > 1 else torch.randn(64, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(ids, mask, y)
    found = found_in(model, data, batch_size=64)
    with torch.no_grad():
        hidden = model(ids, attention_mask=mask, output_hidden_states=True)
    last = mask.sum(1) - 1
    torch.testing.assert_close(found.layer.features, hidden.hidden_states[-1][torch.arange(64), last], rtol=0, atol=0)
    torch.testing.assert_close(found.layer.outputs, hidden.logits.double(), rtol=0, atol=0)
    assert found.facts["layer"] == "score"
    assert not found.layer.bias


def test_a_token_is_told_from_another_with_the_same_output():
    """All tokens give the same logits here, and only one of them is the one that the model returns."""
    ids, mask = tokens()
    model = text_model("GPT2", 3)
    nn.init.zeros_(model.score.weight)
    layer = layer_of(model, TensorDataset(ids, mask, torch.arange(24) % 3), batch_size=10)
    with torch.no_grad():
        hidden = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(layer.features, hidden[torch.arange(24), mask.sum(1) - 1])
    assert float(layer.outputs.abs().max()) == 0.0
