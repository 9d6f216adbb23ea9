"""Small networks, data sets and Hugging Face models (random weights, no downloads) for the tests of the torch door."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from noshadow.extract import extract
from noshadow.objective import Objective

N, P, M = 53, 6, 4


def records(n=N, classes=M):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, P, generator=generator)
    return TensorDataset(x, torch.randint(0, classes, (n,), generator=generator))


def network(out=M, **last):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(P, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, out, **last))


def found_in(model, data, **options):
    choices = {name: options.pop(name) for name in ("layer", "output", "batch_size") if name in options}
    return extract(model, data, Objective(**options), **choices)


def layer_of(model, data, **options):
    return found_in(model, data, **options).layer


class Items(Dataset):
    """Any list of records as a data set."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def same_layer(a, b):
    """Features and outputs are equal to the rounding of float32, which depends on the batch; targets are equal."""
    torch.testing.assert_close(a.features, b.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(a.outputs, b.outputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(a.targets, b.targets, rtol=0, atol=0)


def tokens(n=24, longest=9, seed=0):
    """Token ids of different lengths, padded on the right with 0: (ids, mask), both (n, longest)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (n,), generator=generator)
    mask = (torch.arange(longest) < lengths[:, None]).long()
    ids = torch.randint(1, 50, (n, longest), generator=generator) * mask
    return ids, mask


def text_model(family, labels=3, **config):
    """A tiny sequence classifier of a Hugging Face family with random weights."""
    import transformers

    small = {
        "Bert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        "DistilBert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
        "Llama": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 16,
        },
    }[family]
    torch.manual_seed(3)
    settings = {"vocab_size": 50, "pad_token_id": 0, "num_labels": labels, **small, **config}
    made = getattr(transformers, f"{family}Config")(**settings)
    return getattr(transformers, f"{family}ForSequenceClassification")(made).eval()
