"""Of what an audit is: the same weights and records give the same checksums, others give others."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import Ridge

from noshadow import LastLayer, __version__, audit

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 3)), RNG.integers(0, 2, 30)


def provenance(*given, **options):
    return audit(*given, **options).metadata["provenance"]


def test_a_torch_model_is_told_by_its_weights_and_its_records():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    data = torch.from_numpy(X), torch.from_numpy(Y)
    first = provenance(model, data)
    assert first == provenance(model, data)
    assert (first["command"], first["versions"]["noshadow"]) == (None, __version__)
    assert {"python", "torch", "numpy"} <= set(first["versions"])
    with torch.no_grad():
        model[0].bias[0] += 1e-12
    second = provenance(model, data)
    assert second["weights_sha256"] != first["weights_sha256"]
    third = provenance(model, (data[0][:29], data[1][:29]))
    assert third["weights_sha256"] == second["weights_sha256"]
    assert third["data_sha256"] != second["data_sha256"]


def test_a_layer_is_the_same_in_memory_and_on_disk(tmp_path):
    layer = LastLayer(X.astype(np.float32), X[:, :2], Y)
    layer.save(tmp_path / "layer.safetensors")
    held, loaded = provenance(layer), provenance(LastLayer.load(tmp_path / "layer.safetensors"))
    assert held["data_sha256"] == loaded["data_sha256"]
    assert held["weights_sha256"] is None
    assert provenance(LastLayer(X[::-1], X[::-1, :2], Y[::-1]))["data_sha256"] != held["data_sha256"]
    known = LastLayer(X, X[:, :2], Y, bias=False, coefficients=np.eye(3)[:, :2])
    assert provenance(known)["weights_sha256"] is not None


def test_an_estimator_is_told_by_its_last_layer():
    one, other = (Ridge(alpha).fit(X, X[:, 0]) for alpha in (1.0, 2.0))
    assert provenance(one, (X, X[:, 0]))["weights_sha256"] != provenance(other, (X, X[:, 0]))["weights_sha256"]
