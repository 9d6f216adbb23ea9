"""What is at hand where a model was trained, and a second audit for later."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import noshadow

pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
images, labels = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
labels[:10] = (labels[:10] + 3) % 10
train_data, test_data = TensorDataset(images[:300], labels[:300]), TensorDataset(images[900:1300], labels[900:1300])
patients = [f"patient-{row}" for row in range(300)]
hospitals = np.where(np.arange(300) % 3 == 0, "north", "south")


def trained(seed, decay=0.0, epochs=150):
    torch.manual_seed(seed)
    model, trace = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), noshadow.Trace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=decay)
    for epoch in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[:300]), labels[:300]).backward()
        optimizer.step()
        if epoch % 10 == 9:
            trace.update(model, train_data)
    return model, optimizer, trace


model, optimizer, trace = trained(0)
rerun, _, _ = trained(1)
calm, its_optimizer, its_trace = trained(0, decay=0.02)
Path("after").mkdir()
beside = {"rerun": trained(1, decay=0.02)[0], "held_out": test_data, "trace": its_trace, "optimizer": its_optimizer}
noshadow.audit(calm, train_data, ids=patients, groups={"hospital": hospitals}, **beside).save("after/audit.parquet")
Path("policy.toml").write_text("fail_above = 0.9\nmax_records = 0\n")
