"""A training script as a user might write it: run by the tests as a program of its own, as it is and with a change.

Prints the fingerprint of its procedure. Each ``# change:`` line is what a test replaces.
"""

import copy
import json
import random
import sys
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from torch.utils.data import TensorDataset

from noshadow.shadow import Recipe, TorchTrainer
from noshadow.shadow.fingerprint import describe_procedure

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
Y = (X[:, 0] > 0).astype(int)


class Kind(Enum):
    RIDGE = 1
    LASSO = 2


Size = namedtuple("Size", "width depth")


@dataclass
class Settings:
    """Words about it."""

    rate: float = 0.1
    kind: Kind = Kind.RIDGE

    def scaled(self, x):
        """Words about it."""
        return self.rate * x  # change: method


class Plain:
    def __init__(self):
        self.offset = 1.0  # change: plain object
        self.parent = SimpleNamespace(child=self)  # a cycle


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 3  # change: slots


class Procedure:
    """A callable object."""

    def __init__(self, data):
        self.data = data

    def __call__(self, members, seed):
        return self.data[:, 0] * 2.0  # change: __call__


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.head = nn.Linear(5, 2)
        self.temperature = 1.0  # change: attribute of the network

    def forward(self, x):
        return self.head(self.inner(x)) / self.temperature  # change: forward


def mutual(n):
    return 0 if n == 0 else other(n - 1)


def other(n):
    return mutual(n) + 1  # change: one of two functions that call each other


@lru_cache
def cached(n):
    return n + 1  # change: behind a cache


@torch.no_grad()
def predicted(net, x):
    return net(x) + 0.0  # change: behind a decorator


estimator = LogisticRegression(C=1.0)  # change: estimator
scaler = StandardScaler().fit(X)  # change: fitted estimator
tree = DecisionTreeClassifier(random_state=0).fit(X, Y)
settings = Settings(rate=0.1)  # change: dataclass
namespace = SimpleNamespace(depth=2)  # change: namespace
sparse = scipy.sparse.csr_matrix(np.eye(4))  # change: sparse matrix
dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))  # change: TensorDataset
names = {"a", "b", "c", "d"}  # change: set
plain, slotted, size = Plain(), Slotted(), Size(3, 4)
frame = pd.DataFrame({"x": X[:, 0], "word": ["a", "b", None] * 10})  # change: data frame
generator, shuffler = np.random.default_rng(5), random.Random(5)  # change: generators
used_in_lambda = [1.0, 2.0]  # change: global in a lambda
used_in_comprehension = 3.0  # change: global in a comprehension
pretrained = nn.Linear(5, 2, bias=False)
with torch.no_grad():
    pretrained.weight.fill_(0.5)  # change: pretrained module
weight = 1.5


class Augment:
    def __call__(self, x, generator):
        return x + 0.1  # change: callable augment


class Loss:
    def __init__(self):
        self.weight = 1.0  # change: state of a callable loss

    def __call__(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) * self.weight  # change: callable loss


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)  # change: optimizer


def factory():
    net = Net()
    net.head = copy.deepcopy(pretrained)
    return net


def closure():
    table = np.arange(6.0)  # change: array in the closure

    def train(members, seed):
        shift = lambda x: x + used_in_lambda[0] + mutual(3) + cached(2)  # noqa: E731  a lambda is what is tested
        scale = sum([used_in_comprehension * weight for _ in range(2)])
        things = (estimator, scaler, tree, namespace, sparse, dataset, names, plain, slotted, size, frame, generator)
        assert things
        assert shuffler
        assert predicted
        return settings.scaled(shift(X[:, 0])) * scale + table.sum()

    return train


PROCEDURES = {
    "closure": closure,
    "partial": lambda: partial(closure(), more={"k": (1, 2)}),
    "callable": lambda: Procedure(X),
    "trainer": lambda: TorchTrainer(factory, (X, Y), Recipe(2, 8, optimizer, augment=Augment()), loss=Loss()),
}
if __name__ == "__main__":
    print(json.dumps({name: describe_procedure(PROCEDURES[name]()) for name in sys.argv[1:]}, sort_keys=True))
