"""Of what an audit is, by checksums: the model's weights, the records, the versions."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noshadow._version import __version__
from noshadow.layer import LastLayer
from noshadow.passes.store import layer_identity

__all__ = ["data_sha256", "provenance_of", "versions", "weights_sha256"]

_LIBRARIES = ("numpy", "pandas", "scipy", "sklearn", "safetensors", "torch", "transformers")


def provenance_of(model: Any, layer: LastLayer, command: str | None = None) -> dict[str, Any]:
    """What an audit's metadata keep under ``provenance``.

    weights_sha256  of all tensors of a torch module's state dict; else of the last layer's own parameters; None where
                    they are not known
    data_sha256     of the records as the last layer sees them: features, outputs, targets and weights, in their order
    versions        of Python, noshadow and the libraries that were loaded
    command         the command line, where there was one
    file            of the file that the layer was read from: its checksum, when and with what it was written; or None
    """
    origin = model.origin if isinstance(model, LastLayer) else None
    return {
        "weights_sha256": weights_sha256(model, layer),
        "data_sha256": data_sha256(layer),
        "versions": versions(),
        "command": command,
        "file": None if origin is None or origin.file is None else dict(origin.file),
    }


def weights_sha256(model: Any, layer: LastLayer) -> str | None:
    """The digest of a model's parameters; see ``provenance_of``."""
    if isinstance(model, LastLayer) and model.origin is not None and model.origin.weights_sha256 is not None:
        return model.origin.weights_sha256
    if isinstance(model, torch.nn.Module):
        held = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        return None if any(value.is_meta for value in held.values()) else _digest(held)  # they lie elsewhere
    return None if layer.coefficients is None else _digest({"coefficients": layer.coefficients})


def data_sha256(layer: LastLayer) -> str:
    """The digest of a layer's records, read once, some at a time; the same in memory and from a file."""
    return hashlib.sha256(json.dumps(layer_identity(layer)["records"]).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of Python, noshadow and the libraries that this process has loaded."""
    found = {"python": platform.python_version(), "noshadow": __version__}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Over names, types, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        values = value.detach().cpu()
        values = values.to_dense() if values.layout != torch.strided else values
        values = values.dequantize() if values.is_quantized else values
        digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        digest.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
