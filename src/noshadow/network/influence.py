"""The influence of training records over all parameters of a network."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.extract.torch import evaluating
from noshadow.heads import get_head
from noshadow.network.basis import PROBES, grow_basis, most_directions
from noshadow.network.hessian import FlatNetwork, Hessian
from noshadow.network.row_products import normalised
from noshadow.network.solve import solve
from noshadow.progress import Progress, progress_bar
from noshadow.tensors import as_tensor

__all__ = ["Floats", "NetworkInfluence", "network_influence"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkInfluence:
    """The influence of each scored record and how well its system was solved.

    Examples
    --------
    >>> import torch
    >>> from noshadow import network
    >>> x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    >>> found = network.network_influence(torch.nn.Linear(3, 2), x, y, rows=[4, 7], progress=False)
    >>> found.rows.tolist(), found.scores.shape, bool((found.residuals < 0.1).all()), found.hessian_records
    ([4, 7], (2,), True, 20)
    """

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
    progress: Progress = None,
) -> NetworkInfluence:
    r"""The influence of training records over all trainable parameters of a network in eval mode.

    .. math::

        \nabla \ell_i^\top (H + \delta I)^{-1} \nabla \ell_i

    with the Hessian H of the mean objective; the package's docstring has the normalisation and how the systems are
    solved.

    Parameters
    ----------
    model : torch.nn.Module
        Used in its own precision (float32 will do for a tolerance of 1e-2) and left as it was.
    inputs : array (n, ...)
        All training records, given to the model as one tensor.
    targets : array (n,) or (n, q)
        Classes, or values for "squared".
    head : "softmax", "logistic" or "squared"
        The loss on the model's raw outputs; squared error is ‖y − z‖², not halved.
    weight_decay : float
        λ of λ/2‖θ‖² beside the mean loss.
    damping : float
        δ; 10 is the paper's.
    tolerance : float
        Of the relative residual.
    max_iterations : int
        Steps of conjugate gradients at most.
    hessian_records : int, optional
        The Hessian's mean is over this many records, drawn at random once: an estimate, whose cost is in proportion;
        None: all of them, the exact Hessian.
    subspace : int, optional
        Most directions of the basis that the records share; 0: each record is solved on its own, by plain conjugate
        gradients; None: as many as pay.
    batch : int
        Records whose systems are solved at a time; memory is 4 batch + 64 + subspace networks.
    rows : array of indices or (n,) booleans, optional
        Records to score; None: all.
    seed : int
        Of the random choices: the Hessian's records, the basis and its probes.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.

    Returns
    -------
    NetworkInfluence
        Scores are in units of the loss; times n they are those of the sum of the losses.

    Raises
    ------
    InputError
        Options out of range, records that the model does not take, a tolerance beyond its precision.

    Warns
    -----
    NoshadowWarning
        Records that met negative curvature, or whose systems are not solved to the tolerance.

    Examples
    --------
    >>> import torch
    >>> from noshadow import network
    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> result = network.network_influence(torch.nn.Linear(3, 2), x, y, progress=False)
    >>> result.scores.shape, bool((result.scores > 0).all()), result.unconverged
    ((20,), True, ())
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
        network = FlatNetwork(model, inputs, targets, get_head(head))
        _require_tolerance(tolerance, network.parameters[0].dtype)
        chosen = _choose_rows(rows, network.n)
        generator = torch.Generator().manual_seed(seed)
        sample = _choose_sample(hessian_records, network.n, generator)
        shift = float(weight_decay) + float(damping)
        hessian = Hessian(network, sample)
        basis = None
        most = most_directions(subspace, network, len(chosen), shift)
        if most:
            picked = chosen[torch.randperm(len(chosen), generator=generator)[:batch]]
            with progress_bar("Curvature", most + PROBES, progress) as advance:
                unit, _ = normalised(network.gradients(picked))
                basis = grow_basis(hessian, shift, unit, most, tolerance, generator, advance)
        solved = []
        with progress_bar("Influence", len(chosen), progress) as advance:
            for part in torch.split(chosen, batch):
                solved.append(solve(hessian, shift, network.gradients(part), basis, tolerance, max_iterations))
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
