"""Traces recorded beside real trainings, against plain loops that keep every epoch's outputs."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from noshadow import InputError, NoshadowWarning, Trace, audit, score
from noshadow.extract import extract

from ..extract.torch.toys import Items, M, N, P, network, records


def plain_outputs(model, x):
    """What the model gives in evaluation mode, kept whole."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        outputs = model(x).double().clone()
    for module, mode in modes:
        module.training = mode
    return outputs


def train(model, data, epochs, after, lr=0.1, batch_size=16, seed=0):
    """A training loop like anybody's; ``after(model)`` once an epoch is over."""
    torch.manual_seed(seed)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        after(model)


def odd_network():
    """With dropout and batch normalisation."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(P, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, M))


def close(trace, kept, y):
    """The trace is that of outputs (epochs, n, m), all kept, by NumPy alone."""
    z = torch.stack(kept).numpy()
    assert trace.epochs == len(z)
    np.testing.assert_allclose(trace.mean_outputs, z.mean(0), rtol=1e-6, atol=1e-6)
    shifted = z - z.max(-1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, y.numpy()[None, :, None], -1)[..., 0]
    np.testing.assert_allclose(trace.mean_loss, losses.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trace.lower_quartile, np.quantile(losses, 0.25, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trace.upper_quartile, np.quantile(losses, 0.75, axis=0), rtol=1e-5, atol=1e-6)


def test_digits_trained_with_a_trace_and_audited():
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x, y = (x[:300] / 16).float(), y[:300]
    data = TensorDataset(x, y)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    trace, kept = Trace(), []

    def after(model):
        trace.update(model, data)
        kept.append(plain_outputs(model, x))

    train(model, data, 12, after)
    close(trace, kept, y)
    table = audit(model, data, trace=trace).table
    np.testing.assert_allclose(table["mean_trace"], trace.mean_loss, rtol=1e-12)
    np.testing.assert_allclose(table["trace_iqr"], trace.upper_quartile - trace.lower_quartile, rtol=1e-12)
    by_hand = Trace.from_outputs(torch.stack(kept), y, "softmax")
    np.testing.assert_allclose(by_hand.mean_loss, trace.mean_loss, rtol=1e-5, atol=1e-6)


def test_training_is_not_disturbed():
    """The same with and without a trace, to the bit: weights, statistics, gradients, modes and random states."""
    data = records()
    ends = []
    for recorded in (True, False):
        model, trace = odd_network(), Trace()
        model[3].eval()
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002  the global state is what must not move

        def after(model, recorded=recorded, trace=trace):
            modes = [module.training for module in model.modules()]
            gradients = [p.grad.clone() for p in model.parameters()]
            hooks = [len(module._forward_hooks) for module in model.modules()]
            if recorded:
                trace.update(model, DataLoader(data, batch_size=7, shuffle=True))
            assert modes == [module.training for module in model.modules()]
            assert hooks == [len(module._forward_hooks) for module in model.modules()]
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
            assert all(p.requires_grad for p in model.parameters())

        train(model, data, 4, after)
        states = torch.get_rng_state(), torch.tensor(np.random.random(3)), torch.tensor([random.random()])  # noqa: NPY002
        ends.append((*model.state_dict().values(), *states))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_data_that_draw_random_numbers_leave_the_state_and_say_so():
    class Noisy(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return torch.randn(P) + np.random.normal() + random.random(), i % M  # noqa: NPY002  as transforms do

    trace, model = Trace(), network()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    with pytest.warns(NoshadowWarning, match="read twice differ"):
        trace.update(model, Noisy())
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()
    with torch.no_grad():
        model[-1].bias += 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)  # once is enough
        trace.update(model, Noisy())


@pytest.mark.parametrize("way", ["model", "outputs", "checkpoints"])
def test_an_epoch_that_is_recorded_twice_is_told_of(way):
    first, second = network(), network()
    with torch.no_grad():
        second[-1].bias += 1e-6
    data = records()

    def run(models):
        if way == "checkpoints":
            return Trace.from_checkpoints(first, [copy.deepcopy(model.state_dict()) for model in models], data)
        trace = Trace("softmax")
        for model in models:
            if way == "model":
                trace.update(model, data)
            else:
                trace.update(outputs=plain_outputs(model, data.tensors[0]), targets=data.tensors[1])
        return trace

    with pytest.warns(NoshadowWarning, match="epoch 3 has the same outputs as the one before") as caught:
        assert run([first, second, second, second, first]).epochs == 5
    assert len(caught) == 1, "of many in a row the first is told of"
    with pytest.warns(NoshadowWarning, match="epoch 2 .* the one before|epoch 4 .* the one before") as caught:
        run([first, first, second, second])
    assert len(caught) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        run([first, second, first])


def test_outputs_that_are_twice_as_large_are_another_epoch():
    """Logits that add up to nothing: their sum is the same in all epochs."""
    outputs, trace = torch.tensor([[1.0, -1.0], [-2.0, 2.0]]), Trace()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        for times in (1.0, 2.0, 3.0):
            trace.update(outputs=times * outputs)


def test_an_epoch_that_is_done_again_after_resuming_is_not_recorded_twice(tmp_path):
    trace, data = Trace("softmax"), records()
    trace.update(outputs=torch.zeros(N, M), targets=data.tensors[1])
    path = trace.save(tmp_path / "trace.safetensors")
    trace.update(network(), data)
    trace.resume(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        trace.update(network(), data)
    assert trace.epochs == 2


def test_autocast_around_a_training_step_changes_neither_the_trace_nor_the_gradients():
    """Weights that autocast casts without gradients must not be found in its cache by the step after."""
    data = records()
    x, y = data.tensors
    gradients, inside, outside = [], Trace(), Trace()
    outside.update(network(), data)
    for recorded in (True, False):
        model = network().train()
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if recorded:
                inside.update(model, data)
            nn.functional.cross_entropy(model(x), y).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(a is not None and torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert torch.equal(inside.mean_outputs, outside.mean_outputs)


@pytest.mark.parametrize("how", ["dataset", "pair", "shuffled", "dicts", "batches of 10", "workers", "stream"])
def test_data_are_read_as_an_audit_reads_them(how):
    x, y = records().tensors

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(x, y, strict=True))

    data = {
        "dataset": records(),
        "pair": (x.numpy(), y.numpy()),
        "shuffled": DataLoader(records(), batch_size=8, shuffle=True),
        "dicts": Items([{"input": a, "labels": int(b)} for a, b in zip(x, y, strict=True)]),
        "batches of 10": DataLoader(records(), batch_size=10, drop_last=True),
        "workers": DataLoader(records(), batch_size=20, num_workers=2),
        "stream": Stream(),
    }[how]
    model, trace, kept = network().train(), Trace(), []
    for _ in range(2):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)
        trace.update(model, data)
        kept.append(plain_outputs(model, x))
    close(trace, kept, y)
    assert score(extract(model, data).layer, ["mean_trace"], trace)["mean_trace"].notna().all()


@pytest.mark.parametrize("last", [nn.Softmax(-1), nn.LogSoftmax(-1)])
def test_of_a_model_that_returns_probabilities_the_logits_are_kept(last):
    inner = network()
    model = nn.Sequential(inner, last)
    trace = Trace(batch_size=10)
    trace.update(model, records())
    trace.update(model, records())
    kept = [plain_outputs(inner, records().tensors[0])] * 2
    close(trace, kept, records().tensors[1])
    assert "mean_trace" in score(extract(model, records()).layer, trace=trace)


def test_float16_and_float64_models_and_one_in_evaluation_mode():
    x, y = records().tensors
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = network().to(dtype).eval()
        trace = Trace()
        for _ in range(3):
            trace.update(model, records())
        assert not model.training
        assert trace.mean_outputs.dtype == torch.float32
        close(trace, [plain_outputs(model, x.to(dtype))] * 3, y)


def test_several_outputs_heads_and_smoothing():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(P, M), nn.Linear(P, 2)

        def forward(self, x):
            return {"first": self.a(x), "second": self.b(x)}

    with pytest.raises(InputError, match="output: the model returns the outputs of several layers"):
        Trace().update(Two(), records())
    model, trace = Two(), Trace(output="first")
    trace.update(model, records())
    torch.testing.assert_close(trace.mean_outputs, model.a(records().tensors[0]).detach())
    one = nn.Sequential(nn.Linear(P, 1))
    pair = (records().tensors[0], records(classes=2).tensors[1])
    asked = r"head: it cannot be told which loss the model was trained with.*head='logistic'.*: Trace\(head=…\)$"
    with pytest.raises(InputError, match=asked):
        Trace().update(one, pair)
    with pytest.raises(InputError, match=asked):
        Trace().update(outputs=one(pair[0]).detach(), targets=pair[1])
    for chosen in ({"head": "logistic"}, {"loss": nn.BCEWithLogitsLoss()}):
        trace = Trace(**chosen)
        trace.update(one, pair)
        wanted = nn.functional.binary_cross_entropy_with_logits(
            one(pair[0]).squeeze(1).double(), pair[1].double(), reduction="none"
        )
        torch.testing.assert_close(trace.mean_loss, wanted.detach())
    model, trace = network().eval(), Trace(loss=nn.CrossEntropyLoss(label_smoothing=0.2))
    trace.update(model, records())
    x, y = records().tensors
    wanted = nn.functional.cross_entropy(model(x).double(), y, reduction="none", label_smoothing=0.2).detach()
    torch.testing.assert_close(trace.mean_loss, wanted)


def test_models_that_an_audit_refuses_are_refused_in_the_first_epoch():
    overwritten = nn.Sequential(nn.Linear(P, M), nn.ReLU(inplace=True))
    with pytest.raises(InputError, match=r"a tensor was changed in place after the call"):
        Trace().update(overwritten, records())
    sampler = torch.utils.data.RandomSampler(records(), replacement=True)
    with pytest.raises(InputError, match=r"data: the loader draws records with a RandomSampler that does not give"):
        Trace().update(network(), DataLoader(records(), sampler=sampler))


def test_an_epoch_that_diverged_leaves_the_trace_as_it_was():
    trace, model = Trace(), network()
    trace.update(model, records())
    before = trace.mean_outputs.clone()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken[0].weight[:] = 1e38  # finite, and overflows in the first layer
    with pytest.raises(InputError, match="NaN"):
        trace.update(broken, records())
    for bad in (float("nan"), float("inf")):
        outputs = trace.mean_outputs.clone()
        outputs[5] = bad
        with pytest.raises(InputError, match=r"outputs: NaN, infinite or beyond float32 in row 5 \(counted from 0\)"):
            trace.update(outputs=outputs, targets=records().tensors[1])
    late = nn.Sequential(network(), nn.Identity())  # the first batch is sound, a later one is not
    x, y = records().tensors
    x = x.clone()
    for bad, message in ((float("nan"), "data: the inputs hold NaN .* in row 40"), (3e38, "model: .* NaN in row 40")):
        x[40] = bad
        with torch.no_grad():
            late[0][0].weight.fill_(30.0)
        with pytest.raises(InputError, match=message):
            Trace(batch_size=8).update(late, TensorDataset(x, y))
    assert trace.epochs == 1
    assert torch.equal(trace.mean_outputs, before)
    trace.update(model, records())
    assert trace.epochs == 2


def test_other_records_or_models_are_refused():
    x, y = records().tensors
    trace, model = Trace(), network()
    trace.update(model, records())
    cases = {
        "outputs: expected shape .53, 4. as in the epochs before, got .52, 4.": (x[1:], y[1:]),
        "targets: the targets of rows .* another order": (x.flip(0), y.flip(0)),
        "targets: the targets of row 0 .* other records": (x, torch.cat([(y[:1] + 1) % M, y[1:]])),
    }
    for message, data in cases.items():
        with pytest.raises(InputError, match=message):
            trace.update(model, data)
    with pytest.raises(InputError, match="data: it has no records"):
        Trace().update(model, (x[:0], y[:0]))
    for message, arguments in {
        "pass either the model and its data, or outputs": {},
        "data: pass the training data": {"model": model},
        "targets, rows: they go with outputs=": {"model": model, "data": records(), "rows": [0]},
        "data: it goes with a model": {"outputs": x, "data": records()},
        "model: expected a torch Module, got str; of others pass outputs=": {"model": "net", "data": records()},
    }.items():
        with pytest.raises(InputError, match=message):
            trace.update(**arguments)
    with pytest.raises(InputError, match=r"trace: the targets of rows .* in another order"):
        audit(model, (x.flip(0), y.flip(0)), trace=trace)
    assert trace.epochs == 1


def test_batches_in_any_order_are_one_epoch():
    x, y = records().tensors
    model, trace, kept = network(), Trace(), []
    generator = torch.Generator().manual_seed(3)
    for epoch in range(5):
        with torch.no_grad():
            model[3].bias.add_(epoch)
        outputs = plain_outputs(model, x)
        kept.append(outputs)
        for rows in torch.randperm(N, generator=generator).split(10):
            batch = outputs[rows].float().requires_grad_()
            trace.update(outputs=batch, targets=y[rows], rows=rows if epoch % 2 else rows.numpy())
            with torch.no_grad():
                batch.zero_()  # a loop may use its memory again
        trace.update(outputs=outputs[:0], targets=y[:0], rows=[])
        trace.end_epoch()
    close(trace, kept, y)
    whole = Trace()
    for outputs in kept:
        given = outputs.float()
        whole.update(outputs=given, targets=y)
        assert torch.equal(given, outputs.float())  # the caller's own is left as it was
    assert torch.equal(whole.mean_outputs, trace.mean_outputs)
    assert torch.equal(whole.mean_loss, trace.mean_loss)


def test_a_record_counts_once_in_an_epoch(tmp_path):
    z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    trace = Trace()
    with pytest.raises(InputError, match="end_epoch: no record came since the last one"):
        trace.end_epoch()
    with pytest.raises(InputError, match="rows: row 3 came a second time"):
        trace.update(outputs=z[:2], targets=y[:2], rows=[3, 3])
    trace.save(tmp_path / "trace.safetensors")  # nothing has begun
    trace.update(outputs=z[:4], targets=y[:4], rows=[0, 1, 2, 5])
    for message, rows in {
        r"rows: rows 1, 5 came a second time in this epoch; .* call trace.end_epoch\(\)": [5, 1],
        r"rows: row 3 came a second time": [3, 3],
        r"rows: -1 is not a row of the data; rows count from 0": [3, -1],
        r"rows: 2000000000 is not a row of the data": [3, 2_000_000_000],
        r"rows: expected the place of each of the 2 records .* got torch.float64 of shape \(2,\)": [3.0, 4.0],
        r"rows: .* got torch.int64 of shape \(1,\)": [3],
        r"rows: .* got torch.bool of shape \(2,\)": [True, False],
    }.items():
        with pytest.raises(InputError, match=message):
            trace.update(outputs=z[:2], targets=y[:2], rows=rows)
    with pytest.raises(InputError, match=r"rows: rows 3, 4 of 6 did not come in this epoch; .* drop_last=False"):
        trace.end_epoch()
    for call in (lambda: trace.update(outputs=z, targets=y), lambda: Trace.of(trace, None)):
        with pytest.raises(InputError, match="an epoch in batches has begun; end it"):
            call()
    with pytest.raises(InputError, match="targets: some batches of this epoch have them"):
        trace.update(outputs=z[:2], rows=[3, 4])
    with pytest.raises(InputError, match="outputs: 2 columns, the batches before had 3"):
        trace.update(outputs=z[:2, :2], targets=y[:2], rows=[3, 4])
    trace.update(outputs=z[:2], targets=y[3:5], rows=[3, 4])
    trace.end_epoch()
    assert trace.epochs == 1
    assert torch.equal(trace.mean_outputs, z[[0, 1, 2, 0, 1, 3]])
    with pytest.raises(InputError, match="rows: 6 is not a row of the data, which had 6 records"):
        trace.update(outputs=z[:1], targets=y[:1], rows=[6])
    trace.update(outputs=z[:5], targets=y[:5], rows=range(5))
    with pytest.raises(InputError, match="rows: row 5 of 6 did not come in this epoch"):  # the last one
        trace.end_epoch()


def test_batches_without_rows_are_not_taken_for_epochs():
    """A loop that forgets ``rows`` gives other targets each time."""
    z, y = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    trace = Trace()
    trace.update(outputs=z[:4], targets=y[:4])
    with pytest.raises(InputError, match="targets: the targets of rows"):
        trace.update(outputs=z[4:], targets=y[4:])


def test_without_targets_the_mean_outputs_alone_are_kept():
    data = records()
    x, y = data.tensors
    trace = Trace()
    for _ in range(3):
        trace.update(outputs=network()(x))
    assert trace.losses is None
    assert trace.mean_loss is None
    layer = extract(network(), data).layer
    assert "mean_trace" not in score(layer, trace=trace)
    with pytest.raises(InputError, match="'mean_trace' needs the loss of every record"):
        score(layer, ["mean_trace"], trace)
    with pytest.raises(InputError, match="targets: the epochs before were recorded without targets"):
        trace.update(outputs=network()(x), targets=y)


def test_one_output_per_record_and_regression():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=rng), torch.randn(30, generator=rng)
    trace = Trace()
    outputs = [torch.randn(30, generator=rng) for _ in range(4)]
    for z in outputs:
        trace.update(outputs=z, targets=y)
    losses = (torch.stack(outputs).double() - y).square()
    torch.testing.assert_close(trace.mean_loss, losses.mean(0))
    assert trace.mean_outputs.shape == (30, 1)
    del x


class Counting(nn.Module):
    """Notes how many records come at a time."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last, self.counts = first, nn.Linear(8, M), []

    def forward(self, x):
        self.counts.append(len(x))
        h = self.first(x)
        return self.last(h.mean(1) if h.ndim == 3 else h)


