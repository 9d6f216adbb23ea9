"""Gradients of a network's records, and products with the Hessian of their mean loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noshadow.errors import InputError
from noshadow.heads import Head
from noshadow.layer import LastLayer
from noshadow.tensors import as_tensor

__all__ = ["CHUNK_NUMBERS", "CHUNK_RECORDS", "FlatNetwork", "Hessian"]

CHUNK_NUMBERS = 2**18  # input numbers of the records whose gradient graph is held at a time: the graph stays in cache
CHUNK_RECORDS = 1024


class FlatNetwork:
    """A module and its training records: outputs, losses and gradients over the trainable parameters, in a row each."""

    def __init__(self, model: nn.Module, inputs: Any, targets: Any, head: Head) -> None:
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError("model: it has no trainable parameters; set requires_grad on those that were trained")
        self.sizes = [parameter.numel() for parameter in self.parameters]
        anchor = self.parameters[0]
        x = as_tensor(inputs, "inputs").to(anchor.device)
        if x.ndim == 0 or len(x) == 0:
            raise InputError("inputs: there are no records")
        self.inputs = x.to(anchor.dtype) if x.is_floating_point() else x
        y = as_tensor(targets, "targets")
        if y.ndim == 0 or len(y) != len(x):
            found = len(y) if y.ndim else "no"
            raise InputError(f"targets: {found} rows, but inputs has {len(x)}; they must be the same records")
        with torch.no_grad():
            outputs = torch.cat([self.outputs(part) for part in torch.split(torch.arange(len(x)), self.chunk)])
        checked = LastLayer(torch.zeros(len(x), 0), outputs, y, head=head.name)  # one set of checks for all front doors
        self.head, self.targets = checked.kind, checked.targets.to(anchor.device)
        if self.targets.is_floating_point():
            self.targets = self.targets.to(outputs.dtype)

    @property
    def n(self) -> int:
        return len(self.inputs)

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(self.sizes)

    @property
    def chunk(self) -> int:
        """Records that go through the network at a time."""
        return max(16, min(CHUNK_RECORDS, CHUNK_NUMBERS // max(1, self.inputs[0].numel())))

    def outputs(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.model(self.inputs[rows])
        return outputs.reshape(len(rows), -1)

    def gradient(self, rows: Tensor, *, graph: bool = False) -> tuple[Tensor, ...]:
        """Σ ∇ℓ over these records, a tensor for each parameter; with its graph if it is to be differentiated again.

        It starts from the head's own ∂ℓ/∂z, which loses nothing for saturated outputs, and whose derivative by
        autograd, ∂²ℓ/∂z², is finite there; autograd through the loss would give NaN.
        """
        outputs = self.outputs(rows)
        start = self.head.gradient(outputs if graph else outputs.detach(), self.targets[rows])
        return torch.autograd.grad(outputs, self.parameters, start, create_graph=graph, materialize_grads=True)

    def gradients(self, rows: Tensor) -> Tensor:
        """∇ℓ of each of these records, (len(rows), size)."""
        gradients = self.parameters[0].new_empty((len(rows), self.size))
        for row, gradient in zip(rows.unsqueeze(1), gradients, strict=True):
            torch.cat([part.flatten() for part in self.gradient(row)], out=gradient)
        _require_finite(gradients, "gradients")
        return gradients


class Hessian:
    """Products with the Hessian of the mean loss over some records, counted.

    The graph of the gradient is built once for a chunk of records and walked once for each vector. That is as fast as
    anything on a CPU: a walk over a chunk is made of large matrix products already, and to stack the vectors (vmap,
    batched gradients, a linearised program) only replaces the convolutions by slower ones.
    """

    def __init__(self, network: FlatNetwork, records: Tensor) -> None:
        self.network, self.records, self.products = network, records, 0

    def __call__(self, vectors: Tensor) -> Tensor:
        """H v for each row v of (k, size)."""
        network = self.network
        self.products += len(vectors)
        results = torch.zeros_like(vectors)
        pieces = [
            [piece.view_as(p) for piece, p in zip(torch.split(vector, network.sizes), network.parameters, strict=True)]
            for vector in vectors
        ]
        for rows in torch.split(self.records, network.chunk):
            gradient = network.gradient(rows, graph=True)
            curved = [k for k, part in enumerate(gradient) if part.requires_grad]  # the others do not depend on θ
            for result, piece in zip(results, pieces, strict=True):
                parts = torch.autograd.grad(
                    [gradient[k] for k in curved],
                    network.parameters,
                    [piece[k] for k in curved],
                    retain_graph=True,
                    materialize_grads=True,
                )
                result += torch.cat([part.flatten() for part in parts])
        _require_finite(results, "second derivatives")
        return results.div_(len(self.records))


def _require_finite(values: Tensor, what: str) -> None:
    if not torch.isfinite(values).all():
        raise InputError(f"model: its {what} overflow on these records; rescale the inputs, or pass model.double()")
