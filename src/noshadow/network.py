"""Full-network influence: IF_i = ∇ℓ_iᵀ (H + δI)⁻¹ ∇ℓ_i over every trainable parameter of a network.

H is the Hessian, at the parameters θ as they are, of the *mean* objective

    F(θ) = 1/n Σ_j ℓ(f_θ(x_j), y_j) + λ/2 ‖θ‖²

and δ the damping that keeps H + δI positive definite where the loss is not convex. Normalisation: with the *sum* of
the losses the Hessian is nH, and the damping nδ belongs to it; every score is then divided by n, which is the scale of
``noshadow.score`` (its ridge is Λ = n(λ + δ)). The scale is all that changes: ranks are the same.

H is never formed. H v is the derivative of ∇F along v, by autograd through the graph of the gradient; each system is
solved by conjugate gradients until ‖∇ℓ_i − (H + δI)x‖ ≤ tolerance ‖∇ℓ_i‖. Only the number ∇ℓ_iᵀx is wanted, and
conjugate gradients give it as they go, Σₖ αₖ rₖᵀzₖ: x is never kept, and the number's relative error is of the
order of tolerance².

All systems share one matrix, and with a heavy damping all but a few of its directions look like (λ + δ)I. A basis V
of those few, grown by block Lanczos from Hessian products, makes the preconditioner

    M⁻¹ = (I − VVᵀ)/(λ + δ) + V(VᵀHV + (λ + δ)I)⁻¹Vᵀ

with which x = M⁻¹∇ℓ_i is usually within the tolerance already, and the record needs no product of its own. How far
off x is can be told without one: for Gaussian probes ω with Hω known, ωᵀr = ωᵀ∇ℓ_i − (Hω + (λ + δ)ω)ᵀx, and the
mean square over the probes estimates ‖r‖². A record that is not clearly within the tolerance goes on to conjugate
gradients. For these shortcuts the relative error of a score is of the order of the tolerance, not of its square.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.extract.torch import evaluating
from noshadow.heads import Head, get_head
from noshadow.layer import LastLayer, as_tensor
from noshadow.progress import Advance, progress_bar

_CHUNK_NUMBERS = 2**18  # input numbers of the records whose gradient graph is held at a time: the graph stays in cache
_CHUNK_RECORDS = 1024
_PROBES = 64
_CAUTION = 1.5  # with 64 probes, an error beyond the tolerance is estimated below tolerance/1.5 once in 3,000 times
_KRYLOV_BLOCK = 16
_ENOUGH = 0.98  # of the sampled records are within the tolerance: the basis stops growing
_BASIS_BYTES = 2 * 2**30

Floats = NDArray[np.float64]
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class NetworkInfluence:
    """The influence of each scored record and how well its system was solved."""

    rows: NDArray[np.int64]
    """The scored records, (k,)."""
    scores: Floats
    """∇ℓᵀ(H + δI)⁻¹∇ℓ of each, (k,); H of the mean loss."""
    residuals: Floats
    """‖∇ℓ − (H + δI)x‖ / ‖∇ℓ‖ of each, (k,): estimated by random probes where ``iterations`` is 0."""
    iterations: NDArray[np.int64]
    """Steps of conjugate gradients of each, (k,): Hessian products of its own; 0: the shared basis was enough."""
    unconverged: tuple[int, ...]
    """Records whose residual is above the tolerance."""
    negative_curvature: tuple[int, ...]
    """Those of them that were stopped because H + δI is not positive definite: their scores are not to be trusted."""
    hessian_records: int
    """Records that the Hessian is the mean over."""
    subspace: int
    """Directions of the shared basis."""
    products: int
    """Hessian-vector products in all."""
    seconds: float


def network_influence(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    head: str = "softmax",
    weight_decay: float = 0.0,
    damping: float = 10.0,
    tolerance: float = 1e-2,
    max_iterations: int = 100,
    hessian_records: int | None = None,
    subspace: int | None = None,
    batch: int = 64,
    rows: Any = None,
    seed: int = 0,
    progress: bool | None = None,
) -> NetworkInfluence:
    """The influence ∇ℓᵀ(H + δI)⁻¹∇ℓ of training records over all trainable parameters of a network in eval mode.

    inputs           (n, ...) all training records, given to the model as one tensor
    targets          classes (n,), or values (n,) or (n, q) for "squared"
    head             the loss on the model's raw outputs: "softmax", "logistic" or "squared" (‖y − z‖², not halved)
    weight_decay     λ of λ/2‖θ‖² beside the mean loss
    damping          δ; 10 is the paper's
    tolerance        of the relative residual
    hessian_records  the Hessian's mean is over this many records, drawn at random once: an estimate, whose cost is in
                     proportion; None: all of them, the exact Hessian
    subspace         most directions of the basis that the records share; 0: each record is solved on its own, by plain
                     conjugate gradients; None: as many as pay
    batch            records whose systems are solved at a time; memory is 4 batch + 64 + subspace networks
    rows             records to score, as indices or a mask; None: all
    seed             of the random choices: the Hessian's records, the basis and its probes
    progress         show a bar; None: where stderr is a terminal

    The model is used in its own precision (float32 will do for a tolerance of 1e-2) and left as it was.
    """
    begin = time.perf_counter()
    for name, value in {"weight_decay": weight_decay, "damping": damping}.items():
        if not 0.0 <= value < math.inf:
            raise InputError(f"{name}: expected a finite number ≥ 0, got {value!r}")
    for name, count in {"max_iterations": max_iterations, "batch": batch}.items():
        if count < 1:
            raise InputError(f"{name}: expected at least 1, got {count!r}")
    if subspace is not None and subspace < 0:
        raise InputError(f"subspace: expected 0 (none) or more directions, got {subspace!r}")
    with evaluating(model), torch.enable_grad():
        network = _Network(model, inputs, targets, get_head(head))
        _require_tolerance(tolerance, network.parameters[0].dtype)
        chosen = _choose_rows(rows, network.n)
        generator = torch.Generator().manual_seed(seed)
        sample = _choose_sample(hessian_records, network.n, generator)
        shift = float(weight_decay) + float(damping)
        hessian = _Hessian(network, sample)
        basis = None
        most = _most_directions(subspace, network, len(chosen), shift)
        if most:
            picked = chosen[torch.randperm(len(chosen), generator=generator)[:batch]]
            with progress_bar("Curvature", most + _PROBES, progress) as advance:
                unit, _ = _normalised(network.gradients(picked))
                basis = _grow_basis(hessian, shift, unit, most, tolerance, generator, advance)
        solved = []
        with progress_bar("Influence", len(chosen), progress) as advance:
            for part in torch.split(chosen, batch):
                solved.append(_solve(hessian, shift, network.gradients(part), basis, tolerance, max_iterations))
                advance(len(part))
    residuals = np.concatenate([part.residuals.numpy() for part in solved])
    negative = torch.cat([part.negative for part in solved])
    result = NetworkInfluence(
        rows=chosen.numpy(),
        scores=np.concatenate([part.scores.numpy() for part in solved]),
        residuals=residuals,
        iterations=np.concatenate([part.iterations.numpy() for part in solved]),
        unconverged=tuple(chosen.numpy()[residuals > tolerance].tolist()),
        negative_curvature=tuple(chosen[negative].tolist()),
        hessian_records=len(sample),
        subspace=0 if basis is None else len(basis.directions),
        products=hessian.products,
        seconds=time.perf_counter() - begin,
    )
    _warn(result, damping, tolerance, max_iterations)
    return result


class _Network:
    """A module and its training records: outputs, losses and gradients over the trainable parameters, in a row each."""

    def __init__(self, model: nn.Module, inputs: Any, targets: Any, head: Head) -> None:
        self.model, self.head = model, head
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
        self.targets = checked.targets.to(anchor.device)
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
        return max(16, min(_CHUNK_RECORDS, _CHUNK_NUMBERS // max(1, self.inputs[0].numel())))

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


class _Hessian:
    """Products with the Hessian of the mean loss over some records, counted.

    The graph of the gradient is built once for a chunk of records and walked once for each vector. That is as fast as
    anything on a CPU: a walk over a chunk is made of large matrix products already, and to stack the vectors (vmap,
    batched gradients, a linearised program) only replaces the convolutions by slower ones.
    """

    def __init__(self, network: _Network, records: Tensor) -> None:
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


@dataclass(frozen=True)
class _Basis:
    """A few directions that carry the curvature, shared by all records, and probes that tell how well it does."""

    directions: Tensor  # V, (k, size), orthonormal rows
    core: Tensor  # K = (VHVᵀ + sI)⁻¹ − I/s, (k, k)
    shift: float  # s = λ + δ
    probed: Tensor  # Hω, (_PROBES, size)
    leak: Tensor  # V(H + sI)ω, (k, _PROBES)

    def precondition(self, vectors: Tensor) -> Tensor:
        """M⁻¹ of each row: v/s + VᵀKVv."""
        return (vectors @ self.directions.T @ self.core) @ self.directions + vectors / self.shift

    def shortcut(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """gᵀx for x = M⁻¹g of each row, and ‖g − (H + sI)x‖, estimated by the probes and taken with caution.

        With c = Vg: gᵀx = gᵀg/s + cᵀKc, and ωᵀ(g − (H + sI)x) = −(Hω)ᵀg/s − ((H + sI)ω)ᵀVᵀKc.
        """
        inside = gradients @ self.directions.T
        solved = inside @ self.core
        scores = _dot(gradients, gradients) / self.shift + _dot(inside, solved)
        sketch = gradients @ self.probed.T / self.shift + solved @ self.leak
        return scores, _CAUTION * sketch.double().square().mean(1).sqrt()


def _most_directions(subspace: int | None, network: _Network, records: int, shift: float) -> int:
    """How far the basis may grow: as long as it costs less than half of one product a record, and fits in memory."""
    if shift == 0.0:
        return 0
    if subspace is not None:
        return min(subspace, network.size)
    room = _BASIS_BYTES // (network.size * network.parameters[0].element_size())
    most = min(records // 2 - _PROBES, room, network.size // 2)
    return most if most >= _KRYLOV_BLOCK else 0


def _grow_basis(
    hessian: _Hessian,
    shift: float,
    gradients: Tensor,
    most: int,
    tolerance: float,
    generator: torch.Generator,
    advance: Advance,
) -> _Basis | None:
    """Block Lanczos with full reorthogonalisation, until M⁻¹∇ℓ is within the tolerance for nearly all the gradients.

    None where VHVᵀ + sI is not positive definite: neither is H + sI then, and a preconditioner of no use.
    """
    size = gradients.shape[1]

    def draw(count: int) -> Tensor:
        return torch.randn((count, size), generator=generator, dtype=gradients.dtype).to(gradients.device)

    probes = draw(_PROBES)
    probed = hessian(probes)
    advance(_PROBES)
    directions, leak = gradients.new_empty((most, size)), gradients.new_empty((most, _PROBES))
    projected = torch.zeros((most, most), dtype=torch.float64)  # VHVᵀ
    block = _orthonormal(draw(min(_KRYLOV_BLOCK, most)))
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
        basis = _Basis(known, core.to(gradients), shift, probed, leak[:done])
        advance(len(block))
        close = basis.shortcut(gradients)[1] <= tolerance
        if done == most or close.double().mean() >= _ENOUGH:
            break
        block = image[: most - done]
        for _ in range(2):  # once leaves the rounding errors of the projection, twice does not
            block = _orthonormal(block - (block @ known.T) @ known)
    return basis


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows that span those of ``rows``."""
    basis: Tensor = torch.linalg.qr(rows.T)[0]
    return basis.T


