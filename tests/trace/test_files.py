"""Traces on disk, resumed in the middle of training, and traces of checkpoints."""

from __future__ import annotations

import copy
import stat

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, score
from noshadow.errors import FileError
from noshadow.trace.storage import memory_of, parts_of

from ..extract.torch.toys import Items, M, N, P, network, records


def moved(model, epoch):
    """A step of something like training, the same each time."""
    generator = torch.Generator().manual_seed(epoch)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def same(a, b):
    assert a.epochs == b.epochs
    for name in ("mean_outputs", "mean_loss", "lower_quartile", "upper_quartile"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("stop", [1, 14, 15, 33])
def test_resumed_and_uninterrupted_are_equal_to_the_bit(tmp_path, stop):
    model, whole = network(), Trace()
    broken = Trace()
    for epoch in range(40):
        moved(model, epoch)
        whole.update(model, records())
        broken.update(model, records())
        if epoch + 1 == stop:
            broken = Trace.load(broken.save(tmp_path / "trace.safetensors"))
    same(whole, broken)


def test_a_checkpoint_that_holds_nothing_but_tensors_and_plain_values_holds_a_trace(tmp_path):
    model, whole, broken = network(), Trace(), Trace()
    for epoch in range(6):
        moved(model, epoch)
        whole.update(model, records())
        broken.update(model, records())
        if epoch == 3:
            torch.save(broken.state_dict(), tmp_path / "checkpoint.pt")
            broken = Trace()
            broken.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    same(whole, broken)
    with pytest.raises(InputError, match="softmax"):
        Trace("squared").load_state_dict(whole.state_dict())


@pytest.mark.parametrize("kind", ["recorded", "losses", "half losses", "outputs", "no targets", "labels"])
def test_everything_comes_back(tmp_path, kind):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(5, 20, 3)), rng.integers(0, 3, 20)
    trace = Trace()
    if kind == "recorded":
        for one in z:
            trace.update(outputs=one, targets=y)
    elif kind == "losses":
        trace = Trace.from_losses(np.log(np.exp(z).sum(2)) - z[:, np.arange(20), y], z.mean(0))
    elif kind == "half losses":
        trace = Trace.from_losses(torch.rand(5, 20).bfloat16())
    elif kind == "outputs":
        trace = Trace.from_outputs(z, y, "softmax", label_smoothing=0.1)
    elif kind == "labels":
        y = rng.integers(0, 2, (20, 3))
        trace = Trace.from_outputs(z, y, "logistic")
    else:
        for one in z:
            trace.update(outputs=one)
    path = trace.save(tmp_path / "trace.safetensors")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    back = Trace.load(path)
    assert repr(back) == repr(trace)
    head = "logistic" if kind == "labels" else "softmax"
    layer = LastLayer(rng.normal(size=(20, 2)), z[-1], y, head, label_smoothing=0.1 if kind == "outputs" else 0.0)
    if kind != "no targets":
        names = ["mean_trace", "trace_iqr"]
        np.testing.assert_array_equal(score(layer, names, back), score(layer, names, trace))
    if kind not in ("half losses",):
        assert torch.equal(back.mean_outputs, trace.mean_outputs)
    assert load_file(path)  # any reader of the format reads it


def test_files_that_are_no_traces_are_refused(tmp_path):
    trace = Trace()
    trace.update(network(), records())
    path = trace.save(tmp_path / "trace.safetensors")
    content = path.read_bytes()
    cases = {
        "cut": (content[:-8], "it fails its checksum"),
        "flipped": (content[:-8] + bytes([content[-8] ^ 1]) + content[-7:], "it fails its checksum"),
        "empty": (b"", "it has no checksum"),
        "text": (b"not a trace at all", "it has no checksum"),
    }
    for name, (bad, message) in cases.items():
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(FileError, match=f"trace: .*{name} is not a trace that this version reads .{message}"):
            Trace.load(tmp_path / name)
    with pytest.raises(FileError, match=r"cannot be read .No such file"):
        Trace.load(tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match=r"path: .* must end in .safetensors"):
        trace.save(tmp_path / "trace.pt")
    from noshadow.artefact import write_artefact

    write_artefact(tmp_path / "newer", {}, {"noshadow": "trace", "schema": 99})
    with pytest.raises(FileError, match="it is of something else"):
        Trace.load(tmp_path / "newer")