def test_small_records_come_in_large_batches_but_not_tokens_of_each_of_which_a_model_makes_a_vector():
    y = torch.arange(3000) % M
    values, tokens = torch.randn(3000, P), torch.randint(0, 9, (3000, P))
    for x in (values, values.numpy()):
        dense = Counting(nn.Linear(P, 8))
        Trace().update(dense, (x, y))
        assert max(dense.counts) == 2048
    for x in (tokens, tokens.numpy()):
        embedded = Counting(nn.Embedding(9, 8))
        Trace().update(embedded, (x, y))
        assert max(embedded.counts) == 256


def test_batches_of_another_kind_among_pairs_of_tensors_are_read_alike():
    """A stream may give lists, tuples, other precisions: what a batch is is asked of each that is not plain."""
    data, model = records(40), network()
    x, y = data.tensors
    parts = [[x[:10], y[:10]], (x[10:20].double(), y[10:20]), [x[20:30].numpy(), y[20:30].tolist()], (x[30:], y[30:])]
    mixed, plain = Trace(), Trace()
    mixed.update(model, DataLoader(Items(parts), batch_size=None))
    plain.update(model, data)
    torch.testing.assert_close(mixed.mean_outputs, plain.mean_outputs)
    torch.testing.assert_close(mixed.mean_loss, plain.mean_loss)


