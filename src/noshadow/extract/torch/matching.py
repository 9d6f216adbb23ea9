"""The layer whose output is the model's output, and each record's row in what it saw and gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from noshadow.errors import InputError
from noshadow.extract.torch.batches import listed
from noshadow.extract.torch.layers import is_linear, refuse_quantised
from noshadow.extract.torch.watching import Call

__all__ = ["Match", "best_match", "find_head", "named_outputs", "settled"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: z,
    "sigmoid": torch.sigmoid,
    "softmax": lambda z: torch.softmax(z, -1),
    "log_softmax": lambda z: torch.log_softmax(z, -1),
}


@dataclass(frozen=True)
class Match:
    """A call of a linear layer that made an output of the model.

    x, z         (count, p) and (count, m): features and outputs of the layer, a row per record; x is None where the
                 layer gives every record several rows, all of which the model returns
    activations  through which of them the layer's output is the model's
    same_memory  the model returned the very tensor that the layer gave
    doubtful     for some record several tokens gave the model's output: which of them made it is not known yet
    """

    call: Call
    x: Tensor | None
    z: Tensor
    activations: frozenset[str]
    same_memory: bool
    doubtful: bool = False

    @property
    def rank(self) -> tuple[bool, bool]:
        return self.same_memory, "identity" in self.activations


def named_outputs(result: Any, count: int, output: str | int | None) -> dict[str | int | None, Tensor]:
    """The tensors with a row per record in what a model returned, by key, attribute or position; None: itself."""
    if isinstance(result, Tensor):
        if output is not None:
            raise InputError(f"output: the model returns a single tensor, so there is no {output!r}; leave output out")
        return {None: result}
    if isinstance(result, Mapping):
        parts = dict(result.items())
    elif isinstance(result, (tuple, list)) and not hasattr(result, "_fields"):
        parts = dict(enumerate(result))
    else:
        parts = result._asdict() if hasattr(result, "_asdict") else dict(getattr(result, "__dict__", {}))
    tensors = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    if output is not None:
        position = list(parts)[output] if isinstance(output, int) and -len(parts) <= output < len(parts) else output
        chosen = tensors.get(position if output not in tensors else output)
        if chosen is None:
            raise InputError(f"output: the model returns no tensor {output!r}; choose one of {listed(tensors)}")
        return {output: chosen}
    found = {name: value for name, value in tensors.items() if value.ndim and value.is_floating_point()}
    if not found:
        raise InputError(f"model: its output is a {type(result).__name__} without a tensor of outputs")
    return {name: value for name, value in found.items() if len(value) == count} or found


def find_head(
    calls: list[Call], outputs: Mapping[str | int | None, Tensor], count: int, layer: str | None
) -> tuple[str | int | None, Match]:
    """The output to audit and the call that made it; where there are several, the user is asked."""
    found = {}
    for name, result in outputs.items():
        match = best_match([call for call in calls if layer is None or call.name == layer], result, count)
        if match is not None:
            found[name] = match
    for refused in [match for match in found.values() if match.x is None]:
        found = {name: match for name, match in found.items() if match.x is not None}
        if not found:
            raise _several_rows(refused.call, count)
    if len({id(match.call) for match in found.values()}) == 1:  # one layer's, e.g. logits and their softmax
        name = max(found, key=lambda name: found[name].rank)
        found = {name: found[name]}
    if len(found) > 1:
        logits = [name for name in found if "logits" in str(name)]
        if len(logits) == 1:
            found = {logits[0]: found[logits[0]]}
    if not found:
        raise _no_head(calls, outputs, count, layer)
    if len(found) > 1:
        choices = ", ".join(f"{name!r} (layer {match.call.name!r})" for name, match in found.items())
        raise InputError(f"output: the model returns the outputs of several layers; choose one: output= {choices}")
    name, match = next(iter(found.items()))
    return name, match


def best_match(calls: list[Call], result: Tensor, count: int) -> Match | None:
    """The call whose output is the result: the same memory first, then the same values, then through an activation."""
    matches = []
    for call in calls:
        match = _match(call, result, count)
        if match is not None:
            refuse_quantised(call.name, call.module)
            if is_linear(call.module):
                matches.append(match)
    if not matches:
        return None
    best = max(match.rank for match in matches)
    first, *others = [match for match in matches if match.rank == best]
    for other in others:
        if other.call.module is not first.call.module:
            raise InputError(
                f"layer: {first.call.name!r} and {other.call.name!r} both give the model's outputs; choose one of them "
                "with layer="
            )
        if first.x is not None and other.x is not None and not torch.equal(first.x, other.x):
            raise InputError(
                f"model: layer {first.call.name!r} gives the same outputs in several calls with different inputs, so "
                "which of them made the model's output cannot be told; build a LastLayer from arrays"
            )
    return first


def _match(call: Call, result: Tensor, count: int) -> Match | None:
    x, z = call.input, call.output
    if x is None or z is None or not result.ndim or len(result) != count or not result.is_floating_point():
        return None
    z = z.dequantize() if z.is_quantized else z
    result = result.dequantize() if result.is_quantized else result
    if not z.is_floating_point() or not z.numel() or z.device != result.device:
        return None
    same = z.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
    flat = result.reshape(count, -1)
    if z.numel() == result.numel() and len(z) == count:
        activations = _activations(z.reshape(count, -1), flat)
        if not activations:
            return None
        return Match(call, _row_per_record(x, z, count), z.reshape(count, -1), activations, same)
    if z.ndim == 3 and x.ndim == 3 and z.shape[-1] == flat.shape[1]:
        for swap in (False, True):
            tokens, seen = (z.transpose(0, 1), x.transpose(0, 1)) if swap else (z, x)
            picked = _picked_tokens(tokens, flat) if len(tokens) == count and len(seen) == count else None
            if picked is not None:
                where, doubtful, activations = picked
                rows = torch.arange(count, device=z.device)
                return Match(call, seen[rows, where], tokens[rows, where], activations, same, doubtful)
    return None


def _row_per_record(x: Tensor, z: Tensor, count: int) -> Tensor | None:
    """(count, p) from (count, p), (count, 1, p) or, for a convolution, (count, p, 1, 1); None from anything larger."""
    one_each = len(x) == count and x.ndim == z.ndim >= 2 and sum(size > 1 for size in z.shape[1:]) <= 1
    return x.reshape(count, -1) if one_each else None


def _picked_tokens(tokens: Tensor, result: Tensor) -> tuple[Tensor, bool, frozenset[str]] | None:
    """For each record the first token (count,) whose output is the model's, whether another is too, and through what.

    tokens (count, T, m), result (count, m).
    """
    for name in _possible(result):
        made = _ACTIVATIONS[name](tokens.to(result.dtype))
        same = (_close(made, result.unsqueeze(1), name)).all(-1)
        if bool(same.any(1).all()):
            return same.to(torch.int8).argmax(1), bool((same.sum(1) > 1).any()), frozenset([name])
    return None


def _activations(z: Tensor, result: Tensor) -> frozenset[str]:
    """Through which activations z (count, m) is the result; where it is the result as it is, no other is asked."""
    if bool((z == result).all()):
        return frozenset(["identity"])
    made = {name: _ACTIVATIONS[name](z.to(result.dtype)) for name in _possible(result)}
    return frozenset(name for name, values in made.items() if bool(_close(values, result, name).all()))


def _possible(result: Tensor) -> list[str]:
    return [name for name in _ACTIVATIONS if result.shape[-1] > 1 or "softmax" not in name]


def _close(made: Tensor, result: Tensor, activation: str) -> Tensor:
    """Element-wise: equal as it is, to rounding through an activation."""
    if activation == "identity":
        return made == result
    tolerance = max(1e-5, 4 * torch.finfo(result.dtype).eps)
    return torch.isclose(made, result, rtol=tolerance, atol=1e-7)


def settled(match: Match, run_again: Callable[[], Tensor]) -> Match:
    """The match with each record's own token: the batch runs once more with the layer's output replaced by a count.

    What the model then returns for a record is the position, among all rows of the layer, of the one it picks.
    """
    x, z = match.call.input, match.call.output
    if not match.doubtful or x is None or z is None:
        return match

    def count_rows(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        rows = torch.arange(output.shape[0] * output.shape[1], device=output.device, dtype=torch.float32)
        return rows.reshape(*output.shape[:2], 1).expand(output.shape)

    handle = match.call.module.register_forward_hook(count_rows)
    try:
        counted = run_again().reshape(len(match.z), -1)[:, 0]
    finally:
        handle.remove()
    rows = counted.to(torch.int64)
    if bool((rows != counted).any()) or not torch.equal(z.flatten(0, 1)[rows], match.z):
        raise InputError(
            f"model: layer {match.call.name!r} gives several tokens of a record the same outputs, and which of them "
            "the model returns cannot be told; run it in float32, or build a LastLayer from arrays"
        )
    return replace(match, x=x.flatten(0, 1)[rows], doubtful=False)


def _several_rows(call: Call, count: int) -> InputError:
    shape = tuple(call.input.shape) if call.input is not None else ()
    return InputError(
        f"model: its last linear layer sees inputs of shape {shape} for {count} records; noshadow needs one feature "
        "vector per record (models that predict a token or pixel at a time are not supported)"
    )


def _no_head(calls: list[Call], outputs: Mapping[Any, Tensor], count: int, layer: str | None) -> InputError:
    if layer is not None:
        shown = listed(outputs) if None not in outputs else "its result"
        return InputError(
            f"layer: what {layer!r} gives is no output of the model ({shown}), as it is or through softmax or sigmoid; "
            "choose a layer whose outputs the model returns, or build a LastLayer from arrays"
        )
    rows = {len(result) for result in outputs.values() if result.ndim}
    if count not in rows:
        shapes = ", ".join(str(tuple(result.shape)) for result in outputs.values())
        return InputError(f"model: it gives outputs of shape {shapes} for {count} records, not a row per record")
    if not calls:
        return InputError("model: no layer with parameters ran; expected a network that ends in an nn.Linear")
    if any(call.output is None for call in calls):
        return InputError(
            "model: no layer whose results could be kept gave the model's outputs, and this batch is too large to keep "
            "all; pass a smaller batch_size=, or name the last layer with layer="
        )
    last = calls[-1]
    if isinstance(last.module, nn.Linear):
        return InputError(
            "model: its outputs disagree with its last nn.Linear: what the layer gives is changed before it is "
            "returned (other than by softmax or sigmoid); return the layer's outputs, or build a LastLayer from arrays"
        )
    return InputError(
        f"model: the last layer with parameters on the way to the output is a {type(last.module).__name__}, not an "
        "nn.Linear; noshadow needs a final linear layer (build a LastLayer from arrays if there is one in another form)"
    )