def test_a_loaded_trace_refuses_other_data_and_other_losses(tmp_path):
    x, y = records().tensors
    trace = Trace()
    trace.update(network(), records())
    path = trace.save(tmp_path / "trace.safetensors")
    back = Trace.load(path)
    with pytest.raises(InputError, match="targets: the targets of rows"):
        back.update(network(), TensorDataset(x, y.flip(0)))
    with pytest.raises(InputError, match="outputs: expected shape"):
        back.update(network(), TensorDataset(x[1:], y[1:]))
    with pytest.raises(InputError, match="head: the model has a softmax head, not a squared one"):
        Trace.load(path, head="squared")
    with pytest.raises(InputError, match=r"label_smoothing: 0.1, but the losses of the trace were taken with 0"):
        Trace.load(path, label_smoothing=0.1)
    back.update(outputs=back.mean_outputs[:5], targets=y[:5], rows=range(5))
    with pytest.raises(InputError, match="an epoch in batches has begun"):
        back.save(path)
    unbound = Trace.from_outputs(np.ones((3, 4, 2)))
    with pytest.warns(NoshadowWarning, match="its losses are not known yet, so the file lacks them"):
        unbound.save(path)


def checkpoints(model, count=4):
    """State dicts of something like a training run, and the outputs then, (count, n, m)."""
    states, outputs = [], []
    for epoch in range(count):
        moved(model, epoch)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        model.eval()
        outputs.append(model(records().tensors[0]).detach())
        model.train()
    return states, torch.stack(outputs)


