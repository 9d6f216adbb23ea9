"""Data for PyTorch models: every record once, in the data set's order, its inputs and its target told apart."""

from __future__ import annotations

import functools
import gc
import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from noshadow import InputError
from noshadow.extract.torch.batches import Signature
from noshadow.extract.torch.loaders import Batched, read, stacked
from tests.extract.torch.toys import Items, N, found_in, layer_of, network, records, same_layer, text_model, tokens


@pytest.fixture
def data():
    return records()


@pytest.fixture
def want(data):
    return layer_of(network(), data)


class Backwards(Sampler):
    def __init__(self, indices):
        self.indices = list(indices)[::-1]

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


class Pairs(Sampler):
    """A batch sampler of its own kind."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter([list(range(start, min(start + 2, self.n))) for start in range(0, self.n, 2)])

    def __len__(self):
        return -(-self.n // 2)


def test_loaders_keep_the_datasets_order(data, want):
    for loader in (
        DataLoader(data, batch_size=7),
        DataLoader(data, batch_size=7, shuffle=True),
        DataLoader(data, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(data, batch_size=None),
        DataLoader(data, sampler=Backwards(range(N))),
        DataLoader(data, sampler=list(range(N))),
        DataLoader(data, sampler=SequentialSampler(range(N))),
        DataLoader(data, sampler=WeightedRandomSampler([1.0] * N, N, replacement=False)),
        DataLoader(data, batch_sampler=Pairs(N)),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 7, drop_last=True)),
        DataLoader(Items(list(data)), batch_size=7, num_workers=2),
    ):
        got = layer_of(network(), loader)
        torch.testing.assert_close(got.targets, want.targets)
        torch.testing.assert_close(got.outputs, want.outputs)
    half = layer_of(network(), Subset(data, range(0, N, 2)))
    torch.testing.assert_close(half.outputs, want.outputs[::2])


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (SubsetRandomSampler(range(10)), "SubsetRandomSampler"),
        (WeightedRandomSampler([1.0] * N, N), "WeightedRandomSampler"),
        (SequentialSampler(range(10)), "SequentialSampler"),  # 53 records were audited, 10 were trained on
        (SequentialSampler(range(100)), "SequentialSampler"),
        (RandomSampler(range(N), replacement=True), "RandomSampler"),  # a bootstrap sample
        (RandomSampler(range(N), num_samples=20), "RandomSampler"),
        (Backwards([3, 3, *range(51)]), "Backwards"),
    ],
)
def test_samplers_that_do_not_give_every_record_once_are_refused(data, sampler, name):
    expected = (
        rf"data: the loader draws records with a {name} that does not give each of the 53 .* exactly once; .*Subset"
    )
    for loader in (
        DataLoader(data, batch_size=5, sampler=sampler),
        DataLoader(data, batch_sampler=BatchSampler(sampler, 5, drop_last=False)),
    ):
        with pytest.raises(InputError, match=expected):
            layer_of(network(), loader)


def test_a_batch_sampler_that_leaves_records_out_is_refused(data):
    with pytest.raises(InputError, match=r"draws records with a Pairs that does not give each of the 53"):
        layer_of(network(), DataLoader(data, batch_sampler=Pairs(50)))


def test_a_sampler_that_can_be_read_only_once_is_refused(data):
    with pytest.raises(InputError, match=r"data: the sampler of the loader could not be read"):
        layer_of(network(), DataLoader(data, sampler=(i for i in range(N))))


def test_looking_at_a_sampler_leaves_random_numbers_alone(data):
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    sampler = WeightedRandomSampler([1.0] * N, N, replacement=False, generator=generator)
    model, loader = network(), DataLoader(Augmented(data, random.random), sampler=sampler)
    state = torch.get_rng_state()
    found_in(model, loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(generator.get_state(), before)


def plus_one(rows):
    x, y = zip(*rows, strict=True)
    return torch.stack(x) + 1, torch.tensor(y)


def test_a_collate_fn_is_kept_with_a_batch_sampler(data):
    """It was dropped, so that the model saw other inputs than in training."""
    x, y = data.tensors
    want = layer_of(network(), TensorDataset(x + 1, y))
    items = Items([(row, int(label)) for row, label in zip(x, y, strict=True)])
    for loader in (
        DataLoader(items, batch_size=7, collate_fn=plus_one),
        DataLoader(items, batch_sampler=BatchSampler(RandomSampler(items), 7, drop_last=False), collate_fn=plus_one),
        DataLoader(items, batch_sampler=Pairs(N), collate_fn=plus_one),
    ):
        got = layer_of(network(), loader)
        torch.testing.assert_close(got.outputs, want.outputs)
        torch.testing.assert_close(got.targets, want.targets)


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    fill = [longest - len(row["input_ids"]) for row in rows]
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * more for row, more in zip(rows, fill, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - more) + [0] * more for more in fill]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def test_padding_collators_work_as_a_trainer_uses_them():
    """Hugging Face's Trainer gives its loader a batch sampler and a collator that pads."""
    ids, mask = tokens()
    labels = torch.arange(len(ids)) % 3
    ragged = Items(
        [
            {"input_ids": row[keep == 1].tolist(), "label": int(y)}
            for row, keep, y in zip(ids, mask, labels, strict=True)
        ]
    )
    model = text_model("Bert")
    sampler = BatchSampler(RandomSampler(ragged), 5, drop_last=False)
    got = layer_of(model, DataLoader(ragged, batch_sampler=sampler, collate_fn=padded))
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(got.outputs, wanted.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.targets, labels)
    with pytest.raises(InputError, match=r"data: .* could not be read: .*collate_fn .*DataCollatorWithPadding"):
        layer_of(model, ragged)


