"""The few directions that carry the curvature: a preconditioner that all records share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.network.hessian import FlatNetwork, Hessian
from noshadow.network.row_products import dot
from noshadow.progress import Advance

__all__ = ["BASIS_BYTES", "CAUTION", "ENOUGH", "KRYLOV_BLOCK", "PROBES", "Basis", "grow_basis", "most_directions"]

PROBES = 64
CAUTION = 1.5  # with 64 probes, an error beyond the tolerance is estimated below tolerance/1.5 once in 3,000 times
KRYLOV_BLOCK = 16
ENOUGH = 0.98  # of the sampled records are within the tolerance: the basis stops growing
BASIS_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Basis:
    """A few directions that carry the curvature, shared by all records, and probes that tell how well it does."""

    directions: Tensor  # V, (k, size), orthonormal rows
    core: Tensor  # K = (VHVᵀ + sI)⁻¹ − I/s, (k, k)
    shift: float  # s = λ + δ
    probed: Tensor  # Hω, (PROBES, size)
    leak: Tensor  # V(H + sI)ω, (k, PROBES)

    def precondition(self, vectors: Tensor) -> Tensor:
        """M⁻¹ of each row: v/s + VᵀKVv."""
        return (vectors @ self.directions.T @ self.core) @ self.directions + vectors / self.shift

    def shortcut(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """gᵀx for x = M⁻¹g of each row, and ‖g − (H + sI)x‖, estimated by the probes and taken with caution.

        With c = Vg: gᵀx = gᵀg/s + cᵀKc, and ωᵀ(g − (H + sI)x) = −(Hω)ᵀg/s − ((H + sI)ω)ᵀVᵀKc.
        """
        inside = gradients @ self.directions.T
        solved = inside @ self.core
        scores = dot(gradients, gradients) / self.shift + dot(inside, solved)
        sketch = gradients @ self.probed.T / self.shift + solved @ self.leak
        return scores, CAUTION * sketch.double().square().mean(1).sqrt()


def most_directions(subspace: int | None, network: FlatNetwork, records: int, shift: float) -> int:
    """How far the basis may grow: as long as it costs less than half of one product a record, and fits in memory."""
    if shift == 0.0:
        return 0
    if subspace is not None:
        return min(subspace, network.size)
    room = BASIS_BYTES // (network.size * network.parameters[0].element_size())
    most = min(records // 2 - PROBES, room, network.size // 2)
    return most if most >= KRYLOV_BLOCK else 0


def grow_basis(
    hessian: Hessian,
    shift: float,
    gradients: Tensor,
    most: int,
    tolerance: float,
    generator: torch.Generator,
    advance: Advance,
) -> Basis | None:
    """Block Lanczos with full reorthogonalisation, until M⁻¹∇ℓ is within the tolerance for nearly all the gradients.

    None where VHVᵀ + sI is not positive definite: neither is H + sI then, and a preconditioner of no use.
    """
    size = gradients.shape[1]

    def draw(count: int) -> Tensor:
        return torch.randn((count, size), generator=generator, dtype=gradients.dtype).to(gradients.device)

    probes = draw(PROBES)
    probed = hessian(probes)
    advance(PROBES)
    directions, leak = gradients.new_empty((most, size)), gradients.new_empty((most, PROBES))
    projected = torch.zeros((most, most), dtype=torch.float64)  # VHVᵀ
    block = _orthonormal(draw(min(KRYLOV_BLOCK, most)))
    done, basis = 0, None
    while len(block):
        new = slice(done, done + len(block))
        directions[new] = block
        done = new.stop
        known = directions[:done]
        image = hessian(block)
        inside = (image @ known.T).double().cpu()
        projected[new, :done] = inside
        projected[:done, new] = inside.T
        values, vectors = torch.linalg.eigh(projected[:done, :done])
        if values[0] + shift <= 0.0:
            return None
        core = (vectors * (1.0 / (values + shift) - 1.0 / shift)) @ vectors.T
        leak[new] = block @ (probed + shift * probes).T
        basis = Basis(known, core.to(gradients), shift, probed, leak[:done])
        advance(len(block))
        close = basis.shortcut(gradients)[1] <= tolerance
        if done == most or close.double().mean() >= ENOUGH:
            break
        block = image[: most - done]
        for _ in range(2):  # once leaves the rounding errors of the projection, twice does not
            block = _orthonormal(block - (block @ known.T) @ known)
    return basis


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows that span those of ``rows``."""
    basis: Tensor = torch.linalg.qr(rows.T)[0]
    return basis.T