@pytest.mark.parametrize("form", ["mappings", "safetensors", "pt", "folders", "wrapped", "generator"])
def test_checkpoints_in_any_form_against_a_plain_loop(tmp_path, form):
    model = network().train()
    states, outputs = checkpoints(model)
    given = states
    if form == "wrapped":
        given = [{f"module._orig_mod.{name}": value for name, value in state.items()} for state in states]
    elif form == "generator":
        given = (state for state in states)
    elif form != "mappings":
        given = []
        for k, state in enumerate(states):
            folder = tmp_path / str(k)
            folder.mkdir()
            path = folder / ("model.pt" if form == "pt" else "model.safetensors")
            torch.save(state, path) if form == "pt" else save_file(state, path)
            given.append(folder if form == "folders" else str(path))
    moved(model, 99)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    addresses = [p.data_ptr() for p in model.parameters()]
    trace = Trace.from_checkpoints(model, given, records())
    by_hand = Trace.from_outputs(outputs, records().tensors[1], "softmax")
    torch.testing.assert_close(trace.mean_outputs, by_hand.mean_outputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trace.mean_loss, by_hand.mean_loss, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert addresses == [p.data_ptr() for p in model.parameters()]
    assert model.training


def test_the_models_own_state_dict_is_that_from_before():
    """It is no copy: the state dicts before it are loaded over the very tensors that it holds."""
    model, data = network(), records()
    states, _ = checkpoints(model)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    for place in range(3):
        for live in (model.state_dict(), {f"module.{name}": value for name, value in model.state_dict().items()}):
            given, copied = ([*states[:place], one, *states[place:2]] for one in (live, kept))
            same(Trace.from_checkpoints(model, given, data), Trace.from_checkpoints(model, copied, data))
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_the_weights_come_back_after_an_error():
    model = network()
    states, _ = checkpoints(model)
    moved(model, 99)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    broken = {name: value * float("nan") for name, value in states[1].items()}
    for bad, message in (
        (broken, r"state_dicts\[2\]: '0.weight' holds NaN"),
        (7, r"state_dicts\[2\]: expected a state"),
    ):
        with pytest.raises(InputError, match=message):
            Trace.from_checkpoints(model, [*states[:2], bad], records())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match=r"data: .* could not be read"):
        Trace.from_checkpoints(model, states, Items([(torch.ones(P), 1), (torch.ones(P + 1), 1)]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_state_dicts_of_other_models_are_refused_by_their_first_key(tmp_path):
    model = network()
    state = dict(model.state_dict())
    without = {name: value for name, value in state.items() if name != "3.weight"}
    torch.save({"model_state_dict": state, "epoch": 3}, tmp_path / "nested.pt")
    torch.save({"optimizer_state": {"state": {}}, "epoch": 3, "model": state}, tmp_path / "under.pt")
    torch.save(model, tmp_path / "whole.pt")
    (tmp_path / "text.safetensors").write_text("no weights")
    cases = {
        r"state_dicts\[0\]: it has no '3.weight', which the model has": without,
        r"state_dicts\[0\]: it has 'more', which the model has not": {**state, "more": torch.ones(1)},
        r"state_dicts\[0\]: '3.bias' has shape \(5,\), in the model \(4,\)": {**state, "3.bias": torch.ones(M + 1)},
        r"it has no '0.weight', .* \(it holds one under 'model_state_dict': pass checkpoint": tmp_path / "nested.pt",
        r"it has no '0.weight', .* \(it holds one under 'model': pass checkpoint\['model'\]\)": tmp_path / "under.pt",
        r"state_dicts\[0\]: .*whole.pt .* nothing is unpickled; save model.state_dict.. alone$": tmp_path / "whole.pt",
        r"state_dicts\[0\]: .*text.safetensors holds no state dict": tmp_path / "text.safetensors",
        r"state_dicts\[0\]: .* does not exist": tmp_path / "nowhere.pt",
        r"state_dicts\[0\]: the folder .* has neither": tmp_path,
        r"state_dicts\[0\]: '3.bias' holds int8 where the model has float32: it is quantised": {
            **state,
            "3.bias": torch.ones(M, dtype=torch.int8),
        },
        r"state_dicts\[0\]: '3.bias' is of type ndarray; pass tensors": {**state, "3.bias": np.ones(M, np.float32)},
    }
    for message, bad in cases.items():
        with pytest.raises(InputError, match=message):
            Trace.from_checkpoints(model, [bad], records())
    with pytest.raises(InputError, match="state_dicts: pass a list of them"):
        Trace.from_checkpoints(model, state, records())
    with pytest.raises(InputError, match="state_dicts: there is none"):
        Trace.from_checkpoints(model, [], records())
    with pytest.raises(InputError, match="model: expected a torch Module, got str"):
        Trace.from_checkpoints("model", [state], records())


def test_a_file_may_leave_out_the_second_name_of_a_shared_tensor():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(P, P), nn.Linear(P, P)
            self.second.weight = self.first.weight
            self.last = nn.Linear(P, M)

        def forward(self, x):
            return self.last(self.second(torch.relu(self.first(x))))

    model = Tied()
    state = {name: value + 0.1 for name, value in model.state_dict().items() if name != "second.weight"}
    trace = Trace.from_checkpoints(model, [state], records())
    other = Tied()
    other.load_state_dict({**state, "second.weight": state["first.weight"]})
    torch.testing.assert_close(trace.mean_outputs, other(records().tensors[0]).detach())
    assert trace.n == N


def test_checkpoints_with_an_infinite_mask_are_taken():
    """−∞ where attention must not look is no sign of a training that diverged; NaN is."""
    model, data = network(), records()
    plain = Trace.from_checkpoints(model, [model.state_dict()], data)
    model.register_buffer("mask", torch.full((3, 3), -torch.inf))
    masked = Trace.from_checkpoints(model, [copy.deepcopy(model.state_dict())], data)
    torch.testing.assert_close(masked.mean_outputs, plain.mean_outputs)


def test_a_file_whose_rest_is_not_that_of_the_mean_outputs_is_refused():
    """Its checksum may be right: anybody can write one."""
    trace = Trace("softmax")
    trace.update(outputs=np.zeros((6, 3)), targets=np.arange(6) % 3)
    arrays, facts = parts_of(trace.memory)
    assert memory_of(arrays, facts).epochs == 1
    with pytest.raises(FileError, match="trace: rest is not that of mean_outputs; the file is damaged"):
        memory_of({**arrays, "rest": np.zeros((6, 4), dtype=np.int16)}, facts)


@pytest.mark.parametrize(
    "given", [{}, [1], {"arrays": {}}, {"arrays": {"average": 3}, "facts": {}}, {"w": torch.ones(2)}]
)
def test_a_state_dict_that_is_none_of_a_trace_is_refused(given):
    trace = Trace("softmax")
    trace.update(outputs=np.zeros((6, 3)), targets=np.arange(6) % 3)
    with pytest.raises(InputError, match=r"^state_dict: it is not that of a trace; pass what"):
        trace.load_state_dict(given)
    assert trace.epochs == 1


@pytest.mark.parametrize(
    ("facts", "arrays", "message"),
    [
        ({"epochs": -3}, {}, "its losses are not those of -3 epochs"),
        ({"epochs": 0}, {}, "its losses are not those of 0 epochs"),
        ({"epochs": 100}, {}, "its losses are not those of 100 epochs"),
        ({"stride": 0}, {}, "its losses are not those of 3 epochs"),
        ({"capacity": 2}, {}, "its losses are not those of 3 epochs"),
        ({"epochs": None}, {}, "what it holds is not complete"),
        ({"head": "hinge"}, {}, "its head, or its label_smoothing, is none"),
        ({"head": ["softmax"]}, {}, "its head, or its label_smoothing, is none"),
        ({"label_smoothing": 3.0}, {}, "its head, or its label_smoothing, is none"),
        ({"label_smoothing": float("nan")}, {}, "its head, or its label_smoothing, is none"),
        ({}, {"kept": None}, "what it holds is not complete .'kept'."),
        ({}, {"rest": None}, "what it holds is not complete .'rest'."),
        ({}, {"kept": np.zeros((0, 6), np.float32)}, "its losses are not those of 3 epochs"),
        ({}, {"kept": np.full((3, 6), np.nan, np.float32)}, "kept is not finite"),
        ({}, {"average": np.full(6, np.inf)}, "average is not finite"),
        ({}, {"mean_outputs": np.full((6, 3), np.nan, np.float32)}, "mean_outputs is not finite"),
    ],
)
def test_files_that_no_run_left_are_refused(facts, arrays, message):
    trace = Trace("softmax")
    for epoch in range(3):
        trace.update(outputs=np.full((6, 3), float(epoch)), targets=np.arange(6) % 3)
    own, known = parts_of(trace.memory)
    assert memory_of(own, known).epochs == 3
    changed = {name: array for name, array in {**own, **arrays}.items() if array is not None}
    with pytest.raises(FileError, match=f"^trace: {message}.*; the file is damaged"):
        memory_of(changed, {**known, **facts})


def test_all_losses_of_a_file_are_of_the_records_of_its_mean_outputs():
    arrays, facts = parts_of(Trace.from_losses(np.ones((4, 6)), np.zeros((6, 2))).memory)
    assert memory_of(arrays, facts).n == 6
    with pytest.raises(FileError, match="its losses are not those of 6 records"):
        memory_of({**arrays, "losses": np.ones((4, 5))}, facts)


def test_a_trace_of_smoothed_losses_is_not_one_of_plain_losses(tmp_path):
    trace = Trace("softmax", label_smoothing=0.1)
    trace.update(outputs=np.zeros((6, 3)), targets=np.arange(6) % 3)
    path = trace.save(tmp_path / "trace.safetensors")
    assert Trace.load(path).epochs == 1
    with pytest.raises(InputError, match=r"^label_smoothing: 0, but the losses of the trace were taken with 0.1"):
        Trace.load(path, label_smoothing=0.0)


def test_all_epochs_of_a_file_are_there():
    arrays, facts = parts_of(Trace.from_losses(np.ones((4, 6))).memory)
    assert memory_of(arrays, facts).epochs == 4
    with pytest.raises(FileError, match="its losses are not those of 5 epochs"):
        memory_of(arrays, {**facts, "epochs": 5})


def test_a_long_run_and_one_that_has_not_begun_come_back():
    trace = Trace("softmax")
    assert memory_of(*parts_of(trace.memory)).epochs == 0
    rng = np.random.default_rng(0)
    for epoch in range(70):  # past several doublings of the stride
        trace.update(outputs=rng.normal(size=(6, 3)), targets=np.arange(6) % 3)
        assert memory_of(*parts_of(trace.memory)).epochs == epoch + 1
