"""A folder with the arrays of a layer, and a torch model."""

from pathlib import Path

import numpy as np
import torch

rng = np.random.default_rng(0)
Path("folder").mkdir()
features, labels = rng.normal(size=(200, 5)), rng.integers(0, 3, 200)
np.save("folder/features.npy", features)
np.save("folder/outputs.npy", features @ rng.normal(size=(5, 3)))
np.save("folder/targets.npy", labels)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
data = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