@dataclass(frozen=True)
class _Solved:
    scores: Tensor
    residuals: Tensor
    iterations: Tensor
    negative: Tensor


def _solve(
    hessian: _Hessian, shift: float, gradients: Tensor, basis: _Basis | None, tolerance: float, max_iterations: int
) -> _Solved:
    """The basis first, where there is one; conjugate gradients for the records that it leaves."""
    unit, norms = _normalised(gradients)
    count, device = len(unit), unit.device
    scores = torch.zeros(count, dtype=torch.float64, device=device)
    residuals = (norms > 0.0).double()
    iterations = torch.zeros(count, dtype=torch.int64, device=device)
    negative = torch.zeros(count, dtype=torch.bool, device=device)
    if basis is not None:
        scores, residuals = basis.shortcut(unit)
    left = (residuals > tolerance).nonzero().flatten()
    if len(left):
        rest = _conjugate_gradients(hessian, shift, unit[left], basis, tolerance, max_iterations)
        scores[left], residuals[left] = rest.scores, rest.residuals
        iterations[left], negative[left] = rest.iterations, rest.negative
    scores *= norms.square()
    return _Solved(scores.cpu(), residuals.cpu(), iterations.cpu(), negative.cpu())


def _conjugate_gradients(
    hessian: _Hessian, shift: float, unit: Tensor, basis: _Basis | None, tolerance: float, max_iterations: int
) -> _Solved:
    """gᵀx of (H + sI)x = g, from x = 0, for all rows g of ``unit`` (of length 1) at once, each with its own steps:

        α = rᵀz / pᵀ(H + sI)p,   gᵀx += α rᵀz,   r −= α(H + sI)p,   z = M⁻¹r,   p = z + (rᵀz / its last value) p

    where gᵀp = rᵀz because r is orthogonal to every earlier p. Rows that are done leave the block. A row that finds
    pᵀ(H + sI)p ≤ 0 stops where it is; if that is the first step, it gets gᵀg/s, the score without any curvature.
    """
    precondition: Product = basis.precondition if basis else torch.clone
    scores = torch.zeros(len(unit), dtype=torch.float64, device=unit.device)
    residuals = torch.ones_like(scores)
    iterations = torch.zeros_like(scores, dtype=torch.int64)
    negative = torch.zeros_like(scores, dtype=torch.bool)
    rounding = torch.finfo(unit.dtype).eps
    active = torch.arange(len(unit), device=unit.device)
    r, p = unit, precondition(unit)
    rz = _dot(r, p)
    for step in range(max_iterations):
        image = hessian(p).add_(p, alpha=shift)
        iterations[active] += 1
        curvature = _dot(p, image)
        falling = ~(curvature > rounding * _norms(p) * _norms(image))
        negative[active[falling]] = True
        if step == 0 and shift > 0.0:
            scores[falling] = 1.0 / shift
        alpha = torch.where(falling, 0.0, rz / torch.where(falling, 1.0, curvature))
        scores[active] += alpha * rz
        r = r - alpha.unsqueeze(1).to(r) * image
        residuals[active] = _norms(r)
        keep = ((residuals[active] > tolerance) & ~falling).nonzero().flatten()
        if not len(keep):
            break
        active, r, p, last = active[keep], r[keep], p[keep], rz[keep]
        z = precondition(r)
        rz = _dot(r, z)
        p = z.add_(p * (rz / last).unsqueeze(1).to(p))
    return _Solved(scores, residuals, iterations, negative)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb of each row."""
    products: Tensor = torch.linalg.vecdot(a, b)
    return products.double()


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.double()


def _normalised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1 (0 where there is nothing) and their lengths: squares of small gradients would underflow."""
    largest = rows.abs().amax(1, keepdim=True)
    scaled = rows / torch.where(largest > 0.0, largest, 1.0)
    norms = _norms(scaled)
    scaled /= torch.where(norms > 0.0, norms, 1.0).unsqueeze(1).to(rows)
    return scaled, norms * largest.squeeze(1).double()


