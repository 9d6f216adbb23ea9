"""PyTorch modules: the last linear layer, found by watching one batch go through, and its inputs for every record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from noshadow.errors import InputError
from noshadow.extract.found import Extracted
from noshadow.extract.guess import guess_head
from noshadow.layer import LastLayer, as_tensor
from noshadow.objective import Objective, ridge_of_weight_decay
from noshadow.progress import progress_bar

_LABEL_KEYS = ("labels", "label", "targets", "target", "y")


def extract_torch(
    model: nn.Module,
    data: Any,
    objective: Objective,
    *,
    layer: str | None = None,
    output: str | int | None = None,
    batch_size: int = 256,
    progress: bool | None = None,
) -> Extracted:
    """One forward pass over the data in the dataset's order, in eval mode, without gradients.

    weight_decay λ, on a mean loss, becomes Λ = nλ and the like (``ridge_of_weight_decay``); ridge gives Λ itself.
    """
    anchor = next(model.parameters(), torch.zeros(0))
    device = anchor.device
    loader, total = _ordered(data, batch_size, anchor.dtype)
    features, outputs, targets = [], [], []
    linear: nn.Linear | None = None
    with evaluating(model), torch.no_grad(), progress_bar("Extracting", total, progress) as advance:
        for batch in loader:
            inputs, target = _split(batch)
            with _watch(model if linear is None else linear) as calls:
                result = _first_tensor(model(*_place(inputs.args, device), **_place_items(inputs.kwargs, device)))
            if linear is None:
                linear = _find_head(calls, result)
            x, z = _head_call(calls, linear, len(target))
            features.append(x.cpu())
            outputs.append(z.cpu())
            targets.append(target.cpu())
            advance(len(target))
    if linear is None:
        raise InputError("data: it has no records")
    y, z = torch.cat(targets), torch.cat(outputs)
    kind = guess_head(z, y, objective)
    found = LastLayer(
        torch.cat(features),
        z,
        y,
        head=kind,
        ridge=ridge_of_weight_decay(objective, kind, z, y) if objective.ridge is None else objective.ridge,
        bias=linear.bias is not None,
        sample_weight=objective.sample_weight,
        class_weight=objective.class_weight,
        label_smoothing=objective.label_smoothing or 0.0,
    )
    return Extracted(found, type(model).__name__)


def _ordered(data: Any, batch_size: int, dtype: torch.dtype) -> tuple[Iterable[Any], int | None]:
    """Batches in the dataset's order, every record once, and the number of records where it is known."""
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            if data.drop_last:
                raise InputError("data: the loader drops the last batch of a stream; make it with drop_last=False")
            return data, None
        if data.batch_sampler is None:
            sampler: Any = data.sampler
        else:
            sampler = getattr(data.batch_sampler, "sampler", None)
        if not isinstance(sampler, (SequentialSampler, RandomSampler)):
            raise InputError(
                f"data: the loader draws records with a {type(sampler).__name__}, so their order and number are not "
                "those of the dataset; pass the Dataset itself (a torch.utils.data.Subset for a part of one)"
            )
        ordered: DataLoader[Any] = DataLoader(
            data.dataset,
            batch_size=data.batch_size or batch_size,
            shuffle=False,
            drop_last=False,
            collate_fn=data.collate_fn if data.batch_size else None,
            num_workers=data.num_workers,
        )
        return ordered, len(cast(Sized, data.dataset))
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=batch_size), None
    if isinstance(data, (tuple, list)) and len(data) == 2 and not isinstance(data, Dataset):
        x, y = as_tensor(data[0], "data[0]"), as_tensor(data[1], "data[1]")
        if len(x) != len(y):
            raise InputError(f"data: X has {len(x)} rows, y has {len(y)}")
        data = TensorDataset(x.to(dtype) if x.is_floating_point() else x, y)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(f"data: expected a Dataset, a DataLoader or (X, y), got {type(data).__name__}")
    return DataLoader(data, batch_size=batch_size, shuffle=False), len(data)


class _Inputs:
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs


def _split(batch: Any) -> tuple[_Inputs, Tensor]:
    """Inputs and targets of a batch: (x, …, y), or a mapping with the targets under 'labels' or a like name."""
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        if key is None:
            raise InputError(f"data: batches are mappings without any of the keys {', '.join(_LABEL_KEYS)}")
        return _Inputs((), {k: v for k, v in batch.items() if k != key}), torch.as_tensor(batch[key])
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return _Inputs(tuple(batch[:-1]), {}), torch.as_tensor(batch[-1])
    raise InputError("data: each record must be (x, y), or a mapping with its target under 'labels'")


def _place(values: Iterable[Any], device: torch.device) -> list[Any]:
    return [value.to(device) if isinstance(value, Tensor) else value for value in values]


def _place_items(values: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return dict(zip(values, _place(values.values(), device), strict=True))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for every submodule; each gets its own mode back, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _watch(root: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Record (module, input, output) of every call of a module that has parameters of its own, in order."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            calls.append((module, args[0].detach(), output.detach()))

    handles = [
        module.register_forward_hook(note)
        for module in root.modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _first_tensor(result: Any) -> Tensor:
    """The outputs of a model that returns a tensor, a mapping or object with logits, or a tuple."""
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise InputError(f"model: its output is a {type(result).__name__} without a tensor of outputs")


def _find_head(calls: list[tuple[nn.Module, Tensor, Tensor]], result: Tensor) -> nn.Linear:
    """The nn.Linear whose output is the model's output, as it is or through a final softmax or sigmoid."""
    for module, _, output in reversed(calls):
        if isinstance(module, nn.Linear) and _is_output(output, result):
            return module
    if not calls:
        raise InputError("model: no layer with parameters ran; expected a network that ends in an nn.Linear")
    last = type(calls[-1][0]).__name__
    if last == "Linear":
        raise InputError(
            "model: its outputs disagree with its last nn.Linear: what the layer gives is changed before it is "
            "returned (other than by softmax or sigmoid); return the layer's outputs, or build a LastLayer from arrays"
        )
    raise InputError(
        f"model: the last layer with parameters on the way to the output is a {last}, not an nn.Linear; "
        "noshadow needs a final linear layer (build a LastLayer from arrays if there is one in another form)"
    )


def _is_output(output: Tensor, result: Tensor) -> bool:
    if output.numel() != result.numel() or output.shape[0] != result.shape[0]:
        return False
    shaped = output.reshape(result.shape)
    candidates = [shaped, torch.sigmoid(shaped)]
    if result.ndim >= 2:
        candidates += [torch.softmax(shaped, -1), torch.log_softmax(shaped, -1)]
    return any(torch.equal(result, same) or torch.allclose(result, same, rtol=1e-5, atol=1e-7) for same in candidates)


def _head_call(calls: list[tuple[nn.Module, Tensor, Tensor]], linear: nn.Linear, count: int) -> tuple[Tensor, Tensor]:
    """Features and outputs of the head's last call in a batch, each (count, ·)."""
    x, z = next((x, z) for module, x, z in reversed(calls) if module is linear)
    if x.ndim != 2 or len(x) != count:
        raise InputError(
            f"model: its last linear layer sees inputs of shape {tuple(x.shape)} for {count} records; noshadow needs "
            "one feature vector a record (models that predict a token or pixel at a time are not supported)"
        )
    return x, z