def test_a_layer_that_is_not_linear_is_refused_from_the_records_that_are_compared():
    class Bent(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.square().sum(1, keepdim=True)

    model = nn.Sequential(nn.Linear(P, 8), Bent(8, M))
    with pytest.raises(InputError, match="is not its input times its weights"):
        Trace().update(model, records(300))


def test_an_epoch_in_batches_that_diverged_is_over_and_the_next_may_begin(tmp_path):
    z, y = np.random.default_rng(0).normal(size=(6, 3)), np.arange(6) % 3
    trace = Trace("softmax")
    trace.update(outputs=z, targets=y)
    trace.update(outputs=np.where(np.arange(6)[:, None] == 4, np.nan, z), targets=y, rows=np.arange(6))
    with pytest.raises(InputError, match=r"in row 4 .*which was not recorded"):
        trace.end_epoch()
    assert trace.save(tmp_path / "trace.safetensors").is_file()
    trace.update(outputs=2.0 * z, targets=y, rows=np.arange(6))
    trace.end_epoch()
    assert trace.epochs == 2
    np.testing.assert_allclose(trace.mean_outputs, 1.5 * z, rtol=1e-6)


@pytest.mark.parametrize("rows", [None, np.arange(6)])
def test_outputs_and_targets_that_pandas_has_in_another_order_are_refused(rows):
    z = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)), index=list("abcdef"))
    y = pd.Series(np.arange(6) % 3, index=list("abcdfe"))
    with pytest.raises(InputError, match=r"^targets: its index has the labels of outputs .* first in row 4"):
        Trace("softmax").update(outputs=z, targets=y, rows=rows)
    Trace("softmax").update(outputs=z, targets=y.loc[z.index], rows=rows)


