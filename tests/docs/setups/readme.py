"""What the README takes for granted: a network and its loop, two runs, a file for an officer, arrays of many models."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noshadow

pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train_data, test_data = TensorDataset(x[:300], y[:300]), TensorDataset(x[300:600], y[300:600])
loader, epochs = DataLoader(train_data, batch_size=32, shuffle=True), 5


def new():
    network = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    return network, torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)


(model, optimizer), (second_model, its_optimizer) = new(), new()
optimizers = {id(model): optimizer, id(second_model): its_optimizer}


def train_one_epoch(network, loader):
    for inputs, targets in loader:
        optimizers[id(network)].zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizers[id(network)].step()


for _ in range(5):
    train_one_epoch(second_model, loader)

# an officer's file, in which a record stands alone in a direction: it is flagged, and over any policy
alone = np.random.default_rng(0).normal(size=(60, 4))
alone[:, 3] = 0.0
alone[7, 3] = 1.0
values = alone[:, 0] + np.random.default_rng(1).normal(size=60)
theta = np.linalg.lstsq(np.c_[alone, np.ones(60)], values, rcond=None)[0]
noshadow.LastLayer(alone, alone @ theta[:4] + theta[4], values, head="squared").save("layer.safetensors")

features, labels = pixels[:200], digits[:200]
logits = features @ np.random.default_rng(2).normal(size=(64, 10)) / 50
membership = np.random.default_rng(3).random((16, 200)) < 0.5
outputs = np.random.default_rng(4).normal(size=(16, 200, 10)) + membership[..., None] * np.eye(10)[labels]