def test_rows_that_a_collate_fn_loses_or_adds_are_noticed(data):
    def first_only(rows):
        return plus_one(rows[:1])

    def twice(rows):
        return plus_one([*rows, *rows])

    with pytest.raises(InputError, match=r"data: 8 rows came out of 53 records"):
        layer_of(network(), DataLoader(Items(list(data)), batch_size=7, collate_fn=first_only))
    with pytest.raises(InputError, match=r"does not add up to a row per record"):
        layer_of(network(), DataLoader(Items(list(data)), batch_size=7, collate_fn=twice))


class Loader(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x * 2, y


def test_loaders_that_change_their_batches_are_refused(data):
    with pytest.raises(InputError, match=r"data: a Loader yields other batches than a DataLoader would"):
        layer_of(network(), Loader(data, batch_size=5))


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def test_streams_are_taken_as_they_come_each_record_once(data, want):
    model = network()
    for stream in (
        Stream(data),
        DataLoader(Stream(data), batch_size=9),
        DataLoader(Stream(data), batch_size=9, num_workers=2),  # gave every record twice
    ):
        got = layer_of(model, stream)
        assert got.n == N
        torch.testing.assert_close(got.outputs, want.outputs)
    with pytest.raises(InputError, match="drops the last batch"):
        layer_of(model, DataLoader(Stream(data), batch_size=9, drop_last=True))


def test_data_sets_that_make_their_own_batches(data, want):
    x, y = data.tensors
    batches = Items([(x[start : start + 10], y[start : start + 10]) for start in range(0, N, 10)])
    same_layer(layer_of(network(), DataLoader(batches, batch_size=None)), want)


class Augmented(Dataset):
    def __init__(self, data, draw):
        self.data, self.draw = data, draw

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return x.flip(0) if self.draw() < 0.5 else x, y


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, np.random.rand])
def test_random_augmentation_is_noted(data, draw):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the global one is what augmentations draw from
    found = found_in(network(), Augmented(data, draw))
    assert any("read twice differ" in note and "without random transforms" in note for note in found.notes)
    assert not found_in(network(), Augmented(data, lambda: 1.0)).notes


def columns(data, **more):
    return Items([{"x": x, "labels": y, **{k: v[i] for k, v in more.items()}} for i, (x, y) in enumerate(data)])