@pytest.mark.parametrize("unit", [1e-21, 1e-25])
def test_units_of_which_float32_leaves_nothing_are_refused(unit):
    """trace_iqr was 0 of all records; values that are fitted to the last digit are no matter of units."""
    z, y = np.random.default_rng(0).normal(size=(2, 6))
    with pytest.raises(InputError, match=r"^outputs, targets: squared errors of .* beyond float32"):
        Trace("squared").update(outputs=unit * z, targets=unit * y)
    Trace("squared").update(outputs=y + 1e-17, targets=y)
    Trace("squared").update(outputs=y * (1.0 + 4e-16), targets=y)
    Trace("squared").update(outputs=np.zeros(6), targets=np.zeros(6))


def test_tensors_without_values_are_refused():
    with pytest.raises(InputError, match=r"^outputs: a tensor on the meta device has no values"):
        Trace("squared").update(outputs=torch.zeros(4, 1, device="meta"), targets=torch.zeros(4))


@pytest.mark.parametrize("columns", [1, 2])
def test_outputs_of_another_width_are_refused_as_such_and_not_by_their_targets(columns):
    """One column of the logits of three classes was asked which loss it had, two were told of a class too many."""
    outputs = np.random.default_rng(0).normal(size=(6, 3))
    trace = Trace()
    trace.update(outputs=outputs, targets=[0, 1, 2, 0, 1, 1])
    with pytest.raises(
        InputError, match=rf"^outputs: expected shape \(6, 3\) as in the epochs before, got \(6, {columns}\)"
    ):
        trace.update(outputs=outputs[:, :columns], targets=[0, 1, 1, 0, 1, 1])


def test_mean_outputs_that_are_not_finite_are_refused_by_their_name():
    outputs = np.ones((4, 2))
    outputs[2, 1] = np.nan
    with pytest.raises(
        InputError, match=r"^mean_outputs: NaN, infinite or beyond float32 in row 2 .* leave out the epochs"
    ):
        Trace.from_losses(np.ones((3, 4)), outputs)
