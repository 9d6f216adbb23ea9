"""Converged answers for single records of a softmax head, with no code in common with the library but its basis.

    influence  gᵀ U x̃ of  H U = x̃gᵀ             newton  the same of  (H − x̃x̃ᵀ ⊗ W) U = x̃gᵀ

by conjugate gradients on products with the exact Hessian, H V = X̃ᵀ[p∘(X̃V − (p·X̃V))] + ΛV, in single precision. A score
is bᵀH⁻¹b, of which conjugate gradients have the square of their relative error: a residual of 10⁻³ gives six digits.
The preconditioner is the library's Kronecker basis, which decides how many steps it takes and not where they end.

What a record cannot have is known long before: with b the right-hand side, r what is left of it after some steps and u
the solution so far, b = Hu + r, bᵀH⁻¹b = bᵀu + uᵀr + rᵀH⁻¹r ≤ bᵀu + uᵀr + ‖r‖²/Λ, because no eigenvalue of H is below
the ridge Λ, with the record or without it. A record whose bound falls below the scores of the top is not of the top;
for most records of a network that fits them that is so before the first step, by ‖x̃‖²‖g‖²/Λ, where u = 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from scale_heads import Head

KINDS = ("newton", "influence")
_BOUND = "newton bound"  # of records that were excluded before they converged
_ROUNDING = 1e-3  # of a bound, in single precision
_ROWS_BYTES = 128 * 2**20


class ExactAnswers:
    """Influence and Newton score of records of a head; each is kept in a file as soon as it is there."""

    def __init__(
        self,
        head: Head,
        basis: Sequence[Tensor],
        path: Path,
        tolerance: float = 1e-3,
        blocks: Tensor | None = None,
        most_steps: int = 200,
    ) -> None:
        """basis: vectors (P, k), frame (m, r) and eigenvalues (k, r) of the preconditioner; blocks (m, k, k): inverse
        Hessians of the classes, in place of the eigenvalues."""
        x = head.features.float()
        self._x = torch.cat([x, torch.ones(len(x), 1)], 1)
        self._p = torch.softmax(head.outputs.double(), 1).float()
        self._ridge, self._targets, self._outputs = head.ridge, head.targets, head.outputs
        self._large = self._x.shape[1] * self._p.shape[1] > 10**6  # a step takes a good part of a minute
        self._vectors, self._frame, self._values = basis[0], basis[1], basis[2].clamp(min=1e-30)
        self._blocks = blocks
        self._path, self.tolerance, self._most_steps = path, tolerance, most_steps
        self.known: dict[str, dict[int, dict[str, Any]]] = {kind: {} for kind in (*KINDS, _BOUND)}
        if path.exists():
            for line in path.read_text().splitlines():
                one = json.loads(line)
                self.known[one["kind"]][one["row"]] = one

    def __call__(self, kind: str, rows: Iterable[int], batch: int) -> np.ndarray:
        """The scores of some records, those that are missing so many at a time."""
        rows = [int(row) for row in rows]
        missing = [row for row in rows if row not in self.known[kind]]
        for some in torch.split(torch.tensor(missing, dtype=torch.int64), batch):
            if len(some):
                self._add(kind, some)
        return np.array([self.known[kind][row]["score"] for row in rows])

    def excluded(self, rows: Iterable[int], edge: float, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Of some records: bounds of their Newton scores that are below ``edge``, NaN where they have none, and their
        converged scores, NaN where they were excluded. Without a ridge nothing is."""
        rows = [int(row) for row in rows]
        open_ = [row for row in rows if row not in self.known["newton"]]
        open_ = [row for row in open_ if not self.known[_BOUND].get(row, {"score": np.inf})["score"] < edge]
        if self._ridge:
            open_ = self._far_below(open_, edge)
        for some in torch.split(torch.tensor(open_, dtype=torch.int64), batch):
            if len(some):
                self._add("newton", some, edge if self._ridge else None)
        bounds, scores = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        for k, row in enumerate(rows):
            if row in self.known["newton"]:
                scores[k] = self.known["newton"][row]["score"]
            else:
                bounds[k] = self.known[_BOUND][row]["score"]
        return bounds, scores

    def _far_below(self, rows: Sequence[int], edge: float) -> list[int]:
        """The records that their bound without a step does not exclude, the bounds of the others kept."""
        chosen = torch.tensor(rows, dtype=torch.int64)
        pull = torch.softmax(self._outputs[chosen].double(), 1)  # of 1 − 10⁻⁸ single precision leaves nothing
        pull[torch.arange(len(chosen)), self._targets[chosen]] -= 1.0
        right = self._x[chosen].double().square().sum(1) * pull.square().sum(1)
        bounds = (1.0 + _ROUNDING) * right / self._ridge
        below = bounds < edge
        with open(self._path, "a") as file:
            for row, bound in zip(chosen[below].tolist(), bounds[below].tolist(), strict=True):
                self._keep(file, {"kind": _BOUND, "row": row, "score": bound, "residual": 1.0, "steps": 0})
        return chosen[~below].tolist()

    def _keep(self, file: TextIO, one: dict[str, Any]) -> None:
        file.write(json.dumps(one) + "\n")
        self.known[one["kind"]][one["row"]] = one

    def effort(self, kind: str) -> dict[str, float]:
        """Of all that are known: the largest relative residual and the mean number of steps."""
        found = self.known[kind].values()
        return {
            "records": len(found),
            "residual": max(one["residual"] for one in found),
            "steps": float(np.mean([one["steps"] for one in found])),
        }

    def _add(self, kind: str, rows: Tensor, edge: float | None = None) -> None:
        x, p = self._x[rows], self._p[rows]
        pull = p.clone()
        pull[torch.arange(len(rows)), self._targets[rows]] -= 1.0
        right = x.unsqueeze(2) * pull.unsqueeze(1)
        own = (x, p) if kind == "newton" else None
        state = self._path.with_name(f"{self._path.stem}-{kind}-{int(rows[0])}-{len(rows)}.npz")
        solution, residual, steps, bounds = self._solve(right, own, state, edge)
        scores = ((x.unsqueeze(1) @ solution).squeeze(1).double() * pull.double()).sum(1)
        with open(self._path, "a") as file:
            for row, score, left, taken, bound in zip(
                *(one.tolist() for one in (rows, scores, residual, steps, bounds)), strict=True
            ):
                out = left > self.tolerance and edge is not None and bound < edge
                one = {"kind": _BOUND if out else kind, "row": row, "score": bound if out else score}
                self._keep(file, {**one, "residual": left, "steps": taken})

    def _times(self, v: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
        """H V for V (R, P, m), less the own record's term."""
        count, columns, m = v.shape
        wide = v.permute(1, 0, 2).reshape(columns, count * m)
        total = torch.zeros_like(wide)
        for start in range(0, len(self._x), max(1, _ROWS_BYTES // (4 * count * m))):
            rows = slice(start, start + max(1, _ROWS_BYTES // (4 * count * m)))
            x, p = self._x[rows], self._p[rows]
            moved = (x @ wide).reshape(len(x), count, m)
            moved -= torch.bmm(moved, p.unsqueeze(2))
            moved *= p.unsqueeze(1)
            total.addmm_(x.T, moved.reshape(len(x), count * m))
        image = total.reshape(columns, count, m).permute(1, 0, 2) + self._ridge * v
        if own is not None:
            x, p = own
            moved = (x.unsqueeze(1) @ v).squeeze(1)
            moved = p * (moved - (p * moved).sum(1, keepdim=True))
            image -= x.unsqueeze(2) * moved.unsqueeze(1)
        return image

    def _precondition(self, residual: Tensor) -> Tensor:
        if self._blocks is None:
            inner = (self._vectors.T @ residual @ self._frame) / self._values
            return self._vectors @ inner @ self._frame.T
        inner = torch.bmm(self._blocks, (self._vectors.T @ residual).permute(2, 1, 0)).permute(2, 1, 0)
        found = self._vectors @ inner
        return found - found.mean(2, keepdim=True)

    def _solve(
        self, right: Tensor, own: tuple[Tensor, Tensor] | None, state: Path, edge: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solutions, relative residuals, steps, and bounds of the scores, where a system with one below ``edge`` ends;
        where it stands after each step is kept in a file."""
        solution = torch.zeros_like(right)
        left, steps = torch.zeros(len(right)), torch.zeros(len(right), dtype=torch.int64)
        active, bounds = torch.arange(len(right)), torch.full((len(right),), torch.inf, dtype=torch.float64)
        residual, direction = right, self._precondition(right)
        size = start = _dot(right, direction)
        if state.exists():
            with np.load(state) as kept:
                solution, left, steps, active, residual, direction, size, start = (
                    torch.from_numpy(kept[name]) for name in kept.files
                )
        while len(active):
            term = None if own is None else (own[0][active], own[1][active])
            image = self._times(direction, term)
            alpha = (size / _dot(direction, image)).reshape(-1, 1, 1)
            solution[active] += alpha * direction
            residual = residual - alpha * image
            scaled = self._precondition(residual)
            now = _dot(residual, scaled)
            steps[active] += 1
            left[active] = (now / start).clamp(min=0).sqrt()
            direction = scaled + (now / size).reshape(-1, 1, 1) * direction
            size = now
            going = (left[active] > self.tolerance) & (steps[active] < self._most_steps)
            if edge is not None:
                u, r = solution[active].double(), residual.double()
                bound = _dot(right[active].double() + r, u) + _dot(r, r) / self._ridge
                bounds[active] = (1.0 + _ROUNDING) * bound
                going &= ~(bounds[active] < edge)
            if not bool(going.all()):
                active, residual, direction = active[going], residual[going], direction[going]
                size, start = size[going], start[going]
            if self._large:
                temporary = state.with_name(f"making-{state.name}")
                np.savez(
                    temporary,
                    *(one.numpy() for one in (solution, left, steps, active, residual, direction, size, start)),
                )
                temporary.rename(state)
        state.unlink(missing_ok=True)
        return solution, left, steps, bounds


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
