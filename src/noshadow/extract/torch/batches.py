"""What of a batch goes into the model, and what is its target: read off the signature of the model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noshadow.errors import InputError

__all__ = ["LABEL_KEYS", "SECOND", "Batch", "Signature", "is_placed", "listed", "split"]

LABEL_KEYS = ("labels", "label", "label_ids", "targets", "target", "y")
SECOND = "element 1"
"""What the second element of a record is called."""
_REMEDY = "pass a Dataset of (x, y), or of dictionaries with the names of forward's arguments and 'labels'"


@dataclass(frozen=True)
class Signature:
    """The arguments of a model's forward: those it must have, tensors it may have (default None), all names."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    names: frozenset[str]
    any_positional: bool = False
    any_keyword: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Signature:
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):  # no signature to be had: a forward that is not written in Python
            return cls((), (), frozenset(), any_positional=True, any_keyword=True)
        kinds = inspect.Parameter
        named = [p for p in parameters if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
        return cls(
            tuple(p.name for p in named if p.default is kinds.empty and p.kind is not kinds.KEYWORD_ONLY),
            tuple(p.name for p in named if p.default is None),
            frozenset(p.name for p in named if p.kind is not kinds.POSITIONAL_ONLY),
            any(p.kind is kinds.VAR_POSITIONAL for p in parameters),
            any(p.kind is kinds.VAR_KEYWORD for p in parameters),
        )


@dataclass(frozen=True)
class Batch:
    """A batch as the model takes it, and the tensors that may be its targets, by what they are called in the data."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    candidates: dict[str, Tensor]
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of records."""
        return len(next(iter(self.candidates.values())))

    def placed(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Inputs on the model's device, and floating-point ones in its precision."""

        def place(value: Tensor) -> Tensor:
            return value.to(device, dtype if value.is_floating_point() else value.dtype)

        args, kwargs = (_each_tensor(part, place) for part in (self.args, self.kwargs))
        return Batch(args, kwargs, self.candidates, self.notes)

    def rows_not_finite(self) -> list[int]:
        """Records of the batch whose inputs hold NaN or an infinity."""
        bad = torch.zeros(self.count, dtype=torch.bool)

        def look(value: Tensor) -> Tensor:
            if value.is_floating_point() and value.ndim and len(value) == len(bad):
                bad.logical_or_((~torch.isfinite(value.cpu())).reshape(len(bad), -1).any(1))
            return value

        _each_tensor((self.args, self.kwargs), look)
        return bad.nonzero().flatten().tolist()


def split(batch: Any, signature: Signature) -> Batch:
    """Inputs and possible targets of (x, …, y, …), or of a mapping with the targets under 'labels' or a like name."""
    if isinstance(batch, Mapping):
        key = _label_key(batch)
        rest = {name: value for name, value in batch.items() if name != key}
        args, kwargs, notes = _named_inputs(rest, batch, signature)
        return Batch(args, kwargs, _candidates({repr(key): batch[key]}), notes)
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return _split_tuple(tuple(batch), signature)
    raise InputError("data: each record must be (x, y), or a mapping with its target under 'labels'")


def _label_key(batch: Mapping[str, Any]) -> str:
    keys = [key for key in LABEL_KEYS if key in batch]
    if not keys:
        raise InputError(
            f"data: records are mappings with the keys {listed(batch)}, none of which is a target; call it 'labels'"
        )
    if len(keys) > 1:
        raise InputError(f"data: the keys {listed(keys)} could each be the target; keep one of them")
    return keys[0]


def _named_inputs(
    values: Mapping[str, Any], batch: Any, signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Columns go to the arguments of their name; a single one that has no namesake goes to the first argument."""
    kwargs = {name: value for name, value in values.items() if name in signature.names}
    others = {name: value for name, value in values.items() if name not in signature.names and _is_numeric(value)}
    missing = [name for name in signature.required if name not in kwargs]
    if not kwargs and not signature.names and signature.any_keyword:
        return (), dict(values), ()
    if not kwargs and len(missing) <= 1 and len(others) == 1:
        return tuple(others.values()), {}, ()
    if not kwargs and len(missing) == 1 and len(others) > 1:
        return (batch,), {}, ()  # a forward with one argument that takes the batch as it is
    if missing or not kwargs:
        raise InputError(
            f"data: records have the columns {listed(values)}, the model's forward takes "
            f"{listed(missing or sorted(signature.names))}; rename the columns to its arguments"
        )
    note = f"data: the model's forward has no argument for {listed(others)}, left out" if others else None
    return (), kwargs, (note,) if note else ()


def _split_tuple(batch: tuple[Any, ...], signature: Signature) -> Batch:
    needed, kwargs, notes, masks = max(len(signature.required), 1), {}, [], []
    first = batch[0]
    if len(batch) == 2 and isinstance(first, (tuple, list)) and len(first) >= needed > 1:
        return Batch(tuple(first), {}, _candidates({SECOND: batch[1]}))
    if needed >= len(batch):
        raise InputError(
            f"data: records have {len(batch)} elements, and the model's forward takes {needed} inputs "
            f"({', '.join(signature.required)}), which leaves no target; {_REMEDY}"
        )
    if len(batch) > 2:
        if not signature.required and signature.any_positional:
            raise InputError(
                f"data: records have {len(batch)} elements and the model's forward takes any number; {_REMEDY}"
            )
        masks = [k for k in range(needed, len(batch) - 1) if _looks_like_tokens(batch[k], batch[0])]
        if masks == [needed] and "attention_mask" in signature.optional and _is_mask(batch[needed]):
            kwargs = {"attention_mask": batch[needed]}
            notes = [f"data: element {needed} of each record was passed to the model as its attention_mask"]
        elif masks:
            raise InputError(
                f"data: records have {len(batch)} elements, and which argument of the model's forward "
                f"{'is' if len(masks) == 1 else 'are'} element {', '.join(map(str, masks))} is not clear; {_REMEDY}"
            )
    if needed == 1 and isinstance(first, Mapping):
        args, named, more = _named_inputs(first, first, signature)
        kwargs, notes = {**named, **kwargs}, [*notes, *more]
    else:
        args = batch[:needed]
    rest = {f"element {k}": batch[k] for k in range(needed + len(masks), len(batch))}
    return Batch(args, kwargs, _candidates(rest), tuple(notes))


def _candidates(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those that are numbers, as tensors; at least one must be."""
    found = {}
    for name, value in values.items():
        if _is_numeric(value):
            tensor = torch.as_tensor(value).detach()
            found[name] = tensor.unsqueeze(0) if tensor.ndim == 0 else tensor
    if not found:
        kinds = ", ".join(f"{name} of type {type(value).__name__}" for name, value in values.items())
        raise InputError(f"data: the targets are not numbers ({kinds}); encode them as the model was trained with them")
    counts = {name: len(value) for name, value in found.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"data: {', '.join(f'{name} has {count} rows' for name, count in counts.items())} in a batch")
    return found


def _is_numeric(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return True
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, (int, float)) for item in value)
    return isinstance(value, (int, float))


def _looks_like_tokens(value: Any, tokens: Any) -> bool:
    """A mask or the like: whole numbers in the shape of the token ids."""
    return (
        isinstance(value, Tensor)
        and isinstance(tokens, Tensor)
        and value.ndim >= 2
        and value.shape == tokens.shape
        and not tokens.is_floating_point()
        and not value.is_floating_point()
    )


def _is_mask(value: Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all()) and bool((value == 1).any(-1).all())


def is_placed(value: Tensor, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether an input is on the model's device and, if it is floating-point, in its precision."""
    return value.device == device and (value.dtype == dtype or not value.is_floating_point())


def _each_tensor(values: Any, do: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(values, Tensor):
        return do(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return do(torch.from_numpy(values))
    if isinstance(values, Mapping):
        return {name: _each_tensor(value, do) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        parts = [_each_tensor(value, do) for value in values]
        return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
    return values


def listed(names: Any) -> str:
    """Names as messages show them: quoted, with commas."""
    return ", ".join(repr(name) for name in names)