class Named(nn.Module):
    """A forward with an input of a name of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values, scale=1.0):
        return self.inner(pixel_values) * scale


class Whole(Named):
    def forward(self, batch):
        return self.inner(batch["a"] + batch["b"])


def test_columns_go_to_the_arguments_of_forward(data, want):
    y = data.tensors[1]

    class X(Named):
        def forward(self, x):
            return self.inner(x)

    names = [f"n{i}" for i in range(N)]
    ragged = [["a", "b"][: i % 2 + 1] for i in range(N)]
    same_layer(layer_of(X(network()), columns(data, text=names, words=ragged)), want)
    found = found_in(X(network()), columns(data, mask=torch.ones(N)))
    same_layer(found.layer, want)
    assert any("forward has no argument for 'mask', left out" in note for note in found.notes)
    images = Items([{"image": a, "label": b} for a, b in data])  # was: unexpected keyword argument 'image'
    same_layer(layer_of(Named(network()), images), want)
    halves = Items([{"a": a / 2, "b": a / 2, "label": b} for a, b in data])
    same_layer(layer_of(Whole(network()), halves), want)
    numbered = Items([{"image": a, "idx": i, "label": b} for i, (a, b) in enumerate(data)])
    with pytest.raises(
        InputError, match=r"given the columns 'image', 'idx', 'label' as one dictionary: give its input"
    ):
        layer_of(Named(network()), numbered)
    with pytest.raises(InputError, match=r"records have the columns 'a', 'b', .*rename the columns"):
        layer_of(text_model("Bert"), halves)
    with pytest.raises(InputError, match=r"keys 'x', 'z', none of which is a target; call it 'labels'"):
        layer_of(X(network()), Items([{"x": a, "z": b} for a, b in data]))
    with pytest.raises(InputError, match=r"keys 'labels', 'target' could each be the target"):
        layer_of(X(network()), columns(data, target=y))


def test_lists_of_numbers_are_rows(data, want):
    """As `datasets` gives them without set_format('torch'): a list of six numbers became six columns."""
    lists = Items([(x.tolist(), int(y)) for x, y in data])
    same_layer(layer_of(network(), lists), want)
    same_layer(layer_of(network(), DataLoader(lists, batch_size=7)), want)
    ids, mask = tokens()
    model = text_model("DistilBert")
    rows = Items(
        [
            {"input_ids": a.tolist(), "attention_mask": b.tolist(), "label": i % 3}
            for i, (a, b) in enumerate(zip(ids, mask, strict=True))
        ]
    )
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits.double()
    torch.testing.assert_close(layer_of(model, rows).outputs, wanted)


def test_an_index_or_a_name_beside_x_and_y_is_left_out(data, want):
    """(x, y, index): the index became the target."""
    x, y = data.tensors
    found = found_in(network(), TensorDataset(x, y, torch.arange(N)))
    same_layer(found.layer, want)
    assert any("the target is element 1" in note and "element 2" in note for note in found.notes)
    same_layer(layer_of(network(), Items([(a, b, f"row {i}") for i, (a, b) in enumerate(data)])), want)
    same_layer(layer_of(network(), TensorDataset(x, torch.rand(N), y)), want)
    values = torch.randn(N)
    assert torch.equal(layer_of(network(1), TensorDataset(x, values, torch.arange(N))).targets[:, 0], values.double())


def test_elements_that_could_each_be_the_target_are_not_guessed(data):
    x, y = data.tensors
    for model, more in ((network(), (y, y.flip(0))), (network(1), (torch.rand(N), torch.rand(N)))):
        with pytest.raises(
            InputError, match=r"elements besides the inputs .* 2 can be the target; pass a Dataset of \(x, y\)"
        ):
            layer_of(model, TensorDataset(x, *more))


class Two(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, a, b):
        return self.inner(a + b)


class Optional(Two):
    def forward(self, a, b=None):
        return self.inner(a if b is None else a + b)


def test_the_number_of_inputs_is_that_of_forward(data, want):
    x, y = data.tensors
    halves = torch.arange(N)
    same_layer(layer_of(Two(network()), TensorDataset(x / 2, x / 2, y)), want)
    same_layer(layer_of(Two(network()), TensorDataset(x / 2, x / 2, y, halves)), want)
    same_layer(layer_of(Two(network()), Items([((a / 2, a / 2), b) for a, b in data])), want)
    with pytest.raises(InputError, match=r"records have 2 elements, .* 2 inputs \(a, b\), which leaves no target"):
        layer_of(Two(network()), data)
    with pytest.raises(InputError, match=r"element 1 of the records comes before the target .*may be an input"):
        layer_of(Optional(network()), TensorDataset(x / 2, x / 2, y))


def test_tokens_with_their_mask_and_labels():
    ids, mask = tokens()
    labels = torch.arange(len(ids)) % 3
    for family in ("Bert", "GPT2"):  # the second argument of GPT-2 is a cache, not the mask
        model = text_model(family)
        found = found_in(model, TensorDataset(ids, mask, labels))
        with torch.no_grad():
            torch.testing.assert_close(found.layer.outputs, model(ids, attention_mask=mask).logits.double())
        assert any("element 1 of each record was passed to the model as its attention_mask" in n for n in found.notes)
    with pytest.raises(InputError, match=r"which argument of the model's forward are element 1, 2 is not clear"):
        layer_of(text_model("Bert"), TensorDataset(ids, mask, mask, labels))


def test_arrays_go_in_as_x_and_y(data, want):
    x, y = (tensor.numpy() for tensor in data.tensors)
    same_layer(layer_of(network(), (x.astype("float64"), y)), want)
    same_layer(layer_of(network(), (pd.DataFrame(x), pd.Series(y))), want)


def test_data_that_cannot_be_read_is_refused_in_a_sentence(data):
    x, y = data.tensors
    model = network()
    with pytest.raises(InputError, match=r"data: it has no records"):
        layer_of(model, TensorDataset(x[:0], y[:0]))
    with pytest.raises(InputError, match=r"each record must be \(x, y\)"):
        layer_of(model, TensorDataset(x))
    for other in (7, pd.DataFrame(x.numpy())):
        with pytest.raises(InputError, match=r"data: expected a Dataset"):
            layer_of(model, other)
    with pytest.raises(InputError, match=r"got a dict with the keys 'train', 'test'; pass one split"):
        layer_of(model, {"train": data, "test": data})
    with pytest.raises(InputError, match=r"targets are not numbers \(element 1 of type (tuple|list)\)"):
        layer_of(model, Items([(a, "cat") for a, _ in data]))
    with pytest.raises(InputError, match=r"data: X has the shape \(53, 6\), y \(52,\)"):
        layer_of(model, (x, y[1:]))

    class Broken(Items):
        def __getitem__(self, i):
            if i == 20:
                raise OSError("record 20 is gone")
            return super().__getitem__(i)

    for workers in (0, 1):
        loader = DataLoader(Broken(list(data)), batch_size=10, num_workers=workers)
        with pytest.raises(InputError, match=r"data: batch 2 could not be read: OSError: record 20 is gone"):
            layer_of(model, loader)


class Several(Items):
    """A data set that gives a list of records at once, as torch's Subset does."""

    asked = ()

    def __getitems__(self, places):
        self.asked = (*self.asked, tuple(places))
        return [self.items[place] for place in places]