def _require_finite(values: Tensor, what: str) -> None:
    if not torch.isfinite(values).all():
        raise InputError(f"model: its {what} overflow on these records; rescale the inputs, or pass model.double()")


def _require_tolerance(tolerance: float, dtype: torch.dtype) -> None:
    if not 0.0 < tolerance < 1.0:
        raise InputError(f"tolerance: expected a number between 0 and 1, got {tolerance!r}")
    if tolerance < 100.0 * torch.finfo(dtype).eps:
        raise InputError(f"tolerance: {tolerance:g} is beyond {dtype}; loosen it, or pass model.double()")


def _choose_rows(rows: Any, n: int) -> Tensor:
    if rows is None:
        return torch.arange(n)
    chosen = as_tensor(rows, "rows").cpu()
    if chosen.dtype == torch.bool and chosen.shape == (n,):
        chosen = chosen.nonzero().flatten()
    if chosen.ndim != 1 or len(chosen) == 0:
        raise InputError("rows: there are none; pass None for all records")
    if chosen.is_floating_point() or chosen.dtype == torch.bool:
        raise InputError(f"rows: expected indices or a mask of {n} booleans, got {chosen.dtype} of {len(chosen)}")
    outside = chosen[(chosen < 0) | (chosen >= n)].tolist()
    if outside:
        raise InputError(f"rows: {name_rows(outside)} not in 0 … {n - 1}")
    return chosen.to(torch.int64)


def _choose_sample(count: int | None, n: int, generator: torch.Generator) -> Tensor:
    if count is None:
        return torch.arange(n)
    if not 1 <= count <= n:
        raise InputError(f"hessian_records: expected 1 … {n} records or None for all, got {count!r}")
    return torch.randperm(n, generator=generator)[:count].sort().values


def _warn(result: NetworkInfluence, damping: float, tolerance: float, max_iterations: int) -> None:
    if result.negative_curvature:
        warnings.warn(
            f"{len(result.negative_curvature)} of {len(result.rows)} records met negative curvature "
            f"({name_rows(result.negative_curvature)}): H + δI is not positive definite at damping={damping:g}, and "
            "their scores are not to be trusted; raise the damping",
            NoshadowWarning,
            stacklevel=3,
        )
    slow = sorted(set(result.unconverged) - set(result.negative_curvature))
    if slow:
        warnings.warn(
            f"{len(slow)} of {len(result.rows)} records ({name_rows(slow)}) are not within tolerance={tolerance:g} "
            f"after {max_iterations} steps; raise max_iterations or the damping",
            NoshadowWarning,
            stacklevel=3,
        )