def test_records_are_read_as_a_dataloader_without_workers_reads_them(data):
    rows = [data[place] for place in range(N)]
    for own in (Items(rows), Several(rows)):
        batches = list(read(own, 10, Signature.of(network())).batches)
        plain = list(DataLoader(own, batch_size=10))
        assert [len(x) for x, _ in batches] == [10, 10, 10, 10, 10, 3]
        for ours, theirs in zip(batches, plain, strict=True):
            assert all(map(torch.equal, ours, theirs))
    assert own.asked[:6] == own.asked[6:]  # whole batches, the same ones, by both


class Watchful(Items):
    """Notes whether garbage is looked for while a record is read."""

    def __getitem__(self, place):
        self.sweeps = gc.isenabled()
        if place == 30:
            raise OSError("unreadable")
        return self.items[place]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_looked_for_within_a_batch_and_all_is_as_before_between_them_and_after_an_error(data, enabled):
    own = Watchful([data[place] for place in range(N)])
    batches = Batched(own, 10, functools.partial(stacked, names=frozenset()))(0, 6)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        for _ in range(3):
            next(batches)
            assert not own.sweeps
            assert gc.isenabled() is enabled
        with pytest.raises(InputError, match="batch 3 could not be read: OSError: unreadable"):
            next(batches)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
